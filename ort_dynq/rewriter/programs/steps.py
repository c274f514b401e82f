"""Which steps of a program a node is.

Integers are float32 numbers in a program. So a node of integers is a step only if they are known to be at most 2**24,
which float32 represents, or to fit the 8 bits of their type.

Example: Cast(q) + 16776960 of uint8 codes in int32 is a step; Cast(q) + 16776962 is none: it may be 2**24 + 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx_ir as ir

from ...errors import DynqError
from ...operators import DOMAIN
from ...operators.program import (
    MAX_STEPS,
    OPERANDS,
    OUTPUTS,
    REDUCTIONS,
    Program,
    is_input,
    is_literal,
    literal,
    parse,
)
from ..analysis.bounds import MAX_FINITE, bounds_of
from ..analysis.constants import constant_scalar
from ..analysis.evaluation import evaluate
from ..analysis.nodes import attributes_of, cast_to, is_standard, producer_of
from ..analysis.standard import (
    BOUNDING,
    COMPARISONS,
    HARD,
    LINEAR,
    LOGIC,
    PASSING,
    ROOTS,
    ROUNDING,
    ROW_SUMS,
    SCALING,
    SHAPING,
    SLOPED,
    SUMS,
)
from ..analysis.types import CODE_TYPES
from ..analysis.values import AnyValues, Interval, Values
from ..rule import Context
from .signs import Signs

_ADDITIVE = SUMS | {"Abs"}
_OF_FLOATS = SCALING | ROOTS | ROUNDING | {"Neg", "Sign"}  # of integers, some give -0
_LOGIC = COMPARISONS | LOGIC | {"Where"}
_BOUNDS = BOUNDING | {"Relu"}
_COMPOSED = HARD | SLOPED | {"IsNaN"}
ELEMENTWISE = _ADDITIVE | _OF_FLOATS | _LOGIC | _BOUNDS | _COMPOSED | PASSING
"""The standard operators with an output of the shape to which the inputs :func:`elements_of` broadcast."""
"""Operators that add the elements of a row, in an order of their own."""
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.INT32, ir.DataType.BOOL, *CODE_TYPES)
ROUNDINGS = {ir.DataType.INT8: "Int8", ir.DataType.UINT8: "Uint8", ir.DataType.FLOAT16: "Float16"}
"""The steps that a Cast of numbers of this type is, if they fit the type."""
_MAX_INTEGER = 2.0**24
_16_BITS = "-32768.0", "32767.0"
_HARD_SIGMOID = (("alpha", 0.2), ("beta", 0.5))
_ENDS = {ir.DataType.INT8: (-128, 127), ir.DataType.UINT8: (0, 255)}


class _NoStepError(Exception):
    """A node is not known to be steps of a program."""


def elements_of(node: ir.Node) -> list[ir.Value]:
    """Returns the inputs that give a node its elements: not bounds, axes and shapes."""
    if node.domain == DOMAIN and node.op_type == "RowProgram":
        read = sorted(
            int(each[-1])
            for each in parse(attributes_of(node)["program"]).live()
            if is_input(each, OPERANDS) and each != "x"
        )
        return [each for each in (node.inputs[0], *(node.inputs[1 + i] for i in read)) if each is not None]
    only_first = node.op_type in ("Clip", *SHAPING, *REDUCTIONS, *ROW_SUMS)
    return [each for each in (node.inputs[:1] if only_first else node.inputs) if each is not None]


def is_linear(node: ir.Node) -> bool:
    """Returns whether a node is a QuantizeLinear or DequantizeLinear of float32 and 8 bits, per tensor or channel."""
    if not is_standard(node, *LINEAR) or len(node.inputs) < 2 or None in node.inputs[:2]:
        return False
    quantizes = node.op_type == "QuantizeLinear"
    codes, real = (node.outputs[0], node.inputs[0]) if quantizes else (node.inputs[0], node.outputs[0])
    assert codes is not None
    assert real is not None
    return (
        type_of(codes) in CODE_TYPES
        and type_of(real) == ir.DataType.FLOAT
        and node.inputs[1] is not None
        and node.inputs[1].dtype == ir.DataType.FLOAT
        and not node.attributes.get_int("block_size", 0)
        and node.attributes.get_int("precision", 0) in (0, ir.DataType.FLOAT)
    )


def is_own_step(node: ir.Node) -> bool:
    """Returns whether a node is the operator of ort_dynq that a program can have as steps: AffineDequantize."""
    return node.domain == DOMAIN and node.op_type == "AffineDequantize"


def type_of(value: ir.Value) -> ir.DataType | None:
    """Returns the element type of a value, which rules do not note for each node that they insert."""
    node = value.producer()
    if value.dtype is not None or node is None or not elements_of(node):
        return value.dtype
    if node.domain == DOMAIN and node.op_type == "RowProgram":
        is_code = list(OUTPUTS)[value.index() or 0] in ("codes", "zero_point")
        return ir.DataType(attributes_of(node)["code_type"]) if is_code else ir.DataType.FLOAT
    if is_standard(node, "Cast"):
        return cast_to(node)
    if is_own_step(node):
        return type_of(elements_of(node)[1])
    if is_standard(node, "QuantizeLinear"):
        return type_of(elements_of(node)[2]) if len(elements_of(node)) > 2 else ir.DataType.UINT8
    if is_standard(node, "DequantizeLinear"):
        return type_of(elements_of(node)[1])
    if is_standard(node, *_LOGIC) and node.op_type != "Where":
        return ir.DataType.BOOL
    source = elements_of(node)[1 if node.op_type == "Where" else 0]
    return type_of(source) if is_standard(node, *ELEMENTWISE, *SHAPING, *REDUCTIONS) else None


class Translation:
    """Translates nodes into the steps of one program, each after the nodes that it reads.

    Attributes:
        program: The program.
        terms: The value in the program of each value of the model.
        signs: Where the program does not have the model's sign of a zero.
    """

    def __init__(self, inputs: Mapping[ir.Value, str], context: Context) -> None:
        """Begins a program that reads these values of the model under these names."""
        self.program = Program()
        self.signs = Signs(self.program)
        self.terms = dict(inputs)
        self._context, self._values = context, context.shared(Values)
        self._casts: dict[ir.Value, ir.Value] = {}  # int32 integers that are floats cast to them
        self._sums: dict[
            ir.Value, tuple[ir.Value, ir.Value | None]
        ] = {}  # of such integers and a number that is not negative
        self._truncated: set[ir.Value] = set()  # int32 integers that are floats cast to them, but no integers before

    def add(self, node: ir.Node) -> bool:
        """Adds the steps of a node; returns whether there are steps that are known to compute the same."""
        if any(type_of(each) not in _TYPES for each in (*node.outputs, *elements_of(node))):
            return False
        try:
            self._check_integers(node)
            self.terms[node.outputs[0]] = self._translate(node)
        except (_NoStepError, DynqError):  # or the program has become too long
            return False
        return self.signs.follow()

    @property
    def is_full(self) -> bool:
        """Whether the program has as many steps as it may have."""
        return len(self.program.steps) == MAX_STEPS

    def of_unknown_sign(self) -> list[ir.Node]:
        """Returns the nodes with zeros of unknown sign that are divisors, so that a step of a quotient failed."""
        origins = {*self.signs.origins()} if self.signs.are_divisors else set()
        nodes = [value.producer() for value, term in self.terms.items() if term in origins]
        return [each for each in nodes if each is not None]

    def term(self, value: ir.Value | None) -> str:
        """Returns a value of the model in the program."""
        if value is not None and value in self.terms:
            return self.terms[value]
        number = constant_scalar(value)
        assert number is not None
        return literal(number)

    def _translate(self, node: ir.Node) -> str:
        add, op_type = self.program.add, node.op_type
        if op_type == "Cast":
            return self._cast(node)
        if ir.DataType.FLOAT16 in map(type_of, elements_of(node)) and op_type not in SHAPING:
            raise _NoStepError
        x, *others = map(self.term, elements_of(node))
        match op_type:
            case "QuantizeLinear":
                return self._quantized(type_of(node.outputs[0]), x, *others)
            case "AffineDequantize":
                return add("Mul", add("Sub", x, others[1]), others[0])
            case "DequantizeLinear":
                return add("Mul", self._moved(x, "Sub", *others[1:]), others[0])
            case "Max" | "Min":
                for other in others:
                    x = add(op_type, x, other)
                return x
            case "Clip":
                return add("Clip", x, *self._bounds(node))
            case "Relu":
                return add("Clip", x, "0.0", "inf")
            case "LeakyRelu":
                return add("LeakyRelu", x, literal(node.attributes.get_float("alpha", 0.01)))
            case "PRelu":
                return add("PRelu", x, others[0])
            case "HardSigmoid":
                return self._hard_sigmoid(x, *(node.attributes.get_float(*each) for each in _HARD_SIGMOID))
            case "HardSwish":
                return add("Mul", x, self._hard_sigmoid(x, 1 / 6, 0.5))
            case "IsNaN":
                return add("Not", add("Equal", x, x))
            case "Where" if (bounded := bounds_of(node.outputs[0])) is not None and bounded.keeps_negative_zero:
                return add("Clip", others[1], literal(bounded.least), literal(bounded.most))
        return x if op_type in SHAPING else add(op_type, x, *others)

    def _quantized(self, dtype: ir.DataType | None, x: str, scale: str, zero_point: str = "0.0") -> str:
        """QuantizeLinear. Its code of NaN is the lowest one."""
        add, code = self.program.add, self.program.add("Div", x, scale)
        if dtype == ir.DataType.UINT8:
            return add("Uint8", self._moved(add("Round", code), "Add", zero_point))
        code = add("Int32", add("Clip", code, *_16_BITS))  # -2**31 of NaN
        return add("Int8", self._moved(code, "Add", zero_point))

    def _moved(self, code: str, operator: str, zero_point: str = "0.0") -> str:
        is_zero = is_literal(zero_point) and float(zero_point) == 0
        return code if is_zero else self.program.add(operator, code, zero_point)

    def _bounds(self, node: ir.Node) -> list[str]:
        """Returns the bounds of a Clip; without one, ONNX Runtime clips floats to the largest finite float."""
        is_float, found = type_of(node.outputs[0]) == ir.DataType.FLOAT, list[str]()
        for value, absent in zip([*node.inputs[1:], None, None], (-MAX_FINITE, MAX_FINITE), strict=False):
            number = constant_scalar(value)
            if value is None:
                number = absent if is_float else math.copysign(math.inf, absent)
            elif (
                number is None
                and self._context.facts.is_constant(value)
                and (array := evaluate(value, self._context.facts)) is not None
            ):
                number = float(array)
            if number is None or math.isnan(number):
                raise _NoStepError
            found.append(literal(number))
        return found

    def _hard_sigmoid(self, x: str, alpha: float, beta: float) -> str:
        if beta == 0:  # ONNX Runtime may return either zero for -0
            raise _NoStepError
        add = self.program.add
        return add("Clip", add("Add", add("Mul", x, literal(alpha)), literal(beta)), "0.0", "1.0")

    def _cast(self, node: ir.Node) -> str:
        source, to = node.inputs[0], cast_to(node)
        assert source is not None
        x, dtype = self.term(source), type_of(source)
        if to in (ir.DataType.FLOAT, dtype) or (to == ir.DataType.INT32 and dtype in CODE_TYPES):
            return x
        if to == ir.DataType.FLOAT16 and dtype == ir.DataType.FLOAT:
            if is_standard(source.producer() or node, "Cast") and source.producer() is not None:
                raise _NoStepError  # ONNX Runtime may remove two adjacent Casts
            return self.program.add(ROUNDINGS[to], x)
        if to == ir.DataType.INT32 and dtype == ir.DataType.FLOAT:
            if node.outputs[0] in self._truncated:
                add = self.program.add
                x = add("Mul", add("Sign", x), add("Floor", add("Abs", x)))
            return self.program.add("Int32", x)
        if to not in CODE_TYPES or dtype not in (ir.DataType.FLOAT, ir.DataType.INT32) or source in self._truncated:
            raise _NoStepError
        if source in self._sums:
            return self._low_byte_of_sum(*self._sums[source], to)
        return self._low_byte(self._casts.get(source, source), to)

    def _low_byte_of_sum(self, integer: ir.Value, number: ir.Value | None, to: ir.DataType) -> str:
        """Returns the low byte of a sum of an integer, a float that is cast to int32, and a number."""
        real = self._values.known(integer)
        added = self._values.known(number)
        code_type = next((each for each, ends in _ENDS.items() if real.fits(*ends)), None)
        if number is None or code_type is None or not _sum_fits(real, added, *_ENDS[to]):
            raise _NoStepError
        add = self.program.add
        return add(ROUNDINGS[to], add("Add", self._low_byte(integer, code_type), self.term(number)))

    def _low_byte(self, real: ir.Value, to: ir.DataType) -> str:
        """Returns the low byte of the integers to which a Cast turns floats: that of NaN and of infinities is 0."""
        x, ends = self.term(real), _ENDS[to]
        of_any = self._context.shared(AnyValues).known(real)
        if not of_any.fits(*ends):
            is_clipped = any(math.isfinite(end) and not ends[0] <= end <= ends[1] for end in (of_any.low, of_any.high))
            # Without a range that shows that codes fit, each element takes more steps than a Cast.
            if not of_any.is_integer or not any(step.operator in REDUCTIONS for step in self.program.steps):
                raise _NoStepError
            is_wrapped = is_clipped or not self._values.known(real).fits(*ends)  # an infinity may become a bound
            if is_wrapped and producer_of(real, *ROUNDING) is None:
                raise _NoStepError
            x = self._wrapped(x, to) if is_wrapped else self._without_infinities(x)
        return self.program.add(ROUNDINGS[to], x)

    def _wrapped(self, x: str, to: ir.DataType) -> str:
        """Returns integers modulo 256, within the bounds of a type; infinities become NaN. All steps are exact."""
        add = self.program.add
        x = add("Sub", x, add("Mul", add("Floor", add("Div", x, "256.0")), "256.0"))
        if to == ir.DataType.UINT8:
            return x
        return add("Where", add("Greater", x, "127.0"), add("Sub", x, "256.0"), x)

    def _without_infinities(self, x: str) -> str:
        """Returns a value with 0 for infinities, as the low byte of the integers that they become."""
        add = self.program.add
        return add("Where", add("Less", add("Abs", x), "inf"), x, "0.0")

    def _check_integers(self, node: ir.Node) -> None:
        """Checks that floats represent the integers that a node computes, also those that NaN becomes.

        A Cast to int32 makes -2**31 of NaN. The sum of it and a small number that is not negative does not wrap around,
        and float32 rounds it as a Cast to float32 does. So a bound or this Cast may follow, but nothing else.

        Raises:
            _NoStepError: This is not known.
        """
        output, op_type, elements = node.outputs[0], node.op_type, elements_of(node)
        dtype = type_of(output)
        integers = [each for each in elements if type_of(each) in (ir.DataType.INT32, *CODE_TYPES)]
        if op_type in (*_OF_FLOATS, *_COMPOSED) and integers:
            raise _NoStepError
        if op_type in _ADDITIVE and dtype in CODE_TYPES:  # they may wrap around
            raise _NoStepError
        if op_type == "Cast" and cast_to(node) == ir.DataType.INT32 and not integers:
            if not self._values.known(elements[0]).is_integer:
                self._truncated.add(output)
                return
            self._casts[output] = elements[0]
        if op_type in SHAPING and elements[0] in self._truncated:
            self._truncated.add(output)
            return
        if op_type in SHAPING and (moved := self._casts.get(elements[0])) is not None:
            self._casts[output] = moved
        if dtype == ir.DataType.INT32:
            real = self._casts.get(output, output)
            numbers = (
                [real] if op_type not in _ADDITIVE else [output, *(self._casts.get(each, each) for each in integers)]
            )
            limit = _MAX_INTEGER if op_type in _ADDITIVE else math.inf
            if not all(self._values.known(each).fits(-limit, limit) for each in numbers):
                raise _NoStepError
        of_nan = [each for each in integers if each in self._casts or each in self._sums or each in self._truncated]
        if not of_nan or op_type == "Cast":
            return
        if op_type in SHAPING:
            if output not in self._casts:
                self._sums[output] = self._sums[elements[0]]
        elif op_type in SUMS:
            other = self._values.known(next((each for each in elements if each not in of_nan), None))
            is_small = other.low >= 0 if op_type == "Add" else other.high <= 0 and elements[0] in of_nan
            if not is_small or not set(of_nan) <= self._casts.keys() or len(of_nan) > 1:
                raise _NoStepError
            number = next((each for each in elements if each not in of_nan), None)
            self._sums[output] = self._casts[of_nan[0]], number if op_type == "Add" else None
        elif op_type not in _BOUNDS - {"Min"} or self._least(node, of_nan) < -_MAX_INTEGER:
            raise _NoStepError

    def _least(self, node: ir.Node, unbounded: list[ir.Value]) -> float:
        """Returns the lower bound that a Clip, Relu or Max gives to one of its operands."""
        if node.op_type == "Max":
            return max(
                (self._values.known(each).low for each in elements_of(node) if each not in unbounded), default=-math.inf
            )
        return 0 if node.op_type == "Relu" else float(self._bounds(node)[0])


def _sum_fits(a: Interval, b: Interval, low: int, high: int) -> bool:
    """Returns whether the sums of integers fit bounds."""
    return a.is_integer and b.is_integer and low <= a.low + b.low and a.high + b.high <= high
