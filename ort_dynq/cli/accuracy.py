"""Text on the accuracy of a quantized model, and the arguments that name the data; not a subcommand."""

from __future__ import annotations

import argparse
import gc
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from .arguments import check_data, given_inputs
from .command import VERDICTS
from .render import SMOKE_TEST, Figure, inputs_text, one_line, progress, table, working

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..inputs import Array
    from ..quantizer.options import Forms
    from ..rewriter import Result
    from ..tools.accuracy.accuracy import Accuracy
    from ..tools.accuracy.gates import Gates
    from ..tools.accuracy.layers import LayerAccuracy
    from ..tools.accuracy.outputs import OutputAccuracy
    from ..tools.accuracy.reference import Reference
    from ..tools.measuring.timing import Speed
    from ..tools.quantization.outcome import Selection

_LOW_SNR = 25.0  # decibels, below which results are seen to change
_MAX_LAYERS = 12  # in a table; JSON has all
_SECONDS = 0.25  # to measure the layers' shares of the time


def reference_of(
    arguments: argparse.Namespace, source: str | os.PathLike[str], sets: Sequence[Mapping[str, Array]] | None = None
) -> Reference:
    """Runs the float model on sets of data, or else on the data that the arguments name.

    Raises:
        DynqError: The data do not fit, or the model does not run.
    """
    check_data(arguments)
    shapes, inputs = given_inputs(arguments)
    with working("running the float model"):
        from ..tools.accuracy.reference import Reference

        # Modules have most objects: without them, the collections that free sessions take half the time. Collections
        # between these free nothing large.
        gc.freeze()
        gc.set_threshold(100_000)
        return Reference(source, sets or arguments.data, inputs=inputs, shapes=shapes, seed=arguments.seed)


def gates_of(arguments: argparse.Namespace) -> Gates:
    """Returns the limits that the arguments of :func:`.arguments.add_gates` set."""
    from ..tools.accuracy.gates import Gates

    return Gates(arguments.min_snr, arguments.min_agreement, arguments.min_cosine)


def has_gates(arguments: argparse.Namespace) -> bool:
    """Returns whether the arguments set a limit."""
    return any(each is not None for each in (arguments.min_snr, arguments.min_agreement, arguments.min_cosine))


def selection_of(
    arguments: argparse.Namespace, reference: Reference, quantize: Callable[[Forms], Result]
) -> tuple[Selection, Speed | None]:
    """Returns the selection for the limits, and its cost, a ratio of times; None if all layers have one form."""
    from ..tools.quantization.selection import select, timed

    with progress() as track:
        selection = select(reference, quantize, gates_of(arguments), backend=arguments.backend, track=track)
    if not selection.layers:
        return selection, None
    with working("timing the model with and without these forms"):
        return timed(selection, reference, backend=arguments.backend)


def accuracy_of(arguments: argparse.Namespace, reference: Reference, result: Result) -> Accuracy:
    """Compares a quantized model with its float model: what the table of layers shows, or all for JSON."""
    from ..tools.accuracy.accuracy import measure

    seconds, effects = _SECONDS if arguments.timing else 0, None if arguments.json else _MAX_LAYERS
    with progress() as track:
        return measure(
            *(reference, result.model),
            backend=arguments.backend,
            seconds=seconds,
            effects=effects,
            gates=gates_of(arguments) if has_gates(arguments) else None,
            track=track,
        )


def accuracy_text(accuracy: Accuracy, data: str | None, more: str = "--data") -> Iterator[RenderableType]:
    """Renders the comparison of a quantized model with its float model.

    Args:
        accuracy: The comparison.
        data: The value of --data.
        more: The option that gives data of the user; empty if it was given.
    """
    count = len(accuracy.data.sets)
    yield ""
    if data:
        yield one_line(f"accuracy on {count} set{'s' if count > 1 else ''} of data from {data}:")
    else:
        yield from inputs_text(accuracy.data.inputs, accuracy.data.seed)
        if accuracy.data.is_generated and more:
            yield SMOKE_TEST.replace("--data", more)
    yield from _outputs(accuracy.outputs)
    if accuracy.layers:
        yield ""
        yield from _layers(accuracy.layers)
    if accuracy.unreachable:
        count = accuracy.unreachable
        yield (
            f"not measured: {count} quantized layer{'s' if count > 1 else ''} "
            "(in subgraphs or functions, Gemm with transA, or ConvInteger)"
        )


