"""The function of an operator in a rewritten model, run by stock ONNX Runtime: the oracle for the kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime as ort
from helpers import Array, stock_session

from ort_dynq.operators import OPERATORS, VERSION
from ort_dynq.rewriter.functions import make_function

_TYPES = {"float32": "float", "float16": "float16", "uint8": "uint8", "int8": "int8", "int32": "int32"}

Attributes = dict[str, str | int]


def run_function(operator: str, inputs: Sequence[Array], opset: int = 21, **attributes: str | int) -> list[Array]:
    """The outputs of the function. Attributes that are left out have their defaults."""
    feeds = {value.name: array for value, array in zip(OPERATORS[operator].inputs, inputs, strict=True)}
    types = tuple(str(array.dtype) for array in inputs)
    return list(_session(operator, opset, types, attributes_text(operator, attributes)).run(None, feeds))


def complete(operator: str, attributes: Attributes) -> Attributes:
    """The attributes with the defaults of those that are left out. Lists are left out: functions do not have them."""
    given: Attributes = {each.name: each.default for each in OPERATORS[operator].attributes if not each.is_list}
    assert attributes.keys() <= given.keys()
    return given | attributes


def attributes_text(operator: str, attributes: Attributes) -> str:
    """All attributes as the parser reads them; empty if there are none."""
    texts = [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in complete(operator, attributes).items()
    ]
    return f"<{', '.join(texts)}>" if texts else ""


def make_model(operator: str, opset: int, inputs: Sequence[str], given: str) -> onnx.ModelProto:
    """A model that calls the operator's function once; all ranks are unknown.

    Args:
        operator: The operator.
        opset: The version of the standard operators.
        inputs: The element types of the inputs.
        given: The text of the attributes.
    """
    spec = OPERATORS[operator]
    outputs = next(signature.outputs for signature in spec.signatures if signature.inputs == tuple(inputs))
    names, results = [value.name for value in spec.inputs], [value.name for value in spec.outputs]
    heads = ", ".join(f"{_TYPES[type_]}[] {name}" for type_, name in zip(inputs, names, strict=True))
    tails = ", ".join(f"{_TYPES[type_]}[] {name}" for type_, name in zip(outputs, results, strict=True))
    model = onnx.parser.parse_model(
        f'<ir_version: {10 if opset >= 21 else 8}, opset_import: ["" : {opset}, "ort_dynq" : {VERSION}]> '
        f"g ({heads}) => ({tails}) "
        f"{{ {', '.join(results)} = ort_dynq.{operator} {given} ({', '.join(names)}) }}"
    )
    model.functions.append(_function(operator, opset))
    return model


@functools.cache
def _function(operator: str, opset: int) -> onnx.FunctionProto:
    return ir.to_proto(make_function(operator, opset))


@functools.lru_cache(maxsize=2)  # the cases of one node are adjacent, in float32 and float16
def _session(operator: str, opset: int, inputs: tuple[str, ...], given: str) -> ort.InferenceSession:
    return stock_session(make_model(operator, opset, inputs, given))
