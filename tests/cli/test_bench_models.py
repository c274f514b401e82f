"""`ort-dynq bench` with models and folders: JSON, text and recorded inputs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import helpers
import numpy as np
import onnx
import pytest
from benching import MODELS, QUICK, TOKEN, check_latency, run_bench, run_bench_json

from ort_dynq import DynqError
from ort_dynq.rewriter import rewrite
from ort_dynq.tools.bench import models, opening


def test_bench_model_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_bench_json(capsys, TOKEN, "--threads", "1,2", "--shape", "x=1x3x20")
    assert (data["a"], data["b"], data["seed"]) == (TOKEN, None, 0)
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 3, 20], "given": False, "assumed": {}}]
    assert [each["threads"] for each in data["timings"]] == [1, 2]
    for each in data["timings"]:
        assert (each["name"], each["problem"]) == (TOKEN, "")
        assert each["rewritten"] == {"RowProgram": 1}
        check_latency(each["stock"])
        check_latency(each["ours"])
        assert each["ratio"] == pytest.approx(each["stock"]["median_ms"] / each["ours"]["median_ms"])


def test_bench_model_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_bench(capsys, TOKEN).splitlines()
    assert lines[4].endswith("assumed batch = 2, tokens = 8: set it with --shape x=2x8x20")
    assert lines[5] == f"A: {TOKEN}, in stock ONNX Runtime"
    assert lines[6] == "B: A, rewritten, with the plugin"
    assert lines[7].startswith("1 dynamic quantization chains and products rewritten, 1 unconverted")
    head = next(i for i, line in enumerate(lines) if line.startswith("model"))
    assert lines[head].split() == ["model", "threads", "median", "ms", "p90", "ms", "p99", "ms", "mean", "ms", "runs"]
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["A", "1"], ["B", "1"]]
    assert re.fullmatch(r"threads 1: A / B [0-9]+\.[0-9]{2}", lines[-1])


def test_bench_opening(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the session is open, the process has the weights of 16 MB, some of them in memory that it had freed."""
    monkeypatch.setattr(opening, "_ROUNDS", 1)
    model = helpers.parse("float[n, 2048] x", "float[n, 2048] y", "y = Add(x, weights)")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2048, 2048), np.float32), "weights"))
    onnx.save(model, tmp_path / "a.onnx")
    arguments = (str(tmp_path / "a.onnx"), "--opening", "--shape", "x=2048x2048")
    openings = run_bench_json(capsys, *arguments)["openings"]
    assert openings.keys() == {"a", "b"}
    for each in openings.values():
        assert each["ms"] > 0
        assert 14 < each["mb"] < 100


def test_bench_opening_text(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    openings = opening.Opening(12.34, 5.67), opening.Opening(8.9, None)
    monkeypatch.setattr(models, "measure_opening", lambda *_: openings)
    lines = run_bench(capsys, TOKEN, "--opening").splitlines()
    assert re.split(r" {2,}", lines[-3].strip()) == ["session", "opening ms", "private memory MB"]
    assert [line.split() for line in lines[-2:]] == [["A", "12.3", "5.7"], ["B", "8.9", "-"]]


def test_a_session_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "b.onnx").write_bytes(b"no model")
    with pytest.raises(DynqError, match=r"b\.onnx cannot be opened in a new process: .+"):
        opening.measure_opening(TOKEN, tmp_path / "b.onnx", "native")


def test_bench_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, x = str(tmp_path / "fast.onnx"), str(tmp_path / "x.npy")
    rewrite(TOKEN).save(fast)
    np.save(x, np.ones((1, 1, 20), np.float32))
    data = run_bench_json(capsys, TOKEN, fast, "--input", f"x={x}")
    assert (data["a"], data["b"]) == (TOKEN, fast)
    assert data["inputs"][0]["given"]
    assert data["timings"][0]["rewritten"] is None
    lines = run_bench(capsys, TOKEN, fast, "--seed", "7").splitlines()
    assert "generated, seed 7" in lines[4]
    assert lines[6:8] == [f"B: {fast}, with the plugin", ""]


