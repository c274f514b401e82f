"""The cache of ort_dynq.InferenceSession: what is found in it, what is not, and that it never makes a session fail."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import helpers
import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ort_dynq
from ort_dynq import cache, files, session

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
    assert run(ort_dynq.InferenceSession(MODEL.read_bytes())) == expected  # the same content, again
    assert len(rewrites) == 4
    assert run(ort_dynq.InferenceSession(MODEL, backend="extensions")) == expected
    assert len(rewrites) == 4


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
    onnx.save(onnx.load(MODEL), path, save_as_external_data=True, location="weights.bin", size_threshold=100)
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
    monkeypatch.setattr(cache, "MAX_BYTES", 10)
    ort_dynq.InferenceSession(MODEL)
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_killed_processes_left_is_deleted(tmp_path: Path) -> None:
    left = tmp_path / "cache" / ".0123.abcdefgh.saving"
    (left / "content").mkdir(parents=True)
    (left / "lock").touch()
    lock = tmp_path / "cache" / "0123.lock"
    lock.touch()
    ort_dynq.InferenceSession(MODEL)
    assert not left.exists()
    assert not lock.exists()


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
    monkeypatch.setattr(cache, "MAX_BYTES", size + 100)
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
        "sys.modules['onnx'] = sys.modules['onnx_ir'] = None\n"
        "ort_dynq.InferenceSession(sys.argv[1])\n"
        "print([name for name in ('onnx', 'onnx_ir', 'rich') if sys.modules.get(name)])\n"
    )
    command = [sys.executable, "-c", program, str(MODEL)]
    assert subprocess.check_output(command, text=True).strip() == "[]"


def give_to_another_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a file one of another user, or the running user another one: only the administrator can do the first."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)


needs_owners = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no owners as numbers")


@needs_owners
@pytest.mark.parametrize(
    ("place", "attack"),
    helpers.diagonals(1, [".", "ENTRY", "ENTRY/entry.json", "ENTRY/model.onnx"], ["owner", "group", "all", "link"]),
)
def test_what_others_may_have_written_is_not_opened(
    rewrites: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, attack: str
) -> None:
    ort_dynq.InferenceSession(MODEL)
    (entry,) = (tmp_path / "cache").iterdir()
    (entry / "model.onnx").write_bytes((ROOT / "models" / "torchao_8da8w" / "model.onnx").read_bytes())
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 1  # the user's own are opened
    path = tmp_path / "cache" / place.replace("ENTRY", entry.name)
    if attack == "owner":
        give_to_another_user(path, monkeypatch)
    elif attack == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.chmod(path.stat().st_mode | {"group": 0o020, "all": 0o002}[attack])
    opened = ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 2
    assert run(opened) == run(ort_dynq.InferenceSession(MODEL, cache=False))
    assert ("not used" in cache.describe()) == (place == ".")


@needs_owners
def test_folders_that_others_can_replace(rewrites: list[object], tmp_path: Path) -> None:
    ort_dynq.InferenceSession(MODEL)
    tmp_path.chmod(0o777)
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 2
    assert "all may write it" in cache.describe()
    tmp_path.chmod(0o1777)  # as /tmp, where nobody renames what is not his
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 2


@needs_owners
def test_entries_are_private(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        ort_dynq.InferenceSession(MODEL)
    finally:
        os.umask(before)
    (entry,) = (tmp_path / "cache").iterdir()
    assert [path.stat().st_mode & 0o077 for path in (entry.parent, entry, *entry.iterdir())] == [0, 0, 0, 0]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names")
@pytest.mark.parametrize("name", ["entry.json", "model.onnx", ""])
def test_pipes_do_not_wait(rewrites: list[object], tmp_path: Path, name: str) -> None:
    expected = run(ort_dynq.InferenceSession(MODEL))
    (entry,) = (tmp_path / "cache").iterdir()
    path = entry / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    os.mkfifo(path, 0o600)
    assert run(ort_dynq.InferenceSession(MODEL)) == expected
    assert len(rewrites) == 2


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"packages": ' * 100_000, "\udcff", '{"packages": {}, "external data": 3}']
)
def test_any_text(rewrites: list[object], tmp_path: Path, text: str) -> None:
    ort_dynq.InferenceSession(MODEL)
    (entry,) = (tmp_path / "cache").iterdir()
    (entry / "entry.json").write_text(text, errors="surrogateescape")
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 2


@pytest.mark.parametrize("name", ["/dev/zero", "../secret", "folder"])
def test_external_data_that_are_no_files_of_the_model(rewrites: list[object], tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.onnx"
    shutil.copy(MODEL, path)
    (tmp_path / "folder").mkdir()
    ort_dynq.InferenceSession(path)
    (entry,) = (tmp_path / "cache").iterdir()
    content = json.loads((entry / "entry.json").read_text())
    (entry / "entry.json").write_text(json.dumps({**content, "external data": {name: "0"}}))
    ort_dynq.InferenceSession(path)
    assert len(rewrites) == 2


def test_folder_of_no_user(rewrites: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.FOLDER, "~no such user/cache")
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 1
    assert cache.describe() == "none"


@pytest.mark.parametrize("locks", ["files", "threads"])
def test_threads_rewrite_once(
    rewrites: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: str
) -> None:
    if locks == "threads":  # as where there is no fcntl
        monkeypatch.setitem(sys.modules, "fcntl", None)
    expected = run(ort_dynq.InferenceSession(MODEL, cache=False))
    rewrites.clear()
    start = threading.Barrier(8)

    def opened(model: Path | bytes) -> list[bytes]:
        start.wait()
        return run(ort_dynq.InferenceSession(model))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(opened, [MODEL, MODEL.read_bytes()] * 4)) == [expected] * 8
    assert len(rewrites) == 1
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [""]


def test_processes_rewrite_once(tmp_path: Path) -> None:
    program = (
        "import sys, ort_dynq\n"
        "from ort_dynq import session\n"
        "rewritten = session._rewritten\n"
        "session._rewritten = lambda *a, **k: (print('rewritten'), rewritten(*a, **k))[1]\n"
        "ort_dynq.InferenceSession(sys.argv[1])\n"
    )
    command = [sys.executable, "-c", program, str(MODEL)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    found = "".join(process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0] * 3
    assert found == "rewritten\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "name.lock"
    with files.locked(path):
        child = os.fork()
        if child == 0:
            time.sleep(30)
            os._exit(0)
    begin = time.monotonic()
    try:
        with files.locked(path):
            assert time.monotonic() - begin < 10
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_other_versions_of_the_tools(rewrites: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    ort_dynq.InferenceSession(MODEL)
    installed = cache._installed
    monkeypatch.setattr(cache, "_installed", lambda name: None if name in ("onnx", "onnx-ir") else installed(name))
    ort_dynq.InferenceSession(MODEL)  # as a server has it
    assert len(rewrites) == 1
    monkeypatch.setattr(cache, "_installed", lambda _: "0.0")
    ort_dynq.InferenceSession(MODEL)
    assert len(rewrites) == 2


def test_bytes_with_external_data_are_not_kept(rewrites: list[object], tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load(MODEL), path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
    for _ in range(2):
        with contextlib.suppress(ort_dynq.DynqError):
            ort_dynq.InferenceSession(path.read_bytes(), options)
    assert "models 0," in cache.describe()
