"""Pieces of function bodies for words: integers of up to 16 bits that stand for floats, in blocks that share a step."""

from __future__ import annotations

from .function_text import inverse, largest

MAX_WORD = 32512
"""The largest magnitude of a word of 16 bits."""
BLOCK = 256
"""The elements of a row, or the keys, with words that share a step: kMaxProducts of ops/kernels/compressed.h."""
_MIN_STEP = 2.0**-126


def word_constants(largest_word: int = MAX_WORD) -> str:
    """The constants that :func:`words` reads, and ``end``, beyond every dimension."""
    return f"""last = Constant<value_ints = [-1]>()
    end = Constant<value_ints = [{2**63 - 1}]>()
    one_behind = Constant<value = int64[10] {{0, 0, 0, 0, 0, 0, 0, 0, 0, 1}}>()
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    nan = Constant<value_float = nan>()
    largest_word = Constant<value_float = {largest_word}.0>()
    smallest_step = Constant<value_float = {_MIN_STEP!r}>()"""


def words(name: str, value: str, opset: int) -> str:
    """Sets ``{name}_words``, float32 integers, and ``{name}_step``. The last of five dimensions shares a step."""
    return f"""{name}_times_0 = Mul({value}, zero)
    {name}_is_undefined = IsNaN({name}_times_0)
    {name}_known = Where({name}_is_undefined, zero, {value})
    {name}_sizes = Abs({name}_known)
    {largest(f"{name}_peak", f"{name}_sizes", "zero", opset)}
    {name}_quotient = Div({name}_peak, largest_word)
    {name}_normal = Max({name}_quotient, smallest_step)
    {name}_undefined = Cast<to = 1>({name}_is_undefined)
    {largest(f"{name}_any_undefined", f"{name}_undefined", "zero", opset)}
    {name}_has_undefined = Greater({name}_any_undefined, zero)
    {name}_step = Where({name}_has_undefined, nan, {name}_normal)
    {inverse(f"{name}_inverse", f"{name}_step")}
    {name}_steps = Mul({value}, {name}_inverse)
    {name}_words = Round({name}_steps)"""


def whole_blocks() -> str:
    """Sets ``block``, :data:`BLOCK`, ``blocks`` that hold ``depth``, and ``padding``, the elements that the last lacks.

    All are vectors of one element, as ``depth`` is. The body must define ``n1``, 1.
    """
    return f"""block = Constant<value_ints = [{BLOCK}]>()
    before_block = Sub(block, n1)
    most = Add(depth, before_block)
    blocks = Div(most, block)
    whole_depth = Mul(blocks, block)
    padding = Sub(whole_depth, depth)"""
