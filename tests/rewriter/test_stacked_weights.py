"""Products of activations and stacked weights, [..., K, N], become one QuantizedMatMul."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import Array, Shape, assert_same, every, make_session, product_of, stock_session, with_arrays
from onnx import numpy_helper
from quantizing import activations, by_definition, weights_by_definition
from rewriting import F, found, tails

from ort_dynq import quantize
from ort_dynq.rewriter import Result, rewrite
from ort_dynq.rewriter.reasons import Reason
from ort_dynq.verification import verify

K, N = 160, 160
CHAIN = """a = Abs(x) m = ReduceMax(a, last) s = Div(m, c127) q = Div(x, s) r = Round(q) c = Clip(r, low, high)
    f = Mul(c, s) """
CODES = CHAIN.replace("f = Mul(c, s)", "b8 = Cast<to = 3>(c)")
INTEGERS = ["MatMulInteger", "MatMul of int32", "zero points of columns"]
SCALARS = {"last": np.array([-1]), "c127": F(127), "low": F(-128), "high": F(127)}

# The dimensions of the activation, and the leading ones of the weights.
STACKS: tuple[tuple[str, Shape, Shape], ...] = (
    ("B, 3, S", (2, 3, 5), (3,)),
    ("S", (5,), (3,)),
    ("1, S", (1, 5), (3,)),
    ("B, S", (2, 5), (1,)),
    ("B, 1, S", (2, 1, 5), (1, 3)),
    ("B, S", (2, 5), (3, 1)),
)


def weights_of(stack: Shape, seed: int = 1) -> tuple[Array, Array]:
    """int8 codes and scales, one for each column of each matrix."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(-127, 128, (*stack, K, N)).astype(np.int8)
    codes[..., 0, :] = 127
    return codes, rng.uniform(0.001, 0.02, (*stack, 1, N)).astype(F)


def model_of(body: str, dims: str, constants: dict[str, Array]) -> onnx.ModelProto:
    result = ", ".join(f"y{i}" for i in range(max(dims.count(",") + 2, constants["w"].ndim)))
    x = f"float[{dims}, {K}] x" if dims else f"float[{K}] x"
    text = f'<ir_version: 8, opset_import: ["": 18]> g ({x}) => (float[{result}] y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    with_arrays(model, constants)
    used = {name for node in model.graph.node for name in node.input}
    assert used >= constants.keys()
    return model


def run(result: Result, x: Array) -> Array:
    """The output with the plugin, which is also that without it."""
    model = result.to_proto()
    onnx.checker.check_model(model)
    assert "MatMul" not in {node.op_type for node in model.graph.node}
    assert sum(bool(product_of(node.op_type)) for node in model.graph.node) == 1
    (actual,) = make_session(model, "native", optimize=True).run(None, {"x": x})
    assert_same(np.asarray(stock_session(model).run(None, {"x": x})[0]), np.asarray(actual))
    return np.asarray(actual)


@pytest.mark.parametrize(("dims", "shape", "stack"), STACKS[::2])
def test_quantize(dims: str, shape: Shape, stack: Shape) -> None:
    rng = np.random.default_rng(0)
    weights, bias = rng.standard_normal((*stack, K, N), F), rng.standard_normal((*stack, 1, N), F)
    x = activations(*shape, K)
    actual = run(quantize(model_of("p = MatMul(x, w) y = Add(p, b)", dims, {"w": weights, "b": bias})), x)
    integers = np.array([weights_by_definition(matrix) for matrix in weights.reshape(-1, K, N)])
    expected = by_definition(x) @ integers.reshape(weights.shape) + bias
    assert actual.shape == expected.shape
    assert (np.abs(actual - expected) <= 2.0**-21 * np.abs(expected).max()).all()


def constants_of(weights: Array) -> list[Array]:
    """The packed weights, the scales and the bias of the product in a model of 4-bit weights."""
    graph = quantize(model_of("y = MatMul(x, w)", "S", {"w": weights}), weights="int4").to_proto().graph
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (product,) = (node for node in graph.node if product_of(node.op_type))
    return [tensors[product.input[i]] for i in (3, 5, 6, 7)]


def test_quantize_4_bits() -> None:
    """Each matrix has the codes and the scales that it has alone."""
    weights = np.random.default_rng(0).standard_normal((2, K, N), F)
    for together, *alone in zip(constants_of(weights), *map(constants_of, weights), strict=True):
        assert_same(together, np.array(alone))


def test_rewritten_floats() -> None:
    """Also with a bias of one for each column, or for each of all matrices, and a program; verification passes."""
    for i, (dims, shape, stack) in enumerate(STACKS[::-2]):
        codes, scales = weights_of(stack)
        body, constants = (
            (f"{CHAIN} p = MatMul(f, w) t = Add(p, b) y = Relu(t)", {"w": codes * scales, "b": scales[..., :1, :]}),
            (f"{CHAIN} p = MatMul(f, w) y = Add(p, b)", {"w": codes * scales, "b": scales.reshape(-1)[:N]}),
        )[i % 2]
        model = model_of(body, dims, SCALARS | constants)
        result = rewrite(model)
        assert "RowProgram" in found(result.report)
        assert tails(result.to_proto()) == (["dst = Clip(x, 0.0, inf)"] if i % 2 == 0 else [])
        x = activations(*shape, K)
        actual = run(result, x)
        (expected,) = stock_session(model).run(None, {"x": x})
        assert actual.shape == expected.shape
        np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * np.abs(expected).max())  # sums of floats
        assert verify(model, result.to_proto(), inputs={"x": x}).passed


