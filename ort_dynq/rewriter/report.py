"""The report of a rewrite: what was converted, and what was left and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


class Left(Exception):
    """Raised by a rule that concerns a node but leaves it unchanged; the text is the reason in the report."""


@dataclass(frozen=True)
class Finding:
    """One node that a rule converted, or left for a reason.

    Attributes:
        node: The name of the node, or of its first output if it has none.
        op_type: The operator of the node.
        graph: The path of its graph: ``main``, the path of a subgraph, or ``function <name>``.
        rule: The name of the rule.
        operator: The operator that it became; None if it was left.
        reason: Why it was left; empty if it was converted.
    """

    node: str
    op_type: str
    graph: str
    rule: str
    operator: str | None
    reason: str = ""


@dataclass
class Report:
    """The findings of one rewrite, and the number of nodes of each operator before and after it."""

    findings: list[Finding] = field(default_factory=list)
    before: Mapping[str, int] = field(default_factory=Counter)
    after: Mapping[str, int] = field(default_factory=Counter)

    @property
    def rewritten(self) -> list[Finding]:
        """The findings that were converted."""
        return [finding for finding in self.findings if finding.operator is not None]

    @property
    def left(self) -> list[Finding]:
        """The findings that were left, each with its reason."""
        return [finding for finding in self.findings if finding.operator is None]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data for JSON."""
        return {
            "rewritten": [asdict(finding) for finding in self.rewritten],
            "left": [asdict(finding) for finding in self.left],
            "before": dict(self.before),
            "after": dict(self.after),
        }
