"""Models in the format of protocol buffers, with large weights in a buffer of their own.

A protocol buffer copies its weights whenever it is read, and once more when a session is opened from it. So the weights
of a file stay in the buffer into which it was read, and those of a model in memory in their arrays. Sessions take them
from there: in the serialized model, each of these tensors is a reference to external data that do not exist.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

Weights = dict[str, npt.NDArray[Any]]

_GRAPH, _INITIALIZER = 7, 5  # fields of ModelProto and GraphProto
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION = 9, 13, 14  # fields of TensorProto
_MAX_SHIFT = 63  # of a number of at most 64 bits
_LENGTH_DELIMITED = 2
_MAX_HEAD_BYTES = 20  # bytes of the number and the length of a field
_MIN_VALUE = 1024  # bytes of a large tensor; smaller ones may have to be read for their values, such as shapes
_ALIGNMENT = 4  # bytes of the largest elements
_WORTHWHILE = 1 << 20  # bytes of all large tensors of a model for a session
_LOCATION = "-"
# Serialized fields of TensorProto: external_data with a location, and data_location.
_REFERENCE = onnx.TensorProto(
    external_data=[onnx.StringStringEntryProto(key="location", value=_LOCATION)],
    data_location=onnx.TensorProto.EXTERNAL,
).SerializeToString()
# Only tensors of these types: others are packed, or have no type of NumPy's own.
_DTYPES = {
    each: np.dtype(f"<{onnx.helper.tensor_dtype_to_np_dtype(each).str[1:]}")
    for each in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
}


class _Field(NamedTuple):
    number: int
    start: int
    begin: int  # of the value
    end: int


def without_weights(content: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    """Returns a serialized model without the bytes of the large initializers of its main graph, and these bytes.

    Args:
        content: The model. If it is none, or in another format, it is returned as it is. If it can be written, the
            bytes of the initializers are moved to the next multiple of 4 before them, where kernels can read them.

    Returns:
        The model, and the bytes by the index of the initializer.
    """
    try:
        model, places = _without_weights(content)
    except (ValueError, IndexError):  # the parser says what is wrong
        return bytes(content), {}
    if content.readonly:
        return model, {index: content[begin:end] for index, (begin, end) in places.items()}
    return model, {index: _aligned(content, begin, end) for index, (begin, end) in places.items()}


def _aligned(content: memoryview, begin: int, end: int) -> memoryview:
    """Moves bytes to a multiple of 4. Before them are at least 3 bytes, of the number and the length of the field."""
    shift = (np.frombuffer(content, np.uint8).ctypes.data + begin) % _ALIGNMENT
    if shift:
        content[begin - shift : end - shift] = content[begin:end]
    return content[begin - shift : end - shift].toreadonly()


def _without_weights(content: memoryview) -> tuple[bytes, dict[int, tuple[int, int]]]:
    """Returns the model, and where the bytes begin and end."""
    pieces, found, index = list[bytes | memoryview](), dict[int, tuple[int, int]](), 0
    for field in _fields(content, 0, len(content)):
        if field.number != _GRAPH:
            pieces.append(content[field.start : field.end])
            continue
        graph, copied = list[bytes | memoryview](), field.begin
        for part in _fields(content, field.begin, field.end):
            if part.number != _INITIALIZER:
                continue
            fields = list(_fields(content, part.begin, part.end))
            raw = [each for each in fields if each.number == _RAW_DATA]
            is_inside = not any(each.number in (_EXTERNAL_DATA, _DATA_LOCATION) for each in fields)
            if is_inside and len(raw) == 1 and raw[0].end - raw[0].begin > _MIN_VALUE:
                tensor = b"".join((content[part.begin : raw[0].start], content[raw[0].end : part.end], _REFERENCE))
                graph += (content[copied : part.start], _prefix(_INITIALIZER, len(tensor)), tensor)
                copied = part.end
                found[index] = raw[0].begin, raw[0].end
            index += 1
        graph.append(content[copied : field.end])
        pieces += (_prefix(_GRAPH, sum(map(len, graph))), *graph)
    return b"".join(pieces), found


def _fields(content: memoryview, position: int, end: int) -> Iterator[_Field]:
    """Yields the fields of a message.

    Raises:
        ValueError: It is no message.
    """
    while position < end:
        start = position
        key, position = _varint(content, position)
        kind = key & 7
        if kind == _LENGTH_DELIMITED:
            length, position = _varint(content, position)
            last = position + length
        elif kind == 0:
            _, last = _varint(content, position)
        elif kind in (1, 5):
            last = position + (8 if kind == 1 else 4)
        else:
            raise ValueError("no field")
        if last > end:
            raise ValueError("the field is too long")
        yield _Field(key >> 3, start, position, last)
        position = last


def fields_of(file: BinaryIO, number: int) -> Iterator[bytes]:
    """Yields the values of a field of the message in a file, and reads nothing else of it but where fields begin.

    Raises:
        ValueError, IndexError: The file is no message.
        OSError: It cannot be read.
    """
    end, position = file.seek(0, os.SEEK_END), 0
    while position < end:
        file.seek(position)
        field = next(_fields(memoryview(file.read(_MAX_HEAD_BYTES)), 0, end - position))
        if field.number == number:
            file.seek(position + field.begin)
            yield file.read(field.end - field.begin)
        position += field.end


def _varint(content: memoryview, position: int) -> tuple[int, int]:
    """Returns a number and the position behind it.

    Raises:
        ValueError: The number has more than 64 bits.
    """
    number = shift = 0
    while shift <= _MAX_SHIFT:
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
    raise ValueError("the number is too long")


def _prefix(number: int, length: int) -> bytes:
    """Returns what is before the value of a field of this length."""
    encoded = bytearray([number << 3 | _LENGTH_DELIMITED])
    while length >= 0x80:
        encoded.append(length & 0x7F | 0x80)
        length >>= 7
    encoded.append(length)
    return bytes(encoded)


def put_back(model: onnx.ModelProto, apart: dict[int, memoryview]) -> Weights:
    """Returns the weights that were apart as arrays; those that are none get their bytes back.

    Args:
        model: The model without the weights.
        apart: The bytes by the index of the initializer.
    """
    found: Weights = {}
    counts = Counter(tensor.name for tensor in model.graph.initializer)
    for index, content in apart.items():
        tensor = model.graph.initializer[index]
        dtype, shape = _DTYPES.get(tensor.data_type), tuple(tensor.dims)
        is_alone = min(shape, default=1) >= 0 and counts[tensor.name] == 1
        if dtype is not None and is_alone and math.prod(shape) * dtype.itemsize == len(content):
            found[tensor.name] = np.frombuffer(content, dtype).reshape(shape)
        else:
            tensor.ClearField("external_data")
            tensor.ClearField("data_location")
            tensor.raw_data = bytes(content)
    return found


def with_inputs(content: bytes, names: Collection[str]) -> bytes:
    """Returns a serialized model in which initializers are inputs, without values.

    Args:
        content: The model.
        names: Those of initializers of its main graph.
    """
    model = onnx.ModelProto.FromString(content)
    graph = model.graph
    declared = {each.name for each in graph.input}
    kept = []
    for tensor in graph.initializer:
        if tensor.name not in names:
            kept.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    del graph.initializer[:]
    graph.initializer.extend(kept)
    found: bytes = model.SerializeToString()
    return found


def read_initializers(model: ir.Model) -> dict[str, ir.Value]:
    """Returns the initializers of the main graph that a node reads, or that are outputs, by name.

    onnxruntime removes the others before it looks for weights that a session gets, and refuses any that it misses.
    """
    read = {value for node in ir.traversal.RecursiveGraphIterator(model.graph) for value in node.inputs}
    return {name: value for name, value in model.graph.initializers.items() if value in read or value.is_graph_output()}


def reference(tensor: ir.TensorProtocol) -> ir.ExternalTensor:
    """Returns a reference to external data that do not exist, of the type and the shape of a tensor."""
    shape = ir.Shape(tensor.shape.numpy())
    return ir.ExternalTensor(_LOCATION, 0, tensor.nbytes, tensor.dtype, shape=shape, name=tensor.name or "")


@contextlib.contextmanager
def lent_weights(model: ir.Model) -> Iterator[Weights]:
    """Yields the large weights of the main graph, which are references in the model while the block runs.

    There are none if their sum is small.
    """
    held = {
        name: (value, tensor)
        for name, value in read_initializers(model).items()
        if type(tensor := value.const_value) is ir.Tensor
        and tensor.nbytes > _MIN_VALUE
        and isinstance(tensor.raw, np.ndarray)
        and tensor.raw.dtype in _DTYPES.values()
        and tensor.raw.dtype == tensor.dtype.numpy()
    }
    if sum(tensor.nbytes for _, tensor in held.values()) < _WORTHWHILE:
        held = {}
    try:
        for value, tensor in held.values():
            value.const_value = reference(tensor)
        yield {name: np.require(tensor.raw, requirements=("C", "A")) for name, (_, tensor) in held.items()}
    finally:
        for value, tensor in held.values():
            value.const_value = tensor
