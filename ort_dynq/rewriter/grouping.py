"""What a rewrite would do with a model's dynamic quantization chains, and why not; equal layers are one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    import onnx
    import onnx_ir as ir

    from . import Finding, Report


def inspect(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, *, exact: bool = False) -> Report:
    """Tries the rewrite on a copy: each finding is a chain, and what it would become or why it would be left alone.

    Args:
        model, exact: As for :func:`ort_dynq.rewrite`.

    Raises:
        DynqError: The file is missing or is not an ONNX model.
    """
    from . import rewrite

    return rewrite(model, exact=exact).report


@dataclass(frozen=True)
class Group:
    """Findings that differ in nothing but numbers in their names: what equal layers of a network have in common.

    Attributes:
        count: How many there are.
        graph, node, reason: As a :class:`Finding`'s, with ``*`` for the numbers that differ.
        op_type, rule, operator: As a :class:`Finding`'s.
    """

    count: int
    graph: str
    node: str
    op_type: str
    rule: str
    operator: str | None
    reason: str


def grouped(findings: Iterable[Finding]) -> list[Group]:
    """The findings in groups, in the order in which these begin."""
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for each in findings:
        texts = (pattern_key(each.graph), pattern_key(each.node), pattern_key(each.reason))
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
        )
        for members in groups.values()
    ]


def pattern(names: Sequence[str]) -> str:
    """What names that differ only in numbers look like: ``layer.0/add_1``, ``layer.1/add_1`` are ``layer.*/add_1``.

    A number at the end, after an underscore, may be missing: exporters number the second of a name on.
    """
    if len({pattern_key(name) for name in names}) > 1:
        raise ValueError(f"{names} differ in more than numbers")
    columns = zip(*map(_pieces, names), strict=True)
    return "".join(
        column[0] if len({*column}) == 1 else "_*" if any(piece.startswith("_") for piece in column) else "*"
        for column in columns
    )


def pattern_key(name: str) -> tuple[str, ...]:
    """What names of one pattern share."""
    return tuple(_pieces(name)[:-1:2])


def _pieces(name: str) -> list[str]:
    """Text and numbers in turns, the last one being the number at the end with its underscore, or nothing."""
    found = re.fullmatch(r"(.*?)(_[0-9]+)?", name, re.DOTALL)
    assert found is not None
    stem = re.split(r"([0-9]+)", found[1])
    return [*stem, found[2] or ""]
