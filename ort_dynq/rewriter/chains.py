"""Chains of Div, Round, Add, Clip and Cast, as exporters write quantization with run-time scales.

QUANTIZE     round(x / s) | round(x * (1 / s)) | round(x * s), + zero point before or after, clip before or after, cast
DEQUANTIZE   (code - zero point) * s | code / s

Where scale and zero point follow from x's own range (ranges.py):
    range, scale, zero point, quantize                  -> RangeQuantize
    range, scale, zero point, quantize, dequantize      -> RangeFakeQuantize
Else:
    quantize                                            -> AffineQuantize
    quantize, dequantize                                -> AffineFakeQuantize
    dequantize                                          -> AffineDequantize
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from .analysis import Facts
from .constants import does_not_grow, op, same, scalar
from .ranges import Recipe, Unrecognised, recipe_of, unreshaped
from .replacement import Replacement, Spare, call, constant

_DIVIDE, _MULTIPLY_RECIPROCAL, _MULTIPLY = range(3)
_ROUND_THEN_ADD, _ADD_THEN_ROUND, _NO_ADD = range(3)
_CODES = (ir.DataType.UINT8, ir.DataType.INT8)
_OLDEST_OPSET = 13


@dataclass
class Chain:
    """One quantization as its arithmetic is, whatever nodes it is written with.

    Attributes:
        x: What is quantized, float32.
        scale: Its scale, or the inverse of one (quotient 2); broadcasts to x.
        zero_point: The float32 value that is added; None if none is.
        quotient, order, clip: As AffineQuantize has them; clip is None where there is none.
        code_type: uint8 or int8 if codes become integers, else float32.
        last: The chain's result: codes, or floats again.
        is_fake: Whether `last` is floats again.
        first: The node that divides.
    """

    x: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    quotient: int
    order: int
    clip: tuple[int, int] | None
    code_type: ir.DataType
    last: ir.Value
    is_fake: bool
    first: ir.Node

    @property
    def attributes(self) -> dict[str, int]:
        """The attributes that all operators for chains share."""
        low, high = self.clip or (-128, 127)
        return {
            "quotient": self.quotient,
            "order": self.order,
            "code_type": int(self.code_type),
            "quant_min": low,
            "quant_max": high,
            "clip": int(self.clip is not None),
            "nan": 2 if self.code_type == ir.DataType.FLOAT else 0,
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
        recipe = _whole(chain)
    except Unrecognised as error:
        return _affine(chain, str(error))
    return _range(chain, recipe)


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
        if (sub := op(inner, "Sub")) is not None and _only_user(inner) is not None:
            real, zero = sub.inputs[0], sub.inputs[1]
        codes = _uncast(real)
        if codes is None or facts.is_constant(codes):
            continue
        assert codes.dtype is not None
        zero_codes = None if zero is None else _uncast(zero)
        if zero is not None and (zero_codes is None or zero_codes.dtype != codes.dtype):
            continue
        if not _broadcasts(scale, codes) or (zero_codes is not None and not _same_shape(zero_codes, scale)):
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
    return cast.inputs[0] if cast.inputs[0].dtype in _CODES and cast.attributes.get_int("to", 0) == 1 else None


def _chain(node: ir.Node, facts: Facts) -> Chain | None:
    """The chain around a Round; None if the Round is something else's."""
    order, clip, zero = _NO_ADD, None, None
    t = same(_required(node.inputs[0]))
    if (found := _clip(t)) is not None:
        order, (t, clip) = _ADD_THEN_ROUND, found
    if (add := op(t, "Add")) is not None and (parts := _quotient_and(add, facts)) is not None:
        order, (t, zero) = _ADD_THEN_ROUND, parts
    quotient = _quotient(t, facts)
    if quotient is None or (order == _ADD_THEN_ROUND and zero is None and clip is None):
        return None
    x, scale, kind = quotient
    if order == _ADD_THEN_ROUND and zero is None:
        order = _NO_ADD  # rounding a clipped number is clipping a rounded one, the bounds being integers
    if x.dtype != ir.DataType.FLOAT:
        raise Unrecognised(f"the type of x is {'not known' if x.dtype is None else x.dtype.name.lower()}")
    if _same_shape(x, scale):
        return None  # a zero point's own rounding
    if not _broadcasts(unreshaped(scale) if scale.shape is None else scale, x):
        raise Unrecognised("the scale's shape is not known to broadcast to that of x")
    last = node.outputs[0]
    first = t.producer()
    assert first is not None

    if order == _NO_ADD and clip is None and (user := _only_user(last)) is not None and user.op_type == "Add":
        other = user.inputs[1] if user.inputs[0] is last else user.inputs[0]
        if other is not None and other is not last:
            order, zero, last = _ROUND_THEN_ADD, other, user.outputs[0]
    if clip is None and (user := _only_user(last)) is not None and user.op_type == "Clip" and user.inputs[0] is last:
        found = _clip(user.outputs[0])
        if found is None:
            raise Unrecognised("the codes are not clipped to constant integers")
        clip, last = found[1], user.outputs[0]
    if zero is not None and not (scalar(zero) is not None or _same_shape(zero, scale)):
        raise Unrecognised("the zero point's shape is not that of the scale")

    codes = _integers(last)
    chain = Chain(x, scale, zero, kind, order, clip, ir.DataType.FLOAT, last, False, first)
    if codes is not None:
        chain.code_type, chain.last = _type_of(codes), codes
        low, high = (0, 255) if chain.code_type == ir.DataType.UINT8 else (-128, 127)
        if clip is None or clip[0] < low or clip[1] > high:
            raise Unrecognised(f"codes are cast to {chain.code_type.name.lower()} without a clip to its range")
    fake = _fake(chain)
    if fake is not None:
        chain.last, chain.is_fake = fake, True
    elif codes is None:
        raise Unrecognised("the codes stay floats and are not dequantized by the same scale")
    return chain