def accuracy_verdict(accuracy: Accuracy | None) -> Iterator[str]:
    """Yields the last line on a comparison that says nothing, as `verify` has it, or the lines on its limits."""
    if accuracy is None:
        return
    if accuracy.gates or accuracy.unchecked:
        text, _ = VERDICTS[accuracy.status]
        yield one_line(f"{text}: {accuracy.reason or '; '.join(each.text for each in accuracy.gates)}")


def accuracy_status(accuracy: Accuracy | None) -> int:
    """Returns the exit status of a comparison."""
    return 0 if accuracy is None else VERDICTS[accuracy.status][1]


def warning_on(arguments: argparse.Namespace, accuracy: Accuracy | None, timed_snr_db: float | None) -> str:
    """Returns a warning if results of a quantized model probably differ, with the command that keeps them.

    Args:
        arguments: They name the models and the data.
        accuracy: The accuracy; None if it was not measured.
        timed_snr_db: The smallest ratio of an output in the run that was timed; it counts if there is no accuracy.

    Returns:
        An empty text if an output has 25 dB and no decision changes on data of the user, or if these set limits.
    """
    data = arguments.data or "samples.npz"
    command = f"ort-dynq quantize {arguments.model} -o {arguments.output} --data {data} --min-"
    if accuracy is None:
        if timed_snr_db is None or timed_snr_db >= _LOW_SNR:
            return ""
        text = f"an output has {timed_snr_db:.0f} dB on generated data, less than {_LOW_SNR:g}"
        return f"{text}: see it on yours, and keep it, with `{command}snr 30`"
    if accuracy.gates or accuracy.unchecked:
        return ""
    low = min((each for each in accuracy.outputs if each.snr_db is not None), key=_snr_of, default=None)
    changed = max(accuracy.outputs, key=lambda each: each.changed, default=None)
    texts, limit = [], ""
    if low is not None and _snr_of(low) < _LOW_SNR:
        texts.append(f"{low.name} has {_snr_of(low):.1f} dB, less than {_LOW_SNR:g}")
        limit = "snr 30"
    if changed is not None and changed.changed and not accuracy.data.is_generated:
        texts.append(f"{changed.changed} decisions of {changed.name} change (agreement {changed.agreement:.4f})")
        limit = limit or "agreement 1"
    return f"{', and '.join(texts)}: `{command}{limit}` keeps more" if texts else ""


def _snr_of(output: OutputAccuracy) -> float:
    return math.inf if output.snr_db is None else output.snr_db


def selection_text(selection: Selection, gates: Gates, cost: Speed | None) -> Iterator[RenderableType]:
    """Renders which layers get another form to reach limits, how much time that costs, and what each form gives.

    Args:
        selection: The selection.
        gates: The limits that were asked for.
        cost: The time with these forms / the time with all layers quantized alike; None if they are.
    """
    wanted = gates.wanted
    yield ""
    if not selection.layers or cost is None:
        yield f"The outputs reach {wanted} with all layers quantized: {selection.snr_db:.1f} dB"
    else:
        yield (
            f"{_changes(selection)} to reach {wanted}: {selection.all_snr_db:.1f} dB without, "
            f"{selection.snr_db:.1f} dB with. "
            + (cost.busy if cost.ratio is None else f"The model takes {cost.ratio:.2f} times as long (1 thread)")
        )
        rows = [(each.name, each.form, *_ratios(each.before), *_ratios(each.after)) for each in selection.layers]
        head = ("layer, worst first", "becomes", "own dB", "outputs dB", "own, then", "outputs, then")
        yield table(head, rows)
        yield from _candidates(selection, has_cosine=gates.min_cosine is not None)
    if selection.kept_back:
        what = f"{selection.kept_back} of the sets of data were kept back"
        if selection.attempts > 1:
            what += ", and made the limits stricter after a choice that failed on them, so they are not quite unseen"
        yield one_line(f"unseen: {what}: " + "; ".join(f"{each.text}, {each.status}" for each in selection.unseen))
    if names := selection.not_measured:
        yield one_line(
            f"not measured: {len(names)} quantized layer{'s' if len(names) > 1 else ''} that no data reached: "
            f"{', '.join([*names[:_MAX_LAYERS], *(['...'] if len(names) > _MAX_LAYERS else [])])}"
        )


