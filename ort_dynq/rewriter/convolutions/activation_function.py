"""The rule for the activation function after a convolution of codes.

QuantizedConv, Relu | Clip(0, 6)    -> QuantizedConv with the attribute `activation`

The function is computed while the sums are in registers. As a node of its own, it takes up to a tenth of the time of a
network.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ...operators import DOMAIN
from ...operators.encodings import Activation
from ..analysis.bounds import bounds_of
from ..analysis.constants import is_zero
from ..analysis.nodes import attributes_of, only_use, producer_of, skip_identity
from ..edit import Edit, call
from ..rule import Context, Rule

_SIX = 6.0


@dataclass(frozen=True)
class _Match:
    convolution: ir.Node  # a QuantizedConv without an activation function
    activation: Activation
    last: ir.Value


def _match(node: ir.Node, context: Context) -> _Match | None:
    activation = _activation_of(node)
    value = node.inputs[0] if activation is not None else None
    conv = None if value is None else skip_identity(value).producer()
    if activation is None or conv is None or conv.domain != DOMAIN or conv.op_type != "QuantizedConv":
        return None
    use = only_use(conv.outputs[0])
    if use is None or use.node is not node or attributes_of(conv)["activation"] != Activation.NONE:
        return None
    return _Match(conv, activation, node.outputs[0])


def _build(match: _Match, edit: Edit) -> None:
    conv = match.convolution
    inputs = [each for each in conv.inputs if each is not None]
    new = call("QuantizedConv", inputs, **{**attributes_of(conv), "activation": int(match.activation)})
    edit.replace(match.last, edit.insert_main(new, before=conv, origin=conv))


RULE = Rule("activation of a convolution", 13, _match, _build)


def _activation_of(node: ir.Node) -> Activation | None:
    if producer_of(node.outputs[0], "Relu") is node:
        return Activation.RELU
    bounds = bounds_of(node.outputs[0]) if producer_of(node.outputs[0], "Clip") is node else None
    is_relu6 = bounds is not None and is_zero(bounds.least) and bounds.most == _SIX
    return Activation.RELU6 if is_relu6 else None
