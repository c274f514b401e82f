"""Runs a rewritten model with an ORTModel of Hugging Face Optimum: ``python optimum_model.py folder``.

The folder contains model.onnx, config.json and the tokenizer, as ``optimum-cli export onnx`` and ``optimum-cli
onnxruntime quantize`` write them. Needs ``pip install optimum-onnx[onnxruntime]``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnxruntime

import ort_dynq

FILE = "model_dynq.onnx"


def load(model_class: Any, folder: str, file: str = "model.onnx", **options: Any) -> Any:
    """Rewrites a model and opens it as an ORTModel.

    Args:
        model_class: The class for the task, for example ``ORTModelForFeatureExtraction``.
        folder: The folder of the model. The rewritten model is written to the same folder.
        file: The file name of the model.
        options: Further arguments of ``from_pretrained``.

    Returns:
        An instance of ``model_class`` whose session runs the rewritten model.
    """
    ort_dynq.rewrite(Path(folder) / file).save(Path(folder) / FILE)
    session_options = ort_dynq.register(onnxruntime.SessionOptions())
    return model_class.from_pretrained(folder, file_name=FILE, session_options=session_options, **options)


if __name__ == "__main__":
    from optimum.onnxruntime import ORTModelForFeatureExtraction
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
    model = load(ORTModelForFeatureExtraction, sys.argv[1])
    print(model(**tokenizer("An example.", return_tensors="np")).last_hidden_state.shape)
