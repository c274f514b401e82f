"""Models of old opsets."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx.version_converter
from helpers import Array
from onnx import numpy_helper
from rewriting import F, parse, rows

from ort_dynq.rewriter import Result

CHAIN = (
    "a = Abs(x) m = ReduceMax<axes = [-1]>(a) s = Div(m, c127) d = Div(x, s) r = Round(d) c = Clip(r, low, high) "
    "y = Mul(c, s)"
)
K, N = 64, 48
LINEAR = CHAIN.replace("y =", "p =") + " y = MatMul(p, w)"
CODES = (np.arange(K * N).reshape(K, N) * 37 % 255 - 127).astype(F)
FAKE = ["QuantizedMatMul", "RowProgram"]
X = {"x": rows((9, K))}


def weights(**arrays: Array) -> list[onnx.TensorProto]:
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def of(value: str, body: str = LINEAR) -> str:
    return body.replace("Abs(x)", f"Abs({value})").replace("Div(x", f"Div({value}")


def linear(opset: int = 11, body: str = LINEAR, inputs: str = "float[N, 64] x") -> onnx.ModelProto:
    model = parse(body, opset=opset, inputs=inputs)
    model.graph.initializer.extend(weights(w=CODES))
    return model


def unchanged(result: Result, model: onnx.ModelProto) -> bool:
    graph = result.to_proto().graph
    nodes, expected = ([(*n.input, n.op_type, *n.output) for n in each.node] for each in (graph, model.graph))
    return result.model.opset_imports[""] == model.opset_import[0].version and nodes == expected
