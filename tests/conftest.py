"""Every instruction set that this machine has, and every backend, is a parameter of the tests that run operators."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ort_dynq import kernels
from ort_dynq.backends.options import BACKENDS

_ran: dict[str, int] = {}


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Programs that tests start must find the installed package, not the sources, which have no library in them."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.fixture(params=BACKENDS, scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """How the operators are registered: see helpers.make_session."""
    return str(request.param)


@pytest.fixture(params=kernels.supported_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set in use during the test."""
    name = str(request.param)
    with kernels.use_isa(name):
        yield name
    _ran[name] = _ran.get(name, 0) + 1


def pytest_report_header() -> str:
    return f"instruction sets: {', '.join(kernels.supported_isas())}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = ", ".join(f"{name} ({count} tests)" for name, count in _ran.items())
    terminalreporter.write_line(f"instruction sets that ran: {ran or 'none'}")
