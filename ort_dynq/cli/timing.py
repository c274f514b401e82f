"""What all benchmarks share: arguments of a timing, lines about the machine, cells of tables; not a subcommand."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ..rewrite_options import RewriteOptions
from .arguments import natural, rare, seconds, thread_counts
from .command import Outcome
from .render import Figure, one_line, progress

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..tools.bench.models import ModelTiming
    from ..tools.measuring.progress import Track
    from ..tools.measuring.timing import Settings


def add_timing(parser: argparse.ArgumentParser, *, threads: str, time: str) -> None:
    """Adds --threads, --seconds, --warmup and --isa.

    Args:
        parser: The parser.
        threads, time: The defaults of --threads and --seconds, for the help.
    """
    parser.add_argument(
        "--threads",
        type=thread_counts,
        metavar="N[,N]",
        help=f"intra-op threads of ONNX Runtime (default: {threads})",
    )
    parser.add_argument("--seconds", type=seconds, metavar="S", help=f"time for each case (default: {time})")
    rare(parser).add_argument(
        "--warmup", type=natural, default=2, metavar="N", help="untimed runs of each contender (default: 2)"
    )
    rare(parser).add_argument(
        "--isa", metavar="NAME", help="instruction set of ort_dynq's kernels (default: the best one)"
    )


def timed(
    arguments: argparse.Namespace,
    run: Callable[[argparse.Namespace, Settings, Track], Outcome],
    *,
    time: float,
    all_cores: bool = False,
) -> Outcome:
    """Runs a benchmark, and adds the machine and the settings to its outcome.

    Args:
        arguments: The arguments of :func:`add_timing`, --backend, and those of :func:`add_changes` if the benchmark has
            them.
        run: The benchmark.
        time: The default of --seconds.
        all_cores: Whether --threads is 1 and the number of cores by default, otherwise 1.
    """
    from .. import kernels
    from ..system import cores
    from ..tools.measuring.timing import Settings, clock_name, machine

    settings = Settings(
        arguments.threads or (tuple(sorted({1, cores()})) if all_cores else (1,)),
        arguments.seconds or time,
        arguments.warmup,
        arguments.backend,
        **RewriteOptions.from_arguments(arguments).arguments,
    )
    with kernels.use_isa(arguments.isa) if arguments.isa else contextlib.nullcontext(), progress() as track:
        here = machine(settings.backend)
        found = run(arguments, settings, track)

    def text() -> Iterator[RenderableType]:
        yield one_line(f"{here.cpu}, {here.cores_and_load}")
        yield one_line(f"instruction set {here.isa}, backend {here.backend}")
        yield f"times: {clock_name(settings.threads)}"
        yield one_line(f"onnxruntime {here.onnxruntime}, ort_dynq {here.ort_dynq}, Python {here.python}")
        yield from found.text()

    return Outcome({"machine": asdict(here), "settings": asdict(settings), **found.data}, text, found.status)


def ratio_cells(timing: ModelTiming) -> tuple[Figure, Figure, Figure]:
    """Returns the median of stock ONNX Runtime, our median, and their ratio."""
    stock, ours = (None if each is None else each.median_ms for each in (timing.stock, timing.ours))
    stock_absent = "-" if ours is None else "fails"  # a model is not timed at all if its rewritten form fails
    return Figure(stock, 4, stock_absent), Figure(ours, 4, "fails"), ratio_cell(timing.ratio, timing.busy)


def ratio_cell(ratio: float | None, busy: str) -> Figure:
    """Returns the ratio of two medians, or that the machine was too busy."""
    return Figure(ratio, 2, "busy" if busy else "-")


def busy_lines(found: Iterable[str]) -> Iterator[RenderableType]:
    """Yields a line if the machine was too busy for one of some ratios; their cells say which.

    Args:
        found: The field `busy` of each timing.
    """
    if busy := next(filter(None, found), ""):
        yield one_line(f"busy: {busy}")


def rewritten_cell(timing: ModelTiming) -> str:
    """Returns the operators that the rewriter added, with their counts."""
    return ", ".join(f"{count} {operator}" for operator, count in (timing.rewritten or {}).items()) or "-"


def problem_lines(timings: Sequence[ModelTiming]) -> Iterator[RenderableType]:
    """Yields a line for each model that does not run."""
    return (one_line(each.problem) for each in timings if each.problem)
