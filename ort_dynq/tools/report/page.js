"use strict";
document.documentElement.classList.add("js");
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const name = JSON.parse(button.dataset.name);
  try {
    await navigator.clipboard.writeText(name);
  } catch {
    const area = document.createElement("textarea");
    area.value = name;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});
