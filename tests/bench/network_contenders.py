"""Other ways to run the networks of `python tests/bench networks`: OpenVINO, and networks of PyPI packages.

OpenVINO runs the float network in float32, and in bfloat16 if the CPU multiplies it. With nncf, it also runs the
network in int8, quantized after 16 inputs: with constant scales, which ours does not need.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ort_dynq.errors import DynqError
from ort_dynq.files import temporary_folder
from ort_dynq.inputs import Array
from ort_dynq.storage import Model
from ort_dynq.tools.bench import openvino
from ort_dynq.tools.bench.networks import NETWORKS as PACKAGED
from ort_dynq.tools.bench.networks import Network
from ort_dynq.tools.measuring.timing import (
    Contender,
    ContenderError,
    Settings,
    aligned,
    session_contender,
)

FORMS = ("float32", "bfloat16", "int8")
"""How OpenVINO runs a network."""

_CALIBRATION = 16  # inputs
_MIN_ROUNDS, _TURN = 3, 4  # runs of one contender before the other's turn
_PPOCR = "rapidocr-onnxruntime==1.4.4"
_OF_FLOATS = {
    "float32": "OpenVINO int8",
    "bfloat16": "OpenVINO int8, bfloat16",
}  # which quantize no activation of a Conv


def _of_ppocr(file: str, height: int, width: int) -> Network:
    image = np.random.default_rng(0).standard_normal((1, 3, height, width), np.float32)
    return Network(_PPOCR, f"rapidocr_onnxruntime/models/{file}", lambda: [{"x": image}], lambda outputs: outputs, "-")


NETWORKS = {
    "ppocr-rec": _of_ppocr("ch_PP-OCRv4_rec_infer.onnx", 48, 320),
    "ppocr-det": _of_ppocr("ch_PP-OCRv4_det_infer.onnx", 320, 320),
    "ppocr-cls": _of_ppocr("ch_ppocr_mobile_v2.0_cls_infer.onnx", 48, 192),
    "silero-vad": PACKAGED["silero-vad"],
}
"""Networks with real weights: text recognition, detection and direction of PP-OCRv4, and a voice detector."""


def installed() -> tuple[str, ...]:
    """Returns the names of the networks with installed packages."""
    found = []
    for name, network in NETWORKS.items():
        with contextlib.suppress(DynqError):
            network.model()
            found.append(name)
    return tuple(found)


def openvino_ratios(
    model: onnx.ModelProto, ours: Model, feeds: Mapping[str, Array], settings: Settings, threads: int
) -> dict[str, float]:
    """Returns the time of OpenVINO divided by that of our model, of the fastest runs, for each form that is available.

    Only two take turns at a time: more would disturb each other's caches. With one thread, the time of all threads of
    the process counts, since OpenVINO has its own; with more, wall time.

    Args:
        model: The float network.
        ours: The quantized one.
        feeds, settings, threads: As for :func:`ort_dynq.tools.bench.models.sample`.
    """
    forms, ratios = openvino.forms(), dict[str, float]()
    if not forms:
        return {}
    feeds = {name: aligned(array) for name, array in feeds.items()}
    with temporary_folder() as folder:
        source = Path(folder) / "model.onnx"
        onnx.save(model, source)
        for form in FORMS:
            with contextlib.suppress(ContenderError):
                found = _contender(form, forms, source, feeds, threads)
                if found is not None:
                    mine = session_contender("ort_dynq", ours, feeds, threads, backend=settings.backend)
                    ratios[form] = _fastest(
                        found, mine, settings, time.process_time_ns if threads == 1 else time.perf_counter_ns
                    )
    return ratios


def _fastest(a: Contender, b: Contender, settings: Settings, now: Callable[[], int]) -> float:
    """Returns the time of the fastest run of A / that of B."""
    best, end, rounds = [math.inf, math.inf], time.perf_counter() + settings.seconds, 0
    while rounds < _MIN_ROUNDS or time.perf_counter() < end:
        for i, contender in enumerate((a, b)):
            for _ in range(_TURN):
                begin = now()
                contender.run()
                best[i] = min(best[i], now() - begin)
        rounds += 1
    return best[0] / best[1]


def _contender(
    form: str, available: Sequence[str], source: Path, feeds: Mapping[str, Array], threads: int
) -> Contender | None:
    if form in _OF_FLOATS:
        name = _OF_FLOATS[form]
        return openvino.contender(name, source, feeds, threads) if name in available else None
    if importlib.util.find_spec("nncf") is None:
        return None
    target = source.with_suffix(".xml")
    _quantize(source, target, feeds)
    return openvino.contender(_OF_FLOATS["float32"], target, feeds, threads)


def _quantize(source: Path, target: Path, feeds: Mapping[str, Array]) -> None:
    """Quantizes a network by nncf after some inputs, which are permutations of the given ones.

    Raises:
        ContenderError: nncf cannot.
    """
    os.environ.setdefault("NNCF_CI", "1")  # or nncf reports its use over the network
    nncf: Any = importlib.import_module("nncf")
    core: Any = importlib.import_module("openvino")
    rng = np.random.default_rng(0)
    inputs = [
        {name: rng.permutation(array, axis=-1) if array.ndim else array for name, array in feeds.items()}
        for _ in range(_CALIBRATION)
    ]
    try:
        with contextlib.redirect_stdout(sys.stderr):  # its progress
            quantized = nncf.quantize(core.Core().read_model(source), nncf.Dataset(inputs), subset_size=_CALIBRATION)
        core.save_model(quantized, target, compress_to_fp16=False)
    except Exception as error:  # of any kind
        raise ContenderError(f"nncf does not quantize the network: {error}") from error
