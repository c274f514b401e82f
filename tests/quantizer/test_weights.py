"""The codes and scales of weights, compared with their definition in float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from quantizing import F, floats, model_of, operators, squared_error

import ort_dynq
from ort_dynq.quantizer.weights import grid_of_columns, grid_of_groups, release
from ort_dynq.rewriter.reasons import Unconverted
from ort_dynq.rewriter.weights.grid import QuantizedWeights

WEIGHTS = floats(192, 1030) * np.exp(floats(1, 1030, seed=1))
GROUP = 32


def dequantized(grid: QuantizedWeights) -> np.ndarray:
    scale = np.repeat(grid.scale, grid.group_size or len(grid.codes), 0)
    return np.asarray((grid.codes.astype(np.float64) - grid.zero_point) * scale)


def test_columns() -> None:
    grid = grid_of_columns(WEIGHTS)
    exact = np.abs(WEIGHTS.astype(np.float64)).max(0) / 127
    assert np.allclose(grid.scale[0], exact, rtol=2.0**-23, atol=0)
    error = np.abs(grid.codes - WEIGHTS / exact)
    assert error.max() < 0.5 + 1e-4
    assert (np.abs(grid.codes).max(0) == 127).all()
    assert not grid.zero_point.any()


def test_groups_have_the_least_error_of_all_clips() -> None:
    """For each clip, the codes and the linear regression in float64; no group has a larger error."""
    grid = grid_of_groups(WEIGHTS, GROUP)
    assert grid.codes.min() >= 0
    assert grid.codes.max() <= 15
    grouped = WEIGHTS.astype(np.float64).reshape(-1, GROUP, WEIGHTS.shape[1])
    ours = ((dequantized(grid).reshape(grouped.shape) - grouped) ** 2).sum(1)
    peaks = np.take_along_axis(grouped, np.abs(grouped).argmax(1)[:, None], 1)
    errors = []
    for clip in (1, 0.94, 0.88, 0.82, 0.76, 0.7):
        codes = np.clip(np.rint(grouped / (clip * peaks / -8)), -8, 7)
        scale = (grouped * codes).sum(1, keepdims=True) / (codes**2).sum(1, keepdims=True)
        errors.append(((codes * scale - grouped) ** 2).sum(1))
    best = np.min(errors, 0)
    assert (ours <= best * (1 + 1e-4)).all()
    plain = np.rint(grouped / (np.abs(peaks) / 7)) * (np.abs(peaks) / 7)
    assert best.sum() < 0.8 * ((plain - grouped) ** 2).sum()


@pytest.mark.parametrize("size", [16, 64, 96])
def test_sizes_of_groups(size: int) -> None:
    grid = grid_of_groups(WEIGHTS, size)
    assert grid.scale.shape == (192 // size, 1030)
    assert squared_error(dequantized(grid), WEIGHTS) < 0.015


@pytest.mark.parametrize("quantize", [grid_of_columns, lambda weights: grid_of_groups(weights, GROUP)])
def test_the_layout_in_memory_does_not_matter(quantize) -> None:  # type: ignore[no-untyped-def]
    ours, transposed = quantize(WEIGHTS), quantize(np.asfortranarray(WEIGHTS))
    assert ours.codes.tobytes() == transposed.codes.tobytes()
    assert ours.scale.tobytes() == transposed.scale.tobytes()


@pytest.mark.parametrize("quantize", [grid_of_columns, lambda weights: grid_of_groups(weights, GROUP)])
def test_extreme_weights(quantize) -> None:  # type: ignore[no-untyped-def]
    """Columns of zeros, of denormals, of the largest numbers, and of one number only."""
    weights = np.zeros((64, 6), F)
    weights[:, 1] = floats(64) * F(1e-44)
    weights[:, 2] = F(3.4e38)
    weights[:, 3] = F(-3.4e38)
    weights[5, 4] = 1
    weights[:, 5] = F(1e-30)
    grid = quantize(weights)
    assert np.isfinite(grid.scale).all()
    result = dequantized(grid)
    assert not result[:, 0].any()
    assert np.allclose(result[:, 2:], weights[:, 2:], rtol=0.01, atol=0)
    assert np.abs(result[:, 1] - weights[:, 1]).max() < 1e-43


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("quantize", [grid_of_columns, lambda weights: grid_of_groups(weights, GROUP)])
def test_numbers_without_codes(quantize, number: float) -> None:  # type: ignore[no-untyped-def]
    weights = floats(64, 40)
    weights[3, 7] = number
    with pytest.raises(Unconverted, match="the weights have NaN or an infinity"):
        quantize(weights)


@pytest.mark.parametrize("operator", ["MatMul", "Conv"])
@pytest.mark.parametrize(("rows", "is_stored"), [(16, True), (15, False)])
def test_weights_that_are_computed_from_few_bytes(operator: str, rows: int, is_stored: bool) -> None:
    """49,152 codes. The numbers that Tile, Slice and Reshape read are some of the bytes, too."""
    shape = [256, 192] if operator == "MatMul" else [192, 32, 8, 1]
    constants = {"part": floats(rows, 192), "times": np.array([256 // rows + 1, 1]), "size": np.array(shape)}
    constants |= {"first": np.array([0]), "last": np.array([256])}
    nodes = [
        helper.make_node("Tile", ["part", "times"], ["all"]),
        helper.make_node("Slice", ["all", "first", "last"], ["some"]),
        helper.make_node("Reshape", ["some", "size"], ["w"]),
        helper.make_node(operator, ["x", "w"], ["y"], name="layer"),
    ]
    result = ort_dynq.quantize(model_of(nodes, constants, shape=(8, 256) if operator == "MatMul" else (1, 32, 40, 40)))
    becomes = {"MatMul": "QuantizedMatMul", "Conv": "QuantizedConv"}[operator]
    assert operators(result)[becomes] == is_stored
    if not is_stored:
        (layer,) = result.report.unconverted
        stored = rows * 192 * 4 + 8 * sum(map(len, (constants["times"], shape, "fl")))
        text = f"the model computes the weights from {stored} bytes; it would store 49152 bytes of codes"
        assert layer.reason == text


def test_weights_at_the_end_of_a_long_chain_are_released() -> None:
    """Each node uses the one before twice: there are 2 ** 1500 paths."""
    value = first = ir.Value(name="w")
    for _ in range(1500):
        value = ir.node("Add", [value, value]).outputs[0]
    released: list[str] = []

    class External(ir.ExternalTensor):
        def release(self) -> None:
            released.append(self.name)

    first.const_value = External("w", 0, 4, ir.DataType.FLOAT, shape=ir.Shape([1]), name="w")
    release(value)
    assert released == ["w"]


def test_external_weights_are_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of a Conv and of a MatMul. The caller has a view of the weights of the MatMul, which stays valid."""
    weights = {"conv": floats(24, 8, 3, 3), "w": floats(64, 384)}
    nodes = [
        helper.make_node("Conv", ["x", "conv"], ["p"], pads=[1, 1, 1, 1]),
        helper.make_node("MatMul", ["p", "w"], ["y"]),
    ]
    onnx.save(
        model_of(nodes, weights, shape=(2, 8, 16, 64)),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="weights",
    )
    released: list[str] = []
    release_one = ir.ExternalTensor.release

    def recorded(tensor: ir.ExternalTensor) -> None:
        released.append(tensor.name)
        release_one(tensor)

    monkeypatch.setattr(ir.ExternalTensor, "release", recorded)
    model = ir.load(tmp_path / "m.onnx")
    tensor = model.graph.initializers["w"].const_value
    assert tensor is not None
    view = tensor.numpy()
    result = ort_dynq.quantize(model)
    assert operators(result)["QuantizedConv"] == operators(result)["QuantizedMatMul"] == 1
    assert set(released) >= set(weights)
    assert np.array_equal(view, weights["w"])
