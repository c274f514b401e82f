"""The operators in plain NumPy: the same bits as the kernels, at NumPy's speed.

Used where the native library cannot be loaded, and by tests as a second opinion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import DynqError

Array = npt.NDArray[Any]


def run(operator: str, inputs: Sequence[Array | None], **attributes: Any) -> list[Array]:
    """As :func:`ort_dynq.kernels.run`."""
    with np.errstate(all="ignore"):
        return [_OPERATORS[operator](*inputs, **attributes)]


def _dynamic_quantize(
    src: Array,
    scales: Array,
    zps: Array | None = None,
    *,
    output_dtype: int = 0,
    arithmetic: str = "onnx",
    **granularity: Any,
) -> Array:
    dtype = {0: np.uint8 if zps is None or zps.dtype != np.int8 else np.int8, 2: np.uint8, 3: np.int8}.get(output_dtype)
    if dtype is None:
        raise DynqError(f"DynamicQuantize: output_dtype is {output_dtype}, expected 2 (uint8) or 3 (int8)")
    if arithmetic not in ("onnx", "onednn"):
        raise DynqError(f"DynamicQuantize: arithmetic is '{arithmetic}', expected onnx or onednn")
    scale, zp = _spread("DynamicQuantize", src, scales, zps, **granularity)
    if arithmetic == "onnx":
        # In double the quotient, any int32 and their sum are exact, up to where saturation decides anyway.
        codes = np.rint(src / scale).astype(np.float64) + zp
    else:
        codes = np.rint(src * (np.float32(1) / scale) + zp.astype(np.float32))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    return np.where(np.isnan(codes), low, np.clip(codes, low, high)).astype(dtype)


def _dynamic_dequantize(src: Array, scales: Array, zps: Array | None = None, **granularity: Any) -> Array:
    scale, zp = _spread("DynamicDequantize", src, scales, zps, **granularity)
    return np.asarray((src.astype(np.int64) - zp).astype(np.float32) * scale)


def _spread(
    operator: str,
    src: Array,
    scales: Array,
    zps: Array | None,
    *,
    qtype: str = "per_tensor",
    axis: int = 1,
    block_size: int = 0,
) -> tuple[Array, Array]:
    """Scales (float32) and zero points (int64), one for each element of src or broadcast to it."""

    def fail(what: str) -> DynqError:
        return DynqError(f"{operator}: {what}")

    def checked_axis() -> int:
        if not -src.ndim <= axis < src.ndim:
            raise fail(f"axis is {axis}, expected {-src.ndim} to {src.ndim - 1} for src of shape {_text(src.shape)}")
        return axis % src.ndim

    zero_points = np.zeros((), np.int64) if zps is None else zps.astype(np.int64)
    if zero_points.size != 1 and zero_points.shape != scales.shape:
        raise fail(
            f"zps has shape {_text(zero_points.shape)}, expected that of scales, {_text(scales.shape)}, or one element"
        )
    if qtype == "auto":
        one = scales.ndim <= 1 and scales.size == 1
        qtype = "per_group" if block_size else "per_tensor" if one else "per_channel"
    if qtype == "per_tensor":
        if scales.ndim > 1 or scales.size != 1:
            raise fail(f"scales has shape {_text(scales.shape)}, expected one element of rank 0 or 1 for per_tensor")
        return scales.reshape(()), zero_points.reshape(())
    if qtype == "per_channel":
        along = checked_axis()
        if scales.ndim != 1:
            raise fail(f"scales has shape {_text(scales.shape)}, expected rank 1 for per_channel")
        if scales.size != src.shape[along]:
            raise fail(f"scales has {scales.size} elements, src has {src.shape[along]} along axis {axis}")
        shape = [-1 if i == along else 1 for i in range(src.ndim)]
        return scales.reshape(shape), zero_points.reshape(shape if zero_points.size > 1 else ())
    if qtype != "per_group":
        raise fail(f"qtype is '{qtype}', expected per_tensor, per_channel, per_group or auto")
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

    def spread(parameters: Array) -> Array:
        if parameters.size == 1:
            return parameters.reshape(())
        for i, length in enumerate(src.shape):
            size = block_size if block_size and i == along else length // max(1, parameters.shape[i])
            parameters = np.repeat(parameters, max(1, size), axis=i)
        return parameters[tuple(slice(length) for length in src.shape)]

    return spread(scales), spread(zero_points)


def _text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "scalar"


_OPERATORS: dict[str, Callable[..., Array]] = {
    "DynamicQuantize": _dynamic_quantize,
    "DynamicDequantize": _dynamic_dequantize,
}
