"""Evaluates integer products as ONNX defines them, also on CPUs where ONNX Runtime's products saturate.

On x86 CPUs without VNNI, ONNX Runtime adds pairs of uint8 x int8 products in int16. With large codes this sum saturates
and the result is wrong. Products of uint8 x uint8 are exact on all CPUs, so they take the place of uint8 x int8:
w - z = (w + 128) - (z + 128). The exact product is the same, so this changes no result on a CPU that does not saturate.

ONNX Runtime's MatMulInteger of empty sums (K = 0) returns memory that it did not write. A MatMul of int32 returns 0.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx_ir as ir

from ... import runtime
from ...errors import DynqError
from ...graphs import graphs, proto_with_subgraphs
from ...operators import DOMAIN
from ...rewriter.analysis.inference import Facts
from ...rewriter.analysis.nodes import input_of
from ...rewriter.codes.unsigned_codes import nodes_of_unsigned
from ...rewriter.edit import constant
from ...rewriter.metadata import RULE
from ...rewriter.normal_form import inlined_if_possible
from ...rewriter.policy.saturation import OPERANDS, WEIGHTS_OF_LSTM, key_of
from ...rewriter.recurrent.dynamic_lstm import is_dynamic_lstm
from ...storage import explained, load

if TYPE_CHECKING:
    from ...storage import Model

_PREFIX = "ort_dynq.exact."  # of new names: products of A and B are matched by the names that a rewrite gives
_NAMES = {*(operator for _, operator in OPERANDS), "DynamicQuantizeLSTM"}
_WEIGHTS_OF_LSTM = tuple(itertools.chain(*WEIGHTS_OF_LSTM))


@functools.cache
def cpu_saturates() -> bool:
    """Returns whether stock ONNX Runtime's product of uint8 x int8 codes saturates on this CPU: it computes one."""
    text = """<ir_version: 8, opset_import: ["": 13]>
        g (uint8[2, 64] a, int8[64, 16] b) => (int32[2, 16] y) { y = MatMulInteger(a, b) }"""
    a, b = np.full((2, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
    content = onnx.parser.parse_model(text).SerializeToString()
    (product,) = runtime.open_session(content, runtime.session_options()).run(None, {"a": a, "b": b})
    return bool((product != 64 * 255 * 127).any())


def without_saturation(model: Model) -> tuple[Model, int]:
    """Returns a model that computes the same exactly on all CPUs.

    Nodes that add 128 at run time precede each product; no constant is copied, so external data stay in their files.
    Two kinds of products stay as they are: products that a rewrite added, which must be right on every CPU by
    themselves; and products of types that are not known.

    Args:
        model: The model, which is not changed.

    Returns:
        A changed copy, and the number of products that would saturate on some CPUs. If there are none, or the model
        cannot be read, the model itself and 0.
    """
    if not _may_have_products(model):
        return model, 0
    try:
        loaded = inlined_if_possible(load(model))
        if not any(_is_product(node) for _, graph in graphs(loaded) for node in graph):
            return model, 0
        with explained(model), Facts(loaded) as facts:
            empty = [node for _, graph in graphs(loaded) for node in graph if _has_empty_sums(node)]
            products = [node for node in _saturating(loaded) if node not in empty]
            for node in products:
                _use_unsigned(node, facts)
            for node in empty:
                _use_int32(node, facts)
    except DynqError:  # ONNX Runtime's own error says more
        return model, 0
    return (loaded, len(products)) if products or empty else (model, 0)


def _may_have_products(model: Model) -> bool:
    """Returns whether a serialized model has a node of these operators outside of the functions of ort_dynq.

    Loading a rewritten model takes longer: most of its nodes are in these functions. True for other models.
    """
    if isinstance(model, bytes):
        proto = onnx.ModelProto()
        try:
            proto.ParseFromString(model)
        except Exception:  # protobuf's own type; load() says what is wrong
            return True
        model = proto
    if not isinstance(model, onnx.ModelProto):
        return True
    bodies = (model.graph, *(function for function in model.functions if function.domain != DOMAIN))
    found = (node for body in bodies for graph in proto_with_subgraphs(body) for node in graph.node)
    return any(node.op_type in _NAMES for node in found)


def _is_product(node: ir.Node) -> bool:
    operands = OPERANDS.get(key_of(node))
    is_product = operands is not None and len(node.inputs) > max(operands.signed, operands.unsigned or 0)
    is_lstm = is_dynamic_lstm(node) and len(node.inputs) > max(_WEIGHTS_OF_LSTM)
    return (is_product or is_lstm) and RULE not in node.metadata_props


def _saturating(model: ir.Model) -> list[ir.Node]:
    """Returns the products of uint8 x int8 in all graphs, subgraphs and functions. Types must have been inferred."""
    found = []
    for _, graph in graphs(model):
        for node in filter(_is_product, graph):
            if is_dynamic_lstm(node):
                weights = [node.inputs[i] for i in _WEIGHTS_OF_LSTM]
                if all(value is not None and value.dtype == ir.DataType.INT8 for value in weights):
                    found.append(node)
                continue
            operands = OPERANDS[key_of(node)]
            signed, other = (None if i is None else node.inputs[i] for i in (operands.signed, operands.unsigned))
            is_unsigned = operands.unsigned is None or (other is not None and other.dtype == ir.DataType.UINT8)
            if signed is not None and signed.dtype == ir.DataType.INT8 and is_unsigned:
                found.append(node)
    return found


def _has_empty_sums(node: ir.Node) -> bool:
    """Returns whether a node is a MatMulInteger of weights that are known to have no rows."""
    weights = input_of(node, 1) if _is_product(node) and node.op_type == "MatMulInteger" else None
    return weights is not None and weights.shape is not None and len(weights.shape) > 1 and weights.shape[-2] == 0


def _use_int32(node: ir.Node, facts: Facts) -> None:
    """Puts a MatMul of int32 in place of a MatMulInteger. Zero points change no empty sum."""
    casts = [ir.node("Cast", [each], {"to": int(ir.DataType.INT32)}) for each in node.inputs[:2]]
    for each in casts:
        each.outputs[0].name = f"{_PREFIX}{facts.new_name()}"
    assert node.graph is not None
    node.graph.insert_before(node, casts)
    for position, each in enumerate(casts):
        node.replace_input_with(position, each.outputs[0])
    node.resize_inputs(2)
    node.op_type = "MatMul"


def _use_unsigned(node: ir.Node, facts: Facts) -> None:
    """Replaces the int8 operands of a product and their zero points by uint8 values that are 128 larger."""
    positions: tuple[int, ...] = _WEIGHTS_OF_LSTM
    if not is_dynamic_lstm(node):
        operands = OPERANDS[key_of(node)]
        positions = operands.signed, operands.zero_point
    node.resize_inputs(max(len(node.inputs), positions[-1] + 1))
    for position in positions:
        value = node.inputs[position]
        nodes = [constant(np.array(128, np.uint8))] if value is None else nodes_of_unsigned(value)
        for each in nodes:
            each.outputs[0].name = f"{_PREFIX}{facts.new_name()}"
        assert node.graph is not None
        node.graph.insert_before(node, nodes)
        node.replace_input_with(position, nodes[-1].outputs[0])
