"""What is known of shapes without running the model: which broadcast to which, and which line up with the rows of x.

What inference says of a shape is taken first. Where it says nothing, as of models without names for their dimensions,
a value may still be known to be as x by the nodes that compute it from x.
"""

from __future__ import annotations

import onnx_ir as ir

from .values import array, does_not_grow, integer, is_unknown, op, same, scalar, shape_of

_RESHAPES = ("Reshape", "Squeeze", "Unsqueeze")
_UNARY = ("Abs", "Neg", "Round", "Floor", "Ceil", "Reciprocal", "Sqrt", "Cast", "Clip")
_BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Equal", "Where")
_REDUCTIONS = ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceSum")
_MOST_NODES = 64


def same_shape(a: ir.Value, b: ir.Value) -> bool:
    """Whether two values surely have one shape."""
    if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
        return False
    return all(map(_is_equal, a.shape, b.shape))


def broadcasts(small: ir.Value, large: ir.Value) -> bool:
    """Whether `small` surely broadcasts to `large` without making it larger."""
    if small.shape is not None and large.shape is not None:
        pairs = list(zip(reversed(small.shape), reversed(large.shape), strict=False))
        if len(small.shape) <= len(large.shape) and all(mine == 1 or _is_equal(mine, its) for mine, its in pairs):
            return True
    return (small.shape is not None and len(small.shape) == 0) or _is_computed_from(small, large)


def lines_up(value: ir.Value, x: ir.Value, axis: int, keepdims: bool) -> bool:
    """Whether the numbers of x's rows, reshaped or not, broadcast to x so that each meets its own row.

    Args:
        value: One number for each row, in the order of the rows.
        x: What the rows are of.
        axis: The first of a row's dimensions, negative; 0 if all of x is one row.
        keepdims: Whether the reductions over the rows left dimensions of 1 behind.
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
    # A reshaping keeps the number of elements: where all dimensions but one are equal, that one is.
    return sum(not _is_equal(mine, its) for mine, its in zip(value.shape[:axis], x.shape[:axis], strict=True)) <= 1


def is_shape_of_rows(value: ir.Value, x: ir.Value) -> bool:
    """Whether `value` surely has x's leading dimensions, and 1 from some dimension on; or one element."""
    if value.shape is None:
        return False
    if all(dim == 1 for dim in value.shape):
        return len(value.shape) <= 1 or (x.shape is not None and len(value.shape) <= len(x.shape))
    if x.shape is None or len(value.shape) != len(x.shape) or value.shape[-1] != 1:
        return False
    lead = next((i for i, pair in enumerate(zip(value.shape, x.shape, strict=True)) if not _is_equal(*pair)), 0)
    return all(dim == 1 for dim in value.shape[lead:])


def _is_shape_vector_of_rows(value: ir.Value | None, x: ir.Value, axis: int) -> bool:
    """Whether `value` is x's shape with ones from `axis` on, put together dimension by dimension."""
    concat = None if value is None else op(same(value), "Concat")
    if concat is None or x.shape is None or len(concat.inputs) != len(x.shape):
        return False
    lead, ones = concat.inputs[:axis], concat.inputs[axis:]
    return all(_is_dimension(part, x, i) for i, part in enumerate(lead)) and all(scalar(part) == 1 for part in ones)


def _is_dimension(value: ir.Value | None, x: ir.Value, i: int) -> bool:
    """Whether `value` is the length of x's dimension i, in a vector of one element."""
    if value is None:
        return False
    if (shape := op(same(value), "Shape")) is not None and shape.inputs[0] is not None:
        ends = integer(shape, "start", 0), integer(shape, "end", -1)
        return ends == (i, i + 1) and same(shape.inputs[0]) is same(x)
    unsqueeze = op(same(value), "Unsqueeze")
    gather = None if unsqueeze is None or unsqueeze.inputs[0] is None else op(same(unsqueeze.inputs[0]), "Gather")
    return gather is not None and shape_of(gather.inputs[0]) is same(x) and scalar(gather.inputs[1]) == i


def unreshaped(value: ir.Value) -> ir.Value:
    """`value` without the reshapings that put its dimensions of 1 in place."""
    value = same(value)
    while (node := op(value, *_RESHAPES)) is not None and node.inputs[0] is not None:
        value = same(node.inputs[0])
    return value


def axes_of(node: ir.Node) -> list[int] | None:
    """The axes of a node that has them as an attribute or, since opset 13 or 18, as an input; None if not constant."""
    if "axes" in node.attributes:
        return None if node.attributes["axes"].is_ref() else list(node.attributes["axes"].as_ints())
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is None:
        return []
    elements = array(given)
    return None if elements is None else [int(axis) for axis in elements.reshape(-1)]


def _reshapings(value: ir.Value) -> list[ir.Node]:
    """The nodes between `value` and the numbers as they were computed, Casts looked through."""
    nodes = []
    while (node := op(value, *_RESHAPES, "Identity", "Cast")) is not None and node.inputs[0] is not None:
        nodes += [node] if node.op_type in _RESHAPES else []
        value = node.inputs[0]
    return nodes


def is_elementwise_of(value: ir.Value, source: ir.Value) -> bool:
    """Whether `source` is among what `value` is computed from, without a reduction in between."""
    return any(leaf is same(source) for leaf in _leaves(value, source, ()))


def _is_computed_from(value: ir.Value, x: ir.Value) -> bool:
    """Whether `value` is computed from x by steps that leave each dimension as it is or make it 1."""
    leaves = _leaves(value, x, _REDUCTIONS)
    return same(x) in leaves and all(leaf is same(x) or does_not_grow(leaf, x) for leaf in leaves)


def _is_equal(a: int | ir.SymbolicDim, b: int | ir.SymbolicDim) -> bool:
    return a == b and not is_unknown(a)


def _leaves(value: ir.Value, x: ir.Value, reductions: tuple[str, ...]) -> list[ir.Value]:
    """Where the ways back from `value` end, if they lead through elementwise operators and these reductions alone."""
    leaves, todo, seen = [], [same(value)], 0
    while todo:
        at, seen = todo.pop(), seen + 1
        sources = None if at is same(x) or seen > _MOST_NODES else _sources(at, reductions)
        if sources is None:
            leaves.append(at)
        else:
            todo += [same(source) for source in sources if source is not None]
    return leaves


def _sources(value: ir.Value, reductions: tuple[str, ...]) -> list[ir.Value | None] | None:
    """What `value` has its shape from; None if it is from somewhere else."""
    if (node := op(value, *_UNARY)) is not None:
        return [node.inputs[0]]
    if (node := op(value, *_BINARY)) is not None:
        return list(node.inputs)
    if (node := op(value, *reductions)) is not None and integer(node, "keepdims", 1) == 1:
        return [node.inputs[0]]
    if (node := op(value, "Expand", "ConstantOfShape")) is not None:
        like = shape_of(node.inputs[-1])
        return None if like is None else [like, *node.inputs[:-1]]
    return None
