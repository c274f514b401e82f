"""Recurrent layers in a quantized model: what ONNX Runtime's float operators compute, and what stays in float."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session, with_arrays
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType
from recurrence import DEPTH, GATES, B, H, T, decibels, dynamic, layer, tanh, with_weights_of

import ort_dynq
from ort_dynq import kernels
from ort_dynq.rewriter.listing import listing_of
from ort_dynq.rewriter.policy import cost
from ort_dynq.tools.quantization import ladder, outcome, selection
from ort_dynq.tools.quantization.ladder import FLOAT, TWO_TERMS, WORDS


def quantized(model: onnx.ModelProto, feeds: dict[str, Array], **options: Any) -> list[Array]:
    """The outputs of the quantized model; without the plugin, they are the same, bit for bit, and with two threads."""
    result = ort_dynq.quantize(model, **options)
    operator = "WordRecurrence" if options.get("weights") == "int12" else "QuantizedRecurrence"
    assert [each.operator for each in result.report.rewritten] == [operator]
    content = result.to_proto()
    onnx.checker.check_model(content)
    outputs = make_session(content, "native").run(None, feeds)
    for other in (stock_session(content), make_session(content, "native", threads=2)):
        for one, two in zip(outputs, other.run(None, feeds), strict=True):
            assert_same(one, two)
    return list(outputs)


CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    f"{operator} {text}": (operator, directions, given)
    for k, operator in enumerate(GATES)
    for i, (text, directions, given) in enumerate(
        (
            ("", 1, {}),
            ("backwards", 1, {"direction": "reverse", "given": ["lengths"]}),
            ("both", 2, {"given": ["lengths", "state"]}),
            ("with a clip", 1, {"clip": 0.3}),
            ("without bias", 1, {"given": ["no bias"]}),
            ("one step, one sequence", 1, {"steps": 1, "batch": 1, "given": ["state"], "size": 384}),
            ("many sequences", 2, {"batch": 50, "steps": 3}),
            ("of few inputs", 1, {"depth": 3}),
            ("with small states", 1, {"spread": 0.05}),
        )
    )
    if i < 3 or i % 3 == k  # what does not depend on the operator, for one of them
} | {
    "LSTM with peepholes": ("LSTM", 2, {"given": ["peepholes", "lengths", "state", "cell"]}),
    "LSTM with peepholes and a clip": ("LSTM", 1, {"given": ["peepholes"], "clip": 0.4}),
    "LSTM, coupled": ("LSTM", 1, {"input_forget": 1}),
    "LSTM, only the last cell": ("LSTM", 1, {"outputs": ["", "", "y_c"]}),
    "LSTM with others": ("LSTM", 1, {"activations": ["HardSigmoid", "Relu", "Sigmoid"], "clip": 2.0}),
    "LSTM with numbers": (
        "LSTM",
        2,
        {
            "activations": ["HardSigmoid", "Tanh", "Tanh"] * 2,
            "activation_alpha": [0.25] * 2,
            "activation_beta": [0.45] * 2,
        },
    ),
    "GRU, linear": ("GRU", 2, {"linear_before_reset": 1, "given": ["lengths", "state"]}),
    "GRU, linear, backwards, with a clip": ("GRU", 1, {"linear_before_reset": 1, "clip": 0.2, "direction": "reverse"}),
    "GRU with others": (
        "GRU",
        1,
        {
            "activations": ["HardSigmoid", "Relu"],
            "activation_alpha": [0.25],
            "activation_beta": [0.45],
        },
    ),
    **{
        f"RNN with {name}": ("RNN", 1, {"activations": [name], "size": 320, "spread": 1})
        for name in ("Relu", "Sigmoid", "HardSigmoid")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_is_near_onnx_runtime(name: str) -> None:
    """A wrong gate, order or clip gives less than 20 decibels; codes of 8 bits give 33 or more here."""
    operator, directions, given = CASES[name]
    if operator == "RNN":
        given = {"size": 320} | given
    model, feeds = layer(operator, directions, **given)
    expected = stock_session(model, optimize=True).run(None, feeds)
    found = quantized(model, feeds)
    for one, two in zip(expected, found, strict=True):
        assert one.shape == two.shape
        assert decibels(one, two) >= 33, decibels(one, two)
        assert np.array_equal((one == 0).all(-1), (two == 0).all(-1))  # after the end of a sequence


@pytest.mark.parametrize("name", ["LSTM with peepholes", "GRU, linear", "RNN backwards"])
def test_words_are_near_onnx_runtime(name: str) -> None:
    """Codes of 8 bits give 58 decibels or less here."""
    operator, directions, given = CASES[name]
    model, feeds = layer(operator, directions, **{"size": 320 if operator == "RNN" else H, "depth": 96, **given})
    for one, two in zip(stock_session(model).run(None, feeds), quantized(model, feeds, weights="int12"), strict=True):
        assert decibels(one, two) >= 65, decibels(one, two)


@pytest.mark.parametrize("operator", GATES)
def test_batch_first(operator: str) -> None:
    """ONNX Runtime does not compute layout 1, so the same layer of layout 0 is the reference."""
    given = ["lengths", "state", *(["cell"] if operator == "LSTM" else [])]
    model, feeds = layer(operator, 2, given=given, size=320)
    expected = quantized(model, feeds)
    model, feeds = layer(operator, 2, given=given, size=320, layout=1)
    for one, two in zip(expected, quantized(model, feeds), strict=True):
        assert_same(one.transpose(2, 0, 1, 3) if one.ndim == 4 else one.swapaxes(0, 1), two)


def grid(shape: tuple[int, ...], seed: int) -> Array:
    """Weights that are codes times a scale for each column: their quantization is exact."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, shape)
    codes[..., 0] = 127
    return (codes * np.float32(2.0**-11)).astype(np.float32)


