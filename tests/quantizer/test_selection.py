"""min_snr: the layers that get two terms or words, or stay in float, and errors for ratios that are not reached.

The forms between 8 bits and float take about the same time, so that words would mostly be chosen: most tests leave
them out, and choose between two terms and float.

More than 450 lines: all tests share the fixture for this, and how they select.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from accuracy_models import WIDE, F, K, floats, model_of, with_outlier, with_three_forms
from helpers import Array, assert_same, make_session, stock_session
from onnx import helper, numpy_helper

import ort_dynq
import ort_dynq.accuracy
from ort_dynq import DynqError
from ort_dynq.accuracy import Gates, LayerAccuracy, Reference
from ort_dynq.backends.options import BACKENDS, Backend
from ort_dynq.quantizer import checked, quantize_layers
from ort_dynq.quantizer.options import Forms
from ort_dynq.rewriter import Result
from ort_dynq.tools.accuracy.outputs import worst_snr
from ort_dynq.tools.measuring.profile import NodeTime, Profile
from ort_dynq.tools.quantization import ladder, outcome, selection
from ort_dynq.tools.quantization.ladder import FLOAT, TWO_TERMS, steps_of, times_of_layers
from ort_dynq.tools.quantization.outcome import Selection
from ort_dynq.tools.quantization.selection import select

DATA = {"x": floats(20, K, seed=7)}


@pytest.fixture(autouse=True)
def _rungs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "words" not in request.node.originalname:
        for module in (ladder, outcome, selection):
            monkeypatch.setattr(module, "RUNGS", (TWO_TERMS, FLOAT))


def snr_of(model: onnx.ModelProto, result: Result, x: Array) -> float:
    """The signal-to-noise ratio of y in decibels, from its definition."""
    name = model.graph.input[0].name
    a = stock_session(model).run(["y"], {name: x})[0].astype(np.float64)
    b = make_session(result.to_proto(), "native", optimize=True).run(["y"], {name: x})[0].astype(np.float64)
    return float(10 * np.log10((a**2).sum() / ((b - a) ** 2).sum()))


def floats_of(result: Result) -> list[str]:
    return [each.node for each in result.report.unconverted if "signal-to-noise" in each.reason]


def selected(
    model: onnx.ModelProto,
    min_snr: float,
    data: Any,
    *,
    weights: str = "int8",
    activations: str = "token",
    backend: Backend = "native",
    seconds: float = 0.0,
) -> Selection:
    options = checked(weights, None, activations, False, (), chooses_forms=True)

    def quantize(forms: Forms) -> Result:
        return quantize_layers(model, replace(options, forms=forms))

    return select(Reference(model, data), quantize, Gates(min_snr), backend=backend, seconds=seconds)


def test_limits_become_stricter_for_data_that_were_kept_back() -> None:
    """to_y is the noisier layer on all sets but the fourth, where to_h is.

    So two terms of to_y suffice without the fourth set. With it, to_y becomes float, and then to_h gets two terms.
    """
    large, sets = np.ones(WIDE, F), [{"x": floats(20, WIDE, seed=seed)} for seed in range(4)]
    large[5], constants = 100, {name: floats(WIDE, WIDE, seed=seed) / F(WIDE**0.5) for seed, name in enumerate("wv")}
    constants["w"][3] /= 100
    constants["v"][5] /= 100
    sets[3]["x"][:, 3] *= 100
    body = "h = MatMul(x, w) s = Mul(h, large) y = MatMul(s, v)"
    model = model_of(body, {**constants, "large": large}, width=WIDE)
    options = checked("int8", None, "token", False, (), chooses_forms=True)

    def quantize(forms: Forms) -> Result:
        return quantize_layers(model, replace(options, forms=forms))

    first, found = (select(Reference(model, data), quantize, Gates(25), seconds=0) for data in (sets[:3], sets))
    assert (two_terms_of(first.result), first.kept_back, first.attempts) == (["to_y"], 0, 1)
    assert (two_terms_of(found.result), floats_of(found.result)) == (["to_h"], ["to_y"])
    assert (found.kept_back, found.attempts) == (1, 3)
    assert [each.status for each in (*found.gates, *found.unseen)] == ["passed", "passed"]
    assert snr_of(model, found.result, sets[3]["x"]) > 25


def two_terms_of(result: Result) -> list[str]:
    """The layers with a product of two terms."""
    terms = {each.name: {a.name: a.i for a in each.attribute}.get("terms", 1) for each in result.to_proto().graph.node}
    return [name for name, count in terms.items() if count == 2]


WIDE_DATA = {"x": floats(20, WIDE, seed=7)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_all_three_forms(backend: Backend) -> None:
    """Each layer has the cheapest form that suffices."""
    model = with_three_forms()
    found = selected(model, 30, WIDE_DATA, backend=backend)
    assert (two_terms_of(found.result), floats_of(found.result)) == (["to_c"], ["to_y"])
    assert found.all_snr_db < 5
    assert found.snr_db == pytest.approx(snr_of(model, found.result, WIDE_DATA["x"]), abs=0.01)
    assert found.snr_db > 30
    assert [(each.name, each.stays_float) for each in found.layers] == [("to_y", True), ("to_c", False)]
    for each in found.layers:
        two_terms = each.measured["two terms"]
        assert each.before.output_snr_db is not None
        assert two_terms.output_snr_db is not None
        assert each.before.output_snr_db < 15
        assert (two_terms.output_snr_db > 40) == (each.name == "to_c")
        assert each.after == (two_terms if each.name == "to_c" else None)
    notes = {each.node: each.reason for each in found.result.report.rewritten}
    assert notes == {"to_h": "", "to_c": "two terms, for the signal-to-noise ratio of the outputs"}
    forms = {name: found.to_dict()[name] for name in ("two_terms", "floats", "not_measured")}
    assert forms == {"two_terms": ["to_c"], "floats": ["to_y"], "not_measured": []}
    (stock,) = stock_session(found.result.to_proto()).run(None, WIDE_DATA)
    (actual,) = make_session(found.result.to_proto(), backend).run(None, WIDE_DATA)
    assert_same(np.asarray(actual), np.asarray(stock))


@pytest.mark.parametrize(
    ("min_snr", "two_terms", "in_float"),
    [(3, [], []), (8, [], ["to_y"]), (39, ["to_h", "to_c"], ["to_y"])],  # for 30 see above
)
def test_forms_of_higher_ratios(min_snr: float, two_terms: list[str], in_float: list[str]) -> None:
    result = ort_dynq.quantize(with_three_forms(), min_snr=min_snr, data=WIDE_DATA)
    assert (two_terms_of(result), floats_of(result)) == (two_terms, in_float)


@pytest.mark.parametrize("backend", BACKENDS)
def test_words_in_place_of_float(backend: Backend) -> None:
    """They are enough for the layer that two terms do not help."""
    model = with_three_forms(20)
    found = selected(model, 30, WIDE_DATA, backend=backend)
    forms = {name: found.to_dict()[name] for name in ("two_terms", "words", "floats")}
    assert "to_y" in forms["words"]
    assert (sorted(forms["two_terms"] + forms["words"]), forms["floats"]) == (["to_c", "to_y"], [])
    assert found.snr_db == pytest.approx(snr_of(model, found.result, WIDE_DATA["x"]), abs=0.01)
    assert found.snr_db > 30
    assert [each.name for each in found.candidates] == ["8 bits", "two terms", "words", "float", "selected"]
    of_words = next(each for each in found.layers if each.name == "to_y")
    assert of_words.after is not None
    assert of_words.after.form == "WordMatMul"
    assert of_words.after.output_snr_db is not None
    assert of_words.after.output_snr_db > 40
    notes = {each.node: each.reason for each in found.result.report.rewritten}
    assert notes["to_y"] == "words, for the signal-to-noise ratio of the outputs"
    (stock,) = stock_session(found.result.to_proto()).run(None, WIDE_DATA)
    (actual,) = make_session(found.result.to_proto(), backend).run(None, WIDE_DATA)
    assert_same(np.asarray(actual), np.asarray(stock))


@pytest.mark.parametrize("times_as_long", [0.0, math.inf])
def test_words_of_all_layers_if_they_are_as_fast(times_as_long: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are more accurate than the forms that just suffice."""
    monkeypatch.setattr(selection, "_AS_FAST", times_as_long)
    weights = {name: floats(WIDE, WIDE, seed=seed) / F(WIDE**0.5) for seed, name in enumerate("wv")}
    model = model_of("h = MatMul(x, w) y = MatMul(h, v)", weights, width=WIDE)
    found = selected(model, 38, WIDE_DATA, seconds=0.01)
    assert found.all_snr_db < 38
    assert [each.name for each in found.candidates] == ["8 bits", "two terms", "words", "float", "selected"]
    is_of_words = [each.form for each in found.layers] == ["words"] * 2
    assert is_of_words == (times_as_long > 0)
    assert (found.snr_db == worst_snr(found.candidates[2].outputs)) == is_of_words
    assert found.snr_db == pytest.approx(snr_of(model, found.result, WIDE_DATA["x"]), abs=0.01)


