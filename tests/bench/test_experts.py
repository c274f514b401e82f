"""`python tests/bench experts`: its JSON and text."""

from __future__ import annotations

import onnxruntime as ort
import pytest
from benching import run_developers, run_developers_json

HAS_LEVELS = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 32)
pytestmark = pytest.mark.skipif(not HAS_LEVELS, reason="QMoE has no accuracy_level before ONNX Runtime 1.32")
ARGUMENTS = ("experts", "--tokens", "3", "--size", "64", "--threads", "1")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_developers_json(capsys, *ARGUMENTS)
    assert (data["size"], data["block_size"], len(data["timings"])) == (64, 32, 8)
    for each in data["timings"]:
        assert each["ratio"] == pytest.approx(each["stock_us"] / each["ours_us"])


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_developers(capsys, *ARGUMENTS, "--group-size", "16").splitlines()
    assert "medians in us; experts of 64 elements with gates, blocks of 16; ratio: QMoE / ort_dynq" in lines
    assert sum("two-term" in line for line in lines) == 2
