"""Random spellings of quantizations: every one keeps its results, and most become integer products."""

from __future__ import annotations

import pytest

from spellings.check import check, converted
from spellings.generator import near_miss, spelling

_FEWEST = 0.35
"""The part of the spellings that has to become an integer product. It only ever rises."""
_PARTS, _SPELLINGS, _NEAR_MISSES = 5, 18, 8
_MANY = 40  # as many seeds in an exhaustive run
_COUNTED = 150


def _ranges(count: int) -> list[object]:
    """Parameters of a test: ranges of seeds; the later ones are exhaustive."""
    return [
        pytest.param(range(part * count, (part + 1) * count), marks=[pytest.mark.exhaustive] * (part >= _PARTS))
        for part in range(_PARTS * _MANY)
    ]


@pytest.mark.parametrize("seeds", _ranges(_SPELLINGS), ids=lambda seeds: f"{seeds[0]}_to_{seeds[-1]}")
def test_spellings_are_right(seeds: range) -> None:
    for seed in seeds:
        made = spelling(seed)
        outcome = check(made, exact=seed % 3 == 0)
        assert not outcome.problem, f"seed {seed}: {made.description}: {outcome.problem}"


def test_most_spellings_have_the_integer_product() -> None:
    made = [spelling(seed) for seed in range(_COUNTED)]
    demanded = [each for each in made if each.expected]
    outcomes = [(each, converted(each)[1]) for each in demanded]
    left = [outcome for each, outcome in outcomes if outcome.products < each.products and not outcome.is_fused]
    assert len(demanded) - len(left) >= _FEWEST * len(demanded), (
        f"{len(left)} of {len(demanded)} have no integer product"
    )


@pytest.mark.parametrize("seeds", _ranges(_NEAR_MISSES), ids=lambda seeds: f"{seeds[0]}_to_{seeds[-1]}")
def test_near_misses_stay(seeds: range) -> None:
    """Codes that need more than 8 bits, scales along K and weights without a grid have no integer product."""
    for seed in seeds:
        made = near_miss(seed)
        outcome = check(made, exact=seed % 3 == 0)
        assert not outcome.problem, f"seed {seed}: {made.description}: {outcome.problem}"
        assert outcome.products == 0, f"seed {seed}: {made.description}"
