"""The text of programs, and thousands of random ones: their kernels equal their function bodies.

The bodies run in stock ONNX Runtime, many in one session. The data are dense in NaN, infinities, zeros of both signs,
denormals and ties. Two results of ONNX Runtime depend on the place in a tensor, so no program has them: a reduction of
NaN, and the sign of Max and Min of two zeros.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cases.row_program import random_program
from helpers import SPECIALS, Array, Shape, assert_same, every, explained, stock_session, with_one_nan

from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS, VERSION
from ort_dynq.operators.program import OPERANDS, OUTPUTS, Program, parse
from ort_dynq.rewriter.functions import make_function

SPEC = OPERATORS["RowProgram"]
OPSETS = (13, 17, 18, 21, 25)
CODES = {2: np.uint8, 3: np.int8, 21: ml_dtypes.uint4, 22: ml_dtypes.int4}


@dataclass
class Case:
    """A program, its attributes and its inputs in the order of the operator."""

    program: Program
    axis: int
    code_type: int
    inputs: list[Array]
    block_size: int = 0

    @functools.cached_property
    def text(self) -> str:
        return str(self.program)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that kernels read."""
        return {"program": self.text, "axis": self.axis, "block_size": self.block_size, "code_type": self.code_type}


def data(rng: np.random.Generator, shape: Shape) -> Array:
    """Ties, numbers of all magnitudes, and in half of the tensors special numbers."""
    size = int(np.prod(shape))
    step = 2.0 ** rng.integers(-6, 6)
    kinds = [
        (rng.integers(-300, 300, size) + rng.choice([0.0, 0.5], size)) * step,
        rng.normal(0, 10, size),
        rng.normal(0, 1, size) * 10.0 ** rng.integers(-40, 38, size),
    ]
    x = np.choose(rng.choice(3, size, p=[0.6, 0.3, 0.1]), kinds).astype(np.float32)
    special = rng.choice([0.0, 0.3])
    return np.where(rng.random(size) < special, rng.choice(SPECIALS, size), x).astype(np.float32).reshape(shape)


SHAPES: list[tuple[Shape, int]] = [
    ((3, 33), -1),
    ((2, 3, 17), -1),
    ((2, 3, 17), -2),
    ((2, 3, 17), 0),
    ((1, 129), 1),
    ((7, 1), -1),
    ((4, 2, 3, 5), 2),
    ((300, 3), -1),
    ((2, 1100), -1),
    ((0, 5), -1),
    ((5,), 0),
]


SIZES = (*range(1, 24), 40, 60)
"""The numbers of steps of random programs."""


def case(seed: int, *, float16: bool = False, four_bits: bool = False) -> Case:
    """Returns a random program with data."""
    rng = np.random.default_rng(seed)
    shape, axis = SHAPES[rng.integers(len(SHAPES))]
    lead, row = shape[: axis % len(shape)], shape[axis % len(shape) :]
    names, operands = ["x"], [np.zeros(1, np.float32)] * OPERANDS
    for i in range(OPERANDS):
        kind = rng.choice(["", "row", "column", "tensor"])
        if kind:
            names.append(f"{kind}{i + 1}")
            ones = [1] * len(row)
            operands[i] = data(
                rng,
                {
                    "row": [(*lead, *ones), (*[1] * len(lead), *ones), ()][rng.integers(3)],
                    "column": [row, (*[1] * len(lead), *row)][rng.integers(2)],
                    "tensor": shape,
                }[str(kind)],
            )
    code_type = int(rng.choice([21, 22] if four_bits else [2, 3]))
    src = data(rng, shape)
    with np.errstate(over="ignore"):
        src = src.astype(np.float16) if float16 else src
    return Case(
        random_program(rng, int(rng.choice(SIZES)), names),
        axis,
        code_type,
        [src, np.zeros((), CODES[code_type]), *operands],
    )


def function_of(texts: Sequence[str], opset: int, cases: Sequence[Case]) -> onnx.FunctionProto:
    """The function of programs for the attributes of cases, as in a rewritten model."""
    numbers = [{name: value for name, value in each.attributes.items() if name != "program"} for each in cases]
    return make_function("RowProgram", opset, texts, numbers)


