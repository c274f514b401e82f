"""Compares two models on the same inputs: the original in stock ONNX Runtime, the other with the plugin.

Bit for bit; but for products of floats that the other has as integer products, which product_check.py compares.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from ..backends.register import register
from ..errors import DynqError
from .products import Product, check_products
from .sessions import Array, Failure, Input, make_feeds, open_session, resolve_inputs, run, run_original

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..runtime import Model


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
        outputs: The comparison that decides: both models with all of onnxruntime's optimisations off. Where B has
            products to verify, it runs on A's results of these, and outputs that are such results are not in here.
        default_outputs: For information: B at onnxruntime's default level, whose fusions change the last bits.
        failure: Why B does not load or run; empty if it does.
        products: The products of floats that are integer products in B: each decides, too.
        unreachable: How many more are in subgraphs and functions, where they are not verified; neither is what comes
            out of these: the rest runs on A's.
        end_to_end: For information, where B has such products: B from the inputs to the outputs.
        nudged: Beside it: A itself, its results of these products being changed by 2**-22, relatively.
    """

    inputs: tuple[Input, ...]
    seed: int
    zero_rows: bool
    outputs: tuple[Comparison, ...]
    default_outputs: tuple[Comparison, ...]
    failure: str = ""
    products: tuple[Product, ...] = ()
    unreachable: int = 0
    end_to_end: tuple[Comparison, ...] = ()
    nudged: tuple[Comparison, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether B loads and runs at both levels, its products are right and all else equals A's bit for bit."""
        good = all(output.equal for output in self.outputs) and not any(each.problem for each in self.products)
        return good and not self.failure

    @property
    def worst_product(self) -> Product | None:
        """The first wrong one, or that which comes nearest to the error that it may have."""
        return max(self.products, key=lambda each: (bool(each.problem), each.b_error / each.allowed), default=None)

    def to_dict(self) -> dict[str, Any]:
        """The same as plain data, for JSON; numbers that JSON does not have ("nan", "inf") are text."""
        worst = None if self.worst_product is None else self.worst_product.name
        return {"passed": self.passed, "worst_product": worst, **_plain(asdict(self))}


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

    Where B has integer products in place of products of floats (:func:`ort_dynq.rewrite` without ``exact``), their last
    bits differ. B then runs on A's own results of these, and must give A's outputs bit for bit; and each product, from
    A's own values, must be about as near as A's to what A's nodes come to in float64: :class:`Product` says how near.

    B runs at the default optimisation level too, where it must not fail; differences there are information only.

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
    session = open_session(a, "A")
    names = [output.name for output in session.get_outputs()]
    signature = _signature(session)
    declared, given = session.get_inputs(), dict(inputs or {})
    resolved = resolve_inputs(declared, given, shapes or {})
    zero_rows = True
    feeds = make_feeds(resolved, given, seed, zero_rows)
    expected = run_original(session, names, feeds, resolved)
    if any(_nans(array) == array.size > 0 for array in expected) and len(given) < len(resolved):
        zero_rows = False
        feeds = make_feeds(resolved, given, seed, zero_rows)
        expected = run_original(session, names, feeds, resolved)
    del session  # before B is opened: both may be large

    def compare(level: str, **options: bool) -> tuple[Comparison, ...]:  # end to end
        try:
            session = open_session(b, "B", backend=backend, **options)
            _check_signature(signature, _signature(session))
            outputs = run(session, names, feeds)
        except Failure as error:
            raise Failure(f"B fails {level}: {error}") from error
        return tuple(map(_compare, names, expected, outputs))

    result = Verification(tuple(resolved), seed, zero_rows, (), ())
    try:
        result = replace(result, outputs=compare("with optimisations off"))
        result = replace(result, default_outputs=compare("at the default optimisation level", optimised=True))
        try:
            found = check_products(a, b, feeds, backend)
        except Failure as error:
            raise Failure(f"B fails with A's results of its integer products: {error}") from error
    except Failure as error:
        return replace(result, failure=str(error))
    if found is None:
        return result
    return replace(
        result,
        outputs=tuple(map(_compare, found.a, found.a.values(), found.b.values())),
        products=found.products,
        unreachable=found.unreachable,
        end_to_end=result.outputs,
        nudged=tuple(map(_compare, names, found.original, found.nudged)),
    )


def _signature(session: ort.InferenceSession) -> list[str]:
    inputs = sorted(f"input {each.name} of type {each.type}" for each in session.get_inputs())
    return inputs + [f"output {each.name}" for each in session.get_outputs()]


def _check_signature(a: list[str], b: list[str]) -> None:
    if a == b:
        return
    sides = (("A", sorted({*a} - {*b})), ("B", sorted({*b} - {*a})))
    found = "; ".join(f"only {role} has {', '.join(only)}" for role, only in sides if only)
    raise DynqError(f"A and B are not interchangeable: {found or 'their outputs are in another order'}")


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
