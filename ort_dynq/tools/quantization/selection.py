"""Selects the layers that get two terms or stay in float, so that the outputs reach a signal-to-noise ratio.

A change of a layer's form removes noise and costs time. The noise is measured. The time is estimated, in
multiplications of 8-bit integers: so the same data give the same model on every CPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import DynqError
from ...graphs import graphs, label, named
from ...quantizer.options import Forms
from ...rewriter import Result
from ...rewriter.normal_form import inlined_if_possible
from ...storage import load
from ..accuracy import LayerAccuracy, Reference, measure_outputs, worst_snr
from ..accuracy.layers import is_layer, measure_layers, product_of
from ..accuracy.outputs import running
from ..measuring.plain import plain
from ..measuring.profile import computing_nodes
from ..measuring.progress import Track
from ..measuring.timing import Speed, latencies, session_contender, speed
from ..verification.rounded import terms_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...backends.options import Backend

# What a multiplication costs more than one of 8-bit integers, and what a weight costs more that is read as a float.
_TWO_TERMS_COST, _FLOAT_COST, _FLOAT_WEIGHT_COST = 0.5, 1.0, 16.0


@dataclass(frozen=True)
class Layer:
    """A layer that gets two terms or stays in float.

    Attributes:
        stays_float: Whether it stays in float.
        one_term: Its ratios in the form that the options give, if they do not give two terms.
        two_terms: Its ratios with two terms; None if it cannot have them.
    """

    stays_float: bool
    one_term: LayerAccuracy | None
    two_terms: LayerAccuracy | None

    @property
    def name(self) -> str:
        """The name of its node."""
        found = self.one_term or self.two_terms
        assert found is not None
        return found.name


@dataclass(frozen=True)
class Selection:
    """The quantized model whose outputs reach a signal-to-noise ratio.

    Attributes:
        result: The model and its report.
        layers: The layers that get two terms or stay in float for it, the worst first.
        not_measured: The names of the layers that no data reached. They are quantized as the options say.
        all_quantized: The model with all layers quantized as the options say.
        all_snr_db: The smallest ratio of an output of that model, in decibels.
        snr_db: The smallest ratio of an output of the result, in decibels.
    """

    result: Result
    layers: tuple[Layer, ...]
    not_measured: tuple[str, ...]
    all_quantized: ir.Model
    all_snr_db: float
    snr_db: float

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON: the names of the layers and the ratios."""
        return {
            "two_terms": [each.name for each in self.layers if not each.stays_float],
            "floats": [each.name for each in self.layers if each.stays_float],
            "not_measured": list(self.not_measured),
            **{name: plain(getattr(self, name)) for name in ("all_snr_db", "snr_db")},
        }


