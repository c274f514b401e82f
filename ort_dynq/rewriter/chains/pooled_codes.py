"""The rule for MaxPool of codes.

MaxPool(codes)    -> Cast to floats, MaxPool, Cast to codes

Floats represent all codes, so the results are the same. ONNX Runtime's MaxPool has vectors for floats only. Beside
QLinearConv and operators of com.microsoft it stays: there, ONNX Runtime puts the channels last, for which it has a
kernel of codes.
"""

from __future__ import annotations

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ..analysis.standard import STATIC_PRODUCTS
from ..analysis.types import CODE_TYPES
from ..edit import Edit
from ..policy.cost import has_few_elements
from ..rule import Context, Rule


def _match(node: ir.Node, context: Context) -> ir.Value | None:
    codes = node.inputs[0] if len(node.outputs) == 1 else None
    if codes is None or codes.dtype not in CODE_TYPES or has_few_elements(codes):
        return None
    given = node.attributes
    # Other windows may have no element, but pads only.
    if given.get_int("ceil_mode", 0) or any(step != 1 for step in given.get_ints("dilations", [])):
        return None
    # Then ONNX Runtime may compute pads below 0, which its MaxPool of floats rejects.
    pairs = zip(given.get_ints("strides", []), given.get_ints("kernel_shape", []), strict=False)
    is_same = (given.get_string("auto_pad", "") or "").startswith("SAME")
    if is_same and any(step > length for step, length in pairs):
        return None
    neighbors = [codes.producer(), *(use.node for use in node.outputs[0].uses())]
    return None if any(each is not None and _is_fused(each) for each in neighbors) else codes


def _is_fused(node: ir.Node) -> bool:
    return node.op_type in STATIC_PRODUCTS or node.domain not in (*STANDARD_DOMAINS, DOMAIN)


def _build(match: ir.Value, edit: Edit) -> None:
    node, dtype = edit.node, match.dtype
    floats = edit.cast(match, ir.DataType.FLOAT, before=node)
    main = ir.node(node.op_type, [floats], dict(node.attributes))
    pooled = edit.insert_main(main, before=node)
    edit.replace(node.outputs[0], edit.cast(pooled, dtype, before=node, of=ir.DataType.FLOAT))


RULE = Rule("pool of codes", 12, _match, _build, operators=("MaxPool",))
