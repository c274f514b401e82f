"""int8 codes become uint8 codes, also behind Reshape and Transpose."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto
from product_models import DATA, INTEGER_WEIGHTS, activations_of, codes_of, model_of, symmetric
from rewriting import check, found

from ort_dynq.rewriter import rewrite


@pytest.mark.parametrize("codes", ["c", "q"])
def test_codes_that_are_unsigned_by_hand(codes: str) -> None:
    """Cast to int32, Add 128, Cast to uint8; the correction follows the product."""
    cast = "q = Cast<to = 3>(c)\n" if codes == "q" else ""
    body = f"{symmetric()} {cast} w32 = Cast<to = 6>({codes})\n w33 = Add(w32, half)\n u = Cast<to = 2>(w33)\n"
    body += "i0 = MatMulInteger(u, wq)\n i = Sub(i0, sums)\n f = Cast<to = 1>(i)\n g = Mul(f, s)\n y = Mul(g, ws)"
    sums = (codes_of().astype(np.int64).sum(0) * 128).astype(np.int32)
    model = model_of(body, INTEGER_WEIGHTS | {"half": np.int32(128), "sums": sums})
    assert found(check(model, DATA)) == ["QuantizedMatMul", "RowProgram"]
    raised = model_of(body, INTEGER_WEIGHTS | {"half": np.int32(127), "sums": sums})
    check(raised, DATA)


@pytest.mark.parametrize("moves", ["Reshape(q, rows)", "Transpose<perm = [1, 0, 2]>(q)", "Identity(q)", "Neg(q)"])
def test_codes_that_are_reshaped_or_transposed(moves: str) -> None:
    body = f"{symmetric()} q = Cast<to = 3>(c)\n q2 = {moves}\n i = MatMulInteger(q2, wq)\n"
    body += "j = Neg(i)\n y = Cast<to = 1>(j)"
    model = model_of(body, INTEGER_WEIGHTS)
    assert "MatMulInteger" in found(check(model, DATA))
    assert activations_of(rewrite(model).to_proto()) == {TensorProto.UINT8}
