"""The rule for convolutions with constant float weights.

activation, Conv, [Add bias], [BatchNormalization]    -> DynamicQuantizeLinear, QuantizedConv

ONNX Runtime folds a BatchNormalization into a Conv of floats. Here it goes into the scales and the bias.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..operators.encodings import ScaleOrder
from ..rewriter.analysis.values import given_by_caller, integer
from ..rewriter.convolutions.convolution import (
    Weights,
    check_rank,
    geometry_of_floats,
    grid_of_channels,
    replace_convolution,
    weights_of,
)
from ..rewriter.edit import Edit
from ..rewriter.metadata import ACTIVATION
from ..rewriter.products.tail import Channels, Tail
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context
from ..rewriter.shared_initializers import SharedInitializers
from .activations import FloatActivations, check_activation
from .options import Options
from .weights import check_constant, floats_of, grid_of_columns, release


def apply(node: ir.Node, context: Context, options: Options) -> Edit | None:
    """Returns the edit of a node with these options; see :class:`ort_dynq.rewriter.rule.Rule`."""
    if node.domain not in STANDARD_DOMAINS or node.op_type != "Conv":
        return None
    options.check(node)
    a, w, bias = [*node.inputs, None, None, None][:3]
    if a is None or w is None:
        return None
    facts = context.facts
    check_constant(w, facts)
    check_activation(a)
    weights, scale = _weights(floats_of(w, facts))
    release(w)
    geometry = geometry_of_floats(node, bias, weights)
    edit = context.edit("QuantizedConv", node)
    activation = context.shared(FloatActivations).of_tensor(a, edit)
    # The channel scales come first: the product of two scales may be too small for float32.
    tail = Tail(node, node.outputs[0], activation.scale, scale, ScaleOrder.COLUMN_FIRST, bias)
    if bias is None:
        tail.take_bias(weights.channels, facts)
    _take_normalization(tail, weights.channels, context, edit)
    replace_convolution(tail, activation.codes, activation.zero_point, weights, geometry, context, edit)
    if a.name is not None:
        edit.metadata[ACTIVATION] = a.name
    return edit


def _weights(elements: npt.NDArray[np.float32]) -> tuple[Weights, npt.NDArray[np.float32]]:
    """Returns float weights as codes, and their scales, [1, M]. The result of a dequantization keeps its codes.

    Raises:
        Unconverted: They cannot become codes, or it does not pay.
    """
    check_rank(elements.ndim)
    if elements.shape[1] == 1:
        raise Unconverted(Reason.CONV_SINGLE_CHANNELS)
    grid = grid_of_channels(elements) or grid_of_columns(elements.reshape(len(elements), -1).T)
    return weights_of(grid, elements.shape), grid.scale


def _take_normalization(tail: Tail, channels: Channels, context: Context, edit: Edit) -> None:
    """Moves the end of a tail past a BatchNormalization with constant parameters, if one follows.

    It multiplies by gain / sqrt(variance + epsilon), and adds shift - mean * the same.
    """
    step, facts = tail.step(channels), context.facts
    if step is None or step.node.op_type != "BatchNormalization" or step.idx != 0 or tail.column is None:
        return
    vector = Channels(channels.size).vector  # the parameters are [M]
    parameters = [vector(value, np.float32, facts) for value in step.node.inputs[1:5]]
    bias = np.zeros(1, np.float32) if tail.bias is None else channels.vector(tail.bias, np.float32, facts)
    if tail.bias is not None and bias is None:
        bias = vector(tail.bias, np.float32, facts)
    is_inference = integer(step.node, "training_mode", 0) == 0 and len(step.node.outputs) == 1
    if (
        not is_inference
        or given_by_caller(step.node)
        or bias is None
        or len(parameters) != 4
        or any(each is None for each in parameters)
    ):
        return
    gain, shift, mean, variance = (np.asarray(each, np.float64) for each in parameters)
    with np.errstate(all="ignore"):
        factor = gain / np.sqrt(variance + step.node.attributes.get_float("epsilon", 1e-5))
        column = (tail.column * factor).astype(np.float32)
        numbers = ((bias - mean) * factor + shift).astype(np.float32)
    if not np.isfinite(column).all() or not np.isfinite(numbers).all():
        return
    tail.column = column
    tail.bias = context.shared(SharedInitializers).of(numbers, edit.node, edit)
    tail.take(step)
