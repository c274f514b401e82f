"""Models of matrix products with quantized activations, and checks of their results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
from helpers import Array, assert_same, make_session, product_of, stock_session, with_arrays, with_one_nan
from onnx import TensorProto, helper, numpy_helper
from rewriting import NUMBERS, check, rows

from ort_dynq.rewriter import Report, rewrite

F = np.float32
K, N = 33, 18
_ROUNDINGS = 4  # int32 to float32, the scales' product, the product with it, the bias


def model_of(
    body: str, weights: dict[str, Array], *, opset: int = 18, inputs: str = "", outputs: str = "float[] y"
) -> onnx.ModelProto:
    """A model over x, float32 [B, M, K], with scalar constants like those of rewriting.parse()."""
    head = f'<ir_version: {10 if opset >= 21 else 8}, opset_import: ["": {opset}]>'
    text = f"{head} g ({inputs or f'float[B, M, {K}] x'}) => ({outputs}) {{ {body} }}"
    given = {**NUMBERS, "last": np.array([-1]), "rows": np.array([-1, K]), **weights}
    return with_arrays(onnx.parser.parse_model(text), given)


def codes_of(low: int = -127, high: int = 127, *, seed: int = 1, dtype: type[np.generic] = np.int8) -> Array:
    codes = np.random.default_rng(seed).integers(low, high + 1, (K, N))
    codes[0] = high  # every column has the largest
    codes[:, 3] = 0
    return np.asarray(codes.astype(dtype))


def scales_of(seed: int = 2) -> Array:
    return np.asarray(np.random.default_rng(seed).uniform(0.001, 0.02, N).astype(F))


REDUCED = {13: "Reduce{0}<axes = [-1], keepdims = 1>({1})", 18: "Reduce{0}<keepdims = 1>({1}, last)"}


def reduced(kind: str, value: str, opset: int) -> str:
    return REDUCED[18 if opset >= 18 else 13].format(kind, value)


def symmetric(opset: int = 18, *, epsilon: bool = True) -> str:
    """Computes the scale s and the clipped float codes c of each token of x."""
    largest = "m0 = Identity(m)" if not epsilon else "m0 = Max(m, eps)"
    return f"a = Abs(x)\n m = {reduced('Max', 'a', opset)}\n {largest}\n s = Div(m0, c127)\n" + (
        "t = Div(x, s)\n r = Round(t)\n c = Clip(r, low, high)\n"
    )


def asymmetric(opset: int = 18) -> str:
    """Computes s and c as torchao does, with a zero point z."""
    return (
        f"mn = {reduced('Min', 'x', opset)}\n mx = {reduced('Max', 'x', opset)}\n mn0 = Min(mn, zero)\n"
        "mx0 = Max(mx, zero)\n d = Sub(mx0, mn0)\n e = Div(d, c255)\n s = Max(e, eps)\n g = Div(mn0, s)\n"
        "h = Round(g)\n z0 = Sub(low, h)\n z = Clip(z0, low, high)\n t = Div(x, s)\n r = Round(t)\n u = Add(r, z)\n"
        "c = Clip(u, low, high)\n"
    )


ACTIVATIONS = {
    "symmetric": symmetric() + "dx = Mul(c, s)\n",
    "symmetric through int8": symmetric() + "q = Cast<to = 3>(c)\n f = Cast<to = 1>(q)\n dx = Mul(f, s)\n",
    "symmetric through CastLike": symmetric() + "q = Cast<to = 3>(c)\n f = CastLike(q, x)\n dx = Mul(f, s)\n",
    "asymmetric": asymmetric() + "v = Sub(c, z)\n dx = Mul(v, s)\n",
    "inverse scale": f"a = Abs(x)\n m = {reduced('Max', 'a', 18)}\n m0 = Max(m, eps)\n r0 = Reciprocal(m0)\n"
    "s = Mul(r0, c127)\n t = Mul(x, s)\n r = Round(t)\n c = Clip(r, low, high)\n dx = Div(c, s)\n",
    "per tensor, QuantizeLinear": "a = Abs(x)\n m = ReduceMax<keepdims = 0>(a)\n m0 = Max(m, eps)\n s = Div(m0, c127)\n"
    "z0 = Mul(m, zero)\n z8 = Cast<to = 3>(z0)\n q = QuantizeLinear(x, s, z8)\n dx = DequantizeLinear(q, s, z8)\n",
    "scale from elsewhere": symmetric().replace("s = Div(m0, c127)", "s0 = Div(m0, c127)\n s = Mul(s0, s0)")
    + "dx = Mul(c, s)\n",
}
WEIGHTS: dict[str, tuple[str, dict[str, Array]]] = {
    "folded": ("", {"w": codes_of().astype(F) * scales_of()}),
    "folded, -128": ("", {"w": codes_of(-128).astype(F) * scales_of()}),
    "ternary": ("", {"w": codes_of(-1, 1).astype(F) * scales_of()}),
    "folded, asymmetric": (
        "",
        {"w": (codes_of(0, 255, dtype=np.int16) - np.arange(N) * 15).astype(F) * scales_of()},
    ),
    "Cast, Mul": ("wf = Cast<to = 1>(wq)\n w = Mul(wf, ws)\n", {"wq": codes_of(), "ws": scales_of()}),
    "Cast, Sub, Mul, Transpose": (
        "wf = Cast<to = 1>(wq)\n wd = Sub(wf, wz)\n we = Mul(wd, ws)\n w = Transpose<perm = [1, 0]>(we)\n",
        {"wq": np.ascontiguousarray(codes_of().T), "ws": scales_of()[:, None], "wz": np.full((N, 1), 3, F)},
    ),
    "DequantizeLinear": (
        "w = DequantizeLinear<axis = 1>(wq, ws, wz)\n",
        {"wq": codes_of(), "ws": scales_of(), "wz": np.zeros(N, np.int8)},
    ),
    "DequantizeLinear per tensor, u8": (
        "w = DequantizeLinear(wq, ws, wz)\n",
        {"wq": codes_of(0, 255, dtype=np.uint8), "ws": F(0.01), "wz": np.uint8(130)},
    ),
    "DequantizeLinear, Transpose": (
        "wd = DequantizeLinear<axis = 0>(wq, ws)\n w = Transpose<perm = [1, 0]>(wd)\n",
        {"wq": np.ascontiguousarray(codes_of().T), "ws": scales_of()},
    ),
}
DATA = {"x": rows((2, 9, K), seed=4)[:, [0, 1, 2, 3, 4, 6, 7]]}  # finite


def check_products(
    model: onnx.ModelProto, x: dict[str, Array], products: Sequence[str] = ("y",), groups: int = 0
) -> Report:
    """Checks that the rewritten model is as close to float64 as the original, and that the exact one equals it.

    The activation that is multiplied is dx, the weights are w. Groups are added as floats: one more rounding for each.
    """
    check(model, x, exact=True)
    result = rewrite(model)
    converted = result.to_proto()
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    initializers = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    names = [name for name in ("dx", "w", "b") if name not in initializers]
    known = {name for node in model.graph.node for name in node.output}
    names = [name for name in names if name in known]
    exposed.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    *outputs, _ = [*stock_session(exposed).run(None, x), None]
    given = dict(zip([output.name for output in exposed.graph.output], outputs, strict=True)) | initializers
    dx, w = (given[name].astype(np.float64) for name in ("dx", "w"))
    bias = given.get("b", np.zeros(1)).astype(np.float64)
    true = dx @ w + bias
    floor = (_ROUNDINGS + groups) * 2.0**-24 * (np.abs(dx) @ np.abs(w) + np.abs(bias))
    for session in (make_session(converted, "native"), stock_session(converted)):
        for name, ours in zip([output.name for output in model.graph.output], session.run(None, x), strict=True):
            if name not in products:
                assert_same(with_one_nan(ours), with_one_nan(given[name]))
                continue
            shaped = true.reshape(ours.shape)
            assert ours.dtype == F
            bound = np.maximum(floor.reshape(ours.shape), np.abs(given[name] - shaped))
            assert (np.abs(ours - shaped) <= bound).all()
    make_session(converted, "native", optimize=True).run(None, x)
    return result.report


INTEGER_TAILS = {
    "row, column": "f = Cast<to = 1>(i)\n g = Mul(f, s)\n y = Mul(g, ws)",
    "column, row, bias": "f = Cast<to = 1>(i)\n g = Mul(ws, f)\n h = Mul(s, g)\n y = Add(b, h)",
    "product of scales": "f = Cast<to = 1>(i)\n k = Mul(s, ws)\n y = Mul(f, k)",
    "product of scales, bias": "f = Cast<to = 1>(i)\n k = Mul(ws, s)\n g = Mul(k, f)\n y = Add(g, b)",
    "none": "y = Cast<to = 1>(i)",
    "row": "f = Cast<to = 1>(i)\n y = Mul(f, s)",
    "column": "f = Cast<to = 1>(i)\n y = Mul(f, ws)",
    "subtracted": "j = Sub(i, sums)\n f = Cast<to = 1>(j)\n g = Mul(f, s)\n h = Mul(g, ws)\n y = Add(h, b)",
    "three factors": "f = Cast<to = 1>(i)\n g = Mul(f, s)\n h = Mul(g, ws)\n y = Mul(h, ws)",
}
PRODUCTS = {
    "plain": "i = MatMulInteger(q, wq)\n",
    "zero point": "i = MatMulInteger(q, wq, zq)\n",
    "zero points": "i = MatMulInteger(q, wq, zq, wz)\n",
    "unsigned weights": "i = MatMulInteger(q, wu, zq, wzu)\n",
}
INTEGER_WEIGHTS = {
    "wq": codes_of(),
    "wu": codes_of(0, 255, dtype=np.uint8),
    "zq": np.int8(-3),
    "wz": codes_of()[2],
    "wzu": np.uint8(128),
    "ws": scales_of(),
    "b": np.linspace(-3, 3, N).astype(F),
    "sums": codes_of().sum(0, dtype=np.int32) * 100,
}


def activations_of(model: onnx.ModelProto) -> set[int]:
    """Returns the types of the codes that products multiply, from the operators before them."""
    producers = {output: node for node in model.graph.node for output in node.output}
    types = set()
    for node in model.graph.node:
        if node.op_type == "MatMulInteger" or product_of(node.op_type):
            source = producers[node.input[0]]
            while source.op_type in ("Reshape", "Transpose", "Identity"):
                source = producers[source.input[0]]
            given = {attribute.name: attribute.i for attribute in source.attribute}
            types.add(given["to"] if source.op_type == "Cast" else given.get("code_type") or given["output_dtype"])
    return types
