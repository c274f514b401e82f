"""The nodes of a function have names: ONNX Runtime's messages and profiles show them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime as ort
from helpers import options, parse

from ort_dynq.graphs import proto_with_subgraphs
from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter.functions import make_function

ATTRIBUTES = "axis = 1, count = 0, reduce_others = 0, keepdims = 1"
MODEL = parse("float[M, 32] x", "float[M, 1] y", f"y = ort_dynq.ReduceAbsMax<{ATTRIBUTES}>(x)")


def test_names_are_distinct() -> None:
    for operator in OPERATORS:
        graphs = proto_with_subgraphs(make_function(operator, 21))
        names = [node.name for graph in graphs for node in graph.node]
        assert all(names)
        assert len(set(names)) == len(names), operator


def test_a_profile_of_stock_onnx_runtime_has_names(tmp_path: Path) -> None:
    model = type(MODEL)()
    model.CopyFrom(MODEL)
    model.functions.append(make_function("ReduceAbsMax", 21))
    profiled = options(1, False)
    profiled.enable_profiling, profiled.profile_file_prefix = True, str(tmp_path / "profile")
    session = ort.InferenceSession(model.SerializeToString(), profiled, providers=["CPUExecutionProvider"])
    session.run(None, {"x": np.ones((2, 32), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    names = [each["name"] for each in events if each["name"].endswith("_kernel_time")]
    assert names
    assert all("ReduceAbsMax" in name and not name.endswith("ReduceAbsMax__kernel_time") for name in names), names
