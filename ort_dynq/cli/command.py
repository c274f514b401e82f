"""What all subcommands share: their description, their outcome, the parser, errors and exit statuses.

Exit status: 0 success, 1 a verification or check failed, 2 wrong usage or input (one line on stderr), 3 a verification
could not check enough, 130 interrupted, 141 stdout was closed by its reader.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import library
from ..errors import DynqError, GateError, with_advice_on_tools, without_thread
from ..version import __version__
from .arguments import RARE, similar
from .render import one_line, rendered, silent

if TYPE_CHECKING:
    from rich.console import RenderableType

PROGRAM = "ort-dynq"
SCHEMA = 1
"""The version of the schema of JSON output. It changes if a field is removed or gets another meaning."""
FAILED, BAD_USAGE, UNCHECKED, INTERRUPTED, BROKEN_PIPE = 1, 2, 3, 130, 141
VERDICTS = {"passed": ("PASSED", 0), "unchecked": ("NOT CHECKED", UNCHECKED), "failed": ("FAILED", FAILED)}
"""The text and the exit status of each status of a verification, the worst one last."""
FILES = ("IN", "OUT", "OUT.html", "A", "B", "FLOAT", "FOLDER")
"""The metavars of arguments that name a file; shells complete them with file names."""


@dataclass(frozen=True)
class Outcome:
    """The result of a subcommand.

    Attributes:
        data: Plain data for --json.
        text: Returns the same as lines and tables.
        status: The exit status.
    """

    data: dict[str, Any]
    text: Callable[[], Iterable[RenderableType]]
    status: int = 0


@dataclass(frozen=True)
class Command:
    """A subcommand.

    Attributes:
        name: Its name on the command line.
        doc: One sentence for the help.
        examples: Complete command lines.
        arguments: Adds the arguments to a parser.
        run: Runs the subcommand.
        verifies: Whether it can print all comparisons of a verification.
    """

    name: str
    doc: str
    examples: tuple[str, ...]
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Outcome]
    verifies: bool = False


def main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    """Parses the arguments, runs the subcommand, prints its outcome and returns the exit status."""
    # Warnings of the libraries would be further lines on stderr.
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    with _missing_streams_go_nowhere():
        return _main(parser, argv)


@contextlib.contextmanager
def _missing_streams_go_nowhere() -> Iterator[None]:
    """Gives a process that was started without stdout or stderr the null device while the block runs."""
    with contextlib.ExitStack() as opened:
        for stream, redirect in (
            (sys.stdout, contextlib.redirect_stdout),
            (sys.stderr, contextlib.redirect_stderr),
        ):
            if stream is None:
                opened.enter_context(redirect(opened.enter_context(open(os.devnull, "w"))))
        yield


def _main(parser: argparse.ArgumentParser, argv: Sequence[str] | None) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # the code page of a Windows console lacks most characters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        arguments = parser.parse_args(argv)
        if not hasattr(arguments, "run"):
            parser.print_help()
            status = 0
        else:
            _check_threads()
            _end_in_one_line_on_bus_errors(parser.prog)
            with silent(arguments.quiet), _logged_to_stderr(arguments.verbose):
                outcome = arguments.run(arguments)
            if arguments.json or not arguments.quiet:
                _print(arguments.subcommand, outcome, as_json=arguments.json)
            status = outcome.status
        sys.stdout.flush()
    except DynqError as error:
        print(f"{parser.prog}: error: {one_line(str(error))}", file=sys.stderr)
        return FAILED if isinstance(error, GateError) else BAD_USAGE
    except ImportError as error:
        print(f"{parser.prog}: error: {one_line(str(with_advice_on_tools(error)))}", file=sys.stderr)
        return BAD_USAGE
    except RuntimeError as error:
        if (found := without_thread(error)) is None:
            raise
        print(f"{parser.prog}: error: {found}", file=sys.stderr)
        return BAD_USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_stdout()
        return BROKEN_PIPE
    return int(status)


def _check_threads() -> None:
    """Starts a thread. OpenBLAS, which NumPy loads, would print several lines and interrupt the process.

    Raises:
        RuntimeError: The system lets this process start none.
    """
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()


def _end_in_one_line_on_bus_errors(program: str) -> None:
    """Makes the process end with an error in one line if a file is cut off that it, or ONNX Runtime, has mapped."""
    text = "a file of a model was cut off while it was read; run the command again when nothing writes it"
    with contextlib.suppress(DynqError, AttributeError):  # `ort-dynq doctor` says what is wrong with the library
        library.exit_on_bus_error(f"{program}: error: {text}\n", BAD_USAGE)


@contextlib.contextmanager
def _logged_to_stderr(verbosity: int) -> Iterator[None]:
    """Writes what the package logs to stderr while the block runs: for 1, what it does; for more, each detail."""
    logger, handler = logging.getLogger("ort_dynq"), logging.StreamHandler()
    before = logger.level
    if verbosity:
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO if verbosity == 1 else logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _print(command: str, outcome: Outcome, *, as_json: bool) -> None:
    """Prints an outcome. JSON has the version of its schema, `output.schema.json`, and the command first.

    Raises:
        BrokenPipeError: The reader of stdout is gone.
        DynqError: stdout cannot be written: its disk is full.
    """
    try:
        head = {"schema": SCHEMA, "command": command, "exit_status": outcome.status}
        data = {**head, **outcome.data}
        text = json.dumps(data, indent=2, allow_nan=False) if as_json else rendered(outcome.text())
        if text:  # a program has stdout for itself
            print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_stdout()
        raise DynqError(f"stdout cannot be written: {error.strerror}") from error


def _discard_stdout() -> None:
    """Redirects stdout to the null device: the interpreter flushes it once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser. Its errors are one line, and its help leaves out the group :data:`RARE`.

    Attributes:
        shows_all: Whether the help has this group, too.
    """

    shows_all = False

    def format_help(self) -> str:
        """Returns the help."""
        groups = self._action_groups
        if not self.shows_all:
            self._action_groups = [group for group in groups if group.title != RARE]
        try:
            return super().format_help()
        finally:
            self._action_groups = groups

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Names the choice that was probably meant; argparse itself does so from Python 3.14 on."""
        if action.choices is not None and value not in action.choices and (meant := similar(value, action.choices)):
            raise argparse.ArgumentError(action, f"invalid choice: {value!r}, did you mean {meant!r}?")
        super()._check_value(action, value)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what is unknown here: the parser of a subcommand knows its options, the whole parser does not."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option[2:] for option in self._option_string_actions if option.startswith("--")]
            meant = similar(unknown[0][2:].partition("=")[0], options) if unknown[0].startswith("--") else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f"; did you mean --{meant}?" if meant else ""))
        for action in self._actions:  # pathlib would take the current folder
            if action.metavar in FILES and getattr(found, action.dest) == "":
                self.error(f"{action.metavar} is empty")
        return found, unknown

    def error(self, message: str) -> Any:
        raise DynqError(f"{message} (see {self.prog} --help)")


