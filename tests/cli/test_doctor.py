"""`ort-dynq doctor`: every check passes on this installation, and each kind of failure is found."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import time
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import ort_dynq
from ort_dynq import cli, doctor, kernels, library, runtime


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
    tried = ["onnxruntime", "native library", "instruction set", "backend native", "backend extensions"]
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
        if operator == "DynamicRangeFakeQuantize" and kernels.isa() == "portable" and outputs[0].shape[1] == 1023:
            outputs[0].view("u4")[-1, -1] ^= 1
        return outputs

    monkeypatch.setattr(kernels, "run", wrong)
    data = run(capsys, 1)
    assert [name for name, passed in checks(data).items() if not passed] == ["self-test portable"]
    assert cli.main(["doctor"]) == 1
    *_, advice, last = capsys.readouterr().out.splitlines()
    assert advice.startswith(
        "self-test portable: DynamicRangeFakeQuantize on 5x1023 elements differs from its function; "
    )
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
