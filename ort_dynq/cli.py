"""The command line ``ort-dynq``: one function a subcommand, whose outcome is both the text and the JSON.

Exit status: 0 done, 1 a verification failed, 2 bad usage or input (one line on stderr), 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__
from .errors import DynqError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.console import JustifyMethod, RenderableType

    from .rewriter import Finding, Report
    from .verification import Comparison, Difference, Verification

_PROGRAM = "ort-dynq"
_FAILED, _BAD_USAGE, _INTERRUPTED, _BROKEN_PIPE = 1, 2, 130, 141


@dataclass(frozen=True)
class Outcome:
    """What a subcommand found: as plain data for --json, and as lines and tables of the same for people."""

    data: dict[str, Any]
    text: Callable[[], Iterable[RenderableType]]
    status: int = 0


@dataclass(frozen=True)
class Command:
    """A subcommand: `arguments` declares its arguments, `run` does it."""

    name: str
    doc: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Outcome]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; `argv` is without the program's name."""
    try:
        arguments = _parser().parse_args(argv)
        outcome = arguments.run(arguments)
        print(json.dumps(outcome.data, indent=2, allow_nan=False) if arguments.json else _rendered(outcome.text()))
        sys.stdout.flush()
    except DynqError as error:
        print(f"{_PROGRAM}: error: {_line(str(error))}", file=sys.stderr)
        return _BAD_USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough; and the interpreter must not flush into the pipe again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return int(outcome.status)


# rewrite


def _rewrite_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="the model to rewrite")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where the rewritten model goes")
    parser.add_argument("--force", action="store_true", help="allow OUT to be IN")
    parser.add_argument(
        "--verify", action="store_true", help="first compare both models as `verify` does; write OUT only if they agree"
    )
    _data_arguments(parser)


def _rewrite(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    _check_target(source, target, force=arguments.force)
    with _working(f"rewriting {source}"):
        from .rewriter import rewrite

        result = rewrite(source)
    verification = _compare(arguments, source, result.model) if arguments.verify else None
    passed = verification is None or verification.passed
    if passed:
        with _working(f"writing {target}"):
            result.save(target)
    report = result.report

    def text() -> Iterator[RenderableType]:
        yield _line(f"{source}: {_counts(report)}")
        counts = ((op, report.before.get(op, 0), report.after.get(op, 0)) for op in {**report.before, **report.after})
        yield _table(
            ("operator", "before", "after"),
            [*sorted(counts), ("all", sum(report.before.values()), sum(report.after.values()))],
            style=lambda row: "green" if row[2] < row[1] else "cyan" if row[2] > row[1] else "",
        )
        if report.rewritten:
            done = Counter(finding.rule for finding in report.rewritten)
            yield ""
            yield _table(("rewritten", "rule"), [(count, rule) for rule, count in done.most_common()])
        if report.left:
            left = Counter((finding.op_type, finding.reason) for finding in report.left)
            yield ""
            yield _table(("left", "operator", "reason"), [(count, *why) for why, count in left.most_common()])
        yield "\n" + _line(f"{target} is written" if passed else f"{target} is not written")
        if verification is not None:
            yield from _verification_text(verification)

    data = {"input": str(source), "output": str(target) if passed else None, **report.to_dict()}
    data["verification"] = None if verification is None else verification.to_dict()
    return Outcome(data, text, 0 if passed else _FAILED)


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    """What would fail at the end fails at once."""
    if not target.parent.is_dir():
        raise DynqError(f"there is no folder {target.parent} to write {target.name} in")
    if target.is_dir():
        raise DynqError(f"{target} is a folder; -o takes the name of a file")
    if target.exists() and source.exists() and target.samefile(source) and not force:
        raise DynqError(f"{target} is the input itself; give --force to overwrite it")


# inspect


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="the model to look at; it is not changed")


def _inspect(arguments: argparse.Namespace) -> Outcome:
    with _working(f"inspecting {arguments.model}"):
        from .inspect import inspect

        report = inspect(arguments.model)

    def row(finding: Finding) -> tuple[str, ...]:
        return (finding.graph, finding.node, finding.op_type, finding.operator or f"left: {finding.reason}")

    def text() -> Iterator[RenderableType]:
        yield _line(f"{arguments.model}: {_counts(report)}")
        if report.findings:
            yield _table(("graph", "node", "operator", "becomes"), map(row, report.findings))

    return Outcome({"input": arguments.model, **report.to_dict()}, text)


def _counts(report: Report) -> str:
    return f"{len(report.rewritten)} dynamic quantization chains to rewrite, {len(report.left)} to leave"


# verify


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the original; runs in stock ONNX Runtime, all optimisations off")
    parser.add_argument("b", metavar="B", help="the model to compare with it; runs with the plugin")
    _data_arguments(parser)


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("input data")
    data.add_argument(
        "--input", metavar="NAME=FILE.npy", action="append", default=[], help="values of an input; others are generated"
    )
    data.add_argument(
        "--shape", metavar="NAME=1x128x768", action="append", default=[], help="shape of an input that is generated"
    )
    data.add_argument("--seed", type=_natural, default=0, metavar="N", help="of the generated values (0)")


def _verify(arguments: argparse.Namespace) -> Outcome:
    verification = _compare(arguments, arguments.a, arguments.b)
    data = {"a": arguments.a, "b": arguments.b, **verification.to_dict()}
    return Outcome(data, lambda: _verification_text(verification), 0 if verification.passed else _FAILED)


