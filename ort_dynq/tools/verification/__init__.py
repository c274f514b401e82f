"""Verifies a model against another one: every output bit for bit, and integer products against float64."""

from ...inputs import Input
from .comparison import Comparison, Difference
from .products import Product
from .verification import Verification, verify

__all__ = ["Comparison", "Difference", "Input", "Product", "Verification", "verify"]
