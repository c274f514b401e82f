"""The type of a rule, and the context that it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from .analysis.inference import Facts
from .edit import Edit
from .reasons import Unconverted

_T = TypeVar("_T")
_M = TypeVar("_M")


@dataclass
class Context:
    """What a rule may read besides the node.

    Attributes:
        facts: What is known of the model.
        exact: Whether every result must stay the same bit for bit.
        path: The path of the graph of the node; see :func:`ort_dynq.graphs.graphs`.
        function: The model-local function that encloses the node, at any depth; None in the main graph.
        reported: The nodes that are in the report, and why those stay that are unconverted.
    """

    facts: Facts
    exact: bool
    path: str = "main"
    function: ir.Function | None = None
    reported: dict[ir.Node, Unconverted | None] = field(default_factory=dict)
    _shared: dict[type, Any] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The version of the standard operators that the node's body imports."""
        imports = {} if self.function is None else self.function.opset_imports
        return next((imports[domain] for domain in STANDARD_DOMAINS if domain in imports), self.facts.opset)

    def edit(self, operator: str, node: ir.Node) -> Edit:
        """Returns an empty edit of `node`, which becomes `operator`."""
        return Edit(node, self.facts, self._shared, operator)

    def shared(self, kind: Callable[[Facts], _T]) -> _T:
        """Returns the object of a class that all nodes of this rewrite share, and creates it at the first call."""
        assert isinstance(kind, type)
        if kind not in self._shared:
            self._shared[kind] = kind(self.facts)
        found: _T = self._shared[kind]
        return found


@dataclass(frozen=True)
class Rule(Generic[_M]):
    """A rule, which the loop (loop.py) applies to every node. It recognizes first, and builds then.

    Attributes:
        name: The name in reports and metadata.
        oldest_opset: The oldest version of the standard operators that the rule converts.
        match: Returns what it recognizes at a node, or None if the rule does not concern the node. Raises Unconverted
            if it does, but the node has to stay. It changes nothing.
        build: Records in an empty edit of the node the operator that takes the place of a match. It cannot fail.
        reports_opset: Whether a node that the rule concerns is reported as unconverted if the opset is too old.
            Otherwise such nodes are not reported: these rules improve results of other rules.
    """

    name: str
    oldest_opset: int
    match: Callable[[ir.Node, Context], _M | None]
    build: Callable[[_M, Edit], None] = lambda match, edit: None
    reports_opset: bool = False
