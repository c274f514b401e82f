"""Calls of RowProgram, and programs with their operands for other operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
from functions import Attributes
from helpers import SPECIALS, Array, Shape, tie_dense

from ort_dynq import kernels
from ort_dynq.operators.program import ARITIES, COMPARISONS, OPERANDS, OUTPUTS, REDUCTIONS, SUM, Program, literal, parse

from .case import Case, Cases, Fit, Fitting
from .rows import BLOCKS, RANGES, range_rows

_LITERALS = [0.0, -0.0, 0.5, 1.0, -1.0, 2.0, 127.0, -128.0, 255.0, 6.0, 1e-5, 1e-45, 3.4028235e38, 1 / 3, 8388609.0]
_CHOSEN = ("Max", "Min")
"""Steps with either of two zeros as their result."""


def _programs_of_step(step: str) -> str:
    """A program with one kind of step on elements and on numbers, with operands of all forms, in both orders."""
    if step in ("And", "Or"):
        return (
            f"a = Less(x, row1); b = LessOrEqual(column2, x); dst = {step}(a, b); dst_2 = {step}(b, Greater(x, 0.5)); "
            f"number = {step}(Equal(row1, 0.0), GreaterOrEqual(row1, 1.0)); codes = {step}(a, a)"
        )
    if step == "Not":
        return "a = Less(x, row1); dst = Not(a); dst_2 = Not(Not(a)); number = Not(Less(row1, 0.0)); codes = Not(a)"
    if step == "Where":
        return (
            "dst = Where(Less(x, row1), tensor2, x); dst_2 = Where(Less(row1, 0.5), x, column3); "
            "number = Where(Equal(row1, row4), row4, 2.0); codes = Where(GreaterOrEqual(x, column3), -0.0, row1)"
        )
    if step == "Clip":
        return (
            "dst = Clip(x, 0.0, inf); dst_2 = Clip(tensor1, -1.5, 2.5); number = Clip(row2, -inf, 1e-05); "
            "codes = Clip(x, -128.0, 127.0); scale = Clip(row3, 5.0, -5.0)"
        )
    if step == "LeakyRelu":
        return "dst = LeakyRelu(x, 0.1); dst_2 = LeakyRelu(tensor1, -2.0); number = LeakyRelu(row2, 0.0)"
    if ARITIES[step] == 1:
        return f"a = {step}(x); dst = a; dst_2 = {step}(Mul(x, column1)); codes = a; number = {step}(row2)"
    return (
        f"dst = {step}(x, tensor1); dst_2 = {step}(row2, {step}(column3, x)); codes = {step}(x, row2); "
        f"number = {step}(row4, 1.5); scale = {step}(-2.0, row4); zero_point = {step}(row2, row4)"
    )


STEPS = {step: _programs_of_step(step) for step in ARITIES if step not in (*REDUCTIONS, SUM)} | {
    "Where of rows": "a = Less(row1, 0.5); dst = Where(a, x, row2); dst_2 = Where(a, row2, x); codes = Where(a, x, 7.0)"
}
"""A program for each step, except reductions."""

CHAINS = (
    "r = ReduceMax(Abs(x)); s = Clip(Div(r, 127.0), 1e-05, inf); q = Clip(Round(Div(x, s)), -128.0, 127.0); "
    "codes = q; dst = Mul(q, s); scale = s",
    "low = Clip(ReduceMin(x), -inf, 0.0); high = Clip(ReduceMax(x), 0.0, inf); "
    "s = Clip(Div(Sub(high, low), 255.0), 1e-08, inf); z = Clip(Round(Sub(0.0, Div(low, s))), 0.0, 255.0); "
    "codes = Clip(Add(Round(Div(x, s)), z), 0.0, 255.0); zero_point = z; scale = s; number = z",
    "s = Float16(Div(ReduceMax(Abs(x)), 7.0)); codes = Div(x, s); zero_point = ReduceMin(x); scale = s",
    "r = ReduceMax(Abs(x)); y = Clip(Div(x, r), -1.0, 1.0); q = Int8(Mul(y, 127.0)); codes = q; "
    "dst = Div(Mul(q, r), 127.0)",
    "d = Sub(x, Div(ReduceSum(x), 8.0)); v = Div(ReduceSum(Mul(d, d)), 8.0); "
    "y = Mul(d, Reciprocal(Sqrt(Add(v, 1e-05)))); s = Clip(Div(ReduceMax(Abs(y)), 127.0), 1e-05, inf); "
    "codes = Div(y, s); dst = y; dst_2 = d; scale = s; number = v",
    "s = Where(Equal(ReduceMax(x), ReduceMin(x)), 1.0, Sub(ReduceMax(x), ReduceMin(x))); dst = Div(x, s); scale = s",
)
"""Programs with reductions of x, as quantizations and normalizations have them."""

FINITE = (
    "r = ReduceMax(Abs(x)); y = Div(x, r); t = ReduceMax(Abs(Mul(y, column1))); u = ReduceMin(Sub(y, t)); "
    "dst = Mul(y, t); dst_2 = Add(Mul(u, x), y); codes = Mul(y, 127.0); scale = r; number = Add(t, u)",
    "a = ReduceMax(x); b = ReduceMin(x); c = ReduceMax(tensor1); d = ReduceMin(Mul(x, column2)); "
    "number = Add(Add(a, b), Sub(c, d)); scale = Mul(a, row3); dst = Sub(x, b); codes = Sub(Mul(x, c), d)",
    "number = ReduceMax(column1); dst = x; scale = 0.5; zero_point = 3.0; codes = column1",
    "a = Mul(x, x); b = Add(a, x); c = Sub(b, a); d = Div(c, Add(b, 1.0)); "
    "dst = Mul(Add(a, b), Sub(c, d)); dst_2 = Sub(Div(a, b), Div(b, a))",
    "dst = tensor1; dst_2 = Add(row2, column3)",
    "codes = Clip(x, -128.0, 127.0); dst = Sub(1.0, Clip(x, -128.0, 127.0))",
    "codes = Clip(x, 0.0, 255.0)",
    "dst = x",
)
"""Programs with reduced values that may be NaN if x is not finite, and others without a rule of their own."""

TAILS = (
    "dst = Clip(x, 0.0, inf)",
    "dst = Clip(x, 0.0, 6.0)",
    "dst = Clip(x, -inf, -0.0)",
    "dst = Clip(x, 5.0, -5.0)",
    "dst = LeakyRelu(x, 0.1)",
    "dst = Div(Mul(x, Clip(Add(x, 3.0), 0.0, 6.0)), 6.0)",
    "dst = Add(Mul(x, row1), row2)",
    "dst = Add(x, tensor1)",
    "dst = Clip(Add(tensor1, x), 0.0, inf)",
    "dst = Add(Mul(x, column1), column2)",
    "dst = Where(Less(x, 0.0), Mul(x, column2), x)",
    "dst = Sub(Mul(Add(tensor1, x), column2), row3)",
    "a = Add(x, tensor2); dst = Clip(Sub(Round(Mul(a, row1)), a), -1.0, 8.0)",
    "dst = x",
)
"""Programs of products."""


def has_free_zeros(program: str) -> bool:
    """Whether the sign of a zero may depend on ONNX Runtime's vector code."""
    return any(step.operator in (*_CHOSEN, *REDUCTIONS) for step in parse(program).steps)


