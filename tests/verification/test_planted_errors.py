"""verify finds planted errors: one number of a rewritten model is a little off.

A number of a model may have no effect on these inputs: another quotient may give the same code. Such changes are not
counted. With ``exact``, all others are found, however small, since outputs are compared bit for bit. In default mode, a
product may be 8 units of 2**-24 * abs(x) @ abs(w) off (docs/numerics.md): so smaller errors of its scales, of its bias
and of what only its activation is computed from pass.
"""

from __future__ import annotations

from pathlib import Path

import nbits
import numpy as np
import onnx
import pytest
from helpers import Array
from onnx import helper, numpy_helper

import ort_dynq
from ort_dynq.bench.models import recorded_inputs
from ort_dynq.measuring.sessions import open_session

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
    """Plants an error in each constant; returns those whose errors pass, and the number of those with an effect."""
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


@pytest.mark.parametrize("name", NAMES)
def test_integer_products(name: str) -> None:
    """An error of 2**-12 is found in every number of a product, or before one."""
    passed, count = passing(name, 2.0**-12, exact=False)
    assert passed == []
    assert count


def test_smallest_errors_beside_integer_products() -> None:
    """How many of one unit pass is known: most of those that only reach a product, and none of the others."""
    passed, count = passing("encoder_token", ONE_UNIT, exact=False)
    assert 0 < len(passed) < 0.85 * count
    assert not [name for name in passed if "norm2" in name]  # behind the last product


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
