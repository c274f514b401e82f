"""Tensors without elements: where the kernel of an operator answers, its function gives the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from cases import CASES, Case
from functions import complete, is_other_on_arm, run_function
from helpers import IS_ARM, Array, assert_same, explained, with_one_nan

from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS

OPSETS = (13, 18)  # a Reshape of opset 13 takes no dimension of 0 literally
CASES_OF_AN_OPERATOR = 200
MAX_COUNT = 4
"""Empty cases of an operator and an opset. Each opset has other cases."""


def emptied(case: Case) -> Iterator[list[Array]]:
    """The inputs with dimensions of 0: each dimension alone, and all those of one length together."""
    places = [(i, axis) for i, array in enumerate(case.inputs) for axis in range(array.ndim)]
    lengths = {case.inputs[i].shape[axis] for i, axis in places} - {0}
    for chosen in [
        *({place} for place in places),
        *({(i, axis) for i, axis in places if case.inputs[i].shape[axis] == length} for length in sorted(lengths)),
        {(0, axis) for i, axis in places if i == 0},
    ]:
        yield [
            np.ascontiguousarray(array[tuple(slice(0 if (i, axis) in chosen else None) for axis in range(array.ndim))])
            if array.ndim
            else array
            for i, array in enumerate(case.inputs)
        ]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_kernels_and_functions_agree_on_empty_tensors(operator: str, opset: int) -> None:
    seen, count = set(), 0
    for case in itertools.islice(CASES[operator](opset), OPSETS.index(opset), CASES_OF_AN_OPERATOR, 3):
        given = complete(operator, case.attributes)
        if IS_ARM and is_other_on_arm(given):
            continue
        for inputs in emptied(case):
            shapes = tuple(array.shape for array in inputs)
            key = (tuple(given.items()) if operator.startswith("Quantized") else given.get("axis"), shapes)
            if key in seen:
                continue
            if count == MAX_COUNT:
                return
            seen.add(key)
            try:
                actual = kernels.run(operator, inputs, **given)
            except DynqError:
                continue  # an error with a text: the inputs do not fit each other
            count += 1
            with explained(f"{operator} {given}, {shapes}"):
                for one, other in zip(actual, run_function(operator, inputs, opset, **given), strict=True):
                    assert_same(with_one_nan(one), with_one_nan(other))
    assert count > 0


def test_a_length_that_does_not_fit_int64() -> None:
    """A tensor without elements may have an axis of any length."""
    src = np.zeros((1, 0, 2**50), np.float32)
    assert kernels.run("Interleave", [src], stride_1=2**10)[0].shape == (1, 0, 2**60)
    with pytest.raises(DynqError, match="Interleave: src has shape 1x0x1125899906842624, expected lengths below 2"):
        kernels.run("Interleave", [src], stride_1=2**16)
