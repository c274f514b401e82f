"""The machine and the installed packages: CPU, cores, versions."""

from __future__ import annotations

import ctypes
import errno
import gc
import importlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from .cgroups import cpu_quota

# Used by the kernels of ort_dynq (first row) and by ONNX Runtime's integer products (second row), on x86 and Arm.
_FEATURES = (
    *("sse4_1", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "asimd", "sve"),
    *("avx_vnni", "avx512_vnni", "amx_int8", "asimddp", "i8mm"),
)

NO_WHEEL = "onnxruntime-extensions has no wheel for"

_WITHOUT_VNNI = (
    "no VNNI: one row and 3x3 convolutions are about twice as fast as in float, many rows as fast or up to 1.5 times"
)
_WITH_VNNI = "VNNI: integer layers are faster than float, up to four times"
_NOT_MEASURED = "integer layers have not been measured on such a CPU; ort-dynq bench measures them"
_GAINS = {
    "amx": "integer layers are several times as fast as float",
    "avx512vnni": _WITH_VNNI,
    "avx512": _WITHOUT_VNNI,
    "avxvnni": _WITH_VNNI,
    "avx2": _WITHOUT_VNNI,
    "neoni8mm": _NOT_MEASURED,
    "neondot": _NOT_MEASURED,
    "neon": _NOT_MEASURED,
    "portable": "no vectors: integer layers are slower than float",
}

# How the wheel for each platform was tested, by sys.platform and platform.machine(). docs/deployment.md says more.
_WHEELS = {
    ("linux", "x86_64"): ("Linux x86-64", "tested on this platform"),
    ("linux", "aarch64"): ("Linux aarch64", "tested in the emulator qemu-aarch64"),
    ("win32", "amd64"): ("Windows x86-64", "the library was tested under Wine, the Python code on Linux only"),
    ("darwin", "arm64"): ("macOS arm64", "compiled, never run"),
    ("darwin", "x86_64"): ("macOS x86-64", "compiled, never run"),
}


def platform_name() -> str:
    """The operating system and the processor."""
    return _wheel()[0]


def wheel_test() -> str:
    """How the wheel for this platform was tested."""
    return _wheel()[1]


def _wheel() -> tuple[str, str]:
    machine = platform.machine().lower()
    return _WHEELS.get((sys.platform, machine), (f"{platform.system()} {machine}", "there is none, built from source"))


def cpu_name() -> str:
    """The name of the CPU, as the operating system reports it, with family and model: one name may be several CPUs."""
    name = next(_cpuinfo("model name", "Model"), platform.processor() or platform.machine())
    for keys in (
        (("family", "cpu family"), ("model", "model")),
        (("implementer", "CPU implementer"), ("part", "CPU part")),
    ):
        numbers = [f"{label} {number}" for label, key in keys if (number := next(_cpuinfo(key), None))]
        if len(numbers) == len(keys):
            return f"{name} ({', '.join(numbers)})"
    return name


def cpu_features() -> tuple[str, ...]:
    """The CPU's instruction set extensions that ort_dynq and ONNX Runtime use, by the names of /proc/cpuinfo."""
    present = set(next(_cpuinfo("flags", "Features"), "").split())
    return tuple(feature for feature in _FEATURES if feature in present)


def gain_of_integers(isa: str) -> str:
    """What layers of 8-bit integers gain with kernels of an instruction set, in one line.

    docs/performance-of-operators.md has the measurements.

    Args:
        isa: The instruction set in use; see :func:`ort_dynq.kernels.isa`.
    """
    return f"{isa}, {_GAINS[isa]}"


def advice_on_extensions() -> str:
    """What to do if onnxruntime-extensions is missing, which only the backend ``extensions`` needs.

    pyproject.toml leaves it out where it has no wheel: there is no source to build.
    """
    if sys.version_info >= (3, 14):
        where = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    elif (sys.platform, platform.machine()) == ("win32", "ARM64"):
        where = "Windows on ARM"
    else:
        return "`pip install -U onnxruntime-extensions`"
    return f"{NO_WHEEL} {where}; the backend native does not need it"


def cores() -> int:
    """The number of cores that this process may use: its affinity, and the CPU quota of its container."""
    return quota_cores() or _affine_cores()


def quota_cores() -> int:
    """The whole cores of the container's CPU quota, at least 1; 0 if it has none, or one of all cores and more.

    ONNX Runtime does not read quotas: it starts a thread for each core of the machine. Threads beyond the quota use it
    up, and then all of them wait for the next period.
    """
    quota = cpu_quota()
    return max(1, int(quota)) if quota is not None and quota < _affine_cores() else 0


def _affine_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def load_average() -> float | None:
    """The load average of the last minute; None on systems without one, such as Windows."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def try_lock(file: BinaryIO) -> bool | None:
    """Locks an open file until :func:`unlock`, or until it is closed or its process ends.

    Returns:
        Whether it is locked now; None if the system or the file system has no locks.
    """
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EAGAIN, errno.EACCES, errno.EDEADLK) else None
    except ImportError:  # a Python that was built without them
        return None
    return True


def unlock(file: BinaryIO) -> None:
    """Unlocks a file that :func:`try_lock` has locked, also for processes that have it by a fork."""
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_UN)


def return_memory() -> None:
    """Returns freed memory to the system. glibc keeps what held weights, for allocations of such a size.

    Models that nothing uses any more are freed first: their nodes and values refer to each other.
    """
    gc.collect()
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "malloc_trim"):
        libc.malloc_trim(0)


def package_version(distribution: str) -> str:
    """The installed version of a distribution.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:  # onnxruntime-gpu, for example, provides the module onnxruntime
        return str(importlib.import_module(distribution.replace("-", "_")).__version__)


def _cpuinfo(*keys: str) -> Iterator[str]:
    """The values of these keys in /proc/cpuinfo; nothing on systems without that file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() in keys)
