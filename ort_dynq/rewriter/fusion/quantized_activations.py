"""The rule for an activation function and the quantization of its result, which become one program.

Gelu | FastGelu | QuickGelu | Sigmoid, [Mul by a gate], quantization of each row    -> RowProgram

After an integer product, the function is a part of the product's program already: see programs/tails.py.
"""

from __future__ import annotations

import functools

import onnx_ir as ir

from ...opsets import OPSET
from ..analysis.nodes import input_of
from ..policy.cost import saves_with_function
from ..policy.float_fusions import is_left_alone
from ..programs.building import build
from ..programs.fused_steps import FusedRows, FusedTranslation, is_activation
from ..programs.region import Region, region_of
from ..rule import Context, Rule


def _match(node: ir.Node, context: Context) -> tuple[Region, FusedRows] | None:
    x = input_of(node, 0)
    if x is None or not is_activation(node):
        return None
    rows = FusedRows(x, -1)
    takes = functools.partial(is_left_alone, facts=context.facts)
    region = region_of(node, rows, context, takes, FusedTranslation)
    if region is None or "codes" not in region.program.outputs or not saves_with_function(node, region.passes):
        return None
    return region, rows


RULE = Rule("activation and quantization", OPSET, _match, build, fuses=True)
