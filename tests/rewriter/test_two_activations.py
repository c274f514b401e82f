"""Products of two activations that are quantized at run time: which become products of uint8 codes, and which stay.

The sums are integers, so every output keeps its bits.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from product_models import model_of
from rewriting import check, found, rows

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason

F = np.float32
ROWS, K = 7, 33
DATA = {"q": rows((2, ROWS, K), seed=1), "k": rows((2, 5, K), seed=2)}
INPUTS = f"float[B, M, {K}] q, float[B, N, {K}] k"
SCALES = "kst = Transpose<perm = [0, 2, 1]>(ks)\n f = Cast<to = 1>(i)\n g = Mul(f, qs)\n y = Mul(g, kst)"


def codes(name: str, casts: str = "3") -> str:
    """Computes the scale {name}s and the codes {name}8 of the rows of a value, after some Casts."""
    text = f"{name}a = Abs({name})\n {name}m = ReduceMax<keepdims = 1>({name}a, last)\n {name}l = Max({name}m, eps)\n"
    text += f"{name}s = Div({name}l, c127)\n {name}d = Div({name}, {name}s)\n {name}r = Round({name}d)\n"
    value = f"{name}c"
    text += f"{value} = Clip({name}r, low, high)\n"
    for dtype in casts.split():
        text += f"{name}{dtype}_ = Cast<to = {dtype}>({value})\n"
        value = f"{name}{dtype}_"
    return text + f"{name}w = Identity({value})\n"


TRANSPOSED = "kt = Transpose<perm = [0, 2, 1]>(kw)\n"
PRODUCTS = {
    "int32": codes("q", "3 6") + codes("k", "3 6") + TRANSPOSED + "i = MatMul(qw, kt)\n",
    "int32 at once": codes("q", "6") + codes("k", "6") + TRANSPOSED + "i = MatMul(qw, kt)\n",
    "int64": codes("q", "3 7") + codes("k", "3 7") + TRANSPOSED + "i = MatMul(qw, kt)\n",
    "Einsum": codes("q", "3 6") + codes("k", "3 6") + 'i = Einsum<equation = "bmk,bnk->bmn">(qw, kw)\n',
    "constant zero points": codes("q", "3 6")
    + codes("k", "3 6")
    + "qz = Sub(qw, three)\n kz = Sub(kw, four)\n kt = Transpose<perm = [0, 2, 1]>(kz)\n i = MatMul(qz, kt)\n",
    "zero points at run time": codes("q", "3 6")
    + codes("k", "3 6")
    + "z32 = Cast<to = 6>(z)\n qz = Sub(qw, z32)\n kz = Sub(kw, z32)\n kt = Transpose<perm = [0, 2, 1]>(kz)\n"
    "i = MatMul(qz, kt)\n",
}


def outside(types: str, m: str, n: str = "N") -> onnx.ModelProto:
    """A product of int32 codes that are inputs."""
    return model_of(
        "p = Cast<to = 6>(a)\n v = Cast<to = 6>(b)\n y = MatMul(p, v)",
        {},
        inputs=f"{types}[B, {m}, K] a, {types}[B, K, {n}] b",
        outputs="int32[] y",
    )


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_sums_without_products(depth: int) -> None:
    """ONNX Runtime's MatMul of int32 gives 0; its MatMulInteger writes nothing."""
    a = np.arange(2 * 64 * depth, dtype=np.uint8).reshape(2, 64, depth)
    b = np.arange(2 * depth * 65, dtype=np.uint8).reshape(2, depth, 65)
    for exact in (False, True):
        assert found(check(outside("uint8", "M"), {"a": a, "b": b}, exact=exact)) == ["MatMulInteger"]


def test_codes_from_outside() -> None:
    """Shifting all codes in each run takes longer than one row gains."""
    assert found(rewrite(outside("int8", "M")).report) == []
    assert found(rewrite(outside("int8", "3")).report) == ["MatMulInteger"]


@pytest.mark.parametrize("product", PRODUCTS)
def test_wide_integers(product: str) -> None:
    inputs, data = INPUTS, DATA
    if "at once" in product:  # ONNX does not define the Cast of NaN to int32
        data = {name: array[:, np.isfinite(array).all((0, 2))] for name, array in DATA.items()}
    if "run time" in product:
        inputs, data = inputs + ", int8[1, 1, 1] z", data | {"z": np.full((1, 1, 1), -128, np.int8)}
    model = model_of(PRODUCTS[product] + SCALES, {"three": np.int32(3), "four": np.int32(-4)}, inputs=inputs)
    for exact in (False, True):
        is_kept = exact and "at once" in product
        assert ("MatMulInteger" in found(check(model, data, exact=exact))) != is_kept
    assert types_of(model, "MatMulInteger") == {TensorProto.UINT8}


