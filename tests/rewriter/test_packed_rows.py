"""An embedding picks its rows from the packed weights of the head."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import diagonals, make_session, nodes_of, stock_session
from rewriting import products
from tied_models import data, decoder, tables

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize(
    ("first", "dtype", "merged"),
    diagonals(2, ["product", "dequantization", "half"], [np.int8, np.uint8], [False, True]),
)
def test_one_packed_copy_of_the_table(first: str, dtype: type, merged: bool) -> None:
    """Embedding and head share it, also those of both branches; tokens are those of the model.

    A whole table that is dequantized to float16 stays as it is.
    """
    given = {"half": first == "half", "dequantizes_first": first == "dequantization"}
    model = decoder(dtype, merged=merged, **given)
    result = rewrite(model)
    assert not result.report.unconverted
    assert sorted(products(result.report)) == ["QuantizedMatMul"] * (4 if merged else 2)
    assert len(tables(result)) == 1
    converted = result.to_proto()
    assert "DequantizeLinear" not in [node.op_type for node in nodes_of(converted.graph) if "table" in node.input]
    original, *sessions = stock_session(model), stock_session(converted), make_session(converted, "native")
    for use in (True, False) if merged else (None,):
        inputs = data(use=use)
        expected = original.run(None, inputs)
        for session in sessions:
            actual = session.run(None, inputs)
            assert np.array_equal(actual[0].argmax(-1), expected[0].argmax(-1))
            assert np.array_equal(actual[1], expected[1])  # the rows of the embedding, bit for bit
            noise = np.square(actual[0] - expected[0]).sum() / np.square(expected[0]).sum()
            assert noise < 1e-6
