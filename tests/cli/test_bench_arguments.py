"""The arguments, the help and the progress of `ort-dynq bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench_command import TOKEN

from ort_dynq import cli


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx"], "A (missing.onnx) is not a file"),
        ([TOKEN, "missing.onnx"], "B (missing.onnx) is not a file"),
        (["."], ". has no subfolders with a model.onnx"),
        (["ops", "b.onnx"], "B is for `ort-dynq bench quantize` or `ort-dynq bench A.onnx`, not for ops"),
        (
            ["chains", "--sizes", "4x4"],
            "--sizes is for `ort-dynq bench ops` or `ort-dynq bench products`, not",
        ),
        (["ops", "--exact"], "--exact is for `ort-dynq bench chains`, `ort-dynq bench networks`, "),
        (["products", "--exact"], "`ort-dynq bench FOLDER` or `ort-dynq bench A.onnx`, not for products"),
        (["chains", "--misaligned"], "--misaligned is for `ort-dynq bench ops`, not for chains"),
        ([".", "--shape", "x=4"], "--shape is for `ort-dynq bench quantize` or `ort-dynq bench A.onnx`, not for ."),
        (["networks", "--rows", "4"], "--rows is for `ort-dynq bench products`, not for networks"),
        (["chains", "--opening"], "--opening is for `ort-dynq bench A.onnx`, not for chains"),
        (["ops", "--group-size", "32"], "--group-size is for `ort-dynq bench products`, not for ops"),
        (["products", "--group-size", "20"], "argument --group-size: invalid choice"),
        (["products", "--sizes", "48x64"], "the groups do not fit 48x64: 48 is not a multiple of 32"),
        (["products", "--rows", "0"], "argument --rows: 0 is not a positive integer"),
        (
            ["ops", "--input", "x=x.npy"],
            "--input is for `ort-dynq bench quantize` or `ort-dynq bench A.onnx`, not for ops",
        ),
        ([".", "--forms", "token"], "--forms is for `ort-dynq bench networks`, not for ."),
        (["ops", "--layers", "2"], "--layers is for `ort-dynq bench networks`, not for ops"),
        (["networks", "--networks", "rnn"], "there is no network 'rnn', expected one of encoder, decoder, resnet"),
        (
            ["networks", "--networks", "resnet", "--forms", "token"],
            "there is no form 'token' of resnet, expected one of",
        ),
        (["networks", "--networks", "resnet", "--tokens", "3"], "--tokens is for encoder or decoder, not for resnet"),
        (["networks", "--networks", "resnet", "--float16"], "--float16 is for encoder or decoder, not for resnet"),
        (["networks", "--networks", "decoder", "--image", "64"], "--image is for resnet, not for decoder"),
        (["convolutions", "--cases", "9x9"], "there is no convolution '9x9', expected one of 3x3-64, 3x3-128, "),
        (["convolutions", "--exact"], "`ort-dynq bench FOLDER` or `ort-dynq bench A.onnx`, not for convolutions"),
        (["products", "--cases", "3x3-64"], "--cases is for `ort-dynq bench convolutions`, not for products"),
        (["chains", "--image", "64"], "--image is for `ort-dynq bench networks`, not for chains"),
        (["networks", "--forms", "token,int3"], "there is no form 'int3' of encoder or decoder or resnet, "),
        (["networks", "--heads", "5"], "the hidden size 768 is not a multiple of 5 heads"),
        (["networks", "--layers", "0"], "argument --layers: 0 is not a positive integer"),
        (["networks", "--tokens", "1,"], "argument --tokens: "),
        ([TOKEN, "--shape", "x=4"], "the input x has shape [4], expected [batch, tokens, 20]"),
        ([TOKEN, "--shape", "z=4"], "the model has no input z; it has x"),
        (["ops", "--sizes", "4"], "argument --sizes: 4 is not a size like 256x1024"),
        (["ops", "--sizes", "0x4"], "argument --sizes: 0x4 is not a size"),
        (["ops", "--threads", "0"], "argument --threads: 0 is not a positive number of threads"),
        (["ops", "--seconds", "0"], "argument --seconds: 0 is not a positive number of seconds"),
        (["ops", "--seconds", "nan"], "argument --seconds: nan is not a positive number of seconds"),
        (["ops", "--warmup", "-1"], "argument --warmup: "),
        (["ops", "--isa", "avx1024"], "avx1024"),
        (["ops", "--backend", "tpu"], "argument --backend: invalid choice: 'tpu'"),
        (["ops", "--sizes", "99999999x99999999", "--threads", "1"], "a tensor does not fit in memory"),
        ([], "the following arguments are required: WHAT"),
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
    assert cli.main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ort-dynq: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_help_has_an_example_of_every_bench(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for example in (
        *("bench ops", "bench products", "bench convolutions", "bench chains", "bench networks", "bench models/"),
        "bench model.onnx fast.onnx",
    ):
        assert f"ort-dynq {example}" in text


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert cli.main(["bench", "ops", "--sizes", "2x2", "--threads", "1", "--seconds", "0.001", "--json"]) == 0
    captured = capsys.readouterr()
    assert "QuantizeLinear 2x2 per tensor" in captured.err
    assert len(json.loads(captured.out)["timings"]) == 34
