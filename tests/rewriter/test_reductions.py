"""ReduceAbsMax and ReduceMinMax equal ReduceMax and ReduceMin, and replace them only before quantizations."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from helpers import (
    Array,
    Shape,
    assert_same,
    diagonals,
    handwritten,
    in_turn,
    make_session,
    native_only,
    stock_session,
    with_one_nan,
)
from rewriting import check, parse, rows

from ort_dynq import kernels
from ort_dynq.operators import VERSION
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.chains.reductions import RULE

F = np.float32
OPERATORS = ("ReduceAbsMax", "ReduceMinMax")
Run = tuple[int, int, int]  # axis, count, kept

RUNS: dict[Shape, tuple[Run, ...]] = {
    (33,): ((-1, 1, 0), (0, 0, 1), (0, 1, 1)),
    (5, 129): ((-1, 1, 0), (0, 1, 0), (0, 0, 1), (0, 2, 0), (1, 1, 1), (-2, 1, 1)),
    (3, 5, 7): tuple((a, c, k) for a in range(4) for c in range(4 - a) for k in (0, 1)),
    (3, 4, 2, 40): ((2, 2, 0), (1, 1, 1), (1, 2, 0), (-2, 1, 0), (0, 3, 0), (3, 1, 1)),
    (0, 3): ((0, 1, 0), (1, 1, 0)),
    (2, 0, 3): ((1, 1, 0), (0, 0, 1)),
}
# Work for several threads: many units, one unit in parts, narrow and short ones.
LARGE: dict[Shape, tuple[Run, ...]] = {
    (300_001,): ((0, 0, 1),),
    (3000, 100): ((0, 1, 0), (-1, 1, 0)),
    (70_000, 2): ((0, 1, 0), (1, 1, 0)),
    (40_001, 3): ((0, 1, 0),),
    (3, 4, 20_000): ((1, 1, 1), (0, 2, 0)),
    (2, 60_000): ((1, 1, 0), (0, 1, 0)),
    (500, 16, 9): ((1, 1, 1), (0, 1, 0)),
    (5, 2000, 70): ((1, 1, 0),),
}


def axes_of(shape: Shape, run: Run) -> list[int]:
    """Returns the axes that a run reduces."""
    axis, count, kept = run
    begin = axis % len(shape) if axis < 0 else axis
    return [i for i in range(len(shape)) if (begin <= i < begin + count) != bool(kept)]


def is_in_order(shape: Shape, run: Run) -> bool:
    """Returns whether ONNX Runtime reads one row after the other, and so keeps the first of several zeros."""
    axes = axes_of(shape, run)
    return axes == list(range(len(axes))) and len(axes) < len(shape)


def sample(rng: np.random.Generator, shape: Shape, in_order: bool) -> Array:
    """Returns data of one sign or both; both zeros or NaN only if ONNX Runtime's result does not depend on order."""
    x = np.asarray(rng.normal(0, 9, shape)).astype(F) * F(rng.choice([1e-40, 1, 1e30]))
    x = rng.choice([np.abs, np.negative, np.copy])(x)
    specials = [np.inf, -np.inf, 1e-45, -1e-45, 3.4e38]
    if in_order:
        x = rng.choice([np.abs, np.copy, lambda v: -np.abs(v)])(x)
        specials = [*specials, np.nan] if rng.random() < 0.5 else [0.0, -0.0]
    return np.where(rng.random(shape) < 0.2, rng.choice(np.array(specials, F), shape), x).astype(F)


@functools.lru_cache(maxsize=4096)
def stock_session_of(
    operator: str, axes: tuple[int, ...], rank: int, keepdims: int, opset: int
) -> ort.InferenceSession:
    given = f"keepdims = {keepdims}"
    names = "x, axes" if opset >= 18 else "x"
    if opset < 18 and axes:
        given += f", axes = [{', '.join(map(str, axes))}]"
    if opset >= 18:
        given += f", noop_with_empty_axes = {int(not axes)}"
    constants = f"<int64[{len(axes)}] axes = {{{', '.join(map(str, axes))}}}>" if opset >= 18 else ""
    body = f"lo = ReduceMin<{given}>({names}) hi = ReduceMax<{given}>({names})"
    outputs = "float[] lo, float[] hi"
    if operator == "ReduceAbsMax":
        body, outputs = f"m = Abs(x) hi = ReduceMax<{given}>({names.replace('x', 'm', 1)})", "float[] hi"
    head = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[{", ".join("abcdef"[:rank])}] x) => ({outputs})'
    return stock_session(onnx.parser.parse_model(f"{head} {constants} {{ {body} }}"))


