"""Writes graphs that are built by hand: replicas of other tools' output, and forms that users write themselves.

More than 450 lines: a list of small graphs, one function for each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx.inliner
from _common import Array, Example, activations, grid_weights, int8_weights, main, parse
from onnx import TensorProto, helper, numpy_helper


def tf2onnx(axis: int, *, signed: bool = True, opset: int = 13) -> Example:
    """Replicates create_qdq_nodes of tf2onnx 1.17.0: QuantizeAndDequantizeV2 with range_given=False.

    Source: tf2onnx/rewriter/quantization_ops_rewriter.py. As there, an axis of -1 means per tensor.
    """
    low, high = (-16.0, 15.875) if signed else (0.0, 31.875)
    channel = axis if axis != -1 else None
    x = activations(3, 5, 11, low=low, high=high, channel=channel, tensor=axis == -1)
    quantized = TensorProto.INT8 if signed else TensorProto.UINT8
    reduce: dict[str, Any] = {"axes": [other for other in range(3) if other != axis]} if axis != -1 else {}
    attributes: dict[str, Any] = {"axis": axis} if axis != -1 else {}
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["max"], keepdims=0, **reduce),
        helper.make_node("Div", ["max", "max_const"], ["scale_from_max_side" if signed else "scale"]),
    ]
    initializers = [numpy_helper.from_array(np.array(127 if signed else 255, dtype=np.float32), "max_const")]
    if signed:
        initializers.append(numpy_helper.from_array(np.array(-128, dtype=np.float32), "min_const"))
        nodes += [
            helper.make_node("ReduceMin", ["x"], ["min"], keepdims=0, **reduce),
            helper.make_node("Div", ["min", "min_const"], ["scale_from_min_side"]),
            helper.make_node("Max", ["scale_from_min_side", "scale_from_max_side"], ["scale"]),
        ]
    if axis == -1:
        initializers.append(helper.make_tensor("zero_point", quantized, [], [0]))
    else:
        nodes += [
            helper.make_node("Shape", ["scale"], ["scale_shape"]),
            helper.make_node(
                "ConstantOfShape",
                ["scale_shape"],
                ["zero_point"],
                value=helper.make_tensor("value", quantized, dims=[1], vals=[0]),
            ),
        ]
    nodes += [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["codes"], **attributes),
        helper.make_node("DequantizeLinear", ["codes", "scale", "zero_point"], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes,
        "tf2onnx",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["unk__0", 5, 11])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["unk__0", 5, 11])],
        initializers,
    )
    return Example(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), [x])


def expanded_dynamic_quantize() -> Example:
    """The function body of DynamicQuantizeLinear in the ONNX specification, inlined by onnx."""
    model = parse(
        """expanded (float[rows, 11] x) => (uint8[rows, 11] codes, float scale, uint8 zero_point, float[rows, 11] y) {
            codes, scale, zero_point = DynamicQuantizeLinear(x)
            y = DequantizeLinear(codes, scale, zero_point)
        }""",
        20,
    )
    model = onnx.inliner.inline_selected_functions(model, [("", "DynamicQuantizeLinear")], inline_schema_functions=True)
    return Example(model, [activations(5, 11, high=16.0, tensor=True)])


def dynamic_quantize_dequantize() -> Example:
    """DynamicQuantizeLinear, DequantizeLinear, MatMul with int8 weights, as tf2onnx (TFLite) and Brevitas write."""
    rng = np.random.default_rng(1)
    model = parse(
        """dynamic (float[rows, 20] x) => (float[rows, 13] y) {
            codes, scale, zero_point = DynamicQuantizeLinear(x)
            dx = DequantizeLinear(codes, scale, zero_point)
            dw = DequantizeLinear<axis = 1>(w, ws, wz)
            y = MatMul(dx, dw)
        }""",
        13,
        w=int8_weights(rng, 20, 13),
        ws=rng.uniform(0.001, 0.01, 13).astype(np.float32),
        wz=np.zeros(13, dtype=np.int8),
    )
    return Example(model, [activations(7, 20, high=16.0, tensor=True)])


def dynamic_quantize_conv() -> Example:
    """The same form before convolutions, as TFLite's hybrid ones become; the second pools, and has folded weights."""
    rng = np.random.default_rng(2)
    model = parse(
        """dynamic (float[batch, 3, height, width] x) => (float[batch, 6, height, width] y) {
            codes, scale, zero_point = DynamicQuantizeLinear(x)
            dx = DequantizeLinear(codes, scale, zero_point)
            dw = DequantizeLinear<axis = 0>(w1, w1s)
            h = Conv<pads = [1, 1, 1, 1]>(dx, dw, b1)
            a = Relu(h)
            codes2, scale2, zero_point2 = DynamicQuantizeLinear(a)
            pooled = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(codes2)
            da = DequantizeLinear(pooled, scale2, zero_point2)
            y = Conv<group = 6, dilations = [1, 2], pads = [1, 2, 1, 2]>(da, w2)
        }""",
        13,
        w1=int8_weights(rng, 6, 3, 3, 3),
        w1s=rng.uniform(0.001, 0.01, 6).astype(np.float32),
        b1=grid_weights(rng, 6),
        w2=int8_weights(rng, 6, 1, 3, 3) * np.float32(0.003),
    )
    return Example(model, [activations(2, 3, 9, 11, high=16.0, tensor=True)])


