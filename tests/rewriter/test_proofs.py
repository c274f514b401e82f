"""The example in each docstring of a proof is true."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest
from helpers import Array
from rewriting import parse

from ort_dynq import rewriter
from ort_dynq.operators.program import Program
from ort_dynq.rewrite_options import RewriteOptions
from ort_dynq.rewriter.analysis.bounds import Bounded, all_bounds_of
from ort_dynq.rewriter.analysis.inference import Facts
from ort_dynq.rewriter.analysis.repetition import Repetitions
from ort_dynq.rewriter.analysis.shape_arithmetic import known_number
from ort_dynq.rewriter.analysis.values import Values
from ort_dynq.rewriter.codes.affine import AffineForms
from ort_dynq.rewriter.codes.affine_form import Affine, Op, Param
from ort_dynq.rewriter.codes.merged_rows import with_merged_rows
from ort_dynq.rewriter.codes.unsigned_codes import unsigned_array
from ort_dynq.rewriter.codes.wide_codes import wide_codes_of
from ort_dynq.rewriter.fusion.score_steps import Added, Masked, Scalar
from ort_dynq.rewriter.fusion.scores import Attention, attention_of
from ort_dynq.rewriter.fusion.sources import sources_of
from ort_dynq.rewriter.policy.saturation import may_saturate
from ort_dynq.rewriter.products.corrections import RowSums, terms_of
from ort_dynq.rewriter.products.epilogue import epilogue_of
from ort_dynq.rewriter.programs.fused_steps import FusedRows
from ort_dynq.rewriter.programs.rows import Kind, Rows
from ort_dynq.rewriter.programs.signs import Signs
from ort_dynq.rewriter.programs.steps import Translation
from ort_dynq.rewriter.rule import Context
from ort_dynq.rewriter.views import View, axes_of, dims_of, leaves
from ort_dynq.rewriter.weights.channels import Channels
from ort_dynq.rewriter.weights.rounded_scales import float16_scales
from ort_dynq.rewriter.weights.scale_indices import ScaleIndices

FOLDER = Path(rewriter.__file__).parent
QUOTIENT = "a = Abs(x) m = ReduceMax(a, one) r = Clip(m, eps) s = Div(r, c127) q = Div(x, s)"


class Model(NamedTuple):
    facts: Facts
    values: dict[str, ir.Value]

    @property
    def known(self) -> Values:
        return Values(self.facts)

    def form(self, name: str) -> Affine | None:
        return AffineForms(self.facts).of(self.values[name])

    def node(self, name: str) -> ir.Node:
        node = self.values[name].producer()
        assert node is not None
        return node


@contextmanager
def model(body: str, inputs: str = "float[4, 8] x", constants: str = "", *, output: str = "float") -> Iterator[Model]:
    proto = parse(body, inputs=inputs, outputs=f"{output}[] y")
    if constants:
        text = f'<ir_version: 8, opset_import: ["": 18]> g () => () <{constants}> {{ }}'
        proto.graph.initializer.extend(onnx.parser.parse_model(text).graph.initializer)
    with Facts(ir.from_proto(proto)) as facts:
        graph = facts.model.graph
        values = [*graph.inputs, *graph.initializers.values(), *(each for node in graph for each in node.outputs)]
        yield Model(facts, {each.name or "": each for each in values})


def bounds() -> None:
    with model("l = Max(x, low) g = Greater(x, high) y = Where(g, high, l)") as m:
        assert all_bounds_of(m.values["y"]).value is m.values["y"]  # another value is compared
    with model("l = Max(x, low) g = Greater(l, high) y = Where(g, high, l)") as m:
        assert all_bounds_of(m.values["y"]) == Bounded(m.values["x"], -128, 127, keeps_negative_zero=True)


def estimators() -> None:
    with model(f"{QUOTIENT} r0 = Round(q) d = Sub(r0, q) y = Add(q, d)") as m:
        assert m.known.estimated_exactly(m.values["y"]) is m.values["r0"]


def magnitudes() -> None:
    with model(f"{QUOTIENT} y = Neg(q)") as m:
        assert 127 < m.known.known(m.values["q"]).high <= 127.00004


def repetition() -> None:
    text = "e = Expand(n, wide) d = Div(e, c127) y = Reshape(d, other)"
    with model(text, "float[4, 1] n", "int64[2] wide = {4, 96}, int64[3] other = {2, 2, 96}") as m:
        found = Repetitions().of(m.values["d"])
        assert found is not None
        assert (found.node, found.length, list(found.shape)) == (m.node("d"), 96, [4, 1])
        moved = Repetitions().of(m.values["y"])
        assert moved is not None
        assert (moved.node, moved.length, list(moved.shape)) == (m.node("y"), 96, [2, 2, 1])


def shape_arithmetic() -> None:
    text = "s = Shape(x) g = Gather(s, zero_index) y = Mul(g, three)"
    with model(text, "float[4, n] x", "int64 zero_index = {0}, int64 three = {3}") as m:
        assert known_number(m.values["y"]) == 12


def values() -> None:
    with model("r = Round(x) c = Clip(r, low, high) y = Add(c, c128)", constants="float c128 = {128}") as m:
        assert str(m.known.known(m.values["y"])) == "integers >= 0 and <= 255"


def narrowing() -> None:
    with model("r = Round(x) c = Clip(r, zero, c255) y = Cast<to = 6>(c) z = Cast<to = 6>(r)", output="int32") as m:
        assert m.known.known(m.values["y"]).fits(0, 255)
        assert not m.known.known(m.values["z"]).fits(0, 255)


def activations() -> None:
    for factor, operators in (("0.70710678", ["Gelu"]), ("0.70703125", [])):
        text = "d = Mul(x, root) e = Erf(d) p = Add(e, unit) h = Mul(x, half) y = Mul(h, p)"
        proto = parse(text, inputs="float[4, 8] x", outputs="float[4, 8] y")
        for name, number in (("root", float(factor)), ("unit", 1.0), ("half", 0.5)):
            proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(number), name))
        assert [each.operator for each in rewriter.rewrite(proto, fuse=True).report.fused] == operators


def views() -> None:
    text = "r = Reshape(x, four) p = Transpose<perm = [0, 2, 1, 3]>(r) y = Reshape(p, three)"
    with model(text, "float[2, t, 64] x", "int64[4] four = {0, 0, 4, 16}, int64[3] three = {8, -1, 16}") as m:
        last = view = View(m.values["y"], axes_of(dims_of(m.values["y"])))
        while (before := view.before()) is not None:
            view = before
        assert view.value is m.values["x"]
        batch, tokens, heads, size = view.order
        assert [batch.length, heads.length, size.length] == [2, 4, 16]
        assert [leaves([axis]) for axis in last.axes] == [(batch, heads), (tokens,), (size,)]


def sources() -> None:
    with model(
        "r = Reshape(x, shape) q = Mul(r, part) y = Abs(q)",
        "float[2, 6] x",
        "int64[3] shape = {2, 3, 2}, float part = {0.25}",
    ) as m:
        found = sources_of(View(m.values["q"], axes_of(dims_of(m.values["q"]))))
        assert [each.view.value for each in found] == [m.values[name] for name in "qrx"]
        scalars = [[known_number(scalar.value) for scalar in each.scalars] for each in found]
        assert scalars == [[], [0.25], [0.25]]


def scores() -> None:
    text = "m = MatMul(q, k) t = Mul(m, part) u = Add(t, b) w = Where(mask, u, ninf) p = Softmax(w) y = MatMul(p, v)"
    inputs = "float[1, 2, 3, 4] q, float[1, 2, 4, 5] k, float[1, 2, 5, 4] v, float[3, 5] b, bool[3, 5] mask"
    with model(text, inputs, "float part = {0.125}, float ninf = {-inf}") as m:
        context = Context(m.facts, RewriteOptions(), lambda kind: kind(m.facts))  # type: ignore[arg-type]
        found = attention_of(m.node("p"), context)
        assert isinstance(found, Attention)
        (scalar,), others = found.scalars, [*found.steps]
        assert isinstance(scalar, Scalar)
        assert known_number(scalar.value) == 0.125
        assert others == [Added(m.values["b"]), Masked(m.values["mask"], keeps=True, number=-np.inf)]


def saturation() -> None:
    for weight, is_too_large in ((64, False), (65, True)):
        weights = np.full((2, 1), weight, np.int8)
        pair = np.full((1, 2), 255) @ weights.astype(np.int64)
        assert pair == (33150 if is_too_large else 32640)
        assert bool(pair > np.iinfo(np.int16).max) == may_saturate(weights) == is_too_large


def affine() -> None:
    text = "i = Cast<to = 1>(q) c = Sub(i, three) s = Mul(half, c) t = Transpose<perm = [1, 0]>(s) y = Add(t, unit)"
    with model(text, "uint8[4, 8] q", "float three = {3}, float half = {0.5}, float unit = {1}") as m:
        form = m.form("y")
        assert form is not None
        assert (form.root, [each.node.op_type for each in form.moves]) == (m.values["q"], ["Transpose"])
        numbers = []
        for param in (form.scale, form.zero_point, form.offset):
            assert param is not None
            numbers.append(param.term.item() if isinstance(param.term, np.ndarray) else known_number(param.term))
        assert numbers == [0.5, 3, 1]


def affine_form() -> None:
    text = "i = Cast<to = 1>(q) d = Mul(i, s) j = Cast<to = 1>(r) e = Mul(j, t) y = Concat<axis = -1>(d, e)"
    with model(text, "uint8[4, 32] q, float[4, 1] s, uint8[4, 16] r, float[4, 1] t") as m:
        form = m.form("y")
        assert form is not None
        assert form.scale is not None
        assert isinstance(form.scale.term, Op)
        first = form.scale.term.inputs[0]
        assert form.scale.block == 16
        assert isinstance(first, Op)  # the first scale, twice
        assert (first.op_type, first.inputs[1].tolist(), form.scale.term.inputs[1]) == ("Gather", [0, 0], m.values["t"])


def corrections() -> None:
    text = """c = Cast<to = 6>(q) rows = ReduceSum(c, one) w = Cast<to = 6>(z) a = Mul(w, sums) d = Mul(two, rows)
        e = Sub(bias, a) y = Sub(e, d)"""
    constants = "int32[2] sums = {5, -3}, int32 two = {2}, int32[2] bias = {7, 8}"
    with model(text, "uint8[4, 8] q, uint8 z", constants, output="int32") as m:
        terms = terms_of(m.values["y"], Channels(2), m.facts)
        q, z = RowSums(m.values["q"]), m.values["z"]
        assert {key: each.tolist() for key, each in terms.items()} == {(): [7, 8], (z,): [-5, 3], (q,): [-2, -2]}


def epilogue() -> None:
    text = "p = MatMulInteger(q, w) f = Cast<to = 1>(p) t = Mul(f, s) u = Mul(t, c) y = Add(u, b)"
    constants = "int8[2, 2] w = {1, 2, 3, 4}, float[2] c = {0.5, 2}, float[2] b = {1, -1}"
    with model(text, "uint8[4, 2] q, float[4, 1] s", constants) as m:
        found = epilogue_of(m.node("p"), m.values["q"], Channels(2), m.facts)
        assert found is not None
        assert found.column is not None
        assert (found.row, found.column.tolist(), found.bias) == (m.values["s"], [0.5, 2], m.values["b"])


def estimates() -> None:
    text = f"{QUOTIENT} o = Round(q) c = Clip(o, least, high) v = Mul(s, c) d = Sub(v, x) y = Add(x, d)"
    with model(text, constants="float least = {-127}") as m:
        assert str(m.form("y")) == str(m.form("v")) != "None"
    with model(text.replace("Div(r, c127)", "Div(r, many)"), constants="float least = {-127}, float many = {1e9}") as m:
        assert m.form("y") is None


def marks() -> None:
    functions: dict[str, Callable[..., Array]] = {"Abs": np.abs, "Clip": np.clip, "Div": np.divide, "Mul": np.multiply}
    functions["ReduceMin"] = lambda x, axes: np.min(x, tuple(axes), keepdims=True)

    def computed(term: Any) -> Any:
        if isinstance(term, Op):
            return functions[term.op_type](*map(computed, term.inputs))
        return given[term.name] if isinstance(term, ir.Value) else term

    with model(
        "a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127) q = Div(x, s) r = Round(q) y = Clip(r, low, high)"
    ) as m:
        form = m.form("y")
    assert form is not None
    assert form.mark is not None
    for x, s, is_nan in (([0, 3], 0, True), ([1, 3], 0, False), ([0, 3], 1, False)):
        given = {"x": np.float32([x]), "s": np.float32([[s]])}
        with np.errstate(invalid="ignore", divide="ignore"):
            codes = np.clip(np.rint(given["x"] / given["s"]), -128, 127)
            assert np.isnan(computed(form.mark.term)).all() == np.isnan(codes).any() == is_nan


def merged_rows() -> None:
    for shape, rank in (("6, 8", 2), ("6, 2, 4", 3)):
        constants = f"int64[{rank}] shape = {{{shape}}}"
        with model("y = Reshape(x, shape)", "float[2, 3, 8] x, float[2, 3, 1] s", constants) as m:
            given = Param(m.values["s"], None, 3)
            found = with_merged_rows(given, m.node("y"), m.values["y"], m.values["x"])
            assert found is not None
            assert isinstance(found.term, Op)
            assert found.term.inputs[1].tolist() == [-1, *[1] * (rank - 1)]


def rounded_scales() -> None:
    codes, weights = np.float64([[127], [50]]), np.float16([[1.27], [0.5]]).astype(np.float32)
    (scale,) = float16_scales(weights, [127]) or ()
    assert abs(scale - 0.0099989) < 5e-8
    near = (0.00999755, 0.00999756, 0.01000015, 0.01000016)
    fits = [((codes * each).astype(np.float16) == weights).all() for each in near]
    assert fits == [False, True, True, False]


def scale_indices() -> None:
    indices = ScaleIndices.of((4, 64), (4, 4), 1, 16)
    assert indices.along(0)[2] + indices.along(1)[37] == 2 * 4 + 37 // 16 == 10


def unsigned_codes() -> None:
    assert unsigned_array(np.int8([5, -1])).tolist() == [133, 127]


def wide_codes() -> None:
    text = "c = Cast<to = 6>(q) d = Sub(c, three) y = Transpose<perm = [1, 0]>(d)"
    with model(text, "uint8[4, 8] q", "int32 three = {3}", output="int32") as m:
        found = wide_codes_of(m.values["y"])
        assert found is not None
        assert (found.codes, found.zero_point) == (m.values["q"], m.values["three"])


def fused_steps() -> None:
    text = "u = Add(x, v) y = LayerNormalization(u, g)"
    with model(text, "float[4, 8] x, float[4, 8] v, float[8] g") as m:
        assert FusedRows(m.values["x"], -1).of_result(m.node("y")) == Kind.VECTOR
        assert Rows(m.values["x"], -1).of_result(m.node("y")) is None


def rows() -> None:
    with model("r = ReduceMax(x, one) y = Mul(x, b)", "float[4, 8] x, float[8] b") as m:
        kinds = Rows(m.values["x"], -1)
        assert [kinds.kind(m.values[each]) for each in "rby"] == [Kind.NUMBER, Kind.COLUMN, Kind.VECTOR]


def signs() -> None:
    for step, is_known in ((("Add", "v0", "128.0"), True), (("Reciprocal", "v0"), False)):
        program = Program()
        found = Signs(program)
        program.add("Max", "x", "0.0")
        program.add(*step)
        assert found.follow() == is_known


def steps() -> None:
    for number, is_step in ((16776960, True), (16776962, False)):
        with model(
            "c = Cast<to = 6>(q) y = Add(c, b)", "uint8[4, 8] q", f"int32 b = {{{number}}}", output="int32"
        ) as m:
            context = Context(m.facts, RewriteOptions(exact=True), lambda kind: kind(m.facts))  # type: ignore[arg-type]
            translation = Translation({m.values["q"]: "x"}, context)
            assert [translation.add(m.node(each)) for each in "cy"] == [True, is_step]
    assert int(np.float32(2**24 + 1)) == 2**24


CHECKS: tuple[Callable[[], None], ...] = (
    *(
        bounds,
        estimators,
        magnitudes,
        repetition,
        shape_arithmetic,
        values,
        narrowing,
        activations,
        views,
        sources,
        scores,
    ),
    *(saturation, affine, affine_form, corrections, epilogue, estimates, marks, merged_rows, rounded_scales),
    *(scale_indices, unsigned_codes, wide_codes, fused_steps, rows, signs, steps),
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_example(check: Callable[[], None]) -> None:
    check()


def test_each_example_is_checked() -> None:
    """A proof has one line "Example: ..." at the end of its module's docstring."""
    found = {path.stem: ast.get_docstring(ast.parse(path.read_text())) or "" for path in FOLDER.rglob("*.py")}
    examples = {stem for stem, text in found.items() if "Example" in text}
    assert examples == {check.__name__ for check in CHECKS}
    assert all(found[stem].splitlines()[-1].startswith("Example: ") for stem in examples)
    assert all(found[stem].count("Example") == 1 for stem in examples)
