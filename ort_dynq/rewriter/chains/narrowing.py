"""The rule for codes that are cast from float to wider integers at once, as int32 operands of a product.

Cast of 8-bit numbers to int32 or int64, ... , MatMul | Einsum     -> Cast to 8 bits, Cast, ... , MatMul | Einsum

The other rules find codes by their 8-bit type. Values proves that the floats are integers that fit 8 bits, and that no
NaN comes from a divisor near 0, which a Cast to int32 makes a number beyond all bounds. ONNX does not define the Cast
of other NaN in the activation: ONNX Runtime makes -2**31 of it, and 0 in a Cast to 8 bits. So the rule does not apply
if results must be exact.

Example: Clip(Round(x), 0, 255), cast to int32, are uint8 codes; without the Clip, they are none.
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ..analysis.inference import Facts
from ..analysis.limits import CHAIN
from ..analysis.nodes import cast_to
from ..analysis.standard import MOVES, STACKED_PRODUCTS
from ..analysis.types import FLOAT_TYPES, WIDE_TYPES
from ..analysis.values import Values
from ..edit import Edit
from ..rule import Context, Rule

# Sub takes a zero point off; ReduceSum gives the sum of a row, which the zero point of the weights multiplies.
_BETWEEN = MOVES | {"ReduceSum", "Sub"}
_BY_FIRST = _BETWEEN - {"Concat", "Sub"}


def _match(node: ir.Node, context: Context) -> ir.DataType | None:
    """Returns the 8-bit type of the integers that a Cast makes and a product reads."""
    if cast_to(node) not in WIDE_TYPES:
        return None
    if node.inputs[0] is None or node.inputs[0].dtype not in FLOAT_TYPES:
        return None
    values = context.shared(Values)
    if context.options.exact or not values.known(node.inputs[0]).is_integer:
        return None
    known = values.known(node.outputs[0])
    is_signed = known.fits(-128, 127)
    if not (is_signed or known.fits(0, 255)) or not _is_multiplied(node.outputs[0], context.facts, values):
        return None
    return ir.DataType.INT8 if is_signed else ir.DataType.UINT8


def _is_multiplied(value: ir.Value, facts: Facts, values: Values) -> bool:
    """Returns whether a product by constant weights, or by other codes, reads a value, moved or minus a zero point."""
    seen, nearest = {value}, [value]
    for _ in CHAIN.steps():
        uses = [(node, i) for each in nearest for node, i in each.uses() if node.domain in STANDARD_DOMAINS]
        for node, i in uses:
            other = node.inputs[1 - i] if node.op_type in STACKED_PRODUCTS and len(node.inputs) == 2 else None
            if other is not None and (i == 0 if facts.is_constant(other) else values.known(other).fits(-255, 255)):
                return True
        between = [node for node, i in uses if node.op_type in _BETWEEN and (i == 0 or node.op_type not in _BY_FIRST)]
        outputs = dict.fromkeys(each for node in between for each in node.outputs)
        nearest = [each for each in outputs if each not in seen]
        seen.update(nearest)
    return False


def _build(dtype: ir.DataType, edit: Edit) -> None:
    narrow = ir.node("Cast", [edit.node.inputs[0]], {"to": int(dtype)})
    edit.insert_main(narrow, before=edit.node)
    edit.facts.note(narrow.outputs[0], dtype, edit.node.outputs[0].shape)
    wide = ir.node("Cast", narrow.outputs, dict(edit.node.attributes))
    edit.replace(edit.node.outputs[0], edit.insert(wide, before=edit.node))


RULE: Rule[ir.DataType] = Rule("codes in wider integers", 13, _match, _build, prepares=True, operators=("Cast",))
