"""Other processors return the same bits: rewritten models on other x86-64 CPUs and on ARM.

test_product_kernels.py compares the kernels for ARM alone.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import genai_folders
import numpy as np
import onnx
import pytest
from genai_folders import LLAMA
from rewriting import FOLDERS, data_sets, rewritten

from ort_dynq.genai import rewrite_folder

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "ops" / "kernels"
ARM_PYTHON = ROOT / "build" / "aarch64" / "python"
SOURCES = (
    ROOT / "tests" / "native" / "kernels_check.cc",
    KERNELS / "portable.cc",
    KERNELS / "portable_products.cc",
    KERNELS / "portable_winograd.cc",
    KERNELS / "portable_programs.cc",
    KERNELS / "portable_attention.cc",
    KERNELS / "portable_compressed.cc",
    KERNELS / "dispatch.cc",
)
# As in ops/CMakeLists.txt: contracting products and sums would change results.
FLAGS = ("-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")


def hashes(tmp_path: Path, compiler: str, *flags: str, emulator: tuple[str, ...] = ()) -> dict[str, str]:
    """The output of the driver: a hash of each portable kernel's results by its name."""
    program = tmp_path / compiler
    options = [*flags, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(ROOT / "ops"), "-o", str(program)]
    command = [compiler, *options, *map(str, SOURCES)]
    subprocess.run(command, check=True)
    printed = subprocess.run([*emulator, program], check=True, capture_output=True, text=True).stdout
    return {name: value for _, name, value in map(str.split, printed.splitlines())}


def require(tool: str, package: str) -> None:
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is not installed: apt-get install {package}")


def test_flags_equal_the_library() -> None:
    assert set(FLAGS) <= set(re.findall(r"-[-\w=]+", (ROOT / "ops" / "CMakeLists.txt").read_text()))


@pytest.mark.exhaustive  # a test of the test
def test_contraction_changes_hashes(tmp_path: Path) -> None:
    """The data detect that one rounding is missing."""
    require("aarch64-linux-gnu-g++", "g++-aarch64-linux-gnu")
    require("qemu-aarch64", "qemu-user")
    right, wrong = (
        hashes(tmp_path, "aarch64-linux-gnu-g++", "-O2", contraction, "-static", emulator=("qemu-aarch64",))
        for contraction in ("-ffp-contract=off", "-ffp-contract=fast")
    )
    changed = {name.split("/")[0] for name in right if right[name] != wrong[name]}
    assert {"quantize", "affine"} <= changed  # of products, test_product_kernels.py


# Operators of ONNX Runtime that do not round, or round each element once, which gives the same bits on every CPU.
SAME = {
    *("Constant", "ConstantOfShape", "Identity", "Range", "Shape"),
    *("Concat", "Expand", "Gather", "Pad", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze", "Where"),
    *("Abs", "Add", "Cast", "Clip", "Div", "Max", "Min", "Mul", "Neg", "Reciprocal", "Relu", "Round", "Sub"),
    *("DequantizeLinear", "Equal", "QuantizeLinear", "ReduceMax", "ReduceMin"),
}
FLOAT = onnx.TensorProto.FLOAT
# Those that ONNX Runtime computes in float16 on ARM CPUs with float16 arithmetic, and in float32 elsewhere.
COMPUTED_IN_FLOAT16 = {"Add", "Div", "Mul", "Relu", "Sub"}
# Prints a hash of the outputs of each model in a folder.
RUN = """
import hashlib, pathlib, sys, numpy, onnxruntime, ort_dynq
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.onnx")):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(file), ort_dynq.register(options))
    outputs = session.run(None, dict(numpy.load(file.with_suffix(".npz"))))
    print(file.stem, hashlib.sha256(b"".join(output.tobytes() for output in outputs)).hexdigest())
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of rewritten models without sums and functions of ONNX Runtime that have other bits on other CPUs."""
    folder = tmp_path_factory.mktemp("models")
    for name in FOLDERS:
        content = rewritten(name)[1]
        nodes = onnx.ModelProto.FromString(content).graph.node
        if all(node.domain == "ort_dynq" or node.op_type in SAME for node in nodes):
            (folder / f"{name}.onnx").write_bytes(content)
            np.savez(folder / f"{name}.npz", **data_sets(name)[0][0])
    return folder


def is_other_on_arm(model: Path) -> bool:
    graph = onnx.shape_inference.infer_shapes(onnx.load(model)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.output)}
    for node in graph.node:
        if node.op_type in COMPUTED_IN_FLOAT16 and types.get(node.output[0]) == onnx.TensorProto.FLOAT16:
            return True
        is_from_float = types.get(node.input[0], FLOAT) == FLOAT if node.input else False
        if node.op_type == "Cast" and is_from_float and node.attribute[0].i == onnx.TensorProto.INT32:
            return True  # numbers beyond int32 differ
    return False


