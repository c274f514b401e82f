"""The report of a rewrite: the converted nodes, and the unconverted ones with their reasons."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..operators import DOMAIN
from ..shown import Shown, Table
from .analysis.standard import (
    ATTENTION,
    FLOAT_PRODUCTS,
    INTEGER_LAYERS,
    INTEGER_PRODUCTS,
    LINEAR,
    MADE_PRODUCTS,
    NBITS_PRODUCTS,
    RECURRENT,
    SCALED_PRODUCTS,
    STATIC_PRODUCTS,
)
from .policy.saturation import CpuDependence
from .reasons import Reason, Unconverted

_OF_CODES = INTEGER_PRODUCTS | SCALED_PRODUCTS
_DYNAMIC = _OF_CODES | {"DynamicQuantizeLinear"}
_INTEGER = STATIC_PRODUCTS | INTEGER_LAYERS
_QUANTIZED = NBITS_PRODUCTS | _INTEGER
_PRODUCTS = FLOAT_PRODUCTS - {"Einsum"} | MADE_PRODUCTS
_FLOAT = FLOAT_PRODUCTS | MADE_PRODUCTS | NBITS_PRODUCTS | RECURRENT | ATTENTION | {"nchwc.Conv"}
_MAX_NAMES = 3  # of products in a line
_REMEDY = "remedy: rewrite without --keep-fused; of constant scales: ort-dynq quantize --from-static"


@dataclass(frozen=True)
class Finding:
    """One node that a rule converted, or that stays for a reason.

    Attributes:
        node: The name of the node, or of its first output if it has none.
        op_type: The operator of the node.
        graph: The path of its graph: ``main``, the path of a subgraph, or ``function <name>``.
        rule: The name of the rule.
        operator: The operator that it became; None if it is unconverted.
        unconverted: Why it is unconverted; None if it was converted.
        note: The form in which it was converted, if it differs from the requested one; else empty.
        program: The program of that operator; empty if it has none.
        fuses: Whether the conversion is a fusion, which changes the last bits of floats.
    """

    node: str
    op_type: str
    graph: str
    rule: str
    operator: str | None = None
    unconverted: Unconverted | None = None
    note: str = ""
    program: str = ""
    fuses: bool = False

    @property
    def reason(self) -> str:
        """The text of :attr:`unconverted`, or :attr:`note`."""
        return self.note if self.unconverted is None else str(self.unconverted)

    def to_dict(self) -> dict[str, str | bool | None]:
        """Returns the finding as plain data for JSON; `code` is None if the node was converted."""
        fields = {name: getattr(self, name) for name in ("node", "op_type", "graph", "rule", "operator")}
        fields |= {"program": self.program or None, "fuses": self.fuses}
        return {**fields, "code": self.unconverted and self.unconverted.code, "reason": self.reason}


@dataclass(repr=False)
class Report(Shown):
    """The findings of one rewrite, and the number of nodes of each operator before and after it.

    Attributes:
        findings: The nodes that were converted, and those that stay for a reason.
        before, after: The number of nodes of each operator.
        notes: What was done with functions and an old opset before the rules, or why it was not possible.
        cpu: What of the new model's results depends on the CPU.
        refusal: Why stock ONNX Runtime does not load the original; empty if it does. It is one of the notes, too.
        initializers: The names of initializers that the new model has taken values from: not all that read them stays.
        is_prepared: Whether the removal of copies, or a rule that only prepares nodes, has changed the model.
        is_mended: Whether weights of branches are in the main graph, because ONNX Runtime does not open the model
            otherwise: it has changed even if no node was converted.
        is_plan: Whether the model stays as it is, and the report says what a rewrite would do.
        is_quantization: Whether the converted nodes are layers of a float model, which were quantized.
        is_dequantization: Whether they are nodes of a quantized model, which have become floats.
    """

    findings: list[Finding] = field(default_factory=list)
    before: Mapping[str, int] = field(default_factory=Counter)
    after: Mapping[str, int] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    cpu: CpuDependence = field(default_factory=CpuDependence)
    refusal: str = ""
    initializers: list[str] = field(default_factory=list)
    is_prepared: bool = False
    is_mended: bool = False
    is_plan: bool = False
    is_quantization: bool = False
    is_dequantization: bool = False

    def _line(self) -> str:
        return self.summary

    def _tables(self) -> Iterator[Table]:
        converted = [("quantized", self.quantized), ("fused", self.fused)]
        for title, found in converted if self.is_quantization else [("rewritten", self.rewritten)]:
            yield (title, "operator", "becomes"), _counted((each.op_type, str(each.operator)) for each in found)
        rows = _counted((each.op_type, each.reason) for each in self.unconverted)
        yield ("unconverted", "operator", "reason"), rows

    def refuse(self, why: str) -> None:
        """Notes why ONNX Runtime does not load the original, if it does not."""
        if why:
            self.refusal = why
            self.notes.append(why)

    def log(self, logger: logging.Logger) -> None:
        """Logs the report: its summary and notes, and each unconverted node as a detail."""
        for text in (self.summary, *self.notes):
            logger.info("%s", text)
        for each in self.unconverted:
            logger.debug("%s (%s): %s", each.node, each.op_type, each.reason)

    @property
    def products(self) -> tuple[int, int]:
        """The numbers of nodes of the new model with integer and with float products.

        A quantized table of embeddings is no product, attention in one operator is one, and a recurrent layer several.
        """
        own = tuple(f"{DOMAIN}.{each}" for each in ("Quantized", "DynamicQuantizedMatMul", "Word"))
        ours = sum(count for op, count in self.after.items() if op.startswith(own))
        return ours + sum(_only(self.after, *_OF_CODES, *_INTEGER).values()), sum(_only(self.after, *_FLOAT).values())

    @property
    def rewritten(self) -> list[Finding]:
        """The findings of converted nodes."""
        return [finding for finding in self.findings if finding.operator is not None]

    @property
    def quantized(self) -> list[Finding]:
        """The findings of converted nodes that are no fusions: chains and products, or the layers of a float model."""
        return [finding for finding in self.rewritten if not finding.fuses]

    @property
    def fused(self) -> list[Finding]:
        """The findings of converted nodes that a fusion converts."""
        return [finding for finding in self.rewritten if finding.fuses]

    @property
    def unconverted(self) -> list[Finding]:
        """The findings of unconverted nodes, each with its reason."""
        return [finding for finding in self.findings if finding.operator is None]

    @property
    def summary(self) -> str:
        """One line: the numbers of converted and unconverted nodes; if none was converted, the model's quantization.

        The notes follow.
        """
        return "; ".join((self._summary, *self.notes))

    @property
    def _summary(self) -> str:
        staying = f"{len(self.unconverted)} unconverted"
        if self.is_dequantization:
            return f"{_count(self.rewritten, 'node')} dequantized, {len(self.unconverted)} stay"
        if self.is_quantization:
            fused = f", {_count(self.fused, 'fusion')}" if self.fused else ""
            return f"{_count(self.quantized, 'layer')} quantized, {staying}{fused}"
        if self.rewritten:
            fused = f"{len(self.fused)} fusions, " if self.fused else ""
            done = "to rewrite" if self.is_plan else "rewritten"
            return f"{len(self.quantized)} dynamic quantization chains and products {done}, {fused}{staying}"
        contents = "; ".join(self._contents())
        return f"nothing to rewrite{f', {staying}' if self.unconverted else ''}{f': {contents}' if contents else ''}"

    def _contents(self) -> list[str]:
        """Returns the quantization of a model in which nothing was converted, or else its products."""
        staying = Counter(finding.op_type for finding in self.unconverted)
        staying["DequantizeLinear"] += sum(_says_what_is_made(finding.unconverted) for finding in self.unconverted)
        fused = [(finding.op_type in _DYNAMIC, _is_fused(finding.unconverted)) for finding in self.unconverted]
        is_fused = any(fuses for _, fuses in fused) and all(fuses for is_dynamic, fuses in fused if is_dynamic)
        parts = (
            (_listed(_only(self.before, *_DYNAMIC)), ", which ONNX Runtime fuses itself" if is_fused else ""),
            (
                _listed(Counter(_only(self.before, *LINEAR)) - staying),
                " with constant scales, left to ONNX Runtime",
            ),
            (_listed(_only(self.before, *_QUANTIZED)), ", quantized operators of ONNX Runtime"),
            (_listed({op: n for op, n in self.before.items() if op.startswith(f"{DOMAIN}.")}), ", from a rewrite"),
        )
        found = [listed + explanation for listed, explanation in parts if listed]
        if found or self.unconverted:
            return found
        products = _listed(_only(self.before, *_PRODUCTS))
        advice = f", {products}; ort-dynq quantize is for float models" if products else ""
        return [f"no quantization with run-time scales{advice}"]

    @property
    def cpu_text(self) -> list[str]:
        """What depends on the CPU, in lines: none if nothing does."""
        lines, saturating = [], self.cpu.saturating
        if saturating:
            counts = _listed(Counter(each.op_type for each in saturating))
            more = ", ..." if len(saturating) > _MAX_NAMES else ""
            names = ", ".join(each.node for each in saturating[:_MAX_NAMES])
            lines.append(
                f"wrong on x86 CPUs without VNNI, where sums saturate: {counts} of uint8 by int8 ({names}{more}); "
                f"{_REMEDY}"
            )
        if self.cpu.rounding:
            lines.append(f"last bits depend on the CPU, since floats are rounded: {_listed(self.cpu.rounding)}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain data for JSON."""
        return {
            "summary": self.summary,
            "notes": self.notes,
            "refusal": self.refusal or None,
            "rewritten": [finding.to_dict() for finding in self.rewritten],
            "unconverted": [finding.to_dict() for finding in self.unconverted],
            "before": dict(self.before),
            "after": dict(self.after),
            "depends_on_cpu": {
                "saturating": [each._asdict() for each in self.cpu.saturating],
                "rounding": dict(self.cpu.rounding),
            },
        }


