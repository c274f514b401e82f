"""QuantizeLinear and DequantizeLinear bit for bit: floats where results change, every code with every zero point.

The arithmetic `onnx` is compared with ONNX Runtime's QuantizeLinear. The arithmetic `onednn` is compared with
ONNX Runtime's Mul by the reciprocal, Add, and QuantizeLinear with scale 1, which rounds and saturates: the same steps.
By default each pass covers every exponent, every tie of a code, and their neighbors. With --exhaustive it covers all
2^32 floats, in chunks that stay in the cache and in sessions that use both cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers import (
    S32_ZPS,
    SPECIAL_SCALES,
    Array,
    assert_same,
    dequantize,
    expected_quantize,
    make_session,
    native_only,
    numpy_dequantize,
    parse,
    quantize,
    random_scales,
    stock_session,
)

from ort_dynq import kernels

CHUNK = 1 << 21
ALL = range(0, 1 << 32, CHUNK)

REFERENCE = {
    "onnx": "y = QuantizeLinear(x, s, z)",
    "onednn": """one = Constant<value_float = 1.0>()
                 reciprocal = Div(one, s)
                 product = Mul(x, reciprocal)
                 zp = Cast<to = 1>(z)
                 sum = Add(product, zp)
                 zero = Sub(z, z)
                 y = QuantizeLinear(sum, one, zero)""",
}


@dataclass(frozen=True)
class Pass:
    """One scale and one zero point. The zero point has the type of the codes."""

    scale: float
    zp: int
    codes: str = "uint8"
    arithmetic: str = "onnx"

    def __str__(self) -> str:
        return f"{self.arithmetic}-{self.codes}-{self.scale:.9g}-{self.zp}"


PASSES = (
    Pass(0.1, 128),
    Pass(0.1, -3, "int8"),
    Pass(2.0**-7, 127, "int8"),
    Pass(1.9999999, 255),  # the mantissa with the largest error of its correctly rounded reciprocal
    Pass(1 / 3, 1, "int8"),
    Pass(2.0**-60 * 1.1, 7),  # the smallest scale that needs no divider, and the next smaller power
    Pass(2.0**-61 * 1.1, 7),
    Pass(2.0**60 / 1.1, -128, "int8"),
    Pass(1e-40, 100),
    Pass(3e38, 1, "int8"),
    Pass(-0.1, 77),
    Pass(0.1, 127, arithmetic="onednn"),
    Pass(0.0037, -7, "int8", arithmetic="onednn"),
    Pass(-1e-39, 3, "int8", arithmetic="onednn"),  # its reciprocal is infinite or nearly so
)


class Passes:
    """The reference session and our session of one pass. Both read the same buffer of `size` floats."""

    def __init__(self, given: Pass, size: int) -> None:
        self.bits = np.empty(size, np.uint32)
        head = f"float[N] x, float s, {given.codes} z", f"{given.codes}[N] y"
        ours = f'y = ort_dynq.DynamicQuantize<arithmetic = "{given.arithmetic}">(x, s, z)'
        sessions = (
            stock_session(parse(*head, REFERENCE[given.arithmetic]), threads=2),
            make_session(parse(*head, ours), "native", threads=2),
        )
        self.outputs = tuple(np.empty(size, given.codes) for _ in sessions)
        self.bound = []
        for session, output in zip(sessions, self.outputs, strict=True):
            binding = session.io_binding()
            binding.bind_input("x", "cpu", 0, np.float32, [size], self.bits.ctypes.data)
            binding.bind_cpu_input("s", np.array(given.scale, np.float32))
            binding.bind_cpu_input("z", np.array(given.zp, given.codes))
            binding.bind_output("y", "cpu", 0, output.dtype, [size], output.ctypes.data)
            self.bound.append((session, binding))

    def run_chunks(self, starts: Iterable[int], isas: Iterable[str]) -> set[int]:
        """Compares chunks of consecutive bit patterns and returns codes of the reference, from one float in 64.

        Args:
            starts: The first bit pattern of each chunk; multiples of the size.
            isas: The instruction sets to run.
        """
        seen: set[int] = set()
        self.bits[:] = np.arange(self.bits.size, dtype=np.uint32)
        for start in starts:
            np.bitwise_xor(self.bits, (self.bits[0] ^ np.uint32(start)), out=self.bits)
            seen.update(np.unique(self.compare(isas)[:: 1 << 6]).tolist())
        return seen

    def compare(self, isas: Iterable[str]) -> Array:
        """Compares every instruction set with the reference on the buffer and returns the codes of the reference."""
        expected, actual = self.outputs
        self._run(0)
        for isa in isas:
            np.invert(expected, out=actual)  # so that a code that is not written differs
            with kernels.use_isa(isa):
                self._run(1)
            if not np.array_equal(actual, expected):
                at = int(np.argmax(actual != expected))
                x = self.bits.view(np.float32)[at]
                raise AssertionError(f"{isa}: {x!r} ({self.bits[at]:#x}) gives {actual[at]}, expected {expected[at]}")
        return expected

    def _run(self, which: int) -> None:
        session, binding = self.bound[which]
        session.run_with_iobinding(binding)


def chunks_that_matter(scale: float) -> list[int]:
    """Chunks of the binades in which codes change, next to them, and at the ends: denormals, infinities, NaN.

    Quotients of magnitude below 2^-2 round to zero and those from 2^10 on saturate, for every zero point.
    """
    exponent = int(np.clip(np.floor(np.log2(np.abs(np.float64(scale)))) + 127, -24, 300))
    binades = {b for b in range(exponent - 3, exponent + 11) if 0 <= b <= 255} | {0, 1, 2, 127, 253, 254, 255}
    starts = [sign << 31 | binade << 23 for sign in (0, 1) for binade in sorted(binades)]
    return [start + part for start in starts for part in range(0, 1 << 23, CHUNK)]


def every_exponent() -> Array:
    """The bit patterns of every sign and exponent, each with mantissas at the ends, around powers of two and random."""
    powers = 1 << np.arange(23)
    random = np.random.default_rng(0).integers(0, 1 << 23, 16)
    mantissas = np.unique(np.concatenate([[0], powers, powers - 1, (1 << 23) - powers, random]))
    return (np.arange(512)[:, np.newaxis] << 23 | mantissas).astype(np.uint32).ravel()


def ties(given: Pass) -> Array:
    """The floats halfway between two codes, one row for each pair of codes; 0 instead of those that are not finite.

    The arithmetic `onednn` rounds the sum of quotient and zero point to float32 before it rounds to a code. So a row
    also has the floats with sums that are next to the tie.
    """
    codes = np.iinfo(given.codes)
    sums = np.arange(codes.min - 2, codes.max + 3)[:, np.newaxis] + 0.5
    if given.arithmetic == "onednn":
        sums = sums + np.spacing(np.abs(sums).astype(np.float32)) * np.array([-1, -0.5, 0, 0.5, 1])
    with np.errstate(all="ignore"):
        found = ((sums - given.zp) * np.float64(np.float32(given.scale))).astype(np.float32)
    return np.where(np.isfinite(found), found, np.float32(0))


def with_neighbors(floats: Array) -> Array:
    """The bit patterns of the floats in each row and of the eight on either side of each."""
    near = floats.view(np.uint32)[..., np.newaxis].astype(np.int64) + np.arange(-8, 9)
    return near.astype(np.uint32).reshape(len(floats), -1)


SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 1.1754944e-38, 3.4028235e38, 2.0**61 / 1.1, 1.0]
SPECIAL_PASSES = [Pass(scale, 5, "int8", arithmetic) for scale in SPECIAL for arithmetic in ("onnx", "onednn")]
FEW_CODES = (3e38, 1e-40, -1e-39)  # scales for which most codes have no float


@pytest.mark.parametrize("given", [*PASSES, *SPECIAL_PASSES], ids=str)
def test_every_exponent_and_tie(isas: Sequence[str], given: Pass) -> None:
    """Every sign and exponent, every tie of a code, and their neighbors."""
    exponents, around_ties = every_exponent(), with_neighbors(ties(given))
    both = Passes(given, exponents.size + around_ties.size)
    both.bits[:] = np.concatenate([exponents, around_ties.ravel()])
    codes = both.compare(isas)
    if given in PASSES and given.scale not in FEW_CODES:
        assert len(np.unique(codes)) == 256
        near = codes[exponents.size :].reshape(around_ties.shape)[3:-3]
        assert np.all(near.min(1) != near.max(1))  # the code changes at every tie


@pytest.mark.exhaustive
@pytest.mark.parametrize("given", PASSES, ids=str)
def test_all_floats(given: Pass) -> None:
    """All 2^32 floats through every instruction set."""
    codes = Passes(given, CHUNK).run_chunks(ALL, kernels.supported_isas())
    assert len(codes) == 256 or (given.scale in FEW_CODES and len(codes) >= 2)


@pytest.mark.exhaustive
@pytest.mark.parametrize("given", SPECIAL_PASSES, ids=str)
def test_special_scales(given: Pass) -> None:
    """One chunk in 64, the ends and, for finite scales other than 0, the chunks in which codes change."""
    starts = [*ALL[::64], *(sign | end for sign in (0, 1 << 31) for end in (0, 0x7F000000, 0x7F800000, 0x7FC00000))]
    if np.isfinite(given.scale) and given.scale != 0:
        starts += chunks_that_matter(given.scale)
    Passes(given, CHUNK).run_chunks(starts, kernels.supported_isas())


@native_only
@pytest.mark.parametrize("codes", [np.uint8, np.int8])
@pytest.mark.parametrize("exponents", [(-10, 3), (-59, 59), (-126, 118)], ids=str)
def test_ties_of_many_scales(isa: str, backend: str, codes: Any, exponents: tuple[int, int]) -> None:
    """Every tie and its float neighbors for 4096 scales of all mantissas: per row, per column.

    The kernels compute quotients without the divider only if all exponents are moderate.
    """
    rng = np.random.default_rng(0)
    scales = ((1 + rng.random(4096)) * 2.0 ** rng.integers(*exponents, 4096)).astype(np.float32)
    ties = (np.arange(np.iinfo(codes).min - 1, np.iinfo(codes).max + 2) + 0.5)[:, np.newaxis]
    near = (ties * scales).astype(np.float32)
    src = np.concatenate([near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))])
    rows = np.ascontiguousarray(src.T)
    zps = np.zeros(4096, codes)
    expected = expected_quantize(rows, scales, zps, codes, axis=0)
    assert_same(quantize(backend, rows, scales, zps, qtype="per_channel", axis=0), expected, rows)
    assert_same(quantize(backend, src, scales, zps, qtype="per_channel", axis=1), np.ascontiguousarray(expected.T), src)


# float16


def near_ties(scales: Array) -> Array:
    """The float16 numbers nearest to the ties of 255 codes and their neighbors, one row for each scale."""
    near = ((np.arange(255) + 0.5) * scales[:, np.newaxis]).astype(np.float16)
    return np.concatenate([near, np.nextafter(near, np.float16(np.inf)), np.nextafter(near, np.float16(0))], axis=1)


@pytest.mark.parametrize("exponent", [-24, -17, 0, 7])
def test_ties_of_float16(isa: str, exponent: int) -> None:
    """Scales of all 2^10 significands, subnormal ones too: per row, per column."""
    scales = (np.arange(1024, 2048) * 2.0 ** (exponent - 10)).astype(np.float16)
    src, zps = near_ties(scales.astype(np.float32)), np.zeros(1024, np.uint8)
    expected = expected_quantize(src.astype(np.float32), scales.astype(np.float32), zps, np.uint8, axis=0)
    assert len(np.unique(expected)) == 256
    assert_same(quantize("native", src, scales, zps, qtype="per_channel", axis=0), expected, src)
    columns = quantize("native", np.ascontiguousarray(src.T), scales, zps, qtype="per_channel", axis=1)
    assert_same(np.ascontiguousarray(columns.T), expected, src)


SCALED = "s = Mul(Div(ReduceMax(Abs(x)), row1), row2); scale = s"


def compare_float32_scales(significands: Array, choose: Callable[[Array, Array], Array]) -> int:
    """Compares rows of float16 that have float32 scales from 1 to 2 with NumPy's division.

    Args:
        significands: The last 23 bits of the scales.
        choose: Gets scales and the matrix of near_ties(). True where an element matters; a row without is left out.

    Returns:
        The number of rows.
    """
    model = parse(
        "float16[1, n] x, float[1, 1] a, float[1, 1] b",
        "uint8[1, n] y, float[1, 1] s",
        f"""like = Constant<value = uint8 {{0}}>()
           y, z, d, d2, s, n = ort_dynq.RowProgram<code_type = 2, program = "
               {SCALED}; codes = Round(Div(x, s))">(x, like, a, b, a, a)""",
    )
    session = make_session(model, "native")
    scales = (np.uint32(0x3F800000) | significands.astype(np.uint32)).view(np.float32)
    src = near_ties(scales)
    rows = np.flatnonzero(choose(scales, src).any(axis=1))
    expected = np.rint(src[rows].astype(np.float32) / scales[rows, np.newaxis]).astype(np.uint8)
    for row, codes in zip(rows, expected, strict=True):
        x, largest = src[row : row + 1], src[row].max()
        numbers = {"a": np.full((1, 1), largest, np.float32), "b": np.full((1, 1), scales[row])}
        actual, scale = session.run(None, {"x": x, **numbers})
        assert scale[0, 0] == scales[row]
        assert_same(actual[0], codes, x[0])
    return len(rows)


