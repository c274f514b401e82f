"""The variants of a model that are converted: one loop takes the first one that is better than the others.

A variant may have images with the channels first (layout.py), a newer opset (opsets.py), and the Casts that ONNX
Runtime inserts into float16 models (float16/). The plain model in its own opset comes last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ..errors import DynqError
from ..inputs import Given
from ..opsets import OPSET, check_equal, opset_of, to_opset
from .analysis.standard import OWN_CONVOLUTIONS, OWN_PRODUCTS
from .float16 import has_chain_of_float16, with_casts
from .float16.graph import restore_zeros
from .inner_weights import NOTE
from .layout import without_transposes
from .metadata import FLOAT16_CASTS
from .normal_form import normal_form
from .report import Report

Convert = Callable[[ir.Model], Report]
"""Applies rules to a model, which it changes."""


@dataclass(frozen=True)
class Widening:
    """What computes in float32 in a float16 model with the Casts of ONNX Runtime.

    Attributes:
        rules: The names of the rules that need the Casts; without any, the Casts are not written.
        layers: For a quantization: the operators that it quantizes. Those of float16 compute in float32.
        others: Other operators that compute in float32, so that they join their neighbors in a program.
    """

    rules: Collection[str] = ()
    layers: Collection[str] = ()
    others: Collection[str] = ()


@dataclass(frozen=True)
class Variant:
    """A model to convert.

    Attributes:
        model: The model, which its conversion changes.
        is_better: Whether the variant is taken, by the report of its conversion. Otherwise the next one is tried.
        notes: The notes of its report.
        problems: Gets the error if the variant cannot be used; None if there is no other one that could.
    """

    model: ir.Model
    is_better: Callable[[Report], bool]
    notes: list[str]
    problems: list[str] | None = None


def convert_best(
    model: ir.Model, convert: Convert, given: Sequence[Given] = (), widening: Widening | None = None
) -> tuple[ir.Model, Report]:
    """Converts the best variant of a model. If nothing is gained by it, the model stays as it is.

    Args:
        model: The model, which may be changed.
        convert: The conversion.
        given: Inputs on which the outputs of an older opset are compared, as for :func:`~ort_dynq.opsets.check_equal`.
        widening: What computes in float32 in a float16 model; None for nothing.

    Returns:
        The converted model and its report. The notes say what was done with an old opset, and what is not possible.
    """
    model, form, notes = normal_form(model)
    for variant in variants(form, notes, convert, given, widening or Widening()):
        try:
            report = convert(variant.model)
            is_better = variant.is_better(report)
        except DynqError as error:
            if variant.problems is None:
                raise
            variant.problems.append(str(error))
            continue
        if is_better:
            report.notes, report.is_mended = variant.notes, NOTE in notes
            return (variant.model if report.rewritten else model), report
    raise AssertionError("the last variant is taken")


def variants(
    form: ir.Model, notes: Sequence[str], convert: Convert, given: Sequence[Given], widening: Widening
) -> Iterator[Variant]:
    """Yields the variants of a model in its normal form, best first; arguments as for :func:`convert_best`.

    Transposes are moved if that helps a convolution that is converted. A newer opset is used only if the outputs are
    the same, bit for bit.
    """
    moved = without_transposes(form)
    for layout in (form,) if moved is None else (moved, form):
        suits = _has_convolution if layout is moved else _is_any
        opset, problems = opset_of(layout), list[str]()
        try:
            newer = to_opset(layout)
        except DynqError as error:
            if opset >= OPSET:
                raise
            problems.append(str(error))
        else:
            is_same = newer is layout
            for each in _precisions(newer if is_same else newer.clone(), convert, widening):
                compares = None if is_same else _Comparison(layout, newer, given, [*notes])
                conditions: list[Callable[[Report], bool]] = [each.is_better, suits]
                if compares is not None:
                    conditions.append(compares)
                own = [*notes] if compares is None else compares.notes
                yield Variant(each.model, _all_of(conditions), own, None if opset >= OPSET else problems)
                if problems:
                    break
        if problems:
            for each in _precisions(layout, convert, widening):
                note = f"the model stays in opset {opset}: {problems[0]}"
                yield Variant(each.model, _all_of([each.is_better, suits]), [*notes, note])


def _is_any(_: Report) -> bool:
    return True


def _has_convolution(report: Report) -> bool:
    return any((finding.operator or "").removesuffix("Program") in OWN_CONVOLUTIONS for finding in report.rewritten)


def _all_of(conditions: Sequence[Callable[[Report], bool]]) -> Callable[[Report], bool]:
    return lambda report: all(condition(report) for condition in conditions)


@dataclass
class _Comparison:
    """Compares a model with its newer opset, if that was converted; the notes get what was compared."""

    older: ir.Model
    newer: ir.Model
    given: Sequence[Given]
    notes: list[str]

    def __call__(self, report: Report) -> bool:
        """Raises DynqError if the outputs differ."""
        if report.rewritten:
            compared = check_equal(self.older, self.newer, self.given)
            self.notes.append(
                f"converted from opset {opset_of(self.older)} to {OPSET} by onnx.version_converter; with {compared}, "
                "the outputs are the same bit for bit"
            )
        return True


@dataclass(frozen=True)
class _Precision:
    model: ir.Model
    is_better: Callable[[Report], bool]


@dataclass
class _Casts:
    """Judges the copy with Casts, and the model without them after it.

    The copy is better if one of the rules converted a node of it and, in a rewrite of a model with chains of
    float32, if it has more integer products than without Casts, or as many and more nodes are converted. If no layer
    of the copy is quantized, its reasons are reported: without Casts, the only reason is the type.
    """

    model: ir.Model
    copy: ir.Model
    convert: Convert
    widening: Widening
    report: Report = field(default_factory=Report)

    def helps(self, report: Report) -> bool:
        self.report = report
        found, plain = self._count(report), (0, 0)
        if found > plain and not self.widening.layers and not has_chain_of_float16(self.model):
            plain = self._count(self.convert(self.model.clone()))
        if found <= plain:
            return False
        restore_zeros(self.copy)
        self.copy.metadata_props[FLOAT16_CASTS] = "1"
        return True

    def explains(self, report: Report) -> bool:
        if self.widening.layers:
            reasons = {(each.graph, each.node): each for each in self.report.unconverted}
            report.findings = [
                each if each.operator else reasons.get((each.graph, each.node), each) for each in report.findings
            ]
        return True

    def _count(self, report: Report) -> tuple[int, int]:
        """Returns how many nodes became integer products by the rules, and how many were converted."""
        found = [finding for finding in report.rewritten if finding.rule in self.widening.rules]
        return sum(finding.operator in OWN_PRODUCTS for finding in found), len(found)


def _precisions(model: ir.Model, convert: Convert, widening: Widening) -> Iterator[_Precision]:
    """Yields a copy with the Casts of ONNX Runtime, if that may help, and the model."""
    copy = with_casts(model, widening.layers, widening.others) if widening.rules else None
    if copy is None:
        yield _Precision(model, _is_any)
        return
    casts = _Casts(model, copy, convert, widening)
    yield _Precision(copy, casts.helps)
    yield _Precision(model, casts.explains)
