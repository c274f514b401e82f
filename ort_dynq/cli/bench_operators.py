"""The benches of operators: ``ort-dynq bench ops``, ``products`` and ``convolutions``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from .command import Outcome
from .render import Figure, format_shape, one_line, ratio_style, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..measuring.progress import Track
    from ..measuring.timing import Settings


def operators(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times every operator, or the operators with misaligned outputs."""
    if arguments.misaligned:
        return _misaligned(arguments, settings, track)
    from ..bench.operators import SIZES, bench_operators

    timings = bench_operators(settings, arguments.sizes or SIZES, track=track)
    note = "ns: per element; ratio: stock / ours; copy: time of a plain copy of as many bytes / ours\n"
    types = ("types", lambda each: f"{each.floats}, {each.codes}")
    return _table(timings, note, types, ("copy", lambda each: Figure(each.copy_ratio, 2)))


def _misaligned(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench.operators import MISALIGNED_SIZES, bench_misaligned

    timings = bench_misaligned(settings, arguments.sizes or MISALIGNED_SIZES, track=track)
    note = "ns: per element; ratio: stock / ours; offset: bytes from a 64-byte boundary to the output\n"
    return _table(timings, note, ("offset", lambda each: each.offset))


_Column = tuple[str, Callable[[Any], object]]


def _table(timings: Sequence[Any], note: str, *further: _Column) -> Outcome:
    """The outcome of timed operators, with further columns: their titles, and the cell of a timing."""

    def text() -> Iterator[RenderableType]:
        yield note
        head = (
            "operator",
            "scales",
            "tensor",
            "threads",
            "ours ns",
            "stock ns",
            "ratio",
            *(name for name, _ in further),
        )
        rows = [
            (
                *(each.operator, each.granularity, format_shape(each.shape), each.threads),
                *(Figure(each.ours_ns, 3), Figure(each.stock_ns, 3), Figure(each.ratio, 2)),
                *(value(each) for _, value in further),
            )
            for each in timings
        ]
        yield table(head, rows, style=lambda row: ratio_style(row[6]))

    return Outcome({"timings": list(map(asdict, timings))}, text)


def products(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times QuantizedMatMul."""
    from ..bench.product_contenders import cold_bytes
    from ..bench.products import ROWS, SIZES, bench_products

    rows, weights, group_size = arguments.rows or ROWS, arguments.sizes or SIZES, arguments.group_size or 32
    found = bench_products(settings, rows, weights, group_size=group_size, track=track)
    cold = {count: cold_bytes(count) for count in rows}

    def text() -> Iterator[RenderableType]:
        yield f"medians in us; 4 bits and MatMulNBits: a scale for each {group_size} rows of the weights"
        yield "MatMulInteger: and a DequantizeLinear; MatMulNBits: accuracy level 4, from float32, which it quantizes"
        yield "ratios: MatMulInteger / ours 8; MatMulNBits 4 / ours 4; read: a plain read of the 8-bit weights / ours 8"
        for size in sorted(set(cold.values()), reverse=True):
            counts = ", ".join(str(count) for count in rows if cold[count] == size)
            yield f"rows {counts}: weights not in the caches; each product has {size >> 20} MB of them, or 512, in turn"
        yield ""
        head = (
            *("rows", "weights", "threads", "ours 8", "MatMulInteger", "ratio", "ours 4", "MatMulNBits 4", "ratio"),
            *("MatMulNBits 8", "torch", "float", "read", "ratio"),
        )
        table_rows = [
            (
                *(each.rows, format_shape(each.weights), each.threads),
                *(Figure(each.ours_8_us, 1), Figure(each.integer_us, 1), Figure(each.ratio_8, 2)),
                *(Figure(each.ours_4_us, 1), Figure(each.nbits_4_us, 1), Figure(each.ratio_4, 2)),
                *(Figure(each.nbits_8_us, 1), Figure(each.torch_us, 1), Figure(each.float_us, 1)),
                *(Figure(each.read_us, 1), Figure(each.read_ratio, 2)),
            )
            for each in found.timings
        ]
        yield table(head, table_rows, style=lambda row: ratio_style(row[5]))
        yield ""
        means = [(mean.name, mean.threads, mean.products, Figure(mean.ratio, 2)) for mean in found.means]
        yield table(("geometric mean", "threads", "products", "ratio"), means, style=lambda row: ratio_style(row[3]))
        yield from map(one_line, found.notes)

    return Outcome({"group_size": group_size, "cold_bytes": cold, **asdict(found)}, text)


def convolutions(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times QuantizedConv."""
    from ..bench.convolutions import CONVOLUTIONS, bench_convolutions

    found = bench_convolutions(settings, arguments.cases or tuple(CONVOLUTIONS), track=track)

    def text() -> Iterator[RenderableType]:
        yield "medians in us; ours: QuantizedConv from codes; ours float: DynamicQuantizeLinear and QuantizedConv"
        yield "stock: ConvInteger, Cast, Mul and Add; Conv: of float32; QLinearConv: static, from codes to codes"
        yield "s8, u8: symmetric int8 weights, and uint8 weights with a zero point; the others have s8 weights"
        yield "ratios: stock / ours; Conv / ours float; QLinearConv / ours s8\n"
        head = (
            *("convolution", "input", "weights", "stride", "threads"),
            *("ours s8", "stock s8", "ratio", "ours u8", "stock u8", "ratio"),
            *("ours float", "Conv", "ratio", "QLinearConv", "ratio"),
        )
        rows = [
            (
                *(each.name, format_shape(each.input), format_shape(each.weights), each.stride, each.threads),
                *(Figure(each.ours_s8_us, 1), Figure(each.integer_s8_us, 1), Figure(each.integer_s8_ratio, 2)),
                *(Figure(each.ours_u8_us, 1), Figure(each.integer_u8_us, 1), Figure(each.integer_u8_ratio, 2)),
                *(Figure(each.ours_float_us, 1), Figure(each.float_us, 1), Figure(each.float_ratio, 2)),
                *(Figure(each.static_us, 1), Figure(each.static_ratio, 2)),
            )
            for each in found.timings
        ]
        yield table(head, rows, style=lambda row: ratio_style(row[13]))
        yield ""
        means = [(mean.name, mean.threads, mean.convolutions, Figure(mean.ratio, 2)) for mean in found.means]
        mean_head = ("geometric mean", "threads", "convolutions", "ratio")
        yield table(mean_head, means, style=lambda row: ratio_style(row[3]))
        yield from map(one_line, found.notes)

    return Outcome(asdict(found), text)
