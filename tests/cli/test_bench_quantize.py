"""`ort-dynq bench-quantize`: contenders, accuracy, sequences, the picture and errors."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import math
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import quantizing
from bench import convnets
from benching import MODELS, check_latency, run_bench, run_bench_json
from onnxruntime.quantization import quantize_dynamic

from ort_dynq import cli
from ort_dynq.tools.bench.quantization import Case, Form, FormTiming, QuantizationBench, sequence_axes
from ort_dynq.tools.measuring.data import Data
from ort_dynq.tools.measuring.timing import Latency
from ort_dynq.tools.report import comparison

NAMES = ["float", "quantize_dynamic", "quantize_dynamic, per channel", "MatMulNBits 8", "MatMulNBits 4"]
NAMES += ["ort_dynq rewrite", "ort_dynq int8", "ort_dynq int8, two terms", "ort_dynq int4"]
OPENVINO = ["OpenVINO int8", "OpenVINO int8, widest groups", "OpenVINO int8, bfloat16"]
HAS_OPENVINO = all(map(importlib.util.find_spec, ("openvino", "nncf")))


@pytest.fixture(autouse=True)
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    monkeypatch.setenv("NNCF_CI", "1")


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "float.onnx"
    onnx.save(quantizing.product(shape=("batch", "tokens", quantizing.K)), path)
    return str(path)


@pytest.fixture
def data(tmp_path: Path) -> str:
    path = tmp_path / "data.npz"
    np.savez(path, x=quantizing.activations(3, 2, 5, quantizing.K))  # three sets
    return str(path)


def decibels(expected: quantizing.Array, actual: quantizing.Array) -> float:
    return -10 * math.log10(quantizing.squared_error(actual, expected))


def test_json(model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_bench_json(capsys, "quantize", model, "--data", data, "--tokens", "1,3", "--threads", "1,2")
    assert (found["model"], found["sets"], found["generated"]) == (model, 3, False)
    forms = {form["name"]: form for form in found["forms"]}
    assert list(forms) == NAMES
    for form in forms.values():
        if form["problem"]:  # an old version of onnxruntime
            assert form["name"].startswith("MatMulNBits")
            continue
        cases = [tuple(timing["case"].values()) for timing in form["timings"]]
        assert cases == [(1, 1), (3, 1), (1, 2), (3, 2)]
        for timing, stock in zip(form["timings"], forms["float"]["timings"], strict=True):
            check_latency(timing["latency"])
            ratio = stock["latency"]["median_ms"] / timing["latency"]["median_ms"]
            assert timing["ratio"] == pytest.approx(ratio)
    assert (forms["float"]["snr_db"], forms["float"]["cosine_worst"]) == (None, None)

    quantize_dynamic(model, tmp_path / "dynamic.onnx")
    x = np.load(data)["x"]
    exact = np.stack([quantizing.run_float(onnx.load(model), each) for each in x])
    session = ort.InferenceSession(tmp_path / "dynamic.onnx")
    actual = np.stack([np.asarray(session.run(None, {"x": each})[0]) for each in x])
    norms = np.linalg.norm(exact, axis=-1) * np.linalg.norm(actual, axis=-1)
    dynamic = forms["quantize_dynamic"]
    assert dynamic["snr_db"] == pytest.approx(decibels(exact, actual), abs=1e-3)
    assert dynamic["cosine_worst"] == pytest.approx(((exact * actual).sum(-1) / norms).min(), abs=1e-5)
    assert dynamic["bytes"] == (tmp_path / "dynamic.onnx").stat().st_size

    w = quantizing.weights_by_definition(quantizing.floats(quantizing.K, quantizing.N))
    ours = quantizing.by_definition(x) @ w
    assert forms["ort_dynq int8"]["snr_db"] == pytest.approx(decibels(exact, ours), abs=0.05)
    assert forms["ort_dynq int8"]["snr_db"] > dynamic["snr_db"]
    assert forms["ort_dynq int4"]["bytes"] < forms["ort_dynq int8"]["bytes"] < forms["float"]["bytes"]
    assert forms["float"]["bytes"] == Path(model).stat().st_size


def test_text_and_page(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    lines = run_bench(capsys, "quantize", model, "--shape", f"x=1x2x{quantizing.K}", "--report", str(page)).splitlines()
    assert any(line.startswith("GENERATED DATA: NO MORE THAN A SMOKE TEST") for line in lines)
    assert lines[-1] == f"{page} is written"
    head = next(i for i, line in enumerate(lines) if line.startswith("form"))
    titles = ["form", "MB", "SNR dB", "worst cosine", "own shape, 1 thread", "x"]
    assert re.split(r" {2,}", lines[head].strip()) == titles
    assert [re.split(r" {2,}", line)[0] for line in lines[head + 1 : head + 1 + len(NAMES)]] == NAMES
    html = page.read_text()
    assert "<script" not in html
    assert "Generated data: no more than a smoke test." in html
    (picture,) = re.findall(r"<svg class=\"chart\".*?</svg>", html, re.DOTALL)
    ratios = [re.split(r" {2,}", line)[2] for line in lines[head + 1 : head + 1 + len(NAMES)]]
    # A layer of so few weights has no two terms: it may equal float, and an infinite ratio has no dot.
    assert len(ET.fromstring(picture).findall("circle")) == sum(
        re.fullmatch(r"[\d.]+", each) is not None for each in ratios
    )


def test_an_external_file_counts_and_a_missing_quantizer_is_told(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime.quantization.matmul_nbits_quantizer", None)
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="weights", size_threshold=0)
    found = run_bench_json(capsys, "quantize", model, "--tokens", "1")["forms"]
    assert found[0]["bytes"] == Path(model).stat().st_size + (tmp_path / "weights").stat().st_size
    for form in found:
        expected = form["name"] in ("MatMulNBits 8", "MatMulNBits 4")
        assert form["problem"].startswith(f"{form['name']} cannot be made: this version of onnx") == expected
        assert len(form["timings"]) == (not expected)


def test_a_quantizer_that_changes_nothing_is_not_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(convnets.resnet("float", image=32, width=8), tmp_path / "resnet.onnx")
    forms = {form["name"]: form for form in run_bench_json(capsys, "quantize", str(tmp_path / "resnet.onnx"))["forms"]}
    for name, form in forms.items():
        assert ("cannot be made" in form["problem"]) == name.startswith("MatMulNBits"), name
        assert len(form["timings"]) == (not form["problem"])
    if "this version of onnxruntime" not in forms["MatMulNBits 4"]["problem"]:
        assert forms["MatMulNBits 4"]["problem"].endswith("it quantizes no layer of this model")
    assert forms["ort_dynq int8"]["snr_db"] > forms["quantize_dynamic"]["snr_db"]


class OpenVino(ModuleType):
    """A stand-in for openvino and nncf. It runs the float model in onnxruntime, and its outputs are 1 % too large."""

    __spec__ = importlib.machinery.ModuleSpec("openvino", None)
    CompressWeightsMode = SimpleNamespace(INT8_ASYM="int8_asym")

    def __init__(self, *capabilities: str) -> None:
        self.capabilities = ["FP32", *capabilities]
        self.compiled: list[dict[str, object]] = []

    def Core(self) -> OpenVino:
        return self

    def get_property(self, device: str, name: str) -> list[str]:
        assert (device, name) == ("CPU", "OPTIMIZATION_CAPABILITIES")
        return self.capabilities

    def read_model(self, path: Path) -> SimpleNamespace:
        source = path.read_text() if path.suffix == ".xml" else path
        size = SimpleNamespace(get_length=lambda: quantizing.K)
        product = SimpleNamespace(
            get_type_name=lambda: "MatMul",
            get_attributes=lambda: {"transpose_b": True},
            input=lambda _: SimpleNamespace(get_partial_shape=lambda: Shape([None, size])),
        )
        return SimpleNamespace(source=source, get_ops=lambda: [product, SimpleNamespace(get_type_name=lambda: "Add")])

    def compress_weights(self, model: SimpleNamespace, mode: str) -> SimpleNamespace:
        return SimpleNamespace(**vars(model), mode=mode)

    def save_model(self, model: SimpleNamespace, path: Path, compress_to_fp16: bool) -> None:
        assert (model.mode, compress_to_fp16) == ("int8_asym", False)
        path.write_text(str(model.source))
        path.with_suffix(".bin").write_bytes(bytes(77))

    def compile_model(self, model: SimpleNamespace, device: str, settings: dict[str, object]) -> SimpleNamespace:
        assert device == "CPU"
        if settings["INFERENCE_PRECISION_HINT"] == "bf16" and "BROKEN" in self.capabilities:
            raise RuntimeError("Exception from core.cpp:\nno bfloat16")
        self.compiled.append(settings)
        session, feeds = ort.InferenceSession(model.source), {}

        def infer(share_outputs: bool = False) -> dict[str, Any]:
            names = [output.name for output in session.get_outputs()]
            return {name: np.float32(1.01) * y for name, y in zip(names, session.run(None, feeds), strict=True)}

        request = SimpleNamespace(infer=infer, set_tensor=feeds.__setitem__)
        return SimpleNamespace(create_infer_request=lambda: request)

    def Tensor(self, array: quantizing.Array, shared_memory: bool) -> quantizing.Array:
        assert shared_memory
        return array


class Shape(list[Any]):
    is_static = True


def use(monkeypatch: pytest.MonkeyPatch, stand_in: OpenVino) -> None:
    for name in ("openvino", "nncf"):
        monkeypatch.setitem(sys.modules, name, stand_in)


def test_openvino(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sets").mkdir()
    for i, tokens in enumerate((4, 4, 2)):
        np.savez(tmp_path / "sets" / f"{i}.npz", x=quantizing.activations(1, tokens, quantizing.K))
    stand_in = OpenVino("BF16")
    use(monkeypatch, stand_in)
    arguments = ("quantize", model, "--data", str(tmp_path / "sets"), "--tokens", "1", "--threads", "1,2")
    forms = {form["name"]: form for form in run_bench_json(capsys, *arguments)["forms"]}
    assert list(forms) == [*NAMES[:5], *OPENVINO, *NAMES[5:]]
    for name in OPENVINO:
        assert forms[name]["snr_db"] == pytest.approx(40, abs=1e-3)
        assert forms[name]["cosine_worst"] == pytest.approx(1)
        assert forms[name]["bytes"] == len(model) + 77
        assert [timing["case"]["threads"] for timing in forms[name]["timings"]] == [1, 2]
    found = [
        tuple(settings[f"{key}"] for key in ("INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE"))
        for settings in stand_in.compiled
    ]
    threads = [settings["INFERENCE_NUM_THREADS"] for settings in stand_in.compiled]
    three = [("f32", 32), ("f32", quantizing.K), ("bf16", quantizing.K)]
    assert found == [each for each in three for _ in range(2)] + three + three  # two shapes of data, then two cases
    assert threads == 6 * [0] + 3 * [1] + 3 * [2]


def test_openvino_fails(model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, OpenVino())
    names = [form["name"] for form in run_bench_json(capsys, "quantize", model, "--tokens", "1")["forms"]]
    assert names == [*NAMES[:5], *OPENVINO[:2], *NAMES[5:]]

    use(monkeypatch, OpenVino("BF16", "BROKEN"))
    forms = {form["name"]: form for form in run_bench_json(capsys, "quantize", model, "--tokens", "1")["forms"]}
    assert forms[OPENVINO[2]]["problem"] == f"{OPENVINO[2]} does not run: Exception from core.cpp: no bfloat16"
    assert [forms[name]["problem"] for name in OPENVINO[:2]] == ["", ""]

    monkeypatch.setitem(sys.modules, "nncf", None)
    forms = {form["name"]: form for form in run_bench_json(capsys, "quantize", model, "--tokens", "1")["forms"]}
    for name in OPENVINO:
        assert forms[name]["problem"].startswith(f"{name} cannot be made: it needs nncf, which `pip install nncf` adds")
        assert forms[name]["timings"] == []


@pytest.mark.skipif(not HAS_OPENVINO, reason="`pip install openvino nncf`")
def test_real_openvino(
    model: str, data: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "openvino")
    found = run_bench_json(capsys, "quantize", model, "--data", data, "--tokens", "1,3")["forms"]
    forms = {form["name"]: form for form in found if form["name"] in OPENVINO}
    assert {*OPENVINO[:2]} <= {*forms}
    for form in forms.values():
        assert form["problem"] == ""
        assert 25 < form["snr_db"] < 60
        assert 0.99 < form["cosine_worst"] < 1
        assert form["bytes"] > quantizing.K * quantizing.N
        assert len(form["timings"]) == 2


def inputs(*shapes: list[int | str | None], kind: str = "tensor(int64)") -> list[SimpleNamespace]:
    return [SimpleNamespace(name=f"x{i}", shape=shape, type=kind) for i, shape in enumerate(shapes)]


def test_weights_that_quantize_dynamic_does_not_find(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Paddle's converter writes weights as Constant nodes, which ONNX Runtime's basic optimizations fold."""
    w = onnx.numpy_helper.from_array(quantizing.floats(32, 32, 3, 3))
    nodes = [
        onnx.helper.make_node("Constant", [], ["w"], value=w),
        onnx.helper.make_node("Conv", ["x", "w", "b"], ["y"]),
    ]
    bias = {"b": quantizing.floats(32)}
    path = tmp_path / "paddle.onnx"
    onnx.save(quantizing.model_of(nodes, bias, shape=(1, 32, 16, 16)), path)
    with pytest.raises(ValueError, match="to be an initializer"):
        quantize_dynamic(path, tmp_path / "dynamic.onnx")
    found = run_bench_json(capsys, "quantize", str(path))
    problems = {form["name"]: form["problem"] for form in found["forms"]}
    assert problems["quantize_dynamic"] == problems["quantize_dynamic, per channel"] == ""


