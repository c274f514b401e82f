"""Checks an installation: packages, CPU, whether both backends load, and whether the kernels compute correctly."""

from __future__ import annotations

import base64
import functools
import importlib.util
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from .. import cache
from ..errors import TOOLS, message
from ..system import (
    advice_on_extensions,
    cpu_features,
    cpu_name,
    gain_of_integers,
    package_version,
    platform_name,
    quota_cores,
    wheel_test,
)
from ..version import __version__

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnxruntime as ort

    from ..backends.options import Backend
    from .measuring.progress import Track

    Array = npt.NDArray[np.generic]

_T = TypeVar("_T")

_EXTENSIONS = "onnxruntime-extensions"
_NOT_NEEDED_TO_RUN = (*TOOLS, _EXTENSIONS)
"""The packages without which rewritten models run, see docs/deployment.md."""
DEPENDENCIES = ("numpy", "ml-dtypes", "onnxruntime", *_NOT_NEEDED_TO_RUN)
"""The packages that ort_dynq needs, as pyproject.toml lists them."""
_PACKAGES = ("onnxruntime", "onnxruntime-extensions", "onnx", "onnx-ir", "numpy")


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        name: What was checked.
        passed: Whether the check passed; None if it was not run.
        detail: What was found, or the error, or why it was not run.
        advice: What to do if the check failed.
    """

    name: str
    passed: bool | None
    detail: str
    advice: str = ""


@dataclass(frozen=True)
class Examination:
    """The result of all checks.

    Attributes:
        versions: See :func:`versions`.
        platform: See :func:`ort_dynq.system.platform_name`.
        wheel_test: See :func:`ort_dynq.system.wheel_test`.
        cpu: See :func:`ort_dynq.system.cpu_name`.
        features: See :func:`ort_dynq.system.cpu_features`.
        isa: The instruction set in use; empty if it cannot be determined, in which case a check failed.
        isas: The available instruction sets, best first.
        gain: See :func:`ort_dynq.system.gain_of_integers`; empty without an instruction set.
        threads: What the CPU quota of a container demands of sessions; empty without a quota below the cores.
        cache: See :func:`ort_dynq.cache.describe`.
        checks: The checks, in order.
    """

    versions: dict[str, str]
    platform: str
    wheel_test: str
    cpu: str
    features: tuple[str, ...]
    isa: str
    isas: tuple[str, ...]
    gain: str
    threads: str
    cache: str
    checks: tuple[Check, ...]

    @property
    def failure(self) -> Check | None:
        """The first check that failed; None if none did."""
        return next((check for check in self.checks if check.passed is False), None)

    def to_dict(self) -> dict[str, Any]:
        """The result as plain data, for JSON."""
        return {"passed": self.failure is None, **asdict(self)}


def examine(*, track: Track = iter) -> Examination:
    """Runs every check independently and reports all failures.

    Args:
        track: Iterates over the checks, and may show the progress.
    """
    reinstall = "reinstall it: `pip install --force-reinstall --no-deps .` in the source folder"
    missing = _missing()
    tests: list[_Test] = [
        _Test("packages", functools.partial(_packages, missing), _installation(missing)),
        _Test("onnxruntime", _onnxruntime, "pip install -U onnxruntime"),
        _Test("native library", _library, reinstall),
        _Test("instruction set", _isa, "unset ORT_DYNQ_ISA"),
        _Test("backend native", functools.partial(_session, "native"), reinstall),
        _Test(
            *("backend extensions", functools.partial(_session, "extensions")),
            *(advice_on_extensions(), (_EXTENSIONS,)),
        ),
    ]
    none: tuple[str, ...] = ()
    isas = _or_else(none, _isas)
    for isa in isas:
        advice = f"set ORT_DYNQ_ISA={isas[-1]} to avoid it, and report it"
        tests.append(_Test(f"self-test {isa}", functools.partial(self_test, isa), advice, ("onnx", "onnx-ir")))
    checks = tuple(test.run() for test in track(tests))
    isa = _or_else("", _isa)
    gain = gain_of_integers(isa) if isa else ""
    cpu = cpu_name(), cpu_features()
    return Examination(
        versions(), platform_name(), wheel_test(), *cpu, isa, isas, gain, _threads(), cache.describe(), checks
    )


@dataclass(frozen=True)
class _Test:
    """A check to run: `function` returns what it found, or raises an error. Without packages it is not run."""

    name: str
    function: Callable[[], str]
    advice: str
    packages: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def run(self) -> Check:
        if absent := [name for name in self.packages if not _is_installed(name)]:
            return Check(self.name, None, f"{' and '.join(absent)} not installed: {_installation(absent)}")
        try:
            return Check(self.name, True, self.function())
        except Exception as error:  # any error is a failed check
            return Check(self.name, False, " ".join(str(error).split()) or type(error).__name__, self.advice)


def _or_else(default: _T, function: Callable[[], _T]) -> _T:
    """The function's result, or `default` if it fails. A check reports the failure."""
    try:
        return function()
    except Exception:
        return default


