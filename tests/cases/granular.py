"""Calls of the operators that the rewriter makes of QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from functions import Attributes
from helpers import Shape, random_codes, random_scales, spread, tie_dense

from .case import Case, Cases, Fit, Fitting
from .rows import BLOCKS

CODES: dict[int, Any] = {2: np.uint8, 3: np.int8}


def dynamic_cases(quantizes: bool, to_codes: bool = True) -> Callable[[int], Iterator[Case]]:
    """The operators that the rewriter makes from QuantizeLinear and DequantizeLinear.

    Without the arithmetic onednn, and without zero points of another type than the codes: no standard operator has
    them.
    """

    def cases(opset: int) -> Iterator[Case]:
        rng = np.random.default_rng(opset)
        granularities: list[tuple[Shape, Shape, Shape, Attributes, int]] = [
            ((), (), (), {}, 0),
            ((7,), (), (), {"qtype": "auto"}, 0),
            ((3, 0), (), (), {"qtype": "auto"}, 0),
            ((3, 67), (), (), {"qtype": "auto", "axis": -1}, 0),
            ((3, 67), (1,), (1,), {"qtype": "per_tensor"}, 0),
            ((3, 67), (67,), (67,), {"qtype": "auto", "axis": -1}, -1),
            ((3, 67), (67,), (), {"qtype": "per_channel", "axis": 1}, 1),
            ((3, 67), (3,), (3,), {"qtype": "per_channel", "axis": 0}, 0),
            ((2, 5, 33), (5,), (5,), {"qtype": "auto", "axis": 1}, 1),
            ((2, 5, 33), (2,), (1,), {"qtype": "auto", "axis": -3}, -3),
            ((130, 3), (3,), (3,), {"qtype": "per_channel", "axis": -1}, -1),
        ]
        if not quantizes:
            for shape, block in BLOCKS[: len(BLOCKS) - 2 * (opset < 14)]:
                scales_shape = (*shape[:-1], shape[-1] // block)
                attributes = {"qtype": "per_group", "axis": -1, "block_size": block}
                granularities += [(shape, scales_shape, each, attributes, -1) for each in (scales_shape, (1,))]
        if opset >= 21:  # blocks
            for block in (1, 16, 33):
                last = (2, 5, -(-67 // block))
                first = (2, -(-5 // block), 67)
                for qtype in ("auto", "per_group"):
                    attributes = {"qtype": qtype, "axis": -1, "block_size": block}
                    granularities += [((2, 5, 67), last, last, attributes, -1), ((2, 5, 67), last, (), attributes, -1)]
                    granularities.append(((2, 5, 67), first, first, attributes | {"axis": 1}, 1))
        for shape, scales_shape, zps_shape, attributes, axis in granularities:
            for number in (2, 3):
                dtype, block = CODES[number], int(attributes.get("block_size", 0))
                wraps = quantizes and block > 0 and axis != -1  # ONNX Runtime does: helpers.expected_quantize
                scales = random_scales(rng, scales_shape, special=0 if wraps else 0.3)
                zps = random_codes(rng, zps_shape, dtype)
                if not quantizes:
                    yield Case(attributes, [random_codes(rng, shape, dtype), scales, zps])
                    continue
                each = spread(scales, shape, axis, block)
                src = tie_dense(rng, each, spread(zps, shape, axis, block), dtype)
                if wraps:
                    with np.errstate(all="ignore"):
                        src = np.where(np.abs(src / each) < 2.0**30, src, np.float32(0))
                yield Case(attributes, [src, scales, zps])
                if opset >= 21 and to_codes:
                    yield Case(attributes | {"output_dtype": number}, [src, scales, zps])

    return cases


def _granularities(n: int) -> Iterator[tuple[list[Shape], Attributes]]:
    yield [(n,), ()], {}
    for src, axis in (((n,), 0), ((3, n), 1), ((n, 3), 0), ((3, n), 0), ((n, 3), 1), ((2, n, 3), 1)):
        yield [src, (src[axis],)], {"qtype": "per_channel", "axis": axis}
    for src, scales in (((2, 2 * n), (2, 2)), ((2 * n, 2), (2, 1)), ((n, 4), (n, 2))):
        yield [src, scales], {"qtype": "per_group"}
    yield [(4, 3, 2 * n), (2, 3, 2)], {"qtype": "per_group", "group_shape": (2, 1, n)}
    for block in (3, 16, 32):
        yield [(2, n), (2, -(-n // block))], {"qtype": "per_group", "axis": 1, "block_size": block}
        yield [(n, 3), (-(-n // block), 3)], {"qtype": "per_group", "axis": 0, "block_size": block}


def fitting(n: int) -> Iterator[Fit]:
    for parameters, given in _granularities(n):
        for zps in (parameters[1], (1,)):
            yield [*parameters, zps], given


CASES: Cases = {
    "DynamicQuantize": dynamic_cases(quantizes=True),
    "DynamicDequantize": dynamic_cases(quantizes=False),
    "DynamicFakeQuantize": dynamic_cases(quantizes=True, to_codes=False),
}
FITTING: Fitting = {"DynamicQuantize": fitting, "DynamicDequantize": fitting, "DynamicFakeQuantize": fitting}
