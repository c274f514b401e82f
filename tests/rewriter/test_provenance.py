"""Verification finds wrong results of products that note roundings to float16."""

from __future__ import annotations

import numpy as np
import pytest
from float16_models import model_of, rows
from helpers import with_arrays
from onnx import ModelProto, numpy_helper
from rewriting import parse
from rounded_models import (
    CODES,
    CONVOLUTIONS,
    DEPTH,
    FORMS,
    SCALES,
    SYMMETRIC,
    VERSION,
    convolution,
    rounded_activation,
)

from ort_dynq.operators import OPERATORS
from ort_dynq.operators.packing import pack
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.metadata import ROUNDED_ACTIVATION, ROUNDED_WEIGHTS
from ort_dynq.verification import verify


def test_verification_finds_other_weights() -> None:
    """A code that differs by one, and a scale that gives other weights."""
    proto = rewrite(FORMS["MatMul"]).to_proto()
    (node,) = [node for node in proto.graph.node if node.op_type == "QuantizedMatMul"]
    assert {entry.key: entry.value for entry in node.metadata_props}[ROUNDED_WEIGHTS] == "1"
    tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
    codes = CODES.astype(np.int8)
    codes[100, 9] += 1
    changes = {node.input[3]: pack(codes), node.input[5]: (SCALES * np.float32(1.001))[None]}
    for name, values in changes.items():
        before = tensors[name].SerializeToString()
        tensors[name].CopyFrom(numpy_helper.from_array(values, name))
        found = verify(FORMS["MatMul"], proto, inputs={"x": rows()[14:]})
        assert [product.problem for product in found.products] == ["B's weights, rounded to float16, are not A's"]
        tensors[name].ParseFromString(before)
    assert verify(FORMS["MatMul"], proto, inputs={"x": rows()[14:]}).passed


@pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
@pytest.mark.parametrize("position", [0, 1, 2], ids=["codes", "scale", "zero point"])
def test_verification_finds_another_activation(position: int) -> None:
    """Verification also reads codes, scales and zero points that are constants in B."""
    model = rounded_activation()
    proto = rewrite(model).to_proto()
    nodes = [node for node in proto.graph.node if node.op_type == "QuantizedMatMul"]
    assert all({entry.key: entry.value for entry in node.metadata_props}[ROUNDED_ACTIVATION] == "1" for node in nodes)
    other = (np.full((100, DEPTH), 7, np.uint8), np.array(0.0125, np.float32), np.array(3, np.uint8))[position]
    proto.graph.initializer.append(numpy_helper.from_array(other, "other"))
    nodes[1].input[position] = "other"
    x = np.random.default_rng(6).normal(1, 3, (100, DEPTH)).astype(np.float16)
    problems = [product.problem for product in verify(model, proto, inputs={"x": x}).products]
    assert sorted(problems) == ["", "", "B's activation, rounded to float16, is not A's"]


@pytest.mark.skipif(VERSION < (1, 30), reason="ONNX Runtime before 1.30 truncates quotients of float16")
def test_verification_finds_other_weights_of_a_convolution() -> None:
    model = convolution(CONVOLUTIONS["bias"])
    x = np.random.default_rng(6).normal(1, 3, (2, 6, 20, 21)).astype(np.float16)
    content = rewrite(model).to_proto().SerializeToString()
    for position, factor in ((3, 1), (5, 1.01)):
        proto = ModelProto.FromString(content)
        (node,) = [node for node in proto.graph.node if node.op_type == "QuantizedConv"]
        keys = {entry.key for entry in node.metadata_props}
        assert {ROUNDED_ACTIVATION, ROUNDED_WEIGHTS} <= keys
        (weight,) = [each for each in proto.graph.initializer if each.name == node.input[position]]
        array = numpy_helper.to_array(weight).copy()
        array.reshape(-1)[0] = array.reshape(-1)[0] * factor - (position == 3)
        weight.CopyFrom(numpy_helper.from_array(array, weight.name))
        problems = [product.problem for product in verify(model, proto, inputs={"x": x}).products]
        assert problems == ["B's weights, rounded to float16, are not A's"]