def dynamic_quantize_relu() -> Example:
    """DynamicQuantizeLinear and DequantizeLinear without an integer operator after them."""
    model = parse(
        """dynamic (float[rows, 20] x) => (float[rows, 20] y) {
            codes, scale, zero_point = DynamicQuantizeLinear(x)
            dx = DequantizeLinear(codes, scale, zero_point)
            y = Relu(dx)
        }""",
        13,
    )
    return Example(model, [activations(7, 20, high=16.0, tensor=True)])


def blocked(block: int) -> Example:
    """QuantizeLinear with block_size: `block` adjacent elements of the last axis, of length 20, share a scale."""
    groups = 20 // block
    model = parse(
        f"""blocked (float[batch, 7, 20] x) => (int8[batch, 7, 20] codes, float[batch, 7, 20] y) {{
            g = Reshape(x, split)
            low = ReduceMin<keepdims = 0>(g, last)  low0 = Min(low, zero)
            high = ReduceMax<keepdims = 0>(g, last)  high0 = Max(high, zero)
            range = Sub(high0, low0)  raw = Div(range, levels)  scale = Max(raw, epsilon)
            below = Div(low0, scale)  rounded = Round(below)  shifted = Sub(qmin, rounded)
            clipped = Clip(shifted, qmin, qmax)  zero_point = Cast<to = 3>(clipped)
            codes = QuantizeLinear<axis = 2, block_size = {block}>(x, scale, zero_point)
            y = DequantizeLinear<axis = 2, block_size = {block}>(codes, scale, zero_point)
        }}""",
        21,
        split=np.array([0, 7, groups, block]),
        last=np.array([3]),
        zero=np.float32(0),
        levels=np.float32(255),
        epsilon=np.float32(1e-8),
        qmin=np.float32(-128),
        qmax=np.float32(127),
    )
    return Example(model, [activations(2, 7, 20, high=16.0, zero_row=True)])


def blocked_product() -> Example:
    """QuantizeLinear with block_size, DequantizeLinear, MatMul with 4-bit weights in blocks that are twice as long."""
    rng = np.random.default_rng(5)
    weights = rng.integers(0, 16, (64, 20)).astype(np.uint8)
    zero_points = rng.integers(4, 12, (2, 20)).astype(np.uint8)
    model = parse(
        """blocked_product (float[batch, 7, 64] x) => (float[batch, 7, 20] y) {
            g = Reshape(x, split)
            a = Abs(g)  largest = ReduceMax<keepdims = 0>(a, last)
            raw = Div(largest, levels)  scale = Max(raw, epsilon)
            codes = QuantizeLinear<axis = 2, block_size = 16, output_dtype = 3>(x, scale)
            real = DequantizeLinear<axis = 2, block_size = 16>(codes, scale)
            w = DequantizeLinear<axis = 0, block_size = 32>(weights, weight_scales, weight_zero_points)
            y = MatMul(real, w)
        }""",
        21,
        split=np.array([0, 7, 4, 16]),
        last=np.array([3]),
        levels=np.float32(127),
        epsilon=np.float32(1e-8),
        weight_scales=rng.uniform(0.01, 0.02, (2, 20)).astype(np.float32),
    )
    for name, codes in (("weights", weights), ("weight_zero_points", zero_points)):
        tensor = helper.make_tensor(name, TensorProto.UINT4, codes.shape, codes.reshape(-1).tolist())
        model.graph.initializer.append(tensor)
    return Example(model, [activations(2, 7, 64, zero_row=True)])


def row_square() -> Example:
    """A MatMul with one scale per row, no zero point, and equal numbers of rows and columns.

    ONNX Runtime's default level uses the row scales as column scales.
    """
    rng = np.random.default_rng(2)
    model = parse(
        """row (float[7, 20] x) => (float[7, 7] y) {
            high = ReduceMax<axes = [1], keepdims = 0>(x)  scale = Div(high, levels)
            codes = QuantizeLinear<axis = 0>(x, scale)
            dx = DequantizeLinear<axis = 0>(codes, scale)
            dw = DequantizeLinear(w, ws, wz)
            y = MatMul(dx, dw)
        }""",
        17,
        levels=np.float32(255),
        w=int8_weights(rng, 20, 7),
        ws=np.float32(0.0078125),
        wz=np.int8(0),
    )
    rows = np.array([0.125, 0.25, 0.5, 1, 2, 4, 8], dtype=np.float32)[:, None]
    return Example(model, [activations(7, 20, low=0.0, high=31.875) * rows])


