"""Which steps nodes are: integers, clips and choices that float32 represents."""

from __future__ import annotations

import numpy as np
import pytest
from program_models import CODES, SCALE, converted
from rewriting import check, parse, rows


def test_integers_that_float32_does_not_represent_stay() -> None:
    """A sum with a negative number may wrap around where NaN has become an integer; products may be -0."""
    for nodes in ("j = Add(i, minus)", "j = Mul(i, two)", "j = Sub(i, two)", "j = Neg(i)"):
        body = f"""minus = Constant<value = int32 {{-1}}>() two = Constant<value = int32 {{2}}>() h = Identity(x)
            {CODES} i = Cast<to = 6>(c) {nodes} y = Cast<to = 1>(j)"""
        model = parse(body)
        assert all("Int32" not in text for text in converted(model, {"x": rows((9, 33), nan=True)}))


@pytest.mark.parametrize(
    ("node", "is_step"),
    [
        ("y = Where(g, b, zero)", False),
        ("y = Where(g, zero, b)", True),
        ("w = Where(g, b, zero) y = Add(w, c127)", True),  # the sum does not depend on the sign
    ],
)
def test_a_choice_for_a_row_may_keep_a_negative_zero(node: str, is_step: bool) -> None:
    """ONNX Runtime's Where loses a chosen -0 of its second input, but not if a row has one condition and one third."""
    model = parse(f"h = Identity(x) {CODES} b = Mul(c, s) g = Greater(m, c127) {node}")
    x = rows((18, 64))
    x[7] = -0.0
    (text,) = converted(model, {"x": x})
    assert ("Where(" in text) == is_step


def test_a_clip_beyond_the_type_of_the_codes() -> None:
    """An infinity becomes the bound, 128, which wraps around as int8."""
    body = f"bound = Constant<value_float = 128.0>() {SCALE.replace('(h)', '(x)')} d = Div(x, s) r = Round(d) "
    x = rows((5, 9))
    x[:2, 1] = np.inf, -np.inf
    check(parse(f"{body} c = Clip(r, low, bound) y = Cast<to = 3>(c)", outputs="int8[] y"), {"x": x})
