"""The QuantizeLinear and DequantizeLinear nodes that ONNX Runtime's CPU provider fuses correctly.

At its default optimization level ONNX Runtime replaces DequantizeLinear -> operator [-> QuantizeLinear] by one integer
kernel. Many of these fusions do not require constant scales, so they apply to run-time scales too. A node in a correct
fusion must stay. Where the fusion is wrong, the node must be converted, which repairs the model; most wrong fusions
treat every scale as per tensor, so that the session fails or returns wrong numbers.

Products of uint8 and int8 codes are wrong on some CPUs, since they saturate (saturation.py). They and all other
products of constant weights become ours, unless `keep_products` is set: QuantizedMatMul is exact on every CPU.

Read from ONNX Runtime's sources and tested with 1.31.1 on x86-64. Paths below are relative to
onnxruntime/core/optimizer/.

- Fused and correct, but not listed, since the kernels are slower than the nodes that they replace (one thread): Gemm of
  s8 codes (QGemm 8.2 ms, unfused 3.0), Where (3.6, 0.4), AveragePool (3.8, 0.4), Softmax (1.3, 0.3).
- Fused, but not listed, since the fusion rounds float weights to 8 bits: Gemm and Conv with constant float weights,
  between a DequantizeLinear and a QuantizeLinear (qdq_transformer/weight_bias_quantization.cc).
- Never fused, since they require constant scales: Reshape, Transpose, MaxPool, Resize, Split, ArgMax and similar ones
  (qdq_selectors.cc, DropQDQNodeGroupSelector, DropDQNodeGroupSelector), MatMulNBits (DQMatMulNodeGroupSelector), and a
  Conv with a bias.
"""

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.inference import Facts
from ..analysis.nodes import data_type, input_of
from ..analysis.standard import CLIPPING, FUSIBLE_PRODUCTS, LINEAR, MATMULS, POOLS
from ..reasons import Reason, Unconverted
from ..rule import Context

_UINT8 = ir.DataType.UINT8
_U8 = frozenset({_UINT8})
_8BIT = frozenset({ir.DataType.UINT8, ir.DataType.INT8})
_OPERANDS = 2


@dataclass(frozen=True)
class _Group:
    """One pattern: a DequantizeLinear at every input, the operator, a QuantizeLinear at its one output."""

    kernel: str  # the fused kernel
    float_kernel: str = ""  # the kernel without a QuantizeLinear; empty if that is required
    codes: frozenset[ir.DataType] = _8BIT  # the types of input 0; the output has the same type
    any_weights: bool = False  # input 1 may have the other 8-bit type
    channel_axis: int | None = None  # the axis along which input 1 may have one scale for each index
    rank_0: bool = False  # the kernel's schema rejects scales of shape [1]
    zero_points: bool = False  # every DequantizeLinear needs a zero point


# qdq_transformer/selectors_actions/qdq_selector_action_transformer.cc lists the operators that are fused. The selectors
# named here (qdq_selectors.cc) have the conditions. The schemas and checks of the kernels tell which are correct.
_GROUPS = {
    "MatMul": _Group("QLinearMatMul", "MatMulIntegerToFloat", _U8, True, channel_axis=1),  # MatMulNodeGroupSelector
    "Gemm": _Group("QGemm", "QGemm", _U8, True, channel_axis=1, zero_points=True),  # GemmNodeGroupSelector
    "Conv": _Group("QLinearConv", "", _U8, True, channel_axis=0),  # ConvNodeGroupSelector
    "Add": _Group("QLinearAdd", rank_0=True),  # BinaryNodeGroupSelector
    "Mul": _Group("QLinearMul", rank_0=True),
    "Concat": _Group("QLinearConcat"),  # VariadicNodeGroupSelector
    "Sigmoid": _Group("QLinearSigmoid"),  # UnaryNodeGroupSelector
    "LeakyRelu": _Group("QLinearLeakyRelu"),
    "GlobalAveragePool": _Group("QLinearGlobalAveragePool"),
}


