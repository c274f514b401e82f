"""Records the operators of a revision: their signatures, and models that call them.

python tests/operators/versions.py             records the signatures of new operators
python tests/operators/versions.py MODEL...    also freezes models that call them (folders such as models/torch_group)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from ort_dynq.operators import DOMAIN, OPERATORS, VERSION, Operator
from ort_dynq.opsets import opset_of
from ort_dynq.quantizer import recurrent
from ort_dynq.quantizer.options import Options
from ort_dynq.rewriter.float16 import convert_in_float32
from ort_dynq.rewriter.functions import add_functions
from ort_dynq.rewriter.loop import convert
from ort_dynq.rewriter.report import Report
from ort_dynq.rewriter.rules import FIRST_OF_QUANTIZATIONS, IN_FLOAT32, PHASES
from ort_dynq.storage import load, to_proto

HERE = Path(__file__).parent
SIGNATURES = HERE / "signatures.json"
FROZEN = HERE / "frozen"
"""Models that earlier revisions wrote, by the version of the domain. Those of versions before a release are deleted."""

RULE = (
    "an operator never changes: give the changed one a new name, such as {name}V2 (before the first release, raise "
    "VERSION in ort_dynq/operators/__init__.py and kDomainVersion in ops/plugin.cc instead), and run "
    "`python tests/operators/versions.py`"
)


def signatures() -> dict[str, Any]:
    """The version of the domain and the signature of each operator, as signatures.json has them."""
    return {"version": VERSION, "operators": {name: _signature(operator) for name, operator in OPERATORS.items()}}


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
    return str(int(value) if isinstance(value, int) else value)  # the number of an encoding, whose name may change


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SIGNATURES.read_text())
    return found


def complaints(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The breaking changes of the operators, one line each. None if the version of the domain rises."""
    if now["version"] > before["version"]:
        return []
    return [
        f"{name} is not as it was recorded: {RULE.format(name=name)}"
        for name, signature in now["operators"].items()
        if before["operators"].get(name, signature) != signature
    ]


@dataclass
class Frozen:
    """A model as an earlier revision wrote it, and its inputs."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, npt.NDArray[Any]]

    @property
    def version(self) -> int:
        """The version of the domain that the model imports."""
        return next(each.version for each in self.model.opset_import if each.domain == DOMAIN)


def frozen_models() -> Iterator[Frozen]:
    for path in sorted(FROZEN.glob("*.npz")):
        with np.load(path) as file:
            arrays = dict(file)
        for key in [key for key in arrays if key.endswith("/model")]:
            name = key.removesuffix("/model")
            feeds = {each[len(name) + 4 :]: array for each, array in arrays.items() if each.startswith(f"{name}/in/")}
            yield Frozen(f"{path.stem}/{name}", onnx.load_from_string(arrays[key].tobytes()), feeds)


def freeze(path: Path, model: onnx.ModelProto, folder: Path) -> None:
    """Adds a rewritten model to the file, with the inputs that the original's folder has."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    if path.exists():
        with np.load(path) as file:
            arrays = dict(file)
    arrays[f"{folder.name}/model"] = np.frombuffer(model.SerializeToString(), np.uint8)
    for i, value in enumerate(model.graph.input):
        tensor = onnx.load_tensor(folder / "test_data_set_0" / f"input_{i}.pb")
        arrays[f"{folder.name}/in/{value.name}"] = numpy_helper.to_array(tensor)
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def main() -> None:
    if SIGNATURES.exists() and (found := complaints(recorded(), signatures())):
        sys.exit("\n".join(found))
    SIGNATURES.write_text(json.dumps(signatures(), indent=1) + "\n")
    for folder in map(Path, sys.argv[1:]):
        original = load(folder / "model.onnx")
        in_float32 = convert_in_float32(original, _convert, IN_FLOAT32)
        model = in_float32[0] if in_float32 else original
        if not in_float32:
            _convert(model)
        add_functions(model, opset_of(model))
        freeze(FROZEN / f"version-{VERSION}.npz", to_proto(model), folder)


def _convert(model: ir.Model) -> Report:
    # A quantization has operators that no rewrite has.
    return convert(model, (*FIRST_OF_QUANTIZATIONS, (recurrent.rule(Options()),), *PHASES), fuse=True)


if __name__ == "__main__":
    main()
