"""Times QuantizeLinear and DequantizeLinear with run-time parameters against stock ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import onnx_ir as ir

from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.rewriter import rewrite
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, aligned, check_backend, interleave, session_contender

from .onnx_text import parse, tensor_type

if TYPE_CHECKING:
    import onnx

    from ort_dynq.backends.options import Backend

SIZES = ((1, 64), (64, 64), (256, 1024), (4096, 4096))
MISALIGNED_SIZES = ((256, 1000), (2560, 100), (4096, 60), (256, 1024))
"""Rows of 1000, 100 and 60 float32 elements do not begin at 64-byte boundaries; rows of 1024 do."""
OFFSETS = (0, 16, 32)

_Case = TypeVar("_Case")
_Timing = TypeVar("_Timing")


@dataclass(frozen=True)
class OperatorTiming:
    """The timing of one operator on one tensor.

    Attributes:
        operator: The standard operator: QuantizeLinear or DequantizeLinear.
        floats, codes: The types of the floats and of the codes.
        granularity: Which elements share a scale.
        shape: The shape of the tensor.
        threads: The number of intra-op threads, and of the copy's threads.
        ours_ns, stock_ns: Nanoseconds per element. ONNX Runtime has no operators of bfloat16: stock_ns is None.
        ratio: stock_ns / ours_ns.
        copy_ratio: The time of a plain copy that reads and writes as many bytes / our time.
    """

    operator: str
    floats: str
    codes: str
    granularity: str
    shape: tuple[int, int]
    threads: int
    ours_ns: float
    stock_ns: float | None
    ratio: float | None
    copy_ratio: float


@dataclass(frozen=True)
class MisalignedTiming:
    """The timing of one operator with an output of a given alignment.

    Attributes:
        operator, granularity, shape, threads, ours_ns, stock_ns, ratio: As of an :class:`OperatorTiming`.
        offset: The number of bytes from a 64-byte boundary to the output.
    """

    operator: str
    granularity: str
    shape: tuple[int, int]
    threads: int
    offset: int
    ours_ns: float
    stock_ns: float
    ratio: float


@dataclass(frozen=True)
class Granularity:
    """Scales have the tensor's sizes on `dimensions`; the size of `axis` is divided by `block` and rounded up."""

    name: str
    axis: int
    dimensions: tuple[int, ...]
    block: int = 0

    def scales(self, shape: tuple[int, int]) -> tuple[int, ...]:
        """Returns the shape of the scales of a tensor of this shape."""
        sizes = [-(-size // self.block) if self.block and i == self.axis else size for i, size in enumerate(shape)]
        return tuple(sizes[i] for i in self.dimensions)


_OPERATORS = ("QuantizeLinear", "DequantizeLinear")
_WHOLE = (
    Granularity("per tensor", 1, ()),
    Granularity("axis 0", 0, (0,)),
    Granularity("last axis", 1, (1,)),
)
_BLOCKED = (
    Granularity("blocks of 128, last axis", 1, (0, 1), 128),
    Granularity("blocks of 128, axis 0", 0, (0, 1), 128),
)


@dataclass(frozen=True)
class Types:
    """The names of the types of floats and codes."""

    floats: str = "float32"
    codes: str = "uint8"


_OTHER_TYPES = (Types("float16"), Types("bfloat16"), Types(codes="uint4"), Types(codes="int4"))


@dataclass(frozen=True)
class Case:
    """What one timing measures."""

    operator: str
    granularity: Granularity
    shape: tuple[int, int]
    threads: int
    offset: int = 0
    types: Types = Types()

    def __str__(self) -> str:
        size = "x".join(map(str, self.shape))
        types = "" if self.types == Types() else f", {self.types.floats} and {self.types.codes}"
        offset = f", offset: {self.offset}" if self.offset else ""
        return f"{self.operator} {size} {self.granularity.name}{types}, threads: {self.threads}{offset}"


def bench_operators(
    settings: Settings, sizes: Sequence[tuple[int, int]] = SIZES, *, track: Track = iter
) -> list[OperatorTiming]:
    """Times QuantizeLinear and DequantizeLinear with run-time parameters.

    float32 to and from uint8, and without blocks float16, bfloat16, uint4 and int4. onnxruntime-extensions supports
    only the first two types.

    Args:
        settings: How to time.
        sizes: Rows and columns of the tensors.
        track: Shows the progress.

    Raises:
        DynqError: The operators cannot be registered, a result differs from stock ONNX Runtime's, or a tensor does not
            fit in memory.
    """
    others = () if settings.backend == "extensions" else _OTHER_TYPES
    cases = [
        Case(operator, granularity, size, threads, types=types)
        for threads in settings.threads
        for size in sizes
        for types in (Types(), *others)
        for operator in _OPERATORS
        for granularity in (*_WHOLE, *(_BLOCKED if types == Types() else ()))
    ]
    return time_all(cases, _time, settings, track)


def bench_misaligned(
    settings: Settings, sizes: Sequence[tuple[int, int]] = MISALIGNED_SIZES, *, track: Track = iter
) -> list[MisalignedTiming]:
    """Times the same operators with outputs at :data:`OFFSETS` from a 64-byte boundary.

    Arguments and errors are the same as for :func:`bench_operators`.
    """
    cases = [
        Case(operator, granularity, size, threads, offset)
        for threads in settings.threads
        for size in sizes
        for operator in _OPERATORS
        for granularity in _WHOLE
        for offset in OFFSETS
    ]
    return time_all(cases, _time_misaligned, settings, track)


def time_all(
    cases: Sequence[_Case], time: Callable[[_Case, Settings], _Timing], settings: Settings, track: Track
) -> list[_Timing]:
    """Times cases one after the other.

    Raises:
        DynqError: The operators cannot be registered, or a tensor does not fit in memory.
    """
    check_backend(settings.backend)
    try:
        return [time(case, settings) for case in track(cases)]
    except MemoryError as error:
        raise DynqError(f"a tensor does not fit in memory: {error}") from error


def _time(case: Case, settings: Settings) -> OperatorTiming:
    stock, ours = contenders(case, settings)
    rivals = [ours, copy_contender(_bytes(case), case.threads), *([stock] if stock else [])]
    ours_ns, copy_ns, *stock_ns = _per_element(case, rivals, settings)
    return OperatorTiming(
        case.operator,
        case.types.floats,
        case.types.codes,
        case.granularity.name,
        case.shape,
        case.threads,
        ours_ns,
        stock_ns[0] if stock else None,
        stock_ns[0] / ours_ns if stock else None,
        copy_ns / ours_ns,
    )


def _bytes(case: Case) -> int:
    """The size of the inputs and the output."""
    bits = _onnx_type(case.types.floats).bitwidth + _onnx_type(case.types.codes).bitwidth
    return sum(math.prod(shape) * bits // 8 for shape in (case.shape, case.granularity.scales(case.shape)))


def _time_misaligned(case: Case, settings: Settings) -> MisalignedTiming:
    stock, ours = contenders(case, settings)
    assert stock is not None
    stock_ns, ours_ns = _per_element(case, [stock, ours], settings)
    return MisalignedTiming(
        case.operator,
        case.granularity.name,
        case.shape,
        case.threads,
        case.offset,
        ours_ns,
        stock_ns,
        stock_ns / ours_ns,
    )


def _per_element(case: Case, rivals: Sequence[Contender], settings: Settings) -> list[float]:
    """Returns the median times of contenders in nanoseconds per element."""
    elements = math.prod(case.shape)
    return [float(np.median(samples)) / elements for samples in interleave(rivals, settings, case.threads)]


def contenders(case: Case, settings: Settings) -> tuple[Contender | None, Contender]:
    """Returns stock ONNX Runtime, unless it does not have the operator, and the plugin, on the same arrays.

    Raises:
        DynqError: Their results differ.
    """
    granularity, shape, types = case.granularity, case.shape, case.types
    floats, codes = types.floats.replace("float32", "float"), types.codes
    quantizes = case.operator == "QuantizeLinear"
    source, target = (floats, codes) if quantizes else (codes, floats)
    scales = granularity.scales(shape)
    model = parse(  # x has no static shape: the rewriter leaves tensors that it knows to be small
        f"{source}[rows, columns] x, {tensor_type(floats, scales)} s, {tensor_type(codes, scales)} z",
        f"{target}[rows, columns] y",
        f"y = {case.operator}<axis = {granularity.axis}, block_size = {granularity.block}>(x, s, z)",
        opset=21,
    )
    rng = np.random.default_rng(0)
    count = 8 if codes in ("int4", "uint4") else 256  # numbers of codes that both types of this size have
    bytes_ = rng.integers(0, count, shape, np.uint8)
    feeds = {
        "x": _stored(rng.standard_normal(shape, np.float32), types) if quantizes else bytes_,
        "s": _stored(np.asarray(rng.uniform(0.01, 0.03, scales), np.float32), types),
        "z": np.asarray(rng.integers(0, count, scales), np.uint8),
    }
    feeds = {name: aligned(array) for name, array in feeds.items()}
    output = aligned(
        np.zeros(shape, np.uint8) if quantizes else _stored(np.zeros(shape, np.float32), types), case.offset
    )
    x, y = (types.floats, codes) if quantizes else (codes, types.floats)
    numbers = {name: int(_onnx_type(kind)) for name, kind in {"x": x, "s": types.floats, "z": codes, "y": y}.items()}

    def contender(model: onnx.ModelProto | ir.Model, backend: Backend | None = None) -> Contender:
        return session_contender(
            str(case), model, feeds, case.threads, backend=backend, outputs=[output], types=numbers
        )

    stock = None if types.floats == "bfloat16" else contender(model)
    expected = output.copy()
    output.fill(0)
    ours = contender(rewrite(model).model, settings.backend)
    if stock and output.tobytes() != expected.tobytes():
        raise DynqError(f"the result of {case} differs from stock ONNX Runtime's")
    return stock, ours


def _stored(values: Array, types: Types) -> Array:
    """Floats in their type; bfloat16 as uint16, since ONNX Runtime's Python takes NumPy's own types."""
    array = np.asarray(values).astype(types.floats)
    return array.view(np.uint16) if types.floats == "bfloat16" else array


def _onnx_type(name: str) -> ir.DataType:
    """The type of this name in NumPy or ml_dtypes."""
    return ir.DataType.from_numpy(np.dtype(name))


def copy_contender(size: int, threads: int) -> Contender:
    """A plain copy that reads and writes `size` bytes in total.

    A dispatch to Python threads takes longer than a copy of some kilobytes. So one call copies everything many times,
    each thread its own part, and sizes below one megabyte are copied by one thread.
    """
    source, target = aligned(np.ones(size // 2, np.uint8)), aligned(np.zeros(size // 2, np.uint8))
    if threads == 1 or size < 2**20:
        return Contender(lambda: np.copyto(target, source), [source, target])
    repeats = max(1, 2**26 // size)
    pool = ThreadPoolExecutor(threads)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))

    def work(part: tuple[Array, Array]) -> None:
        for _ in range(repeats):
            np.copyto(*part)

    return Contender(lambda: list(pool.map(work, parts)), [source, target], repeats)
