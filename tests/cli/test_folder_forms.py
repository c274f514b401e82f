"""`ort-dynq rewrite` of folders in further forms of onnxruntime-genai's builder."""

from __future__ import annotations

from pathlib import Path

import genai_folders
import numpy as np
import onnx
import pytest
from benching import skip_opening
from commands import run_json

from ort_dynq import cli


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    skip_opening(monkeypatch)


@pytest.mark.parametrize("name", ["float16", "qdq", pytest.param("cache8", marks=pytest.mark.exhaustive), "cache4"])
def test_verify_other_folders(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights behind DequantizeLinear, and caches of float16, of int8, and of two codes in a byte."""
    genai_folders.filled(name, Path("other"))
    models = run_json(capsys, "rewrite", "other", "-o", "fast", "--verify", "--no-timing")["models"]
    verification = models["model.onnx"]["verification"]
    assert verification["passed"]
    (key,) = (each for each in verification["inputs"] if each["name"] == "past_key_values.0.key")
    dtypes = {"float16": "float16", "qdq": "float32", "cache8": "int8", "cache4": "uint8"}
    assert key["dtype"] == dtypes[name]
    assert cli.main(["bench-generate", "other", "--rewritten", "fast", "--seconds", "0.01", "--tokens", "3"]) == 0


@pytest.mark.parametrize("name", ["tied", "tied8"])
def test_tied_embeddings_are_stored_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The rows of the embedding are gathered from the packed weights of the last product."""
    genai_folders.filled(name, Path("tied"))
    report = run_json(capsys, "rewrite", "tied", "-o", "fast", "--verify")["models"]["model.onnx"]
    assert report["unconverted"] == []
    assert report["verification"]["passed"]
    model = onnx.load("fast/model.onnx", load_external_data=False)
    sizes = [np.prod(each.dims) for each in model.graph.initializer if len(each.dims) == 4]
    assert sizes.count(256 * 64 // (1 if name == "tied8" else 2)) == 1
    data = [sum(path.stat().st_size for path in Path(folder).glob("*.data")) for folder in ("tied", "fast")]
    assert data[1] < 1.1 * data[0]
