"""Runs a quantized or rewritten model with an ORTModel of Hugging Face Optimum: ``python optimum_model.py FOLDER``.

The folder contains model.onnx, config.json and the tokenizer. ``optimum-cli export onnx`` writes a float model, which
is quantized here. ``python optimum_model.py FOLDER --rewrite`` is for one that ``optimum-cli onnxruntime quantize`` has
quantized. Needs ``pip install "optimum-onnx[onnxruntime]"``.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnxruntime

import ort_dynq

FILE = "model_dynq.onnx"


def load(model_class: Any, folder: str, file: str = "model.onnx", *, rewrite: bool = False, **options: Any) -> Any:
    """Quantizes or rewrites a model and opens it as an ORTModel.

    Args:
        model_class: The class for the task, for example ``ORTModelForFeatureExtraction``.
        folder: The folder of the model. The new model is written to the same folder.
        file: The file name of the model.
        rewrite: Whether the model is quantized already, and is to be rewritten.
        options: Further arguments of ``from_pretrained``.

    Returns:
        An instance of ``model_class``. Its session runs the new model.
    """
    convert = ort_dynq.rewrite if rewrite else ort_dynq.quantize
    convert(Path(folder) / file).save(Path(folder) / FILE)
    session_options = ort_dynq.register(onnxruntime.SessionOptions())
    return model_class.from_pretrained(folder, file_name=FILE, session_options=session_options, **options)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="FOLDER")
    parser.add_argument("--rewrite", action="store_true")
    given = parser.parse_args()
    if not Path(given.folder, "config.json").is_file():
        parser.error(f"there is no file {Path(given.folder, 'config.json')}")
    try:
        from optimum.onnxruntime import ORTModelForFeatureExtraction
        from transformers import AutoTokenizer
    except ImportError:
        raise SystemExit('optimum is missing: run `pip install "optimum-onnx[onnxruntime]"`') from None

    tokenizer = AutoTokenizer.from_pretrained(given.folder)
    model = load(ORTModelForFeatureExtraction, given.folder, rewrite=given.rewrite)
    print(model(**tokenizer("An example.", return_tensors="np")).last_hidden_state.shape)
