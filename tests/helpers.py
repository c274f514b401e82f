"""Shared by the tests: sessions, the results that operators are compared with, and data that detects wrong rounding.

More than 450 lines: every test imports parameters, sessions and comparisons together.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
import pytest

import ort_dynq
from ort_dynq import four_bits, kernels
from ort_dynq.backends.options import Backend
from ort_dynq.backends.sessions import open_registered
from ort_dynq.operators import OPERATORS, VERSION
from ort_dynq.rewriter.policy.saturation import OPERANDS
from ort_dynq.storage import to_proto
from ort_dynq.tools.verification.saturation import cpu_saturates, without_saturation

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

IS_ARM = platform.machine() in ("aarch64", "arm64", "ARM64")  # where ONNX Runtime computes some values differently

# Around every number of vector lanes.
LENGTHS = (1, 2, 3, 5, 7, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 1023, 1024, 1025)
INNER = (1, 2, 3, 5, 31, 32, 33)

TYPES = {
    "float32": "float",
    "float16": "float16",
    "uint8": "uint8",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
}
# operators/test_formats.py has bfloat16, 4-bit codes, and signatures with more than one input of float16.
SIGNATURES = [
    (operator, signature)
    for operator in OPERATORS.values()
    for signature in operator.signatures
    if TYPES.keys() >= {*signature.inputs, *signature.outputs} and signature.inputs.count("float16") < 2
]


# Replaces the fixture `backend` in tests of many shapes and values: both backends call the same kernels, so one run is
# enough.
native_only = pytest.mark.parametrize("backend", ["native"])


def every(step: int, values: Iterable[Any], first: int = 0) -> list[Any]:
    """Parameters of a test: by default every `step`-th value from `first` on, with --exhaustive all values."""
    parameters = [
        value if hasattr(value, "marks") else pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)
        for value in values
    ]
    return [
        each if index % step == first else each._replace(marks=(*each.marks, pytest.mark.exhaustive))
        for index, each in enumerate(parameters)
    ]


def diagonals(count: int, *parameters: Iterable[Any]) -> list[Any]:
    """Parameters of a test: all combinations of values with --exhaustive, and by default those on `count` diagonals.

    Each diagonal has every value of every parameter.
    """
    lists = [list(values) for values in parameters]
    longest = max(map(len, lists))
    chosen = {
        tuple((i + turn * place) % len(values) for place, values in enumerate(lists))
        for turn in range(count)
        for i in range(longest)
    }
    return [
        pytest.param(
            *(values[i] for values, i in zip(lists, indices, strict=True)),
            marks=[pytest.mark.exhaustive] * (indices not in chosen),
        )
        for indices in itertools.product(*map(range, map(len, lists)))
    ]


def in_turn(*parameters: Iterable[Any]) -> list[Any]:
    """Parameters of a test that do not depend on each other: every value of each, the shorter lists repeated."""
    lists = [list(values) for values in parameters]
    return [tuple(values[i % len(values)] for values in lists) for i in range(max(map(len, lists)))]


def pairwise(*parameters: Iterable[Any]) -> list[Any]:
    """Parameters of a test: few combinations, in which every pair of values of two parameters occurs.

    Most errors depend on one choice or on two.
    """
    lists = [list(values) for values in parameters]
    combinations = list(itertools.product(*(list(enumerate(values)) for values in lists)))
    pairs = [
        {((i, a), (k, b)) for (i, (a, _)), (k, (b, _)) in itertools.combinations(enumerate(each), 2)}
        for each in combinations
    ]
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(combinations)), key=lambda i: len(pairs[i] & missing))
        missing -= pairs[best]
        chosen.append(tuple(value for _, value in combinations[best]))
    return chosen


def product_of(operator: str | None) -> str:
    """Returns the integer product that an operator computes; else nothing.

    The operator may also quantize the activation before, and run a program over the result.
    """
    name = (operator or "").removeprefix("Dynamic").removesuffix("Program")
    return name if name in ("QuantizedMatMul", "QuantizedConv") else ""


# Sessions


def options(threads: int, optimize: bool) -> ort.SessionOptions:
    """Options without logs; threads do not spin, since spinning threads would block the threads of other sessions."""
    result = ort.SessionOptions()
    result.log_severity_level = 4
    result.intra_op_num_threads = threads
    result.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimize:
        result.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return result


_SATURATING = (*{operator.encode() for _, operator in OPERANDS}, b"DynamicQuantizeLSTM")


def with_exact_products(model: bytes | onnx.ModelProto) -> bytes:
    """A model with products of uint8 by int8 that are exact in ONNX Runtime on this CPU, too: see saturation.py.

    Products that ort_dynq added stay as they are.
    """
    content = model if isinstance(model, bytes) else model.SerializeToString()
    if not cpu_saturates() or not any(operator in content for operator in _SATURATING):
        return content  # without reading it: this took as long as opening the session
    return _with_exact_products(content)


@functools.lru_cache(100)  # several tests open a session of one model
def _with_exact_products(content: bytes) -> bytes:
    changed, _ = without_saturation(content)
    return bytes(to_proto(changed).SerializeToString()) if isinstance(changed, ir.Model) else content


def make_session(
    model: bytes | onnx.ModelProto, backend: Backend, *, optimize: bool = False, threads: int = 1
) -> ort.InferenceSession:
    """A session with ort_dynq's operators. Models from the rewriter must load without preparation."""
    return _taking_four_bits(
        open_registered(with_exact_products(model), ort_dynq.register(options(threads, optimize), backend))
    )


