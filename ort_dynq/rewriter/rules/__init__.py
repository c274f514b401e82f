"""The list of rules: from a node that quantizes with run-time parameters to the operator that replaces it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ..edit import Replacement
from ..facts.inference import Facts
from . import decomposed, qdq


@dataclass(frozen=True)
class Rule:
    """A rule looks at every node and returns its replacement, the reason why it leaves it, or None: not its matter."""

    name: str
    match: Callable[[ir.Node, Facts], Replacement | str | None]


RULES = (
    Rule("QuantizeLinear", qdq.quantize),
    Rule("DequantizeLinear", qdq.dequantize),
    Rule("decomposed quantization", decomposed.quantize),
    Rule("decomposed dequantization", decomposed.dequantize),
)
