"""`ort-dynq rewrite`, `inspect` and `verify`: their results as text and JSON, and the files that they write."""

from __future__ import annotations

import re
from pathlib import Path

import helpers
import nbits
import numpy as np
import onnx
import pytest
from commands import ENCODER, MODELS, run_json
from helpers import diagonals

import ort_dynq
from ort_dynq import cli
from ort_dynq.operators import OPERATORS


def test_rewrite_writes_a_verified_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "rewrite", "model.onnx", "-o", "fast.onnx", "--verify", "--shape", "x=3x4")
    assert data["output"] == "fast.onnx"
    assert [each["operator"] for each in data["rewritten"]] == ["DynamicQuantize", "DynamicDequantize", "ReduceMinMax"]
    assert data["unconverted"] == []
    assert data["after"]["ort_dynq.DynamicQuantize"] == data["before"]["QuantizeLinear"] == 1
    assert data["verification"]["passed"] is True
    assert data["verification"]["inputs"][0]["shape"] == [3, 4]
    assert ort_dynq.verify("model.onnx", "fast.onnx").passed
    assert sorted(path.name for path in folder.iterdir()) == ["fast.onnx", "model.onnx", "wrong.onnx", "x.npy"]


def test_rewrite_without_verify(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_json(capsys, "rewrite", "model.onnx", "-o", "fast.onnx")["verification"] is None
    assert cli.main(["rewrite", "fast.onnx", "-o", "again.onnx"]) == 0
    text = capsys.readouterr().out
    assert "nothing to rewrite: 1 ort_dynq.DynamicDequantize" in text
    assert "before" not in text  # no table of operators: its two columns would be equal
    size = f"{(folder / 'fast.onnx').stat().st_size / 1e3:.1f} kB"
    assert text.splitlines()[-1] == f"fast.onnx {size} -> again.onnx {size}; products: 0 integer, 0 float"


def test_rewrite_keeps_the_weights_of_the_original(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = onnx.load(ENCODER)
    onnx.save(model, "large.onnx", save_as_external_data=True, location="large.data", size_threshold=0)
    before = (folder / "large.data").read_bytes()
    for command in ("rewrite", "rewrite --exact --force"):
        assert cli.main([*command.split(), "large.onnx", "-o", "large.data"]) == 2
    assert "large.data has weights of the model; choose another name" in capsys.readouterr().err
    assert (folder / "large.data").read_bytes() == before


@pytest.mark.parametrize("option", ["--shape=x=2x4", "--data=sets.npz"])
def test_data_imply_a_verification(option: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A shape that does not fit is an error, not ignored. Of several sets, every one is compared."""
    given = onnx.load("model.onnx").graph.input[0]
    shape = [size.dim_value or 2 for size in given.type.tensor_type.shape.dim]
    values = np.random.default_rng(0).standard_normal((3, *shape), np.float32)
    np.savez("sets.npz", **{given.name: values})
    good = option.replace("2x4", "x".join(map(str, shape)))
    assert cli.main(["rewrite", "model.onnx", "-o", "out.onnx", good, "--no-timing"]) == 0
    printed = capsys.readouterr().out
    assert printed.endswith("PASSED\n")
    assert ("3 sets of data from sets.npz" in printed) == ("--data" in option)
    np.savez("sets.npz", **{given.name: values[..., :1]})
    bad = option.replace("2x4", "1x2x3x4x5x6")
    assert cli.main(["rewrite", "model.onnx", "-o", "bad.onnx", bad, "--no-timing"]) == 2
    assert "has shape" in capsys.readouterr().err
    assert not Path("bad.onnx").exists()


def test_rewrite_in_place(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("model.onnx").read_bytes()
    Path("link.onnx").symlink_to("model.onnx")
    for same in ("model.onnx", "./model.onnx", "link.onnx"):
        assert cli.main(["rewrite", "model.onnx", "-o", same]) == 2
        assert (
            capsys.readouterr().err
            == f"ort-dynq: error: {Path(same)} is the input itself; use --force to overwrite it\n"
        )
    assert Path("model.onnx").read_bytes() == before
    assert cli.main(["rewrite", "model.onnx", "-o", "model.onnx", "--force", "--verify"]) == 0
    assert Path("model.onnx").read_bytes() != before


def test_rewrite_that_fails_verification_writes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ort_dynq import rewriter

    result = rewriter.rewrite("wrong.onnx")
    monkeypatch.setattr(rewriter, "rewrite", lambda *_, **__: result)
    before = sorted(folder.iterdir())
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx", "--verify"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"FAILED: y: [1-8] of 8 elements differ", lines[-1])
    assert "fast.onnx is not written" in lines
    assert run_json(capsys, "rewrite", "model.onnx", "-o", "fast.onnx", "--verify", status=1)["output"] is None
    assert sorted(folder.iterdir()) == before


def test_rewrite_copies_external_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The rewritten model is verified with its external data before it is written, and both are written."""
    model = helpers.parse(
        "float[2, 500] x, float s",
        "float[2, 500] product, int8[2, 500] codes",
        "zero = Constant<value = int8 {0}>() product = Mul(x, weights) codes = QuantizeLinear(product, s, zero)",
    )
    del model.opset_import[1]
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.arange(500, dtype=np.float32), "weights"))
    onnx.save(model, "large.onnx", save_as_external_data=True, location="large.data", size_threshold=0)
    Path("elsewhere").mkdir()
    assert cli.main(["rewrite", "large.onnx", "-o", "elsewhere/fast.onnx", "--verify"]) == 0
    captured = capsys.readouterr()
    assert (captured.err, captured.out.splitlines()[-1]) == ("", "PASSED")
    model_file, data = sorted(path.name for path in Path("elsewhere").iterdir())
    assert model_file == "fast.onnx"
    assert re.fullmatch(r"fast\.onnx\.[0-9a-f]{12}\.data", data)
    assert cli.main(["verify", "large.onnx", "elsewhere/fast.onnx"]) == 0


def test_exact_keeps_float_products(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--exact keeps float products. Without it, verification compares the integer products."""
    data = run_json(capsys, "inspect", str(ENCODER), "--exact")
    assert (len(data["rewritten"]), len(data["unconverted"])) == (28, 24)
    encoder = str(MODELS / "encoder_tensor_u8" / "model.onnx")
    exact = run_json(capsys, "rewrite", encoder, "-o", "exact.onnx", "--exact", "--verify")["verification"]
    assert (exact["passed"], exact["products"], exact["worst_product"]) == (True, [], None)
    fast = run_json(capsys, "rewrite", encoder, "-o", "fast.onnx", "--verify")["verification"]
    assert (fast["passed"], len(fast["products"]), fast["unreachable"]) == (True, 6, 0)
    assert fast["worst_product"] in [product["name"] for product in fast["products"]]
    assert len(fast["end_to_end"]) == len(fast["perturbed"]) == 1

    assert cli.main(["verify", encoder, "fast.onnx", "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Float products that became integer products: 6. Each is computed") for line in lines)
    assert any(line.startswith("worst: ") and "allowed 8" in line for line in lines)
    assert "All optimizations off, with A's results of these products:" in lines
    assert any(line.startswith("End to end, for information: B, and A with its results") for line in lines)
    assert lines[-1] == "PASSED"
    assert cli.main(["verify", encoder, "fast.onnx"]) == 0
    brief = capsys.readouterr().out.splitlines()[-2:]
    assert brief == [
        "6 integer products: right, compared with float64; everything else is equal bit for bit",
        "PASSED",
    ]
    assert cli.main(["verify", encoder, "exact.onnx"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["every output is equal bit for bit", "PASSED"]


def test_a_model_that_replaces_its_original(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "model.onnx").stat().st_size
    closing = run_json(capsys, "rewrite", "model.onnx", "-o", "model.onnx", "--force")["closing"]
    after = (folder / "model.onnx").stat().st_size
    assert (closing["bytes_before"], closing["bytes_after"], closing["speed"]) == (before, after, None)
    assert before != after


def test_a_model_that_cannot_be_timed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The closing line has the command that times the models, with data that the user has."""
    model = onnx.load(ENCODER)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "n"  # a MatMul needs 32
    onnx.save(model, "open.onnx")
    assert cli.main(["rewrite", "open.onnx", "-o", "fast.onnx"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("; speed: `ort-dynq bench open.onnx fast.onnx`")
    closing = run_json(capsys, "rewrite", "open.onnx", "-o", "fast.onnx", "--no-timing")["closing"]
    assert (closing["speed"], closing["not_timed"]) == (None, "")


def test_inspect_groups_equal_layers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "inspect", str(ENCODER))
    assert (len(data["rewritten"]), len(data["unconverted"])) == (28, 12)
    assert [group["count"] for group in data["groups"]] == [8, 4, 4, 16, 8]
    assert cli.main(["inspect", str(ENCODER)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{ENCODER}: 28 dynamic quantization chains and products to rewrite, 12 unconverted"
    nodes = sum(data["before"].values()), sum(data["after"].values())
    assert lines[1] == f"{nodes[0]} nodes, {nodes[1]} after a rewrite"
    assert [line.split(maxsplit=5) for line in map(str.rstrip, lines[3:7])] == [
        ["rewritten", "nodes", "graph", "operator", "becomes", "program"],
        ["8", "node_matmul_*", "main", "MatMul", "QuantizedMatMul", "-"],
        ["4", "node_matmul_*", "main", "MatMul", "QuantizedMatMulProgram", "dst = Add(tensor1, x)"],
        ["16", "node_QuantizeLinear_*", "main", "QuantizeLinear", "RowProgram", "15 steps"],
    ]
    assert lines[8].split() == ["unconverted", "nodes", "graph", "operator", "reason"]
    assert lines[9].split()[0] == "4"
    assert "ONNX Runtime fuses" in lines[9]  # lines are not wrapped if there is no terminal
    assert lines[10].split()[:2] == ["8", "node_fake_quantize_per_tensor_affine_*"]
    rounding = (
        "last bits depend on the CPU, since floats are rounded: 2 Gelu, 5 LayerNormalization, 4 MatMul and 2 Softmax"
    )
    assert lines[11:] == ["", "Depends on the CPU after a rewrite:", rounding]


def test_inspect_of_weights_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Products that ask for floats are listed as `rewrite` would leave or convert them."""
    model = tmp_path / "model.onnx"
    onnx.save(nbits.make(level=0).model, model)
    data = run_json(capsys, "inspect", str(model))
    assert [each["node"] for each in data["unconverted"]] == ["product"]
    data = run_json(capsys, "inspect", str(model), "--weights-only", "blocks")
    assert (data["unconverted"], [each["node"] for each in data["rewritten"]]) == ([], ["product"])


def test_inspect_prints_what_is_known_of_values(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The values before an activation, in order, with bounds, codes and the place where the codes are lost."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 18]>
        g (float[4, 32] x) => (float[4, 32] y) <float c = {127}, float e = {1e-5}>
        { a = Abs(x) m = ReduceMax<keepdims = 1>(a) r = Max(m, e) s = Div(r, c) t = Div(x, s) q = Round(t)
          d = Mul(q, s) y = Sigmoid(d) }""")
    onnx.save(model, "values.onnx")
    data = run_json(capsys, "inspect", "values.onnx", "--values", "y")
    assert [each["name"] for each in data["values"]] == ["x", "a", "m", "r", "s", "t", "q", "d", "y"]
    found = {each["name"]: each for each in data["values"]}
    assert found["t"]["bounds"] == "numbers >= -127 and <= 127"
    assert found["d"]["form"] == "scale * q, codes -127 to 127"
    assert "after Sigmoid y" in found["y"]["lost"]
    assert cli.main(["inspect", "values.onnx", "--values", "d"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["d", "Mul"]
    assert cli.main(["inspect", "values.onnx", "--values", "none"]) == 2
    assert "the model has no value 'none'" in capsys.readouterr().err


def test_inspect_escapes_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names are not interpreted as markup; control characters and line breaks are escaped."""
    model = onnx.load("model.onnx")
    model.graph.node[4].name = "[bold]a[/bold] :smile: \x1b[31m\nnext"
    onnx.save(model, "named.onnx")
    assert cli.main(["inspect", "named.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 + 3
    assert sum(r"[bold]a[/bold] :smile: \x1b[31m next" in line for line in lines) == 1


@pytest.mark.parametrize(("opset", "name"), diagonals(1, [None, 13], OPERATORS))
def test_inspect_prints_the_body_of_an_operator(
    name: str, opset: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The text parses as a function of the operator. The JSON contains the same text."""
    arguments = ["inspect", "--body", name, *([] if opset is None else ["--opset", str(opset)])]
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    function = onnx.parser.parse_function(text)
    assert (function.domain, function.name, function.opset_import[0].version) == ("ort_dynq", name, opset or 21)
    assert list(function.input) == [each.name for each in OPERATORS[name].inputs]
    assert len(function.node) > 0
    assert run_json(capsys, *arguments) == {"operator": name, "opset": opset or 21, "body": text.rstrip("\n")}


def test_verify_equal_models(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "model.onnx", "model.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == ("input x: float32 2x4, generated, seed 0; assumed batch = 2: set it with --shape x=2x4")
    assert lines[-1] == "PASSED"
    data = run_json(capsys, "verify", "model.onnx", "model.onnx", "--seed", "7", "--shape", "x=5x4")
    assert (data["seed"], data["inputs"][0]["shape"], data["inputs"][0]["assumed"]) == (7, [5, 4], {})


def test_verify_finds_the_first_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The expected difference is computed with NumPy from the outputs of both models."""
    data = run_json(capsys, "verify", "model.onnx", "wrong.onnx", "--input", "x=x.npy", status=1)
    y, codes = data["outputs"]
    session = helpers.stock_session(onnx.load("model.onnx")), helpers.stock_session(onnx.load("wrong.onnx"))
    a, b = (each.run(None, {"x": np.load("x.npy")}) for each in session)
    differing = np.argwhere(a[0] != b[0])
    assert (data["passed"], data["status"]) == (False, "failed")
    assert data["reason"] == f"y: {y['differing']} of 8 elements differ"
    assert codes["differing"] == np.count_nonzero(a[1] != b[1])
    assert y["differing"] == len(differing) > 0
    first = tuple(differing[0])
    assert y["first"] == {"index": [int(i) for i in first], "a": float(a[0][first]), "b": float(b[0][first])}
    assert y["max_ulp"] == np.max(np.abs(a[0].view(np.int32) - b[0].view(np.int32)))

    assert cli.main(["verify", "model.onnx", "wrong.onnx", "--input", "x=x.npy"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "input x: float32 2x4, given"
    assert lines[-1] == f"FAILED: {data['reason']}"
    assert any(f"{[int(i) for i in first]}: A {a[0][first]!s}, B {b[0][first]!s}" in line for line in lines)


def test_a_rewrite_says_in_and_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The details of a verification, too; an output that is called A keeps its name."""
    model = onnx.load(ENCODER)
    name = model.graph.output[0].name
    model.graph.node.append(onnx.helper.make_node("Neg", [name], ["A"]))
    model.graph.output.append(onnx.helper.make_empty_tensor_value_info("A"))
    model.graph.output[-1].type.CopyFrom(model.graph.output[0].type)
    onnx.save(model, "named.onnx")
    assert cli.main(["rewrite", "named.onnx", "-o", "fast.onnx", "--verify", "-v", "--no-timing"]) == 0
    text = capsys.readouterr().out
    assert "computed from IN's values" in text
    assert "OUT's error" in text
    assert {line.split()[0] for line in text.splitlines() if re.search(r"\b[AB]\b", line)} == {"A"}


def test_verify_names_an_incorrect_product(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ort_dynq.rewrite(ENCODER).to_proto()
    product = [node for node in wrong.graph.node if node.op_type == "QuantizedMatMul"][3]
    (bias,) = (tensor for tensor in wrong.graph.initializer if tensor.name == product.input[5])
    bias.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(bias) * np.float32(1.01), bias.name))
    onnx.save(wrong, "wrong.onnx")
    assert cli.main(["verify", str(ENCODER), "wrong.onnx"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(f"incorrect: {product.name}: B's error is ") for line in lines) == 1
    assert lines[-1].startswith(f"FAILED: {product.name}: B's error is ")


def test_verify_on_nan_only(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal NaN show nothing: another status than passed and failed, and nothing is written."""
    negative = helpers.parse("float[4] x", "float[4] y, float[0] e", "y = Neg(x) n = Shape(x) e = Slice(x, n, n)")
    del negative.opset_import[1]
    onnx.save(negative, "neg.onnx")
    np.save("nan.npy", np.array([np.nan, np.inf, -np.inf, np.nan], np.float32))
    reason = "no finite value could be compared: every element of A's outputs is NaN or infinite, or there is none"
    data = run_json(capsys, "verify", "neg.onnx", "neg.onnx", "--input", "x=nan.npy", status=3)
    assert (data["passed"], data["status"], data["reason"]) == (False, "unchecked", reason)
    assert cli.main(["rewrite", "neg.onnx", "-o", "fast.onnx", "--verify", "--input", "x=nan.npy"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"NOT CHECKED: {reason.replace('A', 'IN')}"
    assert "y: no finite value could be compared" in lines
    assert "fast.onnx is not written" in lines
    assert not Path("fast.onnx").exists()
    np.save("one.npy", np.array([np.nan, 1, -np.inf, np.nan], np.float32))
    assert cli.main(["verify", "neg.onnx", "neg.onnx", "--input", "x=one.npy"]) == 0


def test_a_model_that_stays_is_the_same_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with bytes that another serialization would write otherwise."""
    weights = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0])
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 2]) for name in "xy"]
    nodes = [onnx.helper.make_node("Add", ["x", "w"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", inputs[:1], inputs[1:], [weights])
    source, target = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), source)
    assert cli.main(["rewrite", str(source), "-o", str(target), "--verify"]) == 0
    assert target.read_bytes() == source.read_bytes()
    assert cli.main(["rewrite", str(source), "-o", str(source), "--force"]) == 0
    assert target.read_bytes() == source.read_bytes()
