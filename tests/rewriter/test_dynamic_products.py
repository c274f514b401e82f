"""Products of quantize_dynamic are exact on every CPU after a rewrite, in each form that it or ONNX Runtime writes.

The codes of the activation are known: its range is -100 to 155, so that the scale is 1. NumPy's integers give the sums.
`.ci/emulated` also runs the tests with "saturate" in their name on emulated CPUs where ONNX Runtime's sums saturate.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import numpy_helper
from rewriting import nodes_of, operators

import ort_dynq
from ort_dynq import cli
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason

F = np.float32
DEPTH, COLUMNS = 64, 48
QUANTIZE = "q, s, z = DynamicQuantizeLinear(x)"
SCALED = "c = Cast<to = 1>(i) t = Mul(s, ws) {} = Mul(c, t)"
FORMS = {
    "product": f"{QUANTIZE} i = MatMulInteger(q, w, z, wz) {SCALED.format('y')}",
    "product and bias": f"{QUANTIZE} i = MatMulInteger(q, w, z, wz) {SCALED.format('m')} y = Add(m, b)",
    "DynamicQuantizeMatMul": "y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, wz, b)",
    "DynamicQuantizeMatMul without bias": "y = com.microsoft.DynamicQuantizeMatMul(x, w, ws, wz)",
    "MatMulIntegerToFloat": f"{QUANTIZE} y = com.microsoft.MatMulIntegerToFloat(q, w, s, ws, z, wz, b)",
    "DequantizeLinear, MatMul": f"""{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 1>(w, ws, wz)
        y = MatMul(f, v)""",
    "DequantizeLinear, Gemm": f"""{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 1>(w, ws, wz)
        y = Gemm(f, v)""",
}
SHAPES = {"matrix": (5, DEPTH), "3-D": (2, 3, DEPTH), "one row": (1, DEPTH)}
WEIGHTS = {  # the type, the largest magnitude of the codes minus the zero point, and whether channels have scales
    "int8": ("int8", 127, False),
    "int8 of channels": ("int8", 127, True),
    "uint8": ("uint8", 127, False),
    "uint8 of channels": ("uint8", 127, True),
    "int8 of 7 bits": ("int8", 64, True),
}


def model_of(text: str, inputs: str, outputs: str = "float[] y", **constants: Array) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>'
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {text} }}")
    used = {name for node in model.graph.node for name in node.input}
    tensors = [numpy_helper.from_array(each, name) for name, each in constants.items() if name in used]
    model.graph.initializer.extend(tensors)
    return model


def activation(*shape: int) -> Array:
    """Returns integers from -100 to 155, most of them at the ends: their codes are 100 larger, and the scale is 1."""
    rng = np.random.default_rng(1)
    x = np.where(rng.random(shape) < 0.8, rng.choice([-100, 155], shape), rng.integers(-100, 156, shape)).astype(F)
    x.reshape(-1)[:2] = -100, 155
    return x


def weights(kind: str, columns: int = COLUMNS) -> dict[str, Array]:
    """Returns weights, most of them as large as possible, their scales and zero points, and a bias."""
    rng = np.random.default_rng(2)
    dtype, largest, of_channels = WEIGHTS[kind]
    codes = np.where(rng.random((DEPTH, columns)) < 0.8, largest, rng.integers(-largest, largest + 1, (DEPTH, columns)))
    zero = 128 if dtype == "uint8" else 0
    size = columns if of_channels else ()
    return {
        "w": (codes + zero).astype(dtype),
        "wz": np.full(size, zero, dtype),
        "ws": np.asarray(rng.uniform(0.001, 0.1, size), F),
        "b": rng.normal(size=columns).astype(F),
    }


def sums(x: Array, constants: dict[str, Array]) -> Array:
    return np.asarray(x.astype(np.int64) @ (constants["w"].astype(np.int64) - constants["wz"].astype(np.int64)))


def sessions(model: onnx.ModelProto, turn: int) -> list[Any]:
    """Two sessions of a rewritten model: the usual one, and one without optimizations, the plugin or the library."""
    others: list[Callable[[], Any]] = [
        lambda: stock_session(model, optimize=True),
        lambda: make_session(model, "native"),
        lambda: stock_session(model),
        lambda: make_session(model, "extensions"),
    ]
    return [make_session(model, "native", optimize=True), others[turn % len(others)]()]


@pytest.mark.parametrize(
    ("turn", "form", "kind"), [(i, *each) for i, each in enumerate(itertools.product(FORMS, WEIGHTS))]
)
def test_no_product_saturates_after_a_rewrite(turn: int, form: str, kind: str) -> None:
    shape = SHAPES["matrix" if "Gemm" in form else list(SHAPES)[turn % len(SHAPES)]]
    x, constants = activation(*shape), weights(kind)
    dims = ["N" if axis == 0 else size for axis, size in enumerate(shape)]
    model = model_of(FORMS[form], f"float{dims} x".replace("'", ""), **constants)
    result = rewrite(model)
    rewritten = result.to_proto()
    assert operators(rewritten) == {"ort_dynq.DynamicQuantizeLinear": 1, "ort_dynq.QuantizedMatMul": 1}
    assert not result.report.unconverted
    assert result.report.cpu == ((), {})
    expected = sums(x, constants).astype(F) * constants["ws"]
    expected = (
        expected if "b" not in {name for node in model.graph.node for name in node.input} else expected + constants["b"]
    )
    for session in sessions(rewritten, turn):
        assert_same(session.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("exact", [False, True])
def test_products_that_share_an_activation_do_not_saturate(exact: bool) -> None:
    text = " ".join(
        f"i{n} = MatMulInteger(q, w, z, wz) c{n} = Cast<to = 1>(i{n}) t{n} = Mul(s, ws) y{n} = Mul(c{n}, t{n})"
        for n in range(3)
    )
    constants, x = weights("int8"), activation(4, DEPTH)
    model = model_of(f"{QUANTIZE} {text}", f"float[N, {DEPTH}] x", "float[] y0, float[] y1, float[] y2", **constants)
    rewritten = rewrite(model, exact=exact).to_proto()
    assert operators(rewritten) == {"ort_dynq.DynamicQuantizeLinear": 1, "ort_dynq.QuantizedMatMul": 3}
    for y in make_session(rewritten, "native", optimize=True).run(None, {"x": x}):
        assert_same(y, sums(x, constants).astype(F) * constants["ws"])


@pytest.mark.parametrize("weights_at_run_time", [False, True])
def test_sums_that_stay_integers_do_not_saturate(weights_at_run_time: bool) -> None:
    """They stay ONNX Runtime's, with uint8 weights."""
    constants, x = weights("int8"), activation(3, DEPTH)
    further = f", int8[{DEPTH}, {COLUMNS}] w" if weights_at_run_time else ""
    given = {name: each for name, each in constants.items() if name != "w" or not weights_at_run_time}
    text = f"{QUANTIZE} y = MatMulInteger(q, w, z, wz)"
    model = model_of(text, f"float[N, {DEPTH}] x{further}", "int32[] y", **given)
    rewritten = rewrite(model, exact=True)
    assert [(each.op_type, each.operator) for each in rewritten.report.findings] == [("MatMulInteger",) * 2]
    assert not rewritten.report.cpu.saturating
    feeds = {"x": x} | ({"w": constants["w"]} if weights_at_run_time else {})
    for session in sessions(rewritten.to_proto(), weights_at_run_time):
        assert_same(session.run(None, feeds)[0], sums(x, constants).astype(np.int32))


def test_sums_of_small_weights_and_of_uint8_stay() -> None:
    for kind in ("int8 of 7 bits", "uint8"):
        text = f"{QUANTIZE} y = MatMulInteger(q, w, z, wz)"
        report = rewrite(model_of(text, f"float[N, {DEPTH}] x", "int32[] y", **weights(kind))).report
        assert [each.unconverted and each.unconverted.reason for each in report.findings] == [Reason.SUMS_NOT_SCALED]
        assert not report.cpu.saturating


def attention(mask: str = "", attributes: str = "", *, past: bool = False, kind: str = "int8 of channels") -> Any:
    """Returns a model of one QAttention with 4 heads."""
    inputs = ", ".join([f"float[B, S, {DEPTH}] x", *filter(None, [mask]), *["float[2, B, 4, P, 4] p"] * past])
    text = (
        f"{QUANTIZE} y{', o' * past} = com.microsoft.QAttention<num_heads = 4{attributes}>(q, w, b, s, ws, {{}}, z, wz"
    )
    text = text.format(mask.partition("]")[2].strip()) + (", p)" if past else ")")
    return model_of(text, inputs, "float[] y" + ", float[] o" * past, **weights(kind))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("mask", "attributes", "values"),
    [
        ("", "", None),
        ("", ", unidirectional = 1", None),
        ("int32[B] m", "", [7, 4]),
        ("int32[B, S] m", ", mask_filter_value = -100000.0", [[1] * 7, [1] * 5 + [0] * 2]),
        ("int32[B, S, S] m", ", unidirectional = 1, scale = 0.25", np.tril(np.ones((2, 7, 7)))),
    ],
)
def test_attention_does_not_saturate(mask: str, attributes: str, values: Any, exact: bool) -> None:
    model = attention(mask, attributes)
    result = rewrite(model, exact=exact)
    rewritten = result.to_proto()
    assert operators(rewritten) == {"ort_dynq.DynamicQuantizeLinear": 1, "ort_dynq.QuantizedMatMul": 3}
    assert result.report.cpu.saturating == ()
    feeds = {"x": activation(2, 7, DEPTH) / F(8)} | ({} if values is None else {"m": np.array(values, np.int32)})
    (expected,) = stock_session(model).run(None, feeds)  # with a product that does not saturate
    for session in sessions(rewritten, len(mask) + exact):
        assert_same(session.run(None, feeds)[0], expected)
    assert ort_dynq.verify(model, rewritten, inputs=feeds).passed


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (attention(past=True), Reason.QATTENTION_PAST),
        (attention(attributes=", do_rotary = 1"), Reason.QATTENTION_ROTARY),
        (attention("int32[M] m"), Reason.QATTENTION_MASK),
        (attention("int32[B, 1, S, S] m"), Reason.QATTENTION_MASK),
    ],
)
def test_other_attention_gets_uint8_weights(model: onnx.ModelProto, reason: Reason) -> None:
    report = rewrite(model).report
    assert [(each.op_type, each.operator) for each in report.findings] == [("QAttention", "QAttention")]
    assert reason.value in report.findings[0].reason
    assert not report.cpu.saturating
    (kept,) = rewrite(model, keep_fused=True).report.cpu.saturating
    assert kept.op_type == "QAttention"


