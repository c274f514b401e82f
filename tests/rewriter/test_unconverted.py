"""Every unconverted product of quantized data has a reason. A model without conversions says what it has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import diagonals, with_arrays
from onnx import helper, numpy_helper
from rewriting import found, load, parse
from unconverted_models import CONSTANTS, FAKE, TRUNCATED, model_of, report_of

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.reasons import Reason

LINEAR = "q, s, z = DynamicQuantizeLinear(x)"


def test_a_quantization_that_became_a_program() -> None:
    """The scale of an image may be that of another one: the batch has no name, so a Reshape may have changed it."""
    nodes = """a = Abs(x) n = ReduceMax<keepdims = 0>(a, axes) m = Reshape(n, numbers) s = Div(m, c127) d = Div(x, s)
        r = Round(d) c = Clip(r, low, high) f = Mul(c, s) y = Conv(f, filter)"""
    model = model_of(nodes, "float[?, 8, H, W] x")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.array(each), name)
        for name, each in (("axes", [1, 2, 3]), ("numbers", [-1, 1, 1, 1]))
    )
    report = rewrite(model).report
    assert found(report) == ["RowProgram"]
    (left,) = report.unconverted
    assert (left.op_type, left.unconverted and left.unconverted.reason) == ("Conv", Reason.FORM_LOST)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (f"{FAKE} t = Relu(f) u = Identity(t) y = Gemm(u, w)", "after Relu t: it is not affine"),
        (
            "a = Abs(x) s = ReduceMean<keepdims = 1>(a, one) e = Div(x, s) b = Abs(e) n = Floor(b) i = Sign(e)"
            " c = Mul(i, n) t = Div(c, c127) u = Clip(t, low, high) f = Mul(u, s) y = MatMul(f, w)",
            "after Mul c: magnitudes times signs are not proven to fit 8 bits; clip them after it",
        ),
        (f"{FAKE} t = Add(f, x) u = Mul(t, x) y = MatMul(u, w)", "after Add t: no operand is known to be one number"),
        (f"k = Round(x) e = Add(k, x) {FAKE.replace('(x', '(e')} g = Add(f, e) y = MatMul(g, w)", "after Add g: no"),
        (
            "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) s = Div(m, c127) d = Div(a, s) r = Round(d) f = Mul(r, s)"
            " i = Sign(x) t = Mul(f, i) y = MatMul(t, w)",
            "after Mul t: magnitudes times signs are scaled already; scale them last",
        ),
        (  # of fairseq: the gradient is that of a clip, and what is beyond it is no code
            f"{FAKE} i = Mul(s, high) k = Min(x, i) l = Neg(i) p = Max(k, l) e = Sub(f, x) g = Mul(e, one_f)"
            " t = Add(p, g) y = MatMul(t, w)",
            "after Sub e: in x + (y - x), x is not known to lie within the range of the codes of y; export y alone",
        ),
        (f"{FAKE} t = Sigmoid(f) y = MatMul(t, w)", "after Sigmoid t: it is not affine"),
        (f"{FAKE} y = com.microsoft.FusedMatMul(f, w)", "no integer product for com.microsoft.FusedMatMul"),
        (f"{FAKE} y = MatMul(x, f)", "only its second factor is quantized"),
        (f"{FAKE} y = MatMul(f, w)", "the weights are not an 8-bit grid"),
        (f"{LINEAR} y = MatMulInteger(q, wu, z)", "the int32 result is not cast and scaled"),
        (f"{LINEAR} i = MatMulInteger(q, q, z, z) j = Cast<to = 1>(i) y = Mul(j, s)", "two quantized activations"),
        (f"{LINEAR} y = QLinearMatMul(q, s, z, q, s, z, s, z)", "optimizer made it of run-time scales"),
        (f"{LINEAR} y = QLinearMatMul(q, eps, none, q, s, z, s, z)", "it is an integer operator of ONNX Runtime"),
        (f"{LINEAR} j = Cast<to = 1>(q) y = MatMul(j, w)", "the weights are not an 8-bit grid"),
        ("q = QuantizeLinear(x, eps, none) u = DequantizeLinear(q, eps, none) y = MatMul(u, w)", Reason.STATIC.value),
        (f"{TRUNCATED} q = Cast<to = 3>(d) f = Cast<to = 1>(q) y = MatMul(f, w)", "the weights are not an 8-bit grid"),
        ("h = Cast<to = 16>(x) a = Abs(h) m = ReduceMax<keepdims = 1>(a, one) d = Div(h, m) r = Round(d) f = Mul(r, m)"
         " g = Cast<to = 1>(f) y = MatMul(g, w)", "after Round r: the codes are of the type bfloat16"),
    ],
)  # fmt: skip
def test_products_of_quantized_data_have_a_reason(nodes: str, reason: str) -> None:
    staying = [each for each in report_of(nodes).unconverted if each.node == "y" or each.op_type == "MatMulInteger"]
    assert [reason in each.reason for each in staying] == [True], staying


@pytest.mark.parametrize("cast", ["Identity(e)", "Cast<to = 1>(h)"])
def test_a_mask_of_the_shape_of_codes_is_not_quantized(cast: str) -> None:
    """Neither are integers that float16 models cast."""
    nodes = f"{FAKE} n = Shape(c) e = ConstantOfShape(n) h = Cast<to = 10>(e) k = {cast} t = Trilu(k) p = Add(x, t)"
    model = model_of(f"{nodes} y = MatMul(p, w) z = MatMul(f, w)", "float[N, 48] x", "float[N, M] y, float[N, M] z")
    assert [each.node for each in rewrite(model).report.unconverted if each.op_type == "MatMul"] == ["z"]


def test_products_of_images_have_a_reason() -> None:
    inputs = "float[1, 8, 20, 20] x"
    nodes = f"{LINEAR} u = DequantizeLinear(q, s, z) p = MaxPool<kernel_shape = [2, 2]>(u) y = Conv(p, filter)"
    assert "after MaxPool p: it ignores NaN" in report_of(nodes, inputs=inputs).unconverted[0].reason
    scale = FAKE.replace("(a, one)", "(a, of_channels)")
    reason = report_of(f"{scale} y = Conv(f, pointwise)", inputs="float[2, 8, 20, 20] x").unconverted[0].reason
    assert "transposing its codes and its result" in reason
    (found,) = report_of(
        f"{scale} y = Conv<strides = [2, 2]>(f, pointwise)", inputs="float[2, 8, 20, 20] x"
    ).unconverted[:1]
    assert "one of 1x1 with strides of 1 and without pads may have a scale for each position" in found.reason
    (found,) = report_of(
        f"{LINEAR} u = DequantizeLinear(q, s, z) y = ConvTranspose(u, filter)", inputs=inputs
    ).unconverted
    assert "8-bit grid" in found.reason


@pytest.mark.parametrize(
    "nodes",
    [
        "y = MatMul(x, w)",
        "u = DequantizeLinear(wq, eps) y = MatMul(x, u)",
    ],
)
def test_other_products_are_not_reported(nodes: str) -> None:
    assert not report_of(nodes).unconverted


@pytest.mark.parametrize(
    ("name", "summary"),
    [
        ("torch_lsq_constant", "1 unconverted"),
    ],
)
def test_summary_of_a_model_without_anything_to_do(name: str, summary: str) -> None:
    report = rewrite(load(name)).report
    assert report.summary == f"nothing to rewrite{',' if summary[0].isdigit() else ':'} {summary}"
    assert report.to_dict()["summary"] == report.summary


@pytest.mark.parametrize(
    ("nodes", "summary"),
    [
        (
            "q = QuantizeLinear(x, eps, none) u = DequantizeLinear(q, eps, none) y = MatMul(u, w)",
            "nothing to rewrite, 1 unconverted: 1 DequantizeLinear and 1 QuantizeLinear with constant scales, left to"
            " ONNX Runtime",
        ),
        ("y = MatMul(x, w)", "nothing to rewrite: no quantization with run-time scales, 1 MatMul; ort-dynq quantize is"
         " for float models"),
        ("y = Relu(x)", "nothing to rewrite: no quantization with run-time scales"),
        (f"{LINEAR} y = MatMulInteger(q, wu, z)", "nothing to rewrite, 1 unconverted: 1 DynamicQuantizeLinear and 1"
         " MatMulInteger"),
        (f"{LINEAR} y = Cast<to = 1>(q)", "nothing to rewrite: 1 DynamicQuantizeLinear"),
    ],
)  # fmt: skip
def test_summaries(nodes: str, summary: str) -> None:
    outputs = "int32[] y" if "y = MatMulInteger" in nodes else "float[] y"
    assert rewrite(model_of(nodes, outputs=outputs)).report.summary == summary


def test_a_rewritten_model_says_so() -> None:
    model = rewrite(load("torch_token")).to_proto()
    assert isinstance(model, onnx.ModelProto)
    again = rewrite(model).report
    assert again.summary.endswith("1 ort_dynq.RowProgram, from a rewrite")
    assert [each.unconverted and each.unconverted.reason for each in again.findings] == [Reason.ACTIVATION_FORM]


IN_FLOAT32 = "after Mul f: ONNX Runtime computes it in float16; quantize and dequantize in float32"
NO_NUMBER = "no operand is known to be one number for each row, or for all; quantize after it, or export static shapes"
LOST = {  # nodes from the codes c to g; the reason in float32, and in float16 if it is another one
    "Relu": ("f = Mul(c, s) g = Relu(f)", "after Relu g: it is not affine; quantize after it", IN_FLOAT32),
    "residual": ("f = Mul(c, s) g = Add(f, x)", f"after Add g: {NO_NUMBER}", ""),
    "sum": ("f = Mul(c, s) g = CumSum(f, axis)", "after CumSum g: it is not affine; quantize after it", ""),
    "cache": (
        "f = Mul(c, s) h = Concat<axis = 0>(f, x) g = Identity(h)",
        "after Concat h: its inputs are not all codes of the same kind times a scale; quantize after it",
        "",
    ),
    "magnitudes": ("g = Mul(c, a)", f"after Mul g: {NO_NUMBER}", ""),
    "integers": (
        "e = Div(m, u) k = Div(x, e) z = Round(k) i = Cast<to = 6>(z) j = {cast}(i) g = Mul(j, e)",
        "after Cast i: its input is not known to be integers of 32 bits; clip the codes before it",
        "",
    ),
}


@pytest.mark.parametrize(("is_half", "is_inner", "lost"), diagonals(2, [False, True], [False, True], LOST))
def test_every_graph_and_type_has_reasons(lost: str, is_inner: bool, is_half: bool) -> None:
    """The reason names the value of the model where codes stop to be codes times a scale, and says what to change."""
    dtype, cast = ("float16", "Cast<to = 10>") if is_half else ("float", "Cast<to = 1>")
    body, in_float32, in_float16 = LOST[lost]
    nodes = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) t = {cast}(eps) o = Max(m, t) u = {cast}(c127)"
    nodes += (
        " s = Div(o, u) d = Div(x, s) r = Round(d) l = {cast}(low) c = Clip(r, l, u) axis = Constant<value_int = 1>()"
    )
    nodes = f"{nodes} {body} v = {{cast}}(w) y = MatMul(g, v)".replace("{cast}", cast)
    if is_inner:
        nodes = f"y = If(b) <then_branch = then () => ({dtype}[N, M] y) {{ {nodes} }},"
        nodes += f" else_branch = otherwise () => ({dtype}[N, M] n) {{ n = Identity(x) }}>"
    model = model_of(nodes, f"{dtype}[48, 48] x, bool b", f"{dtype}[N, M] y")
    if is_inner:
        model.graph.initializer.append(numpy_helper.from_array(CONSTANTS["w"], "w"))
    (finding,) = [each for each in rewrite(model).report.unconverted if each.op_type == "MatMul"]
    assert finding.unconverted is not None
    assert finding.unconverted.reason == Reason.FORM_LOST
    expected = (is_half and in_float16) or in_float32
    assert (finding.node, finding.reason) == ("y", f"its activation is no longer codes times a scale {expected}")


def test_a_condition_is_no_code() -> None:
    """Masks of attention are casts to bool: what Where picks by them was not quantized."""
    text = "m = Cast<to = 9>(x) n = Where(m, eps, x) p = Softmax(n) y = MatMul(p, x)"
    assert not report_of(text).unconverted


@pytest.mark.parametrize(
    "nodes",
    [
        "q, s = trt.TRT_MXFP8DynamicQuantize(x) d = trt.TRT_MXFP8DequantizeLinear(q, s) y = MatMul(d, w)",
        "d = trt.TRT_FP8DequantizeLinear(wu, eps) y = MatMul(x, d)",
    ],
)
def test_operators_of_tensorrt(nodes: str) -> None:
    model = model_of(nodes)
    model.opset_import.append(helper.make_opsetid("trt", 1))
    (finding,) = rewrite(model).report.unconverted
    assert finding.unconverted is not None
    assert finding.unconverted.reason == Reason.TENSORRT


@pytest.mark.parametrize(("dtype", "is_fused"), [(np.int8, False), (np.uint8, True)])
def test_what_onnxruntime_makes_of_dequantized_codes(dtype: type, is_fused: bool, tmp_path: Path) -> None:
    """The reason says what ONNX Runtime runs: the optimized graph has a DequantizeLinear, or an integer product."""
    body = (
        "q = Gather(k, i) f = DequantizeLinear(q, t, z) u = DequantizeLinear(k, t, z) v = Transpose(u) y = MatMul(f, v)"
    )
    model = parse(body, inputs="int64[4] i", outputs="float[4, 96] y", opset=17)
    codes = np.random.default_rng(0).integers(0, 100, (96, 64)).astype(dtype)
    arrays = {"k": codes, "t": np.array(0.01, np.float32), "z": np.array(0, dtype)}
    with_arrays(model, arrays)
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    operators = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert ("MatMulIntegerToFloat" in operators) == is_fused
    reasons = [each.unconverted and each.unconverted.reason for each in rewrite(model).report.unconverted]
    assert reasons == ([] if is_fused else [Reason.CODES_DEQUANTIZED])


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_pools_of_codes_are_a_step_off(dtype: type) -> None:
    """What the reason says is what ONNX Runtime does: a release that rounds ties to even needs no such line."""
    body = (
        "q = QuantizeLinear(x, t, z) f = DequantizeLinear(q, t, z) p = AveragePool<kernel_shape = [2, 2]>(f)"
        " y = QuantizeLinear(p, t, z)"
    )
    output = f"{np.dtype(dtype).name}[1, 64, 15, 15] y"
    model = parse(body, inputs="float[1, 64, 16, 16] x", outputs=output, opset=17)
    arrays = {"t": np.array(0.03, np.float32), "z": np.array(0, dtype)}
    with_arrays(model, arrays)
    x, results = np.random.default_rng(0).normal(size=(1, 64, 16, 16)).astype(np.float32), []
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results.append(session.run(None, {"x": x})[0].astype(int))
    assert np.abs(results[0] - results[1]).max() == 1
    reasons = [each.unconverted and each.unconverted.reason for each in rewrite(model).report.unconverted]
    assert reasons == [Reason.POOL_OF_CODES]
