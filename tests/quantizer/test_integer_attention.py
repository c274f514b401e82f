"""Attention in a quantized model: products of integers where it pays, and how far the result is from float64."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, diagonals, make_session, stock_session, with_arrays

import ort_dynq
from ort_dynq import DynqError

HEADS, SIZE = 4, 16
WIDTH = HEADS * SIZE


def model_of(mask: str = "", *, cached: bool = False, rows: str = "1") -> onnx.ModelProto:
    """A layer of attention with projections, float32 [B, S, WIDTH], and a mask of keys, [B, 1, rows, S]."""
    rng = np.random.default_rng(0)
    split = " ".join(
        f"{name}0 = MatMul(x, w_{name}) {name}1 = Reshape({name}0, split) {name}4 = Transpose<perm = {perm}>({name}1)"
        for name, perm in (
            ("q", "[0, 2, 1, 3]"),
            ("k", f"[0, 2, {'1, 3' if cached else '3, 1'}]"),
            ("v", "[0, 2, 1, 3]"),
        )
    )
    values = "v5 = Concat<axis = 2>(past, v4) k6 = Concat<axis = 2>(past, k4) k5 = Transpose<perm = [0, 1, 3, 2]>(k6)"
    values = values if cached else ""
    k, v = ("k5", "v5") if cached else ("k4", "v4")
    scores = "d" if not mask else "m"
    past = f", float[B, {HEADS}, P, {SIZE}] past" if cached else ""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[B, S, {WIDTH}] x, bool[B, 1, {rows}, S] keep{past}) => (float[B, S, {WIDTH}] y)
        <int64[4] split = {{0, 0, {HEADS}, {SIZE}}}, int64[3] rows = {{0, 0, {WIDTH}}}, float root = {{{SIZE**0.5}}},
         float lowest = {{-3.4e38}}, float one = {{1}}>
        {{ {split} {values} s = MatMul(q4, {k}) d = Div(s, root) {mask} p = Softmax<axis = -1>({scores})
           o = MatMul(p, {v}) t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, rows) }}"""
    )
    for name in "qkv":
        weights = rng.normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, f"w_{name}"))
    return model


MASK = "m = Where(keep, d, lowest)"


def feeds(batch: int = 2, tokens: int = 40) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    keep = rng.random((batch, 1, 1, tokens)) < 0.7
    keep[..., 0] = True
    return {"x": rng.normal(0, 1, (batch, tokens, WIDTH)).astype(np.float32), "keep": keep}


MASKS = {
    "boolean": MASK,
    "additive": "f = Cast<to = 1>(keep) g = Sub(one, f) a = Mul(g, lowest) m = Add(d, a)",
    "infinite": "f = Cast<to = 1>(keep) l = Log(f) m = Add(d, l)",
}


def count(model: onnx.ModelProto, operator: str) -> int:
    return sum(node.op_type == operator for node in model.graph.node)


@pytest.mark.parametrize("mask", ["", MASK])
def test_products_of_integers(mask: str) -> None:
    """The error of 8-bit codes: the result is at least 35 dB from the same model with float attention."""
    model = model_of(mask)
    quantized = ort_dynq.quantize(model).to_proto()
    floats = ort_dynq.quantize(model, attention="float").to_proto()
    assert count(quantized, "QuantizedAttention") == 1
    assert count(quantized, "Softmax") == 0
    assert count(quantized, "Expand") == 0  # the operator broadcasts a mask of keys
    assert count(floats, "QuantizedAttention") == 0
    (result,) = make_session(quantized, "native").run(None, feeds())
    assert_same(result, stock_session(quantized).run(None, feeds())[0])
    (expected,) = make_session(floats, "native").run(None, feeds())
    noise = ((result - expected).astype(np.float64) ** 2).sum()
    assert 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise) > 35


