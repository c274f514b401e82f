"""What became of the sessions of a program: a record for each, one line for all."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..errors import printable

# The states of a session, in the order in which a line lists them, and what the line says of each.
STATES = {
    "rewritten": "rewritten",
    "quantized": "with int8 instead of float",
    "measured": "float while int8 is measured",
    "registered": "rewritten before",
    "unchanged": "unchanged",
    "left alone": "left alone",
    "failed": "opened as they were after an error",
}
_MAX_REASONS = 3  # in a line


@dataclass
class Opened:
    """A session that a program has opened.

    Attributes:
        model: The path of its model, or how many bytes it has.
        state: ``rewritten``: it runs a rewritten model. ``quantized``: an int8 model in place of a float model.
            ``measured``: a float model, while its int8 model is measured on the inputs of the program.
            ``registered``: a model that was rewritten before, with the operators. ``unchanged``: nothing to rewrite.
            ``left alone``: its options or arguments forbid it. ``failed``: the model as it was, after an error.
        reason: Why; what was rewritten; what was measured.
        integer_products, float_products: The numbers of nodes with products in the model that runs.
        seconds: The time that it took to open, with the rewrite if there was one.
        process: The process.
        number: Its number in the process.
    """

    model: str
    state: str = "failed"
    reason: str = ""
    integer_products: int = 0
    float_products: int = 0
    seconds: float = 0.0
    process: int = field(default_factory=os.getpid)
    number: int = 0

    def __str__(self) -> str:
        return printable(f"{self.model}: {self.state}" + (f": {self.reason}" if self.reason else ""))

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)


class Sessions:
    """The sessions that a program has opened, in order; the text of this object is one line about all of them."""

    def __init__(self, file: str = "") -> None:
        """Begins without any.

        Args:
            file: A file to which each session is added as a line of JSON, again when its state changes. Other processes
                add to it as well; nothing is added once it is deleted.
        """
        self._file = file
        self._opened: list[Opened] = []
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Opened]:
        return iter(self.opened)

    def __len__(self) -> int:
        return len(self._opened)

    def __str__(self) -> str:
        return line(self.opened)

    @property
    def opened(self) -> tuple[Opened, ...]:
        """The sessions."""
        return tuple(self._opened)

    def add(self, opened: Opened) -> None:
        """Adds a session."""
        with self._lock:
            opened.number = len(self._opened)
            self._opened.append(opened)
        self.changed(opened)

    def changed(self, opened: Opened) -> None:
        """Writes a session to the file, which has an earlier state of it."""
        if self._file:
            append(self._file, opened.to_dict())

    def renew_lock(self) -> None:
        """Makes the object usable in a forked process: another thread may have had the lock."""
        self._lock = threading.Lock()


def append(file: str, content: Mapping[str, Any]) -> None:
    """Adds a line of JSON to a file that exists. Errors are ignored: a record is no reason to disturb a program."""
    try:
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        with open(os.open(file, flags), "ab", buffering=0) as opened:
            opened.write(json.dumps(content).encode() + b"\n")
    except OSError:
        pass


def read(file: str) -> tuple[list[Opened], list[dict[str, Any]]]:
    """Returns the sessions that processes have added to a file, in their last states, and its other lines."""
    found: dict[tuple[int, int], Opened] = {}
    others = []
    with open(file, encoding="utf-8", errors="replace") as lines:
        for text in lines:
            try:
                content = json.loads(text)
                opened = Opened(**content) if "model" in content else None
                process = content["process"]
            except (ValueError, TypeError, LookupError):  # a process was killed while it wrote, or wrote on its own
                continue
            if opened is None:
                others.append(content)
            else:
                found[process, opened.number] = opened
    return list(found.values()), others


def line(sessions: list[Opened] | tuple[Opened, ...]) -> str:
    """Returns one line on sessions: how many, in which states, and why they stay as they are."""
    if not sessions:
        return "no sessions of ONNX Runtime"
    processes = len({each.process for each in sessions})
    where = f" in {processes} processes" if processes > 1 else ""
    parts = []
    for state, text in STATES.items():
        those = [each for each in sessions if each.state == state]
        if those:
            parts.append(f"{len(those)} {text}{_detail(state, those)}")
    return printable(f"{_count(len(sessions), 'session')}{where}: {'; '.join(parts)}")


def _detail(state: str, sessions: list[Opened]) -> str:
    if state in ("rewritten", "quantized", "registered"):
        products = sum(each.integer_products for each in sessions)
        return f" ({_count(products, 'integer product')})" if products else ""
    reasons = Counter(each.reason for each in sessions if each.reason)
    texts = [
        reason if count == 1 or len(reasons) == 1 else f"{count} {reason}" for reason, count in reasons.most_common()
    ]
    shown = ", ".join(texts[:_MAX_REASONS]) + (", ..." if len(texts) > _MAX_REASONS else "")
    return f" ({shown})" if shown else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
