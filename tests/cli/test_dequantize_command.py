"""`ort-dynq dequantize`: its text and JSON, its files and exit statuses."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from commands import MODELS, run_json

from ort_dynq import cli

DYNAMIC = MODELS / "ort_dynamic" / "model.onnx"


def test_text_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dequantize", str(DYNAMIC), "-o", "float.onnx"]) == 0
    text = capsys.readouterr().out
    assert "2 nodes dequantized, 0 stay" in text
    assert text.splitlines()[-1].endswith("products: 0 integer, 2 float")
    data = run_json(capsys, "dequantize", str(DYNAMIC), "-o", "qdq.onnx", "--weights", "qdq")
    assert (data["float_products"], data["integer_products"], data["unconverted"]) == (2, 0, [])
    assert data["bytes_after"] == (folder / "qdq.onnx").stat().st_size
    assert "DequantizeLinear" in [node.op_type for node in onnx.load("qdq.onnx").graph.node]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx", "-o", "float.onnx"], "missing.onnx"),
        (["model.onnx", "-o", "model.onnx"], "--force"),
        ([str(DYNAMIC), "-o", "float.onnx", "--weights", "int4"], "invalid choice"),
    ],
)
def test_errors(arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit status 2, and no file."""
    try:
        status = cli.main(["dequantize", *arguments])
    except SystemExit as exit_:
        status = int(str(exit_.code))
    assert status == 2
    assert message in capsys.readouterr().err
    assert not (folder / "float.onnx").exists()
