"""Quantizations that become programs."""

from __future__ import annotations

import numpy as np
import onnx
from helpers import Array
from rewriting import check, programs

from ort_dynq.operators.program import parse as parse_program
from ort_dynq.rewriter import rewrite

F = np.float32
SCALE = "a = Abs(h) m = ReduceMax(a, one) s0 = Div(m, c127) s = Clip(s0, eps)"
SCALE_TEXT = "Clip(Div(ReduceMax(Abs({0})), 127.0), 9.999999747378752e-06, 3.4028234663852886e+38)"
CODES = f"{SCALE} d = Div(h, s) r = Round(d) c = Clip(r, low, high)"


def text_of(h: str, result: str = "Clip(Round(Div({h}, {s})), -128.0, 127.0)", output: str = "codes") -> str:
    """The program of a symmetric quantization of `h`, an expression, as a program writes it."""
    return str(parse_program(f"h = {h}; s = {SCALE_TEXT.format('h')}; {output} = {result.format(h='h', s='s')}"))


def converted(model: onnx.ModelProto, *data: dict[str, Array], exact: bool = True) -> list[str]:
    """Rewrites a model, compares the outputs, and returns its programs."""
    check(model, *data, exact=exact)
    return programs(rewrite(model, exact=exact).to_proto())
