"""DynamicQuantize, DynamicDequantize and DynamicFakeQuantize: scales per tensor, per channel or per group.

The first two are oneDNN Graph's DynamicQuantize-1 and DynamicDequantize-1, for floats of 32 and 16 bits and codes of 8
and 4 bits.
"""

from __future__ import annotations

from collections.abc import Callable

from .encodings import CodeType
from .function_text import cast_like, reshape, select
from .shapes import like_src
from .spec import Attribute, Family, Input, Operator, Signature

_GRANULARITY = (
    Attribute(
        "qtype",
        "per_tensor",
        "Which elements share a scale. per_tensor: all. per_channel: elements with the same index along `axis`. "
        "per_group: `scales` has the rank of `src`, and each of its dimensions divides that of `src`. auto: chosen by "
        "`scales` as in ONNX's QuantizeLinear: per_group if block_size or group_shape is given, otherwise per_tensor "
        "for one element of rank 0 or 1, otherwise per_channel.",
        choices=("per_tensor", "per_channel", "per_group", "auto"),
    ),
    Attribute("axis", 1, "The dimension for per_channel and block_size: -rank to rank - 1."),
    Attribute(
        "block_size",
        0,
        "For per_group: the number of elements along `axis` that share a scale; the last group can be shorter. "
        "0: the shapes of `src` and `scales` give the size of the groups.",
    ),
    Attribute(
        "group_shape",
        (),
        "For per_group: the length of a group along each dimension of `src`, which it must divide; `scales` has the "
        "shape src.shape / group_shape. It excludes block_size, which equals a group_shape of 1 along all other "
        "dimensions. Empty: not given.",
    ),
)
_FLOAT_TYPES = ("float32", "float16", "bfloat16")
_CODE_TYPES = ("uint8", "int8", "uint4", "int4")
_ZERO_POINT_TYPES = ("uint8", "int8", "int32", "uint4", "int4")
_OPSET_OF_SHAPES, _OPSET_OF_BLOCKS = 13, 21
_ANY_SHAPE = "Any shape, rank 0 and empty tensors included."
_SCALES_SHAPE = (
    "per_tensor: one element, rank 0 or 1. per_channel: rank 1, src.shape[axis] elements. per_group: rank of `src`."
)
_SRC = Input("src", _FLOAT_TYPES, _ANY_SHAPE)
_CODES = Input("src", _CODE_TYPES, _ANY_SHAPE)
_SCALES = Input("scales", _FLOAT_TYPES, _SCALES_SHAPE)
_ZPS = Input("zps", _ZERO_POINT_TYPES, "Zero points: the shape of `scales`, or one element for all scales.", "zero")


def _code_type(output_dtype: int, zps: str | None) -> str:
    """The type of DynamicQuantize's output, from the attribute and the type of the zero points."""
    if output_dtype:
        return CodeType(output_dtype).meaning
    return "uint8" if zps is None or zps == "int32" else zps


# Function bodies


def _standard(op_type: str, further_attributes: str = "") -> Callable[[int], str]:
    """The body of an operator that is one standard operator with inputs src, scales and zps."""

    def body(opset: int) -> str:
        return f"""{{
            {_expanded_zps(opset)}
            dst = {op_type}{_axis(opset, further_attributes)}(src, scales, expanded)
        }}"""

    return body


def _quantize_body(opset: int) -> str:
    """Divides in float32: from opset 23 on, QuantizeLinear divides in the type of the scales otherwise."""
    precision = ", precision: int = 1" if opset >= 23 else ""
    return _standard("QuantizeLinear", f", output_dtype: int = @output_dtype{precision}")(opset)


def _dequantize_body(opset: int) -> str:
    """Before opset 21, DequantizeLinear has no blocks, and before opset 19 no float16."""
    if opset < _OPSET_OF_SHAPES or opset >= _OPSET_OF_BLOCKS:
        return _standard("DequantizeLinear")(opset)
    return f"""{{
        {_expanded_zps(opset)}
        zero = Constant<value_int = 0>()
        one = Constant<value_int = 1>()
        start = Constant<value_ints = [0]>()
        last = Constant<value_ints = [-1]>()
        behind_last = Constant<value_ints = [{2**63 - 1}]>()
        block_size = Constant<value_int: int = @block_size>()
        has_blocks = Greater(block_size, zero)
        repeats = Max(block_size, one)
        repeats_1d = Unsqueeze(repeats, start)
        repeated_shape = Concat<axis = 0>(shape, repeats_1d)
        before_last = Slice(shape, start, last)
        count = Slice(shape, last, behind_last)
        length = Mul(count, repeats_1d)
        joined_shape = Concat<axis = 0>(before_last, length)
        src_shape = Shape(src)
        rank_1d = Shape(src_shape)
        rank = Squeeze(rank_1d)
        axis = Constant<value_int: int = @axis>()
        axis_from_end = Add(axis, rank)
        is_from_end = Less(axis, zero)
        channel_axis = Where(is_from_end, axis_from_end, axis)
        axes = Range(zero, rank, one)
        is_channel = Equal(axes, channel_axis)
        scale_count = Size(scales)
        channel_shape = Where(is_channel, scale_count, one)
        {_broadcast("scale", "scales", opset)}
        {_broadcast("zp", "expanded", opset)}
        real_src = Cast<to = 1>(src)
        difference = Sub(real_src, zp)
        product = Mul(difference, scale)
        {cast_like("dst", "product", "scales", opset)}
    }}"""


