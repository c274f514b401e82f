"""Mutated models: what stock ONNX Runtime opens and runs, opens after a rewrite and gives the same bits."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import Array, assert_same, make_session, stock_session
from mutations import mutate
from rewriting import FOLDERS, MODELS, one_nan, tensors

from ort_dynq import DynqError
from ort_dynq.rewriter import rewrite

_LARGEST = 1 << 24  # bytes: a mutation may make results huge


def outputs_of(session: ort.InferenceSession, inputs: dict[str, Array]) -> list[Any] | None:
    """Returns the outputs; None if the run fails."""
    try:
        return list(session.run(None, inputs))
    except Exception:
        return None


def _is_sound(model: onnx.ModelProto, inputs: dict[str, Array], expected: list[Any]) -> bool:
    """Returns whether declared shapes do not matter: where they are wrong, ONNX Runtime may overwrite results."""
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.graph.value_info[:]
    try:
        actual = outputs_of(stock_session(plain), inputs)
    except Exception:
        return False
    return actual is not None and all(
        np.array_equal(one_nan(np.asarray(mine)), one_nan(np.asarray(its)), equal_nan=True)
        for mine, its in zip(actual, expected, strict=True)
    )


def check_mutated(name: str, seed: int) -> None:
    model = onnx.load(MODELS / name / "model.onnx")
    what = f"seed {seed}: {mutate(model, random.Random(f'{name} {seed}'))}"
    inputs = tensors(MODELS / name / "test_data_set_0", "input")
    try:
        stock = stock_session(model)
    except Exception:
        with contextlib.suppress(DynqError):
            rewrite(model)
        return
    expected = outputs_of(stock, inputs)
    if expected is not None and not _is_sound(model, inputs, expected):
        return
    for exact in (True, False):
        result = rewrite(model, exact=exact)
        if not result.report.rewritten:
            continue
        converted = result.to_proto().SerializeToString()
        for session in (make_session(converted, "native"), make_session(converted, "native", optimize=True)):
            actual = outputs_of(session, inputs)
            if expected is None:
                continue
            assert actual is not None, what
            if exact and session.get_session_options().graph_optimization_level == 0:
                for mine, its in zip(actual, expected, strict=True):
                    assert_same(one_nan(np.asarray(mine)), one_nan(np.asarray(its)))


@pytest.mark.parametrize("name", FOLDERS)
def test_mutated(name: str) -> None:
    check_mutated(name, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOLDERS)
def test_more_mutated(name: str) -> None:
    for seed in range(1, 60):
        check_mutated(name, seed)
