"""Times models against stock ONNX Runtime: one model, two models, or a folder of models."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DynqError
from ...formats import check_file, models_in
from ...inputs import Array, Input, make_feeds, resolve_inputs
from ...rewriter import Report, rewrite
from ...signals import Noise
from ...storage import load
from ...system import return_memory
from ..measuring import sessions
from ..measuring.data import read_tensors
from ..measuring.progress import Track, tracked
from ..measuring.timing import (
    FIVE_SECONDS,
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
from .opening import Opening, measure_opening

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...storage import Model


@dataclass(frozen=True)
class ModelTiming:
    """The timing of a model in stock ONNX Runtime, and of the rewritten or another model with the plugin.

    Attributes:
        name: The name of the model.
        threads: The number of intra-op threads.
        stock, ours: The latencies; None for a model that does not run.
        ratio: The median of `stock` / the median of `ours`; None if one of them does not run, or if `busy`.
        problem: Why a model does not run; empty if both run.
        rewritten: The number of calls of each of ort_dynq's operators that the rewriter made; None if the second model
            was given.
        busy: That the machine is too busy to compare the medians; empty if it is not.
        snr_db: The smallest signal-to-noise ratio of an output of floats to that of stock ONNX Runtime, in decibels;
            None if none was compared, or nothing differs.
    """

    name: str
    threads: int
    stock: Latency | None
    ours: Latency | None
    ratio: float | None
    problem: str
    rewritten: Mapping[str, int] | None
    busy: str
    snr_db: float | None


@dataclass(frozen=True)
class ModelBench:
    """The timings of one model.

    Attributes:
        inputs: The inputs of the model.
        seed: The seed of generated values.
        timings: One per number of threads.
        rewrite_report: What the rewriter did; None if the second model was given.
        openings: How the sessions of both models were opened; None if that was not measured.
    """

    inputs: tuple[Input, ...]
    seed: int
    timings: list[ModelTiming]
    rewrite_report: Report | None
    openings: tuple[Opening, Opening] | None = None


@dataclass(frozen=True)
class Samples:
    """The time of every run of two models, in nanoseconds.

    Attributes:
        ours: The runs of the model with the plugin.
        stock: The runs of the model in stock ONNX Runtime; None if it does not run.
        problem: Why it does not run; empty if it does.
        snr_db: The smallest signal-to-noise ratio of an output of floats, in decibels; None if none was compared.
    """

    ours: Array
    stock: Array | None
    problem: str
    snr_db: float | None = None


def bench_model(
    a: str | Path,
    b: str | Path | None = None,
    settings: Settings = FIVE_SECONDS,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    opening: bool = False,
    track: Track = iter,
) -> ModelBench:
    """Times A in stock ONNX Runtime and B with the plugin; they take turns.

    Args:
        a: The path of the original model.
        b: The path of another model; None to rewrite A.
        settings: How to time, and to rewrite A.
        inputs, shapes, seed: As for :func:`ort_dynq.verify`. Generated values have no rows of zeros.
        opening: Whether to measure opening the sessions as well.
        track: Shows the progress.

    Raises:
        DynqError: A or B is not a model, an input does not fit, or B does not run.
    """
    check_backend(settings.backend)
    given = dict(inputs or {})
    session = sessions.open_session(a, "A")
    resolved = resolve_inputs(session.get_inputs(), given, shapes or {})
    feeds = make_feeds(resolved, given, seed, zero_rows=False)
    sessions.run_original(session, [output.name for output in session.get_outputs()], feeds, resolved)
    del session
    return_memory()
    ours: str | Path | ir.Model
    if b is None:
        result = rewrite(a, **settings.arguments, inputs=inputs, shapes=shapes)
        ours, report = result.model, result.report
    else:
        check_file(b, "B")
        sessions.check_expansion(b, f"B ({b})")
        ours, report = b, None
    steps = tracked(track, settings.threads, [f"threads: {n}" for n in settings.threads])
    timings = [time_model(str(a), a, ours, report, feeds, settings, n) for n in steps]
    openings = measure_opening(a, ours, settings.backend) if opening else None
    return ModelBench(tuple(resolved), seed, timings, report, openings)


def bench_folder(folder: str | Path, settings: Settings, *, track: Track = iter) -> list[ModelTiming]:
    """Times every model of a folder on its recorded inputs.

    The folder has the layout of the ONNX backend test suite: NAME/model.onnx with NAME/test_data_set_0/input_*.pb. A
    model that does not run gets a timing, and its `problem` says why.

    Args:
        folder: The folder.
        settings: How to time, and to rewrite.
        track: Shows the progress.

    Raises:
        DynqError: The folder has no models, or the operators cannot be registered.
    """
    check_backend(settings.backend)
    names = sorted(path.parent.name for path in Path(folder).glob("*/model.onnx"))
    if not names:
        raise DynqError(f"{folder} has no subfolders with a model.onnx; for one model, {models_in(folder)}")
    return [
        _time_recorded(Path(folder) / name, settings, threads) for name in track(names) for threads in settings.threads
    ]


def _time_recorded(folder: Path, settings: Settings, threads: int) -> ModelTiming:
    try:
        model = folder / "model.onnx"
        feeds = recorded_inputs(folder)
        result = rewrite(model, **settings.arguments, inputs=feeds)
        return time_model(folder.name, model, result.model, result.report, feeds, settings, threads)
    except DynqError as error:
        return ModelTiming(folder.name, threads, None, None, None, str(error), None, "", None)


def recorded_inputs(folder: Path) -> dict[str, Array]:
    """Reads test_data_set_0 beside a model. Tensors without the names of inputs are taken in the order of the inputs.

    Raises:
        DynqError: A file is not a tensor, or the model is none.
    """
    graph = load(folder / "model.onnx").graph
    # Old models list initializers among their inputs.
    names = [value.name or "" for value in graph.inputs if value.name not in graph.initializers]
    return read_tensors(folder / "test_data_set_0", names)


def sample(name: str, a: Model, b: Model, feeds: Mapping[str, Array], settings: Settings, threads: int) -> Samples:
    """Times A in stock ONNX Runtime and B with the plugin; they take turns.

    Args:
        name: The name of both models in error messages.
        a, b: The models.
        feeds: Their inputs.
        settings: How to time.
        threads: The number of intra-op threads.

    Raises:
        DynqError: B does not run.
    """
    feeds = {key: aligned(array) for key, array in feeds.items()}
    contenders = [session_contender(name, b, feeds, threads, backend=settings.backend)]
    problem = ""
    try:
        contenders.append(session_contender(name, a, feeds, threads))
    except ContenderError as error:
        problem = str(error)
    ours, *stock = interleave(contenders, settings, threads)
    return Samples(ours, stock[0] if stock else None, problem, _snr_of(*contenders) if stock else None)


def _snr_of(b: Contender, a: Contender) -> float | None:
    """Returns the smallest finite signal-to-noise ratio of the outputs of the last runs of B to those of A."""
    ratios = []
    for name, exact in a.outputs.items():
        found = b.outputs.get(name)
        if found is not None and (found.shape, found.dtype) == (exact.shape, exact.dtype) and exact.dtype.kind == "f":
            noise = Noise()
            noise.add(exact, found)
            ratios.append(noise.decibels)
    return min((each for each in ratios if each is not None and math.isfinite(each)), default=None)


def time_model(
    name: str,
    a: Model,
    b: Model,
    report: Report | None,
    feeds: Mapping[str, Array],
    settings: Settings,
    threads: int,
) -> ModelTiming:
    """Times two models as :func:`sample` does, and summarizes the samples.

    Args:
        name: The name of the model.
        a, b, feeds, settings, threads: As for :func:`sample`.
        report: What the rewriter did to make B from A; None if B was given.

    Raises:
        DynqError: B does not run.
    """
    samples = sample(name if report else "B", a, b, feeds, settings, threads)
    ours = latency(samples.ours)
    stock = None if samples.stock is None else latency(samples.stock)
    found = speed(stock, ours)
    return ModelTiming(
        name,
        threads,
        stock,
        ours,
        found.ratio,
        samples.problem,
        None if report is None else operator_counts(report),
        found.busy,
        samples.snr_db,
    )


def operator_counts(report: Report) -> dict[str, int]:
    """Counts the rewritten chains by the operator that replaced them."""
    return dict(Counter(finding.operator or "" for finding in report.rewritten))
