"""The operators in plain NumPy: the same bits as the kernels, at NumPy's speed.

Used where the native library cannot be loaded, and by tests as a second opinion. What each operator means is said in
operators.py, its arithmetic in ops/kernels/kernels.h.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DynqError
from . import OPERATORS

Array = npt.NDArray[Any]
Attributes = dict[str, Any]

_ONE = np.float32(1)
_CODES: dict[int, type[np.uint8] | type[np.int8]] = {2: np.uint8, 3: np.int8}
_DIVIDE, _MULTIPLY_RECIPROCAL, _MULTIPLY = range(3)  # the attribute `quotient`
_ROUND_THEN_ADD, _ADD_THEN_ROUND, _NO_ADD = range(3)  # `order`
_MAGNITUDE, _MIN_MAX, _MIN_MAX_ZERO, _LARGER_SIDE = range(4)  # `range`


def run(operator: str, inputs: Sequence[Array | None], **attributes: str | int) -> list[Array]:
    """As :func:`ort_dynq.kernels.run`; that the inputs are of types that the operator takes is not checked."""
    defaults = {attribute.name: attribute.default for attribute in OPERATORS[operator].attributes}
    with np.errstate(all="ignore"):
        return _OPERATORS[operator](defaults | attributes, *inputs)


# One scale for all, for each channel, or for each group


def _dynamic_quantize(given: Attributes, src: Array, scales: Array, zps: Array | None = None) -> list[Array]:
    name = "DynamicQuantize"
    _check(name, given, "block_size", 0, None)
    output_dtype, arithmetic = given["output_dtype"], given["arithmetic"]
    if output_dtype not in (0, *_CODES):
        raise DynqError(f"{name}: output_dtype is {output_dtype}, expected 2 (uint8) or 3 (int8)")
    if arithmetic not in ("onnx", "onednn"):
        raise DynqError(f"{name}: arithmetic is '{arithmetic}', expected onnx or onednn")
    dtype = _CODES[output_dtype or (3 if zps is not None and zps.dtype == np.int8 else 2)]
    scale, zp = _spread(name, given, src, scales, zps)
    if arithmetic == "onnx":
        # In double the quotient, any int32 and their sum are exact, up to where saturation decides anyway.
        codes = np.rint(src / scale).astype(np.float64) + zp
    else:
        codes = np.rint(src * (_ONE / scale) + zp.astype(np.float32))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return [np.where(np.isnan(codes), low, np.clip(codes, low, high)).astype(dtype)]


def _dynamic_dequantize(given: Attributes, src: Array, scales: Array, zps: Array | None = None) -> list[Array]:
    _check("DynamicDequantize", given, "block_size", 0, None)
    scale, zp = _spread("DynamicDequantize", given, src, scales, zps)
    return [np.asarray((src.astype(np.int64) - zp).astype(np.float32) * scale)]


def _dynamic_fake_quantize(given: Attributes, src: Array, scales: Array, zps: Array) -> list[Array]:
    name, dtype = "DynamicFakeQuantize", zps.dtype
    _check(name, given, "block_size", 0, None)
    scale, zp = _spread(name, given, src, scales, zps)
    codes = np.rint(src / scale).astype(np.float64) + zp
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    codes = np.where(np.isnan(codes), low, np.clip(codes, low, high))
    return [((codes - zp).astype(np.float32) * scale).astype(np.float32)]


def _spread(name: str, given: Attributes, src: Array, scales: Array, zps: Array | None) -> tuple[Array, Array]:
    """Scales (float32) and zero points (int64), one for each element of src or broadcast to it."""
    qtype, axis, block_size = given["qtype"], given["axis"], given["block_size"]

    def fail(what: str) -> DynqError:
        return DynqError(f"{name}: {what}")

    def checked_axis() -> int:
        if not -src.ndim <= axis < src.ndim:
            raise fail(f"axis is {axis}, expected {-src.ndim} to {src.ndim - 1} for src of shape {_text(src.shape)}")
        return int(axis % src.ndim)

    zero_points = np.zeros((), np.int64) if zps is None else zps.astype(np.int64)
    if qtype == "auto":
        one = scales.ndim <= 1 and scales.size == 1
        qtype = "per_group" if block_size else "per_tensor" if one else "per_channel"
    if qtype == "per_tensor":
        if scales.ndim > 1 or scales.size != 1:
            raise fail(f"scales has shape {_text(scales.shape)}, expected one element of rank 0 or 1 for per_tensor")
    elif qtype == "per_channel":
        along = checked_axis()
        if scales.ndim != 1:
            raise fail(f"scales has shape {_text(scales.shape)}, expected rank 1 for per_channel")
        if scales.size != src.shape[along]:
            raise fail(f"scales has {scales.size} elements, src has {src.shape[along]} along axis {axis}")
    elif qtype == "per_group":
        if scales.ndim != src.ndim:
            raise fail(f"scales has shape {_text(scales.shape)}, expected the rank of src, {src.ndim}, for per_group")
        along = checked_axis() if block_size else 0
        for i, (length, groups) in enumerate(zip(src.shape, scales.shape, strict=True)):
            if block_size:
                blocks = -(-length // block_size) if i == along else length
                if groups != blocks:
                    raise fail(
                        f"scales has shape {_text(scales.shape)}, expected {blocks} along dimension {i} for blocks of "
                        f"{block_size} along axis {axis} of src of shape {_text(src.shape)}"
                    )
            elif length % groups if groups else length:
                raise fail(
                    f"scales has shape {_text(scales.shape)}, src {_text(src.shape)}: {groups} groups do not divide "
                    f"{length} elements along dimension {i}"
                )
    else:
        raise fail(f"qtype is '{qtype}', expected per_tensor, per_channel, per_group or auto")
    if zero_points.size != 1 and zero_points.shape != scales.shape:
        raise fail(
            f"zps has shape {_text(zero_points.shape)}, expected that of scales, {_text(scales.shape)}, or one element"
        )

    def spread(parameters: Array) -> Array:
        if parameters.size == 1:
            return parameters.reshape(())
        if qtype == "per_channel":
            return parameters.reshape([-1 if i == along else 1 for i in range(src.ndim)])
        for i, length in enumerate(src.shape):
            size = block_size if block_size and i == along else length // max(1, parameters.shape[i])
            parameters = np.repeat(parameters, min(size, length), axis=i)
        return parameters[tuple(slice(length) for length in src.shape)]

    return spread(scales), spread(zero_points)


# Chains of Div, Round, Add, Clip and Cast


class _Chain:
    """The attributes that say how a chain goes from a float to a code and back, checked."""

    def __init__(self, name: str, given: Attributes, to_codes: bool) -> None:
        for attribute, most in (("scaling", 2), ("rounding_order", 2), ("clip", 1), ("nan_code", 2)):
            _check(name, given, attribute, 0, most)
        code_type = _check(name, given, "code_type", 2 if to_codes else 1, 3)
        code_name = np.dtype(_CODES.get(code_type, np.float32)).name
        low, high = given["quant_min"], given["quant_max"]
        if (given["nan_code"] == 2) != (code_type == 1):
            expected = "2" if code_type == 1 else "0 or 1"
            raise DynqError(f"{name}: nan_code is {given['nan_code']} for codes of {code_name}, expected {expected}")
        if low > high:
            raise DynqError(f"{name}: quant_min is {low}, quant_max {high}, expected quant_min <= quant_max")
        if code_type != 1:
            bounds = np.iinfo(_CODES[code_type])
            if not given["clip"] or low < bounds.min or high > bounds.max:
                clip = f"{low} to {high}" if given["clip"] else "nothing"
                raise DynqError(
                    f"{name}: codes are clipped to {clip}, expected a range within {bounds.min} to {bounds.max} of "
                    f"{code_name}"
                )
        output_dtype = _check(name, given, "output_dtype", 2, 3) if to_codes else code_type
        self.name, self.given, self.to_codes = name, given, to_codes
        self.output_dtype = np.dtype(_CODES.get(output_dtype, np.float32))
        self.offset = 128 * (code_type - output_dtype)
        self.low = np.float32(low if given["clip"] else -np.inf)
        self.high = np.float32(high if given["clip"] else np.inf)

    def check_dst_type(self, what: str, array: Array) -> None:
        if self.to_codes and array.dtype != self.output_dtype:
            raise DynqError(f"{self.name}: {what} is {array.dtype.name}, expected output_dtype, {self.output_dtype}")

    def stored(self, codes: Array) -> Array:
        """Codes or zero points of code_type as output_dtype has them."""
        return (codes.astype(np.int32) + self.offset).astype(self.output_dtype)

    def run(self, src: Array, scale: Array, zp: Array) -> Array:
        """Codes, or the floats that they stand for; `zp` is float32."""
        quotient, order, code_type = self.given["scaling"], self.given["rounding_order"], self.given["code_type"]
        t = src / scale if quotient == _DIVIDE else src * (scale if quotient == _MULTIPLY else _ONE / scale)
        if order == _ROUND_THEN_ADD:
            code = _clip(np.rint(t) + zp, self.low, self.high)
        elif order == _ADD_THEN_ROUND:
            code = np.rint(_clip(t + zp, self.low, self.high))
        else:
            code = _clip(np.rint(t), self.low, self.high)
        nan = (np.float32(0), self.low, np.float32(np.nan))[self.given["nan_code"]]
        code = np.where(np.isnan(code), nan, code)
        if code_type != 1:
            code = np.trunc(code) + np.float32(0)  # integers have no digits and no negative zero
        if self.to_codes:
            return self.stored(np.asarray(code))
        difference = code if order == _NO_ADD else code - zp
        return np.asarray(difference / scale if quotient == _MULTIPLY else difference * scale)


def _affine_quantize(to_codes: bool) -> Callable[..., list[Array]]:
    name = "AffineQuantize" if to_codes else "AffineFakeQuantize"

    def quantize(given: Attributes, src: Array, scale: Array, zero_point: Array) -> list[Array]:
        chain = _Chain(name, given, to_codes)
        zp = _broadcast(name, src, scale, zero_point)
        chain.check_dst_type("zero_point", zero_point)
        return [chain.run(src, scale, zp.astype(np.float32) - np.float32(chain.offset))]

    return quantize


def _affine_dequantize(given: Attributes, src: Array, scale: Array, zero_point: Array) -> list[Array]:
    zp = _broadcast("AffineDequantize", src, scale, zero_point)
    return [np.asarray((src.astype(np.float32) - zp.astype(np.float32)) * scale)]


def _broadcast(name: str, src: Array, scale: Array, zero_point: Array) -> Array:
    """The zero point, shaped to be broadcast to src as the scale is."""
    missing = src.ndim - scale.ndim
    if missing < 0 or any(one not in (1, all_) for one, all_ in zip(scale.shape, src.shape[missing:], strict=True)):
        raise DynqError(
            f"{name}: scale has shape {_text(scale.shape)}, expected one that broadcasts to {_text(src.shape)}"
        )
    if zero_point.size == 1:
        return zero_point.reshape(())
    if zero_point.shape != scale.shape:
        raise DynqError(
            f"{name}: zero_point has shape {_text(zero_point.shape)}, expected that of scale, {_text(scale.shape)}, "
            "or one element"
        )
    return zero_point


# Whole chains, from the range on


def _dynamic_range_quantize(to_codes: bool) -> Callable[..., list[Array]]:
    name = "DynamicRangeQuantize" if to_codes else "DynamicRangeFakeQuantize"

    def quantize(given: Attributes, src: Array, constants: Array, like: Array | None = None) -> list[Array]:
        chain = _Chain(name, given, to_codes)
        _check_recipe(name, given)
        if like is not None:
            chain.check_dst_type("like", like)
        if constants.shape != (9,):
            raise DynqError(f"{name}: constants has shape {_text(constants.shape)}, expected 9")
        last = max(0, src.ndim - 1)
        if not -src.ndim <= given["axis"] <= last:
            raise DynqError(
                f"{name}: axis is {given['axis']}, expected {-src.ndim} to {last} for src of shape {_text(src.shape)}"
            )
        axis = given["axis"] % max(1, src.ndim)
        shape = (*src.shape[:axis], *(1 for _ in src.shape[axis:]))
        rows = src.reshape(math.prod(shape), math.prod(src.shape[axis:]))
        scale, zp = _parameters(given, rows, constants)
        dst = chain.run(rows, scale, zp).reshape(src.shape)
        zero_point = chain.stored(_cast(zp, _CODES[given["code_type"]])) if to_codes else zp
        return [dst, scale.reshape(shape), zero_point.reshape(shape)]

    return quantize


def _check_recipe(name: str, given: Attributes) -> None:
    for attribute, high in (
        ("range_kind", 3),
        ("zero_point_rule", 4),
        ("inverse_scale", 1),
        ("zero_point_before_epsilon", 1),
    ):
        _check(name, given, attribute, 0, high)
    kind, form, type_ = given["range_kind"], given["zero_point_rule"], given["zero_point_type"]
    if type_ not in (1, *_CODES):
        raise DynqError(f"{name}: zero_point_type is {type_}, expected 1 (float32), 2 (uint8) or 3 (int8)")
    if given["inverse_scale"] and kind != _MAGNITUDE:
        raise DynqError(f"{name}: inverse_scale is 1 for range_kind {kind}, expected range_kind 0")
    if kind in (_MAGNITUDE, _LARGER_SIDE) and form:
        raise DynqError(f"{name}: zero_point_rule is {form}, expected 0 for a range that is symmetric")


def _parameters(given: Attributes, rows: Array, constants: Array) -> tuple[Array, Array]:
    """The scale and the zero point of each row, as columns of float32."""
    lowest_minimum, highest_maximum, least_range, most_range = constants[:4]
    divisor, factor, least_scale, most_scale, scale_of_zero = constants[4:]
    zero, kind = np.float32(0), given["range_kind"]
    high = _extreme(np.abs(rows) if kind == _MAGNITUDE else rows, -np.inf, np.argmax)
    low = np.zeros_like(high) if kind == _MAGNITUDE else _extreme(rows, np.inf, np.argmin)
    if kind == _MIN_MAX_ZERO:
        low, high = _clip(low, lowest_minimum, zero), _clip(high, zero, highest_maximum)
    if kind == _MAGNITUDE:
        span = high
    elif kind == _LARGER_SIDE:
        above, below = high / highest_maximum, low / lowest_minimum
        span = np.where((below > above) | np.isnan(below), below, above)
    else:
        span = high - low
    span = _clip(span, least_range, most_range)
    before_epsilon = (_ONE / span if given["inverse_scale"] else span) / divisor * factor
    scale = _clip(before_epsilon, least_scale, most_scale)
    scale = np.where(scale == 0, scale_of_zero, scale)
    by = before_epsilon if given["zero_point_before_epsilon"] else scale
    quant_min, quant_max = np.float32(given["quant_min"]), np.float32(given["quant_max"])
    form = given["zero_point_rule"]
    if form == 1:
        zp = np.rint(_clip(quant_min - low / by, quant_min, quant_max))
    elif form == 2:
        zp = _clip(quant_min - np.rint(low / by), quant_min, quant_max)
    elif form == 3:
        zp = _clip(np.rint(-low / by), quant_min, quant_max)
    elif form == 4:
        zp = np.floor((zero - low) / by)
    else:
        zp = np.zeros_like(scale)
    if given["zero_point_type"] != 1:
        zp = _cast(zp, _CODES[given["zero_point_type"]]).astype(np.float32)
    return scale, zp


def _range(is_magnitude: bool) -> Callable[..., list[Array]]:
    name = "ReduceAbsMax" if is_magnitude else "ReduceMinMax"

    def find(given: Attributes, src: Array) -> list[Array]:
        for attribute in ("reduce_others", "keepdims"):
            _check(name, given, attribute, 0, 1)
        axis, count, shape = given["axis"], given["count"], _text(src.shape)
        if not -src.ndim <= axis <= src.ndim:
            raise DynqError(f"{name}: axis is {axis}, expected {-src.ndim} to {src.ndim} for src of shape {shape}")
        begin = axis + src.ndim if axis < 0 else axis
        if not 0 <= count <= src.ndim - begin:
            raise DynqError(f"{name}: count is {count}, expected 0 to {src.ndim - begin} for src of shape {shape}")
        gone = [(begin <= i < begin + count) != bool(given["reduce_others"]) for i in range(src.ndim)]
        kept = [length for length, is_gone in zip(src.shape, gone, strict=True) if not is_gone]
        order = sorted(range(src.ndim), key=lambda i: gone[i])
        width = math.prod(length for length, is_gone in zip(src.shape, gone, strict=True) if is_gone)
        rows = np.transpose(src, order).reshape(math.prod(kept), width)
        ends = [(np.abs(rows), -np.inf, np.argmax)] if is_magnitude else []
        ends = ends or [(rows, np.inf, np.argmin), (rows, -np.inf, np.argmax)]
        if given["keepdims"]:
            kept = [1 if is_gone else length for length, is_gone in zip(src.shape, gone, strict=True)]
        return [_extreme(*end).reshape(kept) for end in ends]

    return find


def _dynamic_quantize_dequantize_linear(_: Attributes, src: Array) -> list[Array]:
    rows = src.reshape(1, src.size)
    low = _clip(_extreme(rows, np.inf, np.argmin), -np.inf, np.float32(0))
    high = _clip(_extreme(rows, -np.inf, np.argmax), np.float32(0), np.inf)
    scale = np.where(high == low, _ONE, (high - low) / np.float32(255))
    steps = np.float32(0) - low / scale
    zp = np.where(np.isnan(steps), np.float32(255), np.rint(_clip(steps, 0, 255)))
    codes = _clip(np.rint(rows / scale) + zp, 0, 255)
    codes = np.where(np.isnan(codes), np.float32(0), codes)
    return [((codes - zp) * scale).astype(np.float32).reshape(src.shape)]


def _extreme(rows: Array, worst: float, index_of: Callable[..., Array]) -> Array:
    """The first extreme of each row. NaN if the first element is NaN; elsewhere NaN counts for nothing."""
    if rows.size == 0:
        return np.full((len(rows), 1), worst, np.float32)
    first = index_of(np.where(np.isnan(rows), np.float32(worst), rows), axis=1, keepdims=True)
    extreme = np.take_along_axis(rows, first, 1)
    return np.where(np.isnan(rows[:, :1]), rows[:, :1], extreme)


def _cast(values: Array, dtype: type[np.uint8] | type[np.int8]) -> Array:
    """ONNX Runtime's Cast: truncated to int32, of which the low byte is kept; NaN and what is beyond int32 gives 0."""
    fits = (values >= -(2.0**31)) & (values < 2.0**31)
    return np.where(fits, values, 0).astype(np.int64).astype(dtype)


