"""What is known of shapes before run time: which shapes broadcast, and which values have one number for each row.

Inferred shapes are used first. Where inference finds nothing, as in models with dimensions without names, the nodes
that compute a value from x may still show that its shape matches x.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from .constants import constant_array, constant_scalar
from .limits import VISITED
from .nodes import input_of, producer_of
from .standard import BINARY, FILLING, LINEAR, PASSING, RANGES, REPEATING, RESHAPES, SUMMING, UNARY

_UNARY = UNARY | LINEAR
_BINARY = BINARY | {"Where"}
_REDUCTIONS = RANGES | SUMMING
REDUCES_BY_INPUT = 18  # the first opset in which the axes of ReduceMax and ReduceMin are an input


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Returns whether two values are known to have the same shape."""
    return are_equal(a.shape, b.shape)


def are_equal(a: ir.Shape | None, b: ir.Shape | None) -> bool:
    """Returns whether two shapes are known to be equal."""
    return a is not None and b is not None and len(a) == len(b) and all(map(is_equal, a, b))


def broadcasts(small: ir.Value, large: ir.Value) -> bool:
    """Returns whether `small` is known to broadcast to the shape of `large`."""
    if small.shape is not None and large.shape is not None:
        pairs = list(zip(reversed(small.shape), reversed(large.shape), strict=False))
        if len(small.shape) <= len(large.shape) and all(mine == 1 or is_equal(mine, its) for mine, its in pairs):
            return True
    return (small.shape is not None and len(small.shape) == 0) or _is_computed_from(small, large)


def does_not_grow(value: ir.Value | None, other: ir.Value | None) -> bool:
    """Returns whether an elementwise operation of `other` with a constant is known to keep the shape of `other`."""
    if value is None or (value.shape is not None and len(value.shape) == 0):
        return True
    if other is not None and (node := producer_of(value, *FILLING)) is not None:
        like = shape_source(node.inputs[-1])
        is_small = node.op_type == "ConstantOfShape" or does_not_grow(node.inputs[0], other)
        if is_small and like is not None and like is other:
            return True
    if value.shape is None or other is None or other.shape is None:
        return False
    if len(value.shape) > len(other.shape):
        return False
    return all(
        mine == 1 or is_equal(mine, theirs)
        for mine, theirs in zip(reversed(value.shape), reversed(other.shape), strict=False)
    )


def unexpanded(value: ir.Value, other: ir.Value) -> ir.Value | None:
    """Returns the input of an Expand or Tile, if an elementwise operation with `other` broadcasts it by itself.

    A number for each row may also be repeated along new last dimensions, which a Reshape then joins.
    """
    node = producer_of(value, *REPEATING)
    if node is not None:
        return node.inputs[0] if does_not_grow(value, other) else None
    wide = unreshaped(value)
    node = producer_of(wide, *REPEATING)
    narrow = None if node is None else node.inputs[0]
    if narrow is None or narrow.shape is None or wide.shape is None or not same_shape(value, other):
        return None
    pairs = list(zip(narrow.shape, wide.shape, strict=False))
    first = next((i for i, pair in enumerate(pairs) if not is_equal(*pair)), len(pairs))
    numbers = unreshaped(narrow)
    is_repeated_last = len(narrow.shape) == len(wide.shape) and all(dim == 1 for dim in narrow.shape[first:])
    return numbers if is_repeated_last and is_shape_of_rows(numbers, other, is_shared=False) else None


def has_one_element(value: ir.Value, most_dimensions: int | None = None) -> bool:
    """Returns whether a value is known to have one element, and no more dimensions than `most_dimensions`, if given."""
    elements = constant_array(value)
    shape = value.shape if elements is None else elements.shape
    if shape is None or (most_dimensions is not None and len(shape) > most_dimensions):
        return False
    return all(dim == 1 for dim in shape)


def lines_up(value: ir.Value, x: ir.Value, axis: int, keepdims: bool) -> bool:
    """Returns whether `value` is known to broadcast to x so that each of its numbers applies to its own row.

    Args:
        value: One number for each row, in the order of the rows, reshaped or not.
        x: The tensor of the rows.
        axis: The first dimension of a row, negative; 0 if all of x is one row.
        keepdims: Whether the reductions over the rows kept dimensions of length 1.
    """
    if axis == 0:
        return broadcasts(value, x)
    nodes = _reshapings(value)
    if not nodes:
        return keepdims
    unsqueeze = nodes[0]
    if len(nodes) == 1 and unsqueeze.op_type == "Unsqueeze" and not keepdims:
        axes = axes_of(unsqueeze)
        if axes is not None and sorted(axes) == list(range(axis, 0)):
            return True
    if len(nodes) == 1 and nodes[0].op_type == "Reshape" and _is_shape_vector_of_rows(nodes[0].inputs[1], x, axis):
        return True
    if value.shape is None or x.shape is None or len(value.shape) != len(x.shape):
        return False
    if any(dim != 1 for dim in value.shape[axis:]):
        return False
    # A reshaping keeps the number of elements: if all dimensions but one are equal, that one is equal too.
    return sum(not is_equal(mine, its) for mine, its in zip(value.shape[:axis], x.shape[:axis], strict=True)) <= 1


