"""Prepares hand-written models for the backend ``extensions``, which requires every input and attribute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from ..errors import DynqError
from ..graphs import graphs, label
from ..operators import DOMAIN, OPERATORS
from ..operators.encodings import CodeType
from ..rewriter import Report, Result
from ..rewriter.analysis.inference import Facts
from ..rewriter.normal_form import inlined_if_possible
from ..storage import explained
from ..versions import load_checked
from .extensions import variant_name
from .options import CARRIED, NOT_CARRIED

if TYPE_CHECKING:
    from ..storage import Model

_CODES = (CodeType.UINT8, CodeType.INT8, CodeType.UINT4, CodeType.INT4)
_CODE_NAMES: dict[object, str] = {code: code.name.lower() for code in _CODES}


def ready_for_extensions(model: Model) -> Result:
    """Adds the inputs and attributes that nodes of ort_dynq's operators leave out.

    An absent zero point becomes 0, and an absent attribute its default. If the output type of an operator does not
    follow from its input types, it gets a name with the output type; such a model runs with the backend
    ``extensions`` only.
    Models from :func:`ort_dynq.rewrite` need this only if they have float16, bfloat16, int4 or uint4, which
    onnxruntime-extensions does not support: Casts to and from float32 are added for float16 where the operator computes
    in float32, and other nodes run as the functions that the model has.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model. It is not changed.

    Returns:
        The changed copy of the model, with an empty report.

    Raises:
        DynqError: The model is missing or is not an ONNX model, or it has no function for a node of these types.
    """
    ready = inlined_if_possible(load_checked(model))
    with explained(model):
        with Facts(ready) as facts:
            halves = [(node, found) for node in _operators(ready) for found in _float16_inputs(node)]
        for node, found in halves:
            _cast_float16(node, *found, facts)
        with Facts(ready):
            for node in _operators(ready):
                if CARRIED.issuperset(filter(None, (*_types(node), _output(node)))):
                    assert node.graph is not None
                    _complete(node, node.graph)
                else:
                    _call_function(node, ready)
    return Result(ready, Report())


def _operators(model: ir.Model) -> list[ir.Node]:
    nodes = (node for _, graph in graphs(model) for node in graph)
    return [node for node in nodes if node.domain == DOMAIN and node.op_type in OPERATORS]


def _float16_inputs(node: ir.Node) -> list[tuple[int, tuple[int, ...]]]:
    """Returns those of Operator.float16_inputs that are float16."""
    types = _types(node)
    return [found for found in OPERATORS[node.op_type].float16_inputs if types[found[0] : found[0] + 1] == ("float16",)]


def _cast_float16(node: ir.Node, index: int, outputs: tuple[int, ...], facts: Facts) -> None:
    """Gives a node float32 instead of float16."""
    source, graph = node.inputs[index], node.graph
    assert source is not None
    assert graph is not None
    cast = ir.node("Cast", [source], {"to": int(ir.DataType.FLOAT)})
    cast.outputs[0].name = facts.new_name()
    graph.insert_before(node, [cast])
    node.replace_input_with(index, cast.outputs[0])
    for dst in (node.outputs[i] for i in outputs):
        rounding = ir.node("Cast", [dst], {"to": int(ir.DataType.FLOAT16)})
        half = rounding.outputs[0]
        ir.convenience.replace_all_uses_with([dst], [half], replace_graph_outputs=True)
        rounding.replace_input_with(0, dst)
        graph.insert_after(node, [rounding])
        half.name, half.type, half.shape = dst.name, dst.type, dst.shape
        dst.name, dst.type, dst.shape = facts.new_name(), None, None


def _complete(node: ir.Node, graph: ir.Graph | ir.Function) -> None:
    operator = OPERATORS[node.op_type]
    for attribute in operator.attributes:
        if attribute.is_list:  # onnxruntime-extensions has no lists; the shapes give the same groups
            given = node.attributes.pop(attribute.name, None)
            qtype = node.attributes.get("qtype")
            if given is not None and qtype is not None and qtype.as_string() == "auto":
                node.attributes["qtype"] = ir.AttrString("qtype", "per_group")
        elif attribute.name not in node.attributes:
            node.attributes.add(ir.convenience.convert_attribute(attribute.name, attribute.default))
    output = _output(node)
    if len(node.inputs) < len(operator.inputs):
        node.resize_inputs(len(operator.inputs))
    for i, value in enumerate(node.inputs):
        # A zero of a type that fits the other inputs. Of several types, the type of the codes.
        if value is None and operator.inputs[i].absent:
            fitting = [
                signature.inputs[i]
                for signature in operator.signatures
                if output in (None, signature.outputs[0])
                and all(known in (None, type_) for known, type_ in zip(_types(node), signature.inputs, strict=True))
            ]
            codes = [type_ for type_ in fitting if type_ in (output, *_types(node))]
            dtype = np.dtype(next(iter(codes + fitting), operator.signatures[0].inputs[i]))
            zero = ir.node("Constant", [], {"value": ir.tensor(np.zeros((), dtype))})
            zero.outputs[0].dtype = ir.DataType.from_numpy(dtype)
            graph.insert_before(node, [zero])
            node.replace_input_with(i, zero.outputs[0])
    types = _types(node)
    inferred = next((signature.outputs[0] for signature in operator.signatures if signature.inputs == types), None)
    if output not in (None, inferred):
        node.op_type = variant_name(node.op_type, output)


def _call_function(node: ir.Node, model: ir.Model) -> None:
    """Makes a node call the function of its operator by another name, which no operator of the backend has."""
    function = model.functions.get((DOMAIN, node.op_type, ""))
    if function is None:
        raise DynqError(
            f"{label(node)}: {NOT_CARRIED}, and the model has no function {DOMAIN}.{node.op_type} to run instead"
        )
    node.op_type = variant_name(node.op_type, "function")
    identifier = (DOMAIN, node.op_type, "")
    if identifier not in model.functions:
        proto = ir.to_proto(function)
        proto.name = node.op_type
        model.functions[identifier] = ir.serde.deserialize_function(proto)


def _output(node: ir.Node) -> str | None:
    """The type that the attribute output_dtype chooses; None if there is no choice."""
    attribute = node.attributes.get("output_dtype")
    return None if attribute is None else _CODE_NAMES.get(attribute.value)


def _types(node: ir.Node) -> tuple[str | None, ...]:
    """The types of the inputs as in signatures; None for an input that is absent or of unknown type."""
    return tuple(
        value.dtype.numpy().name if value is not None and value.dtype is not None else None for value in node.inputs
    )
