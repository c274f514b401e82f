"""verify: measured differences, generated inputs, errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ort_dynq
from ort_dynq.accuracy import Reference
from ort_dynq.operators import VERSION
from ort_dynq.verification import Comparison

DTYPES = {
    np.float16: TensorProto.FLOAT16,
    np.float32: TensorProto.FLOAT,
    np.float64: TensorProto.DOUBLE,
    np.int8: TensorProto.INT8,
    np.uint8: TensorProto.UINT8,
    np.int64: TensorProto.INT64,
    np.uint64: TensorProto.UINT64,
    np.bool_: TensorProto.BOOL,
}


def constant(values: Any, dtype: Any) -> onnx.ModelProto:
    """Returns a model without inputs and with the constant output y."""
    array = np.asarray(values, dtype)
    tensor = onnx.numpy_helper.from_array(array, "value")
    node = helper.make_node("Constant", [], ["y"], value=tensor)
    output = helper.make_tensor_value_info("y", DTYPES[dtype], array.shape)
    graph = helper.make_graph([node], "g", [], [output])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def compare(a: Any, b: Any, dtype: Any) -> Comparison:
    result = ort_dynq.verify(constant(a, dtype), constant(b, dtype))
    assert (result.status == "failed") == (not result.outputs[0].equal)
    return result.outputs[0]


def model(
    body: str, inputs: str = "float[batch, n] x", outputs: str = "float[batch, n] y", *, opset: int = 17
) -> onnx.ModelProto:
    result = helpers.parse(inputs, outputs, body, opset=opset)
    del result.opset_import[1]
    return result


SCALED = model("s = Constant<value = float {0.1}>() y = Mul(x, s)")


# Differences


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_differences_of_floats(dtype: Any) -> None:
    a = np.array([[0, 1, 2], [3, 4, 5]], dtype)
    b = a.copy()
    b[0, 2] = np.nextafter(b[0, 2], dtype(9))
    b[1, 1] = np.nextafter(np.nextafter(b[1, 1], dtype(0)), dtype(0))
    found = compare(a, b, dtype)
    assert (found.elements, found.differing, found.max_ulp) == (6, 2, 2)
    assert found.max_abs == 4 * np.finfo(dtype).eps
    assert found.first is not None
    assert (found.first.index, found.first.a, found.first.b) == ((0, 2), 2, 2 + 2 * float(np.finfo(dtype).eps))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_ulps_across_zero_and_to_infinity(dtype: Any) -> None:
    info = np.finfo(dtype)
    assert compare([info.smallest_subnormal], [-info.smallest_subnormal], dtype).max_ulp == 2
    assert compare([info.max], [np.inf], dtype).max_ulp == 1
    everything = compare([-np.inf], [np.inf], dtype)
    assert everything.max_abs == math.inf
    assert everything.max_ulp == 2 * int(np.array(np.inf, dtype).view(f"i{info.bits // 8}"))


def test_zeros_of_opposite_sign_differ() -> None:
    found = compare([0.0, 1.0], [-0.0, 1.0], np.float32)
    assert (found.differing, found.max_abs, found.max_ulp) == (1, 0, 0)


def test_all_nans_are_equal() -> None:
    nans = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    same = compare(nans, nans[::-1], np.float32)
    assert same.equal
    assert same.nans == 3
    found = compare([np.nan, 1], [2, 1], np.float32)
    assert (found.nans, found.differing, found.max_abs, found.max_ulp) == (1, 1, None, None)


@pytest.mark.parametrize(
    ("dtype", "a", "b", "largest"),
    [
        (np.int8, -128, 127, 255),
        (np.uint8, 0, 255, 255),
        (np.int64, -(2**63), 2**63 - 1, 2**64 - 1),
        (np.uint64, 0, 2**64 - 1, 2**64 - 1),
        (np.bool_, False, True, 1),
    ],
)
def test_differences_of_integers(dtype: Any, a: int, b: int, largest: int) -> None:
    for pair in ((a, b), (b, a)):
        found = compare([pair[0], 1], [pair[1], 1], dtype)
        assert (found.differing, found.max_abs, found.max_ulp) == (1, largest, None)
    assert compare([a, b], [a, b], dtype).equal


def test_scalar_and_empty_outputs() -> None:
    found = compare(1.5, 2.5, np.float32)
    assert found.first is not None
    assert found.first.index == ()
    assert compare(np.zeros((0, 3)), np.zeros((0, 3)), np.float32).equal


def test_other_shape_or_type_is_a_problem() -> None:
    assert compare([[1, 2]], [1, 2], np.float32).problem == "B gives float32 [2]"
    result = ort_dynq.verify(constant([1], np.float32), constant([1], np.int8))
    assert not result.passed
    assert result.outputs[0].problem == "B gives int8 [1]"


# Incorrect models


def test_scale_that_is_off_by_one_ulp_fails() -> None:
    wrong = model(f"s = Constant<value = float {{{np.nextafter(np.float32(0.1), np.float32(1)):.10}}}>() y = Mul(x, s)")
    result = ort_dynq.verify(SCALED, wrong)
    assert not result.passed
    output = result.outputs[0]
    assert output.max_ulp in (1, 2)
    assert output.first is not None
    assert output.first.index == (0, 0)
    assert 0 < output.differing < output.elements  # the row of zeros does not differ


def test_plugin_runs_in_b_only() -> None:
    """The function body contradicts the operator: stock ONNX Runtime runs the body, the plugin runs the kernel."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "ort_dynq": {VERSION}]>
        g (float[n] x, float s) => (float[n] y) {{ c = ort_dynq.DynamicQuantize(x, s)  y = Cast<to = 1>(c) }}
        <domain: "ort_dynq", opset_import: ["": 17]> DynamicQuantize (src, scales) => (dst)
        {{ one = Constant<value = uint8 {{1}}>()  shape = Shape(src)  dst = Expand(one, shape) }}"""
    contradiction = onnx.parser.parse_model(text)
    inputs = {"x": np.array([2, 4], np.float32), "s": np.array(2, np.float32)}
    first = ort_dynq.verify(contradiction, contradiction, inputs=inputs).outputs[0].first
    assert first is not None
    assert (first.index, first.a, first.b) == ((1,), 1, 2)


def test_b_that_fails_only_at_the_default_level() -> None:
    """ONNX Runtime fuses a per-row DequantizeLinear with a zero point incorrectly; the rewritten model avoids this."""
    path = Path(__file__).parents[2] / "models" / "row_zero_point" / "model.onnx"
    result = ort_dynq.verify(path, path)
    assert [output.equal for output in result.outputs] == [True]
    assert result.default_outputs == ()
    assert result.failure.startswith("B fails at the default optimization level: ")
    assert not result.passed
    assert ort_dynq.verify(path, ort_dynq.rewrite(path).model).passed


def test_b_that_does_not_load() -> None:
    foreign = model("y = foreign.Operator(x)")
    foreign.opset_import.append(helper.make_opsetid("foreign", 1))
    result = ort_dynq.verify(SCALED, foreign)
    assert not result.passed
    assert result.outputs == ()
    assert "B fails with optimizations off" in result.failure
    assert "foreign" in result.failure


# Generated inputs


def test_generated_floats_have_ties_outliers_and_zeros() -> None:
    """A counts elements of the generated input, B returns 0, so that the difference is the count."""
    count = "k = Cast<to = 1>(found) y = ReduceSum<keepdims = 0>(k)"
    unit = "s = Constant<value = float {0.0625}>() q = Div(x, s) size = Abs(q)"
    halves = "whole = Floor(size) rest = Sub(size, whole) h = Constant<value = float {0.5}>() found = Equal(rest, h)"
    outliers = "o = Constant<value = float {127.0}>() found = Equal(size, o)"
    zeros = "o = Constant<value = float {0.0}>() found = Equal(size, o)"
    nothing = model("z = Sub(x, x) y = ReduceSum<keepdims = 0>(z)", outputs="float y")
    found = []
    for what in (halves, outliers, zeros):
        counted = model(f"{unit} {what} {count}", outputs="float y")
        found.append(ort_dynq.verify(counted, nothing, shapes={"x": (16, 32)}).outputs[0].max_abs or 0)
    assert found[0] > 16
    assert found[1] >= 4
    assert found[2] >= 64


def test_zero_rows_are_omitted_if_an_output_becomes_nan() -> None:
    """Every row is divided by its norm, then all are summed: one row of zeros makes the sum NaN."""
    norms = model("n = ReduceL2<axes = [1]>(x) q = Div(x, n) y = ReduceSum<keepdims = 0>(q)", outputs="float y")
    result = ort_dynq.verify(norms, norms, shapes={"x": (8, 5)})
    assert result.outputs[0].nans == 0
    assert not result.zero_rows
    assert ort_dynq.verify(SCALED, SCALED, shapes={"x": (8, 5)}).zero_rows


def test_seed_determines_the_inputs() -> None:
    total = model("y = ReduceSum<keepdims = 0>(x)", outputs="float y")
    negated = model("z = ReduceSum<keepdims = 0>(x) y = Neg(z)", outputs="float y")
    first, again, other = (ort_dynq.verify(total, negated, seed=seed).outputs for seed in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("kind", ["bool", "int8", "uint8", "int32", "int64", "float16", "double"])
def test_every_input_type_is_generated(kind: str) -> None:
    identity = model("y = Identity(x)", f"{kind}[n] x", f"{kind}[n] y")
    result = ort_dynq.verify(identity, identity)
    assert result.passed
    assert result.outputs[0].shape == (8,)


def test_dimensions_of_the_same_name_agree() -> None:
    total = model(
        "sum = Concat<axis = 1>(past, x) y = Add(sum, mask)",
        "float[batch, p] past, float[batch, n] x, float[batch, total] mask",
        "float[batch, total] y",
    )
    total.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "p + n"
    result = ort_dynq.verify(total, total, shapes={"past": (3, 5)})
    assert [each.shape for each in result.inputs] == [(3, 5), (3, 8), (3, 13)]
    assert [dict(each.assumed) for each in result.inputs] == [{}, {"n": 8}, {"n": 8}]


def test_an_input_of_unknown_rank() -> None:
    unknown = model("y = Neg(x)")
    unknown.graph.input[0].type.tensor_type.ClearField("shape")
    result = ort_dynq.verify(unknown, unknown, shapes={"x": (2, 3)})
    assert [each.shape for each in (*result.inputs, *result.outputs)] == [(2, 3), (2, 3)]
    assert ort_dynq.verify(unknown, unknown, inputs={"x": np.zeros((4, 5, 6), np.float32)}).passed


def test_json_has_no_infinity() -> None:
    result = ort_dynq.verify(constant([np.inf, np.nan], np.float32), constant([1, 2], np.float32))
    data = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert data["passed"] is False
    assert data["outputs"][0]["max_abs"] == "inf"
    assert data["outputs"][0]["first"] == {"index": [0], "a": "inf", "b": 1.0}


# Errors


@pytest.mark.parametrize(
    ("b", "arguments", "message"),
    [
        (SCALED, {"inputs": {"z": np.zeros(1)}}, "has no input z; it has x"),
        (SCALED, {"shapes": {"z": (1,)}}, "has no input z; it has x"),
        (SCALED, {"inputs": {"x": np.zeros((2, 2))}}, "x is float64, expected float32"),
        (SCALED, {"inputs": {"x": [[1.0]]}}, "the input x is a list, expected a NumPy array"),
        (SCALED, {"shapes": {"x": (1, 2, 3)}}, r"x has shape \[1, 2, 3\], expected \[batch, n\]"),
        (SCALED, {"shapes": {"x": (10**9, 10**9)}}, "x cannot be generated"),
        (model("y = Neg(z)", "float[batch, n] z"), {}, "only A has input x .* only B has input z"),
        (model("z = Neg(x)", outputs="float[batch, n] z"), {}, "only A has output y; only B has output z"),
        (
            model("y = Neg(x)", "double[batch, n] x", "double[batch, n] y"),
            {},
            r"only B has input x of type tensor\(dou",
        ),
        ("missing.onnx", {}, r"B \(missing.onnx\) is not a file"),
        (b"not a model", {}, "B is not an ONNX model"),
        (ort_dynq.rewrite(SCALED), {}, "a Result is not a model: .*; give result.model"),
    ],
)
def test_wrong_arguments(b: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ort_dynq.DynqError, match=message):
        ort_dynq.verify(SCALED, b, **arguments)


def test_outputs_in_another_order_are_an_error() -> None:
    pair = [model("y = Neg(x) z = Abs(x)", outputs=f"float[n] {a}, float[n] {b}") for a, b in ("yz", "zy")]
    with pytest.raises(ort_dynq.DynqError, match="another order"):
        ort_dynq.verify(*pair)


def test_string_inputs_are_an_error() -> None:
    text = model("y = Identity(x)", "string[n] x", "string[n] y")
    with pytest.raises(ort_dynq.DynqError, match=r"input x is of type tensor\(string\)"):
        ort_dynq.verify(text, text)


def test_a_that_does_not_run_with_assumed_shapes() -> None:
    fixed = model("s = Constant<value_ints = [3, 4]>() y = Reshape(x, s)", outputs="float[3, 4] y")
    with pytest.raises(ort_dynq.DynqError, match=r"assumed --shape x=2x8; set other shapes like this"):
        ort_dynq.verify(fixed, fixed)
    assert ort_dynq.verify(fixed, fixed, shapes={"x": (2, 6)}).passed


def test_a_that_does_not_run_with_generated_values() -> None:
    """Which model A is, and which option gives other values."""
    static = model(
        "c = Constant<value_floats = [1.0, 2.0, 3.0, 4.0, 5.0]>() y = Reshape(c, s)", "int64[2] s", "float[a, b] y"
    )
    start, numbers = "A, the original model, does not run in stock ONNX Runtime", np.array([3, 7])
    for run, option in ((lambda: ort_dynq.verify(static, static), "--input"), (lambda: Reference(static), "--data")):
        with pytest.raises(ort_dynq.DynqError) as caught:
            run()
        assert str(caught.value).startswith(f"{start} with generated values (give your own values with {option}): ")
    with pytest.raises(ort_dynq.DynqError, match=rf"^{start}: "):
        ort_dynq.verify(static, static, inputs={"s": numbers})
