"""Writes graphs. Their codes are found by what values are: bounds and integers, in spellings of no exporter."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from _common import Example, activations, int8_weights, main, parse

CONSTANTS = {
    "last": np.array([-1]),
    "epsilon": np.float32(1e-5),
    "zero": np.float32(0),
    "c127": np.float32(127),
    "c255": np.float32(255),
    "low": np.float32(-127),
}
RANGE = """a = Abs(x)  m = ReduceMax<keepdims = 1>(a, last)  r = Max(m, epsilon)  s = Div(r, c127)  v = Div(x, s)
    q = Round(v)  c = Clip(q, low, c127)  d = Mul(c, s)
"""


def weights(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Returns float32 weights with one scale."""
    codes = int8_weights(rng, *shape)
    codes[0] = 127
    return codes * np.float32(0.01)


def rounded_by_arithmetic() -> Example:
    """Codes without Round: a sum with 1.5 * 2^23, a remainder, and a Cast to int32 beside a scale of a power of 2."""
    rng = np.random.default_rng(41)
    model = parse(
        """rounded (float[batch, tokens, 64] x) => (float[batch, tokens, 32] y) {
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, last)  r = Max(m, epsilon)  s = Div(r, c127)  v = Div(x, s)
            u = Add(v, large)  q1 = Sub(u, large)  d1 = Mul(q1, s)  y1 = MatMul(d1, w1)
            t = Mod<fmod = 1>(v, one)  q2 = Sub(v, t)  d2 = Mul(q2, s)  y2 = MatMul(d2, w2)
            i = Div(c127, r)  l = Log(i)  e = Div(l, log2)  n = Floor(e)  p = Pow(two, n)  b = Mul(x, p)
            k = Cast<to = 6>(b)  q3 = Cast<to = 1>(k)  d3 = Div(q3, p)  y3 = MatMul(d3, w3)
            y12 = Add(y1, y2)  y = Add(y12, y3)
        }""",
        21,
        **{name: CONSTANTS[name] for name in ("last", "epsilon", "c127")},
        large=np.float32(12582912),
        one=np.float32(1),
        two=np.float32(2),
        log2=np.float32(np.log(2)),
        w1=weights(rng, 64, 32),
        w2=weights(rng, 64, 32),
        w3=weights(rng, 64, 32),
    )
    return Example(model, [activations(2, 9, 64, zero_row=True)])


def masked_codes() -> Example:
    """A Where that leaves out tokens, and one that leaves out elements, beside codes."""
    rng = np.random.default_rng(42)
    model = parse(
        f"""masked (float[batch, tokens, 64] x, bool[batch, tokens, 1] kept) => (float[batch, tokens, 32] y) {{
            {RANGE}
            e1 = Where(kept, d, zero)  y1 = MatMul(e1, w1)
            small = Less(x, half)  e2 = Where(small, zero, d)  y2 = MatMul(e2, w2)
            y = Add(y1, y2)
        }}""",
        21,
        **{name: CONSTANTS[name] for name in ("last", "epsilon", "zero", "c127", "low")},
        half=np.float32(0.5),
        w1=weights(rng, 64, 32),
        w2=weights(rng, 64, 32),
    )
    return Example(model, [activations(2, 9, 64, zero_row=True), rng.random((2, 9, 1)) < 0.7])


def relative_bounds() -> Example:
    """FakeQuantize as NNCF and as OpenVINO write it: x is clamped to [low, low + range] of its row."""
    rng = np.random.default_rng(43)
    model = parse(
        """clamped (float[batch, tokens, 64] x) => (float[batch, tokens, 32] y) {
            l0 = ReduceMin<keepdims = 1>(x, last)  l = Min(l0, zero)  h0 = ReduceMax<keepdims = 1>(x, last)
            h = Max(h0, zero)  r0 = Sub(h, l)  r = Max(r0, epsilon)  k = Div(c255, r)
            e = Add(l, r)  c0 = Min(x, e)  c = Max(c0, l)  u = Sub(c, l)  g = Mul(u, k)
            q1 = Round(g)  b = Div(q1, k)  d1 = Add(b, l)  y1 = MatMul(d1, w1)
            n = Neg(l)  t = Mul(n, k)  z = Round(t)  f = Sub(g, z)  q2 = Round(f)  d2 = Div(q2, k)  y2 = MatMul(d2, w2)
            y = Add(y1, y2)
        }""",
        21,
        **{name: CONSTANTS[name] for name in ("last", "epsilon", "zero", "c255")},
        w1=weights(rng, 64, 32),
        w2=weights(rng, 64, 32),
    )
    return Example(model, [activations(2, 9, 64, high=16.0, zero_row=True)])


def positions() -> Example:
    """A convolution of 1x1 with a scale for each position, and a product with the weights as its first factor."""
    rng = np.random.default_rng(44)
    body = RANGE.replace("(a, last)", "(a, channels)")
    model = parse(
        f"""positions (float[batch, 128, length] x) => (float[batch, 128, length] y) {{
            {body}
            y1 = Conv(d, w1, bias)  w2 = Flatten(w1)  y2 = MatMul(w2, d)  y = Add(y1, y2)
        }}""",
        21,
        **{name: CONSTANTS[name] for name in ("epsilon", "c127", "low")},
        channels=np.array([1]),
        w1=weights(rng, 128, 128, 1),
        bias=rng.normal(0, 1, 128).astype(np.float32),
    )
    return Example(model, [np.ascontiguousarray(activations(2, 9, 128).transpose(0, 2, 1))])


