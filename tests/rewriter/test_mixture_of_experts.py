"""QMoE: mixtures of experts, as onnxruntime-genai's builder writes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import qmoe
from genai_folders import FOLDERS, decode
from helpers import assert_same, stock_session
from nbits import noise
from onnx import helper, numpy_helper
from qmoe import EXPERTS, GPT_OSS, HIDDEN, INNER, Case, feeds_of, make

import ort_dynq
from ort_dynq.genai import rewrite_folder

HAS_LEVELS = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 32)
pytestmark = pytest.mark.skipif(not HAS_LEVELS, reason="QMoE has no accuracy_level before ONNX Runtime 1.32")

QUANTIZED: list[dict[str, Any]] = [
    {},
    {"zero_points": True, "bias": True},
    {"bits": 8, "level": 0},
    {"bits": 8, "zero_points": True},
    {"kind": "relu"},
    {"kind": "gelu", "k": 1},
    {"kind": "silu", "bias": True},
    {"kind": "identity", "block_size": 16},
    {**GPT_OSS, "bias": True, "k": 4},
    {"router_weights": True},
    {"router_weights": True, "normalize_routing_weights": 1, "use_sparse_mixer": 1},
    {"half": True, "zero_points": True, "bias": True},
]
TWO_TERMS: list[dict[str, Any]] = [{}, {"bits": 8, "level": 0, "half": True}]
FLOATS: list[dict[str, Any]] = [
    {"level": 0},
    {"level": 0, "zero_points": True, "half": True},
    {"block_size": 0, "zero_points": True},
    {"block_size": 0, "bits": 8, "level": 0, "bias": True},
    {"bits": 2, "zero_points": True},  # whatever the level is
    {"bits": 2, "block_size": 0, "level": 0, "half": True},
]
# ONNX Runtime's kernel for CPUs does not run these.
NOT_ON_CPUS: list[dict[str, Any]] = [{"fusion": 2}, {"fusion": 0, "zero_points": True, "bias": True}]


def rewritten(case: Case, **options: Any) -> onnx.ModelProto:
    result = ort_dynq.rewrite(case.model, **options)
    assert [each.operator for each in result.report.rewritten] == ["QuantizedExperts"], result.report.unconverted
    return result.to_proto()


def run(model: onnx.ModelProto, case: Case, threads: int = 1) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    ort_dynq.register(options)
    return ort.InferenceSession(model.SerializeToString(), options).run(None, case.feeds)[0]


def in_blocks(x: np.ndarray[Any, Any], size: int) -> np.ndarray[Any, Any]:
    """float32, quantized as DynamicQuantizeLinear does it, for each block."""
    blocks = x.reshape(-1, size or x.shape[-1])
    low, high = blocks.min(1, keepdims=True).clip(max=0), blocks.max(1, keepdims=True).clip(min=0)
    scale = (high - low) / np.float32(255)
    zero_point = np.rint(-low / scale).astype(np.float32)
    codes = np.clip(np.rint(blocks / scale) + zero_point, 0, 255)
    return np.asarray((codes.astype(np.float64) - zero_point) * scale).reshape(x.shape)


@pytest.mark.parametrize("given", QUANTIZED, ids=str)
def test_result(given: dict[str, Any]) -> None:
    """It is closer to the experts in float64 than ONNX Runtime's result, and the formula's but for float32."""
    case = make(**given, tokens=40)
    model = rewritten(case)
    result = run(model, case)
    assert_same(result, np.asarray(stock_session(model).run(None, case.feeds)[0]))
    assert_same(result, run(model, case, threads=3))
    many = case.of(120)  # whose experts have one task each, which run together
    assert_same(run(model, many), run(model, many, threads=3))
    reference = case.reference()
    stock = np.asarray(stock_session(case.model).run(None, case.feeds)[0])
    assert result.dtype == stock.dtype
    assert noise(result, reference) > noise(stock, reference) > 30
    in_codes = case.reference(lambda x: in_blocks(x, given.get("block_size", 32)))
    assert noise(result, in_codes) > (60 if given.get("half") else 75)
    assert ort_dynq.verify(case.model, model).passed


@pytest.mark.parametrize("given", FLOATS, ids=str)
def test_float_activations(given: dict[str, Any]) -> None:
    """ONNX Runtime computes them with floats: --weights-only decides."""
    case = make(**given)
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert "--weights-only" in finding.reason
    stock = np.asarray(stock_session(case.model).run(None, case.feeds)[0])
    reference = case.reference()
    assert noise(stock, reference) > (70 if given.get("half") else 110)
    for weights_only, least in (("blocks", 30), ("two-term", 70 if given.get("half") else 80)):
        model = rewritten(case, weights_only=weights_only)
        result = run(model, case)
        assert_same(result, np.asarray(stock_session(model).run(None, case.feeds)[0]))
        assert noise(result, reference) > least
        assert ort_dynq.verify(case.model, model).passed


@pytest.mark.parametrize("given", TWO_TERMS, ids=str)
def test_two_terms_in_place_of_codes(given: dict[str, Any]) -> None:
    """Also where ONNX Runtime quantizes the activations itself."""
    case = make(**given)
    model = rewritten(case, weights_only="two-term")
    result = run(model, case)
    assert_same(result, np.asarray(stock_session(model).run(None, case.feeds)[0]))
    assert noise(result, case.reference()) > (70 if given.get("half") else 80)
    assert ort_dynq.verify(case.model, model).passed


@pytest.mark.parametrize("given", NOT_ON_CPUS, ids=str)
def test_gates_in_other_places(given: dict[str, Any]) -> None:
    case = make(**given)
    assert noise(run(rewritten(case), case), case.reference()) > 35


def test_experts_without_tokens_are_not_read() -> None:
    """Their weights may be anything: NaN reaches no token."""
    case = make(bias=True)
    model = rewritten(case)
    case.feeds["router"][:, 0] = -100
    case.feeds["router"][0] = [-100, -100, -100, 2, 1]
    expected = run(model, case)
    for initializer in model.graph.initializer:
        array = numpy_helper.to_array(initializer).copy()
        if array.dtype == np.float32 and array.ndim == 2:
            array[0] = np.nan
            initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))
    assert_same(run(model, case), expected)
    case.feeds["router"][1, 0] = 100
    assert np.isnan(run(model, case)[1]).all()


def test_tokens_do_not_depend_on_each_other() -> None:
    case = make(bits=8)
    model, many = rewritten(case), case.of(300)
    together = run(model, many)
    for first in (0, 7, 299):
        one = Case(model, {name: array[first : first + 1] for name, array in many.feeds.items()}, {}, {})
        assert_same(run(model, one), together[first : first + 1])


@pytest.mark.parametrize("name", ["gpt_oss", "qwen_moe"])
def test_tokens(name: str, tmp_path: Path) -> None:
    """A rewritten decoder of onnxruntime-genai's builder generates the same tokens without the plugin."""
    found = rewrite_folder(FOLDERS / name)
    assert "QuantizedExperts" in [each.operator for each in found.results["model.onnx"].report.rewritten]
    found.save(tmp_path / "fast")
    path, prompt = str(tmp_path / "fast" / "model.onnx"), np.random.default_rng(1).integers(0, 254, 12)
    tokens, logits = decode(path, ort_dynq.register(ort.SessionOptions()), prompt, 4)
    expected, expected_logits = decode(path, ort.SessionOptions(), prompt, 4)
    assert tokens == expected
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-4, atol=1e-4)  # ONNX Runtime fuses x * (1 / y)


