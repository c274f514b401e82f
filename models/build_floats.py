"""Writes the small networks that tests/quantizer/test_networks.py quantizes: of floats, or with constant scales."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
from _common import Array, Example, activations, main, parse
from onnx import helper, numpy_helper

HALF = np.float16


def weights(rng: np.random.Generator, *shape: int, inputs: int, dtype: npt.DTypeLike = np.float32) -> Array:
    """Returns weights that keep the magnitude of an activation of so many elements; they are no codes."""
    return np.asarray(rng.normal(0, inputs**-0.5, shape), dtype)


def vector(rng: np.random.Generator, size: int, dtype: npt.DTypeLike = np.float32) -> Array:
    """Returns a bias."""
    return np.asarray(rng.normal(0, 0.3, size), dtype)


def encoder() -> Example:
    """A layer of a transformer with two tables of embeddings; one is also the weights of the last product. Two heads.

    The other table is stored as float16. Weights are initializers, a Transpose, an Einsum's, and a stack of two
    matrices; Gemm has alpha and beta.
    """
    rng, size, heads = np.random.default_rng(40), 32, 2
    split = "\n".join(
        f"""{x}0 = MatMul(n, w{x})  {x}1 = Add({x}0, b{x})  {x}2 = Reshape({x}1, split)
            {x} = Transpose<perm = {perm}>({x}2)"""
        for x, perm in (("q", "[0, 2, 1, 3]"), ("k", "[0, 2, 3, 1]"), ("v", "[0, 2, 1, 3]"))
    )
    model = parse(
        f"""encoder (int64[batch, tokens] ids, bool[batch, 1, 1, tokens] keep)
            => (float[batch, tokens, 48] scores, float[rows, 40] pooled, float[2, rows, 36] parts) {{
            e0 = Gather(table, ids)  kinds = Cast<to = 1>(half_kinds)  e1 = Gather(kinds, ids)  e = Add(e0, e1)
            n = LayerNormalization<axis = -1>(e, gain, shift)
            {split}
            s = MatMul(q, k)  d = Div(s, root)  m = Where(keep, d, lowest)  p = Softmax<axis = -1>(m)
            o = MatMul(p, v)  ot = Transpose<perm = [0, 2, 1, 3]>(o)  joined = Reshape(ot, join)
            a0 = MatMul(joined, wo)  a1 = Add(a0, bo)  r1 = Add(a1, e)
            n2 = LayerNormalization<axis = -1>(r1, gain, shift)
            up0 = Einsum<equation = "bsk,kn->bsn">(n2, up)  up1 = Add(up0, up_bias)  act = Gelu(up1)
            down0 = MatMul(act, down)  r2 = Add(down0, r1)
            head = Transpose<perm = [1, 0]>(table)  scores = MatMul(r2, head)
            flat = Reshape(r2, rows)
            pooled = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(flat, pool, pool_bias)
            one = Unsqueeze(flat, first)  two = Concat<axis = 0>(one, one)  parts = MatMul(two, stack)
        }}""",
        20,
        table=weights(rng, 48, size, inputs=1),
        half_kinds=weights(rng, 48, size, inputs=4, dtype=HALF),
        gain=1 + vector(rng, size),
        shift=vector(rng, size),
        **{f"w{x}": weights(rng, size, size, inputs=size) for x in "qkvo"},
        **{f"b{x}": vector(rng, size) for x in "qkvo"},
        split=np.array([0, 0, heads, size // heads]),
        join=np.array([0, 0, size]),
        rows=np.array([-1, size]),
        first=np.array([0]),
        root=np.float32(math.sqrt(size // heads)),
        lowest=np.float32(-3e38),
        up=weights(rng, size, 64, inputs=size),
        up_bias=vector(rng, 64),
        down=weights(rng, 64, size, inputs=64),
        pool=weights(rng, 40, size, inputs=size),
        pool_bias=vector(rng, 40),
        stack=weights(rng, 2, size, 36, inputs=size),
    )
    keep = np.ones((2, 1, 1, 7), bool)
    keep[1, ..., 5:] = False
    return Example(model, [rng.integers(0, 48, (2, 7)), keep])


def heads() -> Example:
    """Attention with Einsums as its products, a convolution of 1x1 and experts by Einsum.

    Query, key and value are written as by Keras, Flax and with heads before tokens. Rows of the experts move between
    their products.
    """
    rng, size, heads, width = np.random.default_rng(46), 32, 2, 20
    model = parse(
        """heads (float[batch, tokens, 32] x) => (float[batch, tokens, 32] y, float[tokens, 24] mixed) {
            q0 = Einsum<equation = "abc,cde->abde">(x, wq)  q = Add(bq, q0)
            k0 = Einsum<equation = "...c,chd->...hd">(x, wk)  k = Add(k0, bk)
            v0 = Einsum<equation = "btc,hcd->bhtd">(x, wv)  v = Add(v0, bv)
            s = Einsum<equation = "...qhd,...khd->...hqk">(q, k)  d = Div(s, root)  p = Softmax<axis = -1>(d)
            o = Einsum<equation = "bhqk,bhkd->bhqd">(p, v)
            a0 = Einsum<equation = "bhtd,hdc->btc">(o, wo)  a = Add(a0, bo)
            t = Transpose<perm = [0, 2, 1]>(a)  c0 = Einsum<equation = "nct,mc->nmt">(t, wc)  c = Add(c0, bc)
            y = Transpose<perm = [0, 2, 1]>(c)
            rows = ReduceMean<keepdims = 0>(y, first)
            up0 = Einsum<equation = "tc,ecf->tef">(rows, up)  up1 = Add(up0, bu)  act = Relu(up1)
            down = Einsum<equation = "tef,efd->ted">(act, wd)  mixed = ReduceSum<keepdims = 0>(down, second)
        }""",
        20,
        **{f"w{x}": weights(rng, size, heads, width, inputs=size) for x in "qk"},
        **{f"b{x}": vector(rng, heads * width).reshape(heads, width) for x in "qk"},
        wv=weights(rng, heads, size, width, inputs=size),
        bv=vector(rng, heads * width).reshape(heads, 1, width),
        wo=weights(rng, heads, width, size, inputs=size),
        bo=vector(rng, size),
        wc=weights(rng, size, size, inputs=size),
        bc=vector(rng, size).reshape(size, 1),
        up=weights(rng, 3, size, 40, inputs=size),
        bu=vector(rng, 120).reshape(3, 40),
        wd=weights(rng, 3, 40, 24, inputs=40),
        root=np.float32(math.sqrt(width)),
        first=np.array([0]),
        second=np.array([1]),
    )
    return Example(model, [rng.normal(0, 1, (2, 7, size)).astype(np.float32)])


def image() -> Example:
    """Convolutions: with a bias, BatchNormalization, or constants of channels; depthwise, transposed in both ranks."""
    rng = np.random.default_rng(41)
    model = parse(
        """image (float[batch, 3, 16, 12] x) => (float[batch, 10] y, float[batch, 6, 17, 12] z, float[batch, 4, n] w) {
            c1 = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, w1)
            b1 = BatchNormalization(c1, gain, shift, mean, variance)  r1 = Relu(b1)
            c2 = Conv<group = 8, pads = [1, 1, 1, 1]>(r1, w2, bias2)  r2 = Relu(c2)
            c3 = Conv(r2, w3)  a3 = Add(c3, added)  s3 = Sub(a3, subtracted)  m3 = Mul(s3, factor)
            d3 = Div(m3, divisor)  r3 = Relu(d3)
            t0 = ConvTranspose<strides = [2, 2], pads = [1, 1, 1, 1], output_padding = [1, 0], group = 2>(r3, w4)
            z = Add(t0, bias4)
            rows = Reshape(r3, sequence)  w = ConvTranspose<strides = [4], pads = [2, 2]>(rows, w5, bias5)
            g = GlobalAveragePool(r3)  f = Flatten(g)  y = Gemm<transB = 1>(f, w6, bias6)
        }""",
        20,
        w1=weights(rng, 8, 3, 3, 3, inputs=27),
        gain=1 + vector(rng, 8),
        shift=vector(rng, 8),
        mean=vector(rng, 8),
        variance=np.abs(1 + vector(rng, 8)),
        w2=weights(rng, 8, 1, 3, 3, inputs=9),
        bias2=vector(rng, 8),
        w3=weights(rng, 16, 8, 1, 1, inputs=8),
        added=vector(rng, 16).reshape(16, 1, 1),
        subtracted=vector(rng, 16).reshape(1, 16, 1, 1),
        factor=1 + vector(rng, 16).reshape(16, 1, 1),
        divisor=np.float32(1.5),
        w4=weights(rng, 16, 3, 4, 4, inputs=32),
        bias4=vector(rng, 6).reshape(6, 1, 1),
        sequence=np.array([0, 16, -1]),
        w5=weights(rng, 16, 4, 8, inputs=32),
        bias5=vector(rng, 4),
        w6=weights(rng, 10, 16, inputs=16),
        bias6=vector(rng, 10),
    )
    return Example(model, [activations(2, 3, 16, 12, low=-3.0, high=3.0, channel=0)])


def mobile() -> Example:
    """Blocks of mobile networks: an input that is normalized, depthwise convolutions, HardSwish, PRelu, gates."""
    rng = np.random.default_rng(45)
    model = parse(
        """mobile (float[batch, 4, h, w] x) => (float[batch, 12, h2, w2] y, float[batch, 6, h, w] z) {
            n0 = Sub(x, pixel)  n = Div(n0, deviation)
            c1 = Conv<group = 4, pads = [1, 1, 1, 1]>(n, w1, b1)  s1 = Mul(scalar, c1)  t1 = Add(s1, scalar)
            a1 = Add(t1, three)  k1 = Clip(a1, zero, six)  m1 = Mul(t1, k1)  h1 = Div(m1, six)
            u1 = Mul(h1, scalar)  v1 = Add(u1, scalar)
            c2 = Conv(v1, w2, b2)  p2 = PRelu(c2, slope)
            c3 = Conv<group = 12, strides = [2, 2], pads = [2, 2, 2, 2]>(p2, w3, b3)  f3 = Sigmoid(c3)  s3 = Mul(c3, f3)
            g0 = GlobalAveragePool(s3)  g1 = Conv(g0, w4, b4)  g2 = Relu(g1)  g3 = Conv(g2, w5, b5)
            g4 = HardSigmoid(g3)  q = Mul(s3, g4)  c6 = Conv(q, w6)  r = Add(c6, q)
            e0 = GlobalAveragePool(r)  e1 = Flatten(e0)  e2 = Gemm<transB = 1>(e1, w8, b4)  e3 = Relu(e2)
            e4 = MatMul(e3, w9)  e5 = Add(e4, b5)  e6 = Sigmoid(e5)  e7 = Reshape(e6, channels)
            sizes = Shape(r)  e8 = Expand(e7, sizes)  y = Mul(r, e8)
            o0 = ConvTranspose<group = 2>(v1, w7)  o1 = Add(o0, b7)
            o2 = BatchNormalization(o1, gain, shift, mean, variance)  z = Relu(o2)
        }""",
        20,
        pixel=vector(rng, 4).reshape(1, 4, 1, 1),
        deviation=1 + vector(rng, 4).reshape(1, 4, 1, 1),
        w1=weights(rng, 4, 1, 3, 3, inputs=9),
        b1=vector(rng, 4),
        scalar=np.array([1.25], np.float32),
        zero=np.float32(0),
        three=np.float32(3),
        six=np.float32(6),
        w2=weights(rng, 12, 4, 1, 1, inputs=4),
        b2=vector(rng, 12),
        slope=vector(rng, 12).reshape(12, 1, 1),
        w3=weights(rng, 12, 1, 5, 5, inputs=25),
        b3=vector(rng, 12),
        w4=weights(rng, 6, 12, 1, 1, inputs=12),
        b4=vector(rng, 6),
        w5=weights(rng, 12, 6, 1, 1, inputs=6),
        b5=vector(rng, 12),
        w6=weights(rng, 12, 12, 1, 1, inputs=12),
        w7=weights(rng, 4, 3, 1, 1, inputs=2),
        b7=vector(rng, 6).reshape(6, 1, 1),
        gain=1 + vector(rng, 6),
        shift=vector(rng, 6),
        mean=vector(rng, 6),
        variance=np.abs(1 + vector(rng, 6)),
        w8=weights(rng, 6, 12, inputs=12),
        w9=weights(rng, 6, 12, inputs=6),
        channels=np.array([-1, 12, 1, 1]),
    )
    return Example(model, [activations(2, 4, 14, 19, low=-3.0, high=3.0, channel=0)])


def of_activations() -> Example:
    """Functions between layers: Mish in both forms, Softplus, Elu, Selu, Celu, a square of Relu, BiasGelu."""
    rng, size = np.random.default_rng(46), 32
    model = parse(
        """activations (float[rows, 32] x) => (float[rows, 32] y) {
            c1 = MatMul(x, w1)  h1 = Add(c1, b1)  p1 = Softplus(h1)  t1 = Tanh(p1)  m1 = Mul(h1, t1)
            c2 = MatMul(m1, w2)  m2 = Softplus(c2)
            c3 = MatMul(m2, w3)  m3 = Elu<alpha = 0.75>(c3)
            c4 = MatMul(m3, w4)  m4 = Selu(c4)
            c5 = Gemm<transB = 1>(m4, w5, b5)  m5 = Celu<alpha = 1.5>(c5)
            c6 = MatMul(m5, w6)  r6 = Relu(c6)  m6 = Mul(r6, r6)
            c7 = MatMul(m6, w7)  m7 = com.microsoft.BiasGelu(c7, b7)
            c8 = MatMul(m7, w8)  m8 = Mish(c8)
            y = MatMul(m8, w9)
        }""",
        20,
        **{f"w{i}": weights(rng, size, size, inputs=size) for i in range(1, 10)},
        **{f"b{i}": vector(rng, size) for i in (1, 5, 7)},
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return Example(model, [activations(7, size, low=-3.0, high=3.0)])


def recurrent() -> Example:
    """LSTM in both directions with peepholes and lengths, GRU backwards with a clip and RNN with other functions."""
    rng, size = np.random.default_rng(42), 20
    model = parse(
        """recurrent (float[steps, batch, 24] x, int32[batch] lengths)
            => (float[steps, 1, batch, 20] y, float[2, batch, 20] last, float[2, batch, 20] cell) {
            l, last, cell = LSTM<hidden_size = 20, direction = "bidirectional">
                (x, wl, rl, bl, lengths, , , peepholes)
            t = Transpose<perm = [0, 2, 1, 3]>(l)  x2 = Reshape(t, joined)
            g, g_last = GRU<hidden_size = 20, direction = "reverse", linear_before_reset = 1, clip = 0.8,
                activations = ["HardSigmoid", "Tanh"], activation_alpha = [0.25], activation_beta = [0.45]>
                (x2, wg, rg, bg, lengths)
            x3 = Squeeze(g, second)
            y = RNN<hidden_size = 20, activations = ["Relu"]>(x3, wr, rr)
        }""",
        20,
        wl=weights(rng, 2, 4 * size, 24, inputs=24),
        rl=weights(rng, 2, 4 * size, size, inputs=size),
        bl=np.stack([vector(rng, 8 * size) for _ in range(2)]),
        peepholes=np.stack([vector(rng, 3 * size) for _ in range(2)]),
        joined=np.array([0, 0, 2 * size]),
        wg=weights(rng, 1, 3 * size, 2 * size, inputs=2 * size),
        rg=weights(rng, 1, 3 * size, size, inputs=size),
        bg=vector(rng, 6 * size)[None],
        second=np.array([1]),
        wr=weights(rng, 1, size, size, inputs=size),
        rr=weights(rng, 1, size, size, inputs=size),
    )
    return Example(model, [activations(5, 3, 24, low=-2.0, high=2.0), np.array([5, 3, 4], np.int32)])


def half() -> Example:
    """A float16 model: embeddings, normalization, products, a convolution and a recurrent layer."""
    rng, size = np.random.default_rng(43), 32

    def of_half(*shape: int, inputs: int) -> Array:
        return weights(rng, *shape, inputs=inputs, dtype=HALF)

    model = parse(
        """half (int64[batch, tokens] ids) => (float16[batch, tokens, 40] y, float16[tokens, 1, batch, 16] z) {
            e = Gather(table, ids)  n = LayerNormalization<axis = -1>(e, gain, shift)
            h0 = MatMul(n, w1)  h1 = Add(h0, b1)  h = Relu(h1)
            c0 = Transpose<perm = [0, 2, 1]>(h)  c1 = Conv<pads = [1, 1]>(c0, w2, b2)
            c = Transpose<perm = [0, 2, 1]>(c1)  y = MatMul(c, w3)
            steps = Transpose<perm = [1, 0, 2]>(c)  z = LSTM<hidden_size = 16>(steps, w4, r4, b4)
        }""",
        20,
        table=of_half(40, size, inputs=1),
        gain=1 + vector(rng, size, HALF),
        shift=vector(rng, size, HALF),
        w1=of_half(size, 48, inputs=size),
        b1=vector(rng, 48, HALF),
        w2=of_half(36, 48, 3, inputs=144),
        b2=vector(rng, 36, HALF),
        w3=of_half(36, 40, inputs=36),
        w4=of_half(1, 64, 36, inputs=36),
        r4=of_half(1, 64, 16, inputs=16),
        b4=vector(rng, 128, HALF)[None],
    )
    return Example(model, [rng.integers(0, 40, (2, 7))])


def branches() -> Example:
    """Layers in both branches of an If, in the body of a Loop and in local functions, with weights of either graph.

    One function has its own weights and is called twice; the caller passes those of the other one. Weights are shared,
    transposed, cast, or dequantized from int8 and from blocks of int4.
    """
    rng, size = np.random.default_rng(44), 32
    info, make, tensor = helper.make_tensor_value_info, helper.make_node, numpy_helper.from_array
    numbers, flag = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL

    def branch(name: str, *nodes: onnx.NodeProto, constants: tuple[onnx.TensorProto, ...] = ()) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [info(nodes[-1].output[0], numbers, ("rows", size))], constants)

    def matrix() -> Array:
        return weights(rng, size, size, inputs=size)

    body = helper.make_graph(
        [make("MatMul", ["state", "shared"], ["product"]), make("Tanh", ["product"], ["next"]),
         make("Identity", ["go"], ["goes"])],
        "body",
        [info("i", onnx.TensorProto.INT64, ()), info("go", flag, ()), info("state", numbers, ("rows", size))],
        [info("goes", flag, ()), info("next", numbers, ("rows", size))],
    )  # fmt: skip
    functions = [
        helper.make_function(
            "local", "Own", ["a"], ["r"],
            [make("Constant", [], ["b"], value=tensor(matrix())), make("MatMul", ["a", "b"], ["r"])],
            [helper.make_opsetid("", 20)],
        ),
        helper.make_function(
            "local", "Passed", ["a", "b"], ["r"], [make("MatMul", ["a", "b"], ["r"])], [helper.make_opsetid("", 20)]
        ),
    ]  # fmt: skip
    nodes = [
        make("ReduceMax", ["x"], ["peak"], keepdims=0),
        make("Greater", ["peak", "limit"], ["is_large"]),
        make(
            "If", ["is_large"], ["chosen"],
            then_branch=branch(
                "then", make("MatMul", ["x", "inner"], ["inner result"]), constants=(tensor(matrix(), "inner"),)
            ),
            else_branch=branch("else", make("MatMul", ["x", "shared"], ["outer result"])),
        ),
        make("Loop", ["count", "", "chosen"], ["looped"], body=body),
        make("Own", ["looped"], ["once"], domain="local"),
        make("Own", ["once"], ["twice"], domain="local"),
        make("Passed", ["twice", "given"], ["passed"], domain="local"),
        make("Cast", ["half"], ["of half"], to=numbers),
        make("MatMul", ["passed", "of half"], ["p1"]),
        make("DequantizeLinear", ["codes", "scales"], ["rows of codes"], axis=0),
        make("Transpose", ["rows of codes"], ["columns of codes"]),
        make("MatMul", ["p1", "columns of codes"], ["p2"]),
        make("MatMul", ["p2", "shared"], ["p3"]),
        make("Transpose", ["p3"], ["p4"]),
        make("Gemm", ["p4", "shared"], ["y"], transA=1, transB=1),
    ]  # fmt: skip
    constants = {
        "limit": np.float32(1e9),
        "count": np.array(2),
        "shared": matrix(),
        "given": matrix(),
        "half": matrix().astype(HALF),
        "codes": rng.integers(-100, 101, (size, size)).astype(np.int8),
        "scales": rng.uniform(0.001, 0.005, size).astype(np.float32),
    }
    graph = helper.make_graph(
        nodes,
        "branches",
        [info("x", numbers, ("rows", size))],
        [info("y", numbers, ("rows", size))],
        [tensor(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10, functions=functions)
    return Example(model, [activations(6, size, low=-3.0, high=3.0)])


MODELS: dict[str, Callable[[], Example]] = {
    "float_activations": of_activations,
    "float_branches": branches,
    "float_encoder": encoder,
    "float_half": half,
    "float_heads": heads,
    "float_image": image,
    "float_mobile": mobile,
    "float_recurrent": recurrent,
}

if __name__ == "__main__":
    main(MODELS)
