"""Decoders with one table for embedding and head."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import with_arrays
from rewriting import F

from ort_dynq.rewriter import Result

WORDS, WIDTH = 1024, 128


def branch(prefix: str, *, past: bool, half: bool, dequantizes_first: bool, turns_first: bool = False) -> str:
    """The nodes of a decoder: an embedding, a layer of quantize_dynamic, and the head; with the keys before or not.

    quantize_dynamic transposes the codes (`turns_first`).
    """
    rows = "{0}c = Gather(table, ids) {0}e = DequantizeLinear({0}c, scale, zero)"
    if dequantizes_first:
        rows = "{0}w0 = DequantizeLinear(table, scale, zero) {0}e = Gather({0}w0, ids)"
    text = rows + (" {0}f = Cast<to = 1>({0}e)" if half else " {0}f = Identity({0}e)")
    text += " {0}v = Concat<axis = 1>(past, {0}f)" if past else " {0}v = Identity({0}f)"
    text += """ {0}q, {0}s, {0}z = DynamicQuantizeLinear({0}v) {0}i = MatMulInteger({0}q, layer, {0}z, layer_zero)
        {0}j = Cast<to = 1>({0}i) {0}m = Mul({0}s, layer_scale) {0}g = Mul({0}j, {0}m) {0}r = Relu({0}g)
        {0}h = Add({0}v, {0}r) """
    if turns_first:
        text += "{0}d = Transpose<perm = [1, 0]>(table) {0}t = DequantizeLinear({0}d, scale, zero)"
    else:
        text += "{0}d = DequantizeLinear(table, scale, zero) {0}t = Transpose<perm = [1, 0]>({0}d)"
    text += " {0}u = Cast<to = 1>({0}t)" if half else " {0}u = Identity({0}t)"
    return (text + " {0}logits = MatMul({0}h, {0}u) {0}present = Identity({0}v)").format(prefix)


def decoder(
    dtype: type,
    *,
    half: bool = False,
    merged: bool = True,
    dequantizes_first: bool = False,
    turns_first: bool = False,
) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    given = {"half": half, "dequantizes_first": dequantizes_first, "turns_first": turns_first}
    outputs = f"(float[B, L, {WORDS}] {{0}}logits, float[B, L, {WIDTH}] {{0}}present)"
    inputs = f"int64[B, T] ids, float[B, P, {WIDTH}] past"
    body = branch("", past=True, **given)
    if merged:
        inputs += ", bool use"
        branches = [branch(prefix, past=prefix == "a_", **given) for prefix in ("a_", "b_")]
        body = (
            f"logits, present = If (use) <then_branch = a () => {outputs.format('a_')} {{ {branches[0]} }},"
            f" else_branch = b () => {outputs.format('b_')} {{ {branches[1]} }}>"
        )
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 19]> g ({inputs}) => {outputs.format("")} {{ {body} }}'
    )
    ends = np.iinfo(dtype)
    arrays = {
        "table": rng.integers(ends.min, ends.max + 1, (WORDS, WIDTH)).astype(dtype),
        "scale": np.array(0.01, np.float16 if half else F),
        "zero": np.array(3 if dtype == np.int8 else 131, dtype),
        "layer": rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8),
        "layer_scale": np.array(0.002, F),
        "layer_zero": np.array(1, np.int8),
    }
    return with_arrays(model, arrays)


def tables(result: Result) -> list[str]:
    """Returns the initializers as large as the table."""
    return [each.name for each in result.to_proto().graph.initializer if np.prod(each.dims) >= WORDS * WIDTH]


def data(*, use: bool | None, tokens: int = 5) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    found = {"ids": rng.integers(-WORDS, WORDS, (1, tokens)), "past": rng.normal(0, 0.5, (1, 7, WIDTH)).astype(F)}
    return found if use is None else found | {"use": np.array(use)}
