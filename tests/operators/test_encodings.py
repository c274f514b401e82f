"""Encodings have the same values and names in Python and in C++."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases.compressed_attention import compressed_inputs
from cases.compressed_matmul import compressed_operands
from cases.quantized_attention import numbers
from cases.quantized_conv import conv_inputs
from cases.quantized_experts import expert_inputs
from cases.word_conv import word_conv_inputs
from cases.word_matmul import word_inputs
from helpers import Array
from recurrence import recurrence_inputs

from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS, Attribute, Operator, encodings
from ort_dynq.operators.encodings import Encoding
from ort_dynq.operators.packing import packed_shape
from ort_dynq.rewriter.analysis.standard import OWN_RECURRENCES

ENCODINGS = [each for each in vars(encodings).values() if isinstance(each, type) and issubclass(each, Encoding)][1:]
LISTED = [
    pytest.param(operator, attribute, id=f"{operator.name}-{attribute.name}")
    for operator in OPERATORS.values()
    for attribute in operator.attributes
    if attribute.values()
]


def arrays_of(operator: Operator) -> list[Array]:
    """Inputs of valid shapes: src has four rows and two columns."""
    types = next((each.inputs for each in operator.signatures if "int8" in each.inputs), operator.signatures[0].inputs)
    if operator.name == "RowProgram":  # its default code_type is uint8
        types = operator.signatures[0].inputs
    if operator.name.startswith("QuantizedConv"):
        arrays = conv_inputs(np.random.default_rng(0), (4, 2, 1, 1), 2, (1, 1))[0]
        return [*arrays, *(np.ones((), each) for each in types[len(arrays) :])]
    if operator.name in OWN_RECURRENCES:
        return recurrence_inputs(np.random.default_rng(0), 2, 3, 1, 1, operator=operator.name)
    if operator.name == "QuantizedExperts":
        return expert_inputs(np.random.default_rng(0), (4, 16), 2, 16, bits=8, program="dst = x")
    if operator.name == "CompressedAttention":
        rng = np.random.default_rng(0)
        return compressed_inputs(rng, ("int8", "int8"), (1, 1, 1, 4, 2, 2, 2), has_zero_points=False)
    if operator.name == "CompressedMatMul":
        return compressed_operands(np.random.default_rng(0), "int8", (4,), 2, 1, 2)
    if operator.name == "GatherDequantize":
        return [np.arange(2), np.ones((1, 1, 16, 4), np.int8), np.ones(1, np.int8), np.ones((1, 2), np.float32)]
    if operator.name == "Interleave":
        return [np.ones((4, 2, 3), np.float32)]
    if operator.name == "ChannelGate":
        return [np.ones(shape, np.float32) for shape in ((4, 2, 1), (3, 2), (3,), (2, 3), (2,))]
    if operator.name.startswith("WordMatMul"):
        operands = [np.ones((), each) for each in types[4:]]
        return [*word_inputs(np.random.default_rng(0), (4, 2), 2)[0], *operands]
    if operator.name.startswith("WordConv"):
        operands = [np.ones((), each) for each in types[5:]]
        return [*word_conv_inputs(np.random.default_rng(0), (4, 2, 1), (2, 2, 1)), *operands]
    if operator.name == "QuantizedAttention":
        return [*(np.ones((1, 4, 2), np.float32) for _ in range(3)), np.ones((1, 1, 1, 1), np.float32), *numbers()]
    arrays = [np.ones((4, 2), types[0]), *(np.ones((), each) for each in types[1:])]
    for index, value in enumerate(operator.inputs):
        if value.name == "weight":
            arrays[index] = np.ones(packed_shape(2, 2), np.int8)
        elif value.name in ("column_scale", "column_sum"):
            arrays[index] = np.ones((1, 2), types[index])
        elif value.name == "bias":
            arrays[index] = np.ones(2, types[index])
    return arrays


def message(operator: Operator, **given: Any) -> str:
    with pytest.raises(DynqError) as caught:
        kernels.run(operator.name, arrays_of(operator), **given)
    return str(caught.value)


def test_every_encoding_is_used() -> None:
    assert len(ENCODINGS) == 7
    assert {attribute.encoding for operator in OPERATORS.values() for attribute in operator.attributes} == {
        None,
        *ENCODINGS,
    }


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_the_inputs_of_these_tests_are_valid(operator: Operator) -> None:
    """The errors below are therefore errors of attributes."""
    kernels.run(operator.name, arrays_of(operator))


@pytest.mark.parametrize(("operator", "attribute"), LISTED)
def test_the_error_for_an_unknown_value_lists_all_values(operator: Operator, attribute: Attribute) -> None:
    """The native library lists the names and numbers of its enumeration."""
    values = attribute.values()
    expected = encodings.one_of(values)
    if isinstance(attribute.default, str):
        found = message(operator, **{attribute.name: "unknown"})
        assert found == f"{operator.name}: {attribute.name} is 'unknown', expected {expected}"
        return
    for wrong in (min(values) - 1, max(values) + 1, 2**40):  # type: ignore[operator,type-var]
        if wrong != attribute.default:
            found = message(operator, **{attribute.name: wrong})
            assert found == f"{operator.name}: {attribute.name} is {wrong}, expected {expected}"


def test_texts_of_values() -> None:
    assert encodings.ScaleOrder.ROW_FIRST.text == "1 (row first)"
    assert encodings.one_of(encodings.ScaleOrder) == "0 (scales first), 1 (row first) or 2 (column first)"
    assert encodings.one_of([encodings.LastGate.RESET_STATE]) == "2 (reset state)"
    assert all(member.meaning for encoding in ENCODINGS for member in encoding)
    assert [*encodings.CodeType] == [1, 2, 3, 21, 22]
