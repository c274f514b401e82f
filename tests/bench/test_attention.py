"""`python tests/bench attention`: its JSON and text."""

from __future__ import annotations

import pytest
from benching import run_developers, run_developers_json

from bench.attentions import FORMS
from ort_dynq import DynqError


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("short-DT-8-groups", "short-TD-4", "short-float-keys", "short-float-values")
    arguments = ("--cases", ",".join(names), "--heads", "2", "--threads", "1")
    data = run_developers_json(capsys, "attention", *arguments)
    assert data["heads"] == 2
    assert [each["name"] for each in data["timings"]] == [*names]
    assert all(each["snr_db"] > 74 for each in data["timings"])


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_developers(capsys, "attention", "--cases", "short-TD-8", "--heads", "1", "--threads", "1").splitlines()
    assert sum(line.startswith("short-TD-8 ") for line in lines) == 1
    assert len(FORMS) == 30


def test_a_wrong_name() -> None:
    from bench.attentions import bench_attentions
    from ort_dynq.tools.measuring.timing import Settings

    with pytest.raises(DynqError, match="no case 'x', expected one of"):
        bench_attentions(Settings(), ("x",))
