"""Interleaved timing of ONNX Runtime sessions and other callables.

Contenders take turns in one process, on the same bound inputs, and their medians are compared (:func:`speed`). With one
thread, ONNX Runtime and the kernels run on the calling thread, and a run takes as long as this thread has a CPU
(`time.thread_time_ns`): other processes then change a ratio little. With more threads it is wall time.

Idle threads of a session spin before they sleep, which would take cores from the next contender. So the sessions spin
only long enough to stay awake between two of their own calls, and a turn begins with untimed calls until the threads of
the previous contender sleep.
"""

from __future__ import annotations

import functools
import inspect
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnxruntime as ort

from ... import four_bits, kernels, runtime
from ...backends.register import register
from ...backends.sessions import open_registered
from ...errors import DynqError, message
from ...inputs import Array
from ...rewrite_options import RewriteOptions
from ...system import cores, cpu_name, load_average, quota_cores
from ...version import __version__

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...storage import Model

_ALIGNMENT = 64  # bytes, as in ONNX Runtime's own buffers
_TURN_SECONDS, _MIN_ROUNDS = 0.005, 5
_BUSY = 1.5  # a median that is so many times the fastest run says more about the machine than about the model
_SPIN_MICROSECONDS, _SETTLE_SECONDS = 500, 0.002
_FIRST_WITH_SPIN_DURATION = (1, 27)  # onnxruntime


@dataclass(frozen=True)
class Machine:
    """What the timings depend on.

    Attributes:
        cpu: The name of the CPU.
        cores: The number of cores that this process may use.
        has_quota: Whether the CPU quota of a container limits them: more threads wait for each other.
        load: The load average of the last minute; None if the system has none. Other processes take cores from the
            timed threads.
        isa: The instruction set of ort_dynq's kernels.
        backend: How sessions get ort_dynq's operators.
        onnxruntime, ort_dynq, python: Versions.
    """

    cpu: str
    cores: int
    has_quota: bool
    load: float | None
    isa: str
    backend: str
    onnxruntime: str
    ort_dynq: str
    python: str

    @property
    def cores_and_load(self) -> str:
        """The number of cores and, if it is known, the load before the measurement, as a text."""
        quota = " (the CPU quota of this container)" if self.has_quota else ""
        return f"{self.cores} cores{quota}" + ("" if self.load is None else f", load {self.load:.1f} before")


@dataclass(frozen=True)
class Settings(RewriteOptions):
    """How to time, and how models are rewritten before.

    Attributes:
        threads: Numbers of intra-op threads of ONNX Runtime; every case is timed with each of them.
        seconds: Time for each case, all contenders together.
        warmup: Untimed calls of each contender at the start.
        backend: How sessions get ort_dynq's operators.
    """

    threads: tuple[int, ...] = (1,)
    seconds: float = 0.5
    warmup: int = 2
    backend: Backend = "native"


FIVE_SECONDS = Settings(seconds=5.0)
"""The settings of commands and functions that time one model."""


@dataclass(frozen=True)
class Latency:
    """A summary of the run times of a session.

    Attributes:
        min_ms, median_ms, p90_ms, p99_ms, mean_ms: Milliseconds, of :func:`clock_of`.
        calls: The number of runs.
    """

    min_ms: float
    median_ms: float
    p90_ms: float
    p99_ms: float
    mean_ms: float
    calls: int


@dataclass(frozen=True)
class Contender:
    """One of the callables that are compared.

    Attributes:
        run: Does the work `repeats` times.
        arrays: The arrays that `run` reads and writes. A binding of a session does not keep them alive.
        repeats: How often one call of `run` does the work.
        has_threads: Whether `run` may work on other threads than the calling one, also if it was given one thread.
        outputs: The arrays that `run` writes, by the name of the output; not those that each run allocates.
    """

    run: Callable[[], object]
    arrays: Sequence[Array]
    repeats: int = 1
    has_threads: bool = False
    outputs: Mapping[str, Array] = field(default_factory=dict)


class ContenderError(DynqError):
    """ONNX Runtime does not load or run a model."""


