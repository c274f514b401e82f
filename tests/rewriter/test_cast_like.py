"""CastLike, as onnxscript's functions write a Cast, hides no chain."""

from __future__ import annotations

import numpy as np
from product_models import F, check_products, codes_of, model_of, scales_of, symmetric
from rewriting import products

from ort_dynq.rewriter import rewrite

BODY = symmetric() + "q = Cast<to = 3>(c)\n {}f = CastLike(q, {})\n dx = Mul(f, s)\n y = MatMul(dx, w)"
WEIGHTS = {"w": codes_of().astype(F) * scales_of()}


def test_a_cast_to_a_known_type() -> None:
    x = np.random.default_rng(4).normal(0, 1, (2, 7, 33)).astype(F)
    assert products(check_products(model_of(BODY.format("", "x"), WEIGHTS), {"x": x})) == ["QuantizedMatMul"]


def test_a_cast_to_the_type_of_an_unknown_operator_stays() -> None:
    model = model_of(BODY.format("u = other.Unknown(x)\n ", "u"), WEIGHTS)
    model.opset_import.add(domain="other", version=1)
    assert products(rewrite(model).report) == []
