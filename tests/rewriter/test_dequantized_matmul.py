"""Products of a float activation and constant weights behind DequantizeLinear, as exporters write them.

More than 450 lines: all tests share the forms of these products.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers import assert_same, stock_session
from nbits import noise, run
from onnx import TensorProto, helper, numpy_helper

import ort_dynq
from ort_dynq.rewriter import inspect
from ort_dynq.rewriter.products import dequantized_matmul
from ort_dynq.rewriter.reasons import Reason, Unconverted
from ort_dynq.rewriter.weights.scale_indices import ScaleIndices
from ort_dynq.storage import ComputedTensor, tensors

Array = npt.NDArray[Any]
_CODES = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128), "UINT8": (0, 256), "INT16": (-32768, 32768)}
LEVEL_4, EVERY_RUN = "accuracy_level 4", "dequantizes its weights in every run"


@dataclass(frozen=True)
class Form:
    """y = x @ weights, of K rows and N columns.

    Attributes:
        codes: The type of the codes.
        axis, block: Of DequantizeLinear; axis None: one scale for all.
        is_transposed: Whether the codes are [N, K]; a Transpose follows unless the product transposes.
        product: The operator, or "GemmT" or "EinsumT", which transpose.
        more: "bias", "alpha", "reshape" (codes of one block in a row, before opset 21), "cast" (of float16 weights),
            "rounded" (float32 weights that are cast to float16 and back).
        made: What ONNX Runtime makes of it.
        depth, columns: K and N.
    """

    codes: str = "INT4"
    axis: int | None = 0
    block: int = 32
    is_transposed: bool = False
    product: str = "MatMul"
    half: bool = False
    more: str = ""
    made: str = LEVEL_4
    depth: int = 256
    columns: int = 264

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(0)
        shape = (self.columns, self.depth) if self.is_transposed else (self.depth, self.columns)
        if self.more == "reshape":
            shape = (self.columns * self.depth // self.block, self.block)
        block = 0 if self.more == "reshape" else self.block
        scales: tuple[int, ...] = () if self.axis is None else (shape[self.axis],)
        attributes: dict[str, int] = {} if self.axis is None else {"axis": self.axis}
        if block and self.axis is not None:
            scales = tuple(-(-n // block) if i == self.axis else n for i, n in enumerate(shape))
            attributes["block_size"] = block
        dtype = np.float16 if self.half or self.more == "cast" else np.float32
        kind = ir.DataType[self.codes].numpy()
        parts = {
            "codes": rng.integers(*_CODES[self.codes], shape).astype(kind),
            "scales": np.asarray(rng.random(scales) * 0.01 + 0.001, dtype),
            "zeros": np.asarray(rng.integers(*_CODES[self.codes], scales)).astype(kind),
        }
        names = list(parts) if self.codes != "INT8" else ["codes", "scales"]
        initializers = [ir.to_proto(ir.tensor(parts[name], name=name)) for name in names]
        nodes = [helper.make_node("DequantizeLinear", names, ["w"], **attributes)]
        weights = "w"
        if self.more == "reshape":
            initializers.append(numpy_helper.from_array(np.array([self.columns, self.depth]), "shape"))
            nodes.append(helper.make_node("Reshape", [weights, "shape"], [weights := "reshaped"]))
        if self.more == "cast":
            nodes.append(helper.make_node("Cast", [weights], [weights := "cast"], to=TensorProto.FLOAT))
        if self.more == "rounded":
            nodes.append(helper.make_node("Cast", [weights], [weights := "half"], to=TensorProto.FLOAT16))
            nodes.append(helper.make_node("Cast", [weights], [weights := "cast"], to=TensorProto.FLOAT))
        if self.is_transposed and not self.product.endswith("T"):
            nodes.append(helper.make_node("Transpose", [weights], [weights := "transposed"], perm=[1, 0]))
        inputs, given = ["x", weights], dict[str, Any]()
        if self.more in ("bias", "alpha"):
            initializers.append(numpy_helper.from_array(rng.normal(0, 1, self.columns).astype(dtype), "bias"))
            inputs.append("bias")
        if self.more == "alpha":
            given = {"alpha": 0.7, "beta": 1.5}
        if self.product.startswith("Einsum"):
            given = {"equation": "mk,nk->mn" if self.product == "EinsumT" else "mk,kn->mn"}
        elif self.product == "GemmT":
            given["transB"] = 1
        operator = self.product.removesuffix("T") if self.product != "MatMul" else "MatMul"
        nodes.append(helper.make_node(operator, inputs, ["y"], name="product", **given))
        kind_of_x = TensorProto.FLOAT16 if self.half else TensorProto.FLOAT
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", kind_of_x, ["rows", self.depth])],
            [helper.make_tensor_value_info("y", kind_of_x, ["rows", self.columns])],
            initializers,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    @property
    def x(self) -> Array:
        x = np.random.default_rng(1).normal(0, 1, (9, self.depth))
        x[2, 40] *= 30
        x[3] = 0
        x[4, ::3] = np.arange(len(x[4, ::3])) / 16
        return x.astype(np.float16 if self.half else np.float32)


FORMS = [
    Form(),
    Form(codes="UINT4", columns=333),
    Form(codes="INT8", block=64),
    Form(codes="UINT8", axis=1, block=0),
    Form(codes="INT8", axis=None, block=0, depth=300),
    Form(codes="INT8", block=0, is_transposed=True),
    Form(axis=1, is_transposed=True, made=EVERY_RUN),
    Form(codes="UINT4", axis=0, more="reshape", is_transposed=True, block=16, made=EVERY_RUN),
    Form(product="Gemm", more="bias"),
    Form(product="Gemm", more="alpha", made=EVERY_RUN),
    Form(codes="UINT8", axis=1, block=128, is_transposed=True, product="GemmT", more="bias", made=EVERY_RUN),
    Form(codes="INT8", block=0, is_transposed=True, product="EinsumT", made=EVERY_RUN),
    Form(half=True),
    Form(codes="INT8", block=0, is_transposed=True, half=True),
    Form(more="cast", made=EVERY_RUN),
    Form(codes="INT8", axis=1, block=0, more="rounded", made=EVERY_RUN),
]
FOLDED = [
    Form(axis=1, block=16, made=EVERY_RUN, columns=256),
    Form(depth=64, columns=64),
    Form(codes="INT16", axis=1, block=0, made=EVERY_RUN),  # of onnxsim.quantize_weight_only_int16
]
ALONG_SUMS = [  # scales of rows of the matrix, or of parts of them
    Form(codes="INT8", axis=0, block=0, made=EVERY_RUN),
    Form(axis=1, block=64, columns=320, depth=300, made=EVERY_RUN),
    Form(codes="UINT8", axis=1, block=80, columns=320, product="Gemm", more="bias", made=EVERY_RUN),
    Form(codes="UINT4", axis=1, block=75, columns=675, product="Einsum", made=EVERY_RUN),
    Form(codes="UINT4", axis=1, block=128, columns=256, half=True, depth=257, made=EVERY_RUN),
    Form(codes="UINT8", axis=1, block=600, columns=1200, more="cast", made=EVERY_RUN),
]


def outputs_of(model: onnx.ModelProto, x: Array) -> Array:
    """Returns the output of stock ONNX Runtime without optimizations: what the model promises."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_two_terms(form: Form) -> None:
    """By default, the activation keeps about 90 dB; float16 models round their results."""
    model = form.model()
    result = ort_dynq.rewrite(model)
    (finding,) = result.report.findings
    assert finding.operator == "QuantizedMatMul"
    assert "two terms" in finding.reason
    rewritten = result.to_proto()
    y, reference = run(rewritten, form.x), outputs_of(model, form.x).astype(np.float64)
    ordinary = slice(5, None)  # a row of one scale has less with an element of 30 times the others'
    is_half = form.half or form.more in ("cast", "rounded")
    assert noise(y[ordinary], reference[ordinary]) > (60 if is_half else 86)
    assert noise(y, reference) > (60 if is_half else 70)
    assert_same(y, np.asarray(stock_session(rewritten).run(None, {"x": form.x})[0]))
    x = form.x
    x.reshape(-1, x.shape[-1])[2, 70] = np.nan
    assert np.array_equal(np.isnan(run(rewritten, x)), np.isnan(outputs_of(model, x)))


