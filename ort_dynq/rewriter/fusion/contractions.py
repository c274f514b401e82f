"""Products of two activations as einsum notation writes them, and their factors as views."""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import MICROSOFT
from ..analysis.einsums import labels_of_einsum
from ..analysis.nodes import is_standard
from .views import Axes, Axis, Factor, View, dims_of, rename


def labels_of(node: ir.Node) -> tuple[list[str], list[str], list[str]] | None:
    """Returns the letters of the axes of the factors of a product, and of the result; None for other nodes."""
    if len(node.inputs) != 2 or any(each is None or each.shape is None for each in node.inputs):
        return None
    a, b = (len(dims_of(each)) for each in node.inputs if each is not None)
    if min(a, b) > 1 and (is_standard(node, "MatMul") or _is_transposing_product(node)):
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


def operands_of(product: ir.Node, known: dict[int, Axes]) -> tuple[list[View], Axes]:
    """Returns the factors of a product as views, and the axes of the result.

    Args:
        product: The product.
        known: The axes of one of its factors, 0 or 1, or of its result, 2.
    """
    labels = labels_of(product)
    assert labels is not None
    found = {label: axis for i, axes in known.items() for label, axis in zip(labels[i], axes, strict=True)}
    views = []
    for value, letters in zip(product.inputs, labels, strict=False):
        assert value is not None
        axes: list[Axis] = []
        for label, dim in zip(letters, dims_of(value), strict=True):
            if dim != 1 and not found.get(label):
                found[label] = (Factor(dim),)
            axis = () if dim == 1 else found[label]
            rename(axis, dim)
            axes.append(axis)
        views.append(View(value, tuple(axes)))
    return views, tuple(found.get(label, ()) for label in labels[2])
