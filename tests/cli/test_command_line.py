"""Shared by all subcommands: exit statuses, one line for every error, help, completion, colors, no partial files."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import os
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import onnx
import pytest
from commands import ENCODER, MODELS, run

import ort_dynq
import ort_dynq.tools
from ort_dynq import cli
from ort_dynq.__main__ import main as program

LIGHT = {"ort_dynq.errors", "ort_dynq.files", "ort_dynq.system", "ort_dynq.formats"}
"""Modules that load no other package. Those of the command line stay loaded, too."""


def test_rewrite_and_verify_exit_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "fast.onnx"
    assert cli.main(["rewrite", str(ENCODER), "-o", str(target), "--verify"]) == 0
    written = capsys.readouterr()
    assert written.err == ""
    lines = written.out.splitlines()
    assert lines[-1] == "PASSED"
    assert lines[-3] == "12 integer products: right, compared with float64; everything else is equal bit for bit"
    assert re.search(rf"model.onnx \d+ kB -> {target} \d+ kB; products: 12 integer, 4 float; about .* times", lines[-2])
    assert "28 dynamic quantization chains and products rewritten, 12 unconverted" in lines[0]
    assert any(line.split() == ["QuantizeLinear", "16", "0"] for line in lines)
    assert any(line.split()[:4] == ["16", "row", "program", "RowProgram"] for line in lines)
    assert any("fuses" in line and line.split()[:2] == ["8", "DequantizeLinear"] for line in lines)
    assert "\x1b" not in written.out
    onnx.checker.check_model(onnx.load(target), full_check=True)


def test_wrong_input_exits_with_2(tmp_path: Path) -> None:
    failed = run("rewrite", tmp_path / "missing.onnx", "-o", tmp_path / "fast.onnx")
    assert failed.returncode == 2
    assert failed.stdout == ""
    assert failed.stderr == f"ort-dynq: error: there is no file {tmp_path / 'missing.onnx'}\n"


def test_failed_verification_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "model.onnx", "wrong.onnx"]) == 1
    failed = capsys.readouterr()
    assert failed.err == ""
    assert failed.out.splitlines()[-1].startswith("FAILED: y: ")


def test_errors_of_onnxruntime_are_one_line(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """By default, ONNX Runtime logs its errors to stderr, which would be further lines."""
    model = helpers.parse("float[batch, 4] x", "float[3, 3] y", "s = Constant<value_ints = [3, 3]>() y = Reshape(x, s)")
    onnx.save(model, "fixed.onnx")
    assert cli.main(["verify", "fixed.onnx", "fixed.onnx"]) == 2
    errors = capfd.readouterr().err
    assert len(errors.splitlines()) == 1
    assert "assumed --shape x=2x4; set other shapes like this" in errors


PRINTS = ("inspect", "--body", "DynamicQuantize")
"""A command that prints and loads few packages."""


def test_closed_stdout_exits_with_141() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    stopped = run(*PRINTS, stdout=writing)
    os.close(writing)
    assert (stopped.returncode, stopped.stderr) == (141, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device without space")
@pytest.mark.parametrize("arguments", [PRINTS, pytest.param((*PRINTS, "--json"), marks=pytest.mark.exhaustive)])
def test_stdout_on_a_full_disk(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        stopped = run(*arguments, stdout=full.fileno())
    assert stopped.returncode == 2
    assert stopped.stderr == "ort-dynq: error: stdout cannot be written: No space left on device\n"


def test_a_process_without_stdout_prints_nothing() -> None:
    command = ["sh", "-c", f"{sys.executable} -m ort_dynq {' '.join(PRINTS)} >&-"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_command_line_loads_no_large_package() -> None:
    code = "import sys; from ort_dynq import cli; print({'numpy', 'onnx', 'onnxruntime', 'rich'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_commands_do_not_load_sympy() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "ort_dynq", "inspect", str(ENCODER)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = re.findall(r"^import time:.*\| +([\w.]+)$", done.stderr, re.MULTILINE)
    assert "onnx_ir" in loaded
    assert not [name for name in loaded if name.startswith("sympy.")]


@pytest.mark.parametrize(
    "arguments",
    [
        "inspect none.onnx",
        "rewrite none.onnx -o o.onnx",
        "quantize none.onnx -o o.onnx",
        "bench none.onnx --report o.html",
        "verify model.onnx none.onnx",
        "bench none.onnx",
        "bench-quantize none.onnx",
        "bench-generate none",
        "verify model.onnx model.onnx --input x=none.npy",
        "quantize model.onnx -o o.onnx --verify --data none.npz",
    ],
)
def test_a_wrong_path_is_found_before_libraries_are_loaded(
    arguments: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("numpy", "onnx", "onnx_ir", "onnxruntime", "rich"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [
        name for name in sys.modules if name.startswith("ort_dynq.") and name not in LIGHT and ".cli" not in name
    ]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(arguments.split()) == 2
    assert re.search(
        r"none(\.\w+)?\)? is not a file|there is no (file|folder|file or folder) none", capsys.readouterr().err
    )


def test_colors_on_a_terminal_only(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Colors are used on a terminal unless NO_COLOR is set."""
    monkeypatch.setenv("TERM", "xterm")

    def written(no_color: str) -> str:
        if no_color:
            monkeypatch.setenv("NO_COLOR", no_color)
        else:  # the oldest Rich takes an empty one as set
            monkeypatch.delenv("NO_COLOR", raising=False)
        master, slave = os.openpty()
        with open(slave, "w") as terminal, monkeypatch.context() as context:
            context.setattr(sys, "stdout", terminal)
            assert cli.main(["inspect", "model.onnx"]) == 0
            terminal.flush()
            # Reading would wait for a program that has printed nothing.
            text = os.read(master, 1 << 16).decode() if select.select([master], [], [], 0)[0] else ""
        os.close(master)
        return text

    green = "\x1b[32m"
    assert green in written("")
    assert green not in written("1")
    capsys.readouterr()
    assert cli.main(["inspect", "model.onnx"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_no_arguments_print_the_help() -> None:
    helped, expected = run(), run("--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    assert helped.stdout == expected.stdout
    assert all(command.name in helped.stdout for command in cli.COMMANDS)


def test_help_and_version(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in cli.COMMANDS:
        with pytest.raises(SystemExit) as stopped:
            cli.main([command.name, "--help"])
        assert stopped.value.code == 0
        text = capsys.readouterr().out
        assert f"examples:\n  ort-dynq {command.name} " in text
        assert max(map(len, text.splitlines())) <= 80  # what argparse does not wrap, too
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"ort-dynq {ort_dynq.__version__}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("re", ["rewrite"]),
        ("bench --se", ["--seconds", "--seed"]),
        ("inspect mo", ["model.onnx"]),
        ("rewrite model.onnx -o wr", ["wrong.onnx"]),
        ("verify --backend n", ["native"]),
    ],
)
def test_completion_in_bash(words: str, expected: list[str], folder: Path) -> None:
    """Runs the completion function in bash, as the tab key does."""
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    script = run("--print-completion", "bash")
    assert (script.returncode, script.stderr) == (0, "")
    given = ["ort-dynq", *words.split()]
    state = f"COMP_WORDS=({' '.join(given)}); COMP_CWORD={len(given) - 1}"
    hit = f"{state}; _shtab_ort_dynq; printf '%s\\n' ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", f"{script.stdout}\n{hit}"], capture_output=True, text=True)
    assert sorted(done.stdout.split()) == expected


