"""Chains of primitive operators: every form of the patterns in models/README.md, and conversions that were wrong once.

The outputs of every rewritten model equal the original's bit for bit, with the plugin and without it. Rows with a NaN
are compared without the plugin only: whether ONNX Runtime's ReduceMax keeps a NaN depends on its position in the row.
"""

from __future__ import annotations

import itertools
import random

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
import pytest
from helpers import every
from rewriting import REDUCE, YES, check, found, parse, programs, rows

from ort_dynq.rewriter import rewrite

F = np.float32
FORMS: dict[str, tuple[str, ...]] = {
    "opset": ("13", "17", "18", "21"),
    "rows": ("keepdims", "unsqueezed", "reshaped", "tensor"),
    "range": ("abs", "two_neg", "two_abs", "larger", "plain", "min", "min_zeros", "clip"),
    "scale": ("divide", "multiply", "inverse", "quotient"),
    "epsilon": ("none", "before", "after", "max", "where", "compared", "added", "added_late", "signed"),
    "zero": ("none", "constant", "z1", "z2", "z3", "z4", "z5"),
    "zero_type": ("float", "int8", "int32_int8"),
    "quantize": ("q1", "q1_unclipped", "q1_where", "q1_min_max", "q2", "q3", "q4"),
    "dequantize": ("codes", "int8", "int32_int8", "float"),
    "glue": ("plain", "identity"),
}
INVERSES = ("inverse", "quotient")
SYMMETRIC = ("abs", "two_neg", "two_abs", "larger")


def is_form(form: dict[str, str]) -> bool:
    """Returns whether these choices form a valid chain."""
    symmetric, zero = form["range"] in SYMMETRIC, form["zero"]
    return not (
        (symmetric and zero not in ("none", "constant"))
        or (not symmetric and zero in ("none", "constant"))
        or (zero in ("none", "constant") and (form["quantize"] in ("q3", "q4")) != (zero == "constant"))
        or (zero not in ("none", "constant") and form["quantize"] not in ("q3", "q4"))
        or (zero in ("none", "constant") and form["zero_type"] != "float")
        or (form["scale"] in INVERSES and (form["range"] not in SYMMETRIC[:3] or form["quantize"] == "q2"))
        or (form["range"] == "larger" and form["scale"] != "divide")
        or (form["range"] == "larger" and form["epsilon"] in ("added", "signed"))
    )


def pairs(form: dict[str, str]) -> set[frozenset[tuple[str, str]]]:
    """Returns the pairs of choices of a form, or of a part of one."""
    return {frozenset(pair) for pair in itertools.combinations(form.items(), 2)}


def sampled() -> list[dict[str, str]]:
    """Returns forms in which every possible pair of choices occurs."""
    free = ("opset", "rows", "dequantize", "glue")  # go with every valid choice of the others
    bound = [key for key in FORMS if key not in free]
    values = itertools.product(*(FORMS[key] for key in bound))
    valid = [form for each in values if is_form(form := dict(zip(bound, each, strict=True)))]
    missing = set().union(*map(pairs, valid))
    items = dict.fromkeys((key, value) for key in FORMS for value in FORMS[key])
    missing |= {frozenset({(key, value), other}) for key in free for value in FORMS[key] for other in items}
    missing = {pair for pair in missing if len(dict(pair)) == 2}
    rng, chosen = random.Random(0), []
    while missing:
        given = dict(min(missing, key=sorted))
        fitting = [form for form in valid if all(form.get(key, value) == value for key, value in given.items())]
        candidates = [{key: rng.choice(FORMS[key]) for key in free} | rng.choice(fitting) | given for _ in range(20)]
        best = max(candidates, key=lambda form: len(pairs(form) & missing))
        chosen.append({key: best[key] for key in FORMS})
        missing -= pairs(best)
    return chosen


