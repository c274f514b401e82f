"""Products of codes in int32, and products among Reshapes and the like that keep the rows.

Products of int32 keep their bits, with and without --exact. Those of floats are verified as ort_dynq.verify does it.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import Array, diagonals, product_of
from onnx import TensorProto
from product_models import K, N, asymmetric, codes_of, model_of, scales_of, symmetric
from rewriting import check, found, products, rows, tails

from ort_dynq import verify
from ort_dynq.rewriter import rewrite

F = np.float32

DATA = {"x": rows((2, 9, K), seed=4)}
FINITE = {"x": DATA["x"][:, [0, 1, 2, 3, 4, 6, 7]]}
WEIGHTS: dict[str, Array] = {
    "w8": codes_of(),
    "w": codes_of().astype(np.int32),
    "w64": codes_of().astype(np.int64),
    "ws": scales_of(),
    "ws_row": scales_of()[None],
    "b": np.linspace(-3, 3, N).astype(F),
    "b_row": np.linspace(-3, 3, N).astype(F)[None],
    "column": np.array([-1, 1]),
    "vector": np.array([-1]),
    "outputs": np.array([N]),
    "axis": np.array([1]),
    "three": np.int32(3),
}
CODES = symmetric() + "q = Cast<to = 3>(c)\n"
UNSIGNED = asymmetric().replace("Sub(low, h)", "Sub(zero, h)").replace("low, high", "zero, c255")
UNSIGNED = UNSIGNED.replace("u = Add(r, z)", "z8 = Cast<to = 2>(z)\n zf = Cast<to = 1>(z8)\n u = Add(r, zf)")
UNSIGNED += "q = Cast<to = 2>(c)\n qi = Cast<to = 6>(q)\n zi = Cast<to = 6>(z8)\n"
TAIL = "f = Cast<to = 1>(i)\n sf = Mul(f, s)\n o = Mul(sf, ws)\n y = Add(o, b)"
TAIL_OF_MATRIX = TAIL.replace("Mul(f, s)", "Mul(f, s2)")
MATRIX = "q2 = Reshape(q, rows)\n s2 = Reshape(s, column)\n"
BACK = "lead = Shape<end = -1>(x)\n shape = Concat<axis = 0>(lead, outputs)\n"
PRODUCTS = {
    "int32": CODES + "wa = Cast<to = 6>(q)\n v = Cast<to = 6>(w8)\n i = MatMul(wa, v)\n" + TAIL,
    "int32, folded": CODES + "wa = Cast<to = 6>(q)\n i = MatMul(wa, w)\n" + TAIL,
    "int64": CODES + "wa = Cast<to = 7>(q)\n i = MatMul(wa, w64)\n" + TAIL,
    "constant zero point": CODES + "wide_q = Cast<to = 6>(q)\n wa = Sub(wide_q, three)\n i = MatMul(wa, w)\n" + TAIL,
    "zero point of each row": UNSIGNED + "wa = Sub(qi, zi)\n i = MatMul(wa, w)\n" + TAIL,
    "one zero point": "q, s, z8 = DynamicQuantizeLinear(x)\n qi = Cast<to = 6>(q)\n zi = Cast<to = 6>(z8)\n"
    "wa = Sub(qi, zi)\n i = MatMul(wa, w)\n" + TAIL,
    "codes reshaped": CODES + MATRIX + "wa = Cast<to = 6>(q2)\n i = MatMul(wa, w)\n" + TAIL_OF_MATRIX,
    "int32 reshaped": CODES
    + "wide_q = Cast<to = 6>(q)\n wa = Reshape(wide_q, rows)\n s2 = Reshape(s, column)\n i = MatMul(wa, w)\n"
    + TAIL_OF_MATRIX,
    "scale without keepdims": CODES
    + "q2 = Reshape(q, rows)\n s1 = Reshape(s, vector)\n s2 = Unsqueeze(s1, axis)\n wa = Cast<to = 6>(q2)\n"
    + "i = MatMul(wa, w)\n"
    + TAIL_OF_MATRIX,
    "flattened": CODES
    + "q2 = Flatten<axis = 2>(q)\n s2 = Flatten<axis = 2>(s)\n wa = Cast<to = 6>(q2)\n i = MatMul(wa, w)\n"
    + TAIL_OF_MATRIX,
    "reshaped back before the bias": CODES + MATRIX + BACK + "wa = Cast<to = 6>(q2)\n i = MatMul(wa, w)\n"
    "f = Cast<to = 1>(i)\n k = Mul(s2, ws_row)\n o = Mul(f, k)\n p = Reshape(o, shape)\n y = Add(p, b)",
    "reshaped back before the scales": CODES
    + MATRIX
    + BACK
    + "wa = Cast<to = 6>(q2)\n i0 = MatMul(wa, w)\n i = Reshape(i0, shape)\n"
    + TAIL,
    "vectors as rows": CODES
    + "wa = Cast<to = 6>(q)\n i = MatMul(wa, w)\n"
    + TAIL.replace("ws", "ws_row").replace("b)", "b_row)"),
    "MatMulInteger reshaped": CODES + MATRIX + BACK + "i = MatMulInteger(q2, w8)\n f = Cast<to = 1>(i)\n"
    "sf = Mul(f, s2)\n o = Mul(sf, ws_row)\n p = Reshape(o, shape)\n y = Add(p, b)",
}


def operators_of(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in rewrite(model).to_proto().graph.node if node.op_type != "Constant"]


def without_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Removes the names of the dimensions of x."""
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.ClearField("dim_param")
    return model


