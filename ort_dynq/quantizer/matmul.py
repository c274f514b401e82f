"""The rule for MatMul and Gemm with constant float weights.

activation, MatMul | Gemm, [Add bias]    -> quantization, QuantizedMatMul
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..operators.encodings import ScaleOrder
from ..rewriter.builders.product_tail import Channels, Tail, check_length
from ..rewriter.edit import Edit
from ..rewriter.facts.folding import evaluate
from ..rewriter.facts.values import integer
from ..rewriter.metadata import ACTIVATION
from ..rewriter.report import Left
from ..rewriter.rule import Context, Rule
from .activations import FloatActivations
from .options import Options
from .weights import grid_of_columns


def _apply(node: ir.Node, context: Context, options: Options) -> Edit | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("MatMul", "Gemm"):
        return None
    if pattern := options.excluding(node):
        raise Left(f"excluded by {pattern}")
    a, b, bias = [*node.inputs, None, None, None][:3]
    if a is None or b is None:
        return None
    facts = context.facts
    weights = _weights(node, a, b, context)
    columns = weights.shape[1]
    channels = Channels(columns, rank=1 if a.shape is None else len(a.shape))
    if bias is not None and channels.bias(bias, facts) is None:
        raise Left("the bias is not one number for each output channel")
    grid = grid_of_columns(weights)
    check_length(grid)
    edit = context.edit("QuantizedMatMul", node)
    activations = context.shared(FloatActivations)
    if options.activations == "token":
        activation = activations.per_token(a, edit, symmetric=options.symmetric)
    else:
        activation = activations.per_tensor(a, edit)
    # The column scales come first: the product of two scales may be too small for float32.
    tail = Tail(node, node.outputs[0], activation.scale, grid.scale, ScaleOrder.COLUMN_FIRST, bias)
    if bias is None:
        tail.take_bias(channels, facts)
    tail.replace(activation.codes, activation.zero_point, grid, channels, context, edit)
    if a.name is not None:
        edit.metadata[ACTIVATION] = a.name
    return edit


def rule(options: Options) -> Rule:
    """Returns the rule with these options."""
    return Rule("quantized matrix product", 13, functools.partial(_apply, options=options), reports_opset=True)


def _weights(node: ir.Node, a: ir.Value, b: ir.Value, context: Context) -> npt.NDArray[np.float32]:
    """Returns the float weights of a product, [K, N].

    Raises:
        Left: They are not constant, not known, or not a matrix of float32; or the attributes have other effects.
    """
    facts = context.facts
    if not facts.is_constant(b):
        if facts.is_constant(a):
            raise Left("the constant is the left factor; weights are the right one")
        raise Left("a product of two activations")
    if node.op_type == "Gemm":
        alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
        if integer(node, "transA", 0) != 0 or alpha != 1 or beta != 1:
            raise Left("the attribute transA, alpha or beta of the Gemm is not the default")
    elements = evaluate(b, facts)
    if elements is None:
        raise Left("the weights are not known: the function's caller gives them, or ONNX Runtime cannot compute them")
    if elements.dtype != np.float32:
        raise Left(f"the weights are {elements.dtype}, expected float32")
    if elements.ndim != 2 or not elements.size:
        raise Left("the weights are not a matrix, or empty")
    return elements.T if node.op_type == "Gemm" and integer(node, "transB", 0) != 0 else elements
