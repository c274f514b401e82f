"""Shapes on the command line: scalars, and images of sizes that a model leaves open."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from ort_dynq import cli

SCALAR = """<ir_version: 9, opset_import: ["": 17]>
    g (float[n, 256] x, float c) => (float[n, 256] y) { m = MatMul(x, w) y = Mul(m, c) }"""
IMAGE = """<ir_version: 9, opset_import: ["": 17]>
    g (float{shape} x) => (float[n, c, h, v] y) {{ m = Conv(x, w) y = Conv(m, v) }}"""


def with_weights(text: str, *shape: int) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal(shape, np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


def test_a_scalar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The tool prints shapes so, and takes them."""
    monkeypatch.chdir(tmp_path)
    onnx.save(with_weights(SCALAR, 256, 256), "model.onnx")
    shapes = ["--shape", "x=4x256", "--shape", "c=scalar"]
    assert cli.main(["verify", "model.onnx", "model.onnx", *shapes, "--json"]) == 0
    found = {each["name"]: each["shape"] for each in json.loads(capsys.readouterr().out)["inputs"]}
    assert found == {"x": [4, 256], "c": []}
    assert cli.main(["verify", "model.onnx", "model.onnx", "--shape", "=scalar"]) == 2
    assert "is not of the form NAME=1x128x768" in capsys.readouterr().err
    assert cli.main(["verify", "model.onnx", "model.onnx", "--shape", "x=scalar"]) == 2
    assert "the input x has shape [], expected [n, 256]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shape", "given", "asked"),
    [
        ("[batch, 3, h, v]", [], "--shape x=1x3x224x224"),
        ("[n, 3, 16, 16]", [], ""),  # only the batch is open
        ("[batch, 3, h, v]", ["--shape", "x=1x3x32x32"], ""),
    ],
)
def test_open_images(
    shape: str,
    given: list[str],
    asked: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Times of images of 8x8 tell nothing: the closing line asks for the sizes instead."""
    monkeypatch.chdir(tmp_path)
    model = with_weights(IMAGE.format(shape=shape), 64, 3, 3, 3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "v"))
    onnx.save(model, "model.onnx")
    verify = ["--verify", *given] if given else []
    assert cli.main(["quantize", "model.onnx", "-o", "out.onnx", "--allow-none", "--json", *verify]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["quantized"]
    closing = data["closing"]
    assert (asked in closing["not_timed"]) if asked else (closing["not_timed"] == "")
    assert (closing["speed"] is None) == bool(asked)


def test_no_layer_is_chosen_by_images_of_assumed_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = with_weights(IMAGE.format(shape="[batch, 3, h, v]"), 64, 3, 3, 3)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64, 3, 3), np.float32), "v"))
    onnx.save(model, "model.onnx")
    assert cli.main(["quantize", "model.onnx", "-o", "out.onnx", "--only-if-faster"]) == 2
    assert "--shape x=1x3x224x224" in capsys.readouterr().err
    assert not Path("out.onnx").exists()
