"""The option --exhaustive, and the summary of instruction sets, of tests/conftest.py."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ort_dynq import kernels

SUITE = """
import pytest

def test_of_instruction_sets(product_isa):
    if product_isa == "{without}":
        pytest.skip("for the test of the summary")

@pytest.mark.exhaustive
def test_of_all_floats():
    pass
"""


def run(folder: Path, without: str, *options: str) -> tuple[int, str]:
    """Runs pytest on a suite of two tests. One skips the instruction set `without`, the other is exhaustive."""
    (folder / "tests").mkdir()
    (folder / "tests" / "test_suite.py").write_text(SUITE.format(without=without))
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    shutil.copy(Path(__file__).parents[1] / "conftest.py", folder / "tests")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout


LEFT_OUT = "1 exhaustive tests were left out; `pytest --exhaustive -m exhaustive` runs them"


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_whole_run(processes: str, tmp_path: Path) -> None:
    status, shown = run(tmp_path, "", "-n", processes)
    isas = ", ".join(f"{name} (1 tests)" for name in kernels.supported_isas())
    assert (status, f"instruction sets that ran: {isas}\n" in shown, LEFT_OUT in shown) == (0, True, True), shown


@pytest.mark.parametrize("processes", ["0", "2"])
def test_an_instruction_set_without_tests(processes: str, tmp_path: Path) -> None:
    name = kernels.supported_isas()[0]
    status, shown = run(tmp_path, name, "-n", processes)
    assert (status, f"FAILED: this machine has {name}, but no test ran on it" in shown) == (1, True), shown


@pytest.mark.parametrize("options", [("-k", "portable"), ("-m", "exhaustive"), ("tests/test_suite.py",)])
def test_a_part_of_the_tests(options: tuple[str, ...], tmp_path: Path) -> None:
    status, shown = run(tmp_path, kernels.supported_isas()[0], "-n", "0", *options)
    assert (status, "FAILED" in shown) == (0, False), shown


@pytest.mark.parametrize("options", [("--exhaustive",), ("--exhaustive", "-m", "exhaustive")])
def test_exhaustive(options: tuple[str, ...], tmp_path: Path) -> None:
    status, shown = run(tmp_path, "", "-n", "0", *options)
    assert (status, "left out" in shown, "skipped" in shown) == (0, False, False), shown