STAYING = {  # the text, and whether only exact results keep the product ONNX Runtime's
    "DequantizeLinear, MatMul": (FORMS["DequantizeLinear, MatMul"], True),
    "DequantizeLinear, Gemm": (FORMS["DequantizeLinear, Gemm"], True),
    "DequantizeLinear, Transpose, MatMul": (
        f"""{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 0>(wt, ws, wz)
        t = Transpose<perm = [1, 0]>(v) y = MatMul(f, t)""",
        True,
    ),
    "no zero point": (
        f"{QUANTIZE} f = DequantizeLinear(q, s, z) v = DequantizeLinear<axis = 1>(w, ws) y = MatMul(f, v)",
        True,
    ),
    "QGemm": (f"{QUANTIZE} y = com.microsoft.QGemm(q, s, z, w, ws, wz)", False),
    "QLinearMatMul": (f"{QUANTIZE} c = QLinearMatMul(q, s, z, w, ws, wz, k, h) y = DequantizeLinear(c, k, h)", False),
    "weights at run time": (f"{QUANTIZE} y = com.microsoft.MatMulIntegerToFloat(q, w, s, ws, z, wz)", False),
}


@pytest.mark.parametrize("form", STAYING)
def test_products_that_stay_do_not_saturate(form: str) -> None:
    """Their weights become uint8, which ONNX Runtime multiplies exactly on every CPU."""
    text, is_exact = STAYING[form]
    constants, x = weights("int8 of channels"), activation(5, DEPTH)
    constants["ws"] = np.exp2(-np.arange(COLUMNS) % 5, dtype=F)
    constants |= {"wt": np.ascontiguousarray(constants["w"].T), "k": np.array(4096, F), "h": np.array(128, np.uint8)}
    expected = sums(x, constants).astype(F) * constants["ws"]
    if form == "QLinearMatMul":
        expected = (np.clip(np.rint(expected / constants["k"]) + 128, 0, 255) - 128).astype(F) * constants["k"]
    feeds, further = {"x": x}, ""
    if form == "weights at run time":
        feeds["w"], further = constants.pop("w"), f", int8[{DEPTH}, {COLUMNS}] w"
    model = model_of(text, f"float[5, {DEPTH}] x{further}", **constants)
    result = rewrite(model, exact=is_exact)
    assert not result.report.cpu.saturating
    assert not any("QuantizedMatMul" in name for name in operators(result.to_proto()))
    for session in sessions(result.to_proto(), 0):
        assert_same(session.run(None, feeds)[0], expected)
    assert ort_dynq.verify(model, result.to_proto(), inputs=feeds).passed
    assert len(rewrite(model, exact=is_exact, keep_fused=True).report.cpu.saturating) == 1


