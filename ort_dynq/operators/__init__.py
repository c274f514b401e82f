"""The operators of the domain ``ort_dynq``: one file for each family, and the list of all.

A family's file has, for each operator, its types, attributes and documentation, and the body of its function in a
rewritten model. The native library registers the same operators (ops/operators/, in files of the same names). The
functions of rewritten models, the registration through onnxruntime-extensions and docs/operators.md are made from this
list.
"""

from __future__ import annotations

from . import (
    affine,
    channel_gate,
    compressed_attention,
    compressed_matmul,
    dynamic_quantize_linear,
    granular,
    interleave,
    quantized_attention,
    quantized_conv,
    quantized_experts,
    quantized_matmul,
    recurrence,
    reduce,
    row_program,
    two_term,
    word_conv,
    word_matmul,
)
from .spec import Attribute, Family, Input, Operator, Signature

DOMAIN = "ort_dynq"
VERSION = 1
"""The version of the domain that models import; kDomainVersion in ops/plugin.cc is the same number. It never rises: an
operator that changes gets a new name (.github/CONTRIBUTING.md, "Change an operator")."""

FAMILIES: tuple[Family, ...] = (
    granular.FAMILY,
    affine.FAMILY,
    dynamic_quantize_linear.FAMILY,
    two_term.FAMILY,
    quantized_matmul.FAMILY,
    word_matmul.FAMILY,
    quantized_conv.FAMILY,
    word_conv.FAMILY,
    quantized_attention.FAMILY,
    compressed_attention.FAMILY,
    compressed_matmul.FAMILY,
    quantized_experts.FAMILY,
    recurrence.FAMILY,
    reduce.FAMILY,
    row_program.FAMILY,
    channel_gate.FAMILY,
    interleave.FAMILY,
)
OPERATORS: dict[str, Operator] = {operator.name: operator for family in FAMILIES for operator in family.operators}

__all__ = ["DOMAIN", "FAMILIES", "OPERATORS", "VERSION", "Attribute", "Family", "Input", "Operator", "Signature"]
