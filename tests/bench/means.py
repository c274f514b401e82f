"""Geometric means of the ratios of timings."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar


class Timing(Protocol):
    """What a benchmark measures with a number of threads."""

    @property
    def threads(self) -> int: ...


T = TypeVar("T", bound=Timing)


@dataclass(frozen=True)
class Mean:
    """The geometric mean of a ratio.

    Attributes:
        name: The ratio, and the timings that count.
        threads: The number of threads.
        timings: The number of timings.
        ratio: The mean; above 1 if ort_dynq is faster.
    """

    name: str
    threads: int
    timings: int
    ratio: float


def means(name: str, timings: Iterable[T], ratio: Callable[[T], float | None]) -> Iterator[Mean]:
    """Yields the mean of a ratio for each number of threads. Timings without a ratio do not count."""
    found: dict[int, list[float]] = {}
    for each in timings:
        if (value := ratio(each)) is not None:
            found.setdefault(each.threads, []).append(value)
    for threads, ratios in sorted(found.items()):
        yield Mean(name, threads, len(ratios), statistics.geometric_mean(ratios))
