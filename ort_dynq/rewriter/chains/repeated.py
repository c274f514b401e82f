"""The rule for scales that a model repeats to the full width before it uses them: they are used as they are.

x / Reshape(Tile(scale, [1, K]), shape of x)            -> x / Reshape(scale, [..., 1])
x / Reshape(Tile(scale, [..., 1, size]), shape of x)    -> Reshape(Reshape(x, [..., blocks, size]) / scale, shape of x)

An elementwise operator broadcasts the numbers itself, so that no bit changes. Max, Min and Where are left out, because
ONNX Runtime gives their zeros another sign where they broadcast. Elementwise nodes and Reshapes may stand
between Tile and use (../analysis/repetition.py). All other rules then find the scale of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.inference import Facts
from ..analysis.limits import CHAIN, VISITED
from ..analysis.nodes import is_standard
from ..analysis.repetition import Repeated, Repetitions
from ..analysis.shapes import are_equal, does_not_grow, has_one_element
from ..analysis.standard import CHOOSING, EXACT, UNARY
from ..edit import Edit, constant
from ..rule import Context, Rule

_COMBINE = EXACT - UNARY - CHOOSING


class _RepeatedInputs(NamedTuple):
    """The inputs of a node that repeat numbers, by their indices."""

    repeated: dict[int, Repeated]
    blocks: int


def _match(node: ir.Node, context: Context) -> _RepeatedInputs | None:
    if None in node.inputs:
        return None
    numbers = context.shared(_Numbers)
    found = dict[int, Repeated]()
    for i, value in enumerate(node.inputs):
        if not context.facts.is_constant(value) and (each := numbers.repetitions.of(value)) is not None:
            found[i] = each
    others = [value for i, value in enumerate(node.inputs) if i not in found and value is not None]
    if not found or len(others) != 1 or len(node.outputs) != 1:
        return None
    data = others[0]
    blocks = {each.blocks for each in found.values()}
    if len(blocks) > 1 or numbers.repetitions.of(node.outputs[0]) is not None:
        return None
    if blocks != {0}:
        is_known = all(are_equal(each.wide_shape, data.shape) for each in found.values())
        return _RepeatedInputs(found, blocks.pop()) if is_known else None
    return _RepeatedInputs(found, 0) if all(_is_row_number(each, data) for each in found.values()) else None


def _is_row_number(repeated: Repeated, data: ir.Value) -> bool:
    """Returns whether the numbers broadcast to data to which the repeated ones do, in the same way."""
    if does_not_grow(repeated.value, data):
        return True
    return repeated.is_full and are_equal(repeated.wide_shape, data.shape)


def _build(match: _RepeatedInputs, edit: Edit) -> None:
    numbers, node = edit.shared(_Numbers), edit.node
    data = next(each for i, each in enumerate(node.inputs) if i not in match.repeated)
    assert data is not None
    if not match.blocks:
        for i, each in match.repeated.items():
            edit.replace_input(node, i, numbers.of(each, edit))
        _note_shape(node, data)
        return
    old, first = node.outputs[0], next(iter(match.repeated.values()))
    assert first.length is not None
    assert data.shape is not None
    assert old.dtype is not None
    in_blocks = numbers.in_blocks(data, first, edit)
    inputs = [
        numbers.of(match.repeated[i], edit) if i in match.repeated else in_blocks for i in range(len(node.inputs))
    ]
    inner = ir.node(node.op_type, inputs, dict(node.attributes))
    edit.insert_main(inner, before=node)
    edit.facts.note(inner.outputs[0], old.dtype, ir.Shape([*data.shape[:-1], match.blocks, first.length]))
    shape = edit.add_constant(np.array([0] * (len(data.shape) - 1) + [match.blocks * first.length]), before=node)
    joined = edit.insert(ir.node("Reshape", [inner.outputs[0], shape]), before=node)
    numbers.blocks[node.graph, joined] = inner.outputs[0]
    _note_shape(node, data)
    edit.replace(old, joined)


def _note_shape(node: ir.Node, data: ir.Value) -> None:
    """Gives the results of a node, and of nodes with one number after it, the shape of the data, which now is known."""
    todo = [node]
    for each in todo:
        if data.shape is not None and not VISITED.is_passed(len(todo)):
            result = each.outputs[0]
            result.shape = data.shape
            todo += [use.node for use in result.uses() if _wide_input(use.node) == use.idx]


def _wide_input(node: ir.Node) -> int | None:
    """Returns the index of the only input of an elementwise node that is not one number; None for other nodes."""
    wide = [i for i, each in enumerate(node.inputs) if each is not None and not has_one_element(each, 1)]
    return wide[0] if len(wide) == 1 and is_standard(node, *EXACT) else None


RULE: Rule[_RepeatedInputs] = Rule("repeated numbers", 13, _match, _build, prepares=True, operators=_COMBINE)


class _Numbers:
    """The numbers that the values of one model repeat, each computed once.

    Attributes:
        blocks: Values in blocks, [..., blocks, size], by the graph that has them, and by the same values with joined
            rows. The nodes of one graph are converted in order, so that the values stand before the next node.
    """

    def __init__(self, facts: Facts) -> None:
        """Starts without any."""
        self.repetitions = Repetitions()
        self._facts = facts
        self._of: dict[ir.Value, ir.Value] = {}
        self.blocks: dict[tuple[ir.Graph | ir.Function | None, ir.Value], ir.Value] = {}

    def of(self, repeated: Repeated, edit: Edit) -> ir.Value:
        """Returns the numbers that a value repeats, and inserts the nodes that compute them."""
        if repeated.numbers is not None:
            return repeated.numbers
        if repeated.value in self._of:
            return self._of[repeated.value]
        node = repeated.node
        assert node is not None
        dtype = node.outputs[0].dtype
        inputs: list[ir.Value | None] = [
            self.of(each, edit) if isinstance(each, Repeated) else each for each in repeated.inputs
        ]
        inputs += node.inputs[len(inputs) :]
        if node.op_type == "Reshape":
            inputs[1] = self._shape(node, edit)
        new = ir.node(node.op_type, inputs, dict(node.attributes))
        edit.insert(new, before=node, origin=node)
        assert dtype is not None
        self._facts.note(new.outputs[0], dtype, repeated.shape)
        self._of[repeated.value] = new.outputs[0]
        return new.outputs[0]

    @staticmethod
    def _shape(reshape: ir.Node, edit: Edit) -> ir.Value:
        """Returns the shape of a Reshape with 1 as its last dimension."""
        shape = reshape.inputs[1]
        assert shape is not None
        zero, last, one = (constant(np.array([number])) for number in (0, -1, 1))
        begin = ir.node("Slice", [shape, zero.outputs[0], last.outputs[0]])
        new = ir.node("Concat", [begin.outputs[0], one.outputs[0]], {"axis": 0})
        return edit.insert(zero, last, one, begin, new, before=reshape, origin=reshape)

    def in_blocks(self, value: ir.Value, repeated: Repeated, edit: Edit) -> ir.Value:
        """Returns a value with rows that are cut into the blocks of repeated numbers."""
        if has_one_element(value):
            return value
        shape, length = value.shape, repeated.length
        assert shape is not None
        assert length is not None
        wanted = ir.Shape([*shape[:-1], repeated.blocks, length])
        found = self._in_blocks(value, wanted, edit, 0) or _reshaped(value, wanted, repeated)
        if found is None:
            given = edit.add_constant(np.array([0] * (len(shape) - 1) + [repeated.blocks, length]), before=edit.node)
            found = edit.insert(ir.node("Reshape", [value, given]), before=edit.node)
            assert value.dtype is not None
            self._facts.note(found, value.dtype, wanted)
            self.blocks[edit.node.graph, value] = found
        return found

    def _in_blocks(self, value: ir.Value, wanted: ir.Shape, edit: Edit, depth: int) -> ir.Value | None:
        """Returns a value in blocks, if it is computed from one that is in blocks."""
        key = edit.node.graph, value
        if key in self.blocks:
            return self.blocks[key] if self.blocks[key].shape == wanted else None
        node = value.producer()
        wide = None if node is None else _wide_input(node)
        if node is None or wide is None or node.graph is not edit.node.graph or CHAIN.is_passed(depth):
            return None
        data = node.inputs[wide]
        source = None if data is None else self._in_blocks(data, wanted, edit, depth + 1)
        if source is None or value.dtype is None:
            return None
        inputs = [source if i == wide else each for i, each in enumerate(node.inputs)]
        new = ir.node(node.op_type, inputs, dict(node.attributes))
        self.blocks[key] = edit.insert(new, before=edit.node, origin=node)
        self._facts.note(self.blocks[key], value.dtype, wanted)
        return self.blocks[key]


def _reshaped(value: ir.Value, wanted: ir.Shape, repeated: Repeated) -> ir.Value | None:
    """Returns a Reshape of a value to the wanted shape from which the repeated numbers are computed."""
    todo, seen = [repeated.value], set[ir.Value]()
    for each in todo:
        node = each.producer()
        if node is None or each in seen or VISITED.is_passed(len(seen)):
            continue
        seen.add(each)
        is_it = is_standard(node, "Reshape") and node.inputs[0] is not None and each.shape == wanted
        if is_it and node.inputs[0] is value:
            return each
        todo += [other for other in node.inputs if other is not None]
    return None