# Every operator that is fused after a DequantizeLinear, including operators with wrong or slow kernels.
_FUSED = frozenset(_GROUPS) | POOLS | {"Softmax", "Where"}


def fused_by_onnxruntime(
    node: ir.Node, is_constant: Callable[[ir.Value | None], bool], *, keep_products: bool = True
) -> Unconverted | None:
    """Returns the reason why a node must stay, or None.

    Args:
        node: A QuantizeLinear or DequantizeLinear with run-time parameters.
        is_constant: Facts.is_constant().
        keep_products: Whether nodes stay that are fused with a product of constant weights, or one that saturates.
    """
    fusions = _Fusions(is_constant, keep_products)
    pair = fusions.unsigned_pair(node)
    others = [other for other in pair or () if other is not node]
    return next((reason for n in [node, *others] if (reason := fusions.reason(n))), None)


def is_dynamic(node: ir.Node, op_type: str, facts: Facts) -> bool:
    """Returns whether a node is an `op_type` with run-time parameters."""
    if node.domain not in STANDARD_DOMAINS or node.op_type != op_type:
        return False
    if len(node.inputs) < 2 or None in node.inputs[:2]:
        return False
    return not all(facts.is_constant(parameter) for parameter in node.inputs[1:])


def fused(node: ir.Node, context: Context) -> Unconverted | None:
    """Returns why a QuantizeLinear or DequantizeLinear must stay if ONNX Runtime fuses it correctly.

    Exact results need float products, which are slow without ONNX Runtime's fusions: then these stay.
    """
    keep_products = context.options.keep_fused or context.options.exact
    return fused_by_onnxruntime(node, context.facts.is_constant, keep_products=keep_products)


def check_fused(product: ir.Node, context: Context) -> None:
    """Checks that ONNX Runtime does not fuse a product correctly with a DequantizeLinear before it.

    Raises:
        Unconverted: It does.
    """
    for value in product.inputs:
        dq = None if value is None else dequantizer(value)
        if dq is not None and is_dynamic(dq, "DequantizeLinear", context.facts) and (why := fused(dq, context)):
            raise why


def is_next_to_fused(node: ir.Node) -> bool:
    """Returns whether ONNX Runtime may fuse an operator next to `node`, correctly or not.

    For a QuantizeLinear, this is an operator before it that has a DequantizeLinear as an input. For a DequantizeLinear,
    it is an operator after it.
    """
    if node.op_type == "QuantizeLinear":
        return any(dequantizer(value) for each in _producers(node) for value in each.inputs if value is not None)
    return any(each.op_type in _FUSED for each in _consumers(node))


def is_fused_with_neighbors(node: ir.Node, is_constant: Callable[[ir.Value | None], bool]) -> bool:
    """Returns whether a node is a part of a correct fusion: the operator between a DequantizeLinear and others.

    Args:
        node: A node of any operator.
        is_constant: Facts.is_constant().
    """
    if node.op_type not in _FUSED | CLIPPING:
        return False
    around = [value.producer() for value in node.inputs if value is not None]
    around += [use.node for output in node.outputs for use in output.uses() if use.idx == 0]
    linear = (each for each in around if each is not None and each.op_type in LINEAR)
    return any(fused_by_onnxruntime(each, is_constant) is not None for each in linear)


def saturating_weights(node: ir.Node, is_constant: Callable[[ir.Value | None], bool]) -> ir.Value | None:
    """Returns the int8 weights if a float product becomes one of uint8 by int8 codes, which saturates; else None.

    Unlike the other functions, this one also knows products of constant scales.

    Args:
        node: A node of any operator.
        is_constant: Facts.is_constant().
    """
    return _Fusions(is_constant).saturating_weights(node)