@functools.lru_cache(maxsize=4096)
def session_of(operator: str, backend: str, run: Run, keepdims: int, threads: int) -> ort.InferenceSession:
    outputs = "hi" if operator == "ReduceAbsMax" else "lo, hi"
    given = f"axis = {run[0]}, count = {run[1]}, reduce_others = {run[2]}, keepdims = {keepdims}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18, "ort_dynq": {VERSION}]> '
        f"g (float[] x) => ({', '.join(f'float[] {name}' for name in outputs.split(', '))}) "
        f"{{ {outputs} = ort_dynq.{operator}<{given}>(x) }}"
    )
    return make_session(handwritten(model, backend), backend, threads=threads)


def compare(operator: str, backend: str, x: Array, run: Run, keepdims: int, threads: int = 1, opset: int = 18) -> None:
    axes = tuple(axes_of(x.shape, run))
    expected = stock_session_of(operator, axes, x.ndim, keepdims, opset).run(None, {"x": x})
    for actual, wanted in zip(
        session_of(operator, backend, run, keepdims, threads).run(None, {"x": x}), expected, strict=True
    ):
        assert_same(with_one_nan(actual), with_one_nan(wanted))


@pytest.mark.parametrize(("operator", "keepdims"), in_turn(OPERATORS, [0, 1]))
def test_same_as_onnxruntime(isa: str, backend: str, operator: str, keepdims: int) -> None:
    rng = np.random.default_rng(0)
    for shape, runs in RUNS.items():
        for run, opset, _ in itertools.product(runs, (13, 18), range(2)):
            if axes_of(shape, run) or opset >= 18:  # before opset 18, no axes means all
                compare(operator, backend, sample(rng, shape, is_in_order(shape, run)), run, keepdims, opset=opset)


