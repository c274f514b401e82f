"""Builds the codes of quantized activations, which products multiply in place of the floats.

They are the model's codes, as uint8. Codes, scales and zero points are moved as the model moves the floats.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.inference import Facts
from ..analysis.types import CODE_TYPES
from ..analysis.values import AnyValues
from ..edit import Edit, constant
from .activation import Activation
from .affine_form import Affine, Rearrangement, is_bounded
from .terms import NODE_MOVES, CodesOf, Op, Param, Term, dtype_of, key_of
from .unsigned_codes import UnsignedCodes, nodes_of_unsigned

_MOVES = NODE_MOVES | {"Concat"}


class Codes(NamedTuple):
    """The codes of an activation, with their scales and zero points.

    Attributes:
        codes: uint8, [..., M, K]; for a convolution uint8 or int8, [N, C, D1, ..., Dr]; of two terms int8,
            [..., M, 2 * K], or [N, 2 * C, D1, ..., Dr].
        scale: One for each row, [..., M, 1], or for each group of a row, [..., M, K / group_size], or for each sample,
            [N, 1, ..., 1], or one for all; None if the codes are not scaled, or the product's epilogue has the scale.
        zero_point: Of the type of the codes, as many as there are scales, or one for all.
        offset: What every element of a row has in addition, float32, [..., M, 1] or one number, or [..., M, K /
            group_size] for each group of it; None for 0.
        has_offset_of_groups: Whether the offset has one number for each group.
        terms: The codes of an element, 1 or 2.
        repeats_scale: Whether there is one scale and a zero point for each row: products take as many scales.
    """

    codes: ir.Value
    scale: ir.Value | None
    zero_point: ir.Value
    offset: ir.Value | None = None
    has_offset_of_groups: bool = False
    terms: int = 1
    repeats_scale: bool = False


class ActivationCodes:
    """The codes of the activations of one model; all products of an activation share its codes."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any codes."""
        self._facts = facts
        self._of_root: dict[ir.Value, ir.Value] = {}
        self._moved: dict[ir.Value, ir.Value] = {}
        self._found: dict[tuple[object, ...], Codes] = {}

    def of(self, activation: Activation, edit: Edit) -> Codes:
        """Returns the codes of an activation.

        Args:
            activation: The activation.
            edit: The edit of the product. It inserts the nodes, if there are no codes yet.
        """
        form = activation.form
        key = form.value, activation.groups, activation.parts, activation.order, activation.shape
        if key not in self._found:
            before = form.value.producer()
            assert before is not None
            terms = _Terms(self, before, edit)
            codes = self._codes(form, edit)
            if activation.order:
                codes = terms.insert("Transpose", codes, perm=activation.order)
                self._facts.note(codes, ir.DataType.UINT8, None)
            if activation.shape:
                codes = terms.insert("Reshape", codes, terms.constant(np.array(activation.shape)))
                self._facts.note(codes, ir.DataType.UINT8, None)
            scale = None if form.scale is None else terms.of_rows(form.scale, activation)
            if form.scale is not None and scale is not None and dtype_of(form.scale.term) == ir.DataType.FLOAT16:
                scale = terms.insert("Cast", scale, to=int(ir.DataType.FLOAT))
                self._facts.note(scale, ir.DataType.FLOAT, None)
            zero_point, offset = self._zero_point(activation, terms, scale, edit)
            if activation.quotient is not None and scale is not None:
                scale, zero_point = _with_marks(activation, scale, zero_point, self, before, edit)
            repeats_scale = _has_one(form.scale) and not _has_one(form.zero_point) and activation.zero_point is None
            self._found[key] = Codes(
                codes, scale, zero_point, offset, activation.has_offset_of_groups, repeats_scale=repeats_scale
            )
        return self._found[key]

    def root(self, form: Affine, edit: Edit) -> ir.Value:
        """Returns the codes before all moves, uint8."""
        if form.root not in self._of_root:
            self._of_root[form.root] = codes = _unsigned(form, edit)
            self._facts.note(codes, ir.DataType.UINT8, form.root.shape)
        return self._of_root[form.root]

    def after(self, value: ir.Value) -> ir.Value:
        """Returns the codes of an activation that were built: its root, or after a move."""
        return self._moved.get(value) or self._of_root[value]

    def _codes(self, form: Affine, edit: Edit) -> ir.Value:
        codes = self.root(form, edit)
        for move in form.moves:
            node, moved = move.node, move.node.outputs[move.output]
            if moved not in self._moved:
                others: Sequence[ir.Value | None]
                if move.data:
                    others = [edit.add_constant(np.uint8(move.other + form.shift), before=node, origin=node)]
                else:
                    others = [self._codes(each, edit) for each in move.others] or node.inputs[1:]
                inputs = _inputs(move, codes, others)
                if inputs == [*node.inputs]:  # the model's own codes, which other nodes may read
                    codes = self._moved[moved] = moved
                    continue
                new = ir.node(node.op_type, inputs, dict(node.attributes), num_outputs=len(node.outputs))
                edit.insert(new, before=node, origin=node)
                for old, output in zip(node.outputs, new.outputs, strict=True):
                    self._moved[old] = output
                    self._facts.note(output, ir.DataType.UINT8, old.shape)
            codes = self._moved[moved]
        return codes

    def _zero_point(
        self, activation: Activation, terms: _Terms, scale: ir.Value | None, edit: Edit
    ) -> tuple[ir.Value, ir.Value | None]:
        """Returns the zero point as uint8, and the offset, with what the zero point is not a code of."""
        form, zero = activation.form, activation.form.zero_point
        offset = None if form.offset is None else terms.of_rows(form.offset, activation)
        if zero is None:
            return terms.constant(np.uint8(form.shift)), offset
        if (number := activation.zero_point) is not None:
            return terms.constant(np.uint8(number + form.shift)), offset
        dtype = dtype_of(zero.term)
        is_code = (dtype, form.shift) in ((ir.DataType.UINT8, 0), (ir.DataType.INT8, 128))
        if is_code:
            codes = edit.shared(UnsignedCodes)
            return terms.of_rows(zero, activation, as_code=lambda value: codes.of(value, edit)), offset

        def as_code(value: ir.Value) -> ir.Value:
            value = value if dtype == ir.DataType.FLOAT else terms.insert("Cast", value, to=int(ir.DataType.FLOAT))
            value = value if activation.has_code_zero_point else terms.insert("Round", value)
            value = terms.insert("Add", value, terms.constant(np.float32(form.shift))) if form.shift else value
            value = terms.insert("Clip", value, terms.constant(np.float32(0)), terms.constant(np.float32(255)))
            return terms.insert("Cast", value, to=int(ir.DataType.UINT8))

        rounded = terms.of_rows(zero, activation, as_code=as_code)
        if activation.has_code_zero_point:
            return rounded, offset
        value = terms.of_rows(zero, activation)
        value = value if dtype == ir.DataType.FLOAT else terms.insert("Cast", value, to=int(ir.DataType.FLOAT))
        code = terms.insert("Cast", rounded, to=int(ir.DataType.FLOAT))
        if form.shift:
            code = terms.insert("Sub", code, terms.constant(np.float32(form.shift)))
        rest = terms.insert("Sub", code, value)  # scale * (code - zero point) is missing in each element
        rest = rest if scale is None else terms.insert("Mul", rest, scale)
        return rounded, rest if offset is None else terms.insert("Add", rest, offset)