def test_sequence_axes() -> None:
    ids: list[int | str | None] = ["batch", "sequence"]
    assert sequence_axes(inputs(ids, ids)) == {"x0": [1], "x1": [1]}
    assert sequence_axes(inputs(ids, ["batch", 1, "sequence", "sequence"], [3])) == {"x0": [1], "x1": [2, 3], "x2": []}
    assert sequence_axes(inputs([None, None, 8], kind="tensor(float)")) == {"x0": [1]}
    assert sequence_axes(inputs(ids, ["batch", "past + sequence"])) is None
    assert sequence_axes(inputs(["batch", 8])) is None
    assert sequence_axes(inputs(["batch", "features"], kind="tensor(float)")) is None
    assert sequence_axes(inputs(["batch", 3, "height", "width"], kind="tensor(float)")) is None
    assert sequence_axes(inputs([None, None, None], kind="tensor(float)")) is None
    assert sequence_axes([]) is None


def test_picture() -> None:
    def form(name: str, ms: float, ratio: float | None) -> Form:
        return Form(name, 1, ratio, 1.0, (FormTiming(Case(1, 1), Latency(ms, ms, ms, ms, ms, 9), 1.0),))

    forms = [form("float", 9.7, None), form("a", 2, 12), form("b", 1, 31), form("c", 1.01, 30.9)]
    forms += [form("exact", 5, math.inf), Form("fails", problem="it fails")]
    chart = comparison.chart(QuantizationBench("m", Data(({},), ()), (Case(1, 1),), tuple(forms)), 0)
    assert [dot.name for dot in chart.dots] == ["b", "c", "a"]
    assert [tick.text for tick in chart.x_ticks] == ["0", "2", "4", "6", "8", "10"]
    assert [tick.text for tick in chart.y_ticks] == ["10", "15", "20", "25", "30", "35"]
    width, height = chart.right - chart.left, chart.bottom - chart.top
    for dot in chart.dots:
        assert dot.x == pytest.approx(chart.left + width * dot.ms / 10, abs=0.1)
        assert dot.y == pytest.approx(chart.bottom - height * (dot.snr_db - 10) / 25, abs=0.1)
    assert chart.float_at == pytest.approx(chart.left + width * 0.97, abs=0.1)
    assert chart.dots[1].label_y - chart.dots[0].label_y >= 15


