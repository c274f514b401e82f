"""DynamicQuantize, DynamicDequantize and DynamicFakeQuantize: scales per tensor, per channel or per group.

The first two are oneDNN Graph's DynamicQuantize-1 and DynamicDequantize-1, for floats of 32 and 16 bits and codes of 8
and 4 bits. The types of the latter are those of ml_dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import DynqError
from .encodings import CodeType
from .reference_ops import ONE, Array, Attributes, check_zero_point, rounded, shape_text
from .spec import Attribute, Family, Input, Operator, Signature

_GRANULARITY = (
    Attribute(
        "qtype",
        "per_tensor",
        "Which elements share a scale. per_tensor: all. per_channel: those with the same index along `axis`. "
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
        "For per_group: the length of a group along each dimension of `src`, and so the shape of `scales`: src.shape / "
        "group_shape, without remainders. Not together with block_size, which is the group_shape of 1 along all other "
        "dimensions. Empty: not given.",
    ),
)
_MOST_DIMENSIONS = 16  # kMaxRank of ops/core/operator.h
_FLOAT_TYPES = ("float32", "float16", "bfloat16")
_CODE_TYPES = ("uint8", "int8", "uint4", "int4")
_ZERO_POINT_TYPES = ("uint8", "int8", "int32", "uint4", "int4")
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


# References


def _quantize(given: Attributes, src: Array, scales: Array, zps: Array | None = None) -> list[Array]:
    dtype = np.dtype(_code_type(given["output_dtype"], None if zps is None else zps.dtype.name))
    scale, zp = _per_element(given, src, scales, zps)
    src = src.astype(np.float32)
    if given["arithmetic"] == "onednn":
        return [_saturate(np.rint(src * (ONE / scale) + zp.astype(np.float32)), dtype).astype(dtype)]
    if given["arithmetic"] == "wrapping":
        steps = np.rint(src / scale)
        is_int32 = (steps >= -(2.0**31)) & (steps < 2.0**31)
        sums = np.where(is_int32, steps, -(2.0**31)).astype(np.int64) + zp
        return [_saturate((sums + 2**31) % 2**32 - 2**31, dtype).astype(dtype)]
    return [_codes(src, scale, zp, dtype).astype(dtype)]


def _dequantize(given: Attributes, src: Array, scales: Array, zps: Array | None = None) -> list[Array]:
    scale, zp = _per_element(given, src, scales, zps)
    return [rounded((src.astype(np.int64) - zp).astype(np.float32) * scale, scales.dtype)]


def _fake_quantize(given: Attributes, src: Array, scales: Array, zps: Array) -> list[Array]:
    scale, zp = _per_element(given, src, scales, zps)
    codes = _codes(src, scale, zp, zps.dtype)
    return [((codes - zp).astype(np.float32) * scale).astype(np.float32)]


def _codes(src: Array, scale: Array, zp: Array, dtype: np.dtype[Any]) -> Array:
    """The codes of QuantizeLinear, as floats.

    The sum is in float64, where it is exact unless the code saturates anyway.
    """
    return _saturate(np.rint(src / scale).astype(np.float64) + zp, dtype)


def _saturate(codes: Array, dtype: np.dtype[Any]) -> Array:
    """The codes within the type's limits, still as floats; a NaN becomes the lowest code."""
    limits: Any = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    low, high = int(limits.min), int(limits.max)
    return np.where(np.isnan(codes), low, np.clip(codes, low, high))


def _per_element(given: Attributes, src: Array, scales: Array, zps: Array | None) -> tuple[Array, Array]:
    """Scales (float32) and zero points (int64) in shapes that broadcast to src."""
    qtype, axis, block_size, group_shape = given["qtype"], given["axis"], given["block_size"], given["group_shape"]
    if block_size < 0:
        raise DynqError(f"block_size is {block_size}, expected 0 or more")
    _check_group_shape(group_shape, qtype, block_size)
    zero_points = np.zeros((), np.int64) if zps is None else zps.astype(np.int64)
    if qtype == "auto":
        is_single = scales.ndim <= 1 and scales.size == 1
        qtype = "per_group" if block_size or group_shape else "per_tensor" if is_single else "per_channel"
    along = 0
    if qtype == "per_tensor":
        if scales.ndim > 1 or scales.size != 1:
            raise DynqError(
                f"scales has shape {shape_text(scales.shape)}, expected one element of rank 0 or 1 for per_tensor"
            )
    elif qtype == "per_channel":
        along = _checked_axis(axis, src)
        if scales.ndim != 1:
            raise DynqError(f"scales has shape {shape_text(scales.shape)}, expected rank 1 for per_channel")
        if scales.size != src.shape[along]:
            raise DynqError(f"scales has {scales.size} elements, src has {src.shape[along]} along axis {axis}")
    else:
        if scales.ndim != src.ndim:
            raise DynqError(
                f"scales has shape {shape_text(scales.shape)}, expected the rank of src, {src.ndim}, for per_group"
            )
        if block_size:
            along = _checked_axis(axis, src)
            sizes = [block_size if i == along else 1 for i in range(src.ndim)]
            _check_counts(scales, src, sizes, f"blocks of {block_size} along axis {axis}")
        elif group_shape:
            if len(group_shape) != src.ndim or any(n % size for n, size in zip(src.shape, group_shape, strict=True)):
                raise DynqError(
                    f"src has shape {shape_text(src.shape)}, expected multiples of group_shape, "
                    f"{shape_text(group_shape)}"
                )
            _check_counts(scales, src, group_shape, f"groups of {shape_text(group_shape)}")
        else:
            _check_groups(scales, src)
    check_zero_point("zps", zero_points, "scales", scales)

    def spread(parameters: Array) -> Array:
        if parameters.size == 1:
            return parameters.reshape(())
        if qtype == "per_channel":
            return parameters.reshape([-1 if i == along else 1 for i in range(src.ndim)])
        for i, length in enumerate(src.shape):
            size = block_size if block_size and i == along else length // max(1, parameters.shape[i])
            parameters = np.repeat(parameters, min(size, length), axis=i)
        return parameters[tuple(slice(length) for length in src.shape)]

    return spread(scales.astype(np.float32)), spread(zero_points)


