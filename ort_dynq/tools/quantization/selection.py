"""Selects the form of each layer, so that the outputs reach limits of their noise, decisions or directions.

A change of a layer's form removes noise and costs time, and both are measured: see ladder.py. A part of the data is
kept back, and what was selected is checked on it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...errors import DynqError, GateError
from ...graphs import graphs, label, named
from ...inputs import Array
from ...quantizer.options import Forms
from ...rewriter import Result
from ...rewriter.normal_form import inlined_if_possible
from ...storage import load
from ..accuracy.gates import Gate, Gates
from ..accuracy.layers import LayerAccuracy, is_layer, measure_layers, product_of
from ..accuracy.outputs import OutputAccuracy, compare_outputs, results_of, running, snr_of_others, worst_snr
from ..accuracy.reference import Reference
from ..measuring.profile import computing_nodes, profile
from ..measuring.progress import Track, tracked
from ..measuring.timing import Latency, Speed, latencies, session_contender, speed
from ..verification.rounded import terms_of
from .ladder import FLOAT, RUNGS, FormStep, Times, forms_of, last_of_layers, number_of_form, steps_of, times_of_layers
from .outcome import Candidate, Layer, Selection

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...backends.options import Backend
    from ...storage import Model

_KEEPS_EVERY = 4  # of the sets of data, one in so many is kept back
_VARIATIONS, _VARIED = 3, 36  # of a set, and of all
_MAX_ATTEMPTS = 3  # to reach the limits on the data that were kept back, too
_AS_FAST = 1.05  # times as long as the selected forms: two models that take turns differ by so much


def select(
    reference: Reference,
    quantize: Callable[[Forms], Result],
    gates: Gates,
    *,
    backend: Backend = "native",
    seconds: float = 0.25,
    track: Track = iter,
) -> Selection:
    """Gives each layer the form that its limits need, so that each output reaches them at little cost of time.

    The harm that each layer alone does to the outputs is measured in each form (:attr:`LayerAccuracy.output_snr_db`),
    and so is its time. The steps to better forms are sorted by the noise that they remove for their time. Bisection
    finds how many of them suffice, then how many of those that remove the least can be taken back. So about
    2 * log2(2 * layers) models are made and run. Layers that cannot be measured, such as those in subgraphs, come last.
    Those that no data reached keep their form. Where one form of all layers reaches the limits as well, is as fast as
    the selected forms and is more accurate, it is taken: it has more to spare on other data.

    A limit in decibels must hold with twice the standard error of the noise, which tells how much the sets differ.
    With four sets of data or more, every fourth one is kept back. If the selected forms do not reach the limits there,
    or on data that are a little smaller, they are selected again with stricter limits; then these sets have had a part
    in the selection.

    Args:
        reference: The outputs of the float model.
        quantize: Quantizes the model, with other forms for the layers of these names.
        gates: What each output must reach over all data.
        backend: How the sessions get the operators.
        seconds: How long to measure the layers' times in each form; 0 to estimate them by their multiplications.
        track: Shows the progress.

    Raises:
        GateError: Only the float model reaches the limits, or even the float model does not.
        DynqError: No output has what is limited.
    """
    return _FormSearch(reference, quantize, gates, backend, seconds, track).selection()


class _FormSearch:
    """A selection: see :func:`select`."""

    def __init__(
        self,
        reference: Reference,
        quantize: Callable[[Forms], Result],
        gates: Gates,
        backend: Backend,
        seconds: float,
        track: Track,
    ) -> None:
        self.reference, self.quantize, self.gates = reference, quantize, gates
        self.backend, self.seconds, self.track = backend, seconds, track
        self.seen, self.kept = reference.split(_KEEPS_EVERY)

    def selection(self) -> Selection:
        start = iter(self.track(["quantizing all layers"]))
        next(start)
        first = self.quantize(Forms())
        candidate = self._candidate("8 bits", first.model)
        found = self.gates.check(candidate.outputs, candidate.metric)
        if missing := next((each for each in found if each.status == "unchecked"), None):
            what = {"min_snr": "has finite floats", "min_agreement": "decides anything", "min_cosine": "has rows"}
            raise DynqError(
                f"{missing.name} needs an output that {what.get(missing.name, 'it measures')} on the data; the model "
                "has none"
            )
        idle = _idle_layers(self.seen, first.model)
        next(start, None)
        if self.gates.hold(candidate.expected, candidate.metric) and self._holds_others(candidate):
            return self._selection(first, (), idle, (candidate,))
        floats = self._candidate(FLOAT.name, self.seen.model)
        if failed := [each for each in self.gates.check(floats.outputs, floats.metric) if each.status != "passed"]:
            raise GateError(
                f"{failed[0].name} is {failed[0].limit:g}, but the float model itself does not reach it between ONNX "
                f"Runtime's optimization levels: {failed[0].text}; choose a smaller one"
            )
        layers, better, wholes = self._forms(first, idle)
        times = self._times(first, wholes, layers) if self.seconds else None
        steps = steps_of([each for name, each in layers.items() if name not in idle], better, times)
        result, kept, chosen, attempts = self._search(steps, bool(idle))
        changed = {step.name: step.rung.name for step in sorted(kept, key=lambda step: step.order)}
        others = tuple(self._candidate(name, each.model) for name, each in wholes.items())
        if (whole := self._as_fast(others, chosen)) is not None:
            result, chosen = wholes[whole.name], replace(whole, name=chosen.name)
            changed = dict.fromkeys(sorted(better[whole.name], key=lambda name: layers[name].order), whole.name)
        selected = tuple(
            Layer(form, _by_form(layers[name], {rung: found[name] for rung, found in better.items() if name in found}))
            for name, form in changed.items()
        )
        return self._selection(result, selected, idle, (candidate, *others, floats, chosen), attempts)

    def _as_fast(self, wholes: Sequence[Candidate], chosen: Candidate) -> Candidate | None:
        """Returns the most accurate form of all layers that reaches the limits and is as fast as the selected forms."""
        better = [each for each in wholes if worst_snr(each.outputs) > worst_snr(chosen.outputs)]
        held = [each for each in better if self.gates.hold(each.expected, each.metric) and self._holds_others(each)]
        if not self.seconds or not held:
            return None
        with running():
            limit, *times = (each.min_ms for each in _latencies((chosen, *held), self.seen, self.backend, self.seconds))
        fast = [each for each, ms in zip(held, times, strict=True) if ms <= _AS_FAST * limit]
        return max(fast, key=lambda each: worst_snr(each.outputs), default=None)

    def _selection(
        self,
        result: Result,
        layers: tuple[Layer, ...],
        idle: tuple[str, ...],
        candidates: tuple[Candidate, ...],
        attempts: int = 1,
    ) -> Selection:
        last = candidates[-1]
        return Selection(
            result,
            layers,
            idle,
            candidates,
            self.gates.check(last.outputs, last.metric),
            self._unseen(last),
            0 if self.kept is None else len(self.kept.data.sets),
            attempts,
        )

    def _candidate(self, name: str, model: Model) -> Candidate:
        """Runs a model on all data."""
        with running():
            results = results_of(self.reference, model, backend=None if name == FLOAT.name else self.backend)
        seen, kept = self.reference.split_results(results, _KEEPS_EVERY)
        metric = self.gates.measured(self.seen, seen)
        outputs = compare_outputs(self.seen, seen)
        found = Candidate(
            name, model, outputs, metric=metric, expected=_expected(outputs, snr_of_others(self.seen, seen))
        )
        if self.kept is None:
            return found
        unseen = compare_outputs(self.kept, kept)
        return replace(found, unseen=unseen, unseen_metric=self.gates.measured(self.kept, kept))

    def _unseen(self, candidate: Candidate) -> tuple[Gate, ...]:
        """Checks a model on the data that were kept back."""
        return () if self.kept is None else self.gates.check(candidate.unseen, candidate.unseen_metric)

    def _others(self, candidate: Candidate) -> tuple[Gate, ...]:
        """Checks a model on the data that were kept back, and on varied ones: the worse of both for each limit."""
        found = [self._unseen(candidate)] if self.kept is not None else []
        if all(each.status == "passed" for gates in found for each in gates) and self.varied is not None:
            with running():
                results = results_of(self.varied, candidate.model, backend=self.backend)
            outputs = compare_outputs(self.varied, results)
            found.append(self.gates.check(outputs, math.inf))  # a metric is of the data of the user
        worst = (
            min(of, key=lambda gate: -math.inf if gate.value is None else gate.value) for of in zip(*found, strict=True)
        )
        return tuple(worst)

    @functools.cached_property
    def varied(self) -> Reference | None:
        """The float model's outputs on data that are a little smaller; None without inputs of floats."""
        sets = list(varied(self.reference.data.sets))
        return Reference(self.reference.model, sets) if sets else None

    def _holds_others(self, candidate: Candidate) -> bool:
        return all(each.status == "passed" for each in self._others(candidate))

    def _forms(
        self, first: Result, idle: Sequence[str]
    ) -> tuple[dict[str, LayerAccuracy], dict[str, dict[str, LayerAccuracy]], dict[str, Result]]:
        """Measures the layers in each form. Idle ones keep theirs.

        Returns:
            The layers as the options give them; those that can have another form, by its name; and the results in which
            all of them have it.
        """
        layers = self._layers_of(first.model)
        if embeddings := {each.node: each.operator for each in first.report.rewritten if each.rule == "embedding"}:
            # All of them at once, without products: their noise is small.
            outputs = self._candidate("", self.quantize(Forms(floats=frozenset(layers))).model).outputs
            joint = worst_snr(outputs)
            layers |= {name: LayerAccuracy(name, str(operator), None, joint) for name, operator in embeddings.items()}
        better: dict[str, dict[str, LayerAccuracy]] = {}
        wholes: dict[str, Result] = {}
        for number, rung in enumerate(RUNGS[: RUNGS.index(FLOAT)], 1):
            below = [each for each in layers.values() if product_of(each.operator) and number_of_form(each) < number]
            if products := frozenset(each.name for each in below) - frozenset(idle):
                forms = Forms(**{rung.field: products})
                wholes[rung.name] = self.quantize(forms)
                rest = forms._replace(floats=frozenset(layers) - products)
                found = self._layers_of((self.quantize(rest) if rest.floats else wholes[rung.name]).model)
                better[rung.name] = {name: each for name, each in found.items() if rung.has(each)}
        return layers, better, wholes

    def _layers_of(self, model: ir.Model) -> dict[str, LayerAccuracy]:
        with running():
            layers, _ = measure_layers(self.seen, load(model), backend=self.backend, track=self.track)
        return {**{each.name: each for each in layers}, **_unmeasured(model, {each.name for each in layers})}

    def _times(self, first: Result, wholes: Mapping[str, Result], layers: Mapping[str, LayerAccuracy]) -> Times:
        """Measures the time of each layer in each form."""
        contenders: list[tuple[str, Model, Backend | None]] = [("", first.model, self.backend)]
        contenders += [(name, each.model, self.backend) for name, each in wholes.items()]
        contenders.append((FLOAT.name, self.seen.model, None))
        times = {}
        texts = [f"timing the layers with {name or 'the form of the options'}" for name, *_ in contenders]
        for name, model, backend in tracked(self.track, contenders, texts):
            with running():
                found = profile(
                    model, self.seen.data.sets[0], backend=backend, seconds=self.seconds, nodes=10 * len(layers)
                )
            times[name] = times_of_layers(found, list(layers.values()))
        return times

    def _search(self, steps: Sequence[FormStep], has_idle: bool) -> tuple[Result, list[FormStep], Candidate, int]:
        """Returns the model with the fewest steps that reaches the limits, one step for each layer, and the attempts.

        Raises:
            GateError: None does.
        """
        found: tuple[Result, list[FormStep], Candidate, int] | None = None
        gates = self.gates
        for number in range(1, _MAX_ATTEMPTS + 1):
            attempt = self._attempt(steps, has_idle, gates)
            if attempt is None:
                break
            found, chosen = (*attempt, number), attempt[2]
            others = self._others(chosen)
            if all(each.status == "passed" for each in others):
                return found
            gates = _stricter(gates, others, self.gates.check(chosen.expected, chosen.metric))
        # Limits that strict are out of reach, or do not help: the data that were kept back take part.
        attempt = None if found is None else self._attempt(steps, has_idle, self.gates, on_all=True)
        found = None if found is None or attempt is None else (*attempt, found[3] + 1)
        if found is None:
            raise GateError(
                f"the outputs reach {self.gates.wanted} only if every layer stays in float; choose a smaller one"
            )
        return found

    def _attempt(
        self, steps: Sequence[FormStep], has_idle: bool, gates: Gates, *, on_all: bool = False
    ) -> tuple[Result, list[FormStep], Candidate] | None:
        """Returns the model with the fewest steps that reaches limits, on all data or those of the selection."""
        found: tuple[Result, Candidate] | None = None

        def suffices(some: Sequence[FormStep]) -> bool:
            nonlocal found
            result = self.quantize(forms_of(some))
            candidate = self._candidate("selected", result.model)
            if gates.hold(candidate.expected, candidate.metric) and (not on_all or self._holds_others(candidate)):
                found = result, candidate
                return True
            return False

        runs = math.ceil(math.log2(max(2, len(steps))))
        shown = iter(self.track([f"choosing forms, run {i + 1}" for i in range(2 * runs)]))
        # All steps leave only idle layers quantized.
        high = _bisect(len(steps), lambda count: suffices(steps[:count]), shown)
        if found is None and has_idle:
            suffices(steps)
        useful = sorted(last_of_layers(steps[:high]), key=lambda step: -step.harm_removed)
        kept = useful[: _bisect(len(useful), lambda count: suffices(useful[:count]), shown)]
        for _ in shown:  # the rest
            pass
        return None if found is None else (found[0], kept, found[1])


