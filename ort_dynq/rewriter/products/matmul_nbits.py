"""The rule for MatMulNBits, ONNX Runtime's product of a float activation and weights of few bits in blocks.

MatMulNBits    -> RowProgram in blocks, QuantizedMatMul
               -> TwoTermQuantize in blocks, QuantizedMatMul of two terms
               -> and Reshape, ReduceSum, MatMul, Add, if zero points of the weights are no integers

With accuracy_level 4, ONNX Runtime itself quantizes the activation at run time: each block to codes of -127 to 127 (on
x86; on ARM each row). Here each block gets 256 codes from min(x, 0) to max(x, 0): their steps are never larger. All
other levels compute with the activation as floats: these products stay, unless `weights_only` says how to quantize
them. With `weights_only` "two-term", the activation gets two codes at each level. If zero points of the weights are
floats, ONNX Runtime ignores level 4 and dequantizes the weights in every run: then two terms replace level 4, too,
unless `weights_only` is "blocks".
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.nodes import input_of
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.nbits import QUANTIZED_LEVEL, nbits_of
from .weights_only import WeightsOnlyProduct, build_weights_only

_BIAS = 5


def _match(node: ir.Node, context: Context) -> WeightsOnlyProduct | None:
    if node.domain != MICROSOFT or node.op_type != "MatMulNBits":
        return None
    level = node.attributes.get_int("accuracy_level", 0)
    if level != QUANTIZED_LEVEL and context.options.weights_only == "keep":
        raise Unconverted(Reason.NBITS_FLOAT_ACTIVATION, level=level)
    if context.options.exact:
        raise Unconverted(Reason.EXACT)
    activation = node.inputs[0]
    if activation is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=0)
    weights = nbits_of(node, context.facts)
    is_float_in_stock = level != QUANTIZED_LEVEL or weights.has_real_zero_points
    weights_only = context.options.weights_only
    has_two_terms = weights_only == "two-term" or (is_float_in_stock and weights_only != "blocks")
    has_sums = weights.has_weights_of_sums
    match = WeightsOnlyProduct(
        activation,
        weights,
        bias=input_of(node, _BIAS),
        terms=2 if has_two_terms else 1,
        dtype=weights.scales.dtype,
        source=(weights.root, *node.inputs[2:4]),
        note=f"accuracy_level {level}",
        has_sums=has_sums,
    )
    # Small products of two terms take longer than floats. At level 4 they are no floats, and two terms are asked for.
    match.check(of_any_size=not is_float_in_stock and match.terms > 1)
    if has_sums and (activation.shape is None or activation.dtype != ir.DataType.FLOAT):
        is_float = activation.dtype == ir.DataType.FLOAT
        raise Unconverted(Reason.RANK_NOT_KNOWN if is_float else Reason.NBITS_REAL_ZERO_POINTS)
    return match


RULE = Rule("MatMulNBits", OPSET, _match, build_weights_only, reports_opset=True)
