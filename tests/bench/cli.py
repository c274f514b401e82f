"""The command line of the benchmarks for developers: ``python tests/bench``.

More than 450 lines: each subcommand is its arguments, its table and its entry in the list.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import language_cli, package_cli
from ort_dynq import DynqError
from ort_dynq.cli import command
from ort_dynq.cli.arguments import add_backend, add_changes, add_exact, positive, positives
from ort_dynq.cli.command import Command, Outcome
from ort_dynq.cli.render import Figure, format_shape, one_line, ratio_style, table
from ort_dynq.cli.timing import add_timing, problem_lines, ratio_cells, rewritten_cell, timed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bench.convolutions import ConvolutionTiming
    from bench.products import ProductTiming
    from ort_dynq.tools.measuring.progress import Track
    from ort_dynq.tools.measuring.timing import Settings

PROGRAM = "python tests/bench"
_THREADS = "1 and the number of cores"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one benchmark and returns the exit status.

    Args:
        argv: The arguments without the name of the program; None for the process's own.
    """
    return command.main(parser(), argv)


def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    return command.make_parser(
        PROGRAM, "Measures ort_dynq's operators, seeded networks and a small language model.", COMMANDS
    )


def _names(text: str) -> tuple[str, ...]:
    """Parses names separated by commas."""
    return tuple(text.split(","))


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    """Parses sizes of matrices, ROWSxCOLUMNS, separated by commas."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}x[1-9][0-9]{0,8}(,[1-9][0-9]{0,8}x[1-9][0-9]{0,8})*", text):
        raise argparse.ArgumentTypeError(f"{text} is not a size like 256x1024, or several like 64x64,256x1024")
    rows_and_columns = (size.split("x") for size in text.split(","))
    return tuple((int(rows), int(columns)) for rows, columns in rows_and_columns)


def _operator_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads=_THREADS, time="0.5")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="RxC[,RxC]",
        help="sizes of the tensors (default: 1x64,64x64,256x1024,4096x4096; programs: 1x8 to 512x768; "
        "with --misaligned: 256x1000,2560x100,4096x60,256x1024)",
    )
    parser.add_argument(
        "--misaligned", action="store_true", help="time outputs at 0, 16 and 32 bytes past a 64-byte boundary"
    )
    add_backend(parser)


def _product_arguments(parser: argparse.ArgumentParser, *, sizes: str, rows: str) -> None:
    add_timing(parser, threads=_THREADS, time="0.5")
    parser.add_argument(
        "--sizes",
        type=_sizes,
        metavar="RxC[,RxC]",
        help=f"sizes of the weights, inputs x outputs (default: {sizes})",
    )
    parser.add_argument("--rows", type=positives, metavar="N[,N]", help=f"rows of the activation (default: {rows})")
    parser.add_argument(
        "--group-size",
        type=int,
        choices=(16, 32, 64, 128),
        help="rows of the weights that share a scale, in 4-bit weights and in MatMulNBits (default: 32)",
    )
    add_backend(parser)


def _nbits_arguments(parser: argparse.ArgumentParser) -> None:
    _product_arguments(parser, sizes="1024x1024,1024x3072,4096x4096", rows="1,16,128")
    parser.add_argument("--bits", type=int, choices=(2, 4, 8), default=4, help="bits of the weights (default: 4)")
    parser.add_argument(
        "--zero-points",
        nargs="?",
        const="codes",
        default="none",
        choices=("codes", "floats"),
        help="weights with a zero point for each block: a code, or a float",
    )
    parser.add_argument(
        "--dequantize-linear",
        default="",
        choices=("blocks", "transposed", "channels"),
        help="MatMul of weights behind DequantizeLinear: blocks along K, [K, N] or [N, K]; or a scale for each column",
    )


def _expert_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads=_THREADS, time="0.5")
    parser.add_argument("--tokens", type=positives, metavar="N[,N]", help="numbers of tokens (default: 1,16,128)")
    parser.add_argument("--size", type=positive, metavar="N", help="elements of tokens and experts (default: 1024)")
    parser.add_argument("--group-size", type=int, choices=(16, 32, 64, 128), help="size of blocks (default: 32)")
    add_backend(parser)


def _attention_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads=_THREADS, time="0.5")
    parser.add_argument(
        "--cases", type=_names, metavar="NAME[,NAME]", help="names in the first column of the table (default: all)"
    )
    parser.add_argument("--heads", type=positive, metavar="N", help="the number of heads (default: 32)")
    add_backend(parser)


def _integer_attention_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads="1", time="0.5")
    parser.add_argument(
        "--cases", type=_names, metavar="NAME[,NAME]", help="names in the first column of the table (default: all)"
    )
    parser.add_argument(
        "--isas", type=_names, metavar="NAME[,NAME]", help="instruction sets (default: all of this CPU but portable)"
    )
    add_backend(parser)


def _compressed_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads=_THREADS, time="0.5")
    parser.add_argument(
        "--sizes", type=_sizes, metavar="KxN[,KxN]", help="sizes of the weights (default: 1024x3072,4096x4096)"
    )
    parser.add_argument("--rows", type=positives, metavar="N[,N]", help="rows of the activation (default: 1,4,16,128)")
    parser.add_argument("--parts", type=positives, metavar="N[,N]", help="columns of a part (default: 32,64,128)")
    parser.add_argument("--bits", type=int, choices=(4, 8), help="bits of a code (default: 4 and 8)")
    add_backend(parser)


def _convolution_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads=_THREADS, time="0.5")
    parser.add_argument(
        "--cases", type=_names, metavar="NAME[,NAME]", help="names in the first column of the table (default: all)"
    )
    add_backend(parser)


def _chain_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads="1", time="0.5")
    add_exact(parser)
    add_backend(parser)


def _network_arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads="1", time="2")
    parser.add_argument(
        "--networks",
        type=_names,
        metavar="NAME[,NAME]",
        help="encoder, decoder, resnet, ppocr, yolo, mobilenet, efficientnet, unet or wave; of PyPI packages: "
        "ppocr-rec, ppocr-det, ppocr-cls or silero-vad (default: all that are installed)",
    )
    parser.add_argument(
        "--forms", type=_names, metavar="NAME[,NAME]", help="forms of linear layers or convolutions (default: all)"
    )
    parser.add_argument(
        "--tokens",
        type=positives,
        metavar="N[,N]",
        help="tokens in the encoder's input, or in the decoder's past (default: 1,128)",
    )
    parser.add_argument("--layers", type=positive, metavar="N", help="layers of a transformer (default: 6)")
    parser.add_argument("--hidden", type=positive, metavar="N", help="hidden size of a transformer (default: 768)")
    parser.add_argument("--heads", type=positive, metavar="N", help="attention heads (default: 12)")
    parser.add_argument("--float16", action="store_true", help="time transformers as float16 models as well")
    parser.add_argument(
        "--image", type=positive, metavar="N", help="pixels of the images of convolutions (default: 224)"
    )
    add_changes(parser)
    add_backend(parser)


def _operators(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times every operator, or the operators with misaligned outputs."""
    if arguments.misaligned:
        return _misaligned(arguments, settings, track)
    from bench import operators, programs

    timings = operators.bench_operators(settings, arguments.sizes or operators.SIZES, track=track)
    note = "ns: per element; ratio: stock / ort_dynq; copy: time of a plain copy of as many bytes / ort_dynq\n"
    types = ("types", lambda each: f"{each.floats}, {each.codes}")
    found = _table(timings, note, types, ("copy", lambda each: Figure(each.copy_ratio, 2)))
    of_programs = programs.bench_programs(settings, arguments.sizes or programs.SIZES, track=track)

    def text() -> Iterator[RenderableType]:
        yield from found.text()
        yield ""
        yield "RowProgram, and its steps as nodes of stock ONNX Runtime; ratio: stock / RowProgram\n"
        head = ("form", "tensor", "threads", "RowProgram ns", "stock ns", "ratio", "type")
        yield _timings(
            of_programs,
            head,
            lambda each: (
                *(each.form, format_shape(each.shape), each.threads, Figure(each.program_ns, 3)),
                *(Figure(each.stock_ns, 3), Figure(each.ratio, 2), each.floats),
            ),
        )

    return Outcome({**found.data, "programs": list(map(asdict, of_programs))}, text)