def row_zero_point() -> Example:
    """As `row_square`, with one zero point per row and fewer columns than rows: the default level fails to run it."""
    rng = np.random.default_rng(2)
    model = parse(
        """row (float[7, 20] x) => (float[7, 5] y) {
            low = ReduceMin<axes = [1], keepdims = 0>(x)  low0 = Clip(low, , zero)
            high = ReduceMax<axes = [1], keepdims = 0>(x)  high0 = Clip(high, zero)
            range = Sub(high0, low0)  raw = Div(range, levels)  scale = Clip(raw, epsilon)
            minus = Neg(low0)  above = Div(minus, scale)  rounded = Round(above)
            clipped = Clip(rounded, zero, levels)  zero_point = Cast<to = 2>(clipped)
            codes = QuantizeLinear<axis = 0>(x, scale, zero_point)
            dx = DequantizeLinear<axis = 0>(codes, scale, zero_point)
            dw = DequantizeLinear(w, ws, wz)
            y = MatMul(dx, dw)
        }""",
        17,
        zero=np.float32(0),
        levels=np.float32(255),
        epsilon=np.float32(1e-8),
        w=int8_weights(rng, 20, 5),
        ws=np.float32(0.0078125),
        wz=np.int8(0),
    )
    return Example(model, [activations(7, 20, high=16.0, zero_row=True)])


def channel_sigmoid() -> Example:
    """Asymmetric per-channel codes; the graph also returns the codes, scales and zero points."""
    model = parse(
        """channel (float[2, 5, 7] x)
            => (uint8[2, 5, 7] codes, float[5] scale, uint8[5] zero_point, float[2, 5, 7] y) {
            low = ReduceMin<keepdims = 0>(x, others)  low0 = Min(low, zero)
            high = ReduceMax<keepdims = 0>(x, others)  high0 = Max(high, zero)
            range = Sub(high0, low0)  raw = Mul(range, step)
            empty = Equal(raw, zero)  scale = Where(empty, epsilon, raw)
            minus = Neg(low0)  above = Div(minus, scale)  rounded = Round(above)
            clipped = Clip(rounded, zero, levels)  zero_point = Cast<to = 2>(clipped)
            codes = QuantizeLinear<axis = -2>(x, scale, zero_point)
            dx = DequantizeLinear<axis = -2>(codes, scale, zero_point)
            y = Sigmoid(dx)
        }""",
        19,
        others=np.array([0, 2]),
        zero=np.float32(0),
        step=np.float32(1 / 255),
        levels=np.float32(255),
        epsilon=np.float32(1e-6),
    )
    return Example(model, [activations(2, 5, 7, high=16.0, channel=1, zero_row=True)])


def functions() -> Example:
    """A model-local function that quantizes, called twice with different bounds (attribute references)."""
    rng = np.random.default_rng(3)
    model = parse(
        """functions (float[batch, 7, 20] x) => (float[batch, 7, 13] y) {
            a = local.fake_quantize<limit = 127.0>(x)
            h = MatMul(a, w)
            y = local.fake_quantize<limit = 7.0>(h)
        }
        <domain: "local", opset_import: ["" : 20]>
        fake_quantize <limit> (x) => (y) {
            last = Constant<value_ints = [-1]>()
            epsilon = Constant<value_float = 0.00001>()
            qmax = Constant<value_float: float = @limit>()
            qmin = Neg(qmax)
            magnitude = Abs(x)
            peak = ReduceMax<keepdims = 1>(magnitude, last)
            bounded = Clip(peak, epsilon)
            scale = Div(bounded, qmax)
            quotient = Div(x, scale)
            rounded = Round(quotient)
            codes = Clip(rounded, qmin, qmax)
            y = Mul(codes, scale)
        }""",
        20,
        ("local",),
        w=grid_weights(rng, 20, 13),
    )
    return Example(model, [activations(2, 7, 20, zero_row=True)])


def function_in_branch() -> Example:
    """QuantizeLinear and DequantizeLinear in a function that is called inside an If, on a value of the outer graph."""
    model = parse(
        """branch (bool flag, float[rows, 11] x) => (float[rows, 11] y) {
            shifted = Add(x, one)
            y = If (flag) <
                then_branch = then () => (float[rows, 11] a) { a = local.quantize(shifted) },
                else_branch = otherwise () => (float[rows, 11] b) { b = Relu(shifted) }
            >
        }
        <domain: "local", opset_import: ["" : 20]>
        quantize (x) => (y) {
            limit = Constant<value_float = 127.0>()
            magnitude = Abs(x)
            peak = ReduceMax<keepdims = 0>(magnitude)
            scale = Div(peak, limit)
            zero_point = Constant<value = int8 {0}>()
            codes = QuantizeLinear(x, scale, zero_point)
            y = DequantizeLinear(codes, scale, zero_point)
        }""",
        20,
        ("local",),
        one=np.float32(1),
    )
    return Example(model, [np.array(True), activations(5, 11, tensor=True)])


TOKEN_CODES = """
    magnitude = Abs(x)  peak = ReduceMax<axes = [-1], keepdims = 1>(magnitude)  bounded = Max(peak, epsilon)
    scale = Div(bounded, limit)  quotient = Div(x, scale)  rounded = Round(quotient)
    clipped = Clip(rounded, qmin, qmax)
"""


