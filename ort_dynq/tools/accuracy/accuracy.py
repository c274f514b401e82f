"""Compares a quantized model with its float model: its outputs, and its layers one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ...graphs import named
from ...rewriter.normal_form import inlined_if_possible
from ...shown import Shown, Table
from ...storage import load
from ...system import return_memory
from ..measuring.data import Data
from ..measuring.plain import plain
from ..measuring.profile import profile
from .gates import Gate, Gates, Status, verdict_on, worst_status
from .layers import LayerAccuracy, measure_layers
from .outputs import OutputAccuracy, compare_outputs, is_compared, results_of, running, worst_snr
from .reference import Reference

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...inputs import Array
    from ...storage import Model
    from ..measuring.data import Source
    from ..measuring.progress import Track

_NOTHING_FINITE = (
    "no finite value could be compared: every element of the float model's outputs is NaN or infinite, or there is none"
)


@dataclass(frozen=True, repr=False)
class Accuracy(Shown):
    """The comparison of a quantized model with its float model.

    Attributes:
        data: What both models ran on.
        outputs: The outputs.
        layers: The quantized layers of the main graph, the worst first.
        unreachable: The number of quantized layers with results that are not compared, see :func:`measure_layers`.
        gates: The limits that were set, and what was measured.
    """

    data: Data
    outputs: tuple[OutputAccuracy, ...]
    layers: tuple[LayerAccuracy, ...] = ()
    unreachable: int = 0
    gates: tuple[Gate, ...] = ()

    def _line(self) -> str:
        if self.unchecked:
            return self.unchecked
        data = f"{len(self.data.sets)} sets of {'generated' if self.data.is_generated else 'given'} data"
        return f"{self.snr_db:.1f} dB on {data}; outputs: {len(self.outputs)}, layers: {len(self.layers)}"

    def _tables(self) -> Iterator[Table]:
        outputs = (
            (each.name, each.snr_db, each.cosine_worst, each.max_abs, each.agreement, each.problem)
            for each in self.outputs
        )
        yield ("output", "SNR dB", "worst cosine", "max abs", "agreement", "problem"), outputs
        layers = ((each.name, each.operator, each.snr_db, each.output_snr_db, each.share) for each in self.layers)
        yield ("layer", "operator", "SNR dB", "SNR dB of outputs", "share of time"), layers

    @property
    def snr_db(self) -> float:
        """The smallest signal-to-noise ratio of an output, see :func:`worst_snr`."""
        return worst_snr(self.outputs)

    @property
    def unchecked(self) -> str:
        """Why the comparison says nothing about the quantized model; empty if an element of an output was compared."""
        if is_compared(self.outputs):
            return ""
        return next((f"{each.name}: {each.problem}" for each in self.outputs if each.problem), _NOTHING_FINITE)

    @property
    def status(self) -> Status:
        """The worst of the gates, "unchecked" if the comparison says nothing; "passed" without gates."""
        found = worst_status(self.gates)
        return "unchecked" if self.unchecked and found == "passed" else found

    @property
    def reason(self) -> str:
        """Why the status is not "passed"; empty if it is."""
        if self.status == "passed":
            return ""
        return self.unchecked if self.unchecked and self.status == "unchecked" else verdict_on(self.gates)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON. Infinities, which JSON does not have, become text."""
        found = {
            "inputs": tuple(asdict(each) for each in self.data.inputs),
            "seed": self.data.seed,
            "sets": len(self.data.sets),
            "generated": self.data.is_generated,
            "snr_db": None if self.unchecked else self.snr_db,
            "unchecked": self.unchecked,
            "outputs": tuple(asdict(each) for each in self.outputs),
            "layers": tuple({**asdict(each), "has_outlier": each.has_outlier} for each in self.layers),
            "unreachable": self.unreachable,
            "status": self.status,
        }
        return {**{key: plain(value) for key, value in found.items()}, "gates": [each.to_dict() for each in self.gates]}


def compare(
    a: Model,
    b: Model,
    data: Source | None = None,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    backend: Backend = "native",
    gates: Gates | None = None,
) -> Accuracy:
    """Compares a quantized model B with its float model A, as ``--verify`` of ``ort-dynq quantize`` does.

    Args:
        a: The float model.
        b: What :func:`ort_dynq.quantize` made of it.
        data, inputs, shapes, seed: As for :class:`Reference`.
        backend: How B gets the operators, see :func:`ort_dynq.register`.
        gates: Limits that the outputs must reach; `status` of the result says whether they do.

    Raises:
        DynqError: A model does not run, the data do not fit, or the inputs or outputs of both differ.
    """
    return measure(Reference(a, data, inputs=inputs, shapes=shapes, seed=seed), b, backend=backend, gates=gates)


def measure(
    reference: Reference,
    b: Model,
    *,
    backend: Backend = "native",
    seconds: float = 0.25,
    threads: int = 1,
    effects: int | None = None,
    gates: Gates | None = None,
    track: Track = iter,
) -> Accuracy:
    """Compares a quantized model B with its float model.

    Args:
        reference: The float model's outputs.
        b: The quantized model, as :func:`ort_dynq.quantize` makes it.
        backend: How B gets the operators, see :func:`ort_dynq.register`.
        seconds: How long to measure the layers' share of the time; 0 not to.
        threads: The number of intra-op threads of this measurement.
        effects: How many layers have their effect on the outputs measured: those with the most noise of their own;
            None for all. Each one takes a run of the float model behind it.
        gates: Limits that the outputs must reach.
        track: Shows the progress.

    Raises:
        DynqError: B does not run, or its inputs or outputs differ from the float model's.
    """
    with running():
        outputs, found = _outputs(reference, b, backend, gates)
        model = named(inlined_if_possible(load(b)))
        shares = _shares(model, reference, backend, seconds, threads) if seconds else {}
        return_memory()
        layers, unreachable = measure_layers(
            reference, model, backend=backend, shares=shares, effects=effects, track=track
        )
    return Accuracy(reference.data, outputs, layers, unreachable, found)


def compare_models(
    reference: Reference, b: Model, *, backend: Backend = "native", gates: Gates | None = None
) -> Accuracy:
    """Compares the outputs of any model B with those of a float model, without its layers.

    Args:
        reference, b, backend, gates: As for :func:`measure`.

    Raises:
        DynqError: B does not run, or its inputs or outputs differ from the float model's.
    """
    with running():
        outputs, found = _outputs(reference, b, backend, gates)
    return Accuracy(reference.data, outputs, gates=found)


def _outputs(
    reference: Reference, b: Model, backend: Backend, gates: Gates | None
) -> tuple[tuple[OutputAccuracy, ...], tuple[Gate, ...]]:
    """Returns the comparison of each output, and of the limits."""
    results = results_of(reference, b, backend=backend)
    outputs = compare_outputs(reference, results)
    return outputs, () if gates is None else gates.check(outputs, gates.measured(reference, results))


def _shares(model: ir.Model, reference: Reference, backend: Backend, seconds: float, threads: int) -> dict[str, float]:
    """Returns each node's share of the time of a run on the first set of data, by name."""
    count = sum(1 for _ in model.graph.all_nodes())
    found = profile(model, reference.data.sets[0], backend=backend, threads=threads, seconds=seconds, nodes=count)
    return {node.name: node.ms / found.run_ms for node in found.nodes} if found.run_ms else {}