def is_shape_of_rows(value: ir.Value, x: ir.Value, *, is_shared: bool = True) -> bool:
    """Returns whether `value` is known to have the leading dimensions of x, then 1; or one element.

    Args:
        value: The numbers.
        x: The tensor of the rows.
        is_shared: Whether several rows may share a number, such as one number for each matrix of a batch.
    """
    if _is_parameter_of(value, _uncast(x)):
        return True
    if value.shape is None:
        return False
    if all(dim == 1 for dim in value.shape):
        return len(value.shape) <= 1 or (x.shape is not None and len(value.shape) <= len(x.shape))
    if x.shape is None or len(value.shape) != len(x.shape) or value.shape[-1] != 1:
        return False
    pairs = list(zip(value.shape, x.shape, strict=True))[:-1]
    lead = next((i for i, pair in enumerate(pairs) if not is_equal(*pair)), len(pairs))
    if (is_shared or lead == len(pairs)) and all(dim == 1 for dim in value.shape[lead:]):
        return True
    # If there are as many numbers as rows, and all dimensions but one are equal, that one is equal too.
    return sum(not is_equal(*pair) for pair in pairs) <= 1 and _is_reshaped_as_rows(value, x)


def _is_reshaped_as_rows(value: ir.Value, x: ir.Value) -> bool:
    """Returns whether a value, before any Reshape, is known to have one number for each row of x.

    x may have been reshaped, too, if its rows have the same length since.
    """
    numbers, whole = unreshaped(value), _uncast(unreshaped(x))
    while (before := _uncast(unreshaped(whole))) is not whole:
        whole = before
    length = None if x.shape is None or whole.shape is None or not len(whole.shape) else whole.shape[-1]
    if not isinstance(length, int) or length < 1 or x.shape is None or x.shape[-1] != length:
        return False
    if _is_parameter_of(numbers, whole):
        return True
    if numbers.shape is None or whole.shape is None:
        return False
    mine, its = list(numbers.shape), list(whole.shape[:-1])
    mine = mine[:-1] if len(mine) > len(its) and mine[-1] == 1 else mine
    return len(mine) == len(its) and all(map(is_equal, mine, its))


def _is_parameter_of(value: ir.Value, codes: ir.Value) -> bool:
    """Returns whether `value` is computed from the range of each row of a tensor, and `codes` from its elements."""
    x = _reduced_by_rows(value)
    return x is not None and x in _leaves(codes, x, ()) and _is_computed_from(codes, x)


def _reduced_by_rows(value: ir.Value) -> ir.Value | None:
    """Returns the tensor that `value` comes from by elementwise operators after its last dimension is reduced to 1."""
    found = set[ir.Value]()
    for leaf in _leaves(value, None, ()):
        if has_one_element(leaf):
            continue
        node = producer_of(leaf, *RANGES)
        x = None if node is None else node.inputs[0]
        if node is None or x is None or node.attributes.get_int("keepdims", 1) != 1:
            return None
        if axes_of(node) not in ([-1], None if x.shape is None else [len(x.shape) - 1]):
            return None
        found.update(each for each in _leaves(x, None, ()) if not has_one_element(each))
    return found.pop() if len(found) == 1 else None


def _uncast(value: ir.Value) -> ir.Value:
    """Returns the value before any Cast."""
    while (cast := producer_of(value, "Cast")) is not None and cast.inputs[0] is not None:
        value = cast.inputs[0]
    return value


def _is_shape_vector_of_rows(value: ir.Value | None, x: ir.Value, axis: int) -> bool:
    """Returns whether `value` is a Concat of the dimensions of x, with ones from `axis` on."""
    concat = None if value is None else producer_of(value, "Concat")
    if concat is None or x.shape is None or len(concat.inputs) != len(x.shape):
        return False
    lead, ones = concat.inputs[:axis], concat.inputs[axis:]
    return all(_is_dimension(part, x, i) for i, part in enumerate(lead)) and all(
        constant_scalar(part) == 1 for part in ones
    )