@pytest.mark.parametrize("form", [each for each in FORMS if each.half or each.more or "T" in each.product], ids=str)
def test_verify(form: Form) -> None:
    """Verification finds the weights of each form in the original: transposed, rounded, and with alpha."""
    model = form.model()
    assert ort_dynq.verify(model, ort_dynq.rewrite(model).to_proto()).passed


@pytest.mark.parametrize("form", FORMS[::3], ids=str)
def test_one_term(form: Form) -> None:
    """It is about as accurate as the MatMulNBits that ONNX Runtime makes; channels of one scale are split in blocks."""
    model = form.model()
    result = ort_dynq.rewrite(model, weights_only="blocks")
    assert "8 bits in blocks" in result.report.findings[0].reason
    rewritten = result.to_proto()
    reference = outputs_of(model, form.x).astype(np.float64)
    assert noise(run(rewritten, form.x), reference) > 38
    assert ort_dynq.verify(model, rewritten).passed


@pytest.mark.parametrize(("form", "are_inputs"), [(form, i % 2 > 0) for i, form in enumerate(ALONG_SUMS)], ids=str)
def test_scales_along_the_sums(form: Form, are_inputs: bool) -> None:
    """The activation times the scales of each part has 16 bits; the codes are constants or inputs of the model."""
    model = form.model()
    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer if each.name != "bias"}
    if are_inputs:
        for tensor in [each for each in model.graph.initializer if each.name != "bias"]:
            model.graph.input.add().CopyFrom(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            model.graph.initializer.remove(tensor)
    result = ort_dynq.rewrite(model)
    (finding, *of_half) = result.report.findings
    assert finding.operator.startswith("CompressedMatMul")
    assert EVERY_RUN in finding.reason
    assert all(each.operator == "CompressedMatMul of float16" for each in of_half)
    reference = outputs_of(form.model(), form.x).astype(np.float64)
    many = np.repeat(form.x, 5, 0)
    for threads in (1, 3):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        session = ort_dynq.InferenceSession(model, options)
        y, of_many = (
            np.asarray(session.run(None, {"x": x} | (constants if are_inputs else {}))[0]) for x in (form.x, many)
        )
        is_half = form.half or form.more == "cast"
        assert noise(y, reference) > (60 if is_half else 74)
        assert_same(np.repeat(y, 5, 0), of_many)  # rows do not depend on how many there are
    if not are_inputs:
        assert ort_dynq.verify(model, result.to_proto()).passed


@pytest.mark.parametrize("form", FOLDED, ids=str)
def test_folded(form: Form) -> None:
    """Weights that QuantizedMatMul does not have, or too few of them, are dequantized once."""
    model = form.model()
    result = ort_dynq.rewrite(model)
    (finding,) = result.report.findings
    assert "dequantized once" in finding.reason
    rewritten = result.to_proto()
    assert [node.op_type for node in rewritten.graph.node] == [form.product]
    y = outputs_of(model, form.x)
    np.testing.assert_allclose(run(rewritten, form.x), y, rtol=0, atol=2e-6 * np.abs(y).max())  # orders of sums
    assert ort_dynq.verify(model, rewritten).passed


def optimized(model: onnx.ModelProto, folder: Path) -> list[str]:
    """Returns the operators of the model that ONNX Runtime makes."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node]


_OF_1_32 = pytest.mark.skipif(
    not ort.__version__.startswith("1.32."), reason="what ONNX Runtime fuses depends on its version"
)


@_OF_1_32
@pytest.mark.parametrize("form", [*FORMS, *FOLDED, *ALONG_SUMS], ids=str)
def test_reports_what_onnxruntime_makes(form: Form, tmp_path: Path) -> None:
    """ONNX Runtime's optimized model agrees with the report, also of a rewrite that changes nothing."""
    model = form.model()
    kinds = optimized(model, tmp_path)
    assert ("MatMulNBits" in kinds, "DequantizeLinear" in kinds) == (form.made == LEVEL_4, form.made == EVERY_RUN)
    report = inspect(model, exact=True)
    (finding,) = report.unconverted
    assert finding.reason.startswith("exact")
    assert form.made in finding.reason
    assert "left to ONNX Runtime" not in report.summary


@_OF_1_32
@pytest.mark.parametrize("shared", ["scales", "zeros"])
def test_reports_what_onnxruntime_makes_of_shared_tensors(shared: str, tmp_path: Path) -> None:
    """It makes no MatMulNBits of scales that two DequantizeLinear read, but of zero points; the first rewritten product
    does not change what the report says of the second one."""
    model, other = Form(codes="UINT4").model(), Form(codes="UINT4").model()
    for each in other.graph.node:
        for names in (each.input, each.output):
            names[:] = [name if name in ("x", shared) else f"{name}_2" for name in names]
        each.name += "_2"
        model.graph.node.add().CopyFrom(each)
    for each in other.graph.initializer:
        if each.name != shared:
            each.name += "_2"
            model.graph.initializer.add().CopyFrom(each)
    other.graph.output[0].name = "y_2"
    model.graph.output.append(other.graph.output[0])
    made = LEVEL_4 if "MatMulNBits" in optimized(model, tmp_path) else EVERY_RUN
    assert made == (EVERY_RUN if shared == "scales" else LEVEL_4)
    for report in (inspect(model, exact=True), ort_dynq.rewrite(model).report):
        assert [made in each.reason for each in report.findings] == [True, True]


def test_products_of_the_same_weights_share_them() -> None:
    model = Form().model()
    add_product(model)
    assert len(ort_dynq.rewrite(model).report.rewritten) == 2
    rewritten = ort_dynq.rewrite(model).to_proto()
    calls = [node for node in rewritten.graph.node if node.op_type == "QuantizedMatMul"]
    assert calls[0].input[:7] == calls[1].input[:7]
    assert "DequantizeLinear" not in {node.op_type for node in rewritten.graph.node}


def test_weights_that_another_node_reads_stay() -> None:
    """The table of an embedding: the file would have it twice."""
    model = Form().model()
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [256, 264]))
    (finding,) = ort_dynq.rewrite(model).report.unconverted
    assert "other nodes also read its weights" in finding.reason
    assert EVERY_RUN in finding.reason


