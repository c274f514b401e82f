"""Measures the time of every node of a model with ONNX Runtime's profiler."""

from __future__ import annotations

import bisect
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import onnxruntime as ort

from ... import runtime
from ...backends.register import register
from ...backends.sessions import open_registered
from ...errors import DynqError, message
from ...files import temporary_folder, unwritable
from ...four_bits import run_of
from ...inputs import Array
from .sessions import SessionError

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...storage import Model

_WARMUP, _MIN_RUNS = 2, 5
_MAX_EVENTS = 20_000  # of about a kilobyte each in the trace
_KERNEL = "_kernel_time"
_T = TypeVar("_T")


@dataclass(frozen=True)
class NodeTime:
    """The time of one node of the optimized graph.

    Attributes:
        name: The name of the node after ONNX Runtime's own fusions.
        op_type: Its operator, without the domain.
        calls: Calls per run; not 1 for a node in the body of a Loop or a branch of an If.
        ms: Milliseconds per run, without the nodes in its subgraphs.
    """

    name: str
    op_type: str
    calls: float
    ms: float


@dataclass(frozen=True)
class Profile:
    """A profile of several runs. All times are means over the faster half of the runs, which are less disturbed.

    Attributes:
        runs: The number of runs.
        run_ms: Milliseconds per run, including the overhead of the profiler.
        nodes: The nodes, the slowest first. ONNX Runtime truncates times to whole microseconds.
        scale: What all times have been multiplied with; see :meth:`scaled`.
    """

    runs: int
    run_ms: float
    nodes: tuple[NodeTime, ...]
    scale: float = 1.0

    @property
    def between_ms(self) -> float:
        """Milliseconds per run outside of nodes."""
        return max(0.0, self.run_ms - sum(node.ms for node in self.nodes))

    def scaled(self, run_ms: float) -> Profile:
        """Returns the profile with times that add up to the time of a run without the profiler."""
        total = max(self.run_ms, sum(node.ms for node in self.nodes))
        factor = run_ms / total if total else 1.0
        nodes = tuple(replace(node, ms=node.ms * factor) for node in self.nodes)
        return Profile(self.runs, run_ms, nodes, self.scale * factor)


def profile(
    model: Model,
    feeds: Mapping[str, Array],
    *,
    backend: Backend | None = None,
    threads: int = 1,
    seconds: float = 1.0,
    nodes: int = 1000,
) -> Profile:
    """Profiles a model at ONNX Runtime's default optimization level.

    Args:
        model: The model.
        feeds: Its inputs.
        backend: How the session gets ort_dynq's operators; None for stock ONNX Runtime.
        threads: The number of intra-op threads.
        seconds: How long to run.
        nodes: The approximate number of nodes. It bounds the number of runs, and so the size of the trace.

    Raises:
        SessionError: The model does not load or run.
        DynqError: The operators cannot be registered, or the temporary folder cannot be written.
    """
    options = runtime.session_options(threads=threads)
    if backend:
        register(options, backend)

    def run(session: ort.InferenceSession) -> int:
        return _run(session, dict(feeds), seconds, _MAX_EVENTS // max(1, nodes))

    runs, events = _traced(model, options, run)
    return _summarize(events, runs)


def computing_nodes(model: Model, sets: Iterable[Mapping[str, Array]]) -> frozenset[str]:
    """Returns the names of the nodes of a model that compute any elements on the given inputs, in subgraphs, too.

    Stock ONNX Runtime runs the model, all optimizations off.

    Raises:
        SessionError: The model does not load or run.
        DynqError: The temporary folder cannot be written.
    """

    def run(session: ort.InferenceSession) -> None:
        for feeds in sets:
            run_of(session)(None, dict(feeds))

    _, events = _traced(model, runtime.session_options(optimize=False), run)
    nodes = (event for event in events if event["cat"] == "Node" and event["name"].endswith(_KERNEL))
    return frozenset(
        event["name"].removesuffix(_KERNEL) for event in nodes if int(event["args"].get("output_size", 1)) > 0
    )


def _traced(
    model: Model, options: ort.SessionOptions, run: Callable[[ort.InferenceSession], _T]
) -> tuple[_T, list[Mapping[str, Any]]]:
    """Returns the result of a function that runs a session, and the events of the profiler."""
    with temporary_folder() as folder:
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        try:
            session = open_registered(model, options)
            result = run(session)
        except DynqError:
            raise
        except Exception as error:
            raise SessionError(message(error)) from error
        trace = Path(session.end_profiling()).read_text(encoding="utf-8", errors="replace")
        try:
            return result, json.loads(trace)
        except ValueError as error:  # onnxruntime does not say that it cannot write
            raise unwritable(folder, Exception("the profile is incomplete")) from error


def _run(session: ort.InferenceSession, feeds: dict[str, Any], seconds: float, max_runs: int) -> int:
    """Runs a session and returns the number of runs after the warmup."""
    run = run_of(session)
    for _ in range(_WARMUP):
        run(None, feeds)
    end, runs = time.perf_counter() + seconds, 0
    while runs < _MIN_RUNS or (runs < max_runs and time.perf_counter() < end):
        run(None, feeds)
        runs += 1
    return runs


def _summarize(events: Iterable[Mapping[str, Any]], runs: int) -> Profile:
    """Summarizes the last runs in a trace."""
    spans = [event for event in events if event.get("ph") == "X"]
    spans.sort(key=lambda event: (int(event["ts"]), -int(event["dur"])))  # a node before the nodes of its subgraphs
    whole = [event for event in spans if event["name"] == "model_run"][-runs:]
    whole.sort(key=lambda event: int(event["dur"]))
    fast = whole[: (len(whole) + 1) // 2]
    starts = {int(event["ts"]) for event in fast}
    begins = sorted(int(event["ts"]) for event in whole)
    total: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    open_nodes: list[tuple[int, list[float]]] = []  # nodes with the current one in a subgraph: end, total
    for event in spans:
        if event["cat"] != "Node" or not event["name"].endswith(_KERNEL):
            continue
        begin, duration = int(event["ts"]), int(event["dur"])
        run = bisect.bisect_right(begins, begin) - 1
        if run < 0 or begins[run] not in starts:
            continue
        while open_nodes and begin >= open_nodes[-1][0]:
            open_nodes.pop()
        entry = total[event["name"].removesuffix(_KERNEL), event["args"]["op_name"]]
        entry[0] += 1
        entry[1] += duration
        if open_nodes:
            open_nodes[-1][1][1] -= duration
        open_nodes.append((begin + duration, entry))
    nodes = [
        NodeTime(name, op_type, calls / len(fast), max(0.0, us) / len(fast) / 1e3)
        for (name, op_type), (calls, us) in total.items()
    ]
    run_ms = sum(int(event["dur"]) for event in fast) / len(fast) / 1e3
    return Profile(len(whole), run_ms, tuple(sorted(nodes, key=lambda node: -node.ms)))
