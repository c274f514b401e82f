"""The portable kernels, which other processors use, return the same bits on aarch64 as here."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (ROOT / "tests" / "native" / "kernels_check.cc", ROOT / "ops" / "kernels" / "portable.cc")
# As in ops/CMakeLists.txt: contracting products and sums would change results.
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


def hashes(tmp_path: Path, compiler: str, *flags: str, emulator: tuple[str, ...] = ()) -> dict[str, str]:
    """The output of the driver: a hash of each kernel's results by its name."""
    program = tmp_path / compiler
    options = [*flags, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "ops"), "-o", str(program)]
    command = [compiler, *options, *map(str, SOURCES)]
    subprocess.run(command, check=True)
    printed = subprocess.run([*emulator, program], check=True, capture_output=True, text=True).stdout
    return dict(line.split() for line in printed.splitlines())


def require(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: apt-get install {package}")


def test_flags_are_those_of_the_library() -> None:
    assert set(FLAGS) <= set(re.findall(r"-[-\w=]+", (ROOT / "ops" / "CMakeLists.txt").read_text()))


def test_aarch64_agrees(tmp_path: Path) -> None:
    require("g++", "g++")
    require("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    require("qemu-aarch64", "qemu-user")
    if platform.machine() == "aarch64":
        pytest.skip("this machine is aarch64: the other tests cover it")
    here = hashes(tmp_path, "g++", *FLAGS)
    there = hashes(tmp_path, "aarch64-linux-gnu-g++", *FLAGS, "-static", emulator=("qemu-aarch64",))
    assert len(here) == len(set(here.values())) > 75  # every kernel is there, and no two are the same
    assert [name for name in here if here[name] != there.get(name)] == []


def test_contraction_changes_hashes(tmp_path: Path) -> None:
    """The data detect that one rounding is missing."""
    require("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    require("qemu-aarch64", "qemu-user")
    right, wrong = (
        hashes(tmp_path, "aarch64-linux-gnu-g++", "-O2", contraction, "-static", emulator=("qemu-aarch64",))
        for contraction in ("-ffp-contract=off", "-ffp-contract=fast")
    )
    changed = {name.split("/")[0] for name in right if right[name] != wrong[name]}
    assert {"quantize", "affine"} <= changed  # of products, test_product_kernels.py
