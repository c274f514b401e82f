"""Runs the commands of `ort-dynq` in the documents, on small models in place of the reader's.

Programs that a command gives to Python run, too. Installations and builds do not: tests of wheels, and .ci/, have them.

Commands on models of this repository, which the tables of rules.md show, and those of my-model-is-4-bits.md have tests
of their own, and so has each command of `python tests/bench`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
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
from ort_dynq.tools.bench.networks import NETWORKS

FOLDERS = {"FOLDER": "stock", "stock": "stock", "fast": "fast", "phi/": "stock", "lm/int4-32-level-4": "stock"}
NAMES = {"IN": "model.onnx", "OUT": "out.onnx", "in.onnx": "model.onnx", "PATH_THAT_IT_PRINTS": "float.onnx"}
NAMES |= {"NODE": "rounded", "NAME": "y", "models": "few", "models/": "few", "…": "x=1x4x256"}
SHORT = {
    "rewrite": ["--no-timing"],
    "quantize": ["--no-timing"],
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
    """Copies the files that a command reads, with the shape that it gives, into the working folder."""
    shape = next((each for each in command if re.match(r"\w+=\d+(x\d+)+$", each)), "x=1x4x256")
    is_encoder = "--tokens" in command
    folder = Path(f"files of {'encoder' if is_encoder else shape}")
    if not folder.exists():
        write(folder, shape, is_encoder)
    shutil.copytree(folder, ".", dirs_exist_ok=True)
    if {"--program", "--values"} & {*command}:
        shutil.copyfile(ROOT / "models" / "kv_cache_float_bias" / "model.onnx", "model.onnx")
    if "--weights-only" in command:
        shutil.copyfile(ROOT / "models" / "ort_nbits" / "model.onnx", "model.onnx")


def write(folder: Path, text: str, is_encoder: bool) -> None:
    """Writes models, and data for their input: of an encoder, or of a product with an input of the text's shape."""
    folder.mkdir()
    name, _, sizes = text.partition("=")
    shape = [int(size) for size in sizes.split("x")]
    dims = ", ".join("nt"[: len(shape) - 1])
    header = f'<ir_version: 8, opset_import: ["" : 21]> g (float[{dims}, {shape[-1]}] {name}) => (float[{dims}, 256] y)'
    model = onnx.parser.parse_model(f"{header} {{ m = MatMul({name}, w) y = Relu(m) }}")
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((shape[-1], 256), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    if is_encoder:
        model = transformers.encoder("float", layers=1, hidden=64, heads=2)
    for file in ("float", "static", "minilm", "encoder", "lstm", "a", "b"):
        onnx.save(model, folder / f"{file}.onnx")
    (given, *_) = model.graph.input
    values = [size.dim_value or n for size, n in zip(given.type.tensor_type.shape.dim, shape, strict=True)]
    sets = rng.standard_normal((2, *values), np.float32)
    for file in ("samples", "sentences"):
        np.savez(folder / f"{file}.npz", **{given.name: sets})
    np.save(folder / "x.npy", sets[0])
    result = ort_dynq.quantize(folder / "float.onnx")
    for file in ("int8", "vad"):
        result.save(folder / f"{file}.onnx")
    for file in ("q", "model"):
        quantize_dynamic(folder / "float.onnx", folder / f"{file}.onnx")


def chosen(commands: dict[tuple[str, ...], str]) -> list[tuple[str, ...]]:
    """Commands that together have every option of each command with each kind of first argument, the longest first."""
    found, seen = [], set[tuple[str, ...]]()
    for arguments in sorted(commands, key=lambda each: (-len(each), each)):
        kind = arguments[0], Path(arguments[1]).suffix
        uses = {kind, *((*kind, each) for each in arguments if re.match("--?[a-z]", each))}
        if not uses <= seen:
            found.append(arguments)
        seen |= uses
    return found


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_commands(
    is_whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of them with --exhaustive. test_documentation.py parses all."""
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
    lines: dict[tuple[str, ...], str] = {}  # those of equal arguments differ only in the names of the reader's files
    for line in done:
        _, command, *rest = shlex.split(line)
        if command == "run":  # the programs of readers
            rest = [*(rest[: rest.index("--")] if "--" in rest else ()), "--", sys.executable, "-c", "pass"]
        if command == "quantize" and rest[0] in ("FOLDER", "float"):
            rest[0] = "float"
        else:
            others = {"bench-quantize": {"NAME": "ddddocr"}, "quantize": {"IN": "float.onnx"}}
            names = NAMES | FOLDERS | others.get(command, {})
            rest = [names.get(each, each) for each in rest]
        if command in ("rewrite", "quantize") and "-o" in rest and not rest[rest.index("-o") + 1].endswith(".onnx"):
            rest[rest.index("-o") + 1] = "new"
        lines[(command, *rest, *SHORT.get(command, []))] = line
    for arguments in lines if is_whole else chosen(lines):
        line, rest = lines[arguments], [*arguments[1:]]
        shutil.rmtree("new", ignore_errors=True)
        prepare(rest)
        status = cli.main(arguments)
        error = capsys.readouterr().err
        if NETWORKS.keys() & {*rest}:
            assert status == 0 or (status == 2 and "pip install" in error), (line, error)
        else:
            assert status == 0, (line, error)


def test_programs_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pages = sorted((Path(ort_dynq.__file__).parent / "docs").glob("*.md"))
    found = {each for page in pages for each in re.findall(r"python -c [\"'](.*)[\"']", page.read_text())}
    assert len(found) > 1
    for program in sorted(found):
        exec(program, {})
