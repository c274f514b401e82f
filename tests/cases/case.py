"""A call of an operator, as the tests of all operators take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from functions import Attributes
from helpers import Array, Shape


@dataclass
class Case:
    """One call of an operator. Absent attributes have their defaults."""

    attributes: Attributes
    inputs: list[Array]


Cases = dict[str, Callable[[int], Iterator[Case]]]
"""For each operator, what yields its calls for an opset: bodies of old opsets do not take all of them."""

Given = Shape | Array
"""An input: its shape, or its values."""
Fit = tuple[Sequence[Given], Attributes]
"""The inputs of a call, and its attributes."""
Fitting = dict[str, Callable[[int], Iterator[Fit]]]
"""For each operator, what yields calls with tensors of around n elements: every way to share scales."""


def one_input(n: int) -> Iterator[Fit]:
    """Calls of operators with one input and no attributes."""
    yield from (([src], {}) for src in ((n,), (3, n), (n, 3)))
