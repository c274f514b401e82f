"""``ort-dynq dequantize``: writes a float model, or one with only its weights quantized."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..formats import check_file
from .arguments import add_output, check_target
from .command import Command, Outcome
from .render import format_bytes, one_line, table, working

if TYPE_CHECKING:
    from rich.console import RenderableType


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="a quantized model")
    add_output(parser, takes_folders=False)
    parser.add_argument(
        "--weights",
        choices=("float", "qdq"),
        default="float",
        help="float32, or the codes of IN behind DequantizeLinear, with the same numbers (default: %(default)s)",
    )


def _run(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    check_file(source)
    check_target(source, target, force=arguments.force)
    with working(f"dequantizing {source}"):
        from ..dequantizer import dequantize
        from ..storage import ModelFile

        model = ModelFile(source)
        before = model.size
        result = dequantize(model, weights_form=arguments.weights)
    with working(f"writing {target}"):
        result.save(target)
        after = ModelFile(target).size
    integer, floats = result.report.products

    def text() -> Iterator[RenderableType]:
        report = result.report
        yield one_line(f"{source}: {report.summary}")
        done = Counter((each.op_type, str(each.operator)) for each in report.rewritten)
        if done:
            yield table(("dequantized", "operator", "becomes"), [(n, *row) for row, n in done.most_common()])
        if report.unconverted:
            stays = Counter((each.op_type, each.reason) for each in report.unconverted)
            yield ""
            yield table(("stays", "operator", "reason"), [(n, *row) for row, n in stays.most_common()])
        yield ""
        yield one_line(
            f"{source} {format_bytes(before)} -> {target} {format_bytes(after)}; "
            f"products: {integer} integer, {floats} float"
        )

    data = {"input": str(source), "output": str(target), **result.report.to_dict()}
    data |= {"bytes_before": before, "bytes_after": after, "integer_products": integer, "float_products": floats}
    return Outcome(data, text, 0)


COMMAND = Command(
    "dequantize",
    "turn a quantized model back into floats, for other accelerators or a better quantization",
    (
        "ort-dynq dequantize q.onnx -o float.onnx",
        "ort-dynq dequantize q.onnx -o qdq.onnx --weights qdq",
    ),
    _arguments,
    _run,
)
