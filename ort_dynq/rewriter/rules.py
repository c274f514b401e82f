"""The list of rules: from a node that quantizes with run-time parameters to the operator that replaces it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from . import qdq
from .analysis import Facts


@dataclass(frozen=True)
class Rule:
    """A rule looks at every node and returns nodes in its place, the reason why it leaves it, or None: not its matter."""

    name: str
    match: Callable[[ir.Node, Facts], "qdq.Replacement | str | None"]


RULES = (
    Rule("QuantizeLinear -> DynamicQuantize", qdq.quantize),
    Rule("DequantizeLinear -> DynamicDequantize", qdq.dequantize),
)
