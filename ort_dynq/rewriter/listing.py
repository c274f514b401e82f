"""The program of one node of a rewritten model, and what it is connected to, for ``ort-dynq inspect --program``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from ..errors import DynqError
from ..graphs import graphs, label, named
from ..operators import OPERATORS
from ..operators.program import COLUMNS, MAX_GATES, OPERANDS, OUTPUTS, RECURRENT_OPERANDS, parse
from ..operators.recurrence import FIRST_COLUMN
from ..operators.row_program import ROW_PROGRAM
from ..storage import load
from . import rewrite
from .analysis.nodes import program_of
from .analysis.standard import OWN_RECURRENCES
from .programs.tails import axis_of_rows

if TYPE_CHECKING:
    from ..storage import Model

_MAX_NAMES = 8  # of nodes in an error
_OF_STEP = {
    **{f"tensor{i}": f"gate {i}" for i in range(1, MAX_GATES + 1)},
    f"tensor{MAX_GATES + 1}": "the second state",
    **{f"column{FIRST_COLUMN + i}": f"part {i + 1} of columns" for i in range(COLUMNS)},
}
"""What the program of a recurrent layer reads besides the state."""


@dataclass(frozen=True)
class Connection:
    """An input or an output of a program.

    Attributes:
        name: Its name in the program, such as x, row1 or codes.
        value: The value of the model; empty for the result of a product.
        type: The type and shape of that value, as far as they are known.
        nodes: What computes an input, or what reads an output: nodes as ``MatMul node_1``, inputs, outputs, constants.
    """

    name: str
    value: str
    type: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Listing:
    """The program of a node.

    Attributes:
        node, operator, graph: The name of the node, its operator, and the path of its graph.
        program: The text.
        steps: The number of steps.
        axis: The first of the dimensions that form a row.
        inputs, outputs: What the program reads and assigns.
    """

    node: str
    operator: str
    graph: str
    program: str
    steps: int
    axis: int
    inputs: tuple[Connection, ...]
    outputs: tuple[Connection, ...]

    @property
    def statements(self) -> list[str]:
        """The statements of the program."""
        return [statement.strip() for statement in self.program.split(";") if statement.strip()]


def listing_of(
    model: Model,
    name: str,
    *,
    exact: bool = False,
    fuse: bool = False,
    weights_only: str = "keep",
    keep_fused: bool = False,
) -> Listing:
    """Rewrites a copy of a model, and returns the program of one of its nodes.

    Args:
        model, exact, fuse, weights_only, keep_fused: As for :func:`ort_dynq.rewrite`. A model that was rewritten before
            keeps its programs.
        name: The name of the node, as a report has it.

    Raises:
        DynqError: The model cannot be rewritten, or its rewritten form has no node of this name with a program.
    """
    result = rewrite(named(load(model)), exact=exact, fuse=fuse, weights_only=weights_only, keep_fused=keep_fused)
    nodes = [(path, node) for path, graph in graphs(result.model) for node in graph]
    having = [(path, node) for path, node in nodes if program_of(node)]
    for path, node in having:
        if label(node) == name:
            return _listing(node, path)
    names = [label(node) for _, node in having]
    further = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    others = f"nodes with programs: {', '.join(names[:_MAX_NAMES])}{further}" if names else "no node has a program"
    became = {each.node: each.operator for each in result.report.rewritten}
    operator = next((node.op_type for _, node in nodes if label(node) == name), became.get(name))
    if operator is None:
        raise DynqError(f"the rewritten model has no node {name!r}; {others}")
    raise DynqError(f"{name!r} is {operator} in the rewritten model, and has no program; {others}")


def _listing(node: ir.Node, path: str) -> Listing:
    text = program_of(node)
    operator = OPERATORS[node.op_type.partition("_")[0]]  # ready_for_extensions adds "_" and an output type
    is_recurrence = operator.name in OWN_RECURRENCES
    program = parse(text, RECURRENT_OPERANDS if is_recurrence else OPERANDS)
    values = dict(zip((each.name for each in operator.inputs), node.inputs, strict=False))
    sources = {"x": values.get("src")}
    for form in ("row", "column", "tensor"):
        sources |= {f"{form}{i}": values.get(f"operand_{i}") for i in range(1, OPERANDS + 1)}
    used = {*program.outputs.values()} | {name for step in program.steps for name in step.operands}
    inputs = [_input(name, source) for name, source in sources.items() if name in used]
    axis = node.attributes.get_int("axis", -1)
    if is_recurrence:
        names = [name for name in ("x", *_OF_STEP) if name in used]
        inputs = [Connection(name, "", "", (_OF_STEP.get(name, "the state"),)) for name in names]
    elif operator is not ROW_PROGRAM:
        product = operator.name.removesuffix("Program")
        inputs[:1] = [Connection("x", "", "", (f"the result of {product}",))]
        axis = axis_of_rows(product)
    outputs = dict(zip((each.name for each in operator.outputs), node.outputs, strict=False))
    outputs.setdefault("dst_2", outputs.get("final_state_2", node.outputs[0]))
    return Listing(
        label(node),
        operator.name,
        path,
        text,
        len(program.steps),
        axis,
        tuple(inputs),
        tuple(_output(name, outputs[name]) for name in OUTPUTS if name in program.outputs),
    )


def _input(name: str, value: ir.Value | None) -> Connection:
    if value is None:
        return Connection(name, "", "", ())
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        source = "constant"
    elif producer is not None:
        source = f"{producer.op_type} {label(producer)}"
    else:
        source = "constant" if value.is_initializer() and not value.is_graph_input() else "input of the graph"
    return Connection(name, value.name or "", _type(value), (source,))


def _output(name: str, value: ir.Value) -> Connection:
    readers = [f"{use.node.op_type} {label(use.node)}" for use in value.uses()]
    if value.is_graph_output():
        readers.append("output of the graph")
    return Connection(name, value.name or "", _type(value), tuple(dict.fromkeys(readers)))


def _type(value: ir.Value) -> str:
    dtype = "" if value.dtype is None else value.dtype.numpy().name
    if value.shape is None:
        return dtype
    sizes = [str(size) if isinstance(size, int) else size.value or "?" for size in value.shape]
    return f"{dtype}[{', '.join(sizes)}]"
