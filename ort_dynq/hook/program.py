"""Runs a program. Its Python processes open their models through :mod:`ort_dynq.hook`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from ..errors import DynqError
from ..files import temporary_folder
from . import sessions
from .options import HookOptions, ProcessOptions

STARTUP = Path(__file__).parent / "startup"
"""The folder in front of PYTHONPATH."""

_SIGNALS = ("SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")


@dataclass(frozen=True)
class Run:
    """A program that has ended.

    Attributes:
        status: Its exit status; 128 and the number of the signal that has ended it.
        sessions: The sessions of all its processes.
        pythons: The number of its Python processes that were reached.
        problems: Why others were not reached.
    """

    status: int
    sessions: tuple[sessions.Opened, ...]
    pythons: int
    problems: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "status": self.status,
            "summary": self.line,
            "processes": self.pythons,
            "problems": list(self.problems),
            "sessions": [each.to_dict() for each in self.sessions],
        }

    @property
    def line(self) -> str:
        """One line on the sessions, or on why there are none."""
        if not self.pythons:
            return "no Python process was reached: does the program start Python with -I, -E or -S?"
        return "; ".join((sessions.line(self.sessions), *dict.fromkeys(self.problems)))


def run(command: Sequence[str], options: HookOptions, verbosity: int = 0) -> Run:
    """Runs a program until it ends, with this process's stdin, stdout and stderr; signals are passed on to it.

    Args:
        command: The program and its arguments. A Python file, and ``-m`` with a module, are run by this Python.
        options: What is done with its models.
        verbosity: See :class:`ProcessOptions`.

    Raises:
        DynqError: The program cannot be started.
    """
    with temporary_folder() as folder:
        record = os.path.join(folder, "sessions.jsonl")
        Path(record).touch(mode=0o600)
        environment = {**os.environ, **ProcessOptions(options, record, verbosity).variables()}
        before = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each != str(STARTUP)]
        environment["PYTHONPATH"] = os.pathsep.join((str(STARTUP), *before))
        status = _wait(_completed(command), environment)
        found, others = sessions.read(record)
    problems = tuple(str(each["problem"]) for each in others if each.get("problem"))
    pythons = len({each.get("process") for each in others})
    return Run(status, tuple(found), pythons, problems)


def _completed(command: Sequence[str]) -> list[str]:
    """Returns a command with the Python that runs it."""
    if command[0] == "-m" or (command[0].endswith((".py", ".pyz")) and os.path.isfile(command[0])):
        return [sys.executable, *command]
    if shutil.which(command[0]) is None:
        raise DynqError(f"there is no program {command[0]}; expected a command, a Python file, or -m and a module")
    return list(command)


def _wait(command: Sequence[str], environment: dict[str, str]) -> int:
    """Runs a command, and returns its exit status."""
    with _passing_signals_on() as begin_with:
        try:
            process = subprocess.Popen(command, env=environment)
        except OSError as error:
            raise DynqError(f"{command[0]} cannot be started: {error.strerror}") from error
        begin_with(process)
        status = process.wait()
    return 128 - status if status < 0 else status


@contextmanager
def _passing_signals_on() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Passes signals on to the process with which the block calls what it gets; those that came before, too.

    Ctrl+C reaches all processes of a terminal, also the program, which ends as it likes. Signals that are ignored, as
    under nohup, stay so, also for the program.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if number == signal.SIGINT and _is_in_foreground():
            return
        if started:
            started[0].send_signal(number)
        else:
            early.append(number)

    def begin_with(process: subprocess.Popen[bytes]) -> None:
        started.append(process)
        for number in early:
            process.send_signal(number)

    names = ("SIGINT", *(_SIGNALS if os.name == "posix" else ()))
    numbers = [getattr(signal, name) for name in names]
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:
                signal.signal(number, pass_on)
        yield begin_with
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)


def _is_in_foreground() -> bool:
    """Whether a terminal sends its signals to this process and the program alike."""
    if sys.platform == "win32":
        return True
    terminal = next((stream for stream in (0, 1, 2) if os.isatty(stream)), None)
    return terminal is not None and os.tcgetpgrp(terminal) == os.getpgrp()
