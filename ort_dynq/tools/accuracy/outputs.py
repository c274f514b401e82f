"""Compares the outputs of a quantized model with the float model's."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DynqError
from ...signals import EQUAL, LARGEST, TOKENS, Cosines, Decisions, Noise, blank_of, decisions_of
from ...system import return_memory
from ..measuring.sessions import SessionError, check_shapes, check_signature, open_session, run, signature
from .reference import Reference

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...inputs import Array
    from ...storage import Model


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
        agreement: The share of the same decisions, if the output looks like a classifier's
            (:func:`ort_dynq.classifiers.is_classifier`); for integers, booleans and strings. Otherwise None.
        decisions: What was decided: "largest", the element of each row; "half", elements above one half, of
            probabilities that do not add up to 1; "tokens" of sequences with blanks between them (CTC): 1 - edit
            distance / length; "equal", elements that are not floats. Empty without decisions.
        changed: The number of decisions that differ.
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
    decisions: str = ""
    changed: int = 0
    problem: str = ""


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Turns a SessionError in the block into a DynqError, which says that the quantized model does not run.

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

    Args:
        reference: The float model's outputs.
        b: The quantized model, as :func:`ort_dynq.quantize` makes it.
        backend: How B gets the operators, see :func:`ort_dynq.register`; None for stock ONNX Runtime.

    Raises:
        SessionError: B does not load or run.
        DynqError: The inputs or outputs of B differ from the float model's.
    """
    return compare_outputs(reference, results_of(reference, b, backend=backend))


def results_of(reference: Reference, b: Model, *, backend: Backend | None = "native") -> list[list[Any]]:
    """Returns the outputs of B, at ONNX Runtime's default optimization level, for each set of data.

    Args:
        reference: The float model's outputs.
        b: The quantized model, as :func:`ort_dynq.quantize` makes it.
        backend: How B gets the operators, see :func:`ort_dynq.register`; None for stock ONNX Runtime.

    Raises:
        SessionError: B does not load or run.
        DynqError: The inputs or outputs of B differ from the float model's.
    """
    session = open_session(b, "B", backend=backend, optimize=True)
    check_signature(reference.signature, signature(session))
    check_shapes(reference.data.inputs, session)
    results = [run(session, reference.names, feeds, any_type=True) for feeds in reference.data.sets]
    del session
    return_memory()
    return results


def compare_outputs(reference: Reference, results: Sequence[Sequence[Any]]) -> tuple[OutputAccuracy, ...]:
    """Compares the outputs of a model for each set of data with the float model's.

    Args:
        reference: The float model's outputs.
        results: The outputs of the other model for each set, as :func:`results_of` returns them.
    """
    classifiers = reference.classifiers
    return tuple(
        _output(
            name,
            [each[i] for each in reference.outputs],
            [each[i] for each in results],
            classifies=name in classifiers,
            reads_tokens=reference.reads_tokens,
        )
        for i, name in enumerate(reference.names)
    )


def is_compared(outputs: Sequence[OutputAccuracy]) -> bool:
    """Returns whether a comparison says anything: an element was compared, or an output has another type or shape.

    Args:
        outputs: The outputs, as :func:`measure_outputs` returns them.
    """
    return any(each.elements or each.snr_db is not None for each in outputs)


def worst_snr(outputs: Sequence[OutputAccuracy]) -> float:
    """Returns the smallest signal-to-noise ratio of an output in decibels; infinity if none has one.

    Args:
        outputs: The outputs, as :func:`measure_outputs` returns them.
    """
    return min((each.snr_db for each in outputs if each.snr_db is not None), default=math.inf)


def snr_of_others(reference: Reference, results: Sequence[Sequence[Any]]) -> dict[str, float]:
    """Returns the signal-to-noise ratios in decibels that other sets of data will hardly be below, by output.

    The noise / the signal of all sets, plus twice its standard error as the ratio of two sums (Cochran, Sampling
    Techniques, 6.4): sqrt(m / (m - 1) * sum((n - R * s)^2)) / sum(s) of m sets with the noise n and the signal s; their
    sums have the ratio R. If the noise of all sets is alike, that is little. It is much if few sets have most of the
    noise. Outputs that are not floats have none, and neither have those of one set.

    Args:
        reference: The float model's outputs.
        results: The outputs of the other model for each set, as :func:`results_of` returns them.
    """
    found = {}
    for i, name in enumerate(reference.names):
        noises = []
        for expected, actual in zip(reference.outputs, results, strict=True):
            a, b = expected[i], actual[i]
            if isinstance(a, np.ndarray) and a.dtype.kind == "f" and isinstance(b, np.ndarray) and a.shape == b.shape:
                noises.append(Noise())
                noises[-1].add(a, b)
        signal, noise = sum(each.signal for each in noises), sum(each.noise for each in noises)
        if len(noises) > 1 and 0 < noise < math.inf and 0 < signal < math.inf:
            squares = sum((each.noise - noise / signal * each.signal) ** 2 for each in noises)
            error = math.sqrt(len(noises) / (len(noises) - 1) * squares)
            found[name] = 10 * math.log10(signal / (noise + 2 * error))
    return found


def _output(name: str, a: Sequence[Any], b: Sequence[Any], *, classifies: bool, reads_tokens: bool) -> OutputAccuracy:
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
        equal = Decisions(EQUAL)
        for p, q in zip(a, b, strict=True):
            equal.add(p, q)
        return OutputAccuracy(name, kind, equal.count, agreement=equal.share, decisions=EQUAL, changed=equal.changed)
    noise, cosines = Noise(), Cosines()
    decisions = _decisions(a, reads_tokens) if classifies else None
    for p, q in zip(a, b, strict=True):
        noise.add(p, q)
        cosines.add(p, q)
        if decisions is not None:
            decisions.add(p, q)
    return OutputAccuracy(
        name,
        kind,
        noise.elements,
        noise.decibels,
        cosines.worst if cosines.rows else None,
        cosines.mean,
        noise.max_abs if noise.elements else None,
        None if decisions is None else decisions.share,
        "" if decisions is None else decisions.kind,
        0 if decisions is None else decisions.changed,
    )


def _decisions(scores: Sequence[Array], reads_tokens: bool) -> Decisions | None:
    """Returns what the scores of a classifier decide; None if nothing. A model that reads tokens decides on each."""
    kind = decisions_of(scores)
    blank = blank_of(scores) if kind == LARGEST and not reads_tokens else None
    return Decisions(TOKENS, blank) if blank is not None else Decisions(kind) if kind else None