def test_errors(model: str, data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixed = str(tmp_path / "fixed.onnx")
    onnx.save(quantizing.product(shape=(2, quantizing.K)), fixed)
    np.savez(tmp_path / "wrong.npz", y=np.zeros(1, np.float32))
    for arguments, text in (
        (("quantize", str(tmp_path / "none.onnx")), "there is no file"),
        (("quantize", "ddddocrr"), "no package of this name is known; did you mean ddddocr?"),
        (("quantize", "silero"), "no package of this name is known; did you mean silero-vad?"),
        (("quantize", "nothing"), "the packages are ddddocr, silero-vad"),
        (("quantize", model, "--report", "page.pdf"), "choose a name that ends with .html instead of page.pdf"),
        (("quantise", model), "there is no file quantise; did you mean `ort-dynq bench-quantize`?"),
        (("quantize", str(MODELS / "ort_dynamic" / "model.onnx")), "is quantized by quantize_dynamic"),
        (("quantize", fixed, "--tokens", "4"), "--tokens is for models with a dynamic sequence"),
        (("quantize", model, "--data", data, "--shape", "x=1x2x3"), "--data gives the values and shapes"),
        (("quantize", model, "--data", str(tmp_path / "wrong.npz")), "wrong.npz"),
        (("quantize", model, "--report", model), "is the model itself"),
        (("quantize", model, "--report", str(tmp_path / "no" / "page.html")), "there is no folder"),
    ):
        assert cli.main(["bench", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert text in captured.err, arguments