class _Fusions:
    def __init__(self, is_constant: Callable[[ir.Value | None], bool], keep_products: bool = True) -> None:
        self._is_constant, self._keep_products = is_constant, keep_products

    def reason(self, node: ir.Node) -> Unconverted | None:
        """Returns which correct fusion `node` belongs to, as the reason why it stays, or None."""
        targets = _consumers(node) if node.op_type == "DequantizeLinear" else _producers(node)
        return next((reason for target in targets if (reason := self._group(target, node))), None)

    def _group(self, op: ir.Node, member: ir.Node) -> Unconverted | None:
        """Returns the correct fusion of `op` and the nodes around it, if `member` is one of them, or None."""
        group = _GROUPS.get(op.op_type) if op.domain == "" else None
        if group is None or len(op.outputs) != 1 or not (self._keep_products or self._is_left(op)):
            return None
        inputs, output, transposed = [v for v in op.inputs if v is not None], op.outputs[0], False
        bias = _added_bias(op)
        if bias is not None:  # it becomes a Gemm, after a Reshape unless it is a matrix
            if _rank(inputs[0]) != 2:
                return None
            group, output, inputs = _GROUPS["Gemm"], _users(output)[0].outputs[0], [*inputs, bias]
        elif op.op_type == "Gemm":
            transposed = op.attributes.get_int("transB", 0) != 0
        fusible, q = self._quantizer(output)
        if not fusible or (q is None and not group.float_kernel):
            return None
        if group is _GROUPS["Gemm"] and len(inputs) == 3:
            if not self._bias_is_right(op, inputs, q):
                return None
            if inputs.pop().producer() is member:
                member = dequantizer(inputs[0]) or member  # a DQ of the bias is fused if the other DQs are
        dqs = [dequantizer(v) for v in inputs]
        if (op.op_type == "Conv" and len(dqs) != 2) or not self._types_are_right(group, dqs, q):
            return None
        for i, (value, dq) in enumerate(zip(inputs, dqs, strict=True)):
            assert dq is not None
            axis = (0 if transposed else group.channel_axis) if i == 1 else None
            has_zero_point = _zero_point(dq) is not None
            if value is not dq.outputs[0]:  # a constant is transposed; otherwise a per-tensor Q -> DQ follows
                is_constant = self._is_constant(dq.inputs[0])
                if is_constant and not has_zero_point:  # the Transpose becomes part of a FusedMatMul first
                    return None
                transpose = value.producer()
                is_written_out = transpose is not None and "perm" in transpose.attributes  # otherwise scales prevent it
                axis = 1 - axis if is_constant and is_written_out and axis is not None else None
            if (group.zero_points and not has_zero_point) or not _scale_is_right(dq, axis, group.rank_0):
                return None
        if (q is not None and not _scale_is_right(q, None, group.rank_0)) or (member is not q and member not in dqs):
            return None
        chain = ", ".join(["DequantizeLinear"] * len(dqs)) + f" -> {op.op_type}" + (" -> QuantizeLinear" if q else "")
        return Unconverted(Reason.FUSED, nodes=chain, kernel=group.kernel if q else group.float_kernel)

    def _is_left(self, op: ir.Node) -> bool:
        """Returns whether an operator stays ONNX Runtime's if products of constant weights become ours."""
        if op.op_type in MATMULS:
            weights = None if len(op.inputs) < _OPERANDS or op.inputs[1] is None else dequantizer(op.inputs[1])
            if weights is not None and self._is_constant(weights.inputs[0]):
                return False
        return self.saturating_weights(op) is None

    def saturating_weights(self, op: ir.Node) -> ir.Value | None:
        """See the function of this name."""
        if op.domain != "" or op.op_type not in FUSIBLE_PRODUCTS or len(op.inputs) < _OPERANDS:
            return None
        a, b = (None if value is None else dequantizer(value) for value in op.inputs[:_OPERANDS])
        if a is None or b is None or self._fused_type(a) != _UINT8 or self._fused_type(b) != ir.DataType.INT8:
            return None
        fusible, q = self._quantizer(op.outputs[0])
        if not fusible or (q is None and not _GROUPS[op.op_type].float_kernel):
            return None
        weights = b.inputs[0]
        if op.op_type == "Conv" and weights is not None and weights.shape is not None and weights.shape[1] == 1:
            return None  # depthwise: another kernel
        return weights

    def _quantizer(self, value: ir.Value) -> tuple[bool, ir.Node | None]:
        """Returns whether an operator's output allows a fusion, and its QuantizeLinear if there is one.

        NodeGroupSelector (GetQDQSelection, CheckQDQNodes): a Q must be the only consumer, and a single Relu or Clip
        with a single consumer prevents the fusion. ReluQuantFusion (qdq_transformer/relu_quantizelinear.cc) runs
        before: it drops a Relu if its Q has the lowest code as its constant zero point.
        """
        users = _users(value)
        if len(users) == 1 and users[0].op_type in CLIPPING and (after := _sole_user(users[0])):
            if users[0].op_type == "Clip" or after.op_type != "QuantizeLinear":
                return False, None
            if self._constant_zero_point(after) != (-128 if code_type(after) == ir.DataType.INT8 else 0):
                return False, None
            users = [after]
        q = next((n for n in users if n.op_type == "QuantizeLinear"), None)
        return q is None or (len(users) == 1 and not value.is_graph_output()), q

    def _types_are_right(self, group: _Group, dqs: list[ir.Node | None], q: ir.Node | None) -> bool:
        types = [None if dq is None else self._fused_type(dq) for dq in dqs]
        if not types or types[0] not in group.codes:
            return False
        if any(t not in _8BIT if group.any_weights else t != types[0] for t in types[1:]):
            return False
        if q is None:
            return True
        # SetOptionalZeroPoint (qdq_actions.cc) adds a u8 zero point to a Q that has none: the session fails for s8.
        return self._fused_type(q) == types[0] and (_zero_point(q) is not None or types[0] == ir.DataType.UINT8)

    def _bias_is_right(self, op: ir.Node, inputs: list[ir.Value], q: ir.Node | None) -> bool:
        """Returns whether QGemm takes the bias. It ignores the bias' scale, which must be the product of the others.

        Either the model computes that product, or WeightBiasQuantization
        (qdq_transformer/weight_bias_quantization.cc) does, for a constant vector in front of a Q.
        """
        if any(op.attributes.get_float(name, 1.0) != 1.0 for name in ("alpha", "beta")):
            return False
        dq = inputs[2].producer()
        if dq is None or dq.op_type != "DequantizeLinear":
            return q is not None and self._is_constant(inputs[2]) and _rank(inputs[2]) == 1
        a, b = dequantizer(inputs[0]), dequantizer(inputs[1])
        product = dq.inputs[1].producer() if dq.inputs[1] is not None else None
        if a is None or b is None or product is None or product.op_type != "Mul" or _zero_point(dq) is not None:
            return False
        return code_type(dq) == ir.DataType.INT32 and set(product.inputs) == {a.inputs[1], b.inputs[1]}

    def unsigned_pair(self, node: ir.Node) -> tuple[ir.Node, ir.Node] | None:
        """Returns the s8 Q -> DQ pair of `node` that ONNX Runtime changes to u8: neither may be converted alone.

        qdq_transformer/qdq_s8_to_u8.cc, on x86: one constant zero point, and one consumer each. (A DQ with more
        consumers is duplicated before, qdq_transformer/ensure_unique_dq_for_node_unit.cc.) The scale may be a run-time
        one.
        """
        q = node if node.op_type == "QuantizeLinear" else node.inputs[0].producer() if node.inputs[0] else None
        if q is None or q.op_type != "QuantizeLinear" or code_type(q) != ir.DataType.INT8:
            return None
        dq = _sole_user(q)
        if dq is None or dq.op_type != "DequantizeLinear":
            return None
        if len(_users(dq.outputs[0])) + dq.outputs[0].is_graph_output() > 1:
            return None
        zero_point = self._constant_zero_point(q)
        return (q, dq) if zero_point is not None and zero_point == self._constant_zero_point(dq) else None

    def _fused_type(self, node: ir.Node) -> ir.DataType | None:
        return ir.DataType.UINT8 if self.unsigned_pair(node) else code_type(node)

    def _constant_zero_point(self, node: ir.Node) -> int | None:
        value = _zero_point(node)
        array = value.const_value if value is not None and self._is_constant(value) else None
        return int(array.numpy().item()) if array is not None and array.size == 1 else None


