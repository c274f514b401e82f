"""``ort-dynq bench``: times operators, chains, networks and models against stock ONNX Runtime."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from . import bench_operators, bench_quantize
from .accuracy import add_data_sets
from .arguments import (
    add_data,
    add_exact,
    given_data,
    names,
    natural,
    positive,
    positives,
    seconds,
    sizes,
    thread_counts,
)
from .command import PROGRAM, Command, Outcome
from .render import Figure, format_shape, one_line, progress, ratio_style, table
from .verify import inputs_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..bench.models import ModelTiming
    from ..measuring.progress import Track
    from ..measuring.timing import Settings


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="ops: QuantizeLinear and DequantizeLinear of float32, float16, bfloat16, uint8, uint4 and int4, and a "
        "plain copy; products: QuantizedMatMul with 8 and 4 bits, MatMulInteger, "
        "MatMulNBits, torch's int8 product if torch is installed, MatMul of float32, and a plain read of the weights; "
        "convolutions: QuantizedConv, ConvInteger, Conv of float32 and QLinearConv; "
        "chains: decomposed chains, and a Relu; networks: transformers and a ResNet-18; "
        "quantize: the float model B, quantized in several ways; "
        "a folder with NAME/model.onnx and NAME/test_data_set_0; or a model A",
    )
    parser.add_argument("b", metavar="B", nargs="?", help="a model to time against A (default: A, rewritten)")
    timing = parser.add_argument_group("timing")
    timing.add_argument(
        "--threads",
        type=thread_counts,
        metavar="N[,N]",
        help="intra-op threads of ONNX Runtime (default: 1; ops, products and convolutions: 1 and the number of cores)",
    )
    timing.add_argument(
        "--seconds",
        type=seconds,
        metavar="S",
        help="time for each case (default: 0.5; networks: 2; quantize: 3; a model: 5)",
    )
    timing.add_argument(
        "--warmup", type=natural, default=2, metavar="N", help="untimed runs of each contender (default: 2)"
    )
    timing.add_argument("--isa", metavar="NAME", help="instruction set of ort_dynq's kernels (default: the best one)")
    operators = parser.add_argument_group("ops and products")
    operators.add_argument(
        "--sizes",
        type=sizes,
        metavar="RxC[,RxC]",
        help="sizes of the tensors (default: 1x64,64x64,256x1024,4096x4096; "
        "with --misaligned: 256x1000,2560x100,4096x60,256x1024), or of the weights, inputs x outputs "
        "(default: 384x384,384x1536,768x768,768x3072,4096x4096)",
    )
    operators.add_argument(
        "--misaligned",
        action="store_true",
        help="time the operators with outputs at 0, 16 and 32 bytes past a 64-byte boundary",
    )
    products = parser.add_argument_group("products")
    products.add_argument(
        "--rows", type=positives, metavar="N[,N]", help="rows of the activation (default: 1,4,16,128,512)"
    )
    products.add_argument(
        "--group-size",
        type=int,
        choices=(16, 32, 64, 128),
        help="rows of the weights that share a scale, in 4-bit weights and in MatMulNBits (default: 32)",
    )
    convolutions = parser.add_argument_group("convolutions")
    convolutions.add_argument(
        "--cases", type=names, metavar="NAME[,NAME]", help="names in the first column of the table (default: all)"
    )
    network = parser.add_argument_group("networks")
    network.add_argument(
        "--networks", type=names, metavar="NAME[,NAME]", help="encoder, decoder or resnet (default: all)"
    )
    network.add_argument(
        "--forms", type=names, metavar="NAME[,NAME]", help="forms of linear layers or convolutions (default: all)"
    )
    network.add_argument(
        "--tokens",
        type=positives,
        metavar="N[,N]",
        help="tokens in the encoder's input, or in the decoder's past (default: 1,128); quantize: in the model's "
        "sequence (default: 1,16,128 if it is dynamic)",
    )
    network.add_argument("--layers", type=positive, metavar="N", help="layers of a transformer (default: 6)")
    network.add_argument("--hidden", type=positive, metavar="N", help="hidden size of a transformer (default: 768)")
    network.add_argument("--heads", type=positive, metavar="N", help="attention heads (default: 12)")
    network.add_argument("--float16", action="store_true", help="time transformers as float16 models, too")
    network.add_argument("--image", type=positive, metavar="N", help="pixels of resnet's images (default: 224)")
    model = parser.add_argument_group("a model A")
    model.add_argument(
        "--opening",
        action="store_true",
        help="measure opening the sessions, too, each in a new process: the time and the private memory it takes",
    )
    bench_quantize.add_arguments(parser)
    add_exact(parser)
    add_data_sets(parser)
    add_data(parser)


def _run(arguments: argparse.Namespace) -> Outcome:
    bench = _choose(arguments.what)
    _check_options(arguments, bench)
    from .. import kernels
    from ..measuring.timing import Settings, machine
    from ..system import cores

    threads = arguments.threads or (tuple(sorted({1, cores()})) if bench in (_OPS, _PRODUCTS, _CONVOLUTIONS) else (1,))
    settings = Settings(
        threads, arguments.seconds or bench.seconds, arguments.warmup, arguments.backend, arguments.exact
    )
    with kernels.use_isa(arguments.isa) if arguments.isa else contextlib.nullcontext(), progress() as track:
        here = machine(settings.backend)
        found = bench.run(arguments, settings, track)

    def text() -> Iterator[RenderableType]:
        yield one_line(f"{here.cpu}, {here.cores_and_load}")
        yield one_line(f"instruction set {here.isa}, backend {here.backend}")
        yield one_line(f"onnxruntime {here.onnxruntime}, ort_dynq {here.ort_dynq}, Python {here.python}")
        yield from found.text()

    return Outcome({"machine": asdict(here), "settings": asdict(settings), **found.data}, text)


def _chains(_: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench.chains import SHAPE, bench_chains

    timings = bench_chains(settings, track=track)

    def text() -> Iterator[RenderableType]:
        yield f"float32 {format_shape(SHAPE)}; ratio: stock / ours; / Relu: ours / one Relu over the same tensor\n"
        head = ("chain", "nodes", "threads", "stock ms", "ours ms", "ratio", "Relu ms", "/ Relu", "rewritten to")
        rows = [
            (
                *(each.name, each.nodes, each.threads),
                *_ratio_cells(each),
                *(Figure(each.relu.median_ms, 4), Figure(each.relu_ratio, 2), _rewritten(each)),
            )
            for each in timings
        ]
        yield table(head, rows, style=lambda row: ratio_style(row[5]))

    return Outcome({"timings": list(map(asdict, timings))}, text)


def _networks(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench.networks import NETWORKS, TOKENS, Sizes, bench_networks

    chosen = arguments.networks or tuple(NETWORKS)
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
        yield "medians; ratio: stock / ours"
        yield f"encoder, decoder: layers {layers}, hidden size {hidden}, heads {heads}"
        yield "tokens: in the encoder's input, or in the decoder's past"
        yield f"resnet: ResNet-18, images of {image}x{image}\n"
        head = ("network", "form", "floats", "tokens", "threads", "stock ms", "ours ms", "ratio", "rewritten to")
        rows = [
            (
                *(each.network, each.name, each.floats, each.tokens or "-", each.threads),
                *_ratio_cells(each),
                _rewritten(each),
            )
            for each in timings
        ]
        yield table(head, rows, style=lambda row: ratio_style(row[7]))
        yield from _problems(timings)

    return Outcome({"sizes": asdict(network_sizes), "timings": list(map(asdict, timings))}, text)


def _check_network_options(arguments: argparse.Namespace, networks: Sequence[str]) -> None:
    """Raises a DynqError if a size is given that none of the chosen networks has."""
    from ..operators.encodings import one_of

    for takers, options in (
        (("encoder", "decoder"), ("tokens", "layers", "hidden", "heads", "float16")),
        (("resnet",), ("image",)),
    ):
        for name in options:
            if getattr(arguments, name) and not {*takers} & {*networks}:
                raise DynqError(f"--{name} is for {one_of(takers)}, not for {one_of(networks)}")


def _folder(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench.models import bench_folder

    timings = bench_folder(arguments.what, settings, track=track)

    def text() -> Iterator[RenderableType]:
        yield "medians; ratio: stock / ours\n"
        head = ("model", "threads", "stock ms", "ours ms", "ratio", "rewritten to")
        rows = [(each.name, each.threads, *_ratio_cells(each), _rewritten(each)) for each in timings]
        yield table(head, rows, style=lambda row: ratio_style(row[4]))
        yield from _problems(timings)

    return Outcome({"folder": arguments.what, "timings": list(map(asdict, timings))}, text)


def _model(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench.models import bench_model

    shapes, inputs = given_data(arguments)
    found = bench_model(
        arguments.what,
        arguments.b,
        settings,
        inputs=inputs,
        shapes=shapes,
        seed=arguments.seed,
        opening=arguments.opening,
        track=track,
    )

    def text() -> Iterator[RenderableType]:
        yield from inputs_text(found.inputs, found.seed)
        yield one_line(f"A: {arguments.what}, in stock ONNX Runtime")
        yield one_line(f"B: {arguments.b or 'A, rewritten'}, with the plugin")
        if found.rewrite_report is not None:
            yield one_line(found.rewrite_report.summary)
        yield ""
        rows: list[tuple[object, ...]] = []
        for each in found.timings:
            for role, latency in (("A", each.stock), ("B", each.ours)):
                if latency is not None:
                    times = (latency.median_ms, latency.p90_ms, latency.p99_ms, latency.mean_ms)
                    rows.append((role, each.threads, *(Figure(time, 4) for time in times), latency.calls))
        yield table(("model", "threads", "median ms", "p90 ms", "p99 ms", "mean ms", "runs"), rows)
        yield ""
        for each in found.timings:
            ratio = f"A / B {each.ratio:.2f}" if each.ratio is not None else each.problem
            yield one_line(f"threads {each.threads}: {ratio}")
        if found.openings:
            yield ""
            opened = zip("AB", found.openings, strict=True)
            head = ("session", "opening ms", "private memory MB")
            yield table(head, [(role, Figure(each.ms, 1), Figure(each.mb, 1)) for role, each in opened])

    openings = found.openings and dict(zip("ab", map(asdict, found.openings), strict=True))
    data = {"a": arguments.what, "b": arguments.b, "inputs": list(map(asdict, found.inputs)), "seed": found.seed}
    return Outcome({**data, "timings": list(map(asdict, found.timings)), "openings": openings}, text)


def _ratio_cells(timing: ModelTiming) -> tuple[Figure, Figure, Figure]:
    stock, ours = (None if each is None else each.median_ms for each in (timing.stock, timing.ours))
    stock_absent = "-" if ours is None else "fails"  # a model whose rewritten form fails is not timed at all
    return Figure(stock, 4, stock_absent), Figure(ours, 4, "fails"), Figure(timing.ratio, 2)


def _rewritten(timing: ModelTiming) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in (timing.rewritten or {}).items()) or "-"


def _problems(timings: Sequence[ModelTiming]) -> Iterator[RenderableType]:
    return (one_line(each.problem) for each in timings if each.problem)


@dataclass(frozen=True)
class _Bench:
    """One kind of benchmark, which the argument WHAT selects.

    Attributes:
        usage: The form of WHAT in messages.
        run: Times it.
        seconds: The default of --seconds.
        options: The arguments that only this kind takes: the name of the attribute and the text in messages.
    """

    usage: str
    run: Callable[[argparse.Namespace, Settings, Track], Outcome]
    seconds: float
    options: tuple[tuple[str, str], ...] = ()


_OPS = _Bench("ops", bench_operators.operators, 0.5, (("sizes", "--sizes"), ("misaligned", "--misaligned")))
_PRODUCTS = _Bench(
    "products",
    bench_operators.products,
    0.5,
    (("sizes", "--sizes"), ("rows", "--rows"), ("group_size", "--group-size")),
)
_CONVOLUTIONS = _Bench("convolutions", bench_operators.convolutions, 0.5, (("cases", "--cases"),))
_EXACT = ("exact", "--exact")
_CHAINS = _Bench("chains", _chains, 0.5, (_EXACT,))
_NETWORKS = _Bench(
    "networks",
    _networks,
    2.0,
    (
        _EXACT,
        *(
            (name, f"--{name}")
            for name in ("networks", "forms", "tokens", "layers", "hidden", "heads", "float16", "image")
        ),
    ),
)
_DATA = (("b", "B"), ("input", "--input"), ("shape", "--shape"))
_QUANTIZE = _Bench(
    "quantize",
    bench_quantize.run,
    3.0,
    (*_DATA, ("data", "--data"), ("tokens", "--tokens"), ("report", "--report")),
)
_FOLDER = _Bench("FOLDER", _folder, 0.5, (_EXACT,))
_MODEL = _Bench("A.onnx", _model, 5.0, (_EXACT, *_DATA, ("opening", "--opening")))
_NAMED = (_OPS, _PRODUCTS, _CONVOLUTIONS, _CHAINS, _NETWORKS, _QUANTIZE)
_BENCHES = (*_NAMED, _FOLDER, _MODEL)


def _choose(what: str) -> _Bench:
    for bench in _NAMED:
        if what == bench.usage:
            return bench
    return _FOLDER if Path(what).is_dir() else _MODEL


def _check_options(arguments: argparse.Namespace, chosen: _Bench) -> None:
    """Raises a DynqError if an argument is given that only other benches take."""
    from ..operators.encodings import one_of

    for name, written in dict.fromkeys(option for bench in _BENCHES for option in bench.options):
        if getattr(arguments, name) and (name, written) not in chosen.options:
            takers = [f"`{PROGRAM} bench {bench.usage}`" for bench in _BENCHES if (name, written) in bench.options]
            raise DynqError(f"{written} is for {one_of(takers)}, not for {arguments.what}")


COMMAND = Command(
    "bench",
    "time operators, chains, networks or models against stock ONNX Runtime, alternately in one process",
    (
        "ort-dynq bench ops --threads 1 --isa avx2",
        "ort-dynq bench ops --misaligned",
        "ort-dynq bench products --rows 1,128 --sizes 768x3072 --threads 1",
        "ort-dynq bench convolutions --cases 3x3-64,depthwise-3x3-64 --threads 1",
        "ort-dynq bench chains",
        "ort-dynq bench networks --forms token,tensor_u8",
        "ort-dynq bench quantize float.onnx --data samples.npz --report comparison.html",
        "ort-dynq bench models/",
        "ort-dynq bench model.onnx fast.onnx --shape x=1x128x768",
    ),
    _arguments,
    _run,
)
