"""Codes that are cast from float to wider integers at once."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import IS_ARM, diagonals
from product_models import DATA, K, asymmetric, codes_of, model_of, scales_of, symmetric
from rewriting import check, found, rows

from ort_dynq.rewriter.reasons import Reason

WITH_NAN = {"x": np.where(np.eye(13, K) > 0, np.float32(np.nan), rows((13, K), seed=5))[np.newaxis]}
WIDE = {  # codes as int32 or int64, without a step in 8 bits
    "symmetric": symmetric() + "i = Cast<to = 6>(c)\n",
    "int64": symmetric() + "i = Cast<to = 7>(c)\n",
    "not clipped": symmetric().replace("Clip(r, low, high)", "Identity(r)") + "i = Cast<to = 6>(c)\n",
    "zero point": asymmetric() + "j = Cast<to = 6>(c)\n k = Cast<to = 6>(z)\n i = Sub(j, k)\n",
    "uint8": asymmetric().replace("low", "zero").replace("high", "c255")
    + "j = Cast<to = 6>(c)\n k = Cast<to = 6>(z)\n i = Sub(j, k)\n",
}
WIDE_PRODUCTS = [
    "p = MatMul(i, w)\n",
    "v = Cast<to = 6>(w8)\n p = MatMul(i, v)\n",
    'p = Einsum<equation = "abk,kn->abn">(i, w)\n',
    'p = Einsum<equation = "abk,nk->abn">(i, wt)\n',
]


@pytest.mark.parametrize(("codes", "product"), diagonals(2, WIDE, WIDE_PRODUCTS))
def test_codes_that_are_cast_to_wider_integers_at_once(codes: str, product: str) -> None:
    dtype, w = (np.int64 if codes == "int64" else np.int32), codes_of()
    body = WIDE[codes] + (product.replace("to = 6", "to = 7") if codes == "int64" else product)
    body += "f = Cast<to = 1>(p)\n l = Mul(f, s)\n y = Mul(l, ws)"
    arrays = {"w": w.astype(dtype), "w8": w, "wt": np.ascontiguousarray(w.T).astype(dtype), "ws": scales_of()}
    model = model_of(body, arrays)
    report = check(model, DATA, exact=False)
    assert found(report) == ["QuantizedMatMul", "RowProgram"]
    assert not report.unconverted
    data = (DATA,) if IS_ARM else (DATA, WITH_NAN)  # ONNX Runtime's ranges of rows with NaN are others on ARM
    report = check(model, *data, exact=True)  # a Cast of NaN to int32 is no code
    assert "QuantizedMatMul" not in found(report)
    assert [each.unconverted and each.unconverted.reason for each in report.unconverted] == [Reason.EXACT_WIDE_CODES]
