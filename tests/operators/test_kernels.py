"""The operators on NumPy arrays, the choice of instruction set, and the symbols that the library exports and links."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    Array,
    Shape,
    assert_same,
    dynamic_dequantize,
    dynamic_quantize,
    expected_dequantize,
    expected_quantize,
    random_codes,
    random_scales,
    random_zps,
    spread,
    tie_dense,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ort_dynq
from ort_dynq import DynqError, kernels

ROOT = Path(__file__).parents[2]


def sample(shape: Shape, codes: Any = np.uint8, seed: int = 0) -> tuple[Array, Array, Array]:
    """src, and one scale and one zero point for each element of its last dimension."""
    rng = np.random.default_rng(seed)
    scales, zps = random_scales(rng, shape[-1:]), random_codes(rng, shape[-1:], codes)
    return tie_dense(rng, spread(scales, shape, -1), spread(zps, shape, -1), codes), scales, zps


# Arrays


def test_defaults(isa: str) -> None:
    src = np.float32([-1, 0.5, 1.5, 2.5, 300])
    assert_same(dynamic_quantize(src, np.float32(1)), np.uint8([0, 0, 2, 2, 255]))
    assert_same(dynamic_quantize(src, np.float32(1), np.int8(-3)), np.int8([-4, -3, -1, -1, 127]))
    assert_same(dynamic_quantize(src, np.float32(1), np.int32(1)), np.uint8([0, 1, 3, 3, 255]))
    assert_same(dynamic_dequantize(np.uint8([0, 255]), np.float32(0.5)), np.float32([0, 127.5]))


def test_agrees_with_onnxruntime(isa: str) -> None:
    for codes in (np.uint8, np.int8):
        src, scales, zps = sample((5, 129), codes)
        quantized = dynamic_quantize(src, scales, zps, qtype="per_channel", axis=-1)
        assert_same(quantized, expected_quantize(src, scales, zps, codes, axis=1), src)
        floats = dynamic_dequantize(quantized, scales, zps, qtype="per_channel", axis=-1)
        assert_same(floats, expected_dequantize(quantized, scales, zps, axis=1), quantized)


def misaligned(array: Array, offset: int) -> Array:
    """A copy of the array at an address that is `offset` bytes after a multiple of 64."""
    room = np.empty(array.nbytes + 128, np.uint8)
    start = -room.ctypes.data % 64 + offset
    result = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    assert array.size == 0 or result.ctypes.data % 64 == offset
    return result


@pytest.mark.parametrize("offset", [1, 2, 4, 20])
def test_unaligned(isa: str, offset: int) -> None:
    src, scales, zps = sample((5, 129))
    arrays = [misaligned(array, offset) for array in (src, scales, zps)]
    quantized = dynamic_quantize(*arrays, qtype="per_channel", axis=1)
    assert_same(quantized, expected_quantize(src, scales, zps, np.uint8, axis=1), src)
    floats = dynamic_dequantize(misaligned(quantized, offset), *arrays[1:], qtype="per_channel", axis=1)
    assert_same(floats, expected_dequantize(quantized, scales, zps, axis=1), quantized)


def test_views(isa: str) -> None:
    """Transposed, strided, reversed, broadcast and read-only arrays."""
    src, scales, zps = sample((6, 40))
    read_only = src.copy()
    read_only.flags.writeable = False
    whole = np.empty((12, 80), np.float32)
    whole[::2, ::2] = src
    turned = np.ascontiguousarray(src.T).T
    for view in (whole[::2, ::2], turned, read_only, np.asfortranarray(src), src[::-1][::-1]):
        expected = expected_quantize(src, scales, zps, np.uint8, axis=1)
        assert_same(dynamic_quantize(view, scales, zps, qtype="per_channel", axis=1), expected, src)
    backwards = np.ascontiguousarray(scales[::-1])[::-1]
    assert_same(dynamic_quantize(src, backwards, zps[::-1][::-1], qtype="per_channel", axis=1), expected, src)
    one = np.broadcast_to(np.float32(3), (4, 5))
    assert_same(dynamic_quantize(one, np.float32(1)), np.full((4, 5), 3, np.uint8))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (0, 3), (1,), (1,) * 16], ids=str)
def test_rank_0_empty_and_rank_16(isa: str, shape: Shape) -> None:
    src = np.full(shape, 2.5, np.float32)
    assert_same(dynamic_quantize(src, np.float32(1)), np.full(shape, 2, np.uint8))
    assert_same(dynamic_dequantize(np.full(shape, 5, np.int8), np.float32(2)), np.full(shape, 10, np.float32))


def test_inputs_are_not_written(isa: str) -> None:
    arrays = sample((5, 129))
    before = [array.copy() for array in arrays]
    dynamic_quantize(*arrays, qtype="per_channel", axis=1)
    for array, copy in zip(arrays, before, strict=True):
        assert_same(array, copy)


@pytest.mark.parametrize(
    ("arguments", "named", "text"),
    [
        (
            (np.float64([1]), np.float32(1)),
            {},
            "an input is float64, expected one of float32, uint8, int8, int16, int32",
        ),
        ((np.float32([1]), np.float64(1)), {}, "an input is float64, expected one of"),
        ((np.uint8([1]), np.float32(1)), {}, r"DynamicQuantize: inputs of types .*uint8.* are not supported"),
        ((np.float32([1]), np.float32(1), np.float32(1)), {}, "DynamicQuantize: inputs of types .* are not supported"),
        ((np.float32([1, 2]), np.float32([1, 2])), {}, "scales has shape 2, expected one element of rank 0 or 1"),
        (
            (np.float32([[1, 2]]), np.float32([1])),
            {"qtype": "per_channel"},
            "scales has 1 elements, src has 2 along axis 1",
        ),
        ((np.float32([1, 2]), np.float32([1, 2])), {"qtype": "per_channel"}, "axis is 1, expected -1 to 0"),
        ((np.float32([1]), np.float32(1)), {"qtype": "rows"}, "qtype is 'rows', expected per_tensor"),
        (
            (np.float32([1]), np.float32(1)),
            {"arithmetic": "mlas"},
            "arithmetic is 'mlas', expected onnx, onednn or wrapping",
        ),
        ((np.float32([1]), np.float32(1)), {"output_dtype": 5}, "output_dtype is 5, expected 2"),
        ((np.float32([1]), np.float32(1)), {"block_size": -2}, "block_size is -2, expected 0 or more"),
        ((np.float32([1]), np.float32([1]), np.int8([1, 2])), {}, "zps has shape 2, expected that of scales, 1"),
        ((np.ones((1,) * 17, np.float32), np.float32(1)), {}, "rank 17, expected at most 16"),
    ],
)
def test_errors(arguments: tuple[Array, ...], named: dict[str, Any], text: str) -> None:
    with pytest.raises(DynqError, match=text):
        dynamic_quantize(*arguments, **named)


def test_run_of_an_unknown_operator() -> None:
    with pytest.raises(DynqError, match="NoSuchOperator"):
        kernels.run("NoSuchOperator", [])


def test_run_with_an_attribute_of_the_wrong_type() -> None:
    with pytest.raises(DynqError, match=r"axis.*text.*integer"):
        kernels.run("DynamicQuantize", [np.float32([1]), np.float32(1)], axis="1")
    with pytest.raises(DynqError, match=r"qtype.*integer.*text"):
        kernels.run("DynamicQuantize", [np.float32([1]), np.float32(1)], qtype=1)


def test_run_with_an_output_that_no_array_holds() -> None:
    """It has no elements, so that the library needs no memory; NumPy refuses it all the same."""
    with pytest.raises(DynqError, match="Interleave: output 0 has shape 1x0x1073741824x17592186044416, expected"):
        kernels.run("Interleave", [np.zeros((1, 0, 2**30, 2**30), np.float32)], stride_2=2**14)


@pytest.mark.parametrize("axis", [2**63, -(2**63) - 1, 2**64])
def test_run_with_an_attribute_that_is_too_large(axis: int) -> None:
    with pytest.raises(DynqError, match=f"axis is {axis}, expected an integer of 64 bits"):
        kernels.run("DynamicQuantize", [np.float32([1]), np.float32([1])], qtype="per_channel", axis=axis)


@pytest.mark.parametrize(
    "inputs", [[], [np.ones(3, np.float32)], [None, np.float32(1)], [np.ones(3, np.float32), None]]
)
def test_run_without_required_inputs(inputs: list[Array | None]) -> None:
    with pytest.raises(DynqError, match="DynamicQuantize"):
        kernels.run("DynamicQuantize", inputs)


# Instruction sets


def cpu_flags() -> set[str]:
    """Those of an x86 CPU; on an emulated CPU, the file describes the host's."""
    info = Path("/proc/cpuinfo" if platform.machine() in ("x86_64", "AMD64") else "")
    found = re.search(r"^flags\s*:(.*)$", info.read_text(), re.MULTILINE) if info.is_file() else None
    return set(found[1].split()) if found else set()


