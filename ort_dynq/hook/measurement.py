"""How far the results of an int8 model are from those of a float model, on some inputs of a program.

Outputs are judged by their signal-to-noise ratio; a classifier's also by its decisions. Probabilities are judged by
their decisions alone: most of them are near 0 or 1, and a few in between make all the noise. Where each element is a
decision, those for and those against count by themselves: a detector that finds nothing agrees with most of a picture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from ..inputs import Array
from ..signals import HALF, LARGEST, Agreement, Noise, are_probabilities, decisions_of
from .options import HookOptions

_MAX_TIME_RATIO = 1.1
"""Of int8 to float, with which int8 is still no slower: two runs of one model differ by some percent."""


class Verdict(NamedTuple):
    """Whether an int8 model is used.

    Attributes:
        is_accepted: Whether it is.
        text: What was measured, with the limits.
    """

    is_accepted: bool
    text: str


@dataclass
class Measurement:
    """What was measured on some inputs.

    Attributes:
        inputs: Their number.
        noise: The noise of each output of floats.
        agreement: How often the decisions of classifiers are the same, and the elements of other types than floats.
        probabilities: Whether all values of a classifier's output were between 0 and 1.
        ratios: The time of int8 divided by that of float, for each input. The first of each process has none.
        problem: Why the int8 model cannot be used at all.
    """

    inputs: int = 0
    noise: dict[str, Noise] = field(default_factory=dict)
    agreement: dict[str, Agreement] = field(default_factory=dict)
    probabilities: dict[str, bool] = field(default_factory=dict)
    ratios: list[float] = field(default_factory=list)
    problem: str = ""
    _is_warm: bool = False

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> Measurement:
        """Returns what :meth:`to_dict` has written; nothing yet if it is something else."""
        try:
            noise = {name: Noise(**values) for name, values in note["noise"].items()}
            agreement = {name: Agreement(**values) for name, values in note["agreement"].items()}
            probabilities = {name: bool(value) for name, value in note["probabilities"].items()}
            ratios = list(map(float, note["ratios"]))
            return cls(int(note["inputs"]), noise, agreement, probabilities, ratios, str(note["problem"]))
        except (LookupError, TypeError, ValueError, AttributeError):
            return cls()

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "inputs": self.inputs,
            "noise": {name: asdict(each) for name, each in self.noise.items()},
            "agreement": {name: asdict(each) for name, each in self.agreement.items()},
            "probabilities": self.probabilities,
            "ratios": self.ratios,
            "problem": self.problem,
        }

    def add(
        self,
        outputs: Mapping[str, tuple[Array, Array]],
        classifiers: frozenset[str],
        float_seconds: float,
        int8_seconds: float,
    ) -> None:
        """Adds the results for one input.

        Args:
            outputs: The results of the float model and of the int8 model.
            classifiers: The names of the outputs that are a classifier's scores.
            float_seconds, int8_seconds: The times of both runs.
        """
        for name, (a, b) in outputs.items():
            if (a.shape, a.dtype) != (b.shape, b.dtype):
                self.problem = f"{name} is {b.dtype} {list(b.shape)} instead of {a.dtype} {list(a.shape)}"
                return
            if a.dtype.kind != "f":
                self.agreement.setdefault(name, Agreement(is_argmax=False)).add(a, b)
                continue
            if not np.isfinite(b[np.isfinite(a)]).all():
                self.problem = f"{name} is not finite"
                return
            self.noise.setdefault(name, Noise()).add(a, b)
            if name in classifiers and a.size:
                self._add_decisions(name, a, b)
        if any(a.size for a, _ in outputs.values()):
            self.inputs += 1
            if self._is_warm:
                self.ratios.append(round(int8_seconds / max(float_seconds, 1e-9), 3))
            self._is_warm = True

    def _add_decisions(self, name: str, a: Array, b: Array) -> None:
        kind = decisions_of([a])
        self.probabilities[name] = are_probabilities([a]) and self.probabilities.get(name, True)
        if kind == HALF:
            for side, chosen in (("above half", a >= 0.5), ("below half", a < 0.5)):
                same = self.agreement.setdefault(f"{name}, {side}", Agreement(is_argmax=False))
                same.add(a[chosen] >= 0.5, b[chosen] >= 0.5)
        elif kind == LARGEST:
            self.agreement.setdefault(name, Agreement(is_argmax=True)).add(a, b)

    def verdict(self, options: HookOptions) -> Verdict | None:
        """Returns whether the int8 model is used; None while more inputs are to be measured."""
        if self.problem:
            return Verdict(False, self.problem)
        if self.inputs < options.inputs:
            return None
        judged = [each.decibels for name, each in self.noise.items() if not self.probabilities.get(name)]
        snr = min((each for each in judged if each is not None), default=None)
        agreement = min((each.share for each in self.agreement.values() if each.share is not None), default=None)
        ratio = median(self.ratios) if self.ratios else 0.0
        texts = []
        if snr is not None:
            texts.append(f"{snr:.1f} dB (limit {options.min_snr:g})")
        if agreement is not None:
            texts.append(f"agreement {agreement:.3f} (limit {options.min_agreement:g})")
        if self.ratios:
            texts.append(f"{ratio:.2f} of the time")
        text = f"{', '.join(texts)} on {self.inputs} inputs"
        is_near = (snr is None or snr >= options.min_snr) and (agreement is None or agreement >= options.min_agreement)
        return Verdict(is_near and ratio <= _MAX_TIME_RATIO, text)
