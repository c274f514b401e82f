"""Where a program does not have the model's sign of a zero.

Of two zeros, Max and Min give either: ONNX Runtime's answer depends on the place in the tensor. Most often, the sign
has no effect: a bound, a code or a sum follows, or it divides numbers that are 0, too. Otherwise the node is not a
step.

Example: Max(x, 0) may be -0 or 0 for x = -0. Add(.., 128) of it is a step, and Reciprocal of it is none.
"""

from __future__ import annotations

from ...operators.program import Program, Step, is_literal
from ..analysis.standard import BOUNDING, CHOOSING, COMPARISONS, DIVIDING, EXTREMES, LOGIC, RANGES, SCALING, SUMS

_NEVER_NEGATIVE = COMPARISONS | LOGIC | {"Abs", "Sign"} | {"Int8", "Int32", "Uint8"}


class Signs:
    """What is known of the zeros among the values of a program, step by step.

    Attributes:
        are_divisors: Whether a quotient depends on the sign of an unknown zero.
    """

    def __init__(self, program: Program) -> None:
        """Begins with a program without steps."""
        self.are_divisors = False
        self._program = program
        self._seen = 0
        self._either: set[str] = set()  # values with zeros that may have either sign
        self._positive: set[str] = set()  # values that are never -0
        self._vanishing: dict[str, set[str]] = {}  # the values that are 0 or NaN where a range of them is 0
        self._of_zeros: set[str] = set()  # values with zeros that may have either sign only where a whole row is zeros

    def are_known(self, value: str) -> bool:
        """Returns whether the zeros of a value have the signs that the model's zeros have.

        The scale of a row of zeros may have either sign if there is no epsilon: numerics.md has this exception.
        """
        return value not in self._either or value in self._of_zeros

    def origins(self) -> list[str]:
        """Returns the values with zeros that may have either sign, although the zeros of no operand have."""
        return [each for each in self._either if self._either.isdisjoint(self._program.steps[int(each[1:])].operands)]

    def follow(self) -> bool:
        """Reads the steps that were added; returns whether no quotient depends on the sign of an unknown zero."""
        while self._seen < len(self._program.steps):
            step, value = self._program.steps[self._seen], f"v{self._seen}"
            self._seen += 1
            divisor = step.operands[-1] if step.operator in DIVIDING else ""
            if divisor in self._either and self._unsigned(step.operands[0]) not in self._vanishing.get(divisor, ()):
                self.are_divisors = True
                return False
            if vanishing := self._vanishing_with(step):
                self._vanishing[value] = vanishing
            if self._is_positive(step):
                self._positive.add(value)
            elif self._may_be_either(step):
                self._either.add(value)
                if self._is_of_zeros(step):
                    self._of_zeros.add(value)
        return True

    def _is_of_zeros(self, step: Step) -> bool:
        """Returns whether the sign of a result is unknown only because that of max(x, 0) - min(x, 0) is."""
        if step.operator not in SCALING | {"Clip", "Float16"} and self._vanishing_with(step) - {*step.operands}:
            return True
        unknown = [each for each in step.operands if each in self._either]
        is_choice = step.operator in CHOOSING
        return bool(unknown) and not is_choice and all(each in self._of_zeros for each in unknown)

    def _vanishing_with(self, step: Step) -> set[str]:
        """Returns what is 0 or NaN where a step's value is 0, unless the value is too small for float32."""
        operator, operands = step
        if operator in ("Clip", "Float16") or (operator in SCALING and any(map(is_literal, operands))):
            return next((self._vanishing[each] for each in operands if each in self._vanishing), set())
        if operator == "Sub":  # of max(x, 0) and min(x, 0)
            ends = [self._end(operands[0], "Max"), self._end(operands[1], "Min")]
            return {*operands, *({ends[0]} & {ends[1]})} if all(ends) else set()
        if operator == "Max":  # of min(x) / -128 and max(x) / 127: both are 0 where x is
            sides = {*map(self._side, operands)}
            return {x for _, x in sides} if {bound for bound, _ in sides} == EXTREMES else set()
        return set()

    def _unsigned(self, value: str) -> str:
        """Returns v of -v and of 0 - v, or `value`."""
        step = self._program.step(value)
        is_negated = step is not None and (
            step.operator == "Neg" or (step.operator == "Sub" and step.operands[0] == "0.0")
        )
        return step.operands[-1] if step is not None and is_negated else value

    def _end(self, value: str, bound: str) -> str:
        """Returns x, or another text, if a value is max(x, 0) or min(x, 0) over a row; else an empty text."""
        step = self._program.step(value)
        if step is None or step.operator != bound or "0.0" not in step.operands:
            return ""
        inner = self._program.step(next((each for each in step.operands if each != "0.0"), "x"))
        is_range = inner is not None and inner.operator == f"Reduce{bound}"
        return inner.operands[0] if inner is not None and is_range else bound

    def _side(self, value: str) -> tuple[str, str]:
        """Returns "Min" and x if a value is a negative multiple of the minimum of x, "Max" and x if one of its maximum.

        Otherwise two empty texts.
        """
        step = self._program.step(value)
        sign = 1.0
        if step is not None and step.operator == "Neg":
            sign, value = -1.0, step.operands[0]
        elif step is not None and step.operator == "Div" and is_literal(step.operands[1]):
            sign, value = float(step.operands[1]), step.operands[0]
        range_ = self._program.step(value)
        if range_ is None or range_.operator != ("ReduceMax" if sign > 0 else "ReduceMin"):
            return "", ""
        return range_.operator.removeprefix("Reduce"), range_.operands[0]

    def _is_positive(self, step: Step) -> bool:
        are_positive = [each in self._positive or (is_literal(each) and each != "-0.0") for each in step.operands]
        if step.operator in _NEVER_NEGATIVE:
            return True
        if step.operator == "Add":
            return any(are_positive)
        if step.operator in BOUNDING | RANGES | {"Sqrt"}:
            return all(are_positive)
        if step.operator == "Sub":
            return are_positive[0]
        is_mixed = self._program.is_mixed_choice(step)
        return step.operator == "Where" and are_positive[2] and (are_positive[1] or not is_mixed)

    def _may_be_either(self, step: Step) -> bool:
        operator, operands = step
        if operator in _NEVER_NEGATIVE:
            return False
        is_nonzero = [is_literal(each) and float(each) != 0 for each in operands]
        if operator in EXTREMES:
            if any(is_nonzero):  # the other operand decides only if it is on the literal's other side of zero
                bound = float(operands[is_nonzero.index(True)])
                return (bound < 0) == (operator == "Max") and any(each in self._either for each in operands)
            return True
        if operator in SUMS and any(is_nonzero):
            return False
        if operator == "Clip" and (float(operands[1]) > 0 or float(operands[2]) < 0):
            return False
        if self._program.is_mixed_choice(step):  # the model's operands may have other shapes
            return True
        if operator == "Where":  # it adds 0 to its second operand
            return operands[2] in self._either and not self._is_where_0(operands[0], operands[2])
        if operator == "Div":  # the quotient is NaN where the divisor is 0: see follow()
            return operands[0] in self._either
        return any(each in self._either for each in operands)

    def _is_where_0(self, condition: str, value: str) -> bool:
        """Returns whether a condition is known to be true where a value is 0."""
        step = self._program.step(condition)
        if step is None or step.operator not in COMPARISONS:
            return False
        a, b = step.operands[::-1] if step.operator.startswith("Greater") else step.operands
        if step.operator == "Equal":
            return value in (a, b) and not {a, b}.isdisjoint(("0.0", "-0.0"))
        return a == value and is_literal(b) and float(b) > 0
