"""Timings against stock ONNX Runtime, at its default level: of operators, models, folders, chains and transformers.

Contenders take turns within one process, on the same bound inputs; figures are medians unless they say otherwise. An
idle session's threads spin for a while before they sleep, and would take the cores from the session whose turn it is:
here they spin just long enough to be awake for the next call, as in a loop, and a turn begins with calls that are not
timed, until the others' are asleep.
"""

from __future__ import annotations

import functools
import gc
import inspect
import math
import os
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnxruntime as ort

from .. import __version__, kernels
from ..backends.register import register
from ..errors import DynqError
from ..rewriter import Report, rewrite
from ..runtime import openable
from ..system import cores, cpu_name
from ..verification import sessions
from . import transformers

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..runtime import Model

Array = npt.NDArray[Any]
Track = Callable[[Sequence[Any]], Iterable[Any]]  # iterates, and may show how far it is

_ALIGNMENT = 64  # as onnxruntime's own buffers
_TURN, _FEWEST_ROUNDS = 0.005, 5
_SPIN_MICROSECONDS, _SETTLE = 500, 0.002
_SPIN_DURATION_SINCE = (1, 27)  # onnxruntime


@dataclass(frozen=True)
class Machine:
    """What the figures depend on.

    Attributes:
        load: The load average of the last minute: what else runs takes cores from the threads that are timed.
    """

    cpu: str
    cores: int
    load: float
    isa: str
    backend: str
    onnxruntime: str
    ort_dynq: str
    python: str


@dataclass(frozen=True)
class Settings:
    """How to time.

    Attributes:
        threads: onnxruntime's threads; every case is timed with each of these.
        seconds: For each case, all contenders together.
        warmup: Calls of each contender before it is timed.
        backend: How sessions get ort_dynq's operators.
        exact: How models are rewritten: see :func:`ort_dynq.rewrite`.
    """

    threads: tuple[int, ...] = (1,)
    seconds: float = 0.5
    warmup: int = 2
    backend: Backend = "native"
    exact: bool = False


@dataclass(frozen=True)
class OperatorTiming:
    """One operator on one tensor.

    Attributes:
        operator: The stock one: QuantizeLinear or DequantizeLinear.
        granularity: Which elements share a scale.
        shape: Of the tensor.
        threads: onnxruntime's, and the copy's.
        ours_ns, stock_ns: Nanoseconds per element.
        ratio: stock_ns / ours_ns.
        copy_share: Our bytes per second, read and written, in those of a plain copy of as many bytes.
    """

    operator: str
    granularity: str
    shape: tuple[int, int]
    threads: int
    ours_ns: float
    stock_ns: float
    ratio: float
    copy_share: float


@dataclass(frozen=True)
class Latency:
    """The times of a session's runs."""

    median_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    calls: int


@dataclass(frozen=True)
class ModelTiming:
    """One model in stock ONNX Runtime, and rewritten (or another one) with the plugin.

    Attributes:
        name: The model's.
        threads: onnxruntime's.
        stock, ours: None where it does not run.
        ratio: The median of stock / that of ours.
        problem: Why one of them does not run.
        rewritten: How many calls of each of our operators the rewrite made; None if nothing was rewritten here, since
            the other model was given.
    """

    name: str
    threads: int
    stock: Latency | None
    ours: Latency | None
    ratio: float | None
    problem: str
    rewritten: Mapping[str, int] | None


@dataclass(frozen=True)
class ChainTiming(ModelTiming):
    """One chain on 512x4096 elements.

    Attributes:
        nodes: The chain's number of nodes.
        relu: One pass over the same tensor: a Relu.
        of_relu: The median of ours / that of the Relu.
    """

    nodes: int
    relu: Latency
    of_relu: float


@dataclass(frozen=True)
class NetworkTiming(ModelTiming):
    """One transformer network; its name is the form of its linear layers.

    Attributes:
        network: The encoder or the decoder.
        tokens: So many go into the encoder, or are in the past of the decoder, into which one goes.
    """

    network: str
    tokens: int


def machine(backend: Backend = "native") -> Machine:
    """This machine, and the versions in use."""
    return Machine(
        cpu=cpu_name(),
        cores=cores(),
        load=os.getloadavg()[0],
        isa=kernels.isa(),
        backend=backend,
        onnxruntime=ort.__version__,
        ort_dynq=__version__,
        python=platform.python_version(),
    )


