"""Forms of published code: published_forms.py, rows of unequal parts, copies of weights, and scales of images."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from helpers import make_session, stock_session
from onnx import helper
from product_models import F, model_of
from published_forms import CONSTANTS, FORMS, INPUTS, PRODUCT, RANGE, K, N
from rewriting import check, check_products, found, products
from unbounded_models import STEP, check_rows, data, rows_of_all_kinds

from ort_dynq import verify
from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    """An exact rewrite has the model's bits. Rows of the product that are not finite are those of the model."""
    model, x = model_of(FORMS[form] + PRODUCT, CONSTANTS, inputs=INPUTS), rows_of_all_kinds()
    report = rewrite(model).report
    assert found(report) == ["QuantizedMatMul", "RowProgram"]
    assert not report.unconverted
    check(model, {"x": x})
    assert np.isfinite(check_rows(model, data())).any(-1).sum() > 24
    check_rows(model, x)
    check_products(model, {"x": x[0, np.isfinite(x[0]).all(-1)][None]})


@pytest.mark.parametrize("shared", ["", "1", "01"])
def test_parts_with_other_numbers_of_groups(shared: str) -> None:
    """A row consists of 16 and 48 elements with a scale each: four groups of 16, of which three share a scale.

    All rows share the scales of the parts in `shared`.
    """
    part = "a{i} = Abs(p{i}) m{i} = ReduceMax<keepdims = 1>(a{i}, one) r{i} = Max(m{i}, eps) s{i} = Div(r{i}, c127)"
    part += " t{i} = Div(p{i}, s{i}) n{i} = Round(t{i}) c{i} = Clip(n{i}, low, high) q{i} = Mul(c{i}, s{i}) "
    body = "p0, p1 = Split<axis = -1>(x, parts) " + part.format(i=0) + part.format(i=1)
    for i in shared:
        body = body.replace(f"ReduceMax<keepdims = 1>(a{i}, one)", f"ReduceMax<keepdims = 0>(a{i})")
    model = model_of(body + "y0 = Concat<axis = -1>(q0, q1) " + PRODUCT, CONSTANTS, inputs=INPUTS)
    x = np.random.default_rng(7).normal(0, 1, (2, 9, K)).astype(F) * np.where(np.arange(K) < K // 4, F(20), F(1))
    result = rewrite(model)
    assert products(result.report) == ["QuantizedMatMul"]
    (expected,) = stock_session(model).run(None, {"x": x})
    for session in (make_session(result.to_proto(), "native"), stock_session(result.to_proto())):
        assert np.allclose(session.run(None, {"x": x})[0], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("factor", [1, 0.9])
def test_codes_of_denormal_rows_that_exceed_8_bits(factor: float) -> None:
    """A scale of 1.4 denormal steps is rounded to 1. The difference is allowed, and a wrong product is not."""
    body = (
        RANGE
        + "s0 = Div(m, c127) e = Equal(s0, zero) s = Where(e, number, s0) t = Div(x, s) n = Round(t) y0 = Mul(n, s) "
    )
    model = model_of(body + PRODUCT, {**CONSTANTS, "number": F(1)}, inputs=INPUTS)
    x = np.random.default_rng(4).normal(0, 1, (2, 9, K)).astype(F)
    x[0] = np.random.default_rng(5).integers(-178, 179, (9, K)).astype(F) * STEP
    x[0, :, 0] = 178 * STEP
    result = rewrite(model).to_proto()
    floats = [each for each in result.graph.initializer if each.data_type == onnx.TensorProto.FLOAT]
    (scales,) = [each for each in floats if each.dims == [1, N]]
    scales.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scales) * F(factor), scales.name))
    assert verify(model, result, inputs={"x": x}).passed == (factor == 1)


@pytest.mark.parametrize("product", ["MatMul", "com.microsoft.FusedMatMul"])
def test_copies_of_weights_keep_the_kernel_of_products_that_stay(product: str) -> None:
    """Without optimizations, ONNX Runtime packs constants only, and adds in another order."""
    weights = np.random.default_rng(8).normal(0, 1, (512, 512)).astype(F)
    body = FORMS["quotient"] + f"v = Identity(w) y = {product}(y0, v)"
    model = model_of(body, {**CONSTANTS, "w": weights}, inputs="float[M, 512] x")
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    x = np.random.default_rng(9).normal(0, 1, (4, 512)).astype(F)
    (expected,) = stock_session(model).run(None, {"x": x})
    (actual,) = make_session(rewrite(model, exact=True).to_proto(), "native").run(None, {"x": x})
    assert np.array_equal(actual, expected)


def test_indices_that_do_not_fit_in_a_branch_that_no_input_takes() -> None:
    body = (
        "n = Size(x) no = Less(n, n) y0 = Relu(x) d = If (no) <then_branch = yes () => (int64[A] k) {"
        " a = Constant<value_ints = [4, 8]>() b = Constant<value_ints = [5, 6, 7]>() k = Mod(a, b) },"
        " else_branch = other () => (int64[B] l) { l = Constant<value_ints = [1]>() }> " + PRODUCT
    )
    rewrite(model_of(body, CONSTANTS, inputs=INPUTS))  # raises no error


def test_convolutions_with_reshaped_vectors_as_scales() -> None:
    """torch reshapes one range for each image to [-1, 1, 1, 1], also behind another convolution."""
    image = (
        "f{i} = Flatten<axis = 1>({x}) a{i} = Abs(f{i}) m{i} = ReduceMax<keepdims = 0>(a{i}, one) r{i} = Max(m{i}, eps)"
    )
    image += " v{i} = Reshape(r{i}, four) s{i} = Div(v{i}, c127) t{i} = Div({x}, s{i}) n{i} = Round(t{i})"
    image += " c{i} = Clip(n{i}, low, high) q{i} = Mul(c{i}, s{i}) y{i} = Conv<kernel_shape = [3, 3]>(q{i}, k) "
    kernels = np.random.default_rng(2).integers(-127, 128, (16, 16, 3, 3))
    kernels[:, 0] = 127
    constants = {"k": kernels.astype(F) * F(0.01), "four": np.array([-1, 1, 1, 1]), "one": np.array([-1])}
    body = image.format(i=0, x="x") + image.format(i=1, x="y0") + "y = Relu(y1)"
    model = model_of(body, constants, inputs="float[B, 16, 24, 24] x", outputs="float[] y")
    assert products(rewrite(model).report) == ["QuantizedConv", "QuantizedConv"]
