"""Pieces of function bodies, in the text syntax of ``onnx.parser``."""

from __future__ import annotations


def integers(count: int) -> str:
    """Constants named ``i0``, ``i1``, ...: the integers below `count`. See :func:`integer`."""
    return "\n".join(f"{integer(value)} = Constant<value_int = {value}>()" for value in range(count))


def integer(value: int) -> str:
    """The name that :func:`integers` gives to the constant `value`."""
    return f"i{int(value)}"


def select(name: str, condition: str, then: str, otherwise: str) -> str:
    """Sets `name`, a float32 tensor, to one of two values.

    If is used, since ONNX Runtime's Where loses the sign of -0.
    """

    def branch(which: str, value: str) -> str:
        return f"{which}_{name} () => (float[] {name}_{which}) {{ {name}_{which} = Identity({value}) }}"

    return f"""{name} = If({condition}) <
        then_branch = {branch("then", then)},
        else_branch = {branch("else", otherwise)}
    >"""


def reshape(opset: int) -> str:
    """A Reshape that takes a dimension of 0 literally. Before opset 14, it copies the input's dimension instead."""
    return "Reshape<allowzero = 1>" if opset >= 14 else "Reshape"