def versions() -> dict[str, str]:
    """The versions of Python, ort_dynq and the packages that it uses; empty for one that is not installed."""
    return {
        "Python": platform.python_version(),
        "ort_dynq": __version__,
        **{name: _or_else("", functools.partial(package_version, name)) for name in _PACKAGES},
    }


def _threads() -> str:
    """Returns what a CPU quota demands of sessions: ONNX Runtime does not read it."""
    allowed = quota_cores()
    if not allowed:
        return ""
    started = _or_else(os.cpu_count() or 1, _threads_of_session)
    return (
        f"CPU quota of this container: ONNX Runtime will start {started} threads, the quota allows {allowed}: "
        f"intra_op_num_threads={allowed}; ort_dynq.InferenceSession and the commands set it"
    )


def _threads_of_session() -> int:
    """Opens a session of ONNX Runtime with default options, and returns the number of its threads."""
    import onnxruntime as ort

    before = len(os.listdir("/proc/self/task"))
    session = ort.InferenceSession(_IDENTITY, providers=["CPUExecutionProvider"])
    threads = len(os.listdir("/proc/self/task")) - before + 1  # that of the caller runs, too
    del session
    return threads


def _missing() -> dict[str, str]:
    """Returns the packages that are not installed, or else those that cannot be imported, with the errors."""
    found = {name: "not installed" for name in DEPENDENCIES if not _is_installed(name)}
    if found:  # others cannot be imported without them
        return found
    return {name: error for name in DEPENDENCIES if (error := _import_error(name))}


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package.replace("-", "_")) is not None


def _import_error(package: str) -> str:
    try:
        importlib.import_module(package.replace("-", "_"))
    except Exception as error:  # of a package that is broken, any
        return message(error)
    return ""


def _packages(missing: Mapping[str, str]) -> str:
    if missing and {*missing.values()} == {"not installed"} and {*missing} <= {*_NOT_NEEDED_TO_RUN}:
        tools = [name for name in missing if name in TOOLS]
        parts = ["rewritten models run"] if tools else ["models run, are changed and described"]
        parts += [f"to change and describe models: {_installation(tools)}"] if tools else []
        parts += [f"for the backend extensions: {_installation([_EXTENSIONS])}"] if _EXTENSIONS in missing else []
        return "; ".join(parts)
    if missing:
        raise RuntimeError(f"{', '.join(missing)}: {next(iter(missing.values()))}")
    return f"all {len(DEPENDENCIES)} that ort_dynq needs can be imported"


def _installation(packages: Collection[str]) -> str:
    """Returns how to install packages. There may be no wheel of onnxruntime-extensions."""
    if [*packages] == [_EXTENSIONS]:
        return advice_on_extensions()
    return f"`pip install {' '.join(packages)}`"


def _onnxruntime() -> str:
    import onnxruntime as ort

    from .. import runtime

    if runtime.version() < runtime.OLDEST_ONNXRUNTIME:
        raise RuntimeError(f"{ort.__version__}, expected {'.'.join(map(str, runtime.OLDEST_ONNXRUNTIME))} or newer")
    return str(ort.__version__)


def _library() -> str:
    from .. import library
    from ..operators import OPERATORS

    native, path = library.load(), library.get_library_path()
    names: set[str] = set()
    while (name := native.ort_dynq_operator(len(names))) is not None:
        names.add(name.decode())
    if names != {*OPERATORS}:
        different = ", ".join(sorted(names ^ {*OPERATORS}))
        raise RuntimeError(f"{path} is of another version than the package: they differ in the operators {different}")
    return path


