"""The calls with which operators are tested: a file for each family, named as in ort_dynq/operators/."""

from __future__ import annotations

from . import (
    affine,
    compressed_attention,
    dynamic_quantize_linear,
    granular,
    quantized_attention,
    quantized_conv,
    quantized_experts,
    quantized_matmul,
    quantized_recurrence,
    reduce,
    row_program,
    two_term,
)
from .case import Case, Cases

__all__ = ["CASES", "Case"]

_FAMILIES = (
    affine,
    compressed_attention,
    dynamic_quantize_linear,
    granular,
    quantized_attention,
    quantized_conv,
    quantized_experts,
    quantized_matmul,
    quantized_recurrence,
    reduce,
    row_program,
    two_term,
)
CASES: Cases = {operator: cases for family in _FAMILIES for operator, cases in family.CASES.items()}
