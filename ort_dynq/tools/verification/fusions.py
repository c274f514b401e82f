"""Verifies fusions: normalizations, activation functions and attention. Last bits differ from the original's.

Each is computed from A's values and compared with A's nodes in float64. The nodes after it then get A's result.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from ...graphs import STANDARD_DOMAINS, values_read
from ...inputs import Array
from ...rewriter.analysis.nodes import is_standard
from ...rewriter.analysis.standard import COMMUTATIVE, REARRANGING
from .attention import has_size, size_of
from .layers import is_fusion, name_of

FLOOR = 16
"""The error in units that a fusion may always have: a dozen float32 operations, one unit each, and sums in 32 parts."""
_UNIT = 2.0**-24
# Mul: by 0, in rows of attention without keys. Add: of the bias of a product.
_BETWEEN = REARRANGING | COMMUTATIVE | {"Cast"}


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


class Gelu(OpRun):
    """ONNX Runtime's operator of this name."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, approximate: str = "none") -> tuple[Array, ...]:  # an attribute of ONNX's Gelu only
        return (0.5 * x * (1 + _erf(x / math.sqrt(2))),)


class BiasGelu(OpRun):
    """ONNX Runtime's operator of this name."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array) -> tuple[Array, ...]:
        return (0.5 * (x + bias) * (1 + _erf((x + bias) / math.sqrt(2))),)


class FastGelu(OpRun):
    """ONNX Runtime's operator of this name."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, bias: Array | None = None) -> tuple[Array, ...]:
        x = x if bias is None else x + bias
        return (0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),)


class QuickGelu(OpRun):
    """ONNX Runtime's operator of this name."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, alpha: float = 1.702) -> tuple[Array, ...]:
        return (x / (1 + np.exp(-alpha * x)),)


class RotaryEmbedding(OpRun):
    """ONNX Runtime's operator of this name, of [B, H, S, D]. Its halves are rotated."""

    op_domain = "com.microsoft"

    def _run(self, x: Array, positions: Array, cos: Array, sin: Array) -> tuple[Array, ...]:
        rows = positions.reshape(-1, 1) + np.arange(x.shape[2]) if positions.size == 1 else positions
        c, s = (table[rows][:, None] for table in (cos, sin))
        low, high = np.split(x, 2, -1)
        return (np.concatenate([low * c - high * s, high * c + low * s], -1),)


class FusedMatMul(OpRun):
    """ONNX Runtime's operator of this name."""

    op_domain = "com.microsoft"

    def _run(
        self,
        a: Array,
        b: Array,
        alpha: float = 1.0,
        transA: int = 0,
        transB: int = 0,
        transBatchA: int = 0,
        transBatchB: int = 0,
    ) -> tuple[Array, ...]:
        factors = [(a, transA, transBatchA), (b, transB, transBatchB)]
        batched = [(np.moveaxis(each, 0, -2) if batch else each, turn) for each, turn, batch in factors]
        left, right = (each.swapaxes(-1, -2) if turn and each.ndim > 1 else each for each, turn in batched)
        return (left @ right * alpha,)


_erf = np.vectorize(math.erf, otypes=[np.float64])
_OPERATORS = [
    *(SimplifiedLayerNormalization, SkipLayerNormalization, SkipSimplifiedLayerNormalization),
    *(Gelu, BiasGelu, FastGelu, QuickGelu, RotaryEmbedding, FusedMatMul),
]


def _normalized(x: Array, gain: Array, shift: Array | None, given: Mapping[str, Any], *, centers: bool) -> Array:
    centered = x - x.mean(-1, keepdims=True) if centers else x
    variance = (centered**2).mean(-1, keepdims=True) + given.get("epsilon", 1e-12)
    y = centered / np.sqrt(variance) * gain
    return np.asarray(y if shift is None else y + shift)


class Fusion(NamedTuple):
    """A float result of B that A has as well, but computes otherwise.

    Attributes:
        result: The result, a value of B.
        of_a: The value of A.
        path: The nodes of B from the fused operator to the result: between both, there may be Reshape, Transpose, Mul,
            Cast, Add.
    """

    result: ir.Value
    of_a: ir.Value
    path: tuple[ir.Node, ...]

    def observed(self) -> list[ir.Value]:
        """Returns the values of B from which :meth:`size` is computed."""
        if not has_size(self.path[0]):
            return []
        return [value for node in self.path for value in self._read(node)]

    def size(self, reference: Array, arrays: Mapping[str, Array]) -> Array:
        """Returns the unit of each element's error, divided by 2**-24: its rounding errors are a few of them.

        Args:
            reference: The result in float64.
            arrays: The values that :meth:`observed` returns, by name.
        """
        if not has_size(self.path[0]):
            return np.abs(reference).max(axis=-1, keepdims=True, initial=0) if reference.ndim else np.abs(reference)
        attention, *between = self.path
        given = {name_of(value): _array_of(value, arrays) for node in self.path for value in self._read(node)}
        size = size_of(attention, [given.get(name_of(value)) if value else None for value in attention.inputs])
        if not between:
            return size
        sizes = {name: np.abs(each) if each.dtype.kind == "f" else each for name, each in given.items()}
        sizes[name_of(attention.outputs[0])] = size
        assert isinstance(attention.graph, ir.Graph)
        return _computed(between, sizes, name_of(between[-1].outputs[0]), attention.graph)

    def _read(self, node: ir.Node) -> list[ir.Value]:
        inside = {output for node in self.path for output in node.outputs}
        return [value for value in values_read(node) if value not in inside]


