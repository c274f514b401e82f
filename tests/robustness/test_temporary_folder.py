"""A temporary folder that is full or missing is an error of one line. It changes no result and blames no model."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import hostile_models
import numpy as np
import onnx_ir as ir
import pytest
from helpers import with_small_files

import ort_dynq
from ort_dynq import runtime, storage
from ort_dynq.rewriter import rewrite
from ort_dynq.tools.measuring.profile import profile

HALF = hostile_models.ROOT / "models" / "torchao_half" / "model.onnx"
FLOAT = hostile_models.ROOT / "models" / "torchao_8da8w" / "model.onnx"
ADVICE = "free some space there, or set the environment variable TMPDIR to another folder"


def test_a_full_folder(tmp_path: Path) -> None:
    """The rewriter asks ONNX Runtime where it rounds a float16 model; it used to leave the chains without an answer."""
    done = subprocess.run(
        with_small_files([sys.executable, "-m", "ort_dynq", "inspect", str(HALF)], 2),
        capture_output=True,
        text=True,
        env={**hostile_models.environment(), "TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"ort-dynq: error: the temporary folder {tmp_path}/tmp")
    assert done.stderr.endswith(f"; {ADVICE}\n")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("tmp*"))


def test_a_full_folder_for_a_large_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A session of a model beyond 2 GB in memory is opened from a temporary file."""
    monkeypatch.setattr(storage, "_MAX_PROTO", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = ir.load(FLOAT)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(ort_dynq.DynqError) as caught:
            runtime.open_session(model, runtime.session_options())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value).startswith(f"the temporary folder {tmp_path}/tmp")
    assert str(caught.value).endswith(f" cannot be written: File too large; {ADVICE}")


def test_a_profile_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """onnxruntime writes a part of it without an error."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, before[1]))
    try:
        with pytest.raises(ort_dynq.DynqError) as caught:
            profile(FLOAT, {"x": np.ones((2, 8, 20), np.float32)}, seconds=0.01)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value).startswith(f"the temporary folder {tmp_path}/tmp")
    assert str(caught.value).endswith(f" cannot be written: the profile is incomplete; {ADVICE}")


def of_float16() -> object:
    return rewrite(HALF)


def of_a_large_model() -> object:
    return runtime.open_session(ir.load(FLOAT), runtime.session_options())


@pytest.mark.parametrize("use", [of_float16, of_a_large_model])
def test_a_missing_folder(use: Callable[[], object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(storage, "_MAX_PROTO", 100)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ort_dynq.DynqError) as caught:
        use()
    found = f"a temporary folder cannot be created in {tmp_path}/none: No such file or directory; {ADVICE}"
    assert str(caught.value) == found


def test_no_usable_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Python tries several folders, and names them."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: [str(tmp_path / "none")])
    with pytest.raises(ort_dynq.DynqError) as caught:
        rewrite(HALF)
    assert str(caught.value) == (
        f"a temporary folder cannot be created: No usable temporary directory found in ['{tmp_path}/none']; {ADVICE}"
    )


def test_a_model_that_onnxruntime_refuses(tmp_path: Path) -> None:
    """It stays as it is, and the temporary folder is not blamed."""
    model = ir.load(HALF)
    next(node for node in model.graph if node.op_type == "Gelu").op_type = "NoSuchOperator"
    assert not runtime.can_open(model)
    assert rewrite(model).report.unconverted


def test_a_full_folder_for_external_data(tmp_path: Path) -> None:
    """NumPy, which writes them, says only how many elements were written."""
    model = ir.load(FLOAT)
    model.graph.initializers["large"] = ir.val(
        "large", const_value=ir.tensor(np.ones(1 << 20, np.float32), name="large")
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(ort_dynq.DynqError) as caught:
            storage.save(model, tmp_path / "out.onnx", apart=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert str(caught.value) == (f"{tmp_path}/out.onnx cannot be written: No space left on device, or file too large")
