"""ort_dynq.install: sessions of a program become ours in every form, and stay its own where they must."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
import pytest
from hooked import CPU, FLOAT, MODEL, ROOT, error_of, feeds, is_rewritten, run, states, stock, without_functions
from onnxruntime import InferenceSession as ImportedEarly

import ort_dynq
from ort_dynq import cache
from ort_dynq.hook import opening, patch, prepared
from ort_dynq.hook.sessions import Opened

Open = Callable[[Path], ort.InferenceSession]


class Subclass(ort.InferenceSession):  # type: ignore[misc]
    """As insightface has it, and pickled as in ONNX Runtime's documentation."""

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(path, **kwargs)
        self.path = path

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}

    def __setstate__(self, values: dict[str, str]) -> None:
        self.__init__(values["path"])  # type: ignore[misc]


def with_options(**values: Any) -> Open:
    def opened(path: Path) -> ort.InferenceSession:
        options = ort.SessionOptions()
        for name, value in values.items():
            setattr(options, name, value)
        return ort.InferenceSession(path, options, providers=CPU)

    return opened


def with_providers_set_again(path: Path) -> ort.InferenceSession:
    session = ort.InferenceSession(path)
    session.set_providers(CPU)
    return session


FORMS: dict[str, Open] = {
    "text": lambda path: ort.InferenceSession(str(path)),
    "Path": ort.InferenceSession,
    "bytes": lambda path: ort.InferenceSession(path.read_bytes()),
    "imported early": ImportedEarly,
    "subclass": lambda path: Subclass(str(path)),
    "pickled": lambda path: pickle.loads(pickle.dumps(Subclass(str(path)))),
    "names": lambda path: ort.InferenceSession(path, providers=CPU),
    "Azure first": lambda path: ort.InferenceSession(path, providers=["AzureExecutionProvider", *CPU]),
    "tuples": lambda path: ort.InferenceSession(path, providers=[("CPUExecutionProvider", {})]),
    "provider options": lambda path: ort.InferenceSession(path, None, CPU, [{}]),
    "disabled optimizers": lambda path: ort.InferenceSession(path, disabled_optimizers=["ConstantFolding"]),
    "threads": with_options(intra_op_num_threads=1, inter_op_num_threads=1),
    "no optimization": with_options(graph_optimization_level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL),
    "providers set again": with_providers_set_again,
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    expected = stock()
    with ort_dynq.installed(exact=True) as sessions:
        opened = FORMS[form](MODEL)
        assert is_rewritten(opened)
    assert {*states(sessions)} == {"rewritten"}
    assert run(opened) == expected
    assert not is_rewritten(FORMS[form](MODEL))


def test_profiles_bindings_and_runs_later(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "profile")
    with ort_dynq.installed() as sessions:
        opened = ort.InferenceSession(MODEL, options)
    assert states(sessions) == ["rewritten"]
    inputs, expected = feeds(opened), run(opened)
    binding = opened.io_binding()
    for name, value in inputs.items():
        binding.bind_cpu_input(name, value)
    for each in opened.get_outputs():
        binding.bind_output(each.name)
    opened.run_with_iobinding(binding)
    assert [output.tobytes() for output in binding.copy_outputs_to_cpu()] == expected
    done, found = threading.Event(), []
    opened.run_async(None, inputs, lambda results, *_: (found.extend(results), done.set()), None)
    assert done.wait(60)
    assert [output.tobytes() for output in found] == expected
    assert "RowProgram" in Path(opened.end_profiling()).read_text()
    assert len(list(tmp_path.glob("profile*"))) == 1


def test_relative_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.load(MODEL), path, save_as_external_data=True, location="weights.bin", size_threshold=100)
    expected = stock(path)
    monkeypatch.chdir(tmp_path)
    with ort_dynq.installed(exact=True) as sessions:
        found = [run(ort.InferenceSession("model.onnx")) for _ in range(2)]
        options = ort.SessionOptions()
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(tmp_path))
        for _ in range(2):
            session = ort.InferenceSession(path.read_bytes(), options)
            found.append(run(session))
    assert found == [expected] * 4
    assert states(sessions) == ["rewritten"] * 2 + ["left alone"] * 2


def test_session_options_are_shared_and_never_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.some", "text")
    libraries: list[ort.SessionOptions] = []
    register = prepared.register
    monkeypatch.setattr(prepared, "register", lambda given: (libraries.append(given), register(given))[1])
    with ort_dynq.installed():
        opened = [ort.InferenceSession(MODEL, options) for _ in range(2)]
    assert all(map(is_rewritten, opened))
    assert len(libraries) == 2
    assert not any(each is options for each in libraries)
    assert not ort_dynq.backends.options.registered(options)
    assert opened[0].get_session_options().get_session_config_entry("session.some") == "text"
    rewritten = ort_dynq.rewrite(MODEL)
    needs_operators = without_functions(rewritten.to_proto()).SerializeToString()
    assert "ort_dynq" in str(error_of(lambda: ort.InferenceSession(needs_operators, options)))


def test_patterns_and_states(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("kept.onnx", "float.onnx", "rewritten.onnx", "model.onnx")}
    shutil.copy(MODEL, paths["kept.onnx"])
    shutil.copy(MODEL, paths["model.onnx"])
    shutil.copy(FLOAT, paths["float.onnx"])
    ort_dynq.rewrite(MODEL).save(paths["rewritten.onnx"])
    with ort_dynq.installed(keep=["kept*"]) as sessions:
        for path in paths.values():
            ort.InferenceSession(path)
    assert states(sessions) == ["left alone", "unchanged", "registered", "rewritten"]
    text = str(sessions)
    assert text.startswith("4 sessions: 1 rewritten")
    assert "1 left alone (kept)" in text