@pytest.mark.parametrize("product", PRODUCTS)
def test_products_of_integers(product: str) -> None:
    """Codes, product, scales and bias become one or two operators, among Reshapes. Bits do not change."""
    model = model_of(PRODUCTS[product], WEIGHTS)
    report = check(model, DATA, exact=True)
    assert "QuantizedMatMul" in products(report)
    assert not report.unconverted
    left = {*operators_of(model)} - {"Reshape", "Unsqueeze", "Flatten", "Shape", "Concat"}
    (name,) = left - {"RowProgram"}
    assert product_of(name) == "QuantizedMatMul"


@pytest.mark.parametrize("product", ["zero point of each row", "codes reshaped", "scale without keepdims", "flattened"])
def test_dimensions_without_names(product: str) -> None:
    model = without_names(model_of(PRODUCTS[product], WEIGHTS))
    assert found(check(model, DATA)) == ["QuantizedMatMul", "RowProgram"]
    assert not {"Mul", "Add"} & {*operators_of(model)}


def test_several_products_share_reshaped_codes() -> None:
    again = TAIL_OF_MATRIX
    for name, other in {"f": "f2", "sf": "sf2", "o": "o2", "y": "l", "i": "i2"}.items():
        again = re.sub(rf"\b{name}\b", other, again)
    body = PRODUCTS["codes reshaped"] + "\nv = Cast<to = 6>(w8)\n i2 = MatMul(wa, v)\n" + again
    model = without_names(model_of(body, WEIGHTS, outputs="float[] y, float[] l"))
    assert found(check(model, DATA)) == ["QuantizedMatMul", "QuantizedMatMul", "RowProgram"]
    operators = operators_of(model)
    assert operators.count("RowProgram") == 1
    assert "Mul" not in operators


FLOATS = {
    "codes": MATRIX + "wa = Cast<to = 1>(q2)\n p = MatMul(wa, wf)\n sf = Mul(s2, p)\n o = Mul(sf, ws_row)\n"
    "hh = Add(o, b_row)\n y = Reshape(hh, shape)",
    "codes, sums cast to int32": MATRIX + "m1 = Reshape(m0, vector)\n m2 = Unsqueeze(m1, axis)\n"
    "wa = Cast<to = 1>(q2)\n p = MatMul(wa, wf)\n i = Cast<to = 6>(p)\n f = Cast<to = 1>(i)\n k = Mul(m2, ws_row)\n"
    "sf = Mul(f, k)\n o = Mul(sf, eps)\n hh = Reshape(o, shape)\n y = Add(hh, b)",
    "floats": "fq = Cast<to = 1>(q)\n dx = Mul(fq, s)\n d2 = Unsqueeze(dx, axis)\n d3 = Reshape(d2, rows)\n"
    "p = MatMul(d3, wf)\n hh = Reshape(p, shape)\n y = Add(hh, b)",
}


@pytest.mark.parametrize("product", FLOATS)
def test_products_of_floats(product: str) -> None:
    model = model_of(CODES + BACK + FLOATS[product], WEIGHTS | {"wf": codes_of().astype(F)})
    result = rewrite(model)
    assert "QuantizedMatMul" in products(result.report)
    assert not {"Mul", "Add", "Cast"} & {*operators_of(model)}
    verified = verify(model, result.to_proto(), inputs=FINITE)
    assert verified.passed, verified
    assert len(verified.products) == 1
    check(model, FINITE, exact=True)


REAL = {
    "symmetric": CODES + "fq = Cast<to = 1>(q)\n dx = Mul(fq, s)\n",
    "asymmetric": UNSIGNED + "fq = Cast<to = 1>(q)\n less = Sub(fq, zf)\n dx = Mul(less, s)\n",
    "one scale": "c, s, z8 = DynamicQuantizeLinear(x)\n dx = DequantizeLinear(c, s, z8)\n",
}
TRANSPOSED = {
    "moved = Transpose<perm = [1, 0, 2]>(dx)": True,
    "first = Transpose<perm = [1, 0, 2]>(dx)\n moved = Transpose<perm = [1, 0, 2]>(first)": True,
    "first = Transpose<perm = [1, 0, 2]>(dx)\n moved = Reshape(first, rows)": True,
    "first = Transpose<perm = [2, 0, 1]>(dx)\n moved = Transpose<perm = [1, 2, 0]>(first)": True,
    "first = Reshape(dx, rows)\n moved = Transpose<perm = [1, 0]>(first)": False,
}


