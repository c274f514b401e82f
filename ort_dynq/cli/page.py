"""``--report`` of ``rewrite``, ``quantize`` and ``bench``: an HTML page on a model and the one made from it.

Not a subcommand.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..rewrite_options import RewriteOptions
from .accuracy import accuracy_status, accuracy_text, accuracy_verdict
from .arguments import check_page, given_data, given_inputs
from .command import Outcome
from .render import Figure, inputs_text, one_line, progress
from .verify import exit_status, named_as, verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..tools.report.model import ModelReport

_SECONDS = 5.0  # for timing and profiling


def write_page(
    arguments: argparse.Namespace, source: Path, quantized: Path | None = None, *, threads: int = 1
) -> ModelReport:
    """Measures a model and the one made from it, and writes the page that --report names.

    Args:
        arguments: They name the page, the data, the backend, and how to rewrite.
        source: The model.
        quantized: What `quantize` made of it; None for a rewrite.
        threads: The number of intra-op threads.

    Raises:
        DynqError: The model does not run, the data do not fit, or the page cannot be written.
    """
    # The accuracy of a quantized model is that on all sets of the data. A rewrite runs on the first one.
    shapes, inputs = given_inputs(arguments) if quantized is not None else given_data(arguments, source)
    with progress() as track, named_as(source, quantized or "the rewritten model"):
        from ..tools.bench.pair import measure_pair
        from ..tools.measuring.timing import Settings
        from ..tools.report.model import report_on

        how = RewriteOptions() if quantized is not None else RewriteOptions.from_arguments(arguments)
        seconds = getattr(arguments, "seconds", None) or _SECONDS
        pair = measure_pair(
            source,
            Settings((threads,), seconds, backend=arguments.backend, **how.arguments),
            quantized=quantized,
            data=arguments.data if quantized is not None else None,
            inputs=inputs,
            shapes=shapes,
            seed=arguments.seed,
            track=track,
        )
    found = report_on(pair)
    found.save(Path(arguments.report))
    return found


def check_report(arguments: argparse.Namespace, source: Path) -> None:
    """Checks the path of --report before the work starts.

    Raises:
        DynqError: The page cannot be written there.
    """
    if arguments.report:
        check_page(source, Path(arguments.report))


def report_outcome(
    arguments: argparse.Namespace, source: Path, quantized: Path | None = None, *, threads: int = 1
) -> Outcome:
    """Writes the page, and returns its figures as the outcome of a command.

    Args:
        arguments, source, quantized, threads: As for :func:`write_page`.
    """
    found = write_page(arguments, source, quantized, threads=threads)
    pair = found.pair

    def text() -> Iterator[RenderableType]:
        if pair.accuracy is None:
            yield from inputs_text(pair.inputs, pair.seed)
            yield one_line(f"{source}: {pair.rewrite_report.summary}")
        else:
            yield from accuracy_text(pair.accuracy, arguments.data)
        if pair.problem and not (pair.verification and pair.verification.failure):  # the verdict says that
            yield one_line(pair.problem)
        if found.before and found.after:
            before, after = found.before.latency.median_ms, found.after.latency.median_ms
            speed = "" if pair.problem else f": {found.busy}" if found.busy else f": {Figure(found.ratio, 2)}x speed"
            yield f"median {before:.4f} ms before, {after:.4f} ms after{speed}"
        yield one_line(f"{arguments.report} is written")
        if pair.verification is not None:
            yield verdict(pair.verification)
        yield from accuracy_verdict(pair.accuracy)

    status = accuracy_status(pair.accuracy) if pair.verification is None else exit_status([pair.verification])
    return Outcome({"report": arguments.report, **found.to_dict()}, text, status)