def outputs_of(models: Path, *python: str) -> dict[str, str]:
    return dict(line.split() for line in printed(RUN, str(models), python=python).splitlines())


def printed(code: str, *arguments: str, python: tuple[str, ...]) -> str:
    """What a program prints that runs in another Python; its working folder is not that of the sources."""
    # It may name kernels that an emulated CPU cannot run.
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    command = [*python, "-c", code, *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, cwd=tempfile.gettempdir(), env=environment
    ).stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize("cpu", ["Haswell", "Nehalem"])
def test_other_x86_cpus_agree(models: Path, cpu: str) -> None:
    """Haswell has AVX2 and no VNNI, Nehalem has no AVX."""
    require("qemu-x86_64", "qemu-user")
    if platform.machine() != "x86_64":
        pytest.skip("this machine is not x86-64")
    compare_outputs(models, {path.stem for path in models.glob("*.onnx")}, "qemu-x86_64", "-cpu", cpu, sys.executable)


@pytest.mark.skipif(not ARM_PYTHON.exists(), reason="there is no Python for ARM: .ci/aarch64 makes one")
@pytest.mark.parametrize("cpu", ["max", "cortex-a72"])
def test_arm_cpus_agree(models: Path, cpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`max` has dot products and I8MM; cortex-a72 has none of them."""
    monkeypatch.setenv("CPU", cpu)
    compare_outputs(models, {path.stem for path in models.glob("*.onnx") if not is_other_on_arm(path)}, str(ARM_PYTHON))


# Prints the tokens that a decoder generates greedily; arguments: the folder of genai_folders.py, and the decoder.
GENERATE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy, onnxruntime, ort_dynq, genai_folders
prompt = numpy.random.default_rng(0).integers(0, genai_folders.VOCABULARY - 2, 24)
print(*genai_folders.decode(sys.argv[2], ort_dynq.register(onnxruntime.SessionOptions()), prompt, 16)[0])
"""


@pytest.mark.exhaustive
def test_a_language_model_generates_the_same_tokens_on_other_cpus(tmp_path: Path) -> None:
    """Attention and normalizations of ONNX Runtime may differ in the last bits; the products do not: the model
    `ort_nbits` above has them alone."""
    rewrite_folder(LLAMA).save(tmp_path / "llama")
    arguments = (str(Path(genai_folders.__file__).parent), str(tmp_path / "llama" / "model.onnx"))
    expected = printed(GENERATE, *arguments, python=(sys.executable,))
    assert len(expected.split()) == 16
    others: list[tuple[str, ...]] = []
    if platform.machine() == "x86_64" and shutil.which("qemu-x86_64"):
        others += [("qemu-x86_64", "-cpu", cpu, sys.executable) for cpu in ("Haswell", "Nehalem")]
    if ARM_PYTHON.exists():
        others.append((str(ARM_PYTHON),))
    if not others:
        pytest.skip("there is no qemu-x86_64 (apt-get install qemu-user), and no Python for ARM")
    for python in others:
        assert printed(GENERATE, *arguments, python=python) == expected, python


def compare_outputs(models: Path, names: set[str], *python: str) -> None:
    """Requires that the models of these names give the same outputs in two Pythons."""
    here, there = outputs_of(models, sys.executable), outputs_of(models, *python)
    assert len(names) >= 20
    assert "ort_nbits" in names
    assert [name for name in sorted(names) if here[name] != there.get(name)] == []
