"""Runs the operators in NumPy: the same results as the kernels, bit for bit, at NumPy's speed.

The backend ``extensions`` uses it where the native library cannot be loaded, and the tests compare the kernels with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import DynqError
from . import OPERATORS
from .reference_ops import Array


def run(operator: str, inputs: Sequence[Array | None], **attributes: str | int | Sequence[int]) -> list[Array]:
    """Runs one operator of :data:`ort_dynq.operators.OPERATORS` in NumPy.

    Args:
        operator: Its name.
        inputs: Its inputs, of types that one of its signatures has; None for an optional input that is absent.
        attributes: Its attributes; those left out have their defaults.

    Returns:
        Its outputs.

    Raises:
        DynqError: A shape or an attribute is not valid. The message is that of :func:`ort_dynq.kernels.run`.
    """
    spec = OPERATORS[operator]
    given = {attribute.name: attribute.default for attribute in spec.attributes} | attributes
    try:
        for attribute in spec.attributes:
            attribute.check(given[attribute.name])
        with np.errstate(all="ignore"):
            return spec.reference(given, *inputs)
    except DynqError as error:
        raise DynqError(f"{operator}: {error}") from None