@native_only
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("threads", [1, 3])
def test_threads_change_nothing(isa: str, backend: str, operator: str, threads: int) -> None:
    rng = np.random.default_rng(1)
    for shape, runs in LARGE.items():
        for run in runs:
            x = sample(rng, shape, is_in_order(shape, run))
            compare(operator, backend, x, run, 0, threads)
            x[:] = -1  # the position of the largest element does not matter
            for at in (0, x.size // 3, x.size - 1):
                x.reshape(-1)[at] = 2 + at
            compare(operator, backend, x, run, 1, threads)


@pytest.mark.parametrize("value", [0.0, -0.0])
def test_the_first_zero_decides_the_sign(isa: str, value: float) -> None:
    for shape, axis in (((3, 40), -1), ((40, 3), 0), ((3, 5, 200), 1), ((2, 9), 0)):
        x = np.full(shape, -value, F)
        first = [slice(None)] * x.ndim
        first[axis] = 0
        x[tuple(first)] = value
        for end in kernels.run("ReduceMinMax", [x], axis=axis, count=1):
            assert_same(end, np.full(end.shape, value, F))


def test_nan_is_the_result_if_it_is_the_first_element(isa: str) -> None:
    x = np.ones((3, 70), F)
    x[0, 0] = x[1, 5] = x[2, 69] = np.nan
    (magnitude,) = kernels.run("ReduceAbsMax", [x], axis=-1)
    assert_same(magnitude, np.array([[np.nan], [1], [1]], F))
    for end in kernels.run("ReduceMinMax", [np.ascontiguousarray(x.T)], axis=0):
        assert_same(end, np.array([[np.nan, 1, 1]], F))


# Rewritten models


QUANTIZE = "s = Div(m, c127) q = QuantizeLinear<axis = -1>(x, s) y = Identity(q)"
LEADING = f"a = Abs(x) m = ReduceMax<keepdims = 0>(a, axes) {QUANTIZE}"
BOTH = """lo = ReduceMin<keepdims = 0>(x, axes) hi = ReduceMax<keepdims = 0>(x, axes) n = Neg(lo) m = Max(n, hi)
          s = Div(m, c127) q = QuantizeLinear<axis = -1>(x, s) y = Identity(q)"""


def model(body: str, axes: str = "0", x: str = "float[N, 40] x", opset: int = 18) -> onnx.ModelProto:
    body = f"axes = Constant<value_ints = [{axes}]>() {body}"
    if opset < 18:
        body = body.replace("keepdims = 0>(a, axes)", f"keepdims = 0, axes = [{axes}]>(a)")
        body = body.replace("keepdims = 0>(x, axes)", f"keepdims = 0, axes = [{axes}]>(x)")
    return parse(body, inputs=x, outputs="uint8[] y", opset=opset)


def ranges(report: Any) -> list[Any]:
    return [finding.operator or finding.reason for finding in report.findings if finding.rule == RULE.name]


def columns(shape: Shape) -> Array:
    x = rows((math.prod(shape[:-1]) * shape[-1], 33))[: shape[-1], : math.prod(shape[:-1])]
    return np.ascontiguousarray(np.resize(x, (shape[-1], math.prod(shape[:-1]))).T).reshape(shape)


@pytest.mark.parametrize(
    ("opset", "range_of", "case"),
    diagonals(
        2,
        [17, 18],  # axes are an attribute, an input
        [(LEADING, "ReduceAbsMax"), (BOTH, "ReduceMinMax")],
        [
            ("float[N, 40] x", (9, 40), "0", (0, 1, 0)),
            ("float[N, 40] x", (9, 40), "-2", (0, 1, 0)),
            ("float[2, N, 40] x", (2, 7, 40), "0, 1", (0, 2, 0)),
            ("float[2, N, 40] x", (2, 7, 40), "-2, 0", (0, 2, 0)),
            ("float[] x", (9, 40), "0", (0, 1, 0)),
            ("float[] x", (2, 7, 40), "1, 0", (0, 2, 0)),
        ],
    ),
)
def test_range_before_a_quantization(opset: int, range_of: tuple[str, str], case: tuple[str, Shape, str, Run]) -> None:
    (body, operator), (x, shape, axes, run) = range_of, case
    original = model(body, axes, x, opset)
    report = check(original, {"x": columns(shape)})
    assert ranges(report) == [operator]
    (node,) = [node for node in rewrite(original).model.graph if node.op_type == operator]
    assert tuple(node.attributes[name].value for name in ("axis", "count", "reduce_others")) == run


def test_range_over_all_but_one_dimension() -> None:
    for axes, run in (("0, 2", (1, 1, 1)), ("2, 0", (1, 1, 1)), ("-1, -3", (1, 1, 1))):
        for body in (LEADING, BOTH):
            original = model(body.replace("axis = -1", "axis = 1"), axes, "float[N, 5, K] x")
            report = check(original, {"x": rows((9, 5, 33))})
            assert len(ranges(report)) == 1
            (node,) = [node for node in rewrite(original).model.graph if node.op_type.startswith("Reduce")]
            assert tuple(node.attributes[name].value for name in ("axis", "count", "reduce_others")) == run


NEITHER: dict[str, tuple[str, str, list[str]]] = {
    "magnitudes used elsewhere": (LEADING + " z = Neg(a)", "z", ["other nodes also use the magnitudes"]),
    "one end": (BOTH.replace("ReduceMin<keepdims = 0>(x, axes)", "ReduceSum<keepdims = 0>(x, axes)"), "", []),
    "two tensors": (
        BOTH.replace("lo = ReduceMin<keepdims = 0>(x, axes)", "v = Sqrt(x) lo = ReduceMin<keepdims = 0>(v, axes)"),
        "",
        [],
    ),
    "axes computed at run time": (LEADING.replace("(a, axes)", "(a, given)"), "", []),
    "no quantization": ("a = Abs(x) m = ReduceMax<keepdims = 0>(a, axes) z = Exp(m) y = Cast<to = 2>(x)", "z", []),
    "no magnitude": (LEADING.replace("Abs", "Exp"), "", []),
}


@pytest.mark.parametrize("name", NEITHER)
def test_near_misses(name: str) -> None:
    body, output, expected = NEITHER[name]
    original = model(body, x="float[9, 40] x, int64[1] given" if "given" in body else "float[9, 40] x")
    if output:
        original.graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None))
    feeds = {"x": columns((9, 40))} | ({"given": np.array([0])} if "given" in body else {})
    report = check(original, feeds)
    assert ranges(report) == expected


