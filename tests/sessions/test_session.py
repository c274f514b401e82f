"""ort_dynq.InferenceSession: models in every form, external data, shared options; the import of the package."""

from __future__ import annotations

import copy
import ctypes
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import helpers
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

import ort_dynq
import ort_dynq.runtime
import ort_dynq.tools.verification  # must not hide the function ort_dynq.verify
from ort_dynq import library

ROOT = Path(__file__).parents[2]
X = np.linspace(-3, 3, 20, dtype=np.float32).reshape(4, 5)


def make_model(factor: float = 1.0) -> onnx.ModelProto:
    """A model with weights, and a QuantizeLinear with a scale as input."""
    model = helpers.parse(
        "float[n, 5] x, float[5] scale",
        "int8[n, 5] codes",
        """ zero = Constant<value = int8[5] {0, 0, 0, 0, 0}>()
            product = Mul(x, weights)
            codes = QuantizeLinear(product, scale, zero)""",
    )
    weights = np.arange(1, 6, dtype=np.float32) * np.float32(factor)
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    del model.opset_import[1]
    return model


def save_with_external_data(folder: Path, factor: float = 1.0) -> Path:
    folder.mkdir()
    path = folder / "model.onnx"
    onnx.save(make_model(factor), path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


def run(session: ort.InferenceSession) -> list[int]:
    codes: list[int] = session.run(None, {"x": X, "scale": np.full(5, 0.5, np.float32)})[0].ravel().tolist()
    return codes


def expected(factor: float = 1.0) -> list[int]:
    return run(helpers.stock_session(make_model(factor)))


def operators(session: ort.InferenceSession, profile: Path) -> str:
    session.end_profiling()
    return "".join(path.read_text() for path in profile.parent.glob(f"{profile.name}*"))


@pytest.mark.parametrize("source", ["path", "text", "bytes", "proto", "ir"])
def test_every_source(source: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(make_model(), path)
    make: dict[str, Callable[[], object]] = {
        "path": lambda: path,
        "text": lambda: str(path),
        "bytes": path.read_bytes,
        "proto": make_model,
        "ir": lambda: ir.load(path),
    }
    session = ort_dynq.InferenceSession(make[source]())  # type: ignore[arg-type]
    assert isinstance(session, ort.InferenceSession)
    assert run(session) == expected()


def test_the_session_runs_the_operators(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ort_dynq.InferenceSession(make_model(), options)
    run(session)
    trace = operators(session, tmp_path / "profile")
    assert '"DynamicQuantize"' in trace
    assert '"QuantizeLinear"' not in trace


def test_further_arguments_reach_onnxruntime() -> None:
    with pytest.warns(UserWarning, match="NoSuchProvider"):
        ort_dynq.InferenceSession(make_model(), None, ["NoSuchProvider"])
    with pytest.warns(UserWarning, match="NoSuchProvider"):
        ort_dynq.InferenceSession(make_model(), providers=["NoSuchProvider"])


@pytest.mark.parametrize("own_options", [False, True])
@pytest.mark.parametrize("as_ir", [False, True])
def test_external_data(own_options: bool, as_ir: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_with_external_data(tmp_path / "model")
    monkeypatch.chdir(tmp_path)  # not the folder of the weights
    options = ort.SessionOptions() if own_options else None
    assert run(ort_dynq.InferenceSession(ir.load(path) if as_ir else Path("model/model.onnx"), options)) == expected()


@pytest.mark.parametrize("as_proto", [False, True])
def test_external_data_in_the_current_folder(as_proto: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_with_external_data(tmp_path / "model")
    monkeypatch.chdir(path.parent)
    model = onnx.load(path.name, load_external_data=False) if as_proto else path.name
    assert run(ort_dynq.InferenceSession(model)) == expected()


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_session_cannot_be_pickled(duplicate: Callable[[object], object]) -> None:
    with pytest.raises(ort_dynq.DynqError, match=r"^a session cannot be pickled or copied: open it in .+$"):
        duplicate(ort_dynq.InferenceSession(make_model()))


def test_sessions_share_options(tmp_path: Path) -> None:
    """A second registration must not fail, and the folder of external data must not apply to the next session."""
    paths = {factor: save_with_external_data(tmp_path / f"times{factor}", factor) for factor in (1.0, 2.0)}
    options = ort.SessionOptions()
    ort_dynq.register(options)
    for factor, path in paths.items():
        assert run(ort_dynq.InferenceSession(path, options)) == expected(factor)
    ort_dynq.register(options)
    for factor, path in paths.items():
        assert run(ort.InferenceSession(path, options)) == expected(factor)


def test_external_data_in_two_folders(tmp_path: Path) -> None:
    models = [ir.load(save_with_external_data(tmp_path / name)) for name in ("one", "two")]
    stray = models[1].graph.initializers.pop("weights")
    stray.name = "stray"
    models[0].graph.initializers.add(stray)
    with pytest.raises(ort_dynq.DynqError, match="external data are in 2 folders"):
        ort_dynq.InferenceSession(models[0])


@pytest.mark.parametrize("source", [b"", b"not a model", make_model().SerializeToString()[:-9], "missing.onnx"])
def test_not_a_model(source: str | bytes) -> None:
    with pytest.raises(ort_dynq.DynqError, match=r"not an ONNX model|no file missing\.onnx"):
        ort_dynq.InferenceSession(source)


def test_register_on_an_old_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "__version__", "1.19.2")
    with pytest.raises(ort_dynq.DynqError, match=r"onnxruntime 1\.19\.2 is too old .* 1\.20 or newer"):
        ort_dynq.register(ort.SessionOptions())


@pytest.mark.parametrize("version", ["1.8.0", "1.17.3", "1.19.2", "odd"])
def test_the_library_on_an_old_onnxruntime(version: str) -> None:
    """Registered by its path, as from other languages. The status is made with the oldest API table."""
    pointer = ctypes.c_void_p
    create_status = ctypes.CFUNCTYPE(pointer, ctypes.c_int, ctypes.c_char_p)
    get_api, get_version = ctypes.CFUNCTYPE(pointer, ctypes.c_uint32), ctypes.CFUNCTYPE(pointer)
    messages: list[str] = []
    asked: list[int] = []
    name = ctypes.create_string_buffer(version.encode())
    status = create_status(lambda _, message: messages.append(message.decode()) or 1)  # type: ignore[func-returns-value]
    table = (pointer * 1)(ctypes.cast(status, pointer))  # slot 0 is CreateStatus; other slots must not be called
    api = get_api(lambda number: asked.append(number) or ctypes.addressof(table))  # type: ignore[func-returns-value]
    text = get_version(lambda: ctypes.addressof(name))
    base = (pointer * 2)(ctypes.cast(api, pointer), ctypes.cast(text, pointer))
    entry = library.load()["RegisterCustomOps"]
    entry.restype, entry.argtypes = pointer, (pointer, pointer)
    assert entry(None, ctypes.addressof(base)) == 1
    assert messages == [f"ort_dynq needs ONNX Runtime 1.20 or newer, this is {version}"]
    assert asked == [1]
    oldest = ".".join(map(str, ort_dynq.runtime.OLDEST_ONNXRUNTIME))
    assert f"ONNX Runtime {oldest} or" in messages[0]


def test_the_import_is_light() -> None:
    code = "import sys, ort_dynq; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "ort_dynq" in loaded
    assert {"numpy", "onnx", "onnx_ir", "onnxruntime", "rich"}.isdisjoint(loaded)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_library_stays_between_sessions() -> None:
    """A library that ONNX Runtime closes with its last session leaves 70 KB in memory, and loads again for 9 ms."""
    code = """import sys
from onnxruntime import InferenceSession, SessionOptions
path, model = sys.argv[1:]
options = SessionOptions()
options.register_custom_ops_library(path)
session = InferenceSession(model, options)
del session, options
print(path in open("/proc/self/maps").read())
"""
    path, model = ort_dynq.get_library_path(), ROOT / "models" / "torchao_8da8w" / "model.onnx"
    assert subprocess.check_output([sys.executable, "-c", code, path, model], text=True) == "True\n"


def test_the_exports() -> None:
    assert {*ort_dynq.__all__} <= {*dir(ort_dynq)}
    assert all(getattr(ort_dynq, name) is not None for name in ort_dynq.__all__)
    assert callable(ort_dynq.verify)
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(ort_dynq, "nonsense")  # noqa: B009
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is None or version[1] == ort_dynq.__version__


def test_a_rewritten_model_runs_without_the_tools(tmp_path: Path) -> None:
    """numpy, ml_dtypes and onnxruntime suffice; one sentence says what everything else needs."""
    source = ROOT / "models" / "torchao_8da8w" / "model.onnx"
    ort_dynq.rewrite(source).save(tmp_path / "fast.onnx")
    program = """import sys
for name in ("onnx", "onnx_ir", "rich", "jinja2", "shtab"): sys.modules[name] = None
import importlib, numpy, onnxruntime, ort_dynq
fast, source = sys.argv[1:]
for backend in ("native", "extensions"):
    registered = onnxruntime.InferenceSession(fast, ort_dynq.register(onnxruntime.SessionOptions(), backend))
    ours = ort_dynq.InferenceSession(fast, backend=backend)
    feeds = {"x": numpy.linspace(-1, 1, 160, dtype=numpy.float32).reshape(1, 8, 20)}
    assert (registered.run(None, feeds)[0] == ours.run(None, feeds)[0]).all()
def refuse(*_, **__): raise AssertionError("opened")
onnxruntime.InferenceSession.__init__ = refuse
for call in (
    lambda: ort_dynq.InferenceSession(source),
    lambda: ort_dynq.rewrite(source),
    lambda: importlib.import_module("ort_dynq.genai"),
    lambda: importlib.import_module("ort_dynq.accuracy"),
    lambda: ort_dynq.InferenceSession(None),
    lambda: ort_dynq.InferenceSession("absent.onnx"),
):
    try: call()
    except ort_dynq.DynqError as error: print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "fast.onnx", source], capture_output=True, text=True
    )
    advice = "onnx is not installed, and only rewritten models run without it: "
    *missing, other, absent = done.stdout.splitlines()
    assert missing == [f"{advice}`pip install onnx onnx-ir rich jinja2 shtab`"] * 4, done.stderr
    assert other.startswith("a NoneType is not a model: ")
    assert absent == "there is no file absent.onnx"
