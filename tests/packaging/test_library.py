"""The library built from source: compiler warnings, shared and exported symbols, required versions, size."""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import of_all_workers

OPS = Path(__file__).parents[2] / "ops"

pytestmark = [pytest.mark.exhaustive, pytest.mark.skipif(sys.platform != "linux", reason="reads ELF")]


def run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=["g++", "clang++"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build directory of one compiler, without warnings."""
    for tool in (request.param, "cmake", "nm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")
    with of_all_workers(tmp_path_factory, request.param) as directory:
        options = (f"-DCMAKE_CXX_COMPILER={request.param}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON")
        run("cmake", "-S", OPS, "-B", directory, *options)
        # The package is built without -Werror, so a cache of the compiler already has these objects.
        done = subprocess.run(["cmake", "--build", directory, "--parallel", "2"], capture_output=True, text=True)
    assert (done.returncode, "warning:" in done.stderr + done.stdout) == (0, False), done.stdout + done.stderr
    commands = (directory / "compile_commands.json").read_text()
    built = {Path(entry["file"]).relative_to(OPS) for entry in json.loads(commands)}
    assert commands.count("-Wall -Wextra") == len(built)
    assert built == {path.relative_to(OPS) for path in OPS.rglob("*.cc") if is_for_this_processor(path)}
    return directory


def is_for_this_processor(source: Path) -> bool:
    """Whether a file says no compiler options, or those for the processor of this machine."""
    processor = {"AMD64": "x86_64", "arm64": "aarch64", "ARM64": "aarch64"}.get(platform.machine(), platform.machine())
    processors = re.findall(r"^// Compiler options for (\w+): ", source.read_text(), re.MULTILINE)
    return not processors or processor in processors


def test_without_a_compiler(tmp_path: Path) -> None:
    """The installation ends with what to install, or how to do without a compiler."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    for tool in ("make", "ninja"):
        if found := shutil.which(tool):
            (tmp_path / tool).symlink_to(found)
    command = [str(Path(cmake).resolve()), "-S", OPS, "-B", tmp_path / "build"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    message = " ".join(done.stderr.split())
    assert done.returncode != 0
    assert "No C++ compiler was found" in message
    assert "apt-get install g++" in message
    assert "pip wheel --no-deps ." in message


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="has portable kernels only")
@pytest.mark.parametrize(
    ("isa", "tables"),
    [
        ("avx2", {"kAvx2Kernels"}),
        ("avx2_products", {"kAvx2Products"}),
        ("avx2_compressed", {"kAvx2Compressed"}),
        ("avx512", {"kAvx512Kernels"}),
        ("avx512_compressed", {"kAvx512Compressed"}),
        ("avxvnni", {"kAvxVnniProducts"}),
        ("avxvnni_compressed", {"kAvxVnniCompressed"}),
        ("avx512vnni", {"kAvx512VnniProducts"}),
        ("avx512vnni_compressed", {"kAvx512VnniCompressed"}),
        ("amx", {"kAmxProducts", "kAmxCompressed"}),
    ],
)
def test_object_of_an_instruction_set_shares_nothing(build: Path, isa: str, tables: set[str]) -> None:
    """It exports its tables and no weak symbol: the linker could use such a symbol for other files, too."""
    (found,) = build.rglob(f"{isa}.cc.o")
    lines = re.findall(r"^[0-9a-f ]* (\w) (.*)$", run("nm", "-C", found), re.MULTILINE)
    assert any(kind == "t" for kind, _ in lines)  # the table itself
    shared = {name for kind, name in lines if kind not in "tdrbU"}
    assert shared == {f"dynq::{table}" for table in tables}
    needed = {name for kind, name in lines if kind == "U"}
    others = {"dynq::kPortableKernels", "dynq::kAvx512VnniProducts", "dynq::kAvx512VnniCompressed"}
    assert needed <= {*others, "memcpy", "memset", "_GLOBAL_OFFSET_TABLE_"}


def test_exports(build: Path) -> None:
    declared = set(re.findall(r"\bort_dynq_\w+(?=\()", (OPS / "c_api.h").read_text()))
    assert len(declared) >= 6
    lines = run("nm", "-D", "--defined-only", build / "libort_dynq.so").splitlines()
    assert {line.split()[-1] for line in lines} == {"RegisterCustomOps", *declared}


def test_runs_on_manylinux_2_28(build: Path) -> None:
    """The library needs glibc 2.28 and the libstdc++ of GCC 8, or older."""
    newest = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (8,)}
    needed = re.findall(
        r"U (\S.*)@([A-Z]+)_([\d.]+)$", run("nm", "-DC", "--undefined-only", build / "libort_dynq.so"), re.M
    )
    assert len(needed) > 10
    newer = {name for name, kind, version in needed if tuple(map(int, version.split("."))) > newest[kind]}
    assert newer == set()


def test_size(build: Path) -> None:
    library = build / "libort_dynq.so"
    assert ".symtab" not in run("readelf", "-SW", library)  # stripped
    # 1010 kB of elementwise kernels for three instruction sets, 70 of them for float16 and 150 for codes of 4 bits;
    # products and convolutions for each of five, up to 115 kB, 20 of them for weights without stored sums; 65 kB
    # of Winograd's algorithm in two forms; 230 kB of programs and attention, 30 of them for each instruction set; 35
    # for ranges and scales of many rows at once; 40 of Strassen's algorithm; 45 for whole passes of programs; 10 of
    # products of 4 bits with any zero points; for each of four instruction sets 55 of joined terms, and 28 of words of
    # softmax and of weights.
    assert library.stat().st_size < 3_340_000
