"""The type of a rule, and the context that it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from .analysis.inference import Facts
from .edit import Edit

_T = TypeVar("_T")


@dataclass
class Context:
    """What a rule may read besides the node.

    Attributes:
        facts: What is known of the model.
        exact: Whether every result must stay the same bit for bit.
        path: The path of the graph of the node; see :func:`ort_dynq.graphs.graphs`.
        function: The model-local function that encloses the node, at any depth; None in the main graph.
        reported: The nodes that are in the report, and the reasons of those that were left.
    """

    facts: Facts
    exact: bool
    path: str = "main"
    function: ir.Function | None = None
    reported: dict[ir.Node, str] = field(default_factory=dict)
    _shared: dict[type, Any] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The version of the standard operators that the node's body imports."""
        imports = {} if self.function is None else self.function.opset_imports
        return next((imports[domain] for domain in STANDARD_DOMAINS if domain in imports), self.facts.opset)

    def edit(self, operator: str, node: ir.Node) -> Edit:
        """Returns an empty edit of `node`, which becomes `operator`."""
        return Edit(operator, node, self.facts)

    def shared(self, kind: Callable[[Facts], _T]) -> _T:
        """Returns the object of a class that all nodes of this rewrite share, and creates it at the first call."""
        assert isinstance(kind, type)
        if kind not in self._shared:
            self._shared[kind] = kind(self.facts)
        found: _T = self._shared[kind]
        return found


@dataclass(frozen=True)
class Rule:
    """A rule, which the loop (loop.py) applies to every node.

    Attributes:
        name: The name in reports and metadata.
        oldest_opset: The oldest version of the standard operators that the rule converts.
        apply: Returns the edit of a node, or None if the rule does not concern it. Raises Left if it does, but the node
            has to stay. It makes all its checks before it creates nodes or asks a shared object for values.
        reports_opset: Whether a node that the rule concerns is reported as left if the opset is too old. Otherwise
            such nodes are not reported: these rules improve results of other rules.
    """

    name: str
    oldest_opset: int
    apply: Callable[[ir.Node, Context], Edit | None]
    reports_opset: bool = False
