"""verify on QMoE: correct mixtures of experts pass, with less noise than A; one wrong number fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import Array
from onnx import numpy_helper
from qmoe import HIDDEN, Case, make
from rewriting import check_tight, verified_product

import ort_dynq
from ort_dynq.tools.verification import experts
from ort_dynq.tools.verification.products import Product

HAS_LEVELS = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 32)
pytestmark = pytest.mark.skipif(not HAS_LEVELS, reason="QMoE has no accuracy_level before ONNX Runtime 1.32")

GIVEN: dict[str, Any] = {"zero_points": True, "bias": True, "router_weights": True, "normalize_routing_weights": 1}
TWO_TERMS: dict[str, Any] = {"weights_only": "two-term"}
# Inputs of QuantizedExperts; those of the second product do not pass through the activation function.
WEIGHT_1, ZERO_POINT_1, WEIGHT_2, SCALE_2, BIAS_2 = 3, 4, 7, 9, 10


def rewritten(case: Case, **options: Any) -> onnx.ModelProto:
    return ort_dynq.rewrite(case.model, **options).to_proto()


def verified(case: Case, model: onnx.ModelProto) -> Product:
    return verified_product(case.model, model, case.feeds)


@pytest.mark.parametrize("options", [{}, TWO_TERMS], ids=str)
def test_correct(options: dict[str, Any]) -> None:
    case = make(**GIVEN, tokens=40)
    product = verified(case, rewritten(case, **options))
    assert product.problem == ""
    assert product.name == "experts"
    assert product.elements == len(case.feeds["x"]) * HIDDEN
    assert product.skipped == 0
    check_tight(product, b_error=0.001, noise=-30)


def test_tiny_tokens_of_two_terms() -> None:
    """Scales are denormal, or 127 / max|x| is infinite."""
    case = make(fusion=1)
    case.feeds["x"] *= np.float32(2.0) ** -np.linspace(105, 135, len(case.feeds["x"]), dtype=np.float32)[:, None]
    assert verified(case, rewritten(case, **TWO_TERMS)).problem == ""


@pytest.mark.parametrize("special", [np.nan, np.inf])
def test_tokens_that_are_not_finite(special: float) -> None:
    case = make()
    case.feeds["x"][3, 5] = special
    product = verified(case, rewritten(case))
    assert product.problem == ""
    assert product.skipped == HIDDEN


def edit(case: Case, model: onnx.ModelProto, index: int, change: Callable[[Array], None]) -> None:
    """Changes an input of QuantizedExperts: the part of an expert that a token chooses."""
    (node,) = (node for node in model.graph.node if node.op_type == "QuantizedExperts")
    (initializer,) = (each for each in model.graph.initializer if each.name == node.input[index])
    array = numpy_helper.to_array(initializer).copy()
    change(array[case.feeds["router"][1].argmax()])
    initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))


@pytest.mark.parametrize(
    ("options", "bit", "factor"),
    # The bound of two terms has half a step of every element.
    [({}, 1, 1.01), (TWO_TERMS, 8, 1.5)],
    ids=["one term", "two terms"],
)
@pytest.mark.parametrize("index", [WEIGHT_1, ZERO_POINT_1, WEIGHT_2, BIAS_2])
def test_wrong_number(index: int, options: dict[str, Any], bit: int, factor: float) -> None:
    """One number of an expert that some token chooses, or one bit of a code."""
    case = make(**GIVEN)
    model = rewritten(case, **options)

    def change(expert: Array) -> None:
        number = expert.reshape(-1)[:1]
        number[:] = number ^ bit if number.dtype == np.int8 else number * number.dtype.type(factor)

    edit(case, model, index, change)
    assert verified(case, model).problem.startswith("B's error is")


@pytest.mark.parametrize(("options", "least"), [({}, 100), (TWO_TERMS, 2)], ids=["one term", "two terms"])
def test_wrong_scale(options: dict[str, Any], least: float) -> None:
    """One of a column, 5% too large: docs/how-results-are-proved.md."""
    case = make()
    model = rewritten(case, **options)

    def change(expert: Array) -> None:
        expert[:, 7] *= expert.dtype.type(1.05)

    edit(case, model, SCALE_2, change)
    assert verified(case, model).b_error > least


@pytest.mark.parametrize(("name", "value"), [("k", 1), ("normalize", 0), ("program", "dst = Mul(x, tensor1)")])
def test_wrong_attribute(name: str, value: int | str) -> None:
    case = make(**GIVEN)
    model = rewritten(case)
    (node,) = (node for node in model.graph.node if node.op_type == "QuantizedExperts")
    (attribute,) = (each for each in node.attribute if each.name == name)
    attribute.CopyFrom(onnx.helper.make_attribute(name, value))
    assert verified(case, model).problem.startswith("B's error is")


@pytest.mark.parametrize("options", [{}, TWO_TERMS], ids=str)
@pytest.mark.parametrize(("index", "what"), [(0, "activation is"), (1, "scores of experts are")])
@pytest.mark.parametrize("factor", [1.0001, np.nextafter(np.float32(1), np.float32(2))])
def test_other_tokens(factor: float, index: int, what: str, options: dict[str, Any]) -> None:
    """The bound of the result is wider than such a change, in particular of the scores."""
    case = make(tokens=40)
    model = rewritten(case, **options)
    (position, node) = next((i, n) for i, n in enumerate(model.graph.node) if n.op_type == "QuantizedExperts")
    model.graph.initializer.append(numpy_helper.from_array(np.float32(factor), "factor"))
    changed = onnx.helper.make_node("Mul", [node.input[index], "factor"], ["changed"])
    node.input[index] = "changed"
    model.graph.node.insert(position, changed)
    assert verified(case, model).problem == f"B's {what} not A's"


def test_reference_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """If both the rewrite and the verification misread the weights, A's result shows it."""
    case = make()
    correct = experts._Experts._weights_of

    def in_another_order(*arguments: Any) -> tuple[Array, Array]:
        weights, bias = correct(*arguments)
        return weights[::-1], bias

    monkeypatch.setattr(experts._Experts, "_weights_of", in_another_order)
    assert verified(case, rewritten(case)).problem.startswith("A's result is")