def _required(value: ir.Value | None) -> ir.Value:
    if value is None:
        raise Unrecognised("an input is missing")
    return value


def _only_user(value: ir.Value) -> ir.Node | None:
    """The one node that uses a value, Identity looked through."""
    while True:
        uses = value.uses()
        if len(uses) != 1 or value.is_graph_output():
            return None
        node = next(iter(uses)).node
        if node.domain or node.op_type != "Identity":
            return None if node.domain else node
        value = node.outputs[0]


def _clip(value: ir.Value) -> tuple[ir.Value, tuple[int, int]] | None:
    """A Clip's input and its constant integer bounds."""
    node = op(value, "Clip")
    if node is None or len(node.inputs) < 3 or node.inputs[0] is None:
        return None
    low, high = scalar(node.inputs[1]), scalar(node.inputs[2])
    if low is None or high is None or not (low.is_integer() and high.is_integer() and low <= high):
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
        if reciprocal is not None and not _same_shape(x, factor) and _broadcasts(factor, x):
            return x, _required(reciprocal.inputs[0]), _MULTIPLY_RECIPROCAL
    for i in (1, 0):
        x, factor = _required(node.inputs[1 - i]), _required(node.inputs[i])
        if not _same_shape(x, factor) and _broadcasts(factor, x):
            return x, factor, _MULTIPLY
    return None


def _integers(value: ir.Value) -> ir.Value | None:
    """What the one use of `value` casts it to, if that is 8-bit integers in the end."""
    node = _only_user(value)
    if node is None or node.op_type != "Cast":
        return None
    to = node.attributes.get_int("to", 0)
    if to in _CODES:
        return node.outputs[0]
    return _integers(node.outputs[0]) if to == ir.DataType.INT32 else None


def _type_of(codes: ir.Value) -> ir.DataType:
    cast = codes.producer()
    assert cast is not None
    return ir.DataType(cast.attributes.get_int("to", 0))


def _fake(chain: Chain) -> ir.Value | None:
    """The floats that the chain's codes become again, by the same scale and zero point, if that is their only use."""
    value = chain.last
    if chain.code_type != ir.DataType.FLOAT:
        cast = _only_user(value)
        if cast is None or cast.op_type != "Cast" or cast.attributes.get_int("to", 0) != ir.DataType.FLOAT:
            return None
        value = cast.outputs[0]
    if chain.zero_point is not None:
        sub = _only_user(value)
        if sub is None or sub.op_type != "Sub" or not _is_same_number(sub.inputs[1], chain.zero_point):
            return None
        value = sub.outputs[0]
    node = _only_user(value)
    if node is None:
        return None
    if chain.quotient == _MULTIPLY:
        is_right = node.op_type == "Div" and same(_required(node.inputs[1])) is same(chain.scale)
    else:
        factors = [same(_required(factor)) for factor in node.inputs]
        is_right = node.op_type == "Mul" and same(chain.scale) in factors and factors[0] is not factors[1]
    return node.outputs[0] if is_right else None


def _is_same_number(value: ir.Value | None, zero: ir.Value) -> bool:
    if value is None:
        return False
    return _root(value) is _root(zero) or (scalar(value) is not None and scalar(value) == scalar(zero))


def _root(value: ir.Value) -> ir.Value:
    """A value, or the integers of which it is the float form."""
    return _uncast(value) or same(value)


