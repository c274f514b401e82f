"""Products of two factors as the equation of an Einsum: the labels of their axes."""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import MICROSOFT
from .nodes import first_inputs, is_standard
from .standard import MATMULS

_DOTS = "..."
_DIGITS = "0123456789"


def labels_of_einsum(node: ir.Node) -> tuple[str, str, str] | None:
    """Returns the labels of the axes of both factors and of the result, digits for those that dots stand for.

    Dots stand for the leading axes; a factor may have fewer, as with MatMul. None: the equation has other
    numbers of factors or axes, a label twice in a term, a result that it does not state, or a label of it in no factor.
    """
    equation = (node.attributes.get_string("equation", "") or "").replace(" ", "")
    left, arrow, result = equation.partition("->")
    factors, shapes = left.split(","), [None if value is None else value.shape for value in node.inputs]
    if not arrow or len(factors) != 2 or len(shapes) != 2:
        return None
    ranks = [-1 if shape is None else len(shape) for shape in shapes]
    counts = [rank - len(term.replace(_DOTS, "")) for rank, term in zip(ranks, factors, strict=True)]
    if any(n != 0 and not (term.count(_DOTS) == 1 and n > 0) for n, term in zip(counts, factors, strict=True)):
        return None
    lead = _DIGITS[: max(counts)]
    first, second, out = (
        term.replace(_DOTS, lead[len(lead) - n :])
        for term, n in zip((*factors, result), (*counts, len(lead)), strict=True)
    )
    is_known = max(counts) <= len(_DIGITS) and {*out} <= {*first, *second}
    are_labels = all(term.isalnum() and len({*term}) == len(term) for term in (first, second, out))
    return (first, second, out) if is_known and are_labels else None


def labels_of(node: ir.Node) -> tuple[list[str], list[str], list[str]] | None:
    """Returns the letters of the axes of the factors of a product, and of the result; None for other nodes."""
    return labels_of_factors(node) if len(node.inputs) == 2 and not is_standard(node, "Gemm") else None


def labels_of_factors(node: ir.Node) -> tuple[list[str], list[str], list[str]] | None:
    """Returns the letters as :func:`labels_of`, and those of a Gemm, which may also scale and add."""
    a, b = (0 if each is None or each.shape is None else len(each.shape) for each in first_inputs(node, 2))
    if min(a, b) > 1 and (is_standard(node, *MATMULS) or _is_transposing_product(node)):
        lead = [str(i) for i in range(max(a, b) - 2)]
        left = "km" if node.attributes.get_int("transA", 0) else "mk"
        right = "nk" if node.attributes.get_int("transB", 0) else "kn"
        return [*lead[max(b - a, 0) :], *left], [*lead[max(a - b, 0) :], *right], [*lead, "m", "n"]
    if not is_standard(node, "Einsum"):
        return None
    if (found := labels_of_einsum(node)) is None:
        return None
    first, second, result = map(list, found)
    return (first, second, result) if {*first} ^ {*second} <= {*result} else None


def _is_transposing_product(node: ir.Node) -> bool:
    """Returns whether a node is ONNX Runtime's product of operands that may have their last two axes swapped."""
    swaps_others = any(node.attributes.get_int(name, 0) for name in ("transBatchA", "transBatchB"))
    return node.domain == MICROSOFT and node.op_type == "FusedMatMul" and not swaps_others