def token_constants() -> dict[str, Array]:
    return {
        "epsilon": np.asarray(np.float32(1e-5)),
        "limit": np.asarray(np.float32(127)),
        "qmin": np.asarray(np.float32(-128)),
        "qmax": np.asarray(np.float32(127)),
    }


def integer_matmul(*, unsigned: bool) -> Example:
    """MatMulInteger per token. With `unsigned`, codes are 128 larger and the product is corrected for it."""
    rng = np.random.default_rng(4)
    weights = int8_weights(rng, 20, 13)
    constants = token_constants() | {
        "w": weights,
        "ws": rng.uniform(0.001, 0.01, 13).astype(np.float32),
        "bias": grid_weights(rng, 13),
    }
    if unsigned:
        constants |= {
            "offset": np.asarray(np.int32(128)),
            "correction": 128 * weights.astype(np.int32).sum(axis=0, dtype=np.int32),
        }
        product = """wide = Cast<to = 6>(clipped)  raised = Add(wide, offset)  codes = Cast<to = 2>(raised)
            raw = MatMulInteger(codes, w)  sum = Sub(raw, correction)"""
    else:
        product = "codes = Cast<to = 3>(clipped)  sum = MatMulInteger(codes, w)"
    model = parse(
        f"""integer (float[batch, 7, 20] x) => (float[batch, 7, 13] y) {{
            {TOKEN_CODES} {product}
            real = Cast<to = 1>(sum)  scaled = Mul(real, scale)  weighed = Mul(scaled, ws)  y = Add(weighed, bias)
        }}""",
        17,
        **constants,
    )
    return Example(model, [activations(2, 7, 20, zero_row=True)])


def int32_matmul() -> Example:
    """int8 codes and weights cast to int32 and multiplied, as torch code without an int8 product does it."""
    rng = np.random.default_rng(4)
    model = parse(
        f"""integer (float[batch, tokens, 20] x) => (float[batch, tokens, 13] y) {{
            {TOKEN_CODES} codes = Cast<to = 3>(clipped)
            wide = Cast<to = 6>(codes)  wt = Transpose<perm = [1, 0]>(w)  wide_w = Cast<to = 6>(wt)
            sum = MatMul(wide, wide_w)  real = Cast<to = 1>(sum)
            scaled = Mul(real, scale)  weighed = Mul(scaled, ws)  y = Add(weighed, bias)
        }}""",
        17,
        **token_constants(),
        w=int8_weights(rng, 13, 20),
        ws=rng.uniform(0.001, 0.01, 13).astype(np.float32),
        bias=grid_weights(rng, 13),
    )
    return Example(model, [activations(2, 7, 20, zero_row=True)])


OFFSET_OF_TOKENS = """least = ReduceMin<axes = [-1], keepdims = 1>(x)  low = Min(least, zero)
            most = ReduceMax<axes = [-1], keepdims = 1>(x)  high = Max(most, zero)
            range = Sub(high, low)  step = Div(range, levels)  scale = Max(step, epsilon)
            below = Neg(low)  offset = Div(below, scale)  whole = Round(offset)  bounded = Clip(whole, zero, levels)"""


def offset_constants() -> dict[str, np.ndarray]:
    """The constants of OFFSET_OF_TOKENS, which computes a scale and a zero point of uint8 codes for each token."""
    return {
        "epsilon": np.asarray(np.float32(1e-5)),
        "zero": np.asarray(np.float32(0)),
        "levels": np.asarray(np.float32(255)),
    }


def int32_at_once() -> Example:
    """Floats cast to int32 at once, minus a zero point, in an Einsum: no step of it has 8 bits."""
    rng = np.random.default_rng(9)
    model = parse(
        f"""integer (float[batch, tokens, 20] x) => (float[batch, tokens, 13] y) {{
            {OFFSET_OF_TOKENS}
            quotient = Div(x, scale)  rounded = Round(quotient)  shifted = Add(rounded, bounded)
            clipped = Clip(shifted, zero, levels)
            wide = Cast<to = 6>(clipped)  wide_zero_point = Cast<to = 6>(bounded)
            centered = Sub(wide, wide_zero_point)
            sum = Einsum<equation = "btk,nk->btn">(centered, w)  real = Cast<to = 1>(sum)
            scaled = Mul(real, scale)  weighed = Mul(scaled, ws)  y = Add(weighed, bias)
        }}""",
        17,
        **offset_constants(),
        w=int8_weights(rng, 13, 20).astype(np.int32),
        ws=rng.uniform(0.001, 0.01, 13).astype(np.float32),
        bias=grid_weights(rng, 13),
    )
    return Example(model, [activations(2, 7, 20, high=16.0, zero_row=True)])


