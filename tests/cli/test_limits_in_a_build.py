"""Limits that end a build: --min-snr, --min-agreement and --min-cosine of verify and quantize, --min-ratio of bench."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from accuracy_models import K, floats, model_of, with_outlier

import ort_dynq
from ort_dynq import cli

PAGE = Path(ort_dynq.__file__).parent / "docs" / "is-it-accurate-enough.md"
VERIFY = ("verify", "float.onnx", "int8.onnx", "--data", "data.npz")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder: float.onnx, int8.onnx with 11 dB on data.npz, 8 sets of 4 rows."""
    monkeypatch.chdir(tmp_path)
    onnx.save(with_outlier(), "float.onnx")
    np.savez("data.npz", x=floats(8, 4, K, seed=7))
    assert cli.main(["quantize", "float.onnx", "-o", "int8.onnx", "--no-timing", "--quiet"]) == 0


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any, str]:
    """The exit status, the JSON, and the last line of the text."""
    capsys.readouterr()
    status = cli.main([*arguments, "--json"])
    data = json.loads(capsys.readouterr().out)
    assert (data["schema"], data["command"], data["exit_status"]) == (1, arguments[0], status)
    assert cli.main(arguments) == status
    return status, data, capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(
    ("limits", "status", "line"),
    [
        ("--min-snr 5", 0, "PASSED: --min-snr 5: 1"),
        ("--min-snr 30", 1, "FAILED: --min-snr 30: 1"),
        ("--min-cosine 0.5", 0, "PASSED: --min-cosine 0.5: cosine 0."),
        ("--min-agreement 0.5", 0, "PASSED: --min-agreement 0.5: agreement 0."),
        ("--min-agreement 1 --min-snr 5", 1, "FAILED: --min-agreement 1: agreement 0."),
    ],
)
def test_limits_of_verify(limits: str, status: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = outcome(capsys, *VERIFY, *limits.split())
    assert (found[0], found[1]["compared"], found[1]["sets"]) == (status, "accuracy", 8)
    assert found[2].startswith(line)
    assert found[1]["status"] == ("failed" if status else "passed")
    assert bool(found[1]["reason"]) == bool(status)
    assert [each["status"] for each in found[1]["accuracy"]["gates"]].count("failed") == status


def test_without_limits_a_quantized_model_is_compared(capsys: pytest.CaptureFixture[str]) -> None:
    status, data, _ = outcome(capsys, *VERIFY)
    assert (status, data["accuracy"]["gates"], data["compared"]) == (0, [], "accuracy")
    assert 5 < data["accuracy"]["snr_db"] < 20


def test_a_model_of_another_tool(capsys: pytest.CaptureFixture[str]) -> None:
    """A limit asks for the accuracy; without one, the outputs are compared bit for bit."""
    model = onnx.load("float.onnx")
    weights = next(each for each in model.graph.initializer if each.name == "w")
    changed = onnx.numpy_helper.to_array(weights) * np.float32(1.01)
    weights.CopyFrom(onnx.numpy_helper.from_array(changed, "w"))
    onnx.save(model, "int8.onnx")
    assert outcome(capsys, *VERIFY)[1]["compared"] == "bits"
    assert outcome(capsys, *VERIFY, "--min-snr", "20")[0] == 0
    assert outcome(capsys, *VERIFY, "--min-snr", "60")[0] == 1


def test_nothing_that_a_limit_compares(capsys: pytest.CaptureFixture[str]) -> None:
    """The output decides nothing: exit status 3, but 1 if another limit fails."""
    onnx.save(model_of("h = MatMul(x, w) y = Tanh(h)", {"w": floats(K, K)}), "float.onnx")
    assert cli.main(["quantize", "float.onnx", "-o", "int8.onnx", "--quiet"]) == 0
    status, data, line = outcome(capsys, *VERIFY, "--min-agreement", "0.9")
    assert (status, data["status"]) == (3, "unchecked")
    assert line == "NOT CHECKED: --min-agreement 0.9: no output decides anything"
    assert outcome(capsys, *VERIFY, "--min-agreement", "0.9", "--min-snr", "99")[0] == 1


def test_quantize_chooses_forms_for_each_limit(capsys: pytest.CaptureFixture[str]) -> None:
    quantize = ("quantize", "float.onnx", "-o", "out.onnx", "--data", "data.npz", "--no-timing")
    for limit, key in (("--min-agreement", "agreement"), ("--min-cosine", "cosine")):
        status, data, line = outcome(capsys, *quantize, limit, "0.9")
        assert (status, data["selection"]["words"], data["selection"]["kept_back"]) == (0, ["to_c"], 2)
        assert line.startswith(f"PASSED: {limit} 0.9: ")
        candidates = {each["name"]: each for each in data["selection"]["candidates"]}
        assert candidates["8 bits"][key] < 0.9 <= candidates["selected"][key]
        assert candidates["selected"][f"unseen_{key}"] >= 0.9
        assert candidates["float"][key] > 0.999


def test_a_limit_that_no_quantization_reaches(capsys: pytest.CaptureFixture[str]) -> None:
    """A failed gate, not a mistake of the user."""
    Path("out.onnx").unlink(missing_ok=True)
    quantize = ("quantize", "float.onnx", "-o", "out.onnx", "--data", "data.npz", "--no-timing")
    assert cli.main([*quantize, "--min-snr", "80"]) == 1
    assert "the outputs reach 80 dB only if every layer stays in float" in capsys.readouterr().err
    assert not Path("out.onnx").exists()


def test_min_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    bench = ("bench", "float.onnx", "int8.onnx", "--seconds", "0.01", "--min-ratio")
    status, data, line = outcome(capsys, *bench, "0.001")
    assert (status, [each["status"] for each in data["gates"]]) == (0, ["passed"])
    assert line.startswith("PASSED: --min-ratio 0.001: ratio ")
    assert outcome(capsys, *bench, "999")[0] == 1


def test_min_ratio_on_a_busy_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_dynq.tools.measuring.timing._BUSY", 0.0)
    status, data, line = outcome(
        capsys, "bench", "float.onnx", "int8.onnx", "--seconds", "0.01", "--min-ratio", "0.001"
    )
    assert (status, data["gates"][0]["value"]) == (3, None)
    assert line.startswith("NOT CHECKED: --min-ratio 0.001: the machine is too busy")


QUANTIZE = ("quantize", "float.onnx", "-o", "int8.onnx")


def test_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    """Below 25 dB, or where decisions change on the user's data, unless the user sets limits."""
    for given, text in (
        ((), "an output has 9 dB on generated data, less than 25: see it on yours"),
        (("--data", "data.npz"), "y has 10.1 dB, less than 25, and 1"),
    ):
        status, data, line = outcome(capsys, *QUANTIZE, *given)
        assert (status, line) == (0, f"WARNING: {data['warning']}")
        assert data["warning"].startswith(text)
        command = data["warning"].split("`")[1].replace("samples.npz", "data.npz")
        assert command.endswith("--data data.npz --min-snr 30")
        assert cli.main([*shlex.split(command)[1:], "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["warning"] == ""


def test_warning_of_changed_decisions(capsys: pytest.CaptureFixture[str]) -> None:
    """With 41 dB, rows may change if their two largest elements are nearly equal."""
    onnx.save(model_of("y = MatMul(x, w)", {"w": np.repeat(floats(K, K // 2), 2, axis=1)}), "float.onnx")
    data = outcome(capsys, *QUANTIZE, "--no-timing")[1]
    assert data["warning"] == ""
    data = outcome(capsys, *QUANTIZE, "--no-timing", "--data", "data.npz")[1]
    changed = data["accuracy"]["outputs"][0]["changed"]
    assert bool(changed) == ("decisions of y change" in data["warning"])


def test_the_documented_build() -> None:
    """The documented commands, as a shell runs them in a build."""
    section = PAGE.read_text().split("## Limits in a build\n")[1]
    commands = section.split("```sh\n")[1].split("```")[0].splitlines()
    Path("data.npz").rename("samples.npz")
    assert [cli.main(shlex.split(each)[1:]) for each in commands] == [0, 0, 0]
    assert [shlex.split(each)[0] for each in commands] == ["ort-dynq"] * 3


@pytest.mark.parametrize(
    "wrong", ["--min-agreement 1.5", "--min-cosine 2", "--min-snr x", "--min-agreement -1", "--min-cosine nan"]
)
def test_wrong_limits(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*VERIFY, *wrong.split()]) == 2
    assert wrong.split()[1] in capsys.readouterr().err
