"""Compares two models bit for bit on the same inputs: the original in stock ONNX Runtime, the other with the plugin."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from .errors import DynqError
from .session import opening, register

if TYPE_CHECKING:
    from .session import Backend, Model

Array = npt.NDArray[Any]

_DTYPES: dict[str, np.dtype[Any]] = {
    f"tensor({name})": np.dtype(dtype)
    for name, dtype in (
        ("float16", np.float16),
        ("float", np.float32),
        ("double", np.float64),
        ("bool", np.bool_),
        *((kind, kind) for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")),
    )
}
_BATCH, _OTHER = 2, 8  # the sizes assumed of dimensions that are not fixed

# What onnxruntime says of files that are no models; anything else that it refuses is a model that does not work.
_NOT_A_MODEL = ("NoSuchFile", "InvalidProtobuf")


@dataclass(frozen=True)
class Input:
    """An input of the comparison.

    Attributes:
        given: Whether its values were given; otherwise they were generated.
        assumed: The sizes that were assumed in its shape, by dimension: the model fixes none and nobody gave any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    given: bool
    assumed: Mapping[str, int]


@dataclass(frozen=True)
class Difference:
    """One element that differs: its index, and its value in A and in B."""

    index: tuple[int, ...]
    a: Any
    b: Any


@dataclass(frozen=True)
class Comparison:
    """One output of A against the same output of B.

    Two elements are equal if their bits are, or if both are NaN, whatever the NaN's payload.

    Attributes:
        name, dtype, shape: The output as A gives it.
        elements: Their number.
        nans: How many of them are NaN in A.
        differing: How many differ.
        max_abs: The largest absolute difference. None if there is none to state: NaN against a number.
        max_ulp: The largest number of floating-point values from one to the other (0 from -0 to +0). None if it is not
            a floating-point type, or there is none to state.
        first: The first element that differs.
        problem: B's type or shape, where it is another one; nothing else was compared then.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    nans: int = 0
    differing: int = 0
    max_abs: float | None = 0.0
    max_ulp: int | None = None
    first: Difference | None = None
    problem: str = ""

    @property
    def equal(self) -> bool:
        """Whether type, shape and every element are equal."""
        return not self.problem and self.differing == 0


@dataclass(frozen=True)
class Verification:
    """What a comparison found.

    Attributes:
        inputs: What the models ran on.
        seed: The seed of the inputs that were generated.
        zero_rows: Whether rows of zeros were among them. They are left out where they turn a whole output into NaN.
        outputs: The comparison that decides: both models with all of onnxruntime's optimisations off.
        default_outputs: For information: B at onnxruntime's default level, whose fusions change the last bits.
        failure: Why B does not load or run; empty if it does.
    """

    inputs: tuple[Input, ...]
    seed: int
    zero_rows: bool
    outputs: tuple[Comparison, ...]
    default_outputs: tuple[Comparison, ...]
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether B loads and runs at both levels and, with optimisations off, gives A's outputs bit for bit."""
        return not self.failure and all(output.equal for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON; numbers that JSON does not have ("nan", "inf") are text."""
        return {"passed": self.passed, **_plain(asdict(self))}


def verify(
    a: Model,
    b: Model,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    backend: Backend = "native",
) -> Verification:
    """Runs A in stock ONNX Runtime and B with the plugin, all optimisations off, and compares every output bit for bit.

    B then runs at the default optimisation level too, where it must not fail; differences there are information only.

    Args:
        a: The original: a path, a serialized model, a ModelProto or an onnx_ir Model.
        b: The model to verify.
        inputs: Values of inputs; others are generated: normal floats with some ties, outliers and rows of zeros.
        shapes: Shapes of inputs that are to be generated; sizes that are not fixed are otherwise assumed.
        seed: The seed of the generated values.
        backend: How B gets the operators, see :func:`ort_dynq.register`.

    Raises:
        DynqError: One of them is no model, their inputs or outputs are not the same, an input does not fit, or A does
            not run; or the operators cannot be registered.
    """
    register(ort.SessionOptions(), backend)  # what fails for B alone fails at once
    session = _open(a, "A")
    names = [output.name for output in session.get_outputs()]
    signature = _signature(session)
    declared, given = session.get_inputs(), dict(inputs or {})
    resolved = _resolve(declared, given, shapes or {})
    zero_rows = True
    feeds = _feeds(resolved, given, seed, zero_rows)
    expected = _run_a(session, names, feeds, resolved)
    if any(_nans(array) == array.size > 0 for array in expected) and len(given) < len(resolved):
        zero_rows = False
        feeds = _feeds(resolved, given, seed, zero_rows)
        expected = _run_a(session, names, feeds, resolved)
    del session  # before B is opened: both may be large

    def compare(level: str, **options: bool) -> tuple[Comparison, ...]:
        try:
            session = _open(b, "B", backend=backend, **options)
            _check_signature(signature, _signature(session))
            outputs = _run(session, names, feeds)
        except _Failure as error:
            raise _Failure(f"B fails {level}: {error}") from error
        return tuple(map(_compare, names, expected, outputs))

    outputs: tuple[Comparison, ...] = ()
    default_outputs: tuple[Comparison, ...] = ()
    failure = ""
    try:
        outputs = compare("with optimisations off")
        default_outputs = compare("at the default optimisation level", optimised=True)
    except _Failure as error:
        failure = str(error)
    return Verification(tuple(resolved), seed, zero_rows, outputs, default_outputs, failure)


class _Failure(Exception):
    """onnxruntime does not load or run a model."""


def _open(model: Model, role: str, *, backend: Backend | None = None, optimised: bool = False) -> ort.InferenceSession:
    what = f"{role} ({os.fspath(model)})" if isinstance(model, str | os.PathLike) else role
    if isinstance(model, str | os.PathLike) and (not os.path.isfile(model) or not os.path.getsize(model)):
        raise DynqError(f"{what} is {'empty' if os.path.isfile(model) else 'not a file'}")
    options = ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised; it need not be on the terminal too
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if backend:
        register(options, backend)
    with opening(model, options) as source:
        try:
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except Exception as error:
            if type(error).__name__ in _NOT_A_MODEL:
                raise DynqError(f"{what} is not an ONNX model: {_message(error)}") from error
            if backend is None:
                raise DynqError(f"{what} does not load in stock ONNX Runtime: {_message(error)}") from error
            raise _Failure(_message(error)) from error


def _run(session: ort.InferenceSession, names: list[str], feeds: Mapping[str, Array]) -> list[Array]:
    try:
        outputs: list[Array] = session.run(names, dict(feeds))
    except Exception as error:
        raise _Failure(_message(error)) from error
    for name, output in zip(names, outputs, strict=True):
        if not isinstance(output, np.ndarray) or output.dtype not in _DTYPES.values():
            kind = output.dtype if isinstance(output, np.ndarray) else type(output).__name__
            raise DynqError(f"the output {name} is of type {kind}, which cannot be verified")
    return outputs


def _run_a(
    session: ort.InferenceSession, names: list[str], feeds: Mapping[str, Array], resolved: Sequence[Input]
) -> list[Array]:
    try:
        return _run(session, names, feeds)
    except _Failure as error:
        assumed = [f"--shape {each.name}={'x'.join(map(str, each.shape))}" for each in resolved if each.assumed]
        advice = f" (assumed {' '.join(assumed)}; give other shapes so)" if assumed else ""
        raise DynqError(f"A does not run in stock ONNX Runtime{advice}: {error}") from error


def _signature(session: ort.InferenceSession) -> list[str]:
    inputs = sorted(f"input {each.name} of type {each.type}" for each in session.get_inputs())
    return inputs + [f"output {each.name}" for each in session.get_outputs()]


def _check_signature(a: list[str], b: list[str]) -> None:
    if a == b:
        return
    sides = (("A", sorted({*a} - {*b})), ("B", sorted({*b} - {*a})))
    found = "; ".join(f"only {role} has {', '.join(only)}" for role, only in sides if only)
    raise DynqError(f"A and B are not interchangeable: {found or 'their outputs are in another order'}")


def _resolve(declared: Sequence[Any], given: Mapping[str, Array], shapes: Mapping[str, Sequence[int]]) -> list[Input]:
    """The type and shape of every input: as given, else as the model fixes it, else assumed."""
    types = {each.name: each.type for each in declared}
    for name in (*given, *shapes):
        if name not in types:
            raise DynqError(f"the model has no input {name}; it has {', '.join(types) or 'none'}")
    known: dict[str, int] = {}
    for each in declared:
        if each.type not in _DTYPES:
            raise DynqError(f"the input {each.name} is of type {each.type}, which cannot be verified")
        if each.name in given and given[each.name].dtype != _DTYPES[each.type]:
            raise DynqError(f"the input {each.name} is {given[each.name].dtype}, expected {_DTYPES[each.type]}")
        shape = given[each.name].shape if each.name in given else shapes.get(each.name)
        if shape is None:
            continue
        fixed = [size if isinstance(size, int) else None for size in each.shape]
        if len(shape) != len(fixed) or any(size not in (None, got) for size, got in zip(fixed, shape, strict=True)):
            wanted = ", ".join(str(size or "?") for size in each.shape)
            raise DynqError(f"the input {each.name} has shape {list(shape)}, expected [{wanted}]")
        for size, got in zip(each.shape, shape, strict=True):
            if isinstance(size, str):
                known.setdefault(size, got)

    def resolve(each: Any) -> Input:
        assumed: dict[str, int] = {}

        def sized(size: int | str | None) -> int:
            if isinstance(size, int):
                return size
            if size in known:
                return known[size]
            if size and " + " in size:
                return sum(int(term) if term.isdecimal() else sized(term) for term in size.split(" + "))
            assumed[size or "?"] = _BATCH if "batch" in (size or "").lower() else _OTHER
            return assumed[size or "?"]

        exact = given[each.name].shape if each.name in given else shapes.get(each.name)
        shape = tuple(map(sized, each.shape)) if exact is None else tuple(exact)
        return Input(each.name, str(_DTYPES[each.type]), shape, each.name in given, assumed)

    return [resolve(each) for each in declared]


def _feeds(resolved: Sequence[Input], given: Mapping[str, Array], seed: int, zero_rows: bool) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {each.name: given[each.name] if each.given else _generate(each, rng, zero_rows) for each in resolved}


def _generate(each: Input, rng: np.random.Generator, zero_rows: bool) -> Array:
    dtype = np.dtype(each.dtype)
    low, high = 0, 2  # indices, masks, flags: the values that every model takes
    if dtype.kind in "iu" and dtype.itemsize == 1:  # codes
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max + 1
    elif dtype.kind in "iu" and math.prod(each.shape) == 1:  # a count
        low = 1
    try:
        if dtype.kind == "f":
            return _floats(each.shape, rng, zero_rows).astype(dtype)
        return np.asarray(rng.integers(low, high, each.shape)).astype(dtype)
    except (MemoryError, ValueError) as error:
        raise DynqError(f"the input {each.name} cannot be generated: {error}") from error


def _floats(shape: tuple[int, ...], rng: np.random.Generator, zero_rows: bool) -> Array:
    """Normal values; of every eight rows one has outliers, one is made for ties and one is zero.

    Outliers are +-127 units of 2**-4, and the row of ties holds multiples of half a unit: with a symmetric 8-bit scale,
    be it the row's or the tensor's, the quotients are exactly k or k + 1/2.
    """
    values = np.asarray(rng.standard_normal(shape))
    if values.ndim < 2 or values.size == 0:
        return values
    unit = 2.0**-4
    rows = values.reshape(-1, shape[-1])
    rows[0::8, 0] = 127 * unit
    rows[1::8] = rng.integers(-254, 255, rows[1::8].shape) * (unit / 2)
    rows[1::8, 0] = -127 * unit
    if zero_rows:
        rows[3::8] = 0
    return rows.reshape(shape)


def _compare(name: str, a: Array, b: Array) -> Comparison:
    result = Comparison(name, str(a.dtype), a.shape, a.size, _nans(a))
    if a.dtype != b.dtype or a.shape != b.shape:
        return replace(result, problem=f"B gives {b.dtype} {list(b.shape)}")
    p, q = a.ravel(), b.ravel()
    floating = a.dtype.kind == "f"
    unequal = _bits(p) != _bits(q)
    if floating:
        unequal &= ~(np.isnan(p) & np.isnan(q))
    indices = np.flatnonzero(unequal)
    if not indices.size:
        return replace(result, max_ulp=0 if floating else None)
    index = tuple(int(i) for i in np.unravel_index(indices[0], a.shape))
    p, q = p[indices], q[indices]
    if floating:
        numbers = ~(np.isnan(p) | np.isnan(q))
        p, q = p[numbers], q[numbers]
    return replace(
        result,
        differing=int(indices.size),
        max_abs=_largest(p, q, lambda x: x.astype(np.float64) if floating else x),
        max_ulp=_largest(p, q, _ordered) if floating else None,
        first=Difference(index, a[index].item(), b[index].item()),
    )


def _largest(p: Array, q: Array, measure: Callable[[Array], Array]) -> Any:
    """The largest distance of two elements; None if there are none."""
    if not p.size:
        return None
    p, q = measure(p), measure(q)
    if p.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return float(np.abs(p - q).max())
    high, low = _bits(np.maximum(p, q)), _bits(np.minimum(p, q))
    return int((high - low).max())  # unsigned, so that it cannot overflow


def _bits(values: Array) -> Array:
    return values.view(f"u{values.dtype.itemsize}")


def _ordered(values: Array) -> Array:
    """Integers in the order of the floating-point values, neighbours differing by one; -0 and +0 are both 0."""
    signed = values.view(f"i{values.dtype.itemsize}")
    return np.where(signed < 0, np.iinfo(signed.dtype).min - signed, signed)


def _nans(values: Array) -> int:
    return int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _message(error: BaseException) -> str:
    """An error of onnxruntime on one line, without its number."""
    text = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)[:400]
