"""The calls with which operators are tested: a file for each family, named as in ort_dynq/operators/."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from .case import Case, Cases, Fitting, Given

__all__ = ["CASES", "FITTING", "Case", "Given"]

CASES: Cases = {}
FITTING: Fitting = {}
for _file in iter_modules(__path__):
    _module = import_module(f"{__name__}.{_file.name}")
    CASES |= getattr(_module, "CASES", {})
    FITTING |= getattr(_module, "FITTING", {})