def test_convolutions_that_stay_do_not_saturate() -> None:
    rng = np.random.default_rng(4)
    constants = {
        "w": rng.choice([-127, 127], (8, 4, 3, 3)).astype(np.int8),
        "ws": np.array(0.125, F),
        "k": np.array(64, F),
        "h": np.array(99, np.uint8),
    }
    x = activation(2, 4, 7, 7)
    body = "f = DequantizeLinear(q, s, z) v = DequantizeLinear(w, ws) m = Conv(f, v) y = QuantizeLinear(m, k, h)"
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int64), (3, 3), axis=(2, 3))
    exact = np.einsum("nchwij,ocij->nohw", windows, constants["w"].astype(np.int64))
    expected = np.clip(np.rint(exact.astype(F) * F(0.125 / 64)) + 99, 0, 255).astype(np.uint8)
    result = rewrite(model_of(f"{QUANTIZE} {body}", "float[2, 4, 7, 7] x", "uint8[] y", **constants), exact=True)
    assert not result.report.cpu.saturating
    for session in sessions(result.to_proto(), 0):
        assert_same(session.run(None, {"x": x})[0], expected)


@pytest.mark.parametrize("scale", ["s16", "s"])
def test_exact_products_of_float16_are_not_quantized_again(scale: str) -> None:
    """ONNX Runtime made MatMulNBits of a dequantized activation and DequantizeLinear of weights."""
    constants = weights("int8 of channels") | {"wh": weights("int8 of channels")["ws"].astype(np.float16)}
    dequantized = {
        "s16": "s16 = Cast<to = 10>(s) f = DequantizeLinear(q, s16, z)",
        "s": "g = DequantizeLinear(q, s, z) f = Cast<to = 10>(g)",
    }[scale]
    text = f"{QUANTIZE} {dequantized} v = DequantizeLinear<axis = 1>(w, wh, wz) y = MatMul(f, v)"
    model = model_of(text, f"float[64, {DEPTH}] x", "float16[] y", **constants)
    model.opset_import[0].version, model.ir_version = 21, 10
    rewritten = rewrite(model, exact=True).to_proto()
    assert "ort_dynq.DynamicDequantize" in operators(rewritten)
    x = activation(64, DEPTH)
    (actual,) = make_session(rewritten, "native", optimize=True).run(None, {"x": x})
    folded = (constants["w"].astype(F) * constants["wh"].astype(F)).astype(np.float16)
    exact = x.astype(np.float64) @ folded.astype(np.float64)
    rounding = 2.0**-11 + 2.0**-17  # of the result to float16, and of sums of 64 floats
    assert (np.abs(actual - exact) <= rounding * (np.abs(x) @ np.abs(folded.astype(np.float64)))).all()


