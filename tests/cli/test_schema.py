"""The JSON of every command is what `output.schema.json` says: no field is missing, and none is unknown."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from accuracy_models import K, floats, with_outlier
from benching import skip_opening
from commands import MODELS

import ort_dynq
from ort_dynq import cli

jsonschema: Any = pytest.importorskip("jsonschema", reason='`pip install "jsonschema>=4.18"`')
SCHEMA = json.loads((Path(ort_dynq.__file__).parent / "docs" / "output.schema.json").read_text(encoding="utf-8"))
GENAI = Path(__file__).parents[1] / "genai" / "llama"
COMMANDS = (
    "quantize float.onnx -o int8.onnx --no-timing",
    "quantize float.onnx -o out.onnx --data data.npz --min-snr 30 --report page.html",
    "quantize float.onnx -o out.onnx --only-if-faster --allow-none",
    "quantize llama -o new",
    "rewrite chain.onnx -o out.onnx --verify",
    "rewrite llama -o new --no-timing",
    "dequantize chain.onnx -o out.onnx",
    "inspect chain.onnx",
    "inspect --body RowProgram",
    "verify chain.onnx chain.onnx",
    "verify float.onnx int8.onnx --data data.npz --min-snr 30 --min-agreement 0.1 --min-cosine 0",
    "bench chain.onnx --seconds 0.01 --min-ratio 0.01",
    "bench float.onnx int8.onnx --seconds 0.01 --data data.npz --report page.html",
    "bench-quantize float.onnx --seconds 0.01",
    "bench-generate llama --seconds 0.001 --tokens 4 --context 8",
    "doctor",
    "run -- python -c 'pass'",
)


@pytest.fixture
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(with_outlier(), "float.onnx")
    np.savez("data.npz", x=floats(8, 4, K, seed=7))
    shutil.copy(MODELS / "torchao_8da8w" / "model.onnx", "chain.onnx")
    shutil.copytree(GENAI, "llama")


@pytest.mark.usefixtures("_folder")
@pytest.mark.parametrize("line", COMMANDS)
def test_output(line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    skip_opening(monkeypatch)
    name, *arguments = shlex.split(line)
    if "int8.onnx" in line and name != "quantize":
        assert cli.main(["quantize", "float.onnx", "-o", "int8.onnx", "--no-timing", "--quiet"]) == 0
        capsys.readouterr()
    status = cli.main([name, "--json", *arguments])
    data = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert [f"{list(each.absolute_path)}: {each.message}" for each in validator.iter_errors(data)] == []
    assert (data["command"], data["exit_status"]) == (name, status)
    for wrong in ({**data, "unknown": 1}, {key: value for key, value in data.items() if key != "schema"}):
        assert not validator.is_valid(wrong)


def test_every_command_has_a_line() -> None:
    assert {each.split()[0] for each in COMMANDS} == {each.name for each in cli.COMMANDS}
    assert {each.name for each in cli.COMMANDS} == {*SCHEMA["properties"]["command"]["enum"]}
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
