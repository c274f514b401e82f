"""The one list of operators: what each takes and gives, what it means, and what it stands for in standard ONNX.

The native library registers the same operators (ops/operators/operators.cc); the functions of rewritten models, the
registration through onnxruntime-extensions and the reference documentation are made from this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

DOMAIN = "ort_dynq"
VERSION = 1


@dataclass(frozen=True)
class Input:
    """An input: its name, the types that it takes and, if it may be absent, what its absence means."""

    name: str
    types: tuple[str, ...]
    doc: str
    absent: str = ""


@dataclass(frozen=True)
class Attribute:
    """An attribute: its name, its default (whose Python type is its own) and its meaning."""

    name: str
    default: str | int
    doc: str


@dataclass(frozen=True)
class Signature:
    """One combination of types, of inputs and of outputs, as the native library registers it."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """One operator of the domain ``ort_dynq``.

    `body` gives, for an opset version of ONNX, the text of the function that the operator stands for in a rewritten
    model (in ``onnx.parser``'s syntax, without its head). One name has one body in a model, so every difference in
    meaning that a body cannot take from its attributes is an operator of its own.
    """

    name: str
    doc: str
    inputs: tuple[Input, ...]
    outputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    signatures: tuple[Signature, ...]
    body: Callable[[int], str]


_GRANULARITY = (
    Attribute(
        "qtype",
        "per_tensor",
        "Which elements share a scale. per_tensor: all. per_channel: those with one index along `axis`. per_group: "
        "scales has src's rank, and each of its dimensions divides src's. auto: as ONNX's QuantizeLinear tells by the "
        "shape of scales: one element is per_tensor, else per_channel, or per_group where block_size is given.",
    ),
    Attribute("axis", 1, "The dimension of per_channel and of block_size, from -rank to rank - 1."),
    Attribute(
        "block_size",
        0,
        "per_group: so many elements along `axis` share a scale, the last group having what is left. "
        "0: groups are as long as the shapes of src and scales tell.",
    ),
)
_SCALES = Input(
    "scales",
    ("float32",),
    "per_tensor: one element, rank 0 or 1. per_channel: src.shape[axis] elements. per_group: src's rank.",
)
_ZPS = Input("zps", ("uint8", "int8", "int32"), "Zero points: shaped as scales, or one element for all.", "zero")


def _standard(op_type: str, attributes: str) -> Callable[[int], str]:
    """The body of an operator that stands for one standard operator with inputs src, scales and zps.

    Zero points are spread out to the scales' shape, which the standard operators insist on.
    """

    def body(opset: int) -> str:
        given = "" if opset < 13 else "axis: int = @axis" + (", block_size: int = @block_size" if opset >= 21 else "")
        given += attributes if opset >= 21 and given else ""
        return f"""{{
            shape = Shape(scales)
            each = Expand(zps, shape)
            dst = {op_type}{f"<{given}>" if given else ""}(src, scales, each)
        }}"""

    return body


OPERATORS: dict[str, Operator] = {
    operator.name: operator
    for operator in (
        Operator(
            "DynamicQuantize",
            "dst = saturate(round(src / scales + zps)): oneDNN Graph's DynamicQuantize-1.",
            (Input("src", ("float32",), "Any shape, rank 0 and empty included."), _SCALES, _ZPS),
            (Input("dst", ("uint8", "int8"), "src's shape."),),
            (
                *_GRANULARITY,
                Attribute("output_dtype", 0, "2: uint8, 3: int8, 0: that of zps if it is one of them, else uint8."),
                Attribute(
                    "arithmetic",
                    "onnx",
                    "onnx: divide, round half to even, add the zero point in integers, as ONNX's QuantizeLinear. "
                    "onednn: rint(float32(src * float32(1 / scales)) + float32(zps)), as oneDNN 3.12. "
                    "A NaN becomes the lowest code in both.",
                ),
            ),
            tuple(
                Signature(("float32", "float32", zps), (dst,))
                for zps, dst in (
                    ("uint8", "uint8"),
                    ("int8", "int8"),
                    ("int32", "uint8"),
                    ("int32", "int8"),
                    ("uint8", "int8"),
                    ("int8", "uint8"),
                )
            ),
            _standard("QuantizeLinear", ", output_dtype: int = @output_dtype"),
        ),
        Operator(
            "DynamicDequantize",
            "dst = (src - zps) * scales, the difference exact: oneDNN Graph's DynamicDequantize-1.",
            (Input("src", ("uint8", "int8"), "Any shape, rank 0 and empty included."), _SCALES, _ZPS),
            (Input("dst", ("float32",), "src's shape."),),
            _GRANULARITY,
            tuple(
                Signature((src, "float32", zps), ("float32",))
                for src, zps in (
                    ("uint8", "uint8"),
                    ("int8", "int8"),
                    ("uint8", "int32"),
                    ("int8", "int32"),
                    ("uint8", "int8"),
                    ("int8", "uint8"),
                )
            ),
            _standard("DequantizeLinear", ""),
        ),
    )
}
