"""Files that are given as models and are something else: each is recognized by its first bytes, with a remedy."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
from commands import ENCODER

import ort_dynq
from ort_dynq import cli, formats
from ort_dynq.storage import load


def archive(*names: str) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as file:
        for name in names:
            file.writestr(name, b"content")
    return written.getvalue()


def ort_model(tmp_path: Path) -> bytes:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "model.ort")
    ort.InferenceSession(ENCODER, options, providers=["CPUExecutionProvider"])
    return (tmp_path / "model.ort").read_bytes()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
HEADER = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
# torch.save: the format before PyTorch 1.6 begins with a pickled number, then a pickled version.
LEGACY = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (POINTER, "it is a pointer of Git LFS instead of the file; run `git lfs pull`"),
        (archive("model/data.pkl", "model/version"), "it is a file of PyTorch, which has weights and Python code"),
        (archive("data.pkl"), "export it with torch.onnx.export"),
        (LEGACY, "it is a file of PyTorch, which has weights and Python code"),
        (pickle.dumps({"coef_": 1.0}, 4), "it is a pickle of Python, as scikit-learn writes models"),
        (archive("a/model.onnx", "a/LICENSE"), "it is a ZIP archive; unpack it and give its file a/model.onnx"),
        (archive("README"), "it is a ZIP archive; unpack it"),
        (gzip.compress(b"content", mtime=0), "it is compressed by gzip; unpack it"),
        (len(HEADER).to_bytes(8, "little") + HEADER + bytes(4), "it is a file of safetensors"),
        (b"GGUF" + bytes(60), "it is a model of llama.cpp (GGUF)"),
        (b"\x1c\0\0\0TFL3" + bytes(60), "it is a model of TensorFlow Lite; convert it: python -m tf2onnx.convert"),
        (b"\x89HDF\r\n\x1a\n" + bytes(60), "it is an HDF5 file, as Keras writes them"),
        (bytes(1000), "it is zeros; copy or download it again"),
        (b"<!DOCTYPE html>\n<html><body>404</body></html>", "it is an HTML page, perhaps the page about the file"),
        (b"Entry not found", "it is a text file that begins with 'Entry not found'"),
        ("é".encode() * 5000, "it is a text file that begins with 'éééé"),
        (b"", "it is empty; copy or download it again"),
        (b"\xff\xfe\xfd\xfc" * 9, ""),  # nothing that is known: the messages of onnx and of ONNX Runtime
    ],
    ids=lambda value: "" if isinstance(value, bytes) else value,
)
def test_files_of_other_formats(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ort_dynq.DynqError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path} is not an ONNX model: ")
    assert message in str(caught.value)
    assert formats.format_of(path) or not message or not content
    assert cli.main(["verify", str(ENCODER), str(path)]) == 2
    found = capsys.readouterr().err
    assert f"B ({path}) is not an ONNX model: " in found
    assert message in found


def test_a_model_in_the_format_of_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(ort_model(tmp_path))
    with pytest.raises(ort_dynq.DynqError, match=r"it is a model in ONNX Runtime's own format \(\.ort\)"):
        load(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_a_model_that_is_cut_off(share: float, tmp_path: Path) -> None:
    whole = ENCODER.read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ort_dynq.DynqError, match=f"it is cut off: it has {int(share * len(whole))} bytes of at least"):
        load(path)


def test_models_are_no_other_format() -> None:
    """Whatever field is the first."""
    for path in [*(ENCODER.parents[1]).glob("*/model.onnx")][:20]:
        assert formats.format_of(path) == ""


def test_a_model_with_its_graph_first(tmp_path: Path) -> None:
    model = onnx.load(ENCODER)
    graph = onnx.ModelProto(graph=model.graph).SerializeToString()
    model.ClearField("graph")
    (tmp_path / "model.onnx").write_bytes(graph + model.SerializeToString())
    assert formats.format_of(tmp_path / "model.onnx") == ""
    assert len(load(tmp_path / "model.onnx").graph) == len(load(ENCODER).graph)
