"""``ort-dynq quantize``: writes a quantized model."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import check_target
from .command import Command, Outcome
from .render import one_line, table, working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..rewriter import Report


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="the float model to quantize")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the file of the quantized model")
    parser.add_argument("--force", action="store_true", help="allow OUT to replace IN")
    parser.add_argument(
        "--weights",
        choices=("int8", "int4"),
        default="int8",
        help="int8: one scale for each output channel (default); int4: 4 bits, one scale for each group; convolutions "
        "stay int8",
    )
    parser.add_argument(
        "--group",
        type=int,
        choices=(32, 64, 128),
        help="with --weights int4: how many adjacent weights share a scale (default: 32)",
    )
    parser.add_argument(
        "--activations",
        choices=("token", "tensor"),
        default="token",
        help="token: one scale for each row of a matrix (default); tensor: one for all, as quantize_dynamic does",
    )
    zero_points = parser.add_mutually_exclusive_group()
    zero_points.add_argument(
        "--symmetric", action="store_true", help="activations per token have no zero point; the range is less exact"
    )
    zero_points.add_argument(
        "--asymmetric",
        action="store_false",
        dest="symmetric",
        help="activations have a zero point, so that the codes use the whole range (default)",
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="leave layers float whose name matches, such as 'lm_head' or '*/attention/*'; may be repeated",
    )
    parser.add_argument(
        "--from-dynamic",
        action="store_true",
        help="IN is a model that onnxruntime's quantize_dynamic made: keep its weights, and quantize its activations "
        "per token",
    )


def _run(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    check_target(source, target, force=arguments.force)
    with working(f"quantizing {source}"):
        from ..quantizer import quantize

        result = quantize(
            source,
            weights=arguments.weights,
            group=arguments.group,
            activations=arguments.activations,
            symmetric=arguments.symmetric,
            exclude=arguments.exclude,
            from_dynamic=arguments.from_dynamic,
        )
    with working(f"writing {target}"):
        result.save(target)
    report = result.report

    def text() -> Iterator[RenderableType]:
        yield one_line(f"{source}: {len(report.rewritten)} layers quantized, {len(report.left)} left")
        yield from _findings(report)
        yield "\n" + one_line(f"{target} is written")

    data = {
        "input": str(source),
        "output": str(target),
        "quantized": list(map(asdict, report.rewritten)),
        "left": list(map(asdict, report.left)),
        "before": dict(report.before),
        "after": dict(report.after),
    }
    return Outcome(data, text)


def _findings(report: Report) -> Iterator[RenderableType]:
    for title, last, findings in (("quantized", "becomes", report.rewritten), ("left", "reason", report.left)):
        counts = Counter((finding.op_type, finding.operator or finding.reason) for finding in findings)
        if counts:
            yield ""
            yield table((title, "operator", last), [(count, *each) for each, count in counts.most_common()])


COMMAND = Command(
    "quantize",
    "make a fast and accurate integer model of a float model",
    (
        "ort-dynq quantize float.onnx -o int8.onnx",
        "ort-dynq quantize float.onnx -o int4.onnx --weights int4 --exclude lm_head",
    ),
    _arguments,
    _run,
)
