"""Compares two models on the same inputs: A in stock ONNX Runtime, B with the plugin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import onnxruntime as ort

from ...backends.register import register
from ...errors import DynqError
from ...inputs import Array, Input, make_feeds, resolve_inputs
from ...rewriter.metadata import QUANTIZED
from ...shown import Shown, Table
from ..measuring.plain import plain
from ..measuring.sessions import SessionError, check_shapes, check_signature, open_session, run, run_original, signature
from .comparison import Comparison, compare, count_nans
from .products import Product, check_products
from .saturation import cpu_saturates, without_saturation

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...storage import Model

Status = Literal["passed", "failed", "unchecked"]

_NOTHING_COMPARED = "nothing was compared: every output comes from a subgraph with integer products or fusions"
_NOTHING_FINITE = "no finite value could be compared: every element of A's outputs is NaN or infinite, or there is none"


@dataclass(frozen=True, repr=False)
class Verification(Shown):
    """The result of :func:`verify`.

    Attributes:
        inputs: The inputs that both models ran on.
        seed: The seed of the generated values.
        zero_rows: Whether the generated values contain rows of zeros. Such rows are left out if they make a whole
            output NaN.
        outputs: The comparison that decides the result: both models with optimizations off. If B has integer products,
            B runs on A's results of these products, and outputs that are such a result are left out.
        default_outputs: For information: B at the default optimization level. Its fusions change the last bits.
        failure: Why B does not load or run; empty otherwise.
        unchecked: Why the comparison says nothing about B, or not enough; empty otherwise.
        products: The float products of A that are integer products in B, and the fusions of B. They also decide the
            result.
        unreachable: The number of integer products and fusions in subgraphs, except for the branch that an input of the
            model chooses, which takes the place of its If. They are not compared, and neither are the outputs of the
            nodes that contain them: the nodes that use these outputs run on A's.
        end_to_end: For information, if B has integer products: B from its inputs to its outputs.
        perturbed: For information, to compare with `end_to_end`: A itself, with a relative change of 2**-22 in its
            results of these products; of 2**-9 if they are float16.
        not_perturbed: Why `perturbed` is not known: A declares wrong shapes and does not load with the change.
        changed: A constant that A and B have under one name, with different bits, if B has integer products; empty if
            there is none.
        saturating_a, saturating_b: For information: the integer products of A and of B that stock ONNX Runtime computes
            incorrectly on this CPU, because they saturate. With optimizations off, they are computed exactly.
    """

    inputs: tuple[Input, ...]
    seed: int
    zero_rows: bool
    outputs: tuple[Comparison, ...]
    default_outputs: tuple[Comparison, ...]
    failure: str = ""
    unchecked: str = ""
    products: tuple[Product, ...] = ()
    unreachable: int = 0
    end_to_end: tuple[Comparison, ...] = ()
    perturbed: tuple[Comparison, ...] = ()
    not_perturbed: str = ""
    changed: str = ""
    saturating_a: int = 0
    saturating_b: int = 0

    def _line(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.status}{reason}; outputs: {len(self.outputs)}, products: {len(self.products)}"

    def _tables(self) -> Iterator[Table]:
        outputs = (
            (each.name, each.dtype, list(each.shape), each.elements, each.differing, each.max_abs, each.problem)
            for each in self.outputs
        )
        yield ("output", "type", "shape", "elements", "differing", "max abs", "problem"), outputs
        products = (
            (each.name, each.elements, each.a_error, each.b_error, each.allowed, each.problem or each.unchecked)
            for each in self.products
        )
        yield ("product", "elements", "error of A", "of B", "allowed", "problem"), products

    @property
    def status(self) -> Status:
        """Whether B is right.

        "passed": B loads and runs at both levels, its products are correct, and every other output equals A's.
        "failed": It does not. "unchecked": Nothing is wrong as far as it could be compared, but that is not enough.
        """
        return "failed" if self._problem else "unchecked" if self._unchecked else "passed"

    @property
    def reason(self) -> str:
        """Why the status is not "passed": the first reason; empty if it is."""
        return self._problem or self._unchecked

    @property
    def passed(self) -> bool:
        """Whether the status is "passed"."""
        return self.status == "passed"

    @property
    def _problem(self) -> str:
        problems = [self.failure, *(f"{each.name}: {each.problem}" for each in self.products if each.problem)]
        problems += [f"{each.name}: {each.difference}" for each in self.outputs if not each.equal]
        problems += [f"{self.changed} has other numbers in A"] * bool(self.changed)
        return next(filter(None, problems), "")

    @property
    def _unchecked(self) -> str:
        reasons = [*(f"{each.name}: {each.unchecked}" for each in self.products if each.unchecked), self.unchecked]
        return next(filter(None, reasons), "")

    @property
    def worst_product(self) -> Product | None:
        """The first product with a problem, or that is not checked, or the one with the error nearest to its bound."""
        return max(
            self.products,
            key=lambda each: (bool(each.problem), bool(each.unchecked), each.b_error / each.allowed),
            default=None,
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON. NaN and infinities, which JSON does not have, become text."""
        worst = None if self.worst_product is None else self.worst_product.name
        head = {"passed": self.passed, "status": self.status, "reason": self.reason, "worst_product": worst}
        return {**head, **plain(self)}


