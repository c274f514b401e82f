"""``ort-dynq run``: runs a program. Its sessions run rewritten models."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import DynqError
from ..files import replacing
from .arguments import add_exact, add_fuse, decibels, positive, share
from .command import PROGRAM, Command, Outcome

_PATTERN = re.compile(r".*[*?\[].*|.*\.(onnx|ort)", re.DOTALL)


def _arguments(parser: argparse.ArgumentParser) -> None:
    changes = parser.add_mutually_exclusive_group()
    add_exact(changes)
    add_fuse(changes)
    parser.add_argument(
        "--keep",
        metavar="NAME",
        action="append",
        default=[],
        help="leave models alone if their path or file name matches, such as 'det*.onnx'; may be repeated",
    )
    parser.add_argument(
        "--quantize",
        metavar="PATTERN",
        nargs="?",
        action="append",
        const="*",
        default=[],
        help="run float models as int8 models if these reach the limits below: all, or those with a path or file name "
        "that matches; may be repeated",
    )
    parser.add_argument(
        "--min-snr",
        type=decibels,
        default=25.0,
        metavar="DB",
        help="the smallest signal-to-noise ratio of an output (default: 25)",
    )
    parser.add_argument(
        "--min-agreement",
        type=share,
        default=0.95,
        metavar="SHARE",
        help="the smallest share of a classifier's decisions that are the same (default: 0.95)",
    )
    parser.add_argument(
        "--inputs", type=positive, default=3, metavar="N", help="how many inputs both models run on (default: 3)"
    )
    parser.add_argument("--report", metavar="OUT.json", help="write a file that lists every session")
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", help="run a module of Python, as `python -m` does; ends the options"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program and its arguments, after --"
    )


def with_separator(given: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Returns the arguments with `--` before the program: its own options are then not taken for ours.

    Args:
        given: The arguments after `run`.
        parser: The parser of `run`.
    """
    values = {
        option
        for action in parser._actions
        if action.nargs is None and action.option_strings
        for option in action.option_strings
    }
    takes_value = False
    for i, word in enumerate(given):
        if word == "--":
            break
        if takes_value:
            takes_value = False
        elif word == "-m":
            return [*given[:i], "--", *given[i:]]
        elif not word.startswith("-"):
            if given[i - 1] == "--quantize" and i and _PATTERN.fullmatch(word):
                continue
            return [*given[:i], "--", *given[i:]]
        else:
            takes_value = word in values
    return list(given)


def _run(arguments: argparse.Namespace) -> Outcome:
    from ..hook.options import HookOptions
    from ..hook.program import run

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command or command == ["-m"]:
        raise DynqError("there is no program to run; give it after --, such as `ort-dynq run -- python app.py`")
    options = HookOptions(
        arguments.exact,
        arguments.fuse,
        tuple(arguments.keep),
        tuple(arguments.quantize),
        arguments.min_snr,
        arguments.min_agreement,
        arguments.inputs,
    )
    options.check()
    if arguments.report is not None:
        _check_report(arguments.report)
    done = run(command, options, arguments.verbose)
    if arguments.report is not None:
        with replacing(Path(arguments.report)) as file:
            file.write_text(json.dumps(done.to_dict(), indent=2) + "\n", encoding="utf-8")
    if not arguments.quiet:
        print(f"{PROGRAM}: {done.line}", file=sys.stderr)
    return Outcome(done.to_dict(), lambda: (), done.status)


def _check_report(path: str) -> None:
    """Checks the path of the report before the program runs."""
    if not Path(path).absolute().parent.is_dir():
        raise DynqError(f"there is no folder {Path(path).absolute().parent} to write {Path(path).name} in")
    if Path(path).is_dir():
        raise DynqError(f"{path} is a folder; choose the name of a file")


COMMAND = Command(
    "run",
    "run any program: the models that it opens with ONNX Runtime are rewritten, without a change of its code",
    (
        "ort-dynq run -- python app.py",
        "ort-dynq run --report run.json -- python -m uvicorn app:api --workers 4",
        "ort-dynq run --quantize -- rapidocr -img page.png",
    ),
    _arguments,
    _run,
)