def handwritten(model: onnx.ModelProto, backend: str) -> onnx.ModelProto:
    """A hand-written model for :func:`make_session`: prepared if the backend requires it."""
    return ort_dynq.ready_for_extensions(model).to_proto() if backend == "extensions" else model


def stock_session(model: bytes | onnx.ModelProto, *, optimize: bool = False, threads: int = 1) -> ort.InferenceSession:
    """A session of ONNX Runtime without ort_dynq."""
    content = with_exact_products(model)
    return _taking_four_bits(
        ort.InferenceSession(content, options(threads, optimize), providers=["CPUExecutionProvider"])
    )


def _taking_four_bits(session: ort.InferenceSession) -> ort.InferenceSession:
    """Makes `run` take and return arrays of 4-bit integers."""
    if four_bits.has_four_bits(session):
        session.run = four_bits.run_of(session)
    return session


def parse(inputs: str, outputs: str, body: str, *, opset: int = 21) -> onnx.ModelProto:
    """A model from the text of its inputs, outputs and nodes, one node to a line."""
    head = f'<ir_version: {10 if opset >= 21 else 8}, opset_import: ["" : {opset}, "ort_dynq" : {VERSION}]>'
    return onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {body} }}")


def nodes_of(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yields the nodes of a graph and of the subgraphs inside it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from nodes_of(subgraph)


def with_arrays(model: onnx.ModelProto, arrays: Mapping[str, Any]) -> onnx.ModelProto:
    """Adds the arrays that nodes of a model read, and none computes, as its initializers; returns the model."""
    nodes = list(nodes_of(model.graph))
    read = {name for node in nodes for name in node.input}
    known = {name for node in nodes for name in node.output} | {each.name for each in model.graph.initializer}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(each), name)
        for name, each in arrays.items()
        if name in read and name not in known
    )
    return model


def _attributes(given: dict[str, str | int]) -> str:
    texts = (f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}" for name, value in given.items())
    return f"<{', '.join(texts)}>" if given else ""


@functools.cache
def _node_session(
    backend: Backend | Literal["stock"],
    op: str,
    inputs: tuple[str, ...],
    rank: int,
    output: str,
    attributes: str,
    threads: int,
) -> Any:
    """A session of one node; src has symbolic dimensions, the other inputs have unknown rank."""
    names = ("src", "scales", "zps")[: len(inputs)]
    dims = f"[{', '.join(f'd{i}' for i in range(rank))}]" if rank else ""
    shapes = (dims, *("[]" for _ in inputs[1:]))
    heads = ", ".join(f"{TYPES[type_]}{shape} {name}" for type_, shape, name in zip(inputs, shapes, names, strict=True))
    model = parse(heads, f"{TYPES[output]}[] dst", f"dst = {op}{attributes}({', '.join(names)})")
    return (
        stock_session(model, threads=threads)
        if backend == "stock"
        else make_session(handwritten(model, backend), backend, threads=threads)
    )