class Text:
    """The text of a graph, line by line."""

    def __init__(self, glued: bool) -> None:
        self.lines: list[str] = []
        self.glued = glued

    def add(self, value: str, *steps: str) -> str:
        """Applies operators in turn; an Identity follows each one if `glued`.

        {} or {0} is the value so far, {1} the value before the previous step.
        """
        before = value
        for step in steps:
            last = value
            for text in (step, "Identity({})") if self.glued else (step,):
                name = f"v{len(self.lines)}"
                self.lines.append(f"{name} = {text.format(value, before)}")
                value = name
            before = last
        return value


ZERO_POINTS = {
    "z1": ("Div({}, $s)", "Sub(low, {})", "Clip({}, low, high)", "Round({})"),
    "z2": ("Div({}, $s)", "Round({})", "Sub(low, {})", "Clip({}, low, high)"),
    "z3": ("Neg({})", "Div({}, $s)", "Round({})", "Clip({}, low, high)"),
    "z4": ("Sub(zero, {})", "Div({}, $s)", "Floor({})"),
    "z5": ("Div({}, $s)", "Sub(low, {})", "Clip({}, low, high)", "Clip({}, low, high)", "Round({})"),
}
CASTS = {"float": (), "int8": (3,), "codes": (3,), "int32_int8": (6, 3)}
CLIP = "Clip({}, low, high)"
# {0} is the value so far, {1} the value before the previous step.
LOWER = "Greater({0}, high)", "Where({0}, high, {1})"
RAISE = "Less({0}, low)", "Where({0}, low, {1})"


def chain(form: dict[str, str]) -> onnx.ModelProto:
    text = Text(form["glue"] == "identity")
    add, opset, to_codes = text.add, int(form["opset"]), form["dequantize"] == "codes"
    text.lines += ["plus = Constant<value_float = 1.0>()", "minus = Constant<value_float = -1.0>()"]
    low, m = span(text, form)
    before, scale = scale_of(text, form, m)
    zero = "zero" if form["zero"] == "constant" else ""
    if form["zero"] in ZERO_POINTS:
        steps = (step.replace("$s", before if form["zero"] == "z5" else scale) for step in ZERO_POINTS[form["zero"]])
        zero = add(low, *steps, *(f"Cast<to = {to}>({{}})" for to in CASTS[form["zero_type"]]))
    align = {"unsqueezed": ["Unsqueeze({}, one)"], "reshaped": ["Reshape({}, ends)"]}.get(form["rows"], [])
    text.lines.append("ends = Constant<value_ints = [6, 3, 1]>()")
    scale = add(scale, *align)
    if form["zero"] in ZERO_POINTS:
        zero = add(zero, *align, *([] if form["zero_type"] == "float" else ["Cast<to = 1>({})"]))
    if form["scale"] in INVERSES:
        t = add("x", f"Mul({{}}, {scale})")
    elif form["quantize"] == "q2":
        t = add(scale, "Reciprocal({})", "Mul({}, x)")
    else:
        t = add("x", f"Div({{}}, {scale})")
    quantize = {
        "q1": ("Round({})", CLIP),
        "q1_unclipped": ("Round({})",),
        "q1_where": ("Round({})", *LOWER, *RAISE),
        "q1_min_max": ("Round({})", "Min(high, {})", "Max({}, low)"),
        "q2": ("Round({})", CLIP),
        "q3": ("Round({})", f"Add({{}}, {zero})", CLIP),
        "q4": (f"Add({zero}, {{}})", CLIP, "Round({})"),
    }
    code = add(t, *quantize[form["quantize"]], *(f"Cast<to = {to}>({{}})" for to in CASTS[form["dequantize"]]))
    if not to_codes:
        code = add(code, *(["Cast<to = 1>({})"] if CASTS[form["dequantize"]] else []))
        code = add(code, *([f"Sub({{}}, {zero})"] if zero else []))
        code = add(code, f"Div({{}}, {scale})" if form["scale"] in INVERSES else f"Mul({scale}, {{}})")
    text.lines.append(f"y = Identity({code})")
    output = "int8[] y" if to_codes else "float[] y"
    return parse("\n".join(text.lines), opset=opset, inputs="float[6, 3, K] x", outputs=output)