@pytest.mark.parametrize(
    ("equation", "shapes", "becomes"),
    [
        ("bqhd,bkhd->bhqk", ("[B, 7, 3, 33]", "[B, 5, 3, 33]"), "MatMulInteger"),
        ("bhqk,bkhd->bqhd", ("[2, 3, M, 5]", "[2, 5, 3, 33]"), "MatMulInteger"),
        ("...qhd,...khd->...qk", ("[B, M, 3, 33]", "[B, N, 3, 33]"), "MatMulInteger"),
        ("bqhd,bkhd->bhqk", ("[B, 7, 3, 33]", "[B, 5, 1, 33]"), "Einsum"),  # of one head for several
        ("bqhd,bkhd->bhqk", ("[B, 7, 3, 33]", "[C, 5, 3, 33]"), "Einsum"),  # one batch may be 1
    ],
)
def test_einsums(equation: str, shapes: tuple[str, str], becomes: str) -> None:
    """Axes of both factors and of the result in any order."""
    body = codes("q", "3 6") + codes("k", "3 6") + f'i = Einsum<equation = "{equation}">(qw, kw)\n y = Cast<to = 1>(i)'
    model = model_of(body, {}, inputs=f"float{shapes[0]} q, float{shapes[1]} k")
    lengths = {"B": 2, "C": 2, "M": 7, "N": 5}
    dims = [[lengths.get(each) or int(each) for each in shape.strip("[]").split(", ")] for shape in shapes]
    data = {name: rows((*shape,), seed=i) for i, (name, shape) in enumerate(zip("qk", dims, strict=True))}
    for exact in (False, True):
        left = [node.op_type for node in rewrite(model, exact=exact).to_proto().graph.node]
        assert becomes in left
        assert ("MatMulInteger" in found(check(model, data, exact=exact))) == (becomes == "MatMulInteger")


def types_of(model: onnx.ModelProto, operator: str) -> set[int]:
    """Returns the types of the zero points, which are those of the codes, of the only node of an operator."""
    nodes = rewrite(model).to_proto().graph.node
    made = {node.output[0]: node for node in nodes}
    (product,) = (node for node in nodes if node.op_type == operator)
    found = set()
    for name in product.input[2:4] if operator == "MatMulInteger" else (product.input[2], product.input[5]):
        node = made[name]
        while node.op_type == "Reshape":
            node = made[node.input[0]]
        (attribute,) = node.attribute
        found.add(attribute.i if node.op_type == "Cast" else attribute.t.data_type)
    return found


RANGE = "qx = ReduceMax<keepdims = 1>(q, last)\n qn = ReduceMin<keepdims = 1>(q, last)\n qe = Sub(qx, qn)\n"
AZP = (  # the zero point of a row that has no 0 in its range is no code
    RANGE + "qh = Max(qe, eps)\n qs = Div(qh, c255)\n qo = Div(qn, qs)\n qu = Sub(low, qo)\n qf = Round(qu)\n"
    "azp = Cast<to = 6>(qf)\n qd = Div(q, qs)\n qr = Round(qd)\n qt = Cast<to = 1>(azp)\n qv = Add(qr, qt)\n"
    "qc = Clip(qv, low, high)\n q8 = Cast<to = 3>(qc)\n qw = Cast<to = 6>(q8)\n i = MatMul(qw, w)\n"
    "j = Mul(azp, sums)\n k = Sub(i, j)\n f = Cast<to = 1>(k)\n y = Mul(f, qs)\n"
)
CONSTANTS = {
    "zero points of vLLM": (AZP, (-128, 127), "MatMulInteger"),
    "sums of integers": (
        codes("q", "3 6") + "i = MatMul(qw, w)\n n = Neg(i)\n y = Cast<to = 1>(n)",
        (0, 255),
        "MatMulInteger",
    ),
    "int64": (codes("q", "2 7") + "v = Cast<to = 7>(w)\n y = MatMul(qw, v)", (-128, 127), "MatMulInteger"),
    "Einsum": (codes("q", "3 6") + 'y = Einsum<equation = "bmk,nk->bmn">(qw, wt)', (-128, 127), "MatMulInteger"),
    "zero point": (codes("q", "3 6") + "u = Sub(qw, three)\n y = MatMul(u, w)", (-128, 127), "MatMulInteger"),
    "no codes": (codes("q", "3 6") + "y = MatMul(qw, w)", (-1, 255), ""),
    "zero point that is no code": (codes("q", "3 6") + "u = Sub(qw, big)\n y = MatMul(u, w)", (-128, 127), ""),
}


