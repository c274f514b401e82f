"""The steps that change scores of attention: scalars, masks, biases and soft caps, and their sum."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..analysis.shape_arithmetic import known_number
from ..analysis.values import Values
from ..edit import Edit
from ..views import Axes

MAX_MASK = -1e20  # such a number or a lower one absorbs a score that it is added to
MAX_NUMBER = -9e3  # scores are far from it: a mask that adds it hides them from rows with keys
_ABSORBING = -1e30  # in place of larger numbers of masks: rows without keys become means of all values, as in the model


@dataclass(frozen=True)
class Scalar:
    """A number by which scores are multiplied or divided; or several, with axes of these factors, as of a bias."""

    value: ir.Value
    divides: bool
    axes: Axes = field(default=(), compare=False)


@dataclass(frozen=True)
class Added:
    """A bias that is added to scores, or subtracted.

    Attributes:
        value: The bias.
        axes: The factors of its axes, as many as scores have; an axis of length 1 has none.
        is_proven: Whether its other axes are known to be as long as those of the scores.
        is_half: Whether the sums become float16.
        subtracts: Whether it is subtracted.
    """

    value: ir.Value
    axes: Axes = field(default=(), compare=False)
    is_proven: bool = field(default=False, compare=False)
    is_half: bool = False
    subtracts: bool = False


@dataclass(frozen=True)
class Masked:
    """A condition: scores stay where it is `keeps`, and become `number` elsewhere. Others as of a bias."""

    value: ir.Value
    keeps: bool
    number: float
    axes: Axes = field(default=(), compare=False)
    is_proven: bool = field(default=False, compare=False)


@dataclass(frozen=True)
class Padding:
    """Keys that are padding: a number is added to their scores.

    Attributes:
        value: Integers: a mask, 0 for padding, or the counts of keys that are none.
        number: What is added.
        axes: The factors of the axes of a mask, [B, T] or [B, S, T]. Counts have one for each sample.
        more: Counts are this much less than the number of keys; None for a mask.
    """

    value: ir.Value
    number: float
    axes: Axes = field(default=(), compare=False)
    more: int | None = None


@dataclass(frozen=True)
class Floor:
    """Scores that are lower become a number."""

    number: float


@dataclass(frozen=True)
class Tanh:
    """The function of a soft cap."""


Step = Scalar | Added | Masked | Padding | Floor | Tanh
Steps = tuple[Step, ...]


def split_scalars(scalars: Iterable[Scalar]) -> tuple[list[float], tuple[Scalar, ...]]:
    """Returns the factors that are known before run time, and the other scalars."""
    constants, others = [], []
    for scalar in scalars:
        number = known_number(scalar.value)
        if number is None:
            others.append(scalar)
        elif scalar.divides:
            constants.append(1 / number if number else math.inf)
        else:
            constants.append(number)
    return constants, tuple(others)


def factor_of(constants: list[float]) -> float:
    """Returns the product of factors as float32."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(math.prod(constants)))


def times(number: float, scalars: tuple[Scalar, ...], edit: Edit, before: ir.Node) -> ir.Value:
    """Returns a number, multiplied or divided by the scalars that are computed at run time; float32."""
    scale = edit.add_constant(np.float32(number), before=before)
    for scalar in scalars:
        value = scalar.value
        if value.dtype != ir.DataType.FLOAT:
            value = edit.insert(ir.node("Cast", [value], {"to": int(ir.DataType.FLOAT)}), before=before)
        scale = edit.insert(ir.node("Div" if scalar.divides else "Mul", [scale, value]), before=before)
    return scale


def split_steps(steps: Sequence[Step]) -> tuple[list[Scalar], float | None, Steps]:
    """Returns the scalars that multiply scores, the soft cap of them, and the other steps.

    A scalar behind another step multiplies all before it. The cap is 0 if there is none, and None if it is no number.
    """
    first = next((i for i, step in enumerate(steps) if not isinstance(step, Scalar)), len(steps))
    scalars, rest = [step for step in steps if isinstance(step, Scalar)], tuple(steps[first:])
    if not any(isinstance(step, Tanh) for step in rest):
        return scalars, 0, rest
    caps = [step for step in rest[1:2] if isinstance(step, Scalar) and isinstance(rest[0], Tanh)]
    numbers, _ = split_scalars(caps)
    is_number = len(numbers) == 1 and numbers[0] > 0 and math.isfinite(numbers[0])
    is_last = not any(isinstance(step, Scalar | Tanh) for step in rest[2:])
    return scalars, numbers[0] if is_number and is_last else None, rest[2:]


def may_mask_rows(steps: Iterable[Step], values: Values) -> bool:
    """Returns whether the sum of the steps may be -inf."""
    low = np.float32(0)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in steps:
            if isinstance(step, Masked):
                low = min(low, np.float32(step.number))
            elif isinstance(step, Padding):
                low = np.float32(low + np.float32(step.number))
            elif isinstance(step, Added):
                known = values.known(step.value)
                low = np.float32(low + np.float32(-known.high if step.subtracts else known.low))
            elif isinstance(step, Floor):
                low = max(low, np.float32(step.number))
            elif isinstance(step, Scalar) and low:
                constants, others = split_scalars([step])
                low = np.float32(-np.inf) if others else np.float32(low * factor_of(constants))
    return not low > -np.inf


def sum_of(steps: Steps, edit: Edit, *, is_exact: bool = False) -> ir.Value:
    """Returns what the steps make of scores of 0.

    `is_exact`: whether numbers of masks take the place of scores, and need not absorb them.
    """
    before = edit.node
    total: ir.Value | None = None
    for step in steps:
        if isinstance(step, Masked):
            scores = edit.add_constant(np.float32(0), before=before) if total is None else total
            masked = edit.add_constant(np.float32(step.number if is_exact else absorbing(step.number)), before=before)
            choices = [scores, masked] if step.keeps else [masked, scores]
            total = edit.insert(ir.node("Where", [step.value, *choices]), before=before)
        elif isinstance(step, Added):
            if total is None and not step.subtracts:
                total = step.value
            elif total is None:
                total = edit.insert(ir.node("Neg", [step.value]), before=before)
            else:
                total = edit.insert(ir.node("Sub" if step.subtracts else "Add", [total, step.value]), before=before)
        elif isinstance(step, Scalar) and total is not None:
            total = edit.insert(ir.node("Div" if step.divides else "Mul", [total, step.value]), before=before)
        elif isinstance(step, Floor) and total is not None:
            lowest = edit.add_constant(np.float32(step.number), before=before)
            total = edit.insert(ir.node("Max", [total, lowest]), before=before)
    assert total is not None
    return total


def absorbing(number: float) -> float:
    """Returns a number of a mask that absorbs all scores to which it is added, as the mask replaces them."""
    return number if number <= MAX_MASK else _ABSORBING
