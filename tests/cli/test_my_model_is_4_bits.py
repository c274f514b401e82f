"""Runs every command of the page `my-model-is-4-bits.md`."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from benching import skip_opening
from genai_folders import LLAMA, filled

import ort_dynq
from ort_dynq import cli

PAGE = (Path(ort_dynq.__file__).parent / "docs" / "my-model-is-4-bits.md").read_text()
MODELS = Path(__file__).parents[2] / "models"


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    skip_opening(monkeypatch)
    shutil.copytree(LLAMA, "stock")
    filled("float32", Path("float"))
    shutil.copyfile(MODELS / "ort_nbits" / "model.onnx", "model.onnx")
    Path("notes.txt").write_text("Sphinx of black quartz, judge my vow. " * 4)
    in_text = re.findall(r"`(ort-dynq [^`]*)`", PAGE.partition("```")[0])
    blocks = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert (len(in_text), len(commands)) == (3, 7)
    for line in (*in_text, *commands):
        program, *arguments = shlex.split(line)
        assert program == "ort-dynq"
        if arguments[0] in ("rewrite", "quantize"):
            output = Path(arguments[arguments.index("-o") + 1])
            shutil.rmtree(output, ignore_errors=True)  # the first paragraph and the first block write the same folder
            arguments.append("--no-timing")
        elif arguments[0] == "bench-generate":
            arguments += ["--seconds", "0.01", "--tokens", "4"]
        assert cli.main(arguments) == 0, (line, capsys.readouterr().err)
        if arguments[0] in ("rewrite", "quantize"):
            assert output.exists()
