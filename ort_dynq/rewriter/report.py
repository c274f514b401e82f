"""What a rewrite did, and what it left and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One dynamic quantization chain: converted by a rule, or left alone for a reason.

    Attributes:
        node: Name of the node that the rule looked at; its first output's name if it has none.
        op_type: That node's operator.
        graph: Where it is: ``main``, a subgraph's path, or ``function <name>``.
        rule: The rule that looked.
        operator: What it became; None if it was left alone.
        reason: Why it was left alone; empty if it was converted.
    """

    node: str
    op_type: str
    graph: str
    rule: str
    operator: str | None
    reason: str = ""


@dataclass
class Report:
    """The findings of one rewrite, and the model's operator counts before and after."""

    findings: list[Finding] = field(default_factory=list)
    before: Mapping[str, int] = field(default_factory=Counter)
    after: Mapping[str, int] = field(default_factory=Counter)

    @property
    def rewritten(self) -> list[Finding]:
        """The chains that were converted."""
        return [finding for finding in self.findings if finding.operator is not None]

    @property
    def left(self) -> list[Finding]:
        """The chains that were left alone, each with its reason."""
        return [finding for finding in self.findings if finding.operator is None]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {
            "rewritten": [asdict(finding) for finding in self.rewritten],
            "left": [asdict(finding) for finding in self.left],
            "before": dict(self.before),
            "after": dict(self.after),
        }
