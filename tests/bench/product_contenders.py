"""The products that :mod:`bench.products` compares.

All multiply activations by weights of the same size:

* ort_dynq 8, ort_dynq 4: QuantizedMatMul, from uint8 codes with a scale and a zero point for each row, to float32. The
  4-bit weights have a scale for each group of k and column.
* direct: ort_dynq 8 without Strassen's algorithm, which ort_dynq chooses by rule.
* MatMulInteger: followed by a DequantizeLinear, which turns the integers into floats in one pass. It has one scale for
  all rows and columns, and no bias: stock ONNX Runtime needs further passes for more scales and a bias.
* MatMulNBits 4, MatMulNBits 8: at accuracy level 4, with the groups of ort_dynq 4. It quantizes its float32 activation
  itself.
* torch: onednn.qlinear_pointwise, from uint8 codes with one scale for all rows, to float32.
* float: MatMul of float32.
* read: a plain read of the 8-bit weights.

In a network, the weights of a product are not in the caches, which hold the weights of other products. So each
contender multiplies by several weights in turn, see :func:`cold_bytes`. Their outputs share memory, as the values of a
network do.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ort_dynq import kernels
from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.operators import DOMAIN, VERSION
from ort_dynq.operators.encodings import ScaleOrder
from ort_dynq.operators.packing import pack
from ort_dynq.tools.measuring.timing import Contender, ContenderError, Settings, aligned, session_contender
from ort_dynq.tools.verification.saturation import cpu_saturates

from .onnx_text import parse, tensor_type

_FEW_ROWS = 16
_FEW_ROWS_BYTES = 64 * 2**20, 128 * 2**20  # at least and at most
_MANY_ROWS_BYTES = 8 * 2**20
_MAX_COPIES = 512  # of small weights: a session with more products takes seconds to open
_LONG_READ_BYTES = 2**28

_SCALE, _ZERO_POINT, _COLUMN_SCALE = np.float32(0.02), np.uint8(128), np.float32(0.01)
_CHECKED_ROWS = 4
# The largest error of a right result, relative to the largest element: from rounding of floats, and from quantizing the
# activation.
_ROUNDING, _QUANTIZING = 1e-4, 0.05


@dataclass(frozen=True)
class Case:
    """What one row of the table measures; the shape of the weights is K x N."""

    rows: int
    weights: tuple[int, int]
    threads: int

    def __str__(self) -> str:
        return f"{self.rows} rows, weights {self.weights[0]}x{self.weights[1]}, threads: {self.threads}"


@dataclass(frozen=True)
class Data:
    """The codes of the activation [M, K], and the weights [K, N] without zero points."""

    codes: Array
    weights_8: Array
    weights_4: Array
    group_scales: Array
    group_size: int

    def activation(self) -> Array:
        return (self.codes.astype(np.float32) - np.float32(_ZERO_POINT)) * _SCALE

    def real_8(self) -> Array:
        """The real values of the 8-bit weights with one scale."""
        return np.asarray(self.weights_8 * _COLUMN_SCALE)

    def grouped(self, weights: Array) -> Array:
        """The real values of weights in groups."""
        return np.asarray(weights * np.repeat(self.group_scales, self.group_size, 0))


@dataclass(frozen=True)
class Product:
    """One product in ONNX's text.

    Attributes:
        nodes: From the input x to the output y#; # stands for the number of a product in the session.
        feeds: The inputs.
        weights: The packed weights; each product in the session has its own.
        shared: Initializers that the products in the session share; each has its own of those with a # in the name.
        real: Computes the real weights [K, N].
        tolerance: The largest error, relative to the largest element of the result.
        is_ours: Whether the product needs ort_dynq's operators.
    """

    nodes: str
    feeds: Mapping[str, Array]
    weights: Array
    real: Callable[[], Array]
    shared: Mapping[str, Array] = field(default_factory=dict)
    tolerance: float = _ROUNDING
    is_ours: bool = False


def contenders(case: Case, group_size: int, settings: Settings) -> tuple[dict[str, Contender], list[str]]:
    """Returns the contenders by name, and notes on contenders that are not available or wrong on this machine.

    Args:
        case: The size of the product.
        group_size: The number of consecutive k that share a scale; K is a multiple of it.
        settings: How to time.

    Raises:
        DynqError: Our product does not run, or its result is wrong.
    """
    data = data_of(case, group_size)
    found: dict[str, Contender] = {}
    notes: list[str] = []
    for name, product in _products(data).items():
        try:
            found[name], result = open_products(name, product, case, settings)
        except ContenderError as error:
            if product.is_ours:
                raise
            notes.append(f"{name} is not available: {error}")
            continue
        notes += wrong_results(name, result, data, product)
    found["direct"] = _direct(found["ort_dynq 8"])
    try:
        found["torch"], result = _torch(case, data)
        notes += wrong_results("torch", result, data, Product("", {}, data.weights_8, data.real_8))
    except Exception as error:  # torch is not installed, or its operator, which is not public, has changed
        notes.append(f"torch is not available: {error}")
    size = math.prod(case.weights)
    found["read"] = read_contender(size, copies(case.rows, size), case.threads)
    return found, notes


def _direct(contender: Contender) -> Contender:
    def run() -> None:
        with kernels.use_algorithm("strassen", "never"):
            contender.run()

    return replace(contender, run=run)


def cold_bytes(rows: int) -> int:
    """The least size of the weights that a contender multiplies by in turn, up to 512 of them.

    Up to 16 rows, a product is memory-bound: twice the last-level cache, but at least 64 and at most 128 MiB. With more
    rows, it is compute-bound: 8 MiB, so that the weights are not in the caches of one core.

    Args:
        rows: The rows of the activation.
    """
    least, most = _FEW_ROWS_BYTES
    return max(least, min(most, 2 * _last_cache())) if rows <= _FEW_ROWS else _MANY_ROWS_BYTES


def copies(rows: int, size: int) -> int:
    """The number of weights of `size` bytes that a contender multiplies by in turn."""
    return min(_MAX_COPIES, -(-cold_bytes(rows) // size))


def _last_cache() -> int:
    """The bytes of the largest cache of the first core; 0 if the system does not tell."""
    files = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    return max((int(file.read_text(encoding="ascii").strip().removesuffix("K")) * 1024 for file in files), default=0)


def data_of(case: Case, group_size: int) -> Data:
    rng = np.random.default_rng(0)
    depth, columns = case.weights
    return Data(
        rng.integers(0, 256, (case.rows, depth), np.uint8),
        rng.integers(-127, 128, case.weights, np.int8),
        rng.integers(-8, 8, case.weights, np.int8),
        rng.uniform(0.005, 0.01, (depth // group_size, columns)).astype(np.float32),
        group_size,
    )


def _products(data: Data) -> dict[str, Product]:
    return {
        "ort_dynq 8": _ours(data, 8),
        "MatMulInteger": Product(
            "sums# = MatMulInteger(x, weights#, zero_point) y# = DequantizeLinear(sums#, scale)",
            {"x": data.codes},
            data.weights_8,
            data.real_8,
            {"zero_point": np.asarray(_ZERO_POINT), "scale": np.asarray(_SCALE * _COLUMN_SCALE)},
        ),
        "ort_dynq 4": _ours(data, 4),
        "MatMulNBits 4": nbits_product(data, data.weights_4, 4),
        "MatMulNBits 8": nbits_product(data, data.weights_8, 8),
        "float": float_product(data, data.real_8),
    }


def _ours(data: Data, bits: int) -> Product:
    weights = data.weights_8 if bits == 8 else data.weights_4 + 8
    zero_point = 0 if bits == 8 else 8
    rows, (depth, columns) = len(data.codes), weights.shape
    groups = 1 if bits == 8 else depth // data.group_size
    group_size = 0 if bits == 8 else data.group_size
    return Product(  # with all attributes: onnxruntime-extensions has no defaults
        f"y# = ort_dynq.QuantizedMatMul<bits = {bits}, group_size = {group_size}, terms = 1, "
        f"scale_order = {ScaleOrder.COLUMN_FIRST.value}>"
        "(x, row_scale, row_zero_point, weights#, zero_point, scale, sum, bias)",
        {
            "x": data.codes,
            "row_scale": np.full((rows, 1), _SCALE, np.float32),
            "row_zero_point": np.full((rows, 1), _ZERO_POINT, np.uint8),
        },
        pack(weights, bits),
        data.real_8 if bits == 8 else lambda: data.grouped(data.weights_4),
        {
            "zero_point": np.asarray([zero_point], np.int8),
            "scale": np.full((1, columns), _COLUMN_SCALE) if bits == 8 else data.group_scales,
            "sum": (weights - np.int8(zero_point)).reshape(groups, -1, columns).sum(1, dtype=np.int32),
            "bias": np.full(columns, -0.0, np.float32),
        },
        is_ours=True,
    )


def float_product(data: Data, real: Callable[[], Array]) -> Product:
    """MatMul of float32, by these real weights [K, N]."""
    return Product("y# = MatMul(x, weights#)", {"x": data.activation()}, real().astype(np.float32), real)


def nbits_product(data: Data, weights: Array, bits: int, zero_points: Array | None = None) -> Product:
    """MatMulNBits. Its weights are [N, groups, bytes of a group], the low bits of a byte first.

    Args:
        data: The activation and the scales.
        weights: int8, [K, N], without the middle of the codes: 8 with 4 bits.
        bits: 2, 4 or 8.
        zero_points: [groups, N], uint8 codes or float32; None if all are the middle.
    """
    depth, columns = weights.shape
    middle, of_byte = np.int16(2 ** (bits - 1)), 8 // bits
    codes = (weights.T + middle).astype(np.uint8).reshape(columns, -1, data.group_size)
    shared, zero_point = {"scale": np.ascontiguousarray(data.group_scales.T)}, ""
    if zero_points is not None:
        shared["zero_point"], zero_point = np.ascontiguousarray(zero_points.T), ", zero_point"
        if zero_points.dtype == np.uint8:
            whole = np.pad(zero_points.T, ((0, 0), (0, -len(zero_points) % of_byte)))
            shared["zero_point"] = _packed(whole, bits)
        weights = weights - (np.repeat(zero_points, data.group_size, 0).astype(np.float32) - middle)
    return Product(
        f"y# = com.microsoft.MatMulNBits<K = {depth}, N = {columns}, bits = {bits}, block_size = {data.group_size}, "
        f"accuracy_level = 4>(x, weights#, scale{zero_point})",
        {"x": data.activation()},
        _packed(codes, bits),
        lambda: data.grouped(weights),
        shared,
        _QUANTIZING,
    )


def dequantized_product(data: Data, weights: Array, bits: int, form: str) -> Product:
    """MatMul of float32, by weights behind a DequantizeLinear. Those of 4 bits are packed: the model needs their type.

    Args:
        data: The activation and the scales.
        weights: Codes, int8, [K, N].
        bits: 4 or 8.
        form: "blocks": [K, N] in blocks along K; "transposed": the same as [N, K]; "channels": a scale for each column.
    """
    is_transposed, scales = form == "transposed", data.group_scales[0] if form == "channels" else data.group_scales
    axis = int(form != "blocks")
    block = "" if form == "channels" else f", block_size = {data.group_size}"
    codes = np.ascontiguousarray(weights.T if is_transposed else weights)
    dequantized = f"w# = DequantizeLinear<axis = {axis}{block}>(weights#, scale#) "
    return Product(
        dequantized + ("t# = Transpose(w#) y# = MatMul(x, t#)" if is_transposed else "y# = MatMul(x, w#)"),
        {"x": data.activation()},
        codes if bits == 8 else _packed(codes.view(np.uint8) & np.uint8(15), 4),
        lambda: np.asarray(weights * scales) if form == "channels" else data.grouped(weights),
        # ONNX Runtime makes no MatMulNBits of products that share their scales.
        {"scale#": np.ascontiguousarray(scales.T) if is_transposed else scales},
        _QUANTIZING,
    )


def _packed(codes: Array, bits: int) -> Array:
    """Codes of some bits in bytes, the first one in the low bits."""
    of_byte = 8 // bits
    parts = (codes[..., i::of_byte] << np.uint8(bits * i) for i in range(of_byte))
    return np.ascontiguousarray(functools.reduce(np.bitwise_or, parts))


def open_products(name: str, product: Product, case: Case, settings: Settings) -> tuple[Contender, Array]:
    """Opens a session with several products, and returns the result of the first one as well."""
    count = copies(case.rows, product.weights.nbytes)
    first, others = (aligned(np.zeros((case.rows, case.weights[1]), np.float32)) for _ in range(2))
    contender = session_contender(
        name,
        model_of_products(product, first.shape, count),
        {key: aligned(array) for key, array in product.feeds.items()},
        case.threads,
        backend=settings.backend if product.is_ours else None,
        outputs=[first, *[others] * (count - 1)],
    )
    return replace(contender, repeats=count), first


def model_of_products(product: Product, shape: Sequence[int], count: int) -> onnx.ModelProto:
    names = {"float32": "float", "uint8": "uint8"}
    model = parse(
        ", ".join(f"{tensor_type(names[array.dtype.name], array.shape)} {key}" for key, array in product.feeds.items()),
        ", ".join(f"{tensor_type('float', shape)} y{i}" for i in range(count)),
        "\n".join(product.nodes.replace("#", str(i)) for i in range(count)),
        opset=21,
    )
    model.opset_import.add(domain=DOMAIN, version=VERSION)
    model.opset_import.add(domain="com.microsoft", version=1)
    constants = {key.replace("#", str(i)): array for key, array in product.shared.items() for i in range(count)}
    constants |= {f"weights{i}": _variant(product.weights, i) for i in range(count)}
    model.graph.initializer.extend(numpy_helper.from_array(array, key) for key, array in constants.items())
    return model


def _variant(weights: Array, number: int) -> Array:
    """Weights that differ from the others in one bit: ONNX Runtime keeps equal packed weights only once in memory."""
    result = weights.copy()
    if number:
        result.reshape(-1).view(np.uint8)[number % result.nbytes] ^= 1
    return result


def _torch(case: Case, data: Data) -> tuple[Contender, Array]:
    """torch's product and its result. Its idle threads spin as briefly as a session's."""
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(case.threads)
    operators, columns = torch.ops.onednn, case.weights[1]
    weights = torch.from_numpy(np.ascontiguousarray(data.weights_8.T))
    count = copies(case.rows, data.weights_8.nbytes)
    packed = [operators.qlinear_prepack(weights.clone(), list(data.codes.shape)) for _ in range(count)]
    codes = torch.from_numpy(aligned(data.codes))
    scale, zero_point = torch.full((columns,), float(_COLUMN_SCALE)), torch.zeros(columns, dtype=torch.int32)
    activation = codes, float(_SCALE), int(_ZERO_POINT)
    rest: tuple[Any, ...] = scale, zero_point, None, 1.0, 0, torch.float32, "none", [], ""
    product = operators.qlinear_pointwise

    def run() -> None:
        for each in packed:
            product(*activation, each, *rest)

    return Contender(run, [], count), product(*activation, packed[0], *rest).numpy()


def wrong_results(name: str, result: Array, data: Data, product: Product) -> list[str]:
    """Compares some rows with the product in float64. Returns a note if they differ by more than rounding.

    Raises:
        DynqError: They are wrong, and the product is ort_dynq's.
    """
    some = slice(None, None, -(-len(result) // _CHECKED_ROWS))
    expected = data.activation()[some].astype(np.float64) @ product.real().astype(np.float64)
    error = float(np.abs(result[some] - expected).max() / np.abs(expected).max())
    if error <= product.tolerance:
        return []
    problem = f"{name}: results are wrong by {error:.2g} times the largest element"
    if product.is_ours:
        raise DynqError(problem)
    saturates = name == "MatMulInteger" and cpu_saturates()
    return [f"{problem}; ONNX Runtime's sums saturate on this CPU" if saturates else problem]


def read_contender(size: int, count: int, threads: int) -> Contender:
    """A plain read of `size` bytes: libc's memcmp of two halves, each byte once.

    It was faster than memchr and NumPy's reductions. A dispatch to Python threads takes longer than a short read, so
    one call reads everything several times, each thread its own part. The memory has pages of the ordinary size, as the
    weights of a session have: NumPy asks for huge pages, which are read up to twice as fast.

    Args:
        size: The bytes of one read.
        count: The number of reads of different bytes, in turn.
        threads: The number of threads.
    """
    pages = mmap.mmap(-1, size * count)
    data = np.frombuffer(pages, np.uint8)
    data[:] = 1
    compare = (ctypes.cdll.msvcrt if os.name == "nt" else ctypes.CDLL(None)).memcmp
    compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    part = data.nbytes // threads
    half = part // 2
    starts = [data.ctypes.data + i * part for i in range(threads)]
    if threads == 1:
        return Contender(lambda: compare(starts[0], starts[0] + half, half), [data], count)
    rounds = max(1, _LONG_READ_BYTES // data.nbytes)
    pool = ThreadPoolExecutor(threads)

    def read(start: int) -> None:
        for _ in range(rounds):
            compare(start, start + half, half)

    return Contender(lambda: list(pool.map(read, starts)), [data], count * rounds)
