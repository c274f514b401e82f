"""Writes graphs with several forms each, which no other model has: of convolutions, integers, training and loops.

More than 450 lines: one function for each model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from _common import Example, activations, grid_weights, int8_weights, main, parse

SYMMETRIC = {"last": np.array([-1]), "epsilon": np.float32(1e-5), "c127": np.float32(127), "low": np.float32(-127)}
"""The constants of symmetric codes with one scale for each token."""


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


def padded_images() -> Example:
    """Convolutions of images with the channels last, and of images with a margin of zeros."""
    rng = np.random.default_rng(32)
    model = parse(
        """padded (float[batch, height, 8, 16] x) => (float[batch, 12, rows, 8] y) {
            codes, s, z = DynamicQuantizeLinear(x)  dx = DequantizeLinear(codes, s, z)
            first = Transpose<perm = [0, 3, 1, 2]>(dx)
            h = Conv<pads = [1, 1, 1, 1]>(first, w1)  a = Relu(h)
            codes2, s2, z2 = DynamicQuantizeLinear(a)  da = DequantizeLinear(codes2, s2, z2)
            padded = Pad(da, margin)  y = Conv(padded, w2, b2)
        }""",
        18,
        w1=int8_weights(rng, 20, 16, 3, 3) * np.float32(0.005),
        margin=np.array([0, 0, 1, 1, 0, 0, 2, 1]),
        w2=int8_weights(rng, 12, 20, 3, 3) * np.float32(0.005),
        b2=grid_weights(rng, 12),
    )
    return Example(model, [activations(1, 9, 8, 16, high=16.0, tensor=True)])


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
        **SYMMETRIC,
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


def image_parts() -> Example:
    """A quantized network of TensorFlow, as tf2onnx writes it: images with the channels last, a Transpose around each
    convolution, and between them padding, parts of images and parts of channels.
    """
    rng = np.random.default_rng(36)

    def conv(x: str, name: str) -> str:
        return f"""{name}_t = Transpose<perm = [0, 3, 1, 2]>({x})  {name}_q, {name}_s, {name}_z =
                DynamicQuantizeLinear({name}_t)
            {name}_i = ConvInteger({name}_q, w_{name}, {name}_z)  {name}_f = Cast<to = 1>({name}_i)
            {name}_k = Mul({name}_s, ws)  {name}_g = Mul({name}_f, {name}_k)
            {name} = Transpose<perm = [0, 2, 3, 1]>({name}_g)"""

    model = parse(
        f"""parts (float[batch, 9, 7, 3] x) => (float[batch, rows, columns, 8] y) {{
            {conv("x", "a")}
            ab = Add(a, b)  ar = Relu(ab)  padded = Pad(ar, around, zero)
            {conv("padded", "c")}
            cb = Add(c, b)  cr = Relu(cb)  wide = Pad(cr, one_each, zero, middle)
            {conv("wide", "d")}
            joined = Concat<axis = -1>(d, c)  left, right = Split<axis = 3, num_outputs = 2>(joined)
            sum = Add(left, right)  inner = Slice(sum, ones, ends, middle)  outer = Slice(inner, starts, lengths)
            {conv("outer", "e")}
            y = Add(e, b)
        }}""",
        18,
        w_a=int8_weights(rng, 8, 3, 3, 3),
        **{f"w_{name}": int8_weights(rng, 8, 8, 3, 3) for name in "cde"},
        ws=np.float32(1 / 512),
        b=grid_weights(rng, 8),
        zero=np.float32(0),
        around=np.array([0, 1, 1, 0, 0, 1, 1, 0]),
        one_each=np.array([1, 1, 1, 1]),
        middle=np.array([1, 2]),
        ones=np.array([1, 1]),
        ends=np.array([7, 5]),
        starts=np.array([0, 1]),
        lengths=np.array([9, 9]),
    )
    return Example(model, [activations(1, 9, 7, 3, tensor=True)])


def masked_attention() -> Example:
    """Attention of float keys and values; their projections are quantized for each token.

    The normalization of Gemma stands before. The masks are those of torch's safe softmax, 0 in rows without keys, with
    keys of heads from outside; and of DistilBERT: its condition is expanded to the scores, with the scale that
    TorchScript computes from the shape of the query.
    """
    rng = np.random.default_rng(37)
    weights = int8_weights(rng, 48, 24)
    weights[0] = 127
    model = parse(
        """masked (float[batch, tokens, 48] x, float[batch, 3, keys, 8] k, float[batch, keys, 24] v,
            bool[tokens, keys] visible, bool[batch, 1, 1, tokens] padding) => (float[batch, tokens, 24] y) {
            squares = Mul(x, x)  mean = ReduceMean<keepdims = 1>(squares, last)  plus = Add(mean, epsilon)
            inverse = Pow(plus, half)  n = Mul(x, inverse)
            a = Abs(n)  m = ReduceMax<keepdims = 1>(a, last)  l = Max(m, epsilon)  s = Div(l, c127)
            q = Div(n, s)  r = Round(q)  c = Clip(r, low, c127)  f = Mul(c, s)
            p = MatMul(f, w)  ph = Reshape(p, heads)  qh = Transpose<perm = [0, 2, 1, 3]>(ph)
            vr = Reshape(v, heads)  vh = Transpose<perm = [0, 2, 1, 3]>(vr)
            kt = Transpose<perm = [0, 1, 3, 2]>(k)  scores = MatMul(qh, kt)  scaled = Mul(scores, root)
            masked = Where(visible, scaled, none)  p0 = Softmax<axis = -1>(masked)
            empty = IsNaN(p0)  probabilities = Where(empty, zero, p0)
            h = MatMul(probabilities, vh)  ht = Transpose<perm = [0, 2, 1, 3]>(h)  rows = Reshape(ht, joined)

            h2 = Reshape(rows, heads)  q2 = Transpose<perm = [0, 2, 1, 3]>(h2)  k2 = Transpose<perm = [0, 2, 3, 1]>(ph)
            v2 = Transpose<perm = [0, 2, 1, 3]>(ph)
            of_query = Shape(q2)  length = Slice(of_query, last, most)  size = Cast<to = 1>(length)  norm = Sqrt(size)
            factor = Div(one, norm)  half_factor = Sqrt(factor)  q3 = Mul(q2, half_factor)  k3 = Mul(k2, half_factor)
            scores2 = MatMul(q3, k3)  shape = Shape(scores2)  expanded = Expand(padding, shape)
            masked2 = Where(expanded, none, scores2)  p2 = Softmax<axis = -1>(masked2)
            o = MatMul(p2, v2)  ot = Transpose<perm = [0, 2, 1, 3]>(o)  y = Reshape(ot, joined)
        }""",
        18,
        **SYMMETRIC,
        w=weights * np.float32(1 / 4096),
        heads=np.array([0, 0, 3, 8]),
        joined=np.array([0, 0, 24]),
        root=np.float32(0.35355338),
        most=np.array([2**63 - 1]),
        one=np.array([1], np.float32),
        half=np.float32(-0.5),
        none=np.float32(-np.inf),
        zero=np.float32(0),
    )
    visible = np.tri(7, 9, 2, np.bool_)
    visible[3] = False
    padding = np.zeros((2, 1, 1, 7), np.bool_)
    padding[1, ..., 5:] = True
    inputs = [activations(2, 7, 48, zero_row=True), rng.normal(0, 1, (2, 3, 9, 8)), rng.normal(0, 1, (2, 9, 24))]
    return Example(model, [*(each.astype(np.float32) for each in inputs), visible, padding])


def saved_operators() -> Example:
    """Operators of ONNX Runtime, in models that it has saved: their results are quantized for each token or tensor."""
    rng = np.random.default_rng(38)
    model = parse(
        """saved_operators (float[batch, tokens, 16] x, int32[batch] lengths, int32 total, uint8[batch, 8, 8, 4] image)
            => (float[batch, tokens, 16] y, float[batch, tokens, 16] scores, float[batch, 16] u,
                float[batch, 4, 4, 4] pooled) {
            a = com.microsoft.Attention<num_heads = 2>(x, w_qkv, b_qkv)
            b = com.microsoft.MultiHeadAttention<num_heads = 2>(a, a, a)
            c = com.microsoft.Attention<num_heads = 2, qkv_hidden_sizes = [16, 16, 8]>(b, w_narrow, b_narrow)
            packed = MatMul(c, w_packed)
            d = com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>(packed, , , , , lengths, total)
            fused = com.microsoft.FusedMatMul<transB = 1>(d, w_rows)
            ab = Abs(fused)  m = ReduceMax<keepdims = 1>(ab, last)  l = Max(m, epsilon)  s = Div(l, c127)
            q = Div(fused, s)  r = Round(q)  cl = Clip(r, low, c127)  f = Mul(cl, s)  y = MatMul(f, w)
            scores = com.microsoft.FusedMatMul<transB = 1>(f, table)

            i = com.microsoft.QLinearConv<channels_last = 1, auto_pad = "SAME_UPPER">
                (image, si, zi, w_image, sw, zw, si, zi)
            planes = Transpose<perm = [0, 3, 1, 2]>(i)
            j = com.microsoft.QLinearConcat<axis = 1>(si, zi, planes, si, zi, planes, si, zi)
            k = com.microsoft.QLinearGlobalAveragePool(j, si, zi, si, zi)  flat = Flatten(k)
            g = com.microsoft.QGemm<transB = 1>(flat, si, zi, w_gemm, sw, zw, , si, zi)
            real = DequantizeLinear(g, si, zi)  codes, sc, z = DynamicQuantizeLinear(real)
            sums = MatMulInteger(codes, w_int, z)  fs = Cast<to = 1>(sums)  u = Mul(fs, sc)

            planes_f = DequantizeLinear(planes, si, zi)
            blocked = com.microsoft.nchwc.ReorderInput(planes_f)
            maxima = com.microsoft.nchwc.MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(blocked)
            pooled = com.microsoft.nchwc.ReorderOutput<channels = 4>(maxima)
        }""",
        18,
        ("com.microsoft", "com.microsoft.nchwc"),
        **SYMMETRIC,
        w_qkv=grid_weights(rng, 16, 48),
        b_qkv=grid_weights(rng, 48),
        w_narrow=grid_weights(rng, 16, 40),
        b_narrow=grid_weights(rng, 40),
        w_packed=grid_weights(rng, 8, 32),
        w_rows=grid_weights(rng, 48, 16),
        w=int8_weights(rng, 48, 16) * np.float32(1 / 4096),
        table=grid_weights(rng, 16, 48),
        si=np.float32(1 / 16),
        zi=np.uint8(128),
        sw=np.float32(1 / 64),
        zw=np.int8(0),
        w_image=int8_weights(rng, 4, 4, 3, 3),
        w_gemm=int8_weights(rng, 16, 8),
        w_int=int8_weights(rng, 16, 16),
    )
    inputs = [activations(2, 7, 16), np.array([6, 6], np.int32), np.array(7, np.int32)]
    return Example(model, [*inputs, rng.integers(0, 256, (2, 8, 8, 4)).astype(np.uint8)])


def moved_codes() -> Example:
    """Codes that move before their products: parts of the tokens, heads, joined tokens, halves that change places.

    The outliers of a row, its last channels, have a scale of their own, as in Atom.
    The shape of the heads is computed as torch's `unflatten` computes it, with a remainder.
    """
    rng = np.random.default_rng(39)
    weights = int8_weights(rng, 48, 16)
    weights[0] = 127
    model = parse(
        """moved (float[batch, tokens, 48] x) => (float[batch, 2, 16] first, float[batch, 1, 16] pooled,
            float[batch, before, 16] left, float[joined, 16] all, float[1, batch, tokens, 16] more,
            float[batch, tokens, 16] heads, float[batch, tokens, 16] halves, float[batch, tokens, 16] mixed,
            float[batch, 6, tokens, 16] of_heads, float[batch, tokens, 16] plain) {
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, last)  l = Max(m, epsilon)  s = Div(l, c127)
            q = Div(x, s)  r = Round(q)  c = Clip(r, low, c127)  f = Mul(c, s)
            two = Slice(f, from0, to2, tokens_axis)  first = MatMul(two, w)
            one = Gather<axis = 1>(f, from0)  pooled = MatMul(one, w)
            part, rest = Split<axis = 1, num_outputs = 2>(f)  left = MatMul(part, w)
            rows = Reshape(f, to_rows)  all = Gemm(rows, w, b)
            deep = Unsqueeze(f, from0)  more = MatMul(deep, w)

            shape = Shape(f)  i = Mod(minus1, rank)  at = Reshape(i, last)  next = Add(i, unit)
            end = Reshape(next, last)  lead = Slice(shape, from0, at)  tail = Slice(shape, end, most)
            by_head = Concat<axis = 0>(lead, six_heads, tail)  h = Reshape(f, by_head)  back = Reshape(h, shape)
            heads = MatMul(back, w)

            n = ReduceMax<keepdims = 0>(a)  ln = Max(n, epsilon)  t = Div(ln, c127)
            d = Div(x, t)  e = Round(d)  k = Clip(e, low, c127)  o = Sub(k, d)  v = Add(d, o)  g = Mul(v, t)
            g1, g2 = Split<axis = 2, num_outputs = 2>(g)  turned = Concat<axis = 2>(g2, g1)  halves = MatMul(turned, w)

            most_channels, outliers = Split<axis = -1>(x, widths)
            a1 = Abs(most_channels)  m1 = ReduceMax<keepdims = 1>(a1, last)  l1 = Max(m1, epsilon)  s1 = Div(l1, c127)
            d1 = Div(most_channels, s1)  r1 = Round(d1)  c1 = Clip(r1, low, c127)  f1 = Mul(c1, s1)
            a2 = Abs(outliers)  m2 = ReduceMax<keepdims = 1>(a2, last)  l2 = Max(m2, epsilon)  s2 = Div(l2, c127)
            d2 = Div(outliers, s2)  r2 = Round(d2)  c2 = Clip(r2, low, c127)  f2 = Mul(c2, s2)
            row = Concat<axis = -1>(f1, f2)  mixed = MatMul(row, w)

            x4 = Reshape(x, by_head)  xh = Transpose<perm = [0, 2, 1, 3]>(x4)
            a3 = Abs(xh)  m3 = ReduceMax<keepdims = 1>(a3, of_token)  l3 = Max(m3, epsilon)  s3 = Div(l3, c127)
            d3 = Div(xh, s3)  r3 = Round(d3)  c3 = Clip(r3, low, c127)  f3 = Mul(c3, s3)  of_heads = MatMul(f3, w_head)

            m4 = ReduceMax<keepdims = 0>(a, last)  l4 = Max(m4, epsilon)  t4 = Div(l4, c127)  s4 = Unsqueeze(t4, last)
            d4 = Div(x, s4)  r4 = Round(d4)  c4 = Clip(r4, low, c127)  f4 = Mul(c4, s4)  plain = MatMul(f4, w)
        }""",
        18,
        **SYMMETRIC,
        from0=np.array([0]),
        to2=np.array([2]),
        tokens_axis=np.array([1]),
        to_rows=np.array([-1, 48]),
        minus1=np.array([-1]),
        rank=np.array([3]),
        unit=np.array([1]),
        most=np.array([2**63 - 1]),
        widths=np.array([32, 16]),
        of_token=np.array([1, 3]),
        w_head=weights[:8] * np.float32(1 / 1024),
        six_heads=np.array([6, 8]),
        w=weights * np.float32(1 / 1024),
        b=grid_weights(rng, 16),
    )
    return Example(model, [activations(2, 7, 48, zero_row=True)])


def no_epsilon() -> Example:
    """Scales without an epsilon: rows of zeros are NaN, except for integers, which they must not have.

    int8 and int32 codes of a quotient; x * (127 / range) without a Clip, and weights that are codes / (127 / range).
    """
    rng = np.random.default_rng(40)
    codes = int8_weights(rng, 48, 16)
    codes[0] = 127
    inverse = np.float32(127) / rng.uniform(0.1, 1, 16).astype(np.float32)
    model = parse(
        """no_epsilon (float[tokens, 48] x, float[tokens, 48] x2) => (float[tokens, 16] y, float[tokens, 16] u,
            float[tokens, 16] v, int8[tokens, 48] codes) {
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, last)  s = Div(m, c127)
            q = Div(x, s)  r = Round(q)  c = Clip(r, low, c127)  k = Cast<to = 3>(c)
            f = Cast<to = 1>(k)  real = Mul(f, s)  y = MatMul(real, w)

            a2 = Abs(x2)  m2 = ReduceMax<keepdims = 1>(a2, last)  inverse = Div(c127, m2)
            q2 = Mul(x2, inverse)  r2 = Round(q2)  real2 = Div(r2, inverse)  u = MatMul(real2, w2)

            i = Cast<to = 6>(c)  fi = Cast<to = 1>(i)  reals = Mul(fi, s)  v = MatMul(reals, w)
            j = Cast<to = 6>(r)  clipped = Clip(j, low32, high32)  codes = Cast<to = 3>(clipped)
        }""",
        18,
        last=np.array([-1]),
        c127=np.float32(127),
        low=np.float32(-128),
        w=codes * np.float32(1 / 1024),
        w2=codes / inverse,
        low32=np.int32(-127),
        high32=np.int32(127),
    )
    return Example(model, [activations(7, 48), activations(7, 48, seed=1, zero_row=True)])


def shared_scales() -> Example:
    """Rows that share a scale without an epsilon, the rows of a sample or all: those without zeros stay finite.

    A quotient, of which some columns are multiplied; and x * (127 / range) with a Clip. Then some of the groups.
    """
    rng = np.random.default_rng(46)
    codes = int8_weights(rng, 48, 16)
    codes[0] = 127
    model = parse(
        """shared (float[batch, tokens, 48] x) => (float[batch, tokens, 16] y, float[batch, tokens, 16] u,
            float[batch, tokens, 16] v) {
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, sample)  s = Div(m, c127)
            q = Div(x, s)  r = Round(q)  c = Clip(r, low, c127)  f = Mul(c, s)
            part = Slice(f, start, end, last)  y = MatMul(part, half)
            all = ReduceMax<keepdims = 0>(a)  inverse = Div(c127, all)
            q2 = Mul(x, inverse)  r2 = Round(q2)  c2 = Clip(r2, low, c127)  f2 = Div(c2, inverse)  u = MatMul(f2, w)
            g = Reshape(x, groups)  a3 = Abs(g)  m3 = ReduceMax<keepdims = 1>(a3, last)  l3 = Max(m3, epsilon)
            s3 = Div(l3, c127)  q3 = Div(g, s3)  r3 = Round(q3)  c3 = Clip(r3, low, c127)  f3 = Mul(c3, s3)
            joined = Reshape(f3, rows)  most = Slice(joined, first, depth, last)  v = MatMul(most, most_of_w)
        }""",
        18,
        groups=np.array([0, 0, 3, 16]),
        rows=np.array([0, 0, 48]),
        first=np.array([16]),
        depth=np.array([48]),
        epsilon=np.float32(1e-5),
        most_of_w=codes[:32] * np.float32(1 / 512),
        sample=np.array([1, 2]),
        last=np.array([-1]),
        start=np.array([0]),
        end=np.array([24]),
        c127=np.float32(127),
        low=np.float32(-127),
        half=codes[:24] * np.float32(1 / 1024),
        w=codes * np.float32(1 / 1024),
    )
    return Example(model, [activations(2, 5, 48)])


def floating_zero_point() -> Example:
    """Asymmetric codes as OmniQuant has them: the zero point is rounded, but no code, since the range may be without 0.

    The bounds of the codes are inside of the straight-through estimator. The second product has codes and sums of
    integers, and zero points that are subtracted from the sums as floats.
    """
    rng = np.random.default_rng(41)
    codes = int8_weights(rng, 48, 16)
    codes[0] = 127
    model = parse(
        """floating (float[batch, tokens, 48] x) => (float[batch, tokens, 16] y, float[batch, tokens, 16] u) {
            low = ReduceMin<keepdims = 1>(x, last)  high = ReduceMax<keepdims = 1>(x, last)
            range = Sub(high, low)  wide = Div(range, c255)  s = Clip(wide, epsilon, most)
            below = Div(low, s)  n = Neg(below)  zc = Clip(n, lowest, most)  z = Round(zc)
            q = Div(x, s)  r = Round(q)  d = Sub(r, q)  t = Add(d, q)  a = Add(t, z)  c = Clip(a, zero, c255)
            b = Sub(c, z)  f = Mul(b, s)  y = MatMul(f, w)

            m = Min(low, zero)  k = Max(high, zero)  w0 = Sub(k, m)  w1 = Div(w0, c255)  s2 = Max(w1, epsilon)
            b2 = Div(m, s2)  n2 = Neg(b2)  z2 = Round(n2)
            q2 = Div(x, s2)  a2 = Add(q2, z2)  r2 = Round(a2)  c2 = Clip(r2, zero, c255)  u8 = Cast<to = 2>(c2)
            p = MatMulInteger(u8, w8)  pf = Cast<to = 1>(p)  z8 = Cast<to = 2>(z2)  zf = Cast<to = 1>(z8)
            of_zeros = Mul(zf, sums)  g = Sub(pf, of_zeros)  h = Mul(g, s2)  u = Mul(h, ws)
        }""",
        18,
        last=np.array([-1]),
        epsilon=np.float32(1e-5),
        most=np.float32(1e4),
        lowest=np.float32(-1e4),
        zero=np.float32(0),
        c255=np.float32(255),
        w=codes * np.float32(1 / 1024),
        w8=codes,
        sums=codes.sum(0, dtype=np.int32).astype(np.float32),
        ws=np.float32(1 / 1024),
    )
    x = activations(2, 7, 48, high=16.0)
    x[1, 2] += 40  # a range without 0
    return Example(model, [x])


def integer_heads() -> Example:
    """Attention of integers: int64 products of uint8 codes minus zero points, then sums over keys of any number."""
    model = parse(
        """heads (float[batch, 2, tokens, 16] x, float[batch, 2, keys, 16] v)
            => (float[batch, 2, tokens, tokens] scores, float[batch, 2, tokens, 16] y) {
            low = ReduceMin<keepdims = 0>(x)  low0 = Min(low, zero)  high = ReduceMax<keepdims = 0>(x)
            high0 = Max(high, zero)  range = Sub(high0, low0)  raw = Div(range, c255)  s = Max(raw, epsilon)
            below = Div(low0, s)  n = Neg(below)  zr = Round(n)  z8 = Cast<to = 2>(zr)
            d = Div(x, s)  r = Round(d)  a = Add(r, zr)  c = Clip(a, zero, c255)  q = Cast<to = 2>(c)
            wide = Cast<to = 7>(q)  z = Cast<to = 7>(z8)  moved = Sub(wide, z)
            i = Einsum<equation = "bhsd,bhtd->bhst">(moved, moved)  f = Cast<to = 1>(i)  g = Mul(f, s)
            scores = Mul(g, s)

            av = Abs(v)  m = ReduceMax<keepdims = 0>(av)  l = Max(m, epsilon)  sv = Div(l, c127)
            dv = Div(v, sv)  rv = Round(dv)  cv = Clip(rv, low127, c127)  kv = Cast<to = 3>(cv)  kw = Cast<to = 6>(kv)
            vt = Transpose<perm = [0, 1, 3, 2]>(v)  p = MatMul(x, vt)  e = Softmax<axis = -1>(p)
            de = Mul(e, c255)  re = Round(de)  ce = Clip(re, zero, c255)  qe = Cast<to = 2>(ce)  we = Cast<to = 6>(qe)
            j = MatMul(we, kw)  fj = Cast<to = 1>(j)  gj = Mul(fj, sv)  y = Div(gj, c255)
        }""",
        18,
        zero=np.float32(0),
        c255=np.float32(255),
        epsilon=np.float32(1e-5),
        c127=np.float32(127),
        low127=np.float32(-127),
    )
    return Example(model, [activations(2, 2, 7, 16, tensor=True), activations(2, 2, 9, 16, seed=1, tensor=True)])


def weight_shapes() -> Example:
    """Weights behind DequantizeLinear that are stored in another shape, as Neural Compressor writes blocks of 4 bits.

    Before opset 21, each block is a row with one scale, and a Reshape follows. Then a Gemm of weights of columns.
    """
    rng = np.random.default_rng(42)
    model = parse(
        """shapes (float[tokens, 64] x) => (float[tokens, 32] y) {
            blocks = DequantizeLinear<axis = 0>(codes, scales)  rows = Reshape(blocks, stored)
            w = Transpose<perm = [1, 0]>(rows)  h = MatMul(x, w)  a = Relu(h)
            w2 = DequantizeLinear<axis = 1>(codes2, scales2)  y = Gemm(a, w2, b)
        }""",
        17,
        codes=rng.integers(-8, 8, (64 * 64 // 32, 32)).astype(np.int8),
        scales=rng.uniform(0.001, 0.01, 64 * 64 // 32).astype(np.float32),
        stored=np.array([64, 64]),
        codes2=int8_weights(rng, 64, 32),
        scales2=rng.uniform(0.001, 0.01, 32).astype(np.float32),
        b=grid_weights(rng, 32),
    )
    return Example(model, [activations(7, 64, zero_row=True)])


def joined_parts() -> Example:
    """Parts with numbers of their own that a model writes or joins, and products that move rows.

    Channels and tokens of x are written at their indices, as torch's two exporters do for `x[..., a:b] = y`; images are
    joined along their channels; experts have an Einsum each; weights are those of DoReFa. The frames have a constant
    shape, from which their number follows.
    """
    rng = np.random.default_rng(41)
    experts = int8_weights(rng, 3, 64, 8) * np.float32(0.01)
    experts[:, 0] = 1.27
    model = parse(
        f"""joined (float[batch, 5, 64] x, float[1, 32, height, 6] image, float[frames, 64] sound) => (
            float[batch, 5, 8] channels, float[batch, 5, 8] indexed, float[batch, 5, 8] tokens,
            float[1, 8, rows, 6] y, float[ten, 3, 8] shared, float[3, ten, 8] own, float[2, 4, 8] framed,
            float[one, batch, 5, 8] copied, float[batch, 4] samples, float[batch, 5, 8] dorefa) {{
            x_high = Slice(x, at48, at64, axis2)  {_quantized("x_high", "high")}
            x_low = Slice(x, at0, at48, axis2)  {_quantized("x_low", "lower")}
            shape = Shape(x)  n0 = Gather(shape, zero)  n1 = Gather(shape, unit)  n2 = Gather(shape, two)
            all2 = Range(zero, n2, unit)  part2 = Slice(all2, at48, at64, at0)  to = Reshape(part2, column)
            ht = Transpose<perm = [2, 1, 0]>(high)  xt = Transpose<perm = [2, 1, 0]>(x)
            wt = ScatterND(xt, to, ht)  x2 = Transpose<perm = [2, 1, 0]>(wt)
            first2 = Slice(all2, at0, at48, at0)  to_low = Unsqueeze(first2, last)
            lt = Transpose<perm = [2, 1, 0]>(lower)  xt2 = Transpose<perm = [2, 1, 0]>(x2)
            wt2 = ScatterND(xt2, to_low, lt)  x3 = Transpose<perm = [2, 1, 0]>(wt2)  channels = MatMul(x3, w)

            all0 = Range(zero, n0, unit)  i0 = Reshape(all0, third)
            all1 = Range(zero, n1, unit)  i1 = Reshape(all1, column)
            i01 = Add(i0, i1)  i012 = Add(i01, part2)  whole = Shape(i012)
            e0 = Expand(i0, whole)  e1 = Expand(i1, whole)  e2 = Expand(part2, whole)
            u0 = Unsqueeze(e0, last)  u1 = Unsqueeze(e1, last)  u2 = Unsqueeze(e2, last)
            joined = Concat<axis = -1>(u0, u1, u2)  of_part = Shape(high)  wide = Expand(high, of_part)
            elements = Reshape(wide, whole)  z = ScatterND(x3, joined, elements)  indexed = MatMul(z, w)

            head = Slice(x, at0, at3, axis1)  {_quantized("head", "heads", "of_sample")}
            tail = Slice(x, at3, at64, axis1)  {_quantized("tail", "tails", "of_sample")}
            both = Concat<axis = 1>(heads, tails)  tokens = MatMul(both, w)

            left, right = Split<axis = 1, num_outputs = 2>(image)
            {_quantized("left", "dl", "of_image")}  {_quantized("right", "dr", "of_image")}
            channel = Concat<axis = 1>(dl, dr)  y = Conv<pads = [1, 1, 1, 1]>(channel, filters)

            flat_x = Reshape(x, to_rows)  {_quantized("flat_x", "t")}
            shared = Einsum<equation = "tk,ekn->ten">(t, experts)
            three = Slice(x, at0, at3, axis1)  by_expert = Reshape(three, to_experts)  {_quantized("by_expert", "te")}
            own = Einsum<equation = "tek,ekn->etn">(te, experts)

            of_frames = Reshape(sound, to_frames)  {_quantized("of_frames", "fr")}  framed = MatMul(fr, w)
            {_quantized("x", "f")}  once = Unsqueeze(f, at0)  twice = Expand(once, copies)
            thrice = Tile(twice, copies)  copied = MatMul(thrice, w)
            {_quantized("x", "all", "of_sample")}  flat = Flatten(all)  samples = MatMul(flat, of_samples)

            tanh = Tanh(v)  size = Abs(tanh)  largest = ReduceMax<keepdims = 0>(size)  normal = Div(tanh, largest)
            halves = Mul(normal, half)  from0 = Add(halves, half)  of15 = Mul(from0, c15)  whole15 = Round(of15)
            parts15 = Div(whole15, c15)  doubled = Mul(parts15, c2)  grid = Sub(doubled, c1)  dorefa = MatMul(f, grid)
        }}""",
        18,
        **SYMMETRIC,
        w=grid_weights(rng, 64, 8),
        filters=int8_weights(rng, 8, 32, 3, 3) * np.float32(0.005),
        experts=experts,
        of_samples=int8_weights(rng, 5 * 64, 4) * np.float32(0.01),
        v=rng.normal(size=(64, 8)).astype(np.float32),
        **{f"at{i}": np.array([i]) for i in (0, 3, 48, 64)},
        axis1=np.array([1]),
        axis2=np.array([2]),
        **{name: np.array(i) for i, name in enumerate(("zero", "unit", "two"))},
        column=np.array([-1, 1]),
        third=np.array([-1, 1, 1]),
        of_sample=np.array([1, 2]),
        of_image=np.array([0, 1, 2, 3]),
        to_rows=np.array([-1, 64]),
        to_experts=np.array([-1, 3, 64]),
        to_frames=np.array([2, 4, 64]),
        copies=np.array([2, 1, 1, 1]),
        half=np.float32(0.5),
        c1=np.float32(1),
        c2=np.float32(2),
        c15=np.float32(15),
    )
    image = activations(1, 32, 6, 6, tensor=True)
    return Example(model, [activations(2, 5, 64), image, activations(8, 64, seed=1)])


def _quantized(x: str, y: str, axes: str = "last") -> str:
    """Returns nodes that quantize x with one scale along some axes, and dequantize it."""
    return (
        f"{y}_a = Abs({x})  {y}_m = ReduceMax<keepdims = 1>({y}_a, {axes})  {y}_l = Max({y}_m, epsilon)"
        f"  {y}_s = Div({y}_l, c127)  {y}_q = Div({x}, {y}_s)  {y}_r = Round({y}_q)  {y}_c = Clip({y}_r, low, c127)"
        f"  {y} = Mul({y}_c, {y}_s)"
    )


MODELS: dict[str, Callable[[], Example]] = {
    "image_decoder": image_decoder,
    "integer_zero_points": integer_zero_points,
    "padded_images": padded_images,
    "straight_through": straight_through,
    "loop_states": loop_states,
    "inverse_products": inverse_products,
    "weight_blocks": weight_blocks,
    "image_parts": image_parts,
    "masked_attention": masked_attention,
    "saved_operators": saved_operators,
    "moved_codes": moved_codes,
    "no_epsilon": no_epsilon,
    "shared_scales": shared_scales,
    "floating_zero_point": floating_zero_point,
    "integer_heads": integer_heads,
    "weight_shapes": weight_shapes,
    "joined_parts": joined_parts,
}

if __name__ == "__main__":
    main(MODELS)