def any_numbers(rng: np.random.Generator, shape: Shape, *, has_negative_zeros: bool = True) -> Array:
    """Mostly ties of rounding to integers and to float16, and special values."""
    ties = tie_dense(rng, np.full(shape, rng.choice([1, 0.5, 0.1])), np.zeros(shape), np.int8)
    exponents, bits = rng.integers(-24, 16, shape), 2 * rng.integers(0, 1024, shape) + 1
    halves = np.asarray((1 + bits / 2048.0) * 2.0**exponents * rng.choice([-1, 1], shape)).astype(np.float32)
    kind = rng.random(shape)
    result = np.where(kind < 0.5, ties, np.where(kind < 0.7, rng.choice(SPECIALS, shape), halves)).astype(np.float32)
    return result if has_negative_zeros else np.asarray(np.where(result == 0, np.float32(0), result))


def finite_numbers(rng: np.random.Generator, shape: Shape) -> Array:
    return np.asarray(rng.normal(0.1, 3, shape)).astype(np.float32)


def operands(
    rng: np.random.Generator, program: str, shape: Shape, axis: int, count: int = OPERANDS, *, is_finite: bool = False
) -> list[Array]:
    """The operands of a program, in the forms in which it reads them; one element if it does not.

    Args:
        rng: The source of random numbers.
        program: The program.
        shape: The shape of x.
        axis: The first dimension of a row, 0 or more.
        count: The number of operands.
        is_finite: Whether all numbers are ordinary.
    """
    uses, ones = parse(program).live(), (1,) * (len(shape) - axis)
    found = []
    for i in range(1, count + 1):
        size: Shape = [(), (1,)][rng.integers(2)]
        if uses[f"row{i}"]:
            repeated = int(rng.integers(axis + 1)) if rng.random() < 0.3 else 0
            size = (*(1,) * repeated, *shape[repeated:axis], *ones)
        elif uses[f"column{i}"]:
            size = (*(1,) * (axis * int(rng.integers(2))), *shape[axis:])
        elif uses[f"tensor{i}"]:
            size = shape
        if rng.random() < 0.3 and not uses[f"tensor{i}"]:  # leading ones may be missing
            size = size[next((k for k, length in enumerate(size) if length != 1), len(size)) :]
        make = finite_numbers if is_finite else any_numbers
        has_negative_zeros = is_finite or not has_free_zeros(program)
        found.append(make(rng, size) if has_negative_zeros else any_numbers(rng, size, has_negative_zeros=False))
    return found