def _counted(rows: Iterable[tuple[str, str]]) -> list[tuple[object, ...]]:
    return [(count, *row) for row, count in Counter(rows).most_common()]


def _count(findings: Sequence[Finding], noun: str) -> str:
    return f"{len(findings)} {noun}{'s' if len(findings) != 1 else ''}"


def _is_fused(why: Unconverted | None) -> bool:
    """Returns whether the reason, or the reason of the quantization before a product, is a fusion of ONNX Runtime."""
    while why is not None and why.reason not in (Reason.FUSED, Reason.FUSED_MATMUL_INTEGER, Reason.SMALL_WEIGHTS):
        why = why.cause
    return why is not None


def _says_what_is_made(why: Unconverted | None) -> bool:
    """Returns whether a reason says what ONNX Runtime makes of the DequantizeLinear before a product."""
    if why is not None and why.reason in (Reason.WEIGHTS_DEQUANTIZED, Reason.CODES_DEQUANTIZED):
        return True
    made = None if why is None else why.second
    return made is not None and made.reason in (Reason.MADE_LEVEL_4, Reason.MADE_DEQUANTIZATION)


def _only(counts: Mapping[str, int], *operators: str) -> dict[str, int]:
    """Returns the counts of some operators; names of operators of com.microsoft include the domain."""
    return {op: count for op, count in counts.items() if op.removeprefix("com.microsoft.") in operators}


def _listed(counts: Mapping[str, int]) -> str:
    """Returns the text "2 A, 1 B and 1 C", or "" without counts."""
    texts = [f"{count} {op}" for op, count in sorted(counts.items()) if count > 0]
    return " and ".join([", ".join(texts[:-1]), texts[-1]] if len(texts) > 1 else texts)
