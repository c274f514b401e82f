"""Session options that override an initializer with a value that a rewrite takes: they are not ignored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from helpers import Array, assert_same
from onnx import numpy_helper

import ort_dynq
from ort_dynq.rewriter import rewrite
from ort_dynq.session_options import INITIALIZERS, taken

RNG = np.random.default_rng(0)
OLD, NEW = (RNG.integers(-127, 128, (64, 64)).astype(np.int8) for _ in range(2))
FEEDS = {"x": RNG.standard_normal((5, 64)).astype(np.float32)}
_VALUES: list[ort.OrtValue] = []  # options do not keep them alive
METHODS = ["add_initializer", "add_external_initializers"]


def saved(folder: Path, weights: Array = OLD) -> Path:
    """A model with weights as external data: onnxruntime replaces no others by external ones."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]> g (float[N, 64] x) => (float[N, 64] y)
        <float s = {0.01}> { q, qs, z = DynamicQuantizeLinear(x) i = MatMulInteger(q, w, z) f = Cast<to = 1>(i)
        t = Mul(qs, s) y = Mul(f, t) }""")
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.data", size_threshold=0)
    return folder / "model.onnx"


def options_with(method: str, name: str = "w", value: Array = NEW) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    _VALUES.append(ort.OrtValue.ortvalue_from_numpy(value))
    if method == "add_initializer":
        options.add_initializer(name, _VALUES[-1])
    else:
        options.add_external_initializers([name], _VALUES[-1:])
    return options


def run(session: ort.InferenceSession) -> Array:
    (found,) = session.run(None, FEEDS)
    return np.asarray(found)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cache", [True, False])
def test_the_session_leaves_the_model_alone(
    method: str, cache: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The model runs with the new weights, as it was given, also after the cache has it with the old ones."""
    monkeypatch.setenv("ORT_DYNQ_CACHE", str(tmp_path / "cache"))
    path, of_new = saved(tmp_path / "old"), saved(tmp_path / "new", NEW)
    plain = ort.InferenceSession(path, options_with(method), providers=["CPUExecutionProvider"])
    expected = run(ort.InferenceSession(of_new, providers=["CPUExecutionProvider"]))
    assert_same(run(plain), expected)
    for _ in range(2):
        session = ort_dynq.InferenceSession(path, cache=cache)
        assert session.not_rewritten == ""
        assert not np.array_equal(run(session), expected)
        assert not caplog.records
        session = ort_dynq.InferenceSession(path, options_with(method), cache=cache)
        assert session.not_rewritten == "the session options override w, and a rewrite would take its values"
        assert session.not_rewritten in caplog.text
        assert_same(run(session), expected)
        caplog.clear()


def test_other_overrides_are_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of names that the model does not have, onnxruntime says nothing; nor does the session."""
    monkeypatch.setenv("ORT_DYNQ_CACHE", "0")
    session = ort_dynq.InferenceSession(saved(tmp_path), options_with("add_initializer", "other"))
    assert session.not_rewritten == ""
    assert "ort_dynq.initializers" in session.get_modelmeta().custom_metadata_map


@pytest.mark.parametrize("name", ["w", "s"])
def test_a_rewritten_file_does_not_have_the_old_weights(name: str, tmp_path: Path) -> None:
    path, fast = saved(tmp_path), tmp_path / "fast.onnx"
    rewrite(path).save(fast)
    assert taken({each.key: each.value for each in onnx.load(fast).metadata_props}) == ["s", "w"]
    value = NEW if name == "w" else np.array(0.02, np.float32)
    with pytest.raises(ort_dynq.DynqError, match=f"options override {name}, and the model was rewritten"):
        ort_dynq.InferenceSession(fast, options_with("add_initializer", name, value))
    with pytest.raises(Exception, match="Failed to find existing initializer with name w"):
        ort.InferenceSession(fast, options_with("add_external_initializers"), providers=["CPUExecutionProvider"])


def test_names_of_all_changes_are_kept(tmp_path: Path) -> None:
    """Also those of an earlier rewrite, and of a quantization."""
    once = rewrite(saved(tmp_path)).to_proto()
    weights = numpy_helper.from_array(RNG.standard_normal((64, 64)).astype(np.float32), "v")
    once.graph.initializer.append(weights)
    once.graph.node.add(op_type="MatMul", input=["y", "v"], output=["u"])
    once.graph.output[0].name = "u"
    assert taken(rewrite(once).model.metadata_props) == ["s", "w"]
    text = '<ir_version: 10, opset_import: ["": 21]> g (float[N, 256] x) => (float[N, 256] y) { y = MatMul(x, v) }'
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(RNG.standard_normal((256, 256)).astype(np.float32), "v"))
    assert taken(ort_dynq.quantize(model).model.metadata_props) == ["v"]


@pytest.mark.parametrize("text", ["", "{", "7", '{"w": 1}', "[1, null]", "[" * 100_000])
def test_metadata_of_others_are_no_names(text: str) -> None:
    assert taken({INITIALIZERS: text}) == []
    assert taken({INITIALIZERS: json.dumps(["a", 1])}) == ["a"]
