"""Tests a wheel for Windows under Wine, with the onnxruntime.dll of PyPI, against the results of this machine.

    python tests/native/windows.py WHEEL

Every model of models/ runs as it is, rewritten with `exact`, and rewritten, without optimizations. All outputs must
have the bits of this machine, unless the original has others, and an exact rewrite those of its original. There is no
Python for Wine here, so run_models.cc opens the models through ONNX Runtime's C interface.

Needs Debian's packages g++-mingw-w64-x86-64-posix and wine64, and the installed package.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from onnx import helper

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from helpers import make_session  # noqa: E402
from rewriting import FOLDERS, data_sets, load, rewritten  # noqa: E402

from ort_dynq import four_bits  # noqa: E402

Tensors = dict[str, npt.NDArray[np.generic]]
WINE = "/usr/lib/wine/wine64"
# ONNX Runtime uses the tiles of AMX without asking, as Windows allows. Linux wants every process to ask: without it,
# the first product of integers ends the process. Permissions do not survive exec, so Wine loads this.
ASK_FOR_TILES = """#include <sys/syscall.h>
#include <unistd.h>
__attribute__((constructor)) static void ask(void) { syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18); }
"""


def run(*command: str | Path, **variables: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **variables}, errors="replace")
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command[:3]))} ...: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def write_tensors(path: Path, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    with path.open("wb") as file:
        for name, array in tensors.items():
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            file.write(f"{name} {kind} {array.ndim} {' '.join(map(str, array.shape))}".strip().encode() + b"\n")
            file.write(array.tobytes())


def read_tensors(path: Path) -> Tensors:
    tensors = {}
    with path.open("rb") as file:
        while line := file.readline():
            name, kind, _, *dims = line.decode().split()
            dtype, shape = helper.tensor_dtype_to_np_dtype(int(kind)), tuple(map(int, dims))
            count = int(np.prod(shape, dtype=np.int64))
            tensors[name] = np.frombuffer(file.read(count * dtype.itemsize), dtype).reshape(shape)
    return tensors


def differing(a: Tensors, b: Tensors) -> int:
    """The number of elements with other bits."""
    if a.keys() != b.keys():
        sys.exit(f"outputs {sorted(a)}, expected {sorted(b)}")
    count = 0
    for name in a:
        if a[name].shape != b[name].shape or a[name].dtype != b[name].dtype:
            sys.exit(f"{name} is {a[name].dtype}{a[name].shape}, expected {b[name].dtype}{b[name].shape}")
        bits = f"u{a[name].itemsize}" if a[name].dtype.kind == "f" else a[name].dtype
        count += int(np.count_nonzero(a[name].view(bits) != b[name].view(bits)))
    return count


def prepare(folder: Path, names: Iterable[str]) -> dict[str, Tensors]:
    """Writes the models and their inputs. Returns the outputs on this machine by the name of the file."""
    expected = {}
    for name in names:
        inputs = data_sets(name)[0][0]
        if any(array.dtype in four_bits.LIMITS for array in inputs.values()):  # run_models.cc has no such tensors
            continue
        contents = {
            "stock": load(name).SerializeToString(),
            "exact": rewritten(name, exact=True)[1],
            "default": rewritten(name)[1],
        }
        for kind, content in contents.items():
            file = f"{name}.{kind}"
            (folder / f"{file}.onnx").write_bytes(content)
            write_tensors(folder / f"{file}.inputs", inputs)
            session = make_session(content, "native")
            outputs = [output.name for output in session.get_outputs()]
            expected[file] = dict(zip(outputs, map(np.asarray, session.run(outputs, inputs)), strict=True))
    return expected


def download(folder: Path) -> Path:
    """The onnxruntime.dll of the version that is installed here."""
    where = ("--platform", "win_amd64", "--python-version", "3.12", "--only-binary", ":all:", "--no-deps", "-d", folder)
    run(sys.executable, "-m", "pip", "download", "-q", f"onnxruntime=={ort.__version__}", *where)
    (wheel,) = folder.glob("onnxruntime-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".dll"):
                (folder / Path(name).name).write_bytes(archive.read(name))
    return folder / "onnxruntime.dll"


def check_library(library: Path) -> None:
    """The library needs only libraries of Windows, and exports the functions that ops/c_api.h and ONNX Runtime name."""
    text = run("x86_64-w64-mingw32-objdump", "-p", library)
    needed = set(re.findall(r"DLL Name: (\S+)", text))
    exported = set(re.findall(r"^\s*\[ *\d+\] (?:\+base\[ *\d+\] +\w+ +)?([A-Za-z]\w+)$", text, re.M))
    declared = set(re.findall(r"\bort_dynq_\w+(?=\()", (ROOT / "ops" / "c_api.h").read_text(encoding="utf-8")))
    if needed != {"KERNEL32.dll", "msvcrt.dll"}:
        sys.exit(f"the library needs {sorted(needed)}")
    if exported != {"RegisterCustomOps", *declared}:
        sys.exit(f"the library exports {sorted(exported)}")
    # ops/CMakeLists.txt has the option that makes them unaligned; Debian's compiler does so itself.
    code = run("x86_64-w64-mingw32-objdump", "-d", "--no-show-raw-insn", library)
    if aligned := re.findall(
        r"vmov(?:ap[sd]|dqa\w*) .*\(%r[sb]p.*%[yz]mm.*|vmov(?:ap[sd]|dqa\w*) .*%[yz]mm.*\(%r[sb]p.*", code
    ):
        sys.exit(f"{len(aligned)} instructions want an aligned stack, which GCC does not align: {aligned[0]}")


def compile_for_wine(folder: Path) -> tuple[Path, Path]:
    """Returns run_models.exe and the library that Wine loads."""
    program, tiles = folder / "run_models.exe", folder / "tiles.so"
    options = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-static", "-I", ROOT / "ops")
    run("x86_64-w64-mingw32-g++-posix", *options, ROOT / "tests" / "native" / "run_models.cc", "-o", program)
    (folder / "tiles.c").write_text(ASK_FOR_TILES)
    run("cc", "-shared", "-fPIC", folder / "tiles.c", "-o", tiles)
    return program, tiles


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--every", type=int, default=1, help="run only every N-th model")
    parser.add_argument("--isa", nargs="*", default=[""], help="instruction sets; default: the best of this CPU")
    given = parser.parse_args()
    wheel = given.wheel.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with zipfile.ZipFile(wheel) as archive:
            (folder / "ort_dynq.dll").write_bytes(archive.read("ort_dynq/ort_dynq.dll"))
        check_library(folder / "ort_dynq.dll")
        program, tiles = compile_for_wine(folder)
        runtime = download(folder)
        expected = prepare(folder, FOLDERS[:: given.every])
        os.chdir(folder)
        wine = {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all", "LD_PRELOAD": str(tiles)}
        for isa in given.isa:
            print(run(WINE, program, runtime, "ort_dynq.dll", *expected, **wine, ORT_DYNQ_ISA=isa), end="")
            found = {file: read_tensors(folder / f"{file}.outputs") for file in expected}
            for file in expected:
                (folder / f"{file}.outputs").unlink()
            if report(found, expected):
                sys.exit(1)


def report(found: dict[str, Tensors], expected: dict[str, Tensors]) -> int:
    """Prints and returns the number of differing elements.

    ONNX Runtime's builds may differ themselves, in float Conv and LSTM: then an exact rewrite has the original's bits.
    """
    here = {file: differing(found[file], expected[file]) for file in expected}
    for name in [file.removesuffix(".stock") for file, count in here.items() if file.endswith(".stock") and count]:
        print(f"{name}: {here.pop(f'{name}.stock')} elements differ between builds of ONNX Runtime")
        del here[f"{name}.exact"]
    stock = {
        file: differing(found[file], found[file.replace(".exact", ".stock")]) for file in found if ".exact" in file
    }
    for file, count in [*here.items(), *stock.items()]:
        if count:
            print(f"{file}: {count} elements differ")
    elements = sum(array.size for tensors in expected.values() for array in tensors.values())
    wrong = sum(here.values()) + sum(stock.values())
    print(f"{len(expected)} models, {elements} elements of outputs, {wrong} differ")
    return wrong


if __name__ == "__main__":
    main()
