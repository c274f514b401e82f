"""quantize --verify, --min-snr and --data, and bench --report, on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from accuracy_models import WIDE, K, floats, model_of, with_outlier, with_three_forms
from commands import run_json
from rich.console import Console
from rich.table import Table

from ort_dynq import cli
from ort_dynq.accuracy import Gates, LayerAccuracy, OutputAccuracy
from ort_dynq.cli import accuracy
from ort_dynq.cli.command import UNCHECKED
from ort_dynq.cli.render import SMOKE_TEST
from ort_dynq.rewriter import rewrite
from ort_dynq.tools.measuring import timing
from ort_dynq.tools.measuring.profile import profile
from ort_dynq.tools.quantization.outcome import Candidate, Layer, Selection

QUANTIZE = ("quantize", "float.onnx", "-o", "int8.onnx")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder, with float.onnx and data.npz: 3 sets of 4 rows."""
    monkeypatch.chdir(tmp_path)
    onnx.save(with_outlier(), "float.onnx")
    np.savez("data.npz", x=floats(3, 4, K, seed=7))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures times for a hundredth of a second."""

    def latencies(contenders: Any, _: float) -> Any:
        return timing.latencies(contenders, 0.01)

    def short_profile(*arguments: Any, **options: Any) -> Any:
        return profile(*arguments, **{**options, "seconds": 0.01})

    monkeypatch.setattr("ort_dynq.tools.quantization.selection.latencies", latencies)
    monkeypatch.setattr("ort_dynq.tools.accuracy.accuracy.profile", short_profile)


def text_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_verify(capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(capsys, *QUANTIZE, "--verify", "--data", "data.npz")
    assert "accuracy on 3 sets of data from data.npz:" in text
    assert "Worst: to_c, channel 5, " in text
    assert SMOKE_TEST not in text
    closing = (
        r"\nfloat.onnx .* -> int8.onnx .*; outputs within 2[0-9.]+ %: 11 dB; about [0-9.]+ times as fast on this CPU"
    )
    assert re.search(closing + r" \(x ", text)
    found: Any = run_json(capsys, *QUANTIZE, "--verify", "--data", "data.npz")["accuracy"]
    assert (found["sets"], found["generated"], found["layers"][0]["name"]) == (3, False, "to_c")
    assert found["outputs"][0]["snr_db"] == found["snr_db"]


def took(ms: float) -> timing.Latency:
    return timing.latency(np.full(5, ms * 1e6))


def test_closing_line_times_the_data_of_a_choice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = [2.0, 1.0, 1.0, 1.0]
    monkeypatch.setattr(
        "ort_dynq.tools.quantization.speed._times", lambda models, *_: [*map(took, times[: len(models)])]
    )
    found = run_json(capsys, *QUANTIZE, "--only-if-faster", "--data", "data.npz")
    assert found["closing"]["shapes"] == {"x": f"4x{K}"}


def test_effects_of_the_layers_of_the_table(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accuracy, "_MAX_LAYERS", 2)
    onnx.save(with_three_forms(), "float.onnx")
    text = text_of(capsys, *QUANTIZE, "--verify")
    assert "and 1 layer. The effect on the outputs was measured for the 2 layers with the worst own SNR; " in text
    layers = run_json(capsys, *QUANTIZE, "--verify")["accuracy"]["layers"]
    assert len(layers) == 3
    assert None not in [each[name] for each in layers for name in ("output_snr_db", "share")]
    layers = run_json(capsys, *QUANTIZE, "--verify", "--no-timing")["accuracy"]["layers"]
    assert [each["share"] for each in layers] == [None] * 3


def test_generated_data_are_a_smoke_test(capsys: pytest.CaptureFixture[str]) -> None:
    assert SMOKE_TEST in text_of(capsys, *QUANTIZE, "--verify", "--shape", f"x=5x{K}")
    assert run_json(capsys, *QUANTIZE, "--verify")["accuracy"]["generated"] is True


def test_min_snr(capsys: pytest.CaptureFixture[str]) -> None:
    selection = run_json(capsys, *QUANTIZE, "--min-snr", "30", "--data", "data.npz")["selection"]
    assert (selection["words"], selection["floats"]) == (["to_c"], [])
    assert selection["all_snr_db"] < 30 < selection["snr_db"]
    assert selection["cost"] > 0
    text = text_of(capsys, *QUANTIZE, "--min-snr", "5", "--data", "data.npz")
    assert "The outputs reach 5 dB with all layers quantized: " in text


def test_min_snr_with_all_forms(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(with_three_forms(), "float.onnx")
    np.savez("data.npz", x=floats(20, WIDE, seed=7))
    given = (*QUANTIZE, "--min-snr", "30", "--data", "data.npz")
    text = text_of(capsys, *given, "--verify")
    assert "1 layer gets two terms and 1 layer stays in float to reach 30 dB: " in text
    lines = [line.split() for line in text.splitlines()]
    assert [line[:3] for line in lines if line[:1] == ["to_y"]] == [["to_y", "float", "4.9"]]
    assert [line[:3] for line in lines if line[:1] == ["to_c"]] == [
        ["to_c", "two", "terms"],
        ["to_c", "MatMul,", "two"],
    ]
    assert "QuantizedMatMulProgram: two terms, for the signal-to-noise ratio of the outputs" in text
    assert "One channel dominates" not in text  # two terms have enough codes
    data = run_json(capsys, *given)
    assert (data["selection"]["two_terms"], data["selection"]["floats"]) == (["to_c"], ["to_y"])
    assert {each["name"]: each["terms"] for each in data["accuracy"]["layers"]} == {"to_h": 1, "to_c": 2}
    report = ("bench", "float.onnx", "int8.onnx", "--report", "report.html", "--seconds", "0.01")
    text_of(capsys, *report, "--data", "data.npz")
    assert re.search(r'<td class="name">.*>to_c<.*<small>two terms</small></td>', Path("report.html").read_text())


def test_layers_that_no_data_reach(capsys: pytest.CaptureFixture[str]) -> None:
    body = f"""y = If (flag) <then_branch = g1 () => (float[n, {K}] a) {{ a = MatMul(x, w) }},
        else_branch = g2 () => (float[n, {K}] b) {{ b = MatMul(x, w) }}>"""
    onnx.save(model_of(body, {"w": floats(K, K)}, inputs=f"float[n, {K}] x, bool flag"), "float.onnx")
    np.savez("data.npz", x=floats(4, K), flag=np.array(True))
    given = (*QUANTIZE, "--data", "data.npz", "--min-snr")
    for wanted in ("20", "100"):
        assert "not measured: 1 quantized layer that no data reached: b\n" in text_of(capsys, *given, wanted)
    assert run_json(capsys, *given, "100")["selection"]["not_measured"] == ["b"]


def test_words(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, *QUANTIZE, "--weights", "int12", "--verify")
    assert {each["operator"] for each in found["accuracy"]["layers"]} == {"WordMatMul"}
    metadata = {each.key: each.value for each in onnx.load("int8.onnx").metadata_props}
    assert metadata["ort_dynq.quantized"] == "weights=int12 activations=token symmetric=0"
    report = ("bench", "float.onnx", "int8.onnx", "--report", "report.html", "--seconds", "0.01")
    assert "products: 4 integer, 0 float" in text_of(capsys, *QUANTIZE, "--weights", "int12")
    text_of(capsys, *report, "--data", "data.npz")
    assert re.search(r'<td class="name">.*>to_c<.*<small>words</small></td>', Path("report.html").read_text())


def test_two_terms(capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(with_three_forms(), "float.onnx")
    found = run_json(capsys, *QUANTIZE, "--activations", "two-term", "--verify")
    assert [each["terms"] for each in found["accuracy"]["layers"]] == [2, 2, 2]
    metadata = {each.key: each.value for each in onnx.load("int8.onnx").metadata_props}
    assert metadata["ort_dynq.quantized"] == "weights=int8 activations=two-term symmetric=0"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--verify", "--data", "none.npz"), "there is no file or folder none.npz with data"),
        (("--verify", "--data", "data.npz", "--shape", "x=1x1"), "--input and --shape cannot be combined with it"),
        (("--min-snr", "loud"), "loud is not a number of decibels"),
        (("--min-snr", "30", "--from-dynamic"), "quantize_dynamic made has no float layers"),
        (("--verify", "--data", "data.npz", "--group", "64"), "give weights int4 as well"),
    ],
)
def test_errors(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    assert cli.main([*QUANTIZE, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not Path("int8.onnx").exists()


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    text_of(capsys, *QUANTIZE)
    report = ("bench", "float.onnx", "int8.onnx", "--report", "report.html", "--seconds", "0.01")
    found = run_json(capsys, *report, "--data", "data.npz")
    assert found["verification"] is None
    assert found["accuracy"]["layers"][0]["name"] == "to_c"
    became = {each["node"]: each["operator"] for each in found["rewrite_report"]["rewritten"]}
    assert became == {**dict.fromkeys(("to_a", "to_c", "to_y"), "QuantizedMatMul"), "to_b": "QuantizedMatMulProgram"}
    page = Path("report.html").read_text()
    ratio = found["accuracy"]["snr_db"]
    noise = f"{100 * 10 ** (-ratio / 20):.2g} %"
    assert f"Outputs within {noise} of the float model’s; " in page
    assert f"differ from the float model’s by {noise} of their size" in page
    assert ("`ort-dynq run` asks for 25 dB" in page) == (ratio < 25)
    assert page.index("<h2>Accuracy</h2>") < page.index("<h2>Time by operator</h2>")
    has_decisions = any(each["agreement"] is not None for each in found["accuracy"]["outputs"])
    assert ("same decisions" in page) == has_decisions  # no column without a value
    assert "<td>–" not in re.sub(r'class="[^"]*"', "", page)
    assert "Layers, worst first" in page
    assert "smoke test" not in page
    assert SMOKE_TEST in text_of(capsys, *report)
    assert "smoke test" in Path("report.html").read_text()
    assert cli.main(["bench", "float.onnx", "--data", "data.npz", "--report", "report.html", "--seconds", "0.01"]) == 0


def test_report_on_a_layer_with_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    """The noise is that of the product alone; the report names the operator and its program."""
    onnx.save(model_of("p = MatMul(x, w) y = Relu(p)", {"w": floats(K, K)}), "float.onnx")
    text_of(capsys, *QUANTIZE)
    report = ("bench", "float.onnx", "int8.onnx", "--report", "report.html", "--seconds", "0.01")
    found = run_json(capsys, *report, "--data", "data.npz")
    (finding,) = found["rewrite_report"]["rewritten"]
    assert (finding["node"], finding["op_type"]) == ("to_p", "MatMul")
    assert (finding["operator"], finding["program"]) == ("QuantizedMatMulProgram", "dst = Clip(x, 0.0, inf)")
    (layer,) = found["accuracy"]["layers"]
    assert (layer["name"], layer["operator"]) == ("to_p", "QuantizedMatMul")
    assert 20 < layer["snr_db"] < 60
    assert 0 < layer["share"] < 1


def test_layers_that_are_not_measured_count(capsys: pytest.CaptureFixture[str]) -> None:
    constants = {"w": floats(K, K)}
    onnx.save(model_of("y = Gemm <transA = 1> (x, w)", constants, inputs=f"float[{K}, n] x"), "float.onnx")
    np.savez("data.npz", x=floats(K, 4))
    assert "not measured: 1 quantized layer (" in text_of(capsys, *QUANTIZE, "--verify", "--data", "data.npz")
    report = ("bench", "float.onnx", "int8.onnx", "--report", "report.html", "--seconds", "0.01")
    text_of(capsys, *report, "--data", "data.npz")
    page = Path("report.html").read_text()
    assert "1 layer quantized: int8.onnx" in page
    assert "Not measured: 1 quantized layer (" in page


@pytest.mark.parametrize("terms", [1, 2])
def test_the_tables_of_layers_fit_80_columns(terms: int) -> None:
    """Long names are folded, and stay complete."""
    name = "/encoder/layer.11/attention/self/query/MatMul"
    layer = LayerAccuracy(name, "QuantizedMatMul", 30.5, -12.5, 0.123, 3071, 12345.6, terms)
    result = rewrite("float.onnx")
    candidates = tuple(
        Candidate(form, result.model, (OutputAccuracy("y", "float32", 9, 30.0),)) for form in ("8 bits", "selected")
    )
    selection = Selection(result, (Layer("float", {"": layer, "two terms": layer}),), (), candidates)
    for text in (accuracy._layers([layer]), accuracy.selection_text(selection, Gates(30.0), timing.Speed(1.5))):
        console = Console(width=80, soft_wrap=True)
        for each in text:
            if isinstance(each, Table):
                with console.capture() as capture:
                    console.print(each)
                lines = capture.get().splitlines()
                assert max(map(len, map(str.rstrip, lines))) <= 80
                if lines[0].startswith("form of all"):
                    continue
                column = lines[0].index("operator" if "operator" in lines[0] else "becomes")
                assert "".join(line[:column].strip() for line in lines[1:]) == name


def test_nothing_finite(capsys: pytest.CaptureFixture[str]) -> None:
    """All outputs are NaN, as `verify` says with status 3. The ratio is not infinite: there is none."""
    model = with_outlier()
    model.graph.node.append(onnx.helper.make_node("Sub", ["y", "y"], ["zero"]))
    model.graph.node.append(onnx.helper.make_node("Div", ["zero", "zero"], ["nan"]))
    model.graph.output[0].name = "nan"
    onnx.save(model, "float.onnx")
    assert cli.main([*QUANTIZE, "--verify", "--no-timing"]) == UNCHECKED
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("NOT CHECKED: no finite value could be compared")
    assert Path("int8.onnx").exists()
    assert cli.main([*QUANTIZE, "--verify", "--no-timing", "--json"]) == UNCHECKED
    found = json.loads(capsys.readouterr().out)["accuracy"]
    assert found["snr_db"] is None
    assert found["unchecked"].startswith("no finite value")
    report = ("bench", "float.onnx", "int8.onnx", "--report", "page.html", "--seconds", "0.1")
    assert cli.main(report) == UNCHECKED
    assert "not checked</b>" in Path("page.html").read_text()
