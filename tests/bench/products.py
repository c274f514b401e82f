"""Times products of quantized activations and weights; product_contenders.py has the products that take part."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from ort_dynq.errors import DynqError
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, check_backend, interleave

from .means import Mean, means
from .product_contenders import Case, contenders

T = TypeVar("T")

ROWS = (1, 4, 16, 128, 512)
SIZES = ((384, 384), (384, 1536), (768, 768), (768, 3072), (4096, 4096))


@dataclass(frozen=True)
class ProductTiming:
    """The timing of one product. Times are medians in microseconds; None if a product is not available.

    Attributes:
        rows: The rows of the activation.
        weights: The shape of the weights, K x N.
        threads: The number of threads.
        ours_8_us, ours_4_us: QuantizedMatMul with 8-bit weights, and with 4-bit weights in groups.
        direct_us: QuantizedMatMul with 8-bit weights, without Strassen's algorithm.
        integer_us: MatMulInteger and DequantizeLinear.
        nbits_4_us, nbits_8_us: MatMulNBits.
        torch_us: torch's int8 product.
        float_us: MatMul of float32.
        read_us: A plain read of the 8-bit weights.
        ratio_8: integer_us / ours_8_us.
        ratio_4: nbits_4_us / ours_4_us.
        float_ratio_8, float_ratio_4: float_us / ours_8_us, float_us / ours_4_us.
        read_ratio: read_us / ours_8_us.
    """

    rows: int
    weights: tuple[int, int]
    threads: int
    ours_8_us: float
    ours_4_us: float
    direct_us: float
    integer_us: float
    nbits_4_us: float | None
    nbits_8_us: float | None
    torch_us: float | None
    float_us: float
    read_us: float
    ratio_8: float
    ratio_4: float | None
    float_ratio_8: float
    float_ratio_4: float
    read_ratio: float

    @property
    def float_rate(self) -> float:
        """The multiply-adds of MatMul of float32 in a nanosecond."""
        return rate(self.rows, self.weights, self.float_us)

    @property
    def rate_8(self) -> float:
        """The multiply-adds of QuantizedMatMul with 8-bit weights in a nanosecond."""
        return rate(self.rows, self.weights, self.ours_8_us)

    @property
    def rate_4(self) -> float:
        """The multiply-adds of QuantizedMatMul with 4-bit weights in a nanosecond."""
        return rate(self.rows, self.weights, self.ours_4_us)


@dataclass(frozen=True)
class ProductBench:
    """The timings of all products.

    Attributes:
        timings: One per number of rows, weights and threads.
        means: The geometric means of their ratios.
        notes: Products that are not available, or give wrong results on this machine.
    """

    timings: list[ProductTiming]
    means: list[Mean]
    notes: list[str]


def bench_products(
    settings: Settings,
    rows: Sequence[int] = ROWS,
    sizes: Sequence[tuple[int, int]] = SIZES,
    *,
    group_size: int = 32,
    track: Track = iter,
) -> ProductBench:
    """Times products of every number of rows with weights of every size.

    Args:
        settings: How to time.
        rows: Numbers of rows of the activation.
        sizes: The shapes of the weights, K x N.
        group_size: The number of consecutive k that share a scale, in our 4-bit product and in MatMulNBits.
        track: Shows the progress.

    Raises:
        DynqError: The operators cannot be registered, K is not a multiple of the group size, our result is wrong, or
            the weights do not fit in memory.
    """
    timings, notes = time_products(_time, settings, rows, sizes, group_size, track)
    return ProductBench(timings, list(_means(timings)), notes)


def time_products(
    time: Callable[[Case, int, Settings], tuple[T, list[str]]],
    settings: Settings,
    rows: Sequence[int],
    sizes: Sequence[tuple[int, int]],
    group_size: int,
    track: Track,
) -> tuple[list[T], list[str]]:
    """Returns the timing of each case, and each note once, in the order in which they arose.

    Args:
        time: Times one case with this group size, and returns its notes.
        settings, rows, sizes, group_size, track: As for :func:`bench_products`.

    Raises:
        DynqError: As for :func:`bench_products`.
    """
    for depth, columns in sizes:
        if depth % group_size:
            raise DynqError(f"the groups do not fit {depth}x{columns}: {depth} is not a multiple of {group_size}")
    check_backend(settings.backend)
    cases = [Case(count, size, threads) for threads in settings.threads for size in sizes for count in rows]
    try:
        timings, notes = zip(*(time(case, group_size, settings) for case in track(cases)), strict=True)
    except MemoryError as error:
        raise DynqError(f"the weights do not fit in memory: {error}") from error
    return list(timings), list(dict.fromkeys(itertools.chain(*notes)))


def rate(rows: int, weights: tuple[int, int], us: float) -> float:
    """The multiply-adds in a nanosecond of a product by weights of this shape, K x N."""
    return rows * weights[0] * weights[1] / us / 1e3


def medians_us(rivals: Mapping[str, Contender], settings: Settings, threads: int) -> dict[str, float]:
    """Returns the median time of each contender in microseconds."""
    samples = interleave(list(rivals.values()), settings, threads)
    return {name: float(np.median(each)) / 1e3 for name, each in zip(rivals, samples, strict=True)}


def _time(case: Case, group_size: int, settings: Settings) -> tuple[ProductTiming, list[str]]:
    rivals, notes = contenders(case, group_size, settings)
    us = medians_us(rivals, settings, case.threads)
    nbits_4 = us.get("MatMulNBits 4")
    timing = ProductTiming(
        case.rows,
        case.weights,
        case.threads,
        ours_8_us=us["ort_dynq 8"],
        ours_4_us=us["ort_dynq 4"],
        direct_us=us["direct"],
        integer_us=us["MatMulInteger"],
        nbits_4_us=nbits_4,
        nbits_8_us=us.get("MatMulNBits 8"),
        torch_us=us.get("torch"),
        float_us=us["float"],
        read_us=us["read"],
        ratio_8=us["MatMulInteger"] / us["ort_dynq 8"],
        ratio_4=None if nbits_4 is None else nbits_4 / us["ort_dynq 4"],
        float_ratio_8=us["float"] / us["ort_dynq 8"],
        float_ratio_4=us["float"] / us["ort_dynq 4"],
        read_ratio=us["read"] / us["ort_dynq 8"],
    )
    return timing, notes


def _means(timings: Sequence[ProductTiming]) -> Iterator[Mean]:
    kinds: tuple[tuple[str, Callable[[ProductTiming], float | None], Callable[[int], bool]], ...] = (
        ("MatMulInteger / ort_dynq, 8 bits, all rows", lambda each: each.ratio_8, lambda _: True),
        ("MatMulInteger / ort_dynq, 8 bits, 32 rows and more", lambda each: each.ratio_8, lambda rows: rows >= 32),
        ("MatMulNBits / ort_dynq, 4 bits, 1 row", lambda each: each.ratio_4, lambda rows: rows == 1),
        ("MatMulNBits / ort_dynq, 4 bits, 128 rows", lambda each: each.ratio_4, lambda rows: rows == 128),
        ("float / ort_dynq, 8 bits, 1 row", lambda each: each.float_ratio_8, lambda rows: rows == 1),
        ("float / ort_dynq, 8 bits, 16 rows and more", lambda each: each.float_ratio_8, lambda rows: rows >= 16),
        ("float / ort_dynq, 4 bits, 16 rows and more", lambda each: each.float_ratio_4, lambda rows: rows >= 16),
        ("plain read / ort_dynq, 8 bits, 1 row", lambda each: each.read_ratio, lambda rows: rows == 1),
    )
    for name, ratio, counts in kinds:
        yield from means(name, (each for each in timings if counts(each.rows)), ratio)
