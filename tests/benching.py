"""Runs `ort-dynq bench` and `python tests/bench` for a very short time. No test checks how long something takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bench import cli as developers
from bench import product_contenders

from ort_dynq import cli
from ort_dynq.tools.bench import generation, opening
from ort_dynq.tools.measuring import timing

MODELS = Path(__file__).parents[1] / "models"
TOKEN = str(MODELS / "torch_token" / "model.onnx")
QUICK = timing.Settings(seconds=0.001, warmup=1)
_SHORT = ("--seconds", "0.001", "--warmup", "1")
TIMES = {"min_ms", "median_ms", "p90_ms", "p99_ms", "mean_ms", "calls"}


def run_bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs `ort-dynq bench`."""
    return _output(capsys, cli.main(["bench", *arguments, *_SHORT]))


def run_bench_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Runs `ort-dynq bench` and returns its JSON."""
    return json.loads(run_bench(capsys, *arguments, "--json"))


def run_developers(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs `python tests/bench`."""
    return _output(capsys, developers.main([*arguments, *_SHORT]))


def take_two_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products multiply by two weights in turn instead of 64 MB of them, and threads read these only once."""
    monkeypatch.setattr(product_contenders, "_MAX_COPIES", 2)
    monkeypatch.setattr(product_contenders, "_LONG_READ_BYTES", 1)


def skip_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench-generate` measures no opening of sessions, for which it starts processes."""
    monkeypatch.setattr(generation, "measure_opening", lambda *_: (opening.Opening(1.0, None),) * 2)


def run_developers_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """Runs `python tests/bench` and returns its JSON."""
    return json.loads(run_developers(capsys, *arguments, "--json"))


def _output(capsys: pytest.CaptureFixture[str], status: int) -> str:
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


def check_latency(latency: dict[str, float]) -> None:
    assert latency.keys() == TIMES
    assert 0 < latency["min_ms"] <= latency["median_ms"] <= latency["p90_ms"] <= latency["p99_ms"]
    assert latency["mean_ms"] > 0
    assert latency["calls"] >= 5
