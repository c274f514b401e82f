"""verify on integer products: correct ones pass in every form, one incorrect number anywhere fails and is named."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from bench import transformers
from helpers import Array, every, parse, with_arrays
from onnx import numpy_helper

import ort_dynq
from ort_dynq import cli
from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter import EXACT
from ort_dynq.rewriter.metadata import ACTIVATION
from ort_dynq.tools.verification.products import FLOOR
from ort_dynq.verification import Verification

SIZES = {"layers": 1, "hidden": 24, "heads": 2}
EXACT_FORMS = ("float", "token_integer")  # the rewriter makes no integer products of these

# Fake-quantizes x symmetrically per token, as the form "token" of the networks does, but without an epsilon.
TOKEN = """m = Constant<value = float {-128.0}>() p = Constant<value = float {127.0}>()
    peak = ReduceMax<axes = [-1]>(magnitude) scale = Div(peak, p)
    quotient = Div(x, scale) rounded = Round(quotient) code = Clip(rounded, m, p) dx = Mul(code, scale)"""


def token(inputs: str, outputs: str, body: str, weights: dict[str, Array]) -> onnx.ModelProto:
    model = parse(inputs, outputs, f"magnitude = Abs(x) {TOKEN} {body}", opset=17)
    del model.opset_import[1]
    return with_arrays(model, weights)


def weights(rows: int, columns: int, seed: int = 0) -> Array:
    """Returns weights on an 8-bit grid with one scale per column."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (rows, columns))
    codes[0] = 127
    return np.asarray(codes.astype(np.float32) * rng.uniform(0.001, 0.002, columns).astype(np.float32))


def single(columns: int = 5, depth: int = 16) -> onnx.ModelProto:
    """Returns a model with two outputs: a product, and a function of it."""
    bias = np.linspace(-1, 1, columns, dtype=np.float32)
    return token(
        f"float[n, {depth}] x",
        f"float[n, {columns}] y, float[n, {columns}] z",
        "product = MatMul(dx, w) y = Add(product, b) z = Tanh(y)",
        {"w": weights(depth, columns), "b": bias},
    )


def rewritten(model: onnx.ModelProto, **arguments: bool) -> onnx.ModelProto:
    return ort_dynq.rewrite(model, **arguments).to_proto()


def products(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if any(entry.key == ACTIVATION for entry in node.metadata_props)]


def operand(node: onnx.NodeProto, name: str) -> str:
    """Returns the value that is an input of a product, by the name that the operator gives to the input."""
    return str(node.input[[each.name for each in OPERATORS[node.op_type].inputs].index(name)])


def change(model: onnx.ModelProto, name: str, index: int, by: Callable[[Any], Any]) -> None:
    """Changes one element of a constant."""
    tensors = [tensor for tensor in model.graph.initializer if tensor.name == name]
    tensors += [node.attribute[0].t for node in model.graph.node if name in node.output]
    (tensor,) = tensors
    array = numpy_helper.to_array(tensor).copy()
    array.reshape(-1)[index] = by(array.reshape(-1)[index])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def check(model: onnx.ModelProto, other: onnx.ModelProto | None = None, **arguments: Any) -> Verification:
    return ort_dynq.verify(model, rewritten(model) if other is None else other, **arguments)


# Correct products


@pytest.mark.parametrize(("network", "form"), every(7, itertools.product(transformers.NETWORKS, transformers.FORMS)))
def test_products_of_networks(network: str, form: str) -> None:
    result = check(transformers.NETWORKS[network](form, **SIZES))
    assert result.passed
    assert len(result.products) == (0 if form in EXACT_FORMS else 6)
    assert result.unreachable == 0
    for product in result.products:
        assert product.depth in (24, 96)
        assert product.skipped == 0
        assert 0 < product.b_error < 3
        assert 0 < product.a_error < product.depth
    assert [output.equal for output in result.outputs] == [True] * (3 if network == "decoder" else 1)
    assert len(result.end_to_end) == len(result.perturbed) == (0 if form in EXACT_FORMS else len(result.outputs))
    assert not result.not_perturbed


