"""Compares the numbers in ops/ort_abi.h with ONNX Runtime's header, if ORT_INCLUDE_DIR names its directory."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

HEADER = Path(__file__).parents[2] / "ops" / "ort_abi.h"
TEXT = re.sub(r"\\\n", " ", HEADER.read_text())
SLOTS = re.findall(r"\bX\((\w+),\s*(\d+),", TEXT)
OF_TESTS = re.findall(r"\bX\((\w+),\s*(\d+),", (HEADER.parents[1] / "tests/native/run_models.cc").read_text())
ENUMERATORS = [
    pair
    for body in re.findall(r"^enum \w+(?: : int)? \{(.*?)\}", TEXT, re.MULTILINE | re.DOTALL)
    for pair in re.findall(r"(\w+)\s*=\s*(-?\d+)", body)
]
CUSTOM_OP = re.search(r"^struct OrtCustomOp \{(.*?)^\};", TEXT, re.MULTILINE | re.DOTALL)[1]  # type: ignore[index]
CALLBACKS = re.findall(r"^  (.*)\(\*(\w+)\)(\(.*\));", CUSTOM_OP, re.MULTILINE)
MEMBERS = ["version", *(name for _, name, _ in CALLBACKS)]
VERSION = re.search(r"kOrtApiVersion = (\d+)", TEXT)[1]  # type: ignore[index]


def test_header_is_read() -> None:
    """The expressions above find every number."""
    assert len(SLOTS) == len(re.findall(r"^ORT_DYNQ_API|  X\(", TEXT, re.MULTILINE)) - 1 >= 24
    assert ("KernelContext_ParallelFor", "274") in SLOTS
    assert ("CreateEnv", "3") in OF_TESTS
    assert len(MEMBERS) == 26
    assert len(MEMBERS) == CUSTOM_OP.count(";")
    assert CUSTOM_OP.strip().startswith("uint32_t version;")
    assert MEMBERS[-1] == "ReleaseAliasMap"
    assert len(ENUMERATORS) >= 13
    assert ("ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32", "6") in ENUMERATORS


def compile_against(include: str, asserts: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    source = folder / "abi.cc"
    source.write_text("#include <cstddef>\n#include <onnxruntime_c_api.h>\n" + "\n".join(asserts) + "\n")
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{include}", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def include() -> str:
    directory = os.environ.get("ORT_INCLUDE_DIR")
    if not directory:
        pytest.skip("ORT_INCLUDE_DIR names no directory with ONNX Runtime's headers, which its wheels do not have")
    assert (Path(directory) / "onnxruntime_c_api.h").is_file(), (
        f"no onnxruntime_c_api.h in ORT_INCLUDE_DIR, {directory}"
    )
    return directory


def test_real_header(include: str, tmp_path: Path) -> None:
    names = known(include)
    asserts = [
        *(
            f"static_assert(offsetof(OrtApi, {name}) == {slot} * sizeof(void*));"
            if name in names
            else f"static_assert(sizeof(OrtApi) <= {slot} * sizeof(void*));"  # newer than this header
            for name, slot in (*SLOTS, *OF_TESTS)
        ),
        *(f"static_assert(offsetof(OrtCustomOp, {name}) == {i} * sizeof(void*));" for i, name in enumerate(MEMBERS)),
        *(f"static_assert(static_cast<int>({name}) == {value});" for name, value in ENUMERATORS),
        f"static_assert(sizeof(OrtCustomOp) >= {len(MEMBERS)} * sizeof(void*));",
        f"static_assert(ORT_API_VERSION >= {VERSION});",
        "static_assert(sizeof(decltype(OrtCustomOp::version)) == 4);",
        "static_assert(offsetof(OrtApiBase, GetApi) == 0 && offsetof(OrtApiBase, GetVersionString) == sizeof(void*));",
    ]
    result = compile_against(include, asserts, tmp_path)
    assert result.returncode == 0, result.stderr


def known(include: str) -> set[str]:
    """The words of this header, which may be older than the newest function that we use."""
    return set(re.findall(r"\b\w+\b", (Path(include) / "onnxruntime_c_api.h").read_text()))


def converts(struct: str, member: str, result: str, parameters: str) -> str:
    """Asserts the type of a function pointer; a static_cast allows no other difference than `noexcept`."""
    return f"static_assert(sizeof(static_cast<{result}(*)({parameters})>({struct}{{}}.{member})) == sizeof(void*));"


def test_real_header_signatures(include: str, tmp_path: Path) -> None:
    """Every function and every callback has the same declaration as in the header."""
    macro = re.search(r"#define ORT_DYNQ_API_FUNCTIONS\(X\)(.*?)\n\n", TEXT, re.DOTALL)[1]  # type: ignore[index]
    functions = re.findall(r"X\((\w+), \d+, ([^(]*?), *\((.*?)\)\)(?= |$)", macro)
    assert len(functions) == len(SLOTS)
    asserts = [
        *(converts("OrtApi", name, *rest) for name, *rest in functions if name in known(include)),
        *(converts("OrtCustomOp", name, result, parameters[1:-1]) for result, name, parameters in CALLBACKS),
    ]
    result = compile_against(include, asserts, tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        ("static_assert(offsetof(OrtApi, GetErrorMessage) == 8);", "static assertion failed"),
        ("static_assert(offsetof(OrtCustomOp, GetName) == 8);", "static assertion failed"),
        (converts("OrtApi", "ReleaseStatus", "int", "OrtStatus*"), "invalid"),
    ],
)
def test_mistakes_fail_to_compile(include: str, tmp_path: Path, mistake: str, text: str) -> None:
    result = compile_against(include, [mistake], tmp_path)
    assert result.returncode != 0
    assert text in result.stderr
