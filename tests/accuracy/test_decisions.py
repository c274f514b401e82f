"""What scores decide, and how often two models decide the same."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ort_dynq.accuracy import Gates, OutputAccuracy
from ort_dynq.errors import DynqError
from ort_dynq.signals import EQUAL, HALF, LARGEST, TOKENS, Decisions, blank_of, decisions_of, edit_distance

F = np.float32


def test_what_scores_decide() -> None:
    logits = np.array([[1, 5], [-2, 3]], F)
    shares = np.array([[0.25, 0.75], [1, 0]], F)
    assert decisions_of([logits]) == decisions_of([shares]) == LARGEST
    assert decisions_of([shares, np.array([[0.9, 0.9]], F)]) == HALF
    assert decisions_of([np.array([[0.9], [0.2]], F)]) == HALF
    assert decisions_of([np.array([[9.0], [0.2]], F)]) == ""


def test_elements_above_one_half_count_by_themselves() -> None:
    """A detector that finds nothing agrees with most of a picture."""
    found = Decisions(HALF)
    a = np.zeros((1, 100), F)
    a[0, :4] = 0.9
    found.add(a, np.zeros((1, 100), F))
    assert (found.share, found.count, found.changed) == (0, 100, 4)


def distance(a: list[int], b: list[int]) -> int:
    """Levenshtein's, from its definition."""
    if not a or not b:
        return max(len(a), len(b))
    return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))


def test_edit_distance() -> None:
    rng = random.Random(0)
    for _ in range(200):
        a, b = ([rng.randrange(3) for _ in range(rng.randrange(6))] for _ in range(2))
        assert edit_distance(np.array(a, int), np.array(b, int)) == distance(a, b)


def scores(*classes: int, count: int = 20) -> np.ndarray:
    return np.eye(count, dtype=F)[[classes]]


def test_tokens_of_sequences() -> None:
    """Repeated classes are one token, and the blank is none: its places do not count."""
    a, b = scores(0, 3, 3, 0, 3, 5, 0, 0), scores(3, 3, 0, 0, 3, 6, 6, 0)
    assert blank_of([a]) == 0
    found = Decisions(TOKENS, 0)
    found.add(a, b)
    assert (found.count, found.changed, found.share) == (3, 1, pytest.approx(2 / 3))


@pytest.mark.parametrize(
    "others",
    [scores(3, 4, 0, 5), scores(0, 0, 0, count=8), scores(0, 0)[0], scores(7, 7, 7)],
    ids=["few blanks", "few classes", "no places", "another class"],
)
def test_other_scores_have_no_blank(others: np.ndarray) -> None:
    assert blank_of([others]) is None
    assert blank_of([scores(19, 19, 4, 19)]) == 19


def test_equal_elements() -> None:
    found = Decisions(EQUAL)
    found.add(np.array([1, 2, 3]), np.array([1, 2, 4]))
    assert (found.share, found.changed) == (pytest.approx(2 / 3), 1)


def test_limits_that_an_output_does_not_reach() -> None:
    gates = Gates(30, 0.99, 0.999)
    outputs = (OutputAccuracy("y", "float32", 9, 28.5, 0.9995, 0.9999, 1.0, 0.97),)
    assert gates.check(outputs)[1].text == "--min-agreement 0.99: agreement 0.9700 of y"
    assert [each.status for each in gates.check(outputs)] == ["failed", "failed", "passed"]


@pytest.mark.parametrize("limits", [{"min_snr": float("nan")}, {"min_agreement": 1.1}, {"min_cosine": -2}])
def test_wrong_limits(limits: dict[str, float]) -> None:
    with pytest.raises(DynqError, match=next(iter(limits))):
        Gates(**limits)
