"""Straight-through estimators of training, x + (y - x): y, except for rounding.

torch's `detach` leaves no trace in ONNX, so that the sum and the difference stay in the model.
"""

from __future__ import annotations

import onnx_ir as ir

from .bounds import all_bounds_of
from .constants import constant_scalar
from .nodes import producer_of, skip_identity

LARGEST = 2.0**24
"""The largest magnitude of x for which a clipped code is proven to be exact; see :func:`is_exact`."""


def estimated(node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
    """Returns y and x of an Add that computes x + (y - x); None for other nodes."""
    for x, other in (node.inputs[:2], node.inputs[1::-1]) if node.op_type == "Add" else ():
        difference = producer_of(other, "Sub")
        if x is None or difference is None or None in difference.inputs:
            continue
        y, subtracted = (skip_identity(each) for each in difference.inputs if each is not None)
        if subtracted is skip_identity(x):
            return y, x
    return None


def is_exact(y: ir.Value, x: ir.Value, *, is_small: bool) -> bool:
    """Returns whether x + (y - x) is y: y is x, rounded to integers and perhaps clipped to a range around 0.

    Proof, for float32. Let y be an integer, and d = y - x.

    1. y lies between 0 and x: then abs(d) <= abs(x). If abs(x) <= 2**24, y and so d are multiples of the distance
       between x and its neighbors. So d is a float, and x + d is y.
    2. abs(d) <= 1 and abs(x) >= 1/2: d is a multiple of 2**-24 and at most 1, so it is a float, and x + d is y.
    3. abs(d) <= 1 and abs(x) < 1/2: y is -1, 0 or 1. If y is 0, d is -x. Otherwise d is rounded by at most 2**-25, so
       that x + d rounds to y, at worst in a tie between y and its neighbor, and y is even.

    A rounding alone is case 2 or 3, or x is an integer. A clip of it to a range around 0 may also be case 1.

    Args:
        y: The rounded value.
        x: The value.
        is_small: Whether abs(x) is known to be at most :data:`LARGEST`.
    """
    bounded = all_bounds_of(y)
    rounded = producer_of(bounded.value, "Round", "Floor", "Ceil")
    source = None if rounded is None else rounded.inputs[0]
    if rounded is None or source is None:
        return False
    half = producer_of(source, "Add") if rounded.op_type == "Floor" else None  # round half up
    if half is not None and 0.5 in map(constant_scalar, half.inputs):
        source = next((each for each in half.inputs if each is not None and constant_scalar(each) is None), source)
    is_clipped = bounded.value is not skip_identity(y)
    return skip_identity(source) is skip_identity(x) and (
        not is_clipped or (is_small and bounded.least <= 0 <= bounded.most)
    )