@pytest.mark.parametrize("moves", [(), ("Transpose", "Transpose")])
def test_static_activations_stay(moves: tuple[str, ...]) -> None:
    """ONNX Runtime makes one integer product of such an activation and weights, so they are not weights only."""
    model = Form(codes="INT8", axis=1, block=0).model()
    scale = numpy_helper.from_array(np.array(0.05, np.float32), "x_scale")
    zero_point = numpy_helper.from_array(np.array(9, np.uint8), "x_zero_point")
    model.graph.initializer.extend([scale, zero_point])
    at, nodes = "fake", []
    for i, name in enumerate(moves):
        nodes.append(helper.make_node(name, [at], [at := f"moved_{i}"]))
    product = model.graph.node[-1]
    product.input[0] = at
    quantized = ["x_codes", "x_scale", "x_zero_point"]
    before = [helper.make_node("QuantizeLinear", ["x", *quantized[1:]], quantized[:1])]
    before += [helper.make_node("DequantizeLinear", quantized, ["fake"]), *nodes]
    rest = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend([*before, *rest])
    report = ort_dynq.rewrite(model).report
    assert [each.operator for each in report.findings if each.operator] == []
    assert [each.unconverted.reason for each in report.unconverted if each.unconverted] == [Reason.STATIC]


@pytest.mark.parametrize("to", [TensorProto.INT32, TensorProto.BFLOAT16, TensorProto.DOUBLE])
def test_casts_to_other_types_stay(to: int) -> None:
    """QuantizedMatMul would not round the weights to this type."""
    model = Form(codes="INT8", axis=1, block=0, more="rounded").model()
    model.graph.node[1].attribute[0].i = to
    (finding,) = ort_dynq.rewrite(model).report.unconverted
    assert finding.unconverted is not None
    assert finding.unconverted.reason == Reason.DEQUANTIZED_TYPE


