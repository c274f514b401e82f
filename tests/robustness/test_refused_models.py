"""Models that stock ONNX Runtime refuses: a command names the node in one line, and writes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from helpers import stock_session
from onnx import numpy_helper

import ort_dynq
from ort_dynq import cli
from ort_dynq.rewriter import Report, Result, inspect, rewrite
from ort_dynq.storage import load, save
from ort_dynq.structure import structure_of

HEAD = '<ir_version: 10, opset_import: ["": 17, "own": 1]> g (float[N, 8] x) => (float[N, 8] y)'
WEIGHTS = "<float16[8, 8] w = {0}>".replace("{0}", "{" + ", ".join(["1"] * 64) + "}")
MODELS = {
    "types of two operands": (f"{HEAD} {WEIGHTS} {{ a = Relu(x) y = MatMul(a, w) }}", "/product"),
    "a stale type of a result": (f"{HEAD} <int32[N, 8] a> {{ a = Relu(x) y = Neg(a) }}", "/a"),
    "a value that nothing computes": (f"{HEAD} {{ y = Add(x, z) }}", "'z'"),
}


def model_of(text: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    for node in model.graph.node:
        node.name = "/product" if node.op_type == "MatMul" else f"/{node.output[0]}"
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("command", ["inspect", "rewrite", "quantize"])
def test_commands_name_the_node(name: str, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, node = MODELS[name]
    model, target = model_of(text), tmp_path / "out.onnx"
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(Exception, match=r"INVALID|FAIL"):
        stock_session(model)
    output = [] if command == "inspect" else ["-o", str(target)]
    assert cli.main([command, str(tmp_path / "model.onnx"), *output]) == 2
    found = capsys.readouterr()
    assert not found.out
    assert found.err.count("\n") == 1
    assert node in found.err
    assert not target.exists()


def test_a_node_without_a_name_has_that_of_its_output(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(f"{HEAD} <int32[N, 8] stale> {{ stale = Relu(x) y = Neg(stale) }}")
    result = rewrite(model)
    assert re.search(r"ONNX Runtime .* refuses .*node \(stale\)", result.report.refusal)
    assert result.report.refusal in result.report.summary
    with pytest.raises(ort_dynq.DynqError, match=r"node \(stale\)"):
        result.save(tmp_path / "out.onnx")
    assert not any(tmp_path.iterdir())


def test_operators_of_another_library_are_no_error(tmp_path: Path) -> None:
    """A session may have them, so the model is converted as far as it is known."""
    body = "q, s, z = DynamicQuantizeLinear(x) d = DequantizeLinear(q, s, z) y = own.Unknown(d)"
    result = rewrite(onnx.parser.parse_model(f"{HEAD} {{ {body} }}"))
    result.save(tmp_path / "out.onnx")
    assert (tmp_path / "out.onnx").exists()


def test_shapes_may_be_external_data(tmp_path: Path) -> None:
    """ONNX Runtime infers shapes from small tensors, wherever they are. Without them, a model is not checked."""
    model = onnx.parser.parse_model(f"{HEAD} {{ y = Reshape(x, shape) }}")
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 8]), "shape"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    assert not inspect(path).refusal
    assert structure_of(load(path))
    (tmp_path / "data").unlink()
    assert not structure_of(load(path))
    assert not inspect(path).refusal


def twice(model: ir.Model) -> None:
    """Gives two nodes one name."""
    for node in model.graph:
        node.name = "same"


def unsorted_types(model: ir.Model) -> None:
    """Lets a node read a value of another type."""
    node = model.graph[1]
    cast = ir.node("Cast", [node.inputs[0]], {"to": int(ir.DataType.INT32)})
    cast.outputs[0].name = "cast"
    model.graph.insert_before(node, cast)
    node.replace_input_with(1, cast.outputs[0])


@pytest.mark.parametrize("break_", [twice, unsorted_types])
def test_a_refused_result_replaces_nothing(break_: Callable[[ir.Model], None], tmp_path: Path) -> None:
    """What ONNX Runtime does not open is not written, also without --verify: the old file stays."""
    model = load(onnx.parser.parse_model(f"{HEAD} {{ a = Relu(x) y = Add(a, x) }}"))
    break_(model)
    target = tmp_path / "model.onnx"
    target.write_bytes(b"the old file")
    with pytest.raises(ort_dynq.DynqError, match=r"refuses the model for .* it is not written"):
        Result(model, Report()).save(target)
    assert target.read_bytes() == b"the old file"
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


def test_large_weights_are_not_read(tmp_path: Path) -> None:
    """Time and memory of the check depend on the nodes: 3 GB of external data need not even exist."""
    weights = onnx.TensorProto(
        name="w",
        data_type=onnx.TensorProto.FLOAT,
        dims=(1 << 15, 3 << 13),
        data_location=onnx.TensorProto.EXTERNAL,
        external_data=[onnx.StringStringEntryProto(key="location", value="weights.data")],
    )
    small = numpy_helper.from_array(np.ones((8, 1 << 15), np.float32), "v")
    text = "g (float[N, 8] x) => (float[N, M] y) { a = MatMul(x, v) y = MatMul(a, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend([weights, small])
    onnx.save(model, tmp_path / "model.onnx")
    loaded = load(tmp_path / "model.onnx")
    assert len(structure_of(loaded)) < 1000
    assert structure_of(loaded) == structure_of(loaded)
    assert loaded.graph.initializers["v"].const_value is not None
    np.testing.assert_array_equal(loaded.graph.initializers["v"].const_value.numpy(), np.ones((8, 1 << 15)))
    with pytest.raises(ort_dynq.DynqError, match="are missing"):
        save(loaded, tmp_path / "out.onnx")
    assert "external data" in inspect(tmp_path / "model.onnx").notes[0]
