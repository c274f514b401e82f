"""Compares two arrays element by element."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...four_bits import LIMITS
from ...inputs import Array


@dataclass(frozen=True)
class Difference:
    """One element that differs.

    Attributes:
        index: Its index.
        a, b: Its values in A and in B.
    """

    index: tuple[int, ...]
    a: Any
    b: Any


@dataclass(frozen=True)
class Comparison:
    """The comparison of an output of A with the same output of B.

    Two elements are equal if their bits are equal, or if both are NaN with any payload.

    Attributes:
        name, dtype, shape: The name, type and shape of A's output.
        elements: The number of elements.
        nans: The number of NaNs in A.
        finite: The number of elements of A that are finite.
        differing: The number of elements that differ.
        max_abs: The largest absolute difference. None if no two differing elements are both numbers.
        max_ulp: The largest difference in units in the last place: the number of steps from one floating-point value to
            the other, 0 from -0 to +0. None for other types, and where max_abs is None.
        first: The first element that differs.
        problem: B's type or shape if it differs from A's. The elements are then not compared.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    nans: int = 0
    finite: int = 0
    differing: int = 0
    max_abs: float | None = 0.0
    max_ulp: int | None = None
    first: Difference | None = None
    problem: str = ""

    @property
    def equal(self) -> bool:
        """Whether the type, the shape and every element are equal."""
        return not self.problem and self.differing == 0

    @property
    def difference(self) -> str:
        """What differs; empty if nothing does."""
        if self.problem:
            return f"A gives {self.dtype} {list(self.shape)}, {self.problem}"
        return f"{self.differing} of {self.elements} elements differ" if self.differing else ""


def compare(name: str, a: Array, b: Array) -> Comparison:
    """Compares an output of A with the same output of B."""
    result = Comparison(name, str(a.dtype), a.shape, a.size, count_nans(a), _count_finite(a))
    if a.dtype != b.dtype or a.shape != b.shape:
        return replace(result, problem=f"B gives {b.dtype} {list(b.shape)}")
    if a.dtype in LIMITS:  # NumPy does not compute with them
        a, b = a.astype(np.int16), b.astype(np.int16)
    p, q = a.ravel(), b.ravel()
    floating = a.dtype.kind == "f"
    unequal = _bits(p) != _bits(q)
    if floating:
        unequal &= ~(np.isnan(p) & np.isnan(q))
    indices = np.flatnonzero(unequal)
    if not indices.size:
        return replace(result, max_ulp=0 if floating else None)
    index = tuple(int(i) for i in np.unravel_index(indices[0], a.shape))
    p, q = p[indices], q[indices]
    if floating:
        numbers = ~(np.isnan(p) | np.isnan(q))
        p, q = p[numbers], q[numbers]
    return replace(
        result,
        differing=int(indices.size),
        max_abs=_max_distance(p, q, lambda x: x.astype(np.float64) if floating else x),
        max_ulp=_max_distance(p, q, _ordered) if floating else None,
        first=Difference(index, a[index].item(), b[index].item()),
    )


def count_nans(values: Array) -> int:
    """Counts the NaNs in an array of any type."""
    return int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0


def _count_finite(values: Array) -> int:
    return int(np.isfinite(values).sum()) if values.dtype.kind == "f" else values.size


def _max_distance(p: Array, q: Array, measure: Callable[[Array], Array]) -> Any:
    """Returns the largest distance between two elements after `measure`, or None if the arrays are empty."""
    if not p.size:
        return None
    p, q = measure(p), measure(q)
    if p.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return float(np.abs(p - q).max())
    high, low = _bits(np.maximum(p, q)), _bits(np.minimum(p, q))
    return int((high - low).max())  # unsigned, so that it cannot overflow


def _bits(values: Array) -> Array:
    return values.view(f"u{values.dtype.itemsize}")


def _ordered(values: Array) -> Array:
    """Maps floating-point values to integers in the same order; neighbors differ by one, -0 and +0 both become 0."""
    signed = values.view(f"i{values.dtype.itemsize}")
    return np.where(signed < 0, np.iinfo(signed.dtype).min - signed, signed)
