"""The model-local functions that make a rewritten model run without the plugin."""

from __future__ import annotations

import onnx.parser
import onnx_ir as ir

from ..errors import DynqError
from ..graphs import graphs
from ..operators import DOMAIN, OPERATORS, VERSION

# Functions with attributes came with this version of the model format.
_OLDEST_IR_VERSION = 8


def add_functions(model: ir.Model, opset: int) -> None:
    """Adds the functions, of opset `opset`, that the model's calls of ort_dynq's operators stand for.

    Raises:
        DynqError: The model has another function of such a name.
    """
    called: dict[str, None] = {}
    for _, graph in graphs(model):
        operators = dict.fromkeys(node.op_type for node in graph if node.domain == DOMAIN and node.op_type in OPERATORS)
        called |= operators
        if operators and isinstance(graph, ir.Function):
            graph.opset_imports.setdefault(DOMAIN, VERSION)
    for operator in called:
        _add_function(model, operator, opset)


def _add_function(model: ir.Model, operator: str, opset: int) -> None:
    function = make_function(operator, opset)
    present = model.functions.get(function.identifier())
    if present is None:
        model.functions[function.identifier()] = function
    elif [node.op_type for node in present] != [node.op_type for node in function]:
        raise DynqError(
            f"the model has a function {DOMAIN}.{operator} with another body: it was rewritten by another version of "
            "ort_dynq; rewrite the original model instead"
        )
    model.graph.opset_imports.setdefault(DOMAIN, VERSION)
    model.ir_version = max(model.ir_version, _OLDEST_IR_VERSION)


def make_function(operator: str, opset: int) -> ir.Function:
    """The function of one operator, its body in standard operators of opset `opset`."""
    spec = OPERATORS[operator]
    attributes = ", ".join(attribute.name for attribute in spec.attributes)
    text = (
        f'<domain: "{DOMAIN}", opset_import: ["": {opset}]> {spec.name} {f"<{attributes}>" if attributes else ""} '
        f"({', '.join(value.name for value in spec.inputs)}) => ({', '.join(value.name for value in spec.outputs)}) "
        f"{spec.body(opset)}"
    )
    return ir.serde.deserialize_function(onnx.parser.parse_function(text))
