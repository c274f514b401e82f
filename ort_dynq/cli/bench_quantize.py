"""``ort-dynq bench-quantize``: compares ways to quantize a float model."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..formats import check_file
from .accuracy import reference_of
from .arguments import add_data, add_page, check_data, check_page, positives, similar
from .command import Command, Outcome
from .render import SMOKE_TEST, Figure, inputs_text, one_line, table
from .timing import add_timing, busy_lines, ratio_cell, timed
from .verify import named_as

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..tools.bench.quantization import QuantizationBench
    from ..tools.measuring.progress import Track
    from ..tools.measuring.timing import Settings


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="FLOAT",
        help="a float model; or an installed PyPI package with a network: ddddocr, silero-vad",
    )
    add_timing(parser, threads="1", time="3")
    parser.add_argument(
        "--tokens",
        type=positives,
        metavar="N[,N]",
        help="lengths of the model's sequence (default: 1,16,128 if it is dynamic)",
    )
    add_page(parser)
    add_data(parser)


def _run(arguments: argparse.Namespace) -> Outcome:
    if arguments.report:
        check_page(Path(arguments.model), Path(arguments.report))
    if not Path(arguments.model).exists() and _is_a_name(arguments.model):
        from ..tools.bench.networks import NETWORKS

        if arguments.model not in NETWORKS:
            meant = similar(arguments.model, NETWORKS)
            raise DynqError(
                f"there is no file {arguments.model}, and no package of this name is known; "
                + (f"did you mean {meant}?" if meant else f"the packages are {', '.join(NETWORKS)}")
            )
    else:
        check_file(arguments.model)
    check_data(arguments)
    return timed(arguments, _bench, time=3.0)


def _is_a_name(text: str) -> bool:
    """Returns whether a text can be the name of a package: the name of a model's file has a dot."""
    return re.fullmatch(r"[\w-]+", text) is not None


def _bench(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..tools.bench.networks import NETWORKS

    network = None if Path(arguments.model).exists() else NETWORKS.get(arguments.model)
    source = Path(arguments.model) if network is None else network.model()
    target = Path(arguments.report) if arguments.report else None
    tokens = arguments.tokens or (() if arguments.input or arguments.shape else None)
    has_own_data = arguments.data or arguments.input or arguments.shape
    with named_as(source, "the quantized model"):
        reference = reference_of(arguments, source, None if network is None or has_own_data else network.sets())
        from ..tools.bench.quantization import bench_quantization

        answers = None if network is None else network.answers
        found = bench_quantization(source, reference, settings, tokens=tokens, answers=answers, track=track)
    if target is not None:
        from ..tools.measuring.timing import machine
        from ..tools.report.comparison import save

        save(found, machine(settings.backend), target)

    def text() -> Iterator[RenderableType]:
        count = len(found.data.sets)
        sets = f"{source}: accuracy on {count} set{'s' if count > 1 else ''} of data"
        if arguments.data:
            yield one_line(f"{sets} from {arguments.data}")
        elif network is not None and not has_own_data:
            yield one_line(sets)
        else:
            yield from inputs_text(found.data.inputs, found.data.seed)
            if found.data.is_generated:
                yield SMOKE_TEST
        yield "medians in ms; x: float / this; SNR and cosine: the worst output or row, against float"
        if network is not None:
            yield f"same: the share of {network.unit} that equal float's"
        yield ""
        yield _table(found)
        yield from busy_lines(timing.busy for each in found.forms for timing in each.timings)
        yield from (one_line(each.problem) for each in found.forms if each.problem)
        if target is not None:
            yield one_line(f"{target} is written")

    return Outcome({**found.to_dict(), "report": arguments.report}, text)


def _table(found: QuantizationBench) -> RenderableType:
    titles = [title for case in found.cases for title in (str(case), "x")]
    rows = []
    for each in found.forms:
        timings = {timing.case: timing for timing in each.timings}
        cells: list[object] = [
            each.name,
            Figure(None if each.bytes is None else each.bytes / 1e6, 1),
            Figure(each.snr_db, 1),
            Figure(each.cosine_worst, 6),
        ]
        if found.has_answers:
            cells.append("-" if each.same_answers is None else f"{each.same_answers:.1%}")
        for case in found.cases:
            timing = timings.get(case)
            cells.append(Figure(None if timing is None else timing.latency.median_ms, 3, "fails"))
            cells.append(Figure(None, 2) if timing is None else ratio_cell(timing.ratio, timing.busy))
        rows.append(cells)
    return table(("form", "MB", "SNR dB", "worst cosine", *(["same"] if found.has_answers else []), *titles), rows)


COMMAND = Command(
    "bench-quantize",
    "compare ways to quantize a float model: time, size and accuracy; OpenVINO takes part if it and nncf are installed",
    (
        "ort-dynq bench-quantize float.onnx --data samples.npz --report comparison.html",
        "ort-dynq bench-quantize ddddocr",
    ),
    _arguments,
    _run,
)
