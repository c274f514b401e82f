"""Limits that the outputs of a quantized model must reach: of its noise, its decisions and its directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...errors import DynqError, message
from ...inputs import Array
from ..measuring.plain import plain
from .outputs import OutputAccuracy
from .reference import Reference

Status = Literal["passed", "failed", "unchecked"]
Metric = Callable[[Sequence[Mapping[str, Array]], Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], float]
"""What users measure: a function of the inputs, the float model's outputs and the quantized model's. Each has a mapping
by name for each set of data. More is better."""

_FIELDS = {"min_snr": "snr_db", "min_agreement": "agreement", "min_cosine": "cosine_worst"}
"""What each limit is compared with, of an output."""
_UNITS = {
    "min_snr": "{:.1f} dB",
    "min_agreement": "agreement {:.4f}",
    "min_cosine": "cosine {:.6f}",
    "min_ratio": "ratio {:.2f}",
    "min_metric": "{:.6g}",
}
_ABSENT = {"min_agreement": "no output decides anything", "min_cosine": "no output has rows of finite floats"}
STATUSES: tuple[Status, ...] = ("passed", "unchecked", "failed")
"""The worst one last."""


@dataclass(frozen=True)
class Gate:
    """A limit, and the output that is the worst by it.

    Attributes:
        name: "min_snr", "min_agreement", "min_cosine" or "min_metric"; "min_ratio" of a benchmark.
        limit: The limit.
        value: The worst value; None if no output has one.
        output: The name of this output; of a benchmark, that of the model.
        absent: Why there is no value.
    """

    name: str
    limit: float
    value: float | None = None
    output: str = ""
    absent: str = ""

    @property
    def status(self) -> Status:
        """Whether the limit is reached; "unchecked" if no output has such a value."""
        if self.value is None:
            return "unchecked"
        return "passed" if self.value >= self.limit else "failed"

    @property
    def wanted(self) -> str:
        """The limit as a text."""
        return f"{self.limit:g} dB" if self.name == "min_snr" else f"{self.name} {self.limit:g}"

    @property
    def text(self) -> str:
        """What was measured, and the limit."""
        option = f"--{self.name.replace('_', '-')} {self.limit:g}"
        if self.value is None:
            return f"{option}: {self.absent}"
        return f"{option}: {_UNITS[self.name].format(self.value)} of {self.output}"

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return {
            "name": self.name,
            "limit": plain(self.limit),
            "value": plain(self.value),
            "output": self.output,
            "status": self.status,
        }


def worst_status(gates: Iterable[Gate]) -> Status:
    """Returns the worst status of some limits; "passed" without any."""
    return max((each.status for each in gates), key=STATUSES.index, default="passed")


def verdict_on(gates: Sequence[Gate]) -> str:
    """Returns what was measured by the limits of the worst status."""
    status = worst_status(gates)
    return "; ".join(each.text for each in gates if each.status == status)


@dataclass(frozen=True)
class Gates:
    """Limits; None for those that are not set.

    Attributes:
        min_snr: Of the signal-to-noise ratio of each output of floats, in decibels.
        min_agreement: Of the share of the same decisions of each output that decides something.
        min_cosine: Of the cosine of each row of each output of floats.
        min_metric: Of the number that `metric` returns.
        metric: What users measure, see :data:`Metric`.
    """

    min_snr: float | None = None
    min_agreement: float | None = None
    min_cosine: float | None = None
    min_metric: float | None = None
    metric: Metric | None = None

    def __post_init__(self) -> None:
        """Checks the limits.

        Raises:
            DynqError: One is not finite, or a share is not from 0 to 1, or a cosine not from -1 to 1; a metric has no
                limit, or a limit no metric.
        """
        if (self.metric is None) != (self.min_metric is None):
            raise DynqError(
                "metric and min_metric belong together: the function, and the smallest number it may return"
            )
        if self.min_snr is not None and not math.isfinite(self.min_snr):
            raise DynqError(f"min_snr is {self.min_snr}, expected a number of decibels")
        if self.min_agreement is not None and not 0 <= self.min_agreement <= 1:
            raise DynqError(f"min_agreement is {self.min_agreement}, expected a share from 0 to 1")
        if self.min_cosine is not None and not -1 <= self.min_cosine <= 1:
            raise DynqError(f"min_cosine is {self.min_cosine}, expected a number from -1 to 1")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are set, by name."""
        return {name: limit for name in (*_FIELDS, "min_metric") if (limit := getattr(self, name)) is not None}

    @property
    def wanted(self) -> str:
        """The limits as a text."""
        return " and ".join(each.wanted for each in self.check(()))

    def measured(self, reference: Reference, results: Sequence[Sequence[Any]]) -> float | None:
        """Returns what the metric says of the outputs of a model; None without a metric.

        Args:
            reference: The float model's outputs.
            results: The outputs of the other model for each set, as :func:`results_of` returns them.

        Raises:
            DynqError: The metric returns no number.
        """
        if self.metric is None:
            return None
        a, b = ([dict(zip(reference.names, each, strict=True)) for each in of] for of in (reference.outputs, results))
        try:
            return float(self.metric(reference.data.sets, a, b))
        except (TypeError, ValueError) as error:
            raise DynqError(f"metric fails or returns no number: {message(error)}") from error

    def check(self, outputs: Sequence[OutputAccuracy], metric: float | None = None) -> tuple[Gate, ...]:
        """Compares the worst output with each limit.

        Args:
            outputs: The outputs, as :func:`measure_outputs` returns them.
            metric: What :meth:`measured` returns.
        """
        found = [_gate(name, limit, outputs) for name, limit in self.limits.items() if name != "min_metric"]
        if self.min_metric is not None:
            value = None if metric is None or math.isnan(metric) else metric
            found.append(Gate("min_metric", self.min_metric, value, "all outputs", "the metric is not a number"))
        return tuple(found)

    def hold(self, outputs: Sequence[OutputAccuracy], metric: float | None = None) -> bool:
        """Returns whether all limits are reached; see :meth:`check`."""
        return all(each.status == "passed" for each in self.check(outputs, metric))


def _gate(name: str, limit: float, outputs: Sequence[OutputAccuracy]) -> Gate:
    if wrong := next((each for each in outputs if each.snr_db == -math.inf and each.problem), None):
        return Gate(name, limit, -math.inf, wrong.name)  # it has another type or shape
    values = [(value, each.name) for each in outputs if (value := getattr(each, _FIELDS[name])) is not None]
    absent = _ABSENT.get(name, "no output has finite floats")
    return Gate(name, limit, *min(values)) if values else Gate(name, limit, absent=absent)
