"""Shared by the tests of the rewriter: models, data, and the comparison of a rewritten model with the original."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
from helpers import Array, assert_same, make_session, nodes_of, product_of, stock_session, with_arrays, with_one_nan
from onnx import helper, numpy_helper

import ort_dynq
from ort_dynq.rewriter import Report, Result, rewrite
from ort_dynq.rewriter.chains import dynamic_quantize_linear, reductions
from ort_dynq.rewriter.metadata import ACTIVATION
from ort_dynq.rewriter.normal_form import with_branches_taken
from ort_dynq.tools.verification.products import Product

F = np.float32

# The models of models/

MODELS = Path(__file__).parents[1] / "models"
FOR_THE_QUANTIZER = ("float_", "ort_static")
"""How the names of models begin that only the quantizer changes; see quantizer/test_networks.py."""
FOLDERS = sorted(
    path.parent.name for path in MODELS.glob("*/model.onnx") if not path.parent.name.startswith(FOR_THE_QUANTIZER)
)

YES = "b0 = Cast<to = 9>(x) b1 = Cast<to = 6>(b0) b2 = ReduceSum<keepdims = 0>(b1) yes = Cast<to = 9>(b2)"
"""Nodes that compute the condition of an If at run time: whether x has a number other than 0."""


def load(name: str) -> onnx.ModelProto:
    """Returns the model with metadata and doc strings, which a rewrite must keep."""
    model = onnx.load(MODELS / name / "model.onnx")
    model.doc_string, model.graph.doc_string = "of the model", "of the graph"
    model.metadata_props.add(key="ort_dynq test", value="kept")
    for value in (*model.graph.input, *model.graph.output):
        value.doc_string = f"of {value.name}"
    return model


@functools.cache
def rewritten(name: str, exact: bool = False) -> tuple[Result, bytes]:
    result = rewrite(load(name), exact=exact)
    return result, result.to_proto().SerializeToString()


@functools.cache
def has_products(name: str) -> bool:
    """Returns whether float products have become integer products."""
    model = onnx.ModelProto.FromString(rewritten(name)[1])
    bodies = (model.graph, *model.functions)
    return any(entry.key == ACTIVATION for body in bodies for node in nodes_of(body) for entry in node.metadata_props)


@functools.cache
def data_sets(name: str) -> list[tuple[dict[str, Array], dict[str, Array]]]:
    """Returns the inputs and outputs of each data set by name."""
    folders = sorted((MODELS / name).glob("test_data_set_*"))
    assert folders
    return [(tensors(folder, "input"), tensors(folder, "output")) for folder in folders]


def tensors(folder: Path, kind: str) -> dict[str, Array]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.rpartition("_")[2]))
    assert [file.name for file in files] == [f"{kind}_{i}.pb" for i in range(len(files))]
    protos = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    return {proto.name: numpy_helper.to_array(proto) for proto in protos}


def operators(model: onnx.ModelProto) -> dict[str, int]:
    """Counts the calls of ort_dynq's operators, except those in the functions of these operators."""
    bodies = (model.graph, *(function for function in model.functions if function.domain != "ort_dynq"))
    return dict(
        Counter(f"ort_dynq.{node.op_type}" for body in bodies for node in nodes_of(body) if node.domain == "ort_dynq")
    )


def programs(model: onnx.ModelProto) -> list[str]:
    """The programs of a rewritten model, in the order of its nodes."""
    return [program for operator, program in _programs(model) if operator == "RowProgram"]


def tails(model: onnx.ModelProto) -> list[str]:
    """The programs of the integer products of a rewritten model, in the order of its nodes."""
    return [program for operator, program in _programs(model) if product_of(operator)]


