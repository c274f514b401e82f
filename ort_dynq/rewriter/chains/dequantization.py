"""The rule for dequantization that is written with primitive operators: Cast, Sub, Mul.

(Cast(codes) [- Cast(zero point)]) * scale      -> AffineDequantize

The codes come from outside, such as those of a cache: no product and no program has taken them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ...opsets import OPSET
from ..analysis.nodes import only_use, producer_of, uncast
from ..analysis.shapes import broadcasts, same_shape
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule


class _Dequantization(NamedTuple):
    """``(codes - zero_point) * scale``. No zero point means the constant 0."""

    codes: ir.Value
    scale: ir.Value
    zero_point: ir.Value | None


def _match(node: ir.Node, context: Context) -> _Dequantization | None:
    for i in (0, 1):
        real, scale = node.inputs[i], node.inputs[1 - i]
        if real is None or scale is None or context.facts.is_constant(scale) or scale.dtype != ir.DataType.FLOAT:
            continue
        sub = producer_of(real, "Sub")
        has_zero_point = sub is not None and only_use(sub.outputs[0]) is not None
        codes, zero_point = map(uncast, sub.inputs if sub is not None and has_zero_point else (real, None))
        if codes is None or context.facts.is_constant(codes) or same_shape(codes, scale):
            continue
        if has_zero_point and (zero_point is None or zero_point.dtype != codes.dtype):
            continue
        if not broadcasts(scale, codes) or (zero_point is not None and not same_shape(zero_point, scale)):
            raise Unconverted(Reason.SCALE_BROADCAST_TO_CODES)
        return _Dequantization(codes, scale, zero_point)
    return None


def _build(match: _Dequantization, edit: Edit) -> None:
    (codes, scale, zero_point), node = match, edit.node
    if zero_point is None:
        assert codes.dtype is not None
        zero_point = edit.add_constant(np.zeros((), codes.dtype.numpy()), before=node)
    main = call("AffineDequantize", [codes, scale, zero_point])
    edit.replace(node.outputs[0], edit.insert_main(main, before=node))


RULE = Rule("decomposed dequantization", OPSET, _match, _build, operators=("Mul",))
