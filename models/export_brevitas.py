"""Writes models with Brevitas 0.13 and torch.onnx.export: linear layers with dynamic scales of activations.

Run it in an environment of its own: ``pip install brevitas==0.13.4 torch==2.13.0 onnx==1.23.2 onnxruntime==1.31.1``.
"""

from __future__ import annotations

import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import torch
from _common import Array, Example, activations, main
from brevitas.nn import QuantLinear
from brevitas.quant.scaled_int import Int8WeightPerChannelFloat
from brevitas_examples.common.generative.quantizers import Int8DynamicActPerTensorFloat


def export(input_quant: Any, x: Array, outputs: int) -> Example:
    """Exports a linear layer with a float scale of weights for each output channel."""
    torch.manual_seed(0)
    layer = QuantLinear(
        x.shape[-1], outputs, bias=True, weight_quant=Int8WeightPerChannelFloat, input_quant=input_quant
    ).eval()
    with warnings.catch_warnings(), torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        names = {"input_names": ["x"], "output_names": ["y"]}
        torch.onnx.export(layer, (torch.from_numpy(x),), path, dynamo=False, opset_version=17, **names)
        return Example(onnx.load(path), [x])


if __name__ == "__main__":
    main(
        {
            "brevitas_tensor": partial(
                export, Int8DynamicActPerTensorFloat, activations(2, 7, 20, high=15.875, tensor=True), 13
            ),
        }
    )