def embedding_of_codes() -> Example:
    """A table of codes with a scale for each row before a product, and one that DequantizeLinear dequantizes."""
    rng = np.random.default_rng(45)
    model = parse(
        """embedding (int64[batch, tokens] ids) => (float[batch, tokens, 32] y) {
            c = Gather(table, ids)  s = Gather(scales, ids)  f = Cast<to = 1>(c)  d = Mul(f, s)  y1 = MatMul(d, w)
            floats = DequantizeLinear(words, scale)  y2 = Gather(floats, ids)  y = Add(y1, y2)
        }""",
        21,
        table=int8_weights(rng, 1024, 16),
        scales=rng.uniform(0.01, 0.02, (1024, 1)).astype(np.float32),
        w=weights(rng, 16, 32),
        words=int8_weights(rng, 1024, 32),
        scale=np.float32(0.013),
    )
    return Example(model, [rng.integers(0, 1024, (2, 9))])


def scaled_sums() -> Example:
    """Sums of an integer product and of an integer convolution that DequantizeLinear scales, as onnx-quantize does."""
    rng = np.random.default_rng(51)
    model = parse(
        """scaled_sums (float[batch, 32, 6, 6] x) => (float[batch, 24, 6, 6] y, float[batch, 32, 6, 24] u) {
            q, s, z = DynamicQuantizeLinear(x)
            p = ConvInteger<pads = [1, 1, 1, 1]>(q, kernels, z)  t = Mul(s, step)  y = DequantizeLinear(p, t)
            m = MatMulInteger(q, matrix, z)  i = Add(m, bias)  k = Mul(s, steps)  u = DequantizeLinear<axis = -1>(i, k)
        }""",
        18,
        kernels=int8_weights(rng, 24, 32, 3, 3),
        step=np.float32(0.01),
        matrix=int8_weights(rng, 6, 24),
        bias=rng.integers(-9999, 9999, 24).astype(np.int32),
        steps=rng.uniform(0.005, 0.02, 24).astype(np.float32),
    )
    return Example(model, [activations(1, 32, 6, 6, high=16.0, tensor=True)])


def shared_exponents() -> Example:
    """MXINT8: groups of 32 share a power of two, and codes are clipped after the division by 64."""
    rng = np.random.default_rng(52)
    model = parse(
        """exponents (float[batch, tokens, 96] x) => (float[batch, tokens, 192] y) {
            g = Reshape(x, groups)  a = Abs(g)  m = ReduceMax<keepdims = 1>(a, last)  r = Max(m, epsilon)
            l = Log(r)  t = Div(l, log2)  e = Floor(t)  p = Pow(two, e)  v = Div(g, p)  h = Mul(v, c64)
            i = Sign(h)  k = Abs(h)  n = Add(k, half)  f = Floor(n)  q = Mul(i, f)
            d = Div(q, c64)  c = Clip(d, lowest, highest)  b = Mul(c, p)  dx = Reshape(b, joined)
            dw = DequantizeLinear(w, step)  y = MatMul(dx, dw)
        }""",
        18,
        groups=np.array([0, 0, 3, 32]),
        joined=np.array([0, 0, 96]),
        last=CONSTANTS["last"],
        epsilon=CONSTANTS["epsilon"],
        log2=np.float32(np.log(2)),
        two=np.float32(2),
        c64=np.float32(64),
        half=np.float32(0.5),
        lowest=np.float32(-127 / 64),
        highest=np.float32(127 / 64),
        w=int8_weights(rng, 96, 192),
        step=np.float32(0.01),
    )
    return Example(model, [activations(1, 9, 96, zero_row=True)])


def hqq_weights() -> Example:
    """Weights as HQQ dequantizes them: zero points that are no codes, for groups of a column and for columns."""
    rng = np.random.default_rng(48)
    model = parse(
        f"""hqq (float[batch, tokens, 256] x) => (float[batch, tokens, 256] y, float[batch, tokens, 256] z) {{
            {RANGE}
            real = Cast<to = 1>(codes)  grouped = Reshape(real, groups)
            left = Sub(grouped, zeros)  scaled = Mul(left, scales)  w = Reshape(scaled, joined)  y = MatMul(d, w)
            rest = Sub(real, zeros_of_columns)  w2 = Mul(rest, scales_of_columns)  z = MatMul(d, w2)
        }}""",
        21,
        **{name: CONSTANTS[name] for name in ("last", "epsilon", "c127", "low")},
        codes=rng.integers(0, 16, (256, 256)).astype(ml_dtypes.uint4),
        groups=np.array([2, 128, 256]),
        joined=np.array([256, 256]),
        zeros=rng.uniform(0, 15, (2, 1, 256)).astype(np.float32),
        scales=rng.uniform(0.01, 0.02, (2, 1, 256)).astype(np.float32),
        zeros_of_columns=rng.uniform(0, 15, 256).astype(np.float32),
        scales_of_columns=rng.uniform(0.01, 0.02, 256).astype(np.float32),
    )
    return Example(model, [activations(1, 3, 256, zero_row=True)])


MODELS = {
    "hqq_weights": hqq_weights,
    "scaled_sums": scaled_sums,
    "shared_exponents": shared_exponents,
    "rounded_by_arithmetic": rounded_by_arithmetic,
    "masked_codes": masked_codes,
    "relative_bounds": relative_bounds,
    "positions": positions,
    "embedding_of_codes": embedding_of_codes,
}

if __name__ == "__main__":
    main(MODELS)
