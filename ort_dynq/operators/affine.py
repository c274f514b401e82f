"""AffineDequantize: dequantization with scales that broadcast."""

from __future__ import annotations

from .function_text import cast_like
from .shapes import like_src
from .spec import FLOATS, Family, Input, Operator, Signature

# Function bodies


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
    "Scales that broadcast",
    "`scale` and `zero_point` are inputs and broadcast as in NumPy. Every step is float32, as exporters write it with "
    "Cast, Sub and Mul. A float16 `dst` is rounded once.",
    (
        Operator(
            "AffineDequantize",
            "Dequantizes 8-bit codes.",
            "dst = (src - zero_point) * scale",
            (
                Input("src", ("uint8", "int8"), "Any shape."),
                Input("scale", FLOATS, "Broadcasts to the shape of `src`, as in NumPy."),
                Input("zero_point", ("uint8", "int8"), "The shape of `scale`, or one element. The type of `src`."),
            ),
            (Input("dst", FLOATS, "The shape of `src`, and the type of `scale`.", shape=like_src),),
            (),
            tuple(Signature((code, scale, code), (scale,)) for scale in FLOATS for code in ("uint8", "int8")),
            _dequantize_body,
        ),
    ),
)
