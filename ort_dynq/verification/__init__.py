"""Verifies a model against another one: every output bit for bit, and integer products against float64."""

from .comparison import Comparison, Difference
from .inputs import Input
from .products import Product
from .verification import Verification, verify

__all__ = ["Comparison", "Difference", "Input", "Product", "Verification", "verify"]
