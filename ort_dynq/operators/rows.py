"""The attributes of operators that have one scale for each row or block, and their scale."""

from __future__ import annotations

from .shapes import of_rows
from .spec import Attribute, Input

AXIS = Attribute(
    "axis", -1, "The first of the dimensions that share a scale, -rank to rank - 1: -1 per token, 0 per tensor."
)
BLOCK_SIZE = Attribute(
    "block_size",
    0,
    "If it is not 0, each block of this many elements along the last dimension is a row. It divides that dimension; "
    "`axis` is -1.",
)
SCALE = Input(
    "scale",
    ("float32",),
    "The shape of `src`, with 1 for the dimensions from `axis` on. With blocks: with the number of blocks as the last "
    "dimension.",
    shape=of_rows,
)
