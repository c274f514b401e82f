"""Prepares hand-written models for the backend ``extensions``, which requires every input and attribute."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir

from ..graphs import graphs
from ..operators import DOMAIN, OPERATORS
from ..operators.encodings import CodeType
from ..rewriter import Report, Result
from ..rewriter.facts.inference import Facts
from ..storage import explained, load
from .extensions import variant_name

_CODE_NAMES: dict[object, str] = {code: code.name.lower() for code in (CodeType.UINT8, CodeType.INT8)}


def ready_for_extensions(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> Result:
    """Adds the inputs and attributes that nodes of ort_dynq's operators leave out.

    An absent zero point becomes 0, and an absent attribute its default. An operator whose output type does not follow
    from its input types gets a name with the output type; such a model runs with the backend ``extensions`` only.
    Models from :func:`ort_dynq.rewrite` do not need this.

    Args:
        model: A path, a ModelProto or an onnx_ir Model. It is not changed.

    Returns:
        The changed copy of the model, with an empty report.

    Raises:
        DynqError: The model is missing or is not an ONNX model.
    """
    ready = load(model)
    with explained(model), Facts(ready):
        for _, graph in graphs(ready):
            for node in list(graph):
                if node.domain == DOMAIN and node.op_type in OPERATORS:
                    _complete(node, graph)
    return Result(ready, Report())


def _complete(node: ir.Node, graph: ir.Graph | ir.Function) -> None:
    operator = OPERATORS[node.op_type]
    for attribute in operator.attributes:
        if attribute.name not in node.attributes:
            node.attributes.add(ir.convenience.convert_attribute(attribute.name, attribute.default))
    output = None
    if "output_dtype" in node.attributes:
        output = _CODE_NAMES.get(node.attributes["output_dtype"].value)
    if len(node.inputs) < len(operator.inputs):
        node.resize_inputs(len(operator.inputs))
    for i, value in enumerate(node.inputs):
        if value is None and operator.inputs[i].absent:  # zero, of the first type that goes with the other inputs
            fitting = (
                signature.inputs[i]
                for signature in operator.signatures
                if output in (None, signature.outputs[0])
                and all(known in (None, type_) for known, type_ in zip(_types(node), signature.inputs, strict=True))
            )
            dtype = np.dtype(next(fitting, operator.signatures[0].inputs[i]))
            zero = ir.node("Constant", [], {"value": ir.tensor(np.zeros((), dtype))})
            zero.outputs[0].dtype = ir.DataType.from_numpy(dtype)
            graph.insert_before(node, [zero])
            node.replace_input_with(i, zero.outputs[0])
    types = _types(node)
    inferred = next((signature.outputs[0] for signature in operator.signatures if signature.inputs == types), None)
    if output not in (None, inferred):
        node.op_type = variant_name(node.op_type, output)


def _types(node: ir.Node) -> tuple[str | None, ...]:
    """The types of the inputs as in signatures; None for an input that is absent or of unknown type."""
    return tuple(
        value.dtype.numpy().name if value is not None and value.dtype is not None else None for value in node.inputs
    )
