"""Models with calls of ort_dynq's operators, which this or another release wrote.

ONNX Runtime selects a kernel by the name of the operator. It ignores attributes that the operator does not have, and
versions of the domain that are newer than the kernel's: a model that a session has saved imports version 1000. So the
meaning of a name never changes: an operator that changes gets a new name (.github/CONTRIBUTING.md, "Change an
operator"). A model with a name that the library does not have runs the function that it stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from .errors import DynqError
from .graphs import graphs, label
from .operators import DOMAIN, OPERATORS
from .storage import explained, load
from .version import __version__

if TYPE_CHECKING:
    from .storage import Model


def load_checked(model: Model) -> ir.Model:
    """Loads a model to convert it, and checks its calls of ort_dynq's operators.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model, which is copied.

    Raises:
        DynqError: The model cannot be loaded. It has an operator that is unknown, but no function for it, or an
            attribute that its operator does not have.
    """
    loaded = load(model)
    with explained(model):
        for _, graph in graphs(loaded):
            for node in graph:
                if node.domain == DOMAIN:
                    _check_call(node, node.op_identifier() in loaded.functions)
    return loaded


def _check_call(node: ir.Node, is_stored: bool) -> None:
    operator = OPERATORS.get(node.op_type.partition("_")[0])  # ready_for_extensions adds "_" and an output type
    if operator is None:
        if is_stored:
            return
        raise DynqError(
            f"{label(node)}: ort_dynq {__version__} does not have the operator {node.op_type}, and the model has no "
            "function to run instead; `pip install -U ort_dynq`"
        )
    try:
        for name in node.attributes:
            operator.attribute(name)
    except DynqError as error:
        raise DynqError(f"{label(node)}: {error}") from None
