"""The grids of weights: the search takes time, so products that share weights share its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import onnx_ir as ir

from ..analysis.inference import Facts

_T = TypeVar("_T")


class SharedGrids:
    """The results for the weights that several products of one model multiply."""

    def __init__(self, facts: Facts) -> None:
        self._grids: dict[tuple[ir.Value, bool], Any] = {}

    def of(self, weights: ir.Value, is_transposed: bool, search: Callable[[], _T]) -> _T:
        """Returns the result of a search for weights, or for their transpose.

        Raises:
            Unconverted: The search raised it.
        """
        if (weights, is_transposed) in self._grids:
            known: _T = self._grids[weights, is_transposed]
            return known
        found = search()
        if len(weights.uses()) > 1:
            self._grids[weights, is_transposed] = found
        return found
