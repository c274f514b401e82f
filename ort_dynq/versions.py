"""Models that were written for another version of ort_dynq's operators.

ONNX Runtime selects a kernel by the name of the operator. It ignores attributes that the operator does not have. So the
meaning of a name never changes: an operator that changes gets a new name (.github/CONTRIBUTING.md, "Change an
operator"). A model with a name that the library does not have runs the function that it stores.

Before the first release, the version of the domain was raised instead. ONNX Runtime runs the stored functions if a
model imports an older version than the kernels have. It uses the kernels if the model imports a newer one, and
onnxruntime-extensions knows no versions at all. :func:`load_current` handles both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import onnx_ir as ir

from . import __version__
from .errors import DynqError
from .graphs import graphs, label
from .operators import DOMAIN, OPERATORS, VERSION
from .storage import explained, load

if TYPE_CHECKING:
    from .storage import Model


def load_current(model: Model) -> ir.Model:
    """Loads a model to convert it. Calls of operators of other versions become calls of ordinary functions.

    These are the functions that the model stores. They get a domain of their own, such as ``ort_dynq.v1``.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model, which is copied.

    Returns:
        The model. Its calls of the domain ``ort_dynq`` are of this version.

    Raises:
        DynqError: The model cannot be loaded. It has an operator of another version, but no function for it. It has an
            attribute that its operator does not have.
    """
    loaded = load(model)
    with explained(model):
        version = loaded.graph.opset_imports.get(DOMAIN, VERSION)
        calls = [node for _, graph in graphs(loaded) for node in graph if node.domain == DOMAIN]
        for node in calls:
            is_stored = node.op_identifier() in loaded.functions
            if version != VERSION and not is_stored:
                raise _error(node, version > VERSION, f"of version {version} of the domain {DOMAIN}")
            if version == VERSION:
                _check_call(node, is_stored)
        if version != VERSION:
            _move_functions(loaded, calls, f"{DOMAIN}.v{version}")
    return loaded


def _check_call(node: ir.Node, is_stored: bool) -> None:
    operator = OPERATORS.get(node.op_type.partition("_")[0])  # ready_for_extensions adds "_" and an output type
    if operator is None:
        if not is_stored:
            raise _error(node, True, "unknown")
        return
    try:
        for name in node.attributes:
            operator.attribute(name)
    except DynqError as error:
        raise DynqError(f"{label(node)}: {error}") from None


def _error(node: ir.Node, is_newer: bool, what: str) -> DynqError:
    advice = "`pip install -U ort_dynq`" if is_newer else "rewrite the original model again"
    return DynqError(
        f"{label(node)}: the operator {node.op_type} is {what}, ort_dynq {__version__} has version {VERSION}, and the "
        f"model has no function to run instead; {advice}"
    )


def _move_functions(model: ir.Model, calls: list[ir.Node], domain: str) -> None:
    for node in calls:
        node.domain = domain
    for identifier in [each for each in model.functions if each[0] == DOMAIN]:
        function = model.functions.pop(identifier)
        function.domain = domain
        model.functions[function.identifier()] = function
    for imports in (model.graph.opset_imports, *(each.opset_imports for each in model.functions.values())):
        if imports.pop(DOMAIN, None) is not None:
            imports[domain] = 1
