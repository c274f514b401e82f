"""The models of models/ that a quantization changes: what their layers become, with the plugin and without it.

The results are compared with the recorded ones of ONNX Runtime, which computes the layers in float. An error in a
weight, a bias, an axis or a step adds far more noise than the codes, for which alone there is room here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session
from quantizing import every_size, operators, reasons
from rewriting import FOR_THE_QUANTIZER, MODELS, data_sets, load

import ort_dynq
from ort_dynq.rewriter import Result


class Case(NamedTuple):
    """What a quantization of a model gives.

    Attributes:
        name: The model.
        operators: The calls of operators; None if they depend on the noise of the layers.
        decibels: The least signal-to-noise ratio of each output; as measured, they have one or two decibels more.
        options: Those of the quantization.
    """

    name: str
    operators: Mapping[str, int] | None
    decibels: tuple[int, ...]
    options: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])


ENCODER = {"DynamicDequantize": 1, "GatherDequantize": 1, "RowProgram": 6, "QuantizedMatMul": 6}
ENCODER |= {"QuantizedMatMulProgram": 3, "QuantizedAttention": 1}
APART = {"DynamicDequantize": 2, "GatherDequantize": 0}
"""The table of the embedding is not that of the last product."""
IMAGE = {"RowProgram": 6, "QuantizedMatMul": 1, "QuantizedConv": 2, "QuantizedConvProgram": 3, "Interleave": 2}
HALF = {"DynamicDequantize": 1, "RowProgram": 4, "QuantizedMatMul": 2, "QuantizedMatMulProgram": 1}
HALF |= {"QuantizedConv": 1, "QuantizedRecurrence": 1}
MOBILE = {"RowProgram": 5, "QuantizedConv": 1, "QuantizedConvProgram": 4, "ChannelGate": 2}
RECURRENT = {"RowProgram": 3, "QuantizedMatMul": 3, "QuantizedRecurrence": 3}
RECURRENT_OF_WORDS = {"WordMatMul": 3, "WordRecurrence": 3}
ACTIVATIONS = {"RowProgram": 9, "QuantizedMatMul": 1, "QuantizedMatMulProgram": 8}
WORDS = {"RowProgram": 1, "WordMatMul": 6, "WordMatMulProgram": 3}
IMAGE_OF_WORDS = {"WordMatMul": 1, "WordConv": 2, "WordConvProgram": 3, "Interleave": 2}
MOBILE_OF_WORDS = {"RowProgram": 1, "WordConv": 1, "WordConvProgram": 4, "ChannelGate": 2}
TWO = {"RowProgram": 2, "QuantizedMatMul": 1, "QuantizedMatMulProgram": 1}


def of(operators: Mapping[str, int], quantization: str, **others: int) -> dict[str, int]:
    """The operators with another one in place of RowProgram, and with other numbers of some; 0 for none."""
    changed = {quantization if name == "RowProgram" else name: count for name, count in operators.items()} | others
    return {name: count for name, count in changed.items() if count}


HEADS = {"RowProgram": 5, "QuantizedMatMul": 7, "QuantizedAttention": 1}
TWO_TERM = {"activations": "two-term"}
FLOATS = {"activations": "tensor", "attention": "float", "embeddings": "keep"}
"""All that can stay float, and activations with one scale."""

CASES = (
    Case("float_activations", ACTIVATIONS, (32,)),
    Case("float_activations", of(ACTIVATIONS, "TwoTermQuantize"), (35,), TWO_TERM),
    Case("float_branches", {"RowProgram": 10, "QuantizedMatMul": 10}, (29,)),
    Case("float_encoder", ENCODER, (37, 37, 36)),
    # In each of these two, the sum of the embeddings and its normalization become a program alone.
    Case("float_encoder", of(ENCODER, "TwoTermQuantize", RowProgram=1, QuantizedAttention=0), (39, 40, 38), TWO_TERM),
    Case(
        "float_encoder",
        of(
            ENCODER,
            "DynamicQuantizeLinear",
            RowProgram=1,
            QuantizedAttention=0,
            DynamicDequantize=0,
            GatherDequantize=0,
        ),
        (36, 37, 36),
        FLOATS,
    ),
    Case("float_encoder", of(ENCODER, "RowProgram", **APART), (18, 18, 16), {"weights": "int4", "group": 64}),
    Case("float_encoder", WORDS, (60, 60, 60), {"weights": "int12"}),
    Case(
        "float_encoder",
        of(ENCODER, "RowProgram", QuantizedMatMulProgram=2, QuantizedAttention=0, GatherDequantize=0),
        (40, 38, 37),
        {"symmetric": True, "fuse": False, "exclude": ["scores"]},
    ),
    Case("float_half", HALF, (36, 36)),
    Case("float_half", None, (39, 39), {"min_snr": 39.0, **TWO_TERM}),
    Case("float_heads", HEADS, (37, 38)),
    Case("float_heads", of(HEADS, "TwoTermQuantize", QuantizedAttention=0), (40, 40), TWO_TERM),
    Case("float_heads", {"WordMatMul": 7}, (63, 63), {"weights": "int12"}),
    Case("float_image", IMAGE, (46, 41, 39)),
    Case("float_image", of(IMAGE, "TwoTermQuantize"), (46, 43, 41), TWO_TERM),
    Case("float_image", of(IMAGE, "DynamicQuantizeLinear"), (45, 40, 39), FLOATS),
    Case("float_image", IMAGE_OF_WORDS, (60, 60, 60), {"weights": "int12"}),
    Case("float_mobile", MOBILE, (34, 42)),
    Case("float_mobile", MOBILE_OF_WORDS, (60, 60), {"weights": "int12"}),
    # The program that normalizes the input stays.
    Case("float_mobile", {**MOBILE, "RowProgram": 1, "TwoTermQuantize": 4}, (39, 48), TWO_TERM),
    Case("float_mobile", {**MOBILE, "RowProgram": 1, "DynamicQuantizeLinear": 4}, (33, 41), FLOATS),
    Case("float_recurrent", RECURRENT, (42, 38, 39)),
    Case("float_recurrent", of(RECURRENT, "TwoTermQuantize"), (44, 42, 42), {**TWO_TERM, "weights": "int4"}),
    Case("float_recurrent", RECURRENT_OF_WORDS, (60, 60, 60), {"weights": "int12"}),
    Case("ort_dequantized_weights", TWO, (43,)),
    Case("ort_dynamic_channel", TWO, (41,), {"from_dynamic": True}),
    Case(
        "ort_dynamic_conv",
        {"RowProgram": 2, "QuantizedConv": 1, "QuantizedConvProgram": 1},
        (45,),
        {"from_dynamic": True, "weights": "int4"},
    ),
    Case(
        "ort_dynamic_lstm",
        {"RowProgram": 2, "QuantizedMatMul": 2, "QuantizedRecurrence": 2},
        (49, 51, 52),
        {"from_dynamic": True},
    ),
    Case("ort_mixture_of_experts", {"RowProgram": 1, "QuantizedMatMul": 1}, (22,)),
    Case("ort_nbits", of(TWO, "TwoTermQuantize"), (44,), TWO_TERM),
    Case(
        "ort_static",
        {"RowProgram": 2, "QuantizedConvProgram": 1, "QuantizedMatMulProgram": 1},
        (48,),
        {"from_static": True},
    ),
)
NO_PRODUCTS = {
    "the convolution is too small: quantization and a custom operator cost more than integers save",
    "a product of two activations",
    "excluded by scores",
    "other nodes read its table as floats: the file would have it twice",
    "stays in float for the signal-to-noise ratio of the outputs",
}
"""The reasons of layers that stay, but for mixtures of experts."""


def decibels(actual: Array, expected: Array) -> float:
    wide = expected.astype(np.float64)
    noise = ((actual - wide) ** 2).sum()
    return math.inf if noise == 0 else float(10 * np.log10((wide**2).sum() / noise))


def quantized(case: Case) -> Result:
    """Quantizes the small model as a large one."""
    data = {"data": data_sets(case.name)[0][0]} if "min_snr" in case.options else {}
    with every_size():
        return ort_dynq.quantize(load(case.name), **case.options, **data)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_models(case: Case) -> None:
    result, (feeds, recorded) = quantized(case), data_sets(case.name)[0]
    assert case.operators is None or operators(result) == case.operators
    assert {reason for reason in reasons(result) if "mixtures of experts" not in reason} <= NO_PRODUCTS
    content = result.to_proto()
    onnx.checker.check_model(content, full_check=True)
    outputs = make_session(content, "native").run(None, feeds)
    for one, other in zip(outputs, stock_session(content).run(None, feeds), strict=True):
        assert_same(one, other)
    for one, expected, least in zip(outputs, recorded.values(), case.decibels, strict=True):
        assert decibels(one, expected) >= least


@pytest.mark.parametrize("options", [{}, TWO_TERM, {"weights": "int12"}], ids=str)
def test_a_sample_does_not_depend_on_the_others(options: Mapping[str, Any]) -> None:
    """A batch has the bits of each of its images alone."""
    session = make_session(quantized(Case("float_image", IMAGE, (), options)).to_proto(), "native")
    x = data_sets("float_image")[0][0]["x"] * np.array([1, 0.01], np.float32).reshape(2, 1, 1, 1)
    together = session.run(None, {"x": x})
    for i in range(2):
        for whole, alone in zip(together, session.run(None, {"x": x[i : i + 1]}), strict=True):
            assert_same(alone[0], whole[i])


def test_every_model_is_quantized() -> None:
    names = {path.parent.name for path in MODELS.glob("*/model.onnx")}
    assert {name for name in names if name.startswith(FOR_THE_QUANTIZER)} <= {case.name for case in CASES}