def int32_zero_point() -> Example:
    """As int32_matmul(), with uint8 codes and a zero point for each token, which is subtracted in int32."""
    rng = np.random.default_rng(6)
    model = parse(
        f"""integer (float[batch, tokens, 20] x) => (float[batch, tokens, 13] y) {{
            {OFFSET_OF_TOKENS}
            zero_point = Cast<to = 2>(bounded)  float_zero_point = Cast<to = 1>(zero_point)
            quotient = Div(x, scale)  rounded = Round(quotient)  shifted = Add(rounded, float_zero_point)
            clipped = Clip(shifted, zero, levels)  codes = Cast<to = 2>(clipped)
            wide = Cast<to = 6>(codes)  wide_zero_point = Cast<to = 6>(zero_point)
            centered = Sub(wide, wide_zero_point)  wide_w = Cast<to = 6>(w)
            sum = MatMul(centered, wide_w)  real = Cast<to = 1>(sum)
            scaled = Mul(real, scale)  weighed = Mul(scaled, ws)  y = Add(weighed, bias)
        }}""",
        17,
        **offset_constants(),
        w=int8_weights(rng, 20, 13),
        ws=rng.uniform(0.001, 0.01, 13).astype(np.float32),
        bias=grid_weights(rng, 13),
    )
    return Example(model, [activations(2, 7, 20, high=16.0, zero_row=True)])


def keras_dense() -> Example:
    """Replicates Dense of Keras 3.11 after quantize("int8"): keras/src/quantizers and keras/src/layers/core/dense.py.

    Outputs are divided by the product of both scales, and both are inverse scales.
    """
    rng = np.random.default_rng(7)
    model = parse(
        """keras (float[batch, tokens, 20] x) => (float[batch, tokens, 13] y) {
            magnitude = Abs(x)  peak = ReduceMax<axes = [-1], keepdims = 1>(magnitude)
            guarded = Add(peak, epsilon)  inputs_scale = Div(limit, guarded)
            product = Mul(x, inputs_scale)  rounded = Round(product)  clipped = Clip(rounded, qmin, limit)
            codes = Cast<to = 3>(clipped)  wide = Cast<to = 6>(codes)  wide_kernel = Cast<to = 6>(kernel)
            sum = MatMul(wide, wide_kernel)  real = Cast<to = 1>(sum)
            scale = Mul(inputs_scale, kernel_scale)  quotient = Div(real, scale)  y = Add(quotient, bias)
        }""",
        17,
        epsilon=np.asarray(np.float32(1e-7)),
        limit=np.asarray(np.float32(127)),
        qmin=np.asarray(np.float32(-127)),
        kernel=int8_weights(rng, 20, 13),
        kernel_scale=rng.uniform(100, 1000, 13).astype(np.float32),
        bias=grid_weights(rng, 13),
    )
    return Example(model, [activations(2, 7, 20, zero_row=True)])


def reshaped_codes() -> Example:
    """Codes and scales as matrices, as the run-time code of vLLM and sglang has them (native_w8a8_per_token_matmul)."""
    rng = np.random.default_rng(8)
    model = parse(
        f"""reshaped (float[batch, tokens, 20] x) => (float[batch, tokens, 13] y) {{
            {TOKEN_CODES} codes = Cast<to = 3>(clipped)
            matrix = Reshape(codes, rows)  a = Cast<to = 1>(matrix)  row_scale = Reshape(scale, column)
            b = Cast<to = 1>(w)  bt = Transpose<perm = [1, 0]>(b)
            product = MatMul(a, bt)  scaled = Mul(row_scale, product)  weighed = Mul(scaled, ws)
            biased = Add(weighed, bias)
            batch_size = Shape<start = 0, end = 1>(x)  tokens_size = Shape<start = 1, end = 2>(x)
            shape = Concat<axis = 0>(batch_size, tokens_size, outputs)  y = Reshape(biased, shape)
        }}""",
        17,
        **token_constants(),
        rows=np.array([-1, 20]),
        column=np.array([-1, 1]),
        outputs=np.array([13]),
        w=int8_weights(rng, 13, 20),
        ws=rng.uniform(0.001, 0.01, (1, 13)).astype(np.float32),
        bias=grid_weights(rng, 1, 13),
    )
    return Example(model, [activations(2, 7, 20, zero_row=True)])


def longer_groups() -> Example:
    """Activation in groups of 32; 4-bit weights in groups of 16, which an exporter folded."""
    rng = np.random.default_rng(9)
    codes = rng.integers(-8, 8, (4, 16, 40))
    codes[:, 0] = -8
    scales = rng.uniform(0.01, 0.1, (4, 1, 40)).astype(np.float32)
    model = parse(
        f"""groups (float[batch, tokens, 64] activation) => (float[batch, tokens, 40] y) {{
            x = Reshape(activation, split) {TOKEN_CODES} codes = Cast<to = 3>(clipped)
            real = Cast<to = 1>(codes)  groups = Mul(real, scale)  dx = Reshape(groups, joined)
            product = MatMul(dx, w)  y = Add(product, bias)
        }}""",
        17,
        **token_constants(),
        split=np.array([0, 0, 2, 32]),
        joined=np.array([0, 0, 64]),
        w=(codes.astype(np.float32) * scales).reshape(64, 40),
        bias=grid_weights(rng, 40),
    )
    return Example(model, [activations(2, 7, 64, zero_row=True)])


