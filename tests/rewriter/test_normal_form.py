"""Model-local functions: attributes that the callers give, and arguments that a rewrite makes unnecessary."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.inliner
import onnx.parser
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import helper, numpy_helper
from rewriting import MODELS, data_sets

import ort_dynq
from ort_dynq.rewriter import rewrite

RNG = np.random.default_rng(0)
GRID = (RNG.integers(-127, 128, (64, 64)) * np.float32(0.01)).astype(np.float32)
GRID[0], GRID[:, 0] = np.float32(1.27), np.float32(1.27)
WEIGHTS: dict[str, Array] = {
    "grid": GRID,
    "codes": RNG.integers(-127, 128, (64, 64)).astype(np.int8),
    "filter": RNG.integers(-127, 128, (64, 64, 3, 3)).astype(np.int8),
    "scales": (RNG.random(64) * 0.01 + 0.001).astype(np.float32),
}
TOKEN = """a = Abs(x) k = Constant<value_ints = [-1]>() m = ReduceMax<keepdims = 0>(a, k)
    c = Constant<value_float = 127.0>() s = Div(m, c)"""

# The function's nodes, the value of its attribute t, and the operator that uses it.
BODIES = {
    "transB": ("q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = Gemm<transB: int = @t>(d, w)", 0),
    "axis": (
        """q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z)
        f = DequantizeLinear<axis: int = @t>(w, v) y = MatMul(d, f)""",
        0,
    ),
    "axis of a filter": (
        """k = Constant<value_ints = [1, 64, 8, 8]>() i = Expand(x, k) q, s, z = DynamicQuantizeLinear(i)
        d = DequantizeLinear(q, s, z) f = DequantizeLinear<axis: int = @t>(w, v) y = Conv(d, f)""",
        0,
    ),
    "output_dtype": (
        TOKEN + " q = QuantizeLinear<axis = 0, output_dtype: int = @t>(x, s) y = DequantizeLinear<axis = 0>(q, s)",
        3,
    ),
    "axis of codes": (
        TOKEN + " q = QuantizeLinear<axis: int = @t>(x, s) f = DequantizeLinear<axis: int = @t>(q, s) y = MatMul(f, w)",
        0,
    ),
}
ARGUMENTS = {"axis": ("codes", "scales"), "axis of a filter": ("filter", "scales")}


def model_with(body: str, attribute: int, weights: tuple[str, ...]) -> onnx.ModelProto:
    names = ["w", "v"][: len(weights)]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21, "own": 1]> g (float[N, M] x) => (float[] y)
        {{ y = own.f<t = {attribute}>({", ".join(["x", *names])}) }}
        <domain: "own", opset_import: ["": 21]> f <t> ({", ".join(["x", *names])}) => (y) {{ {body} }}"""
    )
    for name, key in zip(names, weights, strict=True):
        model.graph.initializer.append(numpy_helper.from_array(WEIGHTS[key], name))
    return model


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", BODIES)
def test_attributes_that_the_caller_gives(name: str, exact: bool) -> None:
    """The default of the attribute is not its value."""
    body, attribute = BODIES[name]
    model = model_with(body, attribute, ARGUMENTS.get(name, ("grid",) if "w)" in body else ()))
    feeds = {"x": RNG.standard_normal((8, 8) if "filter" in name else (64, 64)).astype(np.float32)}
    result = rewrite(model, exact=exact)
    assert result.report.rewritten or name == "transB"
    if not exact:
        assert ort_dynq.verify(model, result.to_proto(), inputs=feeds).passed
        return
    (expected,) = stock_session(model).run(None, feeds)
    (actual,) = make_session(result.to_proto(), "native").run(None, feeds)
    assert_same(actual, expected)


