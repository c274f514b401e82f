"""Shared by the tests of programs that open their own sessions: models, sessions, and what is expected of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from ort_dynq.hook import Sessions, patch
from ort_dynq.runtime import session_options

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "models" / "torch_token" / "model.onnx"
FLOAT = ROOT / "models" / "float_encoder" / "model.onnx"
CPU = ["CPUExecutionProvider"]


def feeds(session: ort.InferenceSession, seed: int = 0) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(seed), {}
    for each in session.get_inputs():
        shape = [dim if isinstance(dim, int) else 3 for dim in each.shape]
        found[each.name] = rng.standard_normal(shape).astype(np.float32)
    return found


def run(session: ort.InferenceSession, seed: int = 0) -> list[bytes]:
    return [output.tobytes() for output in session.run(None, feeds(session, seed))]


def stock(path: Path = MODEL) -> list[bytes]:
    """The model's own results: ONNX Runtime without optimizations."""
    assert patch.active() is None
    return run(ort.InferenceSession(path, session_options(optimize=False), providers=CPU))


def is_rewritten(session: ort.InferenceSession) -> bool:
    return any(key.startswith("ort_dynq.") for key in session.get_modelmeta().custom_metadata_map)


def error_of(function: Callable[[], object]) -> Exception | None:
    """The error of a call: its type is onnxruntime's own."""
    try:
        function()
    except Exception as error:
        return error
    return None


def states(sessions: Sessions) -> list[str]:
    return [each.state for each in sessions]


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.functions[:]
    return model
