"""Which values are numbers that are repeated along the last dimension, as a scale is before it is used for a row.

value[..., i] = numbers[..., 0] for each i; or, if blocks of a row have their own numbers,
value[..., j * size + i] = numbers[..., j, 0].

An elementwise function of repeated numbers is the repeated function of the numbers, and a Reshape that keeps the last
dimension moves the numbers only.

Example: Div(Expand(m, [4, 96]), 127) of m [4, 1] repeats m / 127, and Reshape(.., [2, 2, 96]) of it the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import onnx_ir as ir

from .constants import constant_scalar
from .limits import NESTED
from .nodes import is_standard, producer_of
from .shape_arithmetic import known_lengths
from .shapes import are_equal, has_one_element, is_equal
from .standard import CHOOSING, EXACT, REPEATING, UNARY

# Exp and Sigmoid are left out: their last bits may depend on the position in the tensor.


@dataclass(frozen=True)
class Repeated:
    """A value that repeats numbers.

    Attributes:
        value: The value.
        numbers: The numbers, [..., 1], if the model has them; else they are computed by `node` from `inputs`.
        node: An elementwise node, or one that reshapes.
        inputs: Its inputs, without those of a Clip and of a Reshape that are bounds and shapes.
        shape: The shape of the numbers.
        is_full: Whether the numbers have the leading dimensions of the value; otherwise, they only broadcast to them.
        length: How often each number is repeated; None if that is not known.
        blocks: The number of blocks of a row; 0 if all of it has one number. The numbers are then [..., blocks, 1].
    """

    value: ir.Value
    shape: ir.Shape
    numbers: ir.Value | None = None
    node: ir.Node | None = None
    inputs: tuple[Repeated | ir.Value, ...] = ()
    is_full: bool = True
    length: int | None = None
    blocks: int = 0

    @property
    def wide_shape(self) -> ir.Shape | None:
        """The shape of the value, also if shape inference does not find it; None if it is not known."""
        if not self.is_full or self.length is None:
            return self.value.shape
        lead, last = (self.shape[:-2], self.blocks) if self.blocks else (self.shape[:-1], 1)
        return ir.Shape([*lead, last * self.length])

    @property
    def is_one(self) -> bool:
        """Whether it repeats one number."""
        return self.numbers is not None and has_one_element(self.numbers)


class Repetitions:
    """The repeated numbers of one model, found when they are asked for."""

    def __init__(self) -> None:
        """Starts without any."""
        self._found: dict[ir.Value, Repeated | None] = {}
        self._depth = 0

    def of(self, value: ir.Value | None) -> Repeated | None:
        """Returns the numbers that a value repeats; None if it is not known to repeat any."""
        if value is None or value.producer() is None:
            return None
        if value not in self._found:
            self._depth += 1
            found = self._find(value) if not NESTED.is_passed(self._depth) else None
            self._found[value] = None if found is None or found.length == 1 else found
            self._depth -= 1
        return self._found[value]

    def _find(self, value: ir.Value) -> Repeated | None:
        node = value.producer()
        if node is None or not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
            return None
        if is_standard(node, *REPEATING):
            return self._expanded(node, node.inputs[0], value)
        if is_standard(node, "Concat"):
            return _concatenated(node, value)
        if is_standard(node, *EXACT):
            return self._elementwise(node, value)
        return self._reshaped(node, value) if is_standard(node, "Reshape") else None

    def _expanded(self, node: ir.Node, source: ir.Value, value: ir.Value) -> Repeated | None:
        """Returns the numbers that an Expand or a Tile repeats along the last dimension."""
        lengths = known_lengths(node.inputs[1])
        if lengths is not None and all(each == 1 for each in lengths):
            return None  # it repeats nothing
        source = _unexpanded(source)
        shape, wide = source.shape, value.shape
        if has_one_element(source) and (not shape or len(shape) <= 1):
            length = None if wide is None or not len(wide) or not isinstance(wide[-1], int) else wide[-1]
            return Repeated(value, shape or ir.Shape([]), source, is_full=False, length=length)
        if shape is None or wide is None or len(shape) != len(wide) or shape[-1] != 1:
            return None
        given = lengths if lengths is not None and len(lengths) == len(wide) else [None] * len(wide)
        kept = list(map(is_equal, shape[:-1], wide[:-1]))
        if node.op_type == "Tile" and not all(
            times == 1 or mine == 1 or same for times, mine, same in zip(given[:-1], shape[:-1], kept, strict=True)
        ):
            return None  # it also repeats several rows: the numbers do not broadcast to them
        length = given[-1] if given[-1] is not None else wide[-1] if isinstance(wide[-1], int) else None
        is_full = all(each == 1 or same for each, same in zip(given[:-1], kept, strict=True))
        return Repeated(value, shape, source, is_full=is_full, length=length)

    def _elementwise(self, node: ir.Node, value: ir.Value) -> Repeated | None:
        inputs: list[Repeated | ir.Value] = []
        for each in node.inputs[: 1 if node.op_type in UNARY else None]:
            if each is None:
                return None
            inputs.append(self.of(each) or each)
        wide = [each for each in inputs if isinstance(each, Repeated)]
        if not wide or len({each.blocks for each in wide}) > 1 or not _keeps_signs(node):
            return None
        first = next((each for each in wide if each.is_full), wide[0])
        for operand in inputs:
            if not isinstance(operand, ir.Value):
                continue
            if has_one_element(operand, len(first.shape) - 1 if first.blocks else None):
                continue
            if first.blocks or not operand.shape or operand.shape[-1] != 1:
                return None
        shape = _broadcast([each.shape for each in inputs])
        lengths = {each.length for each in wide if not each.is_one} or {first.length}
        if shape is None or len(lengths) > 1:
            return None
        is_full = all(each.is_full for each in wide) and are_equal(shape, first.shape)
        return Repeated(value, shape, None, node, tuple(inputs), is_full, lengths.pop(), first.blocks)

    def _reshaped(self, node: ir.Node, value: ir.Value) -> Repeated | None:
        """Returns the numbers after a Reshape that keeps the last dimension, or joins blocks to rows."""
        inner = self.of(node.inputs[0])
        if inner is None or value.shape is None or not len(value.shape):
            return None
        last = value.shape[-1]
        if inner.is_one:
            length = last if isinstance(last, int) else None
            is_known = len(inner.shape) <= len(value.shape)
            return replace(inner, value=value, is_full=False, length=length) if is_known else None
        if not inner.is_full or inner.blocks or inner.length is None or not isinstance(last, int) or not last:
            return None
        given, rank = known_lengths(node.inputs[1]), len(value.shape)
        if given is not None and len(given) != rank:
            given = None
        if inner.length == last:
            before = len(inner.shape) - 1
            if given is None or (before < rank - 1 and given[before] == 0):
                return None  # it copies the repeated dimension
            if given[-1] not in (last, -1):
                return None  # a run-time shape is cut, so its last number has to be the length itself
            return Repeated(value, ir.Shape([*value.shape[:-1], 1]), None, node, (inner,), length=last)
        wide = inner.wide_shape
        if wide is None or len(wide) != rank + 1 or not isinstance(wide[-2], int):
            return None
        copies = given is not None and not node.attributes.get_int("allowzero", 0)
        is_kept = [
            is_equal(a, b) or (copies and given is not None and given[i] == 0)
            for i, (a, b) in enumerate(zip(wide[:-2], value.shape[:-1], strict=True))
        ]
        is_joined = wide[-2] * inner.length == last and all(is_kept)
        return replace(inner, value=value, blocks=wide[-2]) if is_joined else None


def _keeps_signs(node: ir.Node) -> bool:
    """Returns whether the signs of a node's zeros are known not to depend on how it broadcasts its inputs.

    A Max or Min with a number other than 0 never compares 0 with -0. A Where with one number as its first choice other
    than -0 chooses from the second one as it is.
    """
    if node.op_type not in CHOOSING:
        return True
    dtype = node.outputs[0].dtype
    if dtype is not None and not dtype.is_floating_point():
        return True
    numbers = [None if each is None else constant_scalar(each) for each in node.inputs]
    if node.op_type == "Where":
        chosen, first = node.inputs[1], numbers[1]
        is_one = chosen is not None and has_one_element(chosen)
        return is_one and first is not None and (first != 0 or math.copysign(1, first) > 0)
    return len(numbers) == 2 and any(number is not None and number != 0 for number in numbers)


def _concatenated(node: ir.Node, value: ir.Value) -> Repeated | None:
    """Returns the numbers of a Concat that repeats one value along the last dimension."""
    source = node.inputs[0]
    assert source is not None
    shape = source.shape
    if shape is None or not len(shape) or shape[-1] != 1 or len(node.inputs) == 1:
        return None
    if any(each is not source for each in node.inputs):
        return None
    axis = node.attributes.get_int("axis", 0)
    return Repeated(value, shape, source, length=len(node.inputs)) if axis in (-1, len(shape) - 1) else None


def _unexpanded(value: ir.Value) -> ir.Value:
    """Returns the value before Expands that repeat nothing."""
    while (node := producer_of(value, "Expand")) is not None and node.inputs[0] is not None:
        lengths, shape = known_lengths(node.inputs[1]), node.inputs[0].shape
        if lengths is None or shape is None or len(lengths) > len(shape) or any(each != 1 for each in lengths):
            break
        value = node.inputs[0]
    return value


def _broadcast(shapes: list[ir.Shape | None]) -> ir.Shape | None:
    """Returns the shape to which shapes broadcast; None if it is not known."""
    found: list[int | ir.SymbolicDim] = []
    for shape in shapes:
        if shape is None:
            return None
        found = [*[1 for _ in range(len(shape) - len(found))], *found]
        for i in range(-len(shape), 0):
            if found[i] == 1:
                found[i] = shape[i]
            elif shape[i] != 1 and not is_equal(shape[i], found[i]):
                return None
    return ir.Shape(found)
