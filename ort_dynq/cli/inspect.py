"""``ort-dynq inspect``: shows what a rewrite would do with a model, a program, or the function body of an operator."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..errors import DynqError
from ..formats import check_file
from ..rewrite_options import RewriteOptions
from .arguments import add_changes, add_inputs, check_data, given_data, positive, rare
from .command import Command, Outcome
from .render import one_line, table, working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..rewriter.grouping import Group

_OPSET, _OLDEST_OPSET = 21, 10


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", nargs="?", help="the model to inspect; it is not changed")
    add_changes(parser)
    add_inputs(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--values",
        metavar="NAME",
        help="print what is known of a value and of the values before it: bounds, integers, codes",
    )
    shown.add_argument(
        "--program",
        metavar="NODE",
        help="print the program that a node has after a rewrite, and what it reads and computes",
    )
    body = rare(parser)
    body.add_argument("--body", metavar="NAME", help="print the function body of one of ort_dynq's operators")
    body.add_argument(
        "--opset", type=positive, metavar="N", help=f"the version of the standard operators (default: {_OPSET})"
    )


def _run(arguments: argparse.Namespace) -> Outcome:
    if arguments.body is not None:
        if arguments.model is not None:
            raise DynqError("--body takes no model; give either IN or --body NAME")
        return _body(arguments.body, arguments.opset or _OPSET)
    if arguments.opset is not None:
        raise DynqError("--opset needs --body NAME")
    if arguments.model is None:
        raise DynqError("there is nothing to inspect; give a model, or --body NAME (see ort-dynq inspect --help)")
    check_file(arguments.model)
    check_data(arguments)
    if arguments.values is not None:
        return _values(arguments.model, arguments.values)
    if arguments.program is not None:
        return _program(arguments.model, arguments.program, **RewriteOptions.from_arguments(arguments).arguments)
    with working(f"inspecting {arguments.model}"):
        from ..rewriter import inspect
        from ..rewriter.grouping import grouped

        shapes, inputs = given_data(arguments, arguments.model)
        report = inspect(
            arguments.model, **RewriteOptions.from_arguments(arguments).arguments, inputs=inputs, shapes=shapes
        )
        if report.refusal:
            raise DynqError(report.refusal)
    groups = grouped(report.findings)

    def text() -> Iterator[RenderableType]:
        yield one_line(f"{arguments.model}: {report.summary}")
        nodes = sum(report.before.values())
        yield f"{nodes} node{'s' if nodes != 1 else ''}, {sum(report.after.values())} after a rewrite"
        yield from _groups("rewritten", "becomes", "green", [each for each in groups if each.operator])
        yield from _groups("unconverted", "reason", "yellow", [each for each in groups if not each.operator])
        if report.cpu_text:
            yield "\nDepends on the CPU after a rewrite:"
            yield from map(one_line, report.cpu_text)

    data = {"input": arguments.model, **report.to_dict(), "groups": list(map(asdict, groups))}
    return Outcome(data, text)


def _groups(title: str, last: str, color: str, groups: Sequence[Group]) -> Iterator[RenderableType]:
    if groups:
        further = ("program",) if any(each.program for each in groups) else ()
        rows = [
            (
                *(each.count, each.node, each.graph, each.op_type, each.operator or each.reason),
                *(each.brief_program or "-" for _ in further),
            )
            for each in groups
        ]
        yield ""
        yield table((title, "nodes", "graph", "operator", last, *further), rows, style=lambda _: color)


def _values(model: str, name: str) -> Outcome:
    with working(f"analyzing {model}"):
        from ..rewriter.explain import explain

        values = explain(model, name)

    def text() -> Iterator[RenderableType]:
        rows = [(each.name, each.operator, each.bounds, each.form or each.lost) for each in values]
        lost = {each.lost for each in values} - {""}
        head = ("value", "operator", "known", "codes, or where they were lost")
        yield table(head, rows, style=lambda row: "" if not row[3] else "yellow" if row[3] in lost else "green")

    return Outcome({"input": model, "values": list(map(asdict, values))}, text)


def _program(model: str, node: str, **changes: Any) -> Outcome:
    with working(f"inspecting {model}"):
        from ..rewriter.listing import listing_of

        found = listing_of(model, node, **changes)

    def text() -> Iterator[RenderableType]:
        counted = f"{found.steps} step{'s' if found.steps != 1 else ''}"
        yield one_line(f"{found.node}: {found.operator} in {found.graph}, {counted}")
        yield f"a row: the dimensions from {found.axis} on\n"
        yield from map(one_line, found.statements)
        for title, last, connections in (("reads", "from", found.inputs), ("assigns", "to", found.outputs)):
            if connections:
                rows = [
                    (each.name, each.value or "-", each.type or "-", ", ".join(each.nodes) or "-")
                    for each in connections
                ]
                yield ""
                yield table((title, "value", "type", last), rows)

    return Outcome({"input": model, **asdict(found), "statements": found.statements}, text)


def _body(name: str, opset: int) -> Outcome:
    from ..documentation import body_text

    if opset < _OLDEST_OPSET:
        raise DynqError(f"--opset is {opset}, expected {_OLDEST_OPSET} or newer: older ones have no QuantizeLinear")
    body = body_text(name, opset)
    return Outcome({"operator": name, "opset": opset, "body": body}, lambda: [body])


COMMAND = Command(
    "inspect",
    "show the dynamic quantization chains of a model, what a rewrite would do with each, and why it would leave some",
    (
        "ort-dynq inspect model.onnx",
        "ort-dynq inspect model.onnx --values x",
        "ort-dynq inspect model.onnx --program node_conv2d",
    ),
    _arguments,
    _run,
)
