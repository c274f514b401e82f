"""Looks at an installation: versions, CPU, whether both backends load, and whether the kernels are right here."""

from __future__ import annotations

import functools
import platform
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from . import __version__
from .system import cpu_features, cpu_name, package_version

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .backends.options import Backend

    Array = npt.NDArray[np.generic]

_T = TypeVar("_T")
Track = Callable[[Sequence[Any]], Iterable[Any]]  # iterates, and may show how far it is

_PACKAGES = ("onnxruntime", "onnxruntime-extensions", "onnx", "onnx-ir", "numpy")


@dataclass(frozen=True)
class Check:
    """One thing that was tried.

    Attributes:
        name: What.
        well: Whether it is as it should be.
        detail: What was found.
        advice: What to do if it is not well.
    """

    name: str
    well: bool
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Examination:
    """What was found.

    Attributes:
        versions: Of Python, ort_dynq and what it needs; empty where something is not installed.
        cpu: The CPU's name.
        features: Those of the CPU's instruction sets that matter here.
        isa: The instruction set in use; empty if there is none, as a check says.
        isas: Those available, best first.
        checks: What was tried.
    """

    versions: dict[str, str]
    cpu: str
    features: tuple[str, ...]
    isa: str
    isas: tuple[str, ...]
    checks: tuple[Check, ...]

    @property
    def wrong(self) -> Check | None:
        """The first check that is not well."""
        return next((check for check in self.checks if not check.well), None)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON."""
        return {"well": self.wrong is None, **asdict(self)}


def examine(*, track: Track = iter) -> Examination:
    """Tries everything, each thing on its own: what is wrong with one is told, and the others are still tried.

    Args:
        track: Shows how far it is.
    """
    reinstall = "install it again: `pip install --force-reinstall --no-deps .` in its sources"
    tests: list[_Test] = [
        _Test("onnxruntime", _onnxruntime, "pip install -U onnxruntime"),
        _Test("native library", _library, reinstall),
        _Test("instruction set", _isa, "unset ORT_DYNQ_ISA"),
        _Test("backend native", functools.partial(_session, "native"), reinstall),
        _Test("backend extensions", functools.partial(_session, "extensions"), "pip install -U onnxruntime-extensions"),
    ]
    nothing: tuple[str, ...] = ()
    isas = _or_else(nothing, _isas)
    for isa in isas:
        advice = f"do without it, ORT_DYNQ_ISA={isas[-1]}, and report it"
        tests.append(_Test(f"self-test {isa}", functools.partial(self_test, isa), advice))
    checks = tuple(test.run() for test in track(tests))
    return Examination(versions(), cpu_name(), cpu_features(), _or_else("", _isa), isas, checks)


@dataclass(frozen=True)
class _Test:
    """`what` returns what it found, or raises what is wrong."""

    name: str
    what: Callable[[], str]
    advice: str

    def __str__(self) -> str:
        return self.name

    def run(self) -> Check:
        try:
            return Check(self.name, True, self.what())
        except Exception as error:  # whatever it is, it is what is wrong
            return Check(self.name, False, " ".join(str(error).split()) or type(error).__name__, self.advice)


def _or_else(absent: _T, what: Callable[[], _T]) -> _T:
    """Its result, or that in its place: that it fails, a check says."""
    try:
        return what()
    except Exception:
        return absent


def versions() -> dict[str, str]:
    """Of Python, ort_dynq and what it needs; empty where something is not installed."""
    return {
        "Python": platform.python_version(),
        "ort_dynq": __version__,
        **{name: _or_else("", functools.partial(package_version, name)) for name in _PACKAGES},
    }


def _onnxruntime() -> str:
    import onnxruntime as ort

    from . import runtime

    if runtime.version() < runtime.OLDEST_ONNXRUNTIME:
        raise RuntimeError(f"{ort.__version__}, expected {'.'.join(map(str, runtime.OLDEST_ONNXRUNTIME))} or newer")
    return str(ort.__version__)


def _library() -> str:
    from . import library
    from .operators import OPERATORS

    native, path = library.load(), library.get_library_path()
    names: set[str] = set()
    while (name := native.ort_dynq_operator(len(names))) is not None:
        names.add(name.decode())
    if names != {*OPERATORS}:
        different = ", ".join(sorted(names ^ {*OPERATORS}))
        raise RuntimeError(f"{path} is of another version than the package: they differ in {different}")
    return path


def _isa() -> str:
    from . import kernels

    return kernels.isa()


def _isas() -> tuple[str, ...]:
    from . import kernels

    return tuple(kernels.supported_isas())


def _session(backend: Backend) -> str:
    """One node in a session, its result compared."""
    import numpy as np
    import onnx.parser
    import onnxruntime as ort

    from .backends.prepare import ready_for_extensions
    from .backends.register import register
    from .operators import reference

    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21, "ort_dynq": 1]>
        doctor (float[n] x, float s, uint8 z) => (uint8[n] y) {
            y = ort_dynq.DynamicQuantize(x, s, z)
        }"""
    )
    options = register(ort.SessionOptions(), backend)
    options.log_severity_level = 4  # what goes wrong is raised
    content = ready_for_extensions(model).to_proto() if backend == "extensions" else model
    session = ort.InferenceSession(content.SerializeToString(), options, providers=["CPUExecutionProvider"])
    x, scale, zero_point = np.linspace(-3, 3, 50, dtype=np.float32), np.array(0.02, np.float32), np.array(128, np.uint8)
    (codes,) = session.run(None, {"x": x, "s": scale, "z": zero_point})
    if codes.tobytes() != reference.run("DynamicQuantize", [x, scale, zero_point])[0].tobytes():
        raise RuntimeError("DynamicQuantize gives wrong codes in a session")
    return "loads, registers, runs"