def codes_of(state: Array) -> Array:
    low, high = state.min(-1, keepdims=True, initial=0), state.max(-1, keepdims=True, initial=0)
    scale = (high - low) / 255
    scale[scale == 0] = 1
    return np.asarray(np.rint(state / scale) * scale)


def words_of(state: Array) -> Array:
    blocks = [state[:, first : first + 256] for first in range(0, state.shape[1], 256)]
    steps = [np.maximum(np.abs(each).max(-1, keepdims=True) / 4095, 2.0**-126) for each in blocks]
    return np.concatenate([np.rint(each / step) * step for each, step in zip(blocks, steps, strict=True)], -1)


@pytest.mark.parametrize("weights", ["int8", "int12"])
@pytest.mark.parametrize("name", ["LSTM", "GRU", "GRU, linear", "RNN"])
def test_equals_float64(name: str, weights: str) -> None:
    """With weights on a grid, and states quantized as documented, only rounding to float32 remains."""
    rounded = words_of if weights == "int12" else codes_of
    operator, is_linear = name.partition(",")[0], name.endswith("linear")
    size, gates = 320, GATES[operator]
    model, feeds = layer(operator, size=size, depth=2, **({"linear_before_reset": 1} if is_linear else {}))
    tensors = {each.name: each for each in model.graph.initializer}
    tensors["r"].CopyFrom(numpy_helper.from_array(grid((1, gates * size, size), 1), "r"))
    w, r, b = (numpy_helper.to_array(tensors[each])[0].astype(np.float64) for each in "wrb")
    x, half = feeds["x"].astype(np.float64), gates * size
    h = c = np.zeros((B, size))

    def sigmoid(value: Array) -> Array:
        return 1 / (1 + np.exp(-value))

    expected = []
    for step in range(T):
        inputs = np.split(x[step] @ w.T + b[:half], gates, 1)
        products = np.split(rounded(h) @ r.T + b[half:], gates, 1)
        sums = [one + two for one, two in zip(inputs, products, strict=True)]
        if operator == "LSTM":
            c = sigmoid(sums[2]) * c + sigmoid(sums[0]) * np.tanh(sums[3])
            h = sigmoid(sums[1]) * np.tanh(c)
        elif operator == "RNN":
            h = np.tanh(sums[0])
        else:
            z, reset = sigmoid(sums[0]), sigmoid(sums[1])
            other = reset * products[2] if is_linear else rounded(reset * h) @ r[2 * size :].T + b[half + 2 * size :]
            h = (1 - z) * np.tanh(inputs[2] + other) + z * h
        expected.append(h)
    found = quantized(model, feeds, weights=weights)[0][:, 0]
    # An error of 1e-7 rarely changes a code: most states differ by the errors of float32 only.
    assert np.median(np.abs(found - expected)) < 1e-6
    assert decibels(np.asarray(expected), found) > 75


