"""The nodes that compute and use values, their attributes, and the values that they copy or cast."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN, OPERATORS
from ..reasons import Reason, Unconverted
from .standard import PASSING
from .types import CODE_TYPES


def producer_of(value: ir.Value | None, *types: str) -> ir.Node | None:
    """Returns the node that computes `value` if it is a standard operator of one of these types, or None."""
    node = None if value is None else value.producer()
    return node if node is not None and is_standard(node, *types) else None


def is_standard(node: ir.Node, *types: str) -> bool:
    """Returns whether a node is a standard operator of one of these types."""
    return node.domain in STANDARD_DOMAINS and node.op_type in types


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """Returns an input of a node; None if it is absent."""
    return node.inputs[index] if index < len(node.inputs) else None


def first_inputs(node: ir.Node, count: int) -> list[ir.Value | None]:
    """Returns the first inputs of a node; None for those that are absent."""
    return [*node.inputs[:count], *[None] * (count - len(node.inputs))]


def operand(node: ir.Node, index: int = 0) -> ir.Value:
    """Returns an input of a node.

    Raises:
        Unconverted: It is absent.
    """
    value = input_of(node, index)
    if value is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=index)
    return value


class Use(NamedTuple):
    """A node and the index of the input at which it uses a value."""

    node: ir.Node
    idx: int


def only_use(value: ir.Value) -> Use | None:
    """Returns the only use of a node's output or of its copy by a standard operator of the same graph, or None."""
    while True:
        uses, producer = value.uses(), value.producer()
        if len(uses) != 1 or value.is_graph_output() or producer is None:
            return None
        use = Use(*next(iter(uses)))
        if use.node.domain not in STANDARD_DOMAINS or use.node.graph is not producer.graph:
            return None
        if copied(use.node) is None:
            return use
        value = use.node.outputs[0]


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """Returns the attributes of a call of one of ort_dynq's operators by name, defaults included."""
    defaults = {attribute.name: attribute.default for attribute in OPERATORS[node.op_type].attributes}
    return defaults | {name: attribute.value for name, attribute in node.attributes.items()}


def program_of(node: ir.Node) -> str:
    """Returns the program of a call of one of ort_dynq's operators; empty if it has none."""
    attribute = node.attributes.get("program") if node.domain == DOMAIN else None
    return attribute.value if attribute is not None and isinstance(attribute.value, str) else ""


def data_type(node: ir.Node, name: str) -> ir.DataType:
    """Returns an attribute that is a type; UNDEFINED if it is absent or not a type."""
    try:
        return ir.DataType(node.attributes.get_int(name, 0))
    except ValueError:
        return ir.DataType.UNDEFINED


def cast_to(node: ir.Node) -> ir.DataType:
    """Returns the output type of a Cast; UNDEFINED if it is not known.

    With another `saturate` than 1, ONNX Runtime fails or leaves integers uninitialized.
    """
    return data_type(node, "to") if node.attributes.get_int("saturate", 1) == 1 else ir.DataType.UNDEFINED


def casts_to_integers(node: ir.Node) -> bool:
    """Returns whether a node casts floats to integers or booleans: a rounding to 0, or a mask."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    is_float = source is not None and source.dtype is not None and source.dtype.is_floating_point()
    return is_float and not cast_to(node).is_floating_point()


def copied(node: ir.Node) -> ir.Value | None:
    """Returns the value that an Identity or a Cast from float32 to float32 copies; None for other nodes.

    TorchScript exports `x.to(x.dtype)` as such a Cast. An Identity of a float16 result is no copy: ONNX Runtime
    computes float16 in float32, and removes the Casts between two nodes. The Identity rounds without optimizations.
    """
    source = node.inputs[0] if is_standard(node, *PASSING) and node.inputs else None
    if source is None:
        return None
    if node.op_type == "Identity":
        return source if source.dtype != ir.DataType.FLOAT16 or source.producer() is None else None
    return source if source.dtype == ir.DataType.FLOAT and cast_to(node) == ir.DataType.FLOAT else None


def is_inverse_transpose(first: ir.Node, second: ir.Node) -> bool:
    """Returns whether two nodes are Transposes that together move nothing."""
    if not is_standard(first, "Transpose") or not is_standard(second, "Transpose"):
        return False
    a, b = (each.attributes["perm"].as_ints() if "perm" in each.attributes else None for each in (first, second))
    if a is None or b is None:  # both reverse the dimensions, or one of them does so explicitly
        given = list(a or b or [])
        return given == sorted(given, reverse=True)
    return [a[axis] for axis in b] == list(range(len(b)))


def uncast(value: ir.Value | None) -> ir.Value | None:
    """Returns the uint8 or int8 integers that a Cast to float32 makes `value`, or None."""
    if (cast := producer_of(value, "Cast")) is None or cast.inputs[0] is None:
        return None
    return cast.inputs[0] if cast.inputs[0].dtype in CODE_TYPES and cast_to(cast) == ir.DataType.FLOAT else None


def rounded_to_float16(value: ir.Value | None) -> ir.Value | None:
    """Returns the float32 value that a Cast to float16 and one back make `value`, or None."""
    wide = producer_of(value, "Cast")
    narrow = None if wide is None or cast_to(wide) != ir.DataType.FLOAT else producer_of(wide.inputs[0], "Cast")
    if narrow is None or cast_to(narrow) != ir.DataType.FLOAT16 or narrow.inputs[0] is None:
        return None
    return narrow.inputs[0] if narrow.inputs[0].dtype == ir.DataType.FLOAT else None
