"""The vocabulary of operators: every name is one of ONNX Runtime's, and no module of the rewriter lists its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import onnxruntime.capi.onnxruntime_pybind11_state as state

import ort_dynq.rewriter
from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter.analysis import standard

_REWRITER = Path(ort_dynq.rewriter.__file__).parent
_NAMES = {schema.name for schema in state.get_all_operator_schema()} | set(OPERATORS)
_MAX_COUNT = 2  # names of a pair, such as the two that differ from a set
_SETS = {name: each for name, each in vars(standard).items() if isinstance(each, frozenset)}


def _lists(path: Path) -> Iterator[tuple[int, set[str]]]:
    """Yields the line and the operators of each tuple, set, list and call with names; tables have more than names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Tuple | ast.Set | ast.List):
            elements = node.elts
        elif isinstance(node, ast.Call):
            elements = node.args
        else:
            continue
        yield node.lineno, {each.value for each in elements if isinstance(each, ast.Constant)} & _NAMES


def test_no_other_module_lists_operators() -> None:
    found = [
        f"{path.relative_to(_REWRITER)}:{line}: {', '.join(sorted(names))}"
        for path in sorted(_REWRITER.rglob("*.py"))
        if path.name != "standard.py"
        for line, names in _lists(path)
        if len(names) > _MAX_COUNT
    ]
    assert not found, "name sets of analysis/standard.py in place of these operators"


def test_the_vocabulary_has_only_operators() -> None:
    assert set().union(*_SETS.values()) <= _NAMES


def test_no_two_sets_are_the_same() -> None:
    assert len(set(_SETS.values())) == len(_SETS)