def _broadcast(name: str, parameters: str, opset: int) -> str:
    """Sets `name` to scales or zero points as float32, in a shape that broadcasts to ``src``'s."""
    return f"""{name}_real = Cast<to = 1>({parameters})
        {name}_column = Unsqueeze({name}_real, last)
        {name}_repeated = Expand({name}_column, repeated_shape)
        {name}_of_blocks = {reshape(opset)}({name}_repeated, joined_shape)
        {name}_of_channels = {reshape(opset)}({name}_real, channel_shape)
        {select(name, "has_blocks", f"{name}_of_blocks", f"{name}_of_channels")}"""


def _fake_quantize_body(opset: int) -> str:
    return f"""{{
        {_expanded_zps(opset)}
        codes = QuantizeLinear{_axis(opset)}(src, scales, expanded)
        dst = DequantizeLinear{_axis(opset)}(codes, scales, expanded)
    }}"""


def _expanded_zps(opset: int) -> str:
    """Sets ``expanded``: the standard operators require zero points in the shape of the scales.

    Opset 21 has codes of 4 bits. Expand does not take them, Cast does.
    """
    if opset < 21:
        return """shape = Shape(scales)
            expanded = Expand(zps, shape)"""
    return """shape = Shape(scales)
            wide_zps = Cast<to = 6>(zps)
            wide_expanded = Expand(wide_zps, shape)
            expanded = CastLike(wide_expanded, zps)"""


def _axis(opset: int, further_attributes: str = "") -> str:
    """The attributes of QuantizeLinear and DequantizeLinear that the opset has."""
    if opset < 13:
        return ""
    return f"<axis: int = @axis{', block_size: int = @block_size' + further_attributes if opset >= 21 else ''}>"


FAMILY = Family(
    "Scales per tensor, channel or group",
    "`scales` and `zps` are inputs. `DynamicQuantize` and `DynamicDequantize` are the operators of the same names in "
    "oneDNN Graph's specification. Extensions to the specification: `per_group` for DynamicQuantize, `per_group` "
    "without `group_shape`, `auto`, `block_size`, `output_dtype`, `arithmetic`, and one zero point for all scales. A "
    "function body has the granularities of ONNX's QuantizeLinear: groups need `block_size`. Before opset 21, only "
    "DynamicDequantize has them, in blocks that divide the last dimension.\n\n"
    "float16 and bfloat16 tensors are converted to float32, exactly; all steps are float32. A 16-bit result is rounded "
    "once, half to even; a NaN keeps only its sign. Two 4-bit codes share a byte, as in ONNX.",
    (
        Operator(
            "DynamicQuantize",
            "Quantizes floats to 8-bit or 4-bit codes: oneDNN Graph's DynamicQuantize-1. NaN becomes the lowest code.",
            "dst = saturate(round(src / scales) + zps)          arithmetic = onnx\n"
            "dst = saturate(round(src * (1 / scales) + zps))    arithmetic = onednn\n"
            "dst = saturate(int32(round(src / scales)) + zps)   arithmetic = wrapping",
            (_SRC, _SCALES, _ZPS),
            (Input("dst", _CODE_TYPES, "The shape of `src`.", shape=like_src),),
            (
                *_GRANULARITY,
                Attribute(
                    "output_dtype",
                    0,
                    "The type of `dst`. 0: the type of `zps` unless that is int32, otherwise uint8.",
                    CodeType,
                    (CodeType.UINT8, CodeType.INT8, CodeType.UINT4, CodeType.INT4),
                ),
                Attribute(
                    "arithmetic",
                    "onnx",
                    "onnx: as ONNX's QuantizeLinear; the zero point is added in integers. onednn: as oneDNN 3.12; "
                    "every step is float32. wrapping: as QuantizeLinear of float16 in ONNX Runtime 1.30 and 1.31: a "
                    "quotient that is NaN or beyond int32 becomes the lowest int32, and sums beyond int32 wrap around.",
                    choices=("onnx", "onednn", "wrapping"),
                ),
            ),
            tuple(
                Signature((src, src, zps), (dst,))
                for src in _FLOAT_TYPES
                for zps in _ZERO_POINT_TYPES
                for dst in sorted(_CODE_TYPES, key=lambda dst: dst != _code_type(0, zps))
            ),
            _quantize_body,
        ),
        Operator(
            "DynamicDequantize",
            "Dequantizes 8-bit or 4-bit codes to floats: oneDNN Graph's DynamicDequantize-1. The difference is exact; "
            "`dst` has the type of `scales`.",
            "dst = (src - zps) * scales",
            (_CODES, _SCALES, _ZPS),
            (Input("dst", _FLOAT_TYPES, "The shape of `src`.", shape=like_src),),
            _GRANULARITY,
            tuple(
                Signature((src, scales, zps), (scales,))
                for scales in _FLOAT_TYPES
                for src in _CODE_TYPES
                for zps in _ZERO_POINT_TYPES
            ),
            _dequantize_body,
        ),
        Operator(
            "DynamicFakeQuantize",
            "DynamicQuantize, then DynamicDequantize, in one pass. The codes are not stored.",
            "code = saturate(round(src / scales) + zps)\ndst = (code - zps) * scales",
            (
                Input("src", ("float32",), _ANY_SHAPE),
                Input("scales", ("float32",), _SCALES_SHAPE),
                Input(
                    "zps",
                    ("uint8", "int8"),
                    "Zero points: the shape of `scales`, or one element for all scales. Their type is the type of the "
                    "codes.",
                ),
            ),
            (Input("dst", ("float32",), "The shape of `src`.", shape=like_src),),
            _GRANULARITY,
            tuple(Signature(("float32", "float32", zps), ("float32",)) for zps in ("uint8", "int8")),
            _fake_quantize_body,
        ),
    ),
)
