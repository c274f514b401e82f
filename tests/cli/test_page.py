"""``--report`` of rewrite, quantize and bench: the page beside what the command itself does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from bench import transformers
from commands import MODELS

from ort_dynq import cli

CHAIN = MODELS / "torch_token" / "model.onnx"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: float.onnx, and sets.npz with two sets for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ort_dynq.cli.page._SECONDS", 0.01)
    onnx.save(transformers.encoder("float", layers=1, hidden=256, heads=4), "float.onnx")
    values = np.random.default_rng(0).standard_normal((2, 1, 4, 256), np.float32)
    np.savez("sets.npz", x=values)
    return tmp_path


def test_rewrite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["rewrite", str(CHAIN), "-o", "fast.onnx", "--report", "page.html", "--no-timing", "--json"]
    assert cli.main(command) == 0
    assert json.loads(capsys.readouterr().out)["report"] == "page.html"
    assert "Verification" in Path("page.html").read_text(encoding="utf-8")
    assert Path("fast.onnx").is_file()


def test_quantize(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["quantize", "float.onnx", "-o", "int8.onnx", "--data", "sets.npz", "--report", "page.html"]
    assert cli.main([*command, "--no-timing"]) == 0
    assert "page.html is written" in capsys.readouterr().out
    page = Path("page.html").read_text(encoding="utf-8")
    assert "On 2 sets of data from sets.npz" in page
    assert "6 layers quantized: int8.onnx" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("quantize", "float.onnx", "-o", "float.onnx", "--force", "--report", "p.html"), "which would be replaced"),
        (("bench", "float.onnx", "--opening", "--report", "p.html"), "does not measure --opening; run them apart"),
        (("bench", "float.onnx", "--threads", "1,2", "--report", "p.html"), "takes one number of threads"),
        (("bench", ".", "--report", "p.html"), "--report is for single models, and . is a folder"),
        (("rewrite", "float.onnx", "-o", "o.onnx", "--report", "p.pdf"), "the report is an HTML page"),
        (("quantize", "float.onnx", "-o", "o.onnx", "--report", "none/p.html"), "there is no folder none"),
    ],
)
def test_errors(folder: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, and the model stays."""
    before = Path("float.onnx").read_bytes()
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert Path("float.onnx").read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["float.onnx", "sets.npz"]