@pytest.mark.parametrize("product", CONSTANTS)
def test_products_by_constants_with_sums_that_stay_integers(product: str) -> None:
    body, (low, high), expected = CONSTANTS[product]
    w = np.random.default_rng(3).integers(low, high + 1, (K, 6)).astype(np.int32)
    w[0], w[1] = low, high
    arrays = {
        "w": w,
        "wt": w.T.copy(),
        "sums": w.sum(0, dtype=np.int32)[None],
        "three": np.int32(3),
        "big": np.int32(-200),
    }
    kind = "float" if "y = Mul" in body or "y = Cast" in body else "int64" if product == "int64" else "int32"
    model = model_of(body, arrays, inputs=f"float[B, M, {K}] q", outputs=f"{kind}[] y")
    q = DATA["q"][:, np.isfinite(DATA["q"]).all((0, 2))]
    q[1, 0] = np.linspace(5, 6, K)
    for exact in (False, True):
        assert [each for each in found(check(model, {"q": q}, exact=exact)) if each != "RowProgram"] == [
            expected
        ] * bool(expected)
    if expected:
        assert types_of(model, "MatMulInteger") == {TensorProto.UINT8}


@pytest.mark.parametrize(("body", "reason"), [
    ("qw = Cast<to = 7>(q)\n kw = Cast<to = 7>(k)\n" + TRANSPOSED + "y = MatMul(qw, kt)", Reason.SUMS_LENGTH),
    (
        "q6 = Cast<to = 6>(q)\n kw = Cast<to = 6>(k)\n z6 = Cast<to = 6>(z)\n qw = Sub(q6, z6)\n"
        + TRANSPOSED
        + "y = MatMul(qw, kt)",
        Reason.ACTIVATION_ONE_ZERO_POINT,
    ),
    (
        "q6 = Cast<to = 6>(q)\n kw = Cast<to = 6>(k)\n qw = Sub(q6, big)\n" + TRANSPOSED + "y = MatMul(qw, kt)",
        Reason.ZERO_POINT_NO_CODE,
    ),
])  # fmt: skip
def test_products_of_wide_integers_that_stay(body: str, reason: Reason) -> None:
    wide = "int64[] y" if "7>" in body else "int32[] y"
    depth = "D" if "7>" in body else K
    model = model_of(
        body,
        {"big": np.int32(200)},
        inputs=f"int8[2, M, {depth}] q, int8[2, N, {depth}] k, int8[2, M, 1] z",
        outputs=wide,
    )
    reasons = [each.unconverted.reason for each in rewrite(model).report.findings if each.unconverted]
    assert reasons == [reason]


def test_float_products_stay() -> None:
    """Packing and scaling cost more than integers save."""
    body = codes("q", "3 1") + codes("k", "3 1") + "qf = Mul(qw, qs)\n kf = Mul(kw, ks)\n"
    model = model_of(body + "kt = Transpose<perm = [0, 2, 1]>(kf)\n y = MatMul(qf, kt)", {}, inputs=INPUTS)
    report = check(model, DATA, exact=True)
    reasons = [each.unconverted.reason for each in rewrite(model).report.findings if each.unconverted]
    assert reasons == [Reason.TWO_QUANTIZED_ACTIVATIONS]
    assert found(report) == ["RowProgram", "RowProgram"]


def test_qlinear_matmul() -> None:
    """Halves are rounded to even before the zero point is added, so codes that are 128 larger round alike."""
    text = "y = QLinearMatMul(q, qs, qz, k, ks, kz, ys, yz)"
    inputs = "int8[2, 27, 33] q, int8[2, 33, 40] k, float qs, float ks, float ys, int8 qz, int8 kz, int8 yz"
    model = model_of(text, {}, inputs=inputs, outputs="int8[] y")
    rng = np.random.default_rng(0)
    data = {"q": rng.integers(-128, 128, (2, 27, 33), np.int8), "k": rng.integers(-128, 128, (2, 33, 40), np.int8)}
    for scale in (2.0**-9, 0.0013):
        scales = {"qs": np.array(scale, F), "ks": np.array(1, F), "ys": np.array(1, F)}
        zeros = {"qz": np.array(-128, np.int8), "kz": np.array(5, np.int8), "yz": np.array(-7, np.int8)}
        assert found(check(model, data | scales | zeros, exact=True)) == ["QLinearMatMul"]
    assert types_of(model, "QLinearMatMul") == {TensorProto.UINT8}