def span(text: Text, form: dict[str, str]) -> tuple[str, str]:
    """Returns the minimum, if the range has one, and the range."""
    add, kind = text.add, form["range"]
    reduction = REDUCE[18 if int(form["opset"]) >= 18 else 13].format("{0}", "{{}}", int(form["rows"] == "keepdims"))
    if form["rows"] == "tensor":
        reduction = "Reduce{0}<keepdims = 0>({{}})"
    if kind == "abs":
        return "", add("x", "Abs({})", reduction.format("Max"))
    low, high = add("x", reduction.format("Min")), add("x", reduction.format("Max"))
    zeros = add(low, "Shape({})", "Expand(zero, {})"), add(high, "Shape({})", "ConstantOfShape({})")
    ends = {
        "two_neg": ("Neg({})", "Identity({})"),
        "two_abs": ("Abs({})", "Abs({})"),
        "larger": ("Div({}, low)", "Div({}, high)"),
        "plain": ("Identity({})", "Identity({})"),
        "min": ("Min({}, zero)", "Max(zero, {})"),
        "min_zeros": (f"Min({{}}, {zeros[0]})", f"Max({{}}, {zeros[1]})"),
        "clip": ('Clip({}, "", zero)', "Clip({}, zero)"),
    }[kind]
    low, high = add(low, ends[0]), add(high, ends[1])
    return low, add(low, f"Max({{}}, {high})" if kind in SYMMETRIC else f"Sub({high}, {{}})")


def scale_of(text: Text, form: dict[str, str], m: str) -> tuple[str, str]:
    """Returns the scale before and after its epsilon."""
    add, kind = text.add, form["range"]
    if form["epsilon"] == "before":
        m = add(m, "Clip({}, eps)")
    if form["epsilon"] == "added":
        m = add(m, "Add(eps, {})")
    if form["epsilon"] == "signed":
        m = add(m, "Abs({})")
        sign, magnitude = (
            add(m, "GreaterOrEqual({}, zero)", "Where({}, plus, minus)"),
            add(m, "Abs({})", "Clip({}, eps)"),
        )
        m = add(sign, f"Mul({{}}, {magnitude})")
    steps = {
        "divide": [] if kind == "larger" else [f"Div({{}}, {'c127' if kind in SYMMETRIC else 'c255'})"],
        "multiply": ["Mul(one_255th, {})"],
        "inverse": ["Reciprocal({})", "Mul({}, c127)"],
        "quotient": ["Div(c127, {})"],
    }
    before = add(m, *steps[form["scale"]])
    epsilon = {
        "after": ("Clip({}, eps)",),
        "max": ("Max(eps, {})",),
        "where": ("Equal({}, zero)", "Where({0}, eps, {1})"),
        "compared": ("Greater(eps, {})", "Where({0}, eps, {1})"),
        "added_late": ("Add({}, eps)",),
    }
    return before, add(before, *epsilon.get(form["epsilon"], ()))


SAMPLED = sampled()


@pytest.mark.parametrize("form", every(4, SAMPLED), ids=["-".join(form.values()) for form in SAMPLED])
def test_form(form: dict[str, str]) -> None:
    data = [{"x": rows((6, 3, 33), seed)} for seed in range(2)] + [{"x": rows((6, 3, 5), 2)}]
    report = check(chain(form), *data, stock_data=({"x": rows((6, 3, 33), 3, nan=True)},))
    assert found(report) == ["RowProgram"], [f.reason for f in report.unconverted]


