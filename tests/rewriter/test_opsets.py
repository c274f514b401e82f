"""Models of opsets before 13: converted if something is gained and no bit changes; otherwise they stay, with a line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.version_converter
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers import stock_session
from old_models import CODES, FAKE, LINEAR, K, N, X, linear, of, unchanged, weights
from onnx import helper, numpy_helper
from quantizing import product
from rewriting import F, check, check_products, found, parse, products, rows

import ort_dynq
from ort_dynq import opsets, runtime
from ort_dynq.cli import main
from ort_dynq.rewriter import inspect, rewrite

CONVERTED = (
    "converted from opset {} to 13 by onnx.version_converter; "
    "with generated inputs, the outputs are the same bit for bit"
)
OLD = {"Round(d)": "Floor(d)", "Clip(r, low, high)": "Clip<max = 127., min = -128.>(r)"}  # before opset 11


def old(body: str) -> str:
    for new, spelling in OLD.items():
        body = body.replace(new, spelling)
    return body


@pytest.mark.parametrize("opset", range(7, 13))
def test_softmax_of_a_quantized_product(opset: int) -> None:
    """Softmax changed in opset 13, the axes of ReduceMax in 18, and Round is new in 11."""
    body = LINEAR.replace("y =", "t =") + " y = Softmax<axis = 1>(t)"
    model = linear(opset, body if opset > 10 else old(body), "float[9, 64] x")
    check_products(model, X)
    report = rewrite(model).report
    assert report.notes == [CONVERTED.format(opset)]
    assert "QuantizedMatMul" in products(report)
    assert report.summary.endswith(report.notes[0])


def test_subgraph() -> None:
    body = (
        f"y = If(flag) <then_branch = t () => (float[N, 48] y1) {{ {LINEAR.replace('y =', 'y1 =')} }}, "
        "else_branch = e () => (float[N, 48] y2) { u = Unsqueeze<axes = [0]>(x) v = Squeeze<axes = [0]>(u) "
        "y2 = MatMul(v, w2) }>"
    )
    model = linear(12, body, "float[N, 64] x, bool flag")
    model.graph.initializer.extend(weights(w2=CODES))
    assert found(rewrite(model).report) == FAKE
    for condition in (True, False):
        check(model, X | {"flag": np.array(condition)})


def test_external_data_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may be larger than one protocol buffer: the converter sees no weights."""
    model = linear()
    model.graph.initializer.extend(weights(big=np.arange(200 * N, dtype=F).reshape(200, N)))
    model.graph.node[-1].output[0] = "h"
    model.graph.node.extend(parse("u = MatMul(t, big) y = Add(h, u)").graph.node)
    model.graph.input.extend(parse("y = Neg(t)", inputs="float[1, 200] t").graph.input)
    path, whole = tmp_path / "model.onnx", model.SerializeToString()
    onnx.save(model, path, save_as_external_data=True, size_threshold=64)
    sizes: list[int] = []
    convert = onnx.version_converter.convert_version

    def recorded(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
        sizes.append(proto.ByteSize())
        return convert(proto, version)

    monkeypatch.setattr(onnx.version_converter, "convert_version", recorded)
    result = rewrite(path)
    result.save(tmp_path / "fast.onnx")
    assert found(result.report) == ["QuantizedMatMulProgram", "RowProgram"]
    assert [each for each in sizes if each < 2000] == sizes != []
    feeds = X | {"t": rows((1, 200))}
    expected = stock_session(whole).run(None, feeds)[0]
    session = ort_dynq.InferenceSession(path, exact=True)
    np.testing.assert_array_equal(session.run(None, feeds)[0], expected)
    stored = onnx.load(tmp_path / "fast.onnx")
    assert [each.name for each in stored.graph.input] == ["x", "t"]
    (big,) = (each for each in stored.graph.initializer if each.name == "big")
    assert numpy_helper.to_array(big).tobytes() == np.arange(200 * N, dtype=F).tobytes()


def refused(model: onnx.ModelProto, why: str) -> None:
    result = rewrite(model)
    (note,) = result.report.notes
    assert why in note
    assert note.startswith("the model stays in opset")
    assert found(result.report) == []
    why = f"the model is of opset {model.opset_import[0].version}, expected 13 or newer"
    assert why in [each.reason for each in result.report.unconverted]
    assert unchanged(result, model)


def test_the_node_that_cannot_be_converted() -> None:
    model = linear(10, "u = Resize(x, sizes) " + old(of("u")))
    model.graph.node[0].name = "enlarge"
    model.graph.initializer.extend(weights(sizes=np.ones(2, F)))
    del model.opset_import[:]
    model.opset_import.add(version=9)
    refused(model, "onnx.version_converter fails at Resize enlarge: ")


def test_outputs_that_differ() -> None:
    """Upsample has asymmetric coordinates; the converter writes a Resize without this attribute."""
    body = 't = Upsample<mode = "linear">(x, scales) h = Reshape(t, shape) ' + old(of("h"))
    model = linear(9, body, "float[1, 1, 2, 16] x")
    sizes = np.array([1, 1, 1, 2], F)
    model.graph.initializer.extend(weights(scales=sizes, shape=np.array([1, K], np.int64)))
    refused(model, "in opset 13, its output y differs")


def test_models_that_run_on_no_generated_input() -> None:
    refused(three_rows(), "it runs on no generated input, so that its outputs cannot be compared; give ")


def three_rows() -> onnx.ModelProto:
    """A model of opset 12 that runs on inputs of 3 * K elements only, which are never generated."""
    model = linear(12, "u = Reshape(x, shape) " + of("u"), "float[N] x")
    model.graph.initializer.extend(weights(shape=np.array([3, K], np.int64)))
    return model


@pytest.mark.parametrize("function", [rewrite, inspect])
def test_outputs_are_compared_on_given_inputs(function: Any) -> None:
    given = {"inputs": {"x": rows((3, K)).ravel()}}, {"shapes": {"x": (3 * K,)}}
    for each, what in zip(given, ("the given", "generated"), strict=True):
        found = function(three_rows(), **each)
        report = found if function is inspect else found.report
        assert report.notes == [CONVERTED.format(12).replace("generated", what)]
        assert "QuantizedMatMul" in products(report)
    (note,) = rewrite(three_rows(), shapes={"x": (2 * K,)}).report.notes
    assert "it does not run on the given inputs, so that its outputs cannot be compared: " in note
    with pytest.raises(ort_dynq.DynqError, match="the model has no input z; it has x"):
        function(three_rows(), shapes={"z": (1,)})


def test_outputs_that_differ_on_given_inputs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that is wrong for large numbers, which are not generated."""
    convert = onnx.version_converter.convert_version

    def wrong(proto: onnx.ModelProto, version: int) -> onnx.ModelProto:
        found = convert(proto, version)
        limit = helper.make_node("Min", ["x", "limit"], ["limited"])
        found.graph.initializer.append(numpy_helper.from_array(F(1e4), "limit"))
        for node in found.graph.node:
            node.input[:] = ["limited" if name == "x" else name for name in node.input]
        found.graph.node.insert(0, limit)
        return found

    monkeypatch.setattr(onnx.version_converter, "convert_version", wrong)
    assert rewrite(linear(), inputs=X).report.rewritten
    (note,) = rewrite(linear(), inputs={"x": X["x"] * F(1e6)}).report.notes
    assert "in opset 13, its output y differs" in note


def test_a_state_of_one_sample() -> None:
    """A batch of 2 is generated first, then one of 1."""
    model = linear(12, "u = Concat<axis = 1>(x, h) " + of("u"), "float[batch, 32] x, float[1, 32] h")
    assert rewrite(model).report.notes == [CONVERTED.format(12)]


def test_larger_inputs_are_tried() -> None:
    model = linear(12, "u = Reshape(x, shape) " + of("u"), "float[N] x")
    model.graph.initializer.extend(weights(shape=np.array([-1, K], np.int64)))
    assert found(rewrite(model).report) == FAKE


def test_bits_are_compared() -> None:
    nan, zero = np.array([np.nan]), np.array([0.0])
    assert opsets._same(nan, nan.copy())
    assert not opsets._same(zero, -zero)
    assert not opsets._same(zero, zero.astype(F))
    assert opsets._same([{"a": np.array(["b"], object)}], [{"a": np.array(["b"], object)}])
    assert not opsets._same([zero], [zero, zero])


def test_quantize() -> None:
    model = product(opset=12)
    result = ort_dynq.quantize(model)
    assert result.report.notes == [CONVERTED.format(12)]
    ort_dynq.InferenceSession(result.model)


def test_quantize_on_given_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = product(opset=12)
    (model.graph.input[0].type.tensor_type.shape.dim[0]).Clear()
    model.graph.node.insert(0, helper.make_node("Reshape", ["x", "three"], ["u"]))
    model.graph.node[1].input[0] = "u"
    width = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    model.graph.initializer.extend(weights(three=np.array([3, width], np.int64)))
    path, data = tmp_path / "model.onnx", {"x": rows((3, width))}
    onnx.save(model, path)
    np.savez(tmp_path / "data.npz", **data)
    text = CONVERTED.format(12).replace("generated", "the given")
    assert ort_dynq.quantize(model, data=data).report.notes == [text]
    given = ("--data", str(tmp_path / "data.npz"), "--verify", "--no-timing")
    assert main(["quantize", str(path), "-o", str(tmp_path / "out.onnx"), *given]) == 0
    assert text in " ".join(capsys.readouterr().out.split())


def test_quantize_a_model_that_cannot_be_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: onnx.ModelProto, version: int) -> Any:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", fail)
    with pytest.raises(ort_dynq.DynqError, match=r"opset 12: onnx.version_converter fails at MatMul layer: no adapter"):
        ort_dynq.quantize(product(opset=12))


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(linear(), path)
    text = CONVERTED.format(11)
    assert main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [text]
    assert main(["rewrite", str(path), "-o", str(tmp_path / "fast.onnx"), "--verify"]) == 0
    assert text in " ".join(capsys.readouterr().out.split())
    page = tmp_path / "report.html"
    assert main(["bench", str(path), "--report", str(page), "--seconds", "0.01"]) == 0
    assert text[1:] in " ".join(page.read_text().split())  # the first letter is upper case


def newer(ir_version: int = 8, **opsets: int) -> onnx.ModelProto:
    model = product()
    model.ir_version = ir_version
    for name, version in opsets.items():
        domain = name.replace("_", ".")
        imports = {each.domain: each for each in model.opset_import}
        (imports.get(domain) or model.opset_import.add(domain=domain)).version = version
    return model


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ("", "opset 999 of the domain ai.onnx,"),
        ("ai_onnx_ml", "opset 999 of the domain ai.onnx.ml,"),
        (None, "IR version 999"),
    ],
)
@pytest.mark.parametrize("command", ["rewrite", "quantize"])
def test_newer_than_onnxruntime(
    command: str, domain: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The message has the newest version that works: onnxruntime opens it, and not the next one."""

    def of_version(version: int) -> onnx.ModelProto:
        return newer(version) if domain is None else newer(**{domain: version})

    monkeypatch.chdir(tmp_path)
    onnx.save(of_version(999), "new.onnx")
    for target in ("out.onnx", "new.onnx"):
        assert main([command, "new.onnx", "-o", target, "--force"]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert f"the installed onnxruntime {ort.__version__} runs at most " in error
        assert error.count("\n") == 1
        assert [path.name for path in tmp_path.iterdir()] == ["new.onnx"]
        assert onnx.load("new.onnx") == of_version(999)
    newest = int(re.findall(r"runs at most (\d+)", error)[0])
    assert not runtime.can_open(of_version(newest + 1))
    assert runtime.can_open(of_version(newest)) or domain == ""  # its kernels may be missing
    opsets.check_versions(ir.from_proto(of_version(newest)))


def test_versions_that_are_not_newer() -> None:
    """Only newer versions are an error; a domain that onnxruntime does not know may have any."""
    for model in (newer(), newer(3), newer(mine=2**40), newer(**{"": 1}), newer(**{"": 0}), newer(ir_version=0)):
        opsets.check_versions(ir.from_proto(model))