# Sums of an integer matrix product


def _accumulator_dequantize(
    given: Attributes,
    src: Array,
    scale: Array,
    zero_point: Array,
    column_scale: Array,
    column_sum: Array,
    bias: Array,
) -> list[Array]:
    name = "AccumulatorDequantize"
    order = _check(name, given, "scale_order", 0, 2)
    if src.ndim == 0:
        raise DynqError(f"{name}: src is a scalar, expected rank 1 or more")
    rows = (*src.shape[:-1], 1)
    lead = next((i for i, (one, all_) in enumerate(zip(scale.shape, rows, strict=False)) if one != all_), src.ndim)
    is_one = scale.size == 1 and scale.ndim <= src.ndim
    if not is_one and (scale.ndim != src.ndim or any(one != 1 for one in scale.shape[lead:])):
        raise DynqError(
            f"{name}: scale has shape {_text(scale.shape)}, src {_text(src.shape)}: expected src's leading dimensions, "
            "then ones, or one element"
        )
    if zero_point.size != 1 and zero_point.shape != scale.shape:
        raise DynqError(
            f"{name}: zero_point has shape {_text(zero_point.shape)}, expected that of scale, {_text(scale.shape)}, "
            "or one element"
        )
    for what, column in (("column_scale", column_scale), ("column_sum", column_sum), ("bias", bias)):
        if column.shape != src.shape[-1:]:
            raise DynqError(
                f"{name}: {what} has shape {_text(column.shape)}, expected {src.shape[-1]}, one element for each "
                "column of src"
            )
    row = scale.reshape(()) if scale.size == 1 else scale
    zp = (zero_point.reshape(()) if zero_point.size == 1 else zero_point).astype(np.int32)
    real = np.asarray(src - zp * column_sum).astype(np.float32)
    if order == 0:
        scaled = real * (row * column_scale)
    else:
        scaled = real * row * column_scale if order == 1 else real * column_scale * row
    return [np.asarray(scaled + bias)]


