"""``ort-dynq verify``: compares two models."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import DynqError
from ..formats import check_file
from .accuracy import accuracy_status, accuracy_text, accuracy_verdict, gates_of, has_gates, reference_of
from .arguments import add_data, add_gates, check_data, given_inputs, given_sets
from .command import VERDICTS, Command, Outcome
from .render import format_shape, inputs_text, one_line, table, working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..storage import Model, ModelFile
    from ..tools.verification.comparison import Comparison, Difference
    from ..tools.verification.verification import Verification

_STATUSES = list(VERDICTS)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the original; it runs in stock ONNX Runtime, all optimizations off")
    parser.add_argument("b", metavar="B", help="the model to verify; it runs with the plugin")
    add_gates(parser)
    add_data(parser)


def _run(arguments: argparse.Namespace) -> Outcome:
    check_file(arguments.a, "A")
    check_file(arguments.b, "B")
    check_data(arguments)
    given_inputs(arguments)  # their errors are the first thing to say
    from ..storage import ModelFile

    a, b = ModelFile(arguments.a), ModelFile(arguments.b)  # files may change: read once
    if has_gates(arguments) or _is_quantization(a, b):
        return _compare_accuracy(arguments, a, b)
    verification, sets = compare(arguments, a, b)
    compared = {"a": arguments.a, "b": arguments.b, "compared": "bits", "sets": sets}
    data = {**compared, **verification.to_dict(), "accuracy": None}

    def text() -> Iterator[RenderableType]:
        yield from sets_text(arguments, sets)
        yield from verification_text(verification, verbose=arguments.verbose > 0)
        yield verdict(verification)

    return Outcome(data, text, exit_status([verification]))


def _is_quantization(a: Model, b: Model) -> bool:
    """Returns whether B was quantized and A was not. Errors of a model are left to the comparison."""
    from ..rewriter.metadata import QUANTIZED
    from ..storage import load

    with contextlib.suppress(DynqError):
        return QUANTIZED in load(b).metadata_props and QUANTIZED not in load(a).metadata_props
    return False


def _compare_accuracy(arguments: argparse.Namespace, a: ModelFile, b: ModelFile) -> Outcome:
    """Compares the outputs of a quantized model with the float model's, and their limits."""
    reference = reference_of(arguments, a)
    with working("running both models"):
        from ..tools.accuracy.accuracy import compare_models

        accuracy = compare_models(reference, b, backend=arguments.backend, gates=gates_of(arguments))

    def text() -> Iterator[RenderableType]:
        yield from accuracy_text(accuracy, arguments.data)
        yield from accuracy_verdict(accuracy)

    compared = {"a": arguments.a, "b": arguments.b, "compared": "accuracy", "sets": len(accuracy.data.sets)}
    verdict = {"passed": accuracy.status == "passed", "status": accuracy.status, "reason": accuracy.reason}
    return Outcome({**compared, **verdict, "accuracy": accuracy.to_dict()}, text, accuracy_status(accuracy))


def sets_text(arguments: argparse.Namespace, sets: int) -> Iterator[RenderableType]:
    """Yields a line if models were compared on several sets of data."""
    if sets > 1:
        yield one_line(f"{sets} sets of data from {arguments.data}: the worst one follows")


def verdict(verification: Verification, a: str = "A", b: str = "B") -> str:
    """Returns the last line on a verification: its status, and the reason if it did not pass.

    Args:
        verification: The verification.
        a, b: What the user calls the models.
    """
    text, _ = VERDICTS[verification.status]
    reason = renamed({"A": a, "B": b}, verification.reason)
    return one_line(f"{text}: {reason}") if reason else text


def exit_status(verifications: Iterable[Verification]) -> int:
    """Returns the exit status of the worst of some verifications."""
    worst = max((_STATUSES.index(each.status) for each in verifications), default=0)
    return VERDICTS[_STATUSES[worst]][1]


