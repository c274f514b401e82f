"""Quantizations of rows that may not be finite, and a check of which rows are."""

from __future__ import annotations

import re

import numpy as np
import onnx
from helpers import Array, make_session, stock_session
from product_models import F
from published_forms import FORMS, K
from rewriting import rows

from ort_dynq.rewriter import rewrite

STEP = F(1e-45)


def data() -> Array:
    """Returns rows with a scale or an inverse scale of 0 or infinity, with zeros and without, and ordinary rows."""
    rng = np.random.default_rng(3)
    x = rng.normal(0, 1, (3, 12, K)).astype(F)
    signs = rng.choice(np.array([-1, 1], F), (6, K))
    x[1, 0] = 0
    x[1, 1] = signs[0] * rng.integers(1, 60, K).astype(F) * STEP
    x[1, 2] = x[1, 1] * (np.arange(K) > 3)
    x[1, 3], x[1, 4] = 3, -0.1
    x[1, 5] = np.abs(x[1, 1])
    x[1, 6] = -np.abs(x[1, 2])
    x[1, 7] = signs[1] * F(1e-38)
    x[1, 8] = x[1, 7] * (np.arange(K) > 3)
    x[1, 9] = signs[2] * 2
    x[1, 10] *= F(1e-37)
    x[1, 11, : K // 2] = 0
    return x


def rows_of_all_kinds() -> Array:
    """Returns rows with ties, zeros and infinities, and rows of tiny ranges."""
    x = rows((3, 9, K), seed=4)
    x[2, :4] = np.random.default_rng(5).integers(-20, 20, (4, K)) * STEP
    x[2, 4] = 3
    x[2, 5, 1:] = x[2, 5, 0]
    x[2, 6] = np.where(np.arange(K) % 2, STEP, 0)
    return x


def with_nan() -> Array:
    """Returns rows with NaN at the places that ONNX Runtime's ReduceMax ignores or not, and ordinary rows."""
    x = data()
    x[1], x[2, 0, 0], x[2, 1, 20], x[2, 2, K - 1], x[2, 3], x[2, 4, 13:] = x[0], *[np.nan] * 5
    return x


def check_rows(model: onnx.ModelProto, x: Array, **others: Array) -> Array:
    """Checks which rows are finite and their numbers against ONNX Runtime's; returns these."""
    result, feeds = rewrite(model).to_proto(), {"x": x, **others}
    (expected,) = stock_session(model).run(None, feeds)
    for session in (make_session(result, "native"), stock_session(result)):
        (actual,) = session.run(None, feeds)
        finite = np.isfinite(expected)
        assert (np.isfinite(actual) == finite).all()
        most = np.abs(np.where(finite, expected, 0)).max(-1, keepdims=True)
        assert (np.abs(actual - expected) <= 1e-5 * most + 2.0**-126)[finite].all()
    return np.asarray(expected)


def part_of(form: str, i: int) -> str:
    """Returns a form of p0, p1, .. instead of x, with names of its own."""
    body = FORMS[form]
    names = {*re.findall(r"(\w+) = \w+[(<]", body)}
    return re.sub(r"\b[a-z]\w*\b", lambda m: f"p{i}" if m[0] == "x" else m[0] + f"_{i}" * (m[0] in names), body)
