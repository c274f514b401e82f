"""The steps that change scores of attention: scalars, masks, biases and soft caps, and their sum."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from ..analysis.shape_arithmetic import known_number
from ..analysis.values import Values
from ..views import Axes, Nodes, View

_MAX_MASK = -1e20  # such a number or a lower one absorbs a score that it is added to
MAX_NUMBER = -9e3  # scores are far from it: a mask that adds it hides them from rows with keys
_ABSORBING = -1e30  # in place of larger numbers of masks: rows without keys become means of all values, as in the model


@dataclass(frozen=True)
class Given:
    """A value that changes scores, to which it is broadcast. Steps of layers with different axes may be equal.

    Attributes:
        value: The value.
        axes: The factors of its axes.
        is_proven: Whether its other axes are known to be as long as those of the scores.
    """

    value: ir.Value
    axes: Axes = field(default=(), compare=False)
    is_proven: bool = field(default=False, compare=False)

    @property
    def view(self) -> View:
        """The value as a view."""
        return View(self.value, self.axes)


@dataclass(frozen=True)
class Scalar(Given):
    """A number by which scores are multiplied or divided; or several."""

    divides: bool = False


@dataclass(frozen=True)
class Added(Given):
    """A bias that is added to scores, or subtracted; `is_half`: the sums become float16."""

    is_half: bool = False
    subtracts: bool = False


@dataclass(frozen=True)
class Masked(Given):
    """A condition: scores stay where it is `keeps`, and become `number` elsewhere."""

    keeps: bool = True
    number: float = -math.inf


@dataclass(frozen=True)
class Padding(Given):
    """Keys that are padding.

    Attributes:
        value: Integers: a mask [B, T] or [B, S, T], 0 for padding, or the counts [B] of keys that are none.
        number: What is added to their scores.
        more: Counts are this much less than the number of keys; None for a mask.
    """

    number: float = -math.inf
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


def split_scalars(scalars: Iterable[Scalar], factor: float = 1.0) -> tuple[float, tuple[Scalar, ...]]:
    """Returns the product of a factor and the scalars that are known before run time, as float32, and the others."""
    numbers = [(each, known_number(each.value)) for each in scalars]
    known = [(1 / n if n else math.inf) if each.divides else n for each, n in numbers if n is not None]
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(math.prod([*known, factor]))), tuple(each for each, n in numbers if n is None)


def times(number: float, scalars: Iterable[Scalar], nodes: Nodes) -> ir.Value:
    """Returns a number, multiplied or divided by the scalars that are computed at run time; float32."""
    scale = nodes.constant(np.float32(number))
    for scalar in scalars:
        value = nodes.cast(scalar.value, ir.DataType.FLOAT)
        scale = nodes.add("Div" if scalar.divides else "Mul", scale, value)
    return scale


def split_steps(steps: Sequence[Step]) -> tuple[tuple[Scalar, ...], float | None, Steps]:
    """Returns the scalars that multiply scores, the soft cap of them, and the other steps.

    A scalar behind another step multiplies all before it. The cap is 0 if there is none, and None if it is no number.
    """
    rest = tuple(itertools.dropwhile(lambda step: isinstance(step, Scalar), steps))
    scalars = tuple(step for step in steps if isinstance(step, Scalar))
    if not any(isinstance(step, Tanh) for step in rest):
        return scalars, 0, rest
    caps = [step for step in rest[1:2] if isinstance(step, Scalar) and isinstance(rest[0], Tanh)]
    is_last = not any(isinstance(step, Scalar | Tanh) for step in rest[2:])
    cap, unknown = split_scalars(caps)
    return scalars, cap if caps and is_last and not unknown and 0 < cap < math.inf else None, rest[2:]


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
                factor, others = split_scalars([step])
                low = np.float32(-np.inf if others else low * factor)
    return not low > -np.inf


def sum_of(steps: Steps, nodes: Nodes, *, is_exact: bool = False) -> ir.Value:
    """Returns what the steps make of scores of 0.

    `is_exact`: whether numbers of masks take the place of scores, and need not absorb them.
    """
    total: ir.Value | None = None
    for step in steps:
        if isinstance(step, Masked):
            scores = nodes.constant(np.float32(0)) if total is None else total
            number = step.number if is_exact or step.number <= _MAX_MASK else _ABSORBING
            choices = [scores, nodes.constant(np.float32(number))]
            total = nodes.add("Where", step.value, *(choices if step.keeps else reversed(choices)))
        elif isinstance(step, Added) and total is None:
            total = nodes.add("Neg", step.value) if step.subtracts else step.value
        elif isinstance(step, Added) and total is not None:
            total = nodes.add("Sub" if step.subtracts else "Add", total, step.value)
        elif isinstance(step, Scalar) and total is not None:
            total = nodes.add("Div" if step.divides else "Mul", total, step.value)
        elif isinstance(step, Floor) and total is not None:
            total = nodes.add("Max", total, np.float32(step.number))
    assert total is not None
    return total