def keras_tensorflow() -> Example:
    """Replicates Dense of Keras 3.15 after quantize("int8"), with TensorFlow, as tf2onnx writes it.

    Source: abs_max_quantize in keras/src/quantizers/quantizers.py, Dense._int8_call. The scales are inverse.
    """
    rng = np.random.default_rng(6)
    model = parse(
        """dense (float[batch, 7, 20] x) => (float[batch, 7, 13] y) {
            magnitude = Abs(x)
            largest = ReduceMax<keepdims = 1, noop_with_empty_axes = 1>(magnitude, axes)
            sum = Add(largest, epsilon)
            scale = Div(high, sum)
            scales = Mul(scale, kernel_scale)
            scaled = Mul(x, scale)
            rounded = Round(scaled)
            lowered = Min(rounded, high)
            clipped = Max(lowered, low)
            codes = Cast<to = 3>(clipped)
            product = MatMulInteger(codes, kernel, zero, zero)
            real = Cast<to = 1>(product)
            divided = Div(real, scales)
            y = Add(divided, bias)
        }""",
        18,
        axes=np.array([-1]),
        epsilon=np.float32(1e-7),
        high=np.float32(127),
        low=np.float32(-127),
        zero=np.zeros(1, np.int8),
        kernel=int8_weights(rng, 20, 13),
        kernel_scale=rng.uniform(300, 1200, 13).astype(np.float32),
        bias=grid_weights(rng, 13),
    )
    return Example(model, [activations(3, 7, 20, zero_row=True)])


def reshaped_gemm() -> Example:
    """Fake quantization of flattened tokens, Gemm and Reshape, as graph slimmers write it."""
    rng = np.random.default_rng(5)
    model = parse(
        f"""reshaped (float[2, 7, 20] tokens) => (float[2, 7, 13] y) {{
            x = Reshape(tokens, flat) {TOKEN_CODES}
            dx = Mul(clipped, scale)  product = Gemm<transB = 1>(dx, w, bias)  y = Reshape(product, shape)
        }}""",
        17,
        **token_constants(),
        flat=np.array([-1, 20]),
        shape=np.array([2, 7, 13]),
        w=grid_weights(rng, 13, 20),
        bias=grid_weights(rng, 13),
    )
    return Example(model, [activations(2, 7, 20, zero_row=True)])


def half_glue() -> Example:
    """float16, with a Cast to float32 and back around each operator that has no float16 kernel."""
    model = parse(
        """half (float16[batch, 7, 20] x) => (float16[batch, 7, 20] y) {
            x32 = Cast<to = 1>(x)  m32 = Abs(x32)  m = Cast<to = 10>(m32)
            n32 = Cast<to = 1>(m)  p32 = ReduceMax<axes = [-1], keepdims = 1>(n32)  peak = Cast<to = 10>(p32)
            bounded = Max(peak, epsilon)  scale = Div(bounded, limit)
            quotient = Div(x, scale)
            q32 = Cast<to = 1>(quotient)  r32 = Round(q32)  rounded = Cast<to = 10>(r32)
            clipped = Clip(rounded, qmin, qmax)  y = Mul(clipped, scale)
        }""",
        17,
        epsilon=np.float16(1e-3),
        limit=np.float16(127),
        qmin=np.float16(-128),
        qmax=np.float16(127),
    )
    return Example(model, [activations(2, 7, 20, zero_row=True).astype(np.float16)])


def float_bias() -> Example:
    """A cache of uint8 codes, with a float16 scale and a float16 minimum per token and head."""
    model = parse(
        """cache (float[1, 3, new, 10] x, uint8[1, 3, past, 10] past_codes,
                  float16[1, 3, past, 1] past_scale, float16[1, 3, past, 1] past_low)
            => (float[1, 3, total, 10] y, uint8[1, 3, total, 10] codes,
                float16[1, 3, total, 1] scales, float16[1, 3, total, 1] lows) {
            low = ReduceMin<keepdims = 1>(x, last)  high = ReduceMax<keepdims = 1>(x, last)
            range = Sub(high, low)  raw = Div(range, levels)  scale = Max(raw, epsilon)
            above = Sub(x, low)  quotient = Div(above, scale)  rounded = Round(quotient)
            new_codes = Cast<to = 2>(rounded)
            codes = Concat<axis = 2>(past_codes, new_codes)
            half_scale = Cast<to = 10>(scale)  scales = Concat<axis = 2>(past_scale, half_scale)
            half_low = Cast<to = 10>(low)  lows = Concat<axis = 2>(past_low, half_low)
            real = Cast<to = 1>(codes)  s = Cast<to = 1>(scales)  b = Cast<to = 1>(lows)
            scaled = Mul(real, s)  y = Add(scaled, b)
        }""",
        18,
        last=np.array([-1]),
        levels=np.float32(255),
        epsilon=np.float32(1e-5),
    )
    rng = np.random.default_rng(6)
    inputs = [
        activations(1, 3, 2, 10, high=16.0, zero_row=True),
        rng.integers(0, 256, (1, 3, 5, 10)).astype(np.uint8),
        rng.uniform(0.01, 0.2, (1, 3, 5, 1)).astype(np.float16),
        rng.uniform(-9, 0, (1, 3, 5, 1)).astype(np.float16),
    ]
    return Example(model, inputs)