def _changes(selection: Selection) -> str:
    """Returns how many layers get which form."""
    floats = sum(each.stays_float for each in selection.layers)
    counts = Counter(each.form for each in selection.layers if not each.stays_float)
    texts = [f"{count} layer{'s get' if count > 1 else ' gets'} {form}" for form, count in counts.items()]
    texts += [f"{floats} layer{'s stay' if floats > 1 else ' stays'} in float"] * bool(floats)
    return " and ".join(texts)


def _candidates(selection: Selection, *, has_cosine: bool) -> Iterator[RenderableType]:
    """Renders what each form of all layers gives, and the selected forms."""
    from ..tools.quantization.outcome import worst_of

    measures = {"snr_db": ("dB", 1), "agreement": ("agreement", 4)} | ({"cosine": ("cosine", 5)} if has_cosine else {})
    floats = next((each.ms for each in selection.candidates if each.ms is not None and each.name == "float"), None)
    rows = []
    for each in selection.candidates:
        seen, unseen = worst_of(each.outputs), worst_of(each.unseen)
        figures = [Figure(found[name], digits) for name, (_, digits) in measures.items() for found in (seen, unseen)]
        speed = Figure(floats / each.ms if floats is not None and each.ms else None, 2)
        rows.append((each.name, *figures, speed))
    head = [title for name, _ in measures.values() for title in (name, "unseen")]
    yield ""
    yield table(("form of all", *head, "x float"), rows)


def _ratios(layer: LayerAccuracy | None) -> tuple[Figure, Figure]:
    ratios = (None, None) if layer is None else (layer.snr_db, layer.output_snr_db)
    return Figure(ratios[0], 1), Figure(ratios[1], 1)


def _outputs(outputs: Sequence[OutputAccuracy]) -> Iterator[RenderableType]:
    rows = [
        (
            *(each.name, each.elements, Figure(each.snr_db, 1)),
            *(Figure(each.cosine_worst, 6), Figure(each.cosine_mean, 6)),
            "-" if each.max_abs is None else f"{each.max_abs:.4g}",
            "-" if each.agreement is None else f"{100 * each.agreement:.2f} %",
        )
        for each in outputs
    ]
    yield table(("output", "elements", "SNR dB", "worst cosine", "mean cosine", "max abs", "agreement"), rows)
    yield from (one_line(f"{each.name}: {each.problem}") for each in outputs if each.problem)


def _layers(layers: Sequence[LayerAccuracy]) -> Iterator[RenderableType]:
    outliers = {each.name: each for each in layers if each.has_outlier}
    rows = [
        (
            *(each.name, each.form.removeprefix("Quantized"), Figure(each.snr_db, 1), Figure(each.output_snr_db, 1)),
            Figure(None if each.share is None else 100 * each.share, 1),
            *("-" if each.channel is None else each.channel, Figure(each.range_ratio, 1)),
        )
        for each in layers[:_MAX_LAYERS]
    ]
    head = ("layer", "operator", "own dB", "outputs dB", "% time", "channel", "x median")  # fits 80 columns
    yield table(head, rows, style=lambda row: "yellow" if row[0] in outliers else "")
    if len(layers) > _MAX_LAYERS:
        measured = sum(each.output_snr_db is not None for each in layers)
        more = len(layers) - _MAX_LAYERS
        others = f"... and {more} layer{'s' if more != 1 else ''}"
        if measured < len(layers):
            others += f". The effect on the outputs was measured for the {measured} layers with the worst own SNR"
        yield f"{others}; --json has all"
    yield "The worst first. dB: SNR. outputs: if only this layer is quantized. channel: that of largest magnitude"
    if outliers:
        worst = max(outliers.values(), key=lambda each: each.range_ratio or 0)
        yield one_line(
            f"One channel dominates the range of the activation in {len(outliers)} of {len(layers)} layers; few codes "
            f"remain for the other channels there. Worst: {worst.name}, channel {worst.channel}, "
            f"{worst.range_ratio:.0f} times the median channel. Remedy: --min-snr, which gives such layers two terms "
            "or words, or --activations two-term for all"
        )
