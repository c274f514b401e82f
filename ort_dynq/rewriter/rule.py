"""The type of a rule, and the context that it reads."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import onnx_ir as ir

from ..rewrite_options import RewriteOptions
from .analysis.inference import Facts
from .analysis.shared import Shared
from .edit import Edit
from .reasons import Unconverted

_M = TypeVar("_M")


@dataclass
class Context:
    """The data that a rule reads besides the node.

    Attributes:
        facts: Types, shapes and constants of the model.
        options: What the rewrite may change.
        shared: The objects that the nodes of this rewrite share.
        path: The path of the graph of the node; see :func:`ort_dynq.graphs.graphs`.
        reported: The nodes in the report, each with the reason why it stays; None if it was converted.
    """

    facts: Facts
    options: RewriteOptions
    shared: Shared
    path: str = "main"
    reported: dict[ir.Node, Unconverted | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule(Generic[_M]):
    """A rule, which the loop (loop.py) applies to every node: it matches first, then it builds.

    Attributes:
        name: The name in reports and metadata.
        oldest_opset: The oldest version of the standard operators that the rule converts.
        match: Returns a value that describes the match at a node, or None if the rule does not apply. Raises
            Unconverted if the rule applies, but the node must stay. It changes nothing.
        build: Records the nodes that replace a match in an empty edit of the node. It cannot fail.
        reports_opset: Whether a node is reported as unconverted if the rule applies, but the opset is too old.
            Otherwise such nodes are not reported: these rules improve results of other rules.
        fuses: Whether it changes the last bits of floats: it applies only in a fusion.
        prepares: Whether it only prepares nodes for other rules, which are reported in its place.
        operators: The operators of the nodes that `match` is given, as :func:`~ort_dynq.graphs.operator_of` names them;
            empty: all nodes.
    """

    name: str
    oldest_opset: int
    match: Callable[[ir.Node, Context], _M | None]
    build: Callable[[_M, Edit], None] = lambda match, edit: None
    reports_opset: bool = False
    fuses: bool = False
    prepares: bool = False
    operators: Collection[str] = ()

    def takes(self, operator: str) -> bool:
        """Returns whether `match` is given the nodes of an operator."""
        return not self.operators or operator in self.operators
