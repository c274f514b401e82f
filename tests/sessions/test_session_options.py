"""Copies of session options, and the initializers that options override."""

from __future__ import annotations

from pathlib import Path

import helpers
import numpy as np
import onnxruntime as ort
import pytest

from ort_dynq.session_options import copied, overridden

TEN = np.full(3, 10, np.float32)


def model() -> bytes:
    text = "float[3] x", "float[3] y", "w = Constant<value = float[3] {1, 1, 1}>()\n y = Add(x, w)"
    found = helpers.parse(*text)
    constant = found.graph.node[0]
    constant.attribute[0].t.name = "w"
    found.graph.initializer.append(constant.attribute[0].t)
    del found.graph.node[0]
    serialized: bytes = found.SerializeToString()
    return serialized


def run(options: ort.SessionOptions) -> list[float]:
    session = ort.InferenceSession(model(), options, providers=["CPUExecutionProvider"])
    found: list[float] = session.run(None, {"x": np.zeros(3, np.float32)})[0].tolist()
    return found


@pytest.mark.parametrize("method", ["add_initializer", "add_external_initializers"])
def test_overridden_initializers_are_found(method: str) -> None:
    options, value = ort.SessionOptions(), ort.OrtValue.ortvalue_from_numpy(TEN)
    assert overridden(options, ["v", "w"]) == []
    if method == "add_initializer":
        options.add_initializer("w", value)
        assert run(options) == [10, 10, 10]
    else:
        options.add_external_initializers(["w"], [value])
    for _ in range(2):  # the first call has changed nothing
        assert overridden(options, ["v", "w", "x"]) == ["w"]


def test_a_copy_has_all_entries_and_is_another_object() -> None:
    options, value = ort.SessionOptions(), ort.OrtValue.ortvalue_from_numpy(TEN)
    options.add_initializer("w", value)
    options.add_session_config_entry("session.some", "text")
    options.intra_op_num_threads = 3
    copy = copied(options)
    assert copy.get_session_config_entry("session.some") == "text"
    assert copy.intra_op_num_threads == 3
    copy.intra_op_num_threads = 1
    copy.add_session_config_entry("session.some", "other")
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.some") == "text"
    del options
    assert run(copy) == [10, 10, 10]


def test_a_copy_leaves_no_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = ort.SessionOptions()
    options.enable_profiling = True
    assert copied(options).enable_profiling
    assert list(tmp_path.iterdir()) == []


def test_the_default() -> None:
    assert run(copied(None)) == [1, 1, 1]