def test_ties_of_float16_for_float32_scales(isa: str) -> None:
    """If the significand of a scale is all ones, the reciprocal is nearest to the middle of two floats."""
    few = np.arange(64)
    random = np.random.default_rng(0).integers(0, 1 << 23, 1000)
    significands = np.concatenate([few, (1 << 23) - 1 - few, random])
    assert compare_float32_scales(significands, lambda _, src: src > 0) == len(significands)


@pytest.mark.exhaustive
def test_ties_of_float16_for_all_float32_scales(isa: str) -> None:
    """All 2^23 significands: rows that have an element closer to a tie than a float32 quotient can tell."""

    def hard(scales: Array, src: Array) -> Array:
        ties = (np.tile(np.arange(255), 3) + 0.5) * scales[:, np.newaxis].astype(np.float64)
        return np.abs(src - ties) < ties * 2.0**-23

    parts = range(0, 1 << 23, 1 << 14)
    rows = sum(compare_float32_scales(np.arange(first, first + (1 << 14)), hard) for first in parts)
    assert rows > 1 << 17


def test_rounded_quotients_of_float32_scales(isa: str) -> None:
    """Float16 divided by float32, rounded to float16: quotients next to the middle of two float16 numbers at a tie."""
    model = parse(
        "float16[1, n] x, float[1, 1] a, float[1, 1] b",
        "int8[1, n] y, float[1, 1] s",
        f"""like = Constant<value = int8 {{0}}>()
           y, z, d, d2, s, n = ort_dynq.RowProgram<code_type = 3, program = "
               {SCALED}; codes = Round(Float16(Div(x, s)))">(x, like, a, b, a, a)""",
    )
    session, rng = make_session(model, "native"), np.random.default_rng(0)
    x = (rng.integers(1024, 2048, 2000) / 1024).astype(np.float32)
    middles = rng.integers(32, 64, 2000) + 0.5 + rng.choice([-1, 1], 2000) / 64
    scales = (x / middles).astype(np.float32)
    expected = np.rint((x / scales).astype(np.float16)).astype(np.int8)
    assert np.any(expected != np.rint((x * (1 / scales)).astype(np.float16)))  # the product would not do
    for i in range(2000):
        numbers = {"a": np.full((1, 1), x[i]), "b": np.full((1, 1), scales[i])}
        actual, scale = session.run(None, {"x": np.full((1, 100), x[i], np.float16), **numbers})
        assert scale[0, 0] == scales[i]
        assert_same(actual, np.full((1, 100), expected[i]), x[i])