def test_bench_runs_b_with_the_plugin(tmp_path: Path) -> None:
    """B is not A: here it fails, and the message names the plugin."""
    model = helpers.parse("float[batch, tokens, 20] y", "float[batch, tokens, 20] z", "z = Relu(y)")
    onnx.save(model, tmp_path / "b.onnx")
    with pytest.raises(
        DynqError, match=r"^B does not run in ONNX Runtime with the plugin at its default level: .*: x$"
    ):
        models.bench_model(TOKEN, tmp_path / "b.onnx", QUICK)


def test_bench_model_that_stock_onnxruntime_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "row_zero_point" / "model.onnx")
    (timing,) = run_bench_json(capsys, model)["timings"]
    assert (timing["stock"], timing["ratio"]) == (None, None)
    assert timing["problem"].startswith(f"{model} does not run in stock ONNX Runtime at its default level: ")
    check_latency(timing["ours"])
    assert run_bench(capsys, model).splitlines()[-1] == f"threads 1: {timing['problem']}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("torch_token", "row_zero_point", "ort_dynamic"):
        shutil.copytree(MODELS / name, tmp_path / name)
    (tmp_path / "no model").mkdir()
    (tmp_path / "README.md").touch()
    return tmp_path


def test_bench_folder_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "torch_token", folder / "without data")
    shutil.rmtree(folder / "without data" / "test_data_set_0")
    shutil.copytree(folder / "torch_token", folder / "broken")
    (folder / "broken" / "model.onnx").write_bytes(b"no model")
    data = run_bench_json(capsys, str(folder))
    assert data["folder"] == str(folder)
    timings = {each["name"]: each for each in data["timings"]}
    assert list(timings) == ["broken", "ort_dynamic", "row_zero_point", "torch_token", "without data"]
    assert timings["torch_token"]["rewritten"] == {"RowProgram": 1}
    products = {"DynamicQuantizedMatMul": 1, "DynamicQuantizedMatMulProgram": 1}
    assert timings["ort_dynamic"]["rewritten"] == products
    assert timings["row_zero_point"]["stock"] is None
    for name in ("ort_dynamic", "torch_token"):
        assert (timings[name]["problem"], timings[name]["ratio"] > 0) == ("", True)
        check_latency(timings[name]["stock"])
    for name, problem in (("broken", "not an ONNX model"), ("without data", "'x'")):
        assert (timings[name]["stock"], timings[name]["ours"], timings[name]["ratio"]) == (None, None, None)
        assert problem in timings[name]["problem"]


def test_bench_folder_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_bench(capsys, str(folder), "--threads", "1,2").splitlines()
    rows = [line.split() for line in lines if re.match(r"(ort_dynamic|row_zero_point|torch_token) +[12] ", line)]
    assert [row[:2] for row in rows] == [
        [name, threads] for name in ("ort_dynamic", "row_zero_point", "torch_token") for threads in "12"
    ]
    assert rows[2][2] == "fails"
    assert rows[2][4] == "-"
    assert rows[0][5:7] == ["1", "DynamicQuantizedMatMulProgram,"]
    assert rows[4][5:] == ["1", "RowProgram"]
    assert lines[-1].startswith("row_zero_point does not run in stock ONNX Runtime at its default level")


def test_recorded_inputs(tmp_path: Path) -> None:
    """Tensors are taken by name, or in the order of their numbers if they do not have the names of inputs."""
    names = [f"x{i}" for i in range(11)]
    model = helpers.parse(", ".join(f"float[1] {name}" for name in ("w", *names)), "float[1] y", "y = Add(x0, w)")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"))  # as old models have it
    onnx.save(model, tmp_path / "model.onnx")
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    for tensors in (names, [""] * 11):
        for i, name in enumerate(tensors):
            proto = onnx.numpy_helper.from_array(np.full(1, i, np.float32), name)
            (data / f"input_{i}.pb").write_bytes(proto.SerializeToString())
        assert {name: array.item() for name, array in models.recorded_inputs(tmp_path).items()} == {
            f"x{i}": i for i in range(11)
        }
    (data / "input_3.pb").write_bytes(b"no tensor")
    with pytest.raises(DynqError, match=r"input_3\.pb is not a tensor"):
        models.recorded_inputs(tmp_path)