def test_arguments_that_are_no_longer_used() -> None:
    """Otherwise the original weights stay in the file, and ONNX Runtime refuses 4-bit arguments of functions."""
    name = "blocked_group_product"
    inner = onnx.load(MODELS / name / "model.onnx")
    weights = [tensor.name for tensor in inner.graph.initializer]
    inputs, outputs = [each.name for each in inner.graph.input], [each.name for each in inner.graph.output]
    model = onnx.ModelProto()
    model.CopyFrom(inner)
    del model.graph.node[:]
    nested = helper.make_function("own", "inner", inputs + weights, outputs, inner.graph.node, inner.opset_import)
    call = helper.make_node("inner", inputs + weights, outputs, domain="own")
    own = helper.make_opsetid("own", 1)
    outer = helper.make_function("own", "outer", inputs + weights, outputs, [call], [*inner.opset_import, own])
    model.functions.extend([nested, outer])
    model.opset_import.append(own)
    model.graph.node.append(helper.make_node("outer", inputs + weights, outputs, domain="own"))
    converted = rewrite(model).to_proto()
    assert {"weights", "weight_scales"} <= set(weights) - {tensor.name for tensor in converted.graph.initializer}
    for feeds, expected in data_sets(name):
        plain = dict(zip(outputs, stock_session(converted).run(outputs, feeds), strict=True))
        fast = dict(zip(outputs, make_session(converted, "native").run(outputs, feeds), strict=True))
        for key in outputs:
            assert_same(fast[key], plain[key])
            np.testing.assert_allclose(fast[key], expected[key], rtol=1e-3, atol=1e-4)  # it is another sum


def test_functions_that_cannot_be_inlined() -> None:
    """The main graph is converted; the report says why the function stays."""
    body = "q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = MatMul(d, w)"
    model = model_with(body, 0, ("grid",))
    model.functions[0].opset_import[0].version = 20
    result = rewrite(model)
    assert result.report.summary.endswith(
        "; its functions cannot be inlined: Opset mismatch when inlining function 'own::f': "
        "domain '' has version 21 in the model but version 20 in the function"
    )
    assert [each.name for each in result.model.functions.values()] == ["f"]


def test_functions_stay_if_nothing_is_gained() -> None:
    model = model_with("y = Relu(x)", 0, ())
    assert [node.op_type for node in rewrite(model).to_proto().graph.node] == ["f"]


RESIZED = """a = Abs(x) m = ReduceMax<keepdims = 1, axes = [-1]>(a) c = Constant<value_float = 127.0>()
    s = Div(m, c) n = Shape(s) b = Constant<value_ints = [{ones}]>() bc = CastLike(b, n) l = Mul(n, bc)
    t = Resize<mode = "nearest"{attributes}>(s, , , l) d = Div(x, t) r = Round(d)
    low = Constant<value_float = -128.0>() q = Clip(r, low, c) f = Mul(q, t) o = Shape(x) g = Reshape(f, o)
    y = MatMul(g, grid)"""


@pytest.mark.parametrize("ones", ["1", "1, 1"])
def test_scales_that_are_resized_to_their_own_shape(ones: str) -> None:
    """AIMET repeats the scales of blocks so, also of blocks of one element."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 64] x) => (float[N, 64] y) '
        f"{{ {RESIZED.format(ones=ones, attributes='')} }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(GRID, "grid"))
    result = rewrite(model)
    assert not result.report.unconverted
    assert sorted(each.operator for each in result.report.rewritten if each.operator) == [
        "QuantizedMatMul",
        "RowProgram",
    ]
    x = RNG.normal(0, 1, (5, 64)).astype(np.float32)
    assert ort_dynq.verify(model, result.to_proto(), inputs={"x": x}).passed
    exact = rewrite(model, exact=True).to_proto()
    assert "Resize" not in [node.op_type for node in exact.graph.node]
    assert_same(make_session(exact, "native").run(None, {"x": x})[0], stock_session(model).run(None, {"x": x})[0])


@pytest.mark.parametrize(
    ("ones", "attributes"), [("1, 64", ""), ("1, 1", ', coordinate_transformation_mode = "asymmetric"')]
)
def test_other_resizes(ones: str, attributes: str) -> None:
    """Longer lengths are no copy; the place of an element does not matter for its own lengths."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N, 64] x) => (float[N, 64] y) '
        f"{{ {RESIZED.format(ones=ones, attributes=attributes)} }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(GRID, "grid"))
    x = RNG.normal(0, 1, (5, 64)).astype(np.float32)
    exact = rewrite(model, exact=True).to_proto()
    assert_same(make_session(exact, "native").run(None, {"x": x})[0], stock_session(model).run(None, {"x": x})[0])