def _inputs(move: Rearrangement, moved: ir.Value, others: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    """Returns the inputs of a new node that moves other elements as a node of the model does."""
    if not move.data:
        return [moved, *others]
    return [move.node.inputs[0], *((moved, *others) if move.data == 1 else (*others, moved))]


def _has_one(param: Param | None) -> bool:
    return param is None or param.is_one


def _limits_of(form: Affine) -> list[Param]:
    """Returns NaN where a number lets codes be NaN, else 0: of each part of a Concat, or of all of them."""
    assert form.mark is not None
    assert form.scale is not None
    quotients, is_whole = [each.quotient for each in form.parts], is_bounded(form.scale)
    limits = [each.limits(is_whole=is_whole) for each in quotients if each is not None and not each.is_exact]
    return limits if len(limits) == len(quotients) else [form.mark]


class _Terms:
    """Builds terms as nodes before the node that computes an activation."""

    def __init__(self, codes: ActivationCodes, before: ir.Node, edit: Edit) -> None:
        self._codes, self._before, self._edit = codes, before, edit
        self._built: dict[object, ir.Value] = {}

    def insert_node(self, node: ir.Node) -> ir.Value:
        return self._edit.insert(node, before=self._before, origin=self._before)

    def insert(self, op_type: str, *inputs: ir.Value, **attributes: int | Sequence[int]) -> ir.Value:
        return self.insert_node(ir.node(op_type, list(inputs), attributes))

    def constant(self, number: np.generic | np.ndarray[Any, Any]) -> ir.Value:
        return self._edit.add_constant(number, before=self._before, origin=self._before)

    def of_rows(
        self, param: Param, activation: Activation, *, as_code: Callable[[ir.Value], ir.Value] | None = None
    ) -> ir.Value:
        """Returns a parameter as numbers for the rows of the product, or for their groups; or as one number.

        A zero point may become codes, by `as_code`, before it moves as codes do.
        """
        value = self._of(param.term, as_code)
        if param.is_one:
            rank = None if activation.value.shape is None else len(activation.value.shape)
            if param.rank != 0 and (param.rank is None or rank is None or param.rank > rank):
                value = self.insert("Reshape", value, self.constant(np.array([1])))
            return value
        if activation.parts > 1:
            indices = np.repeat(np.arange(activation.groups), activation.parts)
            value = self.insert("Gather", value, self.constant(indices), axis=-1)
        return value

    def limits(self, form: Affine) -> list[ir.Value]:
        """Returns single numbers: one is NaN in runs in which codes of a part of a form may be NaN."""
        given = {key_of(each.term): each for each in _limits_of(form)}.values()
        found = [(each, self._of(each.term, None)) for each in given]
        return [value if each.is_one else self.insert("ReduceSum", value, keepdims=0) for each, value in found]

    def _of(self, term: Term, as_code: Callable[[ir.Value], ir.Value] | None) -> ir.Value:
        as_code = as_code if _has_value(term) else None  # shapes and constants are the same for scales and zero points
        if (key := (as_code is not None, key_of(term))) not in self._built:
            self._built[key] = self._build(term, as_code)
        return self._built[key]

    def _build(self, term: Term, as_code: Callable[[ir.Value], ir.Value] | None) -> ir.Value:
        if as_code is not None and not (isinstance(term, Op) and term.op_type in _MOVES):
            return as_code(self._of(term, None))
        if isinstance(term, ir.Value):
            return self._edit.facts.current(term)
        if isinstance(term, np.ndarray):
            return self.constant(term)
        if isinstance(term, CodesOf):
            return self._codes.after(term.value)
        moved = len(term.inputs) if term.op_type == "Concat" else 1  # the others are lengths, indices or shapes
        inputs = [self._of(each, as_code if i < moved else None) for i, each in enumerate(term.inputs)]
        new = ir.node(term.op_type, inputs, dict(term.attributes), num_outputs=term.outputs)
        self.insert_node(new)
        return new.outputs[term.output]


class _TermsOfBranch(_Terms):
    """Builds terms as nodes of a subgraph."""

    def __init__(self, codes: ActivationCodes, before: ir.Node, edit: Edit) -> None:
        super().__init__(codes, before, edit)
        self._nodes: list[ir.Node] = []

    def insert_node(self, node: ir.Node) -> ir.Value:
        self._nodes.append(node)
        return node.outputs[0]

    def constant(self, number: np.generic | np.ndarray[Any, Any]) -> ir.Value:
        return self.insert_node(constant(np.asarray(number)))

    def marks_of_elements(self, form: Affine) -> ir.Value:
        """Returns NaN for the elements of a form with codes that are not finite, else 0."""
        if form.quotient is not None:
            value = self._of(form.quotient.of_elements(), None)
        else:
            codes = self.insert("Cast", self._edit.facts.current(form.root), to=int(ir.DataType.FLOAT))
            value = self.insert("Mul", codes, self.constant(np.float32(0)))
        for move in form.moves:
            others: Sequence[ir.Value | None]
            if move.data:
                others = [self.constant(np.float32(0))]
            else:
                others = [self.marks_of_elements(each) for each in move.others] or move.node.inputs[1:]
            inputs, outputs = _inputs(move, value, others), len(move.node.outputs)
            new = ir.node(move.node.op_type, inputs, dict(move.node.attributes), num_outputs=outputs)
            self.insert_node(new)
            value = new.outputs[move.output]
        return value

    def graph(self, name: str, *outputs: ir.Value) -> ir.Graph:
        copies = [self.insert("Identity", each) for each in outputs]
        return ir.Graph([], copies, nodes=self._nodes, name=name)


def _with_marks(
    activation: Activation, scale: ir.Value, zero_point: ir.Value, codes: ActivationCodes, before: ir.Node, edit: Edit
) -> tuple[ir.Value, ir.Value]:
    """Returns the scale and the zero point of rows that share numbers, with the marks of each row.

    The marks are computed only in runs in which a number lets codes be NaN.
    """
    form = activation.form
    outside = _Terms(codes, before, edit)
    marked, plain = (_TermsOfBranch(codes, before, edit) for _ in range(2))
    condition = outside.insert(
        "IsNaN", functools.reduce(functools.partial(outside.insert, "Add"), outside.limits(form))
    )
    edit.facts.note(condition, ir.DataType.BOOL, None)
    marks = marked.insert("ReduceSum", marked.marks_of_elements(form), marked.constant(np.array([-1])), keepdims=1)
    scales = [marked.insert("Add", scale, marks)], [scale]
    if not _has_one(form.zero_point) and activation.zero_point is None:
        scales[0].append(marked.insert("Expand", zero_point, marked.insert("Shape", scales[0][0])))
        scales[1].append(zero_point)
    attributes = {
        "then_branch": marked.graph("rows_that_may_be_nan", *scales[0]),
        "else_branch": plain.graph("finite_rows", *scales[1]),
    }
    found = ir.node("If", [condition], attributes, num_outputs=len(scales[0]))
    outside.insert_node(found)
    edit.facts.note(found.outputs[0], ir.DataType.FLOAT, None)
    if len(found.outputs) > 1:
        edit.facts.note(found.outputs[1], zero_point.dtype or ir.DataType.UINT8, None)
    return found.outputs[0], found.outputs[-1] if len(found.outputs) > 1 else zero_point


def _has_value(term: Term) -> bool:
    return isinstance(term, ir.Value) or (isinstance(term, Op) and any(map(_has_value, term.inputs)))


def _unsigned(form: Affine, edit: Edit) -> ir.Value:
    """Returns the model's own codes as uint8. A Cast makes 0 of NaN, which is the code of 0 without a zero point."""
    root = edit.facts.current(form.root)
    node = root.producer()
    if root.dtype in CODE_TYPES:
        return edit.shared(UnsignedCodes).of(root, edit)
    assert node is not None
    nodes: list[ir.Node] = []

    def add(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        nodes.append(ir.node(op_type, list(inputs), attributes))
        return nodes[-1].outputs[0]

    def number(value: int) -> ir.Value:
        nodes.append(constant(np.array(value, np.float32)))
        return nodes[-1].outputs[0]

    real = root if root.dtype == ir.DataType.FLOAT else add("Cast", root, to=int(ir.DataType.FLOAT))
    if not edit.shared(AnyValues).known(form.root).fits(-form.shift, 255 - form.shift):
        real = add("Clip", real, number(form.low), number(form.high))
    if form.shift not in (0, 128):
        real = add("Add", real, number(form.shift))
    to = ir.DataType.INT8 if form.shift == 128 else ir.DataType.UINT8
    codes = add("Cast", real, to=int(to))
    edit.facts.note(codes, to, root.shape)
    nodes += nodes_of_unsigned(codes) if form.shift == 128 else []
    return edit.insert_after(*nodes, after=node)
