"""Views: which factors of a length each axis of a tensor holds, as the letters of einsum notation do.

A factor that turns out to be a product is split wherever it stands.

Example: x [2, t, 64], reshaped to [2, t, 4, 16], transposed and reshaped to [8, t, 16], has axes (2, 4), (t) and (16).
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from .analysis.einsums import labels_of
from .analysis.nodes import is_standard, producer_of
from .analysis.shape_arithmetic import factors_of, known_lengths, product_of
from .analysis.shapes import is_equal
from .analysis.standard import ARITHMETIC, RESHAPES
from .edit import Edit

Dim = int | ir.SymbolicDim
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclass(eq=False)
class Factor:
    """A factor of the number of elements of a tensor.

    Attributes:
        length: Its length.
        parts: The factors that it is the product of; empty if it is not known to be one.
    """

    length: Dim
    parts: tuple[Factor, ...] = ()

    def leaves(self) -> Iterator[Factor]:
        """Returns the factors that are not known to be products."""
        for part in self.parts:
            yield from part.leaves()
        if not self.parts:
            yield self


Axis = tuple[Factor, ...]
Axes = tuple[Axis, ...]


@dataclass(frozen=True)
class View:
    """A value, and the factors of each of its axes; an axis of length 1 has none."""

    value: ir.Value
    axes: Axes

    @property
    def order(self) -> Axis:
        """The factors of all axes, in the order of the elements."""
        return leaves(self.axes)

    def before(self) -> View | None:
        """Returns the value if a node only moves its elements, or casts floats; None if it does anything else."""
        node = self.value.producer()
        source = node.inputs[0] if node is not None and node.inputs else None
        return None if node is None or source is None else self._across(node, source, np.argsort)

    def after(self, node: ir.Node) -> View | None:
        """Returns the output of a node that only moves the elements, or casts floats; None if it does anything else."""
        return self._across(node, node.outputs[0], list) if node.inputs[0] is self.value else None

    def _across(self, node: ir.Node, to: ir.Value, order: Callable[[Sequence[int]], Iterable[int]]) -> View | None:
        """Returns the other side of a node; `order`: the order of its axes, of the permutation of a Transpose."""
        if to.shape is None:
            return None
        if is_float_cast(node):
            return View(to, self.axes)
        if is_standard(node, "Transpose"):
            given = node.attributes.get_ints("perm", range(len(self.axes))[::-1])
            return View(to, tuple(self.axes[i] for i in order(given)))
        return self._reshaped(node, to)

    def _reshaped(self, node: ir.Node, to: ir.Value) -> View | None:
        """Returns the other side of a node that keeps the order of elements; None if it does not.

        Reshape copies lengths, as its zeros say. The names of lengths are those of this side: others differ elsewhere.
        """
        if not is_standard(node, *RESHAPES) or len(dims_of(self.value)) != len(self.axes):
            return None
        shape = known_lengths(node.inputs[1]) if node.op_type == "Reshape" else None
        is_copied = [n == 0 for n in shape or ()] if not node.attributes.get_int("allowzero", 0) else []
        lead = (*is_copied, False).index(False)
        before = [(factor, factor.length) for factor in self.order]
        rename(self.axes, self.value)
        axes = aligned(leaves(self.axes[lead:]), dims_of(to)[lead:])
        if axes is None:  # inference has made up names here, and knew others
            for factor, length in before:
                if isinstance(length, int) or not isinstance(factor.length, int):
                    factor.length = length
            axes = aligned(leaves(self.axes[lead:]), dims_of(to)[lead:])
            axes = axes or aligned(leaves(self.axes[lead:]), dims_of(_term_of(to))[lead:])
        return None if axes is None else View(to, self.axes[:lead] + axes)


def is_float_cast(node: ir.Node) -> bool:
    """Returns whether a node is a Cast from floats to floats."""
    source = node.inputs[0] if is_standard(node, "Cast") else None
    return source is not None and source.dtype in FLOATS and node.outputs[0].dtype in FLOATS


def skip_casts(value: ir.Value) -> ir.Value:
    """Returns the value before any Cast from floats to floats."""
    while (node := value.producer()) is not None and is_float_cast(node) and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def _term_of(value: ir.Value) -> ir.Value:
    """Returns the view or product to which nodes have added terms: inference does not know the lengths of the sum."""
    rank = len(dims_of(value))
    while (node := producer_of(value, *ARITHMETIC, "Max", "Where")) is not None:
        terms = [each for each in node.inputs if each is not None and len(dims_of(each)) == rank]
        likely = [each for each in terms if producer_of(each, "MatMul", *RESHAPES) is not None]
        if not terms:
            break
        value = (likely or terms)[0]
    return value


def dims_of(value: ir.Value) -> list[Dim]:
    """Returns the dimensions of a value; none if its rank is not known."""
    return [] if value.shape is None else list(value.shape)


def axes_of(dims: Iterable[Dim]) -> Axes:
    """Returns a factor of its own for each dimension."""
    return tuple(() if dim == 1 else (Factor(dim),) for dim in dims)


def broadcast(value: ir.Value, axes: Axes) -> View | None:
    """Returns a value that is broadcast to axes as a view; None if it may have more."""
    at = len(axes) - len(dims_of(value))
    if value.shape is None or at < 0:
        return None
    return View(value, tuple(() if dim == 1 else axis for dim, axis in zip(value.shape, axes[at:], strict=True)))


def held(view: View, axes: Axes) -> Axes:
    """Returns axes with factors of a view alone: an axis of which it has none is empty."""
    return tuple(axis if {*leaves([axis])} & {*view.order} else () for axis in axes)


def apart(order: Iterable[Factor]) -> Axes:
    """Returns axes of one factor each."""
    return tuple((factor,) for factor in order)


def leaves(axes: Iterable[Iterable[Factor]]) -> Axis:
    """Returns the factors of axes, in order, those split that are known to be products."""
    return tuple(leaf for axis in axes for factor in axis for leaf in factor.leaves())


def same_axes(a: Axes, b: Axes) -> bool:
    """Returns whether axes hold the same factors."""
    return [leaves([axis]) for axis in a] == [leaves([axis]) for axis in b]


def rename(axes: Axes, value: ir.Value) -> None:
    """Gives the factors of the axes of a value the lengths that it has, unless they are known numbers."""
    for axis, dim in zip(axes, dims_of(value), strict=True):
        factors = leaves([axis])
        if len(factors) == 1 and not isinstance(factors[0].length, int):
            factors[0].length = dim


def length_of(factors: Iterable[Factor]) -> int | None:
    """Returns the product of factors; None if it is not a known number."""
    length = product_of(leaf.length for leaf in leaves([factors]))
    return length if isinstance(length, int) else None


def operands_of(product: ir.Node, known: dict[int, Axes]) -> tuple[list[View], Axes]:
    """Returns the factors of a product as views, and the axes of the result.

    Args:
        product: The product.
        known: The axes of one of its factors, 0 or 1, or of its result, 2.
    """
    labels = labels_of(product)
    assert labels is not None
    found = {label: axis for i, axes in known.items() for label, axis in zip(labels[i], axes, strict=True)}
    views = []
    for value, letters in zip(product.inputs, labels, strict=False):
        assert value is not None
        axes: list[Axis] = []
        for label, dim in zip(letters, dims_of(value), strict=True):
            if dim != 1 and not found.get(label):
                found[label] = (Factor(dim),)
            axes.append(() if dim == 1 else found[label])
        rename(tuple(axes), value)
        views.append(View(value, tuple(axes)))
    return views, tuple(found.get(label, ()) for label in labels[2])


def aligned(order: Iterable[Factor], dims: Iterable[Dim]) -> Axes | None:
    """Returns the factors of dimensions that have the same elements in the same order; None if they are not known.

    Dimensions and factors are compared from both ends. What is left over between them is equal, since the number of
    elements is: a -1 in the shape of a Reshape, or a product without a name.
    """
    left, places = deque(leaves([order])), deque(_Place(dim) for dim in dims)
    found = list(places)
    for at_end in (False, True):
        while places and left and _take(left, places, at_end=at_end):
            pass
    while places and places[0].rest == 1:
        places.popleft()
    while places and places[-1].rest == 1:
        places.pop()
    if len(places) == 1 and left:
        (place,), unknown = places, [each for each in left if not isinstance(each.length, int)]
        if len(left) == 1 and unknown and isinstance(place.rest, int):
            unknown[0].length = place.rest
        place.front += left
    elif len(left) == 1 and places:
        left[0].parts = tuple(Factor(place.rest) for place in places)
        for place, part in zip(places, left[0].parts, strict=True):
            place.front.append(part)
    elif left or any(isinstance(place.rest, int) for place in places):
        return None
    return tuple((*place.front, *reversed(place.back)) for place in found)


class _Place:
    """A dimension: what is left of its length, and the factors that it holds, from the front and from the back."""

    def __init__(self, dim: Dim) -> None:
        self.rest = dim
        self.front = list[Factor]()
        self.back = list[Factor]()


def _take(left: deque[Factor], places: deque[_Place], *, at_end: bool) -> bool:
    """Takes the factor or the dimension at one end that divides the other; returns whether one does."""
    at = -1 if at_end else 0
    factor, place = left[at], places[at]
    if place.rest == 1:
        places.pop() if at_end else places.popleft()
        return True
    if (rest := _quotient(place.rest, factor.length)) is not None:
        place.rest = rest
        left.pop() if at_end else left.popleft()
    elif (rest := _quotient(factor.length, place.rest)) is not None:
        parts = (Factor(rest), Factor(place.rest)) if at_end else (Factor(place.rest), Factor(rest))
        factor.parts, factor, left[at], place.rest = parts, parts[at], parts[-1 - at], 1
    else:
        return False
    (place.back if at_end else place.front).append(factor)
    return True


def _quotient(whole: Dim, part: Dim) -> Dim | None:
    """Returns a length divided by another one; None if it is not known to be a multiple."""
    if is_equal(whole, part):
        return 1
    (number, names), (divisor, others) = (factors_of(_lengths_in(each)) or (0, []) for each in (whole, part))
    if not number or not divisor or number % divisor:
        return None
    for name in others:
        if name not in names:
            return None
        names.remove(name)
    return product_of([number // divisor, *names])


def _lengths_in(dim: Dim) -> list[Dim]:
    """Returns the lengths of a product that torch has named, as in "4*batch"."""
    parts = [] if isinstance(dim, int) else str(dim.value).split("*")
    is_product = len(parts) > 1 and all(part.isidentifier() or part.isdecimal() for part in parts)
    return [int(part) if part.isdecimal() else ir.SymbolicDim(part) for part in parts] if is_product else [dim]


@dataclass(frozen=True)
class Nodes:
    """New nodes that an edit inserts before an old one.

    Attributes:
        edit: Records them.
        before: The old node.
        views: Views with values from which lengths may be read at run time.
    """

    edit: Edit
    before: ir.Node
    views: tuple[View, ...] = ()

    def add(self, op_type: str, *inputs: ir.Value | npt.ArrayLike, **attributes: int | Sequence[int]) -> ir.Value:
        """Inserts a standard operator, and a Constant for each input that is no value; returns its first output."""
        values = [each if isinstance(each, ir.Value) else self.constant(each) for each in inputs]
        return self.edit.insert(ir.node(op_type, values, attributes), before=self.before)

    def constant(self, elements: npt.ArrayLike) -> ir.Value:
        """Inserts a Constant; returns its output."""
        return self.edit.add_constant(elements, before=self.before)

    def cast(self, value: ir.Value, dtype: ir.DataType | None, of: ir.DataType | None = None) -> ir.Value:
        """Returns a value with elements of a type; `of`: its own, if the value does not say it."""
        return self.edit.cast(value, dtype, before=self.before, of=of)

    def noted(self, value: ir.Value, like: ir.Value, dims: Iterable[Dim]) -> ir.Value:
        """Returns a new value, which has the type of another one and these dimensions."""
        assert like.dtype is not None
        self.edit.facts.note(value, like.dtype, ir.Shape(dims))
        return value

    def arranged(self, view: View, target: Axes) -> ir.Value:
        """Returns the elements of a view with other axes, of which it may lack factors: elements are repeated then."""
        order, wanted, nodes = view.order, leaves(target), replace(self, views=(view, *self.views))
        inner = tuple(factor for factor in wanted if factor in order)
        if inner != order:
            resolved = [leaves([axis]) for axis in view.axes]
            starts = [inner.index(axis[0]) if axis else 0 for axis in resolved]
            if any(inner[at : at + len(axis)] != axis for at, axis in zip(starts, resolved, strict=True)):
                view = nodes._reshaped(view, apart(order))
                starts = [inner.index(factor) for factor in order]
            perm = sorted(range(len(starts)), key=lambda i: (starts[i], i))
            view = View(self.add("Transpose", view.value, perm=perm), tuple(view.axes[i] for i in perm))
        if inner != wanted:
            view = nodes._reshaped(view, held(view, apart(wanted)))
            view = View(nodes.add("Expand", view.value, nodes.shape(apart(wanted))), apart(wanted))
        return nodes._reshaped(view, target).value

    def _reshaped(self, view: View, target: Axes) -> View:
        if same_axes(view.axes, target):
            return view
        return View(self.add("Reshape", view.value, self.shape(target, view)), target)

    def shape(self, axes: Axes, of: View | None = None) -> ir.Value:
        """Returns the lengths of axes as a vector.

        `of`: the view that is reshaped, if it is a shape for Reshape: 0 keeps a length, and -1 is computed.
        """
        numbers = [length_of(axis) for axis in axes]
        for i, (axis, given) in enumerate(zip(axes, of.axes, strict=False) if of is not None else ()):
            if numbers[i] is None and leaves([axis]) == leaves([given]):
                numbers[i] = 0
        if of is not None and numbers.count(None) == 1:
            numbers[numbers.index(None)] = -1
        if None not in numbers:
            return self.constant(np.array(numbers))
        parts = [self._length(axis) if n is None else self.constant([n]) for axis, n in zip(axes, numbers, strict=True)]
        return parts[0] if len(parts) == 1 else self.add("Concat", *parts, axis=0)

    def _length(self, axis: Axis) -> ir.Value:
        """Returns the product of factors, read from the shapes of values, as a vector of one element."""
        wanted = leaves([axis])
        if (number := length_of(wanted)) is not None:
            return self.constant([number])
        if (place := _place_of(wanted, self.views)) is not None:
            value, i, others = place
            length = self.add("Gather", self.add("Shape", value), [i])
            return length if length_of(others) == 1 else self.add("Div", length, self._length(others))
        parts = [self._length((factor,)) for factor in wanted]
        return functools.reduce(lambda a, b: self.add("Mul", a, b), parts)


def _place_of(wanted: Axis, views: Sequence[View], *, divides: bool = True) -> tuple[ir.Value, int, Axis] | None:
    """Returns a value, an axis that holds factors, and its others: numbers, or what another axis holds with numbers.

    `divides`: whether they may be others than numbers.
    """
    held_by = [(view.value, i, leaves([axis])) for view in views for i, axis in enumerate(view.axes)]
    found = [
        (value, i, tuple(each for each in axis if each not in wanted))
        for value, i, axis in held_by
        if {*wanted} <= {*axis}
    ]
    by_number = (place for place in found if length_of(place[2]) is not None)
    by_length = (place for place in found if divides and _place_of(place[2], views, divides=False) is not None)
    return next(by_number, None) or next(by_length, None)


def has_lengths(axes: Iterable[Axis], views: Sequence[View]) -> bool:
    """Returns whether the length of each axis is a number, or can be read from the shapes of the values."""
    return all(
        _place_of(leaves([axis]), views) is not None
        or all(isinstance(each.length, int) or _place_of((each,), views) is not None for each in leaves([axis]))
        for axis in axes
    )
