"""Measures the time and the memory of opening a session.

Every measurement runs this module in a new process, since a process keeps the memory of earlier sessions.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ... import runtime
from ...backends.register import register
from ...backends.sessions import open_registered
from ...errors import DynqError, message
from ...files import temporary_folder

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...backends.options import Backend

_ROUNDS = 5


@dataclass(frozen=True)
class Opening:
    """The medians of several openings.

    Attributes:
        ms: Milliseconds.
        mb: Megabytes (2^20 bytes) by which the private memory of the process grew; None if the system does not tell.
            External data that ONNX Runtime maps into memory do not count: processes share them.
    """

    ms: float
    mb: float | None


def measure_opening(a: str | Path, b: str | Path | ir.Model, backend: Backend) -> tuple[Opening, Opening]:
    """Opens A in stock ONNX Runtime and B with the plugin, alternately, each time in a new process.

    Args:
        a: The path of a model.
        b: Another path, or a model, which is saved to a temporary file.
        backend: How B's session gets ort_dynq's operators.

    Raises:
        DynqError: A session cannot be opened.
    """
    from ... import storage  # here: the new processes need no graph library

    with temporary_folder() as folder:
        if not isinstance(b, str | Path):
            storage.save(b, Path(folder) / "model.onnx")
            b = Path(folder) / "model.onnx"
        rounds = [(_in_new_process(a, None), _in_new_process(b, backend)) for _ in range(_ROUNDS)]
    first, second = (_median(each) for each in zip(*rounds, strict=True))
    return first, second


def _in_new_process(model: str | Path, backend: Backend | None) -> Opening:
    command = [sys.executable, "-m", __name__, os.path.abspath(model), *([backend] if backend else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DynqError(f"{model} cannot be opened in a new process: {(done.stderr.splitlines() or ['it died'])[-1]}")
    return Opening(**json.loads(done.stdout))


def _median(openings: tuple[Opening, ...]) -> Opening:
    sizes = [each.mb for each in openings if each.mb is not None]
    return Opening(statistics.median(each.ms for each in openings), statistics.median(sizes) if sizes else None)


def _private_mb() -> float | None:
    """The private memory of this process."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon:")), None)


def _main(model: str, backend: Backend | None = None) -> None:
    options = runtime.session_options(threads=1)
    if backend:
        register(options, backend)
    before, start = _private_mb(), time.perf_counter()
    try:
        session = open_registered(model, options)
    except Exception as error:
        sys.exit(message(error))
    ms, after = (time.perf_counter() - start) * 1e3, _private_mb()
    del session
    print(json.dumps({"ms": ms, "mb": None if before is None or after is None else after - before}))


if __name__ == "__main__":
    _main(*sys.argv[1:])  # type: ignore[arg-type]
