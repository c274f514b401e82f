"""Saving a model: the old model or the new one is there whenever it stops, with its data; links; changed data."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import hostile_models
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import ort_dynq
from ort_dynq import cli, files, runtime, storage
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.metadata import SOURCE, note_origin

SIZE = 500
NAME = re.compile(r"model\.onnx\.[0-9a-f]{12}\.data")


def model_of(weight: float) -> onnx.ModelProto:
    """A model that multiplies by weights, which are all equal."""
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [SIZE]) for name in "xy")
    weights = numpy_helper.from_array(np.full(SIZE, weight, np.float32), "w")
    graph = helper.make_graph([node], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def weight_of(path: Path) -> float:
    """Opens a model of model_of in ONNX Runtime and returns its weight."""
    session = runtime.open_session(path, runtime.session_options(threads=1))
    found = {*session.run(None, {"x": np.ones(SIZE, np.float32)})[0].tolist()}
    assert len(found) == 1
    return float(found.pop())


def product() -> onnx.ModelProto:
    """A matrix product with weights."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 8]) for name in "xy")
    weights = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def save(weight: float, path: Path) -> None:
    storage.save(ir.from_proto(model_of(weight)), path)


def save_as_stranger(weight: float, path: Path) -> None:
    """As torch does."""
    onnx.save(model_of(weight), path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=0)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture(autouse=True)
def _small_protos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limit of protocol buffers from 1 GB to 1000 bytes: weights become external data."""
    monkeypatch.setattr(storage, "_MAX_PROTO", 1000)


# Killed processes

KILLED = """
import builtins, json, os, shutil, sys
from pathlib import Path
import test_saving as t
from ort_dynq import storage
storage._MAX_PROTO = 1000

def die_at(point):
    calls = 0
    def dying(function):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls == point:
                os._exit(9)
            return function(*args, **kwargs)
        return call
    for name in ("mkdir", "replace", "fsync", "unlink", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
    builtins.open = dying(builtins.open)

def killed(save_first):
    for point in range(1, 100):
        folder = Path(sys.argv[1]) / f"{save_first.__name__}_{point}"
        folder.mkdir()
        path = folder / "model.onnx"
        save_first(2, path)
        child = os.fork()
        if not child:
            die_at(point)
            t.save(3, path)
            os._exit(0)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        weight, left = t.weight_of(path), t.names(folder)
        t.save(4, path)
        yield status, weight, left, t.weight_of(path), t.names(folder)
        if not status:
            break

print(json.dumps([[*killed(t.save)], [*killed(t.save_as_stranger)]]))
"""


def test_killed_at_each_point(tmp_path: Path) -> None:
    """The old pair or the new pair is there. The next save deletes the leftovers, but not another program's data."""
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{KILLED}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=hostile_models.environment())
    assert done.returncode == 0, done.stderr
    ours, of_stranger = json.loads(done.stdout)
    check_killed(ours, is_stranger=False)
    check_killed(of_stranger, is_stranger=True)


def check_killed(found: list[Any], is_stranger: bool) -> None:
    statuses, weights, left, last, afterwards = zip(*found, strict=True)
    assert statuses == (9,) * (len(found) - 1) + (0,)
    assert len(found) > 10
    assert list(weights) == sorted(weights)  # the old model, then the new one
    assert {*weights} == {2, 3}
    assert any(name.endswith(".saving") for each in left for name in each)
    assert max(len([name for name in each if NAME.fullmatch(name)]) for each in left) == (1 if is_stranger else 2)
    assert {*last} == {4}
    for each in afterwards:
        assert NAME.fullmatch(each[1])
        assert each[:1] + each[2:] == (["model.onnx", "model.onnx.data"] if is_stranger else ["model.onnx"])


