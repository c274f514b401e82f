"""``ort-dynq bench quantize``: compares ways to quantize a float model; cli/bench.py chooses it."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..formats import check_file
from .accuracy import check_data, reference_of
from .arguments import check_page, similar
from .command import Outcome
from .render import SMOKE_TEST, Figure, one_line, table
from .verify import inputs_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..bench.quantization import QuantizationBench
    from ..measuring.progress import Track
    from ..measuring.timing import Settings


def check(arguments: argparse.Namespace) -> None:
    """Checks that B is a model or the name of a package, and the path of the report."""
    if arguments.b is None:
        raise DynqError("`bench quantize` needs a float model: ort-dynq bench quantize float.onnx")
    if arguments.report:
        check_page(Path(arguments.b), Path(arguments.report))
    if not Path(arguments.b).exists() and _is_a_name(arguments.b):
        from ..bench.networks import NETWORKS

        if arguments.b not in NETWORKS:
            meant = similar(arguments.b, NETWORKS)
            raise DynqError(
                f"there is no file {arguments.b}, and no package of this name is known; "
                + (f"did you mean {meant}?" if meant else f"the packages are {', '.join(NETWORKS)}")
            )
    else:
        check_file(arguments.b)
    check_data(arguments)


def _is_a_name(text: str) -> bool:
    """Returns whether a text can be the name of a package: the name of a model's file has a dot."""
    return re.fullmatch(r"[\w-]+", text) is not None


def run(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    """Quantizes a model in several ways and measures each."""
    from ..bench.networks import NETWORKS

    network = None if Path(arguments.b).exists() else NETWORKS.get(arguments.b)
    source = Path(arguments.b) if network is None else network.model()
    target = Path(arguments.report) if arguments.report else None
    tokens = arguments.tokens or (() if arguments.input or arguments.shape else None)
    has_own_data = arguments.data or arguments.input or arguments.shape
    reference = reference_of(arguments, source, None if network is None or has_own_data else network.sets())
    from ..bench.quantization import bench_quantization

    answers = None if network is None else network.answers
    found = bench_quantization(source, reference, settings, tokens=tokens, answers=answers, track=track)
    if target is not None:
        from ..measuring.timing import machine
        from ..report.comparison import save

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
            cells.append(Figure(None if timing is None else timing.ratio, 2))
        rows.append(cells)
    return table(("form", "MB", "SNR dB", "worst cosine", *(["same"] if found.has_answers else []), *titles), rows)