def _added_bias(op: ir.Node) -> ir.Value | None:
    """Returns the bias that is added to a MatMul, if the two become a Gemm (matmul_add_fusion.cc)."""
    add = _sole_user(op) if op.op_type == "MatMul" else None
    if add is None or add.op_type != "Add" or add.domain != "":
        return None
    bias = add.inputs[1] if add.inputs[0] is op.outputs[0] else add.inputs[0]
    a, b = (None if v is None else v.shape for v in op.inputs)
    if bias is None or bias.shape is None or a is None or b is None or len(b) != 2:
        return None
    matrix, rows, columns = len(a) == 2, a[0], b[1]
    if not matrix and not (a.is_static() and b.is_static()):
        return None
    shape = tuple(bias.shape)
    fits = shape == (columns,) or (matrix and shape in ((1, columns), (rows, 1), (rows, columns)))
    return bias if fits else None


def _scale_is_right(node: ir.Node, axis: int | None, rank_0: bool) -> bool:
    """Returns whether the scale is known to be per tensor or, for a matrix or filter, along `axis`."""
    x, scale, zero_point = node.inputs[0], node.inputs[1], _zero_point(node)
    if scale is None or scale.shape is None or scale.dtype not in (None, ir.DataType.FLOAT):
        return False
    if len(scale.shape) == 0 or tuple(scale.shape) == (1,):
        return not rank_0 or (len(scale.shape) == 0 and (zero_point is None or _rank(zero_point) in (None, 0)))
    rank = None if x is None else _rank(x)
    if axis is None or rank is None or len(scale.shape) != 1 or (axis == 1 and rank != 2):
        return False
    return node.attributes.get_int("axis", 1) % rank == axis