@pytest.mark.parametrize("lowest", [float(np.finfo(np.float32).min), -3e38, -1e30])
@pytest.mark.parametrize("mask", ["boolean", "additive"])
def test_rows_without_keys_are_finite(mask: str, lowest: float) -> None:
    """A finite number that hides all keys of a row leaves the mean of the values, as in float."""
    model = model_of(MASKS[mask])
    number = next(each for each in model.graph.initializer if each.name == "lowest")
    number.float_data[:] = [lowest]
    quantized, given = ort_dynq.quantize(model).to_proto(), feeds()
    assert count(quantized, "QuantizedAttention") == 1
    given["keep"][1] = False
    (result,) = make_session(quantized, "native").run(None, given)
    assert_same(result, stock_session(quantized).run(None, given)[0])
    (expected,) = stock_session(model).run(None, given)
    noise = ((result - expected).astype(np.float64) ** 2).sum((1, 2))
    assert (10 * np.log10((expected.astype(np.float64) ** 2).sum((1, 2)) / noise) > 30).all()


SPLIT = "q0 = MatMul(x, w_q) q4 = Reshape(q0, split) k0 = MatMul(x, w_k) v0 = MatMul(x, w_v) v4 = Reshape(v0, split)"
HEADS_FIRST = "qt = Transpose<perm = [0, 2, 1, 3]>(q4) vh = Transpose<perm = [0, 2, 1, 3]>(v4)"
KEYS = "k4 = Reshape(k0, split) kt = Transpose<perm = [0, 2, 1, 3]>(k4) kh = Mul(kt, ramp)"
PRODUCT = "kd = Transpose<perm = [0, 1, 3, 2]>(kh) s = MatMul(qh, kd) d = Div(s, root)"
END = "o = MatMul(p, vh) t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, rows)"
FORMS = {
    "heads first": (
        f"{SPLIT} {HEADS_FIRST} {KEYS} qh = Mul(qt, ramp) {PRODUCT} p = Softmax(d) {END}",
        {"query_layout": 1, "key_layout": 1, "value_layout": 0, "dst_layout": 0, "kv_num_heads": 0},
    ),
    "heads of keys repeated": (
        f"{SPLIT.replace('v4 = Reshape(v0, split)', 'v2 = Reshape(v0, half)')} k4 = Reshape(k0, half) "
        "kn = Transpose<perm = [0, 2, 1, 3]>(k4) ku = Unsqueeze(kn, two) ke = Expand(ku, repeats) "
        "kh = Reshape(ke, joined) vn = Transpose<perm = [0, 2, 1, 3]>(v2) vu = Unsqueeze(vn, two) "
        f"ve = Expand(vu, repeats) vh = Reshape(ve, joined) qh = Transpose<perm = [0, 2, 1, 3]>(q4) {PRODUCT} "
        f"p = Softmax(d) {END}",
        {"kv_num_heads": 2, "key_layout": 0, "value_layout": 0},
    ),
    "heads of rotated keys repeated": (
        f"{SPLIT.replace('v4 = Reshape(v0, split)', 'v2 = Reshape(v0, half)')} k4 = Reshape(k0, half) "
        "kn = Transpose<perm = [0, 2, 1, 3]>(k4) kr = Mul(kn, ramp) ku = Unsqueeze(kr, two) ke = Expand(ku, repeats) "
        "kh = Reshape(ke, joined) vn = Transpose<perm = [0, 2, 1, 3]>(v2) vu = Unsqueeze(vn, two) "
        "ve = Expand(vu, repeats) vh = Reshape(ve, joined) qt = Transpose<perm = [0, 2, 1, 3]>(q4) qh = Mul(qt, ramp) "
        f"{PRODUCT} m = Where(keep, d, least) p = Softmax(m) {END}",
        {"kv_num_heads": 2, "query_layout": 1, "key_layout": 1, "value_layout": 0, "dst_layout": 0},
    ),
    "soft cap": (
        f"{SPLIT} {HEADS_FIRST} {KEYS} qh = Identity(qt) {PRODUCT} a = Div(d, cap) h = Tanh(a) m = Mul(h, cap) "
        f"p = Softmax(m) {END}",
        {},
    ),
    "a mask of a small number": (
        f"{SPLIT} {HEADS_FIRST} {KEYS} qh = Identity(qt) {PRODUCT} m = Where(keep, d, least) p = Softmax(m) {END}",
        {},
    ),
    "a safe softmax": (
        f"{SPLIT} {HEADS_FIRST} {KEYS} qh = Identity(qt) {PRODUCT} m = Where(keep, d, ninf) r = Softmax(m) "
        f"i = IsNaN(r) p = Where(i, nought, r) {END}",
        {"zero_rows": 1},
    ),
    "products of the optimizer": (
        f"{SPLIT} k4 = Reshape(k0, split) "
        "qh = Transpose<perm = [0, 2, 1, 3]>(q4) kh = Transpose<perm = [0, 2, 1, 3]>(k4) "
        "vh = Transpose<perm = [0, 2, 1, 3]>(v4) d = com.microsoft.FusedMatMul<transB = 1, alpha = 0.25>(qh, kh) "
        "p = Softmax(d) o = com.microsoft.FusedMatMul(p, vh) t = Transpose<perm = [0, 2, 1, 3]>(o) "
        "y = Reshape(t, rows)",
        {"key_layout": 0},
    ),
    "value first": (
        f"{SPLIT} {KEYS} qh = Transpose<perm = [0, 2, 1, 3]>(q4) {PRODUCT} p = Softmax(d) "
        "vd = Transpose<perm = [0, 2, 3, 1]>(v4) pt = Transpose<perm = [0, 1, 3, 2]>(p) o = MatMul(vd, pt) "
        "t = Transpose<perm = [0, 3, 1, 2]>(o) y = Reshape(t, rows)",
        {"dst_layout": 0, "value_layout": 0},
    ),
}


