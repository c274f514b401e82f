"""`ort-dynq doctor`: every check passes on this installation, and each kind of failure is found."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from packaging.requirements import Requirement

import ort_dynq
from ort_dynq import cli, kernels, library, rewriter, runtime, system
from ort_dynq.backends import extensions
from ort_dynq.errors import with_advice_on_tools
from ort_dynq.operators import DOMAIN, OPERATORS, VERSION
from ort_dynq.tools import doctor

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "models" / "torch_token" / "model.onnx"


@pytest.fixture(autouse=True)
def _defined() -> None:
    """Defines the Python operators, which last for the process, before a test replaces the kernels."""
    if system.NO_WHEEL not in system.advice_on_extensions():
        ort_dynq.register(ort.SessionOptions(), "extensions")


def run(capsys: pytest.CaptureFixture[str], status: int) -> Any:
    assert cli.main(["doctor", "--json"]) == status
    data = json.loads(capsys.readouterr().out)
    assert data["passed"] is (status == 0)
    return data


def checks(data: Any) -> dict[str, bool]:
    return {check["name"]: check["passed"] for check in data["checks"]}


def test_all_checks_pass(capsys: pytest.CaptureFixture[str]) -> None:
    data = run(capsys, 0)
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


def test_without_stderr(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A process may start without one: `2>&-`."""
    monkeypatch.setattr(sys, "stderr", None)
    assert cli.main(["inspect", str(MODEL), "--json"]) == 0
    assert cli.main(["inspect", "absent.onnx"]) == 2
    assert sys.stderr is None  # what stood in for it is closed
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.exhaustive] * (each != "rich")) for each in doctor.DEPENDENCIES],
)
def test_a_package_is_missing(name: str) -> None:
    """All checks run, the report is complete without rich, too, and the first advice is the one that helps."""
    done = without(name.replace("-", "_"), "doctor")
    lines = done.stdout.splitlines()
    if name in ("numpy", "ml-dtypes", "onnxruntime"):
        assert done.returncode == 1
        assert lines[-2:] == [f"packages: {name}: not installed; `pip install {name}`", "FAILED"]
    else:
        assert (done.returncode, lines[-1]) == (0, "PASSED")
        assert re.search(rf"packages +ok +rewritten models run; .*: `pip install {name}`", done.stdout)
    results = [line.split()[0] for line in lines if re.search(r" (ok|FAILED|not run) ", line)]
    assert results[:2] == ["packages", "onnxruntime"]
    assert len(results) >= 6


def test_a_server_has_no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """numpy, ml_dtypes and onnxruntime suffice to run models; what cannot be checked then says so."""
    absent = ("onnx", "onnx-ir", "onnxruntime-extensions", "rich", "jinja2", "shtab")
    for name in absent:
        monkeypatch.setitem(sys.modules, name.replace("-", "_"), None)
    found = doctor.examine()
    results = {each.name: (each.passed, each.detail) for each in found.checks}
    assert found.failure is None
    assert results["backend native"] == (True, "loads, registers, runs")
    assert results["self-test portable"] == (None, "onnx and onnx-ir not installed: `pip install onnx onnx-ir`")
    assert results["backend extensions"][0] is None
    passed, detail = results["packages"]
    assert (passed, detail.startswith("rewritten models run; ")) == (True, True)
    tools, extensions = detail.split("; ")[1:]
    assert tools == "to change and describe models: `pip install onnx onnx-ir rich jinja2 shtab`"
    assert extensions == "for the backend extensions: `pip install -U onnxruntime-extensions`"


def _without_wheel(monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], platform: str, machine: str) -> None:
    """Simulates a system, without onnxruntime-extensions."""
    monkeypatch.setitem(sys.modules, "onnxruntime_extensions", None)
    monkeypatch.setattr(system, "sys", SimpleNamespace(version_info=(*version, 0), platform=platform))
    monkeypatch.setattr(system.platform, "machine", lambda: machine)


