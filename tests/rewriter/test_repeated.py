"""Scales that a model repeats to the full width before it uses them, and numbers that it writes where a mask holds."""

from __future__ import annotations

import pytest
from product_models import K, model_of
from repeated_models import DATA, FINITE, FORMS, SHAPED, USED, WEIGHTS
from rewriting import check, check_products, products

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("form", FORMS)
def test_repeated_scale(form: str) -> None:
    """It is used as it is: exact results do not change, and the product is one of integers."""
    is_static = form.endswith(
        ("expanded mask", "cast number")
    )  # names of its dimensions do not pass through a Reshape to -1
    model = model_of(FORMS[form], WEIGHTS, inputs=f"float[2, 9, {K}] x" if is_static else "")
    assert not products(check(model, DATA, exact=True))
    check_products(model, DATA if is_static else FINITE)
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    left = {node.op_type for node in result.to_proto().graph.node}
    assert not {"Expand", "Tile", "ScatterND", "NonZero", "MatMul"} & left


NEAR_MISSES = {
    "a scale of columns": (FORMS["Tile"], "full = Tile(s1, times)", "t = Tile(s1, times)\n full = Mul(t, offset)"),
    "a number of each element": (
        FORMS["ScatterND with an expanded mask"],
        "u2 = Expand(unit, nk)",
        "u2 = Expand(offset, nk)",
    ),
    "a number that a Cast changes": (FORMS["ScatterND of a cast number"], "Expand(unit", "Expand(tenth"),
    "a Reshape that cuts rows": (
        "a = Abs(x)\n m = ReduceMax<keepdims = 1>(a, one)\n s1 = Div(m, c127)\n t = Tile(s1, times_rows)\n"
        "turned = Transpose<perm = [0, 2, 1]>(t)\n" + SHAPED.replace("full", "turned") + USED,
        "",
        "",
    ),
    "a sum": (FORMS["ScatterND with an expanded mask"], "ScatterND(", 'ScatterND<reduction = "add">('),
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_near_misses(miss: str) -> None:
    """What is not one number for each row stays, with the same results."""
    body, old, new = NEAR_MISSES[miss]
    assert old in body
    model = model_of(body.replace(old, new) if old else body, WEIGHTS)
    report = check(model, DATA, exact=False)
    assert not products(report)
    assert any("row" in str(each.unconverted) for each in report.unconverted)
    if "ScatterND" in body:
        assert any(
            "ScatterND full changes its shape or elements" in str(each.unconverted) for each in report.unconverted
        )
