"""The functions of a rewritten model have what its nodes run: no branches for other attributes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import onnx
import onnx.parser
import pytest
from cases.quantized_matmul import matmul_inputs
from functions import attributes_text
from helpers import stock_session

import ort_dynq
from ort_dynq import kernels
from ort_dynq.rewriter.functions import make_function
from ort_dynq.rewriter.specialization import specialized

OPERATOR = "QuantizedMatMul"
CALLS: list[dict[str, str | int]] = [
    {"bits": 8, "group_size": 0, "terms": 1, "scale_order": 1},
    {"bits": 8, "group_size": 0, "terms": 1, "scale_order": 2},
    {"bits": 4, "group_size": 32, "terms": 1, "scale_order": 2},
]


def branches(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    """The conditions of all Ifs, and the counts of all Loops."""
    found = [node.input[0] for node in nodes if node.op_type in ("If", "Loop")]
    return found + [name for node in nodes for attribute in node.attribute for name in branches(attribute.g.node)]


def model_of(calls: list[dict[str, str | int]]) -> onnx.ModelProto:
    """A model with one product for each call, and without its function."""
    types = ("uint8", "float", "uint8", "int8", "int8", "float", "int32", "float")
    inputs = [f"{type_}[] x{i}_{k}" for i in range(len(calls)) for k, type_ in enumerate(types)]
    nodes = [
        f"y{i} = ort_dynq.{OPERATOR} {attributes_text(OPERATOR, call)}({', '.join(f'x{i}_{k}' for k in range(8))})"
        for i, call in enumerate(calls)
    ]
    outputs = ", ".join(f"float[] y{i}" for i in range(len(calls)))
    text = f'<ir_version: 10, opset_import: ["" : 21, "ort_dynq" : 1]> g ({", ".join(inputs)}) => ({outputs}) '
    return onnx.parser.parse_model(text + "{" + "\n".join(nodes) + "}")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_one_function_serves_all_calls(count: int) -> None:
    """A rewrite makes it, also if the model has a function for another call."""
    model = model_of(CALLS[:count])
    model.functions.append(make_function(OPERATOR, 21, calls=[{"bits": 8, "group_size": 0, "terms": 2}]))
    model = ort_dynq.rewrite(model).to_proto()
    (function,) = model.functions
    conditions = branches(function.node)
    assert len(conditions) == {1: 0, 2: 2, 3: 9}[count] < len(branches(make_function(OPERATOR, 21).node))
    rng = np.random.default_rng(count)
    feeds, expected = {}, []
    for i, call in enumerate(CALLS[:count]):
        inputs, _ = matmul_inputs(rng, (5, 64), 20, bits=call["bits"], group_size=call["group_size"])
        feeds |= {f"x{i}_{k}": array for k, array in enumerate(inputs)}
        expected += kernels.run(OPERATOR, inputs, **call)
    for found, wanted in zip(stock_session(model).run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


TEXT = """<domain: "d", opset_import: ["" : 21]> f <n, m> (x, y) => (z) {
    n = Constant<value_int: int = @n>()
    m = Constant<value_int: int = @m>()
    zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>()
    has_n = Greater(n, zero)
    is_one = Equal(m, one)
    both = And(has_n, is_one)
    lowest = ReduceMin<keepdims = 0>(x)
    is_low = Less(lowest, lowest)
    never = And(is_low, both)
    a = If(has_n) <
        then_branch = t () => (float[] at) { double = Add(x, x) at = Identity(double) },
        else_branch = e () => (float[] ae) { ae = Identity(x) }
    >
    b = If(never) <
        then_branch = u () => (float[] bt) { bt = Neg(a) },
        else_branch = v () => (float[] be) {
            be = If(is_one) <
                then_branch = w () => (float[] bet) { bet = Abs(a) },
                else_branch = k () => (float[] bee) { bee = Identity(y) }
            >
        }
    >
    z = Loop(m, has_n, b) <
        body = l (int64 i, bool c, float[] s) => (bool d, float[] r) { d = Identity(c) r = Mul(s, b) }
    >
}"""


LOW = ["ReduceMin", "Less", "And"]


@pytest.mark.parametrize(
    ("calls", "operators"),
    [
        ([{"n": 2, "m": 1}], ["Constant", *LOW, "Add", "If", "Mul", "Identity"]),
        ([{"n": 0, "m": 1}], ["Constant", "Constant", "Abs", "Loop"]),
        ([{"n": 0, "m": 1}, {"n": 0, "m": 2}], ["Constant", "Constant", "Constant", "Equal", "If", "Loop"]),
        ([{"n": 3}], [*["Constant"] * 3, "Equal", "And", *LOW, "Add", "If", "Loop"]),
    ],
)
def test_what_is_known_is_computed(calls: list[dict[str, int]], operators: list[str]) -> None:
    """A branch stays one where the condition is not known, or not the same for all calls."""
    function = specialized(onnx.parser.parse_function(TEXT), calls)
    assert [node.op_type for node in function.node] == operators


def test_every_input_is_read() -> None:
    """Otherwise ONNX Runtime refuses types of inputs that a function does not read."""
    text = """<domain: "d", opset_import: ["" : 21]> f (x, y, w) => (z) {
        u = Cast<to = 1>(y)
        v = Add(u, w)
        z = Identity(x)
    }"""
    assert [node.op_type for node in specialized(onnx.parser.parse_function(text), [{}]).node] == [
        "Cast",
        "Add",
        "Identity",
    ]