@pytest.mark.parametrize(
    ("version", "platform", "machine", "where"),
    [((3, 14), "linux", "x86_64", "Python 3.14"), ((3, 12), "win32", "ARM64", "Windows on ARM")],
)
def test_no_wheel_of_extensions(
    version: tuple[int, int], platform: str, machine: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installation is complete; only the backend extensions is missing, and pip install is no advice."""
    _without_wheel(monkeypatch, version, platform, machine)
    found = doctor.examine()
    results = {each.name: (each.passed, each.detail) for each in found.checks}
    assert found.failure is None
    advice = f"onnxruntime-extensions has no wheel for {where}; the backend native does not need it"
    assert results["packages"] == (True, f"models run, are changed and described; for the backend extensions: {advice}")
    assert results["backend extensions"] == (None, f"onnxruntime-extensions not installed: {advice}")
    with pytest.raises(ort_dynq.DynqError, match=f"cannot be loaded: .*; {advice}"):
        extensions._define_all.__wrapped__()


def test_the_marker_of_extensions(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyproject.toml and doctor name the same systems."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (line,) = re.findall(r'"(onnxruntime-extensions[^"]*)"', text)
    marker = Requirement(line).marker
    assert marker is not None
    for version in range(10, 15):
        for name, machine in (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "ARM64")):
            _without_wheel(monkeypatch, (3, version), name, machine)
            names = {"python_version": f"3.{version}", "sys_platform": name, "platform_machine": machine}
            assert marker.evaluate(names) == (system.NO_WHEEL not in system.advice_on_extensions())


def test_tests_skip_the_backend_by_name(tmp_path: Path) -> None:
    """Where it cannot be installed."""
    script = f"""
import sys, pytest
sys.modules["onnxruntime_extensions"] = None
from types import SimpleNamespace
from ort_dynq import system
system.sys = SimpleNamespace(version_info=(3, 14, 0), platform="linux")
sys.exit(pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir", {str(ROOT)!r}, *sys.argv[1:]]))
"""
    test = ROOT / "tests" / "operators" / "test_operators.py"
    done = subprocess.run(
        [sys.executable, "-c", script, f"{test}::test_unknown_rank_loads_and_runs"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0
    assert "backend extensions: onnxruntime-extensions has no wheel for Python 3.14" in done.stdout
    assert "1 passed, 1 skipped" in done.stdout


def test_the_model_of_the_sessions() -> None:
    """It is what the text says, with the version and all attributes of the operator."""
    spec, model = OPERATORS["DynamicQuantize"], onnx.load_from_string(doctor.MODEL)
    assert {each.domain: each.version for each in model.opset_import}[DOMAIN] == VERSION
    (node,) = model.graph.node
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    expected = {each.name: each.default for each in spec.attributes if each.default != ()}
    assert (node.op_type, [*node.input]) == ("DynamicQuantize", ["x", "s", "z"])
    assert {name: v.decode() if isinstance(v, bytes) else v for name, v in attributes.items()} == expected


def test_a_broken_package_is_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package is there, but a part of it cannot be imported: the error stays, and pip install is no advice."""
    for name in ("onnx._cpp2py_export", "onnx", "google.protobuf"):  # the second is installed
        found = with_advice_on_tools(ModuleNotFoundError(f"No module named {name!r}", name=name))
        assert type(found) is ModuleNotFoundError
        assert str(found).startswith(f"No module named {name!r}; `ort-dynq doctor` says ")
    broken = ImportError("libprotobuf.so: undefined symbol", name="onnx")
    assert str(with_advice_on_tools(broken)).startswith("libprotobuf.so: undefined symbol; `ort-dynq doctor` says ")
    monkeypatch.setattr(rewriter, "rewrite", lambda *_, **__: (_ for _ in ()).throw(broken))
    for call in (
        lambda: ort_dynq.InferenceSession(MODEL, cache=False),
        lambda: ort_dynq.InferenceSession(b"", cache=False),
    ):
        with pytest.raises(ImportError, match="undefined symbol; `ort-dynq doctor` says"):
            call()


def test_commands_without_a_package(capsys: pytest.CaptureFixture[str]) -> None:
    done = without("onnx", "inspect", str(MODEL))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"ort-dynq: error: onnx is not installed, .*: `pip install onnx .*`\n", done.stderr)
    done = without("numpy", "inspect", str(MODEL))
    assert re.fullmatch(
        r"ort-dynq: error: .*numpy.*; `ort-dynq doctor` says which packages are missing or broken\n", done.stderr
    )
    command = ("inspect", "--body", "DynamicQuantize")
    done = without("rich", *command)
    assert (done.returncode, done.stderr) == (0, "")
    assert cli.main([*command]) == 0
    assert done.stdout.split() == capsys.readouterr().out.split()
