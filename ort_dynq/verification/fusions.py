"""Verifies fusions: normalizations, activation functions and attention, whose last bits differ from the original's.

Each is computed from A's values and compared with A's nodes in float64. The nodes after it then get A's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ..graphs import STANDARD_DOMAINS
from ..inputs import Array
from ..rewriter.fusion.splitting import is_inexact
from .layers import name_of

FLOOR = 16
"""The error in units that a fusion may always have: a dozen float32 operations, one unit each, and sums in 32 parts."""
_UNIT = 2.0**-24


class SimplifiedLayerNormalization(OpRun):
    """ONNX Runtime's operator of this name."""

    def _run(self, x: Array, gain: Array, **given: Any) -> tuple[Array, ...]:
        return (_normalized(x, gain, None, {"epsilon": 1e-5, **given}, centers=False),)


class SkipLayerNormalization(OpRun):
    """ONNX Runtime's operator of this name; its outputs 1 and 2 are not known."""

    op_domain = "com.microsoft"

    def _run(
        self, x: Array, skip: Array, gain: Array, shift: Array | None = None, bias: Array | None = None, **given: Any
    ) -> tuple[Array, ...]:
        total = x + skip if bias is None else x + skip + bias
        y = _normalized(total, gain, shift, given, centers=True)
        return y, y, y, total


class SkipSimplifiedLayerNormalization(OpRun):
    """ONNX Runtime's operator of this name; its outputs 1 and 2 are not known."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, skip: Array, gain: Array, bias: Array | None = None, **given: Any) -> tuple[Array, ...]:
        total = x + skip if bias is None else x + skip + bias
        y = _normalized(total, gain, None, given, centers=False)
        return y, y, y, total


_NORMS = [SimplifiedLayerNormalization, SkipLayerNormalization, SkipSimplifiedLayerNormalization]


def _normalized(x: Array, gain: Array, shift: Array | None, given: Mapping[str, Any], *, centers: bool) -> Array:
    centered = x - x.mean(-1, keepdims=True) if centers else x
    variance = (centered**2).mean(-1, keepdims=True) + given.get("epsilon", 1e-12)
    y = centered / np.sqrt(variance) * gain
    return np.asarray(y if shift is None else y + shift)


def fused_values(a: Mapping[str, ir.Value], model: ir.Model) -> list[ir.Value]:
    """Returns the results of B's fusions: float values that A has, but computes otherwise.

    Args:
        a: A's values by name.
        model: B, whose quantizations are split off (rewriter/fusion/splitting.py).
    """
    found = []
    for node in model.graph:
        for output in node.outputs:
            other = a.get(name_of(output))
            producer = None if other is None else other.producer()
            is_new = node.domain == "com.microsoft" and producer is not None and not _has_kernel_of(node, producer)
            if producer is not None and (is_new or is_inexact(node)):
                found.append(output)
    return found


def _has_kernel_of(node: ir.Node, original: ir.Node) -> bool:
    """Returns whether a node computes the bits of the original: MultiHeadAttention does for a QAttention."""
    return (node.op_type, original.op_type) in ((original.op_type,) * 2, ("MultiHeadAttention", "QAttention"))


def reference_of(value: ir.Value, cut: Mapping[str, Array], a: ir.Model) -> Array:
    """Computes a value of A in float64, from other values of A.

    Args:
        value: A computed value of the main graph.
        cut: Values by name, at which the computation begins. Further ones are inputs and constants.
        a: A.

    Raises:
        Exception: ONNX's reference implementation does not have a node.
    """
    nodes, given = _nodes_before(value, cut)
    protos = [_in_float64(ir.serde.serialize_node(node)) for node in nodes]
    feeds = {name: _wide(array) for name, array in given.items()}
    inputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in feeds]
    output = helper.make_tensor_value_info(name_of(value), TensorProto.UNDEFINED, None)
    opsets = [helper.make_opsetid(domain, version) for domain, version in a.graph.opset_imports.items()]
    model = helper.make_model(helper.make_graph(protos, "reference", inputs, [output]), opset_imports=opsets)
    with np.errstate(all="ignore"):
        results: list[Any] = ReferenceEvaluator(model, new_ops=_NORMS).run(None, feeds)  # type: ignore[assignment]
    return np.asarray(results[0])


def error_of(result: Array, reference: Array) -> float:
    """Returns the largest abs(result - reference), in units of 2**-24 * the largest abs(reference) of its row.

    Rows with a reference that is not finite are skipped.
    """
    finite = np.isfinite(reference).all(axis=-1, keepdims=True) if reference.ndim else np.isfinite(reference)
    size = np.abs(reference).max(axis=-1, keepdims=True, initial=0) if reference.ndim else np.abs(reference)
    with np.errstate(all="ignore"):
        errors = np.abs(result - reference) / (_UNIT * size + 2.0**-149)
    errors = np.where(np.isnan(errors), np.inf, errors)
    return float(np.where(finite, errors, 0).max(initial=0))


def _nodes_before(value: ir.Value, cut: Mapping[str, Array]) -> tuple[Sequence[ir.Node], dict[str, Array]]:
    """Returns the nodes that compute a value, in order, and what they begin with."""
    given: dict[str, Array] = {}
    nodes: dict[ir.Node, None] = {}

    def visit(each: ir.Value, is_first: bool) -> None:
        name, node = name_of(each), each.producer()
        if name in cut and not is_first:
            given[name] = cut[name]
        elif node is None:
            if each.const_value is not None:
                given[name] = each.const_value.numpy()
        elif node not in nodes:
            for source in node.inputs:
                if source is not None:
                    visit(source, False)
            nodes[node] = None

    visit(value, True)
    return list(nodes), given


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype in (np.float32, np.float16) else array


def _in_float64(node: onnx.NodeProto) -> onnx.NodeProto:
    """Changes the types of floats in the attributes of a node."""
    for attribute in node.attribute:
        if (
            node.op_type == "Cast"
            and attribute.name == "to"
            and attribute.i in (TensorProto.FLOAT, TensorProto.FLOAT16)
        ):
            attribute.i = TensorProto.DOUBLE
        if attribute.HasField("t"):
            attribute.t.CopyFrom(numpy_helper.from_array(_wide(numpy_helper.to_array(attribute.t))))
        if node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
            number = np.array(helper.get_attribute_value(attribute), np.float64)
            attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(number)))
    if node.domain in STANDARD_DOMAINS:
        node.domain = ""
    return node
