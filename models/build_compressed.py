"""Writes the patterns in which oneDNN's own test suite uses DynamicDequantize and DynamicQuantize of oneDNN Graph.

Attention with codes as keys, values or both, attention of a quantized BERT, and a gated MLP of 4-bit weights. Codes,
scales and zero points are inputs. The patterns are written with ONNX's operators; heads and tokens are fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from _common import Array, Example, main, parse

H, S, T, D = 3, 5, 19, 64
BERT_TOKENS = 48
DTYPES: dict[str, Any] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint4": ml_dtypes.uint4,
    "int4": ml_dtypes.int4,
    "float": np.float32,
    "float16": np.float16,
}
LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "uint4": (0, 15), "int4": (-8, 7)}


def random(rng: np.random.Generator, kind: str, *shape: int) -> Array:
    """Returns codes that use the whole range, or floats."""
    if kind not in LIMITS:
        return np.asarray(rng.standard_normal(shape)).astype(DTYPES[kind])
    low, high = LIMITS[kind]
    drawn = rng.normal((low + high + 1) / 2, (high - low) / 5, shape)
    return np.asarray(np.clip(np.round(drawn), low, high)).astype(np.int32).astype(DTYPES[kind])


def operand(
    rng: np.random.Generator, kind: str, real: str, shape: Sequence[int], parameters: Sequence[int]
) -> list[Array]:
    """Returns codes, their scales and their zero points, which give numbers of about 1."""
    low, high = LIMITS[kind]
    scales = np.asarray(rng.uniform(3, 6, parameters) / (high - low)).astype(DTYPES[real])
    middle = (low + high + 1) // 2
    points = np.asarray(rng.integers(middle - 1, middle + 2, parameters)).astype(DTYPES[kind])
    return [random(rng, kind, *shape), scales, points]


def attention(key: str | None, value: str | None, group: int | None, *, real: str, causal: bool = False) -> Example:
    """Attention over codes.

    Args:
        key: The type of the keys, [1, H, D, T]. None: floats.
        value: The type of the values, [1, H, T, D]. None: floats.
        group: The number of adjacent elements of a head that share a scale and a zero point. None: the keys of
            one token share them.
        real: The type of floats.
        causal: Whether the mask is computed from the positions; otherwise it is an input that is added.
    """
    rng = np.random.default_rng(20)
    parts = 1 if group is None else D // group
    declared, nodes = [f"{real}[1, {H}, {S}, {D}] q", f"{real} divisor"], []
    inputs = [random(rng, real, 1, H, S, D), np.array(D**0.5, DTYPES[real])]
    for name, kind, axis, shape in (("k", key, 2, (1, H, D, T)), ("v", value, 3, (1, H, T, D))):
        parameters, block = [parts if i == axis else size for i, size in enumerate(shape)], f"block_size = {group}"
        if group is None:
            parameters, axis, block = [T], 3, "block_size = 0"
        if kind is None:
            inputs.append(random(rng, real, *shape))
            declared.append(f"{real}{[*shape]} {name}")
            continue
        inputs += operand(rng, kind, real, shape, parameters)
        declared.append(
            f"{kind}{[*shape]} {name}_codes, {real}{parameters} {name}_scales, {kind}{parameters} {name}_points"
        )
        nodes.append(f"{name} = DequantizeLinear<axis = {axis}, {block}>({name}_codes, {name}_scales, {name}_points)")
    nodes.append("products = MatMul(q, k)  scores = Div(products, divisor)")
    if causal:
        rows, columns = np.arange(S).reshape(1, 1, S, 1), np.arange(T).reshape(1, 1, 1, T)
        constants = {"rows": rows + T - S, "columns": columns, "hidden": np.array(-np.inf, DTYPES[real])}
        nodes.append("seen = GreaterOrEqual(rows, columns)  masked = Where(seen, scores, hidden)")
    else:
        constants = {}
        declared.append(f"{real}[1, 1, {S}, {T}] mask")
        inputs.append(np.where(rng.random((1, 1, S, T)) < 0.2, -10000, 0).astype(DTYPES[real]))
        nodes.append("masked = Add(scores, mask)")
    nodes.append("p = Softmax<axis = 3>(masked)  y = MatMul(p, v)")
    text = f"attention ({', '.join(declared)}) => ({real}[1, {H}, {S}, {D}] y) {{ {'  '.join(nodes)} }}"
    return Example(parse(text, 21, **constants), inputs)


def quantized_bert(*, real: str) -> Example:
    """Attention of u8 query, key and value; its probabilities and result are quantized, too: six run-time scales."""
    rng = np.random.default_rng(21)
    mask = np.where(np.arange(BERT_TOKENS) < BERT_TOKENS - 4, 0, -10000).reshape(1, 1, 1, BERT_TOKENS)
    inputs = []
    for shape in ((1, H, BERT_TOKENS, D), (1, H, D, BERT_TOKENS), (1, H, BERT_TOKENS, D)):
        inputs += operand(rng, "uint8", real, shape, ())
    inputs += [np.array(D**0.5, DTYPES[real]), mask.astype(DTYPES[real])]
    for scale, point in ((1 / 255, 0), (1 / 256, 1), (3 / 128, 128)):  # to p's codes, from them, and of the result
        inputs += [np.array(scale, DTYPES[real]), np.array(point, np.uint8)]
    model = parse(
        f"""quantized_bert (uint8[1, {H}, {BERT_TOKENS}, {D}] q_codes, {real} q_scale, uint8 q_point,
            uint8[1, {H}, {D}, {BERT_TOKENS}] k_codes, {real} k_scale, uint8 k_point,
            uint8[1, {H}, {BERT_TOKENS}, {D}] v_codes, {real} v_scale, uint8 v_point,
            {real} divisor, {real}[1, 1, 1, {BERT_TOKENS}] mask,
            {real} p_scale, uint8 p_point, {real} w_scale, uint8 w_point, {real} y_scale, uint8 y_point)
            => (uint8[1, {BERT_TOKENS}, {H}, {D}] y) {{
            q = DequantizeLinear(q_codes, q_scale, q_point)  k = DequantizeLinear(k_codes, k_scale, k_point)
            products = MatMul(q, k)  scores = Div(products, divisor)  masked = Add(scores, mask)
            p = Softmax<axis = 3>(masked)
            p_codes = QuantizeLinear(p, p_scale, p_point)  w = DequantizeLinear(p_codes, w_scale, w_point)
            v = DequantizeLinear(v_codes, v_scale, v_point)  result = MatMul(w, v)
            by_token = Transpose<perm = [0, 2, 1, 3]>(result)  y = QuantizeLinear(by_token, y_scale, y_point)
        }}""",
        21,
    )
    return Example(model, inputs)


def gated_mlp(*, real: str) -> Example:
    """A gated MLP of 4-bit weights; each row of weights has groups of 16 columns."""
    rng = np.random.default_rng(22)
    k, n, group = 48, 80, 16
    inputs = [random(rng, real, 2, k)]
    declared = [f"{real}[2, {k}] x"]
    nodes = []
    for name, rows, columns in (("gate", k, n), ("up", k, n), ("down", n, k)):
        shape, parameters = (rows, columns), (rows, columns // group)
        arrays = operand(rng, "uint4", real, shape, parameters)
        arrays[1] = (arrays[1] * DTYPES[real](rows**-0.5)).astype(DTYPES[real])
        inputs += arrays
        declared += [
            f"uint4[{rows}, {columns}] {name}_codes, {real}[{rows}, {columns // group}] {name}_scales, "
            f"uint4[{rows}, {columns // group}] {name}_points"
        ]
        nodes.append(
            f"{name}_weights = DequantizeLinear<axis = 1, block_size = {group}>"
            f"({name}_codes, {name}_scales, {name}_points)"
        )
    nodes.append(
        "gate = MatMul(x, gate_weights)  sigmoid = Sigmoid(gate)  swish = Mul(gate, sigmoid)  "
        "up = MatMul(x, up_weights)  product = Mul(swish, up)  y = MatMul(product, down_weights)"
    )
    text = f"gated_mlp ({', '.join(declared)}) => ({real}[2, {k}] y) {{ {'  '.join(nodes)} }}"
    return Example(parse(text, 21), inputs)


def grouped() -> Example:
    """A cache as KIVI has it, of lengths that are computed, and torch's safe softmax.

    Keys have scales of each channel and group of 8 tokens; values of each token and group of 16 along the head.
    """
    rng = np.random.default_rng(23)
    groups, size, part = 3, 8, 16
    tokens = groups * size
    inputs = [random(rng, "float", 1, H, S, D)]
    inputs += operand(rng, "uint8", "float", (1, H, groups, size, D), (1, H, groups, 1, D))
    inputs += operand(rng, "int8", "float", (1, H, tokens, D // part, part), (1, H, tokens, D // part, 1))[:2]
    inputs.append(rng.random((S, tokens)) < 0.8)
    model = parse(
        f"""grouped (float[batch, {H}, {S}, {D}] q, uint8[batch, {H}, groups, {size}, {D}] k_codes,
            float[batch, {H}, groups, 1, {D}] k_scales, uint8[batch, {H}, groups, 1, {D}] k_points,
            int8[batch, {H}, tokens, {D // part}, {part}] v_codes,
            float[batch, {H}, tokens, {D // part}, 1] v_scales, bool[{S}, keys] seen)
            => (float[batch, {H}, {S}, {D}] y) {{
            k_numbers = Cast<to = 1>(k_codes)  k_real = Cast<to = 1>(k_points)
            k_moved = Sub(k_numbers, k_real)  k_parts = Mul(k_moved, k_scales)
            k = Reshape(k_parts, k_shape)  kt = Transpose<perm = [0, 1, 3, 2]>(k)
            v_numbers = Cast<to = 1>(v_codes)  v_parts = Mul(v_numbers, v_scales)  v = Reshape(v_parts, v_shape)
            products = MatMul(q, kt)  scores = Div(products, divisor)  masked = Where(seen, scores, lowest)
            p = Softmax<axis = 3>(masked)  is_nan = IsNaN(p)  safe = Where(is_nan, zero, p)  y = MatMul(safe, v)
        }}""",
        21,
        k_shape=np.array([0, H, -1, D]),
        v_shape=np.array([0, 0, 0, D]),
        divisor=np.float32(D**0.5),
        lowest=np.finfo(np.float32).min,
        zero=np.float32(0),
    )
    return Example(model, inputs)


def repeated() -> Example:
    """A cache of old and new tokens, of fewer heads than the query, each of which is repeated (grouped queries)."""
    rng = np.random.default_rng(24)
    declared, inputs, nodes = [f"float[batch, 4, {S}, {D}] q"], [random(rng, "float", 1, 4, S, D)], []
    for name in ("k", "v"):
        for part, length in (("past", T), ("new", S)):
            codes, scales, _ = operand(rng, "int8", "float", (1, 2, length, D), (1, 2, length, 1))
            inputs += [codes, scales]
            declared.append(f"int8[batch, 2, {part}, {D}] {name}_{part}, float[batch, 2, {part}, 1] {name}_{part}_s")
        nodes.append(f"""{name}_codes = Concat<axis = 2>({name}_past, {name}_new)
            {name}_scales = Concat<axis = 2>({name}_past_s, {name}_new_s)
            {name}_numbers = Cast<to = 1>({name}_codes)  {name}_real = Mul({name}_numbers, {name}_scales)
            {name}_lifted = Unsqueeze({name}_real, two)  {name}_twice = Expand({name}_lifted, repeats)
            {name} = Reshape({name}_twice, whole)""")
    text = f"""repeated ({", ".join(declared)}) => (float[batch, 4, {S}, {D}] y) {{
        {"  ".join(nodes)}
        kt = Transpose<perm = [0, 1, 3, 2]>(k)  products = MatMul(q, kt)  scores = Div(products, divisor)
        p = Softmax<axis = 3>(scores)  y = MatMul(p, v)
    }}"""
    model = parse(
        text,
        21,
        two=np.array([2]),
        repeats=np.array([1, 1, 2, 1, 1]),
        whole=np.array([0, 4, -1, D]),
        divisor=np.float32(D**0.5),
    )
    return Example(model, inputs)


def with_floats() -> Example:
    """A cache with minima of its keys, as KIVI has them, and values with zero points of floats, as HQQ has.

    Both have scales of each channel and group of 8 tokens.
    """
    rng = np.random.default_rng(24)
    groups, size = 3, 8
    tokens = groups * size
    parameters = (1, H, groups, 1, D)
    k_codes, k_scales, _ = operand(rng, "uint8", "float", (1, H, groups, size, D), parameters)
    v_codes, v_scales, _ = operand(rng, "uint8", "float", (1, H, groups, size, D), parameters)
    minima = -k_scales * rng.uniform(126, 130, parameters).astype(np.float32)
    zeros = rng.uniform(126, 130, parameters).astype(np.float32)
    inputs = [random(rng, "float", 1, H, S, D), k_codes, k_scales, minima, v_codes, v_scales, zeros]
    codes, numbers = (f"{kind}[1, {H}, {groups}, {rows}, {D}]" for kind, rows in (("uint8", size), ("float", 1)))
    model = parse(
        f"""with_floats (float[1, {H}, {S}, {D}] q, {codes} k_codes, {numbers} k_scales, {numbers} k_minima,
            {codes} v_codes, {numbers} v_scales, {numbers} v_zeros) => (float[1, {H}, {S}, {D}] y) {{
            k_numbers = Cast<to = 1>(k_codes)  k_scaled = Mul(k_numbers, k_scales)  k_parts = Add(k_scaled, k_minima)
            k = Reshape(k_parts, joined)  kt = Transpose<perm = [0, 1, 3, 2]>(k)
            v_numbers = Cast<to = 1>(v_codes)  v_moved = Sub(v_numbers, v_zeros)  v_parts = Mul(v_moved, v_scales)
            v = Reshape(v_parts, joined)
            products = MatMul(q, kt)  scores = Div(products, divisor)  p = Softmax<axis = 3>(scores)  y = MatMul(p, v)
        }}""",
        21,
        joined=np.array([1, H, tokens, D]),
        divisor=np.float32(D**0.5),
    )
    return Example(model, inputs)


FORMS: dict[str, Callable[..., Example]] = {
    "compressed_key": partial(attention, "int8", None, 32),
    "compressed_key_channel": partial(attention, "int8", None, None),
    "compressed_value": partial(attention, None, "int8", 32),
    "compressed_both": partial(attention, "int8", "int8", 64),
    "compressed_causal": partial(attention, "int8", "int8", 64, causal=True),
    "compressed_4_bits": partial(attention, "int4", "int4", 32),
    "compressed_bert": quantized_bert,
    "compressed_mlp": gated_mlp,
}
MODELS = {
    f"{name}{ending}": partial(form, real=real)
    for name, form in FORMS.items()
    for real, ending in (("float", ""), ("float16", "_half"))
}
MODELS |= {"compressed_groups": grouped, "compressed_floats": with_floats, "compressed_repeated": repeated}

if __name__ == "__main__":
    main(MODELS)
