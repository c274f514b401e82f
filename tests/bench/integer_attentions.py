"""Times QuantizedAttention on each instruction set, and MultiHeadAttention of floats in stock ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import parser

from ort_dynq import kernels
from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.operators import DOMAIN
from ort_dynq.operators.encodings import one_of
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, aligned, interleave, session_contender

FORMS = {
    f"{name}-{tokens}": (tokens, heads, size)
    for name, heads, size in (("minilm", 12, 32), ("bert", 12, 64), ("llama", 8, 128))
    for tokens in (16, 128, 512)
}
"""The numbers of tokens and heads, and the elements of a head."""

_REPEATS = {16: 1024, 128: 64, 512: 8}  # by tokens: a change of the instruction set takes 0.2 ms


@dataclass(frozen=True)
class IntegerTiming:
    """The timing of one form on one instruction set, with one thread. Times are the fastest runs, in microseconds.

    Attributes:
        name: A key of FORMS.
        isa: The instruction set.
        tokens, heads, size: The numbers of tokens and heads, and the elements of a head.
        ours_us: QuantizedAttention.
        float_us: MultiHeadAttention of floats in stock ONNX Runtime, which chooses an instruction set itself.
        ratio: float_us / ours_us.
    """

    name: str
    isa: str
    tokens: int
    heads: int
    size: int
    ours_us: float
    float_us: float
    ratio: float


def bench_integer_attentions(
    settings: Settings, names: Sequence[str] = tuple(FORMS), *, isas: Sequence[str] = (), track: Track = iter
) -> list[IntegerTiming]:
    """Times attention with products of integers; the instruction sets take turns.

    Args:
        settings: How to time.
        names: Keys of FORMS.
        isas: Instruction sets; empty: all that this CPU supports except the portable one.
        track: Shows the progress.

    Raises:
        DynqError: A name or an instruction set is unknown.
    """
    for name in names:
        if name not in FORMS:
            raise DynqError(f"there is no case {name!r}, expected one of {one_of(FORMS)}")
    supported = [each for each in kernels.supported_isas() if each != "portable"]
    for isa in isas:
        if isa not in supported:
            raise DynqError(f"the instruction set is {isa!r}, expected one of {one_of(supported)}")
    return [timing for name in track(names) for timing in _time(name, tuple(isas) or tuple(supported), settings)]


def _time(name: str, isas: Sequence[str], settings: Settings) -> list[IntegerTiming]:
    tokens, heads, size = FORMS[name]
    rng = np.random.default_rng(0)
    given = [aligned(rng.standard_normal((1, tokens, heads * size), np.float32)) for _ in range(3)]
    shape = f"float[1, {tokens}, {heads * size}]"
    domains = f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1, "{DOMAIN}": 1]>'
    floats = (
        f"{domains} g ({shape} q, {shape} k, {shape} v) => ({shape} y) "
        f"{{ y = com.microsoft.MultiHeadAttention<num_heads = {heads}>(q, k, v) }}"
    )
    integer = (
        f"{domains} g ({shape} q, {shape} k, {shape} v, float[1, 1, 1, 1] bias, float scale, float cap, float least) "
        f"=> ({shape} y) {{ y = {DOMAIN}.QuantizedAttention<num_heads = {heads}>(q, k, v, bias, scale, cap, least) }}"
    )
    feeds: dict[str, Array] = dict(zip("qkv", given, strict=True))
    numbers = {"scale": size**-0.5, "cap": 0, "least": -np.inf}
    all_feeds = {**feeds, "bias": np.zeros((1, 1, 1, 1), np.float32)}
    all_feeds.update({key: np.array(number, np.float32) for key, number in numbers.items()})
    one = session_contender(name, parser.parse_model(integer), all_feeds, 1, backend="native")
    repeats = _REPEATS[tokens]

    def ours(isa: str) -> Contender:
        def run() -> None:
            with kernels.use_isa(isa):
                for _ in range(repeats):
                    one.run()

        return Contender(run, one.arrays, repeats)

    contenders = [*map(ours, isas), session_contender(name, parser.parse_model(floats), feeds, 1)]
    *times, of_float = (float(each.min()) / 1e3 for each in interleave(contenders, settings, 1))
    return [
        IntegerTiming(name, isa, tokens, heads, size, us, of_float, of_float / us)
        for isa, us in zip(isas, times, strict=True)
    ]