@pytest.mark.parametrize("form", FORMS)
def test_keep_fused_keeps_the_nodes(form: str) -> None:
    model = model_of(FORMS[form], f"float[N, {DEPTH}] x", **weights("int8 of channels"))
    result = rewrite(model, keep_fused=True)
    assert operators(result.to_proto()) == {}
    assert len(result.report.cpu.saturating) == 1
    reasons = {each.unconverted and each.unconverted.reason for each in result.report.unconverted}
    assert reasons <= {Reason.FUSED, Reason.FUSED_MATMUL_INTEGER, Reason.KEPT}
    assert reasons


def test_static_products_and_fused_activations_that_stay_are_listed(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    constants = weights("int8") | {"xs": F(0.1), "xz": np.uint8(9)}
    static = (
        "a = QuantizeLinear(x, xs, xz) f = DequantizeLinear(a, xs, xz) v = DequantizeLinear(w, ws, wz) y = MatMul(f, v)"
    )
    model = model_of(static, f"float[N, {DEPTH}] x", **{name: np.asarray(each) for name, each in constants.items()})
    report = rewrite(model).report
    assert [each.node for each in report.cpu.saturating] == ["y"]
    assert report.to_dict()["depends_on_cpu"] == {
        "saturating": [{"node": "y", "op_type": "MatMul", "graph": "main"}],
        "rounding": {},
    }
    onnx.save(model, tmp_path / "model.onnx")
    assert cli.main(["inspect", str(tmp_path / "model.onnx")]) == 0
    printed = capsys.readouterr().out
    line = "wrong on x86 CPUs without VNNI, where sums saturate: 1 MatMul of uint8 by int8 (y); remedy: rewrite without"
    assert line in " ".join(printed.split())
    assert cli.main(["rewrite", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "b.onnx")]) == 0
    assert line in " ".join(capsys.readouterr().out.split())


