"""Kernels in C++ alone. Every product kernel returns the bits of loops over its definition
(tests/native/products_check.cc), every kernel of programs and of attention over codes those of the portable one
(tests/native/programs_check.cc, tests/native/compressed_check.cc), the operator QuantizedAttention the bits of the
portable kernels (tests/native/attention_check.cc), and every elementwise kernel for ARM those of the
portable kernels on this machine (tests/native/kernels_check.cc).

Kernels that the CPU lacks run with a stand-in: AMX with functions in place of the tile instructions, AVX-VNNI with the
same instruction in the encoding of AVX-512. CPUs with AVX-512 VNNI also run the machine code of the AMX kernels, with
emulated tile instructions. The summary of a run says which kernels ran.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ort_dynq import kernels
from ort_dynq.operators import OPERATORS

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "ops" / "kernels"
# As in ops/CMakeLists.txt: contracting products and sums would change the results.
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-std=c++17", "-Wall", "-Wextra")
FLAGS += ("-Werror", f"-I{ROOT / 'ops'}", f"-I{ROOT / 'tests' / 'native'}")
# Without AVX-512, GCC warns that functions with its vectors have another ABI; no other file calls them.
TILE_STAND_IN = '-DORT_DYNQ_TILE_STAND_IN="tile_stand_in.h"'
AMX_STAND_IN = (TILE_STAND_IN, "-DkAmxProducts=kAmxStandIn", "-DkAmxCompressed=kAmxStandInCompressed", "-Wno-psabi")
PORTABLE_FALLBACK = ("-DkAvx512VnniProducts=kPortableProducts", "-DkAvx512VnniCompressed=kPortableCompressed")
EVEX_FLAGS = ("-mavx2", "-mfma", "-mf16c", "-mavx512f", "-mavx512vl", "-mavx512vnni")
AVXVNNI_STAND_IN = "-DORT_DYNQ_AVXVNNI_STAND_IN"

# The operator QuantizedAttention without the rest of the library.
_CORE = ("attention_block", "head_codes", "packed_heads", "formats", "attributes", "operator")
ATTENTION = ("operators/quantized_attention.cc", *(f"core/{name}.cc" for name in _CORE))

LAUNCHER = os.environ.get("CMAKE_CXX_COMPILER_LAUNCHER", "").split()  # ccache: tests share most object files

Part = tuple[Path, tuple[str, ...]]  # a source file and its compiler options


def require(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: apt-get install {package}")


def cpu_flags() -> set[str]:
    match = re.search(r"^flags\s*:(.*)", Path("/proc/cpuinfo").read_text(), re.M)
    return set(match[1].split()) if match else set()


def kernel_files(processor: str, tables: str = "ProductKernels") -> list[Part]:
    """The files in ops/kernels/ that define tables of kernels of this processor, with their options."""
    parts = []
    for path in sorted(KERNELS.glob("*.cc")):
        text = path.read_text()
        options = re.search(rf"^// Compiler options for {processor}: (.*)", text, re.M)
        if options and re.search(rf"({tables}) k\w+ =", text):
            # Elementwise kernels take long to compile; the tests of the library run these files as they are released.
            fast = ("-O1",) if "ElementwiseKernels k" in text else ()
            parts.append((path, (*options[1].split(), *fast)))
    return parts


def with_evex(parts: list[Part]) -> list[Part]:
    """The files with those of AVX-VNNI in the encoding of AVX-512."""
    return [(path, EVEX_FLAGS if path.name.startswith("avxvnni") else options) for path, options in parts]


def build(folder: Path, compiler: str, parts: list[Part], *flags: str, check: str = "products_check") -> Path:
    """Compiles a check of tests/native/ with the kernels of `parts` and returns the program."""
    return build_all(folder, compiler, parts, *flags, checks=(check,))[0]


def build_all(folder: Path, compiler: str, parts: list[Part], *flags: str, checks: tuple[str, ...]) -> list[Path]:
    """As build(), for several checks with the same kernels."""
    portable = (
        "portable",
        *(f"portable_{kind}" for kind in ("products", "winograd", "programs", "attention", "compressed")),
    )
    # The tests of the library run the portable kernels as they are released.
    parts = [*((KERNELS / f"{name}.cc", ("-O1",)) for name in (*portable, "dispatch")), *parts]
    mains = [(ROOT / "tests" / "native" / f"{check}.cc", ("-O1",)) for check in checks]
    objects = [str(folder / f"{index}.o") for index in range(len(mains + parts))]

    def compile_one(part: Part, output: str) -> None:
        path, options = part
        subprocess.run([*LAUNCHER, compiler, *FLAGS, *flags, *options, "-c", str(path), "-o", output], check=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, [*mains, *parts], objects))
    programs = [folder / check for check in checks]
    for program, main in zip(programs, objects, strict=False):
        subprocess.run([compiler, *flags, main, *objects[len(mains) :], "-o", str(program)], check=True)
    return programs


def ran(program: Path, blocks: int, *emulator: str) -> set[str]:
    """Runs the check and returns the names of the kernels that ran."""
    command = [*emulator, str(program), str(blocks)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {line.rsplit(" ", 1)[0] for line in done.stdout.splitlines()}


def all_kinds(*names: str) -> set[str]:
    joined = ("gemm_qb8w, joined", "gemm_qb4w, joined")
    kinds = ("gemm_qc8w", "gemm_qb8w", "gemm_qb4w", "gemm_qb2w with ones", *joined, "conv", "interleave_quads")
    tile_kinds = ("gemm_qc8w_tiles", "gemm_qb8w_tiles", "gemm_qb4w_tiles", "conv_tiles", "conv_tiles, gathered")
    in_tiles = {f"{name} {kind}" for name in names if "amx" in name for kind in tile_kinds}
    winograd = {f"{name} winograd" for name in names if name in ("avx2", "avx512", "portable")}
    kinds_of_words = ("strassen", "conv_strassen", "gemm_qb4w without sums")
    of_words = {f"{name} {kind}" for name in names if name in ("avx2", "avx512") for kind in kinds_of_words}
    return {f"{name} {kind}" for name in names for kind in kinds} | in_tiles | winograd | of_words


@pytest.fixture
def record(request: pytest.FixtureRequest) -> list[tuple[str, object]]:
    """Properties of the test; the summary of the run prints those named `products` (tests/conftest.py)."""
    return request.node.user_properties  # type: ignore[no-any-return]


@pytest.mark.exhaustive
def test_this_machine(tmp_path: Path, record: list[tuple[str, object]]) -> None:
    require("g++", "g++")
    if platform.machine() not in ("x86_64", "AMD64"):
        parts, expected = kernel_files(platform.machine()), {"portable", *kernels.supported_isas()}
        program = build(tmp_path, "g++", [*parts, (KERNELS / "amx.cc", AMX_STAND_IN + PORTABLE_FALLBACK)])
    else:
        flags, expected = cpu_flags(), {"portable", "amx-stand-in"}
        expected |= {"avx2"} if {"avx2", "fma", "f16c"} <= flags else set()
        expected |= {"avxvnni"} if {"avx2", "fma", "f16c", "avx_vnni"} <= flags else set()
        parts, defines = kernel_files("x86_64"), ["-DORT_DYNQ_X86"]
        stand_in = AMX_STAND_IN
        if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags:
            expected |= {"avx512vnni", "avxvnni"}
            has_amx = {"amx_tile", "amx_int8"} <= flags
            expected |= {"amx" if has_amx else "amx-emulated"}
            defines += [] if has_amx else ["-DORT_DYNQ_AMX_EMULATED"]
            stand_in += tuple(next(options for path, options in parts if path.name == "amx.cc"))
            if "avx_vnni" not in flags:
                parts = with_evex(parts)
                defines.append(AVXVNNI_STAND_IN)
        else:
            stand_in += PORTABLE_FALLBACK
        parts.append((KERNELS / "amx.cc", stand_in))
        program = build(tmp_path, "g++", parts, *defines)
    names = ran(program, 4000)
    record.extend(("products", name) for name in {name.split()[0] for name in names})
    assert all_kinds(*expected) <= names


def check_programs(program: Path, isas: tuple[str, ...], *emulator: str) -> None:
    """Requires that every instruction set ran many passes with every kind of step."""
    enum = re.search(r"enum class StepKind.*?\{(.*?)^\};", (KERNELS / "programs.h").read_text(), re.S | re.M)
    assert enum
    kinds = re.findall(r"^\s*k(\w+),", enum[1], re.M)
    assert len(kinds) >= 34
    done = subprocess.run([*emulator, program, "10000"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    passes = {(isa, kind): int(count) for isa, kind, count in map(str.split, done.stdout.splitlines())}
    assert passes.keys() == {(isa, kind) for isa in isas for kind in kinds}
    assert min(passes.values()) > 1000


@pytest.mark.exhaustive
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="test_aarch64 runs programs on other CPUs")
def test_programs_and_attention_of_this_machine(tmp_path: Path) -> None:
    require("g++", "g++")
    parts, isas = kernel_files("x86_64", r"\w+Kernels"), tuple(kernels.supported_isas())
    checks, flags = ("programs_check", "compressed_check", "attention_check"), ["-DORT_DYNQ_X86"]
    if "avx512vnni" in isas and "amx" not in isas:  # dispatch.cc selects AMX: its machine code is emulated
        isas = ("amx", *isas)
        flags += [TILE_STAND_IN, "-DORT_DYNQ_AMX_EMULATED"]
        parts = [(path, (*options, "-UORT_DYNQ_TILE_STAND_IN")) for path, options in parts]
    if "avx512vnni" in isas and "avxvnni" not in isas:
        isas, parts = (*isas, "avxvnni"), with_evex(parts)
        flags.append(AVXVNNI_STAND_IN)
    parts += [(ROOT / "ops" / path, ("-O1",)) for path in ATTENTION]
    programs, compressed, attention = build_all(tmp_path, "g++", parts, *flags, checks=checks)
    check_programs(programs, isas)
    assert compressed_kinds(isas) <= ran(compressed, 2000)
    assert {f"{isa} attention" for isa in isas} == ran(attention, 2000)


def compressed_kinds(isas: tuple[str, ...]) -> set[str]:
    products = [f"{form} of kind {kind}" for form in ("by_row", "by_column") for kind in range(4)]
    kinds = [*products, "quantize_words", "scores", "powers", "pack and panel_scores", "pack_weights"]
    return {f"{isa} {kind}" for isa in isas for kind in kinds}


# Emulated CPUs with and without the instructions of ARMv8.2 and later, and the instruction sets that they have.
ARM_CPUS = {"max": ("neoni8mm", "neondot", "neon", "portable"), "cortex-a72": ("neon", "portable")}


def hashes(program: Path, *emulator: str) -> dict[str, dict[str, str]]:
    """The output of kernels_check: for each instruction set, a hash of each kernel's results by its name."""
    printed = subprocess.run([*emulator, program], check=True, capture_output=True, text=True).stdout
    found: dict[str, dict[str, str]] = {}
    for isa, name, value in map(str.split, printed.splitlines()):
        found.setdefault(isa, {})[name] = value
    return found