def compare(arguments: argparse.Namespace, a: Any, b: Any) -> tuple[Verification, int]:
    """Verifies B against A with the data and the backend that the arguments name.

    Returns:
        The verification, of several sets of data the worst one, and the number of sets.
    """
    shapes, inputs = given_inputs(arguments)
    with working("running both models"):
        from ..tools.verification.verification import verify

        sets = given_sets(arguments, a) or (inputs,)
        found = [
            verify(a, b, inputs=each, shapes=shapes, seed=arguments.seed, backend=arguments.backend) for each in sets
        ]
        return max(found, key=lambda each: _STATUSES.index(each.status)), len(sets)


def verification_text(
    verification: Verification, *, verbose: bool, a: str = "A", b: str = "B"
) -> Iterator[RenderableType]:
    """Renders a verification without its verdict: its data, and what was compared, which is one line if it passed.

    Args:
        verification: The verification.
        verbose: Whether to render all comparisons if it passed, too.
        a, b: What the user calls the models.
    """
    yield from inputs_text(verification.inputs, verification.seed)
    if not verification.zero_rows:
        yield "the generated inputs have no rows of zeros, which would make a whole output NaN"
    if verification.saturating_a or verification.saturating_b:
        yield (
            "On this CPU, stock ONNX Runtime's products of uint8 by int8 saturate: "
            f"{verification.saturating_a} in {a}, {verification.saturating_b} in {b}. "
            "With optimizations off, they are computed exactly here"
        )
    if verification.passed and not verbose:
        yield from _summary(verification)
        return
    say = functools.partial(renamed, {"A": a, "B": b})
    yield from _products(verification, say)
    if verification.outputs:
        given = f", with {a}'s results of these products" if verification.end_to_end else ""
        yield f"\nAll optimizations off{given}:"
        yield from _comparisons(verification.outputs, "red", say)
    if verification.end_to_end:
        yield from _end_to_end(verification, say)
    if verification.default_outputs:
        yield f"\n{b} at the default optimization level, for information:"
        yield from _comparisons(verification.default_outputs, "", say)


def renamed(names: Mapping[str, str], text: str) -> str:
    """Returns a sentence on the models A and B with other names. An output A, before a colon, keeps its name."""
    return re.sub(r"(?<![\w/.])[AB](?=[ ',;]|$)", lambda found: names[found[0]], text)


