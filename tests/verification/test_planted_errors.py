"""verify finds planted errors: one number of a rewritten model is a little off.

A number of a model may have no effect on these inputs: another quotient may give the same code. Such changes are not
counted. With ``exact``, all others are found, however small, since outputs are compared bit for bit. In default mode, a
product may be 8 units of 2**-24 * abs(x) @ abs(w) off (docs/numerics.md). Errors of its operands are found, however
small, if A computes these with one rounding; numbers of A are found in B, and are the same.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbits
import numpy as np
import onnx
import pytest
from helpers import Array, every
from onnx import helper, numpy_helper

import ort_dynq
from ort_dynq.tools.bench.models import recorded_inputs
from ort_dynq.tools.measuring.sessions import open_session

MODELS = Path(__file__).parents[2] / "models"
NAMES = (
    *("encoder_token", "torch_conv_u8", "ort_dynamic_mobile"),
    pytest.param("encoder_torchao", marks=pytest.mark.exhaustive),
)
ONE_UNIT = 0.0


def floats_of(model: onnx.ModelProto) -> list[str]:
    """The initializers of floats that nodes read."""
    read = {name for node in model.graph.node for name in node.input}
    kinds = onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16
    tensors = [each for each in model.graph.initializer if each.data_type in kinds]
    return [each.name for each in tensors if each.name in read and numpy_helper.to_array(each).any()]


def outputs_of(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    return list(open_session(model, "B", backend="native").run(None, feeds))


def planted(model: onnx.ModelProto, name: str, error: float, rng: np.random.Generator) -> onnx.ModelProto:
    """A copy with one number of an initializer off, by a relative error, or by one unit in the last place."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    (tensor,) = (each for each in changed.graph.initializer if each.name == name)
    array = numpy_helper.to_array(tensor).copy()
    numbers = array.reshape(-1)
    at, sign = rng.choice(np.flatnonzero(np.isfinite(numbers) & (numbers != 0))), rng.choice([-1, 1])
    number = numbers.dtype.type
    numbers[at] = numbers[at] * number(1 + sign * error) if error else np.nextafter(numbers[at], number(sign * np.inf))
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return changed


def passing(name: str, error: float, *, exact: bool) -> tuple[list[str], int]:
    """Plants an error in each constant; returns those with errors that pass, and the number of those with an effect."""
    path = MODELS / name / "model.onnx"
    model, feeds = ort_dynq.rewrite(path, exact=exact).to_proto(), recorded_inputs(path.parent)
    return passing_of(path, model, feeds, floats_of(model), error)


def passing_of(
    path: Path | onnx.ModelProto, model: onnx.ModelProto, feeds: dict[str, Array], tensors: list[str], error: float
) -> tuple[list[str], int]:
    """Plants an error in some constants of a rewritten model; returns what `passing` returns."""
    rng, expected, passed, count = np.random.default_rng(7), outputs_of(model, feeds), list[str](), 0
    for tensor in tensors:
        changed = planted(model, tensor, error, rng)
        results = outputs_of(changed, feeds)
        if any(a.tobytes() != b.tobytes() for a, b in zip(expected, results, strict=True)):
            count += 1
            verification = ort_dynq.verify(path, changed, inputs=feeds)
            if verification.passed:
                assert all(each.b_error <= each.allowed for each in verification.products)
                passed.append(tensor)
    return passed, count


@pytest.mark.parametrize("name", NAMES)
def test_exact(name: str) -> None:
    """The smallest error is found."""
    passed, count = passing(name, ONE_UNIT, exact=True)
    assert passed == []
    assert count


@pytest.mark.parametrize("name", every(4, NAMES))
def test_integer_products(name: str) -> None:
    """An error of 2**-12, which more numbers show than a smaller one, is found in every number of a product, or before
    one."""
    passed, count = passing(name, 2.0**-12, exact=False)
    assert passed == []
    assert count


@pytest.mark.parametrize("name", NAMES)
def test_smallest_errors_beside_integer_products(name: str) -> None:
    """One unit in the last place of a scale of weights or of a number of the model."""
    passed, count = passing(name, ONE_UNIT, exact=False)
    assert passed == []
    assert count


