"""`ort-dynq doctor`: every check passes on this installation, and each kind of failure is found."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import ort_dynq
from ort_dynq import cli, doctor, kernels, library, runtime

MODEL = Path(__file__).parents[2] / "models" / "torch_token" / "model.onnx"


@pytest.fixture(autouse=True)
def _defined() -> None:
    """Defines the Python operators, which last for the process, before a test replaces the kernels."""
    ort_dynq.register(ort.SessionOptions(), "extensions")


def run(capsys: pytest.CaptureFixture[str], status: int) -> Any:
    assert cli.main(["doctor", "--json"]) == status
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is (status == 0)
    return data


def checks(data: Any) -> dict[str, bool]:
    return {check["name"]: check["passed"] for check in data["checks"]}


def test_all_checks_pass(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.process_time()
    data = run(capsys, 0)
    assert time.process_time() - start < 20  # about two seconds
    assert (data["isa"], data["isas"]) == (kernels.isa(), kernels.supported_isas())
    versions = data["versions"]
    assert (versions["ort_dynq"], versions["Python"]) == (ort_dynq.__version__, platform.python_version())
    assert versions["onnxruntime"] == ort.__version__
    assert versions["onnx-ir"] == importlib.metadata.version("onnx-ir")
    assert all(versions.values())
    tried = ["packages", "onnxruntime", "native library", "instruction set", "backend native", "backend extensions"]
    assert [*checks(data)] == tried + [f"self-test {isa}" for isa in kernels.supported_isas()]
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "PASSED"
    assert f"{data['platform']}; released wheel for it: {data['wheel_test']}" in lines
    assert any(line.split()[:2] == ["onnxruntime", ort.__version__] for line in lines)
    assert data["gain"] in lines


def test_incorrect_kernel_fails_the_self_test(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One bit of one result differs, on one instruction set."""
    right = kernels.run

    def wrong(operator: str, inputs: Any, **attributes: Any) -> Any:
        outputs = right(operator, inputs, **attributes)
        if operator == "DynamicFakeQuantize" and kernels.isa() == "portable" and outputs[0].shape[1] == 1023:
            outputs[0].view("u4")[-1, -1] ^= 1
        return outputs

    monkeypatch.setattr(kernels, "run", wrong)
    data = run(capsys, 1)
    assert [name for name, passed in checks(data).items() if not passed] == ["self-test portable"]
    assert cli.main(["doctor"]) == 1
    *_, advice, last = capsys.readouterr().out.splitlines()
    assert advice.startswith("self-test portable: DynamicFakeQuantize on 5x1023 elements differs from its function; ")
    assert last == "FAILED"


def test_missing_library_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise ort_dynq.DynqError("there is no library")

    for name in ("load", "get_library_path"):
        monkeypatch.setattr(library, name, missing)
    data = run(capsys, 1)
    found = checks(data)
    assert not found["native library"]
    assert not found["backend native"]
    assert not found["backend extensions"]
    assert (data["isa"], data["isas"]) == ("", [])
    (check,) = (check for check in data["checks"] if check["name"] == "native library")
    assert (check["detail"], "install" in check["advice"]) == ("there is no library", True)


def test_library_of_another_version_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from ort_dynq.operators import OPERATORS

    monkeypatch.setitem(OPERATORS, "NewOperator", OPERATORS["DynamicQuantize"])
    data = run(capsys, 1)
    (check,) = (check for check in data["checks"] if not check["passed"])
    assert check["name"] == "native library"
    assert "they differ in the operators NewOperator" in check["detail"]


def test_unknown_instruction_set_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken() -> str:
        raise ort_dynq.DynqError("ORT_DYNQ_ISA is 'sse9'")

    monkeypatch.setattr(kernels, "isa", mistaken)
    assert cli.main(["doctor"]) == 1
    assert capsys.readouterr().out.splitlines()[-2] == "instruction set: ORT_DYNQ_ISA is 'sse9'; unset ORT_DYNQ_ISA"


def test_old_onnxruntime_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", "1.19.2")
    failure = doctor.examine().failure
    assert failure is not None
    assert (failure.name, failure.detail) == ("onnxruntime", "1.19.2, expected 1.20 or newer")


def test_incorrect_result_of_a_session_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def run(self, *_: Any) -> list[Any]:
            return [np.array([0, 127, 128, 128, 128, 130, 134, 255], np.uint8)]

    monkeypatch.setattr(runtime, "open_session", lambda *_: Wrong())
    failure = doctor.examine().failure
    assert failure is not None
    assert failure.name == "backend native"
    assert failure.detail == "DynamicQuantize gives [0, 127, 128, 128, 128, 130, 134, 255] in a session"


# Missing packages


def test_the_packages_are_those_of_the_metadata() -> None:
    required = importlib.metadata.requires("ort_dynq") or []
    names = [re.split(r"[^\w-]", each)[0] for each in required if "extra ==" not in each]
    assert sorted(names) == sorted(doctor.DEPENDENCIES)


def without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line as if a package was not installed."""
    code = f"import sys; sys.modules[{package!r}] = None; from ort_dynq import cli; sys.exit(cli.main(sys.argv[1:]))"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.exhaustive] * (each != "rich")) for each in doctor.DEPENDENCIES],
)
def test_a_package_is_missing(name: str) -> None:
    """All checks run, the report is complete without rich, too, and the first advice is the one that helps."""
    done = without(name.replace("-", "_"), "doctor")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-2:] == [f"packages: {name}: not installed; `pip install {name}`", "FAILED"]
    results = [line.split()[0] for line in lines if re.search(r" (ok|FAILED) ", line)]
    assert results[:2] == ["packages", "onnxruntime"]
    assert len(results) >= 6


def test_commands_without_a_package(capsys: pytest.CaptureFixture[str]) -> None:
    done = without("onnx", "inspect", str(MODEL))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"ort-dynq: error: onnx is not installed, .*: `pip install onnx .*`\n", done.stderr)
    done = without("numpy", "inspect", str(MODEL))
    assert re.fullmatch(r"ort-dynq: error: .*numpy.*; `ort-dynq doctor` says which packages are missing\n", done.stderr)
    command = ("inspect", "--body", "DynamicQuantize")
    done = without("rich", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.main([*command]) == 0
    assert done.stdout.split() == capsys.readouterr().out.split()
