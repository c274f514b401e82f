"""RowProgram: a program, a short list of steps, over each row of a tensor (program.py)."""

from __future__ import annotations

from collections.abc import Sequence

from .encodings import CodeType
from .function_text import cast_like
from .program import ARITIES, OPERANDS, OUTPUTS, body_of, parse, saturated
from .spec import FLOATS, Attribute, Family, Input, Operator, Signature

_CODES = ("uint8", "int8", "uint4", "int4")
_CODE_TYPES = (CodeType.UINT8, CodeType.INT8, CodeType.UINT4, CodeType.INT4)
_ENDS: dict[int, tuple[int, int]] = {
    CodeType.UINT8: (0, 255),
    CodeType.INT8: (-128, 127),
    CodeType.UINT4: (0, 15),
    CodeType.INT4: (-8, 7),
}
_IDENTITY = "dst = x"
_LIKE = "unused = Cast<to = 1>(like)"  # ONNX Runtime takes no 4-bit type for an input that a function does not use


def _body(opset: int, programs: Sequence[str] = (_IDENTITY,)) -> str:
    """The body for a model with these programs; each node's attribute `branch` is the index of its program."""
    ends = [_ENDS.get(each, (0, 0)) for each in range(max(_CODE_TYPES) + 1)]
    lowest, highest = (", ".join(f"{end[i]}.0" for end in ends) for i in (0, 1))
    results = [f"{output}_real" for output in OUTPUTS]
    ranges = "\n".join(
        "\n".join(saturated(f"{output}_real", output, "Cast<to: int = @code_type>", "lowest", "highest"))
        for output in ("codes", "zero_point")
    )
    mids = "\n".join(
        f"i{i} = Constant<value_int = {i}>()\nis_below_{i} = Less(branch, i{i})" for i in range(1, len(programs))
    )
    return f"""{{
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    minus_one = Neg(one)
    infinity = Div(one, zero)
    minus_infinity = Div(minus_one, zero)
    axes = Constant<value_ints = [1]>()
    start = Constant<value_ints = [0]>()
    x = Cast<to = 1>(src)
    rows = Flatten<axis: int = @axis>(x)
    rows_shape = Shape(rows)
    shape = Shape(src)
    axis = Constant<value_int: int = @axis>()
    axis_1d = Unsqueeze(axis, start)
    lead = Slice(shape, start, axis_1d)
    rank = Shape(shape)
    lead_rank = Shape(lead)
    row_rank = Sub(rank, lead_rank)
    ones = ConstantOfShape<value = int64[1] {{1}}>(row_rank)
    parameter_shape = Concat<axis = 0>(lead, ones)
    {_LIKE if opset >= 21 else ""}
    branch = Constant<value_int: int = @branch>()
    {mids}
    {_branches(programs, 0, len(programs), results, opset)}
    lows = Constant<value_floats = [{lowest}]>()
    highs = Constant<value_floats = [{highest}]>()
    code_type = Constant<value_int: int = @code_type>()
    lowest = Gather(lows, code_type)
    highest = Gather(highs, code_type)
    {ranges}
    {cast_like("dst", "dst_real", "src", opset)}
    {cast_like("dst_2", "dst_2_real", "src", opset)}
    scale = Identity(scale_real)
    number = Identity(number_real)
}}"""


def _branches(programs: Sequence[str], first: int, end: int, results: Sequence[str], opset: int) -> str:
    """Sets `results` to the outputs of the program that `branch` selects of those from `first` to before `end`.

    The Ifs form a tree: protocol buffers limit how deep subgraphs are nested.
    """
    if end - first == 1:
        return body_of(parse(programs[first]), f"p{first}_", results, opset)
    middle = (first + end) // 2

    def branch(which: str, first: int, end: int) -> str:
        names = [f"{result}_{first}_{end}" for result in results]
        outputs = ", ".join(f"float[] {name}" for name in names)
        return f"{which}_{first}_{end} () => ({outputs}) {{\n{_branches(programs, first, end, names, opset)}\n}}"

    return f"""{", ".join(results)} = If(is_below_{middle}) <
        then_branch = {branch("then", first, middle)},
        else_branch = {branch("else", middle, end)}
    >"""


def _listed(arity: int) -> str:
    return ", ".join(f"`{name}`" for name, each in ARITIES.items() if each == arity)


_DOC = f"""\
A program computes the outputs from each row of `src`. A row consists of the elements along the dimensions from `axis`
on. A program is text:

```
r1 = Clip(Div(ReduceMax(Abs(x)), 127.0), 1e-05, inf); codes = Round(Div(x, r1)); scale = r1
```

Statements are separated by `;`. A statement gives a name to an expression: a name, a number, or a step of expressions.
All values are float32, and each step is one operation. A value is a vector, with a number for each element of a row, or
one number for each row.

- `x` is `src`. `row1`, `column1` and `tensor1` are operand 1 with one number for each row, with one for each element
  of a row, and with the shape of `src`; likewise up to {OPERANDS}.
- The names of the outputs are assigned their values. An output that is not assigned has the shape [0].
- Steps of one operand: {_listed(1)}. Of two: {_listed(2)}. Of three: {_listed(3)}.

A step computes what ONNX Runtime's operator of this name does, with these additions. `ReduceMax` and `ReduceMin` are
over a row: a NaN counts only as its first element. Comparisons are 1 or 0. `Clip` has constant bounds, and keeps a NaN;
so does `LeakyRelu`, whose second operand is its slope. `Float16` rounds to float16. `Int8`, `Uint8` and `Int32` round
half to even, and never give -0. `Int8` and `Uint8` saturate, and give 0 for NaN. `Int32` gives -2147483648 for NaN and
beyond int32. Of two zeros, `Max` and `Min` give either.
"""
_OPERAND = "If the program reads `row{0}`, it broadcasts to the shape of `scale`; `column{0}`: the dimensions of `src` "
_OPERAND += "from `axis` on, perhaps after ones; `tensor{0}`: the shape of `src`; otherwise any tensor of one element."

FAMILY = Family(
    "Programs",
    _DOC,
    (
        Operator(
            "RowProgram",
            "Runs a program over each row of a tensor.",
            "",
            (
                Input("src", FLOATS, "Any shape."),
                Input("like", _CODES, "Any tensor of type `code_type`; its value is not used."),
                *(Input(f"operand_{i}", ("float32",), _OPERAND.format(i)) for i in range(1, OPERANDS + 1)),
            ),
            (
                Input("codes", _CODES, "A vector, rounded half to even and saturated; 0 for NaN. The shape of `src`."),
                Input("zero_point", _CODES, "A number, as `codes`. The shape of `scale`."),
                Input("dst", FLOATS, "A vector, rounded to the type of `src`. The shape of `src`."),
                Input("dst_2", FLOATS, "As `dst`."),
                Input("scale", ("float32",), "A number. The shape of `src`, with 1 for the dimensions from `axis` on."),
                Input("number", ("float32",), "As `scale`."),
            ),
            (
                Attribute("program", _IDENTITY, "The program."),
                Attribute(
                    "branch", 0, "The index of the program in the model's function. The operator does not use it."
                ),
                Attribute("axis", -1, "The first of the dimensions that form a row, -rank to rank - 1."),
                Attribute("code_type", CodeType.UINT8, "The type of `codes` and `zero_point`.", CodeType, _CODE_TYPES),
            ),
            tuple(
                Signature((src, code, *["float32"] * OPERANDS), (code, code, src, src, "float32", "float32"))
                for src in FLOATS
                for code in _CODES
            ),
            _body,
            _body,
        ),
    ),
)
