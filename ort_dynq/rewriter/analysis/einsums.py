"""The equation of an Einsum of two factors."""

from __future__ import annotations

import onnx_ir as ir

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
