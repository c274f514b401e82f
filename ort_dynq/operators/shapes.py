"""The shapes of the outputs of operators, by those of the inputs: each output names one of these rules.

A dimension is a number, None if it is not known, or anything else that stands for a length, such as a symbol of
onnx_ir, which rules hand on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .encodings import LastGate
from .packing import QUAD

Dims = list[Any]
_PACKED_RANK = _HEADS_RANK = 4


@dataclass(frozen=True)
class Call:
    """What is known of a call of an operator.

    Attributes:
        shapes: The shapes of the inputs; None for those that are absent or not known.
        attributes: The attributes, defaults included.
    """

    shapes: Sequence[Dims | None]
    attributes: Mapping[str, Any]

    def shape(self, index: int) -> Dims | None:
        """Returns the shape of an input; None if it is absent or not known."""
        return self.shapes[index] if index < len(self.shapes) else None


ShapeRule = Callable[[Call], Dims | None]
"""Returns the shape of an output; None if it is not known."""


def like_src(call: Call) -> Dims | None:
    """The shape of the first input."""
    return call.shape(0)


def scalar(_: Call) -> Dims | None:
    """No dimensions."""
    return []


def of_rows(call: Call) -> Dims | None:
    """One number for each row, which begins at `axis`, or for each block of `block_size` elements."""
    src = call.shape(0)
    if src is None:
        return None
    if (block_size := call.attributes.get("block_size", 0)) > 0:
        return [*src[:-1], src[-1] // block_size if isinstance(src[-1], int) else None]
    axis = call.attributes["axis"]
    begin = axis + len(src) if axis < 0 else axis
    return [dim if i < begin else 1 for i, dim in enumerate(src)]


def two_terms(call: Call) -> Dims | None:
    """Twice the length along `axis`: all codes, then all remainders."""
    src, axis = call.shape(0), call.attributes["axis"]
    if src is None:
        return None
    begin = axis + len(src) if axis < 0 else axis
    return [*src[:begin], 2 * src[begin] if isinstance(src[begin], int) else None, *src[begin + 1 :]]


def reduced(call: Call) -> Dims | None:
    """`count` dimensions from `axis` on are reduced, or all others; they are 1 or, without `keepdims`, removed."""
    src, given = call.shape(0), call.attributes
    if src is None:
        return None
    begin = given["axis"] + len(src) if given["axis"] < 0 else given["axis"]
    run = range(begin, begin + given["count"])
    are_kept = [(i in run) == bool(given["reduce_others"]) for i in range(len(src))]
    return [dim if is_kept else 1 for dim, is_kept in zip(src, are_kept, strict=True) if is_kept or given["keepdims"]]


def of_program(name: str, rule: ShapeRule) -> ShapeRule:
    """The shape of an output that a program assigns; without that, it has no elements."""
    assigned = re.compile(rf"(?:^|;)\s*{name}\s*=")

    def found(call: Call) -> Dims | None:
        return rule(call) if assigned.search(call.attributes["program"]) else [0]

    return found


def product(bias: int) -> ShapeRule:
    """[..., M, N] of [..., M, K] and stacked weights; N and the stack are those of the bias, an input of this index."""

    def found(call: Call) -> Dims | None:
        src, columns = call.shape(0), call.shape(bias)
        if src is None:
            return None
        if not columns:
            return [*src[:-1], None] if columns is None else None
        return [*_broadcast(src[:-2], columns[:-1]), *src[-2:-1], columns[-1]]

    return found


def convolution(bias: int) -> ShapeRule:
    """[N, M, ...] of [N, C, ...]; M is the length of the bias, an input of this index."""

    def found(call: Call) -> Dims | None:
        src, channels = call.shape(0), call.shape(bias)
        return None if src is None else [src[0], channels[-1] if channels else None, *([None] * (len(src) - 2))]

    return found


def interleaved(call: Call) -> Dims | None:
    """[N, C, d1 * s1, ...] of [N, C * s1 * ..., d1, ...] and the strides."""
    src = call.shape(0)
    if src is None:
        return None
    channels, *lengths = src[1:]
    strides = [call.attributes[f"stride_{i + 1}"] for i in range(len(lengths))]
    return [
        src[0],
        channels // math.prod(strides) if isinstance(channels, int) else None,
        *(n * s if isinstance(n, int) else None for n, s in zip(lengths, strides, strict=True)),
    ]


def gathered(call: Call) -> Dims | None:
    """[..., K] of ids and packed weights: [blocks, lines, 16, 4] of 8 or fewer bits."""
    ids, weight, bits = call.shape(0), call.shape(1), call.attributes["bits"]
    if ids is None or not weight:
        return None
    lines = weight[1] if len(weight) == _PACKED_RANK and bits in (8, 4, 2) else None
    return [*ids, lines * QUAD * 8 // bits if isinstance(lines, int) else None]


def matrix_product(call: Call) -> Dims | None:
    """[..., M, N] of [..., M, K] and [K, N]."""
    src, weight = call.shape(0), call.shape(1)
    return None if src is None else [*src[:-1], weight[-1] if weight else None]


def attention(value: int, bias: int) -> ShapeRule:
    """[B, H, S, E] of [B, H, S, D], a value and a bias, inputs of these indices. The bias may have the rows."""

    def found(call: Call) -> Dims | None:
        query, values, biases = call.shape(0), call.shape(value), call.shape(bias)
        if query is None or len(query) != _HEADS_RANK or (biases is not None and len(biases) != _HEADS_RANK):
            return None
        rows = query[2] if query[2] != 1 else biases[2] if biases else None
        return [*query[:2], rows, values[-1] if values else None]

    return found


def attention_in_layouts(call: Call) -> Dims | None:
    """The shape of the query, if the layouts, the heads and the sizes of heads are the same; else it is not known."""
    query, value, given = call.shape(0), call.shape(2), call.attributes
    layouts = {given[f"{name}_layout"] for name in ("query", "value", "dst")}
    is_same = given["kv_num_heads"] in (0, given["num_heads"]) and len(layouts) == 1
    return query if query and value and is_same and query[-1] == value[-1] else None


def states(call: Call) -> Dims | None:
    """[T, D, B, H] of steps, directions, sequences and `hidden_size`."""
    src, final = call.shape(0), final_state(call)
    return None if src is None or final is None else [src[0], *final]


def final_state(call: Call) -> Dims | None:
    """[D, B, H] of directions, sequences and `hidden_size`."""
    src, weight = call.shape(0), call.shape(1)
    if src is None:
        return None
    return [weight[0] if weight else None, src[1], call.attributes["hidden_size"]]


_SECOND_STATE = of_program("dst_2", final_state)


def second_state(call: Call) -> Dims | None:
    """[D, B, H]; no elements if there is no second state: without `dst_2`, or if that is a reset state."""
    return [0] if call.attributes["last_gate"] == LastGate.RESET_STATE else _SECOND_STATE(call)


def unknown(_: Call) -> Dims | None:
    """A shape that depends on more than shapes."""
    return None


def _broadcast(lead: Dims, stack: Dims) -> Dims:
    """Returns the leading dimensions of a product of an activation and stacked weights of known dimensions."""
    rank = max(len(lead), len(stack))
    ones: Dims = [1] * rank
    pairs = zip([*ones[len(lead) :], *lead], [*ones[len(stack) :], *stack], strict=True)
    return [b if a == 1 or (b != 1 and not isinstance(a, int)) else a for a, b in pairs]