def machine(backend: Backend = "native") -> Machine:
    """Describes this machine and the versions in use."""
    return Machine(
        cpu=cpu_name(),
        cores=cores(),
        has_quota=bool(quota_cores()),
        load=load_average(),
        isa=kernels.isa(),
        backend=backend,
        onnxruntime=ort.__version__,
        ort_dynq=__version__,
        python=platform.python_version(),
    )


def check_backend(backend: Backend) -> None:
    """Registers the operators once, so that an error that concerns every case is raised before the first one.

    Raises:
        DynqError: The operators cannot be registered.
    """
    register(ort.SessionOptions(), backend)


def latency(samples: Array) -> Latency:
    """Summarizes run times in nanoseconds."""
    median, p90, p99 = (float(value) / 1e6 for value in np.percentile(samples, (50, 90, 99)))
    return Latency(float(samples.min()) / 1e6, median, p90, p99, float(samples.mean()) / 1e6, samples.size)


class Speed(NamedTuple):
    """How much faster one model is than another.

    Attributes:
        ratio: The median of the slower one / the median of the faster one; None if one of them was not timed, or if the
            machine is too busy.
        busy: That the machine is too busy to say, with the times that show it; empty if it is not.
    """

    ratio: float | None
    busy: str = ""


def speed(before: Latency | None, after: Latency | None) -> Speed:
    """Compares two models that took turns.

    Args:
        before, after: Their latencies; None for a model that does not run.
    """
    if before is None or after is None:
        return Speed(None)
    for each in (before, after):
        if each.median_ms > _BUSY * each.min_ms:
            return Speed(
                None,
                f"the machine is too busy to say how fast: the median of the runs is {each.median_ms:.4g} ms, the "
                f"fastest {each.min_ms:.4g} ms",
            )
    return Speed(before.median_ms / after.median_ms)


def clock_of(threads: int) -> Callable[[], int]:
    """Returns the clock that times runs with this number of threads, in nanoseconds.

    Windows counts the time of a thread in ticks of 16 ms.
    """
    return time.thread_time_ns if threads == 1 and sys.platform != "win32" else time.perf_counter_ns


def clock_name(threads: Sequence[int]) -> str:
    """Returns what is measured with these numbers of threads, for a line about the measurement."""
    clocks = {clock_of(each) for each in threads}
    if len(clocks) > 1:
        return "CPU time with 1 thread, wall time with more"
    return "CPU time" if time.thread_time_ns in clocks else "wall time"


def session_contender(
    name: str,
    model: Model,
    feeds: Mapping[str, Array],
    threads: int,
    *,
    backend: Backend | None = None,
    outputs: Sequence[Array] | None = None,
    types: Mapping[str, int] | None = None,
    in_place: Mapping[str, str] | None = None,
) -> Contender:
    """Opens a session at the default optimization level, binds its inputs and outputs and runs it once.

    Args:
        name: The name of the model in error messages.
        model: The model.
        feeds: Its inputs.
        threads: The number of intra-op threads.
        backend: How the session gets ort_dynq's operators; None for stock ONNX Runtime.
        outputs: Arrays for the outputs. By default, every numeric tensor gets an array.
        types: The element types, by ONNX's numbers, of inputs and outputs if their arrays have another type.
        in_place: Outputs that are written to the array of an input: its name, by that of the output.

    Raises:
        ContenderError: ONNX Runtime does not load or run the model.
        DynqError: See :func:`ort_dynq.runtime.openable`.
    """
    types, in_place = types or {}, in_place or {}

    def value(name: str, array: Array) -> ort.OrtValue:
        if name in kinds:
            return four_bits.ort_value(name, array, kinds[name])
        if name in types:
            return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, types[name])
        return ort.OrtValue.ortvalue_from_numpy(array)

    options = runtime.session_options(threads=threads)
    if runtime.version() >= _FIRST_WITH_SPIN_DURATION:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(_SPIN_MICROSECONDS))
    else:
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if backend:
        register(options, backend)
    try:
        session = open_registered(model, options)
        kinds = {each.name: each.type for each in session.get_inputs() if each.type in four_bits.TYPES}
        binding, arrays = session.io_binding(), list(feeds.values())
        for key, array in feeds.items():
            binding.bind_ortvalue_input(key, value(key, array))
        results = four_bits.run_of(session)(None, dict(feeds)) if outputs is None else outputs
        unbound, bound = [], dict[str, Array]()
        for output, result in zip(session.get_outputs(), results, strict=True):
            numeric = isinstance(result, np.ndarray) and result.dtype.kind in "biuf"
            if numeric and _fits(output.shape, result.shape):
                if output.name in in_place:
                    result = feeds[in_place[output.name]]
                arrays.append(aligned(result) if outputs is None and output.name not in in_place else result)
                bound[output.name] = arrays[-1]
                binding.bind_ortvalue_output(output.name, value(output.name, arrays[-1]))
            else:
                binding.bind_output(output.name)
                if numeric:
                    unbound.append(output.name)
        session.run_with_iobinding(binding)
    except DynqError:
        raise
    except Exception as error:
        where = "stock ONNX Runtime" if backend is None else "ONNX Runtime with the plugin"
        raise ContenderError(f"{name} does not run in {where} at its default level: {message(error)}") from error
    run = ort.InferenceSession.run_with_iobinding
    if backend is None:
        run = inspect.unwrap(run)  # stock ONNX Runtime does not pay for the check that backends/extensions.py adds
    call = functools.partial(run, session, binding)
    if not unbound:
        return Contender(call, arrays, outputs=bound)

    def rebind_and_call() -> None:
        for output in unbound:  # a run binds the array that it allocated
            binding.bind_output(output)
        call()

    return Contender(rebind_and_call, arrays, outputs=bound)