@pytest.mark.parametrize("name", ["torch_llm_int8", "torch_token_deferred", "inverse_products"])
def test_small_errors_where_operands_are_not_compared(name: str) -> None:
    """A rounds the activation twice, or applies the scale of the weights to the result: only the bound of 8 units is
    left, within which B rounds other steps than A. An error of 32 units is found."""
    passed, count = passing(name, 2.0**-19, exact=False)
    assert passed == []
    assert count


@pytest.mark.parametrize("name", ["encoder_token", "torch_conv_u8"])
def test_smallest_errors_of_programs(name: str) -> None:
    """One unit in the last place of a number from which a scale is computed."""
    path, count = MODELS / name / "model.onnx", 0
    model, feeds = ort_dynq.rewrite(path).to_proto(), recorded_inputs(path.parent)
    expected = outputs_of(model, feeds)
    for program in (each for node in model.graph.node for each in node.attribute if each.name == "program"):
        text = program.s.decode()
        for number in re.finditer(r"(?<![\w.])\d+\.\d+(e-\d+)?", text):
            wrong = float(np.nextafter(np.float32(number.group()), np.float32(np.inf)))
            program.s = (text[: number.start()] + repr(wrong) + text[number.end() :]).encode()
            if any(map(np.not_equal, map(Array.tobytes, expected), map(Array.tobytes, outputs_of(model, feeds)))):
                count += 1
                assert not ort_dynq.verify(path, model, inputs=feeds).passed
        program.s = text.encode()
    assert count


@pytest.mark.parametrize("planted_in", ["weight scale", "bias", "scale of A"])
def test_what_is_wrong_is_named(planted_in: str) -> None:
    path = MODELS / "encoder_token" / "model.onnx"
    model, feeds = ort_dynq.rewrite(path).to_proto(), recorded_inputs(path.parent)
    product = next(node for node in model.graph.node if node.op_type == "QuantizedMatMul")
    if planted_in == "scale of A":
        scale = product.input[1]
        product.input[1] = "wrong"
        model.graph.initializer.append(numpy_helper.from_array(np.float32(1 + 2**-23), "factor"))
        model.graph.node.insert(
            list(model.graph.node).index(product), helper.make_node("Mul", [scale, "factor"], ["wrong"])
        )
        changed = model
    else:
        name = product.input[5 if planted_in == "weight scale" else 7]
        changed = planted(model, name, ONE_UNIT, np.random.default_rng(7))
    reason = {
        "weight scale": "its weights are not A's",
        "bias": "layers.0.query.bias has other numbers in A",
        "scale of A": "its codes times their scale are not A's activation",
    }[planted_in]
    assert reason in ort_dynq.verify(path, changed, inputs=feeds).reason


@pytest.mark.parametrize(("behind", "error"), [(True, ONE_UNIT), (False, 2.0**-5)])
def test_between_products_of_float16(behind: bool, error: float) -> None:
    """ONNX Runtime rounds the activation of the product, or not: errors behind it are found however small."""
    case = nbits.make(depth=64, columns=64, half=True, lead=(32,))
    model, rng = case.model, np.random.default_rng(3)
    model.graph.node[0].input[0], model.graph.node[0].output[0] = "of_x", "of_product"
    nodes = list(model.graph.node)
    model.graph.ClearField("node")
    first, last = (
        helper.make_node("MatMul", [given, weights], [result])
        for given, weights, result in (("x", "first", "of_x"), ("of_product", "last", "y"))
    )
    model.graph.node.extend([first, *nodes, last])
    model.graph.initializer.extend(
        numpy_helper.from_array((rng.normal(size=(64, 64)) / 8).astype(np.float16), name) for name in ("first", "last")
    )
    feeds = {"x": rng.normal(size=(32, 64)).astype(np.float16)}
    content = ort_dynq.rewrite(model).to_proto()
    assert ort_dynq.verify(model, content, inputs=feeds).passed
    tensors = [name for name in floats_of(content) if (name == "last") == behind]
    passed, count = passing_of(model, content, feeds, tensors, error)
    assert passed == []
    assert count == len(tensors)
