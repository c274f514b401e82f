"""Times mixtures of experts: QMoE with random weights, and what a rewrite makes of it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import ort_dynq
from ort_dynq.inputs import Array
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, aligned, check_backend, session_contender

from .products import medians_us

TOKENS = (1, 16, 128)
FORMS = ((4, 4, "keep"), (8, 0, "keep"), (4, 0, "blocks"), (4, 0, "two-term"))
"""The bits of the weights, accuracy_level, and weights_only."""


@dataclass(frozen=True)
class ExpertsTiming:
    """The timing of one mixture. Times are medians in microseconds.

    Attributes:
        experts: The number of experts, and of those that a token goes through.
        bits: The bits of the weights.
        level: The attribute accuracy_level.
        weights_only: How the mixture was rewritten.
        tokens: The number of tokens.
        threads: The number of threads.
        stock_us: QMoE.
        ours_us: QuantizedExperts.
        ratio: The first divided by the second.
    """

    experts: tuple[int, int]
    bits: int
    level: int
    weights_only: str
    tokens: int
    threads: int
    stock_us: float
    ours_us: float
    ratio: float


def bench_experts(
    settings: Settings,
    tokens: Sequence[int] = TOKENS,
    size: int = 1024,
    *,
    block_size: int = 32,
    track: Track = iter,
) -> list[ExpertsTiming]:
    """Times mixtures of 8 and 32 experts with gates.

    Args:
        settings: How to time.
        tokens: Numbers of tokens.
        size: The number of elements of a token, and of those between the products of an expert.
        block_size: The size of the blocks of weights.
        track: Shows the progress.

    Raises:
        DynqError: The operators cannot be registered.
    """
    check_backend(settings.backend)
    cases = [(experts, form) for experts in ((8, 2), (32, 4)) for form in FORMS]
    timings = []
    for experts, (bits, level, weights_only) in track(cases):
        model = _mixture(experts, bits, level, size, block_size)
        fast = ort_dynq.rewrite(model, weights_only=weights_only).to_proto()
        if settings.backend == "extensions":  # which has no float16
            fast = ort_dynq.ready_for_extensions(fast).to_proto()
        for count in tokens:
            rng = np.random.default_rng(0)
            shapes = {"x": (count, size), "router": (count, experts[0])}
            feeds = {name: aligned(rng.normal(0, 1, each).astype(np.float32)) for name, each in shapes.items()}
            scores = rng.normal(0, 1, (16, *feeds["router"].shape)).astype(np.float32)
            for threads in settings.threads:
                rivals = {
                    name: _of_other_tokens(
                        session_contender(name, each, feeds, threads, backend=backend), feeds["router"], scores
                    )
                    for name, each, backend in (("stock", model, None), ("ours", fast, settings.backend))
                }
                us = medians_us(rivals, settings, threads)
                ratio = us["stock"] / us["ours"]
                timings.append(
                    ExpertsTiming(experts, bits, level, weights_only, count, threads, us["stock"], us["ours"], ratio)
                )
    return timings


def _of_other_tokens(contender: Contender, router: Array, scores: Array) -> Contender:
    """Each run has other scores: the weights of one token's experts would stay in the caches."""
    others = itertools.cycle(scores)

    def run() -> object:
        router[:] = next(others)
        return contender.run()

    return replace(contender, run=run)


def _mixture(experts: tuple[int, int], bits: int, level: int, size: int, block_size: int) -> onnx.ModelProto:
    """A QMoE. Scales are numbers of float16, as in models that were float16 or bfloat16."""
    rng = np.random.default_rng(0)
    count, chosen = experts
    tensors = {}
    for name, columns in (("fc1", 2 * size), ("fc2", size)):
        scales = rng.uniform(0.5, 1.5, (count, columns, size // block_size)) * 4 / 2**bits / size**0.5
        tensors[f"{name}_codes"] = rng.integers(0, 256, (count, columns, size * bits // 8), np.uint8)
        tensors[f"{name}_scales"] = scales.astype(np.float16).astype(np.float32)
    names = ["x", "router", "fc1_codes", "fc1_scales", "", "fc2_codes", "fc2_scales"]
    given: dict[str, Any] = {"k": chosen, "expert_weight_bits": bits, "block_size": block_size, "accuracy_level": level}
    given |= {"activation_type": "swiglu", "swiglu_fusion": 1}
    graph = helper.make_graph(
        [helper.make_node("QMoE", names, ["y"], domain="com.microsoft", **given)],
        "mixture",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["tokens", width])
            for name, width in (("x", size), ("router", count))
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["tokens", size])],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
