"""The option --exhaustive, and the summary of instruction sets, of tests/conftest.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ort_dynq import kernels

SUITE = """
import pytest

def test_of_products(product_isa):
    if product_isa == "{without}":
        pytest.skip("for the test of the summary")

def test_of_other_operators(isa):
    if isa == "{without}":
        pytest.skip("for the test of the summary")

def test_of_several(isas):
    if "{without}" in isas:
        pytest.skip("for the test of the summary")

@pytest.mark.exhaustive
def test_of_all_floats():
    pass
"""


def run(folder: Path, without: str, *options: str) -> tuple[int, str]:
    """Runs pytest on SUITE; its tests skip the instruction set `without`."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_suite.py").write_text(SUITE.format(without=without))
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    shutil.copy(Path(__file__).parents[1] / "conftest.py", folder / "tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout


def counts(shown: str) -> dict[str, int]:
    """The number of tests that ran on each instruction set, as the summary says it."""
    (line,) = re.findall(r"^instruction sets that ran: (.*)$", shown, re.MULTILINE)
    return {name: int(count) for name, count in re.findall(r"(\w+) \((\d+) tests\)", line)}


ISAS = kernels.supported_isas()


def test_a_whole_run(tmp_path: Path) -> None:
    """The best instruction set for products, the best for the other operators, and `portable` with the best."""
    status, shown = run(tmp_path, "", "-n", "2")
    assert status == 0, shown
    ran = counts(shown)
    assert ran.keys() >= {ISAS[0], "portable"}, shown
    # One test for each of the two fixtures of one instruction set, and one of several.
    assert sum(ran.values()) == 2 + len({ISAS[0], "portable"}), shown
    assert re.search(r"^left out: \d+ exhaustive tests \(tests \d+\); `pytest --exhaustive", shown, re.MULTILINE), shown


def test_an_instruction_set_without_tests(tmp_path: Path) -> None:
    status, shown = run(tmp_path, ISAS[0], "-n", "0")
    assert (status, f"FAILED: this machine has {ISAS[0]}, but no test ran on it" in shown) == (1, True), shown


@pytest.mark.parametrize(
    "options", [("-k", "products"), pytest.param(("tests/test_suite.py",), marks=pytest.mark.exhaustive)]
)
def test_a_part_of_the_tests(options: tuple[str, ...], tmp_path: Path) -> None:
    status, shown = run(tmp_path, ISAS[0], "-n", "0", *options)
    assert (status, "FAILED" in shown) == (0, False), shown


def test_exhaustive_tests_alone_need_the_option(tmp_path: Path) -> None:
    status, shown = run(tmp_path, "", "-n", "0", "-k", "test_of_all_floats")
    assert (status, "left out: 1 exhaustive tests" in shown) == (pytest.ExitCode.NO_TESTS_COLLECTED, True), shown


@pytest.mark.parametrize("options", [(), ("-m", "exhaustive")])
def test_exhaustive(options: tuple[str, ...], tmp_path: Path) -> None:
    status, shown = run(tmp_path, "", "-n", "0", "--exhaustive", *options)
    assert (status, "left out" in shown, "skipped" in shown) == (0, False, False), shown
    by_default = {ISAS[0], "portable"} if options else set()
    assert counts(shown).keys() >= {*ISAS} - by_default, shown


@pytest.mark.skipif(len(ISAS) < 3, reason="has no instruction set that the default leaves out")
@pytest.mark.parametrize("options", [(), ("-m", "exhaustive")])
def test_an_exhaustive_run_without_an_instruction_set(options: tuple[str, ...], tmp_path: Path) -> None:
    status, shown = run(tmp_path, ISAS[-2], "-n", "0", "--exhaustive", *options)
    assert (status, f"FAILED: this machine has {ISAS[-2]}, but no test ran on it" in shown) == (1, True), shown


def test_skipped_sanitizers_are_no_success() -> None:
    """The compiler is there, but cannot build what is asked for: `.ci/run` then tries the other sanitizers."""
    command = [Path(__file__).parents[1] / "native" / "run", "fuzz"]
    done = subprocess.run(command, env={**os.environ, "CXX": "false"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr.split(":")[0]) == (3, "skipped")
