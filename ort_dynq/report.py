"""A self-contained HTML page on a model and the model that was made from it, as `--report` writes it.

Importing this module loads nothing else; each name loads what it needs on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .tools.report.model import ModelReport, report
else:
    _MODULES = {
        "ModelReport": ".tools.report.model",
        "report": ".tools.report.model",
    }

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name], __package__), name)


__all__ = [
    "ModelReport",
    "report",
]
