"""Mutated models: if stock ONNX Runtime opens and runs a model, it opens after a rewrite and gives the same bits."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import Array, assert_same, make_session, stock_session, with_one_nan
from mutations import mutate
from near_misses import near_miss
from onnx import TensorProto, helper, numpy_helper
from rewriting import FOLDERS, MODELS, WHOLE_CHAIN, check, found, parse, rows, tensors

from ort_dynq import DynqError
from ort_dynq.rewriter import rewrite

_MAX_VALUE = 1 << 24  # bytes: a mutation may make results huge


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
        np.array_equal(with_one_nan(np.asarray(mine)), with_one_nan(np.asarray(its)), equal_nan=True)
        for mine, its in zip(actual, expected, strict=True)
    )


def _quantizes_nan(model: onnx.ModelProto, inputs: dict[str, Array]) -> bool:
    """Returns whether a DynamicQuantizeLinear reads NaN, which ONNX Runtime's treats by its position (numerics.md)."""
    names = {node.input[0] for node in model.graph.node if node.op_type == "DynamicQuantizeLinear"}
    if not names:
        return False
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sorted(names))
    values = outputs_of(stock_session(watched), inputs)
    return values is not None and any(np.isnan(value).any() for value in values)


def check_mutated(name: str, seed: int, change: Callable[[onnx.ModelProto, random.Random], str] = mutate) -> None:
    model = onnx.load(MODELS / name / "model.onnx")
    what = f"seed {seed}: {change(model, random.Random(f'{name} {seed}'))}"
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
    is_defined = not _quantizes_nan(model, inputs)
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
            if exact and is_defined and session.get_session_options().graph_optimization_level == 0:
                for mine, its in zip(actual, expected, strict=True):
                    assert_same(with_one_nan(np.asarray(mine)), with_one_nan(np.asarray(its)))


@pytest.mark.parametrize("name", FOLDERS[::16])
def test_mutated(name: str) -> None:
    check_mutated(name, 0)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOLDERS)
def test_more_mutated(name: str) -> None:
    for seed in range(1, 3):
        check_mutated(name, seed)


@pytest.mark.parametrize("name", FOLDERS[1::13])
def test_near_misses(name: str) -> None:
    check_mutated(name, 0, near_miss)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FOLDERS)
def test_more_near_misses(name: str) -> None:
    for seed in range(1, 3):
        check_mutated(name, seed, near_miss)


def test_declared_shapes_that_hide_an_error() -> None:
    """Without the wrong shape, ONNX Runtime does not open the model; a rewrite would drop it."""
    model = parse(f"{WHOLE_CHAIN} m = ReduceMax<keepdims = 0>(y, one) out = Mul(x, m)", inputs="float[5, 7] x")
    model.graph.output[0].name = "out"
    with pytest.raises(Exception, match="Incompatible dimensions"):
        stock_session(model)
    model.graph.value_info.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [5, 1]))
    stock_session(model)
    result = rewrite(model)
    assert [finding.reason for finding in result.report.unconverted] == [
        "declared shapes hide an error of the model from ONNX Runtime: Mul: Incompatible dimensions"
    ]
    stock_session(result.to_proto())
    model.graph.node[-1].input[1] = "y"  # the declared shape is still wrong, but hides nothing
    assert "RowProgram" in found(check(model, {"x": rows((5, 7))}))


def test_a_declared_shape_of_an_initializer_counts_for_nothing() -> None:
    model = parse(f"{WHOLE_CHAIN.replace('y = Mul', 'f = Mul')} m = MatMul(f, weights) y = Add(m, bias)")
    for name, shape in (("weights", (7, 3)), ("bias", (1, 3))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(shape, np.float32), name))
    model.graph.value_info.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [3]))
    x = {"x": rows((5, 7))}
    converted = rewrite(model).to_proto()
    assert "QuantizedMatMul" in {node.op_type for node in converted.graph.node}
    assert make_session(converted, "native").run(None, x)[0].shape == (5, 3)


@pytest.mark.parametrize("to", [0, 99, -1, 2**33 + 1, -(2**63)])
def test_casts_to_no_type(to: int) -> None:
    """ONNX Runtime opens some of them if the type of the result is declared; 2**33 + 1 is float32 to it."""
    model = parse(f"s = ReduceMax(x) q = QuantizeLinear(x, s) y = Cast<to = {to}>(q)")
    model.graph.value_info.append(helper.make_tensor_value_info("y", TensorProto.FLOAT, [5, 7]))
    assert rewrite(model).report.rewritten


@pytest.mark.parametrize("saturate", [0, 2, -1])
def test_casts_that_do_not_saturate(saturate: int) -> None:
    """ONNX Runtime fails or leaves the codes uninitialized; they stay casts."""
    text = WHOLE_CHAIN.replace("q = Cast<to = 2>", f"q = Cast<to = 2, saturate = {saturate}>")
    converted = rewrite(parse(text, opset=19)).to_proto()
    assert any(attribute.name == "saturate" for node in converted.graph.node for attribute in node.attribute)


@pytest.mark.parametrize("number", [2, -1, -(2**63)])
def test_other_keepdims_than_0_and_1(number: int) -> None:
    """To ONNX Runtime, they are 0."""
    body = WHOLE_CHAIN
    for name in ("ReduceMin", "ReduceMax"):
        body = body.replace(f"{name}(x, one)", f"{name}<keepdims = {number}>(x)")
    assert found(check(parse(body), {"x": rows((5, 7))})) == ["RowProgram"]