def _run_node(
    backend: Backend | Literal["stock"],
    op: str,
    arrays: Sequence[Array],
    output: Any,
    given: dict[str, Any],
    threads: int,
) -> Array:
    inputs = tuple(str(array.dtype) for array in arrays)
    session = _node_session(backend, op, inputs, arrays[0].ndim, str(np.dtype(output)), _attributes(given), threads)
    result: Array = session.run(None, dict(zip(("src", "scales", "zps"), arrays, strict=False)))[0]
    return result


def quantize(
    backend: Backend, src: Array, scales: Array, zps: Array | None, *, threads: int = 1, **given: str | int
) -> Array:
    """DynamicQuantize in a session."""
    arrays = [src, scales] if zps is None else [src, scales, zps]
    return _run_node(
        backend,
        "ort_dynq.DynamicQuantize",
        arrays,
        code_type(zps, int(given.get("output_dtype", 0))),
        given,
        threads,
    )


def dequantize(
    backend: Backend, src: Array, scales: Array, zps: Array | None, *, threads: int = 1, **given: str | int
) -> Array:
    """DynamicDequantize in a session."""
    arrays = [src, scales] if zps is None else [src, scales, zps]
    return _run_node(backend, "ort_dynq.DynamicDequantize", arrays, np.float32, given, threads)


def dynamic_quantize(src: Array, scales: Array, zps: Array | None = None, **given: str | int | Sequence[int]) -> Array:
    """DynamicQuantize without a session."""
    return kernels.run("DynamicQuantize", [src, scales, zps], **given)[0]


def dynamic_dequantize(
    src: Array, scales: Array, zps: Array | None = None, **given: str | int | Sequence[int]
) -> Array:
    """DynamicDequantize without a session."""
    return kernels.run("DynamicDequantize", [src, scales, zps], **given)[0]


def code_type(zps: Array | None, output_dtype: int = 0) -> type[np.integer[Any]]:
    """The type of DynamicQuantize's output."""
    if output_dtype == 0:
        return np.int8 if zps is not None and zps.dtype == np.int8 else np.uint8
    return {2: np.uint8, 3: np.int8}[output_dtype]


# Expected results: ONNX Runtime's own operators, or NumPy for cases that they do not support


def spread(parameters: Array, shape: Shape, axis: int = 0, block: int = 0) -> Array:
    """The parameter of every element, from one for all, for each index along `axis`, or for each group."""
    if parameters.size == 1:
        return np.broadcast_to(parameters.reshape(()), shape)
    if parameters.ndim == 1 and len(shape) > 0 and parameters.size == shape[axis]:
        return np.broadcast_to(
            parameters.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))]), shape
        )
    for i, length in enumerate(shape):
        size = block if block and i == axis % len(shape) else length // max(1, parameters.shape[i])
        parameters = np.repeat(parameters, size, i).take(range(length), i)
    return parameters


def numpy_quantize(src: Array, scales: Array, zps: Array, dtype: Any) -> Array:
    """saturate(round(src / scales) + zps); parameters have src's shape. The sum is exact unless it saturates."""
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    with np.errstate(all="ignore"):
        rounded = np.rint(src / scales).astype(np.float64)
        return np.where(np.isnan(rounded), low, np.clip(rounded + zps, low, high)).astype(dtype)


def numpy_dequantize(src: Array, scales: Array, zps: Array) -> Array:
    """(src - zps) * scales; parameters have src's shape."""
    with np.errstate(all="ignore"):
        return np.asarray((src.astype(np.int64) - zps).astype(np.float32) * scales)