@contextlib.contextmanager
def named_as(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of comparisons in the block say A and B, which the command does not have: they get these names."""
    try:
        yield
    except DynqError as error:
        names = {"A": os.fspath(a), "B": os.fspath(b)}
        text = str(error).replace(f"A ({names['A']})", "A").replace(f"B ({names['B']})", "B")
        if text[:2] in ("A:", "B:"):  # an error begins with its model, never with an output
            text = names[text[0]] + text[1:]
        raise type(error)(renamed(names, text)) from error


def _summary(verification: Verification) -> Iterator[RenderableType]:
    fusions = sum(each.is_fusion for each in verification.products)
    kinds = ((len(verification.products) - fusions, "integer product"), (fusions, "fusion"))
    found = " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in kinds if count)
    rest = "every compared output" if verification.unreachable else "every output" if not found else "everything else"
    products = f"{found}: right, compared with float64; " if found else ""
    yield f"{products}{rest} is equal bit for bit"
    yield from _skipped(verification)
    yield from _unreachable(verification)


def _comparisons(outputs: Sequence[Comparison], differing: str, say: Callable[[str], str]) -> Iterator[RenderableType]:
    """Renders comparisons; `differing` is the style of outputs that differ."""
    rows = []
    for each in outputs:
        ulp = "-" if each.problem or each.max_ulp is None else each.max_ulp
        rows.append((each.name, each.dtype, format_shape(each.shape), each.elements, each.nans, *_measured(each), ulp))
    head = ("output", "type", "shape", "elements", "NaN", "differing", "max abs", "max ULP")
    yield table(head, rows, style=lambda row: differing if row[5] else "")
    for each in outputs:
        if each.problem:
            yield one_line(f"{each.name}: {say(each.difference)}")
        if each.elements and not each.finite:
            yield one_line(f"{each.name}: no finite value could be compared")
        if each.first is not None:
            values = say(_values(each.dtype, each.first))
            yield one_line(f"{each.name} first differs at {list(each.first.index)}: {values}")


def _products(verification: Verification, say: Callable[[str], str]) -> Iterator[RenderableType]:
    products, worst = verification.products, verification.worst_product
    if worst is not None:
        fusions = sum(each.is_fusion for each in products)
        kinds = [
            (len(products) - fusions, "Float products that became integer products", "2^-24 * abs(x) @ abs(w)"),
            (fusions, "Fusions", "2^-24 * abs(y)"),
        ]
        counts = " ".join(f"{name}: {count}." for count, name, _ in kinds if count)
        units = " and ".join(unit for count, _, unit in kinds if count)
        computed = say("Each is computed from A's values and compared with float64")
        yield f"\n{counts} {computed}; errors are in units of {units}"
        if not (worst.problem or worst.unchecked):
            errors = say(f"B's error {worst.b_error:.3g}, A's {worst.a_error:.3g}, allowed {worst.allowed:.3g}")
            depth = f", K = {worst.depth}" if worst.depth else ""
            yield one_line(f"worst: {worst.name}{depth}: {errors}")
        yield from (one_line(f"incorrect: {each.name}: {say(each.problem)}") for each in products if each.problem)
        unchecked = (each for each in products if each.unchecked)
        yield from (one_line(f"not checked: {each.name}: {say(each.unchecked)}") for each in unchecked)
        noises = [(each.b_noise, each.a_noise) for each in products if each.a_noise is not None]
        if noises:
            b, a = (max(noise for noise in of_model if noise is not None) for of_model in zip(*noises, strict=True))
            yield say(
                f"{len(noises)} of them quantize their activations in A, too. Their noise is at most {b:.1f} dB in B, "
                f"{a:.1f} dB in A"
            )
        yield from _skipped(verification)
    yield from _unreachable(verification)


def _skipped(verification: Verification) -> Iterator[RenderableType]:
    if skipped := sum(each.skipped for each in verification.products):
        yield f"{skipped} of their elements are not compared: they have no finite float32 reference"


def _unreachable(verification: Verification) -> Iterator[RenderableType]:
    if count := verification.unreachable:
        plural = "s" if count > 1 else ""
        what = f"{count} integer product{plural} or fusion{plural}"
        yield f"Not compared: {what} in subgraphs or functions, and their outputs"


def _end_to_end(verification: Verification, say: Callable[[str], str]) -> Iterator[RenderableType]:
    perturbed = ", and A with its results of these products changed by 2^-22" if verification.perturbed else ""
    yield say(f"\nEnd to end, for information: B{perturbed}:")
    others = verification.perturbed or [None] * len(verification.end_to_end)
    rows = [
        (b.name, b.elements, *_measured(b), *_measured(a)) for b, a in zip(verification.end_to_end, others, strict=True)
    ]
    head = ("B differing", "B max abs", "changed A differing", "changed A max abs")
    yield table(("output", "elements", *map(say, head)), rows)
    if verification.not_perturbed:
        yield one_line(say(f"Changed A is not shown: {verification.not_perturbed}"))


def _measured(each: Comparison | None) -> tuple[object, str]:
    if each is None or each.problem:
        return "-", "-"
    return each.differing, "-" if each.max_abs is None else f"{each.max_abs:.6g}"


def _values(dtype: str, difference: Difference) -> str:
    """Writes both values with the fewest digits that identify them in their type."""
    from ..inputs import NAMED

    a, b = (NAMED[dtype].type(value) for value in (difference.a, difference.b))
    return f"A {a!s}, B {b!s}"


COMMAND = Command(
    "verify",
    "run two models on the same inputs; compare every output bit for bit, and integer products with float64; of a "
    "quantized model, compare the accuracy",
    (
        "ort-dynq verify model.onnx fast.onnx --shape x=1x128x768",
        "ort-dynq verify float.onnx int8.onnx --data samples.npz --min-snr 20",
    ),
    _arguments,
    _run,
    verifies=True,
)
