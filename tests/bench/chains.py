"""Times decomposed quantization chains against stock ONNX Runtime and against a Relu on the same tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx

from ort_dynq.rewriter import rewrite
from ort_dynq.tools.bench.models import ModelTiming, operator_counts
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import (
    Latency,
    Settings,
    aligned,
    check_backend,
    interleave,
    latency,
    session_contender,
    speed,
)

from .onnx_text import parse, tensor_type

SHAPE = (512, 4096)


@dataclass(frozen=True)
class ChainTiming(ModelTiming):
    """The timing of one chain on 512x4096 elements.

    Attributes:
        nodes: The number of nodes of the chain.
        relu: The latency of a Relu, one pass over the same tensor.
        relu_ratio: The median of `ours` / the median of `relu`.
    """

    nodes: int
    relu: Latency
    relu_ratio: float


class Chain(NamedTuple):
    """A chain as torch or torchao exports it, as ONNX text. Its input is x, float32[ROWS, COLUMNS].

    Attributes:
        name: Its name.
        outputs, constants, nodes: The parts of the graph.
    """

    name: str
    outputs: str
    constants: str
    nodes: str

    def __str__(self) -> str:
        return self.name

    def model(self, shape: tuple[int, int] = SHAPE) -> onnx.ModelProto:
        """Returns the chain on a tensor of this shape."""
        texts = ("float[ROWS, COLUMNS] x", self.outputs, self.nodes, self.constants)
        inputs, outputs, nodes, constants = (at(text, shape) for text in texts)
        return parse(inputs, outputs, nodes, opset=20, constants=constants)


def at(text: str, shape: tuple[int, int]) -> str:
    """Returns a text with the numbers of rows and columns of a tensor."""
    return text.replace("ROWS", str(shape[0])).replace("COLUMNS", str(shape[1]))


_SYMMETRIC = """
    a = Abs(x)
    m = ReduceMax(a, last)
    r = Clip(m, eps)
    s = Div(r, high)
    t = Div(x, s)
    u = Round(t)
    v = Clip(u, low, high)
"""
_SYMMETRIC_CONSTANTS = "int64[1] last = {-1}, float eps = {0.00001}, float low = {-128}, float high = {127}"
CHAINS = (
    Chain(
        "symmetric per token to int8",
        "int8[ROWS, COLUMNS] y, float[ROWS, 1] s",
        _SYMMETRIC_CONSTANTS,
        f"{_SYMMETRIC} y = Cast<to = 3>(v)",
    ),
    Chain(
        "symmetric per token, fake-quantized",
        "float[ROWS, COLUMNS] y",
        _SYMMETRIC_CONSTANTS,
        f"{_SYMMETRIC} y = Mul(v, s)",
    ),
    Chain(
        "torchao asymmetric per token, fake-quantized",
        "float[ROWS, COLUMNS] y",
        "int64[1] axes = {1}, int64[2] column = {ROWS, 1}, float zero = {0}, float steps = {255}, "
        "float eps = {1.1754944e-38}, float low = {-128}, float high = {127}",
        """
            mn = ReduceMin<keepdims = 0>(x, axes)
            mx = ReduceMax<keepdims = 0>(x, axes)
            mn_shape = Shape(mn)
            mn_zeros = Expand(zero, mn_shape)
            lower = Min(mn, mn_zeros)
            mx_shape = Shape(mx)
            mx_zeros = Expand(zero, mx_shape)
            upper = Max(mx, mx_zeros)
            range = Sub(upper, lower)
            step = Div(range, steps)
            s_row = Clip(step, eps)
            z_quotient = Div(lower, s_row)
            z_round = Round(z_quotient)
            z_shifted = Sub(low, z_round)
            z_clipped = Clip(z_shifted, low, high)
            z_row = Cast<to = 3>(z_clipped)
            s = Reshape<allowzero = 1>(s_row, column)
            z = Reshape<allowzero = 1>(z_row, column)
            inverse = Reciprocal(s)
            t = Mul(x, inverse)
            u = Round(t)
            z_float = Cast<to = 1>(z)
            v = Add(u, z_float)
            w = Clip(v, low, high)
            codes = Cast<to = 3>(w)
            codes_float = Cast<to = 1>(codes)
            centered = Sub(codes_float, z_float)
            y = Mul(centered, s)
        """,
    ),
    Chain(
        "asymmetric per tensor -> Q -> DQ",
        "float[ROWS, COLUMNS] y",
        "float zero = {0}, float steps = {255}, float eps = {0.00000001}",
        """
            mn = ReduceMin<keepdims = 0>(x)
            lower = Clip(mn, , zero)
            mx = ReduceMax<keepdims = 0>(x)
            upper = Clip(mx, zero)
            range = Sub(upper, lower)
            step = Div(range, steps)
            s = Clip(step, eps)
            negative = Neg(lower)
            z_quotient = Div(negative, s)
            z_round = Round(z_quotient)
            z_clipped = Clip(z_round, zero, steps)
            z_int = Cast<to = 6>(z_clipped)
            z = Cast<to = 2>(z_int)
            codes = QuantizeLinear(x, s, z)
            y = DequantizeLinear(codes, s, z)
        """,
    ),
)


def bench_chains(settings: Settings, *, track: Track = iter) -> list[ChainTiming]:
    """Times decomposed chains on 512x4096 float32, alternating with a Relu on the same tensor.

    Args:
        settings: How to time.
        track: Shows the progress.

    Raises:
        DynqError: The operators cannot be registered, or a rewritten chain does not run.
    """
    check_backend(settings.backend)
    x = tensor_type("float", SHAPE)
    feeds = {"x": aligned(np.random.default_rng(0).standard_normal(SHAPE, np.float32))}
    relu_model = parse(f"{x} x", f"{x} y", "y = Relu(x)", opset=20)
    timings = []
    for chain in track(CHAINS):
        model = chain.model()
        result = rewrite(model, exact=settings.exact)
        for threads in settings.threads:
            contenders = [
                session_contender(chain.name, model, feeds, threads),
                session_contender(chain.name, result.model, feeds, threads, backend=settings.backend),
                session_contender("Relu", relu_model, feeds, threads),
            ]
            stock, ours, relu = map(latency, interleave(contenders, settings, threads))
            found = speed(stock, ours)
            timings.append(
                ChainTiming(
                    name=chain.name,
                    threads=threads,
                    stock=stock,
                    ours=ours,
                    ratio=found.ratio,
                    busy=found.busy,
                    snr_db=None,
                    problem="",
                    rewritten=operator_counts(result.report),
                    nodes=len(model.graph.node),
                    relu=relu,
                    relu_ratio=ours.median_ms / relu.median_ms,
                )
            )
    return timings
