"""The model-local functions with which a rewritten model runs without the plugin, and the inlining of others."""

from __future__ import annotations

from collections.abc import Container

import onnx.parser
import onnx_ir as ir
from onnx_ir.passes import common

from ..graphs import bodies, named, with_subgraphs
from ..operators import DOMAIN, OPERATORS, VERSION

# The first version of the model format in which functions have attributes.
_OLDEST_IR_VERSION = 8


def add_functions(model: ir.Model, opset: int) -> None:
    """Adds the functions of ort_dynq's operators that the model calls, and the imports of their domain.

    A model-local function imports the domain if its body or a subgraph inside it calls one of the operators: subgraphs
    have no imports of their own.

    Args:
        model: The rewritten model.
        opset: The version of the standard operators in the functions' bodies. A function that the model has already
            stays as it is: a name of an operator has one meaning in all releases.
    """
    called: dict[str, None] = {}
    for _, body in bodies(model):
        operators = {
            node.op_type: None
            for _, graph in with_subgraphs(body)
            for node in graph
            if node.domain == DOMAIN and node.op_type in OPERATORS
        }
        called |= operators
        if operators and isinstance(body, ir.Function):
            body.opset_imports.setdefault(DOMAIN, VERSION)
    for operator in called:
        if (DOMAIN, operator, "") not in model.functions:
            function = make_function(operator, opset)
            model.functions[function.identifier()] = function
    if called:
        model.graph.opset_imports.setdefault(DOMAIN, VERSION)
        model.ir_version = max(model.ir_version, _OLDEST_IR_VERSION)


def make_function(operator: str, opset: int) -> ir.Function:
    """Returns the function of one operator; its body has standard operators of version `opset`."""
    text = OPERATORS[operator].function(DOMAIN, opset)
    return ir.serde.deserialize_function(onnx.parser.parse_function(text))


def inlined(model: ir.Model, kept: Container[tuple[str, str]]) -> ir.Model | None:
    """Returns the model with its functions inlined, except for the functions of ort_dynq's operators.

    Args:
        model: The model, which stays as it is.
        kept: Domain and name of functions whose calls stay.

    Returns:
        The new model, with the same names of inputs and outputs; None if a function cannot be inlined. For example, it
        imports another opset than the model.
    """
    copy = named(model.clone())  # after their outputs: the pass would name nodes by numbers
    try:
        common.InlinePass(lambda each: each.domain != DOMAIN and (each.domain, each.name) not in kept)(copy)
        common.NameFixPass()(copy)  # subgraphs may have the names of inlined values
    except Exception:  # the types are onnx_ir's own
        return None
    ends = [[value.name for value in (*each.graph.inputs, *each.graph.outputs)] for each in (model, copy)]
    return copy if ends[0] == ends[1] else None
