"""RowProgram and products with programs: threads, long rows, many programs in one model, texts, zeros of reductions.

test_functions.py has every step and every form of operands, test_program_errors.py wrong programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from cases import Case
from cases.quantized_conv import CUT, conv_inputs, output_shape
from cases.quantized_matmul import TASKS, matmul_inputs
from cases.row_program import (
    CASTS_4_BITS,
    CHAINS,
    FINITE,
    STEPS,
    TAILS,
    finite_numbers,
    operands,
    random_program,
    with_tail,
)
from functions import Attributes, attributes_text, complete, is_other_on_arm, make_model, programs_of, run_function
from helpers import IS_ARM, Array, Shape, assert_same, make_session, parse, stock_session, with_one_nan
from test_functions import check

from ort_dynq import kernels
from ort_dynq.operators.program import Program
from ort_dynq.operators.program import parse as parse_program
from ort_dynq.rewriter.functions import make_function

OPSET = 21
CODES: dict[int, Any] = {2: np.uint8, 3: np.int8, 21: ml_dtypes.uint4, 22: ml_dtypes.int4}
UNUSED = [np.ones(1, np.float32)] * 4


def only_assigned(model: onnx.ModelProto, program: Program, expected: Sequence[Array]) -> list[Array]:
    """Removes the outputs that a program does not assign, which kernels do not make; returns the others' results."""
    names = [output.name for output in model.graph.output]
    left_out = {*names} - program.outputs.keys()
    for output in [each for each in model.graph.output if each.name in left_out]:
        model.graph.output.remove(output)
    for node in [each for each in model.graph.node if each.op_type == "Cast" and left_out.issuperset(each.output)]:
        model.graph.node.remove(node)
    return [array for name, array in zip(names, expected, strict=True) if name not in left_out]


def check_threads(operator: str, case: Case) -> None:
    """Compares sessions with the plugin, of one thread and of several, with the function in stock ONNX Runtime."""
    given: Attributes = complete(operator, case.attributes)
    if IS_ARM and is_other_on_arm(given):
        expected = kernels.run(operator, case.inputs, **given)
    else:
        expected = run_function(operator, case.inputs, OPSET, **given)
    types = [str(array.dtype) for array in case.inputs]
    model = make_model(operator, OPSET, types, attributes_text(operator, given), programs_of(operator, given))
    results = only_assigned(model, parse_program(str(given["program"])), expected)
    names = [value.name for value in model.graph.input]
    feeds = {
        name: array.astype(np.float32) if array.dtype in CODES.values() and array.dtype.kind == "V" else array
        for name, array in zip(names, case.inputs, strict=True)
    }
    for threads in (1, 3):
        actual = make_session(model, "native", threads=threads).run(None, feeds)
        for one, other in zip(actual, results, strict=True):
            assert_same(with_one_nan(one), with_one_nan(other.astype(one.dtype)))


# Threads share rows, or the parts of long rows.
ROWS: list[tuple[Shape, int]] = [
    ((700, 300), -1),
    ((3, 5, 9001), -1),
    ((9, 20000), 1),
    ((2, 3, 40000), 1),
    ((3, 140000), -1),
    ((1, 131073), -1),
    ((150002,), 0),
]


@pytest.mark.parametrize(("shape", "axis"), ROWS)
def test_threads_change_no_rows(isa: str, shape: Shape, axis: int) -> None:
    rng = np.random.default_rng(len(shape))
    first = axis % len(shape)
    texts = (*CHAINS, *FINITE, STEPS["Mul"], STEPS["Where"])
    for i, text in enumerate(texts[ROWS.index((shape, axis)) % 3 :: 3]):
        code_type = [2, 3, 21, 22][i % (4 if CASTS_4_BITS else 2)]
        src = finite_numbers(rng, shape).astype([np.float32, np.float16][i % 2])
        inputs = [src, np.zeros((), CODES[code_type]), *operands(rng, text, shape, first, is_finite=True)]
        check_threads("RowProgram", Case({"program": text, "axis": axis, "code_type": code_type}, inputs))