def select(
    reference: Reference,
    quantize: Callable[[Forms], Result],
    min_snr: float,
    *,
    backend: Backend = "native",
    track: Track = iter,
) -> Selection:
    """Gives each layer one term, two terms or float, so that each output reaches `min_snr` at little cost of time.

    The harm that each layer alone does to the outputs is measured once with one term, and once with two
    (:attr:`LayerAccuracy.output_snr_db`). The steps to better forms are sorted by the noise that they remove for their
    time. Bisection finds how many of them reach `min_snr`, then how many of those that remove the least can be taken
    back. So about 2 * log2(2 * layers) models are made and run. Layers that cannot be measured, such as those in
    subgraphs, come last. Those that no data reached keep their form.

    Args:
        reference: The outputs of the float model.
        quantize: Quantizes the model, with other forms for the layers of these names.
        min_snr: The ratio in decibels that each output must reach over all data.
        backend: How the sessions get the operators.
        track: Shows the progress.

    Raises:
        DynqError: No output has a ratio, only the float model reaches `min_snr`, or even the float model does not.
    """
    if not math.isfinite(min_snr):
        raise DynqError(f"min_snr is {min_snr}, expected a number of decibels")

    def snr_of(model: ir.Model) -> float:
        with running():
            return worst_snr(measure_outputs(reference, model, backend=backend))

    def layers_of(model: ir.Model) -> dict[str, LayerAccuracy]:
        with running():
            layers, _ = measure_layers(reference, load(model), backend=backend, track=track)
        return {**{each.name: each for each in layers}, **_others(model, {each.name for each in layers})}

    start = iter(track(["quantizing all layers"]))
    next(start)
    first = quantize(Forms())
    with running():
        outputs = measure_outputs(reference, first.model, backend=backend)
    if all(each.snr_db is None for each in outputs):
        raise DynqError("min_snr needs an output that has finite floats on the data; the model has none")
    first_snr, idle = worst_snr(outputs), _idle_layers(reference, first.model)
    next(start, None)
    if first_snr >= min_snr:
        return Selection(first, (), idle, first.model, first_snr, first_snr)
    if (float_snr := snr_of(load(reference.model))) < min_snr:
        raise DynqError(
            f"min_snr is {min_snr:g} dB, but the float model itself has {float_snr:.1f} dB between ONNX Runtime's "
            "optimization levels; choose a smaller one"
        )
    layers = layers_of(first.model)
    if embeddings := [each.node for each in first.report.rewritten if each.operator == "DynamicDequantize"]:
        # All of them at once, without products: their noise is small.
        joint = snr_of(quantize(Forms(floats=frozenset(layers))).model)
        layers |= {name: LayerAccuracy(name, "DynamicDequantize", None, joint) for name in embeddings}
    products = frozenset(each.name for each in layers.values() if each.terms == 1 and product_of(each.operator))
    with_two_terms: dict[str, LayerAccuracy] = {}
    if products:
        found = layers_of(quantize(Forms(products, frozenset(layers) - products)).model)
        with_two_terms = {name: each for name, each in found.items() if each.terms == 2}
    steps = _steps([each for name, each in layers.items() if name not in idle], with_two_terms)
    result, snr = None, first_snr

    def suffices(forms: Forms) -> bool:
        nonlocal result, snr
        candidate = quantize(forms)
        if (candidate_snr := snr_of(candidate.model)) >= min_snr:
            result, snr = candidate, candidate_snr
            return True
        return False

    runs = math.ceil(math.log2(max(2, len(steps))))
    shown = iter(track([f"choosing forms, run {i + 1}" for i in range(2 * runs)]))
    # All steps leave only idle layers quantized.
    high = _bisect(len(steps), lambda count: suffices(_forms(steps[:count])), shown)
    if result is None and idle:
        suffices(_forms(steps))
    useful = sorted(_last_of_layers(steps[:high]), key=lambda step: -step.harm_removed)
    kept = useful[: _bisect(len(useful), lambda count: suffices(_forms(useful[:count])), shown)]
    for _ in shown:  # the rest
        pass
    if result is None:
        raise DynqError(f"the outputs reach {min_snr:g} dB only if every layer stays in float; choose a smaller one")
    chosen = {step.name: step.stays_float for step in sorted(kept, key=lambda step: step.order)}
    selected = tuple(
        Layer(stays_float, None, layers[name])
        if layers[name].terms == 2
        else Layer(stays_float, layers[name], with_two_terms.get(name))
        for name, stays_float in chosen.items()
    )
    return Selection(result, selected, idle, first.model, first_snr, snr)


class _Step(NamedTuple):
    """The next form of a layer.

    Attributes:
        order: The harm of its form before, see :attr:`LayerAccuracy.order`, and whether that has two terms.
        name: The layer.
        stays_float: Whether it stays in float now; otherwise it gets two terms.
        harm_removed: The noise of the outputs that it removes / their signal.
        cost: The estimated time that it adds.
    """

    order: tuple[float, float, bool]
    name: str
    stays_float: bool
    harm_removed: float
    cost: float

    @property
    def worth(self) -> float:
        return self.harm_removed / self.cost


