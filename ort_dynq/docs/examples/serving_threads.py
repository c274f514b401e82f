"""One session that several threads of a server share: ``python serving_threads.py model.onnx``.

A session may run in any number of threads at a time, and lets go of the GIL while it runs. Two ways to use the cores:
several requests at once, each on one core (here: most requests per second), or one request at a time on all of them
(intra_op_num_threads left alone: the shortest time for a single request). Both together only get into each other's way.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import onnxruntime

import ort_dynq


def open_session(path: str) -> onnxruntime.InferenceSession:
    options = ort_dynq.register(onnxruntime.SessionOptions())  # not `backend="extensions"`, which holds the GIL
    options.intra_op_num_threads = 1
    return ort_dynq.InferenceSession(path, options)  # of a model rewritten beforehand: onnxruntime.InferenceSession


def serve(path: str, requests: list[dict[str, npt.NDArray[np.generic]]]) -> list[list[npt.NDArray[np.generic]]]:
    session = open_session(path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda feeds: session.run(None, feeds), requests))


if __name__ == "__main__":
    rng = np.random.default_rng(0)
    (given,) = open_session(sys.argv[1]).get_inputs()
    shape = [size if isinstance(size, int) else 2 for size in given.shape]
    answers = serve(sys.argv[1], [{given.name: rng.standard_normal(shape, np.float32)} for _ in range(100)])
    print(f"{len(answers)} answers")
