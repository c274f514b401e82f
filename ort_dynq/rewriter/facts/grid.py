"""Constant weights that are an 8-bit grid in each output channel, whatever nodes they are written with.

Exporters fold DequantizeLinear(codes) or Cast(codes) * scale into float weights. Each column of those is float32(code *
scale) for integers code and one float32 scale, which can be found again, and is checked bit by bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort

from .values import array

_PROBED_COLUMNS = 16  # weights that are no grid are told by these
_PROBED_ROWS = 64
# The code of the largest magnitude in a column: most often 127; 1 in ternary weights; the rest as they come.
_BLOCK = 1 << 22  # elements that are looked at together: what is computed of them takes many times their room
_LARGEST_CODES = (1, 127, 128, *range(2, 127), *range(129, 256))


@dataclass(frozen=True)
class Grid:
    """weights[k, n] == float32((codes[k, n] - zero_point[n]) * scale[n]).

    Attributes:
        codes: int8, [K, N].
        zero_point: int8, [N]; None where all are zero.
        scale: float32, [N].
    """

    codes: npt.NDArray[np.int8]
    zero_point: npt.NDArray[np.int8] | None
    scale: npt.NDArray[np.float32]

    @property
    def numbers(self) -> npt.NDArray[np.int32]:
        """The codes with their zero points taken off, [K, N]."""
        codes = self.codes.astype(np.int32)
        return codes if self.zero_point is None else codes - self.zero_point

    @property
    def sums(self) -> npt.NDArray[np.int64]:
        """Of each column's numbers."""
        return np.concatenate([block.numbers.sum(0) for block in self._blocks()])

    @property
    def largest_sum(self) -> int:
        """Of the magnitudes of a column's numbers."""
        return max(int(np.abs(block.numbers).sum(0).max()) for block in self._blocks())

    def _blocks(self) -> Iterator[Grid]:
        for columns in _blocks(self.codes):
            zero_point = None if self.zero_point is None else self.zero_point[columns]
            yield Grid(self.codes[:, columns], zero_point, self.scale[columns])


def grid_of(weights: npt.NDArray[Any]) -> Grid | None:
    """The grid that float32 weights of shape [K, N] are, column by column; None if one of the columns is none."""
    if weights.ndim != 2 or weights.dtype != np.float32 or not weights.size:
        return None
    if _grid_of(weights[:, :_PROBED_COLUMNS]) is None:
        return None
    grids = []
    for columns in _blocks(weights):
        grid = _grid_of(np.ascontiguousarray(weights[:, columns]))
        if grid is None:
            return None
        grids.append(grid)
    zero_points = [np.zeros_like(g.scale, np.int8) if g.zero_point is None else g.zero_point for g in grids]
    return Grid(
        np.concatenate([grid.codes for grid in grids], 1),
        None if all(grid.zero_point is None for grid in grids) else np.concatenate(zero_points),
        np.concatenate([grid.scale for grid in grids]),
    )


def _blocks(matrix: npt.NDArray[Any]) -> Iterator[slice]:
    """Its columns, a few at a time."""
    rows, columns = matrix.shape
    step = max(1, _BLOCK // rows)
    return (slice(i, i + step) for i in range(0, columns, step))


def _grid_of(weights: npt.NDArray[np.float32]) -> Grid | None:
    scale = _scales(weights) if np.isfinite(weights).all() else None
    if scale is None:
        return None
    numbers = np.rint(weights / scale).astype(np.int32)
    low, high = numbers.min(0), numbers.max(0)
    zero_point = np.where((low < -128) | (high > 127), -128 - np.minimum(low, 0), 0)
    if (high + zero_point > 127).any():
        return None
    codes = (numbers + zero_point).astype(np.int8)
    return Grid(codes, zero_point.astype(np.int8) if zero_point.any() else None, scale)


def _scales(weights: npt.NDArray[np.float32]) -> npt.NDArray[np.float32] | None:
    """One scale for each column."""
    largest = np.abs(weights).max(0)
    scales = np.ones_like(largest)
    todo = np.flatnonzero(largest)
    probe = weights[:: max(1, len(weights) // _PROBED_ROWS)]
    for code in map(np.float32, _LARGEST_CODES):
        # Of all floats, only the quotient and its neighbours can give the column's largest magnitude.
        for neighbour in (None, np.float32(0), np.float32(np.inf)):
            if not todo.size:
                return np.asarray(scales)
            scale = largest[todo] / code
            if neighbour is not None:
                scale = np.nextafter(scale, neighbour)
            with np.errstate(over="ignore"):
                fits = (scale > 0) & (code * scale == largest[todo])
            fits &= _is_grid(probe[:, todo], scale)
            candidates = np.flatnonzero(fits)
            candidates = candidates[_is_grid(weights[:, todo[candidates]], scale[candidates])]
            scales[todo[candidates]] = scale[candidates]
            todo = np.delete(todo, candidates)
    return None if todo.size else np.asarray(scales)


def _is_grid(weights: npt.NDArray[np.float32], scale: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray((np.rint(weights / scale) * scale == weights).all(0))


def evaluate(value: ir.Value | None, opset: int) -> npt.NDArray[Any] | None:
    """What a constant comes to, as ONNX Runtime computes it without optimisations; None if it cannot.

    Args:
        value: A constant (Facts.is_constant).
        opset: The version of the standard operators that it is computed with.
    """
    if value is None:
        return None
    if value.is_initializer() and value.const_value is not None:
        return value.const_value.numpy()
    if (elements := array(value)) is not None:
        return elements
    nodes: dict[ir.Node, None] = {}
    initializers: dict[str, ir.TensorProtocol] = {}
    todo = [value]
    while todo:
        at = todo.pop()
        producer = at.producer()
        if producer is not None:
            nodes.pop(producer, None)  # what computes it comes before all that have asked for it
            nodes[producer] = None
            todo += [source for source in producer.inputs if source is not None]
        elif at.const_value is not None and at.name is not None:
            initializers[at.name] = at.const_value
        else:
            return None  # a function's parameter
    graph = onnx.GraphProto(name="constant", node=[ir.to_proto(node) for node in reversed(nodes)])
    for name, tensor in initializers.items():
        graph.initializer.append(onnx.numpy_helper.from_array(tensor.numpy(), name))
    assert value.name is not None
    graph.output.append(onnx.ValueInfoProto(name=value.name))
    model = onnx.ModelProto(ir_version=8, graph=graph, opset_import=[onnx.helper.make_opsetid("", opset)])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        result: npt.NDArray[Any] = session.run(None, {})[0]
    except Exception:  # types beyond ONNX Runtime's, sizes beyond a protobuf: then it is not known
        return None
    return result
