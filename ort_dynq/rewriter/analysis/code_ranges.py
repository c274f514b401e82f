"""The proof that codes without a Clip fit 8 bits, wherever they are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...operators.encodings import AddedEpsilon, InverseScale, RangeConstants, RangeKind, RoundingOrder, Scaling
from .bounds import LARGEST
from .magnitudes import SMALLEST_DIVISOR


def are_codes_int8(attributes: Mapping[str, Any], constants: RangeConstants) -> bool:
    """Returns whether symmetric codes that are not clipped are proven to be in -127 ... 127 if x and scale are finite.

    Where an inverse scale is infinite, they are not; see :func:`may_be_infinite`.

    Let r be the range after its epsilon, so |x| <= r, and k = r / scale in exact arithmetic: divisor / factor, for
    example 127. The code is round(x / scale), or another form of this. Every step rounds to float32. That changes a
    normal number by a factor of at most 1 + 2^-24, and six steps change k = 127.25 to less than 127.5, which would be
    the first to round to 128.

    An epsilon of 2^-100 or more and the limits of divisor and factor keep all steps normal and finite, with two
    exceptions. If the epsilon is applied to the scale, r / divisor * factor may be denormal; then the epsilon is much
    larger than x. 1 / r may be denormal, if r is 2^126 or more; it still has 12 significant bits or more.

    Without an epsilon, an inverse scale is infinite, or r / divisor is 2^-138 or more, which has 11 significant bits. A
    scale r / 127 may be denormal. Then codes may exceed 127, and 127 in their place differs from them, times the scale,
    by less than 2^-132: by what the sums of a product lose anyway. The reciprocal of such a scale may be infinite, so a
    product with it needs an epsilon.

    Args:
        attributes: The attributes of a DynamicRangeFakeQuantize.
        constants: The constants of the node.
    """
    inverse, added = attributes["inverse_scale"], attributes["added_epsilon"]
    divisor, factor = constants.divisor, constants.factor
    epsilons = constants.lowest_range, constants.lowest_scale
    return (
        attributes["range_kind"] == RangeKind.ABS_MAX
        and attributes["rounding_order"] == RoundingOrder.NO_ZERO_POINT
        and not attributes["float16_range"]
        and not attributes["float16_scale"]
        and (attributes["scaling"] != Scaling.MULTIPLY_BY_THE_RECIPROCAL or max(epsilons) >= SMALLEST_DIVISOR)
        and (constants.lowest_scale <= 0 if inverse else constants.highest_scale >= LARGEST)
        and not (inverse and added == AddedEpsilon.SCALE)
        and constants.highest_range >= LARGEST
        and 1 <= divisor <= 1024
        and 1 / 1024 <= factor <= 1024
        and 1 <= ratio_of(inverse, constants) <= 127.25
    )


def may_be_infinite(attributes: Mapping[str, Any], constants: RangeConstants) -> bool:
    """Returns whether the inverse scale of a row may be infinite: that of a row of zeros, and of tiny numbers."""
    is_unbounded = constants.highest_scale >= LARGEST and constants.lowest_range < SMALLEST_DIVISOR
    return bool(attributes["inverse_scale"]) and is_unbounded


def ratio_of(inverse: int, constants: RangeConstants) -> float:
    """Returns range / scale (range * scale if it is inverse) in exact arithmetic; `inverse` is an InverseScale."""
    divisor, factor = constants.divisor, constants.factor
    if inverse == InverseScale.QUOTIENT:
        return factor * divisor
    return divisor / factor if inverse == InverseScale.NONE else factor / divisor
