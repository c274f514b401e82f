"""Places the boxes of a diagram in layers, one below the other, and the lines between them.

An edge over several layers passes a point in each of them, which takes part in the order of its layer, so that no line
crosses a box. Each layer is ordered by the mean position of its neighbours, downwards and upwards.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from ..bench.changes import INPUT, OUTPUT, Diagram

_BOX, _LAYER, _GAP, _MARGIN = 22, 40, 14, 6  # heights of a box and a layer, the least distance, the border
_LETTER, _PADDING, _POINT = 7.2, 16, 4  # the width of a letter, around a text, and of a point that a line passes
_MAX_LENGTH = 24  # letters of an operator
_SWEEPS = 8


@dataclass(frozen=True)
class PlacedBox:
    """A box: its text, the middle of its upper side, and its size."""

    text: str
    title: str
    kind: str
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True)
class Drawing:
    """A diagram on a plane: `lines` are paths of SVG."""

    width: float
    height: float
    boxes: tuple[PlacedBox, ...]
    lines: tuple[str, ...]


def draw(diagram: Diagram) -> Drawing:
    """Returns a drawing of a diagram."""
    layers = _layers(diagram)
    texts = [_text(box.op_type, box.count) for box in diagram.boxes]
    widths = [_LETTER * len(text) + _PADDING for text in texts]
    routes = []
    for a, b in diagram.edges:
        route = [a]
        for _ in range(layers[a] + 1, layers[b]):
            route.append(len(widths))
            widths.append(_POINT)
            layers.append(layers[route[-2]] + 1)
        routes.append([*route, b])
    x = _columns(layers, widths, routes)
    left = min(x[i] - widths[i] / 2 for i in range(len(widths))) - _MARGIN
    right = max(x[i] + widths[i] / 2 for i in range(len(widths))) + _MARGIN
    x = [each - left for each in x]
    y = [_MARGIN + _LAYER * each for each in layers]
    boxes = tuple(
        PlacedBox(texts[i], box.op_type, box.kind, x[i], y[i], widths[i], _BOX) for i, box in enumerate(diagram.boxes)
    )
    lines = tuple(_path(route, x, y) for route in routes)
    return Drawing(right - left, _MARGIN * 2 + _LAYER * max(layers) + _BOX, boxes, lines)


def _text(op_type: str, count: int) -> str:
    short = op_type if len(op_type) <= _MAX_LENGTH else f"{op_type[: _MAX_LENGTH - 1]}…"
    return short if count == 1 or op_type in (INPUT, OUTPUT) else f"{count} × {short}"


def _layers(diagram: Diagram) -> list[int]:
    """Returns the layer of each box: below all boxes before it; what reads no other box is just above its reader."""
    layers = [0] * len(diagram.boxes)
    after: dict[int, list[int]] = defaultdict(list)
    has_before = {b for _, b in diagram.edges}
    for a, b in sorted(diagram.edges):  # boxes are in topological order
        layers[b] = max(layers[b], layers[a] + 1)
        after[a].append(b)
    for box in range(len(layers) - 1, -1, -1):
        if box not in has_before and after[box]:
            layers[box] = min(layers[each] for each in after[box]) - 1
    return layers


def _columns(layers: Sequence[int], widths: Sequence[float], routes: Sequence[Sequence[int]]) -> list[float]:
    """Returns the middle of each box and point."""
    rows: dict[int, list[int]] = defaultdict(list)
    for each, layer in enumerate(layers):
        rows[layer].append(each)
    above, below = defaultdict[int, list[int]](list), defaultdict[int, list[int]](list)
    for route in routes:
        for a, b in itertools.pairwise(route):
            above[b].append(a)
            below[a].append(b)
    x = [0.0] * len(widths)
    for row in rows.values():
        _place(row, dict.fromkeys(row, 0.0), widths, x)
    for sweep in range(_SWEEPS):
        is_down = sweep % 2 == 0
        near = above if is_down else below
        for layer in sorted(rows, reverse=not is_down):
            row = rows[layer]
            wanted = {each: mean(x[other] for other in near[each]) if near[each] else x[each] for each in row}
            row.sort(key=wanted.__getitem__)
            _place(row, wanted, widths, x)
    return x


def _place(row: Sequence[int], wanted: dict[int, float], widths: Sequence[float], x: list[float]) -> None:
    """Sets the places of a row, in its order, as near to the wanted ones as their widths allow."""
    end = float("-inf")
    for each in row:
        x[each] = max(wanted[each], end + widths[each] / 2)
        end = x[each] + widths[each] / 2 + _GAP
    shift = mean(wanted[each] - x[each] for each in row)
    for each in row:
        x[each] += shift


def _path(route: Sequence[int], x: Sequence[float], y: Sequence[float]) -> str:
    a = route[0]
    text = f"M{x[a]:.1f} {y[a] + _BOX:.1f}"
    for before, each in itertools.pairwise(route):
        start = y[before] + _BOX
        middle = (start + y[each]) / 2
        text += f"C{x[before]:.1f} {middle:.1f} {x[each]:.1f} {middle:.1f} {x[each]:.1f} {y[each]:.1f}"
        if each != route[-1]:
            text += f"V{y[each] + _BOX:.1f}"
    return text