class Fusions:
    """The fusions of B's main graph.

    Attributes:
        found: The fusions.
        hidden: The values of B that depend on a fused operator before A has a value to compare.
    """

    def __init__(self, a: Mapping[str, ir.Value], model: ir.Model, products: Collection[ir.Value]) -> None:
        """Finds the fusions.

        Args:
            a: A's values by name.
            model: B, without its quantizations, which are split off (rewriter/fusion/splitting.py).
            products: The results of B's products, which are compared by themselves.
        """
        self.found: list[Fusion] = []
        self.hidden: set[ir.Value] = set()
        self._a = a
        pending: dict[ir.Value, tuple[ir.Node, ...]] = {}  # values between a fused operator and its result
        for node in model.graph:
            read = [*values_read(node)]
            paths = [()] if is_fusion(node, a) else [pending[value] for value in read if value in pending]
            is_hidden = not self.hidden.isdisjoint(read)
            if not paths and not is_hidden:
                continue
            is_hidden = is_hidden or not (paths[0] == () or is_standard(node, *_BETWEEN))
            for output in node.outputs:
                if is_hidden or output in products:
                    self.hidden.add(output)
                elif name_of(output) in a:
                    self.found.append(Fusion(output, a[name_of(output)], (*paths[0], node)))
                else:
                    pending[output] = (*paths[0], node)

    def values_to_record(self) -> list[ir.Value]:
        """Returns the values of A from which the references are computed. Call it while A's types are inferred.

        These are the values that B's fusions read, and integers: shapes, indices and masks, which ONNX's implementation
        may not be able to compute.
        """
        found: dict[ir.Value, None] = {}
        for fusion in self.found:
            sources = self._sources(fusion.result)
            found.update(dict.fromkeys(sources))
            todo, seen = [fusion.of_a], set[ir.Value]()
            for value in todo:
                node = value.producer()
                for source in () if node is None else values_read(node):
                    if source in sources or source in seen:
                        continue
                    seen.add(source)
                    if source.producer() is not None and _is_integer(source):
                        found[source] = None
                    else:
                        todo.append(source)
        return [value for value in found if value.producer() is not None]

    def _sources(self, result: ir.Value) -> set[ir.Value]:
        """Returns the values of A that B computes a result from."""
        found, todo = set[ir.Value](), [result]
        for value in todo:
            node = value.producer()
            for source in () if node is None else values_read(node):
                if name_of(source) in self._a:
                    found.add(self._a[name_of(source)])
                elif source not in todo:
                    todo.append(source)
        return found


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
    return _computed(nodes, given, name_of(value), a.graph)


def _computed(nodes: Sequence[ir.Node], given: Mapping[str, Array], name: str, graph: ir.Graph) -> Array:
    """Computes a value of a graph in float64 by ONNX's reference implementation.

    Args:
        nodes: The nodes, in order.
        given: The values that they read, by name.
        name: The name of the value.
        graph: The graph. Its opsets apply.
    """
    protos = [_in_float64(ir.serde.serialize_node(node)) for node in nodes]
    feeds = {name: _wide(array) for name, array in given.items()}
    inputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in feeds]
    output = helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None)
    opsets = [helper.make_opsetid(domain, version) for domain, version in graph.opset_imports.items()]
    model = helper.make_model(helper.make_graph(protos, "reference", inputs, [output]), opset_imports=opsets)
    with np.errstate(all="ignore"):
        results: list[Any] = ReferenceEvaluator(model, new_ops=_OPERATORS).run(None, feeds)  # type: ignore[assignment]
    return np.asarray(results[0])


def error_of(result: Array, reference: Array, size: Array) -> float:
    """Returns the largest abs(result - reference), in units of 2**-24 * size.

    Rows with a reference that is not finite are skipped.

    Args:
        result, reference: The result, and the result in float64.
        size: The unit of each element, see :meth:`Fusion.size`; it broadcasts to the result.
    """
    finite = np.isfinite(reference).all(axis=-1, keepdims=True) if reference.ndim else np.isfinite(reference)
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


def _array_of(value: ir.Value, arrays: Mapping[str, Array]) -> Array:
    """Returns the elements of a value: the known ones, or those of a constant."""
    tensor = ir.convenience.get_const_tensor(value)
    return arrays[name_of(value)] if tensor is None else tensor.numpy()


def _is_integer(value: ir.Value) -> bool:
    """Returns whether a value is known to have integers, Booleans or texts."""
    return value.dtype is not None and not value.dtype.is_floating_point()


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
