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
from ..analysis.limits import VISITED
from ..analysis.nodes import is_standard
from ..analysis.repetition import Repeated, Repetitions
from ..analysis.shapes import are_equal, does_not_grow, has_one_element
from ..analysis.standard import CHOOSING, EXACT, UNARY
from ..edit import Edit, constant
from ..rule import Context, Rule

_COMBINE = EXACT - UNARY - CHOOSING


class _Match(NamedTuple):
    """The data that an elementwise node reads, and the repeated numbers, by their indices.

    Without repeated numbers, the data are blocks that were joined to rows. Joining them behind the node is the same.
    """

    data: int
    repeated: dict[int, Repeated]


def _match(node: ir.Node, context: Context) -> _Match | None:
    if None in node.inputs or node.outputs[0].dtype is None:
        return None
    numbers = context.shared(_Numbers)
    found = dict[int, Repeated]()
    for i, value in enumerate(node.inputs if node.op_type in _COMBINE else ()):
        if not context.facts.is_constant(value) and (each := numbers.repetitions.of(value)) is not None:
            found[i] = each
    wide = [(i, each) for i, each in enumerate(node.inputs) if each is not None and i not in found]
    if not found:
        wide = [(i, each) for i, each in wide if not has_one_element(each, 1)]
    if len(wide) != 1 or numbers.repetitions.of(node.outputs[0]) is not None:
        return None
    index, data = wide[0]
    is_one_kind = len({each.blocks for each in found.values()}) == 1
    is_moved = is_one_kind and all(_fits(each, data) for each in found.values())
    return _Match(index, found) if is_moved or (not found and (node.graph, data) in numbers.joined) else None


def _fits(repeated: Repeated, data: ir.Value) -> bool:
    """Returns whether the numbers broadcast to data to which the repeated ones do, in the same way."""
    if not repeated.blocks and does_not_grow(repeated.value, data):
        return True
    return (repeated.is_full or repeated.blocks > 0) and are_equal(repeated.wide_shape, data.shape)


def _build(match: _Match, edit: Edit) -> None:
    numbers, node, repeated = edit.shared(_Numbers), edit.node, match.repeated
    first, data, old = next(iter(repeated.values()), None), node.inputs[match.data], node.outputs[0]
    if first is not None and not first.blocks:
        for i, each in repeated.items():
            edit.replace_input(node, i, numbers.of(each, edit))
        return
    assert data is not None
    assert data.shape is not None
    assert old.dtype is not None
    in_blocks = numbers.joined[node.graph, data] if first is None else numbers.in_blocks(data, first, edit)
    inputs = [numbers.of(repeated[i], edit) if i in repeated else each for i, each in enumerate(node.inputs)]
    inputs[match.data] = in_blocks
    inner = edit.insert_main(ir.node(node.op_type, inputs, dict(node.attributes)), before=node)
    edit.facts.note(inner, old.dtype, in_blocks.shape)
    shape = edit.add_constant(np.array([0] * (len(data.shape) - 1) + [data.shape[-1]], np.int64), before=node)
    joined = edit.insert(ir.node("Reshape", [inner, shape]), before=node)
    edit.facts.note(joined, old.dtype, data.shape)
    numbers.joined[node.graph, joined] = inner
    edit.replace(old, joined)


RULE: Rule[_Match] = Rule("repeated numbers", 13, _match, _build, prepares=True, operators=EXACT)


class _Numbers:
    """The numbers that the values of one model repeat, each computed once.

    Attributes:
        joined: Values in blocks, [..., blocks, size], by the graph that has them, and by the same values with joined
            rows. The nodes of one graph are converted in order, so that the values stand before the next node.
    """

    def __init__(self, facts: Facts) -> None:
        """Starts without any."""
        self.repetitions = Repetitions()
        self._facts = facts
        self._of: dict[ir.Value, ir.Value] = {}
        self.joined: dict[tuple[ir.Graph | ir.Function | None, ir.Value], ir.Value] = {}

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
        shape, length, dtype = value.shape, repeated.length, value.dtype
        assert shape is not None
        assert length is not None
        assert dtype is not None
        wanted = ir.Shape([*shape[:-1], repeated.blocks, length])

        def cut() -> ir.Value:
            given = edit.add_constant(np.array([0] * (len(shape) - 1) + [repeated.blocks, length]), before=edit.node)
            result = edit.insert(ir.node("Reshape", [value, given]), before=edit.node)
            self._facts.note(result, dtype, wanted)
            return result

        found = self.joined.get((edit.node.graph, value))
        if found is not None and found.shape == wanted:
            return found
        return _reshaped(value, wanted, repeated) or edit.once((value, repeated.blocks), cut)


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