def test_words_of_small_layers() -> None:
    """They have no two terms, but words."""
    result = ort_dynq.quantize(with_outlier(), min_snr=30, data=DATA)
    assert (two_terms_of(result), floats_of(result)) == ([], [])
    assert "WordMatMul" in {each.operator for each in result.report.rewritten if each.node == "to_c"}
    assert snr_of(with_outlier(), result, DATA["x"]) > 30


def test_words_of_convolutions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One large weight in each channel leaves few codes of 8 bits for the others."""
    monkeypatch.setattr(selection, "times_of_layers", lambda *_: {})  # estimated ones do not vary
    weights = floats(24, 8, 3, 3, seed=1)
    weights[:, 2, 1, 0] = 40
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", pads=[1] * 4)
    values = [helper.make_tensor_value_info(each, 1, [1, None, 28, 30]) for each in "xy"]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weights, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    data = {"x": floats(1, 8, 28, 30, seed=2)}
    found = selected(model, 45, data)
    forms = {name: found.to_dict()[name] for name in ("two_terms", "words", "floats")}
    assert forms == {"two_terms": [], "words": ["conv"], "floats": []}
    assert found.all_snr_db < 40
    assert snr_of(model, found.result, data["x"]) > 50
    assert [each.operator for each in found.result.report.rewritten] == ["WordConv"]


def test_words_for_all_layers_leave_float_alone() -> None:
    found = selected(with_three_forms(), 40, WIDE_DATA, weights="int12")
    forms = {name: found.to_dict()[name] for name in ("two_terms", "words")}
    assert forms == {"two_terms": [], "words": []}
    assert floats_of(found.result) == ["to_c", "to_y"]
    assert [each.name for each in found.candidates] == ["8 bits", "float", "selected"]


def test_no_layer_has_one_term_if_two_are_asked_for() -> None:
    found = selected(with_three_forms(), 20, WIDE_DATA, activations="two-term")
    assert (two_terms_of(found.result), floats_of(found.result)) == (["to_h", "to_c"], ["to_y"])
    assert [(each.name, each.before.terms) for each in found.layers] == [("to_y", 2)]
    assert {each.reason for each in found.result.report.rewritten} == {""}


def test_small_layers_have_no_two_terms() -> None:
    """to_c would gain from them, but has 160 x 160 weights."""
    result = ort_dynq.quantize(with_outlier(), min_snr=30, data=DATA)
    assert (two_terms_of(result), floats_of(result)) == ([], ["to_c"])


@pytest.mark.parametrize(("channels", "height", "gets_two_terms"), [(64, 1, True), (16, 3, False)])
def test_convolutions(channels: int, height: int, gets_two_terms: bool) -> None:
    """The worst layer is a convolution, which gets two terms if its sums are long enough. The other one has one."""
    side = 16
    constants = {
        "w": floats(WIDE, WIDE) / F(WIDE**0.5),
        "f": floats(64, channels, height, 1, seed=1) / F((channels * height) ** 0.5),
        "image": np.array([-1, channels, side, side], np.int64),
        "rows": np.array([-1, WIDE], np.int64),
        "spread": np.exp(2 * floats(WIDE, seed=2)),
    }
    body = "h = MatMul(x, w) s = Mul(h, spread) i = Reshape(s, image) "
    body += f"c = Conv<pads = [{height // 2}, 0, {height // 2}, 0]>(i, f) y = Reshape(c, rows)"
    data = {"x": floats(64, WIDE, seed=3)}
    result = ort_dynq.quantize(model_of(body, constants, width=WIDE), min_snr=35, data=data)
    assert (two_terms_of(result), floats_of(result)) == ((["to_c"], []) if gets_two_terms else ([], ["to_c"]))


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
    for wanted in (25, 40):
        result = ort_dynq.quantize(model, min_snr=wanted, data=[DATA, DATA])
        assert snr_of(model, result, DATA["x"]) > wanted
        counts.append(len(floats_of(result)))
        assert len(result.report.rewritten) == 4 - counts[-1]
    assert counts == [1, 3]


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
    """They come last, since their own noise is not measured. Those that no data reach stay quantized."""
    model = model_of(
        f"""y = If (flag) <then_branch = g1 () => (float[n, {K}] a) {{ a = MatMul(x, w) }},
        else_branch = g2 () => (float[n, {K}] b) {{ b = MatMul(x, w) }}>""",
        {"w": floats(K, K)},
        inputs=f"float[n, {K}] x, bool flag",
    )
    data = {**DATA, "flag": np.array(True)}
    assert floats_of(ort_dynq.quantize(model, min_snr=20, data=data)) == []
    found = selected(model, 100, data)
    assert floats_of(found.result) == ["a"]
    assert found.not_measured == ("b",)
    assert [each.node for each in found.result.report.rewritten] == ["b"]
    assert selected(model, 20, data).not_measured == ("b",)
    both = [data, {**data, "flag": np.array(False)}]
    assert selected(model, 20, both).not_measured == ()
    with pytest.raises(DynqError, match="only if every layer stays in float"):
        selected(model, 100, both)


def test_layers_in_subgraphs_get_two_terms() -> None:
    """Their harm is not known, so they get two terms before they stay in float."""
    large, small = np.ones(WIDE, F), np.ones(WIDE, F)
    large[5], small[5] = 300, F(300) ** -2
    model = model_of(
        f"""s = Mul(x, large) y = If (flag) <then_branch = g1 () => (float[n, {WIDE}] a) {{ a = MatMul(s, w) }},
        else_branch = g2 () => (float[n, {WIDE}] b) {{ b = MatMul(s, w) }}>""",
        {"w": floats(WIDE, WIDE) * small[:, None], "large": large},
        inputs=f"float[n, {WIDE}] x, bool flag",
        width=WIDE,
    )
    found = selected(model, 30, {**WIDE_DATA, "flag": np.array(True)})
    assert found.to_dict()["two_terms"] == ["a"]
    assert (found.to_dict()["floats"], found.not_measured) == ([], ("b",))
    assert found.all_snr_db < 15
    assert found.snr_db > 40
    (layer,) = found.layers
    assert layer.before.snr_db is None


def test_layers_that_no_data_reach_are_not_in_the_way() -> None:
    """Ten layers in a branch that does not run: none of them is in float, whatever else is."""
    layers = "".join(f"b{i + 1} = MatMul(b{i}, w) " for i in range(9))
    model = model_of(
        f"""h = MatMul(x, w) y = If (flag) <then_branch = g1 () => (float[n, {K}] a) {{ a = MatMul(h, w) }},
        else_branch = g2 () => (float[n, {K}] b9) {{ b0 = MatMul(h, w) {layers} }}>""",
        {"w": floats(K, K) / F(K**0.5)},
        inputs=f"float[n, {K}] x, bool flag",
    )
    idle = tuple(f"b{i}" for i in range(10))
    found = selected(model, 100, {**DATA, "flag": np.array(True)})
    assert found.not_measured == idle
    assert [(each.name, each.stays_float) for each in found.layers] == [("to_h", True), ("a", True)]
    assert {each.node for each in found.result.report.rewritten} == {*idle}


def test_layers_of_empty_rows_are_not_measured() -> None:
    """The second input has no rows in the data."""
    model = model_of(
        "p = MatMul(x, w) q = MatMul(z, w) y = Concat<axis = 0>(p, q)",
        {"w": floats(K, K)},
        inputs=f"float[n, {K}] x, float[m, {K}] z",
        outputs=f"float[k, {K}] y",
    )
    data = {**DATA, "z": floats(0, K)}
    assert selected(model, 20, data).not_measured == ("to_q",)
    found = selected(model, 100, data)
    assert (floats_of(found.result), found.not_measured) == (["to_p"], ("to_q",))


def test_noise_is_weighed_against_time() -> None:
    """The larger layer harms y a little more, but has ten times as many weights: the smaller one stays in float."""
    depth = 10 * K
    model = model_of(
        "large = MatMul(x, w) small = MatMul(z, v) y = Add(large, small)",
        {"w": 1.2 * floats(depth, K) / F(depth**0.5), "v": floats(K, K, seed=1) / F(K**0.5)},
        inputs=f"float[n, {depth}] x, float[n, {K}] z",
    )
    data = {"x": floats(20, depth, seed=2), "z": floats(20, K, seed=3)}

    weights = {each.name: numpy_helper.to_array(each).astype(np.float64) for each in model.graph.initializer}
    exact = data["x"] @ weights["w"] + data["z"] @ weights["v"]

    def ratio(**options: Any) -> float:
        b = make_session(ort_dynq.quantize(model, **options).to_proto(), "native", optimize=True)
        found = b.run(None, data)[0].astype(np.float64)
        return float(10 * np.log10((exact**2).sum() / ((found - exact) ** 2).sum()))

    without = {name: ratio(exclude=[name]) for name in ("to_large", "to_small")}
    assert without["to_large"] > without["to_small"] > ratio() + 0.5
    found = selected(model, without["to_small"] - 0.2, data)
    assert floats_of(found.result) == ["to_small"]
    assert two_terms_of(found.result) == []


def test_recurrent_layers_are_the_most_expensive_in_float() -> None:
    """They read their weights in every step."""
    of_matrix = LayerAccuracy("matrix", "QuantizedMatMul", 30, 30, multiplications=10**6, reads=10**4)
    of_steps = LayerAccuracy("steps", "QuantizedRecurrence", 29, 29, multiplications=10**6, reads=10**6)
    assert [(step.name, step.rung.name) for step in steps_of([of_steps, of_matrix], {})] == [
        ("matrix", "float"),
        ("steps", "float"),
    ]
    better = {"two terms": {"steps": replace(of_steps, output_snr_db=60, terms=2)}}
    assert [(step.name, step.rung.name) for step in steps_of([of_steps, of_matrix], better)] == [
        ("steps", "two terms"),
        ("matrix", "float"),
        ("steps", "float"),
    ]


def test_measured_times_decide() -> None:
    """Of equal layers, that is the first with a better form of the least time. A faster form costs nothing."""
    layers = [LayerAccuracy(name, "QuantizedMatMul", 30, 30, multiplications=10**6) for name in "abc"]
    better = {"two terms": {each.name: replace(each, output_snr_db=60, terms=2) for each in layers}}
    times = {
        "": {"a": 1.0, "b": 1.0, "c": 1.0},
        "two terms": {"a": 1.5, "b": 1.2, "c": 1.4},
        "float": {"a": 3.0, "b": 3.0, "c": 0.9},
    }
    assert [(step.name, step.rung.name) for step in steps_of(layers, better, times)] == [
        ("c", "float"),
        ("b", "two terms"),
        ("a", "two terms"),
        ("a", "float"),
        ("b", "float"),
    ]


def test_times_of_layers() -> None:
    """By the names of nodes, also of those that ONNX Runtime fuses; the rest of a run by multiplications."""
    layers = [
        LayerAccuracy(name, "QuantizedMatMul", 30, 30, multiplications=count)
        for name, count in (("a", 300), ("b", 100))
    ]
    nodes = (
        NodeTime("a", "MatMul", 1, 5.0),
        NodeTime("b/MatMulAddFusion", "Gemm", 1, 1.0),
        NodeTime("x", "Add", 1, 3.0),
    )
    assert times_of_layers(Profile(9, 10.0, nodes), layers) == {"a": 8.0, "b": 2.0}


def test_a_metric_of_the_user() -> None:
    """It gets the inputs and both models' outputs by name, of all sets but those that are kept back, then of these."""
    model, sets, seen = with_outlier(), [{"x": floats(20, K, seed=seed)} for seed in range(4)], set[int]()

    def worst(inputs: Any, a: Any, b: Any) -> float:
        assert len(inputs) == len(a) == len(b)
        assert [each.keys() for each in (inputs[0], a[0], b[0])] == [{"x"}, {"y"}, {"y"}]
        seen.add(len(inputs))
        return -max(float(np.abs(p["y"] - q["y"]).max()) for p, q in zip(a, b, strict=True))

    before = ort_dynq.accuracy.compare(model, ort_dynq.quantize(model).model, sets)
    result = ort_dynq.quantize(model, metric=worst, min_metric=-0.2, data=sets)
    assert floats_of(result) == ["to_c"]
    assert seen == {1, 3}
    gates = Gates(metric=worst, min_metric=-0.2)
    after = ort_dynq.accuracy.compare(model, result.model, sets, gates=gates)
    assert (after.status, after.gates[0].value) == ("passed", pytest.approx(-(after.outputs[0].max_abs or 0)))
    assert (before.outputs[0].max_abs or 0) > 0.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": len}, "metric and min_metric belong together"),
        ({"min_metric": 1}, "metric and min_metric belong together"),
        ({"metric": lambda *_: "no", "min_metric": 1}, "metric fails or returns no number"),
        ({"metric": lambda *_: math.nan, "min_metric": 1}, "min_metric needs an output that it measures"),
    ],
)
def test_wrong_metrics(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(DynqError, match=message):
        ort_dynq.quantize(with_outlier(), data=DATA, **arguments)


def test_times_are_measured() -> None:
    model = with_three_forms()
    options = checked("int8", None, "token", False, (), chooses_forms=True)
    found = select(
        Reference(model, WIDE_DATA),
        lambda forms: quantize_layers(model, replace(options, forms=forms)),
        Gates(30),
        seconds=0.01,
    )
    assert found.snr_db > 30


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
