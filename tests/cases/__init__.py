"""The calls with which operators are tested: a file for each family, named as in ort_dynq/operators/."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .case import Case, Cases

__all__ = ["CASES", "Case"]

CASES: Cases = {}
for _module in iter_modules(__path__):
    CASES |= getattr(import_module(f"{__name__}.{_module.name}"), "CASES", {})
