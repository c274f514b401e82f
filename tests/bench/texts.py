"""English text that every Python installation has: the documentation and comments of the standard library.

A document is a module: its docstrings, and its comments of several lines. The topics of ``help()``, which are pages of
the language reference, are documents as well. Texts that an earlier document has, too, are left out.
"""

from __future__ import annotations

import ast
import io
import random
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

from ort_dynq.errors import DynqError

_SHORTEST = 40  # characters of a text: shorter ones are mostly names
_UNUSED = ("site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "__pycache__")
_HELD_OUT = 12  # one of so many documents


@dataclass(frozen=True)
class Texts:
    """Documents.

    Attributes:
        training: The documents to train with.
        held_out: Other documents: one of twelve, chosen at random with a fixed seed.
    """

    training: tuple[str, ...]
    held_out: tuple[str, ...]


def library_texts() -> Texts:
    """Returns the documents of the Python installation that runs.

    Raises:
        DynqError: The installation has too little text: it is a stripped one.
    """
    seen: set[str] = set()
    documents = []
    for texts in _documents():
        new = [text for text in dict.fromkeys(texts) if len(text) >= _SHORTEST and text not in seen]
        seen.update(new)
        documents.append("\n\n".join(new))
    documents = [document for document in documents if document]
    if len(documents) < 100:
        raise DynqError(f"{_library()} has {len(documents)} modules with documentation, expected at least 100")
    order = random.Random(0).sample(range(len(documents)), len(documents))
    count = len(documents) // _HELD_OUT
    training, held_out = (tuple(documents[i] for i in chosen) for chosen in (order[count:], order[:count]))
    return Texts(training, held_out)


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _documents() -> Iterator[list[str]]:
    """Yields the texts of each topic and of each module."""
    for name in sorted(topics):
        yield [topics[name].strip()]
    library = _library()
    for path in sorted(library.rglob("*.py")):
        if not {*_UNUSED} & {*path.relative_to(library).parts} and path.name != "topics.py":
            try:
                with tokenize.open(path) as file:
                    source = file.read()
                yield [*_docstrings(source), *_comments(source)]
            except (OSError, SyntaxError, ValueError, tokenize.TokenError):  # some modules are invalid on purpose
                continue


def _docstrings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and text.isascii():
                yield text.strip()


def _comments(source: str) -> Iterator[str]:
    """Yields comments of at least two adjacent lines."""
    lines: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.line.strip() != token.string:
            continue
        if token.start[0] != last + 1:
            if len(lines) > 1:
                yield "\n".join(lines)
            lines = []
        last = token.start[0]
        lines.append(token.string.lstrip("#").strip())
    if len(lines) > 1:
        yield "\n".join(lines)
