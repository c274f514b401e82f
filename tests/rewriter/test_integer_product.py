"""The codes of integer products, wherever they come from; products that stay get uint8 codes."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper
from product_models import DATA, INTEGER_WEIGHTS, PRODUCTS, K, activations_of, codes_of, model_of, symmetric
from rewriting import check

from ort_dynq.rewriter import rewrite


def test_codes_and_zero_points_from_anywhere() -> None:
    model = model_of(
        "i = MatMulInteger(q, wq, z)\n y = Cast<to = 1>(i)", INTEGER_WEIGHTS, inputs=f"int8[M, {K}] q, int8 z"
    )
    codes = np.random.default_rng(0).integers(-128, 128, (70, K)).astype(np.int8)
    for zero_point in (-128, -3, 0, 127):
        check(model, {"q": codes, "z": np.array(zero_point, np.int8)})
    assert activations_of(rewrite(model).to_proto()) == {TensorProto.UINT8}


def test_products_that_stay_do_not_saturate_on_older_cpus() -> None:
    """Without VNNI, pairs of u8 x s8 products are added in int16; weights up to 64 fit. u8 x u8 does not saturate."""
    body = symmetric() + "q = Cast<to = 3>(c)\n" + PRODUCTS["plain"] + "j = Neg(i)\n y = Cast<to = 1>(j)"
    for largest, dtype in ((64, np.int8), (65, np.uint8)):
        model = model_of(body, INTEGER_WEIGHTS | {"wq": codes_of(-largest, largest)})
        for exact in (True, False):
            check(model, DATA, exact=exact)
            converted = rewrite(model, exact=exact).to_proto()
            (product,) = (node for node in converted.graph.node if node.op_type == "MatMulInteger")
            (weights,) = (t for t in converted.graph.initializer if t.name == product.input[1])
            assert numpy_helper.to_array(weights).dtype == dtype
