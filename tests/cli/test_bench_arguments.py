"""The arguments and the help of `ort-dynq bench`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from benching import TOKEN

from ort_dynq import cli
from ort_dynq.cli import command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx"], "A (missing.onnx) is not a file"),
        ([TOKEN, "missing.onnx"], "B (missing.onnx) is not a file"),
        (["."], ". has no subfolders with a model.onnx"),
        ([".", "--shape", "x=4"], "--shape is for single models, and . is a folder"),
        ([".", "b.onnx"], "B is for single models, and . is a folder"),
        ([".", "--opening"], "--opening is for single models, and . is a folder"),
        ([".", "--input", "x=x.npy"], "--input is for single models, and . is a folder"),
        ([TOKEN, "--tokens", "3"], "unrecognized arguments: --tokens 3"),
        ([TOKEN, "--data", "x.npz"], "there is no file or folder x.npz with data"),
        (["generate", "folder", "--opening"], "unrecognized arguments: --opening"),
        (["quantize", "f.onnx", "--exact"], "unrecognized arguments: --exact"),
        (["quantize"], "the following arguments are required: FLOAT"),
        (["generate"], "the following arguments are required: FOLDER"),
        ([TOKEN, "--layers", "2"], "unrecognized arguments: --layers 2"),
        ([TOKEN, "--shape", "x=4"], "the input x has shape [4], expected [batch, tokens, 20]"),
        ([TOKEN, "--shape", "z=4"], "the model has no input z; it has x"),
        ([TOKEN, "--threads", "0"], "argument --threads: 0 is not a positive number of threads"),
        ([TOKEN, "--seconds", "0"], "argument --seconds: 0 is not a positive number of seconds"),
        ([TOKEN, "--seconds", "nan"], "argument --seconds: nan is not a positive number of seconds"),
        ([TOKEN, "--warmup", "-1"], "argument --warmup: "),
        ([TOKEN, "--isa", "avx1024"], "avx1024"),
        ([TOKEN, "--backend", "tpu"], "argument --backend: invalid choice: 'tpu'"),
        ([], "the following arguments are required: A"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    check_error(capsys, arguments, message)


@pytest.mark.parametrize(
    "arguments",
    [
        ["ops", "--threads", "1", "--sizes", "256x1024"],
        ["products", "--rows", "1"],
        ["convolutions"],
        ["chains", "--exact"],
        ["networks", "--forms", "token"],
    ],
    ids=lambda arguments: str(arguments[0]),
)
def test_benchmarks_for_developers_are_elsewhere(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the other arguments are."""
    check_error(capsys, arguments, f"in a clone of the repository, run `python tests/bench {arguments[0]}`")


@pytest.mark.parametrize(
    ("words", "name", "rest"),
    [
        ("quantize x.onnx", "bench-quantize", "x.onnx"),
        ("--threads 1 quantize x.onnx", "bench-quantize", "--threads 1 x.onnx"),
        ("--json --threads=1,2 generate folder", "bench-generate", "--json --threads=1,2 folder"),
        ("x.onnx quantize", "bench", "x.onnx quantize"),
        ("--threads 1 x.onnx generate", "bench", "--threads 1 x.onnx generate"),
        ("--threads 1 ./quantize", "bench", "--threads 1 ./quantize"),
    ],
)
def test_short_names_of_benchmarks(words: str, name: str, rest: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options may come before the name of the benchmark, but no model."""
    given: list[Sequence[str]] = []
    monkeypatch.setattr(command, "main", lambda parser, arguments: given.append(arguments) or 0)
    assert cli.main(["bench", *words.split()]) == 0
    assert given == [[name, *rest.split()]]


def check_error(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert cli.main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ort-dynq: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "examples"),
    [
        ("bench", ("bench model.onnx", "bench float.onnx int8.onnx")),
        ("bench-quantize", ("bench-quantize ddddocr",)),
        ("bench-generate", ("bench-generate phi/ --rewritten fast/",)),
    ],
)
def test_help_has_examples(command: str, examples: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"ort-dynq {example}" in text for example in examples)
