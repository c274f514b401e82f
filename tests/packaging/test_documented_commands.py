"""Runs the commands of `ort-dynq` in the documents, on small models in place of the reader's.

Commands on models of this repository, which the tables of rules.md show, and those of my-model-is-4-bits.md have tests
of their own, and so has each command of `python tests/bench`.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from bench import transformers
from benching import skip_opening
from genai_folders import LLAMA, filled
from onnxruntime.quantization import quantize_dynamic
from test_documentation import ROOT, RULES, commands

import ort_dynq
from ort_dynq import cli
from ort_dynq.bench.networks import NETWORKS

FOLDERS = {"FOLDER": "stock", "stock": "stock", "fast": "fast", "phi/": "stock", "lm/int4-32-level-4": "stock"}
NAMES = {"IN": "model.onnx", "OUT": "out.onnx", "in.onnx": "model.onnx", "PATH_THAT_IT_PRINTS": "float.onnx"}
NAMES |= {"NODE": "rounded", "NAME": "y", "models/": "few", "…": "x=1x4x256"}
SHORT = {
    "rewrite": ["--no-timing"],
    "quantize": ["--no-timing"],
    "report": ["--seconds", "0.01"],
    "bench": ["--seconds", "0.001"],
    "bench-quantize": ["--seconds", "0.001"],
    "bench-generate": ["--seconds", "0.01", "--tokens", "4"],
}


def documented() -> list[str]:
    """The commands with all optional arguments, without those that other tests run, and names of commands."""
    own = {f"ort-dynq inspect {model}" for model, _ in RULES}
    page = (Path(ort_dynq.__file__).parent / "docs" / "my-model-is-4-bits.md").read_text()
    found = {re.sub(r"[\[\]]", "", " ".join(each.split())) for each in commands() if each.startswith("ort-dynq ")}
    return sorted(each for each in found - own if len(each.split()) > 2 and each not in page)


def prepare(command: list[str]) -> None:
    """Writes the files that a command reads, with the shape that it gives."""
    name, _, sizes = next((each for each in command if re.match(r"\w+=\d+(x\d+)+$", each)), "x=1x4x256").partition("=")
    shape = [int(size) for size in sizes.split("x")]
    dims = ", ".join("nt"[: len(shape) - 1])
    text = f'<ir_version: 8, opset_import: ["" : 21]> g (float[{dims}, {shape[-1]}] {name}) => (float[{dims}, 256] y)'
    model = onnx.parser.parse_model(f"{text} {{ m = MatMul({name}, w) y = Relu(m) }}")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((shape[-1], 256), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    if "--tokens" in command:
        model = transformers.encoder("float", layers=1, hidden=64, heads=2)
    for file in ("float", "static", "minilm", "encoder", "lstm", "a"):
        onnx.save(model, f"{file}.onnx")
    (given, *_) = model.graph.input
    values = [size.dim_value or n for size, n in zip(given.type.tensor_type.shape.dim, shape, strict=True)]
    sets = rng.standard_normal((2, *values), np.float32)
    np.savez("samples.npz", **{given.name: sets})
    shutil.copyfile("samples.npz", "sentences.npz")
    np.save("x.npy", sets[0])
    shutil.copyfile("a.onnx", "b.onnx")
    ort_dynq.quantize("float.onnx").save("int8.onnx")
    shutil.copyfile("int8.onnx", "vad.onnx")
    quantize_dynamic("float.onnx", "q.onnx")
    shutil.copyfile("q.onnx", "model.onnx")
    if {"--program", "--values"} & {*command}:
        shutil.copyfile(ROOT / "models" / "kv_cache_float_bias" / "model.onnx", "model.onnx")
    if "--weights-only" in command:
        shutil.copyfile(ROOT / "models" / "ort_nbits" / "model.onnx", "model.onnx")


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    skip_opening(monkeypatch)
    monkeypatch.chdir(tmp_path)
    for name in ("models", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "models" / "torch_token", tmp_path / "few" / "torch_token")
    shutil.copytree(LLAMA, "stock")
    shutil.copytree(LLAMA, "fast")
    filled("float32", Path("float"))
    Path("notes.txt").write_text("Sphinx of black quartz, judge my vow. " * 4)
    done = documented()
    assert len(done) > 50
    for line in done:
        _, command, *rest = shlex.split(line)
        if command == "quantize" and rest[0] in ("FOLDER", "float"):
            rest[0] = "float"
        else:
            others = {"bench-quantize": {"NAME": "ddddocr"}, "quantize": {"IN": "float.onnx"}}
            names = NAMES | FOLDERS | others.get(command, {})
            rest = [names.get(each, each) for each in rest]
        if command in ("rewrite", "quantize") and "-o" in rest and not rest[rest.index("-o") + 1].endswith(".onnx"):
            rest[rest.index("-o") + 1] = "new"
            shutil.rmtree("new", ignore_errors=True)
        prepare(rest)
        status = cli.main([command, *rest, *SHORT.get(command, [])])
        error = capsys.readouterr().err
        if NETWORKS.keys() & {*rest}:
            assert status == 0 or (status == 2 and "pip install" in error), (line, error)
        else:
            assert status == 0, (line, error)
