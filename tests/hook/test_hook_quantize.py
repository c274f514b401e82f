"""int8 models in place of a program's float models: measured on what the program runs, used or not, and remembered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import ort_dynq
from ort_dynq.backends.operator_errors import raise_in_sessions
from ort_dynq.hook import patch
from ort_dynq.hook.measurement import Measurement
from ort_dynq.hook.options import HookOptions

RNG = np.random.default_rng(0)
X = RNG.standard_normal((64, 256)).astype(np.float32)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict depends on the load of the machine."""
    monkeypatch.setattr("ort_dynq.hook.measurement._MAX_TIME_RATIO", 1e9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A float model of two large layers."""
    model = helpers.parse("float[n, 256] x", "float[n, 256] y", "h = MatMul(x, w)\n r = Relu(h)\n y = MatMul(r, v)")
    for name in "wv":
        weights = (RNG.standard_normal((256, 256)) / 16).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    del model.opset_import[1:]
    found = tmp_path / "float.onnx"
    onnx.save(model, found)
    return found


def run(session: ort.InferenceSession, x: Any = X) -> np.ndarray:
    found: np.ndarray = session.run(None, {"x": x})[0]
    return found


def is_int8(session: ort.InferenceSession) -> bool:
    return any(key.startswith("ort_dynq.") for key in session.get_modelmeta().custom_metadata_map)


def test_accepted_in_the_session_that_runs_and_in_later_ones(path: Path) -> None:
    stock = run(ort.InferenceSession(path))
    int8 = run(ort.InferenceSession(ort_dynq.quantize(path).to_proto().SerializeToString(), options()))
    assert (stock != int8).any()
    with ort_dynq.installed(quantize=True, inputs=2) as sessions:
        first = ort.InferenceSession(path)
        assert [each.state for each in sessions] == ["measured"]
        for i in range(2):
            assert not is_int8(first)
            assert np.array_equal(run(first), stock)  # the program gets the results of the float model
            assert sessions.opened[0].reason.startswith(f"{i + 1} of 2 inputs" if i == 0 else "")
        assert is_int8(first)
        assert np.array_equal(run(first), int8)
        later = ort.InferenceSession(path)
        assert is_int8(later)
        assert np.array_equal(run(later), int8)
        assert [each.state for each in sessions] == ["quantized"] * 2
        assert "dB (limit 25)" in sessions.opened[0].reason
        assert "on 2 inputs" in sessions.opened[1].reason
        assert sessions.opened[0].integer_products == 2
    assert np.array_equal(run(later), int8)
    assert patch.TRIAL not in first.__dict__


def options() -> ort.SessionOptions:
    return ort_dynq.register(ort.SessionOptions())


def test_refused_and_remembered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = run(ort.InferenceSession(path))
    with ort_dynq.installed(quantize=True, inputs=1, min_snr=200) as sessions:
        first = ort.InferenceSession(path)
        assert all(np.array_equal(run(first), stock) for _ in range(2))
        monkeypatch.setattr("ort_dynq.quantizer.quantize_layers", None)  # is not called again
        second = ort.InferenceSession(path)
        assert np.array_equal(run(second), stock)
    assert [each.state for each in sessions] == ["unchanged"] * 2
    assert all("dB (limit 200)" in each.reason for each in sessions)
    with ort_dynq.installed(quantize=True, inputs=1) as sessions:  # other limits, the same measurement
        assert is_int8(ort.InferenceSession(path))


def test_unfinished_measurements_are_continued(path: Path) -> None:
    for i in range(3):
        with ort_dynq.installed(quantize=True, inputs=3) as sessions:
            session = ort.InferenceSession(path)
            assert sessions.opened[0].reason == f"{i} of 3 inputs measured"
            run(session)
    assert sessions.opened[0].state == "quantized"


@pytest.mark.parametrize("patterns", [["other*"], []])
def test_models_that_no_pattern_names_stay(path: Path, patterns: list[str]) -> None:
    with ort_dynq.installed(quantize=patterns) as sessions:
        session = ort.InferenceSession(path)
        run(session)
    assert [each.state for each in sessions] == ["unchanged"]
    assert patch.TRIAL not in session.__dict__


def test_models_without_layers_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    model = helpers.parse("float[n, 4] x, float[4, n] w", "float[n, n] y", "y = MatMul(x, w)")
    del model.opset_import[1:]
    onnx.save(model, path)
    with ort_dynq.installed(quantize=True) as sessions:
        ort.InferenceSession(path)
        monkeypatch.setattr("ort_dynq.quantizer.quantize_layers", None)
        ort.InferenceSession(path)
    assert [each.state for each in sessions] == ["unchanged"] * 2
    assert "no weights to quantize" in sessions.opened[1].reason


def test_a_subclass_with_its_own_run_and_bindings(path: Path) -> None:
    class Doubled(ort.InferenceSession):  # type: ignore[misc]
        def run(self, *args: Any) -> Any:
            return [2 * each for each in super().run(*args)]

    with ort_dynq.installed(quantize=True, inputs=1) as sessions:
        session = Doubled(path)
        binding = session.io_binding()
        binding.bind_cpu_input("x", X)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        before = binding.copy_outputs_to_cpu()[0]
        assert np.array_equal(2 * before, run(session))
        session.run_with_iobinding(binding)  # the binding belongs to the float model, which stays
        assert np.array_equal(before, binding.copy_outputs_to_cpu()[0])
        assert not is_int8(session)
        assert sessions.opened[0].reason.startswith("float until it is opened again")
        session = Doubled(path)
        assert is_int8(session)
        assert np.array_equal(run(session), 2 * ort.InferenceSession.run(session, None, {"x": X})[0])


def test_operators_in_python_do_not_hide_runs(path: Path) -> None:
    """The backend "extensions" wraps the methods that run sessions, too, for the whole process."""
    raise_in_sessions()
    with ort_dynq.installed(quantize=True, inputs=1) as sessions:
        session = ort.InferenceSession(path)
        run(session)
    assert is_int8(session)
    assert sessions.opened[0].state == "quantized"


def test_threads(path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    stock = run(ort.InferenceSession(path))
    with ort_dynq.installed(quantize=True, inputs=4) as sessions:
        session = ort.InferenceSession(path)
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: run(session), range(64)))
        found += [run(session) for _ in range(4)]  # threads do not wait for a measurement
    int8 = run(session)
    assert all(np.array_equal(each, stock) or np.array_equal(each, int8) for each in found)
    assert np.array_equal(found[0], stock)
    assert sessions.opened[0].state == "quantized"


def test_an_int8_model_that_fails(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = run(ort.InferenceSession(path))
    with ort_dynq.installed(quantize=True, inputs=2) as sessions:
        session = ort.InferenceSession(path)
        trial = getattr(session, patch.TRIAL)
        monkeypatch.setattr(trial, "_candidate", None)
        assert np.array_equal(run(session), stock)
        assert np.array_equal(run(session), stock)
        ort.InferenceSession(path)
    assert [each.state for each in sessions] == ["unchanged"] * 2
    assert "the int8 model fails" in sessions.opened[1].reason


def measured(a: Any, b: Any, *, classifies: bool = False, ratio: float = 0.5, inputs: int = 3) -> Measurement:
    found = Measurement()
    for _ in range(inputs):
        arrays = np.asarray(a, np.float32), np.asarray(b, np.float32)
        found.add({"y": arrays}, frozenset({"y"} if classifies else ()), 1.0, ratio)
    return Measurement.of(found.to_dict())


def accepted(measurement: Measurement, **limits: Any) -> bool:
    verdict = measurement.verdict(HookOptions(**limits))
    assert verdict is not None
    return verdict.is_accepted


def test_signals_are_judged_by_their_noise() -> None:
    exact = RNG.standard_normal((10, 40))
    for level, is_accepted in ((0.03, True), (0.1, False)):  # 30 and 20 dB
        assert accepted(measured(exact, exact + level * RNG.standard_normal((10, 40)))) == is_accepted
    assert not accepted(measured([[1.0, 2.0]], [[1.0, np.nan]]))
    assert not accepted(measured([[1.0, 2.0]], [[1.0, 2.0, 3.0]]))
    assert Measurement().verdict(HookOptions()) is None


def test_classifiers_are_also_judged_by_their_decisions() -> None:
    scores = np.array([[3.0, 2.99, -5.0]] * 20)
    other = scores + np.array([0.0, 0.02, 0.0])
    assert accepted(measured(scores, other))
    assert not accepted(measured(scores, other, classifies=True))
    assert accepted(measured(scores, other, classifies=True), min_agreement=0.0)


def test_probabilities_are_judged_by_their_decisions_alone() -> None:
    rows = np.array([[0.9, 0.05, 0.05]] * 20)
    near = np.array([[0.6, 0.2, 0.2]] * 20)  # 7 dB
    assert accepted(measured(rows, near, classifies=True))
    assert not accepted(measured(rows, near))
    picture = np.full((20, 50), 0.01)
    picture[3, :20] = 0.9
    nothing = np.full((20, 50), 0.01)  # agrees with 98% of the picture
    assert not accepted(measured(picture, nothing, classifies=True))
    assert accepted(measured(picture, picture * 0.9, classifies=True))
    assert not accepted(measured(picture, np.where(picture > 0.5, np.nan, picture), classifies=True))


def test_time_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ort_dynq.hook.measurement._MAX_TIME_RATIO", 1.1)
    assert accepted(measured([[1.0]], [[1.0]], ratio=0.9))
    slow = measured([[1.0]], [[1.0]], ratio=1.5).verdict(HookOptions())
    assert slow is not None
    assert (slow.is_accepted, "1.50 of the time" in slow.text) == (False, True)


@pytest.mark.parametrize("note", [{}, {"inputs": 3}, {"inputs": "x", "noise": []}, {"noise": {"y": {"signals": 1}}}])
def test_any_note(note: dict[str, Any]) -> None:
    assert Measurement.of(note).inputs == 0
