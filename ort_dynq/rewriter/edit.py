"""An edit: the changes that a rule makes to the model. The rule records them, and the loop applies them.

The `build` of a rule records new nodes, new initializers and the values that they replace. The graphs do not change
before :meth:`Edit.apply`, which also gives the new nodes names, types and metadata. A new node counts as a use of its
inputs from its creation on, so a rule must not create nodes while it matches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import subgraphs
from ..operators import DOMAIN, OPERATORS
from ..operators.program import OPERANDS
from . import metadata
from .analysis.inference import Facts
from .analysis.shapes import REDUCES_BY_INPUT
from .analysis.shared import Shared

_T = TypeVar("_T")


def constant(elements: npt.NDArray[Any]) -> ir.Node:
    """Returns a Constant node."""
    value = ir.AttrTensor("value", ir.Tensor(elements))  # ir.tensor and ir.node check protocols, which takes longer
    return ir.Node("", "Constant", [], [value])


def call(operator: str, inputs: list[ir.Value], **attributes: str | int) -> ir.Node:
    """Returns a call of one of ort_dynq's operators with all of its attributes; the defaults fill in the rest."""
    spec = OPERATORS[operator]
    single = [attribute for attribute in spec.attributes if not attribute.is_list]
    given = {attribute.name: attributes.get(attribute.name, attribute.default) for attribute in single}
    return ir.node(operator, inputs, given, domain=DOMAIN, num_outputs=len(spec.outputs))


@dataclass
class _Insertion:
    nodes: Sequence[ir.Node]
    anchor: ir.Node
    is_after: bool
    origin: ir.Node