@pytest.mark.parametrize(("form", "is_half"), diagonals(1, FORMS, [False, True]))
def test_forms_of_the_operator(form: str, is_half: bool) -> None:
    """The operator takes the values as the model has them. The tolerance is that of 8-bit codes: 30 dB."""
    body, attributes = FORMS[form]
    size = WIDTH // 2 if "repeated" in form else WIDTH
    type_ = "float16" if is_half else "float"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g ({type_}[B, S, {WIDTH}] x, bool[B, 1, 1, S] keep) => ({type_}[B, S, {WIDTH}] y)
        <int64[4] split = {{0, 0, {HEADS}, {SIZE}}}, int64[3] rows = {{0, 0, {WIDTH}}}, int64[1] two = {{2}},
         int64[4] half = {{0, 0, 2, {SIZE}}}, int64[5] repeats = {{1, 1, 2, 1, 1}},
         int64[4] joined = {{0, {HEADS}, -1, {SIZE}}}> {{ {body} }}"""
    )
    rng, dtype = np.random.default_rng(0), np.float16 if is_half else np.float32
    for name in "qkv":
        weights = rng.normal(0, 0.3, (WIDTH, WIDTH if name == "q" else size)).astype(dtype)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, f"w_{name}"))
    numbers = {"root": 4, "cap": 3, "least": -2, "ninf": -np.inf, "nought": 0, "ramp": np.linspace(0.5, 1.5, SIZE)}
    for name, elements in numbers.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(elements, dtype), name))
    given = feeds()
    given["x"] = given["x"].astype(dtype)
    given["keep"][1] = False  # a sample without keys
    given = {each.name: given[each.name] for each in model.graph.input}
    quantized = ort_dynq.quantize(model).to_proto()
    (node,) = (each for each in quantized.graph.node if each.op_type == "QuantizedAttention")
    found = {each.name: each.i for each in node.attribute}
    assert {name: found[name] for name in attributes} == attributes
    (result,) = make_session(quantized, "native").run(None, given)
    if not is_half:  # ONNX Runtime rounds float16 in other places where the operators are functions
        assert_same(result, stock_session(quantized).run(None, given)[0])
    (expected,) = stock_session(model).run(None, given)
    noise = ((result.astype(np.float64) - expected) ** 2).sum()
    assert 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise) > 30


HEADS_OF_3D = f"q_num_heads = {HEADS}, kv_num_heads = {HEADS}"
OPERATORS = {
    "rows": f"y = Attention<{HEADS_OF_3D}>(q, k, v)",
    "causal": f"y = Attention<{HEADS_OF_3D}, is_causal = 1, scale = 0.5>(q, k, v)",
    "boolean mask": f"y = Attention<{HEADS_OF_3D}>(q, k, v, keep)",
    "soft cap and bias": f"y = Attention<{HEADS_OF_3D}, softcap = 2.0>(q, k, v, bias)",
    "shared heads": f"y = Attention<q_num_heads = {HEADS}, kv_num_heads = 2>(q, k2, v2, keep)",
    "heads first": "qs = Reshape(q, split) ks = Reshape(k, split) vs = Reshape(v, split) "
    "qh = Transpose<perm = [0, 2, 1, 3]>(qs) kh = Transpose<perm = [0, 2, 1, 3]>(ks) "
    "vh = Transpose<perm = [0, 2, 1, 3]>(vs) o = Attention(qh, kh, vh, keep) t = Transpose<perm = [0, 2, 1, 3]>(o) "
    "y = Reshape(t, rows)",
    "MultiHeadAttention": f"y = com.microsoft.MultiHeadAttention<num_heads = {HEADS}>(q, k, v, , , bias)",
}


@pytest.mark.parametrize("form", OPERATORS)
@pytest.mark.parametrize("opset", [23, 24])
def test_operators_of_attention(form: str, opset: int) -> None:
    """ONNX Runtime's kernels of floats are the reference; 8-bit codes have 30 dB. Rows without keys are 0."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
        g (float[B, S, {WIDTH}] x, bool[B, 1, S, S] keep, float[1, {HEADS}, S, S] bias) => (float[B, S, {WIDTH}] y)
        <int64[4] split = {{0, 0, {HEADS}, {SIZE}}}, int64[3] rows = {{0, 0, {WIDTH}}}>
        {{ q = MatMul(x, w_q) k = MatMul(x, w_k) v = MatMul(x, w_v) k2 = MatMul(x, w_k2) v2 = MatMul(x, w_v2)
           {OPERATORS[form]} }}"""
    )
    rng = np.random.default_rng(0)
    for name in ("q", "k", "v", "k2", "v2"):
        weights = rng.normal(0, 0.3, (WIDTH, WIDTH // (1 + ("2" in name)))).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, f"w_{name}"))
    given = feeds() | {"bias": rng.normal(0, 1, (1, HEADS, 40, 40)).astype(np.float32)}
    given["keep"] = np.repeat(given["keep"], 40, axis=2)
    given["keep"][1, :, 3:7] = False
    result = ort_dynq.quantize(model)
    quantized = result.to_proto()
    assert count(quantized, "QuantizedAttention") == 1
    assert count(quantized, "Transpose") == 0
    assert result.report.products[0] == 1
    (found,) = make_session(quantized, "native").run(None, given)
    assert_same(found, stock_session(quantized).run(None, given)[0])
    (expected,) = stock_session(model).run(None, given)
    noise = ((found - expected).astype(np.float64) ** 2).sum()
    assert 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise) > 30


def test_operators_that_stay() -> None:
    """An operator of attention of one query over past keys is in the report, and in the number of float products."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 23]>
        g (float[B, 1, {WIDTH}] x, float[B, {HEADS}, P, {SIZE}] past) =>
          (float[B, 1, {WIDTH}] y, float[B, {HEADS}, T, {SIZE}] k)
        {{ q = MatMul(x, w_q) y, k, v = Attention<{HEADS_OF_3D}, is_causal = 1>(q, q, q, , past, past) }}"""
    )
    weights = np.random.default_rng(0).normal(0, 0.3, (WIDTH, WIDTH)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w_q"))
    report = ort_dynq.quantize(model).report
    found = [each.reason for each in report.unconverted if each.op_type == "Attention"]
    (reason,) = found
    assert reason.startswith("attention stays in float: keys and values of earlier runs are inputs")
    assert report.products[1] >= 1


PAST_OPERATORS = {
    "rows": (f"y, pk, pv = Attention<{HEADS_OF_3D}>(q, k, v, keep, past_k, past_v)", HEADS),
    "shared heads": (
        f"y, pk, pv = Attention<q_num_heads = {HEADS}, kv_num_heads = 2>(q, k2, v2, keep, past_k, past_v)",
        2,
    ),
    "heads first": (
        "qs = Reshape(q, split) ks = Reshape(k, split) vs = Reshape(v, split) "
        "qh = Transpose<perm = [0, 2, 1, 3]>(qs) kh = Transpose<perm = [0, 2, 1, 3]>(ks) "
        "vh = Transpose<perm = [0, 2, 1, 3]>(vs) o, pk, pv = Attention(qh, kh, vh, keep, past_k, past_v) "
        "t = Transpose<perm = [0, 2, 1, 3]>(o) y = Reshape(t, rows)",
        HEADS,
    ),
    "causal": (f"y, pk, pv = Attention<{HEADS_OF_3D}, is_causal = 1>(q, k, v, , past_k, past_v)", HEADS),
    "causal, mask": (
        f"y, pk, pv = Attention<q_num_heads = {HEADS}, kv_num_heads = 2, is_causal = 1, softcap = 2.0, scale = 0.3>"
        "(q, k2, v2, keep, past_k, past_v)",
        2,
    ),
    "causal MultiHeadAttention": (
        f"y, pk, pv = com.microsoft.MultiHeadAttention<num_heads = {HEADS}, unidirectional = 1>"
        "(q, k, v, , , bias, past_k, past_v)",
        HEADS,
    ),
    "MultiHeadAttention": (
        f"y, pk, pv = com.microsoft.MultiHeadAttention<num_heads = {HEADS}>(q, k, v, , , bias, past_k, past_v)",
        HEADS,
    ),
}


@pytest.mark.parametrize("form", PAST_OPERATORS)
@pytest.mark.parametrize("opset", [23, 24])
def test_past_keys(form: str, opset: int) -> None:
    """Fewer than 64 queries keep the operator and its bits, more have products of integers. Keys are the model's."""
    body, heads = PAST_OPERATORS[form]
    cache, present = (f"float[B, {heads}, {length}, {SIZE}]" for length in "PT")
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]>
        g (float[B, S, {WIDTH}] x, {cache} past_k, {cache} past_v, bool[B, 1, S, T] keep, float[B, 1, S, T] bias) =>
          (float[B, S, {WIDTH}] y, {present} pk, {present} pv)
        <int64[4] split = {{0, 0, {HEADS}, {SIZE}}}, int64[3] rows = {{0, 0, {WIDTH}}}>
        {{ q = MatMul(x, w_q) k = MatMul(x, w_k) v = MatMul(x, w_v) k2 = MatMul(x, w_k2) v2 = MatMul(x, w_v2)
           {body} }}"""
    )
    rng = np.random.default_rng(0)
    for name in ("q", "k", "v", "k2", "v2"):
        weights = rng.normal(0, 0.3, (WIDTH, WIDTH // (1 + ("2" in name)))).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, f"w_{name}"))
    quantized = ort_dynq.quantize(model).to_proto()
    (choice,) = (each for each in quantized.graph.node if each.op_type == "If")
    branches = {each.name: [node.op_type for node in each.g.node] for each in choice.attribute}
    assert "QuantizedAttention" in branches["then_branch"]
    assert len(branches["else_branch"]) == 1
    sessions = make_session(quantized, "native"), stock_session(quantized), stock_session(model)
    for queries, past in ((1, 30), (63, 1), (64, 3), (70, 0)):
        total = queries + past
        given = {name: rng.normal(0, 1, (2, heads, past, SIZE)).astype(np.float32) for name in ("past_k", "past_v")}
        given["x"] = rng.normal(0, 1, (2, queries, WIDTH)).astype(np.float32)
        given["bias"] = rng.normal(0, 1, (2, 1, queries, total)).astype(np.float32)
        given["keep"] = rng.random((2, 1, queries, total)) < 0.8
        given["keep"][1, :, queries - 1] = False  # a row without keys
        given = {each.name: given[each.name] for each in model.graph.input}
        result, body_result, expected = (session.run(None, given) for session in sessions)
        for a, b, c in zip(result, body_result, expected, strict=True):
            assert_same(a, b)
            if queries < 64 or a is not result[0]:
                assert_same(a, c)
        noise = ((result[0].astype(np.float64) - expected[0]) ** 2).sum()
        assert noise == 0 or 10 * np.log10((expected[0].astype(np.float64) ** 2).sum() / noise) > 30


def test_cached_keys() -> None:
    """Exported attention over cached keys: MultiHeadAttention for fewer than 64 queries, integers for more."""
    model = model_of(cached=True)
    quantized = ort_dynq.quantize(model).to_proto()
    (choice,) = (each for each in quantized.graph.node if each.op_type == "If")
    assert [[node.op_type for node in each.g.node] for each in choice.attribute] == [
        ["QuantizedAttention"],
        ["MultiHeadAttention"],
    ]
    floats = ort_dynq.quantize(model, attention="float").to_proto()
    assert count(floats, "MultiHeadAttention") == 1
    sessions = make_session(quantized, "native"), stock_session(quantized), make_session(floats, "native")
    for queries, past in ((1, 30), (63, 1), (64, 3), (70, 0)):
        given = {"x": feeds(2, queries)["x"], "past": np.zeros((2, HEADS, past, SIZE), np.float32)}
        given["past"] += np.random.default_rng(2).normal(0, 1, given["past"].shape).astype(np.float32)
        given = {each.name: given.get(each.name, feeds(2, queries)["keep"]) for each in model.graph.input}
        result, body_result, expected = (session.run(None, given)[0] for session in sessions)
        assert_same(result, body_result)
        noise = ((result - expected).astype(np.float64) ** 2).sum()
        assert (noise == 0) == (queries < 64)
        assert noise == 0 or 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise) > 30


def test_options() -> None:
    assert count(ort_dynq.quantize(model_of(), fuse=False).to_proto(), "Softmax") == 1
    given = ort_dynq.quantize(model_of(), min_snr=5, data=feeds())
    assert count(given.to_proto(), "QuantizedAttention") == 0  # its noise cannot be removed layer by layer
    with pytest.raises(DynqError, match="attention is 'int4', expected int8 or float"):
        ort_dynq.quantize(model_of(), attention="int4")


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_hidden_tokens_change_nothing(mask: str, is_causal: bool) -> None:
    """The result of a token has the same bits whatever the tokens are that a mask hides from it, as in float."""
    quantized = ort_dynq.quantize(model_of(MASKS[mask], rows="S" if is_causal else "1")).to_proto()
    assert count(quantized, "QuantizedAttention") == 1
    session, given, tokens, first = make_session(quantized, "native"), feeds(), 40, 23
    rng = np.random.default_rng(2)
    hidden = np.arange(tokens) >= first if is_causal else ~given["keep"][0, 0, 0]
    if is_causal:
        given["keep"] = np.broadcast_to(np.tril(np.ones((tokens, tokens), bool)), (2, 1, tokens, tokens))
    else:
        given["keep"] = np.broadcast_to(~hidden, (2, 1, 1, tokens))
    (expected,) = session.run(None, given)
    for factor in (0, 1, 1000):
        given["x"][:, hidden] = rng.normal(0, factor, (2, int(hidden.sum()), WIDTH))
        (result,) = session.run(None, given)
        assert_same(result[:, ~hidden], expected[:, ~hidden])


ROWS = "count = Shape<start = 1, end = 2>(x) n = Squeeze(count) r = Range(nought, n, first)"
LATER = {
    "indices": f"{ROWS} i = Unsqueeze(r, behind) j = Unsqueeze(r, front) c = LessOrEqual(j, i) a = And(c, keep)",
    "rows first": f"{ROWS} i = Unsqueeze(r, behind) j = Unsqueeze(r, front) c = GreaterOrEqual(i, j) a = And(keep, c)",
    "not": f"{ROWS} i = Unsqueeze(r, behind) j = Unsqueeze(r, front) l = Greater(j, i) c = Not(l) a = And(c, keep)",
    "triangle": "s1 = Shape(d) w = ConstantOfShape<value = float[1] {1}>(s1) t0 = Trilu<upper = 0>(w) "
    "c = Cast<to = 9>(t0) a = And(c, keep)",
    "table": "s1 = Shape<start = 2>(d) t0 = Slice(table, from, s1, along) e = Equal(t0, nought) c = Not(e) "
    "a = And(c, keep)",
}


@pytest.mark.parametrize(
    ("form", "number", "adds"), diagonals(2, LATER, [-np.inf, float(np.finfo(np.float32).min), -1e9], [False, True])
)
def test_later_keys_are_left_out(form: str, number: float, adds: bool) -> None:
    """The operator does not compute what a mask hides behind each query, unless rows without keys need it.

    The bits are those of a mask that is an input.
    """
    end = "b = Where(a, zero, lowest) m = Add(d, b)" if adds else "m = Where(a, d, lowest)"
    causal, plain = model_of(f"{LATER[form]} {end}"), model_of(end.replace("Where(a,", "Where(keep,"), rows="S")
    integers = {"nought": 0, "first": 1, "behind": [1], "front": [0], "from": [0, 0], "along": [2, 3]}
    integers["table"] = np.tril(np.ones((1, 1, 64, 64), np.int64))
    for model in (causal, plain):
        (lowest,) = (each for each in model.graph.initializer if each.name == "lowest")
        lowest.float_data[:] = [number]
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
        with_arrays(model, integers)
    quantized = ort_dynq.quantize(causal).to_proto()
    branches = [each.g.node for node in quantized.graph.node if node.op_type == "If" for each in node.attribute]
    nodes = [node for nodes in (quantized.graph.node, *branches) for node in nodes if "Quantized" in node.op_type]
    after = [each.i for node in nodes for each in node.attribute if each.name == "keys_after"]
    assert after == ([0] if number == -np.inf else [0, -1])
    sessions = make_session(quantized, "native"), stock_session(quantized)
    of_whole = make_session(ort_dynq.quantize(plain).to_proto(), "native")
    for hides_all in (False, True):
        given = feeds()
        given["keep"][1, ..., :5] = not hides_all
        whole = np.logical_and(given["keep"], np.tril(np.ones((40, 40), bool)))
        results = [each.run(None, given)[0] for each in sessions] + of_whole.run(None, {**given, "keep": whole})
        first, *others = (np.where(np.isnan(each), np.float32(np.nan), each) for each in results)  # of one sign
        for other in others:
            assert_same(first, other)


def test_masks_that_may_repeat_columns() -> None:
    """A mask of one column hides whole rows."""
    model = model_of("m = Where(column, d, lowest)")
    column = np.arange(40).reshape(1, 1, 40, 1) < 30
    model.graph.initializer.append(onnx.numpy_helper.from_array(column, "column"))
    (node,) = (each for each in ort_dynq.quantize(model).to_proto().graph.node if "Quantized" in each.op_type)
    assert {each.name: each.i for each in node.attribute}["keys_after"] == -1
