"""`ort_dynq.quantize`: the quantizer, and the choice of forms for its layers by what they do to the outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...inputs import Given
from ...quantizer import checked, quantize_layers
from ...quantizer.options import Forms
from ...rewriter import Result
from ..measuring.data import load_data
from ..measuring.sessions import open_session

if TYPE_CHECKING:
    from ...storage import Model
    from ..accuracy.gates import Metric
    from ..measuring.data import Source

__all__ = ["quantize"]


def quantize(
    model: Model,
    *,
    weights: str = "int8",
    group: int | None = None,
    activations: str = "token",
    symmetric: bool = False,
    exclude: Iterable[str] = (),
    from_dynamic: bool = False,
    from_static: bool = False,
    min_snr: float | None = None,
    min_agreement: float | None = None,
    min_cosine: float | None = None,
    metric: Metric | None = None,
    min_metric: float | None = None,
    data: Source | None = None,
    fuse: bool = True,
    attention: str = "int8",
    embeddings: str = "int8",
    require_plugin: bool = False,
) -> Result:
    """Turns matrix products and convolutions with constant float weights into products of integers.

    Weights become integers now, activations at run time. No calibration data are needed. The given model is not
    changed. The new model keeps the names of inputs and outputs, and refers to the same external data.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        weights: "int8" with one scale for each output channel, "int4" with one for each group, or "int12" for words:
            the activations of matrix products, convolutions and recurrent layers get 13 bits.
        group: The number of adjacent 4-bit weights that share a scale, 32, 64 or 128; None for 32.
        activations: "token" for one scale for each row of a matrix, "tensor" for one for all, or "two-term" for two
            codes for each element, the second for what the first leaves: the activations are nearly as exact as
            floats. The products of attention have no such form and stay in float then. The activation of a convolution
            has one scale for each sample where a matrix has one for each row.
        symmetric: Whether activations per token have no zero point. Those of convolutions always have one.
        exclude: Patterns, as :mod:`fnmatch` has them, of the names of layers that stay in float. A layer has the name
            of its node, or of its output if the node has none.
        from_dynamic: Whether the model is one that onnxruntime's quantize_dynamic made: its integer products keep their
            weights, and get activations as given here. Not with `min_snr`.
        from_static: Whether the model has QuantizeLinear and DequantizeLinear with constant scales, as onnxruntime's
            quantize_static writes it: its products and convolutions keep their weights, and get activations as given
            here, within the bounds of the constant scales. Not with `min_snr`.
        min_snr: Gives the layers that harm the outputs most activations of two terms, or words, or keeps them in
            float, until each output has this signal-to-noise ratio on `data`, in decibels; see selection.py.
        min_agreement: The same for the share of equal decisions of each output that decides something: the largest
            element of each row, probabilities above one half, or the tokens of sequences (CTC).
        min_cosine: The same for the cosine of each row of each output.
        metric: What you measure: a function of the inputs, the float model's outputs and the quantized model's. Each is
            a list with a mapping by name for each set of data. It returns a number, of which more is better.
        min_metric: The smallest number that `metric` may return for the new model.
        data: The data for these limits, of which every fourth set is kept back to check what was chosen, and on which
            the outputs of a model are compared that is converted from an opset before 13: the path of an NPZ file or of
            a folder with input_0.pb, test_data_set_0 or NPZ files; arrays by the name of the input; or a list of these.
            None for generated data, which show little.
        fuse: Whether normalizations, activation functions and attention are fused, with each other and with the
            quantization after them: see docs/rules.md.
        attention: "int8" for products of integers in fused attention, which is float with `min_snr` and with
            activations of two terms; "float" for ONNX Runtime's operator.
        embeddings: "int8" for rows of 8 bits with one scale for each row, in large tables of embeddings; "keep" for
            floats.
        require_plugin: Whether the new model has no functions with which it runs without the plugin: see
            :func:`ort_dynq.rewrite`.

    Returns:
        The new model, and the report: the layers that were quantized, and the others with the reason.

    Raises:
        DynqError: The file is missing or is not a valid ONNX model; ONNX Runtime refuses it; it is quantized already,
            is of an old opset that cannot be converted, or has no float weights; an option is wrong; a pattern matches
            no layer; the data do not fit the model, or the outputs do not reach a limit.
    """
    from ..accuracy.gates import Gates

    gates = Gates(min_snr, min_agreement, min_cosine, min_metric, metric)
    chooses_forms = bool(gates.limits)
    given = weights, group, activations, symmetric, exclude
    options = checked(
        *given,
        from_dynamic=from_dynamic,
        from_static=from_static,
        chooses_forms=chooses_forms,
        fuse=fuse,
        attention=attention,
        embeddings=embeddings,
    )
    if not chooses_forms:
        sets = () if data is None else load_data(data, open_session(model, "A").get_inputs()).sets
        result = quantize_layers(model, options, [*map(Given, sets)])
        return result.require_plugin() if require_plugin else result
    from ..accuracy.reference import Reference
    from .selection import select

    reference = Reference(model, data)

    def with_forms(forms: Forms) -> Result:
        return quantize_layers(model, dataclasses.replace(options, forms=forms), reference.given)

    result = select(reference, with_forms, gates).result
    return result.require_plugin() if require_plugin else result
