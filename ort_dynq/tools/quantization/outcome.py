"""What a selection of forms gives: the model, the layers of another form, and what other forms give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...rewriter import Result
from ...storage import Model
from ..accuracy.gates import Gate
from ..accuracy.layers import LayerAccuracy
from ..accuracy.outputs import OutputAccuracy, worst_snr
from ..measuring.plain import plain
from .ladder import FLOAT, RUNGS


@dataclass(frozen=True)
class Layer:
    """A layer that gets another form than the options give.

    Attributes:
        form: Its form, a name of :data:`.ladder.RUNGS`.
        measured: Its ratios by the name of the form, that of the options first: a name of the rungs, or an empty one.
    """

    form: str
    measured: Mapping[str, LayerAccuracy]

    @property
    def stays_float(self) -> bool:
        """Whether it stays in float."""
        return self.form == FLOAT.name

    @property
    def before(self) -> LayerAccuracy:
        """Its ratios in the form that the options give."""
        return next(iter(self.measured.values()))

    @property
    def after(self) -> LayerAccuracy | None:
        """Its ratios in its form; None in float."""
        return self.measured.get(self.form)

    @property
    def name(self) -> str:
        """The name of its node."""
        return self.before.name


@dataclass(frozen=True)
class Candidate:
    """A model with one form for all layers that can have it, or with the selected forms.

    Attributes:
        name: The name of the form; "8 bits" for what the options give, "selected" for the selected forms.
        model: The model.
        outputs: The outputs on the data of the selection.
        unseen: The outputs on the data that were kept back; empty if none were.
        ms: The median time of a run on the first set of data with one thread; None if it was not measured.
        metric, unseen_metric: What the metric of the user says on both parts of the data; None without one.
        expected: The outputs with the ratios that other data will hardly be below, which limits are compared with.
    """

    name: str
    model: Model
    outputs: tuple[OutputAccuracy, ...]
    unseen: tuple[OutputAccuracy, ...] = ()
    ms: float | None = None
    metric: float | None = None
    unseen_metric: float | None = None
    expected: tuple[OutputAccuracy, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON: the worst output by each measure."""
        worst = {name: plain(value) for name, value in worst_of(self.outputs).items()}
        unseen = {f"unseen_{name}": plain(value) for name, value in worst_of(self.unseen).items()}
        metrics = {"metric": plain(self.metric), "unseen_metric": plain(self.unseen_metric)}
        return {"name": self.name, **worst, **unseen, **metrics, "ms": self.ms}


@dataclass(frozen=True)
class Selection:
    """The quantized model that reaches the limits.

    Attributes:
        result: The model and its report.
        layers: The layers that get another form for it, the worst first.
        not_measured: The names of the layers that no data reached. They are quantized as the options say.
        candidates: What each form of all layers gives, that of the options first; the selected forms are last. One if
            no layer changes.
        gates: The limits on the data of the selection.
        unseen: The limits on the data that were kept back; empty if none were.
        kept_back: The number of these sets of data.
        attempts: How often forms were selected. If more than once, the data that were kept back have made the limits
            stricter, and are not quite unseen.
    """

    result: Result
    layers: tuple[Layer, ...]
    not_measured: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    gates: tuple[Gate, ...] = ()
    unseen: tuple[Gate, ...] = ()
    kept_back: int = 0
    attempts: int = 1

    @property
    def all_snr_db(self) -> float:
        """The smallest ratio of an output with all layers quantized as the options say, in decibels."""
        return worst_snr(self.candidates[0].outputs)

    @property
    def snr_db(self) -> float:
        """The smallest ratio of an output of the result, in decibels."""
        return worst_snr(self.candidates[-1].outputs)

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON: the names of the layers and the ratios."""
        return {
            **{rung.field: [each.name for each in self.layers if each.form == rung.name] for rung in RUNGS},
            "not_measured": list(self.not_measured),
            **{name: plain(getattr(self, name)) for name in ("all_snr_db", "snr_db")},
            "candidates": [each.to_dict() for each in self.candidates],
            "kept_back": self.kept_back,
            "attempts": self.attempts,
            "gates": [each.to_dict() for each in self.gates],
            "unseen": [each.to_dict() for each in self.unseen],
        }


def worst_of(outputs: Sequence[OutputAccuracy]) -> dict[str, float | None]:
    """Returns the smallest ratio, agreement and cosine of some outputs; None for those that none has."""
    fields = {"snr_db": "snr_db", "agreement": "agreement", "cosine": "cosine_worst"}
    values = {name: [getattr(each, field) for each in outputs] for name, field in fields.items()}
    return {name: min((v for v in found if v is not None), default=None) for name, found in values.items()}
