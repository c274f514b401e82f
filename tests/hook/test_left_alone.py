"""ort_dynq.install: sessions that stay as the program would open them, and why."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hooked import CPU, MODEL, error_of, is_rewritten, run, states, stock, without_functions

import ort_dynq
from ort_dynq.hook import opening, patch, prepared
from ort_dynq.runtime import session_options


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("writes the model", lambda options, folder: setattr(options, "optimized_model_filepath", str(folder / "o"))),
        ("operators already", lambda options, _: ort_dynq.register(options)),
        ("own format", lambda options, _: options.add_session_config_entry("session.load_model_format", "ORT")),
    ],
)
def test_options_that_forbid_it(
    tmp_path: Path, reason: str, change: Callable[[ort.SessionOptions, Path], None]
) -> None:
    options = ort.SessionOptions()
    change(options, tmp_path)
    with ort_dynq.installed() as sessions:
        if "format" in reason:
            assert error_of(lambda: ort.InferenceSession(MODEL, options))
            return
        assert not is_rewritten(ort.InferenceSession(MODEL, options))
    assert states(sessions) == ["left alone"]
    assert reason in sessions.opened[0].reason


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", ["add_initializer", "add_external_initializers"])
def test_overridden_initializers(tmp_path: Path, when: str, method: str) -> None:
    model = onnx.load(MODEL)
    weight = max(model.graph.initializer, key=lambda each: np.prod(each.dims))
    value = ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(onnx.numpy_helper.to_array(weight)[::-1] * 2))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=100)

    def given() -> ort.SessionOptions:
        options = session_options(optimize=False) if when == "stock" else ort.SessionOptions()
        if method == "add_initializer":
            options.add_initializer(weight.name, value)
        else:
            options.add_external_initializers([weight.name], [value])
        return options

    expected = run(ort.InferenceSession(path, given(), providers=CPU))
    assert expected != stock(path)
    early = given()
    with ort_dynq.installed() as sessions:
        opened = ort.InferenceSession(path, early if when == "before" else given())
        opened_again = ort.InferenceSession(path, early if when == "before" else given())  # by the cache
    assert states(sessions) == ["left alone"] * 2
    assert weight.name in sessions.opened[0].reason
    assert run(opened) == run(opened_again) == expected


def test_the_first_real_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    assert opening._other_provider(None) == ""
    assert opening._other_provider(["NoSuchExecutionProvider", *CPU]) == ""
    monkeypatch.setattr(ort, "get_available_providers", lambda: ["CUDAExecutionProvider", *CPU])
    assert opening._other_provider(None) == "CUDAExecutionProvider"
    assert opening._other_provider([("CUDAExecutionProvider", {"device_id": 1}), *CPU]) == "CUDAExecutionProvider"
    assert opening._other_provider([*CPU, "CUDAExecutionProvider"]) == ""
    with ort_dynq.installed() as sessions:
        session = object.__new__(ort.InferenceSession)
        session.__dict__.update(_model_path=str(MODEL), _model_bytes=None, _sess_options=None)
        session._read_config_from_model = False
        opening.create(session, lambda: None, (["CUDAExecutionProvider", *CPU],), patch.active())  # type: ignore[arg-type]
    assert sessions.opened[0].reason == "its first provider is CUDAExecutionProvider"


def test_models_of_other_kinds(tmp_path: Path) -> None:
    text = tmp_path / "model.onnx"
    text.write_text("no model")
    with ort_dynq.installed() as sessions:
        for model in (tmp_path / "missing.onnx", text, b"no model", b""):
            error = error_of(functools.partial(ort.InferenceSession, model))
            assert type(error).__module__.startswith(("onnxruntime", "builtins"))
            assert error is not None
    assert len(sessions) == 0  # none was opened


def test_errors_are_those_of_onnxruntime() -> None:
    def wrong() -> None:
        ort.InferenceSession(MODEL, None, CPU, [{}, {}], enable_fallback=0)

    expected = error_of(wrong)
    with ort_dynq.installed():
        found = error_of(wrong)
    assert expected is not None
    assert (type(found), str(found)) == (type(expected), str(expected))
    assert found is not None
    assert found.__context__ is None  # nothing of ours beside it


@pytest.mark.parametrize("where", ["rewrite", "open", "cache", "copy"])
def test_anything_that_fails_is_the_programs_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    expected = run(ort.InferenceSession(MODEL))

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("planned")

    if where == "rewrite":
        monkeypatch.setattr("ort_dynq.rewriter.rewrite", fails)
    elif where == "open":
        monkeypatch.setattr(prepared, "register", lambda options: options)
        broken = without_functions(ort_dynq.rewrite(MODEL).to_proto()).SerializeToString()
        monkeypatch.setattr(opening, "_rewritten", lambda *_: opening.Prepared("rewritten", "", broken))
    elif where == "cache":
        monkeypatch.setattr(opening, "Entry", None)
    else:
        monkeypatch.setattr(prepared, "copied", fails)
    with ort_dynq.installed() as sessions, caplog.at_level(logging.WARNING, "ort_dynq"):
        opened = [ort.InferenceSession(MODEL) for _ in range(2)]
    assert [run(each) for each in opened] == [expected] * 2
    assert states(sessions) == ["failed"] * 2
    assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1
