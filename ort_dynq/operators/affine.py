"""AffineQuantize, AffineFakeQuantize and AffineDequantize: scales that broadcast, arithmetic chosen by attributes."""

from __future__ import annotations

from .affine_arithmetic import (
    CHOICES,
    CODE_OFFSET,
    TO_CODES,
    TO_FLOATS,
    codes_text,
    floats_text,
    stored_text,
)
from .function_text import cast_like, integers
from .spec import FLOATS, Family, Input, Operator, Signature

_SRC = Input("src", FLOATS, "Any shape.")
_SCALE = Input("scale", ("float32",), "Broadcasts to the shape of `src`, as in NumPy.")


# Function bodies


def _quantize_body(opset: int) -> str:
    return f"""{{
        {integers(5)} {CHOICES} {CODE_OFFSET}
        zero_point_stored = Cast<to = 6>(zero_point)
        zero_point_int = Sub(zero_point_stored, offset)
        zero_point_real = Cast<to = 1>(zero_point_int)
        real_src = Cast<to = 1>(src)
        {codes_text("real_src", "scale", "zero_point_real")}
        {stored_text("code", "dst")}
    }}"""


def _fake_quantize_body(opset: int) -> str:
    return f"""{{
        {integers(5)} {CHOICES}
        zero_point_real = Cast<to = 1>(zero_point)
        real_src = Cast<to = 1>(src)
        {codes_text("real_src", "scale", "zero_point_real")}
        {floats_text("scale", "zero_point_real", "real_dst")}
        {cast_like("dst", "real_dst", "src", opset)}
    }}"""


def _dequantize_body(opset: int) -> str:
    return f"""{{
        real = Cast<to = 1>(src)
        zero_point_real = Cast<to = 1>(zero_point)
        difference = Sub(real, zero_point_real)
        real_scale = Cast<to = 1>(scale)
        real_dst = Mul(difference, real_scale)
        {cast_like("dst", "real_dst", "scale", opset)}
    }}"""


FAMILY = Family(
    "Affine",
    "`scale` and `zero_point` are inputs and broadcast as in NumPy. Every step is float32, in the order that the "
    "attributes select, as exporters write it with Div, Round, Add, Clip and Cast. A float16 `dst` is rounded "
    "once. The formulas hold for the default values; [Encodings](#encodings) lists the others.",
    (
        Operator(
            "AffineQuantize",
            "Quantizes floats to 8-bit codes.",
            "t = src / scale                                           scaling = 0\n"
            "code = clip(round(t) + zero_point, quant_min, quant_max)  rounding_order = 0\n"
            "dst = code                                                output_dtype = code_type\n"
            "dst = code + 128                                          output_dtype = 2, code_type = 3\n"
            "dst = code - 128                                          output_dtype = 3, code_type = 2",
            (
                _SRC,
                _SCALE,
                Input(
                    "zero_point", ("uint8", "int8"), "The shape of `scale`, or one element. Its type is `output_dtype`."
                ),
            ),
            (Input("dst", ("uint8", "int8"), "The shape of `src`."),),
            TO_CODES,
            tuple(Signature((src, "float32", code), (code,)) for src in FLOATS for code in ("uint8", "int8")),
            _quantize_body,
        ),
        Operator(
            "AffineFakeQuantize",
            "Quantizes floats and dequantizes the codes, in one pass. `rounding_order` 2 and 3 use no zero point in "
            "either step.",
            "t = src / scale                                           scaling = 0\n"
            "code = clip(round(t) + zero_point, quant_min, quant_max)  rounding_order = 0\n"
            "dst = (code - zero_point) * scale                         scaling = 0 or 1\n"
            "dst = (code - zero_point) / scale                         scaling = 2",
            (
                _SRC,
                _SCALE,
                Input("zero_point", ("float32", "uint8", "int8", "int32"), "The shape of `scale`, or one element."),
            ),
            (Input("dst", FLOATS, "The shape and the type of `src`."),),
            TO_FLOATS,
            tuple(
                Signature((src, "float32", zp), (src,))
                for src in FLOATS
                for zp in ("float32", "uint8", "int8", "int32")
            ),
            _fake_quantize_body,
        ),
        Operator(
            "AffineDequantize",
            "Dequantizes 8-bit codes.",
            "dst = (src - zero_point) * scale",
            (
                Input("src", ("uint8", "int8"), "Any shape."),
                Input("scale", FLOATS, _SCALE.doc),
                Input("zero_point", ("uint8", "int8"), "The shape of `scale`, or one element. The type of `src`."),
            ),
            (Input("dst", FLOATS, "The shape of `src`, and the type of `scale`."),),
            (),
            tuple(Signature((code, scale, code), (scale,)) for scale in FLOATS for code in ("uint8", "int8")),
            _dequantize_body,
        ),
    ),
)
