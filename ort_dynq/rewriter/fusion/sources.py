"""The values that an operand of attention is a view of, and the scalars that multiply it in between.

Example: q = Mul(r, 0.25) with r = Reshape(x) has the sources q, r and x, the last two with the scalar 0.25.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import onnx_ir as ir

from ..analysis.limits import CHAIN
from ..analysis.nodes import is_standard, producer_of
from ..analysis.shape_arithmetic import known_number
from ..analysis.shapes import has_one_element, is_equal
from ..analysis.standard import COMMUTATIVE, SCALING
from ..views import Factor, View, broadcast, dims_of, leaves
from .score_steps import Scalar


@dataclass(frozen=True)
class Source:
    """A value that an operand is a view of, and the scalars that multiply it after it."""

    view: View
    scalars: tuple[Scalar, ...] = ()


def sources_of(operand: View, tokens: Iterable[Factor] | None = None, *, repeats: bool = False) -> list[Source]:
    """Returns an operand, and the values that it is a view of, the first one last; with `repeats` also through Expand.

    A product with a scalar that is computed at run time may be a dequantization. It stays, except after the key has
    been transposed: `tokens` are the factors that are its last axis then.
    """
    found = [Source(operand)]
    while not CHAIN.is_passed(len(found)):
        view, scalars = found[-1].view, found[-1].scalars
        node = view.value.producer()
        if (before := view.before()) is not None:
            found.append(Source(before, scalars))
        elif repeats and (narrow := _before_expand(view)) is not None:
            found.append(Source(narrow, scalars))
        elif node is not None and is_standard(node, *SCALING):
            is_last = bool(tokens) and leaves(view.axes[-1:]) == leaves([tokens or ()])
            scaled = _unscaled(node, len(view.axes), at_run_time=is_last)
            if scaled is None:
                break
            found.append(Source(View(scaled[0], view.axes), (*scalars, scaled[1])))
        else:
            break
    return found


def _before_expand(view: View) -> View | None:
    """Returns the value that an Expand repeats, which has not all factors; None if that is not known."""
    expand = producer_of(view.value, "Expand")
    source = None if expand is None else expand.inputs[0]
    if source is None or source.shape is None:
        return None
    pairs = zip(reversed(source.shape), reversed(dims_of(view.value)), strict=False)
    is_known = all(isinstance(dim, int) or is_equal(dim, wide) for dim, wide in pairs)
    return broadcast(source, view.axes) if is_known else None


def _unscaled(node: ir.Node, rank: int, *, at_run_time: bool) -> tuple[ir.Value, Scalar] | None:
    """Returns the operand of a Mul or Div that a scalar scales, and the scalar."""
    for i in (0, 1) if is_standard(node, *COMMUTATIVE) else (0,):
        value, other = node.inputs[i], node.inputs[1 - i]
        if value is None or other is None or not has_one_element(other, 4) or len(dims_of(value)) != rank:
            continue
        if at_run_time or known_number(other) is not None:
            return value, Scalar(other, divides=node.op_type == "Div")
    return None
