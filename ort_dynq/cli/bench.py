"""``ort-dynq bench``: times models against stock ONNX Runtime."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..formats import check_file
from .arguments import add_changes, add_data, check_data, given_data, ratio, similar
from .command import FAILED, PROGRAM, VERDICTS, Command, Outcome
from .page import check_report, report_outcome
from .render import Figure, inputs_text, one_line, ratio_style, table
from .timing import add_timing, busy_lines, problem_lines, ratio_cells, rewritten_cell, timed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..tools.measuring.progress import Track
    from ..tools.measuring.timing import Settings

SHORT = {"quantize": "bench-quantize", "generate": "bench-generate"}
"""The commands of other benchmarks, which may also be written `bench quantize` and `bench generate`."""

_DEVELOPERS = ("ops", "products", "convolutions", "chains", "networks")
"""The benchmarks of single operators and of seeded networks, which are not in the package."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", type=_what, metavar="A", help="a model, or a folder with NAME/model.onnx and NAME/test_data_set_0"
    )
    parser.add_argument("b", metavar="B", nargs="?", help="a model to time against A (default: A, rewritten)")
    add_timing(parser, threads="1", time="a model: 5; a folder: 0.5")
    parser.add_argument(
        "--opening",
        action="store_true",
        help="also time the opening of sessions, and their private memory",
    )
    parser.add_argument(
        "--report",
        metavar="OUT.html",
        help="write an HTML page: accuracy, times by operator, changes",
    )
    parser.add_argument("--min-ratio", type=ratio, metavar="R", help="exit status 1 if A / B is below R")
    add_changes(parser)
    add_data(parser)


def _what(text: str) -> str:
    if text in _DEVELOPERS:
        raise argparse.ArgumentTypeError(
            f"{text} is a benchmark for developers; in a clone of the repository, run `python tests/bench {text}`; "
            f"for a file or folder of this name, write ./{text}"
        )
    return text


def _run(arguments: argparse.Namespace) -> Outcome:
    if Path(arguments.what).is_dir():
        for name in ("b", "opening", "report", "data", "input", "shape"):
            if getattr(arguments, name):
                written = "B" if name == "b" else f"--{name}"
                raise DynqError(f"{written} is for single models, and {arguments.what} is a folder")
        return timed(arguments, _folder, time=0.5)
    if not Path(arguments.what).exists() and (meant := similar(arguments.what, SHORT)):
        raise DynqError(f"there is no file {arguments.what}; did you mean `{PROGRAM} {SHORT[meant]}`?")
    check_file(arguments.what, "A")
    if arguments.b is not None:
        check_file(arguments.b, "B")
    check_data(arguments)
    return _report(arguments) if arguments.report else timed(arguments, _model, time=5.0)


def _report(arguments: argparse.Namespace) -> Outcome:
    """Measures everything that the page shows: times and more."""
    check_report(arguments, Path(arguments.what))
    if arguments.opening or len(arguments.threads or ()) > 1:
        raise DynqError("--report takes one number of threads, and does not measure --opening; run them apart")
    from .. import kernels

    b = None if arguments.b is None else Path(arguments.b)
    with kernels.use_isa(arguments.isa) if arguments.isa else contextlib.nullcontext():
        found = report_outcome(arguments, Path(arguments.what), b, threads=(arguments.threads or (1,))[0])
    found = replace(found, data={"a": arguments.what, "b": arguments.b, **found.data})
    return _gated(arguments, found, [("", found.data["ratio"], found.data["busy"])])


def _gated(arguments: argparse.Namespace, outcome: Outcome, ratios: Iterable[tuple[str, float | None, str]]) -> Outcome:
    """Adds the limit of --min-ratio to an outcome.

    Args:
        arguments: They have the limit, or None.
        outcome: The outcome.
        ratios: Of each timing: its name, the ratio, and why there is none.
    """
    limit = arguments.min_ratio
    if limit is None:
        return replace(outcome, data={**outcome.data, "gates": []})
    from ..tools.accuracy.gates import Gate, verdict_on, worst_status

    gates = [Gate("min_ratio", limit, value, name or arguments.what, absent) for name, value, absent in ratios]
    word, status = VERDICTS[worst_status(gates)]

    def text() -> Iterator[RenderableType]:
        yield from outcome.text()
        yield one_line(f"{word}: {verdict_on(gates)}")

    data = {**outcome.data, "gates": [each.to_dict() for each in gates]}
    return Outcome(data, text, max(outcome.status, status) if outcome.status != FAILED else FAILED)


def _folder(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..tools.bench.models import bench_folder

    timings = bench_folder(arguments.what, settings, track=track)

    def text() -> Iterator[RenderableType]:
        yield "medians; ratio: stock / ort_dynq\n"
        head = ("model", "threads", "stock ms", "ort_dynq ms", "ratio", "rewritten to")
        rows = [(each.name, each.threads, *ratio_cells(each), rewritten_cell(each)) for each in timings]
        yield table(head, rows, style=lambda row: ratio_style(row[4]))
        yield from busy_lines(each.busy for each in timings)
        yield from problem_lines(timings)

    outcome = Outcome({"folder": arguments.what, "timings": list(map(asdict, timings))}, text)
    return _gated(arguments, outcome, ((each.name, each.ratio, each.busy or each.problem) for each in timings))


def _model(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..tools.bench.models import bench_model

    shapes, inputs = given_data(arguments, arguments.what)
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
            ratio = f"A / B {each.ratio:.2f}" if each.ratio is not None else each.busy or each.problem
            yield one_line(f"threads {each.threads}: {ratio}")
        if found.openings:
            yield ""
            opened = zip("AB", found.openings, strict=True)
            head = ("session", "opening ms", "private memory MB")
            yield table(head, [(role, Figure(each.ms, 1), Figure(each.mb, 1)) for role, each in opened])

    openings = found.openings and dict(zip("ab", map(asdict, found.openings), strict=True))
    data = {"a": arguments.what, "b": arguments.b, "inputs": list(map(asdict, found.inputs)), "seed": found.seed}
    outcome = Outcome({**data, "timings": list(map(asdict, found.timings)), "openings": openings}, text)
    return _gated(arguments, outcome, (("", each.ratio, each.busy or each.problem) for each in found.timings))


COMMAND = Command(
    "bench",
    "time models against stock ONNX Runtime, alternately in one process",
    (
        "ort-dynq bench model.onnx --shape x=1x128x768",
        "ort-dynq bench float.onnx int8.onnx --data samples.npz --report page.html",
    ),
    _arguments,
    _run,
)
