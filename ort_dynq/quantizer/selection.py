"""Selects the layers that stay in float, so that the outputs reach a signal-to-noise ratio on the user's data."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..accuracy import LayerAccuracy, OutputAccuracy, Reference, measure_outputs, worst_snr
from ..accuracy.layers import measure_layers, product_of
from ..accuracy.outputs import running
from ..errors import DynqError
from ..measuring.plain import plain
from ..measuring.progress import Track
from ..measuring.timing import Settings, interleave, session_contender
from ..rewriter import Result
from ..storage import load

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..backends.options import Backend


@dataclass(frozen=True)
class Selection:
    """The quantized model whose outputs reach a signal-to-noise ratio.

    Attributes:
        result: The model and its report.
        layers: The layers that stay in float for it, the worst first, with their ratios when all layers are quantized.
        all_quantized: The model with all layers quantized.
        all_snr_db: The smallest ratio of an output of that model, in decibels.
        snr_db: The smallest ratio of an output of the result, in decibels.
    """

    result: Result
    layers: tuple[LayerAccuracy, ...]
    all_quantized: ir.Model
    all_snr_db: float
    snr_db: float

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON: the names of the layers and the ratios."""
        return {
            "floats": [each.name for each in self.layers],
            **{name: plain(getattr(self, name)) for name in ("all_snr_db", "snr_db")},
        }


def select(
    reference: Reference,
    quantize: Callable[[frozenset[str]], Result],
    min_snr: float,
    *,
    backend: Backend = "native",
    track: Track = iter,
) -> Selection:
    """Keeps the layers that harm the outputs most in float, until each output reaches `min_snr`.

    The layers are ordered by the harm that each one alone does to the outputs, which is measured once
    (:attr:`LayerAccuracy.output_snr_db`). Bisection finds how many of them, from the worst on, must stay in float: the
    outputs reach `min_snr` with this number, and miss it with one layer fewer. So about log2(layers) models are made
    and run.

    Args:
        reference: The outputs of the float model.
        quantize: Quantizes the model, without the layers of these names.
        min_snr: The ratio in decibels that each output must reach over all data.
        backend: How the sessions get the operators.
        track: Shows the progress.

    Raises:
        DynqError: No output has a ratio, only the float model reaches `min_snr`, or even the float model does not.
    """
    if not math.isfinite(min_snr):
        raise DynqError(f"min_snr is {min_snr}, expected a number of decibels")

    def measured(model: ir.Model) -> tuple[OutputAccuracy, ...]:
        with running():
            return measure_outputs(reference, model, backend=backend)

    start = iter(track(["quantizing all layers"]))
    next(start)
    result = quantize(frozenset())
    outputs = measured(result.model)
    if all(each.snr_db is None for each in outputs):
        raise DynqError("min_snr needs an output that has finite floats on the data; the model has none")
    next(start, None)
    first, first_snr = result.model, worst_snr(outputs)
    if first_snr >= min_snr:
        return Selection(result, (), first, first_snr, first_snr)
    with running():
        layers, _ = measure_layers(reference, load(first), backend=backend, track=track)
    known = {each.name: each for each in layers}
    for each in result.report.rewritten:  # layers that are not measured come last
        product = product_of(each.operator)
        if product is not None and each.node not in known:
            known[each.node] = LayerAccuracy(each.node, product, None)
    if embeddings := [each.node for each in result.report.rewritten if each.operator == "AffineDequantize"]:
        # All of them at once, without products: their noise is small.
        snr = worst_snr(measured(quantize(frozenset(known)).model))
        known |= {name: LayerAccuracy(name, "AffineDequantize", None, snr) for name in embeddings}
        ratios = {name: math.inf if each.output_snr_db is None else each.output_snr_db for name, each in known.items()}
        known = {name: known[name] for name in sorted(known, key=lambda name: ratios[name])}
    names = list(known)
    if (float_snr := worst_snr(measured(load(reference.model)))) < min_snr:
        raise DynqError(
            f"min_snr is {min_snr:g} dB, but the float model itself has {float_snr:.1f} dB between ONNX Runtime's "
            "optimization levels; choose a smaller one"
        )
    low, high, best_snr = 0, len(names), first_snr  # `low` layers are too few, `high` are enough
    for _ in track([f"quantizing fewer layers, run {i + 1}" for i in range(math.ceil(math.log2(max(2, len(names)))))]):
        if high - low <= 1:
            continue
        middle = (low + high) // 2
        candidate = quantize(frozenset(names[:middle]))
        snr = worst_snr(measured(candidate.model))
        if snr >= min_snr:
            high, result, best_snr = middle, candidate, snr
        else:
            low = middle
    if high == len(names):
        raise DynqError(f"the outputs reach {min_snr:g} dB only if every layer stays in float; choose a smaller one")
    return Selection(result, tuple(known[name] for name in names[:high]), first, first_snr, best_snr)


def cost(selection: Selection, reference: Reference, *, backend: Backend = "native", seconds: float = 0.5) -> float:
    """Returns the time of the selected model / the time of the model with all layers quantized.

    Both run on the first set of data with one thread, in turns; their medians are divided.
    """
    feeds, settings = reference.data.sets[0], Settings((1,), seconds, backend=backend)
    contenders = [
        session_contender("the quantized model", model, feeds, 1, backend=backend)
        for model in (selection.result.model, selection.all_quantized)
    ]
    selected, quantized = (float(np.median(each)) for each in interleave(contenders, settings, 1))
    return selected / quantized
