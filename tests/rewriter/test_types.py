"""A reason names the operator that hides a type."""

from __future__ import annotations

from microsoft_models import with_chain
from rewriting import check, parse


def test_the_reason_names_the_operator_that_hides_the_type() -> None:
    """The first one, not the operators after it: their types are unknown, too."""
    (finding,) = check(with_chain("g = com.microsoft.Inverse(x) h = Relu(g)")).unconverted
    assert finding.reason == "the type of x is not known after com.microsoft.Inverse, expected float32"
    model = parse("h = com.microsoft.Inverse(x) s = ReduceMax(x) y = QuantizeLinear(h, s)", outputs="uint8[] y")
    model.opset_import.add(domain="com.microsoft", version=1)
    assert [finding.reason for finding in check(model).unconverted] == [
        "the type of x is not known after com.microsoft.Inverse, expected float32, float16 or bfloat16"
    ]
