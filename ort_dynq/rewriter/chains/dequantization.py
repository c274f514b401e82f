"""The rule for dequantization that is written with primitive operators: Cast, Sub, Mul.

(Cast(codes) [- Cast(zero point)]) * scale      -> AffineDequantize

The codes come from outside, such as those of a cache: no product and no program has taken them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ...opsets import OPSET
from ..analysis.nodes import only_use, producer_of, uncast
from ..analysis.shapes import broadcasts, same_shape
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule


@dataclass(frozen=True)
class _Dequantization:
    """``(codes - zero_point) * scale``. No zero point means the constant 0."""

    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None


def _match(node: ir.Node, context: Context) -> _Dequantization | None:
    for i in (0, 1):
        real, scale = node.inputs[i], node.inputs[1 - i]
        if real is None or scale is None or context.facts.is_constant(scale) or scale.dtype != ir.DataType.FLOAT:
            continue
        zero: ir.Value | None = None
        if (sub := producer_of(real, "Sub")) is not None and only_use(sub.outputs[0]) is not None:
            real, zero = sub.inputs[0], sub.inputs[1]
        codes = uncast(real)
        if codes is None or context.facts.is_constant(codes) or same_shape(codes, scale):
            continue
        zero_codes = None if zero is None else uncast(zero)
        if zero is not None and (zero_codes is None or zero_codes.dtype != codes.dtype):
            continue
        if not broadcasts(scale, codes) or (zero_codes is not None and not same_shape(zero_codes, scale)):
            raise Unconverted(Reason.SCALE_BROADCAST_TO_CODES)
        return _Dequantization(codes, scale, zero_codes)
    return None


def _build(match: _Dequantization, edit: Edit) -> None:
    codes, zero_point, node = match.codes, match.zero_point, edit.node
    if zero_point is None:
        assert codes.dtype is not None
        zero_point = edit.add_constant(np.zeros((), codes.dtype.numpy()), before=node)
    main = call("AffineDequantize", [codes, match.scale, zero_point])
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))


RULE = Rule("decomposed dequantization", OPSET, _match, _build, operators=("Mul",))
