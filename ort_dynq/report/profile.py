"""Where a session's time goes: ONNX Runtime's own profiler, its trace added up by node."""

from __future__ import annotations

import bisect
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from ..backends.register import register
from ..runtime import openable
from ..verification.sessions import Failure, message

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..runtime import Model

_WARMUP, _FEWEST_RUNS = 2, 5
_MOST_EVENTS = 20_000  # of about a kilobyte each in the trace
_KERNEL = "_kernel_time"


@dataclass(frozen=True)
class NodeTime:
    """One node of the optimised graph.

    Attributes:
        name: The node's, as ONNX Runtime has it after its own fusions.
        op_type: Its operator, without the domain.
        calls: Per run: more than one, or less, in the body of a loop or of an If.
        ms: Per run, without what runs in its subgraphs: milliseconds.
    """

    name: str
    op_type: str
    calls: float
    ms: float


@dataclass(frozen=True)
class Profile:
    """A profile of several runs; all times are means of the faster half of them, which nothing has disturbed.

    Attributes:
        runs: How many there were.
        run_ms: A run, milliseconds, with what the profiler itself costs.
        nodes: Its nodes, the longest first. ONNX Runtime counts whole microseconds, and leaves off fractions.
    """

    runs: int
    run_ms: float
    nodes: tuple[NodeTime, ...]

    @property
    def between_ms(self) -> float:
        """What a run takes beside its nodes."""
        return max(0.0, self.run_ms - sum(node.ms for node in self.nodes))


def profile(
    model: Model,
    feeds: Mapping[str, npt.NDArray[np.generic]],
    *,
    backend: Backend | None = None,
    threads: int = 1,
    seconds: float = 1.0,
    nodes: int = 1000,
) -> Profile:
    """Runs a model at ONNX Runtime's default level with its profiler on.

    Args:
        model: The model.
        feeds: Its inputs.
        backend: How it gets ort_dynq's operators; None: stock ONNX Runtime.
        threads: ONNX Runtime's.
        seconds: How long.
        nodes: About how many the model has: more of them, fewer runs, since each writes into the trace.

    Raises:
        Failure: It does not load or run.
        DynqError: The operators cannot be registered.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4  # what goes wrong is raised
        options.intra_op_num_threads = threads
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        if backend:
            register(options, backend)
        with openable(model, options) as source:
            try:
                session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
                runs = _run(session, dict(feeds), seconds, _MOST_EVENTS // max(1, nodes))
            except Exception as error:
                raise Failure(message(error)) from error
            events = json.loads(Path(session.end_profiling()).read_text(errors="replace"))
    return _added_up(events, runs)


def _run(session: ort.InferenceSession, feeds: dict[str, Any], seconds: float, most: int) -> int:
    """Returns how often it ran after it had warmed up."""
    for _ in range(_WARMUP):
        session.run(None, feeds)
    end, runs = time.perf_counter() + seconds, 0
    while runs < _FEWEST_RUNS or (runs < most and time.perf_counter() < end):
        session.run(None, feeds)
        runs += 1
    return runs


def _added_up(events: Iterable[Mapping[str, Any]], runs: int) -> Profile:
    """Of the last runs in a trace."""
    spans = [event for event in events if event.get("ph") == "X"]
    spans.sort(key=lambda event: (int(event["ts"]), -int(event["dur"])))  # a node comes before those of its subgraphs
    whole = [event for event in spans if event["name"] == "model_run"][-runs:]
    whole.sort(key=lambda event: int(event["dur"]))
    fast = whole[: (len(whole) + 1) // 2]
    starts = {int(event["ts"]) for event in fast}
    begins = sorted(int(event["ts"]) for event in whole)
    total: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0])
    open_nodes: list[tuple[int, list[float]]] = []  # those that the current one is in the subgraph of: end, total
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