class _Draw:
    """Draws a valid program, step by step."""

    def __init__(self, rng: np.random.Generator, inputs: Sequence[str]) -> None:
        self.rng, self.program = rng, Program()
        self.values = [*inputs]
        self.truths: list[str] = []

    def outputs(self) -> None:
        for output in self.rng.permutation([*OUTPUTS]):
            fitting = [each for each in self.values if self.program.is_vector(each) == OUTPUTS[output]]
            if fitting and self.rng.random() < 0.6:
                self.program.assign(str(output), fitting[-1 - int(self.rng.integers(min(4, len(fitting))))])
        if not self.program.outputs:
            self.program.assign("dst", next(each for each in self.values[::-1] if self.program.is_vector(each)))

    def value(self) -> str:
        """Returns an earlier value, the last ones most often, or a literal."""
        if self.rng.random() < 0.2:
            return literal(float(self.rng.choice(_LITERALS)))
        count = len(self.values)
        return self.values[count - 1 - int(min(self.rng.geometric(0.3) - 1, count - 1))]

    def step(self) -> None:
        add, operator = self.program.add, str(self.rng.choice([*ARITIES]))
        operands = [self.value() for _ in range(ARITIES[operator])]
        if operator in COMPARISONS:
            self.truths.append(add(operator, *operands))
            self.values.append(self.truths[-1])
            return
        if operator in ("And", "Or", "Not", "Where"):
            if not self.truths:
                return
            count = 1 if operator == "Where" else len(operands)
            operands[:count] = [str(self.rng.choice(self.truths)) for _ in range(count)]
        if operator == "Clip":
            bounds = self.rng.choice([-np.inf, -128.0, -1.0, 0.0, -0.0, 1e-5, 6.0, 127.0, np.inf], 2)
            operands[1:] = map(literal, sorted(map(float, bounds)))
        if operator == "LeakyRelu":
            operands[1] = literal(float(self.rng.choice([0.0, 0.1, 1.0, -0.5, 2.0])))
        if operator in (*REDUCTIONS, SUM) and not self.program.is_vector(operands[0]):
            return
        if operator in REDUCTIONS:
            operands[0] = add("Where", add("Equal", operands[0], operands[0]), operands[0], "0.25")
        value = add(operator, *operands)
        if operator in (*_CHOSEN, *REDUCTIONS):
            value = add("Add", value, "0.0")  # a zero of either sign becomes 0
        if operator in ("And", "Or", "Not"):
            self.truths.append(value)
        self.values.append(value)


def random_program(rng: np.random.Generator, steps: int, inputs: Sequence[str] | None = None) -> Program:
    """A program of random steps. It reduces no NaN, and no sign depends on which of two zeros is the larger one.

    Args:
        rng: The source of random numbers.
        steps: The least number of steps, at most 60; a step may add three more.
        inputs: What it may read; by default x and one form of each operand.
    """
    if inputs is None:
        inputs = ["x", *(f"{rng.choice(['row', 'column', 'tensor'])}{i}" for i in range(1, OPERANDS + 1))]
    draw = _Draw(rng, inputs)
    while len(draw.program.steps) < steps:
        draw.step()
    draw.outputs()
    return draw.program


