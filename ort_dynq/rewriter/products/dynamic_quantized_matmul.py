"""The rule for a product that alone reads the codes of a DynamicQuantizeLinear: it makes them itself.

DynamicQuantizeLinear, QuantizedMatMul           -> DynamicQuantizedMatMul
DynamicQuantizeLinear, QuantizedMatMulProgram    -> DynamicQuantizedMatMulProgram

ONNX Runtime fuses the nodes of such a product into one. Two nodes with three tensors between them take a quarter longer
if the product takes a few microseconds.
"""

from __future__ import annotations

import json

import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN
from ..analysis.nodes import attributes_of
from ..analysis.standard import QUANTIZING_PRODUCTS
from ..edit import Edit, call
from ..metadata import CODES
from ..metadata import RULE as RULE_OF_NODE
from ..rule import Context, Rule

_PREFIX = "Dynamic"
_PRODUCTS = [f"{DOMAIN}.{each.removeprefix(_PREFIX)}{end}" for each in QUANTIZING_PRODUCTS for end in ("", "Program")]


def _match(node: ir.Node, _: Context) -> ir.Node | None:
    """Returns the DynamicQuantizeLinear."""
    codes = node.inputs[0]
    quantizer = None if codes is None else codes.producer()
    if quantizer is None or quantizer.op_type != "DynamicQuantizeLinear" or quantizer.graph is not node.graph:
        return None
    if quantizer.domain not in {DOMAIN, *STANDARD_DOMAINS} or node.attributes.get_int("terms", 1) != 1:
        return None
    x, outputs = quantizer.inputs[0], quantizer.outputs
    if any(output.is_graph_output() or [*output.uses()] != [(node, i)] for i, output in enumerate(outputs)):
        return None
    return quantizer if x is not None and x.dtype == node.outputs[0].dtype else None


def _build(quantizer: ir.Node, edit: Edit) -> None:
    product, (x,) = edit.node, quantizer.inputs
    assert x is not None
    edit.metadata[CODES] = json.dumps([output.name for output in quantizer.outputs])
    if (rule := product.metadata_props.get(RULE_OF_NODE)) is not None:  # reports name what made the product
        edit.metadata[RULE_OF_NODE] = rule
    inputs = [x, *(each for each in product.inputs[3:] if each is not None)]
    new = call(f"{_PREFIX}{product.op_type}", inputs, **attributes_of(product))
    edit.replace(product.outputs[0], edit.insert_main(new, before=product))


RULE = Rule("product that quantizes", 11, _match, _build, operators=tuple(_PRODUCTS))


def split_dynamic_products(model: ir.Model) -> None:
    """Replaces products that quantize by a DynamicQuantizeLinear and the product: for measurements of products."""
    for node in list(model.graph):
        if node.domain != DOMAIN or CODES not in node.metadata_props:
            continue
        x, *others = [each for each in node.inputs if each is not None]
        quantizer = call("DynamicQuantizeLinear", [x])
        types = ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8
        shapes = x.shape, ir.Shape(()), ir.Shape(())
        names = json.loads(node.metadata_props[CODES])
        for output, name, dtype, shape in zip(quantizer.outputs, names, types, shapes, strict=True):
            output.name, output.type, output.shape = name, ir.TensorType(dtype), shape
        product = call(node.op_type.removeprefix(_PREFIX), [*quantizer.outputs, *others], **attributes_of(node))
        product.name = node.name
        product.metadata_props.update(node.metadata_props)
        old, new = node.outputs[0], product.outputs[0]
        new.name, new.type, new.shape = old.name, old.type, old.shape
        model.graph.insert_before(node, [quantizer, product])
        ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
        model.graph.remove([node], safe=True)
