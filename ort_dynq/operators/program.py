"""Programs: short lists of steps over the rows of a tensor, the attribute `program` of RowProgram.

A program is text in Python's syntax, such as

    r1 = Clip(Div(ReduceMax(Abs(x)), 127.0), 1e-05, inf); codes = Round(Div(x, r1)); scale = r1

Every value is float32, and every step is one operation. A value is a vector, which has a number for each element of a
row, or one number for each row.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from ..errors import DynqError

COMPARISONS = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")
TRUTHS = (*COMPARISONS, "And", "Or", "Not")
REDUCTIONS = ("ReduceMax", "ReduceMin")
"""The steps over a row that give the bits of the standard operators of these names."""
SUM = "ReduceSum"
"""The step that adds a row in an order of its own."""
FUNCTIONS = ("Sigmoid", "Gelu")
"""The steps that compute functions with an arithmetic of their own."""
_UNARY = ("Abs", "Neg", "Sqrt", "Reciprocal", "Round", "Floor", "Ceil", "Sign", "Float16", "Int8", "Uint8", "Int32")
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "LeakyRelu", "PRelu", *COMPARISONS, "And", "Or")

ARITIES: dict[str, int] = {
    **dict.fromkeys((*_UNARY, *FUNCTIONS, "Not", *REDUCTIONS, SUM), 1),
    **dict.fromkeys(_BINARY, 2),
    **dict.fromkeys(("Clip", "Where"), 3),
}
"""The operators of steps, and the number of their operands."""

OUTPUTS = {"codes": True, "zero_point": False, "dst": True, "dst_2": True, "scale": False, "number": False}
"""The outputs, and whether each takes vectors; the others take numbers."""

OPERANDS, TAIL_OPERANDS = 4, 3
"""The number of operands, besides x, of RowProgram and of products with a program."""
MAX_GATES, COLUMNS = 4, 3
RECURRENT_OPERANDS = MAX_GATES + 1 + COLUMNS
"""The operands of recurrent layers: the gates, the second state, numbers of the elements of a state."""

MAX_STEPS = 64
_MAX_REDUCTIONS = 4  # of one pass over the elements
_MAX_CHARACTERS = 8192
_TEXT = re.compile(r"[\w .,;=()+-]*", re.ASCII)
INPUT = re.compile(rf"x|(row|column|tensor)([1-{RECURRENT_OPERANDS}])")
_VECTORS = ("x", "column", "tensor")
# The first of the operands that must be literals, and the error if they are not.
_LITERALS = {
    "Clip": (1, "the bounds of Clip are computed, expected numbers"),
    "LeakyRelu": (1, "the slope of LeakyRelu is computed, expected a number"),
}


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
        if any((step := self.step(each)) is None or step.operator not in TRUTHS for each in truths):
            raise DynqError(f"{operator} has a condition that is not a comparison, expected one of {', '.join(TRUTHS)}")
        if operator in (*REDUCTIONS, SUM) and not self.is_vector(operands[0]):
            raise DynqError(f"{operator} has one number for each row, expected a vector")
        step = Step(operator, operands)
        if step not in self.steps:
            if len(self.steps) == MAX_STEPS:
                raise DynqError(f"a program has more than {MAX_STEPS} steps")
            if operator in (*REDUCTIONS, SUM) and (passes := self._passes(step)).count(passes[-1]) > _MAX_REDUCTIONS:
                raise DynqError(
                    f"a program has more than {_MAX_REDUCTIONS} reductions that do not depend on each other"
                )
            self.steps.append(step)
        return f"v{self.steps.index(step)}"

    def _passes(self, last: Step) -> list[int]:
        """Returns the number of the pass over the elements of each reduction, as if a step were the last one."""
        numbers, found = list[int](), list[int]()  # of each step: the passes before it
        for step in (*self.steps, last):
            before = max((numbers[int(each[1:])] for each in step.operands if each[0] == "v"), default=0)
            is_reduction = step.operator in (*REDUCTIONS, SUM)
            numbers.append(before + is_reduction)
            found += numbers[-1:] * is_reduction
        return found

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
        todo, seen = [value], set[str]()  # steps may share operands
        while todo:
            value = todo.pop()
            step = self.step(value)
            if step is None and value.startswith(_VECTORS):
                return True
            if step is not None and value not in seen and step.operator not in (*REDUCTIONS, SUM):
                todo += step.operands
            seen.add(value)
        return False

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


def is_input(name: str, operands: int) -> bool:
    """Returns whether a name is x or one of so many operands."""
    found = INPUT.fullmatch(name)
    return found is not None and int(found[2] or 0) <= operands


def parse(text: str, operands: int = OPERANDS) -> Program:
    """Returns the program of a text.

    Args:
        text: The text.
        operands: The number of operands that its operator has.

    Raises:
        DynqError: The text is not a program.
    """
    try:
        found = _parse(text, operands)
    except DynqError as error:
        raise DynqError(f"program: {error}") from None
    return Program([*found.steps], {**found.outputs})


@functools.lru_cache  # a rewrite reads the program of a node for each node around it
def _parse(text: str, operands: int) -> Program:
    if len(text) > _MAX_CHARACTERS:
        raise DynqError(f"the text has {len(text)} characters, expected at most {_MAX_CHARACTERS}")
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
        name, value = target.id, _value(statement.value, program, names, operands)
        if name in OUTPUTS:
            program.assign(name, value)
        elif name in names or is_input(name, operands) or name == "inf":
            raise DynqError(f"{name} has a value already, expected another name")
        else:
            names[name] = value
    if not program.outputs:
        raise DynqError(f"no output is assigned, expected one of {', '.join(OUTPUTS)}")
    return program


def _value(expression: ast.expr, program: Program, names: dict[str, str], operands: int) -> str:
    """Adds the steps of an expression to the program, and returns its value."""
    match expression:
        case ast.Name(id="inf"):
            return "inf"
        case ast.Name(id=name):
            if name in names:
                return names[name]
            if is_input(name, operands):
                return name
            raise DynqError(f"{name} has no value, expected x, row1, column1, tensor1, ... or an earlier name")
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _literal(number)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return _literal(-float(number)) if not isinstance(number, bool) else _fail(expression)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Name(id="inf")):
            return "-inf"
        case ast.Call(func=ast.Name(id=operator), args=arguments, keywords=[]):
            return program.add(operator, *(_value(each, program, names, operands) for each in arguments))
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
    try:
        text = ast.unparse(node).partition("\n")[0]
    except RecursionError:  # Python 3.13 parses deeper expressions than it writes
        return "a deeply nested part"
    return text if len(text) <= 40 else f"{text[:40]}..."
