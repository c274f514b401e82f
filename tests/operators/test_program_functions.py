"""The steps that have an arithmetic of their own: the errors of Sigmoid and Gelu, and the order of sums.

test_functions.py and test_random_programs.py compare them with the function body, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from helpers import Array, assert_same, pairwise

from ort_dynq import kernels

NOTHING = np.zeros(1, np.float32)


def run(program: str, x: Array, output: int) -> Array:
    return kernels.run("RowProgram", [x, np.zeros(1, np.int8), *[NOTHING] * 4], program=program, code_type=3)[output]


def gelu(x: Array) -> Array:
    return np.asarray([each / 2 * math.erfc(-each / math.sqrt(2)) for each in x.ravel()]).reshape(x.shape)


def sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1) / (1 + e))


def numbers() -> Array:
    """Both signs, dense where the functions bend; every binary exponent; the ends of the ranges in the formulas."""
    ends = [13.0, 87.0, 88.0, 104.0, 3.4028235e38, 1e-45, 0.0]
    near = [np.nextafter(np.float32(end), np.float32(to)) for end in ends[:4] for to in (0, np.inf)]
    steps = np.concatenate([np.linspace(0, 1, 4001), np.linspace(1, 14, 8001), np.linspace(14, 110, 2001)])
    powers = [2.0**exponent * factor for exponent in range(-149, 128) for factor in (1, 1.37, 1.9)]
    positive = np.concatenate([steps, powers, ends, near]).astype(np.float32)
    return np.concatenate([positive, -positive])[None]


@pytest.mark.parametrize(("step", "function"), [("Gelu", gelu), ("Sigmoid", sigmoid)])
def test_errors(step: str, function: Callable[[Array], Array], isas: Sequence[str]) -> None:
    """At most 1e-7, or 2 units in the last place, as docs/operators.md says."""
    x = numbers()
    expected = function(x.astype(np.float64))
    unit = np.spacing(np.minimum(np.abs(expected), 1e38).astype(np.float32)).astype(np.float64)
    for isa in isas:
        with kernels.use_isa(isa):
            error = np.abs(run(f"dst = {step}(x)", x, 2) - expected)
        assert (error <= np.maximum(1e-7, 2 * unit)).all(), (isa, x[error > np.maximum(1e-7, 2 * unit)])
        assert error.max() > 0


@pytest.mark.parametrize(("step", "expected"), [("Gelu", [0, np.inf, np.nan]), ("Sigmoid", [0, 1, np.nan])])
def test_ends(step: str, expected: list[float], isas: Sequence[str]) -> None:
    """Gelu of -infinity is 0, its limit, except for a number too small to matter."""
    for isa in isas:
        with kernels.use_isa(isa):
            found = run(f"dst = {step}(x)", np.array([[-np.inf, np.inf, np.nan]], np.float32), 2)
        np.testing.assert_allclose(found, [expected], atol=1e-36)


def stated_sum(row: Array) -> np.float32:
    """The sum in the order that docs/operators.md states."""
    partial = np.zeros(32, np.float32)
    for i, number in enumerate(row):
        partial[i % 32] += number
    while len(partial) > 1:
        half = len(partial) // 2
        partial = partial[:half] + partial[half:]
    return np.float32(partial[0])


@pytest.mark.parametrize("length", [1, 2, 7, 16, 31, 32, 33, 63, 100, 127, 128, 129, 255, 384, 1000, 70001])
def test_order_of_sums(length: int, isas: Sequence[str]) -> None:
    """Numbers of many magnitudes and both signs: another order gives other bits."""
    rng = np.random.default_rng(length)
    x = (rng.standard_normal((3, length)) * 10.0 ** rng.integers(-4, 5, (3, length))).astype(np.float32)
    x[2] = -0.0
    expected = np.array([[stated_sum(row)] for row in x], np.float32)
    if length >= 100:
        assert (expected[:2] != x[:2].cumsum(-1, dtype=np.float32)[:, -1:]).any()
    for isa in isas:
        with kernels.use_isa(isa):
            assert_same(run("number = ReduceSum(x)", x, 5), expected)
            assert_same(run("number = ReduceSum(Mul(x, -1.0))", x, 5), np.where(expected == 0, expected, -expected))


FUNCTIONS = {
    "Gelu": "Gelu(x)",
    "SiLU": "Mul(x, Sigmoid(x))",
    "gate": "Mul(Mul(x, Sigmoid(x)), tensor1)",
}
QUANTIZATIONS = {
    "symmetric": "s = Div(ReduceMax(Abs({0})), 127.0); codes = Round(Div({0}, s)); scale = s",
    "asymmetric": """l = Clip(ReduceMin({0}), -inf, 0.0); s = Div(Sub(Clip(ReduceMax({0}), 0.0, inf), l), 15.0);
        z = Int8(Clip(Sub(-8.0, Div(l, s)), -8.0, 7.0)); codes = Clip(Add(Round(Div({0}, s)), z), -8.0, 7.0);
        zero_point = z; scale = s""",
    "of three passes": "s = ReduceMax({0}); d = Mul({0}, s); codes = Mul(Div(d, ReduceMax(Abs(d))), 7.0); scale = s",
}


@pytest.mark.parametrize(
    ("code_type", "dtype", "quantization", "function"),
    pairwise([3, 22], [np.float32, np.float16], QUANTIZATIONS, FUNCTIONS),
)
def test_functions_that_several_passes_read(
    function: str, quantization: str, dtype: type, code_type: int, isas: Sequence[str]
) -> None:
    """The bits of two programs: one computes the function, the other one reads its result. Short and long rows."""
    quantized = " ".join(QUANTIZATIONS[quantization].split())
    like = np.zeros(1, np.int8 if code_type == 3 else pytest.importorskip("ml_dtypes").int4)
    rng = np.random.default_rng(0)
    for shape, axis in (((5, 7), -1), ((40, 130), -1), ((3, 5000), -1), ((3, 60000), 0)):
        x: Array = rng.normal(0, 3, shape).astype(dtype)
        gate: Array = rng.normal(0, 3, shape).astype(np.float32)
        options = {"axis": axis, "code_type": code_type}

        def run_on(data: Array, program: str, gate: Array = gate, options: dict[str, int] = options) -> list[Array]:
            return kernels.run("RowProgram", [data, like, gate, *[NOTHING] * 3], program=program, **options)

        for isa in isas:
            with kernels.use_isa(isa):
                found = run_on(x, f"y = {FUNCTIONS[function]}; {quantized.format('y')}")
                first = run_on(x.astype(np.float32), f"dst = {FUNCTIONS[function]}")[2]
                expected = run_on(first, quantized.format("x"))
            for output in (0, 1, 4):
                assert_same(found[output], expected[output])
            assert len(np.unique(found[0].astype(np.int32))) > 2
