"""The float model of a comparison: its outputs on the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...classifiers import is_classifier
from ...errors import DynqError
from ...inputs import Array, Given
from ...storage import load
from ...system import return_memory
from ..measuring.data import Declared, Source, load_data
from ..measuring.sessions import open_session, run_original, signature
from ..verification.saturation import without_saturation

if TYPE_CHECKING:
    from ...storage import Model


# A classifier's output comes from a linear layer or one of these functions; operators of _KEEPS_ORDER may follow.


class Reference:
    """The outputs of the float model A on the data.

    Attributes:
        model: A, in a form whose integer products do not saturate.
        declared: Its inputs.
        data: The data.
        given: What of them the user gives, for :func:`ort_dynq.opsets.check_equal`.
        names: The names of the outputs.
        classifiers: Those that look like a classifier's scores, see :func:`is_classifier`.
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
        session = open_session(self.model, "A")
        self.declared = [Declared(each.name, each.type, each.shape) for each in session.get_inputs()]
        self.signature = signature(session)
        self.data = load_data(source, self.declared, inputs=inputs, shapes=shapes, seed=seed)
        self.given = (
            [Given(dict(inputs or {}), dict(shapes or {}))] if source is None else [*map(Given, self.data.sets)]
        )
        self.names = [output.name for output in session.get_outputs()]
        self.outputs = [
            run_original(session, self.names, feeds, self.data.inputs, any_type=True, option="--data")
            for feeds in self.data.sets
        ]
        del session
        return_memory()


def _exact(model: Model) -> tuple[Model, frozenset[str]]:
    """Returns the model in a form whose integer products do not saturate, and the outputs of classifiers."""
    try:
        loaded = load(model)
    except DynqError:  # the session says more
        return model, frozenset()
    exact, count = without_saturation(loaded)
    outputs = loaded.graph.outputs
    return exact if count else model, frozenset(output.name or "" for output in outputs if is_classifier(output))