@pytest.mark.skipif(not CASTS_4_BITS, reason="ONNX Runtime before 1.23 has no Cast of 4 bits")
@pytest.mark.parametrize("shape", [(1, 1), (7, 1), (5, 33), (17, 2), (4, 8191), (5, 9000), (4, 20000), (3, 140000)])
def test_zero_points_of_4_bits_share_bytes(isas: Sequence[str], shape: Shape) -> None:
    """Also those of rows that are so long that they are taken one by one."""
    src = finite_numbers(np.random.default_rng(0), shape) + 3 * np.arange(shape[0], dtype=np.float32)[:, None]
    for code_type, least in ((21, 0), (22, -8)):
        zero_point = f"zero_point = Add(Sub(r, {float(np.min(src.max(1)))}), {least}.0)"
        text = f"r = ReduceMax(x); codes = Div(Mul(x, 7.0), r); {zero_point}; scale = r"
        inputs = [src, np.zeros((), CODES[code_type]), *UNUSED]
        results = check("RowProgram", OPSET, Case({"program": text, "code_type": code_type}, inputs), isas)
        assert len(np.unique(results[1].astype(np.int32))) >= min(3, len(src))


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
def test_a_zero_of_a_reduction_is_the_first_one(isas: Sequence[str], kind: str) -> None:
    """ONNX Runtime returns that of one of its lanes, which differ between CPUs."""
    rng = np.random.default_rng(0)
    below = np.float32(-1 if kind == "ReduceMax" else 1)
    for length in (1, 2, 5, 16, 33, 64, 130, 300, 1000, 140000):
        src = np.full((40 if length < 1000 else 3, length), below)
        for row in src:
            places = rng.choice(length, min(length, int(rng.integers(1, 6))), replace=False)
            row[places] = rng.choice(np.float32([0.0, -0.0]), len(places))
        first = np.argmax(src == 0, axis=1)
        expected = np.take_along_axis(src, first[:, None], 1)
        for isa in isas:
            with kernels.use_isa(isa):
                for text in (f"number = {kind}(x)", f"a = Neg(x); b = {kind}(Neg(a)); number = b; scale = {kind}(a)"):
                    number = kernels.run("RowProgram", [src, np.uint8(0), *UNUSED], program=text)[5]
                    assert_same(number, expected)


@pytest.mark.parametrize(("rows", "columns", "depth"), [*TASKS, (1000, 16, 16), (128, 384, 768)])
def test_threads_change_no_products(product_isa: str, rows: int, columns: int, depth: int) -> None:
    rng = np.random.default_rng(rows)
    for i, (bits, group_size) in enumerate(((8, 0), (8, 16), (4, 0), (4, 16))):
        given: dict[str, Any] = {"bits": bits, "group_size": group_size}
        inputs, _ = matmul_inputs(rng, (rows, depth), columns, zero_points="all", **given)
        case = Case(given | {"scale_order": 2}, inputs)
        tail = TAILS[(rows + i) % len(TAILS)]
        check_threads("QuantizedMatMulProgram", with_tail(rng, "QuantizedMatMul", case, tail))


