"""QMoE: mixtures of experts, as onnxruntime-genai's builder writes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from genai_folders import FOLDERS, decode
from helpers import assert_same, make_session, stock_session
from nbits import noise
from onnx import numpy_helper
from qmoe import GPT_OSS, HAS_LEVELS, HIDDEN, INNER, Case, make

import ort_dynq
from ort_dynq.genai import rewrite_folder

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
    return make_session(model, "native", optimize=True, threads=threads).run(None, case.feeds)[0]


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
    many = case.of(120)  # the experts have one task each, which run together
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
