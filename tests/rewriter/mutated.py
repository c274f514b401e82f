"""Mutations of the exported models."""

from __future__ import annotations

from helpers import Array
from rewriting import MODELS, tensors


def inputs_of(name: str) -> dict[str, Array]:
    return tensors(sorted((MODELS / name).glob("test_data_set_*"))[0], "input")
