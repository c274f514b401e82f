"""The one list of operators: what each takes and gives, what it means, and what it stands for in standard ONNX.

The native library registers the same operators (ops/operators/operators.cc); the functions of rewritten models, the
registration through onnxruntime-extensions and the reference documentation are made from this list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import bodies

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


def _affine(code_type: int, nan: int) -> tuple[Attribute, ...]:
    """The attributes of a chain's arithmetic, with the defaults of operators whose codes are integers or floats."""
    return (
        Attribute("scaling", 0, "t: 0 src / scale, 1 src * (1 / scale), 2 src * scale (an inverse scale)."),
        Attribute(
            "rounding_order",
            0,
            "0: clip(round(t) + zero_point), 1: round(clip(t + zero_point)), 2: clip(round(t)), zero_point unused.",
        ),
        Attribute("code_type", code_type, "The type that codes are cast to: 2 uint8, 3 int8, 1 none (float32)."),
        Attribute("quant_min", -128, "The lowest code."),
        Attribute("quant_max", 127, "The highest code."),
        Attribute("clip", 1, "0: codes are not clipped (code_type 1 only)."),
        Attribute(
            "nan_code", nan, "A NaN becomes: 0 the code 0 (Cast), 1 quant_min (QuantizeLinear), 2 NaN (code_type 1)."
        ),
    )