def _expected(outputs: Sequence[OutputAccuracy], ratios: Mapping[str, float]) -> tuple[OutputAccuracy, ...]:
    """Returns outputs with the ratios that other data will hardly be below."""
    return tuple(replace(each, snr_db=ratios.get(each.name, each.snr_db)) for each in outputs)


def varied(sets: Sequence[Mapping[str, Array]]) -> Iterator[dict[str, Array]]:
    """Yields sets of data with floats that are some percent smaller: up to three of each set.

    The noise of the activations is another one there. So a noise that few sets have, as that of a decision in the
    model, is seen more often.
    """
    for i in range(min(_VARIED, _VARIATIONS * len(sets))):
        number, which = divmod(i, len(sets))
        scaled = {
            name: array * array.dtype.type(1 - (number + 1) / 64)
            for name, array in sets[which].items()
            if array.dtype.kind == "f" and array.size > 1
        }
        if scaled:
            yield {**sets[which], **scaled}


def _stricter(gates: Gates, unseen: Sequence[Gate], seen: Sequence[Gate]) -> Gates:
    """Returns limits for the data of a selection that is to be repeated.

    A limit that the other data did not reach becomes stricter by what was missing there, and more than what was
    reached here, so that the same selection does not suffice again. Agreements and cosines are at most 1.

    Args:
        unseen: The limits on the other data.
        seen: The limits on the data of the selection.
    """
    changed: dict[str, Any] = dict(gates.limits)
    for each, here in zip(unseen, seen, strict=True):
        if each.status == "failed" and each.value is not None and math.isfinite(each.value):
            limit = changed[each.name] + each.limit - each.value
            if here.value is not None:
                limit = max(limit, math.nextafter(here.value, math.inf))
            changed[each.name] = limit if each.name in ("min_snr", "min_metric") else min(1.0, limit)
    return replace(gates, **changed)


