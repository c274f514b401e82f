"""The wheel of the source distribution: complete, small, for all current Linux versions, usable without a compiler."""

from __future__ import annotations

import ctypes
import email
import importlib.util
import platform
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from helpers import of_all_workers
from test_first_five_minutes import is_editable

import ort_dynq

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(sys.platform != "linux", reason="auditwheel reads Linux wheels only"),
]


def require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: pip install '.[dev]'")


def run(*command: str | Path, **options: object) -> str:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source distribution, which therefore has everything that a build needs.

    Its library is less optimized than the released one, which takes less time; test_library.py tests that one's size.
    """
    require("scikit_build_core")
    require("hatch_fancy_pypi_readme")
    require("pip")
    with of_all_workers(tmp_path_factory, "wheel") as folder:
        if not [*folder.glob("*.whl")]:
            build_wheel(folder)
    (built,) = folder.glob("*.whl")
    return built


def build_wheel(folder: Path) -> None:
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})"
    run("-c", code, cwd=ROOT)
    (source,) = folder.glob("*.tar.gz")
    options = (
        "--no-deps",
        "--no-build-isolation",
        "-C",
        "cmake.build-type=None",
        "-C",
        "cmake.define.CMAKE_CXX_FLAGS=-O1",
    )
    run("-m", "pip", "wheel", "--quiet", *options, "-w", folder, source, cwd=folder)


def test_files(wheel: Path) -> None:
    """The wheel has the files of ort_dynq/ and the library, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        content = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    library = content.pop("ort_dynq/libort_dynq.so")
    assert library.startswith(b"\x7fELF")
    kinds = (".py", ".typed", ".html", ".css", ".js", ".json", ".md", ".png", ".ipynb", ".cc", ".pbtxt")
    sources = [path for path in ROOT.glob("ort_dynq/**/*") if f".{path.name.rpartition('.')[2]}" in kinds]
    assert content == {path.relative_to(ROOT).as_posix(): path.read_bytes() for path in sources}


def test_version(wheel: Path, tmp_path: Path) -> None:
    """The wheel, the package and the library have one version, which ort_dynq/__init__.py defines."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
        library = ctypes.CDLL(archive.extract("ort_dynq/libort_dynq.so", tmp_path))
    library.ort_dynq_version.restype = ctypes.c_char_p
    assert metadata["Version"] == ort_dynq.__version__ == library.ort_dynq_version().decode()


def test_description(wheel: Path) -> None:
    """The README on a package index has no links into the repository, but the names of files, which the wheel has."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        text = email.message_from_string(archive.read(name).decode()).get_payload()
    assert text.startswith("# ort_dynq\n")
    assert re.findall(r"```sh\n(.*)", text)[0] == "pip install ort_dynq && ort-dynq doctor"  # works without a clone
    assert "pip install ." not in text
    assert "C++ compiler" not in text
    assert re.findall(r"\]\((?!https:|#)[^)]*\)", text) == []
    files = set(re.findall(r"\(`(ort_dynq/[^`]*)`\)", text))
    assert {"ort_dynq/docs/quantize.md", "ort_dynq/docs/notebooks/rewrite.ipynb"} <= files
    assert files <= {*names}


def test_name_and_size(wheel: Path) -> None:
    """One wheel serves every version of Python."""
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    with zipfile.ZipFile(wheel) as archive:
        sizes = [each.compress_size for each in archive.infolist() if each.filename != "ort_dynq/libort_dynq.so"]
    assert sum(sizes) < 1_180_000  # code, documentation, its pictures and notebooks, no models


def test_auditwheel_accepts_it(wheel: Path) -> None:
    require("auditwheel")
    shown = " ".join(run("-m", "auditwheel", "show", wheel).split())
    found = re.search(r'consistent with the following platform tag: "manylinux_2_(\d+)_', shown)
    assert found is not None, shown
    assert int(found[1]) <= 28


def test_it_works_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    if is_editable():
        pytest.skip("the package of an editable installation is imported everywhere")
    nothing = {"PATH": str(tmp_path / "nothing")}
    run("-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path / "site", wheel, env=nothing)
    code = """import numpy, ort_dynq.kernels as kernels
print(kernels.__file__, kernels.run("DynamicQuantize", [numpy.float32([1, 2.5]), numpy.float32(1), None])[0])
try: kernels.run("DynamicQuantize", [numpy.float32([1, 2.5]), numpy.float32([1, 2]), None])
except Exception as error: print(error)"""
    shown = run("-c", code, env={**nothing, "PYTHONPATH": str(tmp_path / "site")}, cwd=tmp_path).splitlines()
    assert shown[0] == f"{tmp_path / 'site/ort_dynq/kernels.py'} [1 2]"
    assert shown[1].startswith("DynamicQuantize: scales has shape 2")
