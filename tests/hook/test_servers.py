"""What a server needs at least: numpy, ml_dtypes and onnxruntime. There is nothing else in these tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import helpers
import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hooked import MODEL, run
from onnx import numpy_helper

import ort_dynq

PROGRAM = """
import logging, sys
import numpy as np, onnxruntime as ort, ort_dynq

logging.basicConfig(level=logging.WARNING)
sessions = ort_dynq.install(quantize=True, inputs=1)
session = ort.InferenceSession(sys.argv[1])
rng = np.random.default_rng(0)
feeds = {
    each.name: rng.standard_normal([dim if isinstance(dim, int) else 3 for dim in each.shape]).astype(np.float32)
    for each in session.get_inputs()
}
print([each.state for each in sessions], [output.tobytes().hex() for output in session.run(None, feeds)])
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a server has installed."""
    folder = tmp_path_factory.mktemp("server")
    for package in (np, ml_dtypes, ort):
        source = Path(str(package.__file__)).parent
        for path in (source, source.with_name(f"{source.name}.libs")):
            if path.exists():
                (folder / path.name).symlink_to(path)
    shutil.copytree(Path(ort_dynq.__file__).parent, folder / "ort_dynq", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ort_dynq.get_library_path(), folder / "ort_dynq")
    return folder


def served(server: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a program with the packages of a server: -S leaves out the installed ones."""
    command = [sys.executable, "-S", "-c", program, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(server)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done


def float_model(path: Path) -> Path:
    model = helpers.parse("float[n, 256] x", "float[n, 256] y", "y = MatMul(x, w)")
    weights = np.random.default_rng(1).standard_normal((256, 256)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    del model.opset_import[1:]
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("kind", ["rewritten", "quantized", "unchanged", "registered"])
def test_models_that_the_cache_has(kind: str, server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another stage of a container has filled the cache."""
    monkeypatch.setattr("ort_dynq.hook.measurement._MAX_TIME_RATIO", 1e9)
    path = MODEL if kind == "rewritten" else tmp_path / "model.onnx"
    if kind == "registered":
        ort_dynq.rewrite(MODEL).save(path)
    elif kind == "quantized":
        float_model(path)
    elif kind == "unchanged":
        onnx.save(helpers.parse("float[n, 4] x", "float[n, 4] y", "y = Relu(x)"), path)
    with ort_dynq.installed(quantize=True, inputs=1):
        run(ort.InferenceSession(path))
        expected = run(ort.InferenceSession(path))
    found = served(server, PROGRAM, str(path))
    assert not [line for line in found.stderr.splitlines() if "cpuid_info" not in line]
    assert found.stdout == f"['{kind}'] {[each.hex() for each in expected]}\n"


def test_models_that_were_rewritten_need_no_cache(server: Path, tmp_path: Path) -> None:
    path = tmp_path / "fast.onnx"
    ort_dynq.rewrite(MODEL).save(path)
    expected = run(ort.InferenceSession(path, ort_dynq.register(ort.SessionOptions())))
    assert served(server, PROGRAM, str(path)).stdout == f"['registered'] {[each.hex() for each in expected]}\n"
    registered = (
        "import ort_dynq, sys, onnxruntime as ort\n"
        "ort.InferenceSession(sys.argv[1], ort_dynq.register(ort.SessionOptions()))"
    )
    served(server, registered, str(path))


def test_models_that_the_cache_lacks_stay(server: Path) -> None:
    assert served(server, PROGRAM, str(MODEL)).stdout.startswith("['unchanged']")


def test_the_command_runs_programs(server: Path, tmp_path: Path) -> None:
    with ort_dynq.installed():
        ort.InferenceSession(MODEL)
    app = tmp_path / "app.py"
    app.write_text(f"import onnxruntime\nonnxruntime.InferenceSession({str(MODEL)!r})\n")
    program = "import sys\nfrom ort_dynq.cli import main\nsys.exit(main(['run', sys.executable, '-c', sys.argv[1]]))"
    assert "ort-dynq: 1 session: 1 rewritten" in served(server, program, app.read_text()).stderr
