"""Windows and macOS, as far as Linux can tell: no Python runs there in these tests. `.ci/wheels` runs the library for
Windows under Wine.
"""

from __future__ import annotations

import io
import json
import ntpath
import os
import platform
import re
import shutil
import sys
from pathlib import Path

import onnx_ir as ir
import pytest

import ort_dynq
from ort_dynq import cli, files, library, storage, system

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "torchao_8da8w" / "model.onnx"


# The sources


def test_only_one_header_has_extensions_of_compilers() -> None:
    """MSVC compiles every other file, but for instruction sets with options that it does not know."""
    msvc_knows = re.compile(r"// Compiler options for x86_64:( -m(avx\w*|fma|f16c|prefer-vector-width=\d+))*$", re.M)
    extension = re.compile(r"__builtin_\w+|__attribute__|\basm\b|__asm__|__extension__|\b__int128\b|\b__declspec\b")
    found, read = {}, 0
    for path in sorted((ROOT / "ops").rglob("*.*")):
        text = path.read_text()
        is_part_of_amx = path.match("tile-*-inl.h")
        if path.suffix not in (".cc", ".h") or path.name == "compiler.h" or is_part_of_amx:
            continue
        if re.search(r"^// Compiler options for ", text, re.M) and not msvc_knows.search(text):
            continue
        read += 1
        if used := set(extension.findall(re.sub(r"//.*|/\*.*?\*/", "", text))):
            found[path.name] = used
    assert read >= 45
    assert found == {}


# Python


@pytest.mark.parametrize(
    ("name", "file"), [("linux", "libort_dynq.so"), ("darwin", "libort_dynq.dylib"), ("win32", "ort_dynq.dll")]
)
def test_name_of_the_library(name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", name)
    monkeypatch.setattr(library, "_PACKAGE", tmp_path)
    (tmp_path / file).touch()
    assert library.get_library_path() == str(tmp_path / file)


def test_a_console_without_the_characters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Windows writes to a pipe or file in the code page of the console."""
    path = tmp_path / "模型 µ.onnx"
    path.write_bytes(MODEL.read_bytes())
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "cp1252", newline="\n"))
    assert cli.main(["inspect", str(path)]) == 0
    text = written.getvalue().decode("cp1252")
    assert "\\u6a21\\u578b µ.onnx" in text
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            cli.main([command.name, "--help"])
        assert stopped.value.code == 0


def test_an_output_that_another_program_has_open(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Windows does not replace such a file. The error is one line, the file stays, and no other file remains."""
    (tmp_path / "out.onnx").write_text("old")

    def replace(*_: object) -> None:
        raise PermissionError(13, "Access is denied")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(ort_dynq.DynqError, match=r"^\S*out.onnx cannot be written: Access is denied$"):
        storage.save(ir.load(MODEL), tmp_path / "out.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]
    assert (tmp_path / "out.onnx").read_text() == "old"


def test_a_file_that_a_session_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows does not delete such a file."""
    with monkeypatch.context() as context, files.temporary_folder() as folder:
        (Path(folder) / "mapped").touch()

        def unlink(path: object, **_: object) -> None:
            raise PermissionError(13, "Access is denied", str(path))

        context.setattr(os, "unlink", unlink)
    assert (Path(folder) / "mapped").exists()
    shutil.rmtree(folder)


@pytest.mark.parametrize("location", ["D:\\secret", "\\\\server\\share", "..\\secret", "C:\\models2\\weights"])
def test_external_data_on_another_drive(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, function in [("join", ntpath.join), ("commonpath", ntpath.commonpath), ("realpath", ntpath.normpath)]:
        monkeypatch.setattr(os.path, name, function)
    with pytest.raises(ort_dynq.DynqError, match=r"have the location"):
        storage._size_of_external_data("C:\\models", location)


def test_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert system.cores() == 3


_UNNAMED = platform.processor() or platform.machine()
CPUS = {
    "vendor_id : AuthenticAMD\ncpu family : 25\nmodel\t\t: 1\nmodel name : AMD EPYC": "AMD EPYC (family 25, model 1)",
    "CPU implementer : 0x41\nCPU part : 0xd0c": f"{_UNNAMED} (implementer 0x41, part 0xd0c)",
    "": _UNNAMED,
}


@pytest.mark.parametrize("text", CPUS)
def test_names_of_cpus(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One name may be that of several CPUs, such as AMD EPYC."""
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: text)
    assert system.cpu_name() == CPUS[text]


def test_every_instruction_set_has_a_line() -> None:
    source = (ROOT / "ops" / "kernels" / "dispatch.cc").read_text(encoding="utf-8")
    assert re.findall(r'^ +\{"(\w+)", &k', source, re.M) == [*system._GAINS]


@pytest.mark.parametrize(
    "arguments",
    [
        ("bench", str(MODEL), "--seconds", "0.01"),
        ("bench", str(MODEL), "--report", "report.html", "--seconds", "0.01"),
    ],
    ids=["bench", "report"],
)
def test_measurements_without_load_and_affinity(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows has neither. `mypy --platform win32` in .ci/run finds other uses of functions that it lacks."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delattr(os, "getloadavg")
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cli.main([*arguments, "--json"]) == 0
    machine = json.loads(capsys.readouterr().out)["machine"]
    assert machine["load"] is None
    assert cli.main([*arguments]) == 0
    shown = capsys.readouterr().out
    if "--report" in arguments:
        shown = Path("report.html").read_text(encoding="utf-8")
    assert f"{machine['cores']} cores" in shown
    assert "load" not in shown.split(f"{machine['cores']} cores")[1].split("\n")[0]


def test_texts_are_read_as_utf8() -> None:
    """The encoding of Windows is another one. Files of Linux are ASCII."""
    for path in (ROOT / "ort_dynq").rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            if "read_text(" in line or "write_text(" in line:
                assert "encoding=" in line or "/proc/" in line, f"{path}: {line}"


# The table of platforms


def test_platforms_are_in_the_table() -> None:
    page = (ROOT / "ort_dynq" / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ((?:Linux|Windows|macOS) [\w-]+) \|", page, re.M) == [
        name for name, _ in system._WHEELS.values()
    ]


@pytest.mark.parametrize(
    ("name", "machine", "expected"),
    [
        ("win32", "AMD64", "Windows x86-64"),
        ("darwin", "arm64", "macOS arm64"),
        ("linux", "riscv64", f"{platform.system()} riscv64"),
    ],
)
def test_doctor_names_the_platform(name: str, machine: str, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as context:
        context.setattr(sys, "platform", name)
        context.setattr(platform, "machine", lambda: machine)
        shown = (system.platform_name(), system.wheel_test())
    assert shown[0] == expected
    assert ("none" in shown[1]) == (machine == "riscv64")
