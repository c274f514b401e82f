"""RowProgram: a program, a short list of steps, over each row of a tensor (program.py)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from .encodings import CodeType
from .function_text import cast_like, parameter_shape, reshape, select
from .program import OPERANDS, OUTPUTS, TAIL_OPERANDS, parse
from .program_body import body_of, saturated
from .program_reference import DOC
from .rows import BLOCK_SIZE
from .shapes import like_src, of_program, of_rows
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


def _body(opset: int, programs: Sequence[str] = (_IDENTITY,)) -> str:
    """The body for a model with these programs; each node's attribute `branch` is the index of its program."""
    ends = [_ENDS.get(each, (0, 0)) for each in range(max(_CODE_TYPES) + 1)]
    lowest, highest = (", ".join(f"{end[i]}.0" for end in ends) for i in (0, 1))
    ranges = "\n".join(
        "\n".join(saturated(f"{output}_real", output, "Cast<to: int = @code_type>", "lowest", "highest"))
        for output in ("codes", "zero_point")
    )
    return f"""{{
    zero = Constant<value_float = 0.0>()
    one = Constant<value_float = 1.0>()
    minus_one = Neg(one)
    infinity = Div(one, zero)
    minus_infinity = Div(minus_one, zero)
    axes = Constant<value_ints = [1]>()
    src_real = Cast<to = 1>(src)
    src_shape = Shape(src)
    begin = Constant<value_ints = [0]>()
    last = Constant<value_ints = [-1]>()
    block_size = Constant<value_int: int = @block_size>()
    no_elements = Constant<value_int = 0>()
    has_blocks = Greater(block_size, no_elements)
    one_element = Constant<value_ints = [1]>()
    before_last = Slice(src_shape, begin, last)
    behind_last = Constant<value_ints = [{2**63 - 1}]>()
    length = Slice(src_shape, last, behind_last)
    block_length = Unsqueeze(block_size, begin)
    divisor = Max(block_length, one_element)
    block_count = Div(length, divisor)
    blocks_shape = Concat<axis = 0>(before_last, block_count, block_length)
    {select("shape", "has_blocks", "blocks_shape", "src_shape", "int64")}
    x = {reshape(opset)}(src_real, shape)
    rows = Flatten<axis: int = @axis>(x)
    rows_shape = Shape(rows)
    like_real = Cast<to = 1>(like)
    {parameter_shape()}
    without_last = Slice(parameter_shape, begin, last)
    {select("scale_shape", "has_blocks", "without_last", "parameter_shape", "int64")}
    branch = Constant<value_int: int = @branch>()
    {selected(programs, {output: f"{output}_real" for output in OUTPUTS}, opset, has_blocks=True)}
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


def tail_text(programs: Sequence[str], opset: int) -> str:
    """The nodes that compute ``dst_real`` from ``x``, the result of a product, with the program of ``@branch``.

    The body must define ``zero`` and ``one``, the float32 numbers.
    """
    return f"""
        infinity = Div(one, zero)
        minus_infinity = Neg(infinity)
        shape = Shape(x)
        branch = Constant<value_int: int = @branch>()
        {selected(programs, {"dst": "dst_real"}, opset)}
    """


def selected(
    programs: Sequence[str],
    results: Mapping[str, str],
    opset: int,
    prefix: str = "p",
    operands: str = "operand_",
    operand_count: int = OPERANDS,
    *,
    has_blocks: bool = False,
    scope: str = "",
) -> str:
    """Sets `results`, names by output, to the outputs of the program that the attribute `branch` selects.

    The body must define ``branch``, and what :func:`body_of` reads.

    Args:
        programs: The programs of the model.
        results: The names, by output.
        opset: The version of the standard operators.
        prefix: What the names of all other values begin with.
        operands: What the names of the programs' operands begin with.
        operand_count: The number of operands.
        has_blocks, scope: As in :func:`body_of`.
    """
    middles = "\n".join(
        f"{prefix}middle_{i} = Constant<value_int = {i}>()\n{prefix}is_below_{i} = Less(branch, {prefix}middle_{i})"
        for i in range(1, len(programs))
    )

    def branches(first: int, end: int, results: Mapping[str, str]) -> str:
        # The Ifs form a tree: protocol buffers limit how deep subgraphs are nested.
        if end - first == 1:
            program = parse(programs[first], operand_count)
            return body_of(program, f"{prefix}{first}_", results, opset, operands, has_blocks=has_blocks, scope=scope)
        middle = (first + end) // 2

        def branch(which: str, first: int, end: int) -> str:
            names = {output: f"{result}_{first}_{end}" for output, result in results.items()}
            outputs = ", ".join(f"float[] {name}" for name in names.values())
            return f"{prefix}{which}_{first}_{end} () => ({outputs}) {{\n{branches(first, end, names)}\n}}"

        return f"""{", ".join(results.values())} = If({prefix}is_below_{middle}) <
            then_branch = {branch("then", first, middle)},
            else_branch = {branch("else", middle, end)}
        >"""

    return f"{middles}\n{branches(0, len(programs), results)}"


_OPERAND = "If the program reads `row{0}`, it broadcasts to the shape of `scale`; `column{0}`: the dimensions of `src` "
_OPERAND += "from `axis` on, perhaps after ones; `tensor{0}`: the shape of `src`; otherwise any tensor of one element."
_OF_BLOCKS = (
    " With blocks, `src` has the number of blocks and `block_size` in place of its last dimension, and `scale` "
)
_OF_BLOCKS += "another dimension of length 1."


def _operands(count: int, more: str = "") -> list[Input]:
    return [Input(f"operand_{i}", ("float32",), _OPERAND.format(i) + more) for i in range(1, count + 1)]


ROW_PROGRAM = Operator(
    "RowProgram",
    "Runs a program over each row of a tensor. The plugin does not make an output that the program does not assign; no "
    "node may read it.",
    "",
    (
        Input("src", FLOATS, "Any shape."),
        Input("like", _CODES, "Any tensor of type `code_type`; its value is not used."),
        *_operands(OPERANDS, _OF_BLOCKS),
    ),
    (
        Input(
            "codes",
            _CODES,
            "A vector, rounded half to even and saturated; 0 for NaN. The shape of `src`.",
            shape=of_program("codes", like_src),
        ),
        Input(
            "zero_point", _CODES, "A number, as `codes`. The shape of `scale`.", shape=of_program("zero_point", of_rows)
        ),
        Input(
            "dst",
            FLOATS,
            "A vector, rounded to the type of `src`. The shape of `src`.",
            shape=of_program("dst", like_src),
        ),
        Input("dst_2", FLOATS, "As `dst`.", shape=of_program("dst_2", like_src)),
        Input(
            "scale",
            ("float32",),
            "A number. The shape of `src`, with 1 for the dimensions from `axis` on. With blocks: with the number of "
            "blocks as the last dimension.",
            shape=of_program("scale", of_rows),
        ),
        Input("number", ("float32",), "As `scale`.", shape=of_program("number", of_rows)),
    ),
    (
        Attribute("program", _IDENTITY, "The program."),
        Attribute("branch", 0, "The index of the program in the model's function. The operator does not use it."),
        Attribute("axis", -1, "The first of the dimensions that form a row, -rank to rank - 1."),
        BLOCK_SIZE,
        Attribute("code_type", CodeType.UINT8, "The type of `codes` and `zero_point`.", CodeType, _CODE_TYPES),
    ),
    tuple(
        Signature((src, code, *["float32"] * OPERANDS), (code, code, src, src, "float32", "float32"))
        for src in FLOATS
        for code in _CODES
    ),
    _body,
    _body,
)

FAMILY = Family("Programs", DOC, (ROW_PROGRAM,))


def with_program(product: Operator, body: Callable[[int, Sequence[str]], str], form: str) -> Operator:
    """The operator that computes a product, and then runs a program for each element of its result.

    Args:
        product: The operator of the product.
        body: Returns its body for an opset and the programs of a model's nodes, with :func:`tail_text`.
        form: What a row of the result is.
    """
    return dataclasses.replace(
        product,
        name=f"{product.name}Program",
        doc=f"{product.name}, and then [a program](#programs) for each element of its result, which is `x`. {form} The "
        "program assigns `dst` and has no reductions. The inputs and attributes are those of "
        f"[{product.name}](#{product.name.lower()}), then the program's.",
        formula=f"x = {product.name}(...)\ndst = program(x)",
        inputs=(*product.inputs, *_operands(TAIL_OPERANDS)),
        attributes=(*product.attributes, *ROW_PROGRAM.attributes[:2]),
        signatures=tuple(
            Signature((*each.inputs, *["float32"] * TAIL_OPERANDS), each.outputs) for each in product.signatures
        ),
        body=lambda opset: body(opset, (_IDENTITY,)),
        body_of_programs=body,
    )
