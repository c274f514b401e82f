"""The memory that a command takes for a large model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TESTS = str(Path(__file__).parents[1])
WRITE = """
import onnx
from bench.transformers import encoder
onnx.save(encoder("float", layers=12, hidden=1024, heads=16), "float.onnx")
"""
MEASURE = """
import json, resource, sys
from ort_dynq import cli
status = cli.main(sys.argv[1:])
print(json.dumps([status, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024]), file=sys.stderr)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="other systems count in other units")
@pytest.mark.parametrize("options", [(), ("--verify", "--data", "samples.npz")], ids=["default", "verify"])
def test_quantize_takes_twice_the_memory_of_the_model(options: tuple[str, ...], tmp_path: Path) -> None:
    """A model of 605 MB, with the timing of both models. Stock ONNX Runtime alone takes 1.07 GB to open it."""
    # In a process of its own: a child begins with the peak of its parent.
    subprocess.run([sys.executable, "-c", WRITE], cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": TESTS})
    np.savez(tmp_path / "samples.npz", x=np.random.default_rng(0).standard_normal((4, 1, 64, 1024), np.float32))
    command = [sys.executable, "-c", MEASURE, "quantize", "float.onnx", "-o", "int8.onnx", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    status, peak = json.loads(done.stderr.splitlines()[-1])
    assert status == 0
    assert peak < 1.2 * 2**30
    assert peak < 2.1 * (tmp_path / "float.onnx").stat().st_size
