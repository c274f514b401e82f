"""QuantizedRecurrence and WordRecurrence: the steps of a recurrent layer, with recurrent products of integers."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

from .encodings import Direction, LastGate
from .function_text import integer, integers, reshape, select
from .program import COLUMNS, MAX_GATES, RECURRENT_OPERANDS, parse
from .quantized_matmul import MAX_SYMMETRIC_SUM_LENGTH
from .row_program import ROW_PROGRAM, selected
from .shapes import final_state, second_state, states
from .spec import Attribute, Family, Input, Operator, Signature
from .word_matmul import MAX_SRC_WORD, MAX_WEIGHT_WORD
from .word_text import BLOCK, whole_blocks, word_constants, words

_IDENTITY = "dst = x"
_CONSTANTS = f"""last = Constant<value_ints = [-1]>()
    end = Constant<value_ints = [{2**63 - 1}]>()
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()"""
FIRST_COLUMN = MAX_GATES + 2
"""The number of the first operand of `columns`; the one before it is the second state."""


class _Weights(NamedTuple):
    """What the bodies of the two operators differ in.

    Attributes:
        text: Returns for an opset what the body has of weights before its loop, from `matrix` on, float or int32, which
            are [D, H, G * H].
        of_columns: The values of that text that have the columns as their last dimension.
        codes: Returns what sets the codes of a state: of the names of the state and of the codes, for an opset.
        product: Returns what sets the product of codes, with the bias: of the names of the codes and of the product,
            and what stands behind the names of the values of columns.
    """

    text: Callable[[int], str]
    of_columns: tuple[str, ...]
    codes: Callable[[str, str, int], str]
    product: Callable[[str, str, str], str]


def _codes(state: str, name: str, opset: int) -> str:
    """Sets ``{name}``, float64, the codes of a state, ``{name}_scale`` and ``{name}_zp``. A NaN does not count."""
    attribute, axes = ("", ", last") if opset >= 18 else (", axes = [-1]", "")
    return f"""
    {name}_nan = IsNaN({state})
    {name}_known = Where({name}_nan, zero, {state})
    {name}_lowest = ReduceMin<keepdims = 1{attribute}>({name}_known{axes})
    {name}_highest = ReduceMax<keepdims = 1{attribute}>({name}_known{axes})
    {name}_low = Min({name}_lowest, zero)
    {name}_high = Max({name}_highest, zero)
    {name}_width = Sub({name}_high, {name}_low)
    {name}_divided = Div({name}_width, largest)
    {name}_is_zero = Equal({name}_divided, zero)
    {name}_scale = Where({name}_is_zero, one, {name}_divided)
    {name}_below = Neg({name}_low)
    {name}_steps = Div({name}_below, {name}_scale)
    {name}_is_infinite = IsNaN({name}_steps)
    {name}_finite_steps = Where({name}_is_infinite, zero, {name}_steps)
    {name}_clipped_steps = Clip({name}_finite_steps, zero, largest)
    {name}_zero = Round({name}_clipped_steps)
    {name}_quotient = Div({state}, {name}_scale)
    {name}_rounded = Round({name}_quotient)
    {name}_added = Add({name}_rounded, {name}_zero)
    {name}_undefined = IsNaN({name}_added)
    {name}_defined = Where({name}_undefined, zero, {name}_added)
    {name}_clipped = Clip({name}_defined, zero, largest)
    {name} = Cast<to = 11>({name}_clipped)
    {name}_zp = Cast<to = 11>({name}_zero)
    """


def _product(codes: str, to: str, columns: str) -> str:
    """Sets `to` to the products of codes and the weights, their scales, sums and bias with this suffix."""
    return f"""
    {to}_sums = MatMul({codes}, weights{columns})
    {to}_corrections = Mul({codes}_zp, weight_sums{columns})
    {to}_exact = Sub({to}_sums, {to}_corrections)
    {to}_real = Cast<to = 1>({to}_exact)
    {to}_scales = Mul({codes}_scale, scales{columns})
    {to}_scaled = Mul({to}_real, {to}_scales)
    {to} = Add({to}_scaled, biases{columns})
    """


def _weights_of_codes(opset: int) -> str:
    return """
    weights = Cast<to = 11>(matrix)
    real_sums = Cast<to = 11>(column_sum)
    weight_sums = Unsqueeze(real_sums, n1)
    scales = Unsqueeze(column_scale, n1)
    biases = Unsqueeze(bias, n1)
    """


_CODES = _Weights(_weights_of_codes, ("weights", "weight_sums", "scales", "biases"), _codes, _product)


def _words(state: str, name: str, opset: int) -> str:
    """Sets ``{name}``, float64, the words of a state, [D, blocks, B, 256], and ``{name}_by_row``, their steps."""
    return f"""
    {name}_whole = Pad({state}, pads_behind, zero)
    {name}_of_blocks = {reshape(opset)}({name}_whole, state_blocks_shape)
    {words(name, f"{name}_of_blocks", opset)}
    {name}_by_block = Transpose<perm = [0, 3, 1, 2, 4]>({name}_words)
    {name}_factors = Squeeze({name}_by_block, n3)
    {name} = Cast<to = 11>({name}_factors)
    {name}_steps_by_block = Transpose<perm = [0, 3, 1, 2, 4]>({name}_step)
    {name}_by_row = Squeeze({name}_steps_by_block, n3)
    """


def _product_of_words(words: str, to: str, columns: str) -> str:
    """As :func:`_product`. Sums of words are exact in doubles."""
    return f"""
    {to}_sums = MatMul({words}, weights{columns})
    {to}_real = Cast<to = 1>({to}_sums)
    {to}_scaled = Mul({to}_real, scales{columns})
    {to}_terms = Mul({to}_scaled, {words}_by_row)
    {to}_biases = Expand(biases{columns}, bias_shape{columns})
    {to}_all_terms = Concat<axis = 1>({to}_biases, {to}_terms)
    {to}_cumulated = CumSum({to}_all_terms, block_axis)
    {to}_last = Slice({to}_cumulated, last, end, n1)
    {to} = Squeeze({to}_last, n1)
    """


def _weights_of_words(opset: int) -> str:
    flat = reshape(opset)
    return f"""
    depth = Identity(size)
    {whole_blocks()}
    one_behind_3d = Constant<value = int64[6] {{0, 0, 0, 0, 0, 1}}>()
    one_below_3d = Constant<value = int64[6] {{0, 0, 0, 0, 1, 0}}>()
    pads_behind = Mul(one_behind_3d, padding)
    pads_below = Mul(one_below_3d, padding)
    state_blocks_shape = Concat<axis = 0>(directions, batch, n1, blocks, block)
    real_matrix = Cast<to = 1>(matrix)
    whole_matrix = Pad(real_matrix, pads_below, zero)
    weight_blocks_shape = Concat<axis = 0>(directions, blocks, block, column_count)
    weight_blocks = {flat}(whole_matrix, weight_blocks_shape)
    weights = Cast<to = 11>(weight_blocks)
    two_axes = Constant<value_ints = [1, 2]>()
    scales = Unsqueeze(column_scale, two_axes)
    biases = Unsqueeze(bias, two_axes)
    bias_shape = Concat<axis = 0>(directions, n1, batch, column_count)
    bias_shape_last = Concat<axis = 0>(directions, n1, batch, size)
    block_axis = Constant<value = int32 {{1}}>()
    """


_WORDS = _Weights(_weights_of_words, ("weights", "scales", "biases"), _words, _product_of_words)


def _operands(gates: str, prefix: str) -> str:
    """Sets the operands of a program, with this prefix, to the gates, the second state and the columns."""
    lines = [f"{prefix}{i + 1} = Slice({gates}, gate_{i}, gate_{i + 1}, last)" for i in range(MAX_GATES)]
    lines.append(f"{prefix}{MAX_GATES + 1} = Identity(c)")
    lines += [f"{prefix}{FIRST_COLUMN + i} = Identity(column_{i})" for i in range(COLUMNS)]
    return "\n".join(lines)


def _body(opset: int, programs: Sequence[str] = (_IDENTITY,), *, form: _Weights) -> str:
    # The steps are a Loop: a Scan must know the ranks of its outputs. A Loop has no shape for the results of 0 steps,
    # so there is at least one step, behind the end of every sequence.
    flat = reshape(opset)
    vectors = "\n".join(f"n{i} = Constant<value_ints = [{i}]>()" for i in range(4))
    bounds = "\n".join(
        f"times_{i} = Constant<value_ints = [{i}]>()\ngate_{i} = Mul(size, times_{i})" for i in range(MAX_GATES + 1)
    )
    columns = "\n".join(
        f"columns_{i} = Slice(all_columns, gate_{i}, gate_{i + 1}, last)\ncolumn_{i} = Unsqueeze(columns_{i}, n1)"
        for i in range(COLUMNS)
    )
    of_last = "\n".join(f"{name}_last = Slice({name}, others, end, last)" for name in form.of_columns)
    seconds = ", ".join(str(int("dst_2" in parse(each, RECURRENT_OPERANDS).outputs)) for each in programs)
    return f"""{{
    {integers(3)}
    {vectors}
    {_CONSTANTS if form is _CODES else word_constants(MAX_SRC_WORD)}
    minus_one = Neg(one)
    infinity = Div(one, zero)
    minus_infinity = Div(minus_one, zero)
    largest = Constant<value_float = 255.0>()
    direction = Constant<value_int: int = @direction>()
    is_reverse = Equal(direction, {integer(Direction.REVERSE)})
    is_both = Equal(direction, {integer(Direction.BIDIRECTIONAL)})
    last_gate = Constant<value_int: int = @last_gate>()
    is_separate = Equal(last_gate, {integer(LastGate.SEPARATE_PRODUCTS)})
    is_reset_state = Equal(last_gate, {integer(LastGate.RESET_STATE)})
    branch = Constant<value_int: int = @branch>()
    seconds = Constant<value_ints = [{seconds}]>()
    second = Gather(seconds, branch)
    has_dst_2 = Equal(second, i1)
    is_not_reset_state = Not(is_reset_state)
    has_second = And(has_dst_2, is_not_reset_state)
    hidden_size = Constant<value_int: int = @hidden_size>()
    size = Unsqueeze(hidden_size, n0)
    {bounds}

    src_shape = Shape(src)
    steps = Slice(src_shape, n0, n1)
    batch = Slice(src_shape, n1, n2)
    columns_shape = Shape(column_scale)
    directions = Slice(columns_shape, n0, n1)
    column_count = Slice(columns_shape, n1, n2)
    others = Sub(column_count, size)
    shape = Concat<axis = 0>(directions, batch, size)
    codes_of_weights = Cast<to = 6>(weight)
    by_depth = Transpose<perm = [0, 2, 4, 1, 3]>(codes_of_weights)
    parts_shape = Shape(by_depth)
    three = Constant<value_ints = [3]>()
    depth_parts = Slice(parts_shape, n1, three)
    column_parts = Slice(parts_shape, three, end)
    padded_depth = ReduceProd<keepdims = 1>(depth_parts)
    padded_columns = ReduceProd<keepdims = 1>(column_parts)
    padded_shape = Concat<axis = 0>(directions, padded_depth, padded_columns)
    padded = {flat}(by_depth, padded_shape)
    starts = Concat<axis = 0>(n0, n0)
    ends = Concat<axis = 0>(size, column_count)
    matrix_axes = Constant<value_ints = [1, 2]>()
    matrix = Slice(padded, starts, ends, matrix_axes)
    {form.text(opset)}
    {of_last}
    column_space = Concat<axis = 0>(directions, gate_{COLUMNS})
    no_columns = Expand(zero, column_space)
    all_columns = Concat<axis = 1>(columns, no_columns)
    {columns}

    given_lengths = Cast<to = 7>(lengths)
    flat_lengths = {flat}(given_lengths, last)
    positive_lengths = Max(flat_lengths, n0)
    bounded_lengths = Min(positive_lengths, steps)
    length = Expand(bounded_lengths, batch)
    at_least_one = Max(length, n1)
    some_steps = Max(steps, n1)
    reversed_length = Min(at_least_one, some_steps)

    by_direction_shape = Concat<axis = 0>(steps, batch, directions, column_count)
    given_steps = {flat}(src, by_direction_shape)
    more_steps = Sub(some_steps, steps)
    pads = Concat<axis = 0>(n0, n0, n0, n0, more_steps, n0, n0, n0)
    given = Pad(given_steps, pads)
    {_ordered("given", "ordered")}
    inputs = Transpose<perm = [0, 2, 1, 3]>(ordered)
    state_no_zero = Add(state, zero)
    first = Expand(state_no_zero, shape)
    state_2_no_zero = Add(state_2, zero)
    first_2 = Expand(state_2_no_zero, shape)
    gate_space = Concat<axis = 0>(directions, batch, gate_{MAX_GATES})
    no_gates = Expand(zero, gate_space)

    step_count = Squeeze(some_steps)
    always = Equal(step_count, step_count)
    last_h, last_c, results = Loop(step_count, always, first, first_2) <
        body = one_step (int64 step, bool goes_on, float[] x, float[] c) =>
            (bool still, float[] x_next, float[] c_next, float[] result) {{
            still = Identity(goes_on)
            input = Gather<axis = 0>(inputs, step)
            {form.codes("x", "codes", opset)}
            {form.product("codes", "product", "")}
            sums = Add(product, input)
            sums_of_others = Slice(sums, n0, others, last)
            last_input = Slice(input, others, end, last)
            last_product = Slice(product, others, end, last)
            gates_separate = Concat<axis = 2>(sums_of_others, last_product, last_input, no_gates)
            gates_given = Concat<axis = 2>(sums_of_others, last_input, no_gates)
            gates_summed = Concat<axis = 2>(sums, no_gates)
            gates = If(is_reset_state) <
                then_branch = of_reset () => (float[] gates_of_reset) {{
                    {_operands("gates_given", "given_")}
                    {selected(programs, {"dst_2": "reset"}, opset, "r", "given_", RECURRENT_OPERANDS)}
                    reset_state = {flat}(reset, shape)
                    {form.codes("reset_state", "reset_codes", opset)}
                    {form.product("reset_codes", "reset_product", "_last")}
                    last_sum = Add(reset_product, last_input)
                    gates_of_reset = Concat<axis = 2>(sums_of_others, last_sum, no_gates)
                }},
                else_branch = of_state () => (float[] gates_of_state) {{
                    {select("gates_of_state", "is_separate", "gates_separate", "gates_summed")}
                }}
            >
            {_operands("gates", "operand_")}
            {selected(programs, {"dst": "dst_real", "dst_2": "dst_2_real"}, opset, operand_count=RECURRENT_OPERANDS)}
            is_there = Less(step, length)
            is_there_2d = Unsqueeze(is_there, n1)
            new = Add(dst_real, zero)
            x_next = Where(is_there_2d, new, x)
            c_next = If(has_second) <
                then_branch = with_second () => (float[] second_next) {{
                    new_2 = Add(dst_2_real, zero)
                    second_next = Where(is_there_2d, new_2, c)
                }},
                else_branch = without_second () => (float[] second_kept) {{ second_kept = Identity(c) }}
            >
            result = Where(is_there_2d, new, zero)
        }}
    >

    has_steps = Greater(length, n0)
    has_steps_2d = Unsqueeze(has_steps, n1)
    final_state = Where(has_steps_2d, last_h, zero)
    final_c = Where(has_steps_2d, last_c, zero)
    nothing = Constant<value = float[0] {{}}>()
    {select("final_state_2", "has_second", "final_c", "nothing")}
    by_sequence = Transpose<perm = [0, 2, 1, 3]>(results)
    {_ordered("by_sequence", "in_order")}
    dst_of_some_steps = Transpose<perm = [0, 2, 1, 3]>(in_order)
    dst = Slice(dst_of_some_steps, n0, steps, n0)
}}"""


def _ordered(value: str, to: str) -> str:
    """Sets `to` to a value, [T, B, D, ...], in which the steps of the direction backwards are reversed."""
    return f"""
    {to}_reversed = ReverseSequence<batch_axis = 1, time_axis = 0>({value}, reversed_length)
    {to}_forward = Slice({value}, n0, n1, n2)
    {to}_backward = Slice({to}_reversed, n1, n2, n2)
    {to}_both = Concat<axis = 2>({to}_forward, {to}_backward)
    {select(f"{to}_one", "is_reverse", f"{to}_reversed", value)}
    {select(to, "is_both", f"{to}_both", f"{to}_one")}
    """


_SRC = Input(
    "src",
    ("float32",),
    "[T, B, D * G * H]: T steps, B sequences, D directions, G gates (up to 4), and H, which is hidden_size.",
)
_COLUMN_SCALE = Input("column_scale", ("float32",), "[D, G * H]: the scales of the weights.")
_OTHER_INPUTS = (
    Input("bias", ("float32",), "[D, G * H], added to the products."),
    Input("state", ("float32",), "The first state: dimensions that broadcast to [D, B, H]."),
    Input("state_2", ("float32",), "The first second state, likewise."),
    Input("lengths", ("int32",), "The steps of each sequence, [B], or one element. More than T count as T."),
    Input("columns", ("float32",), "[D, 0 to 3 times H]: numbers of the elements of a state, such as peepholes."),
)
_OTHER_TYPES = ("float32", "float32", "float32", "int32", "float32")
_OUTPUTS = (
    Input(
        "dst",
        ("float32",),
        "[T, D, B, H]: the states after each step; 0 after the end of a sequence.",
        shape=states,
    ),
    Input(
        "final_state",
        ("float32",),
        "[D, B, H]: the states after the last step of each sequence; 0 without steps.",
        shape=final_state,
    ),
    Input(
        "final_state_2",
        ("float32",),
        "Likewise; [0] if there is no second state.",
        shape=second_state,
    ),
)
_ATTRIBUTES = (
    *ROW_PROGRAM.attributes[:2],
    Attribute("hidden_size", 1, f"H, at most {MAX_SYMMETRIC_SUM_LENGTH}."),
    Attribute("direction", Direction.FORWARD, "The order of the steps.", Direction),
    Attribute("last_gate", LastGate.SUM, "The last gate.", LastGate),
)
_NEXT = "x, tensor5 = program(x, gates, tensor5, columns)"

_QUANTIZED_RECURRENCE = Operator(
    "QuantizedRecurrence",
    "Computes all steps of an LSTM, a GRU, or another recurrent layer. `src` has the products of the inputs of all "
    "steps by their weights. Each step quantizes the state of each sequence, multiplies it by the recurrent weights, "
    "and runs [a program](#programs), which assigns the next state to `dst`, and perhaps the next second state to "
    "`dst_2`. It has no reductions. It reads the state `x`, the gates `tensor1` to `tensor4`, the second state "
    "`tensor5`, and `column6` to `column8`, which are in `columns`. States have no -0: it becomes 0.",
    "For each direction, sequence and step:\n"
    "s, z = the scale and the zero point of DynamicQuantizeLinear; a NaN does not count\n"
    "code = clip(round(x / s) + z, 0, 255)\n"
    "exact = sum over k of (code[k] - z) * weight[k]\n"
    "gates = float32(exact) * (s * column_scale) + bias + src; see last_gate\n" + _NEXT,
    (
        _SRC,
        Input(
            "weight",
            ("int8",),
            "[D, ceil(G * H / 16), ceil(H / 4), 16, 4]: the recurrent weights of each direction, packed as those of "
            "[QuantizedMatMul](#quantizedmatmul) with 8 bits.",
        ),
        _COLUMN_SCALE,
        Input("column_sum", ("int32",), "[D, G * H]: the sums of the weights of each column."),
        *_OTHER_INPUTS,
    ),
    _OUTPUTS,
    _ATTRIBUTES,
    (Signature(("float32", "int8", "float32", "int32", *_OTHER_TYPES), ("float32",) * 3),),
    functools.partial(_body, form=_CODES),
    functools.partial(_body, form=_CODES),
)

_WORD_RECURRENCE = Operator(
    "WordRecurrence",
    f"As QuantizedRecurrence, with recurrent weights of 12 bits: each block of {BLOCK} elements of the state of a "
    "sequence becomes words of 13 bits, as in [WordMatMul](#wordmatmul).",
    "For each direction, sequence and step; x_b are the elements of block b of the state:\n"
    f"words(x) = round(x * (1 / step(x))), where step(x) = max(2^-126, the largest |x| / {MAX_SRC_WORD})\n"
    "exact_b = sum over k in b of words(x_b)[k] * weight[k]\n"
    "product = bias + sum over b, in order, of float32(exact_b) * column_scale * step(x_b)\n"
    "gates = product + src; see last_gate\n" + _NEXT,
    (
        _SRC,
        Input(
            "weight",
            ("int16",),
            f"[D, ceil(G * H / 32), ceil(H / 2), 32, 2]: the recurrent weights of each direction, from "
            f"-{MAX_WEIGHT_WORD} to {MAX_WEIGHT_WORD}, packed as those of [WordMatMul](#wordmatmul); others are an "
            "error.",
        ),
        _COLUMN_SCALE,
        *_OTHER_INPUTS,
    ),
    _OUTPUTS,
    _ATTRIBUTES,
    (Signature(("float32", "int16", "float32", *_OTHER_TYPES), ("float32",) * 3),),
    functools.partial(_body, form=_WORDS),
    functools.partial(_body, form=_WORDS),
)

FAMILY = Family(
    "Recurrent layers",
    "The steps of LSTM, GRU and RNN with weights of integers. The program says which layer it is.",
    (_QUANTIZED_RECURRENCE, _WORD_RECURRENCE),
)
