"""Products of weights and activations that are rounded to float16."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from float16_models import CHAINS, model_of
from helpers import Array, with_arrays
from onnx import numpy_helper

VERSION = tuple(map(int, ort.__version__.split(".")[:2]))
DEPTH, COLUMNS = 257, 24
RNG = np.random.default_rng(5)
CODES = RNG.integers(-127, 128, (DEPTH, COLUMNS))
CODES[3] = 127
SCALES = RNG.uniform(0.001, 0.02, COLUMNS).astype(np.float32)
WEIGHTS = (CODES * SCALES.astype(np.float64)).astype(np.float16)


def layer(weights: Array = WEIGHTS, product: str = "y = MatMul(f, weights)") -> onnx.ModelProto:
    body = CHAINS["quotient"].replace("y =", "f =")
    model = onnx.ModelProto.FromString(model_of(f"{body} {product}", outputs="float16[N, M] y"))
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    model.graph.initializer.append(numpy_helper.from_array(np.full(COLUMNS, 0.5, np.float16), "bias"))
    return model


FORMS = {
    "MatMul": layer(),
    "bias": layer(product="p = MatMul(f, weights) y = Add(p, bias)"),
    "Gemm": layer(np.ascontiguousarray(WEIGHTS.T), "y = Gemm<transB = 1>(f, weights, bias)"),
    "transposed": layer(np.ascontiguousarray(WEIGHTS.T), "v = Transpose<perm = [1, 0]>(weights) y = MatMul(f, v)"),
}
# An activation per tensor, asymmetric; its scale is float16, so DequantizeLinear rounds.
RANGE = (
    "l = ReduceMin<keepdims = 0>(x) h = ReduceMax<keepdims = 0>(x) o = Min(l, zero) t = Max(h, zero) w = Sub(t, o)"
    " b = Div(w, levels) s = Clip(b, eps, limit) v = Div(o, s) i = Round(v) n = Neg(i) c = Clip(n, zero, levels)"
    " z = Cast<to = 2>(c) q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
)


def rounded_activation() -> onnx.ModelProto:
    """One activation for three products."""
    body = (
        f"{RANGE} e = DequantizeLinear<axis = 1>(codes, scales) y = MatMul(d, e) p = MatMul(d, e) f = Add(p, bias)"
        " r = MatMul(d, weights)"
    )
    outputs = ", ".join(f"float16[100, {COLUMNS}] {name}" for name in "yfr")
    model = onnx.ModelProto.FromString(model_of(body, before=f"float16[100, {DEPTH}] x", outputs=outputs))
    model.opset_import[0].version, model.ir_version = 21, 10
    arrays = {"codes": CODES.astype(np.int8), "scales": SCALES.astype(np.float16), "weights": WEIGHTS}
    arrays["bias"] = np.full(COLUMNS, 0.5, np.float16)
    return with_arrays(model, arrays)


KERNEL = RNG.integers(-127, 128, (8, 6, 3, 3))
KERNEL[:, 0, 0, 0] = 127
KERNEL_WEIGHTS = (KERNEL * SCALES[:8].astype(np.float64).reshape(-1, 1, 1, 1)).astype(np.float16)
SYMMETRIC = (
    "a = Abs(x) m = ReduceMax<keepdims = 0>(a) s = Div(m, limit) v = Div(x, s) r = Round(v) c = Clip(r, low, limit)"
    " d = Mul(c, s)"
)
CONVOLUTIONS = {
    "decomposed": f"{SYMMETRIC} y = Conv<pads = [1, 1, 1, 1]>(d, kernel, shift)",
    "bias": f"{RANGE} y = Conv<pads = [1, 1, 1, 1]>(d, kernel, shift)",
    "Relu": f"{RANGE} r = Conv(d, kernel, shift) y = Relu(r)",
    "DequantizeLinear": f"{RANGE} k = DequantizeLinear<axis = 0>(kernel_codes, kernel_scales) y = Conv(d, k)",
    "two": f"{RANGE} r = Conv(d, kernel) e = Conv(d, kernel, shift) y = Concat<axis = 1>(r, e)",
    "Transpose": f"{RANGE} r = Conv(d, kernel, shift) y = Transpose<perm = [0, 2, 3, 1]>(r)",
}


def convolution(body: str) -> onnx.ModelProto:
    """Convolutions of an activation that is quantized per tensor, from float16 to float16."""
    model = onnx.ModelProto.FromString(model_of(body, before="float16[2, 6, 20, 21] x", outputs="float16[] y"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.opset_import[0].version, model.ir_version = 21, 10
    arrays = {"kernel": KERNEL_WEIGHTS, "shift": np.linspace(-3, 3, 8).astype(np.float16)}
    arrays |= {"kernel_codes": KERNEL.astype(np.int8), "kernel_scales": SCALES[:8].astype(np.float16)}
    return with_arrays(model, arrays)