@pytest.mark.parametrize(
    "body",
    [
        "v = Identity(dx) c = Cast<to = 1>(v) y = MatMul(c, w)",
        "v = Identity(dx) product = MatMul(v, w) y = Identity(product)",
    ],
)
def test_copies_of_the_original(body: str) -> None:
    """The rewritten model does not have them."""
    result = check(token("float[n, 16] x", "float[n, 5] y", body, {"w": weights(16, 5)}))
    assert result.passed, result
    assert len(result.products) == 1


@pytest.mark.parametrize("form", every(3, transformers.FORMS))
def test_exact_models_have_no_products_to_compare(form: str) -> None:
    model = transformers.encoder(form, **SIZES)
    exact = rewritten(model, exact=True)
    assert not products(exact)
    result = check(model, exact)
    assert result.passed
    assert result.products == result.end_to_end == result.perturbed == ()


def test_b_is_closer_to_the_exact_result() -> None:
    """A rounds a thousand times per element, B a few times."""
    model = single(depth=1000)
    (product,) = check(model).products
    assert product.b_error < 0.5 < product.a_error < 1000
    assert product.allowed == FLOOR


# Incorrect products


INEXACT_FORMS = [form for form in transformers.FORMS if form not in EXACT_FORMS]
NUMBERS = ["weight", "column_scale", "column_sum", "bias", "zero_point"]


@functools.cache
def encoder(form: str) -> tuple[bytes, bytes]:
    """An encoder and the rewritten one."""
    model = transformers.encoder(form, **SIZES)
    return model.SerializeToString(), rewritten(model).SerializeToString()


@pytest.mark.parametrize(("form", "name"), every(9, itertools.product(INEXACT_FORMS, NUMBERS)))
def test_incorrect_number_fails(form: str, name: str) -> None:
    model, wrong = map(onnx.ModelProto.FromString, encoder(form))
    node = products(wrong)[4]
    by: dict[str, Callable[[Any], Any]] = {
        "weight": lambda code: code - np.sign(code),
        "column_scale": lambda scale: scale * np.float32(1 + 2**-16),
        "column_sum": lambda total: total + 1,
        "bias": lambda bias: bias + np.float32(2**-12),
    }
    if name == "zero_point":
        shift(wrong, node)
    else:
        change(wrong, operand(node, name), 7, by[name])
    result = check(model, wrong)
    assert not result.passed
    assert not result.failure
    assert [bool(each.problem) for each in result.products] == [False] * 4 + [True, False]
    assert result.worst_product is not None
    assert result.worst_product == result.products[4]
    assert result.worst_product.name == (node.name or node.output[0])
    assert result.worst_product.b_error > result.worst_product.allowed
    assert all(output.equal for output in result.outputs)  # the rest runs on A's result


def shift(model: onnx.ModelProto, node: onnx.NodeProto) -> None:
    """Adds one to the zero point of a product."""
    one = onnx.helper.make_tensor("one", onnx.TensorProto.UINT8, [], [1])
    model.graph.initializer.append(one)
    at = list(model.graph.node).index(node)
    kinds = {"UINT8": onnx.TensorProto.UINT8, "INT32": onnx.TensorProto.INT32}
    nodes = [
        onnx.helper.make_node("Cast", [node.input[2]], ["wide"], to=kinds["INT32"]),
        onnx.helper.make_node("Cast", ["one"], ["wide_one"], to=kinds["INT32"]),
        onnx.helper.make_node("Add", ["wide", "wide_one"], ["wide_shifted"]),
        onnx.helper.make_node("Cast", ["wide_shifted"], ["shifted"], to=kinds["UINT8"]),
    ]
    node.input[2] = "shifted"
    for i, each in enumerate(nodes):
        model.graph.node.insert(at + i, each)


def test_incorrect_code_in_a_long_sum_fails() -> None:
    """One weight of 768 is off by one step, the smallest possible error of an integer weight."""
    model = single(32, 768)
    wrong = rewritten(model)
    change(wrong, operand(products(wrong)[0], "weight"), 3 * 32, lambda code: code + 1)
    (product,) = check(model, wrong).products
    assert product.problem.startswith("B's error is ")


