"""Calls of ONNX Runtime's own operators."""

from __future__ import annotations

import onnx
import onnx.parser
from rewriting import WHOLE_CHAIN, parse

from ort_dynq.operators import DOMAIN

# A chain that quantizes h, which an operator of ONNX Runtime computes.
CHAIN = WHOLE_CHAIN.replace("(x", "(h")


def with_chain(producer: str) -> onnx.ModelProto:
    model = parse(f"{producer} {CHAIN}")
    model.opset_import.add(domain="com.microsoft", version=1)
    model.opset_import.add(domain="com.microsoft.nchwc", version=1)
    model.opset_import.add(domain=DOMAIN, version=1)
    return model
