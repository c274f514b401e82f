"""The rules for quantization written with primitive operators: Div, Round, Add, Clip, Cast, Mul.

torch, torchao, compressed-tensors, BitNet and SmoothQuant export such chains.

range, scale, zero point, quantize                  -> DynamicRangeQuantize
range, scale, zero point, quantize, dequantize      -> DynamicRangeFakeQuantize
quantize                                            -> AffineQuantize
quantize, dequantize                                -> AffineFakeQuantize
dequantize                                          -> AffineDequantize

arithmetic.py recognizes quantize and dequantize. The first two apply if the scale and the zero point are computed from
the range of x (range_scale.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...operators.encodings import CodeType, Scaling
from ...opsets import OPSET
from ..analysis.constants import constant_scalar
from ..analysis.nodes import only_use, producer_of, skip_identity, uncast
from ..analysis.shapes import broadcasts, does_not_grow, lines_up, same_shape
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .arithmetic import UINT8_OFFSET, Chain, chain_of
from .range_chain import RangeChain, build_range_chain
from .range_scale import recipe_of


@dataclass(frozen=True)
class _AffineChain:
    """A chain with its scale and zero point as the model computes them. No zero point means the constant 0."""

    chain: Chain
    zero_point: ir.Value | None


@dataclass(frozen=True)
class _Dequantization:
    """``(codes - zero_point) * scale``. No zero point means the constant 0."""

    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None
    last: ir.Value


def _match_quantize(node: ir.Node, context: Context) -> RangeChain | _AffineChain | None:
    if producer_of(node.outputs[0], "Round") is not node:
        return None
    chain = chain_of(node, context.facts)
    if chain is None:
        return None
    try:
        return _range_chain(chain, node)
    except Unconverted as why:
        if chain.clip is None and chain.code_type != ir.DataType.FLOAT:  # the operator for a range checks each row
            codes = chain.code_type.name.lower()
            raise Unconverted(Reason.CODES_NOT_CLIPPED, codes=codes).then(why) from None
        try:
            return _affine_chain(chain)
        except Unconverted as second:
            raise why.then(second) from None


def _build_quantize(match: RangeChain | _AffineChain, edit: Edit) -> None:
    if isinstance(match, RangeChain):
        build_range_chain(match, edit)
        return
    chain, zero_point, last = match.chain, match.zero_point, match.chain.last.producer()
    assert last is not None
    if zero_point is None:
        number = UINT8_OFFSET if chain.output_dtype != chain.code_type else 0
        dtype = np.float32 if chain.dequantizes else chain.output_dtype.numpy()
        zero_point = edit.add_constant(np.array(number, dtype), before=last)
    operator = "AffineFakeQuantize" if chain.dequantizes else "AffineQuantize"
    main = call(operator, [chain.x, chain.scale, zero_point], **chain.attributes)
    edit.replace(chain.last, edit.insert_main(main, before=last))


def _match_dequantize(node: ir.Node, context: Context) -> _Dequantization | None:
    """Recognizes (Cast(codes) [- Cast(zero point)]) * scale of codes that no other rule has converted."""
    if node.domain or node.op_type != "Mul":
        return None
    for i in (0, 1):
        real, scale = node.inputs[i], node.inputs[1 - i]
        if real is None or scale is None or context.facts.is_constant(scale) or scale.dtype != ir.DataType.FLOAT:
            continue
        zero: ir.Value | None = None
        inner = skip_identity(real)
        if (sub := producer_of(inner, "Sub")) is not None and only_use(inner) is not None:
            real, zero = sub.inputs[0], sub.inputs[1]
        codes = uncast(real)
        if codes is None or context.facts.is_constant(codes) or same_shape(codes, scale):
            continue
        zero_codes = None if zero is None else uncast(zero)
        if zero is not None and (zero_codes is None or zero_codes.dtype != codes.dtype):
            continue
        if not broadcasts(scale, codes) or (zero_codes is not None and not same_shape(zero_codes, scale)):
            raise Unconverted(Reason.SCALE_BROADCAST_TO_CODES)
        return _Dequantization(codes, scale, zero_codes, node.outputs[0])
    return None


def _build_dequantize(match: _Dequantization, edit: Edit) -> None:
    codes, zero_point, node = match.codes, match.zero_point, edit.node
    if zero_point is None:
        assert codes.dtype is not None
        zero_point = edit.add_constant(np.zeros((), codes.dtype.numpy()), before=node)
    main = call("AffineDequantize", [codes, match.scale, zero_point])
    edit.replace(match.last, edit.insert_main(main, before=node))


QUANTIZE: Rule[RangeChain | _AffineChain] = Rule(
    "decomposed quantization", OPSET, _match_quantize, _build_quantize, reports_opset=True
)
DEQUANTIZE = Rule("decomposed dequantization", OPSET, _match_dequantize, _build_dequantize)


def _range_chain(chain: Chain, round_: ir.Node) -> RangeChain:
    """Returns the chain from the range of x on.

    Raises:
        Unconverted: The scale or the zero point is not computed from the range of x.
    """
    zero = chain.nonzero_zero_point
    recipe = recipe_of(chain.x, chain.scale, zero, chain.bounds, round_.graph)
    if bool(recipe.inverse_scale) != (chain.scaling == Scaling.MULTIPLY):
        raise Unconverted(Reason.INVERSE_SCALE_DIVIDES)
    if not chain.dequantizes and recipe.zero_point.type not in (CodeType.FLOAT32, int(chain.code_type)):
        raise Unconverted(Reason.ZERO_POINT_TYPE)
    for each in (chain.scale, zero):
        if each is not None and not lines_up(each, chain.x, recipe.axis, recipe.keepdims):
            raise Unconverted(Reason.SHAPES_OF_RANGE)
    return RangeChain(chain.x, chain.scale, zero, recipe, chain.attributes, chain.last, chain.dequantizes)


def _affine_chain(chain: Chain) -> _AffineChain:
    """Returns the chain with its scale and zero point as the model computes them.

    Raises:
        Unconverted: The shapes or types do not fit.
    """
    if not broadcasts(chain.scale, chain.x):
        raise Unconverted(Reason.SCALE_BROADCAST_TO_X)
    zero = chain.nonzero_zero_point
    if zero is None:
        return _AffineChain(chain, None)
    is_constant = constant_scalar(zero) is not None
    if not (does_not_grow(zero, chain.scale) if is_constant else same_shape(zero, chain.scale)):
        raise Unconverted(Reason.ZERO_POINT_SHAPE)
    integers = uncast(zero)
    if chain.dequantizes:
        return _AffineChain(chain, integers or zero)
    if integers is None or integers.dtype != chain.output_dtype or chain.output_dtype != chain.code_type:
        raise Unconverted(Reason.ZERO_POINT_TYPE)
    return _AffineChain(chain, integers)