@dataclass
class Edit:
    """The changes that one rule makes at one node.

    Attributes:
        node: The node that the rule was applied to. New nodes inherit its metadata.
        facts: Types, shapes and constants of the model.
        shared: The objects that the nodes of this rewrite share.
        operator: The operator that the node becomes, for the report; empty: the operator of the main node.
        metadata: More metadata for the main node.
        note: A remark on the conversion for the report; may be empty.
    """

    node: ir.Node
    facts: Facts
    shared: Shared
    operator: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    note: str = ""
    _main: ir.Node | None = None
    _insertions: list[_Insertion] = field(default_factory=list)
    _initializers: list[tuple[ir.Value, ir.Graph]] = field(default_factory=list)
    _inputs: list[tuple[ir.Node, int, ir.Value]] = field(default_factory=list)
    _values: dict[ir.Value, ir.Value] = field(default_factory=dict)

    @property
    def main(self) -> ir.Node | None:
        """The new node that takes the place of an old one; None if there is none."""
        return self._main

    def insert(self, *nodes: ir.Node, before: ir.Node, origin: ir.Node | None = None) -> ir.Value:
        """Records new nodes, in order, before an old one.

        Args:
            nodes: The new nodes.
            before: The old node; it may be in another graph than :attr:`node`.
            origin: The node that gives them its metadata, if it is not :attr:`node`.

        Returns:
            The first output of the last new node.
        """
        return self._insert(_Insertion(nodes, before, False, origin or self.node))

    def insert_after(self, *nodes: ir.Node, after: ir.Node) -> ir.Value:
        """Records new nodes after an old one, which inherit its metadata; returns the last one's first output."""
        return self._insert(_Insertion(nodes, after, True, after))

    def _insert(self, insertion: _Insertion) -> ir.Value:
        for node in insertion.nodes:
            _note_constant(node, self.facts)  # the rule may ask for its shape
        self._keep(insertion)
        return insertion.nodes[-1].outputs[0]

    def _keep(self, insertion: _Insertion) -> None:
        self._insertions.append(insertion)

    def once(self, key: object, make: Callable[[], _T]) -> _T:
        """Returns what `make` records at the first edit with a key: further nodes of the same graph read its values."""
        made, key = self.shared(_Made).of_keys, (self.node.graph, key)
        if key not in made:
            made[key] = make()
        found: _T = made[key]
        return found

    def insert_main(self, main: ir.Node, *, before: ir.Node, origin: ir.Node | None = None) -> ir.Value:
        """Records the new node that takes the place of an old one.

        Args:
            main: The new node.
            before: The old node before which it is inserted.
            origin: The old node that gives it name, doc string and metadata, if it is not :attr:`node`.

        Returns:
            Its first output.
        """
        origin = origin or self.node
        main.name, main.doc_string = origin.name, origin.doc_string
        self._main = main
        self.operator = self.operator or main.op_type
        return self.insert(main, before=before, origin=origin)

    def add_constant(self, elements: npt.ArrayLike, *, before: ir.Node, origin: ir.Node | None = None) -> ir.Value:
        """Records a Constant node; returns its output."""
        return self.insert(constant(np.asarray(elements)), before=before, origin=origin)

    def cast(
        self, value: ir.Value, dtype: ir.DataType | None, *, before: ir.Node, of: ir.DataType | None = None
    ) -> ir.Value:
        """Returns a value with elements of a type, by a Cast if needed; `of`: its own, if the value does not say it."""
        assert dtype is not None
        if dtype == (of or value.dtype):
            return value
        return self.insert(ir.node("Cast", [value], {"to": int(dtype)}), before=before)

    def reduction(self, op_type: str, x: ir.Value, axes: Sequence[int], *, before: ir.Node) -> ir.Node:
        """Returns ReduceMax, ReduceMean or ReduceMin along axes, which keeps them; it is not inserted yet.

        Args:
            op_type: The operator.
            x: The tensor.
            axes: The axes: an input from opset 18 on, which is recorded, and an attribute before.
            before: The node before which new nodes are inserted.
        """
        if self.facts.opset >= REDUCES_BY_INPUT:
            return ir.node(op_type, [x, self.add_constant(np.array(axes), before=before)])
        return ir.node(op_type, [x], {"axes": [*axes]})

    def add_row_program(
        self,
        src: ir.Value,
        program: str,
        *,
        before: ir.Node,
        operands: Sequence[ir.Value] = (),
        code_type: ir.DataType = ir.DataType.UINT8,
        axis: int = -1,
        block_size: int = 0,
    ) -> ir.Node:
        """Records the constants that a RowProgram needs; returns the operator, which is not inserted yet.

        Args:
            src: The tensor.
            program: The program.
            before: The node before which new nodes are inserted.
            operands: The program's operands.
            code_type: The type of its codes.
            axis, block_size: The attributes.
        """
        like = self.add_constant(np.zeros((), code_type.numpy()), before=before)
        missing = OPERANDS - len(operands)
        unused = [self.add_constant(np.zeros(1, np.float32), before=before)] if missing else []
        return call(
            "RowProgram",
            [src, like, *operands, *unused * missing],
            program=program,
            axis=axis,
            block_size=block_size,
            code_type=int(code_type),
        )

    def add_initializer(self, elements: npt.NDArray[Any], graph: ir.Graph) -> ir.Value:
        """Records an initializer of a graph; returns the value that holds the elements."""
        return self.add_tensor(ir.Tensor(np.asarray(elements, order="C")), graph)

    def add_tensor(self, tensor: ir.TensorProtocol, graph: ir.Graph) -> ir.Value:
        """Records an initializer of a graph; returns the value that holds the tensor."""
        shape = ir.Shape(tensor.shape.numpy())
        value = ir.Value(type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self._initializers.append((value, graph))
        return value

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Records that `new` replaces `old` at all of its uses and gets its name."""
        self._values[old] = new

    def replace_input(self, node: ir.Node, index: int, new: ir.Value) -> None:
        """Records that an old node reads `new` as its input `index`."""
        self._inputs.append((node, index, new))

    def apply(self, rule: str) -> None:
        """Changes the model.

        Args:
            rule: The name of the rule, for the metadata of new nodes.
        """
        for value, graph in self._initializers:
            value.name = self.facts.new_name()
            graph.register_initializer(value)
        for insertion in self._insertions:
            for added in insertion.nodes:
                _stamp(added, insertion.origin, rule, self.facts, is_main=added is self._main)
            graph_ = insertion.anchor.graph
            assert graph_ is not None
            (graph_.insert_after if insertion.is_after else graph_.insert_before)(insertion.anchor, insertion.nodes)
        if self._main is not None:
            self._main.metadata_props.update(self.metadata)
        unused: list[ir.Node | None] = []
        for node, index, new in self._inputs:
            old = node.inputs[index]
            unused.append(None if old is None else old.producer())
            node.replace_input_with(index, new)
        for old, new in self._values.items():
            _replace_value(old, new, self.facts)
        unused += [old.producer() for old in self._values]
        _remove_unused(unused)
        for old in self._values:
            if (producer := old.producer()) is not None and producer.graph is not None:
                old.name = self.facts.new_name()  # another output of its node is still used


class _Made:
    """What edits have recorded for others to read."""

    def __init__(self, facts: Facts) -> None:
        """Starts without anything."""
        self.of_keys: dict[object, Any] = {}


class Branch(Edit):
    """New nodes of a branch of an If: those that a rule inserts become nodes of the branch, in order.

    Attributes:
        nodes: The nodes.
    """

    def __init__(self, edit: Edit) -> None:
        """Starts without any node, and with shared objects of its own: other graphs cannot read its values."""
        super().__init__(edit.node, edit.facts, Shared(edit.facts))
        self.nodes: list[ir.Node] = []

    def _keep(self, insertion: _Insertion) -> None:
        self.nodes += insertion.nodes


def _stamp(added: ir.Node, origin: ir.Node, rule: str, facts: Facts, *, is_main: bool) -> None:
    """Gives a new node its metadata and its outputs their names. Only the main node inherits what a rewrite has noted.

    The names are new in the whole model: a subgraph must not redefine a name of the graphs around it.
    """
    for output in added.outputs:
        output.name = facts.new_name()
    for _, graph in subgraphs(added):
        for node in graph:
            _stamp(node, origin, rule, facts, is_main=False)
    _note_constant(added, facts)
    inherited = origin.metadata_props.items()
    added.metadata_props.update({key: text for key, text in inherited if is_main or not metadata.is_ours(key)})
    added.metadata_props[metadata.RULE] = rule


def _note_constant(node: ir.Node, facts: Facts) -> None:
    """Sets the type and shape of the output, if a new node is a Constant."""
    if node.op_type == "Constant" and not node.domain:
        tensor = node.attributes["value"].value  # as_tensor() checks a protocol
        facts.note(node.outputs[0], tensor.dtype, ir.Shape(tensor.shape.numpy()))


def _replace_value(old: ir.Value, new: ir.Value, facts: Facts) -> None:
    """Gives `new` the name, the documentation, the type and the uses of `old`."""
    facts.adopt(new, old)
    new.name, new.doc_string = old.name, old.doc_string
    new.metadata_props.update(old.metadata_props)
    ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)


def _remove_unused(nodes: Sequence[ir.Node | None]) -> None:
    """Removes the nodes that nothing uses, and then the nodes that only they used."""
    todo = list(nodes)
    while todo:
        node = todo.pop()
        if node is None or node.graph is None:
            continue
        if any(output.uses() or output.is_graph_output() for output in node.outputs):
            continue
        sources = [value.producer() for value in node.inputs if value is not None]
        node.graph.remove([node], safe=True)
        todo += sources
