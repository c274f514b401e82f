"""Random changes of a model that make it unusual or invalid: of attributes, shapes, types, initializers and inputs."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import onnx
from helpers import nodes_of
from onnx import AttributeProto, TensorProto, helper, numpy_helper

INTEGERS = [0, 1, 2, 3, 7, -1, -2, -3, 2**31, 2**33 + 1, 2**63 - 1, -(2**63)]
NUMBERS = [0.0, -0.0, 1.0, -1.0, 0.5, 127.0, 128.0, 255.0, 1e-45, 3e38, np.inf, -np.inf, np.nan]
OPERATORS = [
    ("Max", "Min"),
    ("ReduceMax", "ReduceMin"),
    ("Add", "Sub", "Mul", "Div"),
    ("Round", "Floor", "Ceil", "Abs", "Neg", "Reciprocal", "Identity"),
]
TYPES = [
    TensorProto.FLOAT,
    TensorProto.UINT8,
    TensorProto.INT8,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.FLOAT16,
]


def mutate(model: onnx.ModelProto, rng: random.Random) -> str:
    """Changes a model at one place or, more rarely, at several; returns what was done."""
    done: list[str] = []
    while not done or rng.random() < 0.3:
        done += filter(None, [rng.choice(MUTATIONS)(model, rng)])
    return "; ".join(done)


def _attribute(model: onnx.ModelProto, rng: random.Random) -> str:
    found = [
        (node, each)
        for node in _nodes(model)
        for each in node.attribute
        if each.type in (_INT, _INTS) and (node.op_type, each.name) != _UNINITIALIZED
    ]
    if not found:
        return ""
    node, attribute = rng.choice(found)
    if attribute.type == _INT:
        attribute.i = rng.choice(INTEGERS)
    elif rng.random() < 0.3 or not attribute.ints:
        attribute.ints.append(rng.choice(INTEGERS))
    elif rng.random() < 0.2:
        attribute.ints.pop()
    else:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(INTEGERS)
    return f"{node.op_type} {node.output[0]}: {attribute.name} = {helper.get_attribute_value(attribute)}"


# ONNX Runtime then leaves integers uninitialized, so there is nothing to compare with.
_UNINITIALIZED = ("Cast", "saturate")
_INT, _INTS = AttributeProto.INT, AttributeProto.INTS
# Attributes that exporters rarely write, with the operators that have them.
_RARE = {
    "keepdims": ("ReduceMax", "ReduceMin"),
    "noop_with_empty_axes": ("ReduceMax", "ReduceMin"),
    "transA": ("Gemm",),
    "transB": ("Gemm",),
    "axis": ("QuantizeLinear", "DequantizeLinear", "Concat", "Softmax"),
    "block_size": ("QuantizeLinear", "DequantizeLinear"),
    "saturate": ("QuantizeLinear",),
    "output_dtype": ("QuantizeLinear", "DequantizeLinear"),
    "precision": ("QuantizeLinear",),
    "allowzero": ("Reshape",),
    "start": ("Shape",),
    "end": ("Shape",),
    "group": ("Conv", "ConvInteger"),
}


def _new_attribute(model: onnx.ModelProto, rng: random.Random) -> str:
    name = rng.choice(list(_RARE))
    found = [
        node
        for node in _nodes(model)
        if node.op_type in _RARE[name] and all(each.name != name for each in node.attribute)
    ]
    if not found:
        return ""
    node = rng.choice(found)
    node.attribute.append(helper.make_attribute(name, rng.choice(INTEGERS)))
    return f"{node.op_type} {node.output[0]}: {name} = {node.attribute[-1].i}"


def _no_attribute(model: onnx.ModelProto, rng: random.Random) -> str:
    found = [node for node in _nodes(model) if node.attribute and node.op_type != "Constant"]
    if not found:
        return ""
    node = rng.choice(found)
    removed = node.attribute.pop(rng.randrange(len(node.attribute)))
    return f"{node.op_type} {node.output[0]}: no {removed.name}"


def _declared(model: onnx.ModelProto, rng: random.Random) -> str:
    """Declares a type and shape for a computed value, or changes those of an output."""
    names = [name for node in model.graph.node for name in node.output if name]
    shape = [rng.choice([1, 2, 3, 5, 16, 32, "n", None]) for _ in range(rng.randrange(5))]
    given = {info.name: info for info in (*model.graph.value_info, *model.graph.output)}
    name = rng.choice([*names, *given])
    if name not in given:
        info = helper.make_tensor_value_info(name, rng.choice(TYPES), shape)
        model.graph.value_info.append(info)
        return f"{name} declared {info.type.tensor_type.elem_type} {shape}"
    tensor = given[name].type.tensor_type
    if rng.random() < 0.3:
        tensor.elem_type = rng.choice(TYPES)
    elif tensor.shape.dim and rng.random() < 0.7:
        tensor.shape.dim[rng.randrange(len(tensor.shape.dim))].CopyFrom(_dimension(rng.choice([1, 2, 3, 7, "n", None])))
    else:
        tensor.shape.CopyFrom(onnx.TensorShapeProto(dim=map(_dimension, shape)))
    return f"{name} declared {tensor.elem_type} {[dim.dim_value or dim.dim_param for dim in tensor.shape.dim]}"


def _dimension(dim: int | str | None) -> onnx.TensorShapeProto.Dimension:
    return onnx.TensorShapeProto.Dimension(
        dim_value=dim if isinstance(dim, int) else None, dim_param=dim if isinstance(dim, str) else None
    )


def _input_shape(model: onnx.ModelProto, rng: random.Random) -> str:
    """Makes a dimension of an input dynamic, or gives all dynamic ones one name."""
    graph_input = rng.choice(model.graph.input)
    dims = graph_input.type.tensor_type.shape.dim
    if not dims:
        return ""
    for dim in dims if rng.random() < 0.3 else [rng.choice(dims)]:
        dim.CopyFrom(_dimension(rng.choice(["n", "m", None])))
    return f"{graph_input.name} {[dim.dim_value or dim.dim_param for dim in dims]}"


def _tensor(model: onnx.ModelProto, rng: random.Random) -> str:
    """Changes the elements, the shape or the type of a constant."""
    tensors = [
        *model.graph.initializer,
        *(each.t for node in _nodes(model) for each in node.attribute if each.HasField("t")),
    ]
    if not tensors:
        return ""
    tensor = rng.choice(tensors)
    array = numpy_helper.to_array(tensor).copy()
    if array.dtype.kind not in "fiu":
        return ""
    match rng.randrange(3):
        case 0 if array.size:
            numbers = NUMBERS if array.dtype.kind == "f" else [0, 1, 2, 3, 127]
            array.reshape(-1)[rng.randrange(array.size)] = rng.choice(numbers)
        case 1:
            array = array.reshape(rng.choice([(-1,), (1, -1), (-1, 1), (1, *array.shape), array.shape[::-1]]))
        case _:
            with np.errstate(all="ignore"):
                array = array.astype(helper.tensor_dtype_to_np_dtype(rng.choice(TYPES)))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return f"constant {tensor.name}: {array.dtype} {array.shape} {array.reshape(-1)[:3]}"


def _opset(model: onnx.ModelProto, rng: random.Random) -> str:
    for each in model.opset_import:
        if each.domain == "":
            each.version = rng.randint(9, 22)
            return f"opset {each.version}"
    return ""


_VARIADIC = ("Concat", "Max", "Min", "Sum")  # ONNX Runtime crashes if one of several inputs is missing


def _input(model: onnx.ModelProto, rng: random.Random) -> str:
    """Exchanges, replaces or removes inputs of a node."""
    node = rng.choice([node for node in _nodes(model) if node.input])
    at = rng.randrange(len(node.input))
    match rng.randrange(4):
        case 0:
            names = [name for other in _nodes(model) for name in (*other.input, *other.output)]
            node.input[at] = rng.choice(names)
        case 1:
            node.input[:] = rng.sample(list(node.input), len(node.input))
        case 2 if node.op_type not in _VARIADIC:
            node.input[at] = ""
        case _:
            node.input.pop()
    return f"{node.op_type} {node.output[0]} of {list(node.input)}"


def _operator(model: onnx.ModelProto, rng: random.Random) -> str:
    found = [(node, group) for node in _nodes(model) for group in OPERATORS if node.op_type in group]
    if not found:
        return ""
    node, group = rng.choice(found)
    before, node.op_type = node.op_type, rng.choice(group)
    return f"{before} {node.output[0]} becomes {node.op_type}"


def _nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for body in (model.graph, *model.functions) for node in nodes_of(body)]


MUTATIONS: list[Callable[[onnx.ModelProto, random.Random], str]] = [
    *(_attribute, _new_attribute, _no_attribute, _declared, _declared, _input_shape),
    *(_tensor, _tensor, _opset, _input, _operator),
]
