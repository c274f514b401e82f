"""The rules, and the modules that they are in."""

from __future__ import annotations

from ort_dynq.rewriter.rules import FIRST_FUSIONS, FIRST_OF_QUANTIZATIONS, LAST_FUSIONS, PHASES

ALL_PHASES = (*FIRST_FUSIONS, *PHASES, *LAST_FUSIONS)
RULES = list(dict.fromkeys(rule for phase in (*ALL_PHASES, *FIRST_OF_QUANTIZATIONS) for rule in phase))
