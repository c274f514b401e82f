"""The weights of QMoE: how many experts, which codes share storage, and what stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
import qmoe
from helpers import stock_session
from nbits import noise
from onnx import helper, numpy_helper
from qmoe import EXPERTS, HAS_LEVELS, HIDDEN, INNER, feeds_of, make

import ort_dynq

pytestmark = pytest.mark.skipif(not HAS_LEVELS, reason="QMoE has no accuracy_level before ONNX Runtime 1.32")


@pytest.mark.parametrize("name", ["fc2", "fc3", "all"])
def test_numbers_of_experts(name: str) -> None:
    """They differ between products, or the router scores others."""
    case = make(fusion=0)
    for initializer in case.model.graph.initializer:
        if name == "all" or initializer.name.startswith(name):
            array = numpy_helper.to_array(initializer)[:4]
            initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert ("router scores 5" if name == "all" else "the same number") in finding.reason


def test_sums_that_may_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator refuses them."""
    for name, size in (("EXPERTS", 1), ("HIDDEN", 33040), ("INNER", 16)):
        monkeypatch.setattr(qmoe, name, size)
    (finding,) = ort_dynq.rewrite(make(block_size=0, k=1).model, weights_only="blocks").report.unconverted
    assert "overflow" in finding.reason


def square(nodes: int, parts: Callable[[int], Sequence[str]]) -> onnx.ModelProto:
    """A model of several QMoE with square weights: `parts` names those of a node."""
    rng = np.random.default_rng(0)
    names = sorted({name for node in range(nodes) for name in parts(node) if name})
    given = {"k": 2, "activation_type": "silu", "expert_weight_bits": 8, "block_size": 32}
    arrays = {
        "c": lambda: rng.integers(0, 256, (EXPERTS, HIDDEN, HIDDEN)).astype(np.uint8),
        "s": lambda: rng.uniform(5e-4, 2e-3, (EXPERTS, HIDDEN, HIDDEN // 32)).astype(np.float32),
        "b": lambda: rng.normal(0, 1, (EXPERTS, HIDDEN)).astype(np.float32),
    }
    tensors = {name: arrays[name[0]]() for name in names}
    return helper.make_model(
        helper.make_graph(
            [
                helper.make_node("QMoE", ["x", "router", *parts(node)], [f"y{node}"], domain="com.microsoft", **given)
                for node in range(nodes)
            ],
            "experts",
            [
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["tokens", width])
                for name, width in (("x", HIDDEN), ("router", EXPERTS))
            ],
            [
                helper.make_tensor_value_info(f"y{node}", onnx.TensorProto.FLOAT, ["tokens", HIDDEN])
                for node in range(nodes)
            ],
            [numpy_helper.from_array(array, name) for name, array in tensors.items()],
        ),
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
        ir_version=10,
    )


def test_weights_of_several_mixtures() -> None:
    """Each has its own, also if the weights are no initializers, so that their tensors are freed."""
    model = square(6, lambda node: [f"c{node}", "s1", "", f"c{node}_2", "s2"])
    for initializer in [each for each in model.graph.initializer if each.name.startswith("c")]:
        model.graph.initializer.remove(initializer)
        name, initializer.name = initializer.name, f"{initializer.name}_stored"
        model.graph.initializer.append(initializer)
        model.graph.node.insert(0, helper.make_node("Add", [initializer.name, "zero"], [name]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.uint8), "zero"))
    result = ort_dynq.rewrite(model)
    assert [each.operator for each in result.report.rewritten] == ["QuantizedExperts"] * 6
    feeds = feeds_of(4)
    expected = stock_session(model).run(None, feeds)
    for found, each in zip(stock_session(result.to_proto()).run(None, feeds), expected, strict=True):
        assert noise(np.asarray(found), np.asarray(each)) > 30


@pytest.mark.parametrize(
    ("nodes", "parts", "reason"),
    [
        (1, lambda _: ["c", "s1", "", "c", "s2"], "share codes"),
        (2, lambda node: ["c1", "s1", f"b{node}", "c2", "s2"], "twice"),
        (2, lambda node: ["c1", "s1", "", "c2", f"s{node}"], "twice"),
    ],
)
def test_codes_with_other_scales_or_biases(nodes: int, parts: Callable[[int], Sequence[str]], reason: str) -> None:
    unconverted = ort_dynq.rewrite(square(nodes, parts)).report.unconverted
    assert len(unconverted) == nodes
    assert all(reason in each.reason for each in unconverted)


def test_same_weights_are_stored_once() -> None:
    model = square(2, lambda _: ["c1", "s1", "b1", "c2", "s2", "b2"])
    fast = ort_dynq.rewrite(model).to_proto()
    first, second = (node for node in fast.graph.node if node.op_type == "QuantizedExperts")
    assert first.input == second.input


def test_weights_that_stay() -> None:
    case = make()
    graph = case.model.graph
    codes = next(each for each in graph.initializer if each.name == "fc1_codes")
    graph.initializer.remove(codes)
    graph.input.append(onnx.helper.make_tensor_value_info("fc1_codes", onnx.TensorProto.UINT8, codes.dims))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert "run time" in finding.reason
    case = make()
    case.model.graph.output.append(
        onnx.helper.make_tensor_value_info("fc2_codes", onnx.TensorProto.UINT8, [5, 64, INNER // 2])
    )
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert "twice" in finding.reason
    (finding,) = ort_dynq.rewrite(make().model, exact=True).report.unconverted
    assert "exact" in finding.reason
