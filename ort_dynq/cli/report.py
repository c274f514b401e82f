"""``ort-dynq report``: writes a self-contained HTML report on one model."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..formats import check_file
from .accuracy import accuracy_status, accuracy_text, accuracy_verdict, add_data_sets, check_data
from .arguments import add_changes, add_data, changes_of, check_page, given_data, positive, seconds
from .command import Command, Outcome
from .render import Figure, one_line, progress
from .verify import exit_status, inputs_text, named_as, verdict

if TYPE_CHECKING:
    from rich.console import RenderableType


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="the model to report on; it is not changed")
    parser.add_argument("-o", "--output", metavar="OUT.html", required=True, help="the file of the report")
    parser.add_argument("--force", action="store_true", help="allow OUT.html to have a name of another format")
    parser.add_argument(
        "--threads", type=positive, default=1, metavar="N", help="intra-op threads of ONNX Runtime (default: 1)"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=5.0, metavar="S", help="time for timing and profiling (default: 5)"
    )
    parser.add_argument(
        "--quantized",
        metavar="INT8.onnx",
        help="compare IN with this model that `quantize` has made of it, instead of with a rewrite: accuracy and time",
    )
    add_data_sets(parser)
    add_changes(parser)
    add_data(parser)


def _run(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    check_file(source)
    if arguments.quantized is not None:
        check_file(arguments.quantized)
    check_page(source, target, force=arguments.force)
    check_data(arguments)
    shapes, inputs = given_data(arguments)
    with progress() as track, named_as(source, arguments.quantized or "the rewritten model"):
        from ..bench.pair import measure_pair
        from ..report.model import report_on

        pair = measure_pair(
            source,
            quantized=arguments.quantized,
            data=arguments.data,
            inputs=inputs,
            shapes=shapes,
            seed=arguments.seed,
            backend=arguments.backend,
            **changes_of(arguments),
            threads=arguments.threads,
            seconds=arguments.seconds,
            track=track,
        )
    found = report_on(pair)
    found.save(target)

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
        yield one_line(f"{target} is written")
        if pair.verification is not None:
            yield verdict(pair.verification)
        yield from accuracy_verdict(pair.accuracy)

    data = {"output": str(target), **found.to_dict()}
    status = accuracy_status(pair.accuracy) if pair.verification is None else exit_status([pair.verification])
    return Outcome(data, text, status)


COMMAND = Command(
    "report",
    "write a self-contained HTML report: what a rewrite changes, time by operator before and after, verification; or "
    "the accuracy of a quantized model",
    (
        "ort-dynq report model.onnx -o report.html --shape x=1x128x768",
        "ort-dynq report float.onnx --quantized int8.onnx --data x.npz -o page.html",
    ),
    _arguments,
    _run,
)
