"""The float model of a comparison: its outputs on the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from ..errors import DynqError
from ..graphs import STANDARD_DOMAINS
from ..inputs import Array, Given
from ..measuring.data import Declared, Source, load_data
from ..measuring.sessions import open_session, run_original, signature
from ..storage import load
from ..system import return_memory
from ..verification.saturation import without_saturation

if TYPE_CHECKING:
    from ..storage import Model


# A classifier's output comes from a linear layer or one of these functions; operators of _KEEPS_ORDER may follow.
_LINEAR = ("MatMul", "Gemm", "Conv")
_PROBABILITIES = ("Softmax", "LogSoftmax", "Sigmoid", "Softplus")
_KEEPS_ORDER = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Relu", "GlobalAveragePool")


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


def is_classifier(output: ir.Value) -> bool:
    """Returns whether an output of a graph looks like a classifier's scores along its last axis.

    It does if it comes from a linear layer (MatMul or Gemm, with or without an Add of a bias, or Conv if the output has
    two dimensions), or from Softmax, LogSoftmax, Sigmoid or Softplus. Nodes after it must keep the order of the
    elements: Identity, Cast, Reshape and the like, Relu, GlobalAveragePool.
    """
    node = output.producer()
    has_two_dimensions = output.shape is not None and len(output.shape) == 2
    added = False
    while node is not None and node.domain in STANDARD_DOMAINS:
        if node.op_type in _PROBABILITIES:
            return True
        if node.op_type in _LINEAR:
            return node.op_type != "Conv" or has_two_dimensions
        if node.op_type == "Add" and not added:
            added = True
            producers = [None if value is None else value.producer() for value in node.inputs]
            node = next((each for each in producers if each is not None and each.op_type in _LINEAR), None)
        elif node.op_type in _KEEPS_ORDER and node.inputs[0] is not None:
            node = node.inputs[0].producer()
        else:
            return False
    return False
