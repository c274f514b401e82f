"""How far searches through a model go, in one table.

A search that passes its limit has found nothing, which is always right: a node may stay that could be converted. The
loop (loop.py) then adds to the node's reason that the search has ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

_passed: ContextVar[dict[Limit, None] | None] = ContextVar("passed", default=None)


@dataclass(frozen=True)
class Limit:
    """A limit of searches.

    Attributes:
        most: The largest number with which a search goes on.
        unit: What is counted.
        why: Why it is not larger.
    """

    most: int
    unit: str
    why: str

    def is_passed(self, count: int) -> bool:
        """Returns whether a search ends because it has counted more than the limit."""
        if count <= self.most:
            return False
        if (passed := _passed.get()) is not None:
            passed[self] = None
        return True

    def steps(self) -> Iterator[int]:
        """Yields the numbers of as many steps as the limit allows; one more step passes it."""
        yield from range(self.most)
        self.is_passed(self.most + 1)


@contextmanager
def noted() -> Iterator[dict[Limit, None]]:
    """Yields the limits that searches pass in this context, in their order, each once."""
    passed = dict[Limit, None]()
    token = _passed.set(passed)
    try:
        yield passed
    finally:
        _passed.reset(token)


CHAIN = Limit(24, "nodes in a row", "exporters write fewer between two ends; every value of a long row is asked for")
VISITED = Limit(64, "nodes", "a walk begins at every node, so that long walks take a time that is quadratic")
NESTED = Limit(64, "nodes in a row", "the search calls itself for each, and Python's stack ends")
OPERANDS = Limit(8, "nodes in a row", "each has two operands that are searched, so a row of n takes 2**n steps")
CONSTANTS = Limit(6, "nodes in a row", "as OPERANDS, for constants, which all rules ask for")
ELEMENTS = Limit(4096, "elements", "larger constants are weights, which take time to read and to compare")
COMPUTED = Limit(16, "elements", "computed constants are bounds, and numbers of them")
LENGTHS = Limit(64, "elements", "a shape, or the lengths of a few, has fewer")
FACTORS = Limit(8, "factors", "the name of a length has all names of its factors")
FOLDED = Limit(1 << 30, "bytes", "weights that are folded to floats take four times the memory of their codes")
