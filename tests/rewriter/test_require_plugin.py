"""Models without functions: they fail at once without the plugin, and everything else takes them as others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import genai_folders
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ort_dynq
from ort_dynq import cli
from ort_dynq.rewriter.metadata import REQUIRES_PLUGIN

MODEL = Path(__file__).parents[2] / "models" / "torchao_8da8w" / "model.onnx"
FLOAT = """<ir_version: 9, opset_import: ["": 17]> g (float[8, 256] x) => (float[8, 256] y) { y = MatMul(x, w) }"""
X = np.random.default_rng(0).standard_normal((1, 8, 20), np.float32)
MISSING = r"ort_dynq:\w+\(-1\) is not a registered function/op"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rewritten model without functions, and one with them."""
    path = tmp_path_factory.mktemp("models")
    assert cli.main(["rewrite", str(MODEL), "-o", str(path / "fast.onnx"), "--require-plugin", "--verify"]) == 0
    assert cli.main(["rewrite", str(MODEL), "-o", str(path / "portable.onnx")]) == 0
    return path


def functions(model: onnx.ModelProto) -> list[str]:
    return [each.name for each in model.functions if each.domain == "ort_dynq"]


def float_model() -> onnx.ModelProto:
    model = onnx.parser.parse_model(FLOAT)
    weights = np.random.default_rng(0).standard_normal((256, 256), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def run(path: Path, backend: Any = "native") -> Any:
    options = ort_dynq.register(ort.SessionOptions(), backend)
    return ort.InferenceSession(path, options).run(None, {"x": X})[0]


def test_the_message_of_onnxruntime(folder: Path) -> None:
    """It names the domain, which troubleshooting.md explains. The model with functions runs, with the same results."""
    assert not functions(onnx.load(folder / "fast.onnx"))
    assert functions(onnx.load(folder / "portable.onnx"))
    with pytest.raises(Exception, match=MISSING):
        ort.InferenceSession(folder / "fast.onnx")
    expected = run(folder / "portable.onnx")
    assert run(folder / "fast.onnx").tobytes() == expected.tobytes()
    assert ort_dynq.InferenceSession(folder / "fast.onnx").run(None, {"x": X})[0].tobytes() == expected.tobytes()


def test_other_commands(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for command in (
        f"verify {MODEL} fast.onnx",
        "verify fast.onnx fast.onnx",
        "inspect fast.onnx",
        f"bench {MODEL} fast.onnx --seconds 0.01",
        f"bench {MODEL} fast.onnx --report report.html --seconds 0.01",
    ):
        status = cli.main(command.split())
        printed = capsys.readouterr()
        if command.startswith("verify fast"):  # the original runs in stock ONNX Runtime
            assert status == 2
            assert "is not a registered function/op" in printed.err
        else:
            assert status == 0, printed.err


def test_a_later_rewrite_adds_no_functions(folder: Path, tmp_path: Path) -> None:
    """And one of a model with functions removes them."""
    again = tmp_path / "again.onnx"
    assert cli.main(["rewrite", str(folder / "fast.onnx"), "-o", str(again)]) == 0
    assert not functions(onnx.load(again))
    assert cli.main(["rewrite", str(folder / "portable.onnx"), "-o", str(again), "--require-plugin"]) == 0
    assert not functions(onnx.load(again))
    assert run(again).tobytes() == run(folder / "fast.onnx").tobytes()


def test_python() -> None:
    """Both functions take the option; a model in memory has the mark, and the backend extensions takes it."""
    result = ort_dynq.rewrite(MODEL, require_plugin=True)
    assert not functions(result.to_proto())
    assert result.model.metadata_props[REQUIRES_PLUGIN] == "1"
    for given, functions_of in ((False, True), (True, False)):
        quantized = ort_dynq.quantize(float_model(), require_plugin=given).to_proto()
        assert any(node.domain == "ort_dynq" for node in quantized.graph.node)
        assert bool(functions(quantized)) is functions_of
    ready = ort_dynq.ready_for_extensions(result.model).to_proto().SerializeToString()
    options = ort_dynq.register(ort.SessionOptions(), "extensions")
    found = ort.InferenceSession(ready, options).run(None, {"x": X})[0]
    assert found.shape == run_of(result).shape
    assert found.tobytes() == run_of(result).tobytes()


def run_of(result: Any) -> Any:
    options = ort_dynq.register(ort.SessionOptions())
    return ort.InferenceSession(result.to_proto().SerializeToString(), options).run(None, {"x": X})[0]


def test_quantize(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.onnx"
    onnx.save(float_model(), tmp_path / "float.onnx")
    assert cli.main(["quantize", str(tmp_path / "float.onnx"), "-o", str(out), "--require-plugin", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["quantized"]
    assert not functions(onnx.load(out))


def test_a_folder(tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.rmtree(out, ignore_errors=True)
    assert cli.main(["rewrite", str(genai_folders.LLAMA), "-o", str(out), "--require-plugin"]) == 0
    models = [onnx.load(path, load_external_data=False) for path in out.glob("*.onnx")]
    assert any(node.domain == "ort_dynq" for model in models for node in model.graph.node)
    assert not any(map(functions, models))
