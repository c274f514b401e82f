"""An If with a constant condition is replaced by its branch, as ONNX Runtime does when it opens a model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from helpers import assert_same, make_session, stock_session
from onnx import helper, numpy_helper

import ort_dynq
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.known_branches import without_known_branches
from ort_dynq.tools.bench.models import recorded_inputs

MODELS = Path(__file__).parents[2] / "models"


def in_branch(model: onnx.ModelProto, *, condition: bool) -> onnx.ModelProto:
    """A model with its graph as a branch of an If; the other branch computes the same and runs never."""
    changed = copy.deepcopy(model)
    names = [each.name for each in model.graph.output]
    graph = onnx.GraphProto(name="branch", node=model.graph.node, output=model.graph.output)
    for values in (*(each.output for each in graph.node), *(each.input for each in graph.node)):
        values[:] = [f"{name}_of_branch" if name in names else name for name in values]
    for value in graph.output:
        value.name = f"{value.name}_of_branch"
        value.type.tensor_type.ClearField("shape")
    changed.graph.ClearField("node")
    changed.graph.ClearField("value_info")
    changed.graph.initializer.append(numpy_helper.from_array(np.array(condition), "condition"))
    branches = {"then_branch": graph, "else_branch": copy.deepcopy(graph)}
    changed.graph.node.append(helper.make_node("If", ["condition"], names, name="if", **branches))
    return changed


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("encoder_token", {"fuse": True}),
        ("moved_codes", {}),
        pytest.param("ort_dynamic_mobile", {}, marks=pytest.mark.exhaustive),
        ("shared_scales", {"exact": True}),
        pytest.param("ort_half_optimized", {"fuse": True}, marks=pytest.mark.exhaustive),
    ],
)
def test_without_plugin(name: str, options: dict[str, Any]) -> None:
    """ONNX Runtime 1.32 does not open such a model, if functions with such Ifs are called in the branch."""
    model = in_branch(onnx.load(MODELS / name / "model.onnx"), condition=name != "moved_codes")
    feeds = recorded_inputs(MODELS / name)
    rewritten = rewrite(model, **options).to_proto()
    assert not any(node.op_type == "If" for node in rewritten.graph.node)
    assert ort_dynq.verify(model, rewritten, inputs=feeds).passed
    sessions = make_session(rewritten, "native", optimize=True), stock_session(rewritten, optimize=True)
    for one, other in zip(*(session.run(None, feeds) for session in sessions), strict=True):
        assert np.isfinite(one).all()
        assert options.get("fuse") or one.tobytes() == other.tobytes()


TRUE = "t = Constant<value = bool {1}>()"
OF_SHAPE = "n = Shape<start = 0, end = 1>(x) two = Constant<value_ints = [2]>() t = Equal(n, two)"
ABS = "then_branch = g () => (float[N] a) { a = Abs(x) }"
OF_RANK = (
    "r = Reshape(x, rows) d = Shape(r) s = Size(d) one = Constant<value = int64 {1}>() n = Sub(s, one) "
    "zero = Constant<value = int64 {0}>()"
)
NEG = "else_branch = h () => (float[N] a) { a = Neg(x) }"
FORMS = {
    "constant": (f"{TRUE} y = If (t) <{ABS}, {NEG}>", 0),
    "shape": (f"{OF_SHAPE} y = If (t) <{ABS}, {NEG}>", 0),
    "rank": (f"{OF_RANK} t = Greater(n, zero) y = If (t) <{ABS}, {NEG}>", 0),
    "another rank": (f"{OF_RANK} t = Less(n, zero) y = If (t) <{ABS}, {NEG}>", 0),
    "number of elements that is not known": (
        f"z = NonZero(x) s = Size(z) one = Constant<value = int64 {{1}}>() t = Less(one, s) y = If (t) <{ABS}, {NEG}>",
        1,
    ),
    "floats": (
        "z = NonZero(x) d = Shape(z) nought = Constant<value = int64 {0}>() n = Gather(d, nought) f = Cast<to = 1>(n) "
        "ten = Constant<value = float {10}>() q = Div(f, ten) tenth = Constant<value = float {0.1}>() "
        f"t = Equal(q, tenth) y = If (t) <{ABS}, {NEG}>",
        1,
    ),
    "initializer": (
        f"{TRUE} y = If (t) <then_branch = g () => (float[2] w) <float[2] w = {{2, 3}}> {{ }}, {NEG}>",
        0,
    ),
    "a name again, and an initializer": (
        f"{TRUE} y0 = If (t) <then_branch = g () => (float[N] a) <float[1] w = {{2}}> {{ b = Mul(x, w) a = Abs(b) }}, "
        f"{NEG}> b = Neg(y0) y = Add(b, y0)",
        0,
    ),
    "one in the other": (
        f"{TRUE} y = If (t) <then_branch = g () => (float[N] a) {{ a0 = If (t) <then_branch = k () => (float[N] e) "
        f"{{ e = Neg(x) }}, {NEG}> a = Exp(a0) }}, {NEG}>",
        0,
    ),
    "not known": (f"s = ReduceSum<keepdims = 0>(x) t = Cast<to = 9>(s) y = If (t) <{ABS}, {NEG}>", 1),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    body, kept = FORMS[form]
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[N] y) '
        f"{'<int64[2] rows = {-1, 1}>' if 'rows' in body else ''} {{ {body} }}"
    )
    x = np.array([-1.5, 3], np.float32)
    loaded = ir.from_proto(model)
    found = ir.to_proto(without_known_branches(loaded))
    onnx.checker.check_model(found)
    assert sum(node.op_type == "If" for node in found.graph.node) == kept
    expected = stock_session(model).run(None, {"x": x})
    assert_same(stock_session(found).run(None, {"x": x})[0], expected[0])
    assert ir.to_proto(loaded).SerializeToString() == ir.to_proto(ir.from_proto(model)).SerializeToString()


def test_float16_stays_rounded() -> None:
    """Between nodes, ONNX Runtime rounds float16 where it enters and leaves a branch, if optimizations are off."""
    body = f"{TRUE} a = Mul(x, x) b = If (t) <then_branch = g () => (float16[N] c) {{ c = Mul(a, a) }}, "
    body += "else_branch = h () => (float16[N] c) { c = Neg(a) }> y = Mul(b, b)"
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 18]> g (float16[2] x) => (float16[N] y) {{ {body} }}'
    )
    loaded = ir.from_proto(model)
    assert without_known_branches(loaded) is loaded


@pytest.mark.parametrize(
    "text",
    [
        "size = Size(x) wide = Mul(size, big) positive = Greater(wide, zero)",  # 24 * 2**60 is 2**63, which is negative
        "size = Size(x) odd = Add(huge, size) less = Sub(odd, huge) positive = Equal(less, size)",  # float64: 24 or 0
        "size = Size(x) narrow = Cast<to = 6>(size) wide = Mul(narrow, int) positive = Greater(wide, int_zero)",
    ],
)
def test_integers_that_overflow(text: str) -> None:
    """ONNX Runtime's integers wrap around, so that the branch is not what larger numbers say."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[6, 4] x) => (float[6, 4] y) <int64 big = {{{1 << 60}}}, int64 huge = {{{(1 << 60) + 3}}},
                int64 zero = {{0}}, int32 int = {{{5 << 26}}}, int32 int_zero = {{0}}> {{
            {text}
            y = If (positive) <
                then_branch = t () => (float[6, 4] a) {{ a = Abs(x) }},
                else_branch = e () => (float[6, 4] b) {{ b = Neg(x) }}
            >
        }}""")
    form = ir.to_proto(without_known_branches(ir.from_proto(model)))
    feeds = {"x": np.arange(-12, 12, dtype=np.float32).reshape(6, 4)}
    for optimize in (False, True):
        expected = stock_session(model, optimize=optimize).run(None, feeds)[0]
        assert_same(stock_session(form, optimize=optimize).run(None, feeds)[0], expected)
