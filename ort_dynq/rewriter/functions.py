"""The model-local functions with which a rewritten model runs without the plugin."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import onnx
import onnx.parser
import onnx_ir as ir

from ..graphs import graphs, proto_with_subgraphs
from ..operators import DOMAIN, OPERATORS, VERSION
from .analysis.nodes import attributes_of
from .metadata import REQUIRES_PLUGIN
from .specialization import specialized

# The first version of the model format in which functions have attributes.
_OLDEST_IR_VERSION = 8


def declare_functions(model: ir.Model) -> None:
    """Imports the domain of ort_dynq's operators if the model calls one, and numbers the programs of its nodes.

    :func:`add_functions` or :func:`append_functions` adds the functions.
    """
    called = _called(model)
    for nodes in called.values():
        if OPERATORS[nodes[0].op_type].body_of_programs is not None:
            _programs(nodes)
    if called:
        model.graph.opset_imports.setdefault(DOMAIN, VERSION)
        model.ir_version = max(model.ir_version, _OLDEST_IR_VERSION)


def add_functions(model: ir.Model, opset: int) -> None:
    """Adds the functions of ort_dynq's operators that the model calls, and the imports of their domain.

    A function has what the model's calls run, and nothing else. One that the model has already is made again, since
    there may be other calls now.

    Args:
        model: The rewritten model.
        opset: The version of the standard operators in the functions' bodies.
    """
    declare_functions(model)
    if model.metadata_props.get(REQUIRES_PLUGIN) == "1":
        return
    for proto in _functions(model, opset):
        function = ir.serde.deserialize_function(proto)
        model.functions[function.identifier()] = function


def append_functions(proto: onnx.ModelProto, model: ir.Model, opset: int) -> None:
    """Appends to a serialized model what :func:`add_functions` would add to the model, in a fraction of the time."""
    if model.metadata_props.get(REQUIRES_PLUGIN) == "1":
        return
    known = {function.name: function for function in proto.functions if function.domain == DOMAIN}
    for function in _functions(model, opset):
        if function.name in known:
            known[function.name].CopyFrom(function)
        else:
            proto.functions.append(function)


def require_plugin(model: ir.Model) -> None:
    """Removes the functions of ort_dynq's operators: without the plugin, ONNX Runtime then refuses the model."""
    model.metadata_props[REQUIRES_PLUGIN] = "1"
    for name in [name for name in model.functions if name[0] == DOMAIN]:
        del model.functions[name]


def _called(model: ir.Model) -> dict[str, list[ir.Node]]:
    """The calls of each operator."""
    called: dict[str, list[ir.Node]] = {}
    for _, graph in graphs(model):
        for node in graph:
            if node.domain == DOMAIN and node.op_type in OPERATORS:
                called.setdefault(node.op_type, []).append(node)
    return called


def _functions(model: ir.Model, opset: int) -> list[onnx.FunctionProto]:
    """The functions that a model calls."""
    return [
        _function_proto(
            operator,
            opset,
            tuple(_programs(nodes)) if OPERATORS[operator].body_of_programs is not None else (),
            tuple(sorted({_numbers(node) for node in nodes})),
        )
        for operator, nodes in _called(model).items()
    ]


def _numbers(node: ir.Node) -> tuple[tuple[str, int], ...]:
    """The attributes of a call that are numbers, without that which selects a program."""
    given = attributes_of(node).items()
    return tuple((name, value) for name, value in given if isinstance(value, int) and name != "branch")


@functools.lru_cache(maxsize=256)
def _function_proto(
    operator: str, opset: int, programs: tuple[str, ...], calls: tuple[tuple[tuple[str, int], ...], ...]
) -> onnx.FunctionProto:
    proto = make_function(operator, opset, programs, [dict(call) for call in calls])
    proto.doc_string = f"{OPERATORS[operator].doc}\n\n{OPERATORS[operator].formula}"  # viewers of models show it
    return proto


def _programs(nodes: Sequence[ir.Node]) -> list[str]:
    """Returns the programs of nodes, each once, and sets their attributes `branch` to the indices."""
    programs: dict[str, int] = {}
    for node in nodes:
        branch = programs.setdefault(attributes_of(node)["program"], len(programs))
        node.attributes["branch"] = ir.AttrInt64("branch", branch)
    return list(programs)


def make_function(
    operator: str, opset: int, programs: Sequence[str] = (), calls: Sequence[Mapping[str, int]] = ()
) -> onnx.FunctionProto:
    """Returns the function of one operator; its body has standard operators of version `opset`.

    Args:
        operator: The name of the operator.
        opset: The version.
        programs: The programs of the model's nodes, if the operator has programs.
        calls: The attributes of the model's nodes that are numbers, all or some. The function has only what these nodes
            run. Without calls, it serves any node.

    Raises:
        DynqError: One of them is not a program.
    """
    function = onnx.FunctionProto()
    function.CopyFrom(_for_any_node(operator, opset, tuple(programs)))
    function = specialized(function, calls) if calls else function
    for graph in proto_with_subgraphs(function):
        for node in graph.node:
            node.name = node.output[0]  # ONNX Runtime's messages and profiles show it behind the name of the call
    return function


@functools.lru_cache(maxsize=64)
def _for_any_node(operator: str, opset: int, programs: tuple[str, ...]) -> onnx.FunctionProto:
    """The function for nodes with any attributes. Models call it with many, and its text takes long to parse."""
    return onnx.parser.parse_function(OPERATORS[operator].function(DOMAIN, opset, programs))