def test_rounded_floats_are_listed() -> None:
    report = rewrite(model_of("h = MatMul(x, w) y = Softmax(h)", "float[4, 4] x", w=np.ones((4, 4), F))).report
    assert report.cpu == ((), {"MatMul": 1, "Softmax": 1})
    assert report.cpu_text == ["last bits depend on the CPU, since floats are rounded: 1 MatMul and 1 Softmax"]


def test_a_tiny_product_is_converted() -> None:
    """It would be wrong, not merely slow."""
    text = f"{QUANTIZE} i = MatMulInteger(q, w, z) {SCALED.format('y')}"
    tiny = model_of(text, "float[1, 4] x", w=np.full((4, 2), 127, np.int8), ws=F(1).reshape(()))
    assert operators(rewrite(tiny).to_proto()) == {"ort_dynq.QuantizedMatMul": 1}


def test_a_product_of_quantize_dynamic_is_ours(tmp_path: Any) -> None:
    """The whole way: quantize_dynamic with its options, then a rewrite and a verification."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    rng = np.random.default_rng(3)
    floats = {"w": rng.normal(size=(DEPTH, COLUMNS)).astype(F), "v": rng.normal(size=(9, COLUMNS)).astype(F)}
    source = model_of("h = MatMul(x, w) r = Relu(h) y = Gemm<transB = 1>(r, v)", f"float[N, {DEPTH}] x", **floats)
    verify = functools.partial(ort_dynq.verify, shapes={"x": (5, DEPTH)})
    for i, options in enumerate(({"weight_type": QuantType.QInt8, "per_channel": True}, {"reduce_range": True})):
        path = tmp_path / f"{i}.onnx"
        quantize_dynamic(source, path, **options)
        rewritten = rewrite(path, exact=True)
        assert sum(node.op_type.startswith("QuantizedMatMul") for node in nodes_of(rewritten.to_proto().graph)) == 2
        assert verify(path, rewritten.to_proto()).passed
