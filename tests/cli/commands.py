"""Runs `ort-dynq` as a program, or in this process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ort_dynq
from ort_dynq import cli
from ort_dynq.cli.command import SCHEMA

MODELS = Path(__file__).parents[2] / "models"
ENCODER = MODELS / "torch_encoder_u8" / "model.onnx"


def run(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m ort_dynq`` with the package that the tests import."""
    environment = {**os.environ, "PYTHONPATH": str(Path(ort_dynq.__file__).parent.parent)}
    command = [sys.executable, "-m", "ort_dynq", *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> Any:
    """Returns the JSON of a command without the fields that all commands have."""
    assert cli.main([*arguments, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    data = json.loads(captured.out)
    head = {name: data.pop(name) for name in ("schema", "command", "exit_status")}
    assert head == {"schema": SCHEMA, "command": arguments[0], "exit_status": status}
    return data
