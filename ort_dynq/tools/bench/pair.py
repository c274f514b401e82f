"""Measures a model and the model that was made from it, by a rewrite or by a quantization."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ... import rewriter
from ...errors import DynqError
from ...graphs import graphs, label, named
from ...inputs import Array, Input, make_feeds
from ...operators import DOMAIN
from ...rewriter.analysis.nodes import program_of
from ...rewriter.loop import op_counts
from ...storage import load, size, size_of
from ..accuracy.accuracy import Accuracy, measure
from ..accuracy.reference import Reference
from ..measuring.optimized import optimized
from ..measuring.plain import plain
from ..measuring.profile import Profile, profile
from ..measuring.progress import Track
from ..measuring.sessions import SessionError
from ..measuring.timing import FIVE_SECONDS, Machine, Settings, latency, machine
from ..verification.verification import Verification, verify
from .changes import Change, changes
from .fusions import FusionTime, fusion_times, has_fusions
from .models import Samples, sample

_STEPS = ("rewriting", "verifying", "timing both models", "profiling the original", "profiling the rewritten model")
_PROFILE_SHARE = 0.2  # the share of each of the two profiles in the time for timing and profiling


@dataclass(frozen=True)
class Pair:
    """A model and the model that was made from it: what changed, whether it is correct, and the times of both.

    Attributes:
        model: The path of the model.
        bytes, new_bytes: The sizes of the model and of the new model, with external data.
        machine: The machine.
        settings: How the models were timed.
        rewrite_report: The nodes that were rewritten or quantized, and the others with the reason.
        replaced: The names of the nodes that the new model does not have.
        inputs, seed: What both models ran on.
        verification: The comparison of both models; None for a quantized model.
        quantized: The path of the quantized model; empty if the new model is a rewrite.
        accuracy: The comparison of the quantized model with the float model; None for a rewrite.
        data: The path of the data of this comparison; empty if there is none.
        samples: The run times of both; None if they were not timed.
        before, after: The profiles of the model in stock ONNX Runtime and of the new model with the plugin, scaled to
            the medians of `samples`; None for a model that does not run.
        fusions: The time of the fusions in both profiles, by groups of equal layers.
        changes: One example of each kind of nodes that the new model has in place of others.
        problem: Why one of the models does not run, or why its times are no measure; empty if both run.
    """

    model: str
    bytes: int
    new_bytes: int
    machine: Machine
    settings: Settings
    rewrite_report: rewriter.Report
    replaced: frozenset[str]
    inputs: tuple[Input, ...]
    seed: int
    verification: Verification | None = None
    quantized: str = ""
    accuracy: Accuracy | None = None
    data: str = ""
    samples: Samples | None = None
    before: Profile | None = None
    after: Profile | None = None
    fusions: tuple[FusionTime, ...] = ()
    changes: tuple[Change, ...] = ()
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON, without the run times and profiles."""
        results = {
            name: None if (value := getattr(self, name)) is None else value.to_dict()
            for name in ("rewrite_report", "verification", "accuracy")
        }
        names = ("model", "bytes", "new_bytes", "machine", "settings", "inputs", "seed", "quantized", "data")
        return {name: plain(getattr(self, name)) for name in (*names, "fusions", "changes", "problem")} | {
            key: plain(each) for key, each in results.items()
        }


