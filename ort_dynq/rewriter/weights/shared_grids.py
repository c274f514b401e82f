"""The grids of weights: the search takes time, so products that share weights share its result."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import onnx_ir as ir

from ..analysis.inference import Facts

_T = TypeVar("_T")


class SharedGrids:
    """The results for the weights that several products of one model multiply."""

    def __init__(self, facts: Facts) -> None:
        self._grids: dict[tuple[ir.Value, Hashable], Any] = {}

    def of(self, weights: ir.Value, layout: Hashable, search: Callable[[], _T]) -> _T:
        """Returns the result of a search for weights, as a layout gives the matrix: whether it is their transpose.

        Raises:
            Unconverted: The search raised it.
        """
        if (weights, layout) in self._grids:
            known: _T = self._grids[weights, layout]
            return known
        found = search()
        if len(weights.uses()) > 1:
            self._grids[weights, layout] = found
        return found
