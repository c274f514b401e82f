"""Makes models written by hand ready for onnxruntime-extensions, which takes nothing for granted (../extensions.py)."""

from __future__ import annotations

import os

import numpy as np
import onnx
import onnx_ir as ir

from ..errors import DynqError
from ..extensions import variant_name
from ..operators import DOMAIN, OPERATORS
from . import Report, Result
from .analysis import Facts, graphs
from .storage import load


def ready_for_extensions(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> Result:
    """The same model with every input and attribute of ort_dynq's operators written out.

    Absent zero points become a zero, absent attributes their defaults, and an operator whose output type does not
    follow from its inputs' gets the name that says it (such a model runs with this backend alone). What
    :func:`ort_dynq.rewrite` writes is ready as it is.

    Args:
        model: A path, a ModelProto or an onnx_ir Model; it is not changed.

    Returns:
        The model, with an empty report.

    Raises:
        DynqError: The model cannot be read, or the type of an output is not known.
    """
    ready = load(model)
    with Facts(ready):
        for _, graph in graphs(ready):
            for node in list(graph):
                if node.domain == DOMAIN and node.op_type in OPERATORS:
                    _write_out(node, graph)
    return Result(ready, Report())


def _write_out(node: ir.Node, graph: ir.Graph | ir.Function) -> None:
    operator = OPERATORS[node.op_type]
    for attribute in operator.attributes:
        if attribute.name not in node.attributes:
            node.attributes.add(ir.convenience.convert_attribute(attribute.name, attribute.default))
    asked = node.attributes.get_int("output_dtype", 0)
    while len(node.inputs) < len(operator.inputs):
        node.resize_inputs(len(node.inputs) + 1)
    for i, value in enumerate(node.inputs):
        if value is None:
            dtype = np.dtype(np.int8 if asked == ir.DataType.INT8 else np.uint8)
            if operator.inputs[0].types != ("float32",):  # zero points of the codes' own type
                codes = node.inputs[0].dtype if node.inputs[0] is not None else None
                if codes is None:
                    raise DynqError(f"{node.name or node.op_type}: the type of {operator.inputs[0].name} is not known")
                dtype = codes.numpy()
            zero = ir.node("Constant", [], {"value": ir.tensor(np.zeros((), dtype))})
            graph.insert_before(node, [zero])
            node.replace_input_with(i, zero.outputs[0])
    if asked == 0:
        return
    output = ir.DataType(asked).name.lower()
    zps = node.inputs[2]
    inferred = next(
        (s.outputs[0] for s in operator.signatures if zps and zps.dtype and s.inputs[2] == zps.dtype.name.lower()), None
    )
    if zps is not None and zps.producer() is not None and zps.dtype is None:
        inferred = output  # the zero made above is of the output's type
    if inferred != output:
        node.op_type = variant_name(node.op_type, output)
