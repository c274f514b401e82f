"""The report on a model and its rewritten or quantized form: the figures of the page, and their plain data."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ... import rewriter
from ...inputs import Array
from ...operators import OPERATORS
from ...rewriter.grouping import Group, grouped, pattern, pattern_key
from .. import doctor
from ..accuracy.accuracy import Accuracy
from ..bench.changes import is_product
from ..bench.models import Samples
from ..bench.pair import Pair, measure_pair
from ..measuring.plain import plain, size_of_noise
from ..measuring.profile import NodeTime, Profile
from ..measuring.timing import FIVE_SECONDS, Latency, Settings, latency, speed
from . import page
from .drawing import draw

_BINS, _TAIL, _MAX_DISTANCE = 60, 95, 3  # the histogram ends at this percentile, or at this multiple of the median
_MAX_NODES = 15  # in the tables of the HTML page; JSON has all nodes
_MAX_PICTURES = 8  # of kinds of changes
_ENOUGH = 25.0  # dB, the default of `ort-dynq run`
_MAX_FINDINGS = 40  # groups that the page shows without a click

OURS, CHAINS, PRODUCTS, OTHERS, BETWEEN = KINDS = ("ours", "chains", "products", "others", "between")


@dataclass(frozen=True)
class Distribution:
    """The run times of one model.

    Attributes:
        latency: The summary.
        max_ms: The longest run.
        counts: A histogram: the number of runs in each of equally wide bins from 0 to `end_ms` of the report.
        beyond: The number of runs longer than `end_ms`.
    """

    latency: Latency
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
    """Nodes with names that differ only in numbers, and their total milliseconds and calls per run."""

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
    """The figures of the page on a model and its rewritten or quantized form.

    Attributes:
        pair: The measurements.
        versions: The versions of the packages.
        groups: The findings, grouped by equal layers.
        end_ms: The end of the histograms: the 95th percentile of the slower model, or three medians if that is less.
        before, after: The original in stock ONNX Runtime, and the new model with the plugin; None for a model that does
            not run.
        ratio: The median before / the median after; None if a model does not run, or if `busy`.
        busy: That the machine is too busy to compare the medians; empty if it is not.
        operators: The profiled time by operator, the slowest first.
        before_profile, after_profile: The profiles; None for a model that does not run.
    """

    pair: Pair
    versions: Mapping[str, str]
    groups: tuple[Group, ...]
    end_ms: float = 0.0
    before: Distribution | None = None
    after: Distribution | None = None
    ratio: float | None = None
    busy: str = ""
    operators: tuple[OperatorTime, ...] = ()
    before_profile: Side | None = None
    after_profile: Side | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        figures = {name: plain(getattr(self, name)) for name in self.__dataclass_fields__ if name != "pair"}
        return self.pair.to_dict() | figures

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the HTML page atomically.

        Raises:
            DynqError: The file cannot be written.
        """
        page.save(self.to_html(), Path(path))

    def to_html(self) -> str:
        """Returns a self-contained HTML page. Its only script copies names."""
        longest = max((each.latency.median_ms for each in (self.before, self.after) if each), default=1.0)
        unit, factor = ("ms", 1.0) if longest >= 1 else ("µs", 1e3)
        digits = max(1, 4 - len(str(int(longest * factor))))
        return page.render(
            "page.html",
            script="page.js",
            r=self,
            p=self.pair,
            kinds=KINDS,
            unit=unit,
            time=lambda ms: f"{ms * factor:.{digits}f}",
            rewritten=[group for group in self.groups if group.operator],
            unconverted=[group for group in self.groups if not group.operator],
            counts=_counts(self.pair.rewrite_report),
            pictures=[(each, draw(each.before), draw(each.after)) for each in self.pair.changes[:_MAX_PICTURES]],
            meaning=() if self.pair.accuracy is None else _meaning(self.pair.accuracy),
            difference="" if self.pair.accuracy is None else _difference(self.pair.accuracy),
            filled=_filled,
            max_nodes=_MAX_NODES,
            max_findings=_MAX_FINDINGS,
        )


def report(
    model: str | os.PathLike[str],
    quantized: str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    settings: Settings = FIVE_SECONDS,
) -> ModelReport:
    """Measures a model and the model that was made from it, for an HTML page: ``report(...).save("page.html")``.

    Args:
        model: The path of the model.
        quantized: The path of what :func:`ort_dynq.quantize` made of it; None for a rewrite with `settings`.
        data: With a quantized model: the path of data, as for :func:`ort_dynq.quantize`; None for `inputs` or generated
            data.
        inputs, shapes, seed: As for :func:`ort_dynq.verify`.
        settings: How to rewrite and to time. The first number of threads is used.

    Raises:
        DynqError: The file is not a model, the model does not run in stock ONNX Runtime, or the data do not fit.
    """
    return report_on(
        measure_pair(
            model,
            settings,
            quantized=quantized,
            data=data,
            inputs=inputs,
            shapes=shapes,
            seed=seed,
        )
    )


