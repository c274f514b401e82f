"""The subcommand of `python tests/bench` for networks of packages."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ort_dynq.cli.arguments import add_backend, positive
from ort_dynq.cli.command import Command, Outcome
from ort_dynq.cli.timing import add_timing, timed
from ort_dynq.system import cpu_name

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ort_dynq.tools.measuring.progress import Track
    from ort_dynq.tools.measuring.timing import Settings


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_timing(parser, threads="1", time="3")
    parser.add_argument(
        "--networks",
        type=lambda text: tuple(text.split(",")),
        metavar="NAME[,NAME]",
        help="networks (default: all), such as magika or 'PP-OCRv4 rec'",
    )
    parser.add_argument(
        "--sets", type=positive, default=12, metavar="N", help="sets of data, of each part (default: %(default)s)"
    )
    add_backend(parser)


def _packages(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from bench.packages import bench_packages, markdown

    found = bench_packages(settings, names=arguments.networks, count=arguments.sets, track=track)

    def text() -> Iterator[RenderableType]:
        yield f"{cpu_name()}; dB and share of the same answers on data that no selection has seen"
        yield "ms, speed: of the fastest runs; speed: float / this"
        for each in found:
            if not each.problem:
                yield f"{each.name}: {each.unit}; {', '.join(each.sizes)}"
        yield ""
        yield from markdown(found)

    return Outcome({"networks": [each.to_dict() for each in found]}, text)


COMMANDS = (
    Command(
        "packages",
        "networks with real weights from PyPI packages, in float, by quantize_dynamic, by OpenVINO if it is installed, "
        "and by ort_dynq, by default and with --min-snr 30; it names what is not installed",
        ("python tests/bench packages --networks magika,swift-f0 --seconds 1",),
        _arguments,
        partial(timed, run=_packages, time=3.0),
    ),
)
