"""Which values are vectors of the rows of a tensor, and which are numbers for each row.

Example: of x [4, 8], ReduceMax(x) [4, 1] is a number for each row, b [8] a column, and x * b a vector.
"""

from __future__ import annotations

from enum import Enum, auto

import onnx_ir as ir

from ...operators.program import REDUCTIONS
from ..analysis.constants import constant_scalar
from ..analysis.limits import NESTED
from ..analysis.nodes import is_standard
from ..analysis.shapes import axes_of, does_not_grow, is_equal, lines_up, same_shape
from ..analysis.standard import RESHAPES
from ..chains.quantize_linear import granularity_of
from .steps import ELEMENTWISE, elements_of, is_linear, is_own_step


class Kind(Enum):
    """The shape of a value, where [lead..., row...] is the shape of the tensor."""

    VECTOR = auto()  # [lead..., row...]
    NUMBER = auto()  # [lead..., 1...]
    SQUEEZED = auto()  # [lead...]: a number without the dimensions of the row
    PART = auto()  # it broadcasts to [lead..., 1...]
    COLUMN = auto()  # [1..., row...]; ones may be missing
    FLAT = auto()  # the elements of a vector in another shape, if all of it is one row
    LITERAL = auto()  # one constant number, of any shape


class Rows:
    """The kinds of values, as far as they are known. A value never changes.

    Attributes:
        x: The tensor.
        axis: The first of the dimensions that form a row, negative; 0 if all of x is one row.
    """

    def __init__(self, x: ir.Value, axis: int) -> None:
        """Knows the shape of `x` only."""
        self.x, self.axis = x, axis
        self._kinds: dict[ir.Value, Kind | None] = {}
        node = x.producer()  # what functions of one operand compute x from has its shape
        while node is not None and is_standard(node, *ELEMENTWISE) and len(elements_of(node)) == 1:
            self._kinds[elements_of(node)[0]] = Kind.VECTOR
            node = elements_of(node)[0].producer()
        self._depth = 0

    def kind(self, value: ir.Value) -> Kind | None:
        """Returns the kind of a value; None if it is not known, or another shape."""
        if value not in self._kinds:
            self._depth += 1
            found = self._find(value) if not NESTED.is_passed(self._depth) else None
            self._depth -= 1
            self._kinds[value] = found
        return self._kinds[value]

    def is_number(self, value: ir.Value) -> bool:
        """Returns whether RowProgram reads a value as numbers of rows: they may recur only as a whole."""
        kind = self.kind(value)
        if kind != Kind.PART or value.shape is None:
            return kind == Kind.NUMBER
        lead = [dim != 1 for dim in value.shape]
        if not any(lead):
            return True
        assert self.x.shape is not None
        end = len(value.shape) + self.axis if self.axis else 0
        first = lead.index(True)
        repeated = self.x.shape[len(self.x.shape) - len(value.shape) + first :]
        return all(is_equal(*pair) for pair in zip(value.shape[first:end], repeated, strict=False))

    def is_apart(self, value: ir.Value) -> bool:
        """Returns whether the rows of a number are not adjacent: [2, 1, 4, 1] of [2, 3, 4, 8]. It is then repeated."""
        return self.kind(value) == Kind.PART and value.shape is not None and not self.is_number(value)

    def of_result(self, node: ir.Node) -> Kind | None:
        """Returns the kind of the output of a node that a program can have as a step, by its shape; else None."""
        if len(node.outputs) != 1 or not node.inputs or node.inputs[0] is None:
            return None
        source = node.inputs[0]
        if is_linear(node):
            return self._of_linear(node)
        if is_own_step(node):
            return self._of_operands(elements_of(node))
        if is_standard(node, *REDUCTIONS):
            kind = self.kind(source)
            if kind not in (Kind.VECTOR, Kind.FLAT) or axis_of(node) != self.axis:
                return None
            keeps = node.attributes.get_int("keepdims", 1) == 1 and kind == Kind.VECTOR
            return Kind.NUMBER if keeps else Kind.SQUEEZED
        if is_standard(node, *RESHAPES):
            return self._of_reshape(node, source)
        if is_standard(node, "Expand"):
            return self._of_expand(node, source)
        return self._of_operands(elements_of(node)) if is_standard(node, *ELEMENTWISE) else None

    def _find(self, value: ir.Value) -> Kind | None:
        if value is self.x:
            return Kind.VECTOR
        if constant_scalar(value) is not None:
            return Kind.LITERAL
        if same_shape(value, self.x):
            return Kind.VECTOR
        node = value.producer()
        found = self._by_shape(value)
        if found == Kind.NUMBER or node is None:
            return found
        return self.of_result(node) or found

    def _by_shape(self, value: ir.Value) -> Kind | None:
        """Returns the kind of a value that is not a vector, by its inferred shape."""
        if value.shape is None:
            return None
        ones, shape, rank = [dim == 1 for dim in value.shape], self.x.shape, len(value.shape)
        if all(ones) and (rank <= 1 or (shape is not None and rank <= len(shape))):
            return Kind.NUMBER if shape is not None and rank == len(shape) and self._is_full(value) else Kind.PART
        if shape is None or rank > len(shape):
            return None
        fits = [
            one or is_equal(a, b) for one, a, b in zip(ones, value.shape, list(shape)[len(shape) - rank :], strict=True)
        ]
        row = -self.axis or len(shape)  # the number of dimensions of a row
        if all(fits) and all(ones[max(0, rank - row) :]):
            return Kind.NUMBER if self._is_full(value) else Kind.PART
        is_row = [is_equal(*pair) for pair in zip(value.shape, list(shape)[len(shape) - rank :], strict=True)][
            rank - row :
        ]
        return Kind.COLUMN if rank >= row and all(is_row) and all(ones[: rank - row]) else None

    def _is_full(self, value: ir.Value) -> bool:
        """Returns whether a value of the rank of x is known to have the leading dimensions of x, then 1."""
        if value.shape is None or self.x.shape is None or len(value.shape) != len(self.x.shape):
            return False
        pairs = list(zip(value.shape, self.x.shape, strict=True))
        lead = len(pairs) + self.axis if self.axis else 0
        return all(is_equal(*pair) for pair in pairs[:lead]) and all(mine == 1 for mine, _ in pairs[lead:])

    def _of_linear(self, node: ir.Node) -> Kind | None:
        """Returns the kind of the result of a node that quantizes with a scale for x, or for each row of it.

        There may be one row at run time, so that a scale for each row is one for x.
        """
        x, *parameters = elements_of(node)
        axis, rank = node.attributes.get_int("axis", 1), None if self.x.shape is None else len(self.x.shape)
        granularity, scale = granularity_of(node), parameters[0].shape
        is_whole = granularity == "per_tensor" or (scale is not None and not len(scale))
        if not is_whole and (rank is None or axis not in (0, -rank) or self.axis != 1 - rank):
            return None
        kinds = {Kind.LITERAL, Kind.SQUEEZED} if not is_whole else {Kind.LITERAL, Kind.NUMBER, Kind.PART}
        if self.axis == 0:
            kinds |= {Kind.SQUEEZED}
        return Kind.VECTOR if self.kind(x) == Kind.VECTOR and {*map(self.kind, parameters)} <= kinds else None

    def _of_operands(self, operands: list[ir.Value]) -> Kind | None:
        """Returns the kind of an elementwise function of values."""
        kinds = [self.kind(each) for each in operands]
        others = [value for value, kind in zip(operands, kinds, strict=True) if kind != Kind.LITERAL]
        for value, kind in zip(operands, kinds, strict=True):
            if kind == Kind.LITERAL and not any(does_not_grow(value, other) for other in others):
                return None
        found = {*kinds} - {Kind.LITERAL}
        if self.axis == 0:  # all numbers have one element
            found = {Kind.PART if kind == Kind.SQUEEZED else kind for kind in found}
        if Kind.VECTOR in found:
            return Kind.VECTOR if found <= {Kind.VECTOR, Kind.NUMBER, Kind.PART, Kind.COLUMN} else None
        if Kind.NUMBER in found:
            return Kind.NUMBER if found <= {Kind.NUMBER, Kind.PART} else None
        if Kind.SQUEEZED in kinds and found == {Kind.PART if self.axis == 0 else Kind.SQUEEZED}:
            return Kind.SQUEEZED
        return Kind.FLAT if found == {Kind.FLAT} else None

    def _of_reshape(self, node: ir.Node, source: ir.Value) -> Kind | None:
        kind, value = self.kind(source), node.outputs[0]
        if kind in (Kind.VECTOR, Kind.FLAT):
            return Kind.FLAT if self.axis == 0 else None
        if kind not in (Kind.NUMBER, Kind.SQUEEZED):
            return None
        if self._is_full(value):
            return Kind.NUMBER
        if self.axis == 0:
            return Kind.SQUEEZED if self._by_shape(value) == Kind.PART else None
        if node.op_type == "Squeeze" and kind == Kind.NUMBER and sorted(axes_of(node) or []) == [*range(self.axis, 0)]:
            return Kind.SQUEEZED
        return Kind.NUMBER if lines_up(value, self.x, self.axis, kind == Kind.NUMBER) else None

    def _of_expand(self, node: ir.Node, source: ir.Value) -> Kind | None:
        """Returns the kind of an Expand of a number to the shape of the tensor, or to another that broadcasts."""
        value = node.outputs[0]
        if self.kind(source) not in (Kind.NUMBER, Kind.PART) or not does_not_grow(value, self.x):
            return None
        return self._by_shape(value) if value.shape is not None else Kind.VECTOR


def axis_of(reduction: ir.Node) -> int | None:
    """Returns the first of the last dimensions that a node reduces, negative, or 0 for all; None for others."""
    axes, x = axes_of(reduction), reduction.inputs[0]
    if axes is None or x is None or (not axes and reduction.attributes.get_int("noop_with_empty_axes", 0) != 0):
        return None
    rank = None if x.shape is None else len(x.shape)
    if not axes or (rank is not None and len(axes) == rank):
        return 0
    if rank is None and any(axis >= 0 for axis in axes):
        return None
    last = sorted(axis if axis < 0 else axis - (rank or 0) for axis in axes)
    return last[0] if last == list(range(-len(last), 0)) else None
