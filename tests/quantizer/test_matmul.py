"""MatMul, Gemm and Einsum: the results equal the definition in NumPy, with the plugin and without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from helpers import every
from onnx import TensorProto, helper
from quantizing import (
    F,
    K,
    N,
    activations,
    by_definition,
    floats,
    model_of,
    operators,
    product,
    reasons,
    run,
    run_float,
    squared_error,
    weights_by_definition,
)

import ort_dynq
from ort_dynq.quantizer import matmul
from ort_dynq.rewriter.weights.grid import QuantizedWeights

W, BIAS = floats(K, N, seed=3), floats(N, seed=4)
X = activations(9, K)
MATMUL = helper.make_node("MatMul", ["x", "b"], ["y"])


def close(actual: np.ndarray, expected: np.ndarray) -> bool:
    """The definition has exact sums; the kernels round to float32 a few times."""
    return bool((np.abs(actual - expected) <= 2.0**-21 * np.abs(expected).max()).all())


CODES = np.random.default_rng(5).integers(-100, 101, (N, K)).astype(np.int8)
SCALES = np.abs(floats(N, seed=6))
HALF = W.astype(np.float16)
TRANSPOSE = helper.make_node("Transpose", ["w"], ["b"])
WEIGHTS = {
    "an initializer": ([], {"b": W}, W),
    "a Constant": ([helper.make_node("Constant", [], ["b"], value=onnx.numpy_helper.from_array(W))], {}, W),
    "Transpose": ([TRANSPOSE], {"w": np.ascontiguousarray(W.T)}, W),
    "Identity": ([helper.make_node("Identity", ["w"], ["b"])], {"w": W}, W),
    "Cast": ([helper.make_node("Cast", ["w"], ["b"], to=TensorProto.FLOAT)], {"w": HALF}, HALF.astype(F)),
    "DequantizeLinear": (
        [helper.make_node("DequantizeLinear", ["codes", "s"], ["w"], axis=0), TRANSPOSE],
        {"codes": CODES, "s": SCALES},
        None,  # these codes stay as they are
    ),
}


@pytest.mark.parametrize("form", WEIGHTS)
def test_forms_of_weights(form: str) -> None:
    nodes, constants, weights = WEIGHTS[form]
    result = ort_dynq.quantize(model_of([*nodes, MATMUL], constants))
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 1}
    expected = CODES.T * SCALES.astype(np.float64) if weights is None else weights_by_definition(weights)
    assert close(run(result, X), by_definition(X) @ expected)


@pytest.mark.parametrize(
    ("attributes", "bias"),
    [
        ({}, BIAS),
        ({"transB": 1}, BIAS),
        ({"transA": 1}, None),
        ({"alpha": -0.5, "beta": 2.0, "transB": 1}, BIAS),
        ({"beta": 3.0}, BIAS[:1]),
        ({"beta": 0.0}, floats(9, 1)),
    ],
    ids=lambda each: str(each) if isinstance(each, dict) else "",
)
def test_gemm(attributes: dict[str, float], bias: np.ndarray | None) -> None:
    constants = {"b": np.ascontiguousarray(W.T) if attributes.get("transB") else W}
    if bias is not None:
        constants["c"] = bias
    gemm = helper.make_node("Gemm", ["x", *constants], ["y"], **attributes)
    x = np.ascontiguousarray(X.T) if attributes.get("transA") else X
    model = model_of([gemm], constants, shape=x.shape)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 1}
    expected = attributes.get("alpha", 1.0) * (by_definition(X) @ weights_by_definition(W))
    if bias is not None:
        expected = expected + attributes.get("beta", 1.0) * bias
    actual = run(result, x)
    assert close(actual, expected)
    assert squared_error(actual, run_float(model, x)) < 3e-4


def along(
    axes: tuple[int, ...], array: np.ndarray, at: int, quantized: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """An array: elements along some axes, as rows (-1) or columns (0) of a matrix, are quantized together."""
    others = [axis for axis in range(array.ndim) if axis not in axes]
    order = [*axes, *others] if at == 0 else [*others, *axes]
    moved = array.transpose(order)
    lengths = [array.shape[axis] for axis in axes]
    shape = (np.prod(lengths), -1) if at == 0 else (-1, np.prod(lengths))
    return np.asarray(quantized(moved.reshape(shape)).reshape(moved.shape).transpose(np.argsort(order)))


class Equation(NamedTuple):
    """An Einsum of an activation and weights, with a bias or without.

    Attributes:
        x, weights, bias: Their shapes.
        of_x, of_weights: The axes along which it adds.
        moves: The nodes beside the product.
    """

    x: tuple[int, ...]
    weights: tuple[int, ...]
    bias: tuple[int, ...] | None
    of_x: tuple[int, ...]
    of_weights: tuple[int, ...]
    moves: tuple[str, ...]


EQUATIONS = {
    "btk,khd->bthd": Equation((2, 3, K), (K, 4, 80), (4, 80), (2,), (0,), ("Reshape",)),
    "btk,hkd->bhtd": Equation((2, 3, K), (2, K, N), (2, 1, N), (2,), (1,), ("Reshape", "Transpose")),
    "...k,khd->...hd": Equation((2, 3, K), (K, 4, 80), (1, 1, 80), (2,), (0,), ("Reshape",)),
    "bthd,hdk->btk": Equation((2, 3, 4, 40), (4, 40, N), (N,), (2, 3), (0, 1), ("Reshape",)),
    "...hd,hdk->...k": Equation((2, 3, 4, 40), (4, 40, N), (1, 1, N), (2, 3), (0, 1), ("Reshape",)),
    "bhtd,hdk->btk": Equation((2, 4, 3, 40), (4, 40, N), (N,), (1, 3), (0, 1), ("Transpose", "Reshape")),
    "bhtd,dkh->btk": Equation((2, 4, 3, 40), (40, N, 4), None, (1, 3), (2, 0), ("Transpose", "Reshape")),
    "nct,mc->nmt": Equation((2, K, 3), (N, K), (N, 1), (1,), (1,), ("Transpose", "Transpose")),
    "td,edf->tef": Equation((3, K), (2, K, N), (2, N), (1,), (1,), ("Reshape",)),
    "td,edf->etf": Equation((3, K), (2, K, N), None, (1,), (1,), ()),
    "tef,efd->ted": Equation((3, 2, K), (2, K, N), (2, N), (2,), (1,), ("Transpose", "Add", "Transpose")),
    "btk,nk->btn": Equation((2, 3, K), (N, K), (N,), (2,), (1,), ()),
}
LEFT = [(each, True) for each in EQUATIONS]


@pytest.mark.parametrize(("equation", "is_first"), [*((each, False) for each in EQUATIONS), *every(3, LEFT, 1)])
def test_einsum(equation: str, is_first: bool) -> None:
    """`is_first`: whether the weights are the first factor."""
    each = EQUATIONS[equation]
    x, weights = activations(*each.x), floats(*each.weights, seed=3)
    x_labels, _, others = equation.partition(",")
    w_labels, _, y_labels = others.partition("->")
    inputs, written = (["w", "x"], f"{w_labels},{x_labels}->{y_labels}") if is_first else (["x", "w"], equation)
    nodes = [helper.make_node("Einsum", inputs, ["y" if each.bias is None else "p"], equation=written)]
    constants = {"w": weights}
    if each.bias is not None:
        nodes.append(helper.make_node("Add", ["p", "c"], ["y"]))
        constants["c"] = floats(*each.bias, seed=4)
    model = model_of(nodes, constants, shape=each.x)
    result_shape = [f"y{i}" for i in range(len(y_labels.replace("...", "ab")))]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, result_shape))
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 1}
    moves = {name: result.report.after.get(name, 0) for name in ("Transpose", "Reshape", "Add", "Einsum")}
    assert moves == {name: each.moves.count(name) for name in moves}
    expected = np.einsum(
        equation,
        along(each.of_x, x, -1, by_definition),
        along(each.of_weights, weights, 0, weights_by_definition),
    )
    actual = run(result, x)
    assert close(actual, expected + constants.get("c", 0))
    assert squared_error(actual, run_float(model, x)) < 3e-4


class LeftForm(NamedTuple):
    """A product of weights, the left factor, by an activation.

    Attributes:
        operator: MatMul or Gemm.
        weights, x, bias: The shapes.
        attributes: Those of the Gemm.
    """

    operator: str
    weights: tuple[int, ...]
    x: tuple[int, ...]
    bias: tuple[int, ...] | None = None
    attributes: Mapping[str, float] = {}


LEFT_FORMS = {
    "matrix": LeftForm("MatMul", (N, K), (K, 9), (N, 1)),
    "batch": LeftForm("MatMul", (N, K), (2, 3, K, 9), (N, 1)),
    "one column": LeftForm("MatMul", (N, K), (2, K, 1), (1, N, 1)),
    "bias of rows": LeftForm("MatMul", (N, K), (2, K, 9), (9,)),
    "stack": LeftForm("MatMul", (3, N, K), (2, 3, K, 9)),
    "stack by one matrix": LeftForm("MatMul", (3, N, K), (K, 9)),
    "Gemm": LeftForm("Gemm", (N, K), (K, 9), (N, 1)),
    "Gemm without C": LeftForm("Gemm", (K, N), (9, K), None, {"transA": 1, "transB": 1}),
    "Gemm with all": LeftForm("Gemm", (K, N), (K, 9), (1,), {"transA": 1, "alpha": -0.5, "beta": 2.0}),
    "Gemm of rows": LeftForm("Gemm", (N, K), (9, K), (N, 1), {"transB": 1, "beta": 3.0}),
}


def _left_form(each: LeftForm) -> onnx.ModelProto:
    constants = {"w": floats(*each.weights, seed=3)} | ({} if each.bias is None else {"c": floats(*each.bias, seed=4)})
    if each.operator == "Gemm":
        nodes = [helper.make_node("Gemm", ["w", "x", *[*constants][1:]], ["p"], **each.attributes)]
    else:
        nodes = [helper.make_node("MatMul", ["w", "x"], ["p" if each.bias is None else "s"])]
        nodes += [] if each.bias is None else [helper.make_node("Add", ["s", "c"], ["p"])]
    nodes.append(helper.make_node("Relu", ["p"], ["y"]))
    model = model_of(nodes, constants, shape=each.x)
    shape = [f"y{i}" for i in range(max(len(each.x), len(each.weights)))]
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, shape))
    return model


@pytest.mark.parametrize("form", LEFT_FORMS)
def test_weights_as_left_factor(form: str) -> None:
    """The activation function stands behind the product; x has rows of very different magnitude."""
    each = LEFT_FORMS[form]
    model, transposes_x = _left_form(each), not each.attributes.get("transB")
    x = activations(*each.x[:-2], *(each.x[:-3:-1] if transposes_x else each.x[-2:]))
    rows, w = by_definition(x), floats(*each.weights, seed=3)
    w = w if each.attributes.get("transA") else w.swapaxes(-1, -2)
    columns = np.reshape([weights_by_definition(matrix) for matrix in w.reshape(-1, K, N)], w.shape)
    p = each.attributes.get("alpha", 1.0) * (rows @ columns).swapaxes(-1, -2)
    p = p if each.bias is None else p + each.attributes.get("beta", 1.0) * floats(*each.bias, seed=4)
    x = np.ascontiguousarray(x.swapaxes(-1, -2)) if transposes_x else x
    result = ort_dynq.quantize(model)
    programs = 1 + (form == "bias of rows")  # that of Add and Relu
    assert operators(result) == {"RowProgram": programs, "QuantizedMatMul": 1}
    actual = run(result, x)
    assert np.abs(actual - np.maximum(p, 0)).max() <= 2.0**-20 * np.abs(p).max()
    assert squared_error(actual, run_float(model, x)) < 3e-4


def test_left_weights_pay_from_80_rows_and_columns_on() -> None:
    for lengths in ((79, 400), (400, 79), (80, 400), (400, 80)):
        model = model_of(
            [helper.make_node("MatMul", ["w", "x"], ["y"])], {"w": floats(*lengths)}, shape=(lengths[1], 9)
        )
        assert ("ort_dynq.QuantizedMatMul" in ort_dynq.quantize(model).report.after) == (min(lengths) == 80)


def test_products_share_an_activation_that_is_moved() -> None:
    nodes = [helper.make_node("Einsum", ["x", each], [f"{each}.p"], equation="nct,mc->nmt") for each in "ab"]
    nodes.append(helper.make_node("Add", ["a.p", "b.p"], ["y"]))
    model = model_of(nodes, {each: floats(N, K, seed=i) for i, each in enumerate("ab")}, shape=(2, K, "T"))
    result = ort_dynq.quantize(model)
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 2}
    assert result.report.after["Transpose"] == 3  # one of the activation


@pytest.mark.parametrize("shape", [(K,), (2, 3, K), ("A", "B", "C", K)], ids=str)
def test_ranks(shape: tuple[int | str, ...]) -> None:
    x = activations(*(each if isinstance(each, int) else 2 for each in shape))
    assert close(run(ort_dynq.quantize(product(W, shape=shape)), x), by_definition(x) @ weights_by_definition(W))


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"symmetric": True}, 5e-4),
        ({"activations": "tensor"}, 5e-4),
        ({"weights": "int4"}, 8e-3),
        ({"weights": "int4", "group": 64}, 8e-3),  # groups of 32, since 64 does not divide K
        ({"weights": "int4", "symmetric": True}, 8e-3),
        ({"weights": "int4", "activations": "tensor"}, 1.2e-2),
    ],
    ids=str,
)
def test_options(options: dict[str, str], limit: float) -> None:
    model = product(W)
    error = squared_error(run(ort_dynq.quantize(model, **options), X), run_float(model, X))
    assert limit / 10 < error < limit


def test_biases_are_folded_and_activations_shared() -> None:
    names = ("query", "key", "value")
    nodes = [helper.make_node("MatMul", ["x", f"{name}.w"], [f"{name}.p"]) for name in names]
    nodes += [helper.make_node("Add", [f"{name}.bias", f"{name}.p"], [name]) for name in names]
    nodes.append(helper.make_node("Sum", list(names), ["y"]))
    constants = {f"{name}.w": floats(K, N, seed=seed) for seed, name in enumerate(names)}
    constants |= {f"{name}.bias": floats(N, seed=seed) for seed, name in enumerate(names)}
    result = ort_dynq.quantize(model_of(nodes, constants))
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 3}
    assert "Add" not in result.report.after
    products = (by_definition(X) @ weights_by_definition(constants[f"{n}.w"]) + constants[f"{n}.bias"] for n in names)
    assert close(run(result, X), sum(products))


def test_equal_weights_are_stored_once() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "b"], ["p"]),
        helper.make_node("MatMul", ["p", "b"], ["y"]),
    ]
    result = ort_dynq.quantize(model_of(nodes, {"b": floats(N, N)}, shape=("M", N)))
    assert operators(result)["QuantizedMatMul"] == 2
    packed = [tensor for tensor in result.to_proto().graph.initializer if list(tensor.dims[2:]) == [16, 4]]
    assert len(packed) == 1


def test_weights_of_several_products_are_quantized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the weights are transposed, they are quantized again."""
    shapes: list[tuple[int, ...]] = []
    quantize = matmul.grid_of_columns

    def counted(weights: np.ndarray) -> QuantizedWeights:
        shapes.append(weights.shape)
        return quantize(weights)

    monkeypatch.setattr(matmul, "grid_of_columns", counted)
    nodes = [
        helper.make_node("MatMul", ["x", "b"], ["p"]),
        helper.make_node("Gemm", ["p", "b"], ["q"], transB=1),
        helper.make_node("Gemm", ["q", "b"], ["r"]),
        helper.make_node("Gemm", ["r", "b"], ["y"], transB=1),
    ]
    result = ort_dynq.quantize(model_of(nodes, {"b": W}))
    assert operators(result)["QuantizedMatMul"] == 4
    assert shapes == [(K, N), (N, K)]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (176, "groups of 16, since groups of 128 do not divide 176 rows"),
        (150, "int8, since no group divides 150 rows"),
        (256, ""),
    ],
)
def test_rows_that_groups_do_not_divide(rows: int, text: str) -> None:
    result = ort_dynq.quantize(product(floats(rows, N), shape=("M", rows)), weights="int4", group=128)
    assert [finding.reason for finding in result.report.rewritten] == [text]
    run(result, activations(3, rows))


