"""The objects that all rules of one rewrite share, such as the bounds of all values: one of each class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_T = TypeVar("_T")


class Shared:
    """The objects of one model."""

    def __init__(self, facts: Any) -> None:
        """Starts without any object; each will be made of the model's Facts (inference.py)."""
        self._facts = facts
        self._objects: dict[Callable[[Any], Any], Any] = {}

    def __call__(self, kind: Callable[[Any], _T]) -> _T:
        """Returns the object of a class, and creates it at the first call."""
        if kind not in self._objects:
            self._objects[kind] = kind(self._facts)
        found: _T = self._objects[kind]
        return found

    def clear(self) -> None:
        """Drops all objects: what was not known before may be now."""
        self._objects.clear()

    def begin_phase(self) -> None:
        """Drops the objects of one phase: the next call creates others."""
        self._objects = {kind: each for kind, each in self._objects.items() if not isinstance(each, OfOnePhase)}


class OfOnePhase:
    """The base of shared objects that may name values which another phase replaces."""
