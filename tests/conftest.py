"""Fixtures that run a test on instruction sets and backends; the option --exhaustive; the summary of a run."""

from __future__ import annotations

import functools
import gc
import math
import os
import re
import sys
import typing

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's threads would wait for cores that other workers use

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ort_dynq import cache, kernels
from ort_dynq.backends.options import BACKENDS
from ort_dynq.errors import DynqError
from ort_dynq.system import NO_WHEEL, advice_on_extensions

gc.disable()  # until all tests are collected
if sys.version_info < (3, 12) and hasattr(typing, "_get_protocol_attrs"):
    # Before 3.12, Python lists the attributes of a protocol for each isinstance: a quarter of the time of a rewrite.
    typing._get_protocol_attrs = functools.cache(typing._get_protocol_attrs)
os.environ[cache.FOLDER] = "0"  # sessions of tests rewrite their models

_ran: Counter[str] = Counter()  # the number of tests that ran on each instruction set
_left_out: Counter[str] = Counter()  # the number of exhaustive tests in each folder that did not run
_products: set[str] = set()  # the product kernels, and stand-ins, that test_product_kernels.py ran


@pytest.fixture(scope="session", autouse=True)
def _other_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests run in an empty folder, so that no result depends on the folder in which pytest was started."""
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("other_folder"))
    yield
    os.chdir(before)


@pytest.fixture(scope="session", autouse=True)
def _short_timing() -> Iterator[None]:
    """No test checks how long something takes, or how much memory a measurement leaves.

    The machine is never too busy for a ratio of times; the tests of that verdict use the fixture `busy_limit`.
    """
    if not {"ort_dynq.cli", "ort_dynq.quantizer", "ort_dynq.tools.measuring.timing"} & sys.modules.keys():
        yield  # no test times anything
        return
    from ort_dynq import system
    from ort_dynq.accuracy import measure
    from ort_dynq.cli import accuracy, closing, page, render
    from ort_dynq.tools.measuring import timing
    from ort_dynq.tools.quantization import selection, speed

    with pytest.MonkeyPatch.context() as patch:
        for module in (accuracy, closing, page):
            patch.setattr(module, "_SECONDS", 1e-3)
        patch.setattr(render, "_LOG_SECONDS", 1e6)  # a busy machine prints no line of progress
        # Each collection visits the models that tests keep, and memory that is returned is taken again.
        patch.setattr(system, "gc", SimpleNamespace(collect=lambda: None))
        patch.setattr(system, "ctypes", SimpleNamespace(CDLL=lambda _: None))
        patch.setattr(system, "cpu_quota", functools.cache(system.cpu_quota))  # each session reads ten files
        for function in (measure, selection.timed, speed.select_faster):
            patch.setitem(function.__kwdefaults__, "seconds", 1e-3)
        patch.setitem(selection.select.__kwdefaults__, "seconds", 0)  # by estimates, which no load changes
        patch.setattr(timing, "_BUSY", math.inf)
        yield


@pytest.fixture
def busy_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine is busy as it is for users: times then need to be the test's own."""
    monkeypatch.setattr("ort_dynq.tools.measuring.timing._BUSY", 1.5)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[object]:
    """Skips what needs the backend extensions where it cannot be installed, and says so."""
    try:
        return (yield)
    except (DynqError, ImportError) as error:
        if NO_WHEEL in advice_on_extensions() and re.search("onnxruntime.extensions", str(error)):
            pytest.skip(f"backend extensions: {advice_on_extensions()}")
        raise


@pytest.fixture(params=BACKENDS, scope="session")
def backend(request: pytest.FixtureRequest) -> str:
    """How the operators are registered: see helpers.make_session."""
    return str(request.param)


# These differ from the next instruction set in the list only in their products.
_ONLY_PRODUCTS = ("amx", "avx512vnni", "avxvnni", "neoni8mm", "neondot")
_PRODUCT_ISAS = kernels.supported_isas()  # the best first, `portable` last
_ISAS = [name for name in _PRODUCT_ISAS if name not in _ONLY_PRODUCTS]


def _best(isas: list[str]) -> list[Any]:
    """Parameters of a fixture. All instruction sets but the best one are exhaustive.

    The fixture `isas` compares the portable kernels of every operator, and tests/native/ those of products.
    """
    return [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != isas[0])) for name in isas]


