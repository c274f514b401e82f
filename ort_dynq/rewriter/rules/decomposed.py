"""Chains of Div, Round, Add, Clip and Cast, as exporters write quantization with run-time scales.

QUANTIZE     round(x / s) | round(x * (1 / s)) | round(x * s), + zero point before or after, clip before or after, cast
DEQUANTIZE   (code - zero point) * s | code / s

Where scale and zero point follow from x's own range (ranges.py):
    range, scale, zero point, quantize                  -> DynamicRangeQuantize
    range, scale, zero point, quantize, dequantize      -> DynamicRangeFakeQuantize
Else:
    quantize                                            -> AffineQuantize
    quantize, dequantize                                -> AffineFakeQuantize
    dequantize                                          -> AffineDequantize
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..edit import Replacement, Spare, call, constant
from ..facts.inference import Facts
from ..facts.shapes import broadcasts, is_elementwise_of, lines_up, same_shape, unreshaped
from ..facts.values import cast_to, does_not_grow, is_given_by_caller, is_zero, op, same, scalar
from .range_chain import Recipe, Unrecognised, recipe_of

_DIVIDE, _MULTIPLY_RECIPROCAL, _MULTIPLY = range(3)
_ROUND_THEN_ADD, _ADD_THEN_ROUND, _NO_ADD = range(3)
_CODES = (ir.DataType.UINT8, ir.DataType.INT8)
_OLDEST_OPSET = 13
_HALF = 128  # of the codes, from int8 to uint8
_BOUNDS_GIVEN = "the bounds of the codes are given by the function's caller"
_LARGEST_CODE = 1 << 24  # integers up to here are floats


@dataclass
class Chain:
    """One quantization as its arithmetic is, whatever nodes it is written with.

    Attributes:
        x: What is quantized, float32.
        scale: Its scale, or the inverse of one (quotient 2); broadcasts to x.
        zero_point: The float32 value that is added; None if none is.
        quotient, order, clip: As AffineQuantize has them; clip is None where there is none.
        code_type: uint8 or int8 if codes become integers, else float32.
        output_dtype: The type that these have in the end: uint8 for int8 ones to which 128 is added.
        last: The chain's result: codes, or floats again.
        is_fake: Whether `last` is floats again.
        round: The node that rounds.
    """

    x: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    quotient: int
    order: int
    clip: tuple[int, int] | None
    code_type: ir.DataType
    output_dtype: ir.DataType
    last: ir.Value
    is_fake: bool
    round: ir.Node

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes that all operators for chains share."""
        low, high = self.clip or (-128, 127)
        return {
            "scaling": self.quotient,
            "rounding_order": self.order,
            "code_type": int(self.code_type),
            "output_dtype": int(self.output_dtype),
            "quant_min": low,
            "quant_max": high,
            "clip": int(self.clip is not None),
            "nan_code": 2 if self.code_type == ir.DataType.FLOAT else 0,
        }


def quantize(node: ir.Node, facts: Facts) -> Replacement | str | None:
    """The rule for chains around a Round."""
    if op(node.outputs[0], "Round") is not node:
        return None
    try:
        chain = _chain(node, facts)
    except Unrecognised as error:
        return str(error)
    if chain is None:
        return None
    if facts.opset < _OLDEST_OPSET:
        return f"the model is of opset {facts.opset}, expected {_OLDEST_OPSET} or newer"
    try:
        return _whole(chain)
    except Unrecognised as error:
        return _affine(chain, str(error))


