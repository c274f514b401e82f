"""The quantizer: turns the matrix products and convolutions of a float model into products of integers.

It is the rewriter's loop with other rules. Each file of this package is one rule or a part that rules share: the result
has the same operators and functions as a rewritten model.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..rewriter import Result
from ..rewriter.loop import convert
from ..rewriter.metadata import EXACT, QUANTIZED
from ..storage import explained, load
from . import conv, matmul
from .options import checked

if TYPE_CHECKING:
    from ..runtime import Model

__all__ = ["quantize"]


def quantize(
    model: Model,
    *,
    weights: str = "int8",
    group: int | None = None,
    activations: str = "token",
    symmetric: bool = False,
    exclude: Iterable[str] = (),
) -> Result:
    """Turns matrix products and convolutions with constant float weights into products of integers.

    Weights become integers now, activations at run time. No calibration data are needed. The given model is not
    changed. The new model keeps the names of inputs and outputs, and refers to the same external data.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        weights: "int8" with one scale for each output channel, or "int4" with one for each group.
        group: The number of adjacent 4-bit weights that share a scale, 32, 64 or 128; None for 32.
        activations: "token" for one scale for each row of a matrix, or "tensor" for one for all.
        symmetric: Whether activations have no zero point.
        exclude: Patterns, as :mod:`fnmatch` has them, of the names of layers that stay float. A layer has the name of
            its node, or of its output if the node has none.

    Returns:
        The new model, and the report of the layers that were quantized or left.

    Raises:
        DynqError: The file is missing or is not a valid ONNX model; an option is wrong; a pattern matches no layer; the
            model has no float weights.
    """
    options = checked(weights, group, activations, symmetric, exclude)
    quantized = load(model)
    options.check_patterns(quantized)
    with explained(model):
        report = convert(quantized, ((matmul.rule(options), conv.rule(options)),))
    if not report.findings:
        raise DynqError("the model has no float weights to quantize: it has no MatMul, Gemm or Conv")
    if report.rewritten:
        quantized.metadata_props[EXACT] = "0"
        quantized.metadata_props[QUANTIZED] = options.text
    return Result(quantized, report)
