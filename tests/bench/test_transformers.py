"""The transformer networks of `python tests/bench networks`: validity, results, structure, determinism."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from helpers import Array, diagonals, stock_session
from onnx import numpy_helper

from bench import transformers
from ort_dynq import DynqError
from ort_dynq.tools.verification.saturation import cpu_saturates

LAYERS, HIDDEN, HEADS = 2, 48, 4
SIZES = {"layers": LAYERS, "hidden": HIDDEN, "heads": HEADS}

forms = pytest.mark.parametrize("form", transformers.FORMS)
each_network = pytest.mark.parametrize("network", transformers.NETWORKS)


def build(network: str, form: str, **sizes: int) -> onnx.ModelProto:
    return transformers.NETWORKS[network](form, **{**SIZES, **sizes})


def initializers(model: onnx.ModelProto) -> dict[str, Array]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


@forms
@each_network
def test_network_is_valid(network: str, form: str) -> None:
    model = build(network, form)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (10, 20)
    assert model.graph.name == network
    used = {name for node in model.graph.node for name in node.input} | {value.name for value in model.graph.output}
    made = [name for node in model.graph.node for name in node.output] + list(initializers(model))
    assert used - {""} == {*made, *(value.name for value in model.graph.input)}  # every value is used


@pytest.mark.parametrize(
    ("form", "network", "optimize"), diagonals(2, transformers.FORMS, transformers.NETWORKS, [False, True])
)
def test_quantized_network_is_close_to_the_float_network(network: str, form: str, optimize: bool) -> None:
    """8-bit codes of activations and weights are off by at most 1/254 of the range, which adds up to some percent."""
    if optimize and form == "tensor_u8" and cpu_saturates():
        pytest.skip("ONNX Runtime's fused products saturate on this CPU")
    model, exact = build(network, form), build(network, "float")
    session, reference = stock_session(model, optimize=optimize), stock_session(exact)
    for tokens in (1, 7, 128):
        feeds = transformers.feeds(model, tokens, batch=2, seed=tokens)
        outputs = session.run(None, feeds)
        head = HIDDEN // HEADS
        cache = [(2, HEADS, tokens + 1, head)] * (2 * LAYERS) if network == "decoder" else []
        assert [each.shape for each in outputs] == [(2, tokens if network == "encoder" else 1, HIDDEN), *cache]
        for actual, expected in zip(outputs, reference.run(None, feeds), strict=True):
            assert actual.dtype == np.float32
            assert 0.3 < expected.std() < 3
            assert np.linalg.norm(actual - expected) < 0.05 * np.linalg.norm(expected)


@forms
@each_network
def test_operators_of_linear_layers(network: str, form: str) -> None:
    """A layer has six products and two of the attention. Query, key and value share a quantized input."""
    operators = Counter(node.op_type for node in build(network, form).graph.node)
    integer = form == "token_integer"
    assert (operators["MatMul"], operators["MatMulInteger"]) == ((2 * LAYERS, 6 * LAYERS) if integer else (16, 0))
    assert operators["ReduceMax"] == (0 if form == "float" else 4 * LAYERS)
    assert operators["QuantizeLinear"] == (4 * LAYERS if form.startswith("tensor") else 0)


def test_folded_weights_are_the_codes_times_the_scales() -> None:
    folded, integer = (initializers(build("encoder", form)) for form in ("token", "token_integer"))
    stored, real = (initializers(build("encoder", form)) for form in ("torchao", "float"))
    weights = [name for name, array in stored.items() if array.dtype == np.int8]
    assert len(weights) == 6 * LAYERS
    for name in weights:
        codes, scales = integer[name], integer[f"{name}_scale"]
        assert codes.dtype == np.int8
        assert np.array_equal(np.abs(codes.astype(int)).max(axis=0), np.full(codes.shape[1], 127))
        assert np.array_equal(codes.astype(np.float32) * scales, folded[name])
        assert np.array_equal(codes.T, stored[name])
        assert np.array_equal(scales[:, None], stored[f"{name}_scale"])
        assert (np.abs(folded[name] - real[name]) <= scales * 0.5001).all()


def test_decoder_steps_equal_the_encoder() -> None:
    """One layer without quantization: in both networks, the last token attends to all tokens."""
    encoder, decoder = (stock_session(build(network, "float", layers=1)) for network in transformers.NETWORKS)
    x = np.random.default_rng(0).standard_normal((2, 5, HIDDEN), np.float32)
    key = value = np.zeros((2, HEADS, 0, HIDDEN // HEADS), np.float32)
    for token in np.split(x, 5, axis=1):
        past = {"past_key_values.0.key": key, "past_key_values.0.value": value}
        y, key, value = decoder.run(None, {"x": token, **past})
    np.testing.assert_allclose(y, encoder.run(None, {"x": x})[0][:, -1:], rtol=1e-4, atol=1e-5)


@each_network
def test_the_seed_determines_the_weights(network: str) -> None:
    first, again, other = (build(network, "torchao", seed=seed).SerializeToString() for seed in (1, 1, 2))
    assert first == again != other


def test_shapes_and_seed_of_feeds() -> None:
    feeds = transformers.feeds(build("decoder", "float"), 3, batch=2, seed=1)
    again = transformers.feeds(build("decoder", "torchao"), 3, batch=2, seed=1)
    assert {name: array.shape for name, array in feeds.items()} == {
        "x": (2, 1, HIDDEN),
        **{
            f"past_key_values.{layer}.{kind}": (2, HEADS, 3, HIDDEN // HEADS)
            for layer in range(LAYERS)
            for kind in ("key", "value")
        },
    }
    assert all(np.array_equal(array, again[name]) for name, array in feeds.items())


@each_network
def test_wrong_arguments(network: str) -> None:
    with pytest.raises(DynqError, match="there is no form 'int3' of a network, expected one of float, token, "):
        build(network, "int3")
    with pytest.raises(DynqError, match="the hidden size 48 is not a multiple of 5 heads"):
        build(network, "token", heads=5)