@pytest.mark.parametrize("form", INTEGERS)
def test_rewritten_integers(form: str) -> None:
    """Bit for bit."""
    for dims, shape, stack in STACKS[INTEGERS.index(form) :: 3]:
        codes, scales = weights_of(stack)
        constants: dict[str, Array] = {"w": codes, "ws": scales}
        product = "i = MatMulInteger(b8, w)"
        if form == "MatMul of int32":
            product, constants["w"] = "b32 = Cast<to = 6>(b8) i = MatMul(b32, w)", codes.astype(np.int32)
        elif form == "zero points of columns":
            product = "i = MatMulInteger(b8, w, z, zw)"
            zeros = np.random.default_rng(2).integers(-5, 6, (*stack, 1, N)).astype(np.int8)
            constants |= {"z": np.array(0, np.int8), "zw": zeros}
        model = model_of(
            f"{CODES} {product} g = Cast<to = 1>(i) t = Mul(g, s) y = Mul(t, ws)", dims, SCALARS | constants
        )
        x = activations(*shape, K)
        (expected,) = stock_session(model).run(None, {"x": x})
        assert_same(run(rewrite(model, exact=True), x), expected)


EINSUMS: tuple[tuple[str, str, Shape, Shape], ...] = (  # an equation, and the dimensions as in STACKS
    ("abmk,bkn->abmn", "B, 3, S", (2, 3, 5), (3,)),
    ("...bmk,bnk->...bmn", "B, 3, S", (2, 3, 5), (3,)),
    ("...mk, ...kn -> ...mn", "3, S", (3, 5), (3,)),
    ("abmk,abkn->abmn", "B, 1, S", (2, 1, 5), (1, 3)),
)


@pytest.mark.parametrize(("equation", "dims", "shape", "stack"), EINSUMS)
def test_einsum(equation: str, dims: str, shape: Shape, stack: Shape) -> None:
    """Rewritten, and quantized."""
    codes, scales = weights_of(stack)
    weights = np.ascontiguousarray((codes * scales).swapaxes(-1, -2) if "nk" in equation else codes * scales)
    x, einsum = activations(*shape, K), f'y = Einsum<equation = "{equation}">({{}}, w)'
    model = model_of(CHAIN + einsum.format("f"), dims, SCALARS | {"w": weights})
    result = rewrite(model)
    actual, (expected,) = run(result, x), stock_session(model).run(None, {"x": x})
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * np.abs(expected).max())  # sums of floats
    assert verify(model, result.to_proto(), inputs={"x": x}).passed

    actual = run(quantize(model_of(einsum.format("x"), dims, {"w": weights})), x)
    expected = by_definition(x) @ (codes * scales)
    assert actual.shape == expected.shape
    assert (np.abs(actual - expected) <= 2.0**-21 * np.abs(expected).max()).all()


MOVED_EINSUMS: tuple[tuple[str, str, Shape, Shape], ...] = (  # the dimensions of the weights before and behind K
    ("tk,kef->tef", "S", (5,), (3, N)),  # experts that share an activation
    ("tk,ekf->etf", "S", (5,), (3, N)),
    ("bmk,hkn->bhmn", "B, S", (2, 5), (3, N)),
    ("tek,ekf->tef", "S, 3", (5, 3), (3, N)),  # experts with activations of their own
    ("tek,enk->etn", "S, 3", (5, 3), (3, N)),
    ("bthk,hkn->bthn", "2, S, 3", (2, 5, 3), (3, N)),
    ("abmk,akn->abmn", "3, B, S", (3, 2, 5), (3, N)),
    ("bmk,bkn->bnm", "3, S", (3, 5), (3, N)),
    ("mk,kn->nm", "S", (5,), (N,)),
)


SCALES = ("of tokens", "of all", "of samples")
SCALED_EINSUMS = every(2, [(*each, SCALES[i % 3 - j]) for i, each in enumerate(MOVED_EINSUMS) for j in (0, 1)])


