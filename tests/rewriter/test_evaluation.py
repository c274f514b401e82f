"""Weights that other nodes compute from constants are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from constant_models import WEIGHTS, check_layer, product


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_computed_from_constants(name: str, tmp_path: Path) -> None:
    check_layer(product(WEIGHTS[name]), tmp_path)
