"""Collects the facts about a model and its rewrite: findings, verification, latencies and profiles."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from .. import doctor, rewriter
from ..accuracy import Accuracy, Reference, measure
from ..bench.models import Samples, sample
from ..errors import DynqError
from ..graphs import graphs, label, named
from ..measuring.inputs import Array, Input, make_feeds
from ..measuring.profile import NodeTime, Profile, profile
from ..measuring.progress import Track
from ..measuring.sessions import SessionError
from ..measuring.timing import Latency, Machine, Settings, latency, machine
from ..operators import OPERATORS
from ..rewriter.grouping import Group, grouped, pattern, pattern_key
from ..rewriter.loop import op_counts
from ..storage import load
from ..verification import Verification, verify
from . import page

if TYPE_CHECKING:
    from ..backends.options import Backend

_STEPS = ("rewriting", "verifying", "timing both models", "profiling the original", "profiling the rewritten model")
_BINS, _TAIL, _MARGIN = 60, 90, 1.2  # the histogram ends at this multiple of this percentile
_PROFILE_SHARE = 0.2  # the share of each of the two profiles in the time for timing and profiling
_MAX_NODES = 15  # in the tables of the HTML page; JSON has all nodes

OURS, CHAINS, PRODUCTS, OTHERS, BETWEEN = KINDS = ("ours", "chains", "products", "others", "between")
_PRODUCTS = ("MatMul", "Gemm", "Conv", "Attention")


@dataclass(frozen=True)
class Distribution:
    """The run times of one model.

    Attributes:
        latency: The summary.
        min_ms, max_ms: The shortest and the longest run.
        counts: A histogram: the number of runs in each of equally wide bins from 0 to `end_ms` of the report.
        beyond: The number of runs longer than `end_ms`.
    """

    latency: Latency
    min_ms: float
    max_ms: float
    counts: tuple[int, ...]
    beyond: int


@dataclass(frozen=True)
class OperatorTime:
    """The time of all nodes of one operator: milliseconds and calls per run, before and after the rewrite."""

    op_type: str
    ours: bool
    before_ms: float
    after_ms: float
    before_calls: float
    after_calls: float


@dataclass(frozen=True)
class NodeGroup:
    """Nodes whose names differ only in numbers, and their total milliseconds and calls per run."""

    node: str
    op_type: str
    kind: str
    count: int
    ms: float
    calls: float


@dataclass(frozen=True)
class Side:
    """The profile of one model.

    Attributes:
        profile: The times of the nodes.
        kinds: Milliseconds per run by kind: ort_dynq's operators except for products; nodes that the rewrite replaces;
            matrix products and convolutions; other nodes; time between nodes.
        groups: The nodes in groups, the slowest first.
    """

    profile: Profile
    kinds: Mapping[str, float]
    groups: tuple[NodeGroup, ...]


@dataclass(frozen=True)
class ModelReport:
    """A model and its rewritten form: what changed, whether it is correct, and the times of both.

    Attributes:
        model: The path of the model.
        bytes: The size of its file, without external data.
        machine, versions: The machine and the versions of the packages.
        settings: How the models were timed.
        rewrite_report: What was rewritten, what was left, and why.
        groups: The same findings, those of equal layers together.
        inputs, seed: What both models ran on.
        verification: The comparison of both models; None if a quantized model was given.
        quantized: The path of the quantized model that was given instead of a rewrite; empty if none was.
        accuracy: The comparison of that model with the float model.
        data: The path of the data of this comparison; empty if there is none.
        end_ms: The end of the histograms.
        before, after: The original in stock ONNX Runtime, and the rewritten model with the plugin; None for a model
            that does not run.
        ratio: The median before / the median after.
        operators: The profiled time by operator, the slowest first.
        before_profile, after_profile: The profiles; None for a model that does not run.
        problem: Why one of the models does not run; empty if both run.
    """

    model: str
    bytes: int
    machine: Machine
    versions: Mapping[str, str]
    settings: Settings
    rewrite_report: rewriter.Report
    groups: tuple[Group, ...]
    inputs: tuple[Input, ...]
    seed: int
    verification: Verification | None = None
    quantized: str = ""
    accuracy: Accuracy | None = None
    data: str = ""
    end_ms: float = 0.0
    before: Distribution | None = None
    after: Distribution | None = None
    ratio: float | None = None
    operators: tuple[OperatorTime, ...] = ()
    before_profile: Side | None = None
    after_profile: Side | None = None
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        given = {key: getattr(self, key) for key in self.__dataclass_fields__}
        given |= {
            name: None if given[name] is None else given[name].to_dict()
            for name in ("rewrite_report", "verification", "accuracy")
        }
        return {key: _plain(value) for key, value in given.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the HTML page atomically.

        Raises:
            DynqError: The file cannot be written.
        """
        page.save(self.to_html(), Path(path))

    def to_html(self) -> str:
        """Returns a self-contained HTML page without scripts."""
        longest = max((each.latency.median_ms for each in (self.before, self.after) if each), default=1.0)
        unit, factor = ("ms", 1.0) if longest >= 1 else ("µs", 1e3)
        digits = max(1, 4 - len(str(int(longest * factor))))
        return page.render(
            "page.html",
            r=self,
            kinds=KINDS,
            unit=unit,
            time=lambda ms: f"{ms * factor:.{digits}f}",
            rewritten=[group for group in self.groups if group.operator],
            left=[group for group in self.groups if not group.operator],
            counts=_counts(self.rewrite_report),
            max_nodes=_MAX_NODES,
        )


