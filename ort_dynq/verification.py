"""Whether a model has the results of another one. The public names of `ort_dynq/tools/verification`."""

from __future__ import annotations

from .inputs import Input
from .tools import packages  # noqa: F401
from .tools.verification.comparison import Comparison, Difference
from .tools.verification.products import Product
from .tools.verification.verification import Verification, verify

__all__ = ["Comparison", "Difference", "Input", "Product", "Verification", "verify"]
