"""The rule for MatMulNBits, ONNX Runtime's product of a float activation and weights of few bits in blocks.

MatMulNBits    -> RowProgram in blocks, QuantizedMatMul
               -> TwoTermQuantize in blocks, QuantizedMatMul of two terms

With accuracy_level 4, ONNX Runtime itself quantizes the activation at run time: each block to codes of -127 to 127 (on
x86; on ARM each row). Here each block gets 256 codes from min(x, 0) to max(x, 0), whose steps are never larger. All
other levels compute with the activation as floats: these products stay, unless `weights_only` says how to quantize
them. With `weights_only` "two-term", the activation gets two codes at each level.
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from .nbits import nbits_of
from .weights_only import WeightsOnlyProduct, build_weights_only

_QUANTIZED_LEVEL = 4  # accuracy_level of int8 activations
_BIAS = 5


def _match(node: ir.Node, context: Context) -> WeightsOnlyProduct | None:
    if node.domain != MICROSOFT or node.op_type != "MatMulNBits":
        return None
    level = node.attributes.get_int("accuracy_level", 0)
    if level != _QUANTIZED_LEVEL and context.weights_only == "keep":
        raise Unconverted(Reason.NBITS_FLOAT_ACTIVATION, level=level)
    if context.exact:
        raise Unconverted(Reason.EXACT)
    activation = node.inputs[0]
    if activation is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=0)
    weights = nbits_of(node, context.facts)
    match = WeightsOnlyProduct(
        activation,
        weights,
        bias=node.inputs[_BIAS] if len(node.inputs) > _BIAS else None,
        terms=2 if context.weights_only == "two-term" else 1,
        dtype=weights.scales.dtype,
        source=(weights.root, *node.inputs[2:4]),
        note=f"accuracy_level {level}",
    )
    # Small products of two terms take longer than floats. At level 4 they are no floats, and two terms are asked for.
    match.check(of_any_size=level == _QUANTIZED_LEVEL and match.terms > 1)
    return match


RULE = Rule("MatMulNBits", OPSET, _match, build_weights_only, reports_opset=True)
