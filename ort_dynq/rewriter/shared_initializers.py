"""Initializers that several nodes share: weights, scales and biases with the same elements are stored once.

They belong to the main graph, so that the branches of an If, and the bodies of loops, share them.
"""

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
        self._graph = facts.model.graph
        self._values: dict[tuple[Any, ...], ir.Value] = {}

    def of(self, elements: npt.NDArray[Any], edit: Edit) -> ir.Value:
        """Returns an initializer of the main graph that has these elements."""
        key = _key(elements)
        if key not in self._values:
            self._values[key] = edit.add_initializer(elements, self._graph)
        return self._values[key]

    def find(self, shape: tuple[int, ...], compute: Callable[[], npt.NDArray[Any]]) -> ir.Value | None:
        """Returns an initializer that :meth:`of` has added and that has some elements; None if there is none.

        Args:
            shape: The shape of the elements.
            compute: Returns them. It is called only if there is an initializer of this shape.
        """
        shapes = (value.shape for value in self._values.values())
        if not any(each is not None and each.numpy() == shape for each in shapes):
            return None
        return self._values.get(_key(compute()))

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


def _key(elements: npt.NDArray[Any]) -> tuple[Any, ...]:
    contiguous = np.ascontiguousarray(elements)
    digest = hashlib.sha256(contiguous.data).digest() if elements.size else b""
    return elements.dtype.str, elements.shape, digest
