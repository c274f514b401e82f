"""Functions that call each other: how many nodes a model has when they are inlined.

ONNX Runtime inlines the functions of a model when it opens a session, and the rewriter inlines them, too. A few
functions that each call the one before twice stand for more nodes than any memory holds.
"""

from __future__ import annotations

import contextlib
import graphlib
import io
import os
from collections.abc import Iterable
from typing import NamedTuple

import onnx
import onnx_ir as ir

from .errors import DynqError
from .graphs import functions
from .operators import DOMAIN
from .serialized import fields_of

MAX_NODES = 1_000_000
MAX_BYTES = 1 << 30
"""The most nodes, and bytes of constants, that functions become: the limits of ONNX Runtime 1.32."""

_FUNCTIONS = 25  # a field of ModelProto


class ExpansionError(DynqError):
    """The functions of a model stand for too many nodes."""


class _Cost(NamedTuple):
    """What a call adds to a graph: nodes, and bytes of their constants."""

    nodes: int
    size: int


def check_expansion(model: ir.Model) -> None:
    """Counts what the functions of a model become when they are inlined, without inlining them.

    A function counts at each of its calls. Functions that nothing calls are inlined into, too, by onnx_ir. Functions of
    ort_dynq's operators do not count: the plugin runs their calls.

    Raises:
        ValueError: A function calls itself. onnx 1.17's shape inference crashes on such functions.
        ExpansionError: They become more than :data:`MAX_NODES` nodes, or more than :data:`MAX_BYTES`.
    """
    nodes = {name: list(ir.traversal.RecursiveGraphIterator(each)) for name, each in model.functions.items()}
    calls = {name: [node.op_identifier() for node in found] for name, found in nodes.items()}
    try:
        order = list(
            graphlib.TopologicalSorter({name: {*each} & {*nodes} for name, each in calls.items()}).static_order()
        )
    except graphlib.CycleError as error:
        raise ValueError(f"the function {error.args[1][0][1]} calls itself") from error
    inlined = {each.identifier() for each in functions(model)}
    costs: dict[ir.OperatorIdentifier, _Cost] = {}

    def total(called: Iterable[ir.OperatorIdentifier], own: _Cost) -> _Cost:
        found = [own, *(costs[name] for name in called if name in costs)]
        return _Cost(sum(each.nodes for each in found), sum(each.size for each in found))

    for name in order:
        if name in inlined:
            costs[name] = total(calls[name], _Cost(len(nodes[name]), sum(map(_bytes_of_constants, nodes[name]))))
    if not costs:
        return
    main = (node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(model.graph))
    found = [total(main, _Cost(0, 0)), *costs.values()]
    for count, limit, unit, option in (
        (max(each.nodes for each in found), MAX_NODES, "nodes", "session.function_expansion_node_limit"),
        (max(each.size for each in found), MAX_BYTES, "bytes of constants", "session.function_expansion_byte_limit"),
    ):
        if count > limit:
            raise ExpansionError(
                f"the functions of the model become {count:,} {unit} when they are inlined, and at most {limit:,} are, "
                f"as in ONNX Runtime ({option}); export the model with fewer calls of functions inside of functions"
            )


def _bytes_of_constants(node: ir.Node) -> int:
    found = (each for each in node.attributes.data.values() if each.type == ir.AttributeType.TENSOR)
    return sum(each.as_tensor().nbytes for each in found if not each.is_ref())


def has_functions(model: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model) -> bool:
    """Returns whether a model has functions that are not those of ort_dynq's operators. A file is not read as a whole.

    Args:
        model: The model; if it is none, or cannot be read, it has no functions.
    """
    if isinstance(model, ir.Model):
        return bool(functions(model))
    if isinstance(model, onnx.ModelProto):
        return any(each.domain != DOMAIN for each in model.functions)
    with contextlib.suppress(Exception), io.BytesIO(model) if isinstance(model, bytes) else open(model, "rb") as file:
        found = (onnx.FunctionProto.FromString(content) for content in fields_of(file, _FUNCTIONS))
        return any(each.domain != DOMAIN for each in found)
    return False
