"""Decoders as they are published: one table of 8-bit codes for the embedding and the head, merged by If."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import make_session, stock_session
from onnx import helper
from tied_models import data, decoder

import ort_dynq
from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("merged", [False, True])
def test_exact_tokens(merged: bool) -> None:
    model = decoder(np.uint8, merged=merged)
    converted = rewrite(model, exact=True).to_proto()
    sessions = make_session(converted, "native"), stock_session(model)
    for use in (True, False) if merged else (None,):
        for tokens in (1, 16):
            inputs = data(use=use, tokens=tokens)
            for actual, expected in zip(*(session.run(None, inputs) for session in sessions), strict=True):
                assert np.array_equal(actual, expected)


def test_verification(tmp_path: Path) -> None:
    model = decoder(np.int8, merged=False)
    result = rewrite(model)
    found = ort_dynq.verify(model, result.to_proto(), inputs=data(use=None))
    assert found.passed, found
    assert [each.name for each in found.products] == ["logits"]


def test_a_table_that_others_read_too_stays() -> None:
    """An output of the codes, and columns of the table, need it as it is."""
    for node, kind in (("Gather<axis = 1>(table, ids)", None), ("Identity(table)", None)):
        model = decoder(np.int8, merged=False)
        text = node.split("(")[0].split("<")[0]
        inputs = ["table", "ids"] if text == "Gather" else ["table"]
        attributes = {"axis": 1} if text == "Gather" else {}
        model.graph.node.append(helper.make_node(text, inputs, ["more"], **attributes))
        model.graph.output.append(helper.make_tensor_value_info("more", onnx.TensorProto.INT8, kind))
        assert [each.op_type for each in rewrite(model).report.unconverted] == ["MatMul"]
