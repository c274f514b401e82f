"""Refuses models that are quantized already, with advice."""

from __future__ import annotations

import contextlib
from collections import Counter

import onnx_ir as ir

from ..errors import DynqError
from ..graphs import STANDARD_DOMAINS, graphs
from ..operators import DOMAIN
from ..rewriter.analysis.nodes import producer_of
from ..rewriter.analysis.standard import INTEGER_PRODUCTS, STATIC_PRODUCTS
from ..rewriter.metadata import QUANTIZED
from ..rewriter.programs import row_program
from ..rewriter.reasons import Unconverted
from ..rewriter.recurrent.dynamic_lstm import DYNAMIC_LSTM, is_dynamic_lstm
from ..rewriter.rule import Context, Rule
from .options import Options

_RUN_TIME = (
    "the model has quantization with run-time scales, by other nodes than DynamicQuantizeLinear; "
    "use ort-dynq rewrite, or quantize the float model that it was made from"
)
_STATIC = STATIC_PRODUCTS | {"QLinearAdd"}


def check_is_float(model: ir.Model, options: Options) -> None:
    """Checks that a model is not quantized, or only as quantize_dynamic does it.

    DequantizeLinear of constant weights does not count: the activations are floats.

    Raises:
        DynqError: The model is quantized in another way.
    """
    found = Counter(filter(None, (_kind(node) for _, graph in graphs(model) for node in graph)))
    if found["converted"] or QUANTIZED in model.metadata_props:
        raise DynqError("the model has operators of ort_dynq already; quantize the float model that it was made from")
    if found["operator"]:
        raise DynqError(
            f"the model has operators with constant scales such as QLinearConv ({found['operator']} nodes); run it as "
            "it is, or quantize the float model that it was made from"
        )
    if found["static"] and not options.from_static:
        raise DynqError(
            f"the model is quantized with constant scales ({found['static']} QuantizeLinear); quantize the float model "
            "that it was made from, or use --from-static (from_static=True) to keep these weights"
        )
    if options.from_static and not found["static"]:
        raise DynqError(
            "--from-static (from_static=True) needs a model with QuantizeLinear of constant scales, but there is none; "
            "leave it out to quantize a float model"
        )
    if found["run-time"] or (found["product"] and not found["quantizer"]):
        raise DynqError(_RUN_TIME)
    integers = found["product"] + found["layer"]
    if integers and not options.from_dynamic:
        raise DynqError(
            f"the model is quantized by quantize_dynamic ({integers} integer products); quantize the float "
            "model that it was made from, or use --from-dynamic (from_dynamic=True) to keep these weights"
        )
    if options.from_dynamic and not integers:
        raise DynqError(
            "--from-dynamic (from_dynamic=True) needs a model that quantize_dynamic made, but there is no "
            f"{', '.join(sorted(INTEGER_PRODUCTS))} or {DYNAMIC_LSTM}; leave it out to quantize a float model"
        )


def _refuse_chain(node: ir.Node, context: Context) -> None:
    """Checks that the rewriter makes no program of a quantization around a node.

    Raises:
        DynqError: The rewriter does.
    """
    with contextlib.suppress(Unconverted):
        if row_program.RULE.match(node, context) is not None:
            raise DynqError(_RUN_TIME)


CHAINS: Rule[None] = Rule(
    "quantized chain", row_program.RULE.oldest_opset, _refuse_chain, reports_opset=True, operators=("Round",)
)
"""The rule that refuses a model with chains such as ReduceMax, Div, Round, Clip, Mul; it converts nothing."""


def _kind(node: ir.Node) -> str | None:
    """Returns the kind of quantization that a node belongs to; None if it belongs to none."""
    if node.domain == DOMAIN:
        return "converted"
    if node.op_type in _STATIC:
        return "operator"
    if node.domain in STANDARD_DOMAINS and node.op_type in INTEGER_PRODUCTS:
        return "product"
    if is_dynamic_lstm(node):
        return "layer"
    if node.domain in STANDARD_DOMAINS and node.op_type == "DynamicQuantizeLinear":
        return "quantizer"
    if node.domain not in STANDARD_DOMAINS or node.op_type != "QuantizeLinear" or _is_stored(node.inputs[0]):
        return None
    return "static" if _is_stored(node.inputs[1]) else "run-time"


def _is_stored(value: ir.Value | None) -> bool:
    return value is not None and (value.is_initializer() or producer_of(value, "Constant") is not None)
