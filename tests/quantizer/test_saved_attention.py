"""Attention of com.microsoft becomes products of integers: GroupQueryAttention, and Attention with merged weights."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import Array, assert_same, diagonals, make_session, stock_session, with_arrays

import ort_dynq
from ort_dynq import DynqError

BATCH, TOKENS, HEADS, SHARED, SIZE = 2, 40, 8, 4, 32
WIDTH, NARROW = HEADS * SIZE, SHARED * SIZE
LENGTHS = np.array([TOKENS, 23], np.int32)


def model_of(body: str, inputs: str = "", outputs: str = "", opset: int = 17, **weights: Array) -> onnx.ModelProto:
    """A model of x, float32 [B, S, WIDTH]; its weights have numbers around 0."""
    model = onnx.parser.parse_model(
        f"""<ir_version: {8 if opset < 21 else 10}, opset_import: ["": {opset}, "com.microsoft": 1]>
        g (float[B, S, {WIDTH}] x{inputs}) => (float[B, S, {WIDTH}] y{outputs}) {{ {body} }}"""
    )
    return with_arrays(model, weights)


def random(*shape: int, size: float = 0.08) -> Array:
    return np.random.default_rng(sum(shape)).normal(0, size, shape).astype(np.float32)


def count(model: onnx.ModelProto, *types: str) -> int:
    return sum(node.op_type in types for node in model.graph.node)


def decibels(result: Array, expected: Array) -> float:
    """Returns the signal-to-noise ratio."""
    noise = ((result.astype(np.float64) - expected) ** 2).sum()
    return float(10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise))


def compare(model: onnx.ModelProto, given: dict[str, Array]) -> None:
    """Compares a quantized model with its functions, bit for bit, and with ONNX Runtime's kernels of floats.

    8-bit codes of weights, activations and attention have 30 dB.
    """
    result = ort_dynq.quantize(model)
    quantized = result.to_proto()
    assert count(quantized, "QuantizedAttention") == 1
    assert count(quantized, "Attention", "MultiHeadAttention", "GroupQueryAttention", "MatMul") == 0
    assert result.report.products[1] == 0
    found = make_session(quantized, "native").run(None, given)
    for mine, body, floats in zip(
        found, stock_session(quantized).run(None, given), stock_session(model).run(None, given), strict=True
    ):
        assert_same(mine, body)
        assert decibels(mine, floats) > 30


GROUPS = {
    "causal": "",
    "scale": ", scale = 0.5",
    "window": ", local_window_size = 5",
    "soft cap": ", softcap = 2.0",
    "rotated": ", do_rotary = 1",
    "rotated half": ", do_rotary = 1",
    "rotated pairs": ", do_rotary = 1, rotary_interleaved = 1",
}


@pytest.mark.parametrize(("form", "is_packed"), diagonals(1, GROUPS, [False, True]))
def test_group_query_attention(form: str, is_packed: bool) -> None:
    """A prompt; its second sample has padding at its end. Rotated keys and the values are outputs, too."""
    operands, rotary = ("a, , " if is_packed else "q, k, v"), ", cos, sin" if "rotated" in form else ""
    weights = {"w_a": random(WIDTH, WIDTH + 2 * NARROW)} if is_packed else {}
    for name in "" if is_packed else "qkv":
        weights[f"w_{name}"] = random(WIDTH, WIDTH if name == "q" else NARROW)
    products = " ".join(f"{name[2:]} = MatMul(x, {name})" for name in weights)
    present = f", float[B, {SHARED}, S, {SIZE}] keys, float[B, {SHARED}, S, {SIZE}] values"
    angles = np.outer(np.arange(64), 10.0 ** -np.linspace(0, 3, SIZE // (4 if form == "rotated half" else 2)))
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)} if rotary else {}
    model = model_of(
        f"{products} y, keys, values = com.microsoft.GroupQueryAttention<num_heads = {HEADS}, kv_num_heads = {SHARED}"
        f"{GROUPS[form]}>({operands}, , , last, total{rotary})",
        ", int32[B] last, int32 total",
        present,
        **weights,
        **tables,
    )
    x = random(BATCH, TOKENS, WIDTH, size=1)
    compare(model, {"x": x, "last": LENGTHS - 1, "total": np.array(TOKENS, np.int32)})


def test_positions_and_bias() -> None:
    """In a prompt the operator uses the first of the positions alone, as ONNX Runtime's kernel does."""
    model = model_of(
        "q = MatMul(x, w_q) k = MatMul(x, w_k) v = MatMul(x, w_v) y = com.microsoft.GroupQueryAttention<"
        f"num_heads = {HEADS}, kv_num_heads = {SHARED}, do_rotary = 1>"
        "(q, k, v, , , last, total, cos, sin, positions, bias)",
        ", int32[B] last, int32 total, int64[B, S] positions, float[1, 1, S, S] bias",
        w_q=random(WIDTH, WIDTH),
        w_k=random(WIDTH, NARROW),
        w_v=random(WIDTH, NARROW),
        cos=random(64, SIZE // 2, size=1),
        sin=random(64, SIZE // 2, size=1),
    )
    given = {
        "x": random(BATCH, TOKENS, WIDTH, size=1),
        "last": LENGTHS - 1,
        "total": np.array(TOKENS, np.int32),
        "positions": np.arange(TOKENS) + np.array([[3], [5]]),
        "bias": random(1, 1, TOKENS, TOKENS, size=2),
    }
    compare(model, given)


def test_float16() -> None:
    model = model_of(
        "h = Cast<to = 10>(x) q = MatMul(h, w_q) k = MatMul(h, w_k) z = com.microsoft.GroupQueryAttention<"
        f"num_heads = {HEADS}, kv_num_heads = {SHARED}>(q, k, k, , , last, total) y = Cast<to = 1>(z)",
        ", int32[B] last, int32 total",
        w_q=random(WIDTH, WIDTH).astype(np.float16),
        w_k=random(WIDTH, NARROW).astype(np.float16),
    )
    quantized = ort_dynq.quantize(model).to_proto()
    assert count(quantized, "QuantizedAttention") == 1
    x = random(BATCH, TOKENS, WIDTH, size=1)
    given = {"x": x, "last": LENGTHS - 1, "total": np.array(TOKENS, np.int32)}
    assert (
        decibels(make_session(quantized, "native").run(None, given)[0], stock_session(model).run(None, given)[0]) > 30
    )


PAST_GROUPS = {**GROUPS, "positions": ", do_rotary = 1", "bias": ""}
RUNS = {  # batch, queries, past keys, room for keys, all keys of each sample: whether integers are taken
    "prompt": (2, 64, 0, (64, 41), True),
    "next prompt": (1, 64, 7, (71,), True),
    "few": (1, 63, 7, (70,), False),
    "token": (2, 1, 30, (31, 31), False),
    "tokens of shorter samples": (2, 1, 30, (31, 23), False),
    "prompt with room for keys": (1, 64, 100, (64,), False),
}


@pytest.mark.parametrize("form", PAST_GROUPS)
def test_past_keys_of_group_query_attention(form: str) -> None:
    """Many queries have products of integers, if past and new keys are all; others have the operator and its bits.

    Keys and values are the operator's, also where they are rotated.
    """
    is_packed, has_positions = form == "rotated half", form == "positions"
    is_rotated = "do_rotary" in PAST_GROUPS[form]
    weights = {"w_a": random(WIDTH, WIDTH + 2 * NARROW)} if is_packed else {}
    for name in "" if is_packed else "qkv":
        weights[f"w_{name}"] = random(WIDTH, WIDTH if name == "q" else NARROW)
    products = " ".join(f"{name[2:]} = MatMul(x, {name})" for name in weights)
    angles = np.outer(np.arange(128), 10.0 ** -np.linspace(0, 3, SIZE // (4 if form == "rotated half" else 2)))
    tables = {"cos": np.cos(angles).astype(np.float32), "sin": np.sin(angles).astype(np.float32)} if is_rotated else {}
    more = ["cos" if is_rotated else "", "sin" if is_rotated else "", "positions" if has_positions else ""]
    cache = f"float[B, {SHARED}, P, {SIZE}]"
    model = model_of(
        f"{products} y, keys, values = com.microsoft.GroupQueryAttention<num_heads = {HEADS}, kv_num_heads = {SHARED}"
        f"{PAST_GROUPS[form]}>({'a, , ' if is_packed else 'q, k, v'}, past_k, past_v, last, total, {', '.join(more)}"
        f"{', bias' if form == 'bias' else ''})",
        f", int32[B] last, int32 total, {cache} past_k, {cache} past_v"
        + (", int64[B, S] positions" if has_positions else "")
        + (", float[1, 1, S, T] bias" if form == "bias" else ""),
        f", float[B, {SHARED}, T, {SIZE}] keys, float[B, {SHARED}, T, {SIZE}] values",
        **weights,
        **tables,
    )
    quantized = ort_dynq.quantize(model).to_proto()
    sessions = make_session(quantized, "native"), stock_session(quantized), stock_session(model)
    floats = make_session(ort_dynq.quantize(model, attention="float").to_proto(), "native")
    for run, (batch, queries, past, totals, is_integer) in RUNS.items():
        given = {
            "x": random(batch, queries, WIDTH, size=1),
            "last": np.array(totals, np.int32) - 1,
            "total": np.array(max(totals), np.int32),
            "past_k": random(batch, SHARED, past, SIZE, size=1),
            "past_v": random(batch, SHARED, past + 1, SIZE, size=1)[:, :, 1:],
            "positions": np.arange(queries) + np.array(totals)[:, None] - queries + 3,
            "bias": random(1, 1, queries, max(totals), size=2),
        }
        given = {each.name: given[each.name] for each in model.graph.input}
        result, body, expected, operator = (session.run(None, given) for session in (*sessions, floats))
        takes_integers = is_integer and not (has_positions and past)
        for a, b, c, d in zip(result, body, expected, operator, strict=True):
            if takes_integers or a is not result[0]:
                assert_same(a, b)
            if a is not result[0] or not takes_integers:
                assert_same(a, d)
            assert decibels(a, c) > 30, run
        assert takes_integers == (not np.array_equal(result[0], operator[0])), run


def test_cache_in_place() -> None:
    """Past and present keys share their memory, as in onnxruntime-genai: the operator finds this also in a branch."""
    cache = f"float[B, {SHARED}, P, {SIZE}]"
    model = model_of(
        "q = MatMul(x, w_q) k = MatMul(x, w_k) y, keys, values = com.microsoft.GroupQueryAttention<"
        f"num_heads = {HEADS}, kv_num_heads = {SHARED}>(q, k, k, past_k, past_v, last, total)",
        f", int32[B] last, int32 total, {cache} past_k, {cache} past_v",
        f", {cache} keys, {cache} values",
        w_q=random(WIDTH, WIDTH),
        w_k=random(WIDTH, NARROW),
    )
    runs = []
    for attention in ("int8", "float"):
        session = make_session(ort_dynq.quantize(model, attention=attention).to_proto(), "native")
        caches = [ort.OrtValue.ortvalue_from_numpy(np.zeros((1, SHARED, 128, SIZE), np.float32)) for _ in range(2)]
        total, found = 0, []
        for queries in (60, 1, 50, 1):
            total += queries
            binding = session.io_binding()
            binding.bind_cpu_input("x", random(1, queries, WIDTH, size=1))
            binding.bind_cpu_input("last", np.array([total - 1], np.int32))
            binding.bind_cpu_input("total", np.array(total, np.int32))
            binding.bind_output("y")
            for name, given in zip(("k", "v"), caches, strict=True):
                binding.bind_ortvalue_input(f"past_{name}", given)
                binding.bind_ortvalue_output("keys" if name == "k" else "values", given)
            session.run_with_iobinding(binding)
            found.append(binding.copy_outputs_to_cpu()[0])
        runs.append([*found, *(each.numpy().copy() for each in caches)])
    for a, b in zip(*runs, strict=True):
        assert_same(a, b)


@pytest.mark.parametrize("lengths", [(77, 77), (77, 72)])
def test_samples_with_past_keys_of_other_lengths(lengths: tuple[int, int]) -> None:
    """New keys follow the past ones of their sample: the operator takes these runs, and ONNX Runtime's refuses them."""
    cache = f"float[B, {SHARED}, P, {SIZE}]"
    model = model_of(
        "q = MatMul(x, w_q) k = MatMul(x, w_k) y, keys, values = com.microsoft.GroupQueryAttention<"
        f"num_heads = {HEADS}, kv_num_heads = {SHARED}>(q, k, k, past_k, past_v, last, total)",
        f", int32[B] last, int32 total, {cache} past_k, {cache} past_v",
        f", float[B, {SHARED}, T, {SIZE}] keys, float[B, {SHARED}, T, {SIZE}] values",
        w_q=random(WIDTH, WIDTH),
        w_k=random(WIDTH, NARROW),
    )
    session = make_session(ort_dynq.quantize(model).to_proto(), "native")
    given = {
        "x": random(2, 70, WIDTH, size=1),
        "last": np.array(lengths, np.int32) - 1,
        "total": np.array(77, np.int32),
        **{name: random(2, SHARED, 7, SIZE, size=1) for name in ("past_k", "past_v")},
    }
    if len({*lengths}) == 1:
        assert session.run(["keys"], given)[0].shape == (2, SHARED, 77, SIZE)
        return
    with pytest.raises(Exception, match="batch_size must be 1"):
        session.run(None, given)


@pytest.mark.parametrize(
    ("attribute", "what"),
    [("smooth_softmax = 1", "softmax with a sink"), ("local_window_size = 0", "window of no keys")],
)
def test_past_keys_stay(attribute: str, what: str) -> None:
    past = f", int32[B] last, int32 total, float[B, {SHARED}, P, {SIZE}] past"
    model = model_of(
        "q = MatMul(x, w_q) k = MatMul(x, w_k) y, keys, values = com.microsoft.GroupQueryAttention<"
        f"num_heads = {HEADS}, kv_num_heads = {SHARED}, {attribute}>(q, k, k, past, past, last, total)",
        past,
        f", float[B, {SHARED}, T, {SIZE}] keys",
        w_q=random(WIDTH, WIDTH),
        w_k=random(WIDTH, NARROW),
    )
    report = ort_dynq.quantize(model).report
    (reason,) = (each.reason for each in report.unconverted if each.op_type == "GroupQueryAttention")
    assert reason == f"attention stays in float, for its {what}"


@pytest.mark.parametrize("mask", ["", "mask"])
def test_bias_of_query_key_and_value(mask: str) -> None:
    """ONNX Runtime's optimizer moves the biases of the products into MultiHeadAttention."""
    model = model_of(
        "q = MatMul(x, w_q) k = MatMul(x, w_k) v = MatMul(x, w_v) "
        f"y = com.microsoft.MultiHeadAttention<num_heads = {HEADS}>(q, k, v, b, {mask})",
        ", int32[B, S] mask" if mask else "",
        w_q=random(WIDTH, WIDTH),
        w_k=random(WIDTH, WIDTH),
        w_v=random(WIDTH, WIDTH),
        b=random(3 * WIDTH, size=1),
    )
    given = {"x": random(BATCH, TOKENS, WIDTH, size=1)}
    assert count(ort_dynq.quantize(model).to_proto(), "Add") == 0  # the products have them
    compare(model, {**given, "mask": (np.arange(TOKENS) < LENGTHS[:, None]).astype(np.int32)} if mask else given)


@pytest.mark.parametrize("keys", ["x", "memory"])
def test_causal_masks_of_multi_head_attention(keys: str) -> None:
    """ONNX Runtime's operator hides no key from the last query, also if there are more keys than queries."""
    model = model_of(
        f"q = MatMul(x, w_q) k = MatMul({keys}, w_k) v = MatMul({keys}, w_v) "
        f"y = com.microsoft.MultiHeadAttention<num_heads = {HEADS}, unidirectional = 1>(q, k, v)",
        f", float[B, T, {WIDTH}] memory",
        w_q=random(WIDTH, WIDTH),
        w_k=random(WIDTH, WIDTH),
        w_v=random(WIDTH, WIDTH),
    )
    x, memory = (random(BATCH, tokens, WIDTH, size=1) for tokens in (TOKENS, 2 * TOKENS))
    if keys == "x":
        compare(model, {"x": x, "memory": memory})
        return
    result = ort_dynq.quantize(model)
    (reason,) = (each.reason for each in result.report.unconverted if each.op_type == "MultiHeadAttention")
    assert "causal mask for other numbers of queries and keys" in reason
    found, floats = (
        session.run(None, {"x": x, "memory": memory})[0]
        for session in (make_session(result.to_proto(), "native"), stock_session(model))
    )
    assert decibels(found[:, -1], floats[:, -1]) > 30


@pytest.mark.parametrize(("keys", "is_taken"), [("x", True), ("memory", False)])
@pytest.mark.parametrize("operator", ["Attention", "com.microsoft.MultiHeadAttention"])
def test_causal_masks_with_past_keys(operator: str, keys: str, is_taken: bool) -> None:
    """The first query sees the past keys and the first of the new ones, wherever the last query is."""
    cache = f"float[B, {HEADS}, P, {SIZE}]"
    attributes = f"q_num_heads = {HEADS}, kv_num_heads = {HEADS}, is_causal = 1, scale = 0.2"
    if "Multi" in operator:
        attributes = f"num_heads = {HEADS}, unidirectional = 1"
    absent = ", , " if "Multi" in operator else ""
    model = model_of(
        f"q = MatMul(x, w_q) k = MatMul({keys}, w_k) "
        f"y, pk, pv = {operator}<{attributes}>(q, k, k, {absent}, past_k, past_v)",
        f", float[B, T, {WIDTH}] memory, {cache} past_k, {cache} past_v",
        f", float[B, {HEADS}, A, {SIZE}] pk, float[B, {HEADS}, A, {SIZE}] pv",
        w_q=random(WIDTH, WIDTH),
        w_k=random(WIDTH, WIDTH),
        opset=23,
    )
    quantized = ort_dynq.quantize(model).to_proto()
    assert count(quantized, "If") == is_taken
    given = {
        "x": random(1, 64, WIDTH, size=1),
        "memory": random(1, 70, WIDTH, size=1),
        **{name: random(1, HEADS, 5, SIZE, size=1) for name in ("past_k", "past_v")},
    }
    found, floats = (s.run(None, given)[0] for s in (make_session(quantized, "native"), stock_session(model)))
    assert decibels(found, floats) > 30


MASKS = {
    "none": ("", None),
    "causal": (", unidirectional = 1", None),
    "scale": (", scale = 0.5", None),
    "lengths": ("int32[B]", LENGTHS),
    "keys": ("int32[B, S]", (np.arange(TOKENS) < LENGTHS[:, None]).astype(np.int32)),
    "rows": ("int32[B, S, S]", np.broadcast_to(np.tril(np.ones((TOKENS, TOKENS), np.int32)), (BATCH, TOKENS, TOKENS))),
    "sizes": (f", qkv_hidden_sizes = [{NARROW}, {NARROW}, {WIDTH}]", None),
}


@pytest.mark.parametrize("form", MASKS)
def test_merged_weights(form: str) -> None:
    """ONNX Runtime's optimizer merges the weights of query, key and value."""
    given, mask = MASKS[form]
    columns = 2 * NARROW + WIDTH if form == "sizes" else 3 * WIDTH
    attributes, operands = (given, "") if mask is None else (", mask_filter_value = -3.0", ", mask")
    model = model_of(
        f"y = com.microsoft.Attention<num_heads = {HEADS}{attributes}>(x, w, b{operands})",
        "" if mask is None else f", {given} mask",
        w=random(WIDTH, columns),
        b=random(columns),
    )
    feeds = {"x": random(BATCH, TOKENS, WIDTH, size=1)}
    compare(model, feeds if mask is None else {**feeds, "mask": mask})


def test_lengths_of_the_embedding() -> None:
    """ONNX Runtime's optimizer makes one operator of BERT's embeddings, which counts the tokens of each sample."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g (int32[B, S] ids, int32[B, S] mask) => (float[B, S, {WIDTH}] y) {{
            x, lengths = com.microsoft.EmbedLayerNormalization(ids, , words, positions, , ones, noughts, mask)
            y = com.microsoft.Attention<num_heads = {HEADS}>(x, w, b, lengths)
        }}"""
    )
    weights = {
        "words": random(99, WIDTH, size=1),
        "positions": random(64, WIDTH, size=1),
        "b": random(3 * WIDTH),
        "ones": random(WIDTH) * 0 + 1,
        "noughts": random(WIDTH) * 0,
        "w": random(WIDTH, 3 * WIDTH),
    }
    with_arrays(model, weights)
    ids = np.random.default_rng(0).integers(0, 99, (BATCH, TOKENS)).astype(np.int32)
    compare(model, {"ids": ids, "mask": (np.arange(TOKENS) < LENGTHS[:, None]).astype(np.int32)})


def test_attention_in_float_has_integer_products() -> None:
    model = model_of(
        f"y = com.microsoft.Attention<num_heads = {HEADS}>(x, w, b)", w=random(WIDTH, 3 * WIDTH), b=random(3 * WIDTH)
    )
    quantized = ort_dynq.quantize(model, attention="float").to_proto()
    assert count(quantized, "QuantizedMatMul") == 3
    assert count(quantized, "MultiHeadAttention") == 1
    given = {"x": random(BATCH, TOKENS, WIDTH, size=1)}
    assert (
        decibels(make_session(quantized, "native").run(None, given)[0], stock_session(model).run(None, given)[0]) > 30
    )


def test_min_snr_without_a_layer_that_can_be_measured() -> None:
    """The float model does not have the values of the three products."""
    model = model_of(
        f"y = com.microsoft.Attention<num_heads = {HEADS}>(x, w, b)", w=random(WIDTH, 3 * WIDTH), b=random(3 * WIDTH)
    )
    with pytest.raises(DynqError, match="only if every layer stays in float"):
        ort_dynq.quantize(model, min_snr=100, data={"x": random(BATCH, TOKENS, WIDTH, size=1)})


@pytest.mark.parametrize(
    ("operands", "attributes", "reason"),
    [
        ("x, w, b, , past", "", "past state"),
        ("x, w, b, mask", "", "mask"),
        ("x, w, b", ", do_rotary = 1", "rotates"),
        ("x, w", ", qkv_hidden_sizes = [256, 255, 257]", "num_heads heads of one size"),
    ],
)
def test_merged_weights_that_stay(operands: str, attributes: str, reason: str) -> None:
    model = model_of(
        f"z = com.microsoft.Attention<num_heads = {HEADS}{attributes}>({operands}) y = MatMul(z, o)",
        f", float[2, B, {HEADS}, P, {SIZE}] past, int32[M] mask",
        w=random(WIDTH, 3 * WIDTH),
        b=random(3 * WIDTH),
        o=random(WIDTH, WIDTH),
    )
    report = ort_dynq.quantize(model).report
    (found,) = (each.reason for each in report.unconverted if each.op_type == "Attention")
    assert reason in found
