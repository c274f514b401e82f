"""Measures how far arrays are from the exact ones: signal-to-noise ratio, cosine, agreement. All sums are float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .inputs import Array

_PART = 1 << 13  # elements, which stay in the caches; BLAS would use several threads for more than 10,000
_MIN_CHANNELS = 8  # with fewer, one of them is not an outlier
_MIN_CLASSES = 2
_DIMENSIONS_OF_ROWS, _DIMENSIONS_OF_SEQUENCES = 2, 3
_MIN_TOKENS, _BLANK_SHARE = 16, 0.4  # of sequences of tokens with blanks between them
_MAX_PROBABILITY = 1.001  # rounded


@dataclass
class Noise:
    """The signal-to-noise ratio of b to a, over several arrays.

    Elements where a is not finite are left out. An element where only b is not finite has infinite noise.

    Attributes:
        elements: The number of elements that count.
        signal: The sum of a^2.
        noise: The sum of (b - a)^2.
        max_abs: The largest abs(b - a).
    """

    elements: int = 0
    signal: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0

    def add(self, a: Array, b: Array) -> None:
        """Adds floating-point arrays of the same shape."""
        a, b = a.ravel(), b.ravel()
        for i in range(0, a.size, _PART):
            self._add(a[i : i + _PART].astype(np.float64), b[i : i + _PART].astype(np.float64))

    def _add(self, x: Array, y: Array) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            signal = float(x @ x)
            if not math.isfinite(signal) and not (counts := np.isfinite(x)).all():
                x, y = x[counts], y[counts]
                signal = float(x @ x)
            distance = np.subtract(y, x, out=y)
            noise = float(distance @ distance)
            if math.isnan(noise):
                distance[np.isnan(distance)] = np.inf
                noise = math.inf
            largest = float(max(distance.max(initial=0.0), -distance.min(initial=0.0)))
        self.elements += x.size
        self.signal += signal
        self.noise += noise
        self.max_abs = max(self.max_abs, largest)

    @property
    def decibels(self) -> float | None:
        """10 * log10(signal / noise); infinite without noise, minus infinite without signal; None without elements."""
        if not self.elements:
            return None
        if not self.noise:
            return math.inf
        if not self.signal or self.noise == math.inf:
            return -math.inf
        return 10 * math.log10(self.signal / self.noise)


@dataclass
class Cosines:
    """The cosines of the rows of a and b along the last axis: sum(a * b) / sqrt(sum(a^2) * sum(b^2)).

    The cosine of two rows of zeros is 1; of one row of zeros, or a row of b with NaN or an infinity, 0. Rows where a is
    not finite are left out, and so are rows of one element.
    """

    rows: int = 0
    total: float = 0.0
    worst: float = math.inf

    def add(self, a: Array, b: Array) -> None:
        """Adds floating-point arrays of the same shape."""
        if not a.ndim or a.shape[-1] < 2 or not a.size:
            return
        x, y = (each.reshape(-1, a.shape[-1]) for each in (a, b))
        counts = np.isfinite(x).all(1)
        x, y = _normalized(x[counts]), _normalized(y[counts])
        cosines = (x * y).sum(1)
        cosines[~(x.any(1) | y.any(1))] = 1
        cosines[np.isnan(cosines)] = 0
        self.rows += len(cosines)
        self.total += float(cosines.sum())
        self.worst = min(self.worst, float(cosines.min(initial=math.inf)))

    @property
    def mean(self) -> float | None:
        """The mean over the rows; None without rows."""
        return self.total / self.rows if self.rows else None


def _normalized(rows: Array) -> Array:
    """Returns rows of length 1 in float64; rows of zeros stay. The division by the largest number avoids overflow."""
    rows = rows.astype(np.float64)
    with np.errstate(invalid="ignore"):
        for lengths in (np.abs(rows).max(1, keepdims=True), None):
            divisor = np.sqrt((rows * rows).sum(1, keepdims=True)) if lengths is None else lengths
            rows = rows / np.where(divisor == 0, 1, divisor)
    return np.asarray(rows)


@dataclass
class Agreement:
    """How often a and b agree: the elements, or the index of the largest element of each row along the last axis.

    Rows with NaN in a are left out.
    """

    is_argmax: bool
    count: int = 0
    agreeing: int = 0

    def add(self, a: Array, b: Array) -> None:
        """Adds arrays of the same shape."""
        if not a.size:
            return
        if self.is_argmax:
            a, b = (each.reshape(-1, each.shape[-1]) for each in (a, b))
            counts = ~np.isnan(a).any(1)
            a, b = a[counts].argmax(-1), b[counts].argmax(-1)
        self.count += a.size
        self.agreeing += int((a == b).sum())

    @property
    def share(self) -> float | None:
        """The share from 0 to 1; None if nothing was compared."""
        return self.agreeing / self.count if self.count else None


LARGEST, HALF, TOKENS, EQUAL = "largest", "half", "tokens", "equal"
"""Decisions: the largest element of each row, elements above one half, the tokens of sequences, equal elements."""


def decisions_of(scores: Sequence[Array]) -> str:
    """Returns what the scores of a classifier decide: LARGEST; HALF for probabilities that do not add up to 1.

    Args:
        scores: The scores of each set of data, floats; the classes are the last axis.

    Returns:
        An empty text if they decide nothing.
    """
    has_classes = all(each.ndim >= _DIMENSIONS_OF_ROWS and each.shape[-1] >= _MIN_CLASSES for each in scores)
    adds_up = has_classes and all(np.allclose(each.sum(-1), 1, atol=1e-3) for each in scores)
    if are_probabilities(scores) and not adds_up:
        return HALF
    return LARGEST if has_classes else ""


def are_probabilities(scores: Sequence[Array]) -> bool:
    """Returns whether all numbers are between 0 and 1."""
    return all(not each.size or bool(each.min() >= 0 and each.max() <= _MAX_PROBABILITY) for each in scores)


def blank_of(scores: Sequence[Array]) -> int | None:
    """Returns the class that means no token, if scores are sequences of connectionist temporal classification (CTC).

    The scores are [batch, places, classes]. It is the first or the last of 16 or more classes, and the largest in 40 %
    of the places.
    """
    if not scores or any(each.ndim != _DIMENSIONS_OF_SEQUENCES or each.shape[-1] < _MIN_TOKENS for each in scores):
        return None
    largest = np.concatenate([each.argmax(-1).ravel() for each in scores])
    counts = {blank: int((largest == blank).sum()) for blank in (0, scores[0].shape[-1] - 1)}
    blank = max(counts, key=lambda each: counts[each])
    return blank if counts[blank] >= max(1, _BLANK_SHARE * largest.size) else None


@dataclass
class Decisions:
    """How often a and b decide the same.

    Attributes:
        kind: LARGEST, HALF, TOKENS or EQUAL.
        blank: With TOKENS, the class that means no token.
        parts: The agreement; of HALF, that of the elements above one half in a, and of the others, by themselves.
    """

    kind: str
    blank: int = 0
    parts: list[Agreement] = field(default_factory=list)

    def add(self, a: Array, b: Array) -> None:
        """Adds arrays of the same shape."""
        if not self.parts:
            self.parts = [Agreement(self.kind == LARGEST) for _ in range(2 if self.kind == HALF else 1)]
        if self.kind == HALF:
            for part, chosen in zip(self.parts, (a >= 0.5, a < 0.5), strict=True):
                part.add(a[chosen] >= 0.5, b[chosen] >= 0.5)
        elif self.kind == TOKENS:
            for p, q in zip(a.argmax(-1), b.argmax(-1), strict=True):
                expected, found = self._tokens(p), self._tokens(q)
                length = max(len(expected), len(found))
                self.parts[0].count += length
                self.parts[0].agreeing += length - edit_distance(expected, found)
        else:
            self.parts[0].add(a, b)

    def _tokens(self, largest: Array) -> Array:
        """Returns the tokens of a sequence of classes: repeated ones are one, and blanks are none."""
        is_new = np.append(True, largest[1:] != largest[:-1])
        return np.asarray(largest[is_new & (largest != self.blank)])

    @property
    def count(self) -> int:
        """The number of decisions that were compared."""
        return sum(each.count for each in self.parts)

    @property
    def changed(self) -> int:
        """The number of decisions that differ."""
        return sum(each.count - each.agreeing for each in self.parts)

    @property
    def share(self) -> float | None:
        """The share of the same decisions, the smallest one of the parts; None if nothing was compared."""
        return min((each.share for each in self.parts if each.share is not None), default=None)


def edit_distance(a: Array, b: Array) -> int:
    """Returns how many elements of a sequence must be changed, added or removed to get another one (Levenshtein)."""
    row = np.arange(len(b) + 1)
    for i, element in enumerate(a, 1):
        best = np.append(i, np.minimum(row[:-1] + (b != element), row[1:] + 1))
        row = np.minimum.accumulate(best - np.arange(len(best))) + np.arange(len(best))  # added elements
    return int(row[-1])


@dataclass
class ChannelMaxima:
    """The largest magnitude of each channel of an activation.

    Attributes:
        axis: The dimension of the channels.
    """

    axis: int
    _largest: Array = field(default_factory=lambda: np.zeros(0))

    def add(self, activation: Array) -> None:
        """Adds an activation; all of them have the same number of channels."""
        if not activation.size:
            return
        others = tuple(i for i in range(activation.ndim) if i != self.axis % activation.ndim)
        largest = np.abs(np.nan_to_num(activation)).max(others)
        self._largest = np.maximum(self._largest, largest) if self._largest.size else np.asarray(largest)

    @property
    def outlier(self) -> tuple[int, float] | None:
        """The channel with the largest magnitude, and its ratio to the median over the channels that are not zero.

        None for fewer than 8 such channels.
        """
        used = self._largest[self._largest > 0]
        if used.size < _MIN_CHANNELS:
            return None
        return int(self._largest.argmax()), float(self._largest.max() / np.median(used))
