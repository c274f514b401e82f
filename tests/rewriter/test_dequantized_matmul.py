"""Products of a float activation and constant weights behind DequantizeLinear, as exporters write them."""

from __future__ import annotations

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
from ort_dynq.rewriter.reasons import Reason
from ort_dynq.storage import ComputedTensor, tensors

Array = npt.NDArray[Any]
_CODES = {"INT4": (-8, 8), "UINT4": (0, 16), "INT8": (-128, 128), "UINT8": (0, 256)}
LEVEL_4, EVERY_RUN = "accuracy_level 4", "in every run"


@dataclass(frozen=True)
class Form:
    """y = x @ weights, of K rows and N columns.

    Attributes:
        codes: The type of the codes.
        axis, block: Of DequantizeLinear; axis None: one scale for all.
        is_transposed: Whether the codes are [N, K]; a Transpose follows unless the product transposes.
        product: The operator, or "GemmT" or "EinsumT", which transpose.
        more: "bias", "alpha", "reshape" (codes of one block in a row, before opset 21), "cast" (of float16 weights).
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
]
FOLDED = [
    Form(axis=1, made=EVERY_RUN, columns=256),
    Form(codes="INT8", axis=0, block=0, made=EVERY_RUN),
    Form(depth=64, columns=64),
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
    assert noise(y[ordinary], reference[ordinary]) > (60 if form.half or form.more == "cast" else 86)
    assert noise(y, reference) > (60 if form.half or form.more == "cast" else 70)
    assert_same(y, np.asarray(stock_session(rewritten).run(None, {"x": form.x})[0]))
    assert ort_dynq.verify(model, rewritten).passed


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


@pytest.mark.skipif(not ort.__version__.startswith("1.32."), reason="what ONNX Runtime fuses depends on its version")
@pytest.mark.parametrize("form", [*FORMS, *FOLDED], ids=str)
def test_reports_what_onnxruntime_makes(form: Form, tmp_path: Path) -> None:
    """ONNX Runtime's optimized model agrees with the report, also of a rewrite that changes nothing."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    model = form.model()
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert ("MatMulNBits" in kinds, "DequantizeLinear" in kinds) == (form.made == LEVEL_4, form.made == EVERY_RUN)
    report = inspect(model, exact=True)
    (finding,) = report.unconverted
    assert finding.reason.startswith("exact")
    assert form.made in finding.reason
    assert "handles itself" not in report.summary


def test_products_of_the_same_weights_share_them() -> None:
    model = Form().model()
    add_product(model, "second")
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


def test_weights_in_a_file(tmp_path: Path) -> None:
    """They are read when the rewritten model is written."""
    form = FORMS[6]
    onnx.save(form.model(), tmp_path / "a.onnx", save_as_external_data=True, size_threshold=0, location="a.data")
    result = ort_dynq.rewrite(tmp_path / "a.onnx")
    assert any(isinstance(each, ComputedTensor) for each in tensors(result.model))
    result.save(tmp_path / "b.onnx")
    assert_same(run(str(tmp_path / "b.onnx"), form.x), run(ort_dynq.rewrite(form.model()).to_proto(), form.x))


def add_product(model: onnx.ModelProto, name: str) -> None:
    """Adds another product of the same activation and weights."""
    node, value = onnx.NodeProto(), onnx.ValueInfoProto()
    node.CopyFrom(model.graph.node[-1])
    node.name, node.output[0] = name, name
    model.graph.node.append(node)
    value.CopyFrom(model.graph.output[0])
    value.name = name
    model.graph.output.append(value)
