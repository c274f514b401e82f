"""The rule for QMoE, ONNX Runtime's mixture of experts with quantized weights.

QMoE    -> QuantizedExperts

ONNX Runtime's kernel quantizes the activations of experts at run time, as MatMulNBits of accuracy_level 4 does, if the
weights have blocks, and 8 bits, or 4 and accuracy_level 4. Here each block gets 256 codes: their steps are never
larger. Other experts compute with the activation as floats: they stay, unless `weights_only` says how to quantize them.
With `weights_only` "two-term", the activations of all experts get two codes.

What the kernel for CPUs ignores is ignored: use_sparse_mixer, and normalize_routing_weights without router_weights,
since the softmax of the chosen scores has the sum 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...operators.program import literal
from ...opsets import OPSET
from ..analysis.nodes import first_inputs
from ..analysis.types import check_type
from ..chains.quantize_linear import is_rounded, reads_rounded
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from ..weights.expert_weights import ExpertWeights, check_experts, weights_of
from ..weights.nbits import FLOATS, QUANTIZED_LEVEL
from .provenance import note_activation
from .weights_only import remark_on_codes

_BITS = (2, 4, 8)
# The inputs: codes, scales, biases and zero points of a product.
_FC1, _FC2, _FC3 = (2, 3, 4, 11), (5, 6, 7, 12), (8, 9, 10, 13)
_ROUTER_WEIGHTS = 14
_PROGRAMS = {
    "identity": "dst = x",
    "relu": "dst = Clip(x, 0.0, inf)",
    "silu": "dst = Mul(x, Sigmoid(x))",
    # x * (1 + tanh(y)) / 2 = x * sigmoid(2 * y)
    "gelu": "dst = Mul(x, Sigmoid(Mul(Add(x, Mul(Mul(Mul(x, x), x), 0.044715)), 1.5957691216)))",
}


@dataclass(frozen=True)
class Mixture:
    """A mixture of experts that is converted.

    Attributes:
        activation, router: The inputs of these names.
        router_weights: The input of this name; None if there is none.
        first, second: The weights of both products.
        program: The activation function.
        terms: The codes that an element of an activation gets.
    """

    activation: ir.Value
    router: ir.Value
    router_weights: ir.Value | None
    first: ExpertWeights
    second: ExpertWeights
    program: str
    terms: int


def _match(node: ir.Node, context: Context) -> Mixture | None:
    number, text = node.attributes.get_int, node.attributes.get_string
    level, bits, block_size = number("accuracy_level", 0), number("expert_weight_bits", 4), number("block_size", 0)
    is_quantized = block_size > 0 and (bits > 4 or (bits == 4 and level == QUANTIZED_LEVEL))
    if not is_quantized and context.options.weights_only == "keep":
        raise Unconverted(Reason.EXPERTS_FLOAT_ACTIVATION, level=level, block_size=block_size)
    if context.options.exact:
        raise Unconverted(Reason.EXACT)
    if (kind := text("quant_type", "int")) != "int":
        raise Unconverted(Reason.EXPERTS_ATTRIBUTE, name="quant_type", value=kind)
    for name in ("weights_prepacked", "swiglu_limit_after_activation"):
        if (value := number(name, 0)) > 0:
            raise Unconverted(Reason.EXPERTS_ATTRIBUTE, name=name, value=value)
    if bits not in _BITS:
        raise Unconverted(Reason.EXPERTS_WIDTH, bits=bits)
    for name in ("fc1_expert_weight_bits", "fc2_expert_weight_bits", "fc3_expert_weight_bits"):
        if (value := number(name, bits)) != bits:
            raise Unconverted(Reason.EXPERTS_ATTRIBUTE, name=name, value=value)
    if block_size < 0 or block_size % 16:
        raise Unconverted(Reason.GROUPS_UNIT, group_size=block_size, unit=16)
    inputs = first_inputs(node, 21)
    if any(each is not None for each in inputs[_ROUTER_WEIGHTS + 1 :]):
        raise Unconverted(Reason.EXPERTS_ATTRIBUTE, name="fc1_global_scale", value="an input")
    activation, router = inputs[:2]
    if activation is None or router is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=int(activation is not None))
    check_type("the activation", activation, FLOATS)
    program, gates, interleaved = _activation(node, has_fc3=inputs[_FC3[0]] is not None)
    codes = _shape_of(inputs[_FC1[0]], "fc1_experts_weights")
    second_codes = _shape_of(inputs[_FC2[0]], "fc2_experts_weights")
    depths = [shape[2] * 8 // bits for shape in (codes, second_codes)]
    for depth in depths:
        if block_size and depth % block_size:
            raise Unconverted(Reason.NBITS_SHAPE, what="columns of the weights", size=depth, expected="whole blocks")
    first = weights_of(node, gates, depths[0], context.facts, interleaved=interleaved)
    second = weights_of(node, (_FC2,), depths[1], context.facts, interleaved=False)
    expected = depths[1] * (2 if "tensor1" in program else 1), depths[0]
    for name, size, needed in zip(("fc1", "fc2"), (first.columns, second.columns), expected, strict=True):
        if size != needed:
            raise Unconverted(Reason.NBITS_SHAPE, what=f"results of {name}", size=size, expected=needed)
    check_experts((*first.parts, *second.parts))
    _check_chosen(node, router, first.experts)
    terms = 2 if context.options.weights_only == "two-term" else 1
    return Mixture(activation, router, inputs[_ROUTER_WEIGHTS], first, second, program, terms)


def _activation(node: ir.Node, *, has_fc3: bool) -> tuple[str, tuple[tuple[int, int, int, int], ...], bool]:
    """Returns the program, the inputs of the first product, and whether gates are interleaved.

    Raises:
        Unconverted: There is no such program.
    """
    kind, fusion = node.attributes.get_string("activation_type", "relu"), node.attributes.get_int("swiglu_fusion", 0)
    if kind in _PROGRAMS and not has_fc3 and not fusion:
        return _PROGRAMS[kind], (_FC1,), False
    if kind != "swiglu" or has_fc3 == (fusion > 0) or fusion not in (0, 1, 2):
        raise Unconverted(Reason.EXPERTS_ACTIVATION, kind=kind, fusion=fusion, fc3="with" if has_fc3 else "without")
    number = node.attributes.get_float
    alpha, beta = number("activation_alpha", 1.0), number("activation_beta", 0.0)
    limit = number("swiglu_limit", math.inf)
    for name, value in (("activation_alpha", alpha), ("activation_beta", beta), ("swiglu_limit", limit)):
        # ONNX Runtime ends the process at a negative limit: the range is empty.
        if math.isnan(value) or (name == "swiglu_limit" and value < 0):
            raise Unconverted(Reason.EXPERTS_ATTRIBUTE, name=name, value=str(value))
    gate, linear = "x", "tensor1"
    if limit < math.inf:
        gate = f"Clip(x, -inf, {literal(limit)})"
        linear = f"Clip(tensor1, {literal(-limit)}, {literal(limit)})"
    scaled = gate if alpha == 1 else f"Mul({gate}, {literal(alpha)})"
    added = linear if beta == 0 else f"Add({linear}, {literal(beta)})"
    program = f"dst = Mul(Mul({gate}, Sigmoid({scaled})), {added})"
    return program, (_FC1, _FC3) if has_fc3 else (_FC1,), fusion == 1


def _check_chosen(node: ir.Node, router: ir.Value, experts: int) -> None:
    """Checks that the router scores all experts, and that a token may choose `k` of them.

    Raises:
        Unconverted: It does not.
    """
    k = node.attributes.get_int("k", 1)
    if not 1 <= k <= experts:
        raise Unconverted(Reason.EXPERTS_CHOSEN, k=k, experts=experts)
    scores = router.shape[-1] if router.shape else experts
    if isinstance(scores, int) and scores != experts:
        raise Unconverted(Reason.EXPERTS_SCORES, scores=scores, experts=experts)


def _shape_of(value: ir.Value | None, name: str) -> tuple[int, ...]:
    """Returns the shape of weights.

    Raises:
        Unconverted: It is not known, or has not three dimensions.
    """
    shape = None if value is None or value.shape is None else value.shape
    if shape is None or len(shape) != 3 or not shape.is_static():
        raise Unconverted(Reason.EXPERTS_SHAPE, name=name)
    return tuple(int(each) for each in shape.numpy())


def _build(match: Mixture, edit: Edit) -> None:
    node, shared = edit.node, edit.shared(SharedInitializers)
    assert isinstance(node.graph, ir.Graph)
    graph = edit.facts.model.graph
    inputs, dtype = [match.activation, match.router, *filter(None, [match.router_weights])], match.activation.dtype
    assert dtype is not None
    has_casts = dtype == ir.DataType.FLOAT16 and not _is_certainly_rounded(inputs, node.outputs[0])
    if has_casts:
        dtype = ir.DataType.FLOAT
        to_float = {"to": int(dtype)}
        inputs = [edit.insert(ir.node("Cast", [each], to_float), before=node) for each in inputs]
    if match.router_weights is None:
        inputs.append(shared.of(np.zeros(0, dtype.numpy()), edit))
    for weights in (match.first, match.second):
        inputs += [
            shared.of_source((compute.__name__, *weights.source), compute, graph, edit)
            for compute in (weights.packed, weights.weight_zero_point, weights.column_scale, weights.bias)
        ]
    main = call(
        "QuantizedExperts",
        inputs,
        program=match.program,
        k=node.attributes.get_int("k", 1),
        normalize=node.attributes.get_int("normalize_routing_weights", 0),
        bits=match.first.stored_bits,
        group_size=match.first.block_size,
        terms=match.terms,
    )
    result = edit.insert_main(main, before=node)
    if has_casts:
        result = edit.insert(ir.node("Cast", [result], {"to": int(ir.DataType.FLOAT16)}), before=node)
    edit.replace(node.outputs[0], result)
    note_activation(edit, match.activation)
    edit.note = f"{match.first.experts} experts: {remark_on_codes(match.terms, match.first.block_size)}"


def _is_certainly_rounded(inputs: Sequence[ir.Value], result: ir.Value) -> bool:
    """Returns whether ONNX Runtime rounds float16 inputs and results with the plugin and without it.

    Beside a node that it computes in float32, it rounds those of an operator, but not of a function.
    """
    return all(map(is_rounded, inputs)) and all(reads_rounded(use.node) for use in result.uses())


RULE = Rule("QMoE", OPSET, _match, _build, reports_opset=True, operators=(f"{MICROSOFT}.QMoE",))