def _fits(declared: Sequence[int | str | None], shape: Sequence[int]) -> bool:
    """Whether an output has the declared shape. ONNX Runtime refuses to bind an array of any other shape."""
    if not declared:  # the model declares no shape, or a scalar
        return True
    return len(declared) == len(shape) and all(
        size == length for size, length in zip(declared, shape, strict=True) if isinstance(size, int)
    )


def interleave(contenders: Sequence[Contender], settings: Settings, threads: int) -> list[Array]:
    """Times contenders, which take turns.

    Returns:
        The times of each contender in nanoseconds, one per call and repeat.
    """
    now = clock_of(2 if any(each.has_threads for each in contenders) else threads)
    samples: list[list[float]] = [[] for _ in contenders]
    for contender in contenders:
        for _ in range(settings.warmup):
            contender.run()
    turn = min(_TURN_SECONDS, settings.seconds / (_MIN_ROUNDS * len(contenders)))
    order = list(range(len(contenders)))
    end, rounds = time.perf_counter() + settings.seconds, 0
    while rounds < _MIN_ROUNDS or time.perf_counter() < end:
        for i in order:
            _take_turn(contenders[i], samples[i], now, turn, settle=_SETTLE_SECONDS if threads > 1 else 0)
        order.reverse()  # so that no contender always follows the same one
        rounds += 1
    return [np.asarray(each or [1.0]) for each in samples]


def latencies(contenders: Sequence[Contender], seconds: float) -> list[Latency]:
    """Times contenders with one thread, which take turns.

    Args:
        contenders: The contenders.
        seconds: The time for all of them.
    """
    return [latency(each) for each in interleave(contenders, Settings((1,), seconds), 1)]


def _take_turn(
    contender: Contender, samples: list[float], now: Callable[[], int], seconds: float, settle: float
) -> None:
    run, wall, cost = contender.run, time.perf_counter_ns, _cost_of(now)
    end = wall() + int(settle * 1e9)
    run()  # the caches hold the weights of the previous contender
    while wall() < end:
        run()
    end = wall() + int(seconds * 1e9)
    while True:
        before = now()
        run()
        after = now()
        if 2 * (after - before) > cost:  # the time of a thread may stand still: that is no run of no time
            samples.append(max(after - before - cost, 1) / contender.repeats)
        if wall() >= end:
            return


@functools.cache
def _cost_of(now: Callable[[], int]) -> int:
    """Returns what a clock adds to a run, in nanoseconds: some 400 for the time of a thread, a system call."""
    return int(np.median([-now() + now() for _ in range(1000)]))


def aligned(array: Array, offset: int = 0) -> Array:
    """Copies an array to an address that is `offset` bytes past a 64-byte boundary.

    Args:
        array: The array.
        offset: Bytes, a multiple of the size of an element.
    """
    buffer = np.empty(array.nbytes + _ALIGNMENT + offset, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT + offset
    result = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result