def expected_quantize(
    src: Array, scales: Array, zps: Array | None, dtype: Any, *, axis: int = 0, block: int = 0, groups: bool = False
) -> Array:
    """The result of QuantizeLinear; of NumPy if ONNX Runtime does not support it or wraps (blocks on inner axes)."""
    whole = spread(scales, src.shape, axis, block), spread(_or_zero(zps, dtype), src.shape, axis, block)
    if groups or _stock_lacks(src, scales, zps, dtype, block):
        return numpy_quantize(src, *whole, dtype)
    stock = _run_stock("QuantizeLinear", src, scales, _or_zero(zps, dtype), dtype, axis, block)
    if not block or axis % src.ndim == src.ndim - 1:
        return stock
    with np.errstate(all="ignore"):
        fits = np.abs(src / whole[0]) < 2.0**30
    return np.where(fits, stock, numpy_quantize(src, *whole, dtype))


def expected_dequantize(
    src: Array, scales: Array, zps: Array | None, *, axis: int = 0, block: int = 0, groups: bool = False
) -> Array:
    """The result of DequantizeLinear; of NumPy if ONNX Runtime does not support it."""
    if groups or _stock_lacks(src, scales, zps, src.dtype, block):
        zps = _or_zero(zps, src.dtype)
        return numpy_dequantize(src, *(spread(p, src.shape, axis, block) for p in (scales, zps)))
    return _run_stock("DequantizeLinear", src, scales, _or_zero(zps, src.dtype), np.float32, axis, block)


def _stock_lacks(src: Array, scales: Array, zps: Array | None, codes: Any, block: int) -> bool:
    """Zero points of another type than the codes; one block of rank 1. Empty blocks crash ONNX Runtime 1.31.1."""
    return (zps is not None and zps.dtype != codes) or (block > 0 and (src.size == 0 or scales.shape == (1,)))


def _or_zero(zps: Array | None, dtype: Any) -> Array:
    return np.zeros((), dtype) if zps is None else zps


def _run_stock(op: str, src: Array, scales: Array, zps: Array, output: Any, axis: int, block: int) -> Array:
    zps = np.ascontiguousarray(np.broadcast_to(zps.reshape(()), scales.shape) if zps.size == 1 else zps)
    return _run_node(
        "stock", op, [src, scales, zps.reshape(scales.shape)], output, {"axis": axis, "block_size": block}, 1
    )


