"""Writes docs/operators.md from the one list of operators: ``python -m ort_dynq.documentation``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from .operators import DOMAIN, OPERATORS, VERSION, Attribute, Input, Operator

PAGE = Path(__file__).parent / "docs" / "operators.md"
_OPSET = 21  # of the bodies shown
_INTRODUCTION = f"""\
Domain `{DOMAIN}`, version {VERSION}. Made from `ort_dynq/operators.py` by `python -m ort_dynq.documentation`.

Tensors of rank 0 to 16, empty ones included. Types in one row of *types* go together. The function body is what the
operator stands for in a rewritten model, here for opset {_OPSET}: without the plugin, ONNX Runtime runs it.

Beyond oneDNN Graph's specification: `per_group`, `auto`, `block_size`, `output_dtype`, `arithmetic`, and one zero point
for all scales.
"""


def operators_page() -> str:
    """The reference, as Markdown."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    yield "# Operators"
    yield ""
    yield _INTRODUCTION
    for name in OPERATORS:
        yield f"- [{name}](#{name.lower()})"
    for operator in OPERATORS.values():
        yield ""
        yield from _operator(operator)


def _operator(operator: Operator) -> Iterator[str]:
    yield f"## {operator.name}"
    yield ""
    yield from textwrap.wrap(operator.doc, 118, break_long_words=False, break_on_hyphens=False)
    yield ""
    yield "| input | types | meaning |"
    yield "|---|---|---|"
    yield from map(_input, operator.inputs)
    yield ""
    yield "| output | types | meaning |"
    yield "|---|---|---|"
    yield from map(_input, operator.outputs)
    if operator.attributes:
        yield ""
        yield "| attribute | default | meaning |"
        yield "|---|---|---|"
        yield from map(_attribute, operator.attributes)
    yield ""
    yield f"| types | {' | '.join(value.name for value in (*operator.inputs, *operator.outputs))} |"
    yield f"|---|{'---|' * (len(operator.inputs) + len(operator.outputs))}"
    for i, signature in enumerate(operator.signatures, 1):
        yield f"| {i} | {' | '.join((*signature.inputs, *signature.outputs))} |"
    yield ""
    yield "<details><summary>Function body</summary>"
    yield ""
    yield "```"
    yield from _body(operator)
    yield "```"
    yield ""
    yield "</details>"


def _input(value: Input) -> str:
    absent = f" Optional; absent: {value.absent}." if value.absent else ""
    return f"| `{value.name}` | {', '.join(value.types)} | {_cell(value.doc)}{absent} |"


def _attribute(attribute: Attribute) -> str:
    default = f'"{attribute.default}"' if isinstance(attribute.default, str) else attribute.default
    return f"| `{attribute.name}` | {default} | {_cell(attribute.doc)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _body(operator: Operator) -> Iterator[str]:
    lines = (line.strip() for line in operator.body(_OPSET).splitlines())
    for line in filter(None, lines):
        yield line if line in ("{", "}") else f"    {line}"


if __name__ == "__main__":
    PAGE.write_text(operators_page(), encoding="utf-8")
