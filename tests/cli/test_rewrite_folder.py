"""`ort-dynq rewrite` of folders of onnxruntime-genai: the files that it writes, and its errors."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import genai_folders
import numpy as np
import onnx
import pytest
from commands import run_json
from genai_folders import CONFIG, FOLDERS, LLAMA, edit_config, read_config
from onnx import TensorProto, helper, numpy_helper

import ort_dynq
from ort_dynq import cli, files, library, rewriter
from ort_dynq.errors import DynqError
from ort_dynq.genai import rewrite_folder

LIBRARY = Path(library.get_library_path()).name


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a folder, in the working folder."""
    monkeypatch.chdir(tmp_path)
    return genai_folders.copy_of("llama", Path("llama"))


def error(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["rewrite", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ort-dynq: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_rewrite_writes_a_folder(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "adapters").mkdir()
    (source / "adapters" / "one.onnx_adapter").write_bytes(b"one")
    (source / ".cache").mkdir()
    (source / ".cache" / "file").touch()
    before = names(source)
    data = run_json(capsys, "rewrite", "llama", "-o", "fast")
    assert (data["input"], data["output"]) == ("llama", "fast")
    assert [*data["models"]] == ["model.onnx"]
    report = data["models"]["model.onnx"]
    assert report["before"]["com.microsoft.MatMulNBits"] == len(report["rewritten"]) == 11
    assert report["after"]["ort_dynq.RowProgram"] > 0
    assert report["verification"] is None

    assert names(source) == before
    found = names(Path("fast"))
    (weights,) = [name for name in found if name.endswith(".data")]
    kept = {"adapters/one.onnx_adapter", "tokenizer.json", "tokenizer_config.json"}
    assert {*found} == kept | {CONFIG, "model.onnx", weights, LIBRARY}
    for name in kept:
        assert (Path("fast") / name).read_bytes() == (source / name).read_bytes()
    assert (Path("fast") / LIBRARY).read_bytes() == Path(library.get_library_path()).read_bytes()
    assert sorted(path.name for path in Path().iterdir()) == ["fast", "llama"]

    config, expected = read_config(Path("fast")), read_config(source)
    expected["model"]["decoder"]["session_options"]["custom_ops_library"] = LIBRARY
    assert config == expected


def test_text(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rewrite", "llama", "-o", "fast"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{source / 'model.onnx'}: 11 dynamic quantization chains and products rewritten")
    assert re.fullmatch(
        r"llama [0-9.]+ kB -> fast [0-9.]+ kB; products: 11 integer, 2 float; speed on this "
        r"CPU about [0-9.]+ times \(prompt of 128, 1 thread\), [0-9.]+ times \(decode after 128, 1 thread\)",
        " ".join(lines[lines.index("") + 1 :]).rpartition("  ")[2],
    )


def test_closing(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that is replaced is not timed, and of one that cannot be timed, the line has the command."""
    closing = run_json(capsys, "rewrite", "llama", "-o", "fast", "--no-timing")["closing"]
    assert (closing["speeds"], closing["not_timed"]) == ({}, "")
    assert closing["bytes_before"] == sum(path.stat().st_size for path in source.glob("model.onnx*"))
    assert closing["bytes_after"] == sum(path.stat().st_size for path in Path("fast").glob("model.onnx*"))
    with mock.patch("ort_dynq.tools.bench.generation.time_case", side_effect=DynqError("no")):
        assert cli.main(["rewrite", "llama", "-o", "other"]) == 0
    assert "speed: `ort-dynq bench-generate llama --rewritten other`" in " ".join(capsys.readouterr().out.split())


def test_weights_are_not_stored_twice(source: Path) -> None:
    """All of them are in the new file, so that a session maps them instead of copying them."""
    rewrite_folder(source).save("fast")
    model = onnx.load("fast/model.onnx", load_external_data=False)
    large = [each for each in model.graph.initializer if np.prod(each.dims) > 1000]
    assert large
    assert {each.data_location for each in large} == {TensorProto.EXTERNAL}
    assert sum(path.stat().st_size for path in Path("fast").glob("model.onnx*")) < 1.5 * sum(
        path.stat().st_size for path in source.glob("model.onnx*")
    )


def test_rewrite_twice(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The entry of the first rewrite is no other library, and its library and weights are replaced."""
    for first, second in (("llama", "fast"), ("fast", "again")):
        assert cli.main(["rewrite", first, "-o", second]) == 0
    assert names(Path("fast")) == names(Path("again"))
    assert read_config(Path("fast")) == read_config(Path("again"))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name in ("qwen", "phi"))) for name in genai_folders.NAMES],
)
def test_verify(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The decoder runs with a mask and with past keys and values that fit the tokens."""
    output = str(tmp_path / "fast")
    assert cli.main(["rewrite", str(FOLDERS / name), "-o", output, "--verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "input input_ids: int64 1x8, generated, seed 0" in lines
    assert "input attention_mask: int64 1x16, generated, seed 0" in lines
    assert "input past_key_values.0.key: float32 1x2x8x16, generated, seed 0" in lines
    assert lines[-1] == "PASSED"


def test_verify_with_given_inputs(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save("ids.npy", np.arange(8)[None])
    arguments = ("rewrite", str(FOLDERS / "phi"), "-o", "fast", "--verify", "--seed", "3", "--input")
    verification = run_json(capsys, *arguments, "input_ids=ids.npy")["models"]["model.onnx"]["verification"]
    assert verification["passed"]
    assert {each["name"]: each["given"] for each in verification["inputs"]} == {
        "input_ids": True,
        "attention_mask": False,
        "past_key_values.0.key": False,
        "past_key_values.0.value": False,
    }
    assert "model.onnx cannot be verified: the model has no input ids" in error(
        capsys, *arguments[1:4], "--force", *arguments[4:], "ids=ids.npy"
    )
    assert "--shape is for single models" in error(
        capsys, *arguments[1:3], "other", "--verify", "--shape", "input_ids=1x4"
    )


def test_a_verification_that_fails_writes_nothing(
    source: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = onnx.load(source / "model.onnx")
    weights = next(each for each in wrong.graph.initializer if each.name.endswith("norm_layernorm.weight"))
    weights.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weights), weights.name))
    result = ort_dynq.rewrite(wrong, exact=True)
    monkeypatch.setattr("ort_dynq.tools.genai.rewrite", lambda *_, **__: result)
    data = run_json(capsys, "rewrite", "llama", "-o", "fast", "--verify", "--exact", status=1)
    assert data["output"] is None
    assert not Path("fast").exists()


# Configurations


def add_vision(folder: Path, **options: Any) -> None:
    """Adds a second model, which has options of its own."""
    model = ort_dynq.rewrite(
        helper.make_model(
            helper.make_graph(
                [helper.make_node("Relu", ["x"], ["y"])],
                "g",
                *([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])] for name in "xy"),
            ),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=9,
        )
    )
    model.save(folder / "vision.onnx")
    edit_config(folder, lambda config: config["model"].update(vision={"filename": "vision.onnx", **options}))


def test_other_models(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every model is rewritten, and options of its own name the library, too; without any, it has the decoder's."""
    add_vision(source)
    edit_config(source, lambda config: config["model"]["decoder"].pop("session_options"))
    rewrite_folder(source).save("fast")
    model = read_config(Path("fast"))["model"]
    assert model["decoder"]["session_options"] == {"custom_ops_library": LIBRARY}
    assert "session_options" not in model["vision"]
    add_vision(source, session_options={"log_id": "vision"})
    assert cli.main(["rewrite", "llama", "-o", "fast", "--force", "--exact", "--verify"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.endswith("onnx:")] == ["model.onnx:", "vision.onnx:"]
    assert lines.count("PASSED") == 2
    assert read_config(Path("fast"))["model"]["vision"]["session_options"]["custom_ops_library"] == LIBRARY


def test_a_pipeline(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_vision(source)

    def edit(config: Any) -> None:
        decoder = config["model"]["decoder"]
        stages = {"head": {"filename": config["model"].pop("vision")["filename"]}}
        stages["body"] = {"filename": decoder.pop("filename"), "session_options": {}}
        decoder["pipeline"] = [{name: stage} for name, stage in stages.items()]

    edit_config(source, edit)
    data = run_json(capsys, "rewrite", "llama", "-o", "fast")
    assert [*data["models"]] == ["vision.onnx", "model.onnx"]
    assert read_config(Path("fast"))["model"]["decoder"]["pipeline"][1]["body"]["session_options"] == {
        "custom_ops_library": LIBRARY
    }


def test_a_model_that_shares_the_weights(source: Path) -> None:
    """A model that the configuration does not name is copied, with the weights that it shares."""
    (source / "other.onnx").write_bytes((source / "model.onnx").read_bytes())
    rewrite_folder(source).save("fast")
    for name in ("other.onnx", "model.onnx.data"):
        assert (Path("fast") / name).read_bytes() == (source / name).read_bytes()


def set_provider(config: Any) -> None:
    config["model"]["decoder"]["session_options"]["provider_options"] = [{"cuda": {"device_id": "0"}}]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (set_provider, "is for the provider cuda, and ort_dynq's operators run on CPUs"),
        (
            lambda config: config["model"]["decoder"]["session_options"].update(providers=["WebGPU"]),
            "is for the provider WebGPU",
        ),
        (
            lambda config: config["model"]["decoder"]["session_options"].update(custom_ops_library="libother.so"),
            "already has custom_ops_library libother.so, and onnxruntime-genai loads one library; remove this entry",
        ),
        (
            lambda config: config["model"]["decoder"].update(filename="none.onnx"),
            f"names the model none.onnx, but there is no file {Path('llama', 'none.onnx')}",
        ),
        (lambda config: config["model"]["decoder"].update(filename="../m.onnx"), "names the model ../m.onnx, which is"),
        (lambda config: config["model"]["decoder"].pop("filename"), "names no model"),
        (lambda config: config["model"]["decoder"].update(filename="\0.onnx"), "names the model"),
        (lambda config: config["model"].pop("decoder"), "has no section model.decoder"),
        (lambda config: config["model"].update(decoder=[]), "has no section model.decoder"),
        (lambda config: config.pop("model"), "has no section model"),
    ],
)
def test_configurations_that_are_refused(
    edit: Callable[[Any], object], message: str, source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_config(source, edit)
    assert f"{Path('llama', CONFIG)} {message}" in error(capsys, "llama", "-o", "fast")
    assert [path.name for path in Path().iterdir()] == ["llama"]


def test_a_provider_of_cpus(source: Path) -> None:
    edit_config(
        source, lambda config: config["model"]["decoder"]["session_options"].update(provider_options=[{"CPU": {}}])
    )
    assert rewrite_folder(source).folder.models == ("model.onnx",)


NESTED = f'{{"model": {{"decoder": {{"filename": "model.onnx"}}, "more": {"[" * 900}{"]" * 900}}}}}'


@pytest.mark.parametrize("content", ["{", "[]", "\x00", '{"model": 1}', '"model"', "[" * 100_000, NESTED])
def test_files_that_are_no_configuration(content: str, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / CONFIG).write_text(content)
    assert f"{Path('llama', CONFIG)} " in error(capsys, "llama", "-o", "fast")


@pytest.mark.parametrize("options", [None, [], 1, "text"])
def test_options_that_are_no_object(options: object, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit_config(source, lambda config: config["model"]["decoder"].update(session_options=options))
    assert "model.decoder.session_options is not an object" in error(capsys, "llama", "-o", "fast")


@pytest.mark.parametrize("providers", [None, 1, "cpu", {"cuda": {}}, [1], [[]]])
def test_provider_options_in_no_known_form(providers: object, source: Path) -> None:
    """onnxruntime-genai itself refuses them."""
    edit_config(source, lambda config: config["model"]["decoder"]["session_options"].update(provider_options=providers))
    assert rewrite_folder(source).folder.models == ("model.onnx",)


def test_no_configuration(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / CONFIG).unlink()
    expected = "llama has no genai_config.json, so it is not a folder of onnxruntime-genai; give the model in it: "
    assert expected in error(capsys, "llama", "-o", "fast")


def test_a_file_that_cannot_be_copied(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / "vocab.txt").symlink_to("missing")
    assert "vocab.txt is not a file, so it cannot be copied; remove it" in error(capsys, "llama", "-o", "fast")
    (source / "vocab.txt").unlink()
    (source / "more").symlink_to(".")
    assert "more is a link to a folder" in error(capsys, "llama", "-o", "fast")
    assert [path.name for path in Path().iterdir()] == ["llama"]


# Outputs


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("llama", "llama is the input itself"),
        ("./llama/", "llama is the input itself"),
        ("link", "link is the input itself"),
        ("llama/fast", "contains the other"),
        (".", "contains the other"),
        ("no/fast", "to write fast in"),
        ("file", "file is a file; the input is a folder, so choose the name of a folder"),
        ("full", "full is not empty; use --force to replace it, or choose another folder"),
    ],
)
def test_outputs_that_are_refused(output: str, message: str, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("link").symlink_to("llama")
    Path("file").touch()
    Path("full").mkdir()
    Path("full", "file").touch()
    before = sorted(Path().rglob("*"))
    assert message in error(capsys, "llama", "-o", output)
    if output != "full":
        assert message in error(capsys, "llama", "-o", output, "--force")
    else:
        assert "has no genai_config.json, so it is not replaced" in error(capsys, "llama", "-o", output, "--force")
    assert sorted(Path().rglob("*")) == before


def test_an_empty_folder_and_a_link(source: Path) -> None:
    Path("there").mkdir()
    Path("link").symlink_to("there")
    rewrite_folder(source).save("link")
    assert Path("link").is_symlink()
    assert (Path("there") / LIBRARY).is_file()


def test_force(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The old folder is replaced as a whole."""
    genai_folders.copy_of("qwen", Path("fast"))
    Path("fast", "more").touch()
    assert cli.main(["rewrite", "llama", "-o", "fast", "--force"]) == 0
    assert "more" not in names(Path("fast"))
    assert read_config(Path("fast"))["model"]["type"] == "llama"
    assert sorted(path.name for path in Path().iterdir()) == ["fast", "llama"]


def test_a_full_disk(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", fail)
    with pytest.raises(ort_dynq.DynqError, match=r"^fast cannot be written: No space left on device$"):
        rewrite_folder(source).save("fast")
    assert [path.name for path in Path().iterdir()] == ["llama"]


KILLED = """
import json, os, sys
from pathlib import Path
from ort_dynq import files

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
    for name in ("mkdir", "rename", "fsync", "rmdir", "unlink"):
        setattr(os, name, dying(getattr(os, name)))

def write(content):
    with files.replacing_folder(Path("model")) as folder:
        for name in "ab":
            (folder / name).write_text(content)

def read():
    return ["".join(path.read_text() for path in sorted(Path("model").iterdir()))] if Path("model").exists() else []

found = []
for point in range(1, 100):
    os.mkdir(str(point))
    os.chdir(str(point))
    write("1")
    child = os.fork()
    if not child:
        die_at(point)
        write("2")
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    between = read()
    child = os.fork()
    if not child:
        try:
            with files.replacing_folder(Path("model")):
                os._exit(0)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    after = read()
    write("3")
    found.append((status, between, after, read(), os.listdir()))
    os.chdir("..")
    if not status:
        break
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_killed_at_each_point(tmp_path: Path) -> None:
    """Whenever the process is killed, the folder is the old one or the new one, at the latest after the next call."""
    environment = {**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    statuses, between, after, last, left = zip(*json.loads(done.stdout), strict=True)
    assert statuses == (9,) * (len(statuses) - 1) + (0,)
    assert {tuple(each) for each in between} <= {("11",), ("22",), ()}
    assert sum(each == [] for each in between) == 1  # between the two renames
    assert [*after] == sorted(after)
    assert {tuple(each) for each in after} == {("11",), ("22",)}
    assert {tuple(each) for each in last} == {("33",)}
    assert {tuple(each) for each in left} == {("model",)}


def test_a_mistake_of_a_rule_is_not_the_model_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnx's checker does not know SimplifiedLayerNormalization, which ONNX Runtime adds to the standard domain."""

    def mistaken(*_: object, **__: object) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr(rewriter, "convert", mistaken)
    with pytest.raises(DynqError, match="cannot be converted: ValueError: a mistake"):
        rewriter.rewrite(LLAMA / "model.onnx")