def _isa() -> str:
    from .. import kernels

    return kernels.isa()


def _isas() -> tuple[str, ...]:
    from .. import kernels

    return tuple(kernels.supported_isas())


MODEL = base64.b64decode(
    "CAo61AEKiwEKAXgKAXMKAXoSAXkiD0R5bmFtaWNRdWFudGl6ZSoWCgVxdHlwZSIKcGVyX3RlbnNvcqABAyoLCgRheGlzGAGgAQIq"
    "EQoKYmxvY2tfc2l6ZRgAoAECKhMKDG91dHB1dF9kdHlwZRgAoAECKhUKCmFyaXRobWV0aWMiBG9ubnigAQM6CG9ydF9keW5xEgZk"
    "b2N0b3JaEAoBeBILCgkIARIFCgMSAW5aCwoBcxIGCgQIARIAWgsKAXoSBgoECAISAGIQCgF5EgsKCQgCEgUKAxIBbkIECgAQFUIM"
    "CghvcnRfZHlucRAB"
)
"""A model with one DynamicQuantize(x, s, z), which has all attributes. It is serialized, since a server has no onnx."""


_IDENTITY = base64.b64decode(
    "CAg6OQoSCgF4EgF5IghJZGVudGl0eToAEgFnWg8KAXgSCgoICAESBAoCCAFiDwoBeRIKCggIARIECgIIAUIECgAQDQ=="
)
"""A model that copies its input."""


def _session(backend: Backend) -> str:
    """Runs a model of one node in a session."""
    import numpy as np

    from .. import runtime
    from ..backends.register import register
    from ..backends.sessions import open_registered

    options = register(runtime.session_options(), backend)
    session = open_registered(MODEL, options)
    x = np.array([-70, -1.25, -0.25, 0, 0.25, 0.75, 3, 70], np.float32)
    (codes,) = session.run(None, {"x": x, "s": np.array(0.5, np.float32), "z": np.array(128, np.uint8)})
    if codes.tolist() != [0, 126, 128, 128, 128, 130, 134, 255]:
        raise RuntimeError(f"DynamicQuantize gives {codes.tolist()} in a session")
    return "loads, registers, runs"


_LENGTHS = (1, 7, 8, 15, 16, 17, 31, 33, 64, 100, 1023)  # around the numbers of vector lanes
_ROWS = 5
_OPSET = 21
_CHAIN = "r1 = Clip(Div(ReduceMax(Abs(x)), 127.0), 1e-05, inf); codes = Round(Div(x, r1)); scale = r1"
_TAIL = "r1 = Add(Mul(x, column2), tensor1); dst = Mul(r1, Clip(Add(Mul(r1, 0.25), 0.5), 0.0, 1.0))"


def self_test(isa: str) -> str:
    """Runs operators on one instruction set, and compares every bit with their functions in onnxruntime.

    Args:
        isa: The name of the instruction set.

    Returns:
        A sentence with the number of results.

    Raises:
        RuntimeError: A result differs.
        DynqError: The CPU or the build does not have the instruction set.
    """
    from .. import kernels

    compared = 0
    with kernels.use_isa(isa):
        for length in _LENGTHS:
            for (operator, inputs, attributes), expected in zip(_cases(length), _expected(length), strict=True):
                found = kernels.run(operator, inputs, **attributes)
                for a, b in zip(found, expected, strict=True):
                    if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
                        raise RuntimeError(f"{operator} on {_ROWS}x{length} elements differs from its function")
                    compared += a.size
    return f"{compared} results equal those of onnxruntime's operators bit for bit"


@functools.cache
def _expected(length: int) -> list[list[Array]]:
    """The outputs of the functions of :func:`_cases` in onnxruntime."""
    from ..operators import OPERATORS

    return [
        _function(operator, tuple(array.dtype.name for array in inputs), tuple(attributes.items())).run(
            None, {value.name: array for value, array in zip(OPERATORS[operator].inputs, inputs, strict=True)}
        )
        for operator, inputs, attributes in _cases(length)
    ]