class _HelpAll(argparse.Action):
    """Prints the help with the options that are seldom needed."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, __: Any, ___: Any = None) -> None:
        assert isinstance(parser, _Parser)
        parser.shows_all = True
        parser.print_help()
        parser.shows_all = False  # the next command line of the process has the same parser
        parser.exit()


class _PrintCompletion(argparse.Action):
    """Prints the completion script of a shell, made from the parser."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, values: Any, __: Any = None) -> None:
        import shtab

        for action in parser._actions:
            for subparser in (action.choices or {}).values() if isinstance(action, argparse._SubParsersAction) else ():
                for argument in subparser._actions:
                    if argument.metavar in FILES:
                        argument.complete = shtab.FILE
        print(shtab.complete(parser, values))
        parser.exit()


def add_program_options(parser: argparse.ArgumentParser) -> None:
    """Adds --version and --print-completion."""
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        action=_PrintCompletion,
        help=f'print a completion script for a shell and exit; for bash: eval "$({PROGRAM} --print-completion bash)"',
    )


def make_parser(program: str, description: str, commands: Iterable[Command]) -> argparse.ArgumentParser:
    """Returns the parser of these subcommands. Parsed arguments have the function `run` of the chosen one."""
    parser = _Parser(prog=program, description=description)
    subparsers = parser.add_subparsers(metavar="COMMAND")
    for command in commands:
        subparser = subparsers.add_parser(
            command.name,
            help=command.doc,
            description=command.doc,
            epilog="\n".join(("examples:", *(f"  {example}" for example in command.examples))),
            formatter_class=_KeepExamples,
        )
        command.arguments(subparser)
        _add_output(subparser, verifies=command.verifies)
        if any(group.title == RARE for group in subparser._action_groups):
            subparser.add_argument(
                "--help-all", action=_HelpAll, nargs=0, help="show seldom needed options, too, and exit"
            )
        subparser.usage = _usage(subparser)
        subparser.set_defaults(run=command.run, subcommand=command.name)
    return parser


def _usage(parser: argparse.ArgumentParser) -> str:
    """Returns the usage: what a command needs, without the options that it only takes."""
    words = []
    for action in parser._actions:
        name = str(action.metavar or action.dest)
        if action.required and action.option_strings:
            words.append(f"{action.option_strings[0]} {name}")
        elif not action.option_strings:
            words.append(f"[{name}]" if action.nargs == "?" else name)
    return " ".join(("%(prog)s", "[options]", *words))


def subparser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    """Returns the parser of a subcommand."""
    (actions,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    found: argparse.ArgumentParser = actions.choices[name]
    return found


def _add_output(parser: argparse.ArgumentParser, *, verifies: bool) -> None:
    """Adds --json, --verbose and --quiet."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    amount = parser.add_mutually_exclusive_group()
    amount.add_argument(
        *("-v", "--verbose"),
        action="count",
        default=0,
        help="print " + ("all comparisons, and " if verifies else "") + "a log on stderr; -vv: each node that stays",
    )
    amount.add_argument("-q", "--quiet", action="store_true", help="print nothing but errors and JSON")


class _KeepExamples(argparse.HelpFormatter):
    """Wraps all texts but the examples. Their lines are kept."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return text
        return super()._fill_text(text, width, indent)