def unfolded_weights() -> Example:
    """A linear layer of quantization-aware training, exported without constant folding.

    The weights are fake quantized in the graph, one scale for each output channel, as torch writes it for
    `w.abs().amax(1, keepdim=True)` with `do_constant_folding=False`. Activations: symmetric per token.
    """
    model = parse(
        """qat (float[batch, tokens, 48] x) => (float[batch, tokens, 32] y) {
            wa = Abs(w)  wm = ReduceMax<keepdims = 1>(wa, last)  wr = Div(wm, c127)  ws = Clip(wr, epsilon)
            wd = Div(w, ws)  wi = Round(wd)  wc = Clip(wi, low, c127)  wf = Mul(wc, ws)
            wt = Transpose<perm = [1, 0]>(wf)
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, last)  r = Div(m, c127)  s = Clip(r, epsilon)
            d = Div(x, s)  i = Round(d)  c = Clip(i, low, c127)  f = Mul(c, s)
            p = MatMul(f, wt)  y = Add(p, bias)
        }""",
        20,
        w=np.random.default_rng(9).normal(0, 0.1, (32, 48)).astype(np.float32),
        bias=grid_weights(np.random.default_rng(10), 32),
        last=np.array([-1]),
        c127=np.float32(127),
        low=np.float32(-127),
        epsilon=np.float32(1e-5),
    )
    return Example(model, [activations(2, 7, 48, zero_row=True)])


def experts() -> Example:
    """Experts of a mixture that all see the same tokens: one MatMul of stacked weights, and a bias for each expert.

    Activations: symmetric per token.
    """
    rng = np.random.default_rng(12)
    codes = int8_weights(rng, 4, 48, 32)
    scales = rng.uniform(0.001, 0.01, (4, 1, 32)).astype(np.float32)
    model = parse(
        """experts (float[1, tokens, 48] x) => (float[4, tokens, 32] y) {
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, last)  r = Div(m, c127)  s = Clip(r, epsilon)
            d = Div(x, s)  i = Round(d)  c = Clip(i, low, c127)  f = Mul(c, s)
            wf = Cast<to = 1>(w)  ws = Mul(wf, scales)  p = MatMul(f, ws)  b = Add(p, bias)  y = Relu(b)
        }""",
        20,
        w=codes,
        scales=scales,
        bias=rng.normal(0, 0.1, (4, 1, 32)).astype(np.float32),
        last=np.array([-1]),
        c127=np.float32(127),
        low=np.float32(-127),
        epsilon=np.float32(1e-5),
    )
    return Example(model, [activations(1, 7, 48, zero_row=True)])


def float_offset() -> Example:
    """A layer of quantization-aware training: its codes count from each token's minimum, without an epsilon."""
    rng = np.random.default_rng(16)
    model = parse(
        """offset (float[batch, tokens, 20] x) => (float[batch, tokens, 13] y) {
            high = ReduceMax<axes = [-1], keepdims = 1>(x)  low = ReduceMin<axes = [-1], keepdims = 1>(x)
            shape = Shape(x)  wide = Expand(high, shape)  range = Sub(wide, low)
            above = Sub(x, low)  part = Div(above, range)  steps = Mul(part, levels)  codes = Round(steps)
            parts = Div(codes, levels)  scaled = Mul(parts, range)  real = Add(scaled, low)
            p = MatMul(real, w)  y = Add(p, bias)
        }""",
        17,
        w=int8_weights(rng, 20, 13) * rng.uniform(0.001, 0.01, 13).astype(np.float32),
        bias=grid_weights(rng, 13),
        levels=np.float32(255),
    )
    return Example(model, [activations(2, 7, 20, high=16.0)])


def token_heads() -> Example:
    """A layer after attention, as Keras and JAX write it: codes split into heads, and weights of heads in an Einsum."""
    rng = np.random.default_rng(17)
    model = parse(
        f"""heads (float[batch, tokens, 32] x) => (float[batch, tokens, 13] y) {{
            {TOKEN_CODES} codes = Cast<to = 3>(clipped)  wide = Cast<to = 6>(codes)
            split = Reshape(wide, shape)  sum = Einsum<equation = "bthd,hdn->btn">(split, w)
            real = Cast<to = 1>(sum)  scaled = Mul(real, scale)  weighed = Mul(scaled, ws)  y = Add(weighed, bias)
        }}""",
        17,
        **token_constants(),
        shape=np.array([0, 0, 4, 8]),
        w=int8_weights(rng, 4, 8, 13).astype(np.int32),
        ws=rng.uniform(0.001, 0.01, 13).astype(np.float32),
        bias=grid_weights(rng, 13),
    )
    return Example(model, [activations(2, 7, 32, zero_row=True)])