# s32 zero points


@native_only
@pytest.mark.parametrize("codes", ["uint8", "int8"])
def test_quantize_s32_zero_points(isa: str, backend: str, codes: str) -> None:
    """Compared with Python's integers: sums of large quotients and zero points do not wrap."""
    low, high = np.iinfo(codes).min, np.iinfo(codes).max
    for scale in (1.0, 0.25, 3.0):
        for zp in map(int, S32_ZPS):
            # Floats around the quotients that give codes. Far from zero they are sparse.
            wanted = np.arange(low - 3, high + 4, dtype=np.float64) - zp
            src = np.concatenate([(wanted + half) * scale for half in (0, 0.5, -0.5)]).astype(np.float32)
            src = np.concatenate([src, np.nextafter(src, np.float32(np.inf)), np.nextafter(src, np.float32(-np.inf))])
            src = np.concatenate([src, np.float32([2.0**31, -(2.0**31), 2.0**32, 1e38, -1e38, 0.0, np.inf, -np.inf])])
            with np.errstate(over="ignore"):
                quotients = (src / np.float32(scale)).tolist()
            exact = [q if abs(q) == np.inf else round(q) + zp for q in quotients]
            expected = np.array([int(min(max(value, low), high)) for value in exact], codes)
            actual = quantize(
                backend,
                src,
                np.float32([scale]),
                np.array([zp], np.int32),
                output_dtype={"uint8": 2, "int8": 3}[codes],
            )
            assert_same(actual, expected, src)