def _compare(arguments: argparse.Namespace, a: Any, b: Any) -> Verification:
    shapes = dict(_parse_shape(text) for text in arguments.shape)
    inputs = dict(_load_input(text) for text in arguments.input)
    with _working("running both models"):
        from .verification import verify

        return verify(a, b, inputs=inputs, shapes=shapes, seed=arguments.seed)


def _verification_text(verification: Verification) -> Iterator[RenderableType]:
    def shape(sizes: Sequence[int]) -> str:
        return "x".join(map(str, sizes)) or "scalar"

    for each in verification.inputs:
        origin = "given" if each.given else f"generated, seed {verification.seed}"
        if each.assumed:
            sizes = ", ".join(f"{name} = {size}" for name, size in each.assumed.items())
            origin += f"; assumed {sizes}: set it with --shape {each.name}={shape(each.shape)}"
        yield _line(f"input {each.name}: {each.dtype} {shape(each.shape)}, {origin}")
    if not verification.zero_rows:
        yield "no rows of zeros among the inputs: they turn a whole output into NaN"

    def compared(outputs: Sequence[Comparison], bad: str) -> Iterator[RenderableType]:
        head = ("output", "type", "shape", "elements", "NaN", "differing", "max abs", "max ULP")
        rows = []
        for each in outputs:
            largest = "-" if each.max_abs is None else f"{each.max_abs:.6g}"
            ulp = "-" if each.max_ulp is None else each.max_ulp
            measured = ("-", "-", "-") if each.problem else (each.differing, largest, ulp)
            rows.append((each.name, each.dtype, shape(each.shape), each.elements, each.nans, *measured))
        yield _table(head, rows, style=lambda row: bad if row[5] else "")
        for each in outputs:
            if each.problem:
                yield _line(f"{each.name}: A gives {each.dtype} {list(each.shape)}, {each.problem}")
            if each.first is not None:
                yield _line(f"{each.name} first differs at {list(each.first.index)}: {_values(each.dtype, each.first)}")

    if verification.outputs:
        yield "\nAll optimisations off:"
        yield from compared(verification.outputs, bad="red")
    if verification.default_outputs:
        yield "\nB at the default optimisation level, for information:"
        yield from compared(verification.default_outputs, bad="")
    if verification.failure:
        yield _line(verification.failure)
    yield "PASSED" if verification.passed else "FAILED"


def _values(dtype: str, difference: Difference) -> str:
    """As short as tells them from their neighbours."""
    import numpy as np

    a, b = (np.dtype(dtype).type(value) for value in (difference.a, difference.b))
    return f"A {a!s}, B {b!s}"


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    if not name or not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", sizes):
        raise DynqError(f"--shape {text} is not of the form NAME=1x128x768")
    return name, tuple(map(int, sizes.split("x")))


def _load_input(text: str) -> tuple[str, npt.NDArray[np.generic]]:
    import numpy as np

    name, _, path = text.partition("=")
    if not name or not path:
        raise DynqError(f"--input {text} is not of the form NAME=FILE.npy")
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise DynqError(f"there is no file {path}") from error
    except (OSError, ValueError, EOFError) as error:
        raise DynqError(f"{path} is not a .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DynqError(f"{path} holds several arrays; --input takes a .npy file of one")
    return name, array


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return int(text)


COMMANDS = (
    Command(
        "rewrite",
        "turn chains with run-time quantization parameters into ort_dynq's operators",
        "ort-dynq rewrite model.onnx -o fast.onnx --verify",
        _rewrite_arguments,
        _rewrite,
    ),
    Command(
        "inspect",
        "show which dynamic quantization chains a model has, what would be done with each, and why not",
        "ort-dynq inspect model.onnx",
        _inspect_arguments,
        _inspect,
    ),
    Command(
        "verify",
        "run two models on the same inputs and compare every output bit for bit",
        "ort-dynq verify model.onnx fast.onnx --shape x=1x128x768",
        _verify_arguments,
        _verify,
    ),
)


# what all have in common


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> Any:
        raise DynqError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROGRAM, description="Fast, exact dynamic quantization for ONNX Runtime on CPUs.")
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name, help=command.doc, description=command.doc, epilog=f"example: {command.example}"
        )
        command.arguments(subparser)
        subparser.add_argument("--json", action="store_true", help="print JSON instead of text")
        subparser.set_defaults(run=command.run)
    return parser


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """Shows on a terminal's stderr what is going on."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(_line(what)):
        yield


def _rendered(text: Iterable[RenderableType]) -> str:
    """The text for stdout: as wide as the terminal, or, where there is none, as wide as its longest row."""
    from rich.console import Console

    console = Console(
        markup=False, highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else 100_000
    )
    with console.capture() as capture:
        for each in text:
            console.print(each, style={"PASSED": "bold green", "FAILED": "bold red"}.get(str(each)))
    return capture.get().rstrip("\n")


def _table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], style: Callable[[Sequence[Any]], str] = lambda _: ""
) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    listed = list(rows)
    for i, title in enumerate(head):
        numeric = all(isinstance(row[i], int) for row in listed)
        justify: JustifyMethod = "right" if numeric else "left"
        table.add_column(title, justify=justify, no_wrap=numeric, min_width=len(title), overflow="fold")
    for row in listed:
        table.add_row(*(_line(str(cell)) for cell in row), style=style(row))
    return table


def _line(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