def frames() -> Example:
    """A convolution of the frames of a video: one scale for each frame, without an epsilon or a Clip."""
    rng = np.random.default_rng(15)
    codes = int8_weights(rng, 16, 16, 3, 3)
    codes[:, 0, 0, 0] = 127
    model = parse(
        """frames (float[1, 2, 16, 12, 12] x) => (float[2, 16, 12, 12] y) {
            a = Abs(x)  m = ReduceMax<keepdims = 1>(a, axes)  s = Div(m, c127)
            d = Div(x, s)  c = Round(d)  f = Mul(c, s)
            images = Reshape(f, shape)  y = Conv<pads = [1, 1, 1, 1]>(images, w)
        }""",
        18,
        w=codes.astype(np.float32) * rng.uniform(0.001, 0.01, (16, 1, 1, 1)).astype(np.float32),
        axes=np.array([2, 3, 4]),
        shape=np.array([-1, 16, 12, 12]),
        c127=np.float32(127),
    )
    return Example(model, [activations(2, 16 * 12 * 12).reshape(1, 2, 16, 12, 12)])


def integer_attention() -> Example:
    """Attention of an integer network: its products are of two activations, in int32; Relu stands for Softmax.

    Query and key: symmetric per token. Probabilities and value: symmetric per tensor.
    """
    largest = "{0}a = Abs({0})  {0}m = ReduceMax<keepdims = {1}>({0}a{2})  {0}l = Max({0}m, epsilon)  "
    codes = "{0}s = Div({0}l, c127)  {0}d = Div({0}, {0}s)  {0}r = Round({0}d)  {0}c = Clip({0}r, low, c127)  "
    codes += "{0}8 = Cast<to = 3>({0}c)  {0}32 = Cast<to = 6>({0}8)"
    tokens, tensor = (largest.format("{0}", *each) + codes for each in ((1, ", last"), (0, "")))
    model = parse(
        f"""attention (float[1, 2, 7, 16] q, float[1, 2, 9, 16] k, float[1, 2, 9, 16] v) => (float[1, 2, 7, 16] y) {{
            {tokens.format("q")}
            {tokens.format("k")}
            kt = Transpose<perm = [0, 1, 3, 2]>(k32)  kst = Transpose<perm = [0, 1, 3, 2]>(ks)
            dots = MatMul(q32, kt)  real = Cast<to = 1>(dots)  of_q = Mul(real, qs)  scores = Mul(of_q, kst)
            p = Relu(scores)
            {tensor.format("p")}
            {tensor.format("v")}
            sums = MatMul(p32, v32)  real_sums = Cast<to = 1>(sums)  scale = Mul(ps, vs)  y = Mul(real_sums, scale)
        }}""",
        18,
        last=np.array([-1]),
        c127=np.float32(127),
        low=np.float32(-128),
        epsilon=np.float32(1e-5),
    )
    return Example(model, [activations(1, 2, rows, 16, seed=seed) for seed, rows in enumerate((7, 9, 9))])


MODELS: dict[str, Callable[[], Example]] = {
    "tf2onnx_channel_last": partial(tf2onnx, 2),
    "tf2onnx_channel_last_unsigned": partial(tf2onnx, 2, signed=False),
    "tf2onnx_tensor": partial(tf2onnx, -1),
    "dynamic_quantize_expanded": expanded_dynamic_quantize,
    "dynamic_quantize_dequantize": dynamic_quantize_dequantize,
    "dynamic_quantize_conv": dynamic_quantize_conv,
    "dynamic_quantize_relu": dynamic_quantize_relu,
    "blocked_token": partial(blocked, 20),
    "blocked_group": partial(blocked, 5),
    "blocked_group_product": blocked_product,
    "row_square": row_square,
    "row_zero_point": row_zero_point,
    "channel_sigmoid": channel_sigmoid,
    "functions": functions,
    "function_in_branch": function_in_branch,
    "keras_tensorflow": keras_tensorflow,
    "integer_token_s8": partial(integer_matmul, unsigned=False),
    "integer_token_u8": partial(integer_matmul, unsigned=True),
    "integer_token_int32": int32_matmul,
    "integer_token_einsum": int32_at_once,
    "integer_token_zero_point": int32_zero_point,
    "keras_int8": keras_dense,
    "token_longer_groups": longer_groups,
    "token_reshaped_codes": reshaped_codes,
    "token_reshaped_gemm": reshaped_gemm,
    "token_float16_glue": half_glue,
    "kv_cache_float_bias": float_bias,
    "qat_unfolded_weights": unfolded_weights,
    "experts_token": experts,
    "token_float_offset": float_offset,
    "token_heads": token_heads,
    "frame_unclipped": frames,
    "integer_attention": integer_attention,
}

if __name__ == "__main__":
    main(MODELS)