# Dequantize


@native_only
@pytest.mark.parametrize("codes", ["uint8", "int8"])
@pytest.mark.parametrize("scale", [0.1, 1.9999999, -0.0037, 3e38, *SPECIAL_SCALES], ids=str)
def test_dequantize_every_code_and_zero_point(isa: str, backend: str, codes: str, scale: float) -> None:
    """256 codes x 256 zero points: per channel along both axes, compared with DequantizeLinear along the first."""
    every = np.arange(256, dtype=np.uint8).view(codes)
    src = np.ascontiguousarray(np.broadcast_to(every, (256, 256)))
    scales = np.full(256, scale, np.float32)
    stock = stock_session(
        parse(f"{codes}[A, B] x, float[A] s, {codes}[A] z", "float[A, B] y", "y = DequantizeLinear<axis = 0>(x, s, z)")
    )
    expected = stock.run(None, {"x": src, "s": scales, "z": every})[0]
    assert len(np.unique(expected)) >= 511 or scale in SPECIAL_SCALES or scale == 3e38 or scale != scale
    assert_same(dequantize(backend, src, scales, every, qtype="per_channel", axis=0), expected, src)
    transposed = np.ascontiguousarray(src.T)
    assert_same(
        dequantize(backend, transposed, scales, every, qtype="per_channel", axis=1), expected.T.copy(), transposed
    )
    for zp in every[::15]:
        actual = dequantize(backend, every, scales[:1], np.array([zp]))
        assert_same(actual, expected[np.flatnonzero(every == zp)[0]], every)


