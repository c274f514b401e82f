"""`ort-dynq quantize`: its results as text and JSON, its files, and its errors."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from commands import MODELS, run_json
from helpers import make_session
from onnx import TensorProto, helper, numpy_helper
from quantizing import every_size

import ort_dynq
from ort_dynq import cli, kernels, system
from ort_dynq.cli import closing
from ort_dynq.tools.bench.models import Samples


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with float.onnx: two layers and a product of two activations."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"], name="up"),
        helper.make_node("MatMul", ["hidden", "w"], ["result"], name="down"),
        helper.make_node("MatMul", ["result", "hidden"], ["y"], name="scores"),
    ]
    weights = numpy_helper.from_array(np.random.default_rng(0).standard_normal((160, 160), np.float32), "w")
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, (160, 160)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], [weights])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "float.onnx"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["quantize", "float.onnx", "-o", "int8.onnx", "--exclude", "down", "--no-timing"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line]
    assert lines.pop(-2) == f"{system.cpu_name()}: {system.gain_of_integers(kernels.isa())}".split()
    before, after = ((folder / name).stat().st_size / 1e3 for name in ("float.onnx", "int8.onnx"))
    assert lines == [
        ["float.onnx:", "1", "layer", "quantized,", "2", "unconverted"],
        ["quantized", "operator", "becomes"],
        ["1", "MatMul", "QuantizedMatMul"],
        ["unconverted", "operator", "reason"],
        ["1", "MatMul", "excluded", "by", "down"],
        ["1", "MatMul", "a", "product", "of", "two", "activations"],
        f"float.onnx {before:.0f} kB -> int8.onnx {after:.0f} kB; products: 1 integer, 2 float".split(),
    ]
    assert (folder / "int8.onnx").read_bytes() == (
        ort_dynq.quantize("float.onnx", exclude=["down"]).to_proto().SerializeToString()
    )


def test_text_says_where_options_differ(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load("float.onnx")
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((200, 200), np.float32), "w"))
    for value in (*model.graph.input, *model.graph.output):
        for dimension in value.type.tensor_type.shape.dim:
            dimension.dim_value = 200
    onnx.save(model, "float.onnx")
    assert cli.main(["quantize", "float.onnx", "-o", "int4.onnx", "--weights", "int4"]) == 0
    assert "QuantizedMatMul: int8, since no group divides 200 rows" in " ".join(capsys.readouterr().out.split())


def test_python_and_the_closing_line_count_as_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nine products and two tables are eleven layers; the attention is a fusion, and an integer product."""
    source, target = MODELS / "float_encoder" / "model.onnx", tmp_path / "int8.onnx"
    with every_size():
        result = ort_dynq.quantize(source)
        assert cli.main(["quantize", str(source), "-o", str(target), "--no-timing"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{source}: {result.report.summary}"
    assert lines[-1].endswith("; products: 10 integer, 0 float")
    assert repr(result) == "<Result: 11 layers quantized, 0 unconverted, 4 fusions>"
    page = result._repr_html_()
    assert re.findall("<tr><th>(.*?)</th>", page) == ["quantized", "fused"]


def test_no_layer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is written, unless that is asked for."""
    given = ["quantize", "float.onnx", "-o", "same.onnx", "--exclude", "*"]
    assert cli.main(given) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "FAILED: no layer is quantized, so same.onnx is not written; --allow-none writes it"
    )
    assert not (folder / "same.onnx").exists()
    assert cli.main([*given, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["output"] is None
    assert cli.main([*given, "--allow-none"]) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert onnx.load("same.onnx").graph.node == onnx.load("float.onnx").graph.node


def test_json_and_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--weights", "int4", "--group", "64", "--activations", "tensor")
    data = run_json(capsys, "quantize", "float.onnx", "-o", "int4.onnx", *options)
    assert [(each["node"], each["operator"]) for each in data["quantized"]] == [
        ("up", "QuantizedMatMul"),
        ("down", "QuantizedMatMul"),
    ]
    assert [each["node"] for each in data["unconverted"]] == ["scores"]
    assert data["output"] == "int4.onnx"
    assert data["before"] == {"MatMul": 3}
    model = onnx.load("int4.onnx")
    metadata = {each.key: each.value for each in model.metadata_props}
    assert metadata["ort_dynq.quantized"] == "weights=int4 group=64 activations=tensor symmetric=0"
    make_session(model, "native").run(None, {"x": np.ones((160, 160), np.float32)})


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["float.onnx", "-o", "float.onnx"], "use --force to overwrite it"),
        (["missing.onnx", "-o", "out.onnx"], "there is no file missing.onnx"),
        (["float.onnx", "-o", "out.onnx", "--group", "32"], "give weights int4 as well"),
        (["float.onnx", "-o", "out.onnx", "--exclude", "head*"], "no layer matches head*"),
        (["float.onnx", "-o", "out.onnx", "--from-dynamic"], "needs a model that quantize_dynamic made"),
    ],
    ids=lambda each: each[-1] if isinstance(each, list) else "",
)
def test_errors(arguments: list[str], text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(path.name for path in folder.iterdir())
    assert cli.main(["quantize", *arguments]) == 2
    error = capsys.readouterr().err
    assert text in error
    assert error.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_second_quantization_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["quantize", "float.onnx", "-o", "float.onnx", "--force"]) == 0
    assert cli.main(["quantize", "float.onnx", "-o", "again.onnx"]) == 2
    assert "has operators of ort_dynq already" in capsys.readouterr().err
    assert not (folder / "again.onnx").exists()


def with_bias(folder: Path) -> None:
    """Gives float.onnx an addition of a bias, and moves its weights to w.bin."""
    model = onnx.load("float.onnx")
    model.graph.node[2].input[0] = "biased"
    model.graph.node.insert(2, helper.make_node("Add", ["result", "bias"], ["biased"]))
    model.graph.initializer.append(numpy_helper.from_array(np.arange(160, dtype=np.float32), "bias"))
    onnx.save(model, "float.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)


def test_the_file_of_float_weights_is_not_needed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only biases are left of it: OUT has a copy. If a layer stays in float, OUT needs the file and says so."""
    with_bias(folder)
    given = ("quantize", "float.onnx", "-o", "int8.onnx", "--no-timing")
    assert cli.main([*given, "--exclude", "down"]) == 0
    assert capsys.readouterr().out.endswith("; int8.onnx needs w.bin, too\n")
    x = {"x": np.random.default_rng(1).standard_normal((160, 160), np.float32)}
    assert cli.main(given) == 0
    assert "w.bin" not in capsys.readouterr().out
    expected = make_session(ort_dynq.quantize(onnx.load("float.onnx")).to_proto(), "native").run(None, x)[0]
    os.remove("w.bin")
    np.testing.assert_array_equal(make_session(onnx.load("int8.onnx"), "native").run(None, x)[0], expected)


@pytest.mark.parametrize("command", ["quantize", "rewrite"])
def test_the_source_vanishes(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new model is written, also over an older one, and the line has the size of what was read."""

    def vanish(source: Path, *arguments: Any) -> closing.Original:
        source.unlink()
        return closing.original_of(source, *arguments)

    monkeypatch.setattr(f"ort_dynq.cli.{command}.original_of", vanish)
    size = Path("float.onnx").stat().st_size
    Path("out.onnx").write_bytes(b"old")
    assert run_json(capsys, command, "float.onnx", "-o", "out.onnx")["closing"]["bytes_before"] == size
    onnx.load("out.onnx")


@pytest.mark.usefixtures("busy_limit")
@pytest.mark.parametrize("command", ["rewrite", "quantize", "bench", "report"])
def test_speed_is_that_of_the_medians(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commands have the same statistic, and none has a number if other processes disturb the runs."""
    times = {"ours": np.array([1e6, 1.2e6, 3e6]), "stock": np.array([3e6, 3.6e6, 9e6])}
    for name in ("ort_dynq.tools.bench.models.sample", "ort_dynq.tools.bench.pair.sample"):
        monkeypatch.setattr(name, lambda *_: Samples(times["ours"], times["stock"], ""))
    Path("chain.onnx").write_bytes((MODELS / "torchao_8da8w" / "model.onnx").read_bytes())
    arguments = {
        "rewrite": ("chain.onnx", "-o", "out.onnx"),
        "quantize": ("float.onnx", "-o", "out.onnx"),
        "bench": ("chain.onnx",),
        "report": ("chain.onnx", "--report", "page.html", "--seconds", "0.1"),
    }[command]

    def measured() -> tuple[float | None, str]:
        data: Any = run_json(capsys, "bench" if command == "report" else command, *arguments)
        found = data["timings"][0] if command == "bench" else data if command == "report" else data["closing"]
        return found["ratio" if command in ("bench", "report") else "speed"], found["busy"]

    def text() -> str:
        assert cli.main(["bench" if command == "report" else command, *arguments]) == 0
        page = Path("page.html").read_text() if command == "report" else ""
        return " ".join((capsys.readouterr().out + page).split())

    headline = {"bench": "A / B 3.00", "report": ": 3.00x speed"}.get(command, "about 3.0 times as fast on this CPU")
    assert measured() == (pytest.approx(3), "")
    assert headline in text()
    times["stock"][1] = 4.6e6
    busy = "the machine is too busy to say how fast: the median of the runs is 4.6 ms, the fastest 3 ms"
    assert measured() == (None, busy)
    found = text()
    assert busy in found
    assert not re.search(r"times as fast|x speed|x the speed|A / B \d", found)


def test_what_integers_gain_is_not_said_beside_a_measured_speed(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for speed in (1.05, 3.0):
        samples = Samples(np.full(5, 1e6), np.full(5, speed * 1e6), "")
        monkeypatch.setattr("ort_dynq.tools.bench.models.sample", lambda *_, samples=samples: samples)
        assert cli.main(["quantize", "float.onnx", "-o", "int8.onnx"]) == 0
        text = capsys.readouterr().out
        assert f"about {speed:.1f} times as fast" in text
        assert system.cpu_name() in text
        assert "integer layers" not in text
    assert run_json(capsys, "quantize", "float.onnx", "-o", "int8.onnx")["gain"] == ""
    assert run_json(capsys, "quantize", "float.onnx", "-o", "int8.onnx", "--no-timing")["gain"]


@pytest.mark.parametrize("option", ["--verify", "--min-snr=20"])
def test_errors_name_the_file(option: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not A and B, which are the models of `verify`."""
    model = onnx.load("float.onnx")
    model.graph.node[1].op_type = "NoSuchOperator"
    onnx.save(model, "float.onnx")
    assert cli.main(["quantize", "float.onnx", "-o", "int8.onnx", option]) == 2
    assert re.match("ort-dynq: error: float.onnx [a-z]", capsys.readouterr().err)
    model.graph.node[1].op_type = "MatMul"
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "n"
    onnx.save(model, "float.onnx")
    assert cli.main(["quantize", "float.onnx", "-o", "int8.onnx", option]) == 2
    assert capsys.readouterr().err.startswith("ort-dynq: error: float.onnx, the original model, does not run")