@pytest.mark.parametrize("x_shape", [(3,), (1, 4), (3, 1), (2, 1, 3)])
def test_scale_that_makes_x_larger(x_shape: tuple[int, ...]) -> None:
    body = "d = Div(x, s) r = Round(d) y = Mul(r, s)"
    dims = ", ".join(map(str, x_shape))
    model = parse(body, inputs=f"float[{dims}] x, float[2, 5, 1] s")
    assert found(check(model, {"x": rows(x_shape), "s": np.full((2, 5, 1), 0.5, F)})) == []
    model = parse(body, inputs=f"float[{', '.join('abc'[: len(x_shape)])}] x, float[d, e, 1] s")
    assert found(check(model, {"x": rows(x_shape), "s": np.full((2, 5, 1), 0.5, F)})) == []


@pytest.mark.parametrize("where", ["zero point", "subtracted", "epsilon", "offset"])
def test_constant_that_makes_x_larger(where: str) -> None:
    """A program has the nodes before it."""
    zeros = "z3 = Constant<value = float[3, 1, 1] {0.0, 0.0, 0.0}>()"
    start = f"{zeros} a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127)"
    body, program = {
        "zero point": (
            f"{start} d = Div(x, s) r = Round(d) q = Add(r, z3) b = Sub(q, z3) y = Mul(b, s)",
            "r1 = Div(ReduceMax(Abs(x)), 127.0); dst = Round(Div(x, r1)); scale = r1",
        ),
        "subtracted": (
            f"{start} d = Div(x, s) r = Round(d) q = Add(r, zero) b = Sub(q, z3) y = Mul(b, s)",
            "r1 = Div(ReduceMax(Abs(x)), 127.0); dst = Add(Round(Div(x, r1)), 0.0); scale = r1",
        ),
        "epsilon": (
            f"{start} e = Equal(s, zero) w = Where(e, z3, s) d = Div(x, w) r = Round(d) y = Mul(r, w)",
            "",
        ),
        "offset": (
            f"""{zeros} mn = ReduceMin(x, one) mx = ReduceMax(x, one) w = Sub(mx, mn) s = Div(w, c255)
            t = Div(mn, s) lows = Add(z3, low) rt = Round(t) o = Sub(lows, rt) z = Clip(o, low, high) d = Div(x, s)
            r = Round(d) q = Add(r, z) c = Clip(q, low, high) b = Sub(c, z) y = Mul(b, s)""",
            "r1 = ReduceMin(x); r2 = Div(Sub(ReduceMax(x), r1), 255.0); dst = Round(Div(x, r2)); scale = r2; "
            "number = Round(Div(r1, r2))",
        ),
    }[where]
    model = parse(body)
    assert found(check(model, {"x": rows((6, 5))}, {"x": rows((9, 33), 1)})) == ["RowProgram"] * bool(program)
    assert programs(rewrite(model, exact=True).to_proto()) == [program] * bool(program)


@pytest.mark.parametrize("bounds", ["-5, 5", "-5, none", "none, 5"])
def test_two_sides_bounded_away_from_zero(bounds: str) -> None:
    least, most = (f"c{i}" if text != "none" else '""' for i, text in enumerate(bounds.split(", ")))
    body = f"""c0 = Constant<value_float = -5.0>() c1 = Constant<value_float = 5.0>()
        mn0 = ReduceMin(x, one) mx0 = ReduceMax(x, one) mn = Clip(mn0, {least}, zero) mx = Clip(mx0, zero, {most})
        n = Neg(mn) m = Max(n, mx) s = Div(m, c127) d = Div(x, s) r = Round(d) y = Mul(r, s)"""
    assert found(check(parse(body), {"x": rows((6, 5))})) == ["RowProgram"]


def test_scale_and_its_copy_are_outputs() -> None:
    body = """a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127) copy = Identity(s)
        d = Div(x, {0}) r = Round(d) y = Mul(r, {0})"""
    for used, outputs in itertools.product(("s", "copy"), ("s, float[] copy", "copy, float[] s", "copy", "s")):
        report = check(parse(body.format(used), outputs=f"float[] y, float[] {outputs}"), {"x": rows((9, 33))})
        assert found(report) == ["RowProgram"]


