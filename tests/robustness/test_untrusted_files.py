"""Models and folders from untrusted sources write no file but the output, and read none outside of their folder."""

from __future__ import annotations

import os
from pathlib import Path

import genai_folders
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_dynq
from ort_dynq import cli, files, storage
from ort_dynq.genai import rewrite_folder
from ort_dynq.rewriter import rewrite

LOCATION = "a/../../../data"
"""Inside of the model's folder, where `a` is a link to s/s/s/s; two folders above a folder where `a` is a folder."""
TABLE = np.arange(20_000, dtype=np.float32)


def attack(location: str) -> onnx.ModelProto:
    """A model with a product, which `quantize` takes, and a large table as external data, which no rule reads."""
    table = numpy_helper.from_array(TABLE, "table")
    table.ClearField("raw_data")
    table.data_location = TensorProto.EXTERNAL
    table.external_data.add(key="location", value=location)
    weights = numpy_helper.from_array(np.eye(64, dtype=np.float32), "weights")
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["y"]), helper.make_node("Gather", ["table", "i"], ["z"])]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 64]),
        helper.make_tensor_value_info("i", TensorProto.INT64, [3]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 64]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [3]),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [table, weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a model in `model`, the folder `more/out` for outputs, and a file that is not the model's."""
    monkeypatch.chdir(tmp_path)
    Path("model/s/s/s/s").mkdir(parents=True)
    Path("model/a").symlink_to("s/s/s/s")
    Path("model/s/data").write_bytes(TABLE.tobytes())
    Path("model/model.onnx").write_bytes(attack(LOCATION).SerializeToString())
    Path("more/out").mkdir(parents=True)
    return tmp_path


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("victim", [False, True])
@pytest.mark.parametrize("command", ["rewrite", "quantize"])
def test_data_that_would_be_copied_elsewhere(
    command: str, victim: bool, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if victim:
        Path("data").write_bytes(b"precious")
    before = everything(place)
    assert cli.main([command, "model/model.onnx", "-o", "more/out/fast.onnx"]) == 2
    assert f"the external data have the location {LOCATION!r}" in capsys.readouterr().err
    assert everything(place) == before
    with pytest.raises(ort_dynq.DynqError, match="have the location"):
        ort_dynq.InferenceSession("model/model.onnx")


def test_a_session_of_a_large_model(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is opened from a temporary folder, two folders below the victim."""
    monkeypatch.setattr(storage, "_MAX_PROTO", 1000)
    monkeypatch.setenv("TMPDIR", str(place / "more"))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = everything(place)
    with pytest.raises(ort_dynq.DynqError, match="have the location"):
        ort_dynq.InferenceSession("model/model.onnx")
    assert everything(place) == before


@pytest.mark.parametrize("location", ["s/../s/data", "{}/model/s/data", "s/data"])
@pytest.mark.parametrize("folder", ["more/out", "model"])
def test_a_save_takes_no_name_from_the_model(location: str, folder: str, place: Path) -> None:
    """Also of a model that was not loaded here. In its own folder, only data with a harmless location stay."""
    model = ir.from_proto(attack(location.replace("{}", str(place))))
    ir.external_data.set_base_dir(model.graph, "model")
    before = everything(place)
    storage.save(model, Path(folder, "fast.onnx"))
    new = sorted({*everything(place)} - {*before})
    assert {path: everything(place)[path] for path in before} == before
    stays = folder == "model" and location == "s/data"
    assert len(new) == 2 - stays
    assert all(Path(path).name.startswith("fast.onnx") and Path(path).parent == place / folder for path in new)
    session = ort_dynq.InferenceSession(Path(folder, "fast.onnx"))
    found = session.run(["z"], {"x": np.ones((2, 64), np.float32), "i": np.array([3, 1, 19_999])})[0]
    assert found.tolist() == [3, 1, 19_999]


def test_data_in_a_folder_of_the_model(place: Path) -> None:
    """The copy beside the output has a name of ours; the folder is not made there."""
    Path("model/model.onnx").write_bytes(attack("s/data").SerializeToString())
    rewrite("model/model.onnx").save("more/out/fast.onnx")
    assert sorted(path.name.partition(".onnx")[0] for path in Path("more/out").iterdir()) == ["fast", "fast"]
    assert np.fromfile(next(Path("more/out").glob("*.data")), np.float32)[:5].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "inside"),
    [
        ("data", True),
        ("./data", True),
        ("a/b.data", True),
        ("..data", True),
        ("", False),
        ("..", False),
        ("a/..", False),
        ("a\\..\\b", False),
        ("/data", False),
        ("\\data", False),
        ("//server/share/data", False),
        ("C:data", False),
        ("c:/data", False),
    ],
)
def test_paths_that_stay_inside(name: str, inside: bool) -> None:
    assert files.is_inside(name) == inside


# Folders of onnxruntime-genai


@pytest.mark.parametrize("name", ["tokenizer.json", "genai_config.json", "model.onnx", "more/deep.txt"])
def test_a_link_out_of_a_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links within the folder are followed, so that the copy is complete; the copy has files only."""
    monkeypatch.chdir(tmp_path)
    llama = genai_folders.copy_of("llama", Path("llama"))
    link = llama / name
    link.parent.mkdir(exist_ok=True)
    if link.exists():
        link.rename("secret")
    else:
        Path("secret").write_text("secret")
    link.symlink_to(tmp_path / "secret")
    assert cli.main(["rewrite", "llama", "-o", "fast"]) == 2
    assert f"{link} is a link out of the folder, to {tmp_path / 'secret'}" in capsys.readouterr().err
    assert not Path("fast").exists()

    link.unlink()
    (llama / "inner").write_bytes(Path("secret").read_bytes())
    link.symlink_to(os.path.relpath(llama / "inner", link.parent))
    rewrite_folder("llama").save("fast")
    assert not any(path.is_symlink() for path in Path("fast").rglob("*"))
    assert Path("fast", name).is_file()


@pytest.mark.parametrize("name", ["../model.onnx", "C:model.onnx", "/model.onnx", "a\\..\\..\\model.onnx"])
def test_a_model_that_is_not_in_the_folder(name: str, tmp_path: Path) -> None:
    llama = genai_folders.copy_of("llama", tmp_path / "llama")
    genai_folders.edit_config(llama, lambda config: config["model"]["decoder"].update(filename=name))
    with pytest.raises(ort_dynq.DynqError, match="which is not in the folder; copy it there"):
        rewrite_folder(llama)
