"""The rules for a BatchNormalization that stays a node of its own.

QuantizedConv | WordConv, BatchNormalization    -> QuantizedConv | WordConv, Mul, Add
others, BatchNormalization           -> others, Mul, Add, in a fusion

Both nodes then become steps of the convolution's program, or of one of elementwise nodes. ONNX Runtime computes the
same on x86, bit for bit:

    factor = gain * (1 / sqrt(variance + epsilon))      y = x * factor + (shift - mean * factor)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators import DOMAIN
from ...opsets import OPSET
from ..analysis.nodes import is_standard, only_use
from ..analysis.standard import OWN_CONVOLUTIONS
from ..edit import Edit
from ..programs.fused_steps import is_activation
from ..programs.steps import ELEMENTWISE
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from ..weights.channels import Channels

_PARAMETERS = 4


@dataclass(frozen=True)
class _Normalization:
    x: ir.Value
    y: ir.Value
    factor: npt.NDArray[np.float32]  # [M, 1, ..., 1], as `shift`
    shift: npt.NDArray[np.float32]


_OPERATORS = ("BatchNormalization",)


def _match(node: ir.Node, context: Context) -> _Normalization | None:
    product = _before(node)
    if product is None or product.domain != DOMAIN or product.op_type not in OWN_CONVOLUTIONS:
        return None
    return _normalization(node, context) if only_use(product.outputs[0]) is not None else None


def _match_floats(node: ir.Node, context: Context) -> _Normalization | None:
    product = _before(node)
    before = [] if product is None else [product]
    if not context.options.fuse or any(is_standard(each, "Conv") for each in before):  # ONNX Runtime fuses both
        return None
    neighbors = [*before, *(use.node for use in node.outputs[0].uses())]
    joins = any(is_standard(each, *ELEMENTWISE) or is_activation(each) for each in neighbors)
    return _normalization(node, context) if joins else None  # alone it takes 0.9 of the time of a program


def _before(node: ir.Node) -> ir.Node | None:
    """Returns the node that computes the input of a BatchNormalization."""
    x = node.inputs[0]
    return None if x is None else x.producer()


def _normalization(node: ir.Node, context: Context) -> _Normalization | None:
    x = node.inputs[0]
    if x is None or x.dtype != ir.DataType.FLOAT:
        return None
    is_inference = node.attributes.get_int("training_mode", 0) == 0 and len(node.outputs) == 1
    if not is_inference or x.shape is None or not isinstance(x.shape[1], int):
        return None
    vector = Channels(x.shape[1]).vector
    parameters = [vector(each, np.float32, context.facts) for each in node.inputs[1:]]
    gain, shift, mean, variance = (*(each for each in parameters if each is not None), *[None] * _PARAMETERS)[:4]
    if gain is None or shift is None or mean is None or variance is None:
        return None
    shape = (-1, *[1] * (len(x.shape) - 2))
    with np.errstate(all="ignore"):
        epsilon = np.float32(node.attributes.get_float("epsilon", 1e-5))
        factor = np.asarray(gain * (np.float32(1) / np.sqrt(variance + epsilon)), np.float32)
        added = np.asarray(shift - mean * factor, np.float32)
    return _Normalization(x, node.outputs[0], factor.reshape(shape), added.reshape(shape))


def _build(match: _Normalization, edit: Edit) -> None:
    factor, shift = (edit.shared(SharedInitializers).of(each, edit) for each in (match.factor, match.shift))
    product = ir.node("Mul", [match.x, factor])
    result = edit.insert(product, ir.node("Add", [product.outputs[0], shift]), before=edit.node)
    edit.replace(match.y, result)
    edit.operator = "Mul, Add"


RULE = Rule("batch normalization of a product", OPSET, _match, _build, operators=_OPERATORS)
FLOATS = Rule("batch normalization of floats", OPSET, _match_floats, _build, prepares=True, operators=_OPERATORS)