def test_incorrect_node_outside_of_products_fails() -> None:
    """The bias of the last normalization is incorrect."""
    model = transformers.encoder("token", **SIZES)
    wrong = rewritten(model)
    change(wrong, "layers.0.norm2.bias", 0, lambda bias: np.nextafter(bias, np.float32(9)))
    result = check(model, wrong)
    assert not result.passed
    assert not any(product.problem for product in result.products)
    assert result.outputs[0].differing > 0


def test_incorrect_quantization_of_the_activation_fails() -> None:
    model = single()
    wrong = rewritten(model)
    quantizer = next(node for node in wrong.graph.node if node.op_type == "RowProgram")
    attribute = next(each for each in quantizer.attribute if each.name == "program")
    assert b"Round(" in attribute.s
    attribute.s = attribute.s.replace(b"Round(", b"Floor(", 1)
    (product,) = check(model, wrong).products
    assert product.problem.startswith("B's error is ")


def test_product_that_the_original_does_not_have_fails() -> None:
    model, wrong = single(), rewritten(single())
    next(entry for entry in products(wrong)[0].metadata_props if entry.key == ACTIVATION).value = "code"
    result = check(model, wrong)
    assert not result.passed
    assert [each.problem for each in result.products] == ["A has no such float product"]


def test_product_that_the_original_scales_by_an_attribute_fails() -> None:
    """B's product has another alpha."""
    parameters = {"w": weights(16, 5), "b": np.linspace(-1, 1, 5, dtype=np.float32)}
    plain, scaled = (
        token("float[n, 16] x", "float[n, 5] y", f"y = Gemm<alpha = {alpha}>(dx, w, b)", parameters)
        for alpha in (1.0, 2.0)
    )
    assert check(plain).passed
    (product,) = check(scaled, rewritten(plain)).products
    assert product.problem.startswith("B's error is ")
    assert check(scaled).passed


def test_a_model_with_exact_in_its_metadata_is_compared_bit_for_bit() -> None:
    model, wrong = single(), rewritten(single())
    next(entry for entry in wrong.metadata_props if entry.key == EXACT).value = "1"
    result = check(model, wrong)
    assert not result.passed
    assert result.products == ()
    assert result.outputs[0].differing > 0


# Special models


def test_product_that_is_an_output() -> None:
    result = check(single())
    assert result.passed
    assert [output.name for output in result.outputs] == ["z"]
    assert [[output.name for output in each] for each in (result.end_to_end, result.perturbed)] == [["y", "z"]] * 2
    for output in result.perturbed:
        assert output.differing > 0


def test_rows_with_nan_or_infinity_are_skipped() -> None:
    """Other rows are still compared. Here a NaN is kept where it is the first element of its row."""
    x = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    x[1, 0], x[4, 0] = np.nan, np.inf
    model = single()
    result = check(model, inputs={"x": x})
    assert result.passed
    assert (result.products[0].elements, result.products[0].skipped) == (30, 10)
    wrong = rewritten(model)
    change(wrong, operand(products(wrong)[0], "bias"), 2, lambda bias: bias + 1)
    assert not check(model, wrong, inputs={"x": x}).passed


def test_rows_of_zeros() -> None:
    """A row of zeros is 0 / 0 here. With a bias of zeros, the magnitude is zero too."""
    model = transformers.encoder("token", **SIZES)
    change(model, "layers.0.query.bias", slice(None), lambda bias: bias * 0)  # type: ignore[arg-type]
    result = check(model, inputs={"x": np.zeros((1, 3, 24), np.float32)})
    assert result.passed
    assert result.products[0].b_error == 0