# What all have in common


def _clip(values: Array, low: npt.ArrayLike, high: npt.ArrayLike) -> Array:
    """ONNX's Clip: a NaN stays one, and so does the sign of a zero at a bound of zero."""
    values = np.where(values < low, low, values)
    return np.where(values > high, high, values)


def _check(name: str, given: Attributes, attribute: str, low: int, high: int | None) -> int:
    value = int(given[attribute])
    if value < low or (high is not None and value > high):
        expected = f"{low} or more" if high is None else f"{low} to {high}"
        raise DynqError(f"{name}: {attribute} is {value}, expected {expected}")
    return value


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


_OPERATORS: dict[str, Callable[..., list[Array]]] = {
    "DynamicQuantize": _dynamic_quantize,
    "DynamicDequantize": _dynamic_dequantize,
    "DynamicFakeQuantize": _dynamic_fake_quantize,
    "AffineQuantize": _affine_quantize(to_codes=True),
    "AffineFakeQuantize": _affine_quantize(to_codes=False),
    "AffineDequantize": _affine_dequantize,
    "DynamicRangeQuantize": _dynamic_range_quantize(to_codes=True),
    "DynamicRangeFakeQuantize": _dynamic_range_quantize(to_codes=False),
    "AccumulatorDequantize": _accumulator_dequantize,
    "ReduceAbsMax": _range(is_magnitude=True),
    "ReduceMinMax": _range(is_magnitude=False),
    "DynamicQuantizeDequantizeLinear": _dynamic_quantize_dequantize_linear,
}
