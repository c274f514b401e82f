"""Groups the findings of equal layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .report import Finding

_MAX_PROGRAM_LENGTH = 80
_LITERAL = re.compile(r"(?<!\w)-?(?:inf|[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?)\b")


@dataclass(frozen=True)
class Group:
    """Findings with texts that differ in numbers only: findings of equal layers.

    Attributes:
        count: The number of findings.
        graph, node, reason: As in :class:`Finding`, with ``*`` in place of the numbers that differ.
        op_type, rule, operator: As in :class:`Finding`.
        program: As in :class:`Finding`, with ``*`` in place of the literals that differ.
    """

    count: int
    graph: str
    node: str
    op_type: str
    rule: str
    operator: str | None
    reason: str
    program: str = ""

    @property
    def brief_program(self) -> str:
        """The program, or the number of its steps if it is long."""
        return brief(self.program)


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """Returns the groups, in the order of their first findings."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        texts = (pattern_key(each.graph), pattern_key(each.node), pattern_key(each.reason), program_key(each.program))
        groups.setdefault((*texts, each.op_type, each.rule, each.operator), []).append(each)
    return [
        Group(
            len(members),
            pattern([each.graph for each in members]),
            pattern([each.node for each in members]),
            members[0].op_type,
            members[0].rule,
            members[0].operator,
            pattern([each.reason for each in members]),
            program_pattern([each.program for each in members]),
        )
        for members in groups.values()
    ]


def brief(program: str) -> str:
    """Returns a program, or the number of its steps if its text is long."""
    steps = program.count("(")
    return program if len(program) <= _MAX_PROGRAM_LENGTH else f"{steps} steps"


def program_pattern(programs: Sequence[str]) -> str:
    """Returns the pattern of programs that differ in literals only, with ``*`` for these: ``dst = Mul(x, *)``.

    Raises:
        ValueError: They differ in more than literals.
    """
    if len({*map(program_key, programs)}) > 1:
        raise ValueError(f"{programs} differ in more than literals")
    columns = zip(*map(_LITERAL.findall, programs), strict=True)
    literals = iter([column[0] if len({*column}) == 1 else "*" for column in columns])
    return _LITERAL.sub(lambda _: next(literals), programs[0])


def program_key(program: str) -> str:
    """Returns a program with ``*`` in place of its literals: programs of one pattern have the same text."""
    return _LITERAL.sub("*", program)


def pattern(names: Sequence[str]) -> str:
    """Returns the pattern of names that differ in numbers only, with ``*`` for these: ``layer.*/add_1``.

    Some names may lack the number after a final underscore: exporters number equal names from the second one on.

    Raises:
        ValueError: The names differ in more than numbers.
    """
    if len({pattern_key(name) for name in names}) > 1:
        raise ValueError(f"{names} differ in more than numbers")
    columns = zip(*map(_pieces, names), strict=True)
    return "".join(
        column[0] if len({*column}) == 1 else "_*" if any(piece.startswith("_") for piece in column) else "*"
        for column in columns
    )


def pattern_key(name: str) -> tuple[str, ...]:
    """Returns the texts between the numbers: names of one pattern have the same ones."""
    return tuple(_pieces(name)[:-1:2])


def _pieces(name: str) -> list[str]:
    """Splits a name into texts and numbers alternately. The last piece is the final ``_number``, or empty."""
    found = re.fullmatch(r"(.*?)(_[0-9]+)?", name, re.DOTALL)
    assert found is not None
    stem = re.split(r"([0-9]+)", found[1])
    return [*stem, found[2] or ""]