def _steps(layers: Sequence[LayerAccuracy], with_two_terms: Mapping[str, LayerAccuracy]) -> list[_Step]:
    """Returns the steps from the form that the options give to float, those first that remove the most for their cost.

    Among equal ones, as those of layers that are not measured, the step from the most harmful form is the first.
    """
    steps = []
    for layer in layers:
        of_two, of_float = _costs(layer)
        harm, order = _harm(layer), (*layer.order, False)
        better = with_two_terms.get(layer.name)
        if better is not None and (better.order > layer.order or better.snr_db is None):
            left = min(harm, _harm(better))
            first = _Step(order, layer.name, False, harm - left if harm > left else 0.0, of_two)
            last = _Step((*better.order, True), layer.name, True, left, of_float - of_two)
            if last.worth <= first.worth:  # otherwise float is the better form for any time
                steps += [first, last]
                continue
        steps.append(_Step(order, layer.name, True, harm, of_float))
    return sorted(steps, key=lambda step: (-step.worth, step.order))


def _harm(layer: LayerAccuracy) -> float:
    """Returns the noise that a layer causes in the outputs / their signal; 0 if it is not known."""
    return 0.0 if layer.output_snr_db is None else 10 ** (min(-layer.output_snr_db, 3000.0) / 10)


def _costs(layer: LayerAccuracy) -> tuple[float, float]:
    """Returns the estimated time that two terms and floats add."""
    products = max(1, layer.multiplications)
    return _TWO_TERMS_COST * products, _FLOAT_COST * products + _FLOAT_WEIGHT_COST * layer.reads


def _last_of_layers(steps: Sequence[_Step]) -> list[_Step]:
    """Returns one step for each layer, to the form after its last step, which removes what all of its steps remove."""
    found: dict[str, _Step] = {}
    for step in steps:
        if (before := found.get(step.name)) is not None:
            harm_removed = before.harm_removed + step.harm_removed
            found[step.name] = before._replace(stays_float=step.stays_float, harm_removed=harm_removed)
        else:
            found[step.name] = step
    return list(found.values())


def _bisect(high: int, suffices: Callable[[int], bool], shown: Iterator[Any]) -> int:
    """Returns the smallest count up to `high` that suffices, if more of them always do; 0 does not, `high` does."""
    low = 0
    while high - low > 1:
        next(shown, None)
        middle = (low + high) // 2
        if suffices(middle):
            high = middle
        else:
            low = middle
    return high


def _forms(steps: Sequence[_Step]) -> Forms:
    """Returns the forms after some steps."""
    floats = frozenset(step.name for step in steps if step.stays_float)
    return Forms(frozenset(step.name for step in steps) - floats, floats)


def _others(model: ir.Model, measured: set[str]) -> dict[str, LayerAccuracy]:
    """Returns the quantized layers of a model that are not among the measured ones."""
    found = {}
    for _, graph in graphs(model):
        for node in graph:
            product = product_of(node.op_type) if is_layer(node) else None
            if product is not None and label(node) not in measured:
                found[label(node)] = LayerAccuracy(label(node), product, None, terms=terms_of(node))
    return found


def _idle_layers(reference: Reference, model: ir.Model) -> tuple[str, ...]:
    """Returns the names of the quantized layers that compute no element on the data in the float model."""
    original = named(inlined_if_possible(load(reference.model)))
    # ONNX Runtime runs nodes of functions under other names.
    names = {node.name for path, graph in graphs(original) if not path.startswith("function") for node in graph}
    idle = names - computing_nodes(original, reference.data.sets)
    return tuple(name for name in _others(model, set()) if name in idle)


def cost(selection: Selection, reference: Reference, *, backend: Backend = "native", seconds: float = 0.5) -> Speed:
    """Returns the time of the selected model / the time of the model with all layers quantized.

    Both run on the first set of data with one thread, in turns.
    """
    feeds = reference.data.sets[0]
    contenders = [
        session_contender("the quantized model", model, feeds, 1, backend=backend)
        for model in (selection.result.model, selection.all_quantized)
    ]
    selected, quantized = latencies(contenders, seconds)
    return speed(selected, quantized)
