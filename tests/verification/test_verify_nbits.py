"""verify on products of MatMulNBits: correct ones pass, also with more noise than A; one wrong number fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from nbits import Array, Case, make, rewritten, run
from onnx import numpy_helper
from rewriting import verified_product

import ort_dynq
from ort_dynq.tools.verification import nbits
from ort_dynq.tools.verification.nbits import is_noise, is_within_steps
from ort_dynq.tools.verification.products import FLOOR, Product

TWO_TERMS = {"depth": 256, "columns": 260, "level": 0}
GIVEN: list[dict[str, Any]] = [
    {},
    {"bits": 8, "with_bias": True},
    {"half": True},
    {"depth": 100},
    {"depth": 77, "block_size": 128},
    {"columns": 660, "depth": 100, "zero_points": "fraction"},
    TWO_TERMS,
    {**TWO_TERMS, "depth": 300, "half": True},
]


def options_of(given: dict[str, Any]) -> dict[str, str]:
    return {"weights_only": "two-term"} if given.get("level") == 0 else {}


def verified(case: Case, model: onnx.ModelProto, x: Array | None = None) -> Product:
    return verified_product(case.model, model, {"x": case.x if x is None else x})


@pytest.mark.parametrize("given", GIVEN, ids=str)
def test_correct(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbits, "_MAX_WEIGHTS", 1000)
    case = make(**given)
    model = rewritten(case, **options_of(given))
    product = verified(case, model)
    assert product.problem == ""
    blocks = len(case.zeros)
    of_sums = blocks + len(case.codes) // blocks if given.get("zero_points") == "fraction" else 0
    assert product.allowed == FLOOR + blocks + of_sums
    assert product.b_error <= product.allowed
    assert product.depth == case.x.shape[-1]
    noise = np.square(run(model, case.x).astype(np.float64) - case.reference).sum()
    assert product.b_noise == pytest.approx(10 * np.log10(noise / np.square(case.reference).sum()), abs=0.01)
    assert product.a_noise is not None
    assert product.a_noise < -30


def test_generated_inputs() -> None:
    case = make()
    found = ort_dynq.verify(case.model, rewritten(case))
    assert found.passed
    assert found.to_dict()["products"][0]["b_noise"] < -30


@pytest.mark.parametrize("given", [{}, {"bits": 8}], ids=str)
def test_noise_that_a_does_not_have(given: dict[str, Any]) -> None:
    """A's codes are exact for integers up to 127. B's are not, and B is correct."""
    case = make(**given)
    x = np.random.default_rng(0).integers(-127, 128, case.x.shape).astype(np.float32)
    x[..., ::16], x[..., 1::16] = 127, -100
    product = verified(case, rewritten(case), x)
    assert product.problem == ""
    assert product.a_noise is not None
    assert product.b_noise is not None
    assert product.b_noise > product.a_noise + 40


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_rows_that_are_not_finite(special: float) -> None:
    case = make()
    x = case.x.copy()
    x[1, 3, 40] = special
    product = verified(case, rewritten(case), x)
    assert product.problem == ""
    assert product.skipped == case.codes.shape[1]


def edit(model: onnx.ModelProto, shape: list[int], change: Callable[[Array], None]) -> None:
    """Changes the initializer of a shape."""
    (initializer,) = (each for each in model.graph.initializer if list(each.dims) == shape and each.data_type != 3)
    array = numpy_helper.to_array(initializer).copy()
    change(array)
    initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))


def change_scale(array: Array) -> None:
    array[1, 7] *= 1.001


def change_bias(array: Array) -> None:
    array[7] += 0.001


@pytest.mark.parametrize(("shape", "change"), [([4, 40], change_scale), ([40], change_bias)], ids=["scale", "bias"])
def test_wrong_number(shape: list[int], change: Callable[[Array], None]) -> None:
    case = make(with_bias=True)
    model = rewritten(case)
    edit(model, shape, change)
    product = verified(case, model)
    assert product.problem.startswith("B's error is")


@pytest.mark.parametrize("given", [{}, TWO_TERMS], ids=str)
def test_wrong_code(given: dict[str, Any]) -> None:
    case = make(**given)
    model = rewritten(case, **options_of(given))
    (weights,) = (each for each in model.graph.initializer if len(each.dims) == 4)
    codes = numpy_helper.to_array(weights).copy()
    codes[0, 3, 2, 1] ^= 1
    weights.CopyFrom(numpy_helper.from_array(codes, weights.name))
    assert verified(case, model).problem.startswith("B's error is")


def test_wrong_steps() -> None:
    """A coarser step of the activation, or one step for a row in place of one for a block, is found."""
    case = make()
    model = rewritten(case)
    (text,) = (each for node in model.graph.node for each in node.attribute if each.name == "program")
    text.s = text.s.replace(b"r1), 255.0)", b"r1), 240.0)")
    assert verified(case, model).problem.startswith("B's activation is further from A's")


def test_steps() -> None:
    x = np.array([[127, 0.5, 1, -3, 254, 1, 2.5, 4], [0, 0, 0, 0, np.inf, 1, 2, 3]])
    assert is_within_steps(np.array([[127, 0, 1.5, -3, 254, 0, 2, 3], [0, 0, 0, 0, 1, 2, 3, 4]]), x, 4, 1)
    for index, error in (((0, 1), 0.52), ((0, 5), 1.03), ((1, 1), 1e-30)):
        y = x.copy()
        y[index] += error
        assert not is_within_steps(y, x, 4, 1)
    assert is_within_steps(x + np.array([[0.5 / 254], [0]]), x, 4, 2)
    assert not is_within_steps(x + np.array([[0.52 / 254], [0]]), x, 4, 2)


@pytest.mark.parametrize("largest", [1e-33, 1e-35, 1e-37, 1e-38])
def test_tiny_rows_of_two_terms(largest: float) -> None:
    """Their scale is denormal, or 127 / max|x| is infinite: docs/numerics.md has the error, and verify allows it."""
    case = make(**TWO_TERMS)
    model = rewritten(case, weights_only="two-term")
    x = case.x * np.float32(largest / np.abs(case.x).max())
    assert verified(case, model, x).problem == ""
    if largest > 1e-36:
        blocks = x.reshape(-1, 32).astype(np.float64)
        assert not is_within_steps(blocks + np.abs(blocks).max(-1, keepdims=True) / 1000, blocks, 32, 2)


def test_reference_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If both the rewrite and the verification misread the weights, A's result shows it."""
    case = make()
    correct = nbits._weights_of

    def in_another_order(*arguments: Any) -> Array:
        return np.asarray(correct(*arguments).reshape(-1, 2, 40)[:, ::-1].reshape(-1, 40))

    monkeypatch.setattr(nbits, "_weights_of", in_another_order)
    assert verified(case, rewritten(case)).problem.startswith("A's result is")


def test_noise_of_rows() -> None:
    """The noise of rows of 255 steps, as on ARM, is noise even if every element is halfway between two steps."""
    rng = np.random.default_rng(0)
    x, weights = np.full((3, 4096), 1.0), rng.normal(0, 1, (4096, 50))
    x[:, 0] = 127
    reference = x @ weights
    error = np.where(rng.random(x.shape) < 0.5, 0.5, -0.5) @ weights
    assert is_noise(error, reference, np.square(x) @ np.square(weights), 2.0**-23)
    assert not is_noise(reference - x[:, ::-1] @ weights, reference, np.square(x) @ np.square(weights), 2.0**-23)
