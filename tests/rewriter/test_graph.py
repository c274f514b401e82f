"""Functions and names of float16 models while the Casts of ONNX Runtime are written into them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from float16_models import CHAINS, PLACES, chain, model_of, rows, same_bits

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.float16.casts import write_casts
from ort_dynq.storage import load


def test_names_of_onnxruntime() -> None:
    """A model that it has saved, or one with values of these names."""
    body = CHAINS["quotient"].replace("d =", "InsertedPrecisionFreeCast_d =")
    model = model_of(body.replace("(d)", "(InsertedPrecisionFreeCast_d)"))
    assert not write_casts(load(model))


@pytest.mark.parametrize(
    "function",
    [
        "f <k: int, axes: ints = [-1]> (given, limit, low) => (made) { a = Abs(given)"
        " one = Constant<value_ints: ints = @axes>() m = ReduceMax<keepdims: int = @k>(a, one) s = Div(m, limit)"
        " d = Div(given, s) r = Round(d) c = Clip(r, low, limit) made = Mul(c, s) }",
        "f <k: int> (given, limit, low) => (d) { one = Constant<value = int64[1] {-1}>()"
        " limit_2 = Abs(given) m = ReduceMax<keepdims = 1>(limit_2, one) s = Div(m, limit) q = Div(given, s)"
        " r = Round(q) c = Clip(r, low, limit) d = Mul(c, s) }",
    ],
)
def test_attributes_and_names_of_functions(function: str) -> None:
    """An inlined function has the names of values in a branch, of initializers and of another call."""
    body = """s = own.f<k = 1>(x, limit, low) r = own.f<k = 1>(s, limit, low) y = If(yes) <
        then_branch = t () => (float16[N, K] made) { d = Exp(s) a = own.f<k = 1>(d, limit, low) made = Add(a, r) },
        else_branch = e () => (float16[N, K] d) { a = Mul(r, s) d = own.f<k = 1>(a, limit, low) }>"""
    model = model_of(body, "float16[N, K] x, bool yes", functions=[function])
    result = rewrite(model, exact=True)
    assert [f.operator for f in result.report.rewritten].count("RowProgram") >= 3  # one may have two quantizations
    for yes in (True, False):
        same_bits(model, result.to_proto().SerializeToString(), x=rows(40, 129), yes=np.array(yes))


def test_functions_of_float32() -> None:
    constants = "limit = Constant<value_float = 127.0>() low = Constant<value_float = -128.0>()"
    wide = f"{constants} {chain('quotient', 'given', 'made')}"
    body = f"{CHAINS['quotient']} w = Cast<to = 1>(x) z = own.f(w)"
    outputs = "float16[N, K] y, float[N, K] z"
    result = rewrite(model_of(body, outputs=outputs, functions=[f"f (given) => (made) {{ {wide} }}"]), exact=True)
    converted = [each.graph for each in result.report.rewritten if each.operator == "RowProgram"]
    assert converted == ["main", "main"]


def test_functions_without_a_chain_stay() -> None:
    model = model_of("y = own.f(x, third)", functions=["f (p, third) => (r) { h = Mul(p, third) r = Round(h) }"])
    assert rewrite(model).to_proto() == ir.to_proto(load(model))


def test_functions_that_onnxruntime_does_not_call() -> None:
    """It has a kernel of the same name."""
    neg = "Neg (p) => (o) { o = Exp(p) }"
    body, *functions = PLACES["function"]("quotient")
    content = model_of(
        f"scaled = Neg(x) {body} y = Neg(result)", "float16[N, K] x, bool yes", functions=[neg, *functions]
    )
    model = onnx.ModelProto.FromString(content)
    model.functions[0].domain = ""
    result = rewrite(model, exact=True)
    assert [each.name for each in result.model.functions.values()] == ["Neg", "RowProgram"]
    for yes in (True, False):
        same_bits(model.SerializeToString(), result.to_proto().SerializeToString(), x=rows(40, 129), yes=np.array(yes))


def test_values_that_onnxruntime_removes() -> None:
    """ONNX Runtime removes the Cast v, which a branch reads; it opens this model and cannot run it."""
    model = model_of(
        """w = Cast<to = 1>(x) v = Cast<to = 10>(w) y = If(yes) <
        then_branch = t () => (float16[N, K] a) { h = Mul(v, third) a = Round(h) },
        else_branch = e () => (float16[N, K] b) { b = Max(v, x) }>""",
        "float16[N, K] x, bool yes",
    )
    result = rewrite(model)
    assert not result.report.rewritten
    assert result.to_proto() == ir.to_proto(load(model))