def measure_pair(
    source: str | os.PathLike[str],
    settings: Settings = FIVE_SECONDS,
    *,
    quantized: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    track: Track = iter,
) -> Pair:
    """Rewrites a model, verifies the result, and times and profiles both. Or compares it with a quantized model.

    Args:
        source: The model's path.
        settings: How to rewrite and to time. The first number of threads is used; the time is for timing and profiling
            together.
        quantized: The path of a quantized model, to compare the float model with it instead of with a rewrite.
        data: With a quantized model: the path of the data (measuring/data.py); None for `inputs` or generated ones.
        inputs, shapes, seed: As for :func:`ort_dynq.verify`.
        track: Shows the progress.

    Raises:
        DynqError: The file is not a model, the model does not run in stock ONNX Runtime with optimizations off, an
            input does not fit, or the operators cannot be registered.
    """
    if quantized is None and data is not None:
        raise DynqError("data are for the comparison with a quantized model; give the quantized model as well")
    steps = iter(track(_STEPS))
    next(steps)
    original = named(load(source))
    threads, backend, profile_seconds = settings.threads[0], settings.backend, settings.seconds * _PROFILE_SHARE
    settings = replace(settings, threads=(threads,), seconds=settings.seconds - 2 * profile_seconds)
    facts: dict[str, Any] = {
        "model": os.fspath(source),
        "machine": machine(backend),
        "settings": settings,
        "seed": seed,
    }
    given, feeds = dict(inputs or {}), None
    if quantized is None:
        result = rewriter.rewrite(original, **settings.arguments, inputs=inputs, shapes=shapes)
        next(steps)
        verification = verify(source, result.model, inputs=given, shapes=shapes, seed=seed, backend=backend)
        facts |= {"verification": verification, "inputs": verification.inputs, "problem": verification.failure}
        if not verification.failure:
            feeds = make_feeds(verification.inputs, given, seed, zero_rows=False)
    else:
        model = named(load(quantized))
        next(steps)
        reference = Reference(source, data, inputs=given, shapes=shapes, seed=seed)
        accuracy = measure(reference, model, backend=backend, seconds=profile_seconds, threads=threads)
        result = rewriter.Result(model, _report_of(original, model, accuracy))
        facts |= {"accuracy": accuracy, "quantized": os.fspath(quantized), "inputs": reference.data.inputs}
        facts["data"] = "" if data is None else os.fspath(data)
        feeds = dict(reference.data.sets[0])
    facts["bytes"] = size(Path(source))  # all external data are there: the model has run
    facts["new_bytes"] = size_of(result.model) if quantized is None else size(Path(quantized))
    facts["changes"] = changes(original, result.model)
    facts |= {"rewrite_report": result.report, "replaced": _names(original) - _names(result.model)}
    if feeds is None:
        return Pair(**facts)
    next(steps)
    samples = sample(Path(source).name, source, result.model, feeds, settings, threads)
    facts |= {"samples": samples, "problem": samples.problem or _problem(result.report)}
    profiling: dict[str, Any] = {"threads": threads, "seconds": profile_seconds}
    try:
        next(steps)
        if samples.stock is not None:
            found = profile(original, feeds, nodes=sum(result.report.before.values()), **profiling)
            facts["before"] = found.scaled(latency(samples.stock).median_ms)
        next(steps)
        found = profile(result.model, feeds, backend=backend, nodes=sum(result.report.after.values()), **profiling)
        facts["after"] = found.scaled(latency(samples.ours).median_ms)
        if facts.get("before") is not None and has_fusions(result.model):
            facts["fusions"] = fusion_times(
                original, result.model, optimized(original), facts["before"], facts["after"]
            )
    except SessionError as error:  # both models ran without the profiler
        raise DynqError(f"{os.fspath(source)} does not run with ONNX Runtime's profiler: {error}") from error
    next(steps, None)
    return Pair(**facts)


def _problem(report: rewriter.Report) -> str:
    """Returns why the times are no comparison with stock ONNX Runtime, if the model was made by a rewrite."""
    if not any(operator.startswith(f"{DOMAIN}.") for operator in report.before):
        return ""
    return (
        "the model has operators of ort_dynq already: before, stock ONNX Runtime runs their functions, which is slow; "
        "give the original model to compare with it"
    )


def _report_of(a: ir.Model, b: ir.Model, accuracy: Accuracy) -> rewriter.Report:
    """Returns the report of a quantization that was made before: the layers that `accuracy` has."""
    kinds, calls = ({node.name: node for node in model.graph} for model in (a, b))
    findings = []
    for each in accuracy.layers:
        kind, call = (nodes[each.name].op_type if each.name in nodes else "" for nodes in (kinds, calls))
        program = program_of(calls[each.name]) if each.name in calls else ""
        findings.append(rewriter.Finding(each.name, kind, "main", "quantize", call or each.operator, program=program))
    return rewriter.Report(findings, op_counts(a), op_counts(b))


def _names(model: ir.Model) -> frozenset[str]:
    return frozenset(label(node) for _, graph in graphs(model) for node in graph)