@pytest.mark.parametrize(("shape", "outputs", "kernel", "group"), CUT)
def test_threads_change_no_convolutions(
    product_isa: str, shape: Shape, outputs: int, kernel: Shape, group: int
) -> None:
    rng = np.random.default_rng(outputs)
    for i in range(4):
        given: dict[str, Any] = {"strides": (1 + i % 2,) * len(kernel), "quad_axis": i // 2, "zero_points": "all"}
        given["of_samples"] = (i == 1, i == 1)
        inputs, _, attributes = conv_inputs(rng, shape, outputs, kernel, group=group, **given)
        tail = TAILS[(outputs + i) % len(TAILS)]
        check_threads("QuantizedConvProgram", with_tail(rng, "QuantizedConv", Case({**attributes}, inputs), tail))


def test_shapes_of_convolutions() -> None:
    """The operands of these tests have the shape of the result."""
    rng = np.random.default_rng(0)
    for auto_pad in range(3):
        given: dict[str, Any] = {"strides": (2, 3), "dilations": (1, 2), "pads": (1, 0, 0, 2)}
        inputs, _, attributes = conv_inputs(rng, (2, 3, 9, 17), 4, (3, 2), **given)
        result = kernels.run("QuantizedConv", inputs, **attributes, auto_pad=auto_pad)[0]
        assert result.shape == output_shape((2, 3, 9, 17), 4, inputs[8], auto_pad)


# A model has one function for all of its programs.


def many_programs(count: int) -> list[str]:
    numbers = np.random.default_rng(count).integers(-99, 99, (count, 2)) / 4
    return [f"dst = Add(Mul(x, {a}), {b}); number = {i}.5" for i, (a, b) in enumerate(numbers)]


@pytest.mark.parametrize("count", [1, 2, 3, 7, pytest.param(24, marks=pytest.mark.exhaustive)])
def test_a_function_has_a_branch_for_each_program(count: int) -> None:
    """Each node runs its own program, with the plugin and without it.

    Without it, ONNX Runtime inlines the whole function for each node: with 64 programs, it takes a minute.
    """
    texts = many_programs(count)
    nodes = "\n".join(
        f'c{i}, z{i}, d{i}, e{i}, s{i}, n{i} = ort_dynq.RowProgram<program = "{text}", branch = {i}, axis = -1, '
        f"block_size = 0, code_type = 2>(x, like, one, one, one, one)"
        for i, text in enumerate(texts)
    )
    outputs = ", ".join(f"float[] d{i}, float[] n{i}" for i in range(count))
    model = parse("float[a, b] x, uint8 like, float[1] one", outputs, nodes, opset=OPSET)
    model.functions.append(make_function("RowProgram", OPSET, texts))
    feeds = {"x": finite_numbers(np.random.default_rng(1), (3, 5)), "like": np.array(0, np.uint8), "one": UNUSED[0]}
    expected = stock_session(model).run(None, feeds)
    for i in range(count):
        assert_same(expected[2 * i + 1], np.full((3, 1), i + 0.5, np.float32))
    for optimize in (False, True):
        for one, other in zip(make_session(model, "native", optimize=optimize).run(None, feeds), expected, strict=True):
            assert_same(one, other)
        for one, other in zip(stock_session(model, optimize=optimize).run(None, feeds), expected, strict=True):
            assert_same(one, other)


def test_both_parsers_read_the_text_of_a_program() -> None:
    """Python writes the function, and C++ the steps."""
    rng = np.random.default_rng(0)
    for steps in (1, 5, 20, 60):
        text = str(random_program(rng, steps))
        assert str(parse_program(text)) == text
        x = finite_numbers(rng, (2, 3))
        inputs = [x, np.uint8(0), *operands(rng, text, (2, 3), 1)]
        expected = kernels.run("RowProgram", inputs, program=text)
        for other in (text.replace("; ", " ;  "), f"{text} ; ", text.replace("(", " ( ").replace(",", " ,")):
            assert str(parse_program(other)) == text
            for one, right in zip(kernels.run("RowProgram", inputs, program=other), expected, strict=True):
                assert_same(one, right)


NUMBERS = [
    *(
        "1.5",
        "-1.5",
        ".5",
        "5.",
        "1e-05",
        "1E+05",
        "-2.5e3",
        "0.1",
        "16777217",
        "1e-46",
        "7e-46",
        "-0.0",
        "inf",
        "-inf",
    ),
    *("3.4028234663852886e+38", "1.1754943508222875e-38", "0.30000001192092896", "1.00000005960464478"),
]


@pytest.mark.parametrize("text", NUMBERS)
def test_numbers_are_read_as_in_python(text: str) -> None:
    number = kernels.run("RowProgram", [np.zeros((1, 1), np.float32), np.uint8(0), *UNUSED], program=f"scale = {text}")
    assert_same(number[4], np.array([[np.float32(float(text))]]))
    assert math.isclose(float(parse_program(f"scale = {text}").outputs["scale"]), float(number[4][0, 0]), rel_tol=0)


def test_the_output_types_are_inferred() -> None:
    """A model with symbolic shapes runs, and its outputs have the types of src and like."""
    for src, code in (("float", "uint8"), ("float16", "int8")):
        body = f"""like = Constant<value = {code} {{0}}>() one = Constant<value_float = 1.0>()
            c, z, d, e, s, n = ort_dynq.RowProgram<program = "codes = x; zero_point = ReduceMax(x); dst = x; scale = 2",
            branch = 0, axis = -1, block_size = 0, code_type = {3 if code == "int8" else 2}>
            (x, like, one, one, one, one)"""
        model = parse(f"{src}[a, b] x", f"{code}[a, b] c, {code}[a, 1] z, {src}[a, b] d, float[a, 1] s", body)
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        x = np.array([[1, 2.5], [3, -4]], {"float": np.float32, "float16": np.float16}[src])
        results = make_session(onnx.ModelProto.FromString(model.SerializeToString()), "native").run(None, {"x": x})
        dtype = np.dtype(code)
        low = 0 if code == "uint8" else -4
        for result, right in zip(
            results,
            [np.array([[1, 2], [3, low]], dtype), np.array([[2], [3]], dtype), x, np.full((2, 1), 2, np.float32)],
            strict=True,
        ):
            assert_same(result, right)


def test_an_output_that_is_not_assigned_is_not_made() -> None:
    nodes = """like = Constant<value = uint8 {0}>() one = Constant<value_float = 1.0>()
        c, z, d, e, s, n = ort_dynq.RowProgram
        <program = "dst = Abs(x)", branch = 0, axis = -1, block_size = 0, code_type = 2>(x, like, one, one, one, one)"""
    feeds = {"x": np.ones((2, 3), np.float32)}
    result, scale = make_session(parse("float[a, b] x", "float[a, b] d, float[] s", nodes), "native").run(None, feeds)
    assert_same(result, feeds["x"])
    assert scale is None
    session = make_session(parse("float[a, b] x", "float[] y", f"{nodes} y = Identity(s)"), "native")
    with pytest.raises(Exception, match="Identity"):
        session.run(None, feeds)
