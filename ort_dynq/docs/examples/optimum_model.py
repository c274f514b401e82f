"""Hugging Face Optimum's ORTModel with the operators: ``python optimum_model.py folder``.

The folder is what ``optimum-cli export onnx`` and ``optimum-cli onnxruntime quantize`` write: model.onnx, config.json
and the tokenizer. Needs ``pip install optimum-onnx[onnxruntime]``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import onnxruntime

import ort_dynq

FILE = "model_dynq.onnx"


def load(model_class: Any, folder: str, file: str = "model.onnx", **options: Any) -> Any:
    """An ORTModel, of the class that the task wants, whose session runs the rewritten model.

    Args:
        model_class: As ``ORTModelForFeatureExtraction`` or ``ORTModelForSequenceClassification``.
        folder: Where the model is; the rewritten one is written beside it.
        file: The model's name.
        options: Further arguments of ``from_pretrained``.
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