def _staying(node: onnx.NodeProto, /, **constants: np.ndarray) -> onnx.ModelProto:
    return model_of([node], constants)


NAN = W.copy()
NAN[7, 7] = np.nan
_EINSUM = "the Einsum is not a product by a matrix of weights, or by stacked ones as in MatMul"
STAYING = {
    _EINSUM: _staying(helper.make_node("Einsum", ["x", "b"], ["y"], equation="mk,kn->kn"), b=W),
    "a product of two activations": _staying(helper.make_node("MatMul", ["x", "x"], ["y"])),
    "the weights are the left factor, and the right one is not known to have their K and stack": model_of(
        [helper.make_node("MatMul", ["b", "x"], ["y"])], {"b": W}, shape=(N,)
    ),
    "the weights have NaN or an infinity": _staying(MATMUL, b=NAN),
    "160 x 8 weights are too few: quantizing the activation costs more than integers save": _staying(
        MATMUL, b=W[:, :8]
    ),
    "the weights are of rank 3, expected 2": model_of([MATMUL], {"b": np.array([W, W])}, shape=(K,)),
    "the weights are of rank 1, expected 2": _staying(MATMUL, b=W[:, 0]),
    "the activation is double, expected float32": model_of(
        [MATMUL], {"b": W.astype(np.float64)}, type_=TensorProto.DOUBLE
    ),
    "the bias is not one number for each output channel": _staying(
        helper.make_node("Gemm", ["x", "b", "c"], ["y"]), b=W, c=floats(9, 1)
    ),
    "the weights times the attribute alpha of the Gemm exceed float32": _staying(
        helper.make_node("Gemm", ["x", "b"], ["y"], alpha=3e38), b=W * F(1e4)
    ),
    "the bias times the attribute beta of the Gemm exceed float32": _staying(
        helper.make_node("Gemm", ["x", "b", "c"], ["y"], beta=3e38), b=W, c=BIAS * F(10)
    ),
    "sums of 70000 products may overflow int32": product(np.ones((70000, 48), F) + floats(1, 48), shape=("M", 70000)),
}

MICROSOFT = "ONNX Runtime's optimizer made this operator; quantize the model before it is optimized"
STAYING[MICROSOFT] = _staying(helper.make_node("FusedMatMul", ["x", "b"], ["y"], domain="com.microsoft"), b=W)
STAYING[MICROSOFT].opset_import.append(helper.make_opsetid("com.microsoft", 1))
OVERRIDABLE = product(W)
OVERRIDABLE.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, (K, N)))
STAYING["the weights are also an input of the model, which may override them; remove this input"] = OVERRIDABLE


@pytest.mark.parametrize("reason", STAYING)
@pytest.mark.filterwarnings("error")
def test_nodes_that_stay(reason: str) -> None:
    """Another layer of the model is quantized."""
    model = STAYING[reason]
    model.graph.node.append(helper.make_node("MatMul", ["z", "other"], ["other result"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "other"))
    model.graph.input.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, (2, K)))
    model.graph.output.append(helper.make_tensor_value_info("other result", TensorProto.FLOAT, None))
    result = ort_dynq.quantize(model)
    assert reasons(result) == [reason]
    assert operators(result)["QuantizedMatMul"] == 1