def _misaligned(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from bench.operators import MISALIGNED_SIZES, bench_misaligned

    timings = bench_misaligned(settings, arguments.sizes or MISALIGNED_SIZES, track=track)
    note = "ns: per element; ratio: stock / ort_dynq; offset: bytes from a 64-byte boundary to the output\n"
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
            "ort_dynq ns",
            "stock ns",
            "ratio",
            *(name for name, _ in further),
        )
        yield _timings(
            timings,
            head,
            lambda each: (
                *(each.operator, each.granularity, format_shape(each.shape), each.threads),
                *(Figure(each.ours_ns, 3), Figure(each.stock_ns, 3), Figure(each.ratio, 2)),
                *(value(each) for _, value in further),
            ),
        )

    return Outcome({"timings": list(map(asdict, timings))}, text)


def _timings(timings: Iterable[Any], head: Sequence[str], cells: Callable[[Any], tuple[object, ...]]) -> RenderableType:
    """A table with a row for each timing; its first ratio gives the color."""
    first = head.index("ratio")
    return table(head, list(map(cells, timings)), style=lambda row: ratio_style(row[first]))


def _means_and_notes(found: Any, counted: str) -> Iterator[RenderableType]:
    """Yields the table of geometric means, each of so many products or convolutions (`counted`), and the notes."""
    yield ""
    head = ("geometric mean", "threads", counted, "ratio")
    yield _timings(found.means, head, lambda each: (each.name, each.threads, each.timings, Figure(each.ratio, 2)))
    yield from map(one_line, found.notes)


