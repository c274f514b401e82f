"""Products of weights behind DequantizeLinear, as exporters write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

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


def add_product(model: onnx.ModelProto) -> None:
    """Adds another product of the same activation and weights."""
    node, value = onnx.NodeProto(), onnx.ValueInfoProto()
    node.CopyFrom(model.graph.node[-1])
    node.name = node.output[0] = "second"
    model.graph.node.append(node)
    value.CopyFrom(model.graph.output[0])
    value.name = "second"
    model.graph.output.append(value)
