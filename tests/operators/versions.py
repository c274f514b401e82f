"""Records the operators of a release: their signatures, and models that call them.

python tests/operators/versions.py
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from bench import transformers
from onnx import numpy_helper
from rewriting import MODELS

import ort_dynq
from ort_dynq.graphs import proto_with_subgraphs
from ort_dynq.operators import DOMAIN, OPERATORS, Operator

HERE = Path(__file__).parent
SIGNATURES = HERE / "signatures.json"
FROZEN = HERE / "frozen"
"""Models that releases wrote, one file for each release."""

RULE = "a released operator never changes: give the changed one a new name, such as {name}V2"


def signatures() -> dict[str, Any]:
    """The signature of each operator, as signatures.json has those of released operators."""
    return {name: _signature(operator) for name, operator in OPERATORS.items()}


def _signature(operator: Operator) -> dict[str, Any]:
    inputs = [value.name + ("?" if value.absent else "") for value in operator.inputs]
    return {
        "inputs": ", ".join(inputs),
        "outputs": ", ".join(value.name for value in operator.outputs),
        "attributes": {
            each.name: f"default {_text(each.default)}" + "".join(f", {_text(value)}" for value in each.values())
            for each in operator.attributes
        },
        "types": sorted(f"{', '.join(each.inputs)} -> {', '.join(each.outputs)}" for each in operator.signatures),
    }


def _text(value: str | int | tuple[int, ...]) -> str:
    return str(int(value) if isinstance(value, int) else value)  # the number of an encoding; its name may change


def recorded() -> dict[str, Any]:
    """The signatures of the operators that were released."""
    found: dict[str, Any] = json.loads(SIGNATURES.read_text()) if SIGNATURES.exists() else {}
    return found


def complaints(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The changes of released operators, one line each."""
    return [
        f"{name} is not as it was recorded: {RULE.format(name=name)}"
        for name, signature in now.items()
        if before.get(name, signature) != signature
    ]


@dataclass
class Frozen:
    """A model as a release wrote it, and its inputs."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, npt.NDArray[Any]]


def frozen_models(folder: Path = FROZEN) -> Iterator[Frozen]:
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            arrays = dict(file)
        for key in [key for key in arrays if key.endswith("/model")]:
            name = key.removesuffix("/model")
            feeds = {each[len(name) + 4 :]: array for each, array in arrays.items() if each.startswith(f"{name}/in/")}
            yield Frozen(f"{path.stem}/{name}", onnx.load_from_string(arrays[key].tobytes()), feeds)


def freeze(path: Path, models: Iterable[Frozen]) -> None:
    """Writes models and their inputs to one file."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    for each in models:
        arrays[f"{each.name}/model"] = np.frombuffer(each.model.SerializeToString(), np.uint8)
        arrays |= {f"{each.name}/in/{name}": array for name, array in each.feeds.items()}
    path.parent.mkdir(exist_ok=True)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def main() -> None:
    if found := complaints(recorded(), signatures()):
        sys.exit("\n".join(found))
    models = [*rewritten(folder.parent for folder in sorted(MODELS.glob("*/model.onnx"))), *quantized()]
    called = {node.op_type for each in models for node in calls(each.model)}
    if missing := OPERATORS.keys() - called:
        sys.exit(f"no model calls {', '.join(sorted(missing))}: `quantized` must make one that does")
    freeze(FROZEN / f"{ort_dynq.__version__}.npz", models)
    SIGNATURES.write_text(json.dumps(recorded() | signatures(), indent=1) + "\n")


def calls(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of the domain ort_dynq."""
    places = [model.graph, *(each for each in model.functions if each.domain != DOMAIN)]
    found = (node for place in places for graph in proto_with_subgraphs(place) for node in graph.node)
    return (node for node in found if node.domain == DOMAIN)


def rewritten(folders: Iterable[Path]) -> Iterator[Frozen]:
    """The models of the folders of models/, rewritten, if they have calls of operators then."""
    for folder in folders:
        model = ort_dynq.rewrite(folder / "model.onnx", fuse=True).to_proto()
        tensors = [onnx.load_tensor(folder / f"test_data_set_0/input_{i}.pb") for i in range(len(model.graph.input))]
        given = zip(model.graph.input, tensors, strict=True)
        if any(calls(model)):
            yield Frozen(folder.name, model, {value.name: numpy_helper.to_array(tensor) for value, tensor in given})


def quantized() -> Iterator[Frozen]:
    """A float encoder in its quantized forms, which have operators that no rewrite makes."""
    original = transformers.encoder("float", layers=1, hidden=256, heads=4, feed_forward=512)
    for form in ("token", "two-term"):
        model = ort_dynq.quantize(original, activations=form).to_proto()
        yield Frozen(f"encoder_{form}", model, transformers.feeds(original, 16))


if __name__ == "__main__":
    main()