@pytest.mark.parametrize("path", [MODEL, FLOAT], ids=["rewritten", "unchanged"])
def test_quotas_of_containers(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    monkeypatch.setattr(opening, "quota_cores", lambda: 3)
    monkeypatch.setattr(prepared, "quota_cores", lambda: 3)
    options, chosen = ort.SessionOptions(), ort.SessionOptions()
    chosen.intra_op_num_threads = 2
    with ort_dynq.installed():
        threads = [
            ort.InferenceSession(path, given).get_session_options().intra_op_num_threads
            for given in (None, options, chosen)
        ]
    assert threads == [3, 3, 2]
    assert options.intra_op_num_threads == 0


def test_our_own_sessions_are_not_recorded() -> None:
    with ort_dynq.installed() as sessions:
        ort_dynq.InferenceSession(MODEL)
        ort_dynq.verify(MODEL, ort_dynq.rewrite(MODEL).model)
    assert len(sessions) == 0


def test_models_that_a_program_replaces(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    shutil.copy(MODEL, path)
    other = ROOT / "models" / "torchao_8da8w" / "model.onnx"
    expected = [stock(path), stock(other)]
    with ort_dynq.installed(exact=True) as sessions:
        found = [run(ort.InferenceSession(path))]
        shutil.copy(other, path)
        found.append(run(ort.InferenceSession(path)))
    assert found == expected
    assert states(sessions) == ["rewritten"] * 2


def test_eight_threads_rewrite_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rewrites = []
    from ort_dynq import rewriter

    rewrite = rewriter.rewrite
    monkeypatch.setattr(rewriter, "rewrite", lambda *a, **k: (rewrites.append(a), rewrite(*a, **k))[1])
    expected = stock()
    with ort_dynq.installed(exact=True) as sessions, ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda i: ort.InferenceSession(MODEL if i % 2 else MODEL.read_bytes()), range(8)))
    assert [run(each) for each in opened] == [expected] * 8
    assert states(sessions) == ["rewritten"] * 8
    assert len(rewrites) == 1


def test_without_a_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = stock()
    monkeypatch.setenv(cache.FOLDER, "0")
    with ort_dynq.installed(exact=True) as sessions:
        assert run(ort.InferenceSession(MODEL)) == expected
    assert states(sessions) == ["rewritten"]


def _in_child(_: int) -> tuple[bool, list[bytes]]:
    session = ort.InferenceSession(MODEL)
    return is_rewritten(session), run(session)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_processes() -> None:
    expected = stock()
    with ort_dynq.installed(exact=True), ProcessPoolExecutor(2, get_context("fork")) as pool:
        assert list(pool.map(_in_child, range(3))) == [(True, expected)] * 3


def test_install_uninstall_and_nesting() -> None:
    create = ort.InferenceSession._create_inference_session
    outer = ort_dynq.install()
    with ort_dynq.installed(keep=["*"]) as inner:
        ort.InferenceSession(MODEL)
    ort.InferenceSession(MODEL)
    ort_dynq.uninstall()
    ort.InferenceSession(MODEL)
    assert (states(inner), states(outer)) == (["left alone"], ["rewritten"])
    assert ort.InferenceSession._create_inference_session is create


def test_somebody_else_replaces_the_method_after_us(monkeypatch: pytest.MonkeyPatch) -> None:
    with ort_dynq.installed() as sessions:
        ours = ort.InferenceSession._create_inference_session
        calls = []

        def theirs(self: Any, *args: Any, **kwargs: Any) -> None:
            calls.append(args)
            ours(self, *args, **kwargs)

        before = ours.__wrapped__
        monkeypatch.setattr(ort.InferenceSession, "_create_inference_session", theirs)
        ort.InferenceSession(MODEL)
    ort.InferenceSession(MODEL)  # ours passes it on
    assert (len(calls), len(sessions)) == (2, 1)
    monkeypatch.undo()
    ort.InferenceSession._create_inference_session = before
    patch._state.originals.clear()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"exact": True, "fuse": True}, "exact keeps every bit"),
        ({"exact": True, "quantize": True}, "exact keeps every bit"),
        ({"min_agreement": 1.5}, "from 0 to 1"),
        ({"inputs": 0}, "1 or more"),
        ({"min_snr": float("nan")}, "decibels"),
    ],
)
def test_wrong_options(options: dict[str, Any], match: str) -> None:
    with pytest.raises(ort_dynq.DynqError, match=match):
        ort_dynq.install(**options)
    assert patch.active() is None


def test_import_is_cheap() -> None:
    import subprocess

    program = (
        "import sys, ort_dynq\n"
        "ort_dynq.install()\n"
        "print([name for name in ('numpy', 'onnxruntime', 'onnx', 'onnx_ir', 'rich') if name in sys.modules])\n"
        "import onnxruntime\n"
        "print(onnxruntime.InferenceSession._create_inference_session.__module__)\n"
        "print(hasattr(onnxruntime.InferenceSession._create_inference_session, '__wrapped__'))\n"
    )
    found = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert found[0] == "[]"
    assert found[2] == "True"


def test_text_of_a_session() -> None:
    assert str(Opened("a\nb.onnx", "failed", "some reason")) == "a\\nb.onnx: failed: some reason"
