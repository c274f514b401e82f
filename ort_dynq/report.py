"""A self-contained HTML page on a model and what was made from it. The public names of `ort_dynq/tools/report`."""

from __future__ import annotations

from .tools import packages  # noqa: F401
from .tools.report.model import ModelReport, report

__all__ = ["ModelReport", "report"]
