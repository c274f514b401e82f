"""The cache of ort_dynq.InferenceSession: what is found in it, what is not, and that it never makes a session fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import helpers
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ort_dynq
from ort_dynq import cache, session

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "torch_token" / "model.onnx"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "cache"))


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Collects the models that sessions rewrite."""
    found: list[object] = []
    rewritten = session._rewritten

    def counted(model: object, *args: object, **kwargs: object) -> object:
        found.append(model)
        return rewritten(model, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "_rewritten", counted)
    return found


def run(opened: ort.InferenceSession) -> list[bytes]:
    rng = np.random.default_rng(0)
    feeds = {}
    for each in opened.get_inputs():
        shape = [dim if isinstance(dim, int) else 3 for dim in each.shape]
        feeds[each.name] = rng.standard_normal(shape).astype(np.float32)
    return [output.tobytes() for output in opened.run(None, feeds)]


def test_second_session_opens_what_the_first_has_rewritten(rewrites: list[object], tmp_path: Path) -> None:
    expected = run(ort_dynq.InferenceSession(MODEL, cache=False))
    assert not (tmp_path / "cache").exists()
    assert run(ort_dynq.InferenceSession(MODEL)) == expected
    assert len(rewrites) == 2
    again = ort_dynq.InferenceSession(str(MODEL))
    assert len(rewrites) == 2
    assert run(again) == expected
    assert "models 1," in cache.describe()
    copied = tmp_path / "copy.onnx"
    shutil.copy(MODEL, copied)
    ort_dynq.InferenceSession(copied)  # the same content
    ort_dynq.InferenceSession(MODEL, backend="extensions")
    ort_dynq.InferenceSession(MODEL, exact=True)
    ort_dynq.InferenceSession(MODEL.read_bytes())
    assert len(rewrites) == 5
    assert run(ort_dynq.InferenceSession(MODEL, backend="extensions")) == expected
    assert len(rewrites) == 5


def test_nothing_to_rewrite_opens_the_file_itself(rewrites: list[object], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(helpers.parse("float[3] x", "float[3] y", "y = Relu(x)"), path)
    expected = run(ort_dynq.InferenceSession(path))
    assert run(ort_dynq.InferenceSession(path)) == expected
    assert len(rewrites) == 1
    (entry,) = (tmp_path / "cache").iterdir()
    assert [file.name for file in entry.iterdir()] == ["entry.json"]


def test_changed_files_are_rewritten_again(rewrites: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(onnx.load(MODEL), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    expected = run(ort_dynq.InferenceSession(path))
    assert run(ort_dynq.InferenceSession(path)) == expected
    assert len(rewrites) == 1
    weights = folder / "weights.bin"
    os.utime(weights, ns=(0, 0))  # as in archives that can be built again
    content = np.fromfile(weights, np.uint8)
    content[:4] ^= 1  # other weights, in a file of the same size
    content.tofile(weights)
    os.utime(weights, ns=(0, 0))
    assert run(ort_dynq.InferenceSession(path)) == run(ort_dynq.InferenceSession(path, cache=False))
    assert len(rewrites) == 3
    path.write_bytes(MODEL.read_bytes())
    ort_dynq.InferenceSession(path)
    assert len(rewrites) == 4


@pytest.mark.parametrize("damage", ["empty model", "cut model", "no model", "other entry", "text", "file"])
def test_damaged_entries(rewrites: list[object], tmp_path: Path, damage: str) -> None:
    expected = run(ort_dynq.InferenceSession(MODEL))
    (entry,) = (tmp_path / "cache").iterdir()
    if damage == "empty model":
        (entry / "model.onnx").write_bytes(b"")
    elif damage == "cut model":
        os.truncate(entry / "model.onnx", 1000)
    elif damage == "no model":
        (entry / "model.onnx").unlink()
    elif damage == "other entry":
        (entry / "entry.json").write_text(json.dumps({"external data": {"weights.bin": [1, 2]}}))
    elif damage == "text":
        (entry / "entry.json").write_text("[]")
    else:
        shutil.rmtree(entry)
        entry.write_bytes(b"")
    assert run(ort_dynq.InferenceSession(MODEL)) == expected
    assert len(rewrites) == 2
    if damage != "file":
        assert run(ort_dynq.InferenceSession(MODEL)) == expected
        assert len(rewrites) == 2


def test_folder_that_cannot_be_written(rewrites: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "file" / "cache"))
    ort_dynq.InferenceSession(MODEL)
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 2
    monkeypatch.setenv(cache.FOLDER, "0")
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 3
    assert cache.describe() == "none"


def test_cache_that_can_only_be_read(rewrites: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    ort_dynq.InferenceSession(MODEL)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "utime", refused)
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 1


def test_model_that_changes_while_it_is_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    shutil.copy(MODEL, path)
    rewritten = session._rewritten

    def changed(*args: object, **kwargs: object) -> object:
        shutil.copy(ROOT / "models" / "torchao_8da8w" / "model.onnx", path)
        return rewritten(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "_rewritten", changed)
    ort_dynq.InferenceSession(path)
    assert "models 0," in cache.describe()


@pytest.mark.parametrize("error", [OSError, ValueError, MemoryError])
def test_any_error_of_the_cache(
    rewrites: list[object], monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(cache, "_delete_oldest", fails)
    monkeypatch.setattr(cache, "sha256" if error is OSError else "replacing_folder", fails)
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 1


def test_models_larger_than_the_cache_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 10)
    ort_dynq.InferenceSession(MODEL)
    assert not (tmp_path / "cache").exists()


def test_what_killed_processes_left_is_deleted(tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".0123.abcdefgh.saving"
    (left / "content").mkdir(parents=True)
    (left / "lock").touch()
    ort_dynq.InferenceSession(MODEL)
    assert not left.exists()


def test_errors_are_those_of_the_session(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(ort_dynq.DynqError, match="missing"):
            ort_dynq.InferenceSession(tmp_path / "missing.onnx")
        with pytest.raises(ValueError, match="provider_options"):
            ort_dynq.InferenceSession(
                MODEL, providers=["CPUExecutionProvider"], provider_options=[{}, {}], enable_fallback=0
            )


def test_oldest_models_are_deleted(rewrites: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ort_dynq.InferenceSession(MODEL)
    (entry,) = (tmp_path / "cache").iterdir()
    os.utime(entry / "entry.json", (0, 0))
    size = sum(file.stat().st_size for file in entry.iterdir())
    monkeypatch.setattr(cache, "MOST_BYTES", size + 100)
    ort_dynq.InferenceSession(MODEL, exact=True)
    assert not entry.exists()
    assert "models 1," in cache.describe()


def test_two_processes(tmp_path: Path) -> None:
    program = (
        "import sys, ort_dynq, numpy as np\n"
        "ort_dynq.InferenceSession(sys.argv[1])\n"
        "ort_dynq.InferenceSession(sys.argv[1], exact=True)\n"
    )
    command = [sys.executable, "-c", program, str(MODEL)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in processes:
        _, error = process.communicate()
        lines = [line for line in error.splitlines() if "cpuid_info warning" not in line]  # of ONNX Runtime on ARM
        assert (process.returncode, lines) == (0, [])
    assert "models 2," in cache.describe()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.name.startswith(".")]


def test_a_cached_model_needs_no_graph_library() -> None:
    ort_dynq.InferenceSession(MODEL)
    program = (
        "import sys, ort_dynq\n"
        "ort_dynq.InferenceSession(sys.argv[1])\n"
        "print([name for name in ('onnx', 'onnx_ir', 'rich') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", program, str(MODEL)]
    assert subprocess.check_output(command, text=True).strip() == "[]"
