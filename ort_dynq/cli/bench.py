"""``ort-dynq bench``: times models and decoders against stock ONNX Runtime, or ways to quantize a model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..formats import check_file
from . import bench_generate, bench_quantize
from .accuracy import add_data_sets
from .arguments import add_changes, add_data, given_data, positives, similar
from .command import PROGRAM, Command, Outcome
from .render import Figure, one_line, ratio_style, table
from .timing import add_timing, problem_lines, ratio_cells, rewritten_cell, timed
from .verify import inputs_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..measuring.progress import Track
    from ..measuring.timing import Settings

_DEVELOPERS = ("ops", "products", "convolutions", "chains", "networks")
"""The benchmarks of single operators and of seeded networks, which are not in the package."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        type=_what,
        metavar="WHAT",
        help="a model A; a folder with NAME/model.onnx and NAME/test_data_set_0; quantize: the float model B, "
        "quantized in several ways, or that of the PyPI package B, ddddocr or silero-vad, on generated data; "
        "or generate: the language model in B, a folder of onnxruntime-genai",
    )
    parser.add_argument("b", metavar="B", nargs="?", help="a model to time against A (default: A, rewritten)")
    add_timing(parser, threads="1", time="a model: 5; quantize and generate: 3; a folder: 0.5")
    model = parser.add_argument_group("a model A")
    model.add_argument(
        "--opening",
        action="store_true",
        help="also measure opening the sessions, each in a new process: the time and the private memory that it takes",
    )
    both = parser.add_argument_group(
        "quantize and generate", "OpenVINO takes part in `quantize` after `pip install openvino nncf`."
    )
    both.add_argument(
        "--tokens",
        type=positives,
        metavar="N[,N]",
        help="lengths of the model's sequence (default: 1,16,128 if it is dynamic), or of prompts (default: "
        "16,128,512,2048, up to the context length)",
    )
    both.add_argument("--report", metavar="OUT.html", help="write a self-contained HTML page with a picture")
    bench_generate.add_arguments(parser)
    add_changes(parser)
    add_data_sets(parser)
    add_data(parser)


def _what(text: str) -> str:
    if text in _DEVELOPERS:
        raise argparse.ArgumentTypeError(
            f"{text} is a benchmark for developers; in a clone of the repository, run `python tests/bench {text}`; "
            f"for a file or folder of this name, write ./{text}"
        )
    return text


def _run(arguments: argparse.Namespace) -> Outcome:
    bench = _choose(arguments.what)
    _check_options(arguments, bench)
    bench.check(arguments)
    return timed(arguments, bench.run, time=bench.seconds)


def _check_models(arguments: argparse.Namespace) -> None:
    """Checks the paths of A and B; a word that is no path may be a kind of benchmark with a wrong letter."""
    if not Path(arguments.what).exists() and (meant := similar(arguments.what, (_QUANTIZE.usage, _GENERATE.usage))):
        raise DynqError(f"there is no file {arguments.what}; did you mean `{PROGRAM} bench {meant}`?")
    check_file(arguments.what, "A")
    if arguments.b is not None:
        check_file(arguments.b, "B")


def _folder(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench.models import bench_folder

    timings = bench_folder(arguments.what, settings, track=track)

    def text() -> Iterator[RenderableType]:
        yield "medians; ratio: stock / ort_dynq\n"
        head = ("model", "threads", "stock ms", "ort_dynq ms", "ratio", "rewritten to")
        rows = [(each.name, each.threads, *ratio_cells(each), rewritten_cell(each)) for each in timings]
        yield table(head, rows, style=lambda row: ratio_style(row[4]))
        yield from problem_lines(timings)

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


@dataclass(frozen=True)
class _Bench:
    """One kind of benchmark, which the argument WHAT selects.

    Attributes:
        usage: The form of WHAT in messages.
        check: Checks the paths that are given, before libraries are loaded.
        run: Times it.
        seconds: The default of --seconds.
        options: The arguments that only some kinds take: the name of the attribute and the text in messages.
    """

    usage: str
    check: Callable[[argparse.Namespace], None]
    run: Callable[[argparse.Namespace, Settings, Track], Outcome]
    seconds: float
    options: tuple[tuple[str, str], ...] = ()


_CHANGES = (
    ("exact", "--exact"),
    ("fuse", "--fuse"),
    ("weights_only", "--weights-only"),
    ("keep_fused", "--keep-fused"),
)
_DATA = (("b", "B"), ("input", "--input"), ("shape", "--shape"))
_QUANTIZE = _Bench(
    "quantize",
    bench_quantize.check,
    bench_quantize.run,
    3.0,
    (*_DATA, ("data", "--data"), ("tokens", "--tokens"), ("report", "--report")),
)
_GENERATE = _Bench(
    "generate",
    bench_generate.check,
    bench_generate.run,
    3.0,
    (
        *_CHANGES,
        ("b", "B"),
        ("tokens", "--tokens"),
        ("report", "--report"),
        ("context", "--context"),
        ("rewritten", "--rewritten"),
    ),
)
_FOLDER = _Bench("FOLDER", lambda _: None, _folder, 0.5, _CHANGES)
_MODEL = _Bench("A.onnx", _check_models, _model, 5.0, (*_CHANGES, *_DATA, ("opening", "--opening")))
_BENCHES = (_QUANTIZE, _GENERATE, _FOLDER, _MODEL)


def _choose(what: str) -> _Bench:
    for bench in (_QUANTIZE, _GENERATE):
        if what == bench.usage:
            return bench
    return _FOLDER if Path(what).is_dir() else _MODEL


def _check_options(arguments: argparse.Namespace, chosen: _Bench) -> None:
    """Raises a DynqError if an argument is given that only other benches take."""
    for name, written in dict.fromkeys(option for bench in _BENCHES for option in bench.options):
        if getattr(arguments, name) and (name, written) not in chosen.options:
            from ..operators.encodings import one_of

            takers = [f"`{PROGRAM} bench {bench.usage}`" for bench in _BENCHES if (name, written) in bench.options]
            raise DynqError(f"{written} is for {one_of(takers)}, not for {arguments.what}")


COMMAND = Command(
    "bench",
    "time models against stock ONNX Runtime, alternately in one process",
    (
        "ort-dynq bench model.onnx --shape x=1x128x768",
        "ort-dynq bench model.onnx fast.onnx",
        "ort-dynq bench models/",
        "ort-dynq bench quantize float.onnx --data samples.npz --report comparison.html",
        "ort-dynq bench quantize ddddocr",
        "ort-dynq bench generate phi/ --threads 1,4 --context 128,2048",
    ),
    _arguments,
    _run,
)
