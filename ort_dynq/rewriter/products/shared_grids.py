"""What a rule makes of the weights of a matrix product, which several products may share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import onnx_ir as ir

from ..analysis.inference import Facts

_T = TypeVar("_T")


class SharedGrids:
    """The grids of the weights that several products of one model multiply: the search takes time."""

    def __init__(self, facts: Facts) -> None:
        self._grids: dict[tuple[ir.Value, bool], Any] = {}

    def of(self, weights: ir.Value, is_transposed: bool, make: Callable[[], _T]) -> _T:
        """Returns what `make` returns for weights, or for their transpose; all rules of one loop make the same.

        Raises:
            Unconverted: `make` raised it.
        """
        if (weights, is_transposed) in self._grids:
            found: _T = self._grids[weights, is_transposed]
            return found
        made = make()
        if len(weights.uses()) > 1:
            self._grids[weights, is_transposed] = made
        return made
