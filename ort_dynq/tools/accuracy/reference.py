"""The float model of a comparison: its outputs on the data."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from ...classifiers import is_classifier
from ...errors import DynqError
from ...inputs import Array, Given
from ...storage import load
from ...system import return_memory
from ..measuring.data import Declared, Source, load_data
from ..measuring.sessions import FEW_RUNS, open_session, run_original, signature
from ..verification.saturation import without_saturation

if TYPE_CHECKING:
    from ...storage import Model

T = TypeVar("T")

# A classifier's output comes from a linear layer or one of these functions; operators of _KEEPS_ORDER may follow.


class Reference:
    """The outputs of the float model A on the data.

    Attributes:
        model: A, in a form with integer products that do not saturate.
        declared: Its inputs.
        data: The data.
        given: What of them the user gives, for :func:`ort_dynq.opsets.check_equal`.
        names: The names of the outputs.
        classifiers: Those that look like a classifier's scores, see :func:`ort_dynq.classifiers.is_classifier`.
        reads_tokens: Whether an input has the places of a sequence, and integers there: each place has its result.
        outputs: Their values, for each set.
    """

    def __init__(
        self,
        a: Model,
        source: Source | None = None,
        *,
        inputs: Mapping[str, Array] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        seed: int = 0,
    ) -> None:
        """Reads or generates the data and runs A in stock ONNX Runtime, all optimizations off.

        Args:
            a: The float model.
            source, inputs, shapes, seed: As for :func:`load_data`.

        Raises:
            DynqError: A is not a model or does not run, or the data do not fit.
        """
        self.model, self.classifiers = _exact(a)
        return_memory()
        session = open_session(self.model, "A", entries=FEW_RUNS)
        self.declared = [Declared(each.name, each.type, each.shape) for each in session.get_inputs()]
        self.signature = signature(session)
        self.data = load_data(source, self.declared, inputs=inputs, shapes=shapes, seed=seed)
        self.given = (
            [Given(dict(inputs or {}), dict(shapes or {}))] if source is None else [*map(Given, self.data.sets)]
        )
        self.names = [output.name for output in session.get_outputs()]
        self.reads_tokens = any("float" not in each.type and len(each.shape) >= 2 for each in self.declared)
        self.outputs = [
            run_original(session, self.names, feeds, self.data.inputs, any_type=True, option="--data")
            for feeds in self.data.sets
        ]
        del session
        return_memory()

    def split(self, every: int) -> tuple[Reference, Reference | None]:
        """Returns the reference without every n-th set of data, and with these alone; None for fewer than n sets."""
        seen, kept = self.split_results(range(len(self.outputs)), every)
        return (self, None) if not kept else (self._part(seen), self._part(kept))

    def split_results(self, results: Sequence[T], every: int) -> tuple[list[T], list[T]]:
        """Divides what belongs to the sets of data as :meth:`split` does."""
        kept = [i % every == every - 1 for i in range(len(results))]
        seen = [each for each, is_kept in zip(results, kept, strict=True) if not is_kept]
        return seen, [each for each, is_kept in zip(results, kept, strict=True) if is_kept]

    def _part(self, sets: Sequence[int]) -> Reference:
        part = copy.copy(self)
        part.data = replace(self.data, sets=tuple(self.data.sets[i] for i in sets))
        part.outputs = [self.outputs[i] for i in sets]
        return part


def _exact(model: Model) -> tuple[Model, frozenset[str]]:
    """Returns the model in a form with integer products that do not saturate, and the outputs of classifiers."""
    try:
        loaded = load(model)
    except DynqError:  # the session says more
        return model, frozenset()
    exact, count = without_saturation(loaded)
    outputs = loaded.graph.outputs
    return exact if count else model, frozenset(output.name or "" for output in outputs if is_classifier(output))
