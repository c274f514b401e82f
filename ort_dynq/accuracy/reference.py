"""The float model of a comparison: its outputs on the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..inputs import Array
from ..measuring.data import Source, load_data
from ..measuring.sessions import open_session, run_original, signature
from ..verification.saturation import without_saturation

if TYPE_CHECKING:
    from ..storage import Model


class Reference:
    """The outputs of the float model A on the data.

    Attributes:
        model: A, in a form whose integer products do not saturate.
        declared: Its inputs, as a session has them.
        data: The data.
        names: The names of the outputs.
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
        self.model, _ = without_saturation(a)
        session = open_session(self.model, "A")
        self.declared = session.get_inputs()
        self.signature = signature(session)
        self.data = load_data(source, session.get_inputs(), inputs=inputs, shapes=shapes, seed=seed)
        self.names = [output.name for output in session.get_outputs()]
        self.outputs = [
            run_original(session, self.names, feeds, self.data.inputs, any_type=True, option="--data")
            for feeds in self.data.sets
        ]
