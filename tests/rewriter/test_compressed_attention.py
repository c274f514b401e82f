"""Attention over codes becomes CompressedAttention, and what it cannot do stays.

The result is compared with the original in ONNX Runtime without optimizations, and by `verify`. Words have 16 bits: the
signal-to-noise ratio is at least 74 dB.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, nodes_of, stock_session
from rewriting import parse

import ort_dynq
from ort_dynq.operators import VERSION
from ort_dynq.rewriter import inspect

F = np.float32
H, D, E, G = 2, 32, 24, 8
MIN_SNR = 74
NUMBERS = (
    "root = Constant<value = float {5.65685425}>() ninf = Constant<value = float {-inf}>() "
    "lowest = Constant<value = float {-3.4028234663852886e38}>() nought = Constant<value = float {0}>()"
)
END = "p = Softmax<axis = -1>(m) y = MatMul(p, v)"
QUERY = f"float[B, {H}, S, {D}] q"
BLOCKS = (
    f"{QUERY}, int8[B, {H}, T, {D}] kc, float[B, {H}, T, {D // G}] ks, int8[B, {H}, T, {D // G}] kz, "
    f"int8[B, {H}, T, {E}] vc, float[B, {H}, T, {E // G}] vs, int8[B, {H}, T, {E // G}] vz",
    f"k = DequantizeLinear<axis = 3, block_size = {G}>(kc, ks, kz) v = DequantizeLinear<axis = 3, block_size = {G}>"
    "(vc, vs, vz) kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt)",
)
TRANSPOSED = (
    f"{QUERY}, uint8[B, {H}, {D}, T] kc, float[B, {H}, {D // G}, T] ks, uint8[B, {H}, {D // G}, T] kz, "
    f"int8[B, {H}, T, {E}] vc, float vs, int8 vz",
    f"k = DequantizeLinear<axis = 2, block_size = {G}>(kc, ks, kz) v = DequantizeLinear(vc, vs, vz) s = MatMul(q, k)",
)
CHANNELS = (
    f"{QUERY}, int8[B, {H}, T, {D}] kc, float[{H}] ks, float[B, {H}, T, {E}] v",
    "k = DequantizeLinear<axis = 1>(kc, ks) kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt)",
)
CACHE = (  # torch: codes of old tokens and of new ones, with float16 scales of each token
    f"{QUERY}, int8[B, {H}, P, {D}] k0, float16[B, {H}, P, 1] ks0, int8[B, {H}, O, {D}] k1, float16[B, {H}, O, 1] ks1, "
    f"float[B, {H}, T, {D}] kf, uint8[B, {H}, T, {E}] vc, float[B, {H}, T, 1] vs, uint8[B, {H}, T, 1] vz",
    "kc = Concat<axis = 2>(k0, k1) ks16 = Concat<axis = 2>(ks0, ks1) ks = Cast<to = 1>(ks16) kcf = Cast<to = 1>(kc) "
    "k = Mul(kcf, ks) kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) vcf = Cast<to = 1>(vc) "
    "vzf = Cast<to = 1>(vz) vd = Sub(vcf, vzf) v = Mul(vd, vs)",
)
KIVI = (  # keys: scales of each channel and group of 8 tokens; values: of each token and group along the head
    f"{QUERY}, uint8[B, {H}, C, 8, {D}] kc, float[B, {H}, C, 1, {D}] ks, uint8[B, {H}, C, 1, {D}] kz, "
    f"uint8[B, {H}, R, {E // G}, {G}] vc, float[B, {H}, R, {E // G}, 1] vs",
    "kcf = Cast<to = 1>(kc) kzf = Cast<to = 1>(kz) kd = Sub(kcf, kzf) kb = Mul(kd, ks) "
    f"joined = Constant<value_ints = [0, {H}, -1, {D}]>() k = Reshape(kb, joined) "
    "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) vcf = Cast<to = 1>(vc) vb = Mul(vcf, vs) "
    f"of_values = Constant<value_ints = [0, 0, 0, {E}]>() v = Reshape(vb, of_values)",
)
OF_CHANNELS = (  # one scale for each element of the head
    CHANNELS[0].replace(f"float[{H}] ks", f"float[{D}] ks"),
    CHANNELS[1].replace("axis = 1", "axis = 3"),
)
SHARED_HEADS = (  # torch's repeat_kv
    f"float[B, {2 * H}, S, {D}] q, int8[B, {H}, {D}, T] kc, float[B, {H}, 1, T] ks, int8[B, {H}, T, {E}] vc, float vs",
    f"kcf = Cast<to = 1>(kc) kd = Mul(kcf, ks) ones = Constant<value_ints = [1, 1, 2, 1, 1]>() two = "
    f"Constant<value_ints = [2]>() k5 = Unsqueeze(kd, two) ke = Expand(k5, ones) "
    f"ksh = Constant<value_ints = [0, {2 * H}, {D}, -1]>() k = Reshape(ke, ksh) s = MatMul(q, k) "
    "vd = DequantizeLinear(vc, vs) v5 = Unsqueeze(vd, two) ve = Expand(v5, ones) "
    f"vsh = Constant<value_ints = [0, {2 * H}, -1, {E}]>() v = Reshape(ve, vsh)",
)
MINIMA = (  # KIVI: keys in groups of 8 tokens with scales and minima of channels; values of 4 bits in groups of tokens
    f"{QUERY}, uint8[B, {H}, C, 8, {D}] kc, float[B, {H}, C, 1, {D}] ks, float[B, {H}, C, 1, {D}] ko, "
    f"uint4[B, {H}, R, {E // G}, {G}] vc, float[B, {H}, R, {E // G}, 1] vs, float[B, {H}, R, {E // G}, 1] vo",
    "kcf = Cast<to = 1>(kc) kd = Mul(kcf, ks) kb = Add(kd, ko) "
    f"joined = Constant<value_ints = [0, {H}, -1, {D}]>() k = Reshape(kb, joined) "
    "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) vcf = Cast<to = 1>(vc) vd = Mul(vcf, vs) "
    f"vb = Add(vo, vd) of_values = Constant<value_ints = [0, 0, 0, {E}]>() v = Reshape(vb, of_values)",
)
FLOAT_ZEROS = (  # HQQ: zero points of floats; keys in groups along the head, values of channels and groups of tokens
    f"{QUERY}, uint8[B, {H}, {D}, R] kc, float[B, {H}, 1, R] ks, float[B, {H}, 1, R] kz, "
    f"int8[B, {H}, C, 8, {E}] vc, float[B, {H}, C, 1, {E}] vs, float[B, {H}, C, 1, {E}] vz",
    "kcf = Cast<to = 1>(kc) kd = Sub(kcf, kz) k = Mul(kd, ks) s = MatMul(q, k) "
    "vcf = Cast<to = 1>(vc) vd = Sub(vcf, vz) vb = Mul(vd, vs) "
    f"of_values = Constant<value_ints = [0, {H}, -1, {E}]>() v = Reshape(vb, of_values)",
)
FLAT = (  # HQQ: a row for each group of all heads
    f"float[2, {H}, S, {D}] q, uint8[M, {G}] kc, float[M, 1] ks, float[M, 1] kz, int8[N, {G}] vc, float[N, 1] vs",
    f"kcf = Cast<to = 1>(kc) kd = Sub(kcf, kz) kb = Mul(kd, ks) of_keys = Constant<value_ints = [2, {H}, -1, {D}]>() "
    "k = Reshape(kb, of_keys) kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) vcf = Cast<to = 1>(vc) "
    f"vb = Mul(vcf, vs) of_values = Constant<value_ints = [2, {H}, -1, {E}]>() v = Reshape(vb, of_values)",
)
DYNAMIC = (  # with zero points of int32
    f"{QUERY}, int8[B, {H}, T, {D}] kc, float[B, {H}, T, {D // G}] ks, int32[B, {H}, T, {D // G}] kz, "
    f"uint8[B, {H}, T, {E}] vc, float[{E}] vs",
    f'k = ort_dynq.DynamicDequantize<qtype = "per_group", group_shape = [1, 1, 1, {G}]>(kc, ks, kz) '
    'v = ort_dynq.DynamicDequantize<qtype = "per_channel", axis = 3>(vc, vs) '
    "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt)",
)
FOUR_BITS = (  # of heads: ONNX Runtime does not reshape their zero points
    f"{QUERY}, int4[B, {H}, T, {D}] kc, float[{H}] ks, int4[{H}] kz, uint4[B, {H}, T, {E}] vc, float vs, uint4 vz",
    "k = DequantizeLinear<axis = 1>(kc, ks, kz) v = DequantizeLinear(vc, vs, vz) "
    "kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt)",
)
WRITTEN = (  # a cache of fixed size, into which new codes and scales are written
    f"{QUERY}, int8[B, {H}, T, {D}] k0, float[B, {H}, T, 1] ks0, int8[1, {H}, T, {D}] k1, float[1, {H}, T, 1] ks1, "
    f"int8[B, {H}, T, {E}] v0, int8[1, {H}, T, {E}] v1, float vs",
    "at = Constant<value = int64[1, 1] {1}>() kc = ScatterND(k0, at, k1) ks = ScatterND(ks0, at, ks1) "
    "kcf = Cast<to = 1>(kc) k = Mul(kcf, ks) kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) "
    "vc = ScatterND(v0, at, v1) v = DequantizeLinear(vc, vs)",
)
MOVED = (  # torch's default exporter transposes the key with merged heads; a constant scale, and some with fewer axes
    f"float[2, {H}, S, {D}] q, int8[2, {H}, T, {D}] kc, uint8[2, {H}, T, {E}] vc, float[{E}] vs, float[1, {E}] vo",
    "ks = Constant<value = float {0.02}>() middle = Constant<value = float {127}>() kcf = Cast<to = 1>(kc) "
    f"k = Mul(kcf, ks) merged = Constant<value_ints = [{2 * H}, -1, {D}]>() km = Reshape(k, merged) "
    f"kt = Transpose<perm = [0, 2, 1]>(km) apart = Constant<value_ints = [2, {H}, {D}, -1]>() kh = Reshape(kt, apart) "
    "s = MatMul(q, kh) vcf = Cast<to = 1>(vc) vd = Sub(vcf, middle) vm = Mul(vd, vs) v = Sub(vm, vo)",
)
FORMS = {
    "blocks": BLOCKS,
    "transposed": TRANSPOSED,
    "channels": CHANNELS,
    "cache": CACHE,
    "kivi": KIVI,
    "of_channels": OF_CHANNELS,
    "shared_heads": SHARED_HEADS,
    "minima": MINIMA,
    "float_zeros": FLOAT_ZEROS,
    "flat": FLAT,
    "dynamic": DYNAMIC,
    "four_bits": FOUR_BITS,
    "written": WRITTEN,
    "moved": MOVED,
}
LENGTHS = {"B": 2, "S": 3, "T": 19, "P": 15, "O": 4, "C": 3, "R": 24, "M": 304, "N": 228}
MASKS = {
    "none": ("", "d = Div(s, root) m = Identity(d)"),
    "additive": (", float[B, 1, 1, T] mask", "d = Div(s, root) m = Add(d, mask)"),
    "boolean": (", bool[S, T] keep", "d = Div(s, root) m = Where(keep, d, ninf)"),
    "lowest": (", bool[B, 1, S, T] keep", "d = Div(s, root) m = Where(keep, d, lowest)"),
}


def model_of(form: tuple[str, str], mask: str = "none", outputs: str = f"float[B, {H}, S, {E}] y") -> onnx.ModelProto:
    inputs, nodes = form
    more, steps = MASKS[mask]
    model = parse(f"{NUMBERS} {nodes} {steps} {END}", inputs=inputs + more, outputs=outputs, opset=21)
    model.opset_import.add(domain="ort_dynq", version=VERSION)
    return model


def feeds_of(model: onnx.ModelProto, lengths: Mapping[str, int] = LENGTHS) -> dict[str, Array]:
    rng, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = tuple(lengths[each.dim_param] if each.dim_param else each.dim_value for each in dims)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name == "keep":
            keep = np.tri(shape[-2], shape[-1], shape[-1] - shape[-2], dtype=bool)
            feeds[value.name] = np.array(np.broadcast_to(keep, shape))
        elif value.name == "mask":
            feeds[value.name] = np.where(rng.random(shape) < 0.3, np.finfo(dtype).min, rng.normal(0, 1, shape)).astype(
                dtype
            )
        elif dtype.kind not in "fb":
            limits = ml_dtypes.iinfo(np.int8 if dtype == np.int32 else dtype)
            low, high = int(limits.min), int(limits.max)
            spread = (high - low) / (85 if "z" in value.name else 6)
            drawn = np.clip(rng.normal((low + high + 1) / 2, spread, shape), low, high)
            feeds[value.name] = np.asarray(drawn).astype(np.int32).astype(dtype)
        elif "z" in value.name:  # of uint8 keys, and of int8 values
            feeds[value.name] = np.asarray(rng.normal(128 if "k" in value.name else 0, 2, shape)).astype(dtype)
        elif "s" in value.name:
            feeds[value.name] = np.asarray(rng.uniform(0.01, 0.03, shape)).astype(dtype)
        else:
            feeds[value.name] = np.asarray(rng.normal(0, 1, shape)).astype(dtype)
    return feeds


def count(model: onnx.ModelProto, operator: str) -> int:
    return sum(node.op_type == operator for node in nodes_of(model.graph))


@pytest.mark.parametrize(
    ("form", "mask"),
    [*zip(FORMS, MASKS, strict=False), ("cache", "additive"), *((form, "none") for form in list(FORMS)[4:])],
)
def test_forms(form: str, mask: str) -> None:
    heads = 2 * H if form == "shared_heads" else H
    check(model_of(FORMS[form], mask, f"float[B, {heads}, S, {E}] y"), MIN_SNR)


@pytest.mark.parametrize("mask", ["additive", "lowest"])
def test_float16(mask: str) -> None:
    """The original rounds scores and weights to float16."""
    inputs, nodes = (text.replace("float[", "float16[").replace("to = 1>", "to = 10>") for text in BLOCKS)
    more, steps = (text.replace("float[", "float16[") for text in MASKS[mask])
    halves = "".join(f"{name}_h = Cast<to = 10>({name}) " for name in ("root", "lowest_h16"))
    steps = steps.replace("root", "root_h").replace("lowest)", "lowest_h16_h)")
    numbers = f"{NUMBERS} lowest_h16 = Constant<value = float {{-65504}}>() {halves}"
    check(
        parse(f"{numbers} {nodes} {steps} {END}", inputs=inputs + more, outputs=f"float16[B, {H}, S, {E}] y", opset=21),
        50,
    )


def check(model: onnx.ModelProto, least_snr: float, lengths: Mapping[str, int] = LENGTHS) -> None:
    feeds = feeds_of(model, lengths)
    result = ort_dynq.rewrite(model, fuse=True).to_proto()
    assert count(result, "CompressedAttention") == 1
    assert {"Softmax", "MatMul", "DequantizeLinear", "DynamicDequantize"}.isdisjoint(
        node.op_type for node in nodes_of(result.graph)
    )
    is_standard = all(node.domain == "" for node in nodes_of(model.graph))
    (expected,) = (stock_session(model) if is_standard else make_session(model, "native")).run(None, feeds)
    (actual,) = make_session(result, "native").run(None, feeds)
    noise = ((actual.astype(np.float64) - expected.astype(np.float64)) ** 2).sum()
    assert 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise) > least_snr
    assert_same(actual, stock_session(result).run(None, feeds)[0])
    if not is_standard:
        return
    verification = ort_dynq.verify(model, result, inputs=feeds)
    assert verification.passed, verification.reason
    assert sum(each.is_fusion for each in verification.products) == 1


BY_TOKEN = f"int8[B, {H}, T, {D}] kc, {{0}}[B, {H}, T, 1] ks, int8[B, {H}, T, {E}] vc, {{0}}[B, {H}, T, 1] vs"


@pytest.mark.parametrize(
    ("types", "steps"),
    [
        (("float16", "float16", "float"), "s32 = Cast<to = 1>(s) p = Softmax<axis = -1>(s32)"),
        (("float", "float", "float16"), "p32 = Softmax<axis = -1>(s) p = Cast<to = 10>(p32)"),
        (("float16", "float16", "float16"), "d = Mul(s, t) p = Softmax<axis = -1>(d)"),
        (("float16", "float16", "float16"), "d = Div(s, t) p = Softmax<axis = -1>(d)"),
        (("float16", "float", "float16"), "p = Softmax<axis = -1>(s)"),
    ],
    ids=["float32 after", "float16 after", "times float16", "divided by float16", "float32 scales"],
)
def test_mixed_types(types: tuple[str, str, str], steps: str) -> None:
    """The result has the type of the second product, and factors of the run have any type."""
    query, scale, result = types
    to = {"float": 1, "float16": 10}
    model = parse(
        f"kcf = Cast<to = {to[scale]}>(kc) km = Mul(kcf, ks) k = Cast<to = {to[query]}>(km) "
        f"kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) "
        f"{steps} vcf = Cast<to = {to[scale]}>(vc) vd = Mul(vcf, vs) v = Cast<to = {to[result]}>(vd) y = MatMul(p, v)",
        inputs=f"{query}[B, {H}, S, {D}] q, {BY_TOKEN.format(scale)}, float16[1] t",
        outputs=f"{result}[B, {H}, S, {E}] y",
        opset=21,
    )
    check(model, 50)


def rewritten(model: onnx.ModelProto, feeds: dict[str, Array]) -> tuple[Array, Array]:
    """The result of the original, and that of CompressedAttention."""
    result = ort_dynq.rewrite(model, fuse=True).to_proto()
    assert count(result, "CompressedAttention") == 1
    return stock_session(model).run(None, feeds)[0], make_session(result, "native").run(None, feeds)[0]


@pytest.mark.parametrize("number", [-1e30, -1e20, float(np.finfo(F).min)])
def test_sums_of_masks(number: float) -> None:
    """A row that finite masks hide twice is finite, unless their sum overflows in the original, too."""
    lowest = f"number = Constant<value = float {{{number}}}>()"
    model = parse(
        f"{NUMBERS} {lowest} {BLOCKS[1]} d = Where(keep, s, number) m = Add(d, mask) {END}",
        inputs=f"{BLOCKS[0]}, bool[S, T] keep, float[B, 1, S, T] mask",
        outputs=f"float[B, {H}, S, {E}] y",
        opset=21,
    )
    feeds = feeds_of(model)
    feeds["keep"][0], feeds["keep"][1:] = False, True
    feeds["mask"][...] = 0
    feeds["mask"][:, :, 0] = np.finfo(F).min
    feeds["mask"][:, :, 1, ::2] = np.finfo(F).min
    expected, actual = rewritten(model, feeds)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    assert np.isnan(actual).any() == (number < -1e38)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3)  # words


def test_float16_masks_of_float32_scores() -> None:
    """-65504 hides scores of float16, but leaves the order of those of float32."""
    model = parse(
        f"{NUMBERS} {BLOCKS[1]} mask32 = Cast<to = 1>(mask) m = Add(s, mask32) {END}",
        inputs=f"{BLOCKS[0]}, float16[B, 1, S, T] mask",
        outputs=f"float[B, {H}, S, {E}] y",
        opset=21,
    )
    feeds = feeds_of(model)
    feeds["mask"][...] = -65504
    expected, actual = rewritten(model, feeds)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-2)  # scores are multiples of 1/128


@pytest.mark.parametrize("queries", ["U", "1"])
def test_masks_that_add_rows(queries: str) -> None:
    """One row of scores becomes several, in the operator if the model may have as many rows of both."""
    nodes, inputs = BLOCKS[1], BLOCKS[0].replace("S", queries)
    model = parse(
        f"{NUMBERS} {nodes} m = Add(s, mask) {END}",
        inputs=f"{inputs}, float[S, T] mask",
        outputs="float[] y",
        opset=21,
    )
    if queries == "1":
        assert count(ort_dynq.rewrite(model, fuse=True).to_proto(), "CompressedAttention") == 0
        return
    for lengths in ({"U": 1}, {"U": LENGTHS["S"]}, {"U": LENGTHS["S"], "S": 1}):
        check(model, MIN_SNR, LENGTHS | lengths)


def test_rows_without_keys() -> None:
    """Softmax gives NaN where -inf hides all keys, and a mean where the lowest number does; so does the operator."""
    for mask, is_nan in (("boolean", True), ("lowest", False)):
        model = model_of(BLOCKS, mask)
        feeds = feeds_of(model)
        feeds["keep"][..., 1, :] = False
        result = ort_dynq.rewrite(model, fuse=True).to_proto()
        (expected,) = stock_session(model).run(None, feeds)
        (actual,) = make_session(result, "native").run(None, feeds)
        assert np.isnan(expected[..., 1, :]).all() == is_nan
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-3 * np.nanmax(np.abs(expected)), equal_nan=True)


def test_no_keys() -> None:
    """A sum over no keys is 0."""
    model = model_of(TRANSPOSED)
    feeds = {name: each[:, :, :, :0] if name[0] == "k" else each for name, each in feeds_of(model).items()}
    feeds["vc"] = feeds["vc"][:, :, :0]
    expected, actual = rewritten(model, feeds)
    assert_same(actual, expected)
    assert not actual.any()


WIDE_CODES = (CHANNELS[0].replace("int8[B", "int32[B"), CHANNELS[1])
PER_ELEMENT = (
    f"{QUERY}, int8[B, {H}, T, {D}] kc, float[B, {H}, T, {D}] ks, float[B, {H}, T, {E}] v",
    "kf = Cast<to = 1>(kc) k = Mul(kf, ks) kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt)",
)
FLOAT_COLUMNS = (  # it takes longer to quantize them than it saves
    f"{QUERY}, float[B, {H}, {D}, T] k, int8[B, {H}, T, {E}] vc, float vs",
    "v = DequantizeLinear(vc, vs) s = MatMul(q, k)",
)
OTHER_HEADS = (CHANNELS[0].replace(f"float[B, {H}, T, {E}] v", f"float[B, 1, T, {E}] v"), CHANNELS[1])


REPEATED = (  # a key head for two query heads
    CHANNELS[0].replace(f"int8[B, {H}", "int8[B, 1").replace(f"float[{H}] ks", "float[1] ks"),
    CHANNELS[1].replace(
        "kt = Transpose<perm = [0, 1, 3, 2]>(k)",
        f"n = Constant<value_ints = [1, {H}, 1, 1]>() ke = Expand(k, n) kt = Transpose<perm = [0, 1, 3, 2]>(ke)",
    ),
)
PLAIN_CASTS = (
    f"{QUERY}, int8[B, {H}, T, {D}] kc, int8[B, {H}, T, {E}] vc",
    "k = Cast<to = 1>(kc) kt = Transpose<perm = [0, 1, 3, 2]>(k) s = MatMul(q, kt) v = Cast<to = 1>(vc)",
)
KEYS = "attention over codes: the keys are not codes of 8 or 4 bits with one scale for all, "


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (FLOAT_COLUMNS, "attention over codes: the keys are not"),
        (PER_ELEMENT, KEYS),
        (REPEATED, "attention over codes: the numbers and sizes of heads are not known numbers, or query, key and "),
        (OTHER_HEADS, "attention over codes: the numbers and sizes of heads are not known numbers, or query, key and "),
        (WIDE_CODES, KEYS),
        (
            PLAIN_CASTS,
            "attention over codes: the keys are codes that are converted to floats and not scaled; multiply ",
        ),
    ],
)
def test_what_stays(form: tuple[str, str], reason: str) -> None:
    result = ort_dynq.rewrite(model_of(form), fuse=True)
    assert count(result.to_proto(), "CompressedAttention") == 0
    reasons = [each.reason for each in result.report.unconverted if each.op_type == "Softmax"]
    assert [each[: len(reason)] for each in reasons] == [reason]
    assert inspect(model_of(form), fuse=True).unconverted == result.report.unconverted


def test_scores_that_stay() -> None:
    model = parse(
        f"{NUMBERS} {BLOCKS[1]} m = Mul(s, scales) {END}",
        inputs=f"{BLOCKS[0]}, float[{H}, 1, 1] scales",
        outputs=f"float[B, {H}, S, {E}] y",
        opset=21,
    )
    found = [each.reason for each in inspect(model, fuse=True).unconverted if each.op_type == "Softmax"]
    assert found == [
        "attention over codes: numbers of several elements, or masks of other shapes, change the scores",
    ]


def test_without_fusions_it_is_reported() -> None:
    for form in (BLOCKS, CACHE, WRITTEN):
        result = ort_dynq.rewrite(model_of(form))
        assert count(result.to_proto(), "CompressedAttention") == 0
        reasons = [each.reason for each in result.report.unconverted if each.op_type == "Softmax"]
        assert reasons == ["attention over codes: --fuse makes one operator of it, which never dequantizes them"]
    assert not [each for each in inspect(model_of(BLOCKS), exact=True).unconverted if each.op_type == "Softmax"]
