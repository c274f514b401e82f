"""Shared by the tests of recurrent layers: cells, inputs of their operators, and models of one layer."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from helpers import Array
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

from ort_dynq.operators.packing import pack, pack_words
from ort_dynq.operators.word_matmul import MAX_WEIGHT_WORD

EVERY_STEP = 2**31 - 1


def tanh(x: str) -> str:
    return f"Sub(Mul(Sigmoid(Mul({x}, 2.0)), 2.0), 1.0)"


class Cell(NamedTuple):
    gates: int
    program: str
    last_gate: int = 0
    columns: int = 0


_UPDATE = "z = Sigmoid(tensor1); r = Sigmoid(tensor2); "
_NEXT = "dst = Add(Mul(Sub(1.0, z), n), Mul(z, x))"
CELLS = {
    "LSTM": Cell(
        4,
        f"i = Sigmoid(tensor1); f = Sigmoid(tensor3); c = Add(Mul(f, tensor5), Mul(i, {tanh('tensor4')})); "
        f"dst = Mul(Sigmoid(tensor2), {tanh('c')}); dst_2 = c",
    ),
    "LSTM with peepholes": Cell(
        4,
        "i = Sigmoid(Add(tensor1, Mul(column6, tensor5))); f = Sigmoid(Add(tensor3, Mul(column8, tensor5))); "
        f"c = Add(Mul(f, tensor5), Mul(i, {tanh('tensor4')})); "
        f"dst = Mul(Sigmoid(Add(tensor2, Mul(column7, c))), {tanh('c')}); dst_2 = c",
        columns=3,
    ),
    "GRU": Cell(3, f"{_UPDATE}dst_2 = Mul(r, x); n = {tanh('tensor3')}; {_NEXT}", 2),
    "GRU, linear before reset": Cell(3, f"{_UPDATE}n = {tanh('Add(Mul(r, tensor3), tensor4)')}; {_NEXT}", 1),
    "RNN": Cell(1, f"dst = {tanh('tensor1')}"),
    "RNN with Relu": Cell(1, "dst = Clip(tensor1, 0.0, inf)"),
    "numbers": Cell(1, "dst = Mul(Sub(tensor1, x), Sub(0.75, Sqrt(0.0625)))"),  # a pass over numbers comes first
    "nothing": Cell(2, "dst = x"),
}


def recurrence_inputs(
    rng: np.random.Generator,
    steps: int,
    batch: int,
    directions: int,
    size: int,
    cell: Cell = CELLS["LSTM"],
    *,
    operator: str = "QuantizedRecurrence",
) -> list[Array]:
    """Inputs with products of the magnitude of 1; first states and lengths that are one number."""
    columns, has_words = cell.gates * size, operator == "WordRecurrence"
    largest = MAX_WEIGHT_WORD if has_words else 127
    codes = rng.integers(-largest, largest + 1, (directions, size, columns)).astype(np.int16)
    pack_one = pack_words if has_words else lambda each: pack(each.astype(np.int8))
    scale = rng.uniform(0.5, 1.5, (directions, columns)).astype(np.float32) / np.float32(0.8 * largest * size**0.5)
    return [
        rng.standard_normal((steps, batch, directions * columns), np.float32),
        np.stack([pack_one(each) for each in codes]),
        scale,
        *([] if has_words else [codes.sum(1, dtype=np.int32)]),
        rng.standard_normal((directions, columns), np.float32),
        np.zeros((1, 1, 1), np.float32),
        np.zeros((1, 1, 1), np.float32),
        np.array([EVERY_STEP], np.int32),
        rng.standard_normal((directions, cell.columns * size), np.float32),
    ]


def attributes_of(cell: Cell, size: int, direction: int = 0) -> dict[str, str | int]:
    return {"program": cell.program, "hidden_size": size, "direction": direction, "last_gate": cell.last_gate}


# Models of one layer

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OUTPUTS = {"LSTM": ["y", "y_h", "y_c"], "GRU": ["y", "y_h"], "RNN": ["y", "y_h"]}
T, B, DEPTH, H = 7, 3, 40, 136  # H is no multiple of 16; DEPTH is enough for products of integers


def layer(
    operator: str,
    directions: int = 1,
    *,
    size: int = H,
    depth: int = DEPTH,
    batch: int = B,
    steps: int = T,
    given: Sequence[str] = (),
    spread: float = 2,
    outputs: Sequence[str] = (),
    opset: int = 17,
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one layer with random weights, and its inputs.

    `given` has the optional inputs: lengths, state, cell, peepholes; or "no bias".
    """
    rng = np.random.default_rng(0)
    columns = GATES[operator] * size

    def uniform(*shape: int) -> Array:
        return (rng.uniform(-spread, spread, shape) / np.sqrt(size)).astype(np.float32)

    constants = {"w": uniform(directions, columns, depth), "r": uniform(directions, columns, size)}
    constants["b"] = uniform(directions, 2 * columns)
    feeds = {"x": rng.standard_normal((steps, batch, depth), np.float32)}
    optional = {
        "lengths": rng.permutation(np.resize([0, steps, steps - 2, 1], batch)).astype(np.int32),
        "state": rng.uniform(-1, 1, (directions, batch, size)).astype(np.float32),
        "cell": rng.uniform(-2, 2, (directions, batch, size)).astype(np.float32),
    }
    if "peepholes" in given:
        constants["peepholes"] = rng.uniform(-1, 1, (directions, 3 * size)).astype(np.float32)
    feeds |= {name: array for name, array in optional.items() if name in given}
    if attributes.get("layout"):
        feeds = {name: array if name == "lengths" else array.swapaxes(0, 1) for name, array in feeds.items()}
    names = ["x", "w", "r", "" if "no bias" in given else "b"]
    names += [name if name in given else "" for name in ("lengths", "state", "cell", "peepholes")]
    while not names[-1]:
        names.pop()
    results = list(outputs or OUTPUTS[operator])
    direction = {"direction": "bidirectional"} if directions == 2 else {}
    node = helper.make_node(operator, names, results, name="layer", **{"hidden_size": size, **direction, **attributes})
    types = {name: TensorProto.INT32 if name == "lengths" else TensorProto.FLOAT for name in feeds}
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, types[name], array.shape) for name, array in feeds.items()],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * (3 if i else 4))
            for i, name in enumerate(results)
            if name
        ],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), feeds


