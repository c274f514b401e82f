"""verify evaluates integer products as ONNX defines them: in a form that does not saturate on any CPU.

On a CPU with VNNI every form is exact. `.ci/run` also runs these tests on an emulated CPU without it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import Array, stock_session
from onnx import numpy_helper

import ort_dynq
from ort_dynq import cli
from ort_dynq.rewriter.metadata import RULE
from ort_dynq.runtime import open_session, session_options
from ort_dynq.tools.verification import saturation
from ort_dynq.tools.verification.saturation import without_saturation

NONE, SCALAR, COLUMNS = "no zero points", "one zero point", "a zero point for each column"
SATURATING = {"MatMulInteger": ("uint8", "int8"), "ConvInteger": ("int8", "uint8")}
OTHERS = [
    (operator, *types)
    for operator in SATURATING
    for types in itertools.product(("uint8", "int8"), repeat=2)
    if types != SATURATING[operator]
]


def graph(text: str, *, opset: int = 13) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "local": 1]> {text}')


def product(operator: str, a: str, b: str, zero_points: str) -> onnx.ModelProto:
    """Returns a model of one product with inputs as operands."""
    if zero_points == NONE:
        return graph(f"g ({a}[] x, {b}[] w) => (int32[] y) {{ y = {operator}(x, w) }}")
    inputs = f"{a}[] x, {b}[] w, {a} zx, {b}{'[n]' if zero_points == COLUMNS else ''} zw"
    return graph(f"g ({inputs}) => (int32[] y) {{ y = {operator}(x, w, zx, zw) }}")


def operands(operator: str, a: str, b: str, zero_points: str) -> Iterator[tuple[dict[str, Array], Array]]:
    """Yields inputs for :func:`product`, from the whole range of codes, and the product in int64."""
    rng = np.random.default_rng(0)

    def codes(dtype: str, *shape: int) -> Array:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        kind = rng.integers(3)
        if kind == 0:
            return np.full(shape, rng.choice([low, high]), dtype)
        return (rng.choice([low, high], shape) if kind == 1 else rng.integers(low, high + 1, shape)).astype(dtype)

    is_conv = operator == "ConvInteger"
    sizes = ((1, 4), (1, 3, 8), (1, 2, 3), (3, 5)) if is_conv else ((1, 2, 5, 16), (1, 2, 3, 8, 33, 260), (1, 16, 33))
    for size in itertools.product(*sizes):
        if is_conv:
            outputs, channels, kernel, length = size
            x, w = codes(a, 1, channels, length, length), codes(b, outputs, channels, kernel, kernel)
        else:
            rows, depth, columns = size
            x, w = codes(a, rows, depth), codes(b, depth, columns)
        inputs, zx, zw = {"x": x, "w": w}, np.array(0), np.array(0)
        if zero_points != NONE:
            zx, zw = codes(a), codes(b, w.shape[1]) if zero_points == COLUMNS else codes(b)
            inputs |= {"zx": zx, "zw": zw}
        left, right = x.astype(np.int64) - zx, w.astype(np.int64) - zw
        if is_conv:
            if kernel > length:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(left, (kernel, kernel), axis=(2, 3))
            yield inputs, np.einsum("nchwij,ocij->nohw", windows, right)
        else:
            yield inputs, left @ right


def exact(model: onnx.ModelProto) -> Any:
    changed, count = without_saturation(model)
    assert count == 1
    assert without_saturation(changed)[1] == 0
    return open_session(changed, session_options(optimize=False))


def assert_product(session: Any, inputs: dict[str, Array], expected: Array) -> None:
    np.testing.assert_array_equal(session.run(None, inputs)[0], expected)


@pytest.mark.parametrize(
    ("operator", "zero_points"),
    [(operator, form) for operator in SATURATING for form in (NONE, SCALAR)] + [("MatMulInteger", COLUMNS)],
)
def test_products_do_not_saturate(operator: str, zero_points: str) -> None:
    session = exact(product(operator, *SATURATING[operator], zero_points))
    count = 0
    for inputs, expected in operands(operator, *SATURATING[operator], zero_points):
        assert_product(session, inputs, expected)
        count += 1
    assert count >= 30


@pytest.mark.parametrize(("operator", "a", "b"), OTHERS)
def test_unconverted_products_do_not_saturate_in_stock(operator: str, a: str, b: str) -> None:
    model = product(operator, a, b, SCALAR)
    assert without_saturation(model) == (model, 0)
    session = stock_session(model)
    for inputs, expected in operands(operator, a, b, SCALAR):
        assert_product(session, inputs, expected)


def test_padding_of_a_convolution_has_the_code_of_the_zero_point() -> None:
    model = graph("g (int8[] x, uint8[] w, int8 z) => (int32[] y) { y = ConvInteger<pads = [1, 1, 1, 1]>(x, w, z) }")
    inputs = {"x": np.full((1, 1, 1, 1), 100, np.int8), "w": np.full((1, 1, 3, 3), 200, np.uint8)}
    assert_product(exact(model), inputs | {"z": np.array(-128, np.int8)}, np.full((1, 1, 1, 1), 228 * 200))


IN_A_BRANCH = """g (uint8[m, k] x, int8[k, n] w, bool c) => (int32[m, n] y) {
    y = If(c) <then_branch = then () => (int32[m, n] t) { t = MatMulInteger(x, w) },
               else_branch = else () => (int32[m, n] e) { f = Constant<value = int32 {0}>() e = Identity(f) }> }"""
IN_A_FUNCTION = """g (uint8[m, k] x, int8[k, n] w) => (int32[m, n] y) { y = local.outer(x, w) }
    <domain: "local", opset_import: ["": 13, "local": 1]> outer (a, b) => (c) { c = local.inner(a, b) }
    <domain: "local", opset_import: ["": 13]> inner (a, b) => (c) { d = Identity(b) c = MatMulInteger(a, d) }"""
OF_COMPUTED_CODES = """g (float[m, k] f, int8[k, n] w) => (int32[m, n] y) {
    x, s, z = DynamicQuantizeLinear(f) v = Identity(w) y = MatMulInteger(x, v) }"""


@pytest.mark.parametrize("text", [IN_A_BRANCH, IN_A_FUNCTION, OF_COMPUTED_CODES])
def test_products_are_found_everywhere(text: str) -> None:
    x, w = np.full((3, 64), 255, np.uint8), np.full((64, 5), 127, np.int8)
    inputs = {"x": x, "w": w}
    if text == IN_A_BRANCH:
        inputs["c"] = np.array(True)
    if text == OF_COMPUTED_CODES:
        inputs = {"f": np.full((3, 64), 2, np.float32), "w": w}
    assert_product(exact(graph(text)), inputs, np.full((3, 5), 64 * 255 * 127))


def test_a_product_that_a_rewrite_added_stays() -> None:
    """It has to be right on every CPU itself, and verification has to find that it is not."""
    model = product("MatMulInteger", "uint8", "int8", NONE)
    model.graph.node[0].metadata_props.add(key=RULE, value="a rule")
    assert without_saturation(model) == (model, 0)


def with_weights() -> onnx.ModelProto:
    text = """g (uint8[m, 64] x) => (float[m, 16] y)
        { p = MatMulInteger(x, w, , z) q = Cast<to = 1>(p) y = Tanh(q) }"""
    model = graph(text)
    weights = np.full((64, 16), -128, np.int8), np.array(3, np.int8)
    model.graph.initializer.extend(map(numpy_helper.from_array, weights, ("w", "z")))
    return model


def test_the_model_is_not_changed_and_external_data_stay_in_their_file(tmp_path: Path) -> None:
    import onnx_ir as ir

    path = tmp_path / "model.onnx"
    onnx.save(with_weights(), path, save_as_external_data=True, location="model.data", size_threshold=64)
    before = path.read_bytes()
    original = ir.load(path)
    for given in (path, original):
        changed, count = without_saturation(given)
        assert count == 1
        assert isinstance(changed, ir.Model)
        assert isinstance(changed.graph.initializers["w"].const_value, ir.ExternalTensor)
    assert [node.op_type for node in original.graph] == ["MatMulInteger", "Cast", "Tanh"]
    assert path.read_bytes() == before
    result = ort_dynq.verify(path, path)
    assert result.passed
    assert [file.name for file in sorted(tmp_path.iterdir())] == ["model.data", "model.onnx"]


@pytest.mark.parametrize("model", ["missing.onnx", b"not a model", with_weights().SerializeToString()[:-40]])
def test_onnxruntime_reports_a_model_that_cannot_be_read(model: Any) -> None:
    assert without_saturation(model) == (model, 0)


def test_malformed_product_stays() -> None:
    model = product("MatMulInteger", "uint8", "int8", NONE)
    del model.graph.node[0].input[1]
    assert without_saturation(model) == (model, 0)
    with pytest.raises(ort_dynq.DynqError, match="does not load in stock ONNX Runtime"):
        ort_dynq.verify(model, model)


def test_probe_agrees_with_other_products() -> None:
    model = product("MatMulInteger", "uint8", "int8", NONE)
    session = open_session(model.SerializeToString(), session_options())  # as it is: a product that may saturate
    pairs = [
        (session.run(None, inputs)[0], expected)
        for inputs, expected in operands("MatMulInteger", "uint8", "int8", NONE)
    ]
    assert saturation.cpu_saturates() == any((actual != expected).any() for actual, expected in pairs)


@pytest.mark.parametrize("saturates", [True, False])
def test_verification_says_which_products_saturate(
    saturates: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ort_dynq.tools.verification.verification.cpu_saturates", lambda: saturates)
    onnx.save(with_weights(), tmp_path / "a.onnx")
    models = [str(tmp_path / "a.onnx")] * 2
    result = ort_dynq.verify(*models)
    assert result.passed
    assert (result.saturating_a, result.saturating_b) == ((1, 1) if saturates else (0, 0))
    assert result.to_dict()["saturating_a"] == result.saturating_a
    assert cli.main(["verify", *models]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert ("products of uint8 by int8 saturate: 1 in A, 1 in B." in said) == saturates
