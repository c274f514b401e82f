"""Writes graphs with several forms each, which no other model has: of convolutions, integers, training and loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from _common import Example, activations, grid_weights, int8_weights, main, parse


def image_decoder() -> Example:
    """A decoder of images with fake quantization: ConvTranspose, then a Conv of codes of x - min.

    The height is not known, so that the shapes of the interleaved phases are computed.
    """
    rng = np.random.default_rng(30)
    model = parse(
        """decoder (float[batch, 128, height, 5] x) => (float[batch, 8, rows, columns] y) {
            codes, s, z = DynamicQuantizeLinear(x)  dx = DequantizeLinear(codes, s, z)
            dw = DequantizeLinear<axis = 1>(w1, w1s)
            t = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1]>(dx, dw, b1)
            h = Relu(t)
            high = ReduceMax<keepdims = 0>(h)  low = ReduceMin<keepdims = 0>(h)  range = Sub(high, low)
            above = Sub(h, low)  part = Div(above, range)  steps = Mul(part, c255)  n = Round(steps)
            back = Div(n, c255)  scaled = Mul(back, range)  real = Add(scaled, low)
            y = Conv<pads = [1, 1, 1, 1]>(real, w2, b2)
        }""",
        18,
        w1=int8_weights(rng, 128, 4, 4, 4),
        w1s=rng.uniform(0.001, 0.01, 4).astype(np.float32),
        b1=grid_weights(rng, 4),
        w2=int8_weights(rng, 8, 4, 3, 3) * np.float32(0.005),
        b2=grid_weights(rng, 8),
        c255=np.float32(255),
    )
    return Example(model, [activations(1, 128, 6, 5, high=16.0, tensor=True)])


def integer_zero_points() -> Example:
    """Integer products as compilers of integer networks write them: zero points are subtracted from the sums.

    uint8 codes with a zero point for each token, uint8 weights with one; sums with integers from outside; a
    MatMulInteger and a QLinearMatMul of two int8 activations.
    """
    rng = np.random.default_rng(31)
    wu, wq = rng.integers(0, 256, (48, 16)).astype(np.uint8), int8_weights(rng, 48, 16)
    model = parse(
        """zero_points (float[batch, tokens, 48] x, int32[16] added)
            => (float[batch, tokens, 16] y, float[batch, tokens, 16] u, float[batch, tokens, tokens] scores,
                int8[batch, tokens, tokens] dots) {
            low = ReduceMin<axes = [-1], keepdims = 1>(x)  low0 = Min(low, zero)
            high = ReduceMax<axes = [-1], keepdims = 1>(x)  high0 = Max(high, zero)
            range = Sub(high0, low0)  raw = Div(range, c255)  s = Max(raw, epsilon)
            below = Div(low0, s)  r = Round(below)  n = Neg(r)  zr = Clip(n, zero, c255)
            z8 = Cast<to = 2>(zr)  z = Cast<to = 6>(z8)
            d = Div(x, s)  rd = Round(d)  shifted = Add(rd, zr)  c = Clip(shifted, zero, c255)  q = Cast<to = 2>(c)
            p = MatMulInteger(q, wu)
            q32 = Cast<to = 6>(q)  rows = ReduceSum<keepdims = 1>(q32, last)  of_rows = Mul(rows, wz)
            of_columns = Mul(z, wu_sums)  zk = Mul(z, depth)  of_both = Mul(zk, wz)
            i0 = Sub(p, of_columns)  i1 = Sub(i0, of_rows)  i = Add(i1, of_both)
            f = Cast<to = 1>(i)  g = Mul(f, s)  y = Mul(g, ws)

            codes, t, tz = DynamicQuantizeLinear(x)
            p2 = MatMulInteger(codes, wq, tz)  i2 = Add(p2, added)  f2 = Cast<to = 1>(i2)  g2 = Mul(f2, t)
            u = Mul(g2, ws)

            a = Abs(x)  m = ReduceMax<axes = [-1], keepdims = 1>(a)  l = Max(m, epsilon)  as = Div(l, c127)
            e = Div(x, as)  re = Round(e)  ce = Clip(re, cm128, c127)  k = Cast<to = 3>(ce)
            kt = Transpose<perm = [0, 2, 1]>(k)  ast = Transpose<perm = [0, 2, 1]>(as)
            p3 = MatMulInteger(k, kt)  f3 = Cast<to = 1>(p3)  g3 = Mul(f3, as)  scores = Mul(g3, ast)
            dots = QLinearMatMul(k, unit, zero8, kt, unit, zero8, many, zero8)
        }""",
        17,
        zero=np.float32(0),
        c255=np.float32(255),
        c127=np.float32(127),
        cm128=np.float32(-128),
        epsilon=np.float32(1e-5),
        last=np.array([-1]),
        wu=wu,
        wq=wq,
        wz=np.int32(117),
        wu_sums=wu.sum(0, dtype=np.int32),
        depth=np.int32(48),
        ws=rng.uniform(0.001, 0.01, 16).astype(np.float32),
        unit=np.float32(1),
        zero8=np.int8(0),
        many=np.float32(4096),
    )
    return Example(model, [activations(2, 7, 48, high=16.0), rng.integers(-(2**20), 2**20, 16).astype(np.int32)])


def straight_through() -> Example:
    """Straight-through estimators of training, x + (y - x), with types that a function gives by CastLike.

    Of a rounding, and of a fake quantization of two parts, which are quantized on their own and joined again.
    """
    rng = np.random.default_rng(32)
    weights = int8_weights(rng, 48, 16)
    weights[0] = 127
    model = parse(
        """estimators (float[batch, tokens, 48] x) => (float[batch, tokens, 16] y, float[batch, after, 16] u) {
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, last)  l = Max(m, epsilon)  s = Div(l, c127)
            q = Div(x, s)  r = Round(q)  d = Sub(r, q)  t = Add(q, d)  c = Clip(t, low, c127)
            k = CastLike(c, like)  f = CastLike(k, x)  real = Mul(f, s)  y = MatMul(real, w)

            first = Slice(x, from0, from3, tokens_axis)  ha = Abs(first)  hm = ReduceMax<keepdims = 1>(ha, last)
            hl = Max(hm, epsilon)  hs = Div(hl, c127)  hq = Div(first, hs)  hr = Round(hq)  hc = Clip(hr, low, c127)
            hf = Mul(hc, hs)
            v = Mul(x, half)  va = Abs(v)  vm = ReduceMax<keepdims = 1>(va, last)  vl = Max(vm, epsilon)
            vs = Div(vl, c127)  vq = Div(v, vs)  vr = Round(vq)  vc = Clip(vr, low, c127)  vf = Mul(vc, vs)
            vd = Sub(vf, v)  ve = Add(v, vd)
            joined = Concat<axis = 1>(hf, ve)  u = MatMul(joined, w)
        }""",
        18,
        last=np.array([-1]),
        epsilon=np.float32(1e-5),
        c127=np.float32(127),
        low=np.float32(-127),
        half=np.float32(0.5),
        like=np.int8(0),
        from0=np.array([0]),
        from3=np.array([3]),
        tokens_axis=np.array([1]),
        w=weights * np.float32(1 / 1024),
    )
    return Example(model, [activations(2, 7, 48, zero_row=True)])


def loop_states() -> Example:
    """A Loop that carries the bounds of its codes as states, as TorchScript carries every variable of a loop."""
    model = parse(
        """states (float[tokens, 32] x) => (float[tokens, 32] y) {
            y, unused, bounds = Loop(steps, yes, x, levels, low) <body = body (int64 i, bool go, float[tokens, 32] h,
                float top, float bottom) => (bool goes, float[tokens, 32] next, float same, float same2) {
                goes = Identity(go)  same = Identity(top)  same2 = Identity(bottom)
                a = Abs(h)  m = ReduceMax<keepdims = 1>(a, last)  l = Max(m, epsilon)  s = Div(l, top)
                q = Div(h, s)  r = Round(q)  c = Clip(r, bottom, top)  f = Mul(c, s)  next = Mul(f, decay)
            }>
        }""",
        18,
        steps=np.array(3),
        yes=np.array(True),
        last=np.array([-1]),
        epsilon=np.float32(1e-5),
        levels=np.float32(127),
        low=np.float32(-127),
        decay=np.float32(0.75),
    )
    return Example(model, [activations(7, 32, zero_row=True)])


def inverse_products() -> Example:
    """Codes x * (127 / range) without a Clip, in products that are written as Gemm with alpha, and as Einsum.

    The range has an epsilon that is added; HardSwish stands before it. The sums are divided by the inverse scale.
    """
    rng = np.random.default_rng(34)
    codes = int8_weights(rng, 16, 48)
    codes[:, 0] = 127
    model = parse(
        """inverse (float[tokens, 48] x) => (float[tokens, 16] y, float[tokens, 16] u) {
            h = HardSwish(x)  a = Abs(h)  m = ReduceMax<keepdims = 1>(a, last)  e = Add(m, epsilon)
            inverse = Div(c127, e)  d = Mul(h, inverse)  r = Round(d)  real = Div(r, inverse)
            y = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(real, w, b)
            v = Einsum<equation = "tk,nk->tn">(real, w)  u = Add(v, b)
        }""",
        18,
        last=np.array([-1]),
        epsilon=np.float32(1e-5),
        c127=np.float32(127),
        w=codes * rng.uniform(0.001, 0.01, (16, 1)).astype(np.float32),
        b=grid_weights(rng, 16),
    )
    return Example(model, [activations(9, 48, zero_row=True)])


def weight_blocks() -> Example:
    """Weights of 4 bits as other quantizers than ONNX Runtime's write them.

    MatMulNBits with zero points that are no integers (HQQ) and g_idx of the usual order (GPTQ), then DequantizeLinear
    of blocks along the columns.
    """
    rng = np.random.default_rng(35)
    blocks = 256 // 32
    model = parse(
        """weight_blocks (float[batch, tokens, 256] x) => (float[batch, tokens, 64] y) {
            h = com.microsoft.MatMulNBits<K = 256, N = 256, bits = 4, block_size = 32, accuracy_level = 4>
                (x, codes, scales, points, order)
            a = Relu(h)  w = DequantizeLinear<axis = 1, block_size = 32>(codes2, scales2)  y = MatMul(a, w)
        }""",
        21,
        ("com.microsoft",),
        codes=rng.integers(0, 256, (256, blocks, 16)).astype(np.uint8),
        scales=rng.uniform(0.001, 0.01, (256, blocks)).astype(np.float32),
        points=rng.uniform(6, 9, (256, blocks)).astype(np.float32),
        order=np.arange(256, dtype=np.int32) // 32,
        codes2=int8_weights(rng, 256, 64),
        scales2=rng.uniform(0.001, 0.01, (256, 2)).astype(np.float32),
    )
    return Example(model, [activations(2, 7, 256, zero_row=True)])


MODELS: dict[str, Callable[[], Example]] = {
    "image_decoder": image_decoder,
    "integer_zero_points": integer_zero_points,
    "straight_through": straight_through,
    "loop_states": loop_states,
    "inverse_products": inverse_products,
    "weight_blocks": weight_blocks,
}

if __name__ == "__main__":
    main(MODELS)