@pytest.mark.parametrize(
    "equation", ["td,edf->tef", "td,edf->etf", "bti,iho->btho", "bthi,hio->bto", "iho,bti->btho", "...i,ihj->...hj"]
)
def test_weights_of_einsums(equation: str) -> None:
    """Their axes are in another order in B; verification finds a code that differs."""
    rng, lengths = np.random.default_rng(6), {"d": 32, "i": 32, "h": 3, "e": 5}
    factors, _, result = equation.partition("->")
    terms = sorted(factors.split(","), key=lambda term: "t" not in term and "." not in term)
    shapes = [[lengths.get(label, 8) for label in term.replace("...", "b")] for term in terms]
    varies = [label in result for label in terms[1]]
    codes = rng.integers(-126, 127, shapes[1])
    codes[tuple(slice(None) if each else 0 for each in varies)] = 127
    scales = rng.uniform(0.001, 0.02, [n if each else 1 for n, each in zip(shapes[1], varies, strict=True)])
    names = "d, weights" if factors.startswith(terms[0]) else "weights, d"
    quantization = SYMMETRIC.replace("s = Div(m, limit)", "k = Max(m, eps) s = Div(k, limit)")
    body = f'{quantization} y = Einsum<equation = "{equation}">({names})'
    model = ModelProto.FromString(model_of(body, before=f"float16{shapes[0]} x", outputs="float16[] y"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model = with_arrays(model, {"weights": (codes * scales.astype(np.float32).astype(np.float64)).astype(np.float16)})
    proto = rewrite(model).to_proto()
    inputs = {"x": rng.normal(1, 3, shapes[0]).astype(np.float16)}
    assert [each.problem for each in verify(model, proto, inputs=inputs).products] == [""]
    (node,) = [node for node in proto.graph.node if node.op_type == "QuantizedMatMul"]
    (weight,) = [each for each in proto.graph.initializer if each.name == node.input[3]]
    array = numpy_helper.to_array(weight).copy()
    array.flat[0] -= 1
    weight.CopyFrom(numpy_helper.from_array(array, weight.name))
    found = verify(model, proto, inputs=inputs)
    assert [each.problem for each in found.products] == ["B's weights, rounded to float16, are not A's"]


@pytest.mark.parametrize("equation", ["bti,iho->btho", "bhti,hio->bhto"])
def test_verification_finds_another_scale_of_an_einsum(equation: str) -> None:
    """One unit in the last place is far below the bound of the product's error."""
    rng, lengths = np.random.default_rng(6), {"b": 2, "t": 5, "h": 3, "i": 32, "o": 40}
    x_shape, shape = ([lengths[label] for label in term] for term in equation.partition("->")[0].split(","))
    body = f"""q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) w = DequantizeLinear(codes, ws)
        y = Einsum<equation = "{equation}">(d, w)"""
    arrays = {"codes": rng.integers(-126, 127, shape).astype(np.int8), "ws": np.float32(0.0123)}
    model = with_arrays(parse(body, inputs=f"float{x_shape} x", outputs="float[] y"), arrays)
    proto, inputs = rewrite(model).to_proto(), {"x": rng.normal(1, 3, x_shape).astype(np.float32)}
    assert [each.problem for each in verify(model, proto, inputs=inputs).products] == [""]
    (node,) = [node for node in proto.graph.node if "QuantizedMatMul" in node.op_type]
    names = [each.name for each in OPERATORS[node.op_type].inputs]
    scale = node.input[names.index("column_scale")]
    (tensor,) = [each for each in proto.graph.initializer if each.name == scale]
    array = numpy_helper.to_array(tensor).copy()
    array.flat[-1] = np.nextafter(array.flat[-1], np.float32(1))
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    assert [each.problem for each in verify(model, proto, inputs=inputs).products] == ["its weights are not A's"]
