"""The proof that codes without a Clip fit 8 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...operators.encodings import AddedEpsilon, InverseScale, RangeConstants, RangeKind, RoundingOrder
from .bounds import LARGEST


def are_codes_int8(attributes: Mapping[str, Any], constants: RangeConstants) -> bool:
    """Returns whether symmetric codes that are not clipped are proven to be in -127 ... 127 if x and scale are finite.

    Let r be the range after its epsilon, so |x| <= r, and k = r / scale in exact arithmetic: divisor / factor, for
    example 127. The code is round(x / scale), or another form of this. Every step rounds to float32. That changes a
    normal number by a factor of at most 1 + 2^-24, and six steps change k = 127.25 to less than 127.5, which would be
    the first to round to 128.

    The epsilon, 2^-100 or more, and the limits of divisor and factor keep all steps normal and finite, with two
    exceptions. If the epsilon is applied to the scale, r / divisor * factor may be denormal; then the epsilon is much
    larger than x. 1 / r may be denormal, if r is 2^126 or more; it still has 12 significant bits or more.

    Args:
        attributes: The attributes of a DynamicRangeFakeQuantize.
        constants: The constants of the node.
    """
    inverse, added = attributes["inverse_scale"], attributes["added_epsilon"]
    divisor, factor = constants.divisor, constants.factor
    epsilons = constants.lowest_range, -math.inf if inverse else constants.lowest_scale
    return (
        attributes["range_kind"] == RangeKind.ABS_MAX
        and attributes["rounding_order"] == RoundingOrder.NO_ZERO_POINT
        and not attributes["float16_range"]
        and not attributes["float16_scale"]
        and (constants.lowest_scale <= 0 if inverse else constants.highest_scale >= LARGEST)
        and not (inverse and added == AddedEpsilon.SCALE)
        and constants.highest_range >= LARGEST
        and max(epsilons) >= 2.0**-100
        and 1 <= divisor <= 1024
        and 1 / 1024 <= factor <= 1024
        and 1 <= ratio_of(inverse, constants) <= 127.25
    )


def ratio_of(inverse: int, constants: RangeConstants) -> float:
    """Returns range / scale (range * scale if it is inverse) in exact arithmetic; `inverse` is an InverseScale."""
    divisor, factor = constants.divisor, constants.factor
    if inverse == InverseScale.QUOTIENT:
        return factor * divisor
    return divisor / factor if inverse == InverseScale.NONE else factor / divisor
