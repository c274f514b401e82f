"""Results can be pickled, as multiprocessing does, and copied."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import genai_folders
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ort_dynq
from ort_dynq import doctor
from ort_dynq.accuracy import compare
from ort_dynq.bench import Settings, bench_model
from ort_dynq.genai import rewrite_folder
from ort_dynq.report import report
from ort_dynq.rewriter import inspect
from ort_dynq.shown import Shown
from ort_dynq.tools.bench.pair import measure_pair

MODEL = Path(__file__).parents[2] / "models" / "torchao_8da8w" / "model.onnx"
SETTINGS = Settings(seconds=0.01, warmup=1)
TEXT = """<ir_version: 9, opset_import: ["": 17]> g (float[8, 64] x) => (float[8, 40] n, float[8, 4] t) {
    m = MatMul(x, w) r = Relu(m) n = MatMul(r, v) t = MatMul(r, small) }"""


@functools.cache
def float_model() -> onnx.ModelProto:
    """One product is too small to be quantized: its reason has fields."""
    rng, model = np.random.default_rng(0), onnx.parser.parse_model(TEXT)
    for name, columns in (("w", 64), ("v", 40), ("small", 4)):
        weights = rng.standard_normal((64, columns), np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weights, name))
    return model


@functools.cache
def rewritten() -> Any:
    return ort_dynq.rewrite(MODEL)


@functools.cache
def quantized() -> Any:
    return ort_dynq.quantize(float_model())


RESULTS: dict[str, Callable[[], Any]] = {
    "rewrite": rewritten,
    "inspect": lambda: inspect(MODEL),
    "quantize": quantized,
    "report of quantize": lambda: quantized().report,
    "ready_for_extensions": lambda: ort_dynq.ready_for_extensions(rewritten().model),
    "verify": lambda: ort_dynq.verify(MODEL, rewritten().model),
    "accuracy": lambda: compare(float_model(), quantized().model),
    "bench": lambda: bench_model(MODEL, settings=SETTINGS),
    "pair": lambda: measure_pair(MODEL, SETTINGS),
    "report": lambda: report(MODEL, settings=SETTINGS),
    "doctor": doctor.examine,
    "folder": lambda: rewrite_folder(genai_folders.LLAMA),
}
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda each: pickle.loads(pickle.dumps(each)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results(kind: str, tmp_path: Path) -> None:
    """A copy has the same texts, figures and models."""
    result = RESULTS[kind]()
    for copied in (way(result) for way in WAYS.values()):
        assert type(copied) is type(result)
        if isinstance(result, Shown):  # others have sets: their order depends on the process
            assert repr(copied) == repr(result)
        for form in ("to_dict", "to_proto"):
            if hasattr(result, form):
                assert getattr(copied, form)() == getattr(result, form)()
        if hasattr(result, "results"):
            assert {*copied.results} == {*result.results}


def test_reasons() -> None:
    """The fields of a reason, and a second one, stay."""
    first, second = (each.unconverted for each in quantized().report.unconverted[:1] * 2)
    assert first is not None
    assert first.details
    copied = pickle.loads(pickle.dumps(copy.deepcopy(first).then(second)))
    assert (str(copied), copied.details) == (f"{first}; and {second}", first.details)
    assert first.second is None


def test_external_data_stay_in_their_files(tmp_path: Path) -> None:
    """A copied result writes the same model in another folder."""
    path = tmp_path / "model.onnx"
    model = float_model()
    apart = onnx.ModelProto()
    apart.CopyFrom(model)
    onnx.save(apart, path, save_as_external_data=True, location="data", size_threshold=100)
    result = ort_dynq.quantize(path)
    copied = pickle.loads(pickle.dumps(result))
    for name, each in (("a", result), ("b", copied)):
        (tmp_path / name).mkdir()
        each.save(tmp_path / name / "out.onnx")
    a, b = (onnx.load(tmp_path / name / "out.onnx") for name in "ab")
    assert a == b
    assert not any(
        isinstance(each.const_value, ir.ExternalTensor) for each in ir.from_proto(b).graph.initializers.values()
    )
