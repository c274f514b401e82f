"""Runs `ort-dynq bench` for a very short time. No test checks how long something takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ort_dynq import cli
from ort_dynq.measuring import timing

MODELS = Path(__file__).parents[2] / "models"
TOKEN = str(MODELS / "torch_token" / "model.onnx")
QUICK = timing.Settings(seconds=0.001, warmup=1)
TIMES = {"median_ms", "p90_ms", "p99_ms", "mean_ms", "calls"}


def run_bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["bench", *arguments, "--seconds", "0.001", "--warmup", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def run_bench_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run_bench(capsys, *arguments, "--json"))


def check_latency(latency: dict[str, float]) -> None:
    assert latency.keys() == TIMES
    assert 0 < latency["median_ms"] <= latency["p90_ms"] <= latency["p99_ms"]
    assert latency["mean_ms"] > 0
    assert latency["calls"] >= 5