def code_type(node: ir.Node) -> ir.DataType | None:
    """Returns the type of the codes of a Q or DQ node; None if it is not known."""
    zero_point, quantizes = _zero_point(node), node.op_type == "QuantizeLinear"
    codes = node.outputs[0] if quantizes else node.inputs[0]
    if codes is not None and codes.dtype is not None:
        return codes.dtype
    if zero_point is not None or not quantizes:
        return None if zero_point is None else zero_point.dtype
    return data_type(node, "output_dtype") or ir.DataType.UINT8


def _zero_point(node: ir.Node) -> ir.Value | None:
    return input_of(node, 2)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _users(value: ir.Value) -> list[ir.Node]:
    return [use.node for use in value.uses()]


def _sole_user(node: ir.Node) -> ir.Node | None:
    """Returns the only consumer of a node's output; None if there are others or the output is a graph output."""
    uses = list(node.outputs[0].uses())
    return uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None


def _consumers(dq: ir.Node) -> list[ir.Node]:
    """Returns the operators that use a DQ's output in its graph, directly or through a Transpose with one consumer.

    MakeQDQNodeUnit (transpose_optimization/onnx_transpose_optimization.cc) inserts a Q -> DQ after that Transpose.
    """
    users = [n for n in _users(dq.outputs[0]) if n.graph is dq.graph]
    after = [_sole_user(n) for n in users if n.op_type == "Transpose"]
    return [*users, *(n for n in after if n is not None)]


def _producers(q: ir.Node) -> list[ir.Node]:
    """Returns the operators that a Q may be fused with: its producer, and those before a Relu or an added bias."""
    first = q.inputs[0].producer() if q.inputs[0] is not None else None
    found = [] if first is None else [first]
    found += _before(found, "Relu")
    return found + _before(found, "Add")


def _before(nodes: list[ir.Node], op_type: str) -> list[ir.Node]:
    return [p for n in nodes if n.op_type == op_type for v in n.inputs if v and (p := v.producer())]


def dequantizer(value: ir.Value) -> ir.Node | None:
    """Returns the DQ that computes `value`, directly or through a Transpose (see `_consumers`)."""
    node = value.producer()
    if node is not None and node.op_type == "Transpose" and _sole_user(node) and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node if node is not None and node.op_type == "DequantizeLinear" else None
