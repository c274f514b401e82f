"""Layers that quantize in both models, and are compared with a bound of the error of each number.

A bound is computed along with the numbers, operation by operation: what an activation function makes of an error, its
values at both ends say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...inputs import Array

UNIT = 2.0**-24  # half a unit in the last place of float32, relative
PRODUCT_ROUNDINGS = 8  # as products.FLOOR has them
MAX_CODE = 255
TOLERANCE = 1.02  # of a step: quotients and scales have float32 roundings
_OF_FUNCTION = 1e-6  # the error of an activation function in both models (docs/how-results-are-proved.md)
_MIN_VALUE = 2.0**-140  # the distance of denormal numbers, with many roundings
_OF_FLOAT16 = 2.0**-11, 2.0**-25  # half the distance of float16 numbers: relative, and of denormal ones


class Rounded(NamedTuple):
    """Numbers in float64, and the most that a model's float32 numbers may differ from them."""

    value: Array
    error: Array | float = 0.0

    def __add__(self, other: Rounded) -> Rounded:  # type: ignore[override]
        value = self.value + other.value
        return Rounded(value, self.error + other.error + UNIT * np.abs(value))

    def __mul__(self, other: Rounded) -> Rounded:  # type: ignore[override]
        value = self.value * other.value
        one, two = np.abs(self.value) * other.error, np.abs(other.value) * self.error
        return Rounded(value, one + two + self.error * other.error + UNIT * np.abs(value))

    def after(self, function: Callable[[Array], Array]) -> Rounded:
        """Returns the values of a function that rises or falls."""
        value = function(self.value)
        ends = [np.abs(function(self.value + sign * self.error) - value) for sign in (-1, 1)]
        return Rounded(value, np.maximum(*ends) + _OF_FUNCTION + UNIT * np.abs(value))

    def largest_error(self, found: Array, is_compared: Array) -> float:
        """Returns the largest error of a model's numbers, float32 or float16, relative to its bound.

        Args:
            found: The numbers.
            is_compared: Which of them are compared, if they also have a finite bound.
        """
        relative, absolute = _OF_FLOAT16 if found.dtype == np.float16 else (0.0, _MIN_VALUE)
        with np.errstate(all="ignore"):
            bound = self.error + relative * np.abs(self.value) + absolute
            ratio = np.abs(found.astype(np.float64) - self.value) / bound
        is_known = np.asarray(is_compared & np.isfinite(bound))
        return float(np.where(np.isnan(ratio), np.inf, ratio)[is_known].max(initial=0))


class Judgement(NamedTuple):
    """The comparison of a layer; `problem` is empty if it is correct. An error of 1 is as large as its bound."""

    problem: str
    a_error: float
    b_error: float
    reference: Array
    skipped: int


@dataclass(frozen=True)
class QuantizedLayer(ABC):
    """A layer of A that one node of B replaces.

    Attributes:
        node: The node of A.
        b: The node of B.
        name: Its name.
        observed: The values of B that :meth:`judge` reads.
        results: The values of B that stand for the outputs of A's node; empty: the outputs of B's node.
    """

    node: ir.Node
    b: ir.Node
    name: str
    observed: tuple[ir.Value, ...] = ()
    results: tuple[ir.Value, ...] = ()

    @property
    def results_of_b(self) -> Sequence[ir.Value]:
        """The values of B that stand for the outputs of A's node."""
        return self.results or self.b.outputs

    def values_of_a(self) -> list[ir.Value]:
        """The values of A to record: its inputs and its outputs; the first output is always computed."""
        first = self.node.outputs[0]
        first.name = first.name or "ort_dynq.first"
        return [value for value in (*self.node.inputs, *self.node.outputs) if value is not None and value.name]

    @abstractmethod
    def judge(self, known: Mapping[str, Array], of_b: Mapping[str, Array], outputs: list[Array]) -> Judgement:
        """Compares the layer.

        Args:
            known: A's values.
            of_b: B's values that are observed.
            outputs: B's outputs.
        """


def sigmoid(x: Array) -> Array:
    """Returns 1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)))
