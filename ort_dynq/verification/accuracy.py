"""Compares the outputs of a quantized model with those of its float model, and its layers (layer_accuracy.py)."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ..errors import DynqError
from ..graphs import STANDARD_DOMAINS, named
from ..report.profile import profile
from ..storage import load
from .data import Data, Source, load_data
from .inputs import Array
from .layer_accuracy import LayerAccuracy, measure_layers
from .layers import name_of
from .saturation import without_saturation
from .sessions import SessionError, check_signature, open_session, run, run_original, signature
from .signals import Agreement, Cosines, Noise
from .verification import plain

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..bench.timing import Track
    from ..runtime import Model

# A classifier's output: a linear layer, or one of the functions that follow it, whatever of _KEEPS_ORDER is behind it.
_LINEAR = ("MatMul", "Gemm", "Conv")
_PROBABILITIES = ("Softmax", "LogSoftmax", "Sigmoid", "Softplus")
_KEEPS_ORDER = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Relu", "GlobalAveragePool")


@dataclass(frozen=True)
class OutputAccuracy:
    """An output of the quantized model B, compared with the float model's over all sets of data.

    Attributes:
        name, dtype: The name and type of A's output.
        elements: The number of elements that were compared.
        snr_db: The signal-to-noise ratio, see :class:`Noise`; None for types other than floats, and without elements.
        cosine_worst, cosine_mean: The smallest and the mean cosine of the rows along the last axis, see
            :class:`Cosines`; None where `snr_db` is, and for rows of one element.
        max_abs: The largest absolute difference; None where `snr_db` is.
        agreement: The share of rows with the same argmax along the last axis, if the output looks like a classifier's
            (:func:`is_classifier`). For integers, booleans and strings the share of equal elements. Otherwise None.
        problem: Why the output cannot be compared; empty if it can. If its type or shape differs, `snr_db` is minus
            infinity.
    """

    name: str
    dtype: str
    elements: int = 0
    snr_db: float | None = None
    cosine_worst: float | None = None
    cosine_mean: float | None = None
    max_abs: float | None = None
    agreement: float | None = None
    problem: str = ""


@dataclass(frozen=True)
class Accuracy:
    """The comparison of a quantized model with its float model.

    Attributes:
        data: What both models ran on.
        outputs: The outputs.
        layers: The quantized layers of the main graph, the worst first.
        unreachable: The number of quantized layers whose results are not compared, see :func:`measure_layers`.
    """

    data: Data
    outputs: tuple[OutputAccuracy, ...]
    layers: tuple[LayerAccuracy, ...]
    unreachable: int = 0

    @property
    def snr_db(self) -> float:
        """The smallest signal-to-noise ratio of an output, see :func:`worst_snr`."""
        return worst_snr(self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON. Infinities, which JSON does not have, become text."""
        found = {
            "inputs": tuple(asdict(each) for each in self.data.inputs),
            "seed": self.data.seed,
            "sets": len(self.data.sets),
            "generated": self.data.is_generated,
            "snr_db": self.snr_db,
            "outputs": tuple(asdict(each) for each in self.outputs),
            "layers": tuple({**asdict(each), "has_outlier": each.has_outlier} for each in self.layers),
            "unreachable": self.unreachable,
        }
        return {key: plain(value) for key, value in found.items()}


class Reference:
    """The outputs of the float model A on the data.

    Attributes:
        model: A, in a form whose integer products do not saturate.
        declared: Its inputs, as a session has them.
        data: The data.
        names: The names of the outputs.
        outputs: Their values, for each set.
    """

    def __init__(
        self,
        a: Model,
        source: Source | None = None,
        *,
        inputs: Mapping[str, Array] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        seed: int = 0,
    ) -> None:
        """Reads or generates the data and runs A in stock ONNX Runtime, all optimizations off.

        Args:
            a: The float model.
            source, inputs, shapes, seed: As for :func:`load_data`.

        Raises:
            DynqError: A is not a model or does not run, or the data do not fit.
        """
        self.model, _ = without_saturation(a)
        session = open_session(self.model, "A")
        self.declared = session.get_inputs()
        self.signature = signature(session)
        self.data = load_data(source, session.get_inputs(), inputs=inputs, shapes=shapes, seed=seed)
        self.names = [output.name for output in session.get_outputs()]
        self.outputs = [
            run_original(session, self.names, feeds, self.data.inputs, any_type=True) for feeds in self.data.sets
        ]


