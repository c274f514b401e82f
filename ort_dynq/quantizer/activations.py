"""The activations of products as the options of a quantization say."""

from __future__ import annotations

import onnx_ir as ir

from ..rewriter.edit import Edit
from ..rewriter.products.codes import Codes
from ..rewriter.products.float_activations import FloatActivations
from ..rewriter.reasons import Reason, Unconverted
from .options import Options


def check_activation(value: ir.Value) -> None:
    """Checks that a value can be quantized.

    Raises:
        Unconverted: Its type is not known to be float32.
    """
    if value.dtype is None:
        raise Unconverted(Reason.ACTIVATION_TYPE_NOT_KNOWN)
    if value.dtype != ir.DataType.FLOAT:
        raise Unconverted(Reason.ACTIVATION_TYPE, dtype=value.dtype.name.lower())


def codes_of_matrix(value: ir.Value, edit: Edit, options: Options) -> Codes:
    """Returns the codes of a matrix, quantized as the options say.

    Args:
        value: float32, [..., K].
        edit: The edit of the product, before which new nodes are inserted.
        options: The options.
    """
    activations = edit.shared(FloatActivations)
    if options.activations == "tensor":
        return activations.of_tensor(value, edit)
    return activations.of_rows(value, edit, symmetric=options.symmetric)