@pytest.mark.parametrize(("real", "moved"), diagonals(2, REAL, TRANSPOSED))
def test_transposed_activations(real: str, moved: str) -> None:
    """Codes, scales and zero points are transposed. Scales of rows must be scales of rows again."""
    weights = codes_of().astype(F) if "[1, 0]>" not in moved else np.ones((len(FINITE["x"][0]) * 2, N), F)
    model = model_of(f"{REAL[real]} {moved}\n p = MatMul(moved, wf)\n y = Add(p, b)", WEIGHTS | {"wf": weights})
    result = rewrite(model)
    check(model, FINITE, exact=True)
    if not TRANSPOSED[moved]:
        assert ("QuantizedMatMul" in products(result.report)) == (real == "one scale")
        return
    assert "QuantizedMatMul" in products(result.report)
    assert not {"Mul", "Add"} & {*operators_of(model)}
    verified = verify(model, result.to_proto(), inputs=FINITE)
    assert verified.passed, verified
    assert len(verified.products) == 1


def test_sums_that_are_no_integers_are_still_truncated() -> None:
    weights = WEIGHTS | {"wf": codes_of().astype(F) * F(0.3)}
    model = model_of(CODES + BACK + FLOATS["codes, sums cast to int32"], weights)
    assert "Floor" in tails(rewrite(model).to_proto())[0]
    check(model, FINITE)


def test_verification_notices_a_wrong_product_before_a_reshape() -> None:
    model = model_of(CODES + BACK + FLOATS["floats"], WEIGHTS | {"wf": codes_of().astype(F)})
    wrong = model_of(CODES + BACK + FLOATS["floats"], WEIGHTS | {"wf": codes_of(seed=7).astype(F)})
    assert not verify(model, rewrite(wrong).to_proto(), inputs=FINITE).passed


INT32 = "wa = Cast<to = 6>(q)\n i = MatMul(wa, w)\n"
KEPT: dict[str, tuple[str, dict[str, Any], set[str]]] = {
    "a scale of each column of the activation": (
        CODES + INT32 + "f = Cast<to = 1>(i)\n t2 = Transpose<perm = [0, 2, 1]>(s)\n y = Mul(f, t2)",
        {},
        {"Mul", "Transpose"},
    ),
    "as many scales as outputs": (
        CODES + MATRIX + "wa = Cast<to = 6>(q2)\n i = MatMul(wa, w)\n f = Cast<to = 1>(i)\n"
        "flat = Reshape(s, vector)\n y = Mul(f, flat)",
        {},
        {"Mul"},
    ),
    "scales of another tensor": (CODES + INT32 + "f = Cast<to = 1>(i)\n y = Mul(f, other)", {}, {"Mul"}),
    "one scale for each matrix": (
        CODES.replace("last", "matrix")
        + "q2 = Reshape(q, rows)\n"
        + BACK
        + "wa = Cast<to = 6>(q2)\n i = MatMul(wa, w)\n f = Cast<to = 1>(i)\n p = Reshape(f, shape)\n y = Mul(p, s)",
        {"matrix": np.array([1, 2])},
        {"Mul"},
    ),
    "rows that are split": (
        CODES + "q2 = Reshape(q, parts)\n wa = Cast<to = 6>(q2)\n i = MatMul(wa, w11)\n f = Cast<to = 1>(i)\n"
        "p = Reshape(f, joined)\n y = Mul(p, s)",
        {"parts": np.array([-1, 11]), "w11": WEIGHTS["w"][:11], "joined": np.array([2, 9, 3 * N])},
        {"Mul"},
    ),
    "sums that are transposed": (
        CODES + INT32 + "f = Cast<to = 1>(i)\n p = Transpose<perm = [1, 0, 2]>(f)\n y = Add(p, b)",
        {},
        {"Add", "Transpose"},
    ),
    "scales that are inverse": (CODES + INT32 + "f = Cast<to = 1>(i)\n y = Div(f, s)", {}, {"Div"}),
}


@pytest.mark.parametrize("name", KEPT)
def test_the_rest_of_the_tail_stays(name: str) -> None:
    """The product becomes QuantizedMatMul. A factor or term stays if it is not known to be a scale or a bias."""
    body, arrays, kept = KEPT[name]
    model = model_of(body, WEIGHTS | arrays, inputs=f"float[B, M, {K}] x, float[B, P, Q] other")
    used = {name for node in model.graph.node for name in node.input}
    if "other" not in used:
        del model.graph.input[1]
    data = {"x": DATA["x"].reshape(1, 18, K)} if "as many" in name or "column" in name else DATA
    data = data | ({"other": np.ones((2, 9, N), F)} if "other" in used else {})
    assert "QuantizedMatMul" in products(check(model, data))
    assert kept <= {*operators_of(model)}