def _float_rates(timings: Sequence[ProductTiming] | Sequence[ConvolutionTiming]) -> Iterator[str]:
    """Yields what products of float32 reach, for each number of threads."""
    for threads in sorted({each.threads for each in timings}):
        most = max(each.float_rate for each in timings if each.threads == threads)
        yield f"float: up to {most:.0f} multiply-adds a ns (threads: {threads})"


def _products(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times QuantizedMatMul."""
    from bench.product_contenders import cold_bytes
    from bench.products import ROWS, SIZES, bench_products

    rows, weights, group_size = arguments.rows or ROWS, arguments.sizes or SIZES, arguments.group_size or 32
    found = bench_products(settings, rows, weights, group_size=group_size, track=track)
    cold = {count: cold_bytes(count) for count in rows}

    def text() -> Iterator[RenderableType]:
        yield f"medians in us; 4 bits and MatMulNBits: a scale for each {group_size} rows of the weights"
        yield "MatMulInteger: and a DequantizeLinear; MatMulNBits: accuracy level 4, from float32, which it quantizes"
        yield "ratios: MatMulInteger / ort_dynq 8; MatMulNBits 4 / ort_dynq 4"
        yield "read: a plain read of the 8-bit weights / ort_dynq 8"
        yield "direct: ort_dynq 8 without Strassen's algorithm, which ort_dynq chooses by rule"
        yield from _float_rates(found.timings)
        for threads in sorted({each.threads for each in found.timings}):
            some = [each for each in found.timings if each.threads == threads]
            rates = (
                f"{max(each.rate_8 for each in some):.0f} with 8 bits, {max(each.rate_4 for each in some):.0f} with 4"
            )
            yield f"ort_dynq: up to {rates} (threads: {threads})"
        for size in sorted(set(cold.values()), reverse=True):
            counts = ", ".join(str(count) for count in rows if cold[count] == size)
            yield f"rows {counts}: weights not in the caches; each product has {size >> 20} MB of them, or 512, in turn"
        yield ""
        head = (
            *(
                "rows",
                "weights",
                "threads",
                "ort_dynq 8",
                "MatMulInteger",
                "ratio",
                "ort_dynq 4",
                "MatMulNBits 4",
                "ratio",
            ),
            *("MatMulNBits 8", "torch", "float", "/ 8", "/ 4", "read", "ratio", "direct"),
        )
        yield _timings(
            found.timings,
            head,
            lambda each: (
                *(each.rows, format_shape(each.weights), each.threads),
                *(Figure(each.ours_8_us, 1), Figure(each.integer_us, 1), Figure(each.ratio_8, 2)),
                *(Figure(each.ours_4_us, 1), Figure(each.nbits_4_us, 1), Figure(each.ratio_4, 2)),
                *(Figure(each.nbits_8_us, 1), Figure(each.torch_us, 1)),
                *(Figure(each.float_us, 1), Figure(each.float_ratio_8, 2), Figure(each.float_ratio_4, 2)),
                *(Figure(each.read_us, 1), Figure(each.read_ratio, 2), Figure(each.direct_us, 1)),
            ),
        )
        yield from _means_and_notes(found, "products")

    return Outcome({"group_size": group_size, "cold_bytes": cold, **asdict(found)}, text)


def _experts(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times QMoE and QuantizedExperts."""
    from bench.experts import TOKENS, bench_experts

    tokens, size, block_size = arguments.tokens or TOKENS, arguments.size or 1024, arguments.group_size or 32
    timings = bench_experts(settings, tokens, size, block_size=block_size, track=track)

    def text() -> Iterator[RenderableType]:
        yield f"medians in us; experts of {size} elements with gates, blocks of {block_size}; ratio: QMoE / ort_dynq\n"
        head = ("experts", "bits", "level", "--weights-only", "tokens", "threads", "ort_dynq", "QMoE", "ratio")
        yield _timings(
            timings,
            head,
            lambda each: (
                *("{1} of {0}".format(*each.experts), each.bits, each.level, each.weights_only, each.tokens),
                *(each.threads, Figure(each.ours_us, 1), Figure(each.stock_us, 1), Figure(each.ratio, 2)),
            ),
        )

    return Outcome({"size": size, "block_size": block_size, "timings": list(map(asdict, timings))}, text)


def _attention(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times CompressedAttention."""
    from bench.attentions import FORMS, HEADS, bench_attentions

    heads = arguments.heads or HEADS
    timings = bench_attentions(settings, arguments.cases or tuple(FORMS), heads=heads, track=track)

    def text() -> Iterator[RenderableType]:
        yield f"fastest runs in us; {heads} heads; keys of DT are [1, heads, size, keys], of TD [1, heads, keys, size]"
        yield "ort_dynq: rewrite --fuse; codes: the same model in stock ONNX Runtime; float: keys and values of float32"
        yield "read: a plain read of the inputs; dB: from float64"
        yield "ratios: float / ort_dynq, codes / ort_dynq, read / ort_dynq\n"
        head = ("case", "queries", "keys", "size", "group", "threads", "ort_dynq", "float", "ratio", "codes", "ratio")
        yield _timings(
            timings,
            (*head, "read", "ratio", "dB"),
            lambda each: (
                *(each.name, each.form.queries, each.form.keys, each.form.size, each.form.group, each.threads),
                *(Figure(each.ours_us, 1), Figure(each.float_us, 1), Figure(each.ratios[0], 2)),
                *(Figure(each.codes_us, 1), Figure(each.ratios[1], 2)),
                *(Figure(each.read_us, 1), Figure(each.ratios[2], 2), Figure(each.snr_db, 1)),
            ),
        )

    return Outcome({"heads": heads, "timings": list(map(asdict, timings))}, text)


def _integer_attention(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times QuantizedAttention."""
    from bench.integer_attentions import FORMS, bench_integer_attentions

    names = arguments.cases or tuple(FORMS)
    timings = bench_integer_attentions(settings, names, isas=arguments.isas or (), track=track)

    def text() -> Iterator[RenderableType]:
        yield "fastest runs in us, one thread; float: MultiHeadAttention in stock ONNX Runtime"
        yield "ratio: float / ort_dynq\n"
        yield _timings(
            timings,
            ("case", "instruction set", "tokens", "heads", "size", "ort_dynq", "float", "ratio"),
            lambda each: (
                *(each.name, each.isa, each.tokens, each.heads, each.size),
                *(Figure(each.ours_us, 1), Figure(each.float_us, 1), Figure(each.ratio, 2)),
            ),
        )

    return Outcome({"timings": list(map(asdict, timings))}, text)


def _compressed(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times CompressedMatMul."""
    from bench.compressed_products import PARTS, ROWS, SIZES, bench_compressed

    timings = bench_compressed(
        settings,
        arguments.rows or ROWS,
        arguments.sizes or SIZES,
        parts=arguments.parts or PARTS,
        bits=(arguments.bits,) if arguments.bits else (4, 8),
        track=track,
    )

    def text() -> Iterator[RenderableType]:
        yield "fastest runs in us; each row of the weights has a scale and a zero point for each part of the columns"
        yield "all weights are inputs, and not in the caches"
        yield "ort_dynq: CompressedMatMul; codes: DequantizeLinear, MatMul; float: MatMul of weights dequantized once"
        yield "dB: from float64; ratios: float / ort_dynq, codes / ort_dynq\n"
        head = ("rows", "weights", "part", "bits", "threads", "ort_dynq", "float", "ratio", "codes", "ratio", "dB")
        yield _timings(
            timings,
            head,
            lambda each: (
                *(each.rows, format_shape(each.weights), each.part, each.bits, each.threads, Figure(each.ours_us, 1)),
                *(Figure(each.float_us, 1), Figure(each.ratios[0], 2), Figure(each.codes_us, 1)),
                *(Figure(each.ratios[1], 2), Figure(each.snr_db, 1)),
            ),
        )

    return Outcome({"timings": list(map(asdict, timings))}, text)


def _nbits(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times MatMulNBits and its rewritten forms."""
    from bench.nbits_products import ROWS, SIZES, Form, bench_nbits

    rows, weights, group_size = arguments.rows or ROWS, arguments.sizes or SIZES, arguments.group_size or 32
    form = Form(arguments.bits, arguments.zero_points, arguments.dequantize_linear)
    found = bench_nbits(settings, rows, weights, form=form, group_size=group_size, track=track)
    zero_points = "" if form.zero_points == "none" else f" with zero points ({form.zero_points})"
    stock = f"made of DequantizeLinear ({form.dequantized})" if form.dequantized else "accuracy level 4"

    def text() -> Iterator[RenderableType]:
        yield f"medians in us; {form.bits} bits in blocks of {group_size}{zero_points}; weights not in the caches"
        yield f"MatMulNBits: {stock}; blocks, two-term: rewritten; llama.cpp: Q4_0; read: of the packed weights"
        yield "float: MatMul of float32"
        yield "ratios: MatMulNBits / blocks, MatMulNBits / two-term, llama.cpp / blocks, float / blocks, read / blocks"
        for threads in sorted({each.threads for each in found.timings}):
            some = [each.rates for each in found.timings if each.threads == threads]
            most = {name: max(rates[name] for rates in some) for name in some[0]}
            rates = ", ".join(f"{name} {most:.0f}" for name, most in most.items())
            yield f"multiply-adds a ns: up to {rates} (threads: {threads})"
        yield ""
        head = ("rows", "weights", "threads", "MatMulNBits", "blocks", "ratio", "two-term", "ratio")
        yield _timings(
            found.timings,
            (*head, "llama.cpp", "ratio", "float", "ratio", "read", "ratio"),
            lambda each: (
                *(each.rows, format_shape(each.weights), each.threads, Figure(each.stock_us, 1)),
                *(Figure(each.blocks_us, 1), Figure(each.ratios[0], 2)),
                *(Figure(each.two_terms_us, 1), Figure(each.ratios[1], 2)),
                *(Figure(each.llama_cpp_us, 1), Figure(each.ratios[2], 2)),
                *(Figure(each.float_us, 1), Figure(each.ratios[3], 2)),
                *(Figure(each.read_us, 1), Figure(each.ratios[4], 2)),
            ),
        )
        yield from _means_and_notes(found, "products")

    return Outcome({"group_size": group_size, **asdict(form), **asdict(found)}, text)


def _convolutions(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Times QuantizedConv and WordConv."""
    from bench.convolutions import CONVOLUTIONS, bench_convolutions

    found = bench_convolutions(settings, arguments.cases or tuple(CONVOLUTIONS), track=track)

    def text() -> Iterator[RenderableType]:
        yield "medians in us; ort_dynq: QuantizedConv of codes; ort_dynq float: DynamicQuantizeLinear, QuantizedConv"
        yield "stock: ConvInteger, Cast, Mul and Add; QLinearConv: static, from codes to codes"
        yield "Conv, OpenVINO: of float32, by ONNX Runtime and by OpenVINO"
        yield "s8, u8: symmetric int8 weights, and uint8 weights with a zero point; the others have s8 weights"
        yield "two terms: TwoTermQuantize, QuantizedConv; words: WordConv"
        yield "direct, Winograd: ort_dynq s8 by these algorithms; ort_dynq chooses one of them by rule"
        yield "ratios: stock / ort_dynq; Conv / ort_dynq float; Conv / two terms; Conv / words;"
        yield "OpenVINO / ort_dynq float; QLinearConv / ort_dynq s8; direct / Winograd"
        yield from _float_rates(found.timings)
        yield ""
        head = (
            *("convolution", "input", "weights", "stride", "threads"),
            *("ort_dynq s8", "stock s8", "ratio", "ort_dynq u8", "stock u8", "ratio"),
            *("ort_dynq float", "Conv", "ratio", "two terms", "ratio", "words", "ratio"),
            *("OpenVINO", "ratio", "QLinearConv", "ratio"),
            *("direct", "Winograd", "ratio"),
        )
        rows = [
            (
                *(each.name, format_shape(each.input), format_shape(each.weights), each.stride, each.threads),
                *(Figure(each.ours_s8_us, 1), Figure(each.integer_s8_us, 1), Figure(each.integer_s8_ratio, 2)),
                *(Figure(each.ours_u8_us, 1), Figure(each.integer_u8_us, 1), Figure(each.integer_u8_ratio, 2)),
                *(Figure(each.ours_float_us, 1), Figure(each.float_us, 1), Figure(each.float_ratio, 2)),
                *(Figure(each.two_terms_us, 1), Figure(each.two_terms_ratio, 2)),
                *(Figure(each.words_us, 1), Figure(each.words_ratio, 2)),
                *(Figure(each.openvino_us, 1), Figure(each.openvino_ratio, 2)),
                *(Figure(each.static_us, 1), Figure(each.static_ratio, 2)),
                *(Figure(each.direct_us, 1), Figure(each.winograd_us, 1), Figure(each.winograd_ratio, 2)),
            )
            for each in found.timings
        ]
        yield table(head, rows, style=lambda row: ratio_style(row[13]))
        yield from _means_and_notes(found, "convolutions")

    return Outcome(asdict(found), text)


def _chains(_: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from bench.chains import SHAPE, bench_chains

    timings = bench_chains(settings, track=track)

    def text() -> Iterator[RenderableType]:
        yield f"float32 {format_shape(SHAPE)}; ratio: stock / ort_dynq; / Relu: ort_dynq / Relu of the same tensor\n"
        head = ("chain", "nodes", "threads", "stock ms", "ort_dynq ms", "ratio", "Relu ms", "/ Relu", "rewritten to")
        yield _timings(
            timings,
            head,
            lambda each: (
                *(each.name, each.nodes, each.threads),
                *ratio_cells(each),
                *(Figure(each.relu.median_ms, 4), Figure(each.relu_ratio, 2), rewritten_cell(each)),
            ),
        )

    return Outcome({"timings": list(map(asdict, timings))}, text)


def _networks(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from bench.network_contenders import FORMS
    from bench.networks import TOKENS, Sizes, available, bench_networks

    chosen = arguments.networks or available()
    _check_network_options(arguments, chosen)
    given = {name: getattr(arguments, name) for name in ("layers", "hidden", "heads", "image")}
    network_sizes = Sizes(**{name: size for name, size in given.items() if size})
    timings = bench_networks(
        settings,
        names=chosen,
        forms=arguments.forms,
        tokens=arguments.tokens or TOKENS,
        sizes=network_sizes,
        float16=arguments.float16,
        track=track,
    )

    def text() -> Iterator[RenderableType]:
        layers, hidden, heads, image = astuple(network_sizes)
        yield "medians; ratio: stock / ort_dynq"
        yield f"encoder, decoder: layers {layers}, hidden size {hidden}, heads {heads}"
        yield "tokens: in the encoder's input, or in the decoder's past"
        yield "resnet: ResNet-18; ppocr: depthwise convolutions with HardSwish; yolo: in the shape of YOLOv8s"
        yield "mobilenet: MobileNetV3-Large; efficientnet: EfficientNet-B0; unet: a U-Net; wave: of wav2vec 2.0"
        yield "OpenVINO float32, bfloat16, int8: its time / ort_dynq, of the fastest runs"
        yield f"images of {image}x{image}\n"
        others = [form for form in FORMS if any(form in each.openvino for each in timings)]
        head = (
            *("network", "form", "floats", "tokens", "threads", "stock ms", "ort_dynq ms", "ratio"),
            *(f"OpenVINO {form}" for form in others),
            "rewritten to",
        )
        yield _timings(
            timings,
            head,
            lambda each: (
                *(each.network, each.name, each.floats, each.tokens or "-", each.threads),
                *ratio_cells(each),
                *(Figure(each.openvino.get(form), 2) for form in others),
                rewritten_cell(each),
            ),
        )
        yield from problem_lines(timings)

    return Outcome({"sizes": asdict(network_sizes), "timings": list(map(asdict, timings))}, text)


def _check_network_options(arguments: argparse.Namespace, networks: Sequence[str]) -> None:
    """Raises a DynqError if a size is given that none of the chosen networks has."""
    from bench import convnets
    from ort_dynq.operators.encodings import one_of

    for takers, options in (
        (("encoder", "decoder"), ("tokens", "layers", "hidden", "heads", "float16")),
        (tuple(convnets.NETWORKS), ("image",)),
    ):
        for name in options:
            if getattr(arguments, name) and not {*takers} & {*networks}:
                raise DynqError(f"--{name} is for {one_of(takers)}, not for {one_of(networks)}")


COMMANDS = (
    Command(
        "ops",
        "QuantizeLinear and DequantizeLinear of float32, float16, bfloat16, uint8, uint4 and int4, and a plain copy; "
        "RowProgram, and the chains and operators that compute the same",
        (f"{PROGRAM} ops --threads 1 --isa avx2", f"{PROGRAM} ops --misaligned"),
        _operator_arguments,
        partial(timed, run=_operators, time=0.5, all_cores=True),
    ),
    Command(
        "products",
        "QuantizedMatMul with 8 and 4 bits, MatMulInteger, MatMulNBits, torch's int8 product if torch is installed, "
        "MatMul of float32, and a plain read of the weights",
        (f"{PROGRAM} products --rows 1,128 --sizes 768x3072 --threads 1",),
        partial(_product_arguments, sizes="384x384,384x1536,768x768,768x3072,4096x4096", rows="1,4,16,128,512"),
        partial(timed, run=_products, time=0.5, all_cores=True),
    ),
    Command(
        "nbits",
        "MatMulNBits or weights behind DequantizeLinear, rewritten forms, llama.cpp if llama-cpp-python is installed, "
        "MatMul of float32, and a plain read of the weights",
        (f"{PROGRAM} nbits --rows 1,128 --sizes 4096x4096 --group-size 128 --threads 1",),
        _nbits_arguments,
        partial(timed, run=_nbits, time=0.5, all_cores=True),
    ),
    Command(
        "experts",
        "mixtures of experts with weights of 4 and 8 bits (QMoE), and their rewritten forms",
        (f"{PROGRAM} experts --tokens 1,128 --group-size 128 --threads 1",),
        _expert_arguments,
        partial(timed, run=_experts, time=0.5, all_cores=True),
    ),
    Command(
        "attention",
        "attention over keys and values that are codes of 8 and 4 bits, the same model in stock ONNX Runtime, and one "
        "with keys and values of float32",
        (f"{PROGRAM} attention --cases decode-DT-8,prompt-TD-8 --threads 1",),
        _attention_arguments,
        partial(timed, run=_attention, time=0.5, all_cores=True),
    ),
    Command(
        "integer-attention",
        "attention with products of integers on each instruction set of this CPU, and that of floats in stock ONNX "
        "Runtime",
        (f"{PROGRAM} integer-attention --cases minilm-512,bert-512 --isas amx,avx512vnni",),
        _integer_attention_arguments,
        partial(timed, run=_integer_attention, time=0.5),
    ),
    Command(
        "compressed",
        "products with codes of 8 and 4 bits with scales that vary along the sums, the same in stock ONNX Runtime, and "
        "MatMul of float32",
        (f"{PROGRAM} compressed --rows 1,128 --sizes 1024x3072 --bits 4 --threads 1",),
        _compressed_arguments,
        partial(timed, run=_compressed, time=0.5, all_cores=True),
    ),
    Command(
        "convolutions",
        "QuantizedConv, ConvInteger, Conv of float32 and QLinearConv",
        (f"{PROGRAM} convolutions --cases 3x3-64,depthwise-3x3-64 --threads 1",),
        _convolution_arguments,
        partial(timed, run=_convolutions, time=0.5, all_cores=True),
    ),
    Command(
        "chains",
        "decomposed quantization chains, and a Relu on the same tensor",
        (f"{PROGRAM} chains --threads 1",),
        _chain_arguments,
        partial(timed, run=_chains, time=0.5),
    ),
    Command(
        "networks",
        "transformers and networks of convolutions, beside OpenVINO where it is installed",
        (
            f"{PROGRAM} networks --forms token,tensor_u8",
            f"{PROGRAM} networks --forms quantize --networks mobilenet,ppocr-rec,silero-vad",
        ),
        _network_arguments,
        partial(timed, run=_networks, time=2.0),
    ),
    *package_cli.COMMANDS,
    *language_cli.COMMANDS,
)
