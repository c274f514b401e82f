"""min_snr: the layers that stay in float, and errors for ratios that are not reached."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import pytest
from accuracy_models import K, floats, model_of, with_outlier
from helpers import Array, make_session, stock_session

import ort_dynq
from ort_dynq import DynqError
from ort_dynq.rewriter import Result

DATA = {"x": floats(20, K, seed=7)}


def snr_of(model: onnx.ModelProto, result: Result, x: Array) -> float:
    """The signal-to-noise ratio of y in decibels, from its definition."""
    name = model.graph.input[0].name
    a = stock_session(model).run(["y"], {name: x})[0].astype(np.float64)
    b = make_session(result.to_proto(), "native", optimize=True).run(["y"], {name: x})[0].astype(np.float64)
    return float(10 * np.log10((a**2).sum() / ((b - a) ** 2).sum()))


def floats_of(result: Result) -> list[str]:
    return [each.node for each in result.report.unconverted if "signal-to-noise" in each.reason]


def test_the_layer_that_harms_the_outputs_stays_float() -> None:
    model = with_outlier()
    before = snr_of(model, ort_dynq.quantize(model), DATA["x"])
    without = snr_of(model, ort_dynq.quantize(model, exclude=["to_c"]), DATA["x"])
    assert before + 10 < without
    wanted = (before + without) / 2
    result = ort_dynq.quantize(model, min_snr=wanted, data=DATA)
    assert floats_of(result) == ["to_c"]
    assert snr_of(model, result, DATA["x"]) > wanted
    again = ort_dynq.quantize(model, min_snr=wanted, data=DATA)
    assert again.to_proto().SerializeToString() == result.to_proto().SerializeToString()


def test_more_layers_stay_float_for_a_higher_ratio() -> None:
    model, counts = with_outlier(), []
    for wanted in (0, 25, 37, 40):
        result = ort_dynq.quantize(model, min_snr=wanted, data=[DATA, DATA])
        assert snr_of(model, result, DATA["x"]) > wanted
        counts.append(len(floats_of(result)))
        assert len(result.report.rewritten) == 4 - counts[-1]
    assert counts == [0, 1, 2, 3]


def test_excluded_layers_stay_excluded() -> None:
    result = ort_dynq.quantize(with_outlier(), min_snr=30, data=DATA, exclude=["to_[a]"])
    assert "excluded by to_[a]" in [each.reason for each in result.report.unconverted if each.node == "to_a"]
    assert floats_of(result) == ["to_c"]


def test_layers_without_names() -> None:
    model = with_outlier()
    for node in model.graph.node:
        node.name = ""
    assert floats_of(ort_dynq.quantize(model, min_snr=30, data=DATA)) == ["c"]


def test_layers_in_subgraphs() -> None:
    """They come last, since their own noise is not measured."""
    model = model_of(
        f"""y = If (flag) <then_branch = g1 () => (float[n, {K}] a) {{ a = MatMul(x, w) }},
        else_branch = g2 () => (float[n, {K}] b) {{ b = MatMul(x, w) }}>""",
        {"w": floats(K, K)},
        inputs=f"float[n, {K}] x, bool flag",
    )
    data = {**DATA, "flag": np.array(True)}
    assert floats_of(ort_dynq.quantize(model, min_snr=20, data=data)) == []
    assert floats_of(ort_dynq.quantize(model, min_snr=100, data=data)) == ["a"]  # the other one does not run


def test_embeddings_are_layers() -> None:
    """Their own noise is that of the outputs with all products in float."""
    table, ids = floats(1024, K, seed=3), np.arange(20) * 7
    model = model_of(
        "rows = Gather(table, ids) y = MatMul(rows, w)",
        {"table": table, "w": floats(K, K)},
        inputs="int64[n] ids",
    )
    data = {"ids": ids}
    assert floats_of(ort_dynq.quantize(model, min_snr=20, data=data)) == []
    ratios = {name: snr_of(model, ort_dynq.quantize(model, exclude=[name]), ids) for name in ("to_rows", "to_y")}
    worst = max(ratios, key=lambda name: ratios[name])  # without which the ratio is the larger one
    assert floats_of(ort_dynq.quantize(model, min_snr=ratios[worst] - 0.5, data=data)) == [worst]
    with pytest.raises(DynqError, match="only if every layer stays in float"):
        ort_dynq.quantize(model, min_snr=ratios[worst] + 20, data=data)


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        (with_outlier(), {"min_snr": 70}, "the outputs reach 70 dB only if every layer stays in float"),
        (with_outlier(), {"min_snr": math.nan}, "min_snr is nan, expected a number of decibels"),
        (with_outlier(), {"min_snr": 30, "data": {"x": floats(2, 3)}}, "the data: the input x has shape"),
        (with_outlier(), {"data": DATA, "min_snr": None}, "data are for min_snr; give min_snr as well"),
        (
            model_of("h = MatMul(x, w) y = Cast<to = 7>(h)", {"w": floats(K, K)}, outputs=f"int64[n, {K}] y"),
            {"min_snr": 30},
            "min_snr needs an output that has finite floats",
        ),
    ],
)
def test_ratios_that_cannot_be_reached(model: onnx.ModelProto, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DynqError, match=message) as caught:
        ort_dynq.quantize(model, **{"data": DATA, **arguments})
    assert "\n" not in str(caught.value)
