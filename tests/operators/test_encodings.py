"""Encodings have the same values and names in Python and in C++; the constants have the same fields."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compressed import compressed_inputs
from convolutions import conv_inputs
from helpers import Array, assert_same
from recurrence import recurrence_inputs

from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS, Attribute, Operator, encodings
from ort_dynq.operators.encodings import Encoding, RangeConstants, RangeKind
from ort_dynq.operators.packing import packed_shape

OPS = Path(__file__).parents[2] / "ops"
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
    if operator.name == "QuantizedRecurrence":
        return recurrence_inputs(np.random.default_rng(0), 2, 3, 1, 1)
    if operator.name == "CompressedAttention":
        rng = np.random.default_rng(0)
        return compressed_inputs(rng, ("int8", "int8"), (1, 1, 1, 4, 2, 2, 2), has_zero_points=False)
    if operator.name == "QuantizedAttention":
        return [*(np.ones((1, 4, 2), np.float32) for _ in range(3)), np.ones((1, 1, 1, 1), np.float32), np.float32(1)]
    arrays = [np.ones((4, 2), types[0]), *(np.ones((), each) for each in types[1:])]
    for index, value in enumerate(operator.inputs):
        if value.name == "constants":
            arrays[index] = np.float32(RangeConstants())
        elif value.name == "weight":
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
    assert len(ENCODINGS) == 13
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


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        (
            "AffineQuantize",
            {"nan_code": 2},
            "nan_code is 2 (nan) for codes of int8, expected 0 (zero) or 1 (quant min)",
        ),
        ("AffineFakeQuantize", {"nan_code": 0}, "nan_code is 0 (zero) for codes of float32, expected 2 (nan)"),
        (
            "DynamicRangeQuantize",
            {"inverse_scale": 1, "range_kind": 1},
            "inverse_scale is 1 (reciprocal) for range_kind 1 (min max), expected range_kind 0 (abs max)",
        ),
        (
            "DynamicRangeQuantize",
            {"zero_point_rule": 1},
            "zero_point_rule is 1 (round clipped) for range_kind 0 (abs max), expected 0 (none)",
        ),
        (
            "DynamicRangeFakeQuantize",
            {"zero_point_rule": 4, "range_kind": 3},
            "zero_point_rule is 4 (floor negated) for range_kind 3 (larger side), expected 0 (none)",
        ),
    ],
)
def test_values_that_exclude_each_other(name: str, given: dict[str, int], text: str) -> None:
    assert message(OPERATORS[name], **given) == f"{name}: {text}"


def test_texts_of_values() -> None:
    assert encodings.Scaling.MULTIPLY_BY_THE_RECIPROCAL.text == "1 (multiply by the reciprocal)"
    assert encodings.one_of(encodings.Scaling) == "0 (divide), 1 (multiply by the reciprocal) or 2 (multiply)"
    assert encodings.one_of([encodings.NanCode.NAN]) == "2 (nan)"
    assert all(member.meaning for encoding in ENCODINGS for member in encoding)
    assert [*encodings.CodeType] == [1, 2, 3, 21, 22]


def test_constants_have_the_fields_of_the_native_struct() -> None:
    sources = "\n".join(path.read_text() for path in sorted(OPS.rglob("*")) if path.suffix in (".cc", ".h"))
    bodies = re.findall(r"\bstruct RangeConstants \{(.*?)\n *\};", sources, re.DOTALL)
    assert len(bodies) == 1
    members = re.findall(r"^ *float ([^;]*);", re.sub(r" *//.*", "", bodies[0]), re.MULTILINE)
    names = [re.sub(r" *=.*", "", name).strip() for line in members for name in line.split(",")]
    assert tuple(names) == RangeConstants._fields


def test_the_default_constants_change_nothing() -> None:
    """The scale is the range itself."""
    src = np.float32([[-3, 0.5], [2, 7], [0, 0], [np.inf, 1]])
    for kind, expected in ((RangeKind.ABS_MAX, [3, 7, 0, np.inf]), (RangeKind.MIN_MAX, [3.5, 5, 0, np.inf])):
        constants = np.float32(RangeConstants())
        _, scale, _ = kernels.run("DynamicRangeFakeQuantize", [src, constants], range_kind=kind)
        assert_same(scale, np.float32(expected).reshape(4, 1))


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("lowest_minimum", -1, [5, 2, 0]),
        ("highest_maximum", 1, [4, 1, 0]),
        ("lowest_range", 3, [7, 3, 3]),
        ("highest_range", 3, [3, 2, 0]),
        ("divisor", 2, [3.5, 1, 0]),
        ("factor", 2, [14, 4, 0]),
        ("lowest_scale", 3, [7, 3, 3]),
        ("highest_scale", 3, [3, 2, 0]),
        ("scale_of_zero", 9, [7, 2, 9]),
    ],
)
def test_every_constant_is_at_the_index_of_its_field(field: str, value: float, expected: list[float]) -> None:
    """On rows whose ranges, zero included, are -3 to 4, 0 to 2 and 0 to 0."""
    src = np.float32([[-3, 4], [1, 2], [0, 0]])
    constants = np.float32(RangeConstants()._replace(**{field: value}))
    _, scale, _ = kernels.run("DynamicRangeFakeQuantize", [src, constants], range_kind=RangeKind.MIN_MAX_WITH_ZERO)
    assert_same(scale, np.float32(expected).reshape(3, 1))