def dequantize(node: ir.Node, facts: Facts) -> Replacement | str | None:
    """The rule for Cast(codes) [- Cast(zero point)] * scale, the codes having come from elsewhere."""
    if node.domain or node.op_type != "Mul" or facts.opset < _OLDEST_OPSET:
        return None
    for i in (0, 1):
        real, scale = node.inputs[i], node.inputs[1 - i]
        if real is None or scale is None or facts.is_constant(scale) or scale.dtype != ir.DataType.FLOAT:
            continue
        zero: ir.Value | None = None
        inner = same(real)
        if (sub := op(inner, "Sub")) is not None and only_use(inner) is not None:
            real, zero = sub.inputs[0], sub.inputs[1]
        codes = _uncast(real)
        if codes is None or facts.is_constant(codes) or same_shape(codes, scale):
            continue
        assert codes.dtype is not None
        zero_codes = None if zero is None else _uncast(zero)
        if zero is not None and (zero_codes is None or zero_codes.dtype != codes.dtype):
            continue
        if not broadcasts(scale, codes) or (zero_codes is not None and not same_shape(zero_codes, scale)):
            return "the scale's shape is not known to broadcast to that of the codes"
        nodes = []
        if zero_codes is None:
            zero_node = constant(np.zeros((), codes.dtype.numpy()))
            nodes, zero_codes = [zero_node], zero_node.outputs[0]
        call_ = call("AffineDequantize", [codes, scale, zero_codes])
        return Replacement("AffineDequantize", [*nodes, call_], {node.outputs[0]: call_.outputs[0]}, node)
    return None


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """The 8-bit integers of which `value` is the float form."""
    if value is None or (cast := op(same(value), "Cast")) is None or cast.inputs[0] is None:
        return None
    return cast.inputs[0] if cast.inputs[0].dtype in _CODES and cast_to(cast) == ir.DataType.FLOAT else None


def _chain(node: ir.Node, facts: Facts) -> Chain | None:
    """The chain around a Round; None if the Round is something else's."""
    order, clip, zero = _NO_ADD, None, None
    t = same(_required(node.inputs[0]))
    if (found := _clip(t)) is not None:
        order, (t, clip) = _ADD_THEN_ROUND, found
    if (add := op(t, "Add")) is not None and (parts := _quotient_and(add, facts)) is not None:
        order, (t, zero) = _ADD_THEN_ROUND, parts
    quotient = _quotient(t, facts)
    if quotient is None and (cast := op(t, "Cast")) is not None and cast.inputs[0] is not None:
        quotient = _quotient(same(cast.inputs[0]), facts)  # of another type than float32
    if quotient is None:
        return None
    x, scale, kind = quotient
    is_clipped_early = clip is not None
    if zero is None:
        order = _NO_ADD  # rounding a clipped number is clipping a rounded one, the bounds being integers
    if same_shape(x, scale) or is_elementwise_of(scale, _unsigned(x)):
        return None  # a zero point's own rounding
    if x.dtype != ir.DataType.FLOAT:
        raise Unrecognised(
            f"the type of x is {'not known' if x.dtype is None else x.dtype.name.lower()}, expected float32"
        )
    last = node.outputs[0]

    if order == _NO_ADD and clip is None and (use := only_use(last)) is not None and use.node.op_type == "Add":
        other = use.node.inputs[1 - use.idx]
        if other is not None:
            order, zero, last = _ROUND_THEN_ADD, other, use.node.outputs[0]
    if clip is None and (use := only_use(last)) is not None and use.node.op_type == "Clip" and use.idx == 0:
        found = _clip(use.node.outputs[0])
        if found is None:
            given = any(map(is_given_by_caller, use.node.inputs[1:]))
            raise Unrecognised(_BOUNDS_GIVEN if given else "the codes are not clipped to constant integers")
        clip, last = found[1], use.node.outputs[0]
    if zero is not None and scalar(zero) is not None and not (does_not_grow(zero, x) or broadcasts(zero, x)):
        raise Unrecognised("the zero point's shape is not known to broadcast to that of x")

    codes = _integers(last)
    chain = Chain(x, scale, zero, kind, order, clip, ir.DataType.FLOAT, ir.DataType.FLOAT, last, False, node)
    raised = _raised(codes or last) if codes is None or _type_of(codes) == ir.DataType.INT8 else None
    if codes is not None or raised is not None:
        chain.code_type = ir.DataType.INT8 if raised is not None else _type_of(_required(codes))
        chain.last = _required(raised or codes)
        chain.output_dtype = _type_of(chain.last)
        low, high = (0, 255) if chain.code_type == ir.DataType.UINT8 else (-128, 127)
        if clip is None or clip[0] < low or clip[1] > high:
            raise Unrecognised(f"codes are cast to {chain.code_type.name.lower()} without a clip to its range")
    elif clip is not None and 0 in clip and is_clipped_early != (order == _ADD_THEN_ROUND):
        raise Unrecognised(
            "codes that stay floats are clipped at 0, where the order of clip and rounding decides the sign"
        )
    fake = _fake(chain) if raised is None else None
    if fake is not None:
        chain.last, chain.is_fake = fake, True
    elif codes is None and raised is None:
        raise Unrecognised("the codes stay floats and are not dequantized by the same scale")
    return chain


