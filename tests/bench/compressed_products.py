"""Times products with codes and scales that vary along the sums: rewritten, in stock ONNX Runtime, and with floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from onnx import parser

import ort_dynq
from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, aligned, check_backend, interleave, session_contender

from .product_contenders import copies

ROWS = (1, 4, 16, 128)
SIZES = ((1024, 3072), (4096, 4096))
PARTS = (32, 64, 128)
_CODES: dict[int, tuple[str, Any]] = {4: ("uint4", ml_dtypes.uint4), 8: ("uint8", np.uint8)}


@dataclass(frozen=True)
class CompressedTiming:
    """The timing of one product. Times are those of one of several products with weights outside of the caches, in the
    fastest runs, in microseconds.

    Attributes:
        rows, weights, part, bits, threads: The rows of the activation, [K, N], the columns that share the scales and
            zero points of the rows, the bits of a code, and the number of threads.
        ours_us: CompressedMatMul.
        codes_us: DequantizeLinear and MatMul in stock ONNX Runtime.
        float_us: MatMul of weights that were dequantized once, in stock ONNX Runtime.
        snr_db: The distance of ours_us's result to float64.
    """

    rows: int
    weights: tuple[int, int]
    part: int
    bits: int
    threads: int
    ours_us: float
    codes_us: float
    float_us: float
    snr_db: float

    @property
    def ratios(self) -> tuple[float, float]:
        """float / ours, codes / ours."""
        return self.float_us / self.ours_us, self.codes_us / self.ours_us


def bench_compressed(
    settings: Settings,
    rows: Sequence[int] = ROWS,
    weights: Sequence[tuple[int, int]] = SIZES,
    *,
    parts: Sequence[int] = PARTS,
    bits: Sequence[int] = tuple(_CODES),
    track: Track = iter,
) -> list[CompressedTiming]:
    """Times products with codes, scales and zero points as inputs of the model.

    Args:
        settings: How to time.
        rows: The rows of the activation.
        weights: The sizes of the weights, [K, N].
        parts: The columns that share scales.
        bits: The bits of a code, 4 or 8.
        track: Shows the progress.

    Raises:
        DynqError: N is no multiple of a part, or the operators cannot be registered.
    """
    check_backend(settings.backend)
    for depth, columns in weights:
        for part in parts:
            if columns % part:
                raise DynqError(f"the parts do not fit {depth}x{columns}: {columns} is not a multiple of {part}")
    cases = [(size, count, part, each) for size in weights for count in rows for part in parts for each in bits]
    return [timing for size, count, part, each in track(cases) for timing in _time(size, count, part, each, settings)]


def _time(weights: tuple[int, int], rows: int, part: int, bits: int, settings: Settings) -> list[CompressedTiming]:
    (depth, columns), (kind, dtype) = weights, _CODES[bits]
    rng = np.random.default_rng(0)
    codes, zeros = (rng.integers(0, 1 << bits, (depth, n), np.uint8) for n in (columns, columns // part))
    scales = (rng.uniform(1, 2, zeros.shape) / (1 << bits)).astype(np.float32)
    x = rng.standard_normal((rows, depth), np.float32)
    centered = codes.reshape(depth, -1, part) - zeros[..., None].astype(np.float32)
    real = aligned((centered * scales[..., None]).reshape(weights))
    count = copies(rows, real.nbytes)  # of different weights, which the caches do not hold
    declared, nodes, of_floats, results = [], [], [], []
    for i in range(count):
        declared += [f"{kind}[{depth}, {columns}] codes{i}, float[{depth}, {columns // part}] scales{i}"]
        declared += [f"{kind}[{depth}, {columns // part}] zeros{i}"]
        nodes += [f"w{i} = DequantizeLinear<axis = 1, block_size = {part}>(codes{i}, scales{i}, zeros{i})"]
        of_floats.append(f"y{i} = MatMul(x, w{i})")
        results.append(f"float[{rows}, {columns}] y{i}")
    of_x, dsts = f"float[{rows}, {depth}] x", ", ".join(results)
    real_inputs = ", ".join(f"float[{depth}, {columns}] w{i}" for i in range(count))
    products = "  ".join(of_floats)
    head = '<ir_version: 10, opset_import: ["": 21]> product'
    codes_model = parser.parse_model(
        f"{head} ({of_x}, {', '.join(declared)}) => ({dsts}) {{ {'  '.join(nodes)}  {products} }}"
    )
    floats_model = parser.parse_model(f"{head} ({of_x}, {real_inputs}) => ({dsts}) {{ {products} }}")
    data: dict[str, Array] = {"x": aligned(x)}
    for i in range(count):
        data |= {f"codes{i}": codes.astype(dtype), f"scales{i}": aligned(scales), f"zeros{i}": zeros.astype(dtype)}
    real_data = {"x": data["x"]} | {f"w{i}": aligned(real) for i in range(count)}
    fast = ort_dynq.rewrite(codes_model).to_proto()
    outputs = [np.empty((rows, columns), np.float32) for _ in range(count)]
    exact = x.astype(np.float64) @ real
    timings = []
    for threads in settings.threads:
        contenders: list[Contender] = [
            session_contender("rewritten", fast, data, threads, backend=settings.backend, outputs=outputs),
            session_contender("codes", codes_model, data, threads),
            session_contender("float", floats_model, real_data, threads),
        ]
        us = [float(each.min()) / 1e3 / count for each in interleave(contenders, settings, threads)]
        ours, stock, once = us
        snr = float(10 * np.log10((exact**2).sum() / ((outputs[0] - exact) ** 2).sum()))
        timings.append(CompressedTiming(rows, weights, part, bits, threads, ours, stock, once, snr))
    return timings