def assert_same(actual: Array, expected: Array, src: Array | None = None) -> None:
    """Requires the same type, shape and bits, also for NaN and the sign of zeros."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    bits = f"u{actual.itemsize}" if _has_floats(actual) else actual.dtype
    wrong = np.asarray(actual).view(bits) != np.asarray(expected).view(bits)
    if np.any(wrong):
        at = tuple(np.argwhere(wrong)[0])
        cause = "" if src is None or src.shape != actual.shape else f" of src {src[at]!r}"
        raise AssertionError(
            f"{np.count_nonzero(wrong)} of {actual.size} differ, first at {tuple(map(int, at))}: "
            f"{actual[at]!r}{cause}, expected {expected[at]!r}"
        )


def with_small_files(command: Sequence[str], blocks: int) -> list[str]:
    """Returns a command that cannot write files of more than so many blocks of 512 bytes.

    A preexec_fn would do the same, but copies this process, which fails if the tests before it used much memory.
    """
    return ["sh", "-c", f'ulimit -f {blocks} && exec "$@"', "sh", *command]


@contextlib.contextmanager
def of_all_workers(tmp_path_factory: pytest.TempPathFactory, name: str) -> Iterator[Path]:
    """A temporary folder that all workers of a run share; one at a time has it."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / name
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        if sys.platform != "win32":  # Windows has no flock: there, one worker runs these tests
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """Begins the message of a failed assertion with the place of the comparison."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error


def with_one_nan(values: Any) -> Array:
    """Replaces every NaN by one: its sign and payload depend on the processor, and the kernels do not keep them."""
    array = np.asarray(values)
    return np.where(np.isnan(array), array.dtype.type(np.nan), array) if _has_floats(array) else array


def _has_floats(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


# Data

_ENDS_OF_FLOAT = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1.1754944e-38, 3.4028235e38]
_BEYOND_CODES = [-3.4028235e38, 1e30, -1e30, 2147483648.0, -2147483904.0, 8388608.0, -8388609.0, 4194304.0, -4194304.5]
SPECIALS = np.array([*_ENDS_OF_FLOAT, *_BEYOND_CODES], np.float32)
# Ordinary scales; the limits of division by reciprocal; the mantissa that is hardest for a reciprocal.
SCALES = np.array([1.0, 0.1, 2.0**-7, 0.0037, 1.9999999, 2.0**-60, 2.0**-61, 2.0**60, 2.0**61, -0.1, -1.0], np.float32)
SPECIAL_SCALES = np.array([1e-40, 1e-45, 1.1754944e-38, 3e38, 0.0, -0.0, np.inf, -np.inf, np.nan, -1e-40], np.float32)

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_STEPS = [sign * (power + step) for sign in (-1, 1) for power in (2**22, 2**23, 2**24, 2**30) for step in (-1, 0, 1)]
_ENDS = [_INT32_MIN, _INT32_MIN + 1, _INT32_MIN + 128, _INT32_MAX - 127, _INT32_MAX - 1, _INT32_MAX]
S32_ZPS = np.array([*_ENDS, *_STEPS, 0, -1, 1, 128, -128, 300], np.int32)


def random_scales(rng: np.random.Generator, shape: Shape, special: float = 0.2) -> Array:
    """Powers of two, which make exact ties, other scales, and in half of the tensors some special scales.

    One special scale can take all of its neighbors off the fast path, so some tensors must have none.
    """
    special *= rng.random() < 0.5
    powers = 2.0 ** rng.integers(-8, 5, shape)
    others = 10.0 ** rng.uniform(-4, 1, shape) * rng.choice([1, 1, 1, -1], shape)
    scales = np.where(rng.random(shape) < 0.5, powers, others).astype(np.float32)
    chosen = rng.choice(np.concatenate([SCALES, SPECIAL_SCALES]), shape)
    return np.where(rng.random(shape) < special, chosen, scales).astype(np.float32)


def random_zps(rng: np.random.Generator, shape: Shape, dtype: Any) -> Array | None:
    """Zero points of the whole range. In half of the int32 tensors all are small, in the others half are."""
    if dtype is None:
        return None
    if dtype == np.int32:
        small = rng.integers(-300, 300, shape)
        return np.where(rng.random(shape) < rng.choice([0, 0.5]), rng.choice(S32_ZPS, shape), small).astype(np.int32)
    return random_codes(rng, shape, dtype)


def random_codes(rng: np.random.Generator, shape: Shape, dtype: Any) -> Array:
    """Random 8-bit codes of the whole range."""
    return np.asarray(rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape)).astype(dtype)


def tie_dense(rng: np.random.Generator, scales: Array, zps: Array, dtype: Any) -> Array:
    """(k + 0.5) * scale and its neighbors by one and two units in the last place, for codes k and a few beyond.

    One element in 16 is special. The parameters have the shape of the result.
    """
    shape = scales.shape
    k = rng.integers(np.iinfo(dtype).min - 3, np.iinfo(dtype).max + 4, shape) - zps.astype(np.float64)
    with np.errstate(all="ignore"):
        x = np.asarray((k + 0.5) * scales.astype(np.float64)).astype(np.float32)
        x = np.where(np.isfinite(scales) & (scales != 0), x, rng.normal(0, 10, shape)).astype(np.float32)
        ulps = rng.integers(-2, 3, shape)
        for step in (1, 2):
            x = np.where(
                np.abs(ulps) >= step, np.nextafter(x, np.float32(np.inf) * np.sign(ulps).astype(np.float32)), x
            )
    return np.where(rng.random(shape) < 1 / 16, rng.choice(SPECIALS, shape), x).astype(np.float32)
