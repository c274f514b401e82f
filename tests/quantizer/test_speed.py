"""--only-if-faster: the layers that stay in float because integers make the model slower."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import parse
from onnx import numpy_helper

from ort_dynq import cli
from ort_dynq.quantizer import checked, quantize_layers
from ort_dynq.quantizer.options import Forms
from ort_dynq.rewriter import Result
from ort_dynq.tools.measuring import timing
from ort_dynq.tools.measuring.timing import Latency
from ort_dynq.tools.quantization import speed

DATA = {"x": np.random.default_rng(0).standard_normal((6, 256), np.float32)}


def model_of() -> onnx.ModelProto:
    """Two layers of 256 x 256 weights, and one of 256 x 192."""
    model = parse(
        "float[N, 256] x",
        "float[N, 192] y",
        "a = MatMul(x, w1) b = Relu(a) c = MatMul(b, w2) d = Relu(c) y = MatMul(d, w3)",
    )
    del model.opset_import[1]
    rng = np.random.default_rng(1)
    for i, columns in enumerate((256, 256, 192), 1):
        weights = rng.standard_normal((256, columns), np.float32) / 16
        model.graph.initializer.append(numpy_helper.from_array(weights, f"w{i}"))
    return model


def products(model: ir.Model) -> int:
    return sum(node.op_type.startswith("QuantizedMatMul") for node in model.graph)


def took(ms: float) -> Latency:
    """The latency of runs that all take so long."""
    return timing.latency(np.full(5, ms * 1e6))


def test_slower_kinds_stay_float(monkeypatch: pytest.MonkeyPatch) -> None:
    """The times are made up: of the models, by the number of their integer products, and of the float model."""
    model, options = model_of(), checked("int8", None, "token", False, ())
    times: dict[int, float] = {}

    def quantize(forms: Forms) -> Result:
        return quantize_layers(model, replace(options, forms=forms))

    def measured(models: Any, feeds: Any, _: float) -> list[Latency]:
        assert feeds is DATA
        assert [backend is None for _, backend in models] == [each is model for each, _ in models]
        return [took(times[0 if each is model else products(each)]) for each, _ in models]

    def found() -> tuple[speed.FasterLayers, int]:
        result = speed.select_faster(model, quantize, DATA)
        return result, products(result.result.model)

    monkeypatch.setattr(speed, "_times", measured)
    times |= {3: 1.0, 1: 0.9, 2: 1.5, 0: 1.8}
    faster, count = found()
    assert [(each.weights, each.layers, each.gain, each.stays_float) for each in faster.kinds] == [
        (((256, 256),), ("a", "c"), 0.9, True),
        (((256, 192),), ("y",), 1.5, False),
    ]
    assert (count, faster.gain, faster.is_float) == (1, 2, False)
    reasons = {each.node: each.reason for each in faster.result.report.unconverted}
    assert reasons == dict.fromkeys("ac", "stays in float: integers make the model slower on this CPU")
    times |= {1: 0.995}  # noise
    assert found()[1] == 3
    times |= {1: 0.9, 2: 0.9}  # each kind is slower, but not both together
    faster, count = found()
    assert count == 3
    assert [each.stays_float for each in faster.kinds] == [False, False]  # what the model is, not each measurement
    times |= {0: 0.8, 1: 0.995, 2: 1.5}  # no model of integers is as fast
    faster, count = found()
    assert (count, faster.gain, faster.is_float) == (0, 0.8, True)
    assert [each.stays_float for each in faster.kinds] == [True, True]
    assert {each.node for each in faster.result.report.unconverted} == {*"acy"}


def test_float_models_are_timed_with_fusions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest model is the result: of integers, of floats with fusions, or the original. Times are made up."""
    model = model_of()
    gelu = """c = Constant<value_float = 1.4142135> () one = Constant<value_float = 1.0> ()
        half = Constant<value_float = 0.5> () s = Div(a, c) e = Erf(s) f = Add(e, one) g = Mul(a, f) b = Mul(g, half)"""
    source = parse("float[N, 256] x", "float[N, 192] y", f"a = MatMul(x, w1) {gelu} y = MatMul(b, w3)")
    del source.opset_import[1]
    source.graph.initializer.extend(each for each in model.graph.initializer if each.name != "w2")
    options = checked("int8", None, "token", False, ())
    times: dict[str, float] = {}

    def name(each: Any) -> str:
        return "original" if each is source else "integers" if products(each) else "fused"

    monkeypatch.setattr(speed, "_times", lambda models, *_: [took(times[name(each)]) for each, _ in models])
    for best in ("integers", "fused", "original"):
        times |= {"integers": 2.0, "fused": 2.5, "original": 3.0, best: 1.0}
        result = speed.select_faster(source, lambda forms: quantize_layers(source, replace(options, forms=forms)), DATA)
        operators = {node.op_type for node in result.result.model.graph}
        assert result.is_float == (best != "integers")
        assert ("Erf" in operators, bool(result.result.report.fused)) == (best == "original", best != "original")


