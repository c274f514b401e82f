"""Runs a model over a dataset with Ray Data, on one machine or a cluster: ``python ray_data.py model.onnx``.

Needs ``pip install "ray[data]"``. Rewrite the model first: `ort-dynq rewrite`. Every machine must have the file.
"""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

import ort_dynq

INSTALL = 'pip install "ray[data]"'
_ROW, _DATA = "_row", "_data"  # columns beside the outputs


class Model:
    """Opens the session once in each worker: a session cannot be sent to another process."""

    def __init__(self, path: str) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # each worker has one core
        self._session = onnxruntime.InferenceSession(path, ort_dynq.register(options))
        (self._input,) = (each.name for each in self._session.get_inputs())
        self._outputs = [each.name for each in self._session.get_outputs()]

    def __call__(self, batch: dict[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        results = self._session.run(None, {self._input: batch[_DATA]})
        return {**batch, **dict(zip(self._outputs, results, strict=True))}


def infer(path: str, rows: npt.NDArray[Any], *, workers: int = 2, batch: int = 64) -> dict[str, npt.NDArray[Any]]:
    """Returns the outputs of a model with one input, for all rows of its first axis, in the order of the rows."""
    from ray import data

    dataset = data.from_items([{_ROW: i, _DATA: row} for i, row in enumerate(rows)])
    pool = data.ActorPoolStrategy(size=workers)
    done = dataset.map_batches(Model, fn_constructor_args=[path], compute=pool, batch_size=batch)
    table = sorted(done.take_all(), key=lambda each: int(each[_ROW]))
    return {name: np.stack([each[name] for each in table]) for name in table[0] if name not in (_ROW, _DATA)}


def main(path: str) -> None:
    if importlib.util.find_spec("ray") is None:
        raise SystemExit(f"ray is missing: run `{INSTALL}`")
    (given,) = onnxruntime.InferenceSession(path, ort_dynq.register(onnxruntime.SessionOptions())).get_inputs()
    shape = [size if isinstance(size, int) else 2 for size in given.shape[1:]]
    rows = np.random.default_rng(0).standard_normal((256, *shape), np.float32)
    for name, output in infer(str(Path(path).resolve()), rows).items():
        print(name, output.dtype, output.shape)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", metavar="model.onnx")
    path = parser.parse_args().path
    if not Path(path).is_file():
        parser.error(f"there is no file {path}")
    main(path)
