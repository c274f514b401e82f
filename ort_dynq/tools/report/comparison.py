"""The HTML page of a comparison of ways to quantize: a picture of accuracy against time, and the figures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from ..bench.quantization import FLOAT, QuantizationBench
from ..measuring.timing import Machine
from . import page

_WIDTH, _HEIGHT = 720, 330
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 700, 34, 284
_LINE = 15  # the least distance of two labels


@dataclass(frozen=True)
class Tick:
    """A line of the grid: its position and its text."""

    at: float
    text: str


@dataclass(frozen=True)
class Dot:
    """A contender: its figures, and the position of the dot and of its label."""

    name: str
    ours: bool
    ms: float
    snr_db: float
    x: float
    y: float
    label_x: float
    label_y: float
    to_the_left: bool


@dataclass(frozen=True)
class Chart:
    """The picture of one case: milliseconds to the right, decibels up. All positions are in units of the picture.

    Attributes:
        title: The number of tokens and threads.
        float_at: The position of the float model's time.
        x_ticks, y_ticks: The grid.
        dots: The contenders that run and have a finite signal-to-noise ratio, the most accurate first.
    """

    title: str
    float_at: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    dots: tuple[Dot, ...]
    width: int = _WIDTH
    height: int = _HEIGHT
    left: int = _LEFT
    right: int = _RIGHT
    top: int = _TOP
    bottom: int = _BOTTOM


def save(found: QuantizationBench, machine: Machine, path: Path) -> None:
    """Writes the page.

    Raises:
        DynqError: The file cannot be written.
    """
    charts = [chart(found, index) for index in range(len(found.cases))]
    page.save(page.render("comparison.html", r=found, charts=charts, machine=machine), path)


def chart(found: QuantizationBench, index: int) -> Chart:
    """Lays out the picture of one of the cases."""
    times = {each.name: each.timings[index].latency.median_ms for each in found.forms if len(each.timings) > index}
    ratios = {each.name: each.snr_db for each in found.forms if each.snr_db is not None and math.isfinite(each.snr_db)}
    x_ticks = _ticks(0, 1.02 * max(times.values()))
    y_ticks = _ticks(min(ratios.values(), default=0), max(ratios.values(), default=10))

    def x(ms: float) -> float:
        return round(_LEFT + (_RIGHT - _LEFT) * ms / x_ticks[-1], 1)

    def y(decibels: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * (decibels - y_ticks[0]) / (y_ticks[-1] - y_ticks[0]), 1)

    dots, lowest = [], -math.inf
    for each in sorted(found.forms, key=lambda form: -ratios.get(form.name, 0)):
        if each.name in times and each.name in ratios:
            ms, decibels = times[each.name], ratios[each.name]
            left = x(ms) > (_LEFT + _RIGHT) / 2
            lowest = max(lowest + _LINE, y(decibels))
            label_x = x(ms) + (-10 if left else 10)
            dots.append(Dot(each.name, each.is_ours, ms, decibels, x(ms), y(decibels), label_x, lowest, left))
    return Chart(
        str(found.cases[index]),
        x(times[FLOAT]),
        tuple(Tick(x(tick), f"{tick:g}") for tick in x_ticks),
        tuple(Tick(y(tick), f"{tick:g}") for tick in y_ticks),
        tuple(dots),
    )


def _ticks(low: float, high: float) -> list[float]:
    """Returns round numbers at equal distances, the first not above `low`, the last not below `high`."""
    span = max(high - low, 1e-3)
    unit = 10.0 ** math.floor(math.log10(span / 4))
    step = next(unit * factor for factor in (1, 2, 5, 10) if span / (unit * factor) <= 6)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 10) for i in range(first, max(last, first + 1) + 1)]
