"""Programs: short lists of steps over the rows of a tensor, the attribute `program` of RowProgram.

A program is text in Python's syntax, such as

    r1 = Clip(Div(ReduceMax(Abs(x)), 127.0), 1e-05, inf); codes = Round(Div(x, r1)); scale = r1

Every value is float32, and every step is one operation. A value is a vector, which has a number for each element of a
row, or one number for each row.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..errors import DynqError
from .function_text import reshape

COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
_TRUTHS = (*COMPARISONS, "And", "Or", "Not")
REDUCTIONS = ("ReduceMax", "ReduceMin")
"""The steps over a row that give the bits of the standard operators of these names."""
SUM = "ReduceSum"
"""The step that adds a row in an order of its own."""
FUNCTIONS = ("Sigmoid", "Gelu")
"""The steps that compute functions with an arithmetic of their own."""
_CASTS = ("Float16", "Int8", "Uint8", "Int32")
_UNARY = ("Abs", "Neg", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil", "Sign", *_CASTS, *FUNCTIONS)
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "LeakyRelu", *COMPARISONS, "And", "Or")

ARITIES: dict[str, int] = {
    **dict.fromkeys((*_UNARY, "Not", *REDUCTIONS, SUM), 1),
    **dict.fromkeys(_BINARY, 2),
    **dict.fromkeys(("Clip", "Where"), 3),
}
"""The operators of steps, and the number of their operands."""

OUTPUTS = {"codes": True, "zero_point": False, "dst": True, "dst_2": True, "scale": False, "number": False}
"""The outputs, and whether each takes vectors; the others take numbers."""

OPERANDS, TAIL_OPERANDS = 4, 3
"""The number of operands, besides x, of RowProgram and of products with a program."""

MOST_STEPS = 64
_MOST_CHARACTERS = 8192
_TEXT = re.compile(r"[\w .,;=()+-]*", re.ASCII)
_INPUT = re.compile(rf"x|(row|column|tensor)([1-{OPERANDS}])")
_VECTORS = ("x", "column", "tensor")
# The first of the operands that must be literals, and the error if they are not.
_LITERALS = {
    "Clip": (1, "the bounds of Clip are computed, expected numbers"),
    "LeakyRelu": (1, "the slope of LeakyRelu is computed, expected a number"),
}
_CODES = {"Int8": (3, -128, 127), "Uint8": (2, 0, 255)}


class Step(NamedTuple):
    """One step. An operand is ``v<index>`` for an earlier step, an input, or a literal."""

    operator: str
    operands: tuple[str, ...]


@dataclass
class Program:
    """A program, which :meth:`add` and :meth:`assign` build. ``str()`` is its text.

    Attributes:
        steps: Its steps in order; no two are equal.
        outputs: The value of each assigned output: ``v<index>``, an input or a literal.
    """

    steps: list[Step] = field(default_factory=list)
    outputs: dict[str, str] = field(default_factory=dict)

    def add(self, operator: str, *operands: str) -> str:
        """Adds a step, unless the program has it already; returns its value.

        Raises:
            DynqError: There is no such operator, or it does not take these operands; the program is too long.
        """
        if operator not in ARITIES:
            raise DynqError(f"a program has no operator {operator}, expected one of {', '.join(ARITIES)}")
        if len(operands) != ARITIES[operator]:
            raise DynqError(f"{operator} has {len(operands)} operands, expected {ARITIES[operator]}")
        first, error = _LITERALS.get(operator, (len(operands), ""))
        if not all(map(is_literal, operands[first:])):
            raise DynqError(error)
        truths = {"And": operands, "Or": operands, "Not": operands, "Where": operands[:1]}.get(operator, ())
        if any((step := self.step(each)) is None or step.operator not in _TRUTHS for each in truths):
            raise DynqError(
                f"{operator} has a condition that is not a comparison, expected one of {', '.join(_TRUTHS)}"
            )
        if operator in (*REDUCTIONS, SUM) and not self.is_vector(operands[0]):
            raise DynqError(f"{operator} has one number for each row, expected a vector")
        step = Step(operator, operands)
        if step not in self.steps:
            if len(self.steps) == MOST_STEPS:
                raise DynqError(f"a program has more than {MOST_STEPS} steps")
            self.steps.append(step)
        return f"v{self.steps.index(step)}"

    def assign(self, output: str, value: str) -> None:
        """Assigns an output.

        Raises:
            DynqError: There is no such output, it is assigned already, or it takes other values.
        """
        if output not in OUTPUTS:
            raise DynqError(f"a program has no output {output}, expected one of {', '.join(OUTPUTS)}")
        if output in self.outputs:
            raise DynqError(f"{output} is assigned twice")
        if self.is_vector(value) != OUTPUTS[output]:
            given, expected = ("number", "vector") if OUTPUTS[output] else ("vector", "number")
            raise DynqError(f"{output} is a {given}, expected a {expected}")
        self.outputs[output] = value

    def step(self, value: str) -> Step | None:
        """Returns the step that computes a value; None for inputs and literals."""
        return self.steps[int(value[1:])] if value[0] == "v" else None

    def is_vector(self, value: str) -> bool:
        """Returns whether a value has a number for each element of a row."""
        step = self.step(value)
        if step is None:
            return value.startswith(_VECTORS)
        return step.operator not in (*REDUCTIONS, SUM) and any(map(self.is_vector, step.operands))

    def is_mixed_choice(self, step: Step) -> bool:
        """Returns whether a step is a Where that chooses, for a whole row, its elements or one number.

        Then, ONNX Runtime's Where keeps the sign of a chosen -0 of its second operand, and loses that of the third: in
        all other forms, and in programs, it is the other way round. It does so if the row has more than one element.
        """
        if step.operator != "Where":
            return False
        return [*map(self.is_vector, step.operands)] == [False, True, False]

    def is_clip(self) -> bool:
        """Returns whether the program only clips x, or returns it."""
        value = self.outputs.get("dst", "")
        step = self.step(value) if value else None
        clips = value == "x" or (step is not None and step.operator == "Clip" and step.operands[0] == "x")
        return clips and len(self.outputs) == 1

    def live(self) -> Counter[str]:
        """Returns how often each value is used by outputs and by the steps that they need."""
        uses = Counter(self.outputs.values())
        for index in reversed(range(len(self.steps))):
            if uses[f"v{index}"]:
                uses.update(self.steps[index].operands)
        return uses

    def __str__(self) -> str:
        """Returns the text. Two programs with the same steps for their outputs have the same text."""
        uses, names, lines = self.live(), dict[str, str](), list[str]()

        def text(value: str) -> str:
            step = self.step(value)
            if step is None or value in names:
                return names.get(value, value)
            expression = f"{step.operator}({', '.join(map(text, step.operands))})"
            if uses[value] == 1:
                return expression
            names[value] = f"r{len(names) + 1}"
            lines.append(f"{names[value]} = {expression}")
            return names[value]

        for output in OUTPUTS:
            if output in self.outputs:
                value = text(self.outputs[output])
                lines.append(f"{output} = {value}")
        return "; ".join(lines)


def literal(number: float) -> str:
    """Returns a number, which is rounded to float32, as an operand of a step."""
    with np.errstate(over="ignore"):
        return repr(float(np.float32(number)))


def is_literal(operand: str) -> bool:
    """Returns whether an operand of a step is a literal."""
    return operand[0] in "-i0123456789"


def parse(text: str) -> Program:
    """Returns the program of a text.

    Raises:
        DynqError: The text is not a program.
    """
    try:
        return _parse(text)
    except DynqError as error:
        raise DynqError(f"program: {error}") from None


def _parse(text: str) -> Program:
    if len(text) > _MOST_CHARACTERS:
        raise DynqError(f"the text has {len(text)} characters, expected at most {_MOST_CHARACTERS}")
    if not _TEXT.fullmatch(text):
        raise DynqError("the text has characters that no program has, expected name = Operator(...); ...")
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DynqError(f"{error.args[0] if error.args else error}, expected name = Operator(...); ...") from None
    program, names = Program(), dict[str, str]()
    for statement in statements:
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if not isinstance(statement, ast.Assign) or not isinstance(target, ast.Name):
            raise DynqError(f"{_source(statement)} is not a statement, expected name = Operator(...)")
        name, value = target.id, _value(statement.value, program, names)
        if name in OUTPUTS:
            program.assign(name, value)
        elif name in names or _INPUT.fullmatch(name) or name == "inf":
            raise DynqError(f"{name} has a value already, expected another name")
        else:
            names[name] = value
    if not program.outputs:
        raise DynqError(f"no output is assigned, expected one of {', '.join(OUTPUTS)}")
    return program


def _value(expression: ast.expr, program: Program, names: dict[str, str]) -> str:
    """Adds the steps of an expression to the program, and returns its value."""
    match expression:
        case ast.Name(id="inf"):
            return "inf"
        case ast.Name(id=name):
            if name in names:
                return names[name]
            if _INPUT.fullmatch(name):
                return name
            raise DynqError(f"{name} has no value, expected x, row1, column1, tensor1, ... or an earlier name")
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _literal(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return _literal(-float(number)) if not isinstance(number, bool) else _fail(expression)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return "-inf"
        case ast.Call(func=ast.Name(id=operator), args=operands, keywords=[]):
            return program.add(operator, *(_value(each, program, names) for each in operands))
    return _fail(expression)


def _literal(number: float) -> str:
    try:
        return literal(number)
    except OverflowError:  # an integer beyond float64
        raise DynqError("a number is too large") from None


def _fail(expression: ast.expr) -> str:
    raise DynqError(f"{_source(expression)} is not an expression, expected a name, a number or Operator(...)")


def _source(node: ast.AST) -> str:
    """The text of a part of a program, shortened."""
    text = ast.unparse(node).partition("\n")[0]
    return text if len(text) <= 40 else f"{text[:40]}..."


# The function body


def body_of(program: Program, prefix: str, results: Mapping[str, str], opset: int) -> str:
    """The nodes that compute a program with standard operators, in the text syntax of ``onnx.parser``.

    They read ``x``, the operands, ``zero``, ``one``, ``axes`` ([1]), and the shapes ``shape``, ``rows_shape`` and
    ``parameter_shape`` (row_program.py).

    Args:
        program: The program.
        prefix: What the names of its values begin with.
        results: The names of the outputs, by output: float32 tensors of the shapes of the operator's outputs.
        opset: The version of the standard operators.
    """
    uses, lines = program.live(), list[str]()

    def name(value: str) -> str:
        if is_literal(value):
            known = {"inf": "infinity", "-inf": "minus_infinity"}
            return known.get(value) or f"{prefix}c{sorted(filter(is_literal, uses)).index(value)}"
        operand = _INPUT.fullmatch(value)
        return f"{prefix}{value}" if operand is None else f"operand_{operand[2]}" if operand[2] else "x"

    for value in filter(is_literal, uses):
        if math.isfinite(float(value)):
            lines.append(f"{name(value)} = Constant<value_float = {value}>()")
    for index, step in enumerate(program.steps):
        if uses[f"v{index}"]:
            operands = [*map(name, step.operands)]
            if program.is_mixed_choice(step):
                lines.append(f"{name(f'v{index}')}_e = Expand({operands[0]}, shape)")
                operands[0] = f"{name(f'v{index}')}_e"
            lines += _step(step, name(f"v{index}"), operands, opset)
    for output, result in results.items():
        if output in program.outputs:
            shape = "shape" if OUTPUTS[output] else "parameter_shape"
            lines.append(f"{result} = Expand({name(program.outputs[output])}, {shape})")
        else:
            lines.append(f"{result} = Constant<value = float[0] {{}}>()")
    return "\n".join(lines)


def _step(step: Step, to: str, operands: list[str], opset: int) -> Iterator[str]:
    """The nodes of one step, whose value gets the name `to`."""
    operator, listed = step.operator, ", ".join(operands)
    if operator in COMPARISONS:
        yield f"{to}_b = {operator}({listed})"
        yield f"{to} = Cast<to = 1>({to}_b)"
    elif operator in ("And", "Or", "Where"):
        for i, operand in enumerate(operands[: 1 if operator == "Where" else 2]):
            yield f"{to}_b{i} = Cast<to = 9>({operand})"
        if operator == "Where":
            yield f"{to} = Where({to}_b0, {operands[1]}, {operands[2]})"
        else:
            yield f"{to}_b = {operator}({to}_b0, {to}_b1)"
            yield f"{to} = Cast<to = 1>({to}_b)"
    elif operator == "Not":
        yield f"{to} = Sub(one, {listed})"
    elif operator == "LeakyRelu":
        yield f"{to} = LeakyRelu<alpha = {step.operands[1]}>({operands[0]})"
    elif operator == "Float16":
        yield f"{to}_h = Cast<to = 10>({listed})"
        yield f"{to} = Cast<to = 1>({to}_h)"
    elif operator in _CODES:
        number, low, high = _CODES[operator]
        yield from saturated(listed, f"{to}_i", f"Cast<to = {number}>", literal(low), literal(high))
        yield f"{to} = Cast<to = 1>({to}_i)"
    elif operator == "Int32":
        yield f"{to}_r = Round({listed})"
        yield f"{to}_l = Constant<value_float = {-(2.0**31)}>()"
        yield f"{to}_m = Constant<value_float = {2.0**31}>()"
        yield f"{to}_a = GreaterOrEqual({to}_r, {to}_l)"
        yield f"{to}_b = Less({to}_r, {to}_m)"
        yield f"{to}_ab = And({to}_a, {to}_b)"
        yield f"{to}_d = Where({to}_ab, {to}_r, {to}_l)"
        yield f"{to}_i = Cast<to = 6>({to}_d)"
        yield f"{to} = Cast<to = 1>({to}_i)"
    elif operator in FUNCTIONS:
        yield from (_sigmoid if operator == "Sigmoid" else _gelu)(listed, to)
    elif operator == SUM:
        yield from _sum(listed, to, opset)
    elif operator in REDUCTIONS:
        # From opset 18 on, axes are an input.
        attribute, axes = ("", ", axes") if opset >= 18 else (", axes = [1]", "")
        yield f"{to}_e = Expand({listed}, shape)"
        yield f"{to}_r = {reshape(opset)}({to}_e, rows_shape)"
        yield f"{to}_m = {operator}<keepdims = 1{attribute}>({to}_r{axes})"
        yield f"{to} = {reshape(opset)}({to}_m, parameter_shape)"
    else:
        yield f"{to} = {operator}({listed})"


_EXP = (0.0013951717410236597, 0.008369598537683487, 0.0416661873459816, 0.16666512191295624, 0.5)
_GELU = (
    *(-0.09450025856494904, 0.35453274846076965, -0.29052290320396423, 0.3034745156764984),
    *(0.013249465264379978, 0.11527300626039505, 0.09849343448877335),
)


def _horner(x: str, to: str, coefficients: Sequence[float]) -> Iterator[str]:
    """The nodes of a polynomial, whose coefficient of the highest power is the first one."""
    for i, number in enumerate(coefficients):
        name = to if i == len(coefficients) - 1 else f"{to}_{i}"
        if i == 0:
            yield f"{name} = Constant<value_float = {number}>()"
        else:
            yield f"{to}_m{i} = Mul({to}_{i - 1}, {x})"
            yield f"{to}_c{i} = Constant<value_float = {number}>()"
            yield f"{name} = Add({to}_m{i}, {to}_c{i})"


def _exp(y: str, to: str) -> Iterator[str]:
    """The nodes of e^y, for y from -87 to 0: 2^n * e^r, where y = n * log(2) + r."""
    yield f"{to}_l2e = Constant<value_float = 1.44269502162933349609375>()"
    yield f"{to}_l1 = Constant<value_float = 0.693359375>()"
    yield f"{to}_l2 = Constant<value_float = -0.00021219444274902344>()"
    yield f"{to}_s = Mul({y}, {to}_l2e)"
    yield f"{to}_n = Round({to}_s)"
    yield f"{to}_n1 = Mul({to}_n, {to}_l1)"
    yield f"{to}_n2 = Mul({to}_n, {to}_l2)"
    yield f"{to}_r1 = Sub({y}, {to}_n1)"
    yield f"{to}_r = Sub({to}_r1, {to}_n2)"
    yield from _horner(f"{to}_r", f"{to}_p", _EXP)
    yield f"{to}_pr = Mul({to}_p, {to}_r)"
    yield f"{to}_prr = Mul({to}_pr, {to}_r)"
    yield f"{to}_q = Add({to}_prr, {to}_r)"
    yield f"{to}_er = Add({to}_q, one)"
    yield f"{to}_table = Constant<value_floats = [{', '.join(repr(2.0**-n) for n in range(127))}]>()"
    yield f"{to}_isnan = IsNaN({to}_n)"
    yield f"{to}_known = Where({to}_isnan, zero, {to}_n)"
    yield f"{to}_minus = Neg({to}_known)"
    yield f"{to}_index = Cast<to = 7>({to}_minus)"
    yield f"{to}_power = Gather({to}_table, {to}_index)"
    yield f"{to} = Mul({to}_er, {to}_power)"


def _sigmoid(x: str, to: str) -> Iterator[str]:
    """The nodes of 1 / (1 + e^-x), as e^x / (1 + e^x) for x < 0."""
    yield f"{to}_limit = Constant<value_float = 87.0>()"
    yield f"{to}_a = Abs({x})"
    yield f"{to}_t = Clip({to}_a, zero, {to}_limit)"
    yield f"{to}_y = Neg({to}_t)"
    yield from _exp(f"{to}_y", f"{to}_e")
    yield f"{to}_b = Less({x}, zero)"
    yield f"{to}_u = Where({to}_b, {to}_e, one)"
    yield f"{to}_d = Add(one, {to}_e)"
    yield f"{to} = Div({to}_u, {to}_d)"


def _gelu(x: str, to: str) -> Iterator[str]:
    """The nodes of max(x, 0) - t * Phi(-t), where t = |x|; Phi(-t) = e^(-t^2 / 2) * v * P(v), v = 1 / (1 + t / 4)."""
    yield f"{to}_limit = Constant<value_float = 13.0>()"
    yield f"{to}_quarter = Constant<value_float = 0.25>()"
    yield f"{to}_half = Constant<value_float = -0.5>()"
    yield f"{to}_a = Abs({x})"
    yield f"{to}_t = Clip({to}_a, zero, {to}_limit)"
    yield f"{to}_t4 = Mul({to}_t, {to}_quarter)"
    yield f"{to}_d = Add({to}_t4, one)"
    yield f"{to}_v = Div(one, {to}_d)"
    yield from _horner(f"{to}_v", f"{to}_p", _GELU)
    yield f"{to}_pv = Mul({to}_p, {to}_v)"
    yield f"{to}_pvt = Mul({to}_pv, {to}_t)"
    yield f"{to}_tt = Mul({to}_t, {to}_t)"
    yield f"{to}_y = Mul({to}_tt, {to}_half)"
    yield from _exp(f"{to}_y", f"{to}_e")
    yield f"{to}_g = Mul({to}_pvt, {to}_e)"
    yield f"{to}_b = Less(zero, {x})"
    yield f"{to}_m = Where({to}_b, {x}, zero)"
    yield f"{to} = Sub({to}_m, {to}_g)"


_SUMS = 32


def _sum(x: str, to: str, opset: int) -> Iterator[str]:
    """The nodes of a sum: element i of a row is added to partial sum i % 32, then halves of them are added."""
    yield f"{to}_e = Expand({x}, shape)"
    yield f"{to}_r = {reshape(opset)}({to}_e, rows_shape)"
    yield f"{to}_sums = Constant<value_ints = [{_SUMS}]>()"
    yield f"{to}_zeros = Constant<value_ints = [0, 0, 0]>()"
    yield f"{to}_first = Constant<value_ints = [0]>()"
    yield f"{to}_rows = Gather(rows_shape, {to}_first)"
    yield f"{to}_cols = Gather(rows_shape, axes)"
    yield f"{to}_rest = Mod({to}_cols, {to}_sums)"
    yield f"{to}_missing = Sub({to}_sums, {to}_rest)"
    yield f"{to}_pads = Concat<axis = 0>({to}_zeros, {to}_missing)"
    yield f"{to}_padded = Pad({to}_r, {to}_pads, zero)"
    yield f"{to}_whole = Add({to}_cols, {to}_missing)"
    yield f"{to}_parts = Div({to}_whole, {to}_sums)"
    yield f"{to}_cube_shape = Concat<axis = 0>({to}_rows, {to}_parts, {to}_sums)"
    yield f"{to}_cube = Reshape({to}_padded, {to}_cube_shape)"
    yield f"{to}_axis = Constant<value_int = 1>()"
    yield f"{to}_running = CumSum({to}_cube, {to}_axis)"
    yield f"{to}_last = Constant<value_int = -1>()"
    yield f"{to}_{_SUMS} = Gather<axis = 1>({to}_running, {to}_last)"
    half = _SUMS // 2
    while half:
        yield f"{to}_middle_{half} = Constant<value_ints = [{half}]>()"
        yield f"{to}_end_{half} = Constant<value_ints = [{2 * half}]>()"
        yield f"{to}_low_{half} = Slice({to}_{2 * half}, {to}_first, {to}_middle_{half}, axes)"
        yield f"{to}_high_{half} = Slice({to}_{2 * half}, {to}_middle_{half}, {to}_end_{half}, axes)"
        yield f"{to}_{half} = Add({to}_low_{half}, {to}_high_{half})"
        half //= 2
    yield f"{to}_no_minus_zero = Add({to}_1, zero)"
    yield f"{to} = {reshape(opset)}({to}_no_minus_zero, parameter_shape)"


def saturated(value: str, to: str, cast: str, low: str, high: str) -> Iterator[str]:
    """The nodes that round a float32 value half to even, saturate it and cast it to integers; NaN becomes 0.

    Args:
        value: The name of the value.
        to: The name of the integers.
        cast: The Cast with its attributes.
        low, high: The smallest and the largest integer: literals, or names of values.
    """
    for bound, end in ((low, "l"), (high, "h")):
        is_name = bound.isidentifier()
        yield f"{to}_{end} = Identity({bound})" if is_name else f"{to}_{end} = Constant<value_float = {bound}>()"
    yield f"{to}_r = Round({value})"
    yield f"{to}_c = Clip({to}_r, {to}_l, {to}_h)"
    yield f"{to}_n = IsNaN({to}_c)"
    yield f"{to}_d = Where({to}_n, zero, {to}_c)"
    yield f"{to} = {cast}({to}_d)"