def decibels(expected: Array, found: Array) -> float:
    signal, noise = expected.astype(np.float64), found - expected.astype(np.float64)
    return float(10 * math.log10(np.square(signal).sum() / max(np.square(noise).sum(), 1e-30)))


def dynamic(model: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """The model after quantize_dynamic: its LSTM is DynamicQuantizeLSTM."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder) / name for name in ("float.onnx", "int8.onnx"))
        onnx.save(model, source)
        quantize_dynamic(source, target, **options)
        return onnx.load(target)


def with_weights_of(dynamic_model: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """The float model of one LSTM with the dequantized weights of the other one."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    weights = {each.name: numpy_helper.to_array(each) for each in dynamic_model.graph.initializer}
    node = next(each for each in dynamic_model.graph.node if each.op_type == "DynamicQuantizeLSTM")
    for name, index in (("w", 1), ("r", 2)):
        codes, scale, zero_point = (weights[node.input[k]] for k in (index, 6 + 2 * index, 7 + 2 * index))
        shape = (len(codes), 1, -1)
        floats = (codes - zero_point.reshape(shape).astype(np.float32)) * scale.reshape(shape)
        tensor = next(each for each in result.graph.initializer if each.name == name)
        tensor.CopyFrom(numpy_helper.from_array(floats.swapaxes(1, 2).astype(np.float32), name))
    return result
