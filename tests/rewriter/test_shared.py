"""The objects that all rules of one rewrite share: one of each class, those of one phase until it ends."""

from __future__ import annotations

from ort_dynq.rewriter.analysis.shared import OfOnePhase, Shared


class _OfRewrite:
    def __init__(self, facts: object) -> None:
        self.facts = facts


class _OfPhase(OfOnePhase):
    def __init__(self, facts: object) -> None:
        self.facts = facts


def test_objects_live_until_their_phase_ends() -> None:
    facts = object()
    shared = Shared(facts)
    first, second = shared(_OfRewrite), shared(_OfPhase)
    assert first.facts is second.facts is facts
    assert shared(_OfRewrite) is first
    assert shared(_OfPhase) is second
    shared.begin_phase()
    assert shared(_OfRewrite) is first
    assert shared(_OfPhase) is not second
    shared.clear()
    assert shared(_OfRewrite) is not first
