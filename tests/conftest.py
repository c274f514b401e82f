"""Fixtures that run a test on every instruction set and backend; the option --exhaustive; the summary of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ort_dynq import kernels
from ort_dynq.backends.options import BACKENDS


@pytest.fixture(scope="session", autouse=True)
def _other_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run in an empty folder, so that relative paths do not depend on where pytest was started."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("other_folder"))
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
    _this_process.ran[name] += 1


# The summary. With pytest-xdist the tests run in workers, and the process that reports runs none.


class _Counts:
    """What one process ran and left out.

    Attributes:
        ran: The number of tests that ran on each instruction set.
        left_out: The number of exhaustive tests that were left out because --exhaustive was not given.
        selected: Whether the user left out other tests of instruction sets, for example by -k.
    """

    def __init__(self) -> None:
        self.ran: Counter[str] = Counter()
        self.left_out = 0
        self.selected = False

    def add(self, worker: dict[str, Any]) -> None:
        """Adds the counts of a worker. Every worker collects all tests, and each test runs in one of them."""
        self.ran.update(worker["ran"])
        self.left_out = max(self.left_out, worker["left_out"])
        self.selected |= worker["selected"]

    def missing(self) -> list[str]:
        """The instruction sets of this machine that no test ran on, although tests ran on others.

        test_every_instruction_set_of_this_cpu_is_run compares the list of them with /proc/cpuinfo.
        """
        if self.selected or not self.ran:
            return []
        return [name for name in kernels.supported_isas() if not self.ran[name]]


_this_process = _Counts()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="also run the tests that are marked as exhaustive")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exhaustive: takes long; a shorter test of the same runs without --exhaustive")
    _this_process.selected = any("::" in argument for argument in config.args)


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--exhaustive"):
        return
    exhaustive = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    _this_process.left_out = len(exhaustive)
    config.hook.pytest_deselected(items=exhaustive)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    if any("isa" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("exhaustive") for item in items):
        _this_process.selected = True


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Is called by pytest-xdist when a worker ends; a worker that crashed sends nothing."""
    if "ort_dynq" in getattr(node, "workeroutput", {}):
        _this_process.add(node.workeroutput["ort_dynq"])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["ort_dynq"] = {**vars(_this_process), "ran": dict(_this_process.ran)}
    elif _this_process.missing() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_report_header() -> str:
    return f"instruction sets: {', '.join(kernels.supported_isas())}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = ", ".join(f"{name} ({_this_process.ran[name]} tests)" for name in _this_process.ran)
    terminalreporter.write_line(f"instruction sets that ran: {ran or 'none'}")
    for name in _this_process.missing():
        terminalreporter.write_line(f"FAILED: this machine has {name}, but no test ran on it", red=True)
    if _this_process.left_out:
        terminalreporter.write_line(
            f"{_this_process.left_out} exhaustive tests were left out; `pytest --exhaustive -m exhaustive` runs them"
        )
