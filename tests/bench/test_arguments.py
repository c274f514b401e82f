"""The arguments, the help and the progress of `python tests/bench`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ops", "b.onnx"], "unrecognized arguments: b.onnx"),
        (["chains", "--sizes", "4x4"], "unrecognized arguments: --sizes 4x4"),
        (["ops", "--exact"], "unrecognized arguments: --exact"),
        (["products", "--exact"], "unrecognized arguments: --exact"),
        (["convolutions", "--exact"], "unrecognized arguments: --exact"),
        (["chains", "--misaligned"], "unrecognized arguments: --misaligned"),
        (["networks", "--rows", "4"], "unrecognized arguments: --rows 4"),
        (["ops", "--group-size", "32"], "unrecognized arguments: --group-size 32"),
        (["products", "--cases", "3x3-64"], "unrecognized arguments: --cases 3x3-64"),
        (["ops", "--input", "x=x.npy"], "unrecognized arguments: --input x=x.npy"),
        (["products", "--group-size", "20"], "argument --group-size: invalid choice"),
        (["products", "--sizes", "48x64"], "the groups do not fit 48x64: 48 is not a multiple of 32"),
        (["products", "--rows", "0"], "argument --rows: 0 is not a positive integer"),
        (["networks", "--networks", "rnn"], "there is no network 'rnn', expected one of encoder, decoder, resnet, "),
        (
            ["networks", "--networks", "resnet", "--forms", "token"],
            "there is no form 'token' of resnet, expected one of",
        ),
        (["networks", "--networks", "resnet", "--tokens", "3"], "--tokens is for encoder or decoder, not for resnet"),
        (["networks", "--networks", "resnet", "--float16"], "--float16 is for encoder or decoder, not for resnet"),
        (
            ["networks", "--networks", "decoder", "--image", "64"],
            "--image is for resnet, ppocr, yolo, mobilenet, efficientnet, unet or wave, not for decoder",
        ),
        (
            ["networks", "--forms", "token,int3"],
            "there is no form 'int3' of encoder or decoder or resnet or ppocr or yolo or mobilenet or ",
        ),
        (["networks", "--heads", "5"], "the hidden size 768 is not a multiple of 5 heads"),
        (["networks", "--layers", "0"], "argument --layers: 0 is not a positive integer"),
        (["networks", "--tokens", "1,"], "argument --tokens: "),
        (["convolutions", "--cases", "9x9"], "there is no convolution '9x9', expected one of 3x3-32, 3x3-64, "),
        (["ops", "--sizes", "4"], "argument --sizes: 4 is not a size like 256x1024"),
        (["ops", "--sizes", "0x4"], "argument --sizes: 0x4 is not a size"),
        (["ops", "--sizes", "99999999x99999999", "--threads", "1"], "a tensor does not fit in memory"),
        (["ops", "--threads", "0"], "argument --threads: 0 is not a positive number of threads"),
        (["ops", "--backend", "tpu"], "argument --backend: invalid choice: 'tpu'"),
        (["sizes"], "invalid choice: 'sizes'"),
    ],
)
def test_wrong_arguments_are_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("python tests/bench: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("name", ["ops", "products", "convolutions", "chains", "networks", "train", "perplexity"])
def test_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main([name, "--help"])
    assert stopped.value.code == 0
    assert f"\n  python tests/bench {name} " in capsys.readouterr().out


def test_it_runs_as_a_program() -> None:
    """It imports its modules from the package `bench`, although Python puts the folder of a program on the path."""
    program = Path(__file__).parent
    done = subprocess.run([sys.executable, program, "--help"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: python tests/bench ")


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert cli.main(["ops", "--sizes", "2x2", "--threads", "1", "--seconds", "0.001", "--json"]) == 0
    captured = capsys.readouterr()
    assert "QuantizeLinear 2x2 per tensor" in captured.err
    assert len(json.loads(captured.out)["timings"]) == 34