def test_every_instruction_set_of_this_cpu_is_run() -> None:
    """The fixture `isa` runs tests on the listed instruction sets, so none may be missing from the list."""
    names = kernels.supported_isas()
    assert names[-1] == "portable"
    assert len(set(names)) == len(names)
    assert ("avx2" in names) == ({"avx2", "fma", "f16c"} <= cpu_flags())
    assert ("avx512" in names) == ({"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= cpu_flags())
    assert ("neon" in names) == (platform.machine() in ("aarch64", "arm64"))


def test_use_isa_switches_and_switches_back() -> None:
    before = kernels.isa()
    for name in kernels.supported_isas():
        with kernels.use_isa(name):
            assert kernels.isa() == name
            with kernels.use_isa("portable"):
                assert kernels.isa() == "portable"
            assert kernels.isa() == name
    assert kernels.isa() == before
    with pytest.raises(ZeroDivisionError), kernels.use_isa("portable"):
        raise ZeroDivisionError
    assert kernels.isa() == before


@pytest.mark.parametrize("name", ["sse9", "AVX2", "avx", "NEON"])
def test_use_isa_of_an_unknown_name(name: str) -> None:
    before = kernels.isa()
    listed = ", ".join(kernels.supported_isas())
    with pytest.raises(DynqError, match=f"'{name}', expected one of .*{listed}"), kernels.use_isa(name):
        pass
    assert kernels.isa() == before


def in_new_process(code: str, isa: str | None) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DYNQ_ISA"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(ort_dynq.__file__).parents[1]), *sys.path])
    if isa is not None:
        environment["ORT_DYNQ_ISA"] = isa
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True
    ).stdout


def test_environment_variable() -> None:
    names = kernels.supported_isas()
    code = "from ort_dynq import kernels; print(kernels.isa())"
    for value, expected in (("", names[0]), *((name, name) for name in names[1:])):
        assert in_new_process(code, value).strip() == expected


@pytest.mark.skipif(sys.platform != "linux" or "amx" not in kernels.supported_isas(), reason="needs AMX on Linux")
@pytest.mark.parametrize("call", ["kernels.isa()", "kernels.supported_isas()"])
def test_only_amx_asks_for_tiles(call: str) -> None:
    """Other instruction sets leave the permissions of the process as they are."""
    code = f"""import ctypes
from ort_dynq import kernels
{call}
allowed = ctypes.c_uint64()
assert ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(allowed)) == 0  # arch_prctl(ARCH_GET_XCOMP_PERM)
print(allowed.value >> 18 & 1)"""
    asked = [isa for isa in kernels.supported_isas() if in_new_process(code, isa).strip() == "1"]
    assert asked == (["amx"] if call == "kernels.isa()" else [])


def test_unknown_environment_variable() -> None:
    """The error lists the names; no other instruction set is used instead.

    The same if ONNX Runtime loads the library, as from other languages.
    """
    code = f"""import onnxruntime, ort_dynq.kernels
for call in (ort_dynq.kernels.isa, lambda: ort_dynq.register(onnxruntime.SessionOptions()),
             lambda: onnxruntime.SessionOptions().register_custom_ops_library({ort_dynq.get_library_path()!r})):
    try: call()
    except Exception as error: print(type(error).__name__, str(error).replace(chr(10), " "))"""
    lines = in_new_process(code, "sse9").splitlines()
    assert [line.split()[0] for line in lines[:2]] == ["DynqError", "DynqError"]
    assert len(lines) == 3
    for line in lines:
        assert re.search(f"ORT_DYNQ_ISA is 'sse9', expected one of .*{', '.join(kernels.supported_isas())}", line)


# Any shape, axis and groups: every instruction set equals the portable kernels


@st.composite
def problems(draw: st.DrawFn) -> tuple[Array, Array, Array | None, dict[str, Any], int, int]:
    """Arrays and attributes for both operators, and an offset from alignment."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    lengths = st.one_of(st.integers(0, 9), st.sampled_from([15, 16, 17, 31, 32, 33, 63, 64, 65, 130]))
    shape = tuple(draw(st.lists(lengths, min_size=1, max_size=4).filter(lambda dims: np.prod(dims) <= 20000)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    qtype = draw(st.sampled_from(["per_tensor", "per_channel", "per_group", "blocks"]))
    attributes: dict[str, Any] = {"qtype": qtype, "axis": axis}
    block = 0
    if qtype == "per_tensor":
        scales_shape: Shape = draw(st.sampled_from([(), (1,)]))
    elif qtype == "per_channel":
        scales_shape = (shape[axis],)
    elif qtype == "per_group":
        divisors = [[n for n in range(1, length + 1) if length % n == 0] or [0] for length in shape]
        scales_shape = tuple(draw(st.sampled_from(choices)) for choices in divisors)
    else:
        block = draw(st.integers(1, 40))
        at = axis % len(shape)
        scales_shape = (*shape[:at], -(-shape[at] // block), *shape[at + 1 :])
        attributes |= {"qtype": "per_group", "block_size": block}
    zps = random_zps(
        rng, draw(st.sampled_from([scales_shape, (1,)])), draw(st.sampled_from([None, np.uint8, np.int8, np.int32]))
    )
    scales = random_scales(rng, scales_shape, special=0.3)
    codes = draw(st.sampled_from([np.uint8, np.int8]))
    whole = (spread(p, shape, axis, block) for p in (scales, np.zeros(()) if zps is None else zps))
    src = tie_dense(rng, *whole, codes)
    attributes["output_dtype"] = {np.uint8: 2, np.int8: 3}[codes]
    return src, scales, zps, attributes, block, draw(st.sampled_from([0, 1, 4, 12]))


def other_codes(arithmetic: str, src: Array, scales: Array, zps: Array, dtype: Any) -> Array:
    """The codes in the arithmetic onednn or wrapping; the parameters have src's shape."""
    with np.errstate(all="ignore"):
        if arithmetic == "onednn":
            codes = np.rint(src * (np.float32(1) / scales) + zps.astype(np.float32))
        else:
            steps = np.rint(src / scales)
            steps = np.where((steps >= -(2.0**31)) & (steps < 2.0**31), steps, -(2.0**31))
            codes = (steps.astype(np.int64) + zps).astype(np.int32).astype(np.float64)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.where(np.isnan(codes), low, np.clip(codes, low, high)).astype(dtype)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(problems(), st.sampled_from(["onnx", "onednn", "wrapping"]))
def test_instruction_sets_agree(
    problem: tuple[Array, Array, Array | None, dict[str, Any], int, int], arithmetic: str
) -> None:
    """The portable kernels equal ONNX Runtime or, in arithmetics that it does not have, NumPy."""
    src, scales, zps, attributes, block, offset = problem
    arrays = [None if array is None else misaligned(array, offset) for array in (src, scales, zps)]
    with kernels.use_isa("portable"):
        codes = dynamic_quantize(*arrays, **attributes, arithmetic=arithmetic)
        output = attributes.pop("output_dtype")
        floats = dynamic_dequantize(codes, *arrays[1:], **attributes)
    dtype, axis = {2: np.uint8, 3: np.int8}[output], attributes["axis"]
    granularity: dict[str, Any] = {"axis": axis, "block": block}
    granularity["groups"] = attributes["qtype"] == "per_group" and not block
    if arithmetic == "onnx":
        assert_same(codes, expected_quantize(src, scales, zps, dtype, **granularity), src)
    else:
        each = (spread(p, src.shape, axis, block) for p in (scales, np.zeros((), np.int8) if zps is None else zps))
        assert_same(codes, other_codes(arithmetic, src, *each, dtype), src)
    assert_same(floats, expected_dequantize(codes, scales, zps, **granularity), codes)
    if zps is not None and zps.dtype != np.int32 and arithmetic == "onnx":
        fake = kernels.run("DynamicFakeQuantize", [src, scales, zps], **attributes)[0]
        its_codes = expected_quantize(src, scales, zps, zps.dtype, **granularity)
        assert_same(fake, expected_dequantize(its_codes, scales, zps, **granularity), src)
    for name in kernels.supported_isas():
        with kernels.use_isa(name):
            assert_same(dynamic_quantize(*arrays, **attributes, output_dtype=output, arithmetic=arithmetic), codes, src)
            assert_same(dynamic_dequantize(misaligned(codes, offset), *arrays[1:], **attributes), floats, codes)


# The binary


def tool(*command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF")
def test_exported_symbols() -> None:
    """The library exports RegisterCustomOps and the functions of ops/c_api.h, and nothing else."""
    declared = set(re.findall(r"\bort_dynq_\w+(?=\()", (ROOT / "ops" / "c_api.h").read_text()))
    assert len(declared) >= 5
    lines = tool("nm", "-D", "--defined-only", ort_dynq.get_library_path()).splitlines()
    assert {line.split()[-1] for line in lines} == {"RegisterCustomOps", *declared}


@pytest.mark.skipif(sys.platform != "linux", reason="reads ELF")
def test_links_neither_onnxruntime_nor_python() -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", tool("readelf", "-d", ort_dynq.get_library_path()))
    assert needed
    system = r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|ld-linux.*)\.so.*"
    assert [name for name in needed if not re.fullmatch(system, name)] == []
