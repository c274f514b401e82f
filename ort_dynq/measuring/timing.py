"""Interleaved timing of ONNX Runtime sessions and other callables.

Contenders take turns in one process, on the same bound inputs. Idle threads of a session spin before they sleep, which
would take cores from the next contender. So the sessions spin only long enough to stay awake between two of their own
calls, and a turn begins with untimed calls until the threads of the previous contender sleep.
"""

from __future__ import annotations

import functools
import inspect
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from .. import four_bits, kernels, runtime
from ..backends.register import register
from ..backends.sessions import open_registered
from ..errors import DynqError, message
from ..inputs import Array
from ..system import cores, cpu_name, gain_of_integers, load_average
from ..version import __version__

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..storage import Model

_ALIGNMENT = 64  # bytes, as in ONNX Runtime's own buffers
_TURN_SECONDS, _MIN_ROUNDS = 0.005, 5
_SPIN_MICROSECONDS, _SETTLE_SECONDS = 500, 0.002
_FIRST_WITH_SPIN_DURATION = (1, 27)  # onnxruntime


@dataclass(frozen=True)
class Machine:
    """What the timings depend on.

    Attributes:
        cpu: The name of the CPU.
        cores: The number of cores that this process may use.
        load: The load average of the last minute; None if the system has none. Other processes take cores from the
            timed threads.
        isa: The instruction set of ort_dynq's kernels.
        gain: See :func:`ort_dynq.system.gain_of_integers`.
        backend: How sessions get ort_dynq's operators.
        onnxruntime, ort_dynq, python: Versions.
    """

    cpu: str
    cores: int
    load: float | None
    isa: str
    gain: str
    backend: str
    onnxruntime: str
    ort_dynq: str
    python: str

    @property
    def cores_and_load(self) -> str:
        """The number of cores and, if it is known, the load before the measurement, as a text."""
        return f"{self.cores} cores" + ("" if self.load is None else f", load {self.load:.1f} before")


@dataclass(frozen=True)
class Settings:
    """How to time.

    Attributes:
        threads: Numbers of intra-op threads of ONNX Runtime; every case is timed with each of them.
        seconds: Time for each case, all contenders together.
        warmup: Untimed calls of each contender at the start.
        backend: How sessions get ort_dynq's operators.
        exact, fuse, weights_only, keep_fused: How models are rewritten, see :func:`ort_dynq.rewrite`.
    """

    threads: tuple[int, ...] = (1,)
    seconds: float = 0.5
    warmup: int = 2
    backend: Backend = "native"
    exact: bool = False
    fuse: bool = False
    weights_only: str = "keep"
    keep_fused: bool = False

    @property
    def changes(self) -> dict[str, Any]:
        """How models are rewritten, as arguments of :func:`ort_dynq.rewrite`."""
        return {name: getattr(self, name) for name in ("exact", "fuse", "weights_only", "keep_fused")}


@dataclass(frozen=True)
class Latency:
    """A summary of the run times of a session.

    Attributes:
        min_ms, median_ms, p90_ms, p99_ms, mean_ms: Milliseconds.
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
    """

    run: Callable[[], object]
    arrays: Sequence[Array]
    repeats: int = 1


class ContenderError(DynqError):
    """ONNX Runtime does not load or run a model."""


def machine(backend: Backend = "native") -> Machine:
    """Describes this machine and the versions in use."""
    return Machine(
        cpu=cpu_name(),
        cores=cores(),
        load=load_average(),
        isa=kernels.isa(),
        gain=gain_of_integers(kernels.isa()),
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
        types: The element types, by ONNX's numbers, of inputs and outputs whose arrays have another type.
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
        unbound = []
        for output, result in zip(session.get_outputs(), results, strict=True):
            numeric = isinstance(result, np.ndarray) and result.dtype.kind in "biuf"
            if numeric and _fits(output.shape, result.shape):
                if output.name in in_place:
                    result = feeds[in_place[output.name]]
                arrays.append(aligned(result) if outputs is None and output.name not in in_place else result)
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
        return Contender(call, arrays)

    def rebind_and_call() -> None:
        for output in unbound:  # a run binds the array that it allocated
            binding.bind_output(output)
        call()

    return Contender(rebind_and_call, arrays)


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
    samples: list[list[float]] = [[] for _ in contenders]
    for contender in contenders:
        for _ in range(settings.warmup):
            contender.run()
    turn = min(_TURN_SECONDS, settings.seconds / (_MIN_ROUNDS * len(contenders)))
    order = list(range(len(contenders)))
    end, rounds = time.perf_counter() + settings.seconds, 0
    while rounds < _MIN_ROUNDS or time.perf_counter() < end:
        for i in order:
            _take_turn(contenders[i], samples[i], turn, settle=_SETTLE_SECONDS if threads > 1 else 0)
        order.reverse()  # so that no contender always follows the same one
        rounds += 1
    return [np.asarray(each) for each in samples]


def fastest(contenders: Sequence[Contender], seconds: float) -> list[float]:
    """Returns the shortest time of each contender, on one thread: other processes disturb it least.

    Returns:
        Nanoseconds.
    """
    return [float(np.min(each)) for each in interleave(contenders, Settings((1,), seconds), 1)]


def _take_turn(contender: Contender, samples: list[float], seconds: float, settle: float) -> None:
    run, now = contender.run, time.perf_counter_ns
    end = now() + int(settle * 1e9)
    run()  # the caches hold the weights of the previous contender
    while now() < end:
        run()
    end = now() + int(seconds * 1e9)
    while True:
        before = now()
        run()
        after = now()
        samples.append((after - before) / contender.repeats)
        if after >= end:
            return


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
