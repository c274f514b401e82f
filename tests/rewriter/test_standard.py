"""The vocabulary of operators. tests/packaging/test_architecture.py finds operators that other modules list."""

from __future__ import annotations

import onnxruntime.capi.onnxruntime_pybind11_state as state

from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter.analysis import standard

_NAMES = {schema.name for schema in state.get_all_operator_schema()} | set(OPERATORS)
_SETS = {name: each for name, each in vars(standard).items() if isinstance(each, frozenset)}


def test_the_vocabulary_has_only_operators() -> None:
    assert set().union(*_SETS.values()) <= _NAMES


def test_no_two_sets_are_the_same() -> None:
    assert len(set(_SETS.values())) == len(_SETS)