@native_only
@pytest.mark.parametrize("codes", ["uint8", "int8"])
def test_dequantize_s32_zero_points(isa: str, backend: str, codes: str) -> None:
    """Every code, compared with 64-bit integers: the difference is exact and rounded once."""
    every = np.arange(256, dtype=np.uint8).view(codes)
    scales = random_scales(np.random.default_rng(0), (len(S32_ZPS),))
    src = np.ascontiguousarray(np.broadcast_to(every, (len(S32_ZPS), 256)))
    expected = numpy_dequantize(src, scales[:, np.newaxis], S32_ZPS[:, np.newaxis])
    assert_same(dequantize(backend, src, scales, S32_ZPS, qtype="per_channel", axis=0), expected, src)
    transposed = np.ascontiguousarray(src.T)
    assert_same(
        dequantize(backend, transposed, scales, S32_ZPS, qtype="per_channel", axis=1), expected.T.copy(), transposed
    )
    for row in range(len(S32_ZPS)):
        zps = S32_ZPS[row : row + 1]
        assert_same(dequantize(backend, every, scales[row : row + 1], zps), expected[row], every)


def test_python_integers_agree_on_the_difference() -> None:
    """NumPy rounds once, to the nearest, when it converts int64 to float32."""
    for code in (0, 255, -128, 127):
        for zp in map(int, S32_ZPS):
            rounded = np.int64(code - zp).astype(np.float32)
            neighbors = np.nextafter(rounded, np.float32(np.inf)), np.nextafter(rounded, np.float32(-np.inf))
            distance = abs(int(rounded) - (code - zp))
            assert all(distance <= abs(float(other) - (code - zp)) for other in neighbors)


def test_reference_covers_nan() -> None:
    """Both references give a NaN the lowest code, so the passes above also compare NaN."""
    for arithmetic in REFERENCE:
        both = Passes(Pass(0.1, 5, "int8", arithmetic), 100)
        both.bits[:] = 0x7FC00000
        assert np.all(both.compare(()) == -128)