_TO_CODES = (
    *_affine(code_type=3, nan=0),
    Attribute(
        "output_dtype",
        3,
        "The type that codes and zero points have in inputs and outputs: 2 uint8, 3 int8. Where it is not code_type "
        "they are 128 away: int8 codes as uint8, which ONNX Runtime multiplies much faster.",
    ),
)
_TO_FLOATS = _affine(code_type=1, nan=2)
_RANGE = (
    Attribute("axis", -1, "The first of the dimensions that share a scale: -1 per token, 0 per tensor."),
    Attribute(
        "range_kind",
        0,
        "0: largest magnitude, 1: maximum - minimum, 2: the same, 0 included, "
        "3: max(maximum / constants[1], minimum / constants[0]).",
    ),
    Attribute("inverse_scale", 0, "1: the scale is an inverse one, from 1 / range."),
    Attribute(
        "zero_point_rule",
        0,
        "0 none, 1 round(clip(quant_min - low / scale)), 2 clip(quant_min - round(low / scale)), "
        "3 clip(round(-low / scale)), 4 floor((0 - low) / scale).",
    ),
    Attribute("zero_point_before_epsilon", 0, "1: the zero point follows from the scale before its epsilon."),
    Attribute("zero_point_type", 1, "The type that the zero point is cast to: 1 none (float32), 2 uint8, 3 int8."),
)
_RUN = (
    Attribute("axis", -1, "The first of a run of dimensions, from -rank to rank."),
    Attribute("count", 1, "How many dimensions the run has."),
    Attribute("reduce_others", 0, "0: the range is over the run. 1: over all other dimensions, and the run is kept."),
    Attribute("keepdims", 1, "1: the dimensions that the range is over become 1, 0: they are taken away."),
)
_CONSTANTS = Input(
    "constants",
    ("float32",),
    "Nine numbers: the bounds of the minimum from below and of the maximum from above (range 2), or what divides "
    "them (range 3); the bounds of the range from below and above; the divisor and the factor that make it a scale; "
    "the bounds of the scale from below and above; the scale instead of 0.",
)
_X = Input("src", ("float32",), "Any shape.")
_BROADCAST = Input("scale", ("float32",), "Broadcasts to src, as in NumPy.")

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
            bodies.standard("QuantizeLinear", ", output_dtype: int = @output_dtype"),
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
            bodies.standard("DequantizeLinear", ""),
        ),
        Operator(
            "DynamicFakeQuantize",
            "DynamicQuantize, then DynamicDequantize, in one pass and without the codes.",
            (
                Input("src", ("float32",), "Any shape, rank 0 and empty included."),
                _SCALES,
                Input(
                    "zps", ("uint8", "int8"), "Zero points: shaped as scales, or one element for all; the codes' type."
                ),
            ),
            (Input("dst", ("float32",), "src's shape."),),
            _GRANULARITY,
            tuple(Signature(("float32", "float32", zps), ("float32",)) for zps in ("uint8", "int8")),
            bodies.quantize_dequantize,
        ),
        Operator(
            "AffineQuantize",
            "Codes by a chain's own arithmetic (Div, Round, Add, Clip, Cast), scale and zero point computed outside.",
            (_X, _BROADCAST, Input("zero_point", ("uint8", "int8"), "As scale, or one element; of output_dtype.")),
            (Input("dst", ("uint8", "int8"), "src's shape."),),
            _TO_CODES,
            tuple(Signature(("float32", "float32", code), (code,)) for code in ("uint8", "int8")),
            bodies.affine_quantize,
        ),
        Operator(
            "AffineFakeQuantize",
            "The same and back: (code - zero_point) * scale, or / scale where that is an inverse one.",
            (
                _X,
                _BROADCAST,
                Input("zero_point", ("float32", "uint8", "int8", "int32"), "As scale, or one element."),
            ),
            (Input("dst", ("float32",), "src's shape."),),
            _TO_FLOATS,
            tuple(Signature(("float32", "float32", zp), ("float32",)) for zp in ("float32", "uint8", "int8", "int32")),
            bodies.affine_fake_quantize,
        ),
        Operator(
            "AffineDequantize",
            "dst = (src - zero_point) * scale, where scale broadcasts as in NumPy.",
            (
                Input("src", ("uint8", "int8"), "Any shape."),
                _BROADCAST,
                Input("zero_point", ("uint8", "int8"), "As scale, or one element; src's type."),
            ),
            (Input("dst", ("float32",), "src's shape."),),
            (),
            tuple(Signature((code, "float32", code), ("float32",)) for code in ("uint8", "int8")),
            bodies.affine_dequantize,
        ),
        Operator(
            "DynamicRangeQuantize",
            "A whole chain: the range of each row, its scale and zero point, and codes.",
            (_X, _CONSTANTS, Input("like", ("int8", "uint8"), "Any value of output_dtype.")),
            (
                Input("dst", ("int8", "uint8"), "src's shape."),
                Input("scale", ("float32",), "src's shape, 1 from `axis` on."),
                Input("zero_point", ("int8", "uint8"), "As scale."),
            ),
            (*_RANGE, *_TO_CODES),
            tuple(Signature(("float32", "float32", code), (code, "float32", code)) for code in ("int8", "uint8")),
            bodies.range_chain(to_codes=True),
        ),
        Operator(
            "DynamicRangeFakeQuantize",
            "A whole chain and back: the range of each row, its scale and zero point, codes, and floats again.",
            (_X, _CONSTANTS),
            (
                Input("dst", ("float32",), "src's shape."),
                Input("scale", ("float32",), "src's shape, 1 from `axis` on."),
                Input("zero_point", ("float32",), "As scale."),
            ),
            (*_RANGE, *_TO_FLOATS),
            (Signature(("float32", "float32"), ("float32", "float32", "float32")),),
            bodies.range_chain(to_codes=False),
        ),
        Operator(
            "AccumulatorDequantize",
            "dst = float(src - zero_point * column_sum) * (scale * column_scale) + bias: what an integer matrix "
            "product of codes, their zero points not taken off, has summed up.",
            (
                Input(
                    "src", ("int32",), "Sums of products: any shape of rank 1 or more, its last dimension the columns."
                ),
                Input("scale", ("float32",), "Of the rows: src's leading dimensions, then ones; or one element."),
                Input("zero_point", ("uint8", "int8"), "Of the rows: as scale, or one element."),
                Input("column_scale", ("float32",), "Of the weights: one for each column."),
                Input("column_sum", ("int32",), "The sum of each column's weights, their zero point taken off."),
                Input("bias", ("float32",), "One for each column; -0.0 changes nothing."),
            ),
            (Input("dst", ("float32",), "src's shape."),),
            (
                Attribute(
                    "scale_order",
                    0,
                    "0: real * (scale * column_scale), 1: (real * scale) * column_scale, "
                    "2: (real * column_scale) * scale.",
                ),
            ),
            tuple(
                Signature(("int32", "float32", code, "float32", "int32", "float32"), ("float32",))
                for code in ("uint8", "int8")
            ),
            bodies.accumulator_dequantize,
        ),
        Operator(
            "ReduceAbsMax",
            "The largest magnitude over some of the dimensions: ReduceMax(Abs(src)) in one pass.",
            (_X,),
            (Input("magnitude", ("float32",), "src's shape without those dimensions."),),
            _RUN,
            (Signature(("float32",), ("float32",)),),
            bodies.reduction(is_magnitude=True),
        ),
        Operator(
            "ReduceMinMax",
            "The smallest and the largest element over some of the dimensions: ReduceMin and ReduceMax in one pass.",
            (_X,),
            (
                Input("minimum", ("float32",), "src's shape without those dimensions."),
                Input("maximum", ("float32",), "As minimum."),
            ),
            _RUN,
            (Signature(("float32",), ("float32", "float32")),),
            bodies.reduction(is_magnitude=False),
        ),
        Operator(
            "DynamicQuantizeDequantizeLinear",
            "ONNX's DynamicQuantizeLinear, then DequantizeLinear: per tensor, by way of uint8.",
            (_X,),
            (Input("dst", ("float32",), "src's shape."),),
            (),
            (Signature(("float32",), ("float32",)),),
            bodies.dynamic_quantize_dequantize,
        ),
    )
}