def test_ends_over_different_dimensions() -> None:
    last = "last = Constant<value_ints = [1]>() "
    other = last + BOTH.replace("ReduceMin<keepdims = 0>(x, axes)", "ReduceMin(x, last)")
    assert ranges(rewrite(model(other, x="float[9, 40] x")).report) == []
    assert (
        ranges(rewrite(model(BOTH, "0, 2", "float[2, N, 3, 40] x")).report) == []
    )  # neither adjacent dimensions nor all others
    assert ranges(rewrite(model(LEADING, "0, -1", "float[] x")).report) == []  # of unknown rank


@pytest.mark.parametrize(
    ("x", "axes", "expected"),
    [
        ("float[N, 40] x", "0", ["ReduceMinMax"]),
        ("float[] x", "0", ["ReduceMinMax"]),
        ("float[9, 40] x", "0", []),  # too small
        ("float[64, 40] x", "-2", ["ReduceMinMax"]),
        ("float[64, 40] x", "-1", []),
        ("float[64, 40] x", "0, 1", []),
    ],
)
@pytest.mark.parametrize("end", ["Min", "Max"])
def test_one_end_alone(x: str, axes: str, expected: list[str], end: str) -> None:
    """Over the first dimensions, one end takes as long as both."""
    body = f"m = Reduce{end}<keepdims = 0>(x, axes) n = Abs(m) r = Round(n) y = Cast<to = 2>(r)"
    feeds = {"x": np.linspace(-90, 99, 2560, dtype=F).reshape(64, 40)[: 9 if "9" in x else 64]}
    assert ranges(check(model(body, axes, x), feeds)) == expected


def test_range_of_no_dimension_and_of_all() -> None:
    for noop, expected in ((0, ["ReduceAbsMax"]), (1, [])):
        given = f"keepdims = 0, noop_with_empty_axes = {noop}"
        body = f"a = Abs(x) m = ReduceMax<{given}>(a) r = Round(m) y = Cast<to = 2>(r)"
        report = check(model(body), {"x": np.linspace(-90, 99, 360, dtype=F).reshape(9, 40)})
        assert ranges(report) == expected


def test_inside_a_branch_and_a_function() -> None:
    branch = f"""flag = Constant<value_int = 1>() p = Cast<to = 9>(flag)
        y = If(p) <then_branch = t () => (uint8[N, 40] u) {{ {LEADING.replace("y =", "u =")} }},
                   else_branch = e () => (uint8[N, 40] v) {{ v = Cast<to = 2>(x) }}>"""
    assert ranges(check(model(branch), {"x": columns((9, 40))})) == ["ReduceAbsMax"]
    for opset, expected in ((18, ["ReduceAbsMax"]), (17, [])):
        inside = "m = ReduceMax<keepdims = 0, axes = [0]>(a)" if opset < 18 else "m = ReduceMax<keepdims = 0>(a, axes)"
        function = onnx.parser.parse_model(f"""
            <ir_version: 10, opset_import: ["": 18, "own": 1]> g (float[N, 40] x) => (float[40] y) {{ y = own.f(x) }}
            <domain: "own", opset_import: ["": {opset}]> f (x) => (y) {{
                axes = Constant<value_ints = [0]>() a = Abs(x) {inside} r = Round(m) y = Add(r, m)
            }}""")
        assert ranges(check(function, {"x": columns((9, 40))})) == expected


def test_old_opsets_are_converted() -> None:
    old = parse(
        "a = Abs(x) m = ReduceMax<axes = [0], keepdims = 0>(a) r = Round(m) y = Cast<to = 2>(r)",
        opset=11, inputs="float[N, 40] x", outputs="uint8[] y",
    )  # fmt: skip
    assert ranges(rewrite(old).report) == ["ReduceAbsMax"]