@pytest.mark.parametrize("form", [FORMS[12], FORMS[-1]], ids=str)
def test_overflow_of_float16(form: Form) -> None:
    """Codes times scales are finite in float32, but weights of float16 are infinite."""
    model = form.model()
    scales = numpy_helper.to_array(model.graph.initializer[1])
    largest = scales / scales.max() * 60000
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(largest.astype(scales.dtype), "scales"))
    result = ort_dynq.rewrite(model)
    assert "may be larger than float16 represents" in result.report.findings[0].reason
    expected = outputs_of(model, form.x)
    assert not np.isfinite(expected).all()
    np.testing.assert_array_equal(np.isfinite(run(result.to_proto(), form.x)), np.isfinite(expected))


_VALID: dict[str, Any] = {"codes": np.zeros((256, 264), np.int8), "scales": np.ones(264, np.float32)}
INVALID = {
    "few scales": ({"scales": np.ones(100, np.float32)}, {"axis": 1}),
    "rank of scales": ({"scales": np.ones((1, 1), np.float32)}, {"axis": 1}),
    "axis": ({}, {"axis": 5}),
    "few blocks": ({"scales": np.ones((5, 264), np.float32)}, {"axis": 0, "block_size": 32}),
    "rank of blocks": ({}, {"axis": 0, "block_size": 32}),
    "negative block_size": ({"scales": np.ones((8, 264), np.float32)}, {"axis": 0, "block_size": -32}),
    "few zero points": ({"zeros": np.zeros(3, np.int8)}, {"axis": 1}),
    "type of zero points": ({"zeros": np.full(264, 200, np.uint8)}, {"axis": 1}),
    "codes of rank 0": ({"codes": np.array(3, np.int8)}, {"axis": 1}),
}