_LENGTHS = (1, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1023)  # around the numbers of lanes
_ROWS = 5
_SYMMETRIC = (-float("inf"), float("inf"), -float("inf"), float("inf"), 127, 1, 1e-5, float("inf"), 0)


def self_test(isa: str) -> str:
    """Runs some operators on an instruction set and compares every bit with NumPy.

    Returns:
        How much was compared.

    Raises:
        RuntimeError: Something differs.
        DynqError: The CPU does not have it.
    """
    import numpy as np

    from . import kernels
    from .operators import reference

    rng = np.random.default_rng(0)
    compared = 0
    with kernels.use_isa(isa):
        for length in _LENGTHS:
            for operator, inputs, attributes in _cases(length, rng):
                found = kernels.run(operator, inputs, **attributes)
                expected = reference.run(operator, inputs, **attributes)
                for a, b in zip(found, expected, strict=True):
                    if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                        raise RuntimeError(f"{operator} on {_ROWS}x{length} elements is not what NumPy makes of them")
                    compared += a.size
    return f"{compared} results equal NumPy's, bit for bit"


def _cases(length: int, rng: np.random.Generator) -> Iterable[tuple[str, list[Array | None], dict[str, str | int]]]:
    import numpy as np

    shape = (_ROWS, length)
    x = rng.integers(-300, 300, shape).astype(np.float32) / 2  # half of the quotients by 1 are ties
    x[1:] += rng.standard_normal((_ROWS - 1, length), np.float32)
    scales = rng.uniform(0.5, 2, length).astype(np.float32)
    scales[::2] = 1
    zps = rng.integers(0, 256, length, np.uint8)
    codes = rng.integers(-128, 128, shape, np.int8)
    last: dict[str, str | int] = {"qtype": "per_channel", "axis": 1}
    yield "DynamicQuantize", [x, scales, zps], last
    yield "DynamicQuantize", [x, scales[:1], zps[:1]], {"arithmetic": "onednn"}
    yield "DynamicDequantize", [codes, scales, zps.view(np.int8)], last
    yield "DynamicFakeQuantize", [x, scales, zps], last
    yield "DynamicRangeFakeQuantize", [x, np.array(_SYMMETRIC, np.float32)], {}
    sums = rng.integers(-(2**24), 2**24, shape, np.int32)
    rows, column_sum = np.abs(x[:, :1]) + 1, rng.integers(-9999, 9999, length, np.int32)
    yield "AccumulatorDequantize", [sums, rows, np.zeros((_ROWS, 1), np.int8), scales, column_sum, x[0]], {}