def _is_dimension(value: ir.Value | None, x: ir.Value, i: int) -> bool:
    """Returns whether `value` is the length of dimension i of x, as a vector of one element."""
    if value is None:
        return False
    if (shape := producer_of(value, "Shape")) is not None and shape.inputs[0] is not None:
        ends = shape.attributes.get_int("start", 0), shape.attributes.get_int("end", -1)
        return ends == (i, i + 1) and shape.inputs[0] is x
    unsqueeze = producer_of(value, "Unsqueeze")
    if unsqueeze is None or unsqueeze.inputs[0] is None:
        return False
    gather = producer_of(unsqueeze.inputs[0], "Gather")
    if gather is None or constant_scalar(gather.inputs[1]) != i:
        return False
    return shape_source(gather.inputs[0]) is x


def unreshaped(value: ir.Value) -> ir.Value:
    """Returns the value before any Reshape, Squeeze, Unsqueeze and Flatten."""
    nodes = reshapes_of(value)
    source = nodes[0].inputs[0] if nodes else None
    return value if source is None else source


def before_split(value: ir.Value) -> ir.Value:
    """Returns the same tensor before Reshapes and the like that together keep its shape: split and joined again."""
    sources = [node.inputs[0] for node in reshapes_of(value)]
    return next((each for each in sources if each is not None and same_shape(each, value)), value)


def reshapes_of(value: ir.Value) -> list[ir.Node]:
    """Returns the Reshapes and the like that :func:`unreshaped` skips, the first one first."""
    nodes: list[ir.Node] = []
    while (node := producer_of(value, *RESHAPES)) is not None and node.inputs[0] is not None:
        nodes.insert(0, node)
        value = node.inputs[0]
    return nodes


def axes_of(node: ir.Node) -> list[int] | None:
    """Returns the axes of a node, an attribute or (from opset 13 or 18 on) an input; None if not constant."""
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    given = input_of(node, 1)
    if given is None:
        return []
    elements = constant_array(given)
    return None if elements is None else [int(axis) for axis in elements.reshape(-1)]


def _reshapings(value: ir.Value) -> list[ir.Node]:
    """Returns the Reshapes and the like before `value`, the last one first; skips Identity and Cast."""
    nodes = []
    while (node := producer_of(value, *RESHAPES, *PASSING)) is not None and node.inputs[0] is not None:
        nodes += [node] if node.op_type in RESHAPES else []
        value = node.inputs[0]
    return nodes


def is_elementwise_of(value: ir.Value, source: ir.Value) -> bool:
    """Returns whether `value` is computed from `source` by elementwise operators."""
    return any(leaf is source for leaf in _leaves(value, source, ()))


def _is_computed_from(value: ir.Value, x: ir.Value) -> bool:
    """Returns whether `value` is computed from x by steps that keep each dimension or make it 1."""
    leaves = _leaves(value, x, _REDUCTIONS)
    return x in leaves and all(leaf is x or does_not_grow(leaf, x) for leaf in leaves)


def is_equal(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    """Returns whether two dimensions are known to be equal."""
    return a == b and not is_unnamed(a)


def _leaves(value: ir.Value, x: ir.Value | None, reductions: Collection[str]) -> list[ir.Value]:
    """Returns the values where walks back from `value` through elementwise operators and `reductions` end, or at x."""
    leaves, todo, seen = [], [value], 0
    while todo:
        at, seen = todo.pop(), seen + 1
        sources = None if at is x or VISITED.is_passed(seen) else _sources(at, reductions)
        if sources is None:
            leaves.append(at)
        else:
            todo += [source for source in sources if source is not None]
    return leaves


def _sources(value: ir.Value, reductions: Collection[str]) -> list[ir.Value | None] | None:
    """Returns the values that determine the shape of `value`; None if its operator is not elementwise."""
    if (node := producer_of(value, *_UNARY)) is not None:
        return [node.inputs[0]]
    if (node := producer_of(value, *_BINARY)) is not None:
        return list(node.inputs)
    if (node := producer_of(value, *reductions)) is not None and node.attributes.get_int("keepdims", 1) == 1:
        return [node.inputs[0]]
    if (node := producer_of(value, *FILLING)) is not None:
        like = shape_source(node.inputs[-1])
        return None if like is None else [like, *node.inputs[:-1]]
    return None


def shape_source(value: ir.Value | None) -> ir.Value | None:
    """Returns the value that has `value` as its whole shape, or None."""
    shape = None if value is None else producer_of(value, "Shape")
    if (
        shape is None
        or shape.inputs[0] is None
        or "end" in shape.attributes
        or shape.attributes.get_int("start", 0) != 0
    ):
        return None
    return shape.inputs[0]


def is_unnamed(dim: int | ir.SymbolicDim) -> bool:
    """Returns whether a dimension has neither a length nor a name."""
    return isinstance(dim, ir.SymbolicDim) and dim.value is None


def known_as(dim: int | ir.SymbolicDim, value: ir.Value) -> int | ir.SymbolicDim | ir.Value:
    """Returns what tells a length from others: a number, a name, or else the value that has it."""
    return value if is_unnamed(dim) else dim