def quantization(rng: np.random.Generator) -> str:
    """A program that quantizes rows: random ranges, scales, zero points, orders of steps, clips and outputs."""

    def one_of(*choices: str) -> str:
        return str(rng.choice(choices))

    has_range = rng.random() < 0.8
    if not has_range or rng.random() < 0.5:
        steps = ["r = ReduceMax(Abs(x))" if has_range else "r = row1"]
        zero = one_of("", "", "", "0.0", "3.0", "Round(Div(r, 3.0))")
    else:
        ends = ["a = ReduceMin(x)", "b = ReduceMax(x)"]
        steps = [*rng.permutation(ends), "r = Sub(Max(b, 0.0), Min(a, 0.0))"]
        zero = one_of("Int8(Sub(-128.0, Round(Div(Min(a, 0.0), s))))", "Round(Div(Neg(a), s))", "Div(a, s)", "")
    factor = one_of("Div(127.0, r)", "Reciprocal(s)", "Mul(Reciprocal(r), 127.0)")
    steps.append(f"s = {one_of('Div(r, 127.0)', 'Clip(Div(r, 255.0), 1e-05, inf)', 'Mul(Float16(r), 0.0078125)', 'r')}")
    steps.append(f"f = {factor}")
    code = one_of("Div(x, s)", "Mul(x, f)")
    code = f"Float16({code})" if rng.random() < 0.2 else code
    zero_point, is_first = (f"{zero}" if zero in ("0.0", "") else "z"), rng.random() < 0.3
    if zero_point == "z":
        steps.append(f"z = {zero}")
    added = f"Add({{}}, {zero_point})" if zero_point else "{}"
    clip = one_of(
        *("{}", "Clip({}, -128.0, 127.0)", "Clip({}, 0.0, 255.0)", "Clip({}, -127.0, 127.0)", "Clip({}, -7.0, 7.5)"),
        *("Max(Min({}, 127.0), -128.0)", "Clip({}, -128.0, inf)", "Min({}, 100.0)"),
    )
    order = [added, "Round({})", clip] if is_first else ["Round({})", added, clip]
    if rng.random() < 0.2:
        rng.shuffle(order)
    if rng.random() < 0.15:
        code = f"Int32(Clip({code}, {one_of('-32768.0, 32767.0', '-300.0, 300.0', '-65536.0, 65536.0')}))"
    for step in (*order, one_of("{}", "{}", "Int8({})", "Uint8({})", "Int32({})", "Round({})")):
        code = step.format(code)
    if rng.random() < 0.5:
        shifted = one_of("{}", "Add({}, 128.0)", "Add({}, 128.0)", "Sub({}, 128.0)", "Add({}, 0.5)").format(code)
        return "; ".join([*steps, f"codes = {shifted}", "scale = s", f"zero_point = {zero_point or '0.0'}"])
    code = f"Sub({code}, {zero_point})" if zero_point and rng.random() < 0.9 else code
    result = one_of("Mul({}, s)", "Mul({}, s)", "Mul({}, s)", "Div({}, f)", "Div({}, s)", "{}").format(code)
    return "; ".join([*steps, f"dst = {result}", "scale = s"])


def quantized_rows(rng: np.random.Generator, shape: tuple[int, int], *, is_finite: bool = False) -> Array:
    """Rows with quotients in ties, or anything; some rows have zeros, subnormal, huge or not finite numbers."""
    rows, cols = shape
    x = rng.integers(-254, 255, shape) / 2.0
    if not x.size:
        return x.astype(np.float32)
    x[np.arange(rows), rng.integers(cols, size=rows)] = rng.choice([127.0, -127.0, 127.5])
    kind = rng.integers(0, 10, (rows, 1))
    x = np.where(kind < 3, rng.normal(0, 3, shape), x) * 2.0 ** rng.integers(-3, 3, (rows, 1))
    x = np.where(kind == 4, x * 0.0, x)
    x = np.where(kind == 5, x * 10.0 ** rng.integers(-42, 36), x).astype(np.float32)
    x = np.where(rng.random(shape) < rng.choice([0, 0.2]), rng.choice([0.0, -0.0], shape), x)
    x = np.abs(x) if rng.random() < 0.2 else x
    if rng.random() < 0.3 and not is_finite:
        x[rng.integers(rows), rng.integers(cols)] = rng.choice([np.nan, np.inf, -np.inf, -np.nan])
    return x.astype(np.float32)