def _programs(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Yields the operators with a program, and the programs."""
    for body in (model.graph, *(function for function in model.functions if function.domain != "ort_dynq")):
        for node in nodes_of(body):
            if node.domain == "ort_dynq":
                yield from ((node.op_type, each.s.decode()) for each in node.attribute if each.name == "program")


# Models of one chain

REDUCE = {13: "Reduce{0}<axes = [-1], keepdims = {2}>({1})", 18: "Reduce{0}<keepdims = {2}>({1}, one)"}
"""The text of a reduction over the last dimension, by opset. Its fields are the kind, the value and keepdims."""


WHOLE_CHAIN = """mn0 = ReduceMin(x, one) mx0 = ReduceMax(x, one) mn = Min(mn0, zero) mx = Max(mx0, zero) w = Sub(mx, mn)
    s = Div(w, c255) n = Neg(mn) t = Div(n, s) rt = Round(t) zc = Clip(rt, zero, c255) z = Cast<to = 2>(zc)
    zf = Cast<to = 1>(z) d = Div(x, s) rd = Round(d) a = Add(rd, zf) c = Clip(a, zero, c255) q = Cast<to = 2>(c)
    real = Cast<to = 1>(q) b = Sub(real, zf) y = Mul(b, s)"""
"""A whole asymmetric chain from x to y, as the nodes of :func:`parse`."""


NUMBERS = {"c127": F(127), "c255": F(255), "zero": F(0), "low": F(-128), "high": F(127), "eps": F(1e-5)}


def parse(body: str, *, opset: int = 18, inputs: str = "float[N, K] x", outputs: str = "float[] y") -> onnx.ModelProto:
    """Returns a model of these nodes. The constant `one` is [-1]; NUMBERS and `one_255th` are scalars."""
    head = f'<ir_version: 8, opset_import: ["": {opset}]> g ({inputs}) => ({outputs})'
    numbers = {"one": np.array([-1]), **NUMBERS, "one_255th": F(1 / 255)}
    return with_arrays(onnx.parser.parse_model(f"{head} {{ {body} }}"), numbers)


def rows(shape: tuple[int, ...], seed: int = 0, *, nan: bool = False) -> Array:
    """Returns rows with a power of two as their scale and ties as most elements; also zeros, infinities, denormals."""
    rng = np.random.default_rng(seed)
    x = np.zeros(shape, F)
    length = shape[-1]
    for i, row in enumerate(x.reshape(-1, length)):
        step = F(2.0) ** rng.integers(-6, 6)
        row[:] = (rng.integers(-130, 130, length) + rng.choice([0.5, 0.5, 0.0], length)) * step
        row[rng.integers(length)] = rng.choice([127, 127.5, -127, 255, -128]) * step
        match i % 9:
            case 1:
                row[:] = np.abs(row)
            case 2:
                row[:] = -np.abs(row)
            case 3:
                row[:] = np.nextafter(row, row * rng.choice(np.array([0, 2], F), length))
            case 4:
                row[:] = 0
            case 5:
                row[rng.integers(length)] = rng.choice([np.inf, -np.inf])
            case 6:
                row[:] = rng.integers(-300, 300, length) * 1e-45
            case 7:
                row[:] = np.where(rng.random(length) < 0.4, rng.choice([0.0, -0.0], length), row)
            case 8 if nan:
                row[rng.integers(length)] = np.nan
    return x


def found(report: Report) -> list[str]:
    """Returns the operators that nodes became, except for ranges alone and DynamicQuantizeLinear."""
    helpers = (reductions.RULE.name, dynamic_quantize_linear.RULE.name)
    return sorted(each.operator for each in report.rewritten if each.operator and each.rule not in helpers)


def products(report: Report) -> list[str]:
    """Returns the integer products that nodes became; one with a program over its result counts as the product."""
    return [product for operator in found(report) if (product := product_of(operator))]


def check(
    model: onnx.ModelProto, *data: dict[str, Array], stock_data: tuple[dict[str, Array], ...] = (), exact: bool = True
) -> Report:
    """Rewrites a model and compares all outputs bit for bit; on `stock_data` only without the plugin."""
    before = model.SerializeToString()
    result = rewrite(model, exact=exact)
    assert model.SerializeToString() == before
    if not result.report.rewritten:
        assert operators(result.to_proto()) == {}
        return result.report
    converted = result.to_proto()
    names = [[output.name for output in m.graph.output] for m in (model, converted)]
    assert names[0] == names[1]
    original, stock, native = stock_session(model), stock_session(converted), make_session(converted, "native")
    for i, inputs in enumerate((*data, *stock_data)):
        expected = original.run(None, inputs)
        assert i > 0 or is_valid(converted, expected) or not is_valid(model, expected)
        for session in (stock, native) if any(inputs is given for given in data) else (stock,):
            for actual, wanted in zip(session.run(None, inputs), expected, strict=True):
                assert_same(with_one_nan(actual), with_one_nan(wanted))
    return result.report


def check_products(model: onnx.ModelProto, inputs: dict[str, Array]) -> Report:
    """Verifies the integer products of a rewrite that is not exact, if there are any; returns its report."""
    rewritten_model = rewrite(model)
    converted = rewritten_model.to_proto()
    if any(ACTIVATION in (entry.key for entry in node.metadata_props) for node in nodes_of(converted.graph)):
        result = ort_dynq.verify(model, converted, inputs=inputs)
        assert result.passed, result
    return rewritten_model.report


def check_verification(name: str, exact: bool = False) -> None:
    """Verifies the rewrite of a model of models/ on its data, and that every integer product was compared."""
    result, content = rewritten(name, exact)
    for inputs, _ in data_sets(name):
        taken = with_branches_taken(result.model, inputs).graph
        products_there = sum(ACTIVATION in node.metadata_props for node in taken.all_nodes())
        verification = ort_dynq.verify(load(name), content, inputs=inputs)
        assert verification.passed, verification
        assert len(verification.products) + verification.unreachable == products_there


def verified_product(original: onnx.ModelProto, model: onnx.ModelProto, inputs: dict[str, Array]) -> Product:
    """Verifies a rewrite of a model with one product, which the verdict is of."""
    found = ort_dynq.verify(original, model, inputs=inputs)
    assert not found.failure
    (product,) = found.products
    assert found.passed == (not product.problem)
    return product


def check_tight(product: Product, *, b_error: float, noise: float) -> None:
    """Checks that the bounds of a correct product are not far from what happens, and that B has less noise than A.

    Args:
        product: The product.
        b_error: The least of B's error / its bound.
        noise: The most that A may have, in decibels.
    """
    assert b_error < product.b_error <= product.allowed == 1
    assert 0.01 < product.a_error <= 1
    assert product.a_noise is not None
    assert product.b_noise is not None
    assert product.b_noise < product.a_noise < noise


def is_valid(model: onnx.ModelProto, results: list[Any]) -> bool:
    """Returns whether the checker accepts a model. It demands outputs with a rank, which the results provide."""
    shaped = onnx.ModelProto()
    shaped.CopyFrom(model)
    for output, result in zip(shaped.graph.output, results, strict=True):
        if not output.type.tensor_type.HasField("shape"):
            dims = [None] * np.asarray(result).ndim
            output.CopyFrom(helper.make_tensor_value_info(output.name, output.type.tensor_type.elem_type, dims))
    try:
        onnx.checker.check_model(shaped, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True