def test_interrupt_exits_with_130(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ort_dynq.rewriter.rewrite", interrupted)
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx"]) == 130
    assert capsys.readouterr() == ("", "")


def test_interrupt_of_the_imports_exits_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program's own function imports the command line."""

    class Interrupted(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> None:
            if name == "ort_dynq.cli":
                raise KeyboardInterrupt

    script = re.search('^ort-dynq = "(.+):(.+)"$', (MODELS.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert script is not None
    monkeypatch.delitem(sys.modules, "ort_dynq.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    assert getattr(importlib.import_module(script[1]), script[2])() == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("has_threads", [True, False])
def test_interrupt_of_an_extension_module_exits_with_130(
    has_threads: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy and pybind11 make an ImportError of an interrupt, so it waits for the end of the import.

    Without threads, OpenBLAS sends the signal, and NumPy goes on.
    """

    def examine(*_: object, **__: object) -> None:
        if not has_threads:
            raise ort_dynq.DynqError("it went on")
        time.sleep(60)

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    if not has_threads:
        monkeypatch.setattr("threading.Timer.start", refuse)

    class Loader(importlib.machinery.ExtensionFileLoader):
        def create_module(self, spec: object) -> Any:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                raise ImportError("initialization failed") from error

        def exec_module(self, module: Any) -> None:
            module.examine = examine

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
            is_ours = name == "ort_dynq.tools.doctor"
            return importlib.machinery.ModuleSpec(name, Loader(name, "path")) if is_ours else None

    monkeypatch.delitem(sys.modules, "ort_dynq.tools.doctor", raising=False)
    monkeypatch.setattr(ort_dynq.tools, "doctor", None, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    monkeypatch.setattr(sys, "argv", ["ort-dynq", "doctor"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert program() == (130 if has_threads else 2)
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr() == ("", "" if has_threads else "ort-dynq: error: it went on\n")


def test_interrupt_before_the_file_is_replaced_keeps_the_old_one(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file is complete, but has not replaced the old one yet."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    Path("fast.onnx").write_text("old")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr("os.replace", interrupted)
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx"]) == 130
    assert capsys.readouterr() == ("", "")
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("nonsense", "invalid choice: 'nonsense'"),
        ("quantise model.onnx -o o.onnx", "invalid choice: 'quantise', did you mean 'quantize'?"),
        ("rewrite model.onnx -o o.onnx --weights-only block", "invalid choice: 'block', did you mean 'blocks'?"),
        ("rewrite model.onnx", "required: -o/--output (see ort-dynq rewrite --help)"),
        ("inspect model.onnx --exakt", "arguments: --exakt; did you mean --exact? (see ort-dynq inspect --help)"),
        ("bench model.onnx --repeat 2", "arguments: --repeat 2; did you mean --report? (see ort-dynq bench --help)"),
        ("rewrite missing.onnx -o fast.onnx", "there is no file missing.onnx"),
        ("rewrite text.onnx -o fast.onnx", "text.onnx is not an ONNX model"),
        ("rewrite truncated.onnx -o fast.onnx", "truncated.onnx is not an ONNX model"),
        ("rewrite empty.onnx -o fast.onnx", "empty.onnx is not an ONNX model"),
        ("rewrite . -o fast.onnx", ". has no genai_config.json, so it is not a folder of onnxruntime-genai"),
        ("rewrite alone -o fast.onnx", "give the model in it: alone/model.onnx"),
        ("quantize alone -o fast.onnx", "give the model in it: alone/model.onnx"),
        ("inspect alone", "alone is a folder; give the model in it: alone/model.onnx"),
        (
            "bench apart.onnx --report page.html",
            "error: apart.onnx: the external data of the model, its weights, are missing",
        ),
        ("verify model.onnx alone", "B (alone) is a folder; give the model in it: alone/model.onnx"),
        ("bench alone", "alone has no subfolders with a model.onnx; for one model, give the model in it: alone/model"),
        ("inspect nothing", "nothing is a folder; give a model, a .onnx file; there is none in it"),
        (
            "verify model.onnx longer.onnx",
            "the input x of A has shape [2, 4], that of B [batch, 5]; give one that both",
        ),
        ("quantize model.onnx -o o.onnx --verify --data none.npz", "there is no file or folder none.npz with data"),
        ("rewrite model.onnx -o nowhere/fast.onnx", "there is no folder nowhere to write fast.onnx in"),
        ("rewrite model.onnx -o .", ". is a folder; choose the name of a file"),
        ("rewrite model.onnx -o model.onnx", "model.onnx is the input itself; use --force to overwrite it"),
        ("rewrite model.onnx -o fast.onnx --verify --shape x=5x5", "x has shape [5, 5], expected [batch, 4]"),
        ("inspect missing.onnx", "there is no file missing.onnx"),
        ("inspect text.onnx", "text.onnx is not an ONNX model"),
        ("inspect", "there is nothing to inspect; give a model, or --body NAME"),
        ("inspect --body Nothing", "there is no operator 'Nothing', expected one of DynamicQuantize, "),
        ("inspect model.onnx --body DynamicQuantize", "give either IN or --body NAME"),
        ("inspect --body DynamicQuantize --opset 9", "--opset is 9, expected 10 or newer"),
        ("inspect model.onnx --opset 18", "--opset needs --body NAME"),
        ("verify model.onnx", "required: B"),
        ("verify model.onnx ''", "B is empty"),
        ("verify missing.onnx model.onnx", "A (missing.onnx) is not a file"),
        ("verify model.onnx missing.onnx", "B (missing.onnx) is not a file"),
        ("verify text.onnx model.onnx", "A (text.onnx) is not an ONNX model"),
        ("verify model.onnx truncated.onnx", "B (truncated.onnx) is not an ONNX model"),
        ("verify model.onnx empty.onnx", "B (empty.onnx) is not an ONNX model: it is empty"),
        ("verify model.onnx model.onnx --shape x=2xtwo", "--shape x=2xtwo is not of the form NAME=1x128x768"),
        ("verify model.onnx model.onnx --shape 2x4", "--shape 2x4 is not of the form NAME=1x128x768"),
        ("verify model.onnx model.onnx --shape x=-2x4", "--shape x=-2x4 is not of the form NAME=1x128x768"),
        ("verify model.onnx model.onnx --shape z=2x4", "the model has no input z; it has x"),
        ("verify model.onnx model.onnx --shape x=2x5", "x has shape [2, 5], expected [batch, 4]"),
        ("verify model.onnx model.onnx --input z=x.npy", "the model has no input z; it has x"),
        ("verify model.onnx model.onnx --input x", "--input x is not of the form NAME=FILE.npy"),
        ("verify model.onnx model.onnx --input x=none.npy", "there is no file none.npy"),
        ("verify model.onnx model.onnx --input x=text.onnx", "text.onnx is not a .npy file"),
        ("verify model.onnx model.onnx --input x=several.npz", "several.npz contains several arrays"),
        ("verify model.onnx model.onnx --input x=double.npy", "the input x is float64, expected float32"),
        ("verify model.onnx model.onnx --seed -1", "argument --seed"),
        ("verify model.onnx model.onnx --seed x", "x is not a non-negative integer"),
    ],
)
def test_wrong_arguments_are_one_line(
    arguments: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Path("model.onnx").read_bytes()
    Path("truncated.onnx").write_bytes(whole[: len(whole) * 2 // 3])
    Path("text.onnx").write_text("This is not a model.\n" * 9)
    Path("empty.onnx").touch()
    Path("alone").mkdir()
    Path("nothing").mkdir()
    Path("alone/model.onnx").write_bytes(whole)
    longer = helpers.parse(
        "float[batch, 5] x", "float[batch, 5] y, int8[batch, 5] codes", "y = Identity(x) codes = Cast<to = 3>(x)"
    )
    del longer.opset_import[1]
    onnx.save(longer, "longer.onnx")
    apart = helpers.parse("float[2] x", "float[2] y", "w = Constant<value = float[2] {1, 2}>() y = Add(x, w)")
    weights = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    del apart.opset_import[1], apart.graph.node[0]
    apart.graph.initializer.append(weights)
    onnx.save(apart, "apart.onnx", save_as_external_data=True, location="lost", size_threshold=0)
    Path("lost").unlink()
    np.savez("several.npz", a=np.zeros(1))
    np.save("double.npy", np.zeros((2, 4)))
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    for more in ([], ["--json"]):
        assert cli.main([*shlex.split(arguments), *more]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("ort-dynq: error: ")
        assert captured.err.count("\n") == 1
        assert message in captured.err
        assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


def test_full_disk_leaves_no_file(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new file cannot be moved to its place."""

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    before = sorted(folder.iterdir())
    assert cli.main(["rewrite", "model.onnx", "-o", "fast.onnx"]) == 2
    assert capsys.readouterr().err == "ort-dynq: error: fast.onnx cannot be written: No space left on device\n"
    assert sorted(folder.iterdir()) == before


def test_verbose_and_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = MODELS / "encoder_tensor_u8" / "model.onnx"
    given = ["rewrite", str(model), "-o", str(tmp_path / "fast.onnx"), "--no-timing", "--exact"]
    logged = []
    for option in ("-v", "-vv"):
        assert cli.main([*given, option]) == 0
        logged.append(capsys.readouterr().err.splitlines())
    assert logged[0][-1] == logged[1][-1] == f"ort_dynq.storage: {tmp_path / 'fast.onnx'} is written"
    assert len(logged[1]) == len(logged[0]) + 10  # a line for each unconverted node
    assert cli.main([*given, "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert cli.main([*given, "-q", "-v"]) == 2


def test_verbose_is_what_the_command_has(capsys: pytest.CaptureFixture[str]) -> None:
    """Only two commands print comparisons of a verification; all log."""
    for name in ("rewrite", "verify", "doctor", "inspect", "quantize", "bench", "bench-quantize", "bench-generate"):
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        text = " ".join(capsys.readouterr().out.split())
        assert ("all comparisons" in text) == (name in ("rewrite", "verify"))
        assert "a log on stderr; -vv" in text