def _same_shape(a: ir.Value, b: ir.Value) -> bool:
    return a.shape is not None and b.shape is not None and a.shape == b.shape and not _has_unknown(a.shape)


def _has_unknown(shape: ir.Shape) -> bool:
    return any(isinstance(dim, ir.SymbolicDim) and dim.value is None for dim in shape)


def _broadcasts(small: ir.Value, large: ir.Value) -> bool:
    """Whether `small` surely broadcasts to `large` without making it larger."""
    if small.shape is None or large.shape is None or len(small.shape) > len(large.shape):
        return False
    last = list(zip(reversed(small.shape), reversed(large.shape), strict=False))
    if all(mine == 1 or (mine == theirs and not _unknown(mine)) for mine, theirs in last):
        return True
    # [B, S] made [B', S', 1]: as many elements, and the last dimension of them shared.
    return len(small.shape) == len(large.shape) and len(last) > 0 and last[0][0] == 1


def _unknown(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, ir.SymbolicDim) and dim.value is None


def _whole(chain: Chain) -> Recipe:
    """How the chain's scale and zero point follow from its x."""
    zero = chain.zero_point
    if zero is not None and scalar(zero) == 0:
        zero = None
    low, high = chain.clip or (-128, 127)
    recipe = recipe_of(chain.x, chain.scale, zero, low, high)
    if (recipe.inverse == 1) != (chain.quotient == _MULTIPLY):
        raise Unrecognised("the scale is an inverse one and is used as a scale, or the other way round")
    if not chain.is_fake and recipe.zero_point_type not in (1, chain.code_type):
        raise Unrecognised("the zero point is of another type than the codes")
    return recipe


def _range(chain: Chain, recipe: Recipe) -> Replacement:
    return whole(
        chain.x,
        chain.scale,
        chain.zero_point,
        chain.last,
        recipe,
        {**chain.attributes},
        is_fake=chain.is_fake,
    )


def whole(
    x: ir.Value,
    scale: ir.Value,
    zero_point: ir.Value | None,
    last: ir.Value,
    recipe: Recipe,
    attributes: dict[str, int],
    *,
    is_fake: bool,
) -> Replacement:
    """RangeQuantize or RangeFakeQuantize in the place of everything between `x` and `last`."""
    operator = "RangeFakeQuantize" if is_fake else "RangeQuantize"
    nodes = [constant(np.array(recipe.constants, np.float32))]
    if not is_fake:
        nodes.append(constant(np.zeros((), ir.DataType(attributes["code_type"]).numpy())))
    node = call(
        operator,
        [x, *(node.outputs[0] for node in nodes)],
        **attributes,
        axis=recipe.axis,
        range=recipe.range,
        inverse=recipe.inverse,
        zero_point_form=recipe.zero_point_form,
        zero_point_before_epsilon=recipe.zero_point_before_epsilon,
        zero_point_type=recipe.zero_point_type,
    )
    spares = [spare for old in (scale, unreshaped(scale)) if (spare := _spare(old, node.outputs[1], x)) is not None]
    if zero_point is not None and scalar(zero_point) is None:
        forms = dict.fromkeys((zero_point, _root(zero_point), unreshaped(_root(zero_point))))
        spares += [spare for old in forms if (spare := _spare(old, node.outputs[2], x)) is not None]
    # Everything that uses the scale comes after the node that computes it, and x before.
    return Replacement(operator, [*nodes, node], {last: node.outputs[0]}, _producer(unreshaped(scale)), spares)


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
    nodes = []
    zero = chain.zero_point
    if zero is not None and scalar(zero) is not None and not does_not_grow(zero, chain.scale):
        zero = None if scalar(zero) == 0 else zero
        if zero is not None:
            return f"{reason}; and the zero point's shape is not that of the scale"
    zero_value = None if zero is None else _uncast(zero)
    if chain.is_fake:
        if zero is None:
            zero_node = constant(np.zeros((), np.float32))
            nodes, zero_value = [zero_node], zero_node.outputs[0]
        elif zero_value is None:
            zero_value = zero
    elif zero is None or scalar(zero) == 0:
        zero_node = constant(np.zeros((), chain.code_type.numpy()))
        nodes, zero_value = [zero_node], zero_node.outputs[0]
    elif zero_value is None or zero_value.dtype != chain.code_type:
        return f"{reason}; and the zero point is of another type than the codes"
    assert zero_value is not None
    operator = "AffineFakeQuantize" if chain.is_fake else "AffineQuantize"
    node = call(operator, [chain.x, chain.scale, zero_value], **chain.attributes)
    return Replacement(operator, [*nodes, node], {chain.last: node.outputs[0]}, _producer(chain.last))