def report_on(pair: Pair) -> ModelReport:
    """Returns the report of a model and its rewritten or quantized form."""
    return ModelReport(
        pair,
        doctor.versions(),
        tuple(grouped(pair.rewrite_report.findings)),
        **({} if pair.samples is None else _distributions(pair.samples)),
        operators=() if pair.after is None else tuple(_operators(pair.before, pair.after)),
        before_profile=None if pair.before is None else _side(pair.before, pair.replaced),
        after_profile=None if pair.after is None else _side(pair.after, frozenset()),
    )


def _distributions(samples: Samples) -> dict[str, Any]:
    both = [each / 1e6 for each in (samples.stock, samples.ours) if each is not None]
    end = float(max(min(np.percentile(each, _TAIL), _MAX_DISTANCE * np.median(each)) for each in both))

    def distribution(nanoseconds: Array) -> Distribution:
        ms = nanoseconds / 1e6
        counts, _ = np.histogram(ms, _BINS, (0, end))
        beyond = int((ms > end).sum())
        return Distribution(latency(nanoseconds), float(ms.max()), tuple(map(int, counts)), beyond)

    after = distribution(samples.ours)
    if samples.stock is None:
        return {"end_ms": end, "after": after}
    before = distribution(samples.stock)
    found = speed(before.latency, after.latency)
    return {"end_ms": end, "before": before, "after": after, "ratio": found.ratio, "busy": found.busy}


def _operators(before: Profile | None, after: Profile) -> list[OperatorTime]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for column, side in enumerate((before, after)):
        for node in side.nodes if side else ():
            totals[node.op_type][column] += node.ms
            totals[node.op_type][2 + column] += node.calls
    operators = [OperatorTime(op_type, op_type in OPERATORS, *numbers) for op_type, numbers in totals.items()]
    return sorted(operators, key=lambda each: -max(each.before_ms, each.after_ms))


def _side(found: Profile, replaced: Collection[str]) -> Side:
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


def _kind(node: NodeTime, replaced: Collection[str]) -> str:
    if is_product(node.op_type):  # of both models, so that they can be compared
        return PRODUCTS
    if node.op_type in OPERATORS:
        return OURS
    return CHAINS if node.name in replaced else OTHERS


def _difference(accuracy: Accuracy) -> str:
    """Returns how far the outputs are from the float model's, for the headline; empty if it is not known."""
    if accuracy.unchecked:
        return ""
    if math.isinf(accuracy.snr_db):
        return "The same outputs"
    return f"Outputs within {size_of_noise(accuracy.snr_db)} of the float model’s"


def _meaning(accuracy: Accuracy) -> list[str]:
    """Returns what the figures of the worst output mean, in sentences."""
    if accuracy.unchecked:
        return []
    if math.isinf(accuracy.snr_db):
        return ["Every output equals the float model’s."]
    found = [
        f"The outputs differ from the float model’s by {size_of_noise(accuracy.snr_db)} of their size (root mean "
        f"square, of the worst output: {accuracy.snr_db:.1f} dB)."
    ]
    cosine = min((each.cosine_worst for each in accuracy.outputs if each.cosine_worst is not None), default=None)
    if cosine is not None:
        degrees = math.degrees(math.acos(max(-1.0, min(cosine, 1.0))))
        found.append(f"The row that turns away most does so by {degrees:.1f} degrees (cosine {cosine:.4f}).")
    same = min((each.agreement for each in accuracy.outputs if each.agreement is not None), default=None)
    if same is not None:
        found.append(f"{100 * same:.2f} % of the decisions, the largest score of a row, are the same.")
    if accuracy.snr_db < _ENOUGH:
        found.append(f"`ort-dynq run` asks for {_ENOUGH:g} dB. `ort-dynq quantize --min-snr {_ENOUGH:g}` reaches them.")
    return found


def _filled(rows: Sequence[Any]) -> dict[str, bool]:
    """Returns which attributes of some rows, of one dataclass, have a value: others make no column."""
    names = [each.name for each in fields(rows[0])] if rows else []
    return {name: any(getattr(row, name) is not None for row in rows) for name in names}


def _counts(report: rewriter.Report) -> list[tuple[str, int, int]]:
    """Returns the operators that change in number, with both counts, then the sum of the others."""
    counts = {op: (report.before.get(op, 0), report.after.get(op, 0)) for op in {**report.before, **report.after}}
    changed = sorted((op, *pair) for op, pair in counts.items() if pair[0] != pair[1])
    same = sum(before for before, after in counts.values() if before == after)
    return changed + ([("all others", same, same)] if same else [])