@pytest.mark.parametrize("bound", [32767.0, 3e38, 1e10])
def test_wide_clip(bound: float) -> None:
    """Bounds may exceed the integers that float32 represents exactly."""
    body = f"""most = Constant<value_float = {bound:e}>() least = Constant<value_float = {-bound:e}>() a = Abs(x)
        m = ReduceMax(a, one) s = Div(m, most) d = Div(x, s) r = Round(d) c = Clip(r, least, most) y = Mul(c, s)"""
    assert found(check(parse(body), {"x": rows((9, 33))})) == ["RowProgram"]


IF = (
    "y = If(yes) <then_branch = t () => (float[] inner) {{ {0} }}, "
    "else_branch = e () => (float[] other) {{ other = Identity(x) }}>"
)
PARTS = [
    "a = Abs(x)",
    "m = ReduceMax(a, one)",
    "s = Div(m, c127)",
    "d = Div(x, s)",
    "r = Round(d)",
    "c = Clip(r, low, high)",
]


@pytest.mark.parametrize("outside", range(len(PARTS) + 1))
def test_chain_across_the_boundary_of_a_branch(outside: int) -> None:
    """The chain is in the outer graph, in the branch, or in both."""
    body = f"{YES} " + " ".join(PARTS[:outside])
    model = parse(body + IF.format(" ".join([*PARTS[outside:], "inner = Mul(c, s)"])), inputs="float[9, 33] x")
    report = check(model, {"x": rows((9, 33))})
    if outside <= 2:
        assert found(report) == ["RowProgram"]


def test_names_in_a_branch_differ_from_outer_names() -> None:
    """Names in a branch must differ from all names of the outer graph, new ones included."""
    body = (
        YES
        + """ val_0 = Abs(x) val_1 = ReduceMax(val_0, one) val_2 = Div(val_1, c127)
        d = Div(x, val_2) r = Round(d) q = Clip(r, low, high) val_3 = Mul(q, val_2)"""
    )
    inner = """a = Abs(x) m = ReduceMax(a, one) s = Div(m, c127) e = Div(x, s) w = Round(e) v = Mul(w, s)
        inner = Add(v, val_3)"""
    report = check(parse(body + IF.format(inner), inputs="float[9, 33] x"), {"x": rows((9, 33))})
    assert found(report) == ["RowProgram"] * 2


def test_text_and_references() -> None:
    """Constants of text and references to attributes do not break a rewrite."""
    body = """text = Constant<value_string = "no">() e = Equal(text, text) s0 = Identity(factor) s = Where(e, eps, s0)
        d = Div(x, s) r = Round(d) y = Mul(r, s)"""
    model = parse(body, opset=19, inputs="float[N, K] x, float[N, 1] factor")
    rewrite(model)
    bodies = (
        "q = QuantizeLinear<axis: int = @a>(x, s) y = DequantizeLinear<axis: int = @a>(q, s)",
        "q = QuantizeLinear(x, s) y = DequantizeLinear<axis: int = @a>(q, s)",
        "c = Cast<to: int = @a>(x) d = Div(c, s) r = Round(d) y = Mul(r, s)",
        "d = Div(x, s) r = Round(d) c = Cast<to: int = @a>(r) e = Cast<to = 1>(c) y = Mul(e, s)",
        "b = Abs(x) m = ReduceMax<keepdims: int = @a>(b) d = Div(x, m) r = Round(d) y = Mul(r, m)",
        "b = Abs(x) m = ReduceMax<noop_with_empty_axes: int = @a>(b) d = Div(x, m) r = Round(d) y = Mul(r, m)",
    )
    for body in bodies:
        head = '<ir_version: 8, opset_import: ["": 18, "f": 1]> g (float[4, 4] x, float[] s) => (float[4, 4] y)'
        function = f'<domain: "f", opset_import: ["": 18]> F <a> (x, s) => (y) {{ {body} }}'
        model = onnx.parser.parse_model(f"{head} {{ y = f.F<a = 1>(x, s) }} {function}")
        check(model, {"x": rows((4, 4)), "s": np.array(0.5, F)})
