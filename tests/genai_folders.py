"""Tiny folders of onnxruntime-genai, which tests/genai/build.py writes, and their outputs without onnxruntime-genai."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto

NAMES = ("llama", "qwen", "phi", "gpt_oss", "qwen_moe")
FOLDERS = Path(__file__).parent / "genai"
LLAMA = FOLDERS / "llama"
CONFIG = "genai_config.json"
CONTEXT, VOCABULARY = 256, 256
GRAPHS = ("float32", "float16", "tied", "tied8", "qdq", "cache8", "cache4")
"""Folders without weights and tokenizer, see :func:`filled`."""
_HEAD_SIZE = 16


def copy_of(name: str, target: Path) -> Path:
    return Path(shutil.copytree(FOLDERS / name, target))


def filled(name: str, target: Path) -> Path:
    """A copy of one of GRAPHS with seeded weights, and with the tokenizer of llama."""
    copy_of(name, target)
    for file in LLAMA.glob("tokenizer*"):
        shutil.copyfile(file, target / file.name)
    rng, arrays = np.random.default_rng(0), dict[str, npt.NDArray[Any]]()
    model = onnx.load(target / "model.onnx", load_external_data=False)
    names = {tensor.name for tensor in model.graph.initializer}
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = _weights(tensor, rng)
            if f"{tensor.name.rpartition('_')[0]}_Q8G32" in names and tensor.name.endswith("_scale"):
                array /= 16  # codes of 8 bits
            (length,) = (int(each.value) for each in tensor.external_data if each.key == "length")
            assert len(array.tobytes()) == length
            arrays[tensor.name] = array
    (target / "model.onnx.data").write_bytes(b"".join(array.tobytes() for array in arrays.values()))
    return target


def _weights(tensor: TensorProto, rng: np.random.Generator) -> npt.NDArray[Any]:
    shape, name = tuple(tensor.dims), tensor.name
    if tensor.data_type in (TensorProto.UINT8, TensorProto.INT4):
        if name.endswith("_zp"):
            return rng.integers(120, 137, shape, np.uint8)
        return rng.integers(0, 256, shape if tensor.data_type == TensorProto.UINT8 else np.prod(shape) // 2, np.uint8)
    floats = rng.standard_normal(shape) * 0.25
    if name in ("cos_cache", "sin_cache"):
        angles = np.arange(shape[0])[:, None] * 10000.0 ** (-np.arange(shape[1]) / shape[1])
        floats = np.cos(angles) if name == "cos_cache" else np.sin(angles)
    elif "norm" in name:
        floats += 1
    elif name.endswith(("_scale", "_scales")):
        floats = 0.02 + 0.05 * rng.random(shape)
    return floats.astype(np.float16 if tensor.data_type == TensorProto.FLOAT16 else np.float32)


def edit_config(folder: Path, edit: Callable[[Any], object]) -> None:
    config = read_config(folder)
    edit(config)
    (folder / CONFIG).write_text(json.dumps(config))


def read_config(folder: Path) -> Any:
    return json.loads((folder / CONFIG).read_text())


def float_decoder(folder: Path) -> bytes:
    """The decoder with accuracy level 0: stock ONNX Runtime does not quantize its activations."""
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "accuracy_level":
                attribute.i = 0
    return bytes(model.SerializeToString())


def decode(
    model: str | bytes, options: ort.SessionOptions, prompt: npt.NDArray[np.int64], count: int
) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Runs a decoder on a prompt, and then greedily on single tokens with the past keys and values.

    Returns:
        The tokens after the prompt, and the logits of the prompt.
    """
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    past = {
        each.name: np.zeros((1, each.shape[1], 0, _HEAD_SIZE), np.float32)
        for each in session.get_inputs()
        if each.name.startswith("past")
    }
    names, new, first = [each.name for each in session.get_outputs()], list[int](), None
    step, dimensions = prompt[None], {each.name: len(each.shape) for each in session.get_inputs()}
    for _ in range(count):
        mask = np.ones((1, len(prompt) + len(new)), np.int64)
        feeds = {"input_ids": step, "attention_mask": mask, **past}
        if "position_ids" in dimensions:
            positions = np.arange(mask.size - step.size, mask.size)
            feeds["position_ids"] = np.broadcast_to(positions, (3, 1, step.size)[-dimensions["position_ids"] :])
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        first = outputs["logits"][0] if first is None else first
        past = {name: outputs[name.replace("past_key_values", "present")] for name in past}
        new.append(int(outputs["logits"][0, -1].argmax()))
        step = np.asarray([new[-1:]])
    assert first is not None
    return new, first
