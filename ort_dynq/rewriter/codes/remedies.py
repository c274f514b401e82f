"""What to change in a model if its arithmetic is not known to be that of codes and numbers of rows."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ...graphs import name_in_model
from ..analysis.shapes import has_one_element, unreshaped
from ..analysis.standard import REPEATING, SCATTERING


def remedy_of(node: ir.Node, form_of: Callable[[ir.Value | None], object | None]) -> str:
    """Returns what to change so that an operand of arithmetic is a number for each row; empty if that is not known."""
    return _repeated(node) or _undeclared(node, form_of)


def _undeclared(node: ir.Node, form_of: Callable[[ir.Value | None], object | None]) -> str:
    """Returns the operand to declare if shape inference does not find its shape, as after Loop, Sort or If."""
    other = next((each for each in node.inputs if each is not None and form_of(each) is None), None)
    is_known = other is None or (other.shape is not None and all(isinstance(dim, int) for dim in other.shape[-1:]))
    if is_known or other is None or has_one_element(other):
        return ""
    return f": declare the shape of {name_in_model(other)}, which shape inference does not find, in value_info"


def _repeated(node: ir.Node) -> str:
    """Returns what to change if an operand of a node was repeated before, by reshapes or not; else nothing."""
    for each in node.inputs:
        whole = None if each is None else unreshaped(each).producer()
        if whole is not None and whole.op_type in REPEATING | SCATTERING:
            name = name_in_model(whole.outputs[0])
            return (
                f": {whole.op_type} {name} changes its shape or elements; export the scale as [..., 1], and use Where"
            )
    return ""
