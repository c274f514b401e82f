"""Compares ways to quantize one float model: time, size of the file and accuracy.

The contenders, each at ONNX Runtime's default optimization level:

* float: the model itself, with which the others are compared.
* quantize_dynamic: onnxruntime's, with default settings: int8 weights with one scale for a whole matrix; and with one
  scale for each channel.
* MatMulNBits: the weight-only quantizer of onnxruntime with 4 and 8 bits, in groups of 32, at accuracy level 4, which
  multiplies integers.
* OpenVINO, if it is installed, see openvino.py.
* ort_dynq: :func:`ort_dynq.quantize` with int8 weights, with these and activations of two terms, and with 4 bits in
  groups of 32; and :func:`ort_dynq.rewrite` of the model that quantize_dynamic wrote with default settings, if that
  changes it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from ... import storage
from ...errors import DynqError, GateError, message
from ...files import temporary_folder
from ...inputs import Array, Given
from ...quantizer import checked, quantize_layers
from ...rewriter import rewrite
from ...runtime import open_session, session_options
from ..accuracy.outputs import compare_outputs, is_compared, results_of, worst_snr
from ..accuracy.reference import Reference
from ..measuring.data import Data
from ..measuring.plain import plain
from ..measuring.progress import Track
from ..measuring.sessions import SessionError
from ..measuring.timing import (
    Contender,
    ContenderError,
    Latency,
    Settings,
    aligned,
    check_backend,
    interleave,
    latency,
    session_contender,
    speed,
)
from . import openvino
from .networks import Answers

FLOAT, DYNAMIC, OURS = "float", "quantize_dynamic", "ort_dynq"
REWRITTEN = f"{OURS} rewrite"
TOKENS = (1, 16, 128)
_GROUP = 32
_MAX_PROTOBUF = 2**31 - 2**20  # bytes; a larger model needs external data


@dataclass(frozen=True)
class Case:
    """One setting in which all contenders are timed.

    Attributes:
        tokens: The length of the sequence; None for the shape of the data.
        threads: The number of intra-op threads.
    """

    tokens: int | None
    threads: int

    def __str__(self) -> str:
        what = "own shape" if self.tokens is None else f"{self.tokens} token{'s' if self.tokens > 1 else ''}"
        return f"{what}, {self.threads} thread{'s' if self.threads > 1 else ''}"


@dataclass(frozen=True)
class FormTiming:
    """The time of one contender.

    Attributes:
        case: The length and the number of threads.
        latency: The latency.
        ratio: The median of float / the median of this; None if `busy`.
        busy: That the machine is too busy to compare the medians; empty if it is not.
    """

    case: Case
    latency: Latency
    ratio: float | None
    busy: str = ""


@dataclass(frozen=True)
class Form:
    """One contender.

    Attributes:
        name: Its name.
        bytes: The size of the file and of its external data; None if there is no model.
        snr_db: The smallest signal-to-noise ratio of an output against the float model's; None for float, and if
            nothing finite was compared.
        cosine_worst: The smallest cosine of a row of an output; None for float, or if no output has rows.
        timings: The times, in the order of the bench's cases.
        problem: Why there is no model, or why it does not run; empty if it runs.
        same_answers: The share of answers that equal the float model's; None for float, OpenVINO and other models.
    """

    name: str
    bytes: int | None = None
    snr_db: float | None = None
    cosine_worst: float | None = None
    timings: tuple[FormTiming, ...] = ()
    problem: str = ""
    same_answers: float | None = None

    @property
    def is_ours(self) -> bool:
        """Whether it needs the plugin."""
        return self.name.startswith(OURS)


@dataclass(frozen=True)
class QuantizationBench:
    """The comparison of all contenders.

    Attributes:
        model: The path of the float model.
        data: The data that the accuracy was measured on.
        cases: The lengths and numbers of threads that were timed.
        forms: The contenders, float first.
    """

    model: str
    data: Data
    cases: tuple[Case, ...]
    forms: tuple[Form, ...]

    @property
    def has_answers(self) -> bool:
        """Whether answers were compared."""
        return any(each.same_answers is not None for each in self.forms)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON. Infinities, which JSON does not have, become text."""
        found = {
            "model": self.model,
            "inputs": tuple(map(asdict, self.data.inputs)),
            "seed": self.data.seed,
            "sets": len(self.data.sets),
            "generated": self.data.is_generated,
            "forms": tuple(map(asdict, self.forms)),
        }
        return {key: plain(value) for key, value in found.items()}


@dataclass
class _Candidate:
    """A contender while it is measured."""

    name: str
    path: Path
    problem: str = ""
    samples: list[FormTiming] = field(default_factory=list)

    def __str__(self) -> str:
        return self.name


