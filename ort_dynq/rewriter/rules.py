"""The list of rules, by phase.

A new rule is one file in the folder of its subject and one entry here. Rules do not import each other.
"""

from __future__ import annotations

from .chains import (
    cast_like,
    dequantization,
    dequantized_sums,
    dynamic_quantize_linear,
    masked,
    narrowing,
    pooled_codes,
    qdq,
    reductions,
    repeated,
    rounding,
    scaled_bounds,
    shifted_codes,
    written_parts,
)
from .convolutions import batch_normalization, float_conv, integer_conv
from .float16 import operands as float16_operands
from .fusion import (
    activations,
    attention,
    attention_biases,
    attention_operands,
    compressed_attention,
    gates,
    pooling,
    rotary,
    row_programs,
)
from .products import (
    compressed_matmul,
    dequantized_matmul,
    dequantized_rows,
    dynamic_quantized_matmul,
    einsum_of_heads,
    float_matmul,
    float_weights,
    fused_products,
    integer_matmul,
    matmul_nbits,
    mixture_of_experts,
    picked_rows,
    saturating_products,
    tied_embedding,
    transposed_tables,
    two_activations,
    unconverted,
)
from .programs import row_program, tails
from .recurrent import dynamic_lstm

PHASES = (
    (
        *(cast_like.RULE, masked.RULE, written_parts.RULE, repeated.RULE, einsum_of_heads.RULE),
        *(scaled_bounds.RULE, dequantized_sums.RULE, rounding.RULE, shifted_codes.RULE),
        *(dequantized_rows.RULE, transposed_tables.RULE, picked_rows.RULE),
    ),
    (narrowing.RULE,),
    (rounding.NOT_ROUNDED,),
    (
        *(two_activations.RULE, two_activations.LINEAR, integer_matmul.RULE, integer_conv.RULE),
        *(float_matmul.RULE, compressed_matmul.RULE, dequantized_matmul.RULE, float_conv.RULE),
        *(matmul_nbits.RULE, mixture_of_experts.RULE, dynamic_lstm.RULE, fused_products.RULE),
    ),
    (
        *(batch_normalization.RULE, two_activations.CONSTANT, unconverted.FLOATS),
        *(compressed_attention.UNFUSED, tied_embedding.RULE),
    ),
    (tails.RULE,),
    (row_program.RULE,),
    (qdq.QUANTIZE, qdq.DEQUANTIZE, dynamic_quantized_matmul.RULE),
    (
        *(float_weights.RULE, dequantization.RULE, reductions.RULE),
        *(dynamic_quantize_linear.RULE, saturating_products.RULE, pooled_codes.RULE),
    ),
    (unconverted.RULE, float16_operands.RULE),
)
"""Each phase goes over the whole model before the next one begins. The first three prepare nodes for the others, and
report codes that are not rounded; docs/rules.md says what each further phase does."""

FIRST_FUSIONS = ((activations.RULE, rotary.RULE, compressed_attention.RULE, attention.RULE, attention.OPERATORS),)
FIRST_OF_QUANTIZATIONS = (
    (attention_biases.RULE,),
    (activations.QUANTIZE, rotary.RULE, attention_operands.RULE, attention.QUANTIZE),
    (gates.RULE,),  # as integers, the products of gates take as long as in float, or longer
)
FIRST_WITH_FLOAT_ATTENTION = (
    (activations.QUANTIZE, rotary.RULE, compressed_attention.RULE, attention.RULE),
    (gates.RULE,),
)
LAST_FUSIONS = (
    (row_programs.NORMALIZATION,),
    (row_programs.ACTIVATION, batch_normalization.FLOATS),
    (gates.RULE,),
    (row_programs.ELEMENTWISE_NODES,),
    (pooling.RULE,),
)
"""The phases before and after all others if nodes may be fused that keep all but the last bits of floats."""

FUSIONS = frozenset(
    rule.name for phases in (FIRST_FUSIONS, FIRST_OF_QUANTIZATIONS, LAST_FUSIONS) for phase in phases for rule in phase
)
"""The names of the rules of these phases."""

IN_FLOAT32 = frozenset(
    rule.name
    for rule in (
        *(float_matmul.RULE, compressed_matmul.RULE, float_conv.RULE, row_program.RULE),
        *(compressed_attention.RULE, qdq.DEQUANTIZE),
    )
)
"""The names of the rules that need ONNX Runtime's Casts in float16 models.

Most find no chains without them. In the function of DynamicDequantize, ONNX Runtime would not round
results where it rounds the original's, since other nodes are beside them.
"""
