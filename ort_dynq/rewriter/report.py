"""The report of a rewrite: what was converted, and what was left and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..operators import DOMAIN

FUSED = "ONNX Runtime fuses DynamicQuantizeLinear and MatMulInteger"
"""The reason why a product is left that ONNX Runtime turns into a fast operator itself."""

STATIC = "the scale of its activation is a constant: static quantization is left to ONNX Runtime"
"""The reason why a product is left whose activation is not quantized with run-time scales."""

_DYNAMIC = ("DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul")
_LINEAR = ("QuantizeLinear", "DequantizeLinear")
_QUANTIZED = ("MatMulNBits", "QLinearMatMul", "QLinearConv", "QGemm", "QAttention", "DynamicQuantizeLSTM")
_PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose", "FusedMatMul", "FusedGemm", "FusedConv")


def too_old(opset: int, oldest: int) -> str:
    """Returns the reason why nodes of a model of this opset are left."""
    return f"the model is of opset {opset}, expected {oldest} or newer; onnx.version_converter converts it"


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
        reason: Why it was left, or converted in another form than asked for; else empty.
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

    @property
    def summary(self) -> str:
        """One line: how much was converted and left; if nothing was converted, what the model has."""
        left = f"{len(self.left)} to leave"
        if self.rewritten:
            return f"{len(self.rewritten)} dynamic quantization chains and products to rewrite, {left}"
        contents = "; ".join(self._contents())
        return f"nothing to rewrite{f', {left}' if self.left else ''}{f': {contents}' if contents else ''}"

    def _contents(self) -> list[str]:
        """Returns what a model has in which nothing was converted: its quantization, or else its products."""
        of_left = Counter(finding.op_type for finding in self.left)
        reasons = [(finding.op_type in _DYNAMIC, "ONNX Runtime fuses" in finding.reason) for finding in self.left]
        is_fused = any(fuses for _, fuses in reasons) and all(fuses for is_dynamic, fuses in reasons if is_dynamic)
        parts = (
            (_listed(_only(self.before, *_DYNAMIC)), ", which ONNX Runtime fuses itself" if is_fused else ""),
            (
                _listed(Counter(_only(self.before, *_LINEAR)) - of_left),
                " with constant scales, which ONNX Runtime handles itself",
            ),
            (_listed(_only(self.before, *_QUANTIZED)), ", quantized operators of ONNX Runtime"),
            (_listed({op: n for op, n in self.before.items() if op.startswith(f"{DOMAIN}.")}), ", from a rewrite"),
        )
        found = [listed + explanation for listed, explanation in parts if listed]
        if found or self.left:
            return found
        products = _listed(_only(self.before, *_PRODUCTS))
        return [f"no quantization with run-time scales{f', {products}' if products else ''}"]

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data for JSON."""
        return {
            "summary": self.summary,
            "rewritten": [asdict(finding) for finding in self.rewritten],
            "left": [asdict(finding) for finding in self.left],
            "before": dict(self.before),
            "after": dict(self.after),
        }


def _only(counts: Mapping[str, int], *operators: str) -> dict[str, int]:
    """Returns the counts of some operators; those of com.microsoft have its name before them."""
    return {op: count for op, count in counts.items() if op.removeprefix("com.microsoft.") in operators}


def _listed(counts: Mapping[str, int]) -> str:
    """Returns the text "2 A, 1 B and 1 C", or "" without counts."""
    texts = [f"{count} {op}" for op, count in sorted(counts.items()) if count > 0]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
