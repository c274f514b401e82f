"""Whether a model has the results of another one. The public names of `ort_dynq/tools/verification`."""

from __future__ import annotations

from .tools.verification import Comparison, Difference, Input, Product, Verification, verify

__all__ = ["Comparison", "Difference", "Input", "Product", "Verification", "verify"]