@functools.cache
def _function(
    operator: str, types: tuple[str, ...], attributes: tuple[tuple[str, str | int], ...]
) -> ort.InferenceSession:
    """A session that runs the function of an operator, without the plugin and without optimizations."""
    import numpy as np
    import onnx_ir as ir

    from .. import runtime
    from ..operators import DOMAIN, OPERATORS, VERSION
    from ..rewriter.edit import call
    from ..rewriter.functions import make_function

    spec = OPERATORS[operator]
    inputs = [ir.Value(name=value.name) for value in spec.inputs]
    node = call(operator, inputs, **dict(attributes))
    for value, output in zip(node.outputs, spec.outputs, strict=True):
        value.name = output.name
    results = next(each.outputs for each in spec.signatures if each.inputs == types)
    for value, type_ in zip((*inputs, *node.outputs), (*types, *results), strict=True):
        value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(type_)))
    graph = ir.Graph(inputs, node.outputs, nodes=[node], opset_imports={"": _OPSET, DOMAIN: VERSION}, name="doctor")
    programs = [str(text) for name, text in attributes if name == "program"]
    numbers = {name: value for name, value in attributes if isinstance(value, int)}
    function = ir.serde.deserialize_function(make_function(operator, _OPSET, programs, [numbers]))
    model = ir.Model(graph, ir_version=10, functions=[function])
    return runtime.open_session(model, runtime.session_options(threads=1, optimize=False))


def _cases(length: int) -> Iterator[tuple[str, list[Array], dict[str, str | int]]]:
    """Operators with inputs and attributes; the inputs have `length` columns."""
    import numpy as np

    from ..operators.packing import pack, pack_words

    rng, shape = np.random.default_rng(length), (_ROWS, length)
    x = rng.integers(-300, 300, shape).astype(np.float32) / 2  # half of the quotients by a scale of 1 are ties
    x[1:] += rng.standard_normal((_ROWS - 1, length), np.float32)
    scales = rng.uniform(0.5, 2, length).astype(np.float32)
    scales[::2] = 1
    zps = rng.integers(0, 256, length, np.uint8)
    codes = rng.integers(-128, 128, shape, np.int8)
    per_column: dict[str, str | int] = {"qtype": "per_channel", "axis": 1}
    yield "DynamicQuantize", [x, scales, zps], per_column
    # Both arithmetics are equal if the reciprocal is exact and the zero point is 0. The function has only one of them.
    yield "DynamicQuantize", [x, scales[:1], np.zeros(1, np.uint8)], {"arithmetic": "onednn"}
    yield "DynamicDequantize", [codes, scales, zps.view(np.int8)], per_column
    yield "DynamicFakeQuantize", [x, scales, zps], per_column
    unused = np.zeros(1, np.float32)
    for bits, depth, size in ((8, 70, 0), (8, 64, 32), (4, 64, 16)):
        groups, zero_point = depth // size if size else 1, np.array(0 if bits == 8 else 8, np.int8)
        weights = rng.integers(-128 if bits == 8 else 0, 128 if bits == 8 else 16, (depth, length), np.int8)
        column_sum = weights.reshape(groups, depth // groups, length).sum(1, np.int32) - zero_point * (depth // groups)
        rows = [rng.integers(0, 256, (_ROWS, depth), np.uint8), np.abs(x[:, :1]) + 1, np.full((_ROWS, 1), 9, np.uint8)]
        columns = [rng.uniform(0.5, 2, (groups, length)).astype(np.float32), column_sum.astype(np.int32), x[0]]
        given: dict[str, str | int] = {"bits": bits, "group_size": size, "scale_order": 2}
        product = [*rows, pack(weights, bits), zero_point, *columns]
        yield "QuantizedMatMul", product, given
        yield "QuantizedMatMulProgram", [*product, x, x[0], unused], {**given, "program": _TAIL}
    words = rng.integers(-2047, 2048, (300, length)).astype(np.int16)
    src = rng.standard_normal((_ROWS, len(words)), np.float32)
    yield "WordMatMul", [src, pack_words(words), scales, x[0]], {}
    image, geometry = rng.standard_normal((2, 5, 3, length), np.float32), np.ones((5, 2), np.int32)
    geometry[0] = 3
    filters = words[:270, 0].reshape(6, 5, 3, 3)
    yield "WordConv", [image, filters, *rng.uniform(0.5, 2, (2, 6)).astype(np.float32), geometry], {}
    yield "RowProgram", [x, np.zeros(1, np.int8), *[unused] * 4], {"program": _CHAIN, "code_type": 3}
