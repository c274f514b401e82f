"""Inference in subgraphs and functions, of wrong nodes; it leaves the model as it is."""

from __future__ import annotations

import contextlib

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from microsoft_models import with_chain
from onnx import helper
from rewriting import MODELS, check, found, parse, rows

from ort_dynq.rewriter.analysis.inference import Facts
from ort_dynq.rewriter.analysis.microsoft import _STAND_INS


def test_in_a_subgraph_and_in_a_function() -> None:
    inner = with_chain("h = com.microsoft.QuickGelu(x)")
    branch = onnx.parser.parse_graph("g () => (float[] y) { y = Identity(x) }")
    branch.CopyFrom(onnx.GraphProto(name="then", node=inner.graph.node, output=inner.graph.output))
    model = onnx.ModelProto()
    model.CopyFrom(inner)
    del model.graph.node[:]
    other = onnx.helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "else", [], inner.graph.output)
    model.graph.input.append(helper.make_tensor_value_info("is_it", onnx.TensorProto.BOOL, []))
    model.graph.node.append(helper.make_node("If", ["is_it"], ["y"], then_branch=branch, else_branch=other))
    assert found(check(model, {"x": rows((5, 32)), "is_it": np.array(True)})) == ["RowProgram"]

    function = onnx.FunctionProto(name="f", domain="d", input=["x"], output=["y"])
    for tensor in inner.graph.initializer:
        function.node.append(helper.make_node("Constant", [], [tensor.name], value=tensor))
    function.node.extend(inner.graph.node)
    function.opset_import.extend(inner.opset_import)
    model = parse("y = d.f(x)")
    model.opset_import.add(domain="d", version=1)
    model.functions.append(function)
    assert found(check(model, {"x": rows((5, 32))})) == ["RowProgram"]


@pytest.mark.parametrize(("domain", "name"), [each for each in _STAND_INS if each != ("", "LayerNormalization")])
def test_wrong_nodes(domain: str, name: str) -> None:
    """A node without inputs, or with invalid attributes, hides types and does nothing else."""
    senseless = {"axis": 99, "K": -1, "N": 2**62, "num_heads": -5, "qkv_hidden_sizes": [1], "kernel_shape": [-1]}
    wrong_types = {"transA": "yes", "channels_last": [1], "K": 1.5, "auto_pad": '"', "bits": "x", "pads": 7}
    for count, attributes in ((0, {}), (9, {}), (1, senseless), (9, senseless), (1, wrong_types)):
        model = with_chain("h = Relu(x)")
        model.graph.node[0].CopyFrom(helper.make_node(name, ["x"] * count, ["h"], domain=domain, **attributes))
        model.graph.node.insert(0, helper.make_node("Neg", ["x"], ["before"]))
        loaded = ir.from_proto(model)
        with Facts(loaded):
            assert {value.name: value.dtype for value in loaded.graph[0].outputs} == {"before": ir.DataType.FLOAT}


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_inference_leaves_the_model_as_it_is(is_interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works on a copy without weights; declared types and shapes come back, also after an interrupt."""
    model = ir.load(MODELS / "ort_optimized" / "model.onnx")
    before, infer = ir.to_proto(model), onnx.shape_inference.infer_shapes

    def infer_shapes(copy: onnx.ModelProto, **options: bool) -> onnx.ModelProto:
        now = ir.to_proto(model)
        assert (now.graph.node, now.graph.initializer) == (before.graph.node, before.graph.initializer)
        assert [each.name for each in now.graph.input] == [each.name for each in before.graph.input]
        assert copy.ByteSize() < before.ByteSize() / 2
        if is_interrupted:
            raise KeyboardInterrupt
        return infer(copy, **options)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer_shapes)
    expected = ir.to_proto(model).SerializeToString(deterministic=True)
    with contextlib.suppress(KeyboardInterrupt), Facts(model):
        assert not is_interrupted
        assert ir.to_proto(model).SerializeToString(deterministic=True) != expected
    assert ir.to_proto(model).SerializeToString(deterministic=True) == expected
