"""The rule for codes that are clipped after a division by a constant, as formats of a shared exponent (MXINT8) are.

Clip(Div(integers, 64), -127 / 64, 127 / 64)    -> Div(Clip(integers, -127, 127), 64)

Rounding is monotonic. So the results are the same, also of infinities and NaN, if the quotients of the new bounds are
exactly the old bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.bounds import bounds_of, constant_operand
from ..analysis.nodes import producer_of
from ..analysis.standard import SCALING
from ..analysis.values import Values
from ..edit import Edit
from ..rule import Context, Rule


class _Bounds(NamedTuple):
    scaled: ir.Node
    integers: ir.Value
    limits: tuple[float, float]


def _match(node: ir.Node, context: Context) -> _Bounds | None:
    bounds = bounds_of(node.outputs[0])
    scaled = None if bounds is None else producer_of(bounds.value, *SCALING)
    found = None if scaled is None else constant_operand(scaled, commutative=scaled.op_type == "Mul")
    if bounds is None or scaled is None or found is None or node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    integers, factor = found[0], np.float32(found[1])
    known = context.shared(Values).known(integers)
    if not factor > 0 or not known.is_integer or known.high - known.low <= 255:
        return None
    inverse, scale = (np.divide, np.multiply) if scaled.op_type == "Mul" else (np.multiply, np.divide)
    with np.errstate(all="ignore"):
        old = np.array([bounds.least, bounds.most], np.float32)
        limits = np.rint(inverse(old, factor))
        is_same = np.isfinite(limits).all() and (scale(limits, factor) == old).all()
    return _Bounds(scaled, integers, (limits[0], limits[1])) if is_same and np.ptp(limits) <= 255 else None


def _build(match: _Bounds, edit: Edit) -> None:
    node, scaled = edit.node, match.scaled
    limits = [edit.add_constant(np.float32(each), before=node) for each in match.limits]
    codes = edit.insert(ir.node("Clip", [match.integers, *limits]), before=node)
    edit.facts.note(codes, ir.DataType.FLOAT, match.integers.shape)
    inputs = [codes if each is match.integers else each for each in scaled.inputs]
    edit.replace(node.outputs[0], edit.insert_main(ir.node(scaled.op_type, inputs), before=node))


RULE: Rule[_Bounds] = Rule("bounds of scaled codes", 13, _match, _build, prepares=True, operators=("Clip",))
