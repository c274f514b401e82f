"""Convolutions by Strassen's algorithm, and as rows of a matrix product, equal the direct form bit for bit.

The direct form of the portable kernels is compared with ONNX Runtime in test_quantized_conv.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from cases.quantized_conv import GIVEN, Conv, conv_inputs, stock_conv
from helpers import Array, assert_same, make_session, parse, with_one_nan
from onnx import numpy_helper

import ort_dynq
from ort_dynq import kernels
from ort_dynq.operators.encodings import QuadAxis
from ort_dynq.operators.packing import pack_conv
from ort_dynq.storage import to_proto

ALGORITHMS: tuple[Literal["strassen", "conv_rows"], ...] = ("strassen", "conv_rows")
CODES = (np.uint8, np.int8)
ZERO_POINTS = ("none", "one", "all")
# A strip has 64 positions, a part up to 192 channels, half of a piece up to 256 codes in units of 32.
POSITIONS = (63, 64, 65, 71, 127, 128, 200, 513, 1100)
CHANNELS = (1, 4, 30, 33, 64, 100, 129, 510, 513, 516, 1030)
OUTPUTS = (1, 2, 3, 15, 16, 17, 65, 190, 192, 193, 200, 390)


def run(case: Conv, **given: Any) -> Array:
    inputs, _, its_own = case
    return with_one_nan(kernels.run("QuantizedConv", inputs, **(GIVEN | its_own | given))[0])


@contextlib.contextmanager
def direct_form() -> Iterator[None]:
    """Within the block, the portable kernels use none of the algorithms."""
    with contextlib.ExitStack() as stack:
        for name in ALGORITHMS:
            stack.enter_context(kernels.use_algorithm(name, "never"))
        stack.enter_context(kernels.use_isa("portable"))
        yield


def check(isa: str, case: Conv, *, rows: bool, **given: Any) -> Array:
    """Compares one of the algorithms with the direct form of the portable kernels."""
    with direct_form():
        right = run(case, **given)
    with kernels.use_isa(isa), kernels.use_algorithm("conv_rows" if rows else "strassen", "always"):
        assert_same(run(case, **given), right)
    return right


def pointwise(rng: np.random.Generator, shape: tuple[int, ...], outputs: int, **given: Any) -> Conv:
    return conv_inputs(rng, shape, outputs, (1,) * (len(shape) - 2), quad_axis=QuadAxis.CHANNELS, **given)


@pytest.fixture
def strassen_isa() -> str:
    """An instruction set that has the algorithm."""
    if "avx2" not in kernels.supported_isas():
        pytest.skip("only AVX2 has Strassen's algorithm")
    return "avx2"


def test_sizes_around_halves(strassen_isa: str) -> None:
    """Positions, channels and outputs around the halves, with strides, types, zero points and orders in turn."""
    rng, distinct = np.random.default_rng(0), 0
    for turn, outputs in enumerate((*OUTPUTS, *OUTPUTS)):
        positions, channels = POSITIONS[turn % len(POSITIONS)], CHANNELS[3 * turn % len(CHANNELS)]
        stride = 1 + turn % 3 // 2
        shape = (1 + turn % 4 // 3, channels, positions) if turn % 2 else (1, channels, 9 * stride, positions // 9 + 8)
        case = pointwise(
            rng,
            shape,
            outputs,
            strides=(stride,) * (len(shape) - 2),
            codes=CODES[turn // 2 % 2],
            zero_points=ZERO_POINTS[turn % 3],
            of_samples=(turn % 5 == 0, turn % 7 == 0),
        )
        distinct += len(np.unique(check(strassen_isa, case, rows=False, scale_order=turn // 3 % 3)))
    assert distinct > 50_000


@pytest.mark.parametrize("code", [0, 255])
@pytest.mark.parametrize("weight", [-128, 127])
@pytest.mark.parametrize(("channels", "weight_zp"), [(512, 0), (65_793, 0), (33_025, 127)])
def test_extreme_operands(strassen_isa: str, code: int, weight: int, channels: int, weight_zp: int) -> None:
    """Quarters with the signs that make the operands of four terms as large as they can be, and the longest sums."""
    outputs, positions, half = 6, 64, 256
    right_half = np.arange(channels) // half % 2 == 1
    case = pointwise(np.random.default_rng(0), (1, 4, positions), outputs)
    inputs, _, given = case
    # Of weights A11 + A12 - A21 - A22, and of codes B12 + B21 - B11 - B22.
    weights = np.broadcast_to(
        np.where(np.arange(outputs) < outputs // 2, weight, -1 - weight)[:, None, None], (outputs, channels, 1)
    ).astype(np.int8)
    is_left = np.arange(positions) < positions // 2
    inputs[0] = np.where(is_left[None, :] == right_half[:, None], code, 255 - code).astype(np.uint8)[None]
    inputs[2] = np.array(255 - code, np.uint8)
    inputs[3] = pack_conv(weights, QuadAxis.CHANNELS)[0]
    inputs[4] = np.array([weight_zp], np.int8)
    inputs[6] = (weights[..., 0].astype(np.int32) - weight_zp).sum(1, dtype=np.int32)
    assert len(np.unique(check(strassen_isa, (inputs, weights, given), rows=False))) >= outputs


def test_rows_of_any_geometry(product_isa: str) -> None:
    """Kernels, strides, dilations, pads and both layouts as rows, with types, zero points and terms in turn."""
    rng, distinct = np.random.default_rng(1), 0
    for turn in range(40):
        rank = 1 + turn % 3
        kernel = tuple(int(k) for k in rng.integers(1, 4, rank))
        case = conv_inputs(
            rng,
            (1 + turn % 4, 1 + 7 * turn % 20, *(int(k) for k in rng.integers(5, 9 if rank > 1 else 300, rank))),
            1 + 11 * turn % 140,
            kernel,
            strides=tuple(int(k) for k in rng.integers(1, 4, rank)),
            dilations=tuple(int(k) for k in rng.integers(1, 3, rank)),
            pads=tuple(int(k) for k in rng.integers(0, 3, 2 * rank)),
            codes=CODES[turn % 2],
            zero_points=ZERO_POINTS[turn % 3],
            quad_axis=turn // 3 % 2,
            terms=1 + turn % 5 // 4,
            of_samples=(turn % 3 == 1, turn % 5 == 1),
        )
        distinct += len(np.unique(check(product_isa, case, rows=True, scale_order=turn // 5 % 3)))
    assert distinct > 10_000


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_strided_quads(product_isa: str, stride: int) -> None:
    """Images with strides that leave out codes, of widths and channels around a vector and a quad."""
    rng, distinct = np.random.default_rng(2), 0
    for turn, width in enumerate((1, 2, 5, 13, 17, 33)):
        for kernel in (1, 2, stride, 5):
            shape = (1 + turn % 2, 1 + 5 * turn + kernel, *(1,) * (turn % 2), 9, width + 4)
            rank = len(shape) - 2
            case = conv_inputs(
                rng,
                shape,
                1 + 9 * turn,
                (1,) * (rank - 2) + (kernel, kernel),
                strides=(1,) * (rank - 2) + (stride, stride),
                pads=((0,) * (rank - 2) + (turn % 3, turn % 2)) * 2,
                codes=CODES[turn % 2],
                quad_axis=QuadAxis.CHANNELS,
            )
            result = run(case)
            assert_same(result, stock_conv(case))
            distinct += len(np.unique(result))
    assert distinct > 2_000


@pytest.mark.parametrize("size", [(1, 192, 13, 19), (3, 256, 12, 12), (1, 512, 7, 7)], ids=str)
def test_programs_and_threads(product_isa: str, size: tuple[int, ...]) -> None:
    """Pointwise layers with a program, on one thread and several, by each algorithm and by the rule."""
    rng = np.random.default_rng(3)
    shape = f"float[{', '.join(map(str, size))}]"
    model = parse(
        f"{shape} x",
        "float[] y",
        "a = Conv(x, w, b) three = Constant<value_float = 3.0>() six = Constant<value_float = 6.0>() "
        "zero = Constant<value_float = 0.0>() c = Add(a, three) d = Clip(c, zero, six) e = Mul(a, d) y = Div(e, six)",
    )
    weights = rng.standard_normal((200, size[1], 1, 1), np.float32)
    model.graph.initializer.extend(
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(rng.standard_normal(200, np.float32), "b")]
    )
    result = ort_dynq.quantize(model)
    assert result.report.after["ort_dynq.QuantizedConvProgram"] == 1
    feeds = {"x": rng.standard_normal(size, np.float32)}
    for threads in (1, 2):
        session = make_session(to_proto(result.model), "native", threads=threads)
        with direct_form():
            right = session.run(None, feeds)[0]
        with kernels.use_isa(product_isa):
            assert_same(session.run(None, feeds)[0], right)
            for name in ALGORITHMS:
                with kernels.use_algorithm(name, "always"):
                    assert_same(session.run(None, feeds)[0], right)
