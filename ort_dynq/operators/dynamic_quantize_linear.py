"""ONNX's DynamicQuantizeLinear, alone and with the DequantizeLinear after it: one scale for a tensor."""

from __future__ import annotations

from .function_text import cast_like
from .shapes import like_src, scalar
from .spec import FLOATS, Family, Input, Operator, Signature

_SRC = Input("src", FLOATS, "Any shape.")


# Function bodies


def _quantize_linear_body(opset: int) -> str:
    return """{
        real_src = Cast<to = 1>(src)
        dst, scale, zero_point = DynamicQuantizeLinear(real_src)
    }"""


def _linear_body(opset: int) -> str:
    return f"""{{
        real_src = Cast<to = 1>(src)
        codes, scale, zero_point = DynamicQuantizeLinear(real_src)
        real_dst = DequantizeLinear(codes, scale, zero_point)
        {cast_like("dst", "real_dst", "src", opset)}
    }}"""


_LINEAR = """\
low = min(min(src), 0); high = max(max(src), 0)
scale = (high - low) / 255; 1 if high = low
zero_point = round(clip(0 - low / scale, 0, 255))
code = clip(round(src / scale) + zero_point, 0, 255)
"""

FAMILY = Family(
    "Dynamic quantization per tensor",
    "The range of a tensor gives its scale and zero point. Every step is float32; a float16 `dst` is rounded once. A "
    "NaN counts [as in ONNX Runtime](numerics.md#nan-and-signed-zeros).",
    (
        Operator(
            "DynamicQuantizeLinear",
            "ONNX's DynamicQuantizeLinear: per tensor, to uint8.",
            f"{_LINEAR}dst = code",
            (_SRC,),
            (
                Input("dst", ("uint8",), "The shape of `src`.", shape=like_src),
                Input("scale", ("float32",), "No dimensions.", shape=scalar),
                Input("zero_point", ("uint8",), "No dimensions.", shape=scalar),
            ),
            (),
            tuple(Signature((src,), ("uint8", "float32", "uint8")) for src in FLOATS),
            _quantize_linear_body,
        ),
        Operator(
            "DynamicQuantizeDequantizeLinear",
            "ONNX's DynamicQuantizeLinear, then DequantizeLinear, in one pass: per tensor, through uint8.",
            f"{_LINEAR}dst = (code - zero_point) * scale",
            (_SRC,),
            (Input("dst", FLOATS, "The shape and the type of `src`.", shape=like_src),),
            (),
            tuple(Signature((src,), (src,)) for src in FLOATS),
            _linear_body,
        ),
    ),
)
