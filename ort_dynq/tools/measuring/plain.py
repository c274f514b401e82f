"""Turns results into plain data for JSON, and decibels into plain words."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from typing import Any


def plain(value: Any) -> Any:
    """Returns plain data: dataclasses become dictionaries, tuples become lists, NaN and infinities become text."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def size_of_noise(snr_db: float) -> str:
    """Returns a signal-to-noise ratio as the size of the noise: its root mean square, in percent of the signal's."""
    return f"{100 * 10 ** (-snr_db / 20):.2g} %"