CASTS_4_BITS = tuple(map(int, ort.__version__.split(".")[:2])) >= (1, 23)
LIKE: dict[int, Any] = {2: np.uint8, 3: np.int8, 21: ml_dtypes.uint4, 22: ml_dtypes.int4}


def program_cases(opset: int) -> Iterator[Case]:
    """Every step, with operands of all forms, and quantizations. test_random_programs.py has random programs."""
    rng = np.random.default_rng(opset)
    assert {step.operator for text in (*STEPS.values(), *CHAINS) for step in parse(text).steps} == {*ARITIES}
    types = [2, 3, 21, 22] if opset >= 21 and CASTS_4_BITS else [2, 3]
    for i, text in enumerate((*STEPS.values(), *CHAINS, *FINITE)):
        code_type, axis = types[i % len(types)], (-1, -1, 0, 1, 2, -2)[rng.integers(6)]
        for shape in (shape for shape, its_axis in RANGES if its_axis == axis):
            first, cols = axis % max(1, len(shape)), math.prod(shape[axis % max(1, len(shape)) :])
            if text in CHAINS:
                src = range_rows(rng, max(1, math.prod(shape[:first])), cols)
                src = src[: math.prod(shape[:first])].reshape(shape)
            elif text in FINITE:
                src = finite_numbers(rng, shape)
            else:
                src = any_numbers(rng, shape, has_negative_zeros="Max(" not in text and "Min(" not in text)
            inputs = [src, np.zeros((), LIKE[code_type])]
            inputs += operands(rng, text, shape, first, is_finite=text in FINITE)
            yield Case({"program": text, "axis": axis, "code_type": code_type}, inputs)
    for i, text in enumerate((*CHAINS, STEPS["Add"], STEPS["Where"])):
        shape, block = BLOCKS[i % (len(BLOCKS) - (opset < 14))]
        code_type, blocked = types[i % len(types)], (*shape[:-1], shape[-1] // block, block)
        src = quantized_rows(rng, (math.prod(blocked[:-1]), block), is_finite=True).reshape(shape)
        inputs = [src, np.zeros((), LIKE[code_type]), *operands(rng, text, blocked, len(shape), is_finite=True)]
        yield Case({"program": text, "block_size": block, "code_type": code_type}, inputs)


def with_tail(rng: np.random.Generator, operator: str, case: Case, program: str) -> Case:
    """A product with a program after it."""
    shape = kernels.run(operator, case.inputs, **case.attributes)[0].shape
    more = operands(rng, program, shape, 2 if operator.endswith("Conv") else len(shape) - 1, 3)
    return Case(case.attributes | {"program": program}, [*case.inputs, *more])


def with_fitting_tails(n: int, calls: Iterable[tuple[list[Shape], Attributes]]) -> Iterator[Fit]:
    """Calls of matrix products with programs over their results; the last input is the bias."""
    rng = np.random.default_rng(n)
    for i, (shapes, given) in enumerate(calls):
        text, shape = TAILS[(n + i) % len(TAILS)], (*shapes[0][:-1], shapes[-1][-1])
        yield [*shapes, *operands(rng, text, shape, len(shape) - 1, 3)], given | {"program": text}


def fitting(n: int) -> Iterator[Fit]:
    """Other programs for each n, with operands of all forms."""
    rng, texts = np.random.default_rng(n), [*STEPS.values(), *CHAINS, *FINITE]
    for i, (src, axis) in enumerate((((n,), -1), ((n,), 0), ((3, n), -1), ((n, 3), -1), ((2, 3, n), 1), ((9, n), 1))):
        text = texts[(6 * n + i) % len(texts)]
        first = axis % len(src)
        yield [src, (), *operands(rng, text, src, first)], {"axis": axis, "program": text}


CASES: Cases = {
    "RowProgram": program_cases,
}
FITTING: Fitting = {"RowProgram": fitting}
