"""Checks that a rewritten spelling is right, and says whether it has integer products."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

import numpy as np
import onnx
from helpers import Array, make_session, nodes_of, product_of, stock_session, with_one_nan

import ort_dynq
from ort_dynq import DynqError
from ort_dynq.rewriter import Report, rewrite
from ort_dynq.rewriter.metadata import ACTIVATION

from .generator import Spelling

# 256 activations that are rounded to denormals, times weights of less than 16; sums of codes times such a scale.
_DENORMAL, _DENORMAL_OF_CODES = 256 * 16 * 2.0**-149, 256 * 127 * 127 * 2.0**-149
_FUSED = ("fused", "fused_matmul_integer")


@dataclass
class Outcome:
    """What became of a spelling.

    Attributes:
        problem: Why the rewritten model is wrong; empty if it is right.
        products: The number of its integer products.
        is_fused: Whether ONNX Runtime fuses the original's product itself, which the rewriter leaves to it.
        reasons: The reasons of the unconverted nodes, by their codes.
        texts: The texts of these reasons, and of the notes of the converted nodes.
    """

    problem: str
    products: int
    is_fused: bool
    reasons: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def converted(spelling: Spelling) -> tuple[onnx.ModelProto, Outcome]:
    """Rewrites a spelling by default. If that fails, the outcome says why."""
    try:
        result = rewrite(spelling.model)
    except DynqError as error:
        return spelling.model, Outcome(f"{error}: {traceback.extract_tb(error.__traceback__)[-1]}", 0, False)
    model = result.to_proto()
    outcome = _outcome(model, result.report)
    if spelling.draw.made["arithmetic"] == "two activations":
        of_unsigned = [each for each in result.report.rewritten if each.operator == "MatMulInteger"]
        outcome.products = len(of_unsigned)
    return model, outcome


def check(spelling: Spelling, *, exact: bool = True) -> Outcome:
    """Rewrites a spelling and compares the results with the original's.

    Args:
        spelling: The spelling.
        exact: Whether to rewrite it exactly, too.
    """
    try:
        model, outcome = converted(spelling)
        keeps_bits = outcome.products == 0 and not _has_float_product(model)
        outcome.problem = outcome.problem or problem_of(spelling, model, is_exact=keeps_bits)
        if exact and not outcome.problem:
            outcome.problem = problem_of(spelling, rewrite(spelling.model, exact=True).to_proto(), is_exact=True)
    except Exception as error:  # every error is a result of the spelling, which the caller names
        return Outcome(f"{type(error).__name__}: {error}", 0, False)
    return outcome


def _outcome(model: onnx.ModelProto, report: Report) -> Outcome:
    bodies = [model.graph.node, *(each.node for each in model.functions if each.domain != "ort_dynq")]
    count = sum(_count(nodes) for nodes in bodies)
    found = [each for each in report.findings if each.reason]
    reasons = tuple(dict.fromkeys(each.unconverted.code for each in found if each.unconverted is not None))
    return Outcome(
        "", count, bool({*_FUSED} & {*reasons}), reasons, tuple(dict.fromkeys(each.reason for each in found))
    )


def _count(nodes: object) -> int:
    total = 0
    for node in nodes:  # type: ignore[attr-defined]
        total += node.domain == "ort_dynq" and product_of(node.op_type) != "" and not has_two_terms(node)
        total += sum(_count(attribute.g.node) for attribute in node.attribute if attribute.HasField("g"))
    return total


def _has_float_product(model: onnx.ModelProto) -> bool:
    """Whether a rewritten product has floats: its weights are dequantized once, and ONNX Runtime packs constants.

    Its sums of packed weights may have another order than those of weights that are computed in every run.
    """
    nodes = (node for graph in [model.graph, *model.functions] for node in nodes_of(graph))
    return any(each.key == ACTIVATION for node in nodes for each in node.metadata_props)


def has_two_terms(node: onnx.NodeProto) -> bool:
    """Whether a product has two terms: to the rewriter, its activation was float, and only its weights quantized."""
    return any(each.name == "terms" and each.i == 2 for each in node.attribute)


def problem_of(spelling: Spelling, model: onnx.ModelProto, *, is_exact: bool) -> str:
    """Compares a rewritten spelling with the original; returns an empty text if it is right.

    Args:
        spelling: The spelling.
        model: The rewritten model.
        is_exact: Whether every output must be the same bit for bit.
    """
    names = [output.name for output in spelling.model.graph.output]
    two_terms = any(has_two_terms(node) for graph in [model.graph, *model.functions] for node in nodes_of(graph))
    original, plugin, bodies = stock_session(spelling.model), make_session(model, "native"), stock_session(model)
    probe = stock_session(spelling.probe)
    # r / c may be denormal where r, q * r and q / c * r are not
    has_rounded_scale = spelling.draw.made.get("dequantize", "").startswith(("q * r", "q / c"))
    has_rounded_scale |= spelling.draw.made["arithmetic"] == "codes"
    # 2.35 steps are rounded to 2: codes that the model does not clip reach 300, and those of the product 255
    has_rounded_scale |= spelling.draw.made.get("clip") == "none"
    smallest = _DENORMAL_OF_CODES if has_rounded_scale else _DENORMAL
    for kind, inputs in zip(("ties", "extremes"), spelling.inputs, strict=False):
        expected = original.run(None, inputs)
        actual = plugin.run(None, inputs)
        for name, each, other in zip(names, actual, bodies.run(None, inputs), strict=True):
            if text := _difference(other, each):
                return f"{name} on {kind}, with and without the plugin: {text}"
        needed = {each.name: inputs[each.name] for each in probe.get_inputs()}
        probed = dict(zip([each.name for each in probe.get_outputs()], probe.run(None, needed), strict=True))
        for name, each, wanted in zip(names, actual, expected, strict=True):
            if two_terms:  # verify knows how far they may be
                continue
            magnitude = None if is_exact else spelling.magnitudes.get(name)
            text = (
                _difference(each, wanted) if magnitude is None else _distance(each, wanted, probed[magnitude], smallest)
            )
            if text:
                return f"{name} on {kind}: {text}"
    if is_exact and not two_terms:
        return ""
    verification = ort_dynq.verify(spelling.model, model, inputs=spelling.inputs[0])
    if not verification.passed and not verification.reason.startswith(("nothing was compared", "no finite value")):
        return f"verify: {verification.reason}"
    return ""


def _difference(actual: Array, expected: Array) -> str:
    """Compares bit for bit, except for the payload of NaN."""
    a, b = with_one_nan(actual), with_one_nan(expected)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype} {list(a.shape)}, expected {b.dtype} {list(b.shape)}"
    wrong = np.flatnonzero(a.view(f"u{a.itemsize}").ravel() != b.view(f"u{b.itemsize}").ravel())
    if not wrong.size:
        return ""
    at = wrong[0]
    return f"{wrong.size} of {a.size} differ, the first {a.ravel()[at]!r}, expected {b.ravel()[at]!r}"


def _distance(actual: Array, expected: Array, magnitude: Array, smallest: float) -> str:
    """Compares two products of K terms with the sum of the absolute values of the terms.

    Rounding errors of K additions are nearly independent, so their sum grows with sqrt(K) units of 2**-24 (Higham and
    Mary, A new approach to probabilistic rounding error analysis, 2019); 4 * sqrt(K) is far beyond what occurs. The
    integer product has 8 more roundings. A code that is wrong by one changes a sum by 2**-7 of one of 256 terms, six
    times the bound. A float16 model rounds weights, activation and result to float16; the integer product only the
    result.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{actual.dtype} {list(actual.shape)}, expected {expected.dtype} {list(expected.shape)}"
    with np.errstate(all="ignore"):
        bound = magnitude.astype(np.float64).reshape(actual.shape) * (4 * np.sqrt(256) + 8) * 2.0**-24 + smallest
        if actual.dtype == np.float16:
            bound += 3 * 2.0**-11 * magnitude.astype(np.float64).reshape(actual.shape) + 2.0**-24
        error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        is_same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))  # infinity - infinity is no error
        wrong = np.flatnonzero((np.isfinite(bound) & ~(error <= bound) & ~is_same).ravel())
    if not wrong.size:
        return ""
    at = wrong[0]
    return f"{wrong.size} elements are too far, the first {actual.ravel()[at]!r}, expected {expected.ravel()[at]!r}"
