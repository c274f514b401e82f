"""A cache of its own for each test, which leaves nothing installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ort_dynq
from ort_dynq import cache
from ort_dynq.hook import opening


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))
    opening._warned.clear()
    yield
    ort_dynq.uninstall()