def suite() -> dict[str, Any]:
    """The cases of ONNX's backend suite, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the modules compute their answers when they are imported
        from onnx.backend.test.case import node

        for operator in GATES:
            importlib.import_module(f"{node.__name__}.{operator.lower()}")
        return {case.name: case for case in node._NodeTestCases if case.model.graph.node[0].op_type in GATES}


SUITE = suite()


@pytest.mark.parametrize("name", SUITE)
def test_backend_suite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights of a case are one number, so that their quantization is exact; it is too small to pay."""
    monkeypatch.setattr(cost, "_MIN_WEIGHTS_OF_RECURRENCE", 0)
    case = SUITE[name]
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", 17)])
    model.ir_version = 9
    inputs, expected = case.data_sets[0]
    arrays = dict(zip((each.name for each in model.graph.input), inputs, strict=True))
    optional = [*model.graph.node[0].input, *[""] * 8]
    constant = {name for name in (*optional[1:4], optional[7]) if name}
    model.graph.initializer.extend(numpy_helper.from_array(arrays[each], each) for each in sorted(constant))
    kept = [each for each in model.graph.input if each.name not in constant]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    found = quantized(model, {each.name: arrays[each.name] for each in kept})
    for one, two in zip(expected, found, strict=True):
        # A code of a state is wrong by half a step of 127; a sum has up to 7 of them, times weights of 0.5 or less.
        assert one.shape == two.shape
        np.testing.assert_allclose(two, one, atol=7 * 0.5 * 0.5 / 127)


def test_the_suite_has_cases() -> None:
    assert len(SUITE) >= 9
    assert {case.model.graph.node[0].op_type for case in SUITE.values()} == {*GATES}


def findings(model: onnx.ModelProto) -> list[str]:
    return [str(each.unconverted) for each in ort_dynq.quantize(model).report.findings if each.unconverted]


STAYING: dict[str, tuple[str, int, dict[str, Any]]] = {
    "activation function Softplus": ("RNN", 1, {"activations": ["Softplus"], "size": 320}),
    "activation function Elu": ("LSTM", 1, {"activations": ["Sigmoid", "Elu", "Tanh"]}),
    "directions have different": ("GRU", 2, {"activations": ["Sigmoid", "Tanh", "Sigmoid", "Relu"]}),
    "activation_alpha or": ("RNN", 1, {"activations": ["Tanh"], "activation_alpha": [0.5], "size": 320}),
    "attribute activations": ("LSTM", 1, {"activations": ["Sigmoid", "Tanh"]}),
    "48 x 192 weights are too few": ("LSTM", 1, {"size": 48}),
    "attribute hidden_size": ("LSTM", 1, {"hidden_size": 8}),
}


@pytest.mark.parametrize("reason", STAYING)
def test_stays_in_float(reason: str) -> None:
    operator, directions, given = STAYING[reason]
    model, _ = layer(operator, directions, **given)
    (text,) = findings(model)
    assert reason in text


def test_weights_at_run_time() -> None:
    model, _ = layer("LSTM")
    tensor = next(each for each in model.graph.initializer if each.name == "r")
    model.graph.input.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, tensor.dims))
    assert "an input of the model" in findings(model)[0]


def test_options() -> None:
    """Recurrent weights have 8 bits with int4; the activations of the inputs follow the options."""
    model, feeds = layer("LSTM", depth=96)
    result = ort_dynq.quantize(model, weights="int4", activations="tensor")
    assert result.report.rewritten[0].note == "int8"
    operators = [node.op_type for node in result.to_proto().graph.node]
    assert operators == ["DynamicQuantizeLinear", "QuantizedMatMul", "QuantizedRecurrence"]
    found = make_session(result.to_proto(), "native").run(None, feeds)
    assert decibels(stock_session(model).run(None, feeds)[0], found[0]) > 33
    with pytest.raises(ort_dynq.DynqError, match="no layer matches"):
        ort_dynq.quantize(model, exclude=["other"])
    assert not ort_dynq.quantize(model, exclude=["lay*"]).report.rewritten


@pytest.mark.parametrize(("type_", "per_channel"), [(QuantType.QInt8, True), (QuantType.QUInt8, False)])
def test_from_dynamic(type_: QuantType, per_channel: bool) -> None:
    """The weights of DynamicQuantizeLSTM stay, which itself saturates on CPUs without VNNI."""
    model, feeds = layer("LSTM", 2, given=["lengths", "state", "cell", "peepholes"])
    given = dynamic(model, weight_type=type_, per_channel=per_channel)
    with pytest.raises(ort_dynq.DynqError, match=r"1 integer products.*--from-dynamic"):
        ort_dynq.quantize(given)
    (node,) = given.graph.node
    assert node.op_type == "DynamicQuantizeLSTM"
    found = quantized(given, feeds, from_dynamic=True)
    expected = stock_session(with_weights_of(given, model)).run(None, feeds)
    for one, two in zip(expected, found, strict=True):
        assert decibels(one, two) >= 36


