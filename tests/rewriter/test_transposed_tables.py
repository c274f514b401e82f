"""Tied tables of codes that are transposed before they are dequantized, as quantize_dynamic writes them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import make_session, nodes_of, pairwise, stock_session
from onnx import numpy_helper
from rewriting import F
from tied_models import WORDS, data, decoder, tables

import ort_dynq
from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(("inner_scales", "half", "merged"), pairwise([False, True], [False, True], [False, True]))
def test_a_table_of_transposed_codes(merged: bool, half: bool, inner_scales: bool) -> None:
    """As quantize_dynamic writes it: the table is stored once, and with `exact`, the product stays as it is."""
    model = decoder(np.uint8, half=half, merged=merged, turns_first=True)
    if merged and inner_scales:
        for name in ("scale", "zero"):
            (given,) = (each for each in model.graph.initializer if each.name == name)
            for attribute in model.graph.node[0].attribute:
                attribute.g.initializer.append(given)
            model.graph.initializer.remove(given)
    result = rewrite(model)
    assert not result.report.unconverted
    assert len(tables(result)) == 1
    assert ort_dynq.verify(model, result.to_proto(), inputs=data(use=True if merged else None)).passed
    exact = rewrite(model, exact=True).to_proto()
    assert [node.op_type for node in nodes_of(exact.graph) if "table" in node.input].count("Transpose") == 1 + merged
    sessions = make_session(exact, "native"), stock_session(model)
    for use in (True, False) if merged else (None,):
        inputs = data(use=use)
        actual, expected = (session.run(None, inputs) for session in sessions)
        assert all(map(np.array_equal, actual, expected))


def test_columns_with_scales() -> None:
    """Each word has a scale: the axis is the other one before the Transpose."""
    model = decoder(np.int8, merged=False, turns_first=True)
    rng = np.random.default_rng(3)
    numbers = {"scale": rng.uniform(0.01, 0.02, WORDS).astype(F), "zero": rng.integers(-9, 9, WORDS).astype(np.int8)}
    for name, array in numbers.items():
        model.graph.initializer.append(numpy_helper.from_array(array, "zeros" if name == "zero" else "scales"))
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.output[0] == "t":
            node.input[1:] = ["scales", "zeros"]
    result = rewrite(model)
    assert len(tables(result)) == 1
    assert ort_dynq.verify(model, result.to_proto(), inputs=data(use=None)).passed
