"""Initializers that several nodes share: weights, scales and biases with the same elements are stored once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .analysis.inference import Facts
from .edit import Edit


class SharedInitializers:
    """The initializers that the rules have added to one model."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any initializer."""
        self._values: dict[tuple[Any, ...], ir.Value] = {}

    def of(self, elements: npt.NDArray[Any], edit: Edit) -> ir.Value:
        """Returns an initializer of the graph of an edit that has these elements."""
        key = _key(elements, edit)
        if key not in self._values:
            self._values[key] = edit.add_initializer(elements, near=edit.node)
        return self._values[key]

    def find(self, shape: tuple[int, ...], compute: Callable[[], npt.NDArray[Any]], edit: Edit) -> ir.Value | None:
        """Returns an initializer of the graph of an edit that has some elements; None if no rule has added one.

        Args:
            shape: The shape of the elements.
            compute: Returns them. It is called only if there is an initializer of this shape.
            edit: The edit.
        """
        shapes = (value.shape for key, value in self._values.items() if key[0] is edit.node.graph)
        if not any(each is not None and each.numpy() == shape for each in shapes):
            return None
        return self._values.get(_key(compute(), edit))

    def of_source(
        self, source: Hashable, compute: Callable[[], ir.TensorProtocol], graph: ir.Graph, edit: Edit
    ) -> ir.Value:
        """Returns an initializer of a graph that has the tensor computed from a source, which is not read again.

        Args:
            source: What the tensor is computed from; equal sources give equal tensors.
            compute: Returns the tensor.
            graph: The graph of the edit's node, or one around it.
            edit: The edit.
        """
        key = graph, source
        if key not in self._values:
            self._values[key] = edit.add_tensor(compute(), graph)
        return self._values[key]


def _key(elements: npt.NDArray[Any], edit: Edit) -> tuple[Any, ...]:
    contiguous = np.ascontiguousarray(elements)
    digest = hashlib.sha256(contiguous.data).digest() if elements.size else b""
    return edit.node.graph, elements.dtype.str, elements.shape, digest
