"""Wrong programs and operands give errors that name the mistake. test_bounds.py has more shapes of operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases.quantized_conv import conv_inputs
from cases.quantized_matmul import matmul_inputs
from helpers import Array, Shape, assert_same, make_session, parse

from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS

# Programs. The number is that of the character at which the text was read to.

NESTED = "Abs(" * 65 + "x" + ")" * 65
MANY = "dst = x" + "".join(f"; a{i} = Abs(x)" for i in range(65))
PROGRAMS = (
    ("", 1, "a name"),
    ("   ", 4, "a name"),
    ("dst", 4, "'='"),
    ("dst = ", 7, "an expression"),
    ("dst = ;", 7, "an expression"),
    ("dst == x", 6, "an expression"),
    ("dst = y", 8, "a name that has a value instead of y"),
    ("dst = Abs", 10, "a name that has a value instead of Abs"),
    ("dst = Foo(x)", 11, "an operation instead of Foo"),
    ("dst = Abs(x", 12, "')'"),
    ("dst = Abs(x, x)", 12, "')'"),
    ("dst = Add(x)", 12, "','"),
    ("dst = Add(x, )", 14, "an expression"),
    ("dst = x x", 9, "';' or the end"),
    ("dst = x;; scale = 1.0", 9, "a name"),
    ("x = 1.0; dst = x", 2, "a name that has no value yet instead of x"),
    ("row1 = 1.0; dst = x", 5, "a name that has no value yet instead of row1"),
    ("dst = x; dst = x", 13, "a name that has no value yet instead of dst"),
    ("dst = Add(row1, column1)", 24, "one form of operand 1"),
    ("dst = 1.2.3", 12, "a number"),
    ("dst = 1e", 9, "a number"),
    ("dst = 1e999", 12, "a number"),
    ("dst = -x", 9, "a number after '-'"),
    ("a = x", 6, "an output: codes, zero_point, dst, dst_2, scale or number"),
    ("dst = 1.0", 10, "dst to be a number for each element"),
    ("codes = row1", 13, "codes to be a number for each element"),
    ("scale = x", 10, "scale to be a number for each row"),
    ("zero_point = column1", 21, "zero_point to be a number for each row"),
    ("number = ReduceMax(row1)", 25, "elements to reduce, not numbers of rows"),
    ("dst = Clip(x, row1, 1.0)", 25, "Clip with numbers after its first argument"),
    ("dst = LeakyRelu(x, row1)", 25, "LeakyRelu with numbers after its first argument"),
    ("dst = Where(x, x, x)", 21, "Where of a comparison"),
    ("dst = And(Less(x, 1.0), x)", 27, "And of a comparison"),
    ("dst = Not(x)", 13, "Not of a comparison"),
    ("dst = x\\", 8, "';' or the end"),
    ("dst = \x80", 7, "an expression"),
    (f"dst = {NESTED}", 7 + 4 * 65, "at most 64 nested expressions"),
    (MANY, len(MANY) + 1, "at most 64 operations"),
)


def run_program(operator: str, program: str, *shapes: Shape) -> list[Array]:
    """RowProgram on src of the first shape, or a product of the result 2x4, with operands of these shapes."""
    operands = [np.ones(shape, np.float32) for shape in shapes]
    if operator == "RowProgram":
        arrays = [np.ones((2, 4), np.float32), np.uint8(0)]
    elif operator == "QuantizedMatMulProgram":
        arrays = matmul_inputs(np.random.default_rng(0), (2, 4), 4)[0]
    else:
        arrays = conv_inputs(np.random.default_rng(0), (1, 2, 4), 2, (1,))[0]
    count = len(OPERATORS[operator].inputs) - len(arrays)
    operands += [np.ones(1, np.float32)] * (count - len(operands))
    return kernels.run(operator, [*map(np.asarray, arrays), *operands], program=program)


@pytest.mark.parametrize(("program", "at", "expected"), PROGRAMS, ids=lambda value: str(value)[:30])
@pytest.mark.parametrize("operator", ["RowProgram", "QuantizedMatMulProgram", "QuantizedConvProgram"])
def test_wrong_programs(operator: str, program: str, at: int, expected: str) -> None:
    with pytest.raises(DynqError) as caught:
        run_program(operator, program)
    assert str(caught.value) == f"{operator}: program, character {at}: expected {expected}"


@pytest.mark.parametrize("operator", ["QuantizedMatMulProgram", "QuantizedConvProgram"])
@pytest.mark.parametrize(
    ("program", "text"),
    [
        ("dst = Sub(x, ReduceMax(x))", "computes more than dst from each element, expected no reductions and no other"),
        ("dst = x; codes = x", "computes more than dst from each element"),
        ("dst_2 = x", "computes more than dst from each element"),
        ("scale = 1.0", "computes more than dst from each element"),
        ("dst = Add(x, row4)", "character 18: expected a name that has a value instead of row4"),
    ],
)
def test_programs_that_are_no_tails(operator: str, program: str, text: str) -> None:
    """RowProgram runs them."""
    with pytest.raises(DynqError, match=f"{operator}: program.* {text}"):
        run_program(operator, program)
    run_program("RowProgram", program)


def test_too_many_reductions() -> None:
    """The limit is for reductions that do not depend on each other: each pass over the elements has its own."""
    steps = "; ".join(f"r{i} = ReduceMax(Mul(x, {i}.0))" for i in range(5))
    with pytest.raises(DynqError) as caught:
        run_program("RowProgram", f"{steps}; number = Add(Add(Add(Add(r0, r1), r2), r3), r4)")
    assert str(caught.value) == (
        "RowProgram: program has 5 reductions that do not depend on each other, expected at most 4"
    )
    run_program("RowProgram", f"{steps}; number = Add(Add(Add(r0, r1), r2), r3)")  # the last one has no effect
    steps = "r0 = ReduceMax(x); " + "; ".join(f"r{i} = ReduceMax(Sub(x, r{i - 1}))" for i in range(1, 9))
    assert_same(run_program("RowProgram", f"{steps}; number = r8")[5], np.ones((2, 1), np.float32))


@pytest.mark.parametrize(
    ("operator", "shapes", "text"),
    [
        ("RowProgram", [(2,)], "operand_1 has shape 2, expected numbers of rows for src of shape 2x4"),
        ("RowProgram", [(2, 4)], "operand_1 has shape 2x4, expected numbers of rows for src of shape 2x4"),
        ("RowProgram", [(), (2,)], "operand_2 has shape 2, expected numbers of the elements of a row for src of shape"),
        ("RowProgram", [(), (1, 1, 4)], "operand_2 has shape 1x1x4, expected numbers of the elements of a row for src"),
        ("RowProgram", [(), (4,), (4,)], "operand_3 has shape 4, expected src's shape for src of shape 2x4"),
        ("QuantizedMatMulProgram", [(1, 4)], "operand_1 has shape 1x4, expected numbers of rows for src of shape 2x4"),
        (
            "QuantizedMatMulProgram",
            [(), (4,), (4, 2)],
            "operand_3 has shape 4x2, expected src's shape for src of",
        ),
        ("QuantizedConvProgram", [(2,)], "operand_1 has shape 2, expected numbers of rows for src of shape 1x2x4"),
        (
            "QuantizedConvProgram",
            [(), (2,)],
            "operand_2 has shape 2, expected numbers of the elements of a row for",
        ),
    ],
)
def test_wrong_operands_of_programs(operator: str, shapes: list[Shape], text: str) -> None:
    """test_bounds.py has more of them."""
    with pytest.raises(DynqError) as caught:
        run_program(operator, "dst = Add(Mul(x, row1), Add(column2, tensor3))", *shapes)
    assert f"{operator}: {text}" in str(caught.value)


@pytest.mark.parametrize(
    ("attributes", "like", "text"),
    [
        ({"code_type": 3}, np.uint8, "like is uint8, expected code_type, int8"),
        ({}, np.int8, "like is int8, expected code_type, uint8"),
        ({"axis": 2}, np.uint8, "axis is 2, expected -2 to 1 for src of shape 2x4"),
        ({"axis": -3}, np.uint8, "axis is -3, expected -2 to 1 for src of shape 2x4"),
        ({"code_type": 1}, np.uint8, "code_type is 1, expected 2 (uint8), 3 (int8), 21 (uint4) or 22 (int4)"),
        ({"program": 1}, np.uint8, "program is an integer, expected text"),
    ],
    ids=str,
)
def test_other_errors_of_row_program(attributes: dict[str, int], like: Any, text: str) -> None:
    arrays = [np.ones((2, 4), np.float32), np.zeros((), like), *[np.ones(1, np.float32)] * 4]
    with pytest.raises(DynqError) as caught:
        kernels.run("RowProgram", arrays, **attributes)
    assert text in str(caught.value)


@pytest.mark.parametrize("program", ["dst = Foo(x)", "dst = Add(x, row1"])
def test_a_session_names_the_mistake_of_a_program(program: str) -> None:
    """When it is opened."""
    body = f"""c, z, d, e, s, n = ort_dynq.RowProgram<program = "{program}">(x, like, one, one, one, one)"""
    model = parse("float[a, b] x, uint8 like, float[1] one", "float[a, b] d", body)
    with pytest.raises(Exception, match=r"RowProgram: program, character 1[18]: expected"):
        make_session(model, "native")
