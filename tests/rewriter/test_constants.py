"""Nodes that ONNX Runtime folds before run time are never rewritten. Weights are found if any nodes compute them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from constant_models import CASES, CONSTANTS, WEIGHTS, check_layer, into_function, model_of, nodes_left, product
from onnx import helper, numpy_helper
from rewriting import check, found, rows

import ort_dynq
from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("nodes", [CASES["range"], CASES["row program"]])
def test_calls_with_and_without_constants(nodes: str, tmp_path: Path) -> None:
    """Only the call stays that has nodes which ONNX Runtime folds."""
    model = model_of(nodes, "function")
    call = model.graph.node[0]
    other = helper.make_node("f", ["x2", *call.input[1:]], ["other"], domain="local")
    model.graph.node.insert(0, other)
    model.graph.input.append(helper.make_tensor_value_info("x2", 1, [64, 48]))
    model.graph.output.append(helper.make_tensor_value_info("other", 1, None))
    result = rewrite(model)
    assert len(result.report.rewritten) == 1
    assert nodes_left(result.to_proto(), tmp_path) < nodes_left(model, tmp_path)
    model.graph.node[1].input[0] = "x2"
    assert len(rewrite(model).report.rewritten) == 2


def test_weights_that_a_function_computes(tmp_path: Path) -> None:
    model = product(WEIGHTS["chain"])
    w = model.graph.initializer.pop()
    scalars = [*model.graph.initializer]
    into_function(model, ["w"], "wf")
    model.graph.initializer.extend([*scalars, w])
    check_layer(model, tmp_path)


@pytest.mark.parametrize("others", [0, 1])
def test_weights_that_a_function_gets(others: int, tmp_path: Path) -> None:
    """Each call has its own weights."""
    model = product(WEIGHTS["chain"])
    w = model.graph.initializer.pop()
    into_function(model, ["x", "w"], "y")
    model.graph.initializer.extend([w, numpy_helper.from_array(CONSTANTS["w"] + 1, "w1")])
    for i, weights in enumerate(["w", f"w{others}" if others else "w"]):
        model.graph.node.append(helper.make_node("f", ["x", weights], [f"y{i}"], domain="local"))
        model.graph.output.append(helper.make_tensor_value_info(f"y{i}", 1, None))
    report = rewrite(model).report
    assert sorted(found(report)) == sorted(["QuantizedMatMul", "RowProgram"] * len(model.graph.output))
    check(model, {"x": rows((9, 48), 3)})
    if not others:
        assert nodes_left(rewrite(model).to_proto(), tmp_path) == 6
        inputs = {"x": np.nan_to_num(rows((9, 48), 3), posinf=1, neginf=-1)}
        assert ort_dynq.verify(model, rewrite(model).to_proto(), inputs=inputs).passed
