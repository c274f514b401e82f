"""A call of an operator, as the tests of all operators take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from functions import Attributes
from helpers import Array


@dataclass
class Case:
    """One call of an operator. Absent attributes have their defaults."""

    attributes: Attributes
    inputs: list[Array]


Cases = dict[str, Callable[[int], Iterator[Case]]]
"""For each operator, what yields its calls for an opset: bodies of old opsets do not take all of them."""
