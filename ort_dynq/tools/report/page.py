"""Renders the HTML pages of reports and writes them.

A page has no external resources. Its security policy allows no script, or only the one of this folder, by its hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import DynqError, printable
from ...files import reason, replacing

if TYPE_CHECKING:
    import jinja2

_FOLDER = Path(__file__).parent
_MAX_LENGTH = 32  # letters of an operator's name


def render(template: str, *, script: str = "", **values: Any) -> str:
    """Returns a page.

    Args:
        template: The name of a file in this folder.
        script: The name of a file in this folder, the script of the page; empty if it has none.
        values: What the template shows; in every text, HTML and control characters are escaped.
    """
    import markupsafe

    code = (_FOLDER / script).read_text(encoding="utf-8") if script else ""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    given = {"script": markupsafe.Markup(code), "script_hash": digest, **values}
    return _environment().get_template(template).render(given)


@functools.cache  # it keeps the compiled templates
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,  # not a Markup, which is HTML
        trim_blocks=True,
        loader=jinja2.FileSystemLoader(_FOLDER, encoding="utf-8"),
    )
    environment.filters |= {
        "shape": _shape,
        "count": _count,
        "size": _size,
        "decibels": _decibels,
        "operators": _operators,
        "operator": _operator,
    }
    return environment


def save(text: str, path: Path) -> None:
    """Writes a page atomically.

    Raises:
        DynqError: The file cannot be written.
    """
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DynqError(f"{path} cannot be written: {reason(error)}") from error


def _shape(sizes: Sequence[int]) -> str:
    """Writes a shape with places where a line may break."""
    import markupsafe

    return markupsafe.Markup("×<wbr>").join(map(str, sizes)) or "scalar"


def _count(number: float) -> str:
    """Writes calls per run: an integer, except in the body of a Loop or a branch of an If."""
    return f"{number:.0f}" if abs(number - round(number)) < 0.005 else f"{number:.2f}"


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


def _operators(counts: Mapping[str, int]) -> str:
    """Writes the numbers of nodes of each operator: ``Abs, 2 Cast``."""
    return ", ".join(f"{count} {operator}" if count > 1 else operator for operator, count in counts.items())


def _operator(name: str) -> str:
    """Writes an operator's name, which a table does not break, up to a length that fits; the title has all of it."""
    import markupsafe

    if len(name) <= _MAX_LENGTH:
        return name
    short = f"{name[: _MAX_LENGTH - 1]}…"
    return markupsafe.Markup('<span title="{}">{}</span>').format(printable(name), printable(short))


def _decibels(ratio: float | None) -> str:
    return "not measured" if ratio is None else f"{ratio:.1f} dB"
