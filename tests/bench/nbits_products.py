"""Times the products of language models: MatMulNBits or weights behind DequantizeLinear, and their rewritten forms.

The activation is float32. All quantize it themselves, except MatMul of float32: MatMulNBits of accuracy level 4, and
its two rewritten forms, with activations in blocks and with two terms. llama.cpp is one more contender if
llama-cpp-python is installed; its blocks have 32 weights and no zero points. :mod:`bench.product_contenders` says why
each contender has several weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

import ort_dynq
from ort_dynq.errors import DynqError
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, aligned, session_contender

from .llama_cpp_product import BLOCK_SIZE, llama_cpp_contender, q4_0
from .means import Mean, means
from .product_contenders import (
    Case,
    copies,
    data_of,
    dequantized_product,
    float_product,
    model_of_products,
    nbits_product,
    open_products,
    read_contender,
    wrong_results,
)
from .products import medians_us, rate, time_products

ROWS = (1, 16, 128)
SIZES = ((1024, 1024), (1024, 3072), (4096, 4096))
_BLOCKS, _TWO_TERMS = "blocks", "two-term"


@dataclass(frozen=True)
class Form:
    """How a model has its weights.

    Attributes:
        bits: 2, 4 or 8.
        zero_points: "codes" or "floats", one for each block; "none": all are the middle code.
        dequantized: The form of :func:`dequantized_product`, which has 4 or 8 bits and no zero points; empty:
            MatMulNBits of accuracy level 4.
    """

    bits: int = 4
    zero_points: str = "none"
    dequantized: str = ""


@dataclass(frozen=True)
class NBitsTiming:
    """The timing of one product. Times are medians in microseconds; None if a contender is not available.

    Attributes:
        rows: The rows of the activation.
        weights: The shape of the weights, K x N.
        threads: The number of threads.
        stock_us: MatMulNBits at accuracy level 4, or what ONNX Runtime makes of DequantizeLinear.
        blocks_us: Rewritten, with activations in blocks.
        two_terms_us: Rewritten, with activations of two terms.
        llama_cpp_us: llama.cpp.
        float_us: MatMul of float32.
        read_us: A plain read of the packed weights and float16 scales.
    """

    rows: int
    weights: tuple[int, int]
    threads: int
    stock_us: float
    blocks_us: float
    two_terms_us: float
    llama_cpp_us: float | None
    float_us: float
    read_us: float

    @property
    def ratios(self) -> tuple[float, float, float | None, float, float]:
        """MatMulNBits / blocks, MatMulNBits / two-term, llama.cpp / blocks, float / blocks, read / blocks."""
        llama_cpp = None if self.llama_cpp_us is None else self.llama_cpp_us / self.blocks_us
        return (
            self.stock_us / self.blocks_us,
            self.stock_us / self.two_terms_us,
            llama_cpp,
            self.float_us / self.blocks_us,
            self.read_us / self.blocks_us,
        )

    @property
    def rates(self) -> dict[str, float]:
        """The multiply-adds of the contenders in a nanosecond; a product of two terms counts once."""
        times = {"MatMulNBits": self.stock_us, _BLOCKS: self.blocks_us, _TWO_TERMS: self.two_terms_us}
        times |= {"float": self.float_us} | ({} if self.llama_cpp_us is None else {"llama.cpp": self.llama_cpp_us})
        return {name: rate(self.rows, self.weights, us) for name, us in times.items()}


@dataclass(frozen=True)
class NBitsBench:
    """The timings of all products.

    Attributes:
        timings: One per number of rows, weights and threads.
        means: The geometric means of their ratios, for each number of rows.
        notes: Contenders that are not available, or give wrong results on this machine.
    """

    timings: list[NBitsTiming]
    means: list[Mean]
    notes: list[str]


def bench_nbits(
    settings: Settings,
    rows: Sequence[int] = ROWS,
    sizes: Sequence[tuple[int, int]] = SIZES,
    *,
    form: Form = Form(),
    group_size: int = 32,
    track: Track = iter,
) -> NBitsBench:
    """Times products of every number of rows with weights of every size.

    Args:
        settings: How to time.
        rows: Numbers of rows of the activation.
        sizes: The shapes of the weights, K x N.
        form: How the model has its weights.
        group_size: The size of the blocks.
        track: Shows the progress.

    Raises:
        DynqError: The operators cannot be registered, K is not a multiple of the block size, a rewritten product is
            wrong, or the weights do not fit in memory.
    """
    time = functools.partial(_time, form=form)
    timings, notes = time_products(time, settings, rows, sizes, group_size, track)
    return NBitsBench(timings, list(_means(timings)), notes)


def _time(case: Case, group_size: int, settings: Settings, *, form: Form) -> tuple[NBitsTiming, list[str]]:
    found, notes = nbits_contenders(case, group_size, settings, form)
    us = medians_us(found, settings, case.threads)
    times = us["MatMulNBits"], us[_BLOCKS], us[_TWO_TERMS], us.get("llama.cpp"), us["float"], us["read"]
    return NBitsTiming(case.rows, case.weights, case.threads, *times), notes


def nbits_contenders(
    case: Case, group_size: int, settings: Settings, form: Form = Form()
) -> tuple[dict[str, Contender], list[str]]:
    """Returns the contenders by name, and notes on contenders that are not available or wrong on this machine.

    Args:
        case, group_size, settings, form: As for :func:`bench_nbits`.

    Raises:
        DynqError: A rewritten product does not run, or its result is wrong.
    """
    data = data_of(case, group_size)
    # As in a model that was float16 or bfloat16.
    data = replace(data, group_scales=data.group_scales.astype(np.float16).astype(np.float32))
    bits, rng, zero_points = form.bits, np.random.default_rng(1), None
    weights = data.weights_8 if bits == 8 else data.weights_4 >> np.int8(4 - bits)
    if form.zero_points != "none":
        zero_points = rng.integers(0, 2**bits, data.group_scales.shape, np.uint8)
    if form.zero_points == "floats":
        zero_points = rng.uniform(0, 2**bits - 1, data.group_scales.shape).astype(np.float32)
    if form.dequantized and (bits == 2 or zero_points is not None):
        raise DynqError("weights behind DequantizeLinear have 4 or 8 bits and no zero points here")
    product = (
        dequantized_product(data, weights, bits, form.dequantized)
        if form.dequantized
        else nbits_product(data, weights, bits, zero_points)
    )
    count = copies(case.rows, product.weights.nbytes)
    shape = case.rows, case.weights[1]
    model = model_of_products(product, shape, count)
    for tensor in model.graph.initializer:
        if form.dequantized and bits == 4 and tensor.name.startswith("weights"):
            tensor.data_type, tensor.dims[1] = TensorProto.INT4, 2 * tensor.dims[1]
    found: dict[str, Contender] = {}
    notes: list[str] = []
    for name, its_model in (
        ("MatMulNBits", model),
        *((way, ort_dynq.rewrite(model, weights_only=way).to_proto()) for way in (_BLOCKS, _TWO_TERMS)),
    ):
        first, others = (aligned(np.zeros(shape, np.float32)) for _ in range(2))
        is_ours = name != "MatMulNBits"
        if is_ours and settings.backend == "extensions":  # which has no float16
            its_model = ort_dynq.ready_for_extensions(its_model).to_proto()
        contender = session_contender(
            name,
            its_model,
            {key: aligned(array) for key, array in product.feeds.items()},
            case.threads,
            backend=settings.backend if is_ours else None,
            outputs=[first, *[others] * (count - 1)],
        )
        found[name] = replace(contender, repeats=count)
        notes += wrong_results(name, first, data, replace(product, is_ours=is_ours))
    found["float"], first = open_products("float", float_product(data, product.real), case, settings)
    notes += wrong_results("float", first, data, product)
    if (form, group_size) == (Form(), BLOCK_SIZE):
        try:
            packed = q4_0(data.weights_4, data.group_scales)
            parts = [packed.copy() for _ in range(count)]
            found["llama.cpp"], result = llama_cpp_contender(parts, data.activation(), case.threads)
            notes += wrong_results("llama.cpp", result, data, product)
        except DynqError as error:
            notes.append(f"llama.cpp is not available: {error}")
    size = product.weights.nbytes + 2 * data.group_scales.size
    found["read"] = read_contender(size, count, case.threads)
    return found, notes


def _means(timings: Sequence[NBitsTiming]) -> Iterator[Mean]:
    names = (
        *("MatMulNBits / blocks", "MatMulNBits / two-term", "llama.cpp / blocks"),
        *("float / blocks", "plain read / blocks"),
    )

    def ratio(i: int, each: NBitsTiming) -> float | None:
        return each.ratios[i]

    for i, name in enumerate(names):
        for rows in sorted({each.rows for each in timings}):
            title = f"{name}, {rows} row{'s' if rows > 1 else ''}"
            yield from means(title, (each for each in timings if each.rows == rows), functools.partial(ratio, i))