def expected(cases: Sequence[Case], opset: int, *, together: bool = False) -> list[list[Array]]:
    """The outputs of function bodies in one session of stock ONNX Runtime: each case is a node with its own inputs.

    Args:
        cases: The cases.
        opset: The version of the standard operators.
        together: Whether all programs are branches of one function, as in a rewritten model. Then the session has a
            copy of all of them for each node. Otherwise each node has a function of its own.
    """
    graph, feeds = onnx.GraphProto(name="programs"), {}
    texts = list(dict.fromkeys(each.text for each in cases))
    functions = [function_of(texts, opset, cases)] if together else []
    for i, each in enumerate(cases):
        inputs, outputs = ([f"{value.name}_{i}" for value in values] for values in (SPEC.inputs, SPEC.outputs))
        for name, array in zip(inputs, each.inputs, strict=True):
            if array.dtype.isbuiltin == 1:
                type_ = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
                graph.input.append(onnx.helper.make_tensor_value_info(name, type_, None))
                feeds[name] = array
            else:  # Python cannot feed codes of 4 bits
                graph.initializer.append(ir.to_proto(ir.tensor(array, name=name)))
        branch = texts.index(each.text) if together else 0
        if not together:
            functions.append(function_of([each.text], opset, [each]))
            functions[-1].name = f"Program{i}"
        graph.node.append(
            onnx.helper.make_node(
                functions[-1].name, inputs, outputs, domain="ort_dynq", branch=branch, **each.attributes
            )
        )
        src = onnx.helper.np_dtype_to_tensor_dtype(each.inputs[0].dtype)
        for name, type_ in zip(outputs, (each.code_type, each.code_type, src, src, 1, 1), strict=True):
            result, known = (name, type_) if type_ < 21 else (f"{name}_wide", type_ - 19)  # uint8 or int8
            if result != name:
                graph.node.append(onnx.helper.make_node("Cast", [name], [result], to=known))
            graph.output.append(onnx.helper.make_tensor_value_info(result, known, None))
    model = onnx.ModelProto(ir_version=10 if opset >= 21 else 8, graph=graph)
    model.opset_import.extend([onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("ort_dynq", VERSION)])
    model.functions.extend(functions)
    results, count = stock_session(model).run(None, feeds), len(SPEC.outputs)
    return [results[i : i + count] for i in range(0, len(results), count)]


def cases_of(seeds: Iterable[int], opset: int) -> list[Case]:
    """A third of the cases is of float16, if the function can round to it."""
    return [case(seed, float16=opset >= 15 and seed % 3 == 0) for seed in seeds]


@pytest.mark.parametrize("opset", OPSETS)
def test_branches_of_one_function(opset: int) -> None:
    """All programs of a model are branches of one function: its outputs have their types and shapes."""
    cases = cases_of(range(1000 * opset, 1000 * opset + 4), opset)
    for each, results, alone in zip(cases, expected(cases, opset, together=True), expected(cases, opset), strict=True):
        src = each.inputs[0]
        lead = src.shape[: each.axis % src.ndim]
        numbers = (*lead, *[1] * (src.ndim - len(lead)))
        for (name, is_vector), result, other in zip(OUTPUTS.items(), results, alone, strict=True):
            is_assigned = name in each.program.outputs
            assert result.shape == ((src.shape if is_vector else numbers) if is_assigned else (0,)), each.program
            assert_same(with_one_nan(result), with_one_nan(other))


CHUNK = 30


@pytest.mark.parametrize(("opset", "first"), every(120, itertools.product(OPSETS, range(0, 120 * CHUNK, CHUNK))))
def test_kernels_equal_bodies(isas: Sequence[str], opset: int, first: int) -> None:
    compare(cases_of(range(first, first + CHUNK), opset), opset, isas)


def test_codes_of_4_bits(isas: Sequence[str]) -> None:
    compare([case(seed, four_bits=True) for seed in range(CHUNK)], 21, isas)


