"""Matrix products by Strassen's algorithm equal those by the direct form of the portable kernels, bit for bit.

The direct form is compared with ONNX Runtime in test_quantized_matmul.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cases.quantized_matmul import matmul_inputs
from helpers import Array, assert_same, handwritten, make_session, parse, with_one_nan

from ort_dynq import kernels
from ort_dynq.operators.packing import pack

CODES = (np.uint8, np.int8)
ZERO_POINTS = ("none", "one", "all")
GIVEN: dict[str, Any] = {"bits": 8, "group_size": 0, "scale_order": 0}
# Halves of a block have 96 rows and 32 columns; half of the k of a piece is a multiple of 32, up to 256.
ROWS = (1, 2, 3, 4, 5, 47, 64, 95, 191, 192, 193, 194, 385)
DEPTHS = (1, 4, 31, 33, 64, 65, 127, 130, 511, 512, 513, 516, 1025, 1100)
COLUMNS = (64, 65, 100, 128, 130)


@pytest.fixture
def strassen_isa() -> str:
    """An instruction set that has the algorithm."""
    if "avx2" not in kernels.supported_isas():
        pytest.skip("only AVX2 has Strassen's algorithm")
    return "avx2"


def check(isa: str, inputs: list[Array], operator: str = "QuantizedMatMul", **given: Any) -> Array:
    def run() -> Array:
        return with_one_nan(kernels.run(operator, inputs, **(GIVEN | given))[0])

    with kernels.use_isa("portable"), kernels.use_algorithm("strassen", "never"):
        right = run()
    with kernels.use_isa(isa), kernels.use_algorithm("strassen", "always"):
        assert_same(run(), right)
    return right


def test_sizes_around_halves(strassen_isa: str) -> None:
    """Rows, depths and columns around the halves, with types, zero points, orders and two terms in turn."""
    rng, distinct = np.random.default_rng(0), 0
    for turn, rows in enumerate((*ROWS, *ROWS)):
        depth, columns = DEPTHS[5 * turn % len(DEPTHS)], COLUMNS[turn % len(COLUMNS)]
        case = matmul_inputs(rng, (rows, depth), columns, codes=CODES[turn // 2 % 2], zero_points=ZERO_POINTS[turn % 3])
        distinct += len(np.unique(check(strassen_isa, case[0], scale_order=turn // 3 % 3)))
        if turn % 4 == 0:
            case = matmul_inputs(rng, (rows, 2 * depth), columns, codes=CODES[turn // 2 % 2])
            first = case[0]
            first[3] = matmul_inputs(rng, (rows, depth), columns)[0][3]
            first[6] = np.zeros((0, columns), np.int32)
            distinct += len(np.unique(check(strassen_isa, first, terms=2)))
    assert distinct > 50_000


@pytest.mark.parametrize("columns", [64, 96])
def test_stacked_weights_and_float16(strassen_isa: str, columns: int) -> None:
    """Matrices that share rows or weights; sums of columns are computed, scales and results are float16."""
    rng = np.random.default_rng(1)
    inputs, _ = matmul_inputs(rng, (2, 3, 70, 132), columns)
    weights = rng.integers(-128, 128, (3, 132, columns)).astype(np.int8)
    inputs[3] = np.stack([pack(matrix) for matrix in weights])
    inputs[4] = np.array(0, np.int8)
    for index in (5, 7):
        shape = (3, *inputs[index].shape)
        inputs[index] = rng.uniform(0.01, 0.02, shape).astype(np.float16)
    inputs[6] = np.zeros((3, 0, columns), np.int32)
    assert check(strassen_isa, inputs).dtype == np.float16


@pytest.mark.parametrize(("depth", "weight_zp"), [(512, 0), (512, 127), (512, -128), (65_793, 0), (33_025, 127)])
@pytest.mark.parametrize("code", [0, 255])
@pytest.mark.parametrize("weight", [-128, 127])
def test_extreme_operands(strassen_isa: str, code: int, weight: int, depth: int, weight_zp: int) -> None:
    """Quarters with the signs that make the operands of four terms as large as they can be, and the longest sums."""
    rows, half, columns = 6, 256, 64
    halves = np.arange(depth) // half % 2
    upper, left = np.arange(rows) < rows // 2, np.arange(columns) < columns // 2
    inputs, _ = matmul_inputs(np.random.default_rng(0), (rows, 4), columns)
    # S4 = A11 + A12 - A21 - A22, and T4 = B12 + B21 - B11 - B22.
    inputs[0] = np.broadcast_to(np.where(upper, code, 255 - code)[:, None], (rows, depth)).astype(np.uint8)
    weights = np.where(left[None, :] == (halves[:, None] == 1), weight, -1 - weight).astype(np.int8)
    inputs[2] = np.full((rows, 1), 255 - code, np.uint8)
    inputs[3], inputs[4] = pack(weights), np.full((1, columns) if weight_zp else (), weight_zp, np.int8)
    inputs[6] = (weights.astype(np.int32) - weight_zp).sum(0, keepdims=True, dtype=np.int32)
    assert len(np.unique(check(strassen_isa, inputs))) > columns


def test_threads_and_parts_change_nothing(strassen_isa: str) -> None:
    """A session: its operands are formed in several rounds."""
    names = ("src", "scale", "zero_point", "weight", "weight_zero_point", "column_scale", "column_sum", "bias")
    types = ("uint8", "float", "uint8", "int8", "int8", "float", "int32", "float")
    heads = ", ".join(f"{type_}[] {name}" for type_, name in zip(types, names, strict=True))
    call = f"dst = ort_dynq.QuantizedMatMul<bits = 8, group_size = 0, scale_order = 0>({', '.join(names)})"
    model = handwritten(parse(heads, "float[] dst", call), "native")
    inputs, _ = matmul_inputs(np.random.default_rng(2), (1500, 1030), 200, zero_points="all")
    right = check(strassen_isa, inputs)
    for threads in (1, 2, 3):
        session = make_session(model, "native", threads=threads)
        with kernels.use_algorithm("strassen", "always"):
            result = session.run(None, dict(zip(names, inputs, strict=True)))[0]
        assert_same(with_one_nan(result), right)


def test_the_choice(strassen_isa: str) -> None:
    """By rule, results are the same, too."""
    inputs, _ = matmul_inputs(np.random.default_rng(3), (64, 384), 384)
    right = check(strassen_isa, inputs)
    assert_same(with_one_nan(kernels.run("QuantizedMatMul", inputs, **GIVEN)[0]), right)
