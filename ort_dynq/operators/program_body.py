"""The function body of a program: its steps as standard operators."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from .function_text import horner, inverse, reshape
from .program import COMPARISONS, FUNCTIONS, INPUT, OUTPUTS, REDUCTIONS, SUM, TRUTHS, Program, Step, is_literal, literal

_CODES = {"Int8": (3, -128, 127), "Uint8": (2, 0, 255)}


def body_of(
    program: Program,
    prefix: str,
    results: Mapping[str, str],
    opset: int,
    operands: str = "operand_",
    *,
    has_blocks: bool = False,
    scope: str = "",
) -> str:
    """The nodes that compute a program with standard operators, in the text syntax of ``onnx.parser``.

    They read ``x``, the operands, ``zero``, ``one``, ``axes`` ([1]), and the shapes ``shape``, ``rows_shape`` and
    ``parameter_shape`` (row_program.py).

    Args:
        program: The program.
        prefix: What the names of its values begin with.
        results: The names of the outputs, by output: float32 tensors of the shapes of the operator's outputs. Other
            outputs are not computed.
        opset: The version of the standard operators.
        operands: What the names of its operands begin with.
        has_blocks: Whether the results of vectors and of numbers have shapes of their own, ``src_shape`` and
            ``scale_shape``.
        scope: What the names of ``x`` and of the shapes begin with.
    """
    program = Program(program.steps, {name: each for name, each in program.outputs.items() if name in results})
    uses, lines = program.live(), list[str]()

    def name(value: str) -> str:
        if is_literal(value):
            known = {"inf": "infinity", "-inf": "minus_infinity"}
            return known.get(value) or f"{prefix}c{sorted(filter(is_literal, uses)).index(value)}"
        operand = INPUT.fullmatch(value)
        return f"{prefix}{value}" if operand is None else f"{operands}{operand[2]}" if operand[2] else f"{scope}x"

    for value in filter(is_literal, uses):
        if math.isfinite(float(value)):
            lines.append(f"{name(value)} = Constant<value_float = {value}>()")
    for index, step in enumerate(program.steps):
        if uses[f"v{index}"]:
            given = [*map(name, step.operands)]
            if program.is_mixed_choice(step):
                lines.append(f"{name(f'v{index}')}_e = Expand({given[0]}, {scope}shape)")
                given[0] = f"{name(f'v{index}')}_e"
            lines += _step(step, name(f"v{index}"), given, opset, scope)
    for output, result in results.items():
        if output in program.outputs:
            shape, result_shape = ("shape", "src_shape") if OUTPUTS[output] else ("parameter_shape", "scale_shape")
            expanded = f"{result}_x" if has_blocks else result
            lines.append(f"{expanded} = Expand({name(program.outputs[output])}, {scope}{shape})")
            if has_blocks:
                lines.append(f"{result} = {reshape(opset)}({expanded}, {scope}{result_shape})")
        else:
            lines.append(f"{result} = Constant<value = float[0] {{}}>()")
    return "\n".join(lines)


def _step(step: Step, to: str, operands: list[str], opset: int, scope: str) -> Iterator[str]:
    """The nodes of one step. Its value gets the name `to`."""
    operator, listed = step.operator, ", ".join(operands)
    if operator in COMPARISONS:
        yield f"{to}_b = {operator}({listed})"
        yield f"{to} = Cast<to = 1>({to}_b)"
    elif operator == "Where":
        yield f"{to}_b0 = Cast<to = 9>({operands[0]})"
        yield f"{to} = Where({to}_b0, {operands[1]}, {operands[2]})"
    elif operator == "Not":
        yield f"{to} = Sub(one, {listed})"
    elif operator in TRUTHS:  # And, Or
        yield f"{to}_b0 = Cast<to = 9>({operands[0]})"
        yield f"{to}_b1 = Cast<to = 9>({operands[1]})"
        yield f"{to}_b = {operator}({to}_b0, {to}_b1)"
        yield f"{to} = Cast<to = 1>({to}_b)"
    elif operator == "LeakyRelu":
        yield f"{to} = LeakyRelu<alpha = {step.operands[1]}>({operands[0]})"
    elif operator == "PRelu":  # its first operand has the shape of the result
        yield f"{to}_b = Less({listed})"
        yield f"{to}_s = Shape({to}_b)"
        yield f"{to}_x = Expand({operands[0]}, {to}_s)"
        yield f"{to} = PRelu({to}_x, {operands[1]})"
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
    elif operator == "Div" and is_literal(step.operands[0]) and float(step.operands[0]) == 1:
        yield inverse(to, operands[1])
    elif operator in FUNCTIONS:
        yield from (sigmoid if operator == "Sigmoid" else _gelu)(listed, to)
    elif operator == SUM:
        yield from row_sum(listed, to, opset, scope)
    elif operator in REDUCTIONS:
        # From opset 18 on, axes are an input.
        attribute, axes = ("", ", axes") if opset >= 18 else (", axes = [1]", "")
        yield f"{to}_e = Expand({listed}, {scope}shape)"
        yield f"{to}_r = {reshape(opset)}({to}_e, {scope}rows_shape)"
        yield f"{to}_m = {operator}<keepdims = 1{attribute}>({to}_r{axes})"
        yield f"{to} = {reshape(opset)}({to}_m, {scope}parameter_shape)"
    else:
        yield f"{to} = {operator}({listed})"


_POWER_OF_2 = (
    *(0.00015353257185779512, 0.0013399003073573112, 0.00961843878030777, 0.05550331994891167),
    *(0.24022647738456726, 0.6931471824645996, 1.0),
)
_GELU = (
    *(-0.09450025856494904, 0.35453274846076965, -0.29052290320396423, 0.3034745156764984),
    *(0.013249465264379978, 0.11527300626039505, 0.09849343448877335),
)


def power(y: str, to: str, coefficients: Sequence[float] = _POWER_OF_2) -> Iterator[str]:
    """The nodes of 2^n * P(r), n = round(y), r = y - n, for y from -126 to 126; of a NaN, n is 0.

    By default, P(r) is 2^r. The coefficient of the highest power of P is the first one.
    """
    yield f"{to}_n = Round({y})"
    yield f"{to}_r = Sub({y}, {to}_n)"
    yield from horner(f"{to}_r", f"{to}_p", coefficients)
    yield f"{to}_table = Constant<value_floats = [{', '.join(repr(2.0**n) for n in range(-126, 127))}]>()"
    yield f"{to}_isnan = IsNaN({to}_n)"
    yield f"{to}_known = Where({to}_isnan, zero, {to}_n)"
    yield f"{to}_lowest = Constant<value_float = 126.0>()"
    yield f"{to}_place = Add({to}_known, {to}_lowest)"
    yield f"{to}_index = Cast<to = 7>({to}_place)"
    yield f"{to}_power = Gather({to}_table, {to}_index)"
    yield f"{to} = Mul({to}_p, {to}_power)"


def sigmoid(x: str, to: str) -> Iterator[str]:
    """The nodes of 1 / (1 + e^-x)."""
    yield f"{to}_factor = Constant<value_float = -1.44269502162933349609375>()"
    yield f"{to}_low = Constant<value_float = -126.0>()"
    yield f"{to}_high = Constant<value_float = 126.0>()"
    yield f"{to}_scaled = Mul({x}, {to}_factor)"
    yield f"{to}_y = Clip({to}_scaled, {to}_low, {to}_high)"
    yield from power(f"{to}_y", f"{to}_e")
    yield f"{to}_d = Add(one, {to}_e)"
    yield inverse(to, f"{to}_d")


def _gelu(x: str, to: str) -> Iterator[str]:
    """The nodes of max(x, 0) - t * Phi(-t), where t = |x|; Phi(-t) = e^(-t^2 / 2) * v * P(v), v = 1 / (1 + t / 4)."""
    yield f"{to}_limit = Constant<value_float = 13.0>()"
    yield f"{to}_quarter = Constant<value_float = 0.25>()"
    yield f"{to}_factor = Constant<value_float = -0.721347510814666748046875>()"
    yield f"{to}_a = Abs({x})"
    yield f"{to}_t = Clip({to}_a, zero, {to}_limit)"
    yield f"{to}_t4 = Mul({to}_t, {to}_quarter)"
    yield f"{to}_d = Add({to}_t4, one)"
    yield f"{to}_v = Div(one, {to}_d)"
    yield from horner(f"{to}_v", f"{to}_p", _GELU)
    yield f"{to}_pv = Mul({to}_p, {to}_v)"
    yield f"{to}_pvt = Mul({to}_pv, {to}_t)"
    yield f"{to}_tt = Mul({to}_t, {to}_t)"
    yield f"{to}_y = Mul({to}_tt, {to}_factor)"
    yield from power(f"{to}_y", f"{to}_e")
    yield f"{to}_g = Mul({to}_pvt, {to}_e)"
    yield f"{to}_b = Less(zero, {x})"
    yield f"{to}_m = Where({to}_b, {x}, zero)"
    yield f"{to} = Sub({to}_m, {to}_g)"


_SUMS = 32


def row_sum(x: str, to: str, opset: int, scope: str) -> Iterator[str]:
    """The nodes of a sum: element i of a row is added to partial sum i % 32, then halves of them are added."""
    yield f"{to}_e = Expand({x}, {scope}shape)"
    yield f"{to}_r = {reshape(opset)}({to}_e, {scope}rows_shape)"
    yield f"{to}_sums = Constant<value_ints = [{_SUMS}]>()"
    yield f"{to}_zeros = Constant<value_ints = [0, 0, 0]>()"
    yield f"{to}_first = Constant<value_ints = [0]>()"
    yield f"{to}_rows = Gather({scope}rows_shape, {to}_first)"
    yield f"{to}_cols = Gather({scope}rows_shape, axes)"
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
    yield f"{to} = {reshape(opset)}({to}_no_minus_zero, {scope}parameter_shape)"


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