def compare(cases: Sequence[Case], opset: int, isas: Sequence[str]) -> None:
    """Compares the kernels of the instruction sets with the bodies."""
    for each, wanted in zip(cases, expected(cases, opset), strict=True):
        for isa in isas:
            with kernels.use_isa(isa):
                actual = kernels.run("RowProgram", each.inputs, **each.attributes)
            for name, one, other in zip(OUTPUTS, actual, wanted, strict=True):
                with explained(f"{name} on {isa}, axis {each.axis}, {each.text}"):
                    wide = one if one.dtype.isbuiltin == 1 else one.astype(other.dtype)
                    assert_same(with_one_nan(wide), with_one_nan(other), each.inputs[0])


# The text


def test_text_is_canonical() -> None:
    rng, names = np.random.default_rng(0), ["x", "row1", "column2", "tensor3"]
    for _ in range(150):
        program = random_program(rng, int(rng.choice(SIZES)), names)
        again = parse(str(program))
        assert str(again) == str(program)
        assert again.outputs.keys() == program.outputs.keys()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("dst=x", "dst = x"),
        ("a = Abs(x); b = Neg(a); codes = Add(b, a)", "r1 = Abs(x); codes = Add(Neg(r1), r1)"),
        ("dst = Add(Abs(x), Abs(x))", "r1 = Abs(x); dst = Add(r1, r1)"),
        ("unused = Abs(x); number = row2; scale = 1", "scale = 1.0; number = row2"),
        ("dst = Clip(x, -inf, 0.1)", "dst = Clip(x, -inf, 0.10000000149011612)"),
        ("dst = Add(x, 1e400);", "dst = Add(x, inf)"),
    ],
)
def test_text(text: str, canonical: str) -> None:
    assert str(parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no output is assigned, expected one of codes, zero_point, dst, dst_2, scale, number"),
        ("x", "x is not a statement, expected name = Operator(...)"),
        ("dst = y", "y has no value, expected x, row1, column1, tensor1, ... or an earlier name"),
        ("dst = tensor5", "tensor5 has no value"),
        ("dst = Exp(x)", "a program has no operator Exp, expected one of Abs, Neg, "),
        ("dst = Add(x)", "Add has 1 operands, expected 2"),
        ("dst = ReduceMax(row1)", "ReduceMax has one number for each row, expected a vector"),
        ("scale = x", "scale is a vector, expected a number"),
        ("codes = ReduceMax(x)", "codes is a number, expected a vector"),
        ("dst = x; dst = x", "dst is assigned twice"),
        ("a = x; a = x; dst = a", "a has a value already, expected another name"),
        ("x = 1; dst = x", "x has a value already, expected another name"),
        ("dst = x; codes = dst", "dst has no value"),
        ("dst = Clip(x, row1, 1)", "the bounds of Clip are computed, expected numbers"),
        ("dst = LeakyRelu(x, row1)", "the slope of LeakyRelu is computed, expected a number"),
        ("dst = Where(x, x, x)", "Where has a condition that is not a comparison, expected one of Equal, "),
        ("dst = x + x", "x + x is not an expression, expected a name, a number or Operator(...)"),
        ("dst = Abs(x, y=1)", "Abs(x, y=1) is not an expression"),
        ("dst = -True", "-True is not an expression"),
        ("dst = nan", "nan has no value"),
        ("dst = x\ncodes = x", "the text has characters that no program has"),
        ("dst = Abs(" * 2000, "the text has 20000 characters, expected at most 8192"),
        ("dst = " + "(" * 300 + "x" + ")" * 300, "too many nested parentheses, expected name = Operator(...); ..."),
        ("dst = " + "-" * 4000 + "1", "Operator(...)"),  # Python versions differ in where they stop
        ("dst = " + "Abs(" * 65 + "x" + ")" * 65, "a program has more than 64 steps"),
        ("dst = Add(x, " + "9" * 400 + ")", "a number is too large"),
    ],
)
def test_errors(text: str, message: str) -> None:
    with pytest.raises(DynqError) as raised:
        parse(text)
    assert str(raised.value).startswith("program: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
