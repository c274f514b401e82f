"""The forms of a layer, from the fastest one to float, and the order in which layers climb from one to the next.

A step to a better form removes noise from the outputs and costs time. Both are measured: the noise of each layer alone
in each form, and the time of each layer in a model that has all layers in this form. The first steps are those that
remove the most noise for their time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...quantizer.options import Forms
from ..accuracy.layers import LayerAccuracy
from ..measuring.profile import Profile

# What a multiplication costs more than one of 8-bit integers, and what a weight costs more that is read as a float.
_TWO_TERMS_COST, _WORDS_COST, _FLOAT_COST, _FLOAT_WEIGHT_COST = 0.5, 0.6, 1.0, 16.0
_MIN_COST = 1e-9  # of a step that takes no time, so that its noise alone decides
_FUSED = ("/", "_nchwc")  # what ONNX Runtime appends to the name of a node that it fuses or moves to another layout


class Rung(NamedTuple):
    """A form that layers can get instead of the one that the options give.

    Attributes:
        name: Its name for users.
        field: The field of :class:`Forms` with the layers that have it.
        has: Returns whether a quantized layer has this form.
        cost: Estimates the time that a layer takes more than with 8 bits, in multiplications of 8-bit integers.
    """

    name: str
    field: str
    has: Callable[[LayerAccuracy], bool]
    cost: Callable[[LayerAccuracy], float]


TWO_TERMS = Rung(
    "two terms",
    "two_terms",
    lambda layer: layer.terms == 2,
    lambda layer: _TWO_TERMS_COST * max(1, layer.multiplications),
)
WORDS = Rung("words", "words", lambda layer: layer.has_words, lambda layer: _WORDS_COST * max(1, layer.multiplications))
FLOAT = Rung(
    "float",
    "floats",
    lambda layer: False,
    lambda layer: _FLOAT_COST * max(1, layer.multiplications) + _FLOAT_WEIGHT_COST * layer.reads,
)
RUNGS = (TWO_TERMS, WORDS, FLOAT)
"""The forms above the one that the options give, the fastest first; a new form is one more element."""


def number_of_form(layer: LayerAccuracy) -> int:
    """Returns the number of the rung that a quantized layer is on, from 1 on; 0 below them."""
    return next((number for number, rung in enumerate(RUNGS, 1) if rung.has(layer)), 0)


class FormStep(NamedTuple):
    """A step of a layer to another form.

    Attributes:
        order: The harm of its form before, see :attr:`LayerAccuracy.order`, and the number of that rung.
        name: The layer.
        rung: Its form now.
        harm_removed: The noise of the outputs that it removes / their signal.
        cost: The time that it adds.
    """

    order: tuple[float, float, int]
    name: str
    rung: Rung
    harm_removed: float
    cost: float

    @property
    def worth(self) -> float:
        """The noise that it removes for its time."""
        return self.harm_removed / self.cost


Times = Mapping[str, Mapping[str, float]]
"""The milliseconds of each layer by the name of its form; that of the options has an empty name."""


def steps_of(
    layers: Sequence[LayerAccuracy], better: Mapping[str, Mapping[str, LayerAccuracy]], times: Times | None = None
) -> list[FormStep]:
    """Returns the steps of all layers from the form that the options give to float, the most worth first.

    Among equal ones, as those of layers that are not measured, the step from the most harmful form is the first.

    Args:
        layers: The layers in the form that the options give.
        better: The same layers on the rungs below float that they can have, by the name of the rung.
        times: The measured times; None for estimates.
    """
    return sorted((step for each in layers for step in _climb(each, better, times)), key=lambda s: (-s.worth, s.order))


def _climb(
    layer: LayerAccuracy, better: Mapping[str, Mapping[str, LayerAccuracy]], times: Times | None
) -> list[FormStep]:
    """Returns the steps of a layer: from each form to the one that is worth the most, up to float."""
    harm, order, rung, cost = _harm(layer), layer.order, 0, 0.0
    steps = []
    while rung < len(RUNGS):
        found = []
        for number, each in enumerate(RUNGS[rung:], rung + 1):
            on_rung = better.get(each.name, {}).get(layer.name)
            if each is not FLOAT and (on_rung is None or (on_rung.order <= order and on_rung.snr_db is not None)):
                continue
            left = 0.0 if on_rung is None else min(harm, _harm(on_rung))
            total = _cost(layer, each, times)
            step = FormStep((*order, rung), layer.name, each, max(harm - left, 0.0), max(total - cost, _MIN_COST))
            found.append((step, number, left, (order if on_rung is None else on_rung.order), total))
        # The nearest one if several are worth the same: what follows may be worth it too.
        step, rung, harm, order, cost = max(found, key=lambda each: (each[0].worth, -each[1]))
        steps.append(step)
    return steps


def _harm(layer: LayerAccuracy) -> float:
    """Returns the noise that a layer causes in the outputs / their signal; 0 if it is not known."""
    return 0.0 if layer.output_snr_db is None else 10 ** (min(-layer.output_snr_db, 3000.0) / 10)


def _cost(layer: LayerAccuracy, rung: Rung, times: Times | None) -> float:
    """Returns the time that a layer takes on a rung more than as the options give it."""
    if times is None or layer.name not in times.get(rung.name, {}):
        return rung.cost(layer)
    return times[rung.name][layer.name] - times[""].get(layer.name, 0.0)


def last_of_layers(steps: Sequence[FormStep]) -> list[FormStep]:
    """Returns one step for each layer, to the form after its last step, which removes what all of its steps remove."""
    found: dict[str, FormStep] = {}
    for step in steps:
        if (before := found.get(step.name)) is not None:
            harm_removed = before.harm_removed + step.harm_removed
            found[step.name] = before._replace(rung=step.rung, harm_removed=harm_removed)
        else:
            found[step.name] = step
    return list(found.values())


def forms_of(steps: Sequence[FormStep]) -> Forms:
    """Returns the forms after some steps."""
    last = {step.name: step.rung for step in steps}
    return Forms(**{each.field: frozenset(name for name, rung in last.items() if rung is each) for each in RUNGS})


def times_of_layers(found: Profile, layers: Sequence[LayerAccuracy]) -> dict[str, float]:
    """Returns the milliseconds of each layer in a profile.

    What the nodes of layers do not take, such as quantizations, is divided among the layers by their multiplications:
    between two forms of a model, this part differs by what the layers around the products need.
    """
    weights = {each.name: max(1, each.multiplications) for each in layers}
    times = dict.fromkeys(weights, 0.0)
    for node in found.nodes:
        name = node.name if node.name in times else next((n for n in times if _is_fused(node.name, n)), None)
        if name is not None:
            times[name] += node.ms
    rest = (found.run_ms - sum(times.values())) / max(1, sum(weights.values()))
    return {name: ms + rest * weights[name] for name, ms in times.items()}


def _is_fused(node: str, layer: str) -> bool:
    return bool(layer) and node.startswith(layer) and node[len(layer) :].startswith(_FUSED)
