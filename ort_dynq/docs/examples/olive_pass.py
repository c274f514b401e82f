"""A pass for Olive that quantizes or rewrites: ``python olive_pass.py IN.onnx FOLDER``. Needs ``pip install olive-ai``.

FOLDER gets the model of a workflow with this pass alone. In a workflow of your own, give the pass its type:
``"passes": {"int8": {"type": "DynqQuantize", "weights": "int8"}}``. Olive finds it by a package configuration, which
``python olive_pass.py > package.json`` writes: ``olive run --config workflow.json --package-config package.json``, with
the folder of this file in PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import ort_dynq

try:
    from olive.model import ONNXModelHandler
    from olive.model.utils import resolve_onnx_path
    from olive.package_config import OlivePackageConfig
    from olive.passes import Pass
    from olive.passes.pass_config import PassConfigParam
    from olive.workflows import run
except ImportError as error:
    raise SystemExit(f"{error}: run `pip install olive-ai`") from None


class DynqQuantize(Pass):  # type: ignore[misc]
    """Quantizes the products of a float model, or rewrites a model that is quantized already."""

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, PassConfigParam]:
        return {
            "weights": PassConfigParam(type_=str, default_value="int8", description="int8 or int4"),
            "activations": PassConfigParam(type_=str, default_value="token", description="token, tensor or two-term"),
            "exclude": PassConfigParam(type_=list, default_value=[], description="patterns of layers that stay float"),
            "rewrite": PassConfigParam(type_=bool, default_value=False, description="only rewrite the model"),
        }

    def _run_for_config(self, model: Any, config: Any, output_model_path: str) -> Any:
        if config.rewrite:
            result = ort_dynq.rewrite(model.model_path)
        else:
            result = ort_dynq.quantize(
                model.model_path, weights=config.weights, activations=config.activations, exclude=config.exclude
            )
        path = Path(resolve_onnx_path(output_model_path))
        path.parent.mkdir(parents=True, exist_ok=True)
        result.save(path)
        return ONNXModelHandler(model_path=str(path.parent), onnx_file_name=path.name)


def package() -> dict[str, Any]:
    """Returns Olive's own package configuration, with this pass."""
    found: dict[str, Any] = OlivePackageConfig.load_default_config().model_dump(mode="json")
    found["passes"]["dynqquantize"] = {
        "module_path": f"{Path(__file__).stem}.DynqQuantize",
        "supported_providers": ["CPUExecutionProvider"],
        "supported_accelerators": ["cpu"],
        "supported_precisions": ["int8", "int4"],
    }
    return found


def main(source: str, folder: str, **options: Any) -> Path:
    """Runs a workflow with this pass alone, and returns the path of the new model."""
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": source},
        "passes": {"int8": {"type": "DynqQuantize", **options}},
        "output_dir": folder,
        "cache_dir": str(Path(folder) / "cache"),
    }
    run(workflow, package_config=package())
    return Path(folder) / "model.onnx"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", metavar="IN.onnx", nargs="?")
    parser.add_argument("folder", metavar="FOLDER", nargs="?")
    given = parser.parse_args()
    if given.source is None:
        print(json.dumps(package(), indent=2))
    elif given.folder is None or not Path(given.source).is_file():
        parser.error("expected a model and a folder, or nothing")
    else:
        print(main(given.source, given.folder))
