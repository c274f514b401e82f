"""`ort-dynq inspect --program`, and programs in the texts of `inspect` and `rewrite`."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from commands import MODELS, run_json

from ort_dynq import cli
from ort_dynq.operators import VERSION

MOBILE = str(MODELS / "ort_dynamic_mobile" / "model.onnx")
TEXT = "r1 = Clip(Div(ReduceMax(Abs(x)), 127.0), 1e-05, inf); codes = Round(Div(Add(x, column2), r1)); scale = r1"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model that was written by hand: a program without a name, and a Neg."""
    monkeypatch.chdir(tmp_path)
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18, "ort_dynq": {VERSION}]>
        g (float[n, 4, 8] x, float[4, 8] c) => (int8[n, 4, 8] codes, float[n, 1, 1] negative)
        <int8 like = {{0}}, float[1] unused = {{0}}>
        {{ codes, z, d, d2, s, m = ort_dynq.RowProgram<program = "{TEXT}", axis = -2, code_type = 3>
             (x, like, unused, c, unused, unused)
           negative = Neg(s) }}""")
    onnx.save(model, "written.onnx")
    return "written.onnx"


def test_program_of_a_node(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One statement a line, then what the program reads and assigns. A node without a name has that of its output."""
    assert cli.main(["inspect", written, "--program", "codes"]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["codes: RowProgram in main, 7 steps", "a row: the dimensions from -2 on"]
    assert "; ".join(lines[3:6]) == TEXT
    assert [line.split() for line in lines[7:10]] == [
        ["reads", "value", "type", "from"],
        ["x", "x", "float32[n,", "4,", "8]", "input", "of", "the", "graph"],
        ["column2", "c", "float32[4,", "8]", "input", "of", "the", "graph"],
    ]
    assert [line.split()[0] for line in lines[11:]] == ["assigns", "codes", "scale"]
    assert lines[-2].endswith("output of the graph")
    assert lines[-1].split() == ["scale", "s", "-", "Neg", "negative"]


def test_program_as_json(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "inspect", written, "--program", "codes")
    assert {key: data[key] for key in ("input", "node", "operator", "graph", "steps", "axis")} == {
        "input": written,
        "node": "codes",
        "operator": "RowProgram",
        "graph": "main",
        "steps": 7,
        "axis": -2,
    }
    assert (data["program"], data["statements"]) == (TEXT, TEXT.split("; "))
    assert data["inputs"] == [
        {"name": "x", "value": "x", "type": "float32[n, 4, 8]", "nodes": ["input of the graph"]},
        {"name": "column2", "value": "c", "type": "float32[4, 8]", "nodes": ["input of the graph"]},
    ]
    assert [(each["name"], each["value"], each["nodes"]) for each in data["outputs"]] == [
        ("codes", "codes", ["output of the graph"]),
        ("scale", "s", ["Neg negative"]),
    ]


def test_program_of_a_product(capsys: pytest.CaptureFixture[str]) -> None:
    """The residual of a model that is rewritten here, under the name that the report has."""
    data = run_json(capsys, "inspect", MOBILE)
    (name,) = (each["node"] for each in data["rewritten"] if each["program"] == "dst = Add(x, tensor1)")
    found = run_json(capsys, "inspect", MOBILE, "--program", name)
    assert (found["operator"], found["statements"]) == ("QuantizedConvProgram", ["dst = Add(x, tensor1)"])
    x, residual = found["inputs"]
    assert x == {"name": "x", "value": "", "type": "", "nodes": ["the result of QuantizedConv"]}
    assert (residual["name"], residual["value"]) == ("tensor1", "a1")  # the other operand of the model's Add
    (sum_,) = found["outputs"]
    assert (sum_["name"], sum_["value"]) == ("dst", "sum")


def test_errors_name_nodes_with_programs(written: str, capsys: pytest.CaptureFixture[str]) -> None:
    for name, message in (
        ("none", "the rewritten model has no node 'none'; nodes with programs: codes"),
        ("negative", "'negative' is Neg in the rewritten model, and has no program; nodes with programs: codes"),
    ):
        assert cli.main(["inspect", written, "--program", name]) == 2
        assert capsys.readouterr().err == f"ort-dynq: error: {message}\n"
    constant = str(MODELS / "torch_lsq_constant" / "model.onnx")
    assert cli.main(["inspect", constant, "--program", "none"]) == 2
    assert capsys.readouterr().err.endswith("; no node has a program\n")
    assert cli.main(["inspect", written, "--program", "codes", "--values", "codes"]) == 2
    assert "not allowed with argument" in capsys.readouterr().err
    assert cli.main(["inspect", "--program", "codes"]) == 2
    assert "there is nothing to inspect; give a model" in capsys.readouterr().err


def test_many_nodes_are_not_all_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = 'ort_dynq.RowProgram<program = "dst = Neg(x)">(x, like, u, u, u, u)'
    calls = "\n".join(f"c{i}, z{i}, y{i} = {call}" for i in range(11))
    outputs = ", ".join(f"float[n] y{i}" for i in range(11))
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["": 18, "ort_dynq": {VERSION}]>
        g (float[n] x) => ({outputs}) <int8 like = {{0}}, float[1] u = {{0}}> {{ {calls} }}""")
    onnx.save(model, tmp_path / "many.onnx")
    assert cli.main(["inspect", str(tmp_path / "many.onnx"), "--program", "none"]) == 2
    assert capsys.readouterr().err.endswith("c0, c1, c2, c3, c4, c5, c6, c7 and 3 more\n")


def test_inspect_and_rewrite_show_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A product with a program is one finding and one line for equal layers. Long programs are a number of steps."""
    assert cli.main(["inspect", MOBILE]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[3].split() == ["rewritten", "nodes", "graph", "operator", "becomes", "program"]
    tails = [line.split(maxsplit=5) for line in lines if "QuantizedConvProgram" in line]
    assert [(row[0], row[5]) for row in tails] == [
        ("1", "dst = Clip(x, 0.0, 6.0)"),
        ("2", "dst = Clip(x, 0.0, 6.0)"),
        ("1", "dst = Add(x, tensor1)"),
    ]
    assert cli.main(["rewrite", MOBILE, "-o", str(tmp_path / "fast.onnx")]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.split() == ["rewritten", "rule", "becomes", "program"] for line in lines)
    rows = [line.split(maxsplit=4) for line in lines if "integer convolution" in line]
    assert [(row[0], *row[3:]) for row in rows] == [
        ("3", "QuantizedConvProgram", "dst = Clip(x, 0.0, 6.0)"),
        ("1", "QuantizedConvProgram", "dst = Add(x, tensor1)"),
        ("1", "QuantizedConv", "-"),
    ]
    chain = str(MODELS / "functions" / "model.onnx")
    assert cli.main(["inspect", chain]) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if "RowProgram" in line]
    assert lines
    assert all(line.endswith(" steps") for line in lines)
    data = run_json(capsys, "inspect", chain)
    assert [each["node"] for each in data["unconverted"]] == []  # the chains have become programs
