"""Files that change while a command reads them, and systems that allow no thread: one line, and no half file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ort_dynq import cli, errors, files, runtime
from ort_dynq.cli import command, render

WEIGHTS = "weights"
TEXT = """<ir_version: 9, opset_import: ["": 17]> g (float[8, WIDTH] x) => (uint8[8, WIDTH] q) {
    m = MatMul(x, w) r = Relu(m) n = MatMul(r, w) q, s, z = DynamicQuantizeLinear(n) }"""


def model_of(width: int) -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT.replace("WIDTH", str(width)))
    weights = np.random.default_rng(0).standard_normal((width, width), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    model = model_of(64)
    onnx.save(model, "inside.onnx")
    onnx.save(model, "apart.onnx", save_as_external_data=True, location=WEIGHTS, size_threshold=100)
    return tmp_path


def cut_off(path: Path) -> None:
    os.truncate(path, 0)


def garbage(path: Path) -> None:
    path.write_bytes(b"no model, " * 100)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


CHANGES: tuple[Callable[[Path], None], ...] = (cut_off, Path.unlink, garbage, a_folder)
COMMANDS = ("rewrite {} -o out.onnx", "quantize {} -o out.onnx --verify", "verify {0} {0}", "bench {} --seconds 0.01")


class _Accesses:
    """Changes a file when Python opens it, or a session is opened or run, for the `turn`-th time."""

    def __init__(self, path: Path, change: Callable[[Path], None], turn: int, patch: pytest.MonkeyPatch) -> None:
        self.path, self.change, self.left = path, change, turn
        self.is_on = True
        sys.addaudithook(self._opened)  # it stays for the rest of the process
        for name in ("__init__", "run"):
            patch.setattr(ort.InferenceSession, name, self._before(getattr(ort.InferenceSession, name)))

    def _opened(self, event: str, arguments: tuple[Any, ...]) -> None:
        if (
            self.is_on
            and event == "open"
            and isinstance(arguments[0], str)
            and Path(arguments[0]).name == self.path.name
        ):
            self.count()

    def _before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_on:
                self.count()
            return function(*args, **kwargs)

        return call

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.is_on = False
            self.change(self.path)


def _cases() -> Iterator[Any]:
    for i, text in enumerate(COMMANDS):
        for k, change in enumerate(CHANGES):
            for turn in range(1, 10):
                marks = [] if (turn + i) % 4 == k and turn < 5 else [pytest.mark.exhaustive]
                yield pytest.param(text, change, turn, marks=marks, id=f"{text.split()[0]}-{change.__name__}-{turn}")


@pytest.mark.parametrize(("text", "change", "turn"), list(_cases()))
def test_a_model_that_changes(
    text: str,
    change: Callable[[Path], None],
    turn: int,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What was read counts, or the command ends with one line and writes nothing."""
    accesses = _Accesses(folder / "inside.onnx", change, turn, monkeypatch)
    status = cli.main(text.format("inside.onnx").split())
    accesses.is_on = False
    out = Path("out.onnx")
    if status in (0, 1, 3):  # what was read before the change
        assert not out.exists() or onnx.load(out).graph.node
    else:
        assert status == 2
        assert not out.exists()
        error = capsys.readouterr().err
        assert error.startswith("ort-dynq: error: ")
        assert error.count("\n") == 1
    assert not list(Path().glob(".*"))


@pytest.mark.skipif(os.name == "nt", reason="Windows does not let a mapped file be cut off")
@pytest.mark.parametrize("text", [COMMANDS[0], pytest.param(COMMANDS[1], marks=pytest.mark.exhaustive)])
def test_mapped_weights_that_are_cut_off(text: str, folder: Path) -> None:
    """The process would crash (SIGBUS). onnx_ir maps the weights, so they are cut off when they are mapped."""
    script = f"""
import mmap, os, sys
from ort_dynq.__main__ import main
real = mmap.mmap
def mapped(*args, **kwargs):
    content = real(*args, **kwargs)
    os.truncate({WEIGHTS!r}, 0)
    return content
mmap.mmap = mapped
sys.argv[1:] = {text.format("apart.onnx").split()!r}
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert "was cut off while it was read" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not Path("out.onnx").exists()


def test_a_text_at_the_border_of_two_parts(tmp_path: Path) -> None:
    """Files are searched in parts of 1 MiB."""
    path = tmp_path / "file"
    for start in ((1 << 20) - 4, (1 << 20) - 8, 1 << 20, 0):
        path.write_bytes(bytes(start) + b"location" + bytes(10))
        assert files.contains(path, b"location")
    path.write_bytes(bytes((1 << 20) - 4) + b"loca" + b"-tion")
    assert not files.contains(path, b"location")


# Systems that allow no thread. Root may start threads beyond any limit, so the refusal is simulated.


def _refuse(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_no_thread_for_a_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("threading.Thread.start", _refuse)
    assert cli.main(["inspect", "inside.onnx"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("ort-dynq: error: the system lets this process start no thread: raise the limit")
    assert error.count("\n") == 1
    monkeypatch.setattr(command, "_check_threads", lambda: None)
    assert cli.main(["inspect", "inside.onnx"]) == 0  # only the progress needs one
    with render.working("on something"):
        pass


def test_no_thread_for_a_session(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError(
            "onnxruntime/core/platform/posix/env.cc:327 PosixThread pthread_create failed, error code: 11"
        )

    onnx.save(model_of(256), "inside.onnx")  # its layers are quantized, so that `quantize` compares them
    monkeypatch.setattr(runtime.ort, "InferenceSession", refuse)
    for text in COMMANDS[1:]:  # this rewrite needs no session
        assert cli.main(text.format("inside.onnx").split()) == 2
        error = capsys.readouterr().err
        assert "start no thread" in error
        assert error.count("\n") == 1
    with pytest.raises(errors.ThreadError):
        runtime.can_open("inside.onnx")
    assert not Path("out.onnx").exists()
