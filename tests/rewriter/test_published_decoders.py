"""Decoders as they are published, with and without past keys and values: the same tokens (models/optimum_*)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers import make_session, stock_session
from onnx import numpy_helper
from rewriting import rewritten

import ort_dynq
from ort_dynq.graphs import name_in_model, subgraphs
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.analysis.inference import Facts
from ort_dynq.rewriter.normal_form import normal_form
from ort_dynq.tools.bench.models import recorded_inputs

MODELS = Path(__file__).parents[2] / "models"
NAMES = ["optimum_t5", "optimum_whisper"]
TOKENS = 8


def generated(session: ort.InferenceSession, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Returns the logits of each step of greedy generation: the text at once, then one token after the other."""
    feeds, names, found = dict(feeds), [each.name for each in session.get_outputs()], []
    feeds["use_cache_branch"] = np.array([False])
    feeds["input_ids"] = np.random.default_rng(1).integers(2, 512, (1, 3))
    for _ in range(TOKENS):
        results = dict(zip(names, session.run(None, feeds), strict=True))
        found.append(results["logits"])
        is_first = not feeds["use_cache_branch"][0]
        for name in feeds:
            made = results.get(name.replace("past_key_values", "present"))
            if made is not None and (is_first or ".encoder." not in name):  # those of the encoder stay
                feeds[name] = made
        feeds["input_ids"] = results["logits"][:, -1:].argmax(-1)
        feeds["use_cache_branch"] = np.array([True])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tokens(name: str) -> None:
    """With `exact`, logits have the same bits; without it, tokens are the same.

    The table of T5 is stored once; that of Whisper has rows of 32 numbers, and once more as floats, for both branches.
    """
    path = MODELS / name / "model.onnx"
    feeds, model = recorded_inputs(path.parent), onnx.load(path)
    expected = generated(stock_session(model), feeds)
    assert len({each[0, -1].argmax() for each in expected}) > 1
    for exact in (True, False):
        result = rewrite(model, exact=exact)
        found = generated(make_session(result.to_proto(), "native"), feeds)
        if exact:
            assert all(map(np.array_equal, found, expected))
            assert {each.op_type for each in result.report.unconverted} == {"MatMul"}  # the head is of floats
        else:
            assert [each[:, -1].argmax(-1) for each in found] == [each[:, -1].argmax(-1) for each in expected]
            assert not result.report.unconverted
            tables = [each for each in result.to_proto().graph.initializer if np.prod(each.dims) >= 65536]
            assert len(tables) == (1 if name == "optimum_t5" else 2)


@pytest.mark.parametrize("use", [False, True])
def test_each_branch_is_verified(use: bool) -> None:
    """Values of the branch that runs are compared as those of the main graph are."""
    folder = MODELS / "optimum_t5"
    model = onnx.load(folder / "model.onnx")
    inputs = recorded_inputs(folder) | {"use_cache_branch": np.array([use])}
    converted = onnx.ModelProto.FromString(rewritten("optimum_t5")[1])
    found = ort_dynq.verify(model, converted, inputs=inputs)
    assert found.passed, found
    assert [each.name for each in found.products] == ["/lm_head/MatMul"]
    assert not found.unreachable
    (scales,) = {  # of the head, which both branches read
        each.input[5]
        for graph in branches(converted)
        for each in graph.node
        if each.name.endswith(found.products[0].name)
    }
    (scale,) = (each for each in converted.graph.initializer if each.name == scales)
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.01), scales))
    assert not ort_dynq.verify(model, converted, inputs=inputs).passed


def branches(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    return [each.g for node in model.graph.node if node.op_type == "If" for each in node.attribute]


@pytest.mark.parametrize("inner", ["initializer", "Constant"])
def test_branches_that_use_one_name_twice(inner: str) -> None:
    """ONNX's inference alone takes the elements of the first for those of the second."""
    branch = "(float[N, M] {0}) {{ shape = Concat<axis = 0>(ends, ends) r = Reshape(x, shape) {0} = Relu(r) }}"
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
        g (bool use, float[36] x) => (float[N, M] y) {{
        y = If (use) <then_branch = a () => {branch.format("y1")}, else_branch = b () => {branch.format("y2")}> }}""")
    for graph, length in zip(branches(model), (6, -1), strict=True):
        ends = numpy_helper.from_array(np.array([length]), "ends")
        if inner == "initializer":
            graph.initializer.append(ends)
        else:
            graph.node.insert(0, onnx.helper.make_node("Constant", [], ["ends"], value=ends))
    model.graph.node[0].attribute[1].g.node[-2].input[1] = "ends"  # one dimension
    _, form, _ = normal_form(ir.from_proto(model))
    with Facts(form):
        (node,) = form.graph
        shapes = [[*graph.outputs[0].shape] for _, graph in subgraphs(node)]
    assert shapes == [[6, 6], [36]]
    assert [name_in_model(each) for _, graph in subgraphs(node) for each in graph.outputs] == ["y1", "y2"]
