"""Functions that the scripts in this folder share: seeded inputs, and writing a model with its test data.

A model is written in the layout of the ONNX backend suite: `<name>/model.onnx` and
`<name>/test_data_set_0/{input,output}_<i>.pb`. Outputs are those of ONNX Runtime with optimizations off.
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx.parser
import onnxruntime as ort
from onnx import numpy_helper

from ort_dynq.four_bits import run_of

Array = npt.NDArray[Any]

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests"))  # of the package `bench`: some scripts write its networks
MAX_IR_VERSION = 10
MAX_OPSET = 21


class Example(NamedTuple):
    """A model and its inputs: one array for each input, in order."""

    model: onnx.ModelProto
    inputs: Sequence[Array]


def activations(
    *shape: int,
    seed: int = 0,
    low: float = -15.875,
    high: float = 15.875,
    channel: int | None = None,
    tensor: bool = False,
    zero_row: bool = False,
) -> Array:
    """Returns float32 data that reveals rounding errors.

    Each row is generated as follows:

    1. About half of the elements are multiples of 1/16. Every second multiple is a tie if the scale is 1/8. The scale
       is 1/8 with the defaults for symmetric ranges (15.875 / 127), and with high=16 for asymmetric ranges
       (31.875 / 255).
    2. The other elements are normally distributed and clipped to [low, high].
    3. Three elements are `low`, `high` and 0.
    4. The row is multiplied by its own factor from [1, 1.25].

    If there are several rows, the factor of the first is 1. If there are more than three and `low` is negative, the
    third is positive and the fourth negative.

    Args:
        shape: The shape of the result.
        seed: The seed of the random generator.
        low: The smallest element of a row before step 4.
        high: The largest element of a row before step 4.
        channel: If given, a row consists of all elements with one index along this axis. Otherwise it is a slice of the
            last axis.
        tensor: Whether the whole tensor is one row.
        zero_row: Whether the second row is all zeros.
    """
    rng = np.random.default_rng(seed)
    count = 1 if tensor else shape[channel] if channel is not None else math.prod(shape[:-1])
    size = count, math.prod(shape) // count
    grid = rng.integers(int(low * 16), int(high * 16), size, endpoint=True) / 16
    rows = np.where(rng.random(size) < 0.5, grid, rng.normal(0.0, high / 4, size).clip(low, high))
    for row in rows:
        row[rng.permutation(size[1])[:3]] = low, high, 0.0
    if count > 3 and low < 0:
        rows[2] = np.abs(rows[2]).clip(min=0.5)
        rows[3] = -np.abs(rows[3]).clip(min=0.5)
    factors = rng.uniform(1.0, 1.25, (count, 1))
    if count > 1:
        factors[0] = 1.0
    rows *= factors
    if zero_row:
        rows[1] = 0.0
    if channel is not None:
        others = [length for axis, length in enumerate(shape) if axis != channel]
        return np.moveaxis(rows.reshape(count, *others), 0, channel).astype(np.float32)
    return rows.reshape(shape).astype(np.float32)


def grid_weights(rng: np.random.Generator, *shape: int) -> Array:
    """Returns float32 weights with few significant bits."""
    return (rng.integers(-60, 61, shape) / 64).astype(np.float32)


def int8_weights(rng: np.random.Generator, *shape: int) -> Array:
    """Returns int8 codes of weights, without -128."""
    return rng.integers(-127, 128, shape).astype(np.int8)


def parse(text: str, opset: int, domains: Sequence[str] = (), /, **constants: npt.ArrayLike) -> onnx.ModelProto:
    """Parses a graph in ONNX's text syntax. `constants` become initializers of the model."""
    imports = ", ".join(f'"{domain}" : {version}' for domain, version in (("", opset), *((d, 1) for d in domains)))
    model = onnx.parser.parse_model(f"<ir_version: {MAX_IR_VERSION}, opset_import: [{imports}]>\n{text}")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    return model


def two_layers(name: str, rng: np.random.Generator, depth: int, hidden: int, columns: int) -> onnx.ModelProto:
    """Returns a model of opset 21: two matrix products with weights of a normal distribution, Add and Relu between."""
    return parse(
        f"""{name} (float[batch, tokens, {depth}] x) => (float[batch, tokens, {columns}] y) {{
            h = MatMul(x, w1)  h1 = Add(h, b1)  a = Relu(h1)  y = MatMul(a, w2)
        }}""",
        21,
        w1=rng.normal(0, 0.1, (depth, hidden)).astype(np.float32),
        b1=grid_weights(rng, hidden),
        w2=rng.normal(0, 0.1, (hidden, columns)).astype(np.float32),
    )


def strip(model: onnx.ModelProto) -> None:
    """Removes the source locations that exporters write, in the graph, its subgraphs and the functions."""

    def strip_nodes(nodes: Sequence[onnx.NodeProto]) -> None:
        for node in nodes:
            node.ClearField("metadata_props")
            node.ClearField("doc_string")
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    strip_graph(attribute.g)

    def strip_graph(graph: onnx.GraphProto) -> None:
        graph.ClearField("metadata_props")
        graph.ClearField("doc_string")
        for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
            value.ClearField("metadata_props")
            value.ClearField("doc_string")
        strip_nodes(graph.node)

    model.ClearField("metadata_props")
    model.ClearField("doc_string")
    strip_graph(model.graph)
    for function in model.functions:
        function.ClearField("metadata_props")
        function.ClearField("doc_string")
        strip_nodes(function.node)


def run(model: onnx.ModelProto, inputs: Sequence[Array]) -> list[Array]:
    """Runs `model` on ONNX Runtime's CPU provider with optimizations off, without saturated products."""
    from helpers import with_exact_products  # of tests/

    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(with_exact_products(model), options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_inputs()]
    return run_of(session)(None, dict(zip(names, inputs, strict=True)))


def write(name: str, example: Example) -> None:
    """Checks `example` and writes it with its outputs to the folder `name`."""
    model = example.model
    strip(model)
    model.ir_version = min(model.ir_version, MAX_IR_VERSION)
    newest = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    if newest > MAX_OPSET:
        raise ValueError(f"{name}: opset {newest} is newer than {MAX_OPSET}")
    onnx.checker.check_model(model, full_check=True)
    outputs = run(model, example.inputs)
    folder = HERE / name
    data = folder / "test_data_set_0"
    shutil.rmtree(folder, ignore_errors=True)
    data.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    for kind, values, arrays in (
        ("input", model.graph.input, example.inputs),
        ("output", model.graph.output, outputs),
    ):
        for index, (value, array) in enumerate(zip(values, arrays, strict=True)):
            tensor = numpy_helper.from_array(np.asarray(array), value.name)
            (data / f"{kind}_{index}.pb").write_bytes(tensor.SerializeToString())


def main(models: Mapping[str, Callable[[], Example]]) -> None:
    """Writes the models that the command line names, or all models."""
    parser = argparse.ArgumentParser(description="Write models and their test data.")
    parser.add_argument("names", nargs="*", help=f"which models (default: all): {', '.join(models)}")
    names: list[str] = parser.parse_args().names
    for name in names or models:
        write(name, models[name]())
        print(name)
