"""The progress of a command if stderr is no terminal."""

from __future__ import annotations

import re
import time
from pathlib import Path

import onnx
import pytest
from bench import transformers

from ort_dynq import cli
from ort_dynq.cli import render


def test_progress_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """A line in the log now and then, unless it is quiet."""
    monkeypatch.setattr(render, "_LOG_SECONDS", 0.01)
    for is_silent in (False, True):
        with render.silent(is_silent), render.progress() as track:
            for _ in track(["first step", "second step"]):
                time.sleep(0.1)
        assert ("2 of 2: second step (0 s)\n" in capfd.readouterr().err) != is_silent


def test_layers_of_large_models_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "_LOG_SECONDS", 1e-4)
    monkeypatch.setattr("ort_dynq.cli.quantize._LARGE", 1)
    onnx.save(transformers.encoder("float", layers=1, hidden=256, heads=4), tmp_path / "float.onnx")
    assert cli.main(["quantize", str(tmp_path / "float.onnx"), "-o", str(tmp_path / "o.onnx"), "--no-timing"]) == 0
    lines = re.findall(r"^quantizing .*float.onnx: layer (\d+) of 6 \(0 s\)$", capfd.readouterr().err, re.MULTILINE)
    assert lines == sorted(lines)
    assert lines