def measure(
    reference: Reference,
    b: Model,
    *,
    backend: Backend = "native",
    seconds: float = 0.5,
    threads: int = 1,
    track: Track = iter,
) -> Accuracy:
    """Compares a quantized model B with its float model.

    Args:
        reference: The float model's outputs.
        b: The quantized model, as :func:`ort_dynq.quantize` makes it.
        backend: How B gets the operators, see :func:`ort_dynq.register`.
        seconds: How long to measure the layers' share of the time; 0 not to.
        threads: The number of intra-op threads of this measurement.
        track: Shows the progress.

    Raises:
        DynqError: B does not run, or its inputs or outputs are not those of the float model.
    """
    with running():
        outputs = measure_outputs(reference, b, backend=backend)
        model = named(load(b))
        shares = _shares(model, reference, backend, seconds, threads) if seconds else {}
        layers, unreachable = measure_layers(reference, model, backend=backend, shares=shares, track=track)
    return Accuracy(reference.data, outputs, layers, unreachable)


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Says which model does not run in the block.

    Raises:
        DynqError: The block raised a SessionError.
    """
    try:
        yield
    except SessionError as error:
        raise DynqError(f"the quantized model does not run: {error}") from error


def measure_outputs(
    reference: Reference, b: Model, *, backend: Backend | None = "native"
) -> tuple[OutputAccuracy, ...]:
    """Compares the outputs of B, at ONNX Runtime's default optimization level, with the float model's.

    Raises:
        SessionError: B does not load or run.
        DynqError: The inputs or outputs of B are not those of the float model.
    """
    session = open_session(b, "B", backend=backend, optimize=True)
    check_signature(reference.signature, signature(session))
    results = [run(session, reference.names, feeds, any_type=True) for feeds in reference.data.sets]
    classifiers = {name_of(output) for output in load(reference.model).graph.outputs if is_classifier(output)}
    return tuple(
        _output(name, [each[i] for each in reference.outputs], [each[i] for each in results], name in classifiers)
        for i, name in enumerate(reference.names)
    )


def worst_snr(outputs: Sequence[OutputAccuracy]) -> float:
    """Returns the smallest signal-to-noise ratio of an output in decibels; infinity if none has one."""
    return min((each.snr_db for each in outputs if each.snr_db is not None), default=math.inf)


def is_classifier(output: ir.Value) -> bool:
    """Returns whether an output of a graph looks like a classifier's scores along its last axis.

    It does if it comes from a linear layer (MatMul or Gemm, with or without an Add of a bias, or Conv if the output has
    two dimensions), or from Softmax, LogSoftmax, Sigmoid or Softplus. Nodes after it must keep the order of the
    elements: Identity, Cast, Reshape and the like, Relu, GlobalAveragePool.
    """
    node = output.producer()
    has_two_dimensions = output.shape is not None and len(output.shape) == 2
    added = False
    while node is not None and node.domain in STANDARD_DOMAINS:
        if node.op_type in _PROBABILITIES:
            return True
        if node.op_type in _LINEAR:
            return node.op_type != "Conv" or has_two_dimensions
        if node.op_type == "Add" and not added:
            added = True
            producers = [None if value is None else value.producer() for value in node.inputs]
            node = next((each for each in producers if each is not None and each.op_type in _LINEAR), None)
        elif node.op_type in _KEEPS_ORDER and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        else:
            return False
    return False


def _output(name: str, a: Sequence[Any], b: Sequence[Any], classifies: bool) -> OutputAccuracy:
    """Compares the values of one output, one for each set of data."""
    kind = str(a[0].dtype) if isinstance(a[0], np.ndarray) else type(a[0]).__name__
    if not all(isinstance(each, np.ndarray) for each in (*a, *b)):
        return OutputAccuracy(name, kind, problem=f"a {kind} is not compared")
    for p, q in zip(a, b, strict=True):
        if (p.shape, p.dtype) != (q.shape, q.dtype):
            return OutputAccuracy(
                name,
                kind,
                snr_db=-math.inf,
                problem=f"the quantized model gives {q.dtype} {list(q.shape)}, float {p.dtype} {list(p.shape)}",
            )
    if a[0].dtype.kind != "f":
        agreement = Agreement(is_argmax=False)
        for p, q in zip(a, b, strict=True):
            agreement.add(p, q)
        return OutputAccuracy(name, kind, agreement.count, agreement=agreement.share)
    noise, cosines, agreement = Noise(), Cosines(), Agreement(is_argmax=True)
    for p, q in zip(a, b, strict=True):
        noise.add(p, q)
        cosines.add(p, q)
        if classifies and p.ndim >= 2 and p.shape[-1] >= 2:
            agreement.add(p, q)
    return OutputAccuracy(
        name,
        kind,
        noise.elements,
        noise.decibels,
        cosines.worst if cosines.rows else None,
        cosines.mean,
        noise.max_abs if noise.elements else None,
        agreement.share,
    )


def _shares(model: ir.Model, reference: Reference, backend: Backend, seconds: float, threads: int) -> dict[str, float]:
    """Returns each node's share of the time of a run on the first set of data, by name."""
    count = sum(1 for _ in model.graph.all_nodes())
    found = profile(model, reference.data.sets[0], backend=backend, threads=threads, seconds=seconds, nodes=count)
    return {node.name: node.ms / found.run_ms for node in found.nodes} if found.run_ms else {}