@pytest.fixture(params=_best(_ISAS))
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set in use during the test, of an operator that is not a product."""
    yield from _use_isa(request)


@pytest.fixture(params=_best(_PRODUCT_ISAS))
def product_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """The instruction set in use during the test, of a product."""
    yield from _use_isa(request)


def _together() -> list[Any]:
    """As _best_and_portable, but the default instruction sets are one parameter, and the others another."""
    between = tuple(_PRODUCT_ISAS[1:-1])
    groups = [pytest.param((*_PRODUCT_ISAS[:1], *_PRODUCT_ISAS[1:][-1:]), id="best")]
    return groups + [pytest.param(between, id="between", marks=pytest.mark.exhaustive)] * bool(between)


@pytest.fixture(params=_together())
def isas(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Several instruction sets, for a test that compares each with the same expected results."""
    names: tuple[str, ...] = request.param
    request.node.user_properties.extend(("isa", name) for name in names)
    return names


def _use_isa(request: pytest.FixtureRequest) -> Iterator[str]:
    name = str(request.param)
    request.node.user_properties.append(("isa", name))  # pytest-xdist sends it with the test's report
    with kernels.use_isa(name):
        yield name


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the tests that are marked as exhaustive, too")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exhaustive: takes long; runs with --exhaustive only")


@pytest.hookimpl(trylast=True)  # after -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Tests that compile take longest: they come first, so that the other worker does not wait for them at the end.
    items.sort(key=lambda item: "packaging" not in item.path.parts)
    if config.getoption("--exhaustive"):
        return
    exhaustive = [item for item in items if item.get_closest_marker("exhaustive")]
    items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    config.hook.pytest_deselected(items=exhaustive)
    _left_out.update(item.path.parent.name for item in exhaustive)
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist
def pytest_testnodedown(node: Any) -> None:
    """Every worker collects all tests, so every worker leaves out the same."""
    _left_out.clear()
    _left_out.update(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_collection_finish() -> None:
    """Python's garbage collector took a third of the time of a run: it visited thousands of collected tests, which live
    until the end, again and again.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(30_000, 30)  # 100_000 new objects do not fit in a core's cache: that took twice as long


# The summary. With pytest-xdist, the process that writes it runs no tests, but receives all reports.


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" and not report.skipped:
        _ran.update(str(value) for name, value in report.user_properties if name == "isa")
        _products.update(str(value) for name, value in report.user_properties if name == "products")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _isas_without_tests(session.config) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _isas_without_tests(config: pytest.Config) -> list[str]:
    """The instruction sets of this machine that a whole run should have run, but no test ran on.

    test_every_instruction_set_of_this_cpu_is_run compares the list of instruction sets with /proc/cpuinfo.
    """
    selections = ("keyword", "deselect", "lf", "stepwise", "collectonly")
    is_whole_run = config.args == config.getini("testpaths") and not any(
        config.getoption(each, None) for each in selections
    )
    is_worker = hasattr(config, "workerinput")
    by_default = {_PRODUCT_ISAS[0], _ISAS[0], _ISAS[-1]}
    selected = {
        (False, ""): by_default,
        (True, ""): {*_PRODUCT_ISAS},
        (True, "exhaustive"): {*_PRODUCT_ISAS} - by_default,
    }.get((config.getoption("--exhaustive"), config.getoption("markexpr")), set())
    if is_worker or not is_whole_run:
        return []
    return [name for name in _PRODUCT_ISAS if name in selected and not _ran[name]]


def pytest_report_header() -> str:
    return f"instruction sets: {', '.join(kernels.supported_isas())}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = ", ".join(f"{name} ({_ran[name]} tests)" for name in kernels.supported_isas() if _ran[name])
    terminalreporter.write_line(f"instruction sets that ran: {ran or 'none'}")
    if _products:
        terminalreporter.write_line(f"product kernels that ran in C++ alone: {', '.join(sorted(_products))}")
    for name in _isas_without_tests(terminalreporter.config):
        terminalreporter.write_line(f"FAILED: this machine has {name}, but no test ran on it", red=True)
    if _left_out:
        folders = ", ".join(f"{folder} {count}" for folder, count in sorted(_left_out.items()))
        terminalreporter.write_line(
            f"left out: {_left_out.total()} exhaustive tests ({folders}); `pytest --exhaustive -m exhaustive` runs them"
        )
