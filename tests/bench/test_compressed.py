"""`python tests/bench compressed`: its JSON and text."""

from __future__ import annotations

import pytest
from benching import run_developers, run_developers_json, take_two_copies

SMALL = ("--rows", "3", "--sizes", "64x128", "--threads", "1")


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    take_two_copies(monkeypatch)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    timings = run_developers_json(capsys, "compressed", *SMALL)["timings"]
    assert [(each["part"], each["bits"]) for each in timings] == [(n, bits) for n in (32, 64, 128) for bits in (4, 8)]
    assert all(each["snr_db"] > 74 for each in timings)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_developers(capsys, "compressed", *SMALL, "--parts", "64", "--bits", "4").splitlines()
    assert sum("64x128" in line for line in lines) == 1
