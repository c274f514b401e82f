"""Selects the layers that stay in float because integers make the model slower, measured on this CPU.

Layers of one operator and of weights of equal shapes take the same time, and often share a quantized activation. So
they are one kind: all of them are quantized, or none. Weights that nodes compute have no known shape here: such a layer
is a kind of its own. Fused attention is one kind. At the end, the model is compared with the float model: what helps
one kind may not help all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ...graphs import graphs, label, named
from ...inputs import Array
from ...quantizer.options import LAYERS, Forms
from ...rewriter import Result
from ...rewriter.analysis.constants import constant_array
from ...storage import load
from ..measuring.plain import plain
from ..measuring.progress import Track, tracked
from ..measuring.timing import Latency, latencies, session_contender
from ..measuring.timing import speed as compared

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...storage import Model

_ATTENTION = "Attention"  # the operator of its kind
_SLOWER = 0.99
"""Layers stay in float if this makes the model at least so much faster: smaller differences are noise, and integers are
smaller."""


@dataclass(frozen=True)
class LayerKind:
    """Layers of one operator and of weights of equal shapes.

    Attributes:
        operator: The operator.
        weights: The shapes of the weights; none if they are not known.
        layers: The names of the layers.
        gain: The time of the model if these layers stay in float / the time if they are quantized, all others being
            quantized.
        stays_float: Whether they stay in float in the model that was the fastest at the end.
    """

    operator: str
    weights: tuple[tuple[int, ...], ...]
    layers: tuple[str, ...]
    gain: float
    stays_float: bool


@dataclass(frozen=True)
class FasterLayers:
    """The quantized model, in which no kind of layers is slower than in float.

    Attributes:
        result: The model and its report. If a float model is faster than any of integers, it is that one: the original,
            or with fusions.
        kinds: The kinds of layers, and what they are in this model.
        gain: The time of the faster float model / the time of the faster model of integers; None if nothing is timed,
            since there are no kinds.
        busy: That the machine is too busy for this to be a measure; empty if it is not.
    """

    result: Result
    kinds: tuple[LayerKind, ...]
    gain: float | None
    busy: str = ""

    @property
    def is_float(self) -> bool:
        """Whether all layers stay in float, since a float model is faster."""
        return self.gain is not None and self.gain < _SLOWER

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {"kinds": plain(self.kinds), "gain": self.gain, "busy": self.busy}


def select_faster(
    model: Model,
    quantize: Callable[[Forms], Result],
    feeds: Mapping[str, Array],
    *,
    seconds: float = 0.5,
    backend: Backend = "native",
    track: Track = iter,
) -> FasterLayers:
    """Keeps kinds of layers in float without which the quantized model is faster, at the shapes of the given inputs.

    The model with all layers quantized is compared with the models in which one kind is float. Then the model in which
    all slower kinds are float is compared with it and with the float model, as it is and with fusions. The models run
    in turns on one thread, at ONNX Runtime's default optimization level, and their medians are compared.

    Args:
        model: The float model.
        quantize: Quantizes the model, with other forms for the layers of these names.
        feeds: Its inputs.
        seconds: The time for each kind.
        backend: How the sessions get the operators.
        track: Shows the progress.

    Raises:
        DynqError: A model does not run.
    """
    first = quantize(Forms())
    kinds = _kinds(model, {each.node for each in first.report.quantized})
    if not kinds:
        return FasterLayers(first, (), None)
    attention = _attention_of(first)
    if attention:
        kinds[_ATTENTION, (), ""] = attention
    found = []
    texts = [f"layers of {operator} like {layers[0]} in float" for (operator, *_), layers in kinds.items()]
    for (operator, weights, _), layers in tracked(track, kinds.items(), texts):
        candidate = quantize(_without(layers, attention))
        without, with_all = _times([(candidate.model, backend), (first.model, backend)], feeds, seconds)
        gain = without.median_ms / with_all.median_ms
        found.append(LayerKind(operator, weights, tuple(layers), gain, gain < _SLOWER))
    slow = [name for kind in found if kind.stays_float for name in kind.layers]
    results = [quantize(_without(slow, attention)), first] if slow else [first]
    in_float = quantize(_without([name for layers in kinds.values() for name in layers], attention))
    floats = [_original(model, in_float), *([in_float] if in_float.report.fused else [])]
    models = [(model, None), *((each.model, backend) for each in (*floats[1:], *results))]
    timed = [*zip(_times(models, feeds, 2 * seconds), (*floats, *results), strict=True)]
    groups = timed[: len(floats)], timed[len(floats) :]
    (float_time, best_float), (time, best) = (min(each, key=lambda pair: pair[0].median_ms) for each in groups)
    gain = float_time.median_ms / time.median_ms
    faster = FasterLayers(best, tuple(found), gain, compared(float_time, time).busy)
    result = best_float if faster.is_float else best
    # The fastest model may have other ones than each kind says.
    integers = {*(each.node for each in result.report.quantized), *_attention_of(result)}
    kept = tuple(replace(kind, stays_float=integers.isdisjoint(kind.layers)) for kind in found)
    return replace(faster, result=result, kinds=kept)


def _attention_of(result: Result) -> list[str]:
    """Returns the names of the nodes of fused attention that have products of integers."""
    return [each.node for each in result.report.fused if each.operator == "QuantizedAttention"]


def _without(layers: Sequence[str], attention: Sequence[str]) -> Forms:
    """Returns the forms with which layers stay in float; some are nodes of fused attention."""
    return Forms(slow=frozenset(layers) - {*attention}, slow_attention=frozenset(layers) & {*attention})


def _original(model: Model, in_float: Result) -> Result:
    """Returns the float model as it is, with the reasons why its layers stay in float."""
    report = in_float.report
    findings = [each for each in report.findings if not each.fuses]
    return Result(load(model), replace(report, findings=findings, after=report.before))


def _kinds(model: Model, quantized: set[str]) -> dict[tuple[str, tuple[tuple[int, ...], ...], str], list[str]]:
    """Returns the names of the quantized layers, by operator and shapes of weights, or by name without weights."""
    found: dict[tuple[str, tuple[tuple[int, ...], ...], str], list[str]] = {}
    for _, graph in graphs(named(load(model))):
        for node in graph:
            if node.op_type in LAYERS and label(node) in quantized:
                shapes = map(_shape, node.inputs)
                weights = tuple(shape for shape in shapes if shape is not None)
                found.setdefault((node.op_type, weights, "" if weights else label(node)), []).append(label(node))
    return found


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Returns the shape of a constant."""
    if value is not None and value.const_value is not None:
        return tuple(map(int, value.const_value.shape.numpy()))
    array = constant_array(value)
    return None if array is None else array.shape


def _times(models: Sequence[tuple[Model, Backend | None]], feeds: Mapping[str, Array], seconds: float) -> list[Latency]:
    """Returns the times of models, each with its backend, None for stock ONNX Runtime."""
    contenders = [session_contender("the model", each, feeds, 1, backend=backend) for each, backend in models]
    return latencies(contenders, seconds)
