"""A convolution in float64, from the definition of ONNX's Conv."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ..measuring.inputs import Array


def convolve(x: Array, w: Array, node: ir.Node) -> Array:
    """Computes a Conv.

    Args:
        x: float64, [N, C, D1, ..., Dr].
        w: float64, [M, C / group, k1, ..., kr].
        node: The Conv, whose attributes apply.

    Returns:
        float64, [N, M, O1, ..., Or].
    """
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    kernel, lengths, group = w.shape[2:], x.shape[2:], int(given.get("group", 1))
    ones = [1] * len(kernel)
    strides, dilations = given.get("strides", ones), given.get("dilations", ones)
    spans = [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    auto_pad = given.get("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-length // stride) - 1) * stride + span - length, 0)
            for length, stride, span in zip(lengths, strides, spans, strict=True)
        ]
        begins = [total // 2 if auto_pad == "SAME_UPPER" else total - total // 2 for total in totals]
        pads = [(begin, total - begin) for begin, total in zip(begins, totals, strict=True)]
    else:
        numbers = given.get("pads", [0] * 2 * len(kernel))
        pads = list(zip(numbers[: len(kernel)], numbers[len(kernel) :], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    outputs = [(length - span) // s + 1 for length, span, s in zip(padded.shape[2:], spans, strides, strict=True)]
    filters = w.reshape(group, w.shape[0] // group, w.shape[1], *kernel)
    total = np.zeros((x.shape[0], group, filters.shape[1], math.prod(outputs)))
    for position in np.ndindex(*kernel):
        starts = [at * dilation for at, dilation in zip(position, dilations, strict=True)]
        every = (slice(a, a + (o - 1) * s + 1, s) for a, o, s in zip(starts, outputs, strides, strict=True))
        window = padded[(slice(None), slice(None), *every)]
        total += filters[(..., *position)] @ window.reshape(x.shape[0], group, w.shape[1], math.prod(outputs))
    return np.asarray(total.reshape(x.shape[0], w.shape[0], *outputs))