def bench_quantization(
    model: str | Path,
    reference: Reference,
    settings: Settings,
    *,
    tokens: Sequence[int] | None = None,
    answers: Answers | None = None,
    writers: Mapping[str, Writer] | None = None,
    track: Track = iter,
) -> QuantizationBench:
    """Quantizes a float model in several ways, and measures each.

    Args:
        model: The path of the float model.
        reference: Its outputs on the data. The first set is timed.
        settings: How to time.
        tokens: Lengths of the sequence. One sequence of the data is cut or repeated to each. None for :data:`TOKENS` if
            the model has a dynamic sequence, see :func:`sequence_axes`, and else, or if it is empty, the data as they
            are.
        answers: Returns what the outputs for one set of data mean, as one or several values.
        writers: The contenders beside float, by their names; None for those of :func:`writers_of`.
        track: Shows the progress.

    Raises:
        DynqError: The model is not a float model, or does not run; or `tokens` are given for a model without sequence.
    """
    check_backend(settings.backend)
    lengths = _lengths(reference, tokens)
    with temporary_folder() as folder:
        given = writers_of(reference.given) if writers is None else writers
        written = [_write(name, given[name], Path(model), Path(folder)) for name in track([*given])]
        written = [each for each in written if each.name != REWRITTEN or not each.problem]
        candidates = [_Candidate(FLOAT, Path(model)), *written]
        accuracies = {
            each.name: _accuracy(each, reference, settings, answers) for each in track(written) if not each.problem
        }
        cases = [Case(length, threads) for threads in settings.threads for length in lengths]
        for case in track(cases):
            _time(candidates, reference, settings, case)
        forms = []
        for each in candidates:
            snr, cosine, same = accuracies.get(each.name, (None, None, None))
            size = _bytes(each.path) if each.path.is_file() else None
            forms.append(Form(each.name, size, snr, cosine, tuple(each.samples), each.problem, same))
    return QuantizationBench(str(model), reference.data, tuple(cases), tuple(forms))


def sequence_axes(declared: Sequence[Any]) -> dict[str, list[int]] | None:
    """Returns the axes of the sequence for each input; None if the model has no dynamic sequence.

    The second axis of the first input is the sequence if its size is dynamic and the input has three dimensions, or two
    and integers. Other inputs have it where their axis has the same name, or none. A dynamic first axis is the batch.
    There may be no other dynamic axes.

    Args:
        declared: The inputs of a session.
    """
    rank = len(declared[0].shape) if declared else 0
    if rank not in (2, 3) or isinstance(declared[0].shape[1], int):
        return None
    if rank == 2 and "int" not in declared[0].type:
        return None
    name, axes = declared[0].shape[1], {}
    for each in declared:
        dynamic = [axis for axis, size in enumerate(each.shape) if axis and not isinstance(size, int)]
        if any(each.shape[axis] != name or (name is None and axis != 1) for axis in dynamic):
            return None
        axes[each.name] = dynamic
    return axes


def _lengths(reference: Reference, tokens: Sequence[int] | None) -> Sequence[int | None]:
    has_sequence = _axes(reference) is not None
    if tokens and not has_sequence:
        raise DynqError(
            "--tokens is for models with a dynamic sequence as the second axis of input 0; give --shape instead"
        )
    return tokens or (TOKENS if has_sequence and tokens is None else (None,))


def _axes(reference: Reference) -> dict[str, list[int]] | None:
    empty = any(array.size == 0 for array in reference.data.sets[0].values())
    return None if empty else sequence_axes(reference.declared)


def _feeds(reference: Reference, length: int | None) -> dict[str, Array]:
    """Returns the first set of data, or one sequence of it with this length."""
    first, axes = reference.data.sets[0], _axes(reference)
    if length is None or axes is None:
        return {name: aligned(array) for name, array in first.items()}
    feeds = {}
    for each in reference.declared:
        array = first[each.name]
        if each.shape and not isinstance(each.shape[0], int):
            array = array[:1]
        for axis in axes[each.name]:
            array = np.take(array, np.arange(length) % array.shape[axis], axis)
        feeds[each.name] = aligned(array)
    return feeds


Writer = Callable[[Path, Path], None]
"""Writes the model of a contender, from the path of the float model to another."""


def writers_of(given: Sequence[Given]) -> dict[str, Writer]:
    """Returns a function for each contender but float that writes its model: from the float model's path to another.

    Args:
        given: Inputs on which the outputs of a model are compared that is converted from an older opset.
    """

    def dynamic(per_channel: bool) -> Writer:
        def write(source: Path, target: Path) -> None:
            from onnxruntime.quantization import quantize_dynamic

            options = {"per_channel": per_channel, "use_external_data_format": _bytes(source) > _MAX_PROTOBUF}
            try:
                quantize_dynamic(source, target, **options)
            except ValueError:  # weights that are no initializers, as Paddle's converter writes them
                folded = target.with_name("folded.onnx")
                _fold(source, folded)
                quantize_dynamic(folded, target, **options)
                folded.unlink()

        return write

    def ours(weights: str, activations: str = "token") -> Writer:
        options = checked(weights, None, activations, symmetric=False, exclude=())
        return lambda source, target: quantize_layers(source, options, given).save(target)

    return {
        DYNAMIC: dynamic(per_channel=False),
        f"{DYNAMIC}, per channel": dynamic(per_channel=True),
        "MatMulNBits 8": lambda source, target: _write_nbits(source, target, 8),
        "MatMulNBits 4": lambda source, target: _write_nbits(source, target, 4),
        **dict.fromkeys(openvino.forms(), openvino.write),
        REWRITTEN: lambda _, target: _write_rewritten(target, given[0]),
        f"{OURS} int8": ours("int8"),
        f"{OURS} int8, two terms": ours("int8", "two-term"),
        f"{OURS} int4": ours("int4"),
    }


