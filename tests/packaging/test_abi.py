"""The part of ONNX Runtime's C API that ops/ort_abi.h declares: compared with the header if ORT_INCLUDE_DIR names its
directory, and called by stand-ins for ONNX Runtime."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ort_dynq import get_library_path

HEADER = Path(__file__).parents[2] / "ops" / "ort_abi.h"
TEXT = re.sub(r"\\\n", " ", HEADER.read_text())
ENUM = re.search(r"^enum Slot \{(.*?)^\};", HEADER.with_name("ort_api_slots.h").read_text(), re.MULTILINE | re.DOTALL)
assert ENUM
SLOTS = {name: slot for slot, name in enumerate(re.findall(r"\w+(?=,)", ENUM[1]))}
CALLED = re.findall(r"  X\((\w+),", TEXT)
ENUMERATORS = [
    pair
    for body in re.findall(r"^enum \w+(?: : int)? \{(.*?)\}", TEXT, re.MULTILINE | re.DOTALL)
    for pair in re.findall(r"(\w+)\s*=\s*(-?\d+)", body)
]
CUSTOM_OP = re.search(r"^struct OrtCustomOp \{(.*?)^\};", TEXT, re.MULTILINE | re.DOTALL)[1]  # type: ignore[index]
CALLBACKS = re.findall(r"^  (.*)\(\*(\w+)\)(\(.*\));", CUSTOM_OP, re.MULTILINE)
MEMBERS = ["version", *(name for _, name, _ in CALLBACKS)]
VERSION = re.search(r"kCustomOpVersion = (\d+)", TEXT)[1]  # type: ignore[index]


def test_header_is_read() -> None:
    """The expressions above find every name and number."""
    assert len(CALLED) == TEXT.count("  X(") >= 24
    assert set(CALLED) <= set(SLOTS)
    assert SLOTS["KernelContext_ParallelFor"] == 274
    assert SLOTS["GetTensorElementTypeAndShapeDataReference"] == len(SLOTS) - 1 == 414
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
            for name, slot in SLOTS.items()
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
    functions = re.findall(r"X\((\w+), ([^(]*?), *\((.*?)\)\)(?= |$)", macro)
    assert len(functions) == len(CALLED)
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


class StandIn:
    """A copy of ONNX Runtime with only the functions that registering a library calls; it counts the calls."""

    def __init__(self, version: bytes) -> None:
        self.version, self.asked, self.calls = version, list[int](), list[tuple[str, int]]()
        self.status = b""
        self.kept: list[object] = []  # the callbacks
        self.table = (ctypes.c_void_p * len(SLOTS))()
        pointer, number = ctypes.c_void_p, ctypes.c_int
        self.offer("CreateStatus", self.create_status, pointer, number, ctypes.c_char_p)
        self.offer("CreateCustomOpDomain", self.create_domain, pointer, ctypes.c_char_p, ctypes.POINTER(pointer))
        self.offer("CustomOpDomain_Add", self.add, pointer, pointer, pointer)
        self.offer("AddCustomOpDomain", self.add_domain, pointer, pointer, pointer)
        get_api = self.keep(self.get_api, pointer, ctypes.c_uint32)
        get_version = self.keep(lambda: ctypes.cast(ctypes.c_char_p(self.version), pointer).value, pointer)
        self.base = (pointer * 2)(get_api, get_version)

    def keep(self, function: Callable[..., object], *types: type) -> int | None:
        self.kept.append(ctypes.CFUNCTYPE(*types)(function))
        return ctypes.cast(self.kept[-1], ctypes.c_void_p).value  # type: ignore[arg-type]

    def offer(self, name: str, function: Callable[..., object], *types: type) -> None:
        self.table[SLOTS[name]] = self.keep(function, *types)

    def get_api(self, version: int) -> int:
        self.asked.append(version)
        return ctypes.addressof(self.table)

    def create_status(self, _code: int, message: bytes) -> int:
        self.status = message
        return 1

    def create_domain(self, name: bytes, domain: ctypes._Pointer[ctypes.c_void_p]) -> None:
        assert name == b"ort_dynq"
        domain[0] = ctypes.addressof(self.base)
        self.calls.append(("create", domain[0]))

    def add(self, domain: int, _op: int) -> None:
        self.calls.append(("add operator", domain))

    def add_domain(self, _options: int, domain: int) -> None:
        self.calls.append(("add domain", domain))

    def register(self) -> bool:
        library = ctypes.CDLL(get_library_path())
        library.RegisterCustomOps.restype = ctypes.c_void_p
        return library.RegisterCustomOps(ctypes.c_void_p(1), self.base) is None


STAND_INS: list[StandIn] = []  # the library keeps pointers to them


@pytest.fixture
def stand_in() -> Callable[[bytes], StandIn]:
    def make(version: bytes) -> StandIn:
        STAND_INS.append(StandIn(version))
        return STAND_INS[-1]

    return make


@pytest.mark.parametrize(
    ("version", "asked"), [(b"1.20.0", 20), (b"1.24.4", 24), (b"1.99.0", 24), (b"1.23.0-dev+1", 23), (b"2.0.0", 24)]
)
def test_api_version(stand_in: Callable[[bytes], StandIn], version: bytes, asked: int) -> None:
    """The library asks for the version that the runtime has, up to the newest that it knows."""
    runtime = stand_in(version)
    assert runtime.register()
    assert runtime.asked == [asked]


@pytest.mark.parametrize("version", [b"1.19.2", b"0.5.0", b"unknown"])
def test_old_runtime(stand_in: Callable[[bytes], StandIn], version: bytes) -> None:
    runtime = stand_in(version)
    assert not runtime.register()
    assert runtime.asked == [1]
    assert runtime.status == b"ort_dynq needs ONNX Runtime 1.20 or newer, this is " + version
    assert runtime.calls == []


def test_two_runtimes(stand_in: Callable[[bytes], StandIn]) -> None:
    """Each copy of ONNX Runtime in a process gets a domain of its own, once."""
    first, second = stand_in(b"1.24.1"), stand_in(b"1.21.0")
    for runtime in (first, second, first):
        assert runtime.register()
    for runtime, registrations in ((first, 2), (second, 1)):
        kinds = [kind for kind, _ in runtime.calls]
        assert {domain for _, domain in runtime.calls} == {ctypes.addressof(runtime.base)}
        assert kinds[0] == "create"
        assert kinds.count("create") == 1
        assert kinds.count("add operator") > 40
        assert kinds.count("add domain") == registrations
