"""Checks that a rewritten spelling is right, and says whether it has integer products."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from helpers import Array, make_session, stock_session, with_one_nan

import ort_dynq
from ort_dynq.rewriter import Report, rewrite

from .generator import Spelling

_PRODUCTS = ("QuantizedMatMul", "QuantizedConv")
_FUSED = ("fused", "fused_matmul_integer")


@dataclass
class Outcome:
    """What became of a spelling.

    Attributes:
        problem: Why the rewritten model is wrong; empty if it is right.
        products: The number of its integer products.
        is_fused: Whether ONNX Runtime fuses the original's product itself, which the rewriter leaves to it.
        reasons: The reasons of the unconverted nodes, by their codes.
        texts: The texts of these reasons.
    """

    problem: str
    products: int
    is_fused: bool
    reasons: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


def converted(spelling: Spelling) -> tuple[onnx.ModelProto, Outcome]:
    """Rewrites a spelling by default."""
    result = rewrite(spelling.model)
    model = result.to_proto()
    return model, _outcome(model, result.report)


def check(spelling: Spelling, *, exact: bool = True) -> Outcome:
    """Rewrites a spelling and compares the results with the original's.

    Args:
        spelling: The spelling.
        exact: Whether to rewrite it exactly, too.
    """
    try:
        model, outcome = converted(spelling)
        outcome.problem = _problem(spelling, model, outcome) or (_problem_of_exact(spelling) if exact else "")
    except Exception as error:  # every error is a result of the spelling, which the caller names
        return Outcome(f"{type(error).__name__}: {error}", 0, False)
    return outcome


def _outcome(model: onnx.ModelProto, report: Report) -> Outcome:
    bodies = [model.graph.node, *(each.node for each in model.functions if each.domain != "ort_dynq")]
    count = sum(_count(nodes) for nodes in bodies)
    found = [each for each in report.findings if each.unconverted is not None]
    reasons = tuple(dict.fromkeys(each.unconverted.code for each in found if each.unconverted is not None))
    return Outcome(
        "", count, bool({*_FUSED} & {*reasons}), reasons, tuple(dict.fromkeys(each.reason for each in found))
    )


def _count(nodes: object) -> int:
    total = 0
    for node in nodes:  # type: ignore[attr-defined]
        total += node.domain == "ort_dynq" and node.op_type in _PRODUCTS
        total += sum(_count(attribute.g.node) for attribute in node.attribute if attribute.HasField("g"))
    return total


def _problem(spelling: Spelling, model: onnx.ModelProto, outcome: Outcome) -> str:
    names = [output.name for output in spelling.model.graph.output]
    inputs = spelling.inputs
    expected = dict(zip(names, stock_session(spelling.model).run(None, inputs), strict=True))
    actual = dict(zip(names, make_session(model, "native").run(None, inputs), strict=True))
    bodies = dict(zip(names, stock_session(model).run(None, inputs), strict=True))
    for name in names:
        if text := _difference(bodies[name], actual[name]):
            return f"{name}: without the plugin, {text}"
    if not outcome.products or not spelling.magnitudes:
        for name in names:
            if text := _difference(actual[name], expected[name]):
                return f"{name}, which no product of floats computes: {text}"
        return ""
    session = stock_session(spelling.probe)
    needed = {each.name: inputs[each.name] for each in session.get_inputs()}
    probe = dict(zip([each.name for each in session.get_outputs()], session.run(None, needed), strict=True))
    for name in names:
        if text := _distance(spelling, actual[name], expected[name], probe[spelling.magnitudes[name]]):
            return f"{name}: {text}"
    verification = ort_dynq.verify(spelling.model, model, inputs=inputs)
    if not verification.passed and not verification.failure.startswith("nothing was compared"):
        return f"verify: {verification.failure or verification.worst_product} {verification.outputs}"
    return ""


def _problem_of_exact(spelling: Spelling) -> str:
    model = rewrite(spelling.model, exact=True).to_proto()
    expected = stock_session(spelling.model).run(None, spelling.inputs)
    for actual, wanted in zip(make_session(model, "native").run(None, spelling.inputs), expected, strict=True):
        if text := _difference(actual, wanted):
            return f"the exact model: {text}"
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


def _distance(spelling: Spelling, actual: Array, expected: Array, magnitude: Array) -> str:
    """Compares two products of K terms with the sum of the absolute values of the terms.

    The errors of K rounded additions are independent, so their sum grows with sqrt(K) units of 2**-24 (Higham and Mary,
    2019: at most 4 * sqrt(K) except with a probability of 1e-3, for each of the two products half of it). The integer
    product has 8 more roundings. A code that is wrong by one changes a sum by 1 / 127 of a term, more than this.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return f"{actual.dtype} {list(actual.shape)}, expected {expected.dtype} {list(expected.shape)}"
    with np.errstate(all="ignore"):
        bound = magnitude.astype(np.float64).reshape(actual.shape) * (4 * np.sqrt(256) + 8) * 2.0**-24
        if actual.dtype == np.float16:
            bound += 2.0**-10 * np.abs(expected.astype(np.float64)) + 2.0**-24
        error = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        wrong = np.flatnonzero((np.isfinite(bound) & ~(error <= bound)).ravel())
    if not wrong.size:
        return ""
    at = wrong[0]
    return f"{wrong.size} elements are too far, the first {actual.ravel()[at]!r}, expected {expected.ravel()[at]!r}"