def verify(
    a: Model,
    b: Model,
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
    backend: Backend = "native",
) -> Verification:
    """Runs A in stock ONNX Runtime and B with the plugin, all optimizations off, and compares every output bit for bit.

    If B replaces float products by integer products (:func:`ort_dynq.rewrite` without ``exact``), verification has two
    parts. 1. Each product is computed from A's intermediate values and compared with a float64 reference; B's error may
    be at most twice A's, or 8 units, see :class:`Product`. 2. B's products are overridden with A's results, and every
    output must then equal A's bit for bit.

    What B fuses is computed from A's intermediate values, too, see fusions.py.

    B also has to run at the default optimization level. Differences there are for information only.

    Integer products that A has, and B takes over, are computed as ONNX defines them, also on CPUs where they saturate
    in stock ONNX Runtime: see saturation.py.

    Args:
        a: The original: a path, a serialized model, a ModelProto or an onnx_ir Model.
        b: The model to verify.
        inputs: Values of inputs, by name. Others are generated: normal floats with ties, outliers and rows of zeros.
        shapes: Shapes of generated inputs, by name. Other dynamic sizes are assumed.
        seed: The seed of the generated values.
        backend: How B gets the operators, see :func:`ort_dynq.register`.

    Returns:
        What was compared; `passed` says whether B is right.

    Raises:
        DynqError: A or B is not a model, their inputs or outputs differ, an input does not fit, A does not run, B was
            quantized by :func:`ort_dynq.quantize` and A was not, or the operators cannot be registered.
    """
    register(ort.SessionOptions(), backend)  # an error of the backend is not an error of B
    exact_a, count_a = without_saturation(a)
    session = open_session(exact_a, "A")
    names = [output.name for output in session.get_outputs()]
    expected_signature, was_quantized = signature(session), _is_quantized(session)
    declared, given = session.get_inputs(), dict(inputs or {})
    resolved = resolve_inputs(declared, given, shapes or {})
    zero_rows = True
    feeds = make_feeds(resolved, given, seed, zero_rows)
    expected = run_original(session, names, feeds, resolved)
    if any(count_nans(array) == array.size > 0 for array in expected) and len(given) < len(resolved):
        zero_rows = False
        feeds = make_feeds(resolved, given, seed, zero_rows)
        expected = run_original(session, names, feeds, resolved)
    del session  # before B is opened: both may be large
    exact_b, count_b = without_saturation(b)

    def compare_outputs(level: str, optimize: bool) -> tuple[Comparison, ...]:
        try:
            session = open_session(b if optimize else exact_b, "B", backend=backend, optimize=optimize)
            check_signature(expected_signature, signature(session))
            check_shapes(resolved, session)
            if _is_quantized(session) and not was_quantized:
                raise DynqError(
                    "B was quantized, so its outputs differ from A's; `ort-dynq bench A B --report page.html` shows "
                    "how much"
                )
            outputs = run(session, names, feeds)
        except SessionError as error:
            raise SessionError(f"B fails {level}: {error}") from error
        return tuple(map(compare, names, expected, outputs))

    result = Verification(tuple(resolved), seed, zero_rows, (), ())
    if (count_a or count_b) and cpu_saturates():
        result = replace(result, saturating_a=count_a, saturating_b=count_b)
    try:
        result = replace(result, outputs=compare_outputs("with optimizations off", False))
        result = replace(result, default_outputs=compare_outputs("at the default optimization level", True))
        try:
            found = check_products(exact_a, exact_b, feeds, backend)
        except SessionError as error:
            raise SessionError(f"B fails with A's results of its integer products: {error}") from error
    except SessionError as error:
        return replace(result, failure=str(error))
    is_given_empty = any(_is_given_empty(each, feeds[each.name]) for each in declared)
    if found is None:
        return _with_finite(result, is_given_empty)
    # With values of float16 as outputs, A may round them where it did not. B reads them rounded, too.
    results = zip(names, found.original, strict=True)
    result = replace(
        result,
        outputs=tuple(compare(name, each, found.b[name]) for name, each in results if name in found.b),
        products=found.products,
        unreachable=found.unreachable,
        unchecked=found.unchecked or ("" if found.products or found.b else _NOTHING_COMPARED),
        end_to_end=result.outputs,
        perturbed=tuple(map(compare, names, found.original, found.perturbed)),
        not_perturbed=found.not_perturbed,
        changed=found.changed,
    )
    return _with_finite(result, is_given_empty)


def _is_given_empty(declared: ort.NodeArg, array: Array) -> bool:
    """Returns whether an input has no elements, although the model allows some."""
    dims = zip(declared.shape, array.shape, strict=False)
    return array.size == 0 and not any(dim == size == 0 for dim, size in dims)


def _with_finite(result: Verification, is_given_empty: bool) -> Verification:
    """Notes if nothing that was compared is a finite number. Outputs without elements are equal if the model has none
    for any inputs.
    """
    is_empty = not is_given_empty and all(each.elements == 0 and each.equal for each in result.outputs)
    is_compared = (
        is_empty
        or any(each.finite for each in result.outputs)
        or any(each.elements > each.skipped for each in result.products if not each.unchecked)
    )
    return result if is_compared or result.unchecked else replace(result, unchecked=_NOTHING_FINITE)


def _is_quantized(session: ort.InferenceSession) -> bool:
    return QUANTIZED in session.get_modelmeta().custom_metadata_map
