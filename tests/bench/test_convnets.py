"""The networks of convolutions of `python tests/bench networks`: validity, results, structure, determinism."""

from __future__ import annotations

import logging
from collections import Counter

import numpy as np
import onnx
import pytest
from helpers import diagonals, make_session, stock_session

from bench import convnets
from ort_dynq import DynqError, quantize
from ort_dynq.rewriter import rewrite

SIZES = {"image": 40, "width": 8}
COUNTS = {"resnet": (20, 3), "ppocr": (23, 0), "yolo": (57, 9), "mobilenet": (62, 0), "efficientnet": (81, 0)}
COUNTS |= {"unet": (15, 0), "wave": (7, 0)}
"""The convolutions of each network, and how many of them share an input with another one."""
SHAPES = {"yolo": (2, 144, 21), "unet": (2, 2, 40, 40)}


@pytest.mark.parametrize(("network", "form"), diagonals(1, convnets.NETWORKS, convnets.FORMS))
def test_network_is_valid(form: str, network: str) -> None:
    model = convnets.NETWORKS[network](form, **SIZES)
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (10, 20)
    operators = Counter(node.op_type for node in model.graph.node)
    quantized = form != "float"
    # A shortcut of resnet shares its input, and so do the halves of blocks of yolo, and its heads.
    count, shared = COUNTS[network]
    assert operators["ConvInteger" if quantized else "Conv"] == count
    assert operators["Conv" if quantized else "ConvInteger"] == 0
    assert operators["DynamicQuantizeLinear"] == (count - shared if quantized else 0)
    if network == "ppocr":
        assert operators["Clip"] == operators["Div"] == 16  # a HardSwish after all but the last of each block


@pytest.mark.parametrize(("network", "form"), diagonals(1, convnets.NETWORKS, convnets.FORMS[1:]))
def test_quantized_network_is_close_to_the_float_network(form: str, network: str) -> None:
    """8-bit codes of activations and weights are off by at most 1/254 of the range, which adds up to some percent."""
    exact, model = (convnets.NETWORKS[network](each, **SIZES) for each in ("float", form))
    feeds = convnets.feeds(model, batch=2, seed=3)
    (expected,) = stock_session(exact).run(None, feeds)
    (actual,) = stock_session(model).run(None, feeds)
    assert actual.shape == expected.shape == SHAPES.get(network, (2, 1000))
    assert 0.1 < expected.std() < 10
    most = 0.08 if network == "unet" else 0.05  # its outputs are no means over positions
    assert 0 < np.linalg.norm(actual - expected) < most * np.linalg.norm(expected)


@pytest.mark.parametrize(("network", "least"), [("ppocr", 8), ("yolo", 15)])
def test_quantize_is_close_to_the_float_network(network: str, least: int) -> None:
    """Convolutions between Concat, Resize, HardSwish and SiLU become integers."""
    model = convnets.NETWORKS[network]("float", image=32, width=32)
    result = quantize(model)
    assert sum("QuantizedConv" in str(each.operator) for each in result.report.rewritten) >= least
    feeds = convnets.feeds(model, seed=3)
    (expected,) = stock_session(model).run(None, feeds)
    (actual,) = make_session(result.to_proto(), "native").run(None, feeds)
    assert 0 < np.linalg.norm(actual - expected) < 0.05 * np.linalg.norm(expected)


def test_weights_have_the_type_that_the_form_names() -> None:
    for form, dtype in (("conv_u8", onnx.TensorProto.UINT8), ("conv_s8", onnx.TensorProto.INT8)):
        weights = [each for each in convnets.resnet(form, **SIZES).graph.initializer if len(each.dims) == 4]
        types = Counter(each.data_type for each in weights if each.data_type != onnx.TensorProto.FLOAT)
        assert types == {dtype: 20}


def test_quantizing_leaves_the_logging_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    convnets.resnet("conv_u8", **SIZES)
    assert not caplog.records
    logging.getLogger().warning("this is logged")
    assert [record.message for record in caplog.records] == ["this is logged"]


def test_the_seed_determines_the_weights() -> None:
    for network in convnets.NETWORKS.values():
        first, again, other = (network("float", seed=s, **SIZES).SerializeToString() for s in (1, 1, 2))
        assert first == again != other


def test_tails_are_programs() -> None:
    """Residuals, HardSwish and learned factors become programs of the convolutions: nothing else stays between them."""
    for network, count, tails in (("resnet", 20, 17), ("ppocr", 23, 20)):
        after = rewrite(convnets.NETWORKS[network]("conv_u8", image=64, width=16)).report.after
        assert (after["ort_dynq.QuantizedConv"], after["ort_dynq.QuantizedConvProgram"]) == (count - tails, tails)
        assert not {"Relu", "Clip", "Mul", "Div", "Cast", "ConvInteger"} & {*after}
        assert after["Add"] == 1  # of the linear layer


def test_wrong_form() -> None:
    with pytest.raises(DynqError, match="there is no form 'token' of a network of convolutions, expected one of float"):
        convnets.resnet("token")