@pytest.mark.parametrize("failing", [1, 2])
def test_a_move_that_fails(failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows, if another program has the file open."""
    path = tmp_path / "model.onnx"
    save(2, path)
    before, replace, calls = names(tmp_path), os.replace, []

    def fail(source: Path, target: Path) -> None:
        if ".saving" not in str(target):  # onnx_ir moves files inside the hidden folder
            calls.append(target)
            if len(calls) == failing:
                raise PermissionError(13, "Access is denied")
        replace(source, target)

    with monkeypatch.context() as context:
        context.setattr(os, "replace", fail)
        with pytest.raises(ort_dynq.DynqError, match=r"^\S*model.onnx cannot be written: Access is denied$"):
            save(3, path)
    assert len(calls) == failing
    assert names(tmp_path) == before
    assert weight_of(path) == 2


def test_a_save_in_progress_is_not_disturbed(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save(2, path)
    with files.replacing(path) as temporary:
        (tmp_path / "model.onnx.0123456789ab.data").touch()  # moved before the model
        save(3, path)
        assert temporary.parent.is_dir()
        assert (tmp_path / "model.onnx.0123456789ab.data").is_file()
        temporary.write_bytes(b"last")
    assert path.read_bytes() == b"last"
    save(4, path)
    assert weight_of(path) == 4
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize("name", ["other.onnx", "model.onnx.bak"])
def test_data_that_another_model_uses(name: str, tmp_path: Path) -> None:
    """A rewrite of a model refers to its data."""
    path, other = tmp_path / "model.onnx", tmp_path / name
    save(2, path)
    rewrite(path).save(other)
    save(3, path)
    assert (weight_of(path), weight_of(other)) == (3, 2)
    other.unlink()
    save(4, path)
    assert weight_of(path) == 4
    assert len(names(tmp_path)) == 2


def test_the_same_bytes(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        save(2, tmp_path / name / "model.onnx")
        save(2, tmp_path / name / "model.onnx")
    assert names(tmp_path / "a") == names(tmp_path / "b")
    assert len(names(tmp_path / "a")) == 2
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("folder", [".", "there"])
def test_external_data_of_a_constant(folder: str, tmp_path: Path) -> None:
    """They stay where they are, or become part of a model in another folder: onnx_ir does not move them."""
    model = model_of(2)
    constant = numpy_helper.from_array(np.full(SIZE, 5, np.float32), "c")
    (tmp_path / "data").write_bytes(constant.raw_data)
    constant.ClearField("raw_data")
    constant.data_location = TensorProto.EXTERNAL
    constant.external_data.add(key="location", value="data")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["c"], value=constant))
    model.graph.node[1].input[0] = "c"
    model.graph.node.append(helper.make_node("Identity", ["x"], ["z"]))
    onnx.save(model, tmp_path / "first.onnx")
    (tmp_path / folder).mkdir(exist_ok=True)
    result = rewrite(tmp_path / "first.onnx")
    result.save(tmp_path / folder / "model.onnx")
    written = onnx.load(tmp_path / folder / "model.onnx", load_external_data=False)
    assert written.graph.node[0].attribute[0].t.HasField("raw_data") == (folder == "there")
    assert [NAME.fullmatch(name) is not None for name in names(tmp_path / folder)].count(True) == 1
    if folder == "there":
        (tmp_path / "data").unlink()
    assert weight_of(tmp_path / folder / "model.onnx") == 10


# External data that change after the model was loaded


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("target", ["model.onnx", "new.onnx", "there/new.onnx"])
def test_data_that_became_shorter(target: str, is_large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    save_as_stranger(2, Path("model.onnx"))
    result = rewrite("model.onnx")
    if is_large:
        more = ir.Value(name="more", const_value=ir.tensor(np.ones(SIZE, np.float32), name="more"))
        result.model.graph.register_initializer(more)
    os.truncate("model.onnx.data", 4 * SIZE - 1)
    before = sorted(Path().rglob("*"))
    with pytest.raises(ort_dynq.DynqError) as caught:
        result.save(target)
    assert str(caught.value) == (
        "the external data ./model.onnx.data have 1999 bytes, but w ends at 2000: the file has changed since the model "
        "was loaded"
    )
    assert sorted(Path().rglob("*")) == before


# Links


def test_a_link_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save(2, Path("model.onnx"))
    Path("link.onnx").symlink_to("model.onnx")
    Path("dangling.onnx").symlink_to("new.onnx")
    for link, file in (("link.onnx", "model.onnx"), ("dangling.onnx", "new.onnx")):
        save(3, Path(link))
        assert os.readlink(link) == file
        assert weight_of(Path(file)) == weight_of(Path(link)) == 3
    assert len(names(tmp_path)) == 6  # two links, models and data


def test_a_link_into_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime looks for external data beside the link, or refuses data that are elsewhere."""
    monkeypatch.chdir(tmp_path)
    Path("there").mkdir()
    Path("link.onnx").symlink_to("there/new.onnx")
    with pytest.raises(ort_dynq.DynqError, match=f"is a link into another folder.*choose {tmp_path}/there/new.onnx"):
        save(2, Path("link.onnx"))
    assert not names(Path("there"))
    monkeypatch.setattr(storage, "_MAX_PROTO", 1 << 30)
    save(2, Path("link.onnx"))
    assert weight_of(Path("link.onnx")) == 2
    assert Path("link.onnx").is_symlink()
    Path("folder").symlink_to("there")  # the folder itself may be a link
    monkeypatch.setattr(storage, "_MAX_PROTO", 1000)
    save(3, Path("folder/new.onnx"))
    assert weight_of(Path("folder/new.onnx")) == 3


COMMANDS = (
    ("rewrite", "model.onnx", "-o"),
    ("quantize", "model.onnx", "--allow-none", "-o"),
    ("bench", "model.onnx", "--report"),
    ("bench", "quantize", "model.onnx", "--report"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_outputs_that_are_no_files(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """/dev/stdout is a link to a link to the file behind stdout. Root could replace it."""
    monkeypatch.chdir(tmp_path)
    onnx.save(model_of(2), "model.onnx")
    os.mkfifo("fifo")
    reading, writing = os.pipe()
    with open("deleted", "w") as deleted:
        Path("deleted").unlink()
        links = {
            "stdout": f"/proc/self/fd/{writing}",
            "deleted_file": f"/proc/self/fd/{deleted.fileno()}",
            "device": "/dev/null",
            "link_to_fifo": "fifo",
            "link_to_link": "device",
            "circle": "circle",
        }
        for link, file in links.items():
            Path(link).symlink_to(file)
        before = names(tmp_path)
        for link, file in links.items():
            assert cli.main([*command, link]) == 2
            assert capsys.readouterr().err == f"ort-dynq: error: {link} is not a file; choose another name\n"
            assert os.readlink(link) == file
        assert names(tmp_path) == before
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize("command", COMMANDS[:3], ids=lambda command: command[0])
def test_commands_keep_links(command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(product(), "model.onnx")
    Path("there").mkdir()
    Path("link").symlink_to("there/out")
    monkeypatch.setattr(storage, "_MAX_PROTO", 1 << 30)
    options = ("--seconds", "0.01") if command[0] == "bench" else ()
    assert cli.main([*command, "link", *options]) == 0
    assert Path("link").is_symlink()
    assert names(Path("there")) == ["out"]


def test_a_model_that_several_steps_read(tmp_path: Path) -> None:
    """Its file is read once, and a change to one of the models that load() returns is in no other one."""
    path = tmp_path / "model.onnx"
    onnx.save(model_of(2), path)
    given, before = storage.ModelFile(path), path.read_bytes()
    first = storage.load(given)
    first.graph.initializers["w"].const_value = ir.tensor(np.full(SIZE, 3, np.float32), name="w")
    onnx.save(model_of(4), path)
    assert (given.size, given.sha256) == (len(before), hashlib.sha256(before).hexdigest())
    note_origin(first, given, [])
    assert first.metadata_props[SOURCE] == given.sha256  # not of the file that is there now
    second = storage.load(given)
    for model, weight in ((first, 3), (second, 2), (storage.load(path), 4)):
        storage.save(model, tmp_path / "copy.onnx")
        assert weight_of(tmp_path / "copy.onnx") == weight