def test_external_data(tmp_path: Path) -> None:
    """Packed weights are computed when the model is written."""
    case = make(bias=True, zero_points=True)
    onnx.save(case.model, tmp_path / "model.onnx", save_as_external_data=True, location="data", size_threshold=0)
    ort_dynq.rewrite(tmp_path / "model.onnx").save(tmp_path / "fast.onnx")
    options = ort.SessionOptions()
    ort_dynq.register(options)
    result = ort.InferenceSession(tmp_path / "fast.onnx", options).run(None, case.feeds)[0]
    assert_same(np.asarray(result), run(rewritten(make(bias=True, zero_points=True)), case))


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("expert_weight_bits", 16, "the weights of the experts have 16 bits, expected 2, 4 or 8"),
        ("quant_type", "fp8", "quant_type is fp8"),
        ("weights_prepacked", 1, "weights_prepacked is 1"),
        ("fc2_expert_weight_bits", 8, "fc2_expert_weight_bits is 8"),
        ("activation_type", "geglu", "activation_type is geglu"),
        ("swiglu_fusion", 0, "without fc3"),
        ("block_size", 8, "8"),
        ("block_size", 48, "whole blocks"),
        ("accuracy_level", 0, "float activations"),
        ("k", 0, "its k is 0, expected 1 to the number of experts, 5"),
        ("k", 6, "its k is 6"),
        ("activation_alpha", math.nan, "activation_alpha is nan"),
        ("activation_beta", math.nan, "activation_beta is nan"),
        ("swiglu_limit", math.nan, "swiglu_limit is nan: ort_dynq has no such mixture of experts"),
        ("swiglu_limit", -1.0, "swiglu_limit is -1.0"),  # the process of stock ONNX Runtime ends
    ],
)
def test_reasons(attribute: str, value: float | str, reason: str) -> None:
    case = make()
    (node,) = case.model.graph.node
    for each in [each for each in node.attribute if each.name == attribute]:
        node.attribute.remove(each)
    node.attribute.append(onnx.helper.make_attribute(attribute, value))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert reason in finding.reason


def test_experts_of_phimoe_stay() -> None:
    """onnxruntime-genai's builder writes them for CUDA, with gates in fc3. The kernel for CPUs refuses them."""
    case = make(fusion=0, use_sparse_mixer=1)
    (kind,) = (each for each in case.model.graph.node[0].attribute if each.name == "activation_type")
    kind.s = b"silu"
    (finding,) = ort_dynq.rewrite(case.model, weights_only="two-term").report.unconverted
    assert finding.reason.startswith("its activation_type is silu, with swiglu_fusion 0 and with fc3")
    with pytest.raises(Exception, match="FC3 gating is not yet implemented on CPU"):
        stock_session(case.model).run(None, case.feeds)


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


@pytest.mark.parametrize("name", ["fc1", "fc2"])
def test_numbers_of_results(name: str) -> None:
    """Those of a product do not fit the other product."""
    case = make(kind="relu")
    for initializer in case.model.graph.initializer:
        if initializer.name.startswith(name):
            array = numpy_helper.to_array(initializer)[:, :32]
            initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert f"the results of {name} have 32 elements, expected {INNER if name == 'fc1' else HIDDEN}" in finding.reason


def test_sums_that_may_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator refuses them."""
    for name, size in (("EXPERTS", 1), ("HIDDEN", 33040), ("INNER", 16)):
        monkeypatch.setattr(qmoe, name, size)
    (finding,) = ort_dynq.rewrite(make(block_size=0, k=1).model, weights_only="blocks").report.unconverted
    assert "overflow" in finding.reason


def square(nodes: int, parts: Callable[[int], Sequence[str]]) -> onnx.ModelProto:
    """A model of several QMoE whose weights are square: `parts` names those of a node."""
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
