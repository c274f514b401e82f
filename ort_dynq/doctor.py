"""What `ort-dynq doctor` checks. The public names of `ort_dynq/tools/doctor`."""

from __future__ import annotations

from .tools.doctor import Check, Examination, examine

__all__ = ["Check", "Examination", "examine"]