# Operators


@dataclass(frozen=True)
class _Granularity:
    """Scales have the tensor's shape on `dimensions`, divided by `block` on `axis`, rounded up."""

    name: str
    axis: int
    dimensions: tuple[int, ...]
    block: int = 0

    def scales(self, shape: tuple[int, int]) -> tuple[int, ...]:
        sizes = [-(-size // self.block) if self.block and i == self.axis else size for i, size in enumerate(shape)]
        return tuple(sizes[i] for i in self.dimensions)


_GRANULARITIES = (
    _Granularity("per tensor", 1, ()),
    _Granularity("axis 0", 0, (0,)),
    _Granularity("last axis", 1, (1,)),
    _Granularity("blocks of 128, last axis", 1, (0, 1), 128),
    _Granularity("blocks of 128, axis 0", 0, (0, 1), 128),
)
SIZES = ((1, 64), (64, 64), (256, 1024), (4096, 4096))


def bench_operators(
    settings: Settings, sizes: Sequence[tuple[int, int]] = SIZES, *, track: Track = iter
) -> list[OperatorTiming]:
    """Times QuantizeLinear and DequantizeLinear, float32 to and from uint8, with run-time parameters.

    Raises:
        DynqError: The operators cannot be registered, a result is not stock ONNX Runtime's, or memory is too small.
    """
    register(ort.SessionOptions(), settings.backend)  # what fails for all fails at once
    cases = [
        _OperatorCase(operator, granularity, size, threads)
        for threads in settings.threads
        for size in sizes
        for operator in ("QuantizeLinear", "DequantizeLinear")
        for granularity in _GRANULARITIES
    ]
    try:
        return [_time_operator(case, settings) for case in track(cases)]
    except MemoryError as error:
        raise DynqError(f"a tensor does not fit in memory: {error}") from error


@dataclass(frozen=True)
class _OperatorCase:
    operator: str
    granularity: _Granularity
    shape: tuple[int, int]
    threads: int

    def __str__(self) -> str:
        return f"{self.operator} {_sizes(self.shape)} {self.granularity.name}, threads: {self.threads}"


def _time_operator(case: _OperatorCase, settings: Settings) -> OperatorTiming:
    granularity, shape = case.granularity, case.shape
    source, target = ("float", "uint8") if case.operator == "QuantizeLinear" else ("uint8", "float")
    scales = granularity.scales(shape)
    model = _parse(  # without x's shape, by which the rewriter would leave small tensors alone
        f"{source}[rows, columns] x, {_tensor('float', scales)} s, {_tensor('uint8', scales)} z",
        f"{target}[rows, columns] y",
        f"y = {case.operator}<axis = {granularity.axis}, block_size = {granularity.block}>(x, s, z)",
        opset=21,
    )
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, shape, np.uint8)
    feeds = {
        "x": rng.standard_normal(shape, np.float32) if source == "float" else codes,
        "s": np.asarray(rng.uniform(0.01, 0.03, scales), np.float32),
        "z": np.asarray(rng.integers(0, 256, scales), np.uint8),
    }
    feeds = {name: _aligned(array) for name, array in feeds.items()}
    output = _aligned(np.zeros(shape, np.float32 if target == "float" else np.uint8))
    stock = _contender(str(case), model, feeds, case.threads, outputs=[output])
    expected = output.copy()
    output.fill(0)
    ours = _contender(str(case), rewrite(model).model, feeds, case.threads, backend=settings.backend, outputs=[output])
    if output.tobytes() != expected.tobytes():
        raise DynqError(f"the result of {case} is not stock ONNX Runtime's")
    copy = _copy(sum(array.nbytes for array in (*feeds.values(), output)), case.threads)
    medians = [float(np.median(samples)) for samples in _interleave([stock, ours, copy], settings, case.threads)]
    stock_ns, ours_ns, copy_ns = (median / math.prod(shape) for median in medians)
    return OperatorTiming(
        case.operator,
        granularity.name,
        shape,
        case.threads,
        ours_ns,
        stock_ns,
        stock_ns / ours_ns,
        copy_ns / ours_ns,
    )


def _copy(size: int, threads: int) -> _Contender:
    """Reads and writes `size` bytes together.

    Handing work to Python's threads takes longer than a copy of some kilobytes. So each of them gets its part of many
    copies at once, and less than a megabyte is copied by one.
    """
    source, target = _aligned(np.ones(size // 2, np.uint8)), _aligned(np.zeros(size // 2, np.uint8))
    if threads == 1 or size < 2**20:
        return _Contender(lambda: np.copyto(target, source), [source, target])
    copies = max(1, 2**26 // size)
    pool = ThreadPoolExecutor(threads)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))

    def work(part: tuple[Array, Array]) -> None:
        for _ in range(copies):
            np.copyto(*part)

    return _Contender(lambda: list(pool.map(work, parts)), [source, target], copies)


# Models


@dataclass(frozen=True)
class ModelBench:
    """A model's timings, and what it ran on; given and assumed sizes are as in a verification."""

    inputs: tuple[sessions.Input, ...]
    seed: int
    timings: list[ModelTiming]
    report: Report | None


def bench_model(
    a: str | Path,
    b: str | Path | None,
    settings: Settings,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    track: Track = iter,
) -> ModelBench:
    """Times A in stock ONNX Runtime, in turns with B with the plugin.

    Args:
        a: The original.
        b: None: A as the rewriter makes it.
        settings: How.
        inputs, shapes, seed: As for :func:`ort_dynq.verify`; no rows of zeros are generated.
        track: Shows how far it is.

    Raises:
        DynqError: One of them is no model, an input does not fit, or B does not run.
    """
    register(ort.SessionOptions(), settings.backend)
    given = dict(inputs or {})
    session = sessions.open_session(a, "A")
    resolved = sessions.resolve_inputs(session.get_inputs(), given, shapes or {})
    feeds = sessions.make_feeds(resolved, given, seed, zero_rows=False)
    sessions.run_original(session, [output.name for output in session.get_outputs()], feeds, resolved)
    del session
    ours: Model
    if b is None:
        result = rewrite(a, exact=settings.exact)
        ours, report = result.model, result.report
    elif Path(b).is_file():
        ours, report = b, None
    else:
        raise DynqError(f"B ({b}) is not a file")
    timings = [_time_model(str(a), a, ours, report, feeds, settings, n) for n in track(settings.threads)]
    return ModelBench(tuple(resolved), seed, timings, report)


def bench_folder(folder: str | Path, settings: Settings, *, track: Track = iter) -> list[ModelTiming]:
    """Times each model of a folder of folders like the ONNX backend suite's, on the inputs recorded there.

    A model that does not run, on either side, is a row that says why.

    Raises:
        DynqError: The folder holds no models, or the operators cannot be registered.
    """
    register(ort.SessionOptions(), settings.backend)
    names = sorted(path.parent.name for path in Path(folder).glob("*/model.onnx"))
    if not names:
        raise DynqError(f"{folder} has no folders with a model.onnx in them")
    return [
        _time_recorded(Path(folder) / name, settings, threads) for name in track(names) for threads in settings.threads
    ]


def _time_recorded(folder: Path, settings: Settings, threads: int) -> ModelTiming:
    try:
        model = folder / "model.onnx"
        result = rewrite(model, exact=settings.exact)
        return _time_model(folder.name, model, result.model, result.report, _recorded(folder), settings, threads)
    except DynqError as error:
        return ModelTiming(folder.name, threads, None, None, None, str(error), None)


def _recorded(folder: Path) -> dict[str, Array]:
    """The first data set beside a model: its tensors have the inputs' names, or else the inputs' order."""
    inputs = [value.name for value in onnx.load(folder / "model.onnx", load_external_data=False).graph.input]
    files = sorted((folder / "test_data_set_0").glob("input_*.pb"), key=lambda file: (len(file.name), file.name))
    tensors = list(map(_read_tensor, files))
    if not {name for name, _ in tensors} <= {*inputs}:
        return {name: array for name, (_, array) in zip(inputs, tensors, strict=False)}
    return dict(tensors)


def _read_tensor(file: Path) -> tuple[str, Array]:
    try:
        proto = onnx.TensorProto.FromString(file.read_bytes())
        return proto.name, onnx.numpy_helper.to_array(proto)
    except Exception as error:  # which one depends on protobuf's version
        raise DynqError(f"{file} is not a tensor: {error}") from error


@dataclass(frozen=True)
class Samples:
    """The times of each run of two models, in nanoseconds.

    Attributes:
        ours: Of the one with the plugin.
        stock: Of the other; None where it does not run.
        problem: Why it does not run.
    """

    ours: Array
    stock: Array | None
    problem: str


def sample(name: str, a: Model, b: Model, feeds: Mapping[str, Array], settings: Settings, threads: int) -> Samples:
    """Times A in stock ONNX Runtime, in turns with B with the plugin; `name` is B's, in messages.

    Raises:
        DynqError: B does not run.
    """
    feeds = {key: _aligned(array) for key, array in feeds.items()}
    contenders = [_contender(name, b, feeds, threads, backend=settings.backend)]
    problem = ""
    try:
        contenders.append(_contender(name, a, feeds, threads))
    except _Refused as error:
        problem = str(error)
    ours, *stock = _interleave(contenders, settings, threads)
    return Samples(ours, stock[0] if stock else None, problem)


def _time_model(
    name: str,
    a: Model,
    b: Model,
    report: Report | None,
    feeds: Mapping[str, Array],
    settings: Settings,
    threads: int,
) -> ModelTiming:
    samples = sample(name if report else "B", a, b, feeds, settings, threads)
    ours = latency(samples.ours)
    stock = None if samples.stock is None else latency(samples.stock)
    return ModelTiming(
        name,
        threads,
        stock,
        ours,
        stock.median_ms / ours.median_ms if stock else None,
        samples.problem,
        None if report is None else _operators(report),
    )


def _operators(report: Report) -> dict[str, int]:
    return dict(Counter(finding.operator or "" for finding in report.rewritten))


def latency(samples: Array) -> Latency:
    """Of runs that took so many nanoseconds."""
    median, p90, p99 = (float(value) / 1e6 for value in np.percentile(samples, (50, 90, 99)))
    return Latency(median, p90, p99, float(samples.mean()) / 1e6, samples.size)


# Chains

CHAIN_SHAPE = (512, 4096)

# The chains as torch and torchao export them: name, further outputs, constants, nodes. The input is x.
_SYMMETRIC = """
    a = Abs(x)
    m = ReduceMax(a, last)
    r = Clip(m, eps)
    s = Div(r, high)
    t = Div(x, s)
    u = Round(t)
    v = Clip(u, low, high)
"""
_SYMMETRIC_CONSTANTS = "int64[1] last = {-1}, float eps = {0.00001}, float low = {-128}, float high = {127}"
_CHAINS = (
    (
        "symmetric per token to int8",
        "int8[512, 4096] y, float[512, 1] s",
        _SYMMETRIC_CONSTANTS,
        f"{_SYMMETRIC} y = Cast<to = 3>(v)",
    ),
    (
        "symmetric per token, fake-quantized",
        "float[512, 4096] y",
        _SYMMETRIC_CONSTANTS,
        f"{_SYMMETRIC} y = Mul(v, s)",
    ),
    (
        "torchao asymmetric per token, fake-quantized",
        "float[512, 4096] y",
        "int64[1] axes = {1}, int64[2] column = {512, 1}, float zero = {0}, float steps = {255}, "
        "float eps = {1.1754944e-38}, float low = {-128}, float high = {127}",
        """
            mn = ReduceMin<keepdims = 0>(x, axes)
            mx = ReduceMax<keepdims = 0>(x, axes)
            mn_shape = Shape(mn)
            mn_zeros = Expand(zero, mn_shape)
            lower = Min(mn, mn_zeros)
            mx_shape = Shape(mx)
            mx_zeros = Expand(zero, mx_shape)
            upper = Max(mx, mx_zeros)
            range = Sub(upper, lower)
            step = Div(range, steps)
            s_row = Clip(step, eps)
            z_quotient = Div(lower, s_row)
            z_round = Round(z_quotient)
            z_shifted = Sub(low, z_round)
            z_clipped = Clip(z_shifted, low, high)
            z_row = Cast<to = 3>(z_clipped)
            s = Reshape<allowzero = 1>(s_row, column)
            z = Reshape<allowzero = 1>(z_row, column)
            inverse = Reciprocal(s)
            t = Mul(x, inverse)
            u = Round(t)
            z_float = Cast<to = 1>(z)
            v = Add(u, z_float)
            w = Clip(v, low, high)
            codes = Cast<to = 3>(w)
            codes_float = Cast<to = 1>(codes)
            centred = Sub(codes_float, z_float)
            y = Mul(centred, s)
        """,
    ),
    (
        "asymmetric per tensor -> Q -> DQ",
        "float[512, 4096] y",
        "float zero = {0}, float steps = {255}, float eps = {0.00000001}",
        """
            mn = ReduceMin<keepdims = 0>(x)
            lower = Clip(mn, , zero)
            mx = ReduceMax<keepdims = 0>(x)
            upper = Clip(mx, zero)
            range = Sub(upper, lower)
            step = Div(range, steps)
            s = Clip(step, eps)
            negative = Neg(lower)
            z_quotient = Div(negative, s)
            z_round = Round(z_quotient)
            z_clipped = Clip(z_round, zero, steps)
            z_int = Cast<to = 6>(z_clipped)
            z = Cast<to = 2>(z_int)
            codes = QuantizeLinear(x, s, z)
            y = DequantizeLinear(codes, s, z)
        """,
    ),
)


def bench_chains(settings: Settings, *, track: Track = iter) -> list[ChainTiming]:
    """Times decomposed chains on 512x4096 float32, in turns with a Relu over the same tensor.

    Raises:
        DynqError: The operators cannot be registered, or a rewritten chain does not run.
    """
    register(ort.SessionOptions(), settings.backend)
    rows, columns = CHAIN_SHAPE
    x = _tensor("float", CHAIN_SHAPE)
    feeds = {"x": _aligned(np.random.default_rng(0).standard_normal((rows, columns), np.float32))}
    relu_model = _parse(f"{x} x", f"{x} y", "y = Relu(x)", opset=20)
    timings = []
    for name, outputs, constants, nodes in track(_CHAINS):
        model = _parse(f"{x} x", outputs, nodes, opset=20, constants=constants)
        result = rewrite(model, exact=settings.exact)
        for threads in settings.threads:
            contenders = [
                _contender(name, model, feeds, threads),
                _contender(name, result.model, feeds, threads, backend=settings.backend),
                _contender("Relu", relu_model, feeds, threads),
            ]
            stock, ours, relu = map(latency, _interleave(contenders, settings, threads))
            timings.append(
                ChainTiming(
                    name,
                    threads,
                    stock,
                    ours,
                    stock.median_ms / ours.median_ms,
                    "",
                    _operators(result.report),
                    len(model.graph.node),
                    relu,
                    ours.median_ms / relu.median_ms,
                )
            )
    return timings


# Networks

TOKENS = (1, 128)


@dataclass(frozen=True)
class Sizes:
    """Of the networks: as for :func:`ort_dynq.bench.transformers.encoder`."""

    layers: int = 6
    hidden: int = 768
    heads: int = 12


@dataclass(frozen=True)
class _NetworkCase:
    network: str
    form: str

    def __str__(self) -> str:
        return f"{self.network}, {self.form}"


def bench_networks(
    settings: Settings,
    *,
    names: Sequence[str] = tuple(transformers.NETWORKS),
    forms: Sequence[str] = tuple(transformers.FORMS),
    tokens: Sequence[int] = TOKENS,
    sizes: Sizes = Sizes(),
    track: Track = iter,
) -> list[NetworkTiming]:
    """Times transformer networks with seeded weights, one at a time: their sessions take half a gigabyte each.

    Args:
        settings: How.
        names: Which networks: encoder, decoder.
        forms: Which of :data:`ort_dynq.bench.transformers.FORMS`.
        tokens: How many; each case is timed with each of these.
        sizes: Of the transformers.
        track: Shows how far it is.

    Raises:
        DynqError: There is no such network or form, the sizes do not fit, the operators cannot be registered, or a
            rewritten network does not run.
    """
    register(ort.SessionOptions(), settings.backend)
    for kind, given, known in (("network", names, transformers.NETWORKS), ("form", forms, transformers.FORMS)):
        for name in given:
            if name not in known:
                raise DynqError(f"there is no {kind} {name!r}, expected one of {', '.join(known)}")
    cases = [_NetworkCase(name, form) for name in names for form in forms]
    timings = []
    for case in track(cases):
        timings += _time_network(case, settings, tokens, sizes)
        gc.collect()  # a rewritten model's nodes and values refer to each other, and keep its weights
    return timings


def _time_network(case: _NetworkCase, settings: Settings, tokens: Sequence[int], sizes: Sizes) -> list[NetworkTiming]:
    model = transformers.NETWORKS[case.network](case.form, **asdict(sizes))
    result = rewrite(model, exact=settings.exact)
    timings = []
    for count in tokens:
        feeds = transformers.feeds(model, count)
        for threads in settings.threads:
            timing = _time_model(case.form, model, result.model, result.report, feeds, settings, threads)
            timings.append(NetworkTiming(**vars(timing), network=case.network, tokens=count))
    return timings


# Sessions and turns


@dataclass(frozen=True)
class _Contender:
    """What takes turns: `run` does its work `times` times on arrays that it does not itself keep alive."""

    run: Callable[[], object]
    arrays: Sequence[Array]
    times: int = 1


class _Refused(DynqError):
    """onnxruntime does not load or run a model."""


def _contender(
    name: str,
    model: Model,
    feeds: Mapping[str, Array],
    threads: int,
    *,
    backend: Backend | None = None,
    outputs: Sequence[Array] | None = None,
) -> _Contender:
    """A session with inputs and outputs bound, run once; without a backend it is stock ONNX Runtime.

    Raises:
        _Refused: onnxruntime does not load or run the model.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    options.intra_op_num_threads = threads
    if tuple(map(int, ort.__version__.split(".")[:2])) >= _SPIN_DURATION_SINCE:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if backend:
        register(options, backend)
    with openable(model, options) as source:
        try:
            session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
            binding, arrays = session.io_binding(), list(feeds.values())
            for key, array in feeds.items():
                binding.bind_ortvalue_input(key, ort.OrtValue.ortvalue_from_numpy(array))
            results = session.run(None, dict(feeds)) if outputs is None else outputs
            for output, result in zip(session.get_outputs(), results, strict=True):
                if isinstance(result, np.ndarray) and result.dtype.kind in "biuf":
                    arrays.append(_aligned(result) if outputs is None else result)
                    binding.bind_ortvalue_output(output.name, ort.OrtValue.ortvalue_from_numpy(arrays[-1]))
                else:
                    binding.bind_output(output.name)
            session.run_with_iobinding(binding)
        except Exception as error:
            where = "stock ONNX Runtime" if backend is None else "ONNX Runtime with the plugin"
            message = sessions.message(error)
            raise _Refused(f"{name} does not run in {where} at its default level: {message}") from error
    run = ort.InferenceSession.run_with_iobinding
    if backend is None:
        run = inspect.unwrap(run)  # the other backend's guard (extensions.py) is none of stock ONNX Runtime's costs
    return _Contender(functools.partial(run, session, binding), arrays)


def _interleave(contenders: Sequence[_Contender], settings: Settings, threads: int) -> list[Array]:
    """Each contender's times in nanoseconds."""
    samples: list[list[float]] = [[] for _ in contenders]
    for contender in contenders:
        for _ in range(settings.warmup):
            contender.run()
    turn = min(_TURN, settings.seconds / (_FEWEST_ROUNDS * len(contenders)))
    order = list(range(len(contenders)))
    end, rounds = time.perf_counter() + settings.seconds, 0
    while rounds < _FEWEST_ROUNDS or time.perf_counter() < end:
        for i in order:
            _take_turn(contenders[i], samples[i], turn, settle=_SETTLE if threads > 1 else 0)
        order.reverse()
        rounds += 1
    return [np.asarray(each) for each in samples]


def _take_turn(contender: _Contender, samples: list[float], seconds: float, settle: float) -> None:
    run, now = contender.run, time.perf_counter_ns
    end = now() + int(settle * 1e9)
    run()  # the caches are full of another's weights
    while now() < end:
        run()
    end = now() + int(seconds * 1e9)
    while True:
        before = now()
        run()
        after = now()
        samples.append((after - before) / contender.times)
        if after >= end:
            return


def _aligned(array: Array) -> Array:
    """A copy on the boundary of a cache line."""
    buffer = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    result = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def _parse(inputs: str, outputs: str, nodes: str, *, opset: int, constants: str = "") -> onnx.ModelProto:
    head = f'<ir_version: 10, opset_import: ["": {opset}]> bench ({inputs}) => ({outputs})'
    return onnx.parser.parse_model(f"{head} {f'<{constants}>' if constants else ''} {{ {nodes} }}")


def _tensor(kind: str, shape: Sequence[int]) -> str:
    return f"{kind}[{', '.join(map(str, shape))}]" if shape else kind


def _sizes(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
