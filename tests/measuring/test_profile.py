"""The summary of a trace of ONNX Runtime's profiler."""

from __future__ import annotations

from typing import Any

import pytest

from ort_dynq.tools.measuring import profile


def event(name: str, ts: int, dur: int, op: str = "", cat: str = "Node") -> dict[str, Any]:
    return {"cat": cat, "ph": "X", "name": name, "ts": ts, "dur": dur, "args": {"op_name": op} if op else {}}


def test_summary_of_a_trace() -> None:
    """Warmup and slow runs are left out. Time in a subgraph is counted once. Events of children come first."""

    def run(ts: int, factor: int) -> list[dict[str, Any]]:
        return [
            event("a_kernel_time", ts + 20 * factor, 10 * factor, "Add"),
            event("a_kernel_time", ts + 40 * factor, 20 * factor, "Add"),
            event("if_kernel_time", ts + 10 * factor, 60 * factor, "If"),
            event("b_kernel_time", ts + 70 * factor, 20 * factor, "MatMul"),
            event("b_fence_before", ts + 70 * factor, 1, "MatMul"),
            event("SequentialExecutor::Execute", ts + 1, 98 * factor, cat="Session"),
            event("model_run", ts, 100 * factor, cat="Session"),
        ]

    events = [{"ph": "M", "name": "process_name"}, *run(1_000, 5), *run(10_000, 1), *run(20_000, 7), *run(30_000, 1)]
    found = profile._summarize(events, 3)
    assert (found.runs, found.run_ms, found.between_ms) == (3, 0.1, pytest.approx(0.02))
    expected = [("a", "Add", 2.0, 0.03), ("if", "If", 1.0, 0.03), ("b", "MatMul", 1.0, 0.02)]
    assert sorted((node.name, node.op_type, node.calls, round(node.ms, 9)) for node in found.nodes) == sorted(expected)
