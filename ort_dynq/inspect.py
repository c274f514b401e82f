"""What a rewrite would do with a model's dynamic quantization chains, and why not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    import onnx
    import onnx_ir as ir

    from .rewriter import Report


def inspect(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model, *, exact: bool = False) -> Report:
    """Tries the rewrite on a copy: each finding is a chain, and what it would become or why it would be left alone.

    Args:
        model, exact: As for :func:`ort_dynq.rewrite`.

    Raises:
        DynqError: The file is missing or is not an ONNX model.
    """
    from .rewriter import rewrite

    return rewrite(model, exact=exact).report
