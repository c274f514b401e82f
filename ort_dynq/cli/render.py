"""Text output: tables, figures, single lines, and the progress on a terminal."""

from __future__ import annotations

import contextlib
import contextvars
import importlib.util
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import printable

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType

    from ..inputs import Input
    from ..tools.measuring.progress import Track

SMOKE_TEST = "GENERATED DATA: NO MORE THAN A SMOKE TEST. Give your own data with --data to see the accuracy"
"""The line after accuracy figures that say little."""
_MEGA, _KILO = 1e6, 1e3
_STYLES = {
    "PASSED": "bold green",
    "FAILED": "bold red",
    "NOT CHECKED": "bold red",
    "GENERATED DATA": "bold red",
    "WARNING": "bold yellow",
}
"""Of a line that has only this text, or begins with it and a colon."""


@dataclass(frozen=True)
class Figure:
    """A number in a table.

    Attributes:
        value: The number, or None if there is none.
        digits: Digits after the decimal point.
        absent: The text for None.
    """

    value: float | None
    digits: int
    absent: str = "-"

    def __str__(self) -> str:
        return self.absent if self.value is None else f"{self.value:.{self.digits}f}"


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], style: Callable[[Sequence[Any]], str] = lambda _: ""
) -> RenderableType:
    """Returns a table. Columns of integers and figures are aligned to the right.

    Args:
        head: The titles of the columns.
        rows: The cells.
        style: Returns the style of a row, as rich names styles.
    """
    listed = list(rows)
    if not _has_rich():
        return _plain_table([head, *listed])
    from rich.table import Table

    result = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for i, title in enumerate(head):
        numeric = all(isinstance(row[i], int | Figure) for row in listed)
        justify: JustifyMethod = "right" if numeric else "left"
        whole = [*title.split(), *(str(row[i]) for row in listed if numeric)]  # never on two lines, other texts may be
        width = max(map(len, whole))
        result.add_column(title, justify=justify, min_width=width, overflow="fold")
    for row in listed:
        result.add_row(*(one_line(str(cell)) for cell in row), style=style(row))
    return result


def _has_rich() -> bool:
    """Returns whether rich is installed. `ort-dynq doctor` has to work without it, too, and says so."""
    return importlib.util.find_spec("rich") is not None


def _plain_table(rows: Sequence[Sequence[Any]]) -> str:
    texts = [[one_line(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in texts)


def ratio_style(ratio: Figure) -> str:
    """Returns the style of a ratio: green above 1.05, where ort_dynq is faster, red below 0.95."""
    return "" if ratio.value is None else "red" if ratio.value < 0.95 else "green" if ratio.value > 1.05 else ""


def one_line(text: str) -> str:
    """Puts a text on one line and escapes control characters."""
    return printable(" ".join(text.split()))


SCALAR = "scalar"


def format_shape(sizes: Sequence[int]) -> str:
    """Writes a shape as 2x3x4."""
    return "x".join(map(str, sizes)) or SCALAR


def format_bytes(count: int) -> str:
    """Returns the size of a file, with two digits or more."""
    unit, name = (_MEGA, "MB") if count >= _MEGA else (_KILO, "kB")
    return f"{count / unit:.0f} {name}" if count >= 10 * unit else f"{count / unit:.1f} {name}"


def rendered(text: Iterable[RenderableType]) -> str:
    """Returns the text for stdout, as wide as the terminal, or as its longest row if there is no terminal."""
    if not _has_rich():
        return "\n".join(map(str, text)).rstrip("\n")
    from rich.console import Console

    console = Console(
        markup=False, highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else 100_000
    )
    with console.capture() as capture:
        for each in text:
            console.print(each, style=_STYLES.get(str(each).partition(":")[0]))
    return "\n".join(map(str.rstrip, capture.get().rstrip("\n").split("\n")))


_LOG_SECONDS = 10
_silent = contextvars.ContextVar("silent", default=False)


@contextlib.contextmanager
def silent(is_silent: bool) -> Iterator[None]:
    """Shows no progress while the block runs, if `is_silent`."""
    token = _silent.set(is_silent)
    try:
        yield
    finally:
        _silent.reset(token)


@contextlib.contextmanager
def _logged(what: Callable[[], str]) -> Iterator[None]:
    """Writes a line to stderr every ten seconds while the block runs: progress for a log."""
    done, begin = threading.Event(), time.monotonic()

    def log() -> None:
        while not done.wait(_LOG_SECONDS):
            print(one_line(f"{what()} ({time.monotonic() - begin:.0f} s)"), file=sys.stderr, flush=True)

    if not _silent.get():
        with contextlib.suppress(RuntimeError):  # without permission for a thread, there is no progress
            threading.Thread(target=log, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def _has_terminal() -> bool:
    return sys.stderr.isatty() and _has_rich() and not _silent.get()


@contextlib.contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Shows what the block does while it runs: a spinner on a terminal, else a line every ten seconds.

    Gives a function that the block may tell how far it is.
    """
    if not _has_terminal():
        now = [what]
        with _logged(lambda: now[0]):
            yield lambda text: now.__setitem__(0, f"{what}: {text}")
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(one_line(what)) as status:
        yield lambda text: status.update(one_line(f"{what}: {text}"))


@contextlib.contextmanager
def progress() -> Iterator[Track]:
    """Gives a function that iterates over steps and shows a progress bar on a terminal, else a line every ten seconds.

    The bar is drawn between steps only, so that it takes no time from what is timed.
    """
    if not _has_terminal():
        now = ["working"]

        def count(steps: Sequence[Any]) -> Iterator[Any]:
            for i, step in enumerate(steps, 1):
                now[0] = f"{i} of {len(steps)}: {step}"
                yield step

        with _logged(lambda: now[0]):
            yield count
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as bar:

        def track(steps: Sequence[Any]) -> Iterator[Any]:
            task = bar.add_task("", total=len(steps))
            for step in steps:
                bar.update(task, description=one_line(str(step)), refresh=True)
                yield step
                bar.advance(task)

        yield track


def inputs_text(inputs: Iterable[Input], seed: int) -> Iterator[RenderableType]:
    """Renders the inputs of a model."""
    for each in inputs:
        origin = "given" if each.given else f"generated, seed {seed}"
        if each.assumed:
            sizes = ", ".join(f"{name} = {size}" for name, size in each.assumed.items())
            origin += f"; assumed {sizes}: set it with --shape {each.name}={format_shape(each.shape)}"
        yield one_line(f"input {each.name}: {each.dtype} {format_shape(each.shape)}, {origin}")