@pytest.mark.parametrize(("equation", "dims", "shape", "weights_shape", "scale"), SCALED_EINSUMS)
def test_moved_einsum(equation: str, dims: str, shape: Shape, weights_shape: Shape, scale: str) -> None:
    """Codes and their numbers are transposed where the rows of the product have another order."""
    codes, scales = weights_of(weights_shape[:-1])
    labels = equation.partition(",")[2].partition("-")[0]
    behind = [label for label in labels if label not in "k" and label not in equation.partition(",")[0]]
    at = labels.index("k")
    weights = codes * scales if at == labels.index(behind[-1]) - 1 else np.moveaxis(codes * scales, -2, at)
    chain = CHAIN
    if scale == "of all":
        chain = "q, s, z = DynamicQuantizeLinear(x) f = DequantizeLinear(q, s, z)"
    elif scale == "of samples":  # one for each index of the first dimension
        chain = CHAIN.replace("m = ReduceMax(a, last)", "m0 = ReduceMax(a, behind) m = Max(m0, least)")
    constants = {"w": np.ascontiguousarray(weights), **({} if scale == "of all" else SCALARS)}
    if scale == "of samples":
        constants = {**constants, "behind": np.arange(1, len(shape) + 1), "least": F(1e-5)}
        constants.pop("last")
    model = model_of(f'{chain} y = Einsum<equation = "{equation}">(f, w)', dims, constants)
    result, x = rewrite(model), activations(*shape, K)
    actual, (expected,) = run(result, x), stock_session(model).run(None, {"x": x})
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * np.abs(expected).max())  # sums of floats
    special = x.copy()
    special.reshape(-1, K)[1], special.reshape(-1, K)[3, 7] = 0, np.inf if scale == "of tokens" else 0
    for data in (x, special):
        assert verify(model, result.to_proto(), inputs={"x": data}).passed


JOINED_EINSUMS: tuple[tuple[str, str, Shape, Shape], ...] = (  # the shape of the weights; K is some of the last labels
    ("bthk,hkn->btn", "B, S, 3", (2, 5, 3), (3, K, N)),
    ("bthk,nhk->btn", "2, S, 3", (2, 5, 3), (N, 3, K)),
    ("bthk,hken->bnte", "B, S, 3", (2, 5, 3), (3, K, 2, N)),
    ("teghk,eghkn->ten", "S, 2, 3, 2", (5, 2, 3, 2), (2, 3, 2, K, N)),
)
JOINED_SCALES = {"of tokens": [-2, -1], "of heads": [-1], "of samples": [], "of all": None}


SCALED_JOINED = every(
    2, [(*each, (*JOINED_SCALES,)[i % 4 - j]) for i, each in enumerate(JOINED_EINSUMS) for j in (0, 1)]
)


@pytest.mark.parametrize(("equation", "dims", "shape", "weights_shape", "scale"), SCALED_JOINED)
def test_joined_einsum(equation: str, dims: str, shape: Shape, weights_shape: Shape, scale: str) -> None:
    """Several dimensions are K, and codes and their numbers are reshaped; scales of heads become those of groups."""
    rng, inner = np.random.default_rng(0), equation[: equation.index(",")]
    weights = (rng.integers(-127, 128, weights_shape) * 2.0**-7).astype(F)
    weights.reshape(-1)[0] = 127 * 2.0**-7
    axes = JOINED_SCALES[scale]
    if axes is None:
        chain, constants = "q, s, z = DynamicQuantizeLinear(x) f = DequantizeLinear(q, s, z)", {}
    else:
        axes = axes or [*range(1, len(inner))]
        chain = CHAIN.replace("m = ReduceMax(a, last)", "m0 = ReduceMax(a, last) m = Max(m0, least)")
        constants = {**SCALARS, "last": np.array(axes), "least": F(1e-5)}
    model = model_of(f'{chain} y = Einsum<equation = "{equation}">(f, w)', dims, {"w": weights, **constants})
    result, x = rewrite(model), activations(*shape, K)
    actual, (expected,) = run(result, x), stock_session(model).run(None, {"x": x})
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6 * np.abs(expected).max())  # sums of floats
    special = x.copy()
    special.reshape(-1, K)[1], special.reshape(-1, K)[3, 7] = 0, 0 if axes is None else np.inf
    for data in (x, special):
        assert verify(model, result.to_proto(), inputs={"x": data}).passed
    finite = np.isfinite(run(result, special))
    assert_same(finite, np.isfinite(stock_session(model).run(None, {"x": special})[0]))


@pytest.mark.parametrize(
    ("equation", "dims"),
    [
        ("...k,...kn->...n", "3"),
        ("mk,bkn->mn", "S"),  # a sum over all matrices
        ("kb,bkn->bn", "S"),
        ("bk,bkn->bn", "3"),  # each row has a matrix
    ],
)
def test_other_einsums_of_stacked_weights_stay(equation: str, dims: str) -> None:
    codes, scales = weights_of((3,))
    for body, change in ((CHAIN.replace("f = ", "g = ") + "f = Identity(g)", rewrite), ("f = Identity(x)", quantize)):
        constants = {"w": codes * scales} | (SCALARS if change is rewrite else {})
        report = change(model_of(f'{body} y = Einsum<equation = "{equation}">(f, w)', dims, constants)).report
        assert [each.unconverted.reason for each in report.unconverted if each.unconverted] == [Reason.EINSUM]


def test_vectors_stay() -> None:
    codes, scales = weights_of((3,))
    model = model_of(f"{CHAIN} y = MatMul(f, w)", "", SCALARS | {"w": codes * scales})
    reasons = [str(finding.unconverted) for finding in rewrite(model).report.findings if finding.unconverted]
    assert reasons == ["the weights are of rank 3, expected 2"]
