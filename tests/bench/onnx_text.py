"""Builds the small models of the operator and chain benchmarks from ONNX's text format."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx.parser


def parse(inputs: str, outputs: str, nodes: str, *, opset: int, constants: str = "") -> onnx.ModelProto:
    """Parses the graph of a model.

    Args:
        inputs, outputs, nodes: The parts of the graph.
        opset: The version of the standard operators.
        constants: Initializers with their values.
    """
    head = f'<ir_version: 10, opset_import: ["": {opset}]> bench ({inputs}) => ({outputs})'
    return onnx.parser.parse_model(f"{head} {f'<{constants}>' if constants else ''} {{ {nodes} }}")


def tensor_type(element_type: str, shape: Sequence[int]) -> str:
    """Writes a tensor type; a scalar has no brackets."""
    return f"{element_type}[{', '.join(map(str, shape))}]" if shape else element_type