def branches(condition: str = "c") -> onnx.ModelProto:
    """Returns a model with a product in a branch of an If, and one after it."""
    body = f"""b = Not(c) d = Not(b)
        y = If({condition}) <then_branch = then () => (float[n, 16] t) {{ t = MatMul(dx, w) }},
                         else_branch = else () => (float[n, 16] e) {{ e = Mul(x, x) }}>
        ym = Abs(y) yp = ReduceMax<axes = [-1]>(ym) ys = Div(yp, p)
        yq = Div(y, ys) yr = Round(yq) yc = Clip(yr, m, p) yd = Mul(yc, ys) z = MatMul(yd, v) out = Relu(z)"""
    parameters = {"w": weights(16, 16), "v": weights(16, 4)}
    return token("float[n, 16] x, bool c", "float[n, 16] y, float[n, 4] z, float[n, 4] out", body, parameters)


@pytest.mark.parametrize("taken", [True, False])
def test_product_in_a_branch_is_reported_as_not_compared(
    taken: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Its condition is computed."""
    model, inputs = branches("d"), {"c": np.array(taken)}
    result = check(model, inputs=inputs)
    assert result.passed
    assert (len(result.products), result.unreachable) == (1, 1)
    assert [output.name for output in result.outputs] == ["out"]
    wrong = rewritten(model)
    change(wrong, operand(products(wrong)[0], "column_scale"), 0, lambda scale: scale * 2)
    assert not check(model, wrong, inputs=inputs).passed
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(rewritten(model), tmp_path / "b.onnx")
    np.save(tmp_path / "c.npy", inputs["c"])
    assert (
        cli.main(["verify", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"), f"--input=c={tmp_path / 'c.npy'}"]) == 0
    )
    assert "Not compared: 1 integer product or fusion in subgraphs or functions" in capsys.readouterr().out


@pytest.mark.parametrize("taken", [True, False])
def test_product_in_a_branch_that_an_input_chooses(taken: bool) -> None:
    """The branch that runs takes the place of its If."""
    model, inputs = branches(), {"c": np.array(taken)}
    result = check(model, inputs=inputs)
    assert result.passed
    assert (len(result.products), result.unreachable) == (2 if taken else 1, 0)
    assert [output.name for output in result.outputs] == ["out"] if taken else ["y", "out"]
    wrong = rewritten(model)
    conditional = next(node for node in wrong.graph.node if node.op_type == "If")
    nodes = [node for attribute in conditional.attribute for node in attribute.g.node]
    product = next(node for node in nodes if "QuantizedMatMul" in node.op_type)
    change(wrong, operand(product, "column_scale"), 0, lambda scale: scale * 2)
    assert check(model, wrong, inputs=inputs).passed == (not taken)


def test_a_model_that_was_rewritten_before_equals_itself() -> None:
    """Its products were no float products, so they must be equal bit for bit."""
    model = rewritten(transformers.encoder("token", **SIZES))
    result = check(model, model)
    assert result.passed
    assert (result.products, result.unreachable) == ((), 0)
    wrong = onnx.ModelProto.FromString(model.SerializeToString())
    change(wrong, operand(products(wrong)[0], "column_scale"), 0, lambda scale: np.nextafter(scale, np.float32(1)))
    assert not check(model, wrong).passed


def test_all_outputs_come_from_branches_with_products() -> None:
    model = branches("d")
    del model.graph.output[1:]
    (branch,) = (i for i, node in enumerate(model.graph.node) if node.op_type == "If")
    del model.graph.node[branch + 1 :]
    result = check(model, inputs={"c": np.array(True)})
    assert (result.products, result.unreachable, result.outputs) == ((), 1, ())
    assert result.status == "unchecked"
    assert result.reason.startswith("nothing was compared: every output comes from a subgraph")


def test_wrong_shapes_hide_the_effect_of_the_last_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With them, ONNX Runtime loads A, and not A with changed results of its products: verification says so."""
    model = token("float[2, 7, 16] x", "float[2, 7, 5] y", "y = MatMul(dx, w)", {"w": weights(16, 5)})
    for name, depth in (("quotient", 7), ("rounded", 9), ("dx", 16)):
        declared = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 7, depth])
        model.graph.value_info.append(declared)
    result = check(model)
    assert result.passed
    assert (len(result.products), len(result.end_to_end), result.perturbed) == (1, 1, ())
    assert result.not_perturbed.startswith("A with errors added to its values does not load in stock ONNX Runtime: ")
    onnx.save(model, tmp_path / "a.onnx")
    onnx.save(rewritten(model), tmp_path / "b.onnx")
    assert cli.main(["verify", "--verbose", str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx")]) == 0
    assert f"Changed A is not shown: {result.not_perturbed}" in capsys.readouterr().out.splitlines()


def test_product_in_a_function() -> None:
    """Another function calls it, and is called twice."""
    codes = weights(4, 4)
    numbers = ", ".join(f"{number:.9g}" for number in codes.ravel())
    text = f"""<ir_version: 8, opset_import: ["": 17, "local": 1]> g (float[n, 4] x) => (float[n, 4] y)
        {{ one = local.outer(x) two = local.outer(one) y = Tanh(two) }}
        <domain: "local", opset_import: ["": 17, "local": 1]> outer (x) => (y) {{ y = local.inner(x) }}
        <domain: "local", opset_import: ["": 17]> inner (x) => (y)
        {{ magnitude = Abs(x) {TOKEN} w = Constant<value = float[4, 4] {{{numbers}}}>() y = MatMul(dx, w) }}"""
    model = onnx.parser.parse_model(text)
    result = check(model)
    assert result.passed
    assert (len(result.products), result.unreachable) == (2, 0)
    assert [output.equal for output in result.outputs] == [True]


def test_gemm_with_transposed_weights_and_bias() -> None:
    """The activation is reshaped to a matrix first."""
    body = "rows = Constant<value_ints = [-1, 16]>() flat = Reshape(dx, rows) y = Gemm<transB = 1>(flat, w, b)"
    bias = np.linspace(1, 2, 5, dtype=np.float32)
    parameters = {"w": np.ascontiguousarray(weights(16, 5).T), "b": bias}
    model = token("float[2, 3, 16] x", "float[6, 5] y", body, parameters)
    result = check(model)
    assert result.passed
    assert len(result.products) == 1
    wrong = rewritten(model)
    change(wrong, operand(products(wrong)[0], "bias"), 0, lambda bias: bias + np.float32(0.001))
    assert not check(model, wrong).passed


@pytest.mark.parametrize("as_bytes", [True, False])
def test_paths_with_external_data_and_bytes(as_bytes: bool, tmp_path: Path) -> None:
    model = transformers.encoder("token", **SIZES)
    fast = rewritten(model)
    if as_bytes:
        assert ort_dynq.verify(model.SerializeToString(), fast.SerializeToString()).passed
        return
    for name, each in (("a", model), ("b", fast)):
        file = tmp_path / f"{name}.onnx"
        onnx.save(each, file, save_as_external_data=True, location=f"{name}.data", size_threshold=256)
    result = ort_dynq.verify(tmp_path / "a.onnx", tmp_path / "b.onnx")
    assert result.passed
    assert len(result.products) == 6


def test_verify_changes_no_model() -> None:
    import onnx_ir as ir

    models = [ir.from_proto(model) for model in (single(), rewritten(single()))]
    before = [ir.to_proto(model).SerializeToString() for model in models]
    assert ort_dynq.verify(*models).passed
    assert [ir.to_proto(model).SerializeToString() for model in models] == before


# Metadata


@pytest.mark.parametrize(("first", "second", "expected"), [(True, True, "1"), (True, False, "1"), (False, True, "0")])
def test_metadata_says_whether_the_model_is_exact(first: bool, second: bool, expected: str) -> None:
    """Another rewrite does not find the products of chains that have become programs."""
    once = rewritten(transformers.encoder("token", **SIZES), exact=first)
    assert {entry.key: entry.value for entry in once.metadata_props}[EXACT] == ("1" if first else "0")
    twice = rewritten(once, exact=second)
    assert {entry.key: entry.value for entry in twice.metadata_props}[EXACT] == expected


def test_model_without_rewritten_nodes_has_no_new_metadata() -> None:
    model = transformers.encoder("float", **SIZES)
    assert rewritten(model).metadata_props == rewritten(model, exact=True).metadata_props == model.metadata_props
