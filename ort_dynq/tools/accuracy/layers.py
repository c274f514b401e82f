"""Measures the quantized layers of a model one by one, on the values of the float model.

The noise of a layer is what its own quantization causes: the layer runs on the float model's activation, and its result
is compared with the float model's result. The same noise, added to the float model's result, shows what the layer does
to the outputs. The two ratios may differ much: noise in one token that many later layers read costs more than noise in
all other tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ...errors import DynqError
from ...graphs import graphs, label, values_of
from ...inputs import Array
from ...operators import DOMAIN
from ...rewriter.analysis.standard import OWN_CONVOLUTIONS, OWN_RECURRENCES, TAILLESS_PRODUCTS, WORD_PRODUCTS
from ...rewriter.float16 import write_casts_as_converted
from ...rewriter.layout import with_layout_of
from ...rewriter.normal_form import inlined_if_possible
from ...rewriter.products.dynamic_quantized_matmul import split_dynamic_products
from ...rewriter.programs.tails import split_tails
from ...signals import ChannelMaxima, Noise
from ...storage import load
from ...system import return_memory
from ..measuring.sessions import FEW_RUNS
from ..verification.layers import Layers, Override, Recorder, name_of
from ..verification.rounded import terms_of
from .parts import Behind, Part, larger, parts_of
from .reference import Reference

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ..measuring.progress import Track

_OF_WORDS = WORD_PRODUCTS | {"WordRecurrence"}
_PRODUCTS = TAILLESS_PRODUCTS | OWN_RECURRENCES
_DISTURBED_SETS = 4  # the effect of each layer on the outputs is measured on these first sets: one run for each layer
_MAX_RECORDED = 1 << 27  # bytes of their values: further sets are left out then
OUTLIER = 8.0
"""A channel dominates the range of an activation if its largest magnitude exceeds this many times the median one."""


def product_of(operator: str | None) -> str | None:
    """Returns the product that an operator of a quantized layer computes, perhaps before a program; else None."""
    name = (operator or "").removesuffix("Program")
    return name if name in _PRODUCTS else None


def is_layer(node: ir.Node) -> bool:
    """Returns whether a node is a quantized layer, not the products of the inputs of a recurrent layer."""
    if node.domain != DOMAIN or product_of(node.op_type) is None:
        return False
    return all(use.node.op_type not in OWN_RECURRENCES for use in node.outputs[0].uses())


@dataclass(frozen=True)
class LayerAccuracy:
    """A quantized layer.

    Attributes:
        name: The name of its node.
        operator: What it became: QuantizedMatMul, QuantizedConv, QuantizedRecurrence, WordMatMul, WordConv or
            WordRecurrence.
        snr_db: The signal-to-noise ratio of its result, with the bias, computed from A's activation, to A's result.
            None if A does not have them, or without elements.
        output_snr_db: The smallest signal-to-noise ratio of an output of A if this noise is added to A's result of the
            layer, and nothing else is changed; over the first four sets of data. None where `snr_db` is, and if it was
            not measured, see :func:`measure`.
        share: Its share of B's time, 0 to 1, at ONNX Runtime's default optimization level; without the quantization of
            the activation, which several layers may share. None if it was not measured.
        channel: The channel of the activation with the largest magnitude over all data.
        range_ratio: The magnitude of that channel / the median over the channels that are not zero; None for fewer than
            8 of them.
        terms: The codes of an element of the activation, 1 or 2.
        multiplications: Those of a run on the first set of data; 0 if they are not known.
        reads: The weights that such a run reads: each one once, but in every step of a recurrent layer.
    """

    name: str
    operator: str
    snr_db: float | None
    output_snr_db: float | None = None
    share: float | None = None
    channel: int | None = None
    range_ratio: float | None = None
    terms: int = 1
    multiplications: int = 0
    reads: int = 0

    @property
    def has_outlier(self) -> bool:
        """Whether one channel, more than :data:`OUTLIER` times the median, leaves few codes for the others.

        With two terms or words, there are enough codes for all.
        """
        return self.terms == 1 and not self.has_words and self.range_ratio is not None and self.range_ratio > OUTLIER

    @property
    def has_words(self) -> bool:
        """Whether it is a product of words."""
        return self.operator in _OF_WORDS

    @property
    def form(self) -> str:
        """The operator and, if there are two, its terms."""
        return f"{self.operator}, two terms" if self.terms == 2 else self.operator

    @property
    def order(self) -> tuple[float, float]:
        """Orders layers: the worst first."""
        keys = [math.inf if ratio is None else ratio for ratio in (self.output_snr_db, self.snr_db)]
        return keys[0], keys[1]


def measure_layers(
    reference: Reference,
    b: ir.Model,
    *,
    backend: Backend = "native",
    shares: Mapping[str, float] | None = None,
    effects: int | None = None,
    track: Track = iter,
) -> tuple[tuple[LayerAccuracy, ...], int]:
    """Measures each quantized layer of B's main graph on the float model's values, all optimizations off.

    Args:
        reference: The float model.
        b: The quantized model; it is changed.
        backend: How B gets the operators.
        shares: The layers' shares of the time, by name.
        effects: How many layers have their effect on the outputs measured: those with the most noise of their own;
            None for all. Each one takes a run of the float model behind it.
        track: Shows the progress.

    Returns:
        The layers, the worst first, and the number of layers that are not measured: layers in subgraphs and functions,
        Gemm with transA (A does not have its activation), ConvInteger, and recurrent layers if no node uses
        the states of all steps.

    Raises:
        SessionError: B does not run.
        DynqError: The float model does not run with its intermediate values as outputs.
    """
    model_a = with_layout_of(inlined_if_possible(load(reference.model)), b)
    write_casts_as_converted(model_a, b)
    split_dynamic_products(b)
    split_tails(b)
    layers = Layers(model_a, b)
    nodes = [each.node for each in layers.products]
    activations = list(map(layers.activation, nodes))
    results = [layers.values.get(name_of(result)) for result in layers.results]
    found = [
        _MeasuredLayer(label(node), node.op_type, _name(activation), _name(result), terms_of(node), _weights(node))
        for node, activation, result in zip(nodes, activations, results, strict=True)
    ]
    if found:
        foreign = [layers.values[name_of(output)] for output in layers.foreign]
        wanted = [each for each in (*activations, *results, *foreign) if each is not None]
        return_memory()
        parts = parts_of(model_a, {each.result for each in found if each.result is not None})
        sets, runs = len(reference.data.sets), len(found) if effects is None else min(effects, len(found))
        steps = iter(
            track(
                [
                    *(f"measuring layers, set {i + 1}" for i in range(sets)),
                    *(f"running the float model with the error of layer {i + 1} of {runs}" for i in range(runs)),
                ]
            )
        )
        recorded = _record(reference, (model_a, wanted, parts), (b, layers), found, backend, steps)
        recorded.keep(_noisiest(found, effects))
        return_memory()
        _run_parts(reference, model_a, found, recorded, steps)
    ordered = sorted((each.layer(shares or {}) for each in found), key=lambda layer: layer.order)
    all_nodes = [node for _, graph in graphs(b) for node in graph]
    return tuple(ordered), sum(map(is_layer, all_nodes)) - len(found)


@dataclass
class _Recorded:
    """What the parts of the float model need.

    Attributes:
        parts: The parts.
        opening: The time of opening a session of the whole model / the time of a run.
        sets: For each of the first sets, the values that parts read, and the errors of the layers, by the result.
    """

    parts: Sequence[Part]
    opening: float = 0.0
    sets: list[tuple[dict[str, Array], dict[str, Array]]] = field(default_factory=list)

    def keep(self, results: set[str]) -> None:
        """Forgets the errors of all other results, and the values that only their parts read."""
        kept_parts = [part for part in self.parts if not results.isdisjoint(part.results)]
        self.parts = larger(kept_parts, len(results), self.opening)
        read = {name for part in self.parts for name in part.reads}
        for known, errors in self.sets:
            for values, kept in ((known, read), (errors, results)):
                for name in values.keys() - kept:
                    del values[name]


def _noisiest(found: Sequence[_MeasuredLayer], count: int | None) -> set[str]:
    """Returns the results of so many layers, those with the smallest signal-to-noise ratio; of all if it is None."""
    ratios = [(ratio, each.result) for each in found if each.result and (ratio := each.noise.decibels) is not None]
    return {result for _, result in sorted(ratios)[:count]}


def _record(
    reference: Reference,
    a: tuple[ir.Model, Sequence[ir.Value], Sequence[Part]],
    b: tuple[ir.Model, Layers],
    found: Sequence[_MeasuredLayer],
    backend: Backend,
    steps: Iterator[object],
) -> _Recorded:
    """Runs the layers of B on A's values, and measures their own noise.

    Args:
        reference: The float model.
        a: The model A, the values to record and the parts.
        b: The model B, which is changed, and its layers.
        found: The layers.
        backend: How B gets the operators.
        steps: Goes on with each set.
    """
    (model_a, wanted, parts), (model_b, layers) = a, b
    recorder, known, recorded = _recorder(model_a, wanted, parts, reference.data.sets[0])
    override, size = None, 0
    for number, (feeds, _) in enumerate(zip(reference.data.sets, steps, strict=False)):
        known = known if number == 0 else recorder.run(feeds)
        override = override or Override(model_b, layers.results, layers.foreign, known, backend, entries=FEW_RUNS)
        errors: dict[str, Array] = {}
        quantized = override.run(feeds, known)
        quantized.reverse()
        for each in found:  # other outputs follow
            errors |= each.add(known, quantized.pop()) or {}
        del quantized
        if number < _DISTURBED_SETS and (number == 0 or size < _MAX_RECORDED):
            read = {name for part in recorded.parts for name in part.reads}
            recorded.sets.append(({name: known[name] for name in read}, errors))
            size += sum(array.nbytes for arrays in recorded.sets[-1] for array in arrays.values())
        known = {}  # before those of the next set
    return recorded


def _recorder(
    model: ir.Model, wanted: Sequence[ir.Value], parts: Sequence[Part], feeds: Mapping[str, Array]
) -> tuple[Recorder, dict[str, Array], _Recorded]:
    """Returns the recorder of A, its values for the first set, and the parts.

    If a value between parts cannot be recorded, such as a sequence, the whole model is the only part.
    """
    names = {name for part in parts for name in part.reads}
    between = [value for value in values_of(model.graph) if name_of(value) in names]
    try:
        begin = time.perf_counter()
        recorder = Recorder(model, list(dict.fromkeys([*wanted, *between])), FEW_RUNS)
        opened = time.perf_counter()
        known = recorder.run(feeds)
        return recorder, known, _Recorded(parts, (opened - begin) / (time.perf_counter() - opened))
    except DynqError:
        recorder = Recorder(model, wanted, FEW_RUNS)
        results = tuple(name for part in parts for name in part.results)
        return recorder, recorder.run(feeds), _Recorded([Part(results, (), is_whole=True)])


def _run_parts(
    reference: Reference, a: ir.Model, found: Sequence[_MeasuredLayer], recorded: _Recorded, steps: Iterator[object]
) -> None:
    """Measures what the error of each layer does to the outputs. One session is open at a time."""
    by_result: dict[str, list[_MeasuredLayer]] = {}
    for each in found:
        by_result.setdefault(each.result or "", []).append(each)
    types = {name: error.dtype for _, errors in recorded.sets for name, error in errors.items()}
    for part in recorded.parts:
        behind = None
        for number, (known, errors) in enumerate(recorded.sets):
            behind = behind or Behind(a, part, known, types)
            feeds, exact = reference.data.sets[number], reference.outputs[number]
            for name in filter(errors.__contains__, part.results):
                if number == 0:
                    next(steps, None)
                disturbed = behind.run(feeds, known, {name: errors[name]}, exact)
                for each in by_result[name]:
                    each.add_outputs(exact, disturbed)
    for _ in steps:  # the rest
        pass


@dataclass
class _MeasuredLayer:
    """What is measured of a layer.

    Attributes:
        name, operator: As in :class:`LayerAccuracy`.
        activation, result: The names of its values in A; None for a value that A does not have.
        terms: As in :class:`LayerAccuracy`.
        weights: Their number in the layer.
        noise: The noise of its result.
        outputs: The noise that it alone causes in each output of A that is of floats.
        channels: The channels of its activation.
        work: Its multiplications and the weights that it reads, as in :class:`LayerAccuracy`; None before a run.
    """

    name: str
    operator: str
    activation: str | None
    result: str | None
    terms: int
    weights: int
    noise: Noise = field(default_factory=Noise)
    outputs: dict[int, Noise] = field(default_factory=dict)
    channels: ChannelMaxima = field(init=False)
    work: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.channels = ChannelMaxima(1 if self.operator in OWN_CONVOLUTIONS else -1)

    def add(self, known: Mapping[str, Array], quantized: Array) -> dict[str, Array] | None:
        """Adds A's values and the quantized result on one set of data; returns the error of the result, by its name."""
        if self.activation is not None:
            self.channels.add(known[self.activation])
        if self.result is None or (expected := known[self.result]).shape != quantized.shape:
            return None
        self.noise.add(expected, quantized)
        if self.work is None and expected.ndim > 1:
            self.work = self._work(known.get(self.activation or ""), expected)
        with np.errstate(invalid="ignore"):
            error = np.nan_to_num(quantized - expected, posinf=0, neginf=0)
        return {self.result: error.astype(expected.dtype, copy=False)}

    def _work(self, activation: Array | None, result: Array) -> tuple[int, int]:
        if self.operator in OWN_RECURRENCES and activation is not None and activation.ndim > 1:
            steps = activation.shape[0]  # [steps, sequences, inputs]
            return steps * activation.shape[1] * self.weights, steps * self.weights
        rows = result.size // max(1, result.shape[self.channels.axis])
        return rows * self.weights, self.weights

    def add_outputs(self, expected: Sequence[Any], disturbed: Sequence[Any]) -> None:
        for i, (a, b) in enumerate(zip(expected, disturbed, strict=True)):
            if _is_float(a) and _is_float(b) and a.shape == b.shape:
                self.outputs.setdefault(i, Noise()).add(a, b)

    def layer(self, shares: Mapping[str, float]) -> LayerAccuracy:
        ratios = [ratio for noise in self.outputs.values() if (ratio := noise.decibels) is not None]
        channel, range_ratio = self.channels.outlier or (None, None)
        return LayerAccuracy(
            self.name,
            self.operator,
            self.noise.decibels,
            min(ratios, default=None),
            shares.get(self.name),
            channel,
            range_ratio,
            self.terms,
            *(self.work or (0, 0)),
        )


def _weights(node: ir.Node) -> int:
    """Returns the number of weights of a layer: they are its largest constant, of bytes."""
    constants = (value.const_value for value in node.inputs if value is not None)
    size = max((tensor.size for tensor in constants if tensor is not None), default=0)
    return size * 8 // node.attributes.get_int("bits", 8)


def _is_float(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _name(value: ir.Value | None) -> str | None:
    return None if value is None else name_of(value)