@pytest.mark.parametrize("name", INVALID)
def test_invalid_dequantizers_stay(name: str) -> None:
    """ONNX Runtime refuses these models, too; the report says why."""
    changed, attributes = INVALID[name]
    arrays = _VALID | changed
    model = Form().model()
    del model.graph.initializer[:]
    model.graph.initializer.extend(numpy_helper.from_array(each, key) for key, each in arrays.items())
    model.graph.node[0].CopyFrom(helper.make_node("DequantizeLinear", [*arrays], ["w"], **attributes))
    (finding,) = ort_dynq.rewrite(model).report.unconverted
    assert "is not valid" in finding.reason


def test_folded_weights_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that several products share count once."""
    form = FOLDED[0]
    model = form.model()
    add_product(model)
    size = 4 * form.depth * form.columns
    monkeypatch.setattr(dequantized_matmul, "FOLDED", dataclasses.replace(dequantized_matmul.FOLDED, most=size))
    assert len(ort_dynq.rewrite(model).report.rewritten) == 2
    monkeypatch.setattr(dequantized_matmul, "FOLDED", dataclasses.replace(dequantized_matmul.FOLDED, most=size - 1))
    assert ["more than 1 GB" in each.reason for each in ort_dynq.rewrite(model).report.unconverted] == [True, True]


def test_products_of_the_same_weights_with_another_alpha_share_codes() -> None:
    form = Form(codes="INT8", axis=None, block=0, product="Gemm", depth=264)
    model = form.model()
    add_product(model)
    model.graph.node[-1].attribute.append(helper.make_attribute("alpha", 2.0))
    rewritten = ort_dynq.rewrite(model).to_proto()
    calls = [node for node in rewritten.graph.node if node.op_type == "QuantizedMatMul"]
    assert [calls[0].input[i] == calls[1].input[i] for i in range(3, 7)] == [True, True, False, True]
    assert ort_dynq.verify(model, rewritten).passed


def test_products_of_both_orientations_stay() -> None:
    model = Form(codes="INT8", axis=None, block=0, product="Gemm", depth=264).model()
    add_product(model)
    model.graph.node[-1].attribute.append(helper.make_attribute("transB", 1))
    findings = ort_dynq.rewrite(model).report.unconverted
    assert ["other nodes also read its weights" in each.reason for each in findings] == [True, True]


MOVES: list[list[tuple[str, list[int]]]] = [
    [("reshape", [192, 48]), ("transpose", [1, 0])],
    [("transpose", [1, 2, 0]), ("reshape", [16, 576])],
    [("reshape", [12, 4, 4, 48]), ("transpose", [0, 2, 1, 3]), ("reshape", [48, 192])],
    [("transpose", [2, 0, 1]), ("reshape", [96, 96])],
]
CUT = [(1, 5, 2), (0, 4, 3), (0, 8, 3)]  # axis, block and moves that put a part of a block into another dimension


@pytest.mark.parametrize(("axis", "block"), [(0, 0), (2, 0), (0, 4), (0, 8), (1, 8), (2, 16), (1, 5), (0, 12)])
@pytest.mark.parametrize("moves", range(len(MOVES)))
def test_indices_of_scales(axis: int, block: int, moves: int) -> None:
    """They are those of an array of indices that goes through the same nodes."""
    shape = (12, 16, 48)
    of_scale = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape)) if block else (shape[axis],)
    index = np.arange(np.prod(of_scale)).reshape(of_scale if block else [-1 if i == axis else 1 for i in range(3)])
    index = np.broadcast_to(index.repeat(block, axis).take(range(shape[axis]), axis) if block else index, shape)
    found = ScaleIndices.of(shape, of_scale, axis, block)
    try:
        for name, argument in MOVES[moves]:
            index, found = (getattr(each, name)(argument) for each in (index, found))
    except Unconverted:
        assert (axis, block, moves) in CUT
        return
    assert (axis, block, moves) not in CUT
    assert found.shape == index.shape
    np.testing.assert_array_equal(found.along(0)[:, None] + found.along(1), index)


def test_weights_in_a_file(tmp_path: Path) -> None:
    """They are read when the rewritten model is written."""
    form = FORMS[6]
    onnx.save(form.model(), tmp_path / "a.onnx", save_as_external_data=True, size_threshold=0, location="a.data")
    result = ort_dynq.rewrite(tmp_path / "a.onnx")
    assert any(isinstance(each, ComputedTensor) for each in tensors(result.model))
    result.save(tmp_path / "b.onnx")
    assert_same(run(str(tmp_path / "b.onnx"), form.x), run(ort_dynq.rewrite(form.model()).to_proto(), form.x))


def add_product(model: onnx.ModelProto) -> None:
    """Adds another product of the same activation and weights."""
    node, value = onnx.NodeProto(), onnx.ValueInfoProto()
    node.CopyFrom(model.graph.node[-1])
    node.name = node.output[0] = "second"
    model.graph.node.append(node)
    value.CopyFrom(model.graph.output[0])
    value.name = "second"
    model.graph.output.append(value)
