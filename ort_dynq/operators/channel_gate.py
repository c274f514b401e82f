"""ChannelGate: channels times a gate that is computed from the means of all channels (squeeze and excitation)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .function_text import reshape
from .program_body import row_sum
from .row_program import ROW_PROGRAM, selected
from .shapes import like_src
from .spec import Attribute, Family, Input, Operator, Signature

_IDENTITY = "dst = x; dst_2 = x"
OPERANDS = 1
"""The number of operands of the program: the numbers of the gate, ``row1``."""


def _product(vector: str, number: int, to: str, opset: int) -> Iterator[str]:
    """The nodes of ``{to}_x``, [N, rows of the weights]: the weights of this number times a vector, [N, K], plus bias.

    Sums have the order of the step ReduceSum.
    """
    yield f"{to}_vector = Unsqueeze({vector}, axes)"
    yield f"{to}_products = Mul({to}_vector, weight_{number})"
    yield f"{to}_shape = Shape({to}_products)"
    yield f"{to}_flat = Flatten<axis = 2>({to}_products)"
    yield f"{to}_rows_shape = Shape({to}_flat)"
    yield f"{to}_parameter_shape = Slice({to}_shape, begin, two)"
    yield from row_sum(f"{to}_products", f"{to}_sums", opset, f"{to}_")
    yield f"{to}_x = Add({to}_sums, bias_{number})"


def _body(opset: int, programs: Sequence[str] = (_IDENTITY,)) -> str:
    totals = "\n".join(row_sum("flat", "totals", opset, "m_"))
    hidden, gate = ("\n".join(_product(*each, opset)) for each in (("means", 1, "h"), ("hidden", 2, "g")))
    return f"""{{
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    infinity = Div(one, zero)
    minus_infinity = Neg(infinity)
    axes = Constant<value_ints = [1]>()
    begin = Constant<value_ints = [0]>()
    two = Constant<value_ints = [2]>()
    behind_last = Constant<value_ints = [{2**63 - 1}]>()
    branch = Constant<value_int: int = @branch>()

    shape = Shape(src)
    flat = Flatten<axis = 2>(src)
    m_shape = Shape(flat)
    m_rows_shape = Shape(flat)
    m_parameter_shape = Slice(shape, begin, two)
    {totals}
    length = Slice(m_rows_shape, axes, two)
    count = Cast<to = 1>(length)
    means = Div(totals, count)

    {hidden}
    i_x = Identity(h_x)
    i_shape = Shape(h_x)
    {selected(programs, {"dst_2": "hidden"}, opset, "h", operand_count=OPERANDS, scope="i_")}

    {gate}
    spatial = Slice(shape, two, behind_last)
    spatial_rank = Shape(spatial)
    ones = ConstantOfShape<value = int64[1] {{1}}>(spatial_rank)
    of_channels = Concat<axis = 0>(m_parameter_shape, ones)
    operand_1 = {reshape(opset)}(g_x, of_channels)
    x = Identity(src)
    {selected(programs, {"dst": "dst"}, opset, operand_count=OPERANDS)}
}}"""


CHANNEL_GATE = Operator(
    "ChannelGate",
    "Multiplies channels by a gate, or combines them with it in another way: two products with the means of the "
    "channels, and a function behind each of them, as squeeze and excitation has them. [A program](#programs) says the "
    "functions, and what becomes of an element. It assigns `dst_2`, the function of a number `x` between the products, "
    "and `dst`, which is computed of an element `x` of `src` and of `row1`, the number of its channel behind the "
    "second product. It has no reductions. Sums have the order of the step ReduceSum.",
    "mean[n, c] = sum of src[n, c] / number of its elements\n"
    "hidden[n, h] = program(x = sum over c of mean[n, c] * weight_1[h, c] + bias_1[h]).dst_2\n"
    "gate[n, c] = sum over h of hidden[n, h] * weight_2[c, h] + bias_2[c]\n"
    "dst = program(x = src, row1 = gate).dst",
    (
        Input("src", ("float32",), "[N, C, d1, ..., dr]: N samples of C channels; r is at least 1."),
        Input("weight_1", ("float32",), "[H, C]."),
        Input("bias_1", ("float32",), "[H]."),
        Input("weight_2", ("float32",), "[C, H]."),
        Input("bias_2", ("float32",), "[C]."),
    ),
    (Input("dst", ("float32",), "The shape of `src`.", shape=like_src),),
    (Attribute("program", _IDENTITY, "The program."), ROW_PROGRAM.attributes[1]),
    (Signature(("float32",) * 5, ("float32",)),),
    _body,
    _body,
)

FAMILY = Family(
    "Gates",
    "Gates of channels, with products of single positions: nodes for each step would take longer than the computation.",
    (CHANNEL_GATE,),
)