def _by_form(layer: LayerAccuracy, better: Mapping[str, LayerAccuracy]) -> dict[str, LayerAccuracy]:
    """Returns the ratios of a layer by its form. If the options give two terms or words, these are its own."""
    number = number_of_form(layer)
    return {RUNGS[number - 1].name if number else "": layer, **better}


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


def _unmeasured(model: ir.Model, measured: set[str]) -> dict[str, LayerAccuracy]:
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
    return tuple(name for name in _unmeasured(model, set()) if name in idle)


def timed(
    selection: Selection, reference: Reference, *, backend: Backend = "native", seconds: float = 0.5
) -> tuple[Selection, Speed]:
    """Times the candidates of a selection on the first set of data, with one thread, in turns.

    Returns:
        The selection with these times, and the time of the selected model / that of the model with all layers quantized
        as the options say.
    """
    found = _latencies(selection.candidates, reference, backend, seconds)
    candidates = tuple(replace(each, ms=time.median_ms) for each, time in zip(selection.candidates, found, strict=True))
    return replace(selection, candidates=candidates), speed(found[-1], found[0])


def _latencies(
    candidates: Sequence[Candidate], reference: Reference, backend: Backend, seconds: float
) -> list[Latency]:
    """Times candidates on the first set of data, with one thread, in turns."""
    contenders = [
        session_contender(
            "the float model" if each.name == FLOAT.name else "the quantized model",
            each.model,
            reference.data.sets[0],
            1,
            backend=None if each.name == FLOAT.name else backend,
        )
        for each in candidates
    ]
    return latencies(contenders, seconds)