@pytest.mark.parametrize(("weights", "operator"), [("int8", "QuantizedRecurrence"), ("int12", "WordRecurrence")])
def test_listing_of_the_program(weights: str, operator: str) -> None:
    """What `ort-dynq inspect --program` shows of a quantized model."""
    model, _ = layer("LSTM", given=["peepholes"])
    listing = listing_of(ort_dynq.quantize(model, weights=weights).model, "layer")
    assert listing.operator == operator
    sources = {each.name: each.nodes[0] for each in listing.inputs}
    assert sources == {
        **{f"tensor{i}": f"gate {i}" for i in range(1, 5)},
        "tensor5": "the second state",
        **{f"column{5 + i}": f"part {i} of columns" for i in range(1, 4)},
    }
    assert [(each.name, each.value) for each in listing.outputs] == [("dst", "y"), ("dst_2", "y_c")]


def test_codes_that_do_not_fit() -> None:
    """Codes minus their zero point exceed 8 bits."""
    codes = np.full((1, DEPTH, 4 * H), 255, np.uint8)
    constants = {"w": codes, "r": codes[:, :1].repeat(H, 1), "s": np.ones(1, np.float32), "z": np.array([7], np.uint8)}
    inputs = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    node = helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], name="layer", hidden_size=H, domain="com.microsoft")
    model, _ = layer("LSTM", outputs=["y", "", ""])
    model.graph.node[0].CopyFrom(node)
    del model.graph.initializer[:]
    with_arrays(model, constants)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    result = ort_dynq.quantize(model, from_dynamic=True)
    (finding,) = result.report.findings
    assert "not a matrix of integers of 8 bits" in str(finding.unconverted)


def decibels_of_inputs(depth: int, **options: Any) -> float:
    model, feeds = layer("LSTM", depth=depth)
    tensor = next(each for each in model.graph.initializer if each.name == "r")
    tensor.CopyFrom(numpy_helper.from_array(grid((1, 4 * H, H), 1), "r"))
    tensor = next(each for each in model.graph.initializer if each.name == "w")
    tensor.CopyFrom(numpy_helper.from_array(grid((1, 4 * H, depth), 2), "w"))
    return decibels(stock_session(model).run(None, feeds)[0], quantized(model, feeds, **options)[0])


def test_two_terms() -> None:
    """With weights on a grid, the inputs make most of the noise; few inputs stay in float, which is better still."""
    assert decibels_of_inputs(160, activations="two-term") > decibels_of_inputs(160) + 6
    assert decibels_of_inputs(64, activations="two-term") > decibels_of_inputs(64) + 6


def test_min_snr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recurrent layer is measured; it gets words, or its inputs get two terms, if the outputs need it."""
    monkeypatch.setattr(selection, "times_of_layers", lambda *_: {})  # estimated ones do not vary
    model, feeds = layer("LSTM", depth=160)
    session = stock_session(model)

    def reached(**options: Any) -> tuple[float, str]:
        result = ort_dynq.quantize(model, **options)
        found = make_session(result.to_proto(), "native").run(None, feeds)
        expected = session.run(None, feeds)
        notes = [each.note for each in result.report.rewritten if not each.fuses]
        return min(map(decibels, expected, found)), "; ".join(notes)

    (one, _), (two, _) = reached(), reached(activations="two-term")
    for rung, needed in ((TWO_TERMS, (one + two) / 2), (WORDS, two + 9)):
        for module in (ladder, outcome, selection):
            monkeypatch.setattr(module, "RUNGS", (rung, FLOAT))
        better, note = reached(min_snr=needed, data=[feeds])
        assert one < needed <= better
        assert note == f"{rung.name}, for the signal-to-noise ratio of the outputs"


@pytest.mark.parametrize("function", [tanh("x"), "Sigmoid(x)"])
def test_functions(function: str, isas: Sequence[str]) -> None:
    """Their error is at most 4e-7 for every 1009th float32 of both signs, and where they bend."""
    bits = np.arange(0, 0x7F800000, 1009, dtype=np.uint32).view(np.float32)
    dense = np.linspace(0, 20, 400001, dtype=np.float32)
    x = np.concatenate([bits, -bits, dense, -dense])
    wide = np.clip(x.astype(np.float64), -700, 700)
    expected = np.tanh(wide) if function != "Sigmoid(x)" else 1 / (1 + np.exp(-wide))
    unused = [np.zeros(1, np.float32)] * 4
    for isa in isas:
        with kernels.use_isa(isa):
            found = kernels.run("RowProgram", [x[None], np.zeros(1, np.uint8), *unused], program=f"dst = {function}")[2]
        assert np.abs(found[0] - expected).max() < 4e-7
