"""The options of a rewrite: their text, and values that contradict each other."""

from __future__ import annotations

from argparse import Namespace

import pytest

from ort_dynq import DynqError
from ort_dynq.rewrite_options import RewriteOptions


def test_text() -> None:
    assert RewriteOptions().text == "exact=0 fuse=0 weights_only=keep keep_fused=0"
    options = RewriteOptions(fuse=True, weights_only="two-term", keep_fused=True)
    assert options.text == "exact=0 fuse=1 weights_only=two-term keep_fused=1"


def test_arguments_that_a_command_lacks_have_defaults() -> None:
    found = RewriteOptions.from_arguments(Namespace(fuse=True, weights_only=None, seed=3))
    assert found == RewriteOptions(fuse=True)
    assert found.arguments == {"exact": False, "fuse": True, "weights_only": "keep", "keep_fused": False}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (RewriteOptions(exact=True, fuse=True), "fuse changes the last bits of floats"),
        (RewriteOptions(exact=True, weights_only="blocks"), "exact keeps floats"),
        (RewriteOptions(weights_only="rows"), "weights_only is 'rows', expected one of keep, blocks, two-term"),
    ],
)
def test_wrong_values(options: RewriteOptions, text: str) -> None:
    with pytest.raises(DynqError, match=text):
        options.check()
