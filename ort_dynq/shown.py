"""How results look in Python: one line, and that line with tables in notebooks."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

Table = tuple[Sequence[str], Iterable[Sequence[object]]]
"""The titles of the columns, and the rows."""


class Shown:
    """A result that says what it is in one line, and in notebooks also in tables. Dataclasses need ``repr=False``."""

    def _line(self) -> str:
        raise NotImplementedError

    def _tables(self) -> Iterable[Table]:
        raise NotImplementedError

    def __repr__(self) -> str:
        """The result in one line."""
        return f"<{type(self).__name__}: {self._line()}>"

    def _repr_html_(self) -> str:
        """The line and the tables, for notebooks."""
        return f"<p>{html.escape(self._line())}</p>{''.join(_html(head, rows) for head, rows in self._tables())}"


def _html(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    lines = [_row("td", map(_text, row)) for row in rows]
    return f"<table>{_row('th', head)}{''.join(lines)}</table>" if lines else ""


def _row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _text(cell: object) -> str:
    return "-" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell)