def test_attention_is_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stays ONNX Runtime's operator where that makes the model faster. Times are made up."""
    heads = "shape = Constant<value_ints = [0, 0, 4, 64]>() rows = Constant<value_ints = [0, 0, 256]>()"
    model = parse(
        "float[B, N, 256] x",
        "float[B, N, 256] y",
        f"{heads} q = MatMul(x, w1) q4 = Reshape(q, shape) qh = Transpose<perm = [0, 2, 1, 3]>(q4) "
        "kt = Transpose<perm = [0, 2, 3, 1]>(q4) s = MatMul(qh, kt) p = Softmax(s) o = MatMul(p, qh) "
        "t = Transpose<perm = [0, 2, 1, 3]>(o) r = Reshape(t, rows) y = MatMul(r, w2)",
    )
    del model.opset_import[1]
    model.graph.initializer.extend(each for each in model_of().graph.initializer if each.name != "w3")
    options = checked("int8", None, "token", False, ())
    times = {"QuantizedAttention": 1.0, "MultiHeadAttention": 0.9, "Softmax": 2.0}

    def time(each: Any) -> Latency:
        nodes = each.graph.node if isinstance(each, onnx.ModelProto) else each.graph
        (operator,) = {node.op_type for node in nodes} & times.keys()
        return took(times[operator] + (isinstance(each, ir.Model) and not products(each)))

    monkeypatch.setattr(speed, "_times", lambda models, *_: [time(each) for each, _ in models])
    for in_float, stays in ((0.9, True), (1.1, False)):
        times["MultiHeadAttention"] = in_float
        found = speed.select_faster(model, lambda forms: quantize_layers(model, replace(options, forms=forms)), DATA)
        assert [(each.operator, each.gain, each.stays_float) for each in found.kinds[1:]] == [
            ("Attention", in_float, stays)
        ]
        assert not found.kinds[0].stays_float
        operators = {node.op_type for node in found.result.model.graph}
        assert ("MultiHeadAttention" in operators, "QuantizedAttention" in operators) == (stays, not stays)


def test_nothing_is_timed_without_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(model_of(), tmp_path / "m.onnx")
    arguments = ["quantize", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "q.onnx"), "--only-if-faster"]
    assert cli.main([*arguments, "--exclude", "*", "--shape", "x=6x256"]) == 1
    text = capsys.readouterr().out
    assert "0 layers quantized" in text
    assert "times as long" not in text
    assert "ratio" not in text


def test_weights_that_are_no_initializers() -> None:
    """Constants have shapes; layers with weights that nodes compute are kinds of their own."""
    model = model_of()
    weights = {each.name: each for each in model.graph.initializer}
    del model.graph.initializer[:]
    small = numpy_helper.from_array(np.ones((4, 4), np.float32))
    model.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["w1"], value=small))
    for name in ("w2", "w3"):
        array = numpy_helper.to_array(weights[name])
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array.T), f"{name}t"))
        model.graph.node.insert(0, onnx.helper.make_node("Transpose", [f"{name}t"], [name]))
    assert list(speed._kinds(model, set("acy")).items()) == [
        (("MatMul", ((4, 4),), ""), ["a"]),
        (("MatMul", (), "c"), ["c"]),
        (("MatMul", (), "y"), ["y"]),
    ]


def test_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "session_contender", lambda _, model, *rest, **options: model)
    times = {"a": np.array([3e6, 2e6, 7e6]), "b": np.array([4e6, 5e6, 5e6])}
    monkeypatch.setattr(timing, "interleave", lambda contenders, *_: [times[each] for each in contenders])
    assert [each.median_ms for each in speed._times([("a", "native"), ("b", None)], {}, 1.0)] == [3, 5]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "m.onnx", str(tmp_path / "q.onnx")
    onnx.save(model_of(), source)
    arguments = ["quantize", str(source), "-o", target, "--only-if-faster", "--allow-none", "--shape", "x=6x256"]
    assert cli.main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    kinds = data["faster"]["kinds"]
    assert data["faster"]["gain"] > 0
    assert [each["layers"] for each in kinds] == [["a", "c"], ["y"]]
    integers = sum(len(each["layers"]) for each in kinds if not each["stays_float"])
    assert products(ir.load(target)) == integers
    assert data["accuracy"] is None
    assert cli.main([*arguments, "--no-timing"]) == 0
    text = capsys.readouterr().out
    assert "time of the model with these layers in float / with integers" in text
    assert "times as long as the one of integers at these shapes" in text
    assert cli.main([*arguments, "--min-snr", "20"]) == 2
    assert "--only-if-faster and --min-snr both choose" in capsys.readouterr().err