def make_report(
    source: str | os.PathLike[str],
    *,
    quantized: str | os.PathLike[str] | None = None,
    data: str | os.PathLike[str] | None = None,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    backend: Backend = "native",
    exact: bool = False,
    threads: int = 1,
    seconds: float = 5.0,
    track: Track = iter,
) -> ModelReport:
    """Rewrites a model, verifies the result, and times and profiles both. Or compares it with a quantized model.

    Args:
        source: The model's path.
        quantized: The path of a quantized model, to compare the float model with it instead of with a rewrite.
        data: With a quantized model: the path of the data (verification/data.py); None for `inputs` or generated ones.
        inputs, shapes, seed, backend: As for :func:`ort_dynq.verify`.
        exact: As for :func:`ort_dynq.rewrite`.
        threads: The number of intra-op threads of ONNX Runtime.
        seconds: The time for timing and profiling together.
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
    settings = Settings((threads,), seconds * (1 - 2 * _PROFILE_SHARE), backend=backend, exact=exact)
    facts: dict[str, Any] = {
        "model": os.fspath(source),
        "bytes": os.path.getsize(source),
        "machine": machine(backend),
        "versions": doctor.versions(),
        "settings": settings,
        "seed": seed,
    }
    given, feeds = dict(inputs or {}), None
    if quantized is None:
        result = rewriter.rewrite(original, exact=exact)
        next(steps)
        verification = verify(source, result.model, inputs=given, shapes=shapes, seed=seed, backend=backend)
        facts |= {"verification": verification, "inputs": verification.inputs, "problem": verification.failure}
        if not verification.failure:
            feeds = make_feeds(verification.inputs, given, seed, zero_rows=False)
    else:
        model = named(load(quantized))
        next(steps)
        reference = Reference(source, data, inputs=given, shapes=shapes, seed=seed)
        accuracy = measure(reference, model, backend=backend, seconds=seconds * _PROFILE_SHARE, threads=threads)
        result = rewriter.Result(model, _report_of(original, model, accuracy))
        facts |= {"accuracy": accuracy, "quantized": os.fspath(quantized), "inputs": reference.data.inputs}
        facts["data"] = "" if data is None else os.fspath(data)
        feeds = dict(reference.data.sets[0])
    facts |= {"rewrite_report": result.report, "groups": tuple(grouped(result.report.findings))}
    if feeds is None:
        return ModelReport(**facts)
    next(steps)
    samples = sample(Path(source).name, source, result.model, feeds, settings, threads)
    facts |= _distributions(samples)
    how: dict[str, Any] = {"threads": threads, "seconds": seconds * _PROFILE_SHARE}
    replaced = _names(original) - _names(result.model)
    before: Profile | None = None
    try:
        next(steps)
        if not samples.problem:
            before = profile(original, feeds, nodes=sum(result.report.before.values()), **how)
        next(steps)
        after = profile(result.model, feeds, backend=backend, nodes=sum(result.report.after.values()), **how)
    except SessionError as error:  # both models ran without the profiler
        raise DynqError(f"{os.fspath(source)} does not run with ONNX Runtime's profiler: {error}") from error
    next(steps, None)
    facts["problem"] = samples.problem
    return ModelReport(
        **facts,
        operators=tuple(_operators(before, after)),
        before_profile=None if before is None else _side(before, replaced),
        after_profile=_side(after, set()),
    )


def _report_of(a: ir.Model, b: ir.Model, accuracy: Accuracy) -> rewriter.Report:
    """Returns the report of a quantization that was made before: the layers that `accuracy` has."""
    kinds = {node.name: node.op_type for node in a.graph}
    findings = [
        rewriter.Finding(each.name, kinds.get(each.name, ""), "main", "quantize", each.operator)
        for each in accuracy.layers
    ]
    return rewriter.Report(findings, op_counts(a), op_counts(b))


def _names(model: ir.Model) -> set[str]:
    return {label(node) for _, graph in graphs(model) for node in graph}


def _distributions(samples: Samples) -> dict[str, Any]:
    both = [each / 1e6 for each in (samples.stock, samples.ours) if each is not None]
    end = float(max(np.percentile(each, _TAIL) for each in both)) * _MARGIN

    def distribution(nanoseconds: Array) -> Distribution:
        ms = nanoseconds / 1e6
        counts, _ = np.histogram(ms, _BINS, (0, end))
        beyond = int((ms > end).sum())
        return Distribution(latency(nanoseconds), float(ms.min()), float(ms.max()), tuple(map(int, counts)), beyond)

    after = distribution(samples.ours)
    if samples.stock is None:
        return {"end_ms": end, "after": after}
    before = distribution(samples.stock)
    ratio = before.latency.median_ms / after.latency.median_ms
    return {"end_ms": end, "before": before, "after": after, "ratio": ratio}


def _operators(before: Profile | None, after: Profile) -> list[OperatorTime]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for column, side in enumerate((before, after)):
        for node in side.nodes if side else ():
            totals[node.op_type][column] += node.ms
            totals[node.op_type][2 + column] += node.calls
    operators = [OperatorTime(op_type, op_type in OPERATORS, *numbers) for op_type, numbers in totals.items()]
    return sorted(operators, key=lambda each: -max(each.before_ms, each.after_ms))


def _side(found: Profile, replaced: set[str]) -> Side:
    kinds = dict.fromkeys(KINDS, 0.0)
    groups: dict[tuple[object, ...], list[NodeTime]] = defaultdict(list)
    for node in found.nodes:
        kind = _kind(node, replaced)
        kinds[kind] += node.ms
        groups[pattern_key(node.name), node.op_type, kind].append(node)
    kinds[BETWEEN] = found.between_ms
    listed = [
        NodeGroup(
            pattern([node.name for node in nodes]),
            nodes[0].op_type,
            _kind(nodes[0], replaced),
            len(nodes),
            sum(node.ms for node in nodes),
            sum(node.calls for node in nodes),
        )
        for nodes in groups.values()
    ]
    return Side(found, kinds, tuple(sorted(listed, key=lambda group: -group.ms)))


def _kind(node: NodeTime, replaced: set[str]) -> str:
    if any(name in node.op_type for name in _PRODUCTS):  # ours, too, so that both models' products can be compared
        return PRODUCTS
    if node.op_type in OPERATORS:
        return OURS
    return CHAINS if node.name in replaced else OTHERS


def _counts(report: rewriter.Report) -> list[tuple[str, int, int]]:
    """Returns the operators whose count changes, with both counts, then the sum of the others."""
    counts = {op: (report.before.get(op, 0), report.after.get(op, 0)) for op in {**report.before, **report.after}}
    changed = sorted((op, *pair) for op, pair in counts.items() if pair[0] != pair[1])
    same = sum(before for before, after in counts.values() if before == after)
    return changed + ([("all others", same, same)] if same else [])


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return asdict(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value