UNCONVERTED: dict[str, tuple[str, dict[str, Any]]] = {
    "not a matrix of integers of 8 bits": (CODES + INT32 + TAIL, {"w": WEIGHTS["w"] * 3}),
    "the weights are computed at run time": (
        CODES + "wa = Cast<to = 6>(q)\n v = Mul(w, more)\n i = MatMul(wa, v)\n" + TAIL,
        {},
    ),
    "the zero point is of another type": (
        CODES + "wide_q = Cast<to = 6>(q)\n wa = Sub(wide_q, more)\n i = MatMul(wa, w)\n" + TAIL,
        {},
    ),
    "the zero point is not known to be": (
        UNSIGNED + "k = Transpose<perm = [0, 2, 1]>(z8)\n l = Cast<to = 6>(k)\n qt = Reshape(qi, square)\n"
        "wa = Sub(qi, l)\n i = MatMul(wa, w)\n" + TAIL,
        {"square": np.array([0, 0, -1])},
    ),
    "are reshaped after their zero points": (
        UNSIGNED + "wide_q = Sub(qi, zi)\n wa = Reshape(wide_q, rows)\n i = MatMul(wa, w)\n f = Cast<to = 1>(i)\n"
        "y = Mul(f, ws)",
        {},
    ),
    "is not known to have the shape of its scale": (
        UNSIGNED + "wa = Sub(qi, zi)\n i = MatMul(wa, w)\n f = Cast<to = 1>(i)\n s1 = ReduceMax<keepdims = 0>(s)\n"
        "y = Mul(f, s1)",
        {},
    ),
    "neither the same for all rows": (
        CODES + "wide_q = Cast<to = 7>(q)\n wa = Sub(wide_q, high_zero)\n i = MatMul(wa, w)\n" + TAIL,
        {"high_zero": np.int64(128), "w": WEIGHTS["w"].astype(np.int64)},
    ),
}


@pytest.mark.parametrize("reason", UNCONVERTED)
def test_products_of_integers_that_stay(reason: str) -> None:
    body, arrays = UNCONVERTED[reason]
    model = model_of(body, WEIGHTS | arrays, inputs=f"float[B, M, {K}] x, int32 more")
    if not any("more" in node.input for node in model.graph.node):
        del model.graph.input[1]
    inputs = {"x": rows((2, K, K), seed=4), "more": np.array(1, np.int32)}
    report = check(model, {value.name: inputs[value.name] for value in model.graph.input})
    assert "QuantizedMatMul" not in products(report)
    assert [reason in finding.reason for finding in report.unconverted] == [True]


@pytest.mark.parametrize(
    ("low", "high", "fits"), [(0, 255, True), (-255, 0, True), (-128, 127, True), (-1, 255, False)]
)
def test_ranges_of_integer_weights(low: int, high: int, fits: bool) -> None:
    """Weights of one column that span 256 numbers become codes and a zero point."""
    weights = np.random.default_rng(0).integers(low, high + 1, (K, N)).astype(np.int32)
    weights[0], weights[1] = low, high
    model = model_of(CODES + INT32 + TAIL, WEIGHTS | {"w": weights})
    assert ("QuantizedMatMul" in products(check(model, DATA))) == fits


@pytest.mark.parametrize(("depth", "fits"), [(65793, True), (65794, False)])
def test_sums_of_int32_that_may_overflow(depth: int, fits: bool) -> None:
    body = "wa = Cast<to = 6>(q)\n i = MatMul(wa, w)\n f = Cast<to = 1>(i)\n y = Mul(f, s)"
    weights = {"w": np.full((depth, 1), -128, np.int32)}
    model = model_of(body, weights, inputs=f"uint8[M, {depth}] q, float s")
    report = check(model, {"q": np.full((2, depth), 255, np.uint8), "s": np.array(0.5, F)})
    assert found(report) == ["QuantizedMatMul" if fits else "MatMulInteger"]  # its sums wrap around, too


def test_a_scale_of_more_dimensions_than_the_product_stays() -> None:
    body = "wa = Cast<to = 6>(q)\n i = MatMul(wa, w)\n f = Cast<to = 1>(i)\n y = Mul(f, cube)"
    model = model_of(body, WEIGHTS | {"cube": scales_of()[None, None]}, inputs=f"int8[7, {K}] q")
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.INT8
    codes = np.random.default_rng(0).integers(-128, 128, (7, K)).astype(np.int8)
    check(model, {"q": codes})
    assert "Mul" in operators_of(model)
