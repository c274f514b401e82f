"""Shares one session between several threads of a server: ``python serving_threads.py model.onnx``.

Any number of threads may run a session at the same time. A session releases the GIL while it runs. There are two ways
to use the cores:

- Several requests at a time, each on one core. This gives the most requests per second. This example does so.
- One request at a time on all cores, with the default intra_op_num_threads. This gives the shortest time per request.

Do not combine the two: their threads would compete for the cores.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import onnxruntime

import ort_dynq


def open_session(path: str) -> onnxruntime.InferenceSession:
    options = ort_dynq.register(onnxruntime.SessionOptions())  # the backend "extensions" would hold the GIL
    options.intra_op_num_threads = 1
    return ort_dynq.InferenceSession(path, options)  # if already rewritten: onnxruntime.InferenceSession


def serve(path: str, requests: list[dict[str, npt.NDArray[np.generic]]]) -> list[list[npt.NDArray[np.generic]]]:
    session = open_session(path)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda feeds: session.run(None, feeds), requests))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", metavar="model.onnx")
    path, rng = parser.parse_args().path, np.random.default_rng(0)
    try:
        (given,) = open_session(path).get_inputs()
    except ort_dynq.DynqError as error:
        parser.error(str(error))
    shape = [size if isinstance(size, int) else 2 for size in given.shape]
    answers = serve(path, [{given.name: rng.standard_normal(shape, np.float32)} for _ in range(100)])
    print(f"{len(answers)} answers")
