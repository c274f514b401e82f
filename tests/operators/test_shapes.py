"""The declared shapes of outputs are those of the kernels, also for inputs with unknown lengths."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from cases import CASES, Case

from ort_dynq import kernels
from ort_dynq.operators import OPERATORS, Operator
from ort_dynq.operators.shapes import Call, Dims
from ort_dynq.opsets import OPSET

_MAX_COUNT = 12  # cases of an operator


def _cases(operator: Operator) -> Iterator[tuple[Case, dict[str, object]]]:
    cases = [*CASES[operator.name](OPSET)]
    defaults = {attribute.name: attribute.default for attribute in operator.attributes}
    for case in cases[:: max(1, len(cases) // _MAX_COUNT)]:
        yield case, defaults | case.attributes


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_declared_shapes(operator: Operator) -> None:
    known = 0
    for case, attributes in _cases(operator):
        results = kernels.run(operator.name, case.inputs, **case.attributes)
        shapes: list[Dims | None] = [list(each.shape) for each in case.inputs]
        assigned = [isinstance(each, np.ndarray) for each in results]
        for output, result, is_there in zip(operator.outputs, results, assigned, strict=True):
            found = output.shape(Call(shapes, attributes))
            if not is_there or found is None:
                continue
            assert len(found) == result.ndim, (output.name, case.attributes, found, result.shape)
            assert all(dim in (None, length) for dim, length in zip(found, result.shape, strict=True))
            known += 1
    assert known, "no output has a known shape"


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_shapes_that_are_not_known(operator: Operator) -> None:
    """Unknown inputs give no error, and symbols are handed on."""
    case = next(iter(CASES[operator.name](OPSET)))
    attributes = {attribute.name: attribute.default for attribute in operator.attributes} | case.attributes
    nothing: list[Dims | None] = [None for _ in case.inputs]
    named: list[Dims | None] = [[f"n{i}" for i in range(each.ndim)] for each in case.inputs]
    for output in operator.outputs:
        assert output.shape(Call(nothing, attributes)) in (None, [], [0])
        found = output.shape(Call(named, attributes))
        assert found is None or all(
            dim is None or isinstance(dim, int) or any(shape and dim in shape for shape in named) for dim in found
        )