def _unsigned(value: ir.Value) -> ir.Value:
    """What a value is the negative of, or the value."""
    node = op(same(value), "Neg")
    return value if node is None or node.inputs[0] is None else node.inputs[0]


def _required(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise Unrecognised("an input is missing")
    return value


class _Use(NamedTuple):
    node: ir.Node
    idx: int


def only_use(value: ir.Value) -> _Use | None:
    """The one use of a node's output by a standard operator of the same graph, Identity looked through."""
    while True:
        uses, producer = value.uses(), value.producer()
        if len(uses) != 1 or value.is_graph_output() or producer is None:
            return None
        use = _Use(*next(iter(uses)))
        if use.node.domain not in STANDARD_DOMAINS or use.node.graph is not producer.graph:
            return None
        if use.node.op_type != "Identity":
            return use
        value = use.node.outputs[0]


def _clip(value: ir.Value) -> tuple[ir.Value, tuple[int, int]] | None:
    """A Clip's input and its constant integer bounds."""
    node = op(value, "Clip")
    if node is None or len(node.inputs) < 3 or node.inputs[0] is None:
        return None
    low, high = scalar(node.inputs[1]), scalar(node.inputs[2])
    if low is None or high is None or not (low.is_integer() and high.is_integer() and low <= high):
        return None
    if max(-low, high) > _LARGEST_CODE or any(bound == 0 and not is_zero(bound) for bound in (low, high)):
        return None
    return same(node.inputs[0]), (int(low), int(high))


def _quotient_and(add: ir.Node, facts: Facts) -> tuple[ir.Value, ir.Value] | None:
    """An Add's quotient and its zero point."""
    for i in (0, 1):
        t, zero = add.inputs[i], add.inputs[1 - i]
        if t is not None and zero is not None and _quotient(same(t), facts) is not None:
            return same(t), zero
    return None


def _quotient(t: ir.Value, facts: Facts) -> tuple[ir.Value, ir.Value, int] | None:
    """x, the scale and how the one is divided by the other."""
    if (node := op(t, "Div")) is not None and None not in node.inputs:
        x, scale = _required(node.inputs[0]), _required(node.inputs[1])
        return None if facts.is_constant(scale) or scalar(x) is not None else (x, scale, _DIVIDE)
    if (node := op(t, "Mul")) is None:
        return None
    for i in (1, 0):
        x, factor = _required(node.inputs[1 - i]), _required(node.inputs[i])
        if facts.is_constant(factor):
            return None
        reciprocal = op(same(factor), "Reciprocal")
        if reciprocal is not None and not same_shape(x, factor):
            return x, _required(reciprocal.inputs[0]), _MULTIPLY_RECIPROCAL
    for i in (1, 0):
        x, factor = _required(node.inputs[1 - i]), _required(node.inputs[i])
        if not same_shape(x, factor) and broadcasts(factor, x):
            return x, factor, _MULTIPLY
    return None


def _integers(value: ir.Value) -> ir.Value | None:
    """What the one use of `value` casts it to, if that is 8-bit integers in the end."""
    use = only_use(value)
    if use is None or use.node.op_type != "Cast":
        return None
    to = cast_to(use.node)
    if to in _CODES:
        return use.node.outputs[0]
    return _integers(use.node.outputs[0]) if to == ir.DataType.INT32 else None


def _raised(value: ir.Value) -> ir.Value | None:
    """The uint8 codes, 128 larger than the int8 ones that `value` is or would be cast to."""
    use = only_use(value)
    if use is None or use.node.op_type != "Cast" or cast_to(use.node) != ir.DataType.INT32:
        return None
    add = only_use(use.node.outputs[0])
    if add is None or add.node.op_type != "Add" or scalar(add.node.inputs[1 - add.idx]) != _HALF:
        return None
    cast = only_use(add.node.outputs[0])
    if cast is None or cast.node.op_type != "Cast" or cast_to(cast.node) != ir.DataType.UINT8:
        return None
    return cast.node.outputs[0] if does_not_grow(add.node.inputs[1 - add.idx], value) else None


def _type_of(codes: ir.Value) -> ir.DataType:
    cast = codes.producer()
    assert cast is not None
    return cast_to(cast)


def _fake(chain: Chain) -> ir.Value | None:
    """The floats that the chain's codes become again, by the same scale and zero point, if that is their only use."""
    value = chain.last
    if chain.code_type != ir.DataType.FLOAT:
        use = only_use(value)
        if use is None or use.node.op_type != "Cast" or cast_to(use.node) != ir.DataType.FLOAT:
            return None
        value = use.node.outputs[0]
    if chain.zero_point is not None:
        use = only_use(value)
        if use is None or use.node.op_type != "Sub" or use.idx != 0:
            return None
        if not _is_same_number(use.node.inputs[1], chain.zero_point, chain.x):
            return None
        value = use.node.outputs[0]
    use = only_use(value)
    if use is None or use.node.op_type != ("Div" if chain.quotient == _MULTIPLY else "Mul"):
        return None
    if chain.quotient == _MULTIPLY and use.idx != 0:
        return None
    factor = use.node.inputs[1 - use.idx]
    return use.node.outputs[0] if factor is not None and same(factor) is same(chain.scale) else None


def _is_same_number(value: ir.Value | None, zero: ir.Value, x: ir.Value) -> bool:
    if value is None:
        return False
    number = scalar(value)
    if number is not None and number == scalar(zero):
        return (number != 0 or is_zero(number) == is_zero(scalar(zero))) and does_not_grow(value, x)
    return _root(value) is _root(zero)


def _root(value: ir.Value) -> ir.Value:
    """A value, or the integers of which it is the float form."""
    return _uncast(value) or same(value)


def _whole(chain: Chain) -> Replacement:
    """The chain from its range on, where scale and zero point follow from its x."""
    zero = None if is_zero(scalar(chain.zero_point)) else chain.zero_point
    low, high = chain.clip or (-128, 127)
    recipe = recipe_of(chain.x, chain.scale, zero, low, high)
    if (recipe.inverse == 1) != (chain.quotient == _MULTIPLY):
        raise Unrecognised("the scale is an inverse one and is used as a scale, or the other way round")
    if not chain.is_fake and recipe.zero_point_type not in (1, chain.code_type):
        raise Unrecognised("the zero point is of another type than the codes")
    for each in (chain.scale, zero):
        if each is not None and not lines_up(each, chain.x, recipe.axis, recipe.keepdims):
            raise Unrecognised("scale and zero point are not known to line up with the rows that they are the range of")
    return whole(chain.round, chain.x, chain.scale, zero, chain.last, recipe, chain.attributes, is_fake=chain.is_fake)


def whole(
    node: ir.Node,
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    last: ir.Value,
    recipe: Recipe,
    attributes: dict[str, int],
    *,
    is_fake: bool,
) -> Replacement:
    """DynamicRangeQuantize or DynamicRangeFakeQuantize in the place of everything between `x` and `last`.

    Raises:
        Unrecognised: The range is not found in the graph of `node`, which quantizes.
    """
    start = None if recipe.start is None else recipe.start.producer()
    if start is None or start.graph is not node.graph:
        raise Unrecognised("the range is found in another graph than that of the quantization")
    # Everything that is replaced is computed from `start` on; of x, the copy that is used need not be there yet.
    x = same(x)
    operator = "DynamicRangeFakeQuantize" if is_fake else "DynamicRangeQuantize"
    nodes = [constant(np.array(recipe.constants, np.float32))]
    if not is_fake:
        nodes.append(constant(np.zeros((), ir.DataType(attributes["output_dtype"]).numpy())))
    main = call(
        operator,
        [x, *(node.outputs[0] for node in nodes)],
        **attributes,
        axis=recipe.axis,
        range_kind=recipe.range,
        inverse_scale=recipe.inverse,
        zero_point_rule=recipe.zero_point_rule,
        zero_point_before_epsilon=recipe.zero_point_before_epsilon,
        zero_point_type=recipe.zero_point_type,
    )
    spares = [spare for old in (scale, unreshaped(scale)) if (spare := _spare(old, main.outputs[1], x)) is not None]
    # A zero point that is a float, and may be NaN, has no place among those of DynamicRangeQuantize, which are integers.
    has_zero_points = recipe.zero_point_type != ir.DataType.FLOAT or (is_fake and not recipe.is_int32)
    if zero_point is not None and has_zero_points and attributes["output_dtype"] == attributes["code_type"]:
        forms = dict.fromkeys((zero_point, _root(zero_point), unreshaped(_root(zero_point))))
        spares += [spare for old in forms if (spare := _spare(old, main.outputs[2], x)) is not None]
    return Replacement(operator, [*nodes, main], {last: main.outputs[0]}, start, spares)


def _spare(old: ir.Value, new: ir.Value, x: ir.Value) -> Spare | None:
    if old.shape is None or x.shape is None or old.dtype is None:
        return None
    missing = len(x.shape) - len(old.shape)
    return Spare(old, new, missing) if missing >= 0 else None


def _producer(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _affine(chain: Chain, reason: str) -> Replacement | str:
    """The chain with its scale and zero point as the model computes them."""
    if not broadcasts(chain.scale, chain.x):
        return f"{reason}; and the scale's shape is not known to broadcast to that of x"
    zero = None if is_zero(scalar(chain.zero_point)) else chain.zero_point
    if zero is not None and not (
        same_shape(zero, chain.scale) if scalar(zero) is None else does_not_grow(zero, chain.scale)
    ):
        return f"{reason}; and the zero point's shape is not known to be that of the scale"
    nodes = []
    zero_value = None if zero is None else _uncast(zero)
    if zero is None:
        number = _HALF if chain.output_dtype != chain.code_type else 0
        zero_node = constant(np.array(number, np.float32 if chain.is_fake else chain.output_dtype.numpy()))
        nodes, zero_value = [zero_node], zero_node.outputs[0]
    elif chain.is_fake:
        zero_value = zero_value or zero
    elif zero_value is None or zero_value.dtype != chain.output_dtype or chain.output_dtype != chain.code_type:
        return f"{reason}; and the zero point is of another type than the codes"
    assert zero_value is not None
    operator = "AffineFakeQuantize" if chain.is_fake else "AffineQuantize"
    node = call(operator, [chain.x, chain.scale, zero_value], **chain.attributes)
    last = chain.last.producer()
    assert last is not None
    return Replacement(operator, [*nodes, node], {chain.last: node.outputs[0]}, last)
