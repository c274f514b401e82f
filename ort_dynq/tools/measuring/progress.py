"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

Track = Callable[[Sequence[Any]], Iterable[Any]]
"""Iterates over the steps that it is given, and may show the progress by their texts; ``iter`` shows none."""

Step = TypeVar("Step")


def tracked(track: Track, steps: Iterable[Step], texts: Sequence[str]) -> Iterator[Step]:
    """Yields steps, while the progress has a text for each."""
    for _, step in zip(track(texts), steps, strict=True):
        yield step