def _write_rewritten(target: Path, given: Given) -> None:
    dynamic = target.parents[1] / DYNAMIC / target.name
    result = rewrite(dynamic, inputs=given.inputs, shapes=given.shapes)
    if not result.report.rewritten:
        raise DynqError("it changes nothing")
    result.save(target)


def _fold(source: Path, target: Path) -> None:
    """Writes a model after ONNX Runtime's basic optimizations, which turn constants into initializers."""
    options = session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(target)
    open_session(source, options)


def _write_nbits(source: Path, target: Path, bits: int) -> None:
    try:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    except ImportError as error:
        raise DynqError(f"this version of onnxruntime has no MatMulNBitsQuantizer: {error}") from error
    quantizer = MatMulNBitsQuantizer(onnx.load(source), bits=bits, block_size=_GROUP, accuracy_level=4)
    quantizer.process()
    if not any(node.op_type == "MatMulNBits" for node in quantizer.model.model.graph.node):
        raise DynqError("it quantizes no layer of this model")
    quantizer.model.save_model_to_file(str(target), _bytes(source) > _MAX_PROTOBUF)


def _write(name: str, write: Writer, source: Path, folder: Path) -> _Candidate:
    """Writes the model of a contender. An exception of another package is the contender's problem, not an error."""
    path = folder / name / ("model.xml" if name in openvino.FORMS else "model.onnx")
    path.parent.mkdir()
    try:
        with _quiet():
            write(source, path)
    except Exception as error:
        if name.startswith(OURS) and name != REWRITTEN and not isinstance(error, GateError):
            raise
        return _Candidate(name, path, f"{name} cannot be made: {message(error)}")
    return _Candidate(name, path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the recommendations of onnxruntime's quantizers off the screen."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _accuracy(
    each: _Candidate, reference: Reference, settings: Settings, answers: Answers | None
) -> tuple[float | None, float | None, float | None]:
    """Returns the smallest signal-to-noise ratio and cosine of a contender's outputs, and the share of same answers."""
    try:
        if each.name in openvino.FORMS:
            return *openvino.measure(each.name, each.path, reference), None
        results = results_of(reference, each.path, backend=settings.backend if each.name.startswith(OURS) else None)
    except ContenderError as error:
        each.problem = str(error)
        return None, None, None
    except (SessionError, DynqError) as error:
        each.problem = f"{each.name} does not run: {message(error)}"
        return None, None, None
    outputs = compare_outputs(reference, results)
    cosine = min((out.cosine_worst for out in outputs if out.cosine_worst is not None), default=None)
    snr_db = worst_snr(outputs) if is_compared(outputs) else None
    return snr_db, cosine, None if answers is None else _same(answers, reference.outputs, results)


def _same(answers: Answers, expected: Sequence[Sequence[Array]], actual: Sequence[Sequence[Array]]) -> float:
    pairs = [pair for a, b in zip(expected, actual, strict=True) for pair in zip(answers(a), answers(b), strict=True)]
    return sum(a == b for a, b in pairs) / len(pairs)


def _time(candidates: Sequence[_Candidate], reference: Reference, settings: Settings, case: Case) -> None:
    """Times all contenders in turns. One that does not run gets a problem, and the others are timed.

    Raises:
        DynqError: The float model does not run.
    """
    feeds = _feeds(reference, case.tokens)
    contenders: list[tuple[_Candidate, Contender]] = []
    for each in candidates:
        if not each.problem:
            try:
                contenders.append((each, _open(each, feeds, settings, case.threads)))
            except ContenderError as error:
                if each.name == FLOAT:
                    raise
                each.problem = str(error)
    times = interleave([contender for _, contender in contenders], settings, case.threads)
    found = [latency(samples) for samples in times]
    for (each, _), own in zip(contenders, found, strict=True):
        each.samples.append(FormTiming(case, own, *speed(found[0], own)))


def _open(each: _Candidate, feeds: Mapping[str, Array], settings: Settings, threads: int) -> Contender:
    if each.name in openvino.FORMS:
        return openvino.contender(each.name, each.path, feeds, threads)
    backend = settings.backend if each.name.startswith(OURS) else None
    return session_contender(each.name, each.path, feeds, threads, backend=backend)


def _bytes(path: Path) -> int:
    """Returns the size of a model's file and of the files with its external data, or of OpenVINO's two files."""
    if path.suffix == ".xml":
        return openvino.size(path)
    return storage.size(path)
