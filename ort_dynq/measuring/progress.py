"""How long work reports its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

Track = Callable[[Sequence[Any]], Iterable[Any]]
"""Iterates over the steps that it is given, and may show the progress by their texts; ``iter`` shows none."""
