"""Valid models of odd form: rewritten with each option, they open in stock ONNX Runtime and compute the same."""

from __future__ import annotations

import random

import pytest
from odd_graphs import CHANGES, OPTIONS, check, odd_model, session

DEFAULT, EXHAUSTIVE = 6, 150


@pytest.mark.parametrize(
    "index", [i if i < DEFAULT else pytest.param(i, marks=pytest.mark.exhaustive) for i in range(EXHAUSTIVE)]
)
def test_odd_models(index: int) -> None:
    """Each change of odd_graphs.py in turn, with some others; the last ones are those of the form of the graph."""
    rng = random.Random(f"odd {index}")
    try:
        name, model, feeds = odd_model(rng, CHANGES[-1 - index % len(CHANGES)])
        session(model).run(None, feeds)
    except Exception as error:  # the types are onnxruntime's own
        pytest.skip(f"ONNX Runtime does not run it: {error}")
    options = OPTIONS[index % len(OPTIONS)]
    assert not check(model, feeds, options), f"{name} {options}"


def test_models_with_constant_conditions_open_by_default() -> None:
    """ONNX Runtime inlines a branch of a constant condition, but fails if a function in it has such an If, too."""
    rng = random.Random(0)
    in_branches = next(change for change in CHANGES if change.__name__ == "in_branches")
    _, model, feeds = odd_model(rng, in_branches, name="torch_channel_middle", more=0)
    assert not check(model, feeds, {})
