"""The metadata keys that a rewrite writes into a model and its nodes."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..files import sha256
from ..session_options import INITIALIZERS, taken
from ..storage import ModelFile
from ..version import __version__

if TYPE_CHECKING:
    import onnx_ir as ir

    from ..storage import Model

VERSION = "ort_dynq.version"
"""On a model that was rewritten or quantized: the version of ort_dynq."""

OPTIONS = "ort_dynq.options"
"""On a rewritten model: the options of the rewrite, such as "exact=0 fuse=1 weights_only=keep keep_fused=0"."""

REQUIRES_PLUGIN = "ort_dynq.requires_plugin"
"""On a model without the functions of ort_dynq's operators: "1". It runs with the plugin only; a later rewrite adds no
functions either."""

SOURCE = "ort_dynq.source"
"""On a model that was made from a file: the SHA-256 of this file, without external data, in hexadecimal digits."""

ALTERNATIVES = ("few_queries", "rows_without_keys")
"""The names of branches that compute the same as the other branch of their node: reports count one of the two."""

EXACT = "ort_dynq.exact"
"""On the model, if something was converted: "1" if all results equal those of the original bit for bit, else "0"."""

FLOAT16_CASTS = "ort_dynq.float16_casts"
"""On a rewritten float16 model: "1" if it has the Casts of float16/casts.py. Verification then writes them into the
original, and compares its values."""

LAYOUT = "ort_dynq.layout"
"""On a rewritten model: "1" if layout.py has moved Transposes in it. Verification then moves them in the original,
and compares its values."""

RULE = "ort_dynq.rule"
"""On every node that a rewrite adds: the name of the rule that added it."""

ACTIVATION = "ort_dynq.activation"
"""On a node that replaces a float product: the name, in the original model, of the float activation that was
multiplied. Verification reads it."""

PRODUCT = "ort_dynq.product"
"""On a product with a program: the name that the result of the product had before the program became part of it.
Verification compares the product and the program one after the other."""

CODES = "ort_dynq.codes"
"""On a product that quantizes its activation: the names that codes, scale and zero point had before the quantization
became part of it, as a JSON list. Verification reads it."""

HAS_OFFSET = "ort_dynq.has_offset"
"""On a QuantizedMatMul of an activation with a float offset, or of weights with float zero points: "1". The Add after
it adds what they contribute. Only the sum is a value of the original, which verification compares, so no program begins
before it."""

ROUNDED_WEIGHTS = "ort_dynq.rounded_weights"
NEAR = "near"  # the value of ROUNDED_WEIGHTS if they are not rounded to float16, but relative to the largest one
"""On a QuantizedMatMul or QuantizedConv of weights that the original rounds to float16: "1". Verification compares the
rounded weights, and then the product of the unrounded ones."""

ROUNDED_ACTIVATION = "ort_dynq.rounded_activation"
"""On a QuantizedMatMul or QuantizedConv if the original rounds the dequantized activation to float16: "1".
Verification compares the rounded activations, and then the product of the unrounded one."""

FLOAT_ACTIVATION = "ort_dynq.float_activation"
"""On a QuantizedMatMul if the original has a float activation, and only the weights quantized: "1".
Verification compares the activation, and then the product of its codes."""

DEQUANTIZES = "ort_dynq.dequantizes"
"""On a node with the float output of a former DequantizeLinear: "1". The rule for float weights reads it."""

QUANTIZED = "ort_dynq.quantized"
"""On a model that was quantized: the options, such as "weights=int8 activations=token symmetric=0"."""


def is_ours(key: str) -> bool:
    """Returns whether a rewrite writes this key."""
    return key.startswith("ort_dynq.")


def note_origin(model: ir.Model, source: Model, initializers: Iterable[str]) -> None:
    """Writes the version, and the hash of the file that the model was made from, if it was a file and still exists.

    Args:
        model: The new model.
        source: What it was made from. A :class:`~ort_dynq.storage.ModelFile` has the hash of what was read.
        initializers: The names of initializers that gave it their values; those of an earlier rewrite stay.
    """
    names = sorted({*taken(model.metadata_props), *initializers})
    model.metadata_props[INITIALIZERS] = json.dumps(names)
    model.metadata_props[VERSION] = __version__
    model.metadata_props.pop(SOURCE, None)
    if isinstance(source, ModelFile):
        model.metadata_props[SOURCE] = source.sha256
    elif isinstance(source, str | os.PathLike):
        with contextlib.suppress(OSError):
            model.metadata_props[SOURCE] = sha256(source)
