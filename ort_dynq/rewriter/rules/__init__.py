"""The list of rules. Every other module of this package is one rule, or one rule to quantize and one to dequantize.

A new rule is one new file and one entry in PHASES. Rules do not import each other; what several rules build is in
builders/, and what they need to know of a model in facts/.
"""

from __future__ import annotations

from . import (
    conv_activation,
    decomposed,
    dynamic_quantize_linear,
    float16_operands,
    float_conv,
    float_matmul,
    float_weights,
    integer_conv,
    integer_matmul,
    left_products,
    qdq,
    reductions,
)

PHASES = (
    (qdq.QUANTIZE, qdq.DEQUANTIZE, decomposed.QUANTIZE, decomposed.DEQUANTIZE, left_products.TRUNCATION),
    (integer_matmul.RULE, integer_conv.RULE, float_matmul.RULE, float_conv.RULE),
    (float_weights.RULE,),
    (reductions.RULE, dynamic_quantize_linear.RULE, conv_activation.RULE),
    (left_products.RULE, float16_operands.RULE),
)
"""Each phase goes over the whole model before the next one begins: first single chains, then products of what the
chains quantize, then the weights of products that stay float, then ranges that are left, and what
stands before and after products of ours. The last phase reports the products that are left, and removes Casts."""
