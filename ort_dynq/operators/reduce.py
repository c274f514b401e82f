"""ReduceAbsMax and ReduceMinMax: the range over some of the dimensions, in one pass."""

from __future__ import annotations

from collections.abc import Callable

from .function_text import reshape
from .shapes import reduced
from .spec import FLOATS, Attribute, Family, Input, Operator, Signature, flag

_RUN = (
    Attribute("axis", -1, "The first dimension of the run: -rank to rank."),
    Attribute("count", 1, "The number of dimensions in the run: 0 to the number from `axis` on."),
    flag("reduce_others", 0, "0: the dimensions of the run are reduced. 1: all other dimensions are reduced."),
    flag("keepdims", 1, "1: reduced dimensions become 1. 0: they are removed."),
)
_SRC = Input("src", FLOATS, "Any shape.")


# Function bodies


def _body(is_abs_max: bool) -> Callable[[int], str]:
    """ReduceMax(Abs(src)), or ReduceMin(src) and ReduceMax(src).

    src is viewed as two or three dimensions: those before the run, the run, and those after it. There is none of
    length 1 in place of no dimensions: of which dimensions are reduced depends how ONNX Runtime treats NaN.
    """

    def body(opset: int) -> str:
        if is_abs_max:
            reductions = "magnitudes = Abs(view)" + _reduce(opset, "ReduceMax", "magnitudes", "magnitude")
        else:
            reductions = _reduce(opset, "ReduceMin", "view", "minimum") + _reduce(opset, "ReduceMax", "view", "maximum")
        return f"""{{
        start = Constant<value_ints = [0]>()
        one = Constant<value_ints = [1]>()
        axis_int = Constant<value_int: int = @axis>()
        count_int = Constant<value_int: int = @count>()
        reduce_others_int = Constant<value_int: int = @reduce_others>()
        keepdims_int = Constant<value_int: int = @keepdims>()
        axis = Unsqueeze(axis_int, start)
        count = Unsqueeze(count_int, start)
        reduces_others = Cast<to = 9>(reduce_others_int)
        shape = Shape(src)
        rank = Shape(shape)
        is_from_end = Less(axis, start)
        from_end = Add(axis, rank)
        begin = Where(is_from_end, from_end, axis)
        end = Add(begin, count)
        before = Slice(shape, start, begin)
        run = Slice(shape, begin, end)
        after = Slice(shape, end, rank)
        before_one = Concat<axis = 0>(before, one)
        run_one = Concat<axis = 0>(run, one)
        after_one = Concat<axis = 0>(after, one)
        before_size = ReduceProd<keepdims = 1>(before_one)
        run_size = ReduceProd<keepdims = 1>(run_one)
        after_size = ReduceProd<keepdims = 1>(after_one)
        all_sizes = Concat<axis = 0>(before_size, run_size, after_size)
        has_before = Less(start, begin)
        has_after = Less(end, rank)
        is_between = And(has_before, has_after)
        has_none_before = Not(has_before)
        has_none_after = Not(has_after)
        begins_with_run = And(has_none_before, has_after)
        first_size = Cast<to = 7>(begins_with_run)
        two = Constant<value_ints = [2]>()
        after_count = Cast<to = 7>(has_after)
        last_size = Add(two, after_count)
        sizes = Slice(all_sizes, first_size, last_size)
        reduces_second = Xor(has_none_after, reduces_others)
        real_src = Cast<to = 1>(src)
        view = {reshape(opset)}(real_src, sizes)
        kept_count = Mul(rank, keepdims_int)
        ones = ConstantOfShape<value = int64[1] {{1}}>(rank)
        kept_ones = Slice(ones, start, kept_count)
        before_rank = Shape(before)
        run_rank = Shape(run)
        after_rank = Shape(after)
        before_reduced = Slice(kept_ones, start, before_rank)
        run_reduced = Slice(kept_ones, start, run_rank)
        after_reduced = Slice(kept_ones, start, after_rank)
        dst_shape = If(reduces_others) <
            then_branch = others_reduced () => (int64[] shape_of_run) {{
                shape_of_run = Concat<axis = 0>(before_reduced, run, after_reduced)
            }},
            else_branch = run_is_reduced () => (int64[] shape_of_others) {{
                shape_of_others = Concat<axis = 0>(before, run_reduced, after)
            }}
        >
        {reductions}
    }}"""

    return body


def _reduce(opset: int, op_type: str, src: str, name: str) -> str:
    """Reduces the run, or the other dimensions, of the view `src`."""

    def reduced(which: str, axes: str) -> str:
        # From opset 18 on, axes are an input.
        attribute, inputs = (", axes = " + axes, src) if opset < 18 else ("", f"{src}, axes_{which}_{name}")
        constant = "" if opset < 18 else f"axes_{which}_{name} = Constant<value_ints = {axes}>()"
        return f"{constant}\n{name}_{which} = {op_type}<keepdims = 1{attribute}>({inputs})"

    def branch(which: str, body: str) -> str:
        return f"{which}_{name} () => (float[] {name}_{which}) {{\n{body}\n}}"

    def choice(result: str, condition: str, then: str, otherwise: str) -> str:
        return f"{name}_{result} = If({condition}) <\nthen_branch = {then},\nelse_branch = {otherwise}\n>"

    def either(result: str, condition: str, then: tuple[str, str], otherwise: tuple[str, str]) -> str:
        branches = (branch(which, reduced(which, axes)) for which, axes in (then, otherwise))
        return branch(result, choice(result, condition, *branches))

    between = either("between", "reduces_others", ("others", "[0, 2]"), ("run", "[1]"))
    beside = either("beside", "reduces_second", ("second", "[1]"), ("first", "[0]"))
    return f"""
        {choice("view", "is_between", between, beside)}
        {name} = {reshape(opset)}({name}_view, dst_shape)"""


FAMILY = Family(
    "Reductions",
    "The dimensions `axis` to `axis` + `count` - 1 are the *run*. Either the run is reduced, or all other dimensions "
    "are. A NaN counts [as in ONNX Runtime](numerics.md#nan-and-signed-zeros). The maximum of no "
    "elements is -infinity, the minimum is +infinity, and the largest magnitude is -infinity.",
    (
        Operator(
            "ReduceAbsMax",
            "The largest magnitude over some of the dimensions, in one pass.",
            "magnitude = ReduceMax(Abs(src))",
            (_SRC,),
            (
                Input(
                    "magnitude",
                    ("float32",),
                    "The shape of `src` with the reduced dimensions 1 or removed.",
                    shape=reduced,
                ),
            ),
            _RUN,
            tuple(Signature((src,), ("float32",)) for src in FLOATS),
            _body(is_abs_max=True),
        ),
        Operator(
            "ReduceMinMax",
            "The minimum and the maximum over some of the dimensions, in one pass.",
            "minimum = ReduceMin(src)\nmaximum = ReduceMax(src)",
            (_SRC,),
            (
                Input(
                    "minimum",
                    ("float32",),
                    "The shape of `src` with the reduced dimensions 1 or removed.",
                    shape=reduced,
                ),
                Input("maximum", ("float32",), "The shape of `minimum`.", shape=reduced),
            ),
            _RUN,
            tuple(Signature((src,), ("float32", "float32")) for src in FLOATS),
            _body(is_abs_max=False),
        ),
    ),
)