def run_nm(path: Path) -> dict[str, set[str]]:
    """The symbols of an object for ARM by their kind."""
    found: dict[str, set[str]] = {"D": set()}
    printed = subprocess.run(["aarch64-linux-gnu-nm", path], check=True, capture_output=True, text=True).stdout
    for kind, name in re.findall(r" (\w) (\S+)$", printed, re.M):
        found.setdefault(kind, set()).add(name)
    return found


@pytest.mark.exhaustive
def test_aarch64(tmp_path: Path, record: list[tuple[str, object]]) -> None:
    require("g++", "g++")
    require("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    require("qemu-aarch64", "qemu-user")
    if platform.machine() == "aarch64":
        pytest.skip("this machine is aarch64: the other tests cover it")
    (tmp_path / "here").mkdir()
    here = hashes(build(tmp_path / "here", "g++", [], check="kernels_check"))["portable"]
    assert len(here) == len(set(here.values())) > 75  # every kernel is there, and no two are the same
    parts = [*kernel_files("aarch64"), (KERNELS / "amx.cc", AMX_STAND_IN + PORTABLE_FALLBACK)]
    checks = ("products_check", "kernels_check", "programs_check", "compressed_check")
    built = build_all(tmp_path, "aarch64-linux-gnu-g++", parts, "-static", "-DORT_DYNQ_ARM", checks=checks)
    products, elementwise, programs, compressed = built
    # As test_library.py for x86: files of instruction sets share no inline functions.
    symbols = {path: run_nm(path) for path in tmp_path.glob("*.o")}
    of_isas = [found for found in symbols.values() if any("kNeon" in name for name in found["D"])]
    assert len(of_isas) == 3
    assert all(set(found) <= {"D", "U", "t", "r", "d", "b"} for found in of_isas)
    for cpu, isas in ARM_CPUS.items():
        there = hashes(elementwise, "qemu-aarch64", "-cpu", cpu)
        assert tuple(there) == isas
        assert [(isa, name) for isa in isas for name in here if here[name] != there[isa].get(name)] == []
        check_programs(programs, isas, "qemu-aarch64", "-cpu", cpu)
        assert compressed_kinds(isas) <= ran(compressed, 100, "qemu-aarch64", "-cpu", cpu)
        names = ran(products, 100, "qemu-aarch64", "-cpu", cpu)
        assert all_kinds(*isas, "amx-stand-in") <= names
        record.extend(("products", f"{name} (aarch64)") for name in {name.split()[0] for name in names})


@pytest.mark.exhaustive  # a test of the test
@pytest.mark.skipif("fma" not in (cpu_flags() if os.path.exists("/proc/cpuinfo") else ()), reason="needs FMA")
def test_a_contraction_is_found(tmp_path: Path) -> None:
    """The check detects that one rounding is missing."""
    require("g++", "g++")
    wrong = (*AMX_STAND_IN, *PORTABLE_FALLBACK, "-mfma", "-ffp-contract=fast")
    program = build(tmp_path, "g++", [(KERNELS / "amx.cc", wrong)])
    with pytest.raises(AssertionError, match=r"amx-stand-in (conv|gemm_q[bc][48]w)_tiles\b.* expected"):
        ran(program, 1000)


def test_every_kernel_of_a_table_is_checked() -> None:
    """A new one needs a check in tests/native/, or an operator: test_functions.py compares its function with it."""
    by_operators = {"softmax": "QuantizedAttention"}
    checks = "".join(path.read_text() for path in (ROOT / "tests" / "native").glob("*_check.*"))
    found = set()
    tables = (
        ("elementwise.h", "ElementwiseKernels"),
        ("products.h", "ProductKernels"),
        ("compressed.h", "CompressedKernels"),
        ("dispatch.h", "InstructionSet"),
    )
    for name, table in tables:
        struct = re.search(rf"^struct {table} \{{(.*?)^\}};", (KERNELS / name).read_text(), re.S | re.M)
        assert struct
        text = re.sub(r"\[\w+\]", "", struct[1])
        members = re.findall(r"^  (?:const )?\w+Kernels?\*? ([\w, ]+)", text, re.M)
        assert len(members) >= {"InstructionSet": 3, "CompressedKernels": 6}.get(table, 10)
        found |= {member for each in members for member in each.split(", ")}
    assert {member for member in found if not re.search(rf"\b{member}\b", checks)} == by_operators.keys()
    assert by_operators.keys() <= found
    assert {*by_operators.values()} <= OPERATORS.keys()


def test_flags_equal_the_library() -> None:
    given = set(re.findall(r"-[-\w=]+", (ROOT / "ops" / "CMakeLists.txt").read_text()))
    assert {flag for flag in FLAGS if flag.startswith(("-O", "-f"))} <= given