def _checked_axis(axis: int, src: Array) -> int:
    if not -src.ndim <= axis < src.ndim:
        raise DynqError(
            f"axis is {axis}, expected {-src.ndim} to {src.ndim - 1} for src of shape {shape_text(src.shape)}"
        )
    return axis % src.ndim


def _check_group_shape(group_shape: Sequence[int], qtype: str, block_size: int) -> None:
    text = f"group_shape is {shape_text(group_shape)}"
    if len(group_shape) > _MOST_DIMENSIONS:
        raise DynqError(f"group_shape has {len(group_shape)} sizes, expected at most {_MOST_DIMENSIONS}")
    if any(size < 1 for size in group_shape):
        raise DynqError(f"{text}, expected sizes of 1 or more")
    if group_shape and qtype not in ("per_group", "auto"):
        raise DynqError(f"{text} and qtype '{qtype}', expected qtype per_group or auto")
    if group_shape and block_size:
        raise DynqError(f"{text} and block_size {block_size}, expected one of them")


def _check_counts(scales: Array, src: Array, sizes: Sequence[int], groups: str) -> None:
    """Checks that there is a scale for each group of these sizes; the last group can be shorter."""
    for i, (length, count, size) in enumerate(zip(src.shape, scales.shape, sizes, strict=True)):
        if count != (expected := -(-length // size)):
            raise DynqError(
                f"scales has shape {shape_text(scales.shape)}, expected {expected} along dimension {i} for {groups} of "
                f"src of shape {shape_text(src.shape)}"
            )


def _check_groups(scales: Array, src: Array) -> None:
    for i, (length, groups) in enumerate(zip(src.shape, scales.shape, strict=True)):
        if length % groups if groups else length:
            raise DynqError(
                f"scales has shape {shape_text(scales.shape)}, src {shape_text(src.shape)}: {groups} groups do not "
                f"divide {length} elements along dimension {i}"
            )


FAMILY = Family(
    "Scales per tensor, channel or group",
    "`scales` and `zps` are inputs. `DynamicQuantize` and `DynamicDequantize` are the operators of the same names in "
    "oneDNN Graph's specification. Extensions to the specification: `per_group` of DynamicQuantize and without "
    "`group_shape`, `auto`, `block_size`, `output_dtype`, `arithmetic`, and one zero point for all scales. A function "
    "body has the granularities of ONNX's QuantizeLinear: not groups without `block_size`.\n\n"
    "Tensors of float16 and bfloat16 are converted to float32, exactly; all steps are float32. A result of 16 bits is "
    "then rounded once, half to even; a NaN keeps its sign only. Codes of 4 bits are stored two in a byte, as in ONNX.",
    (
        Operator(
            "DynamicQuantize",
            "Quantizes floats to 8-bit or 4-bit codes: oneDNN Graph's DynamicQuantize-1. NaN becomes the lowest code.",
            "dst = saturate(round(src / scales) + zps)          arithmetic = onnx\n"
            "dst = saturate(round(src * (1 / scales) + zps))    arithmetic = onednn\n"
            "dst = saturate(int32(round(src / scales)) + zps)   arithmetic = wrapping",
            (_SRC, _SCALES, _ZPS),
            (Input("dst", _CODE_TYPES, "The shape of `src`."),),
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
            _quantize,
        ),
        Operator(
            "DynamicDequantize",
            "Dequantizes 8-bit or 4-bit codes to floats: oneDNN Graph's DynamicDequantize-1. The difference is exact; "
            "`dst` has the type of `scales`.",
            "dst = (src - zps) * scales",
            (_CODES, _SCALES, _ZPS),
            (Input("dst", _FLOAT_TYPES, "The shape of `src`."),),
            _GRANULARITY,
            tuple(
                Signature((src, scales, zps), (scales,))
                for scales in _FLOAT_TYPES
                for src in _CODE_TYPES
                for zps in _ZERO_POINT_TYPES
            ),
            _standard("DequantizeLinear"),
            _dequantize,
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
            (Input("dst", ("float32",), "The shape of `src`."),),
            _GRANULARITY,
            tuple(Signature(("float32", "float32", zps), ("float32",)) for zps in ("uint8", "int8")),
            _fake_quantize_body,
            _fake_quantize,
        ),
    ),
)
