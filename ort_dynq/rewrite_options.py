"""The options of a rewrite, checked. They need no other package, so that everything that rewrites has them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from .errors import DynqError

WEIGHTS_ONLY = ("keep", "blocks", "two-term")
"""What becomes of products of quantized weights and an activation that the model wants in float: they stay, or the
activation is quantized in the blocks of the weights, to one code or to two."""


@dataclass(frozen=True, kw_only=True)
class RewriteOptions:
    """What a rewrite may change; the arguments of :func:`ort_dynq.rewrite` of the same names.

    Attributes:
        exact: Whether every result must stay the same bit for bit.
        fuse: Whether the last bits of floats may change where nodes are fused.
        weights_only: What becomes of MatMulNBits, QMoE and products of weights behind DequantizeLinear, if their
            activation is a float; one of :data:`WEIGHTS_ONLY`.
        keep_fused: Whether integer products stay that ONNX Runtime fuses, although they saturate on some CPUs.
    """

    exact: bool = False
    fuse: bool = False
    weights_only: str = WEIGHTS_ONLY[0]
    keep_fused: bool = False

    @classmethod
    def from_arguments(cls, arguments: object) -> RewriteOptions:
        """Returns what the arguments of a command say; those that are not given, or that it lacks, have defaults."""
        given = {field.name: getattr(arguments, field.name, None) for field in fields(RewriteOptions)}
        return RewriteOptions(**{name: value for name, value in given.items() if value is not None})

    def check(self) -> None:
        """Checks the values.

        Raises:
            DynqError: `exact` contradicts `fuse` or `weights_only`, or `weights_only` is unknown.
        """
        if self.exact and self.fuse:
            raise DynqError("fuse changes the last bits of floats, and exact keeps them; leave one of them out")
        if self.weights_only not in WEIGHTS_ONLY:
            raise DynqError(f"weights_only is {self.weights_only!r}, expected one of {', '.join(WEIGHTS_ONLY)}")
        if self.exact and self.weights_only != WEIGHTS_ONLY[0]:
            raise DynqError("weights_only quantizes activations, and exact keeps floats; leave one of them out")

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of :func:`ort_dynq.rewrite`."""
        return {field.name: getattr(self, field.name) for field in fields(RewriteOptions)}

    @property
    def text(self) -> str:
        """The options as metadata have them, such as ``exact=0 fuse=1 weights_only=keep keep_fused=0``."""
        return " ".join(f"{k}={int(v) if isinstance(v, bool) else v}" for k, v in self.arguments.items())
