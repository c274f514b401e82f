"""Times quantized convolutions; convolution_contenders.py has the forms that take part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ort_dynq.errors import DynqError
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Settings, check_backend, interleave

from .convolution_contenders import Case, Convolution, contenders
from .means import Mean, means

CONVOLUTIONS = {
    each.name: each
    for each in (
        Convolution("3x3-32", (32, 32), (3, 3), (112, 112)),
        Convolution("3x3-64", (64, 64), (3, 3), (56, 56)),
        Convolution("3x3-128", (128, 128), (3, 3), (28, 28)),
        Convolution("3x3-256", (256, 256), (3, 3), (14, 14)),
        Convolution("3x3-512", (512, 512), (3, 3), (7, 7)),
        Convolution("1x1-64", (64, 256), (1, 1), (56, 56)),
        Convolution("1x1-256", (256, 1024), (1, 1), (14, 14)),
        Convolution("3x3-stride2", (64, 128), (3, 3), (56, 56), stride=2),
        Convolution("7x7-stem", (3, 64), (7, 7), (224, 224), stride=2),
        Convolution("5x5-64", (64, 64), (5, 5), (28, 28)),
        Convolution("1d-256", (256, 256), (3,), (500,)),
        Convolution("1d-64", (64, 64), (3,), (4000,)),
        Convolution("1d-5-192", (192, 192), (5,), (500,)),
        Convolution("depthwise-3x3-64", (64, 64), (3, 3), (56, 56), depthwise=True),
        Convolution("depthwise-3x3-256", (256, 256), (3, 3), (14, 14), depthwise=True),
        Convolution("depthwise-5x5-96", (96, 96), (5, 5), (28, 28), depthwise=True),
    )
}
"""The convolutions of residual, mobile and speech networks, by name."""


@dataclass(frozen=True)
class ConvolutionTiming:
    """The timing of one convolution. Times are medians in microseconds; None if a form is not available.

    Attributes:
        name: The name of the convolution.
        input: The shape of the activation, N x C x spatial sizes.
        weights: The shape of the weights, M x C / group x kernel.
        stride: The stride along every axis.
        threads: The number of threads.
        ours_s8_us, ours_u8_us: QuantizedConv with symmetric weights and with a zero point of the weights, from codes.
        direct_us, winograd_us: QuantizedConv with symmetric weights by the direct form and by Winograd's algorithm.
        ours_float_us: DynamicQuantizeLinear and QuantizedConv, from float32.
        two_terms_us: TwoTermQuantize and QuantizedConv, from float32.
        words_us: WordConv, from float32.
        integer_s8_us, integer_u8_us: ConvInteger with int8 and uint8 weights, Cast, Mul and Add, from codes.
        float_us: Conv of float32.
        openvino_us: Conv of float32 in OpenVINO, if it is installed.
        static_us: QLinearConv, from codes to codes.
        integer_s8_ratio, integer_u8_ratio: integer_s8_us / ours_s8_us and integer_u8_us / ours_u8_us.
        float_ratio, two_terms_ratio, words_ratio: float_us / ours_float_us, / two_terms_us and / words_us.
        openvino_ratio: openvino_us / ours_float_us.
        static_ratio: static_us / ours_s8_us.
        winograd_ratio: direct_us / winograd_us.
    """

    name: str
    input: tuple[int, ...]
    weights: tuple[int, ...]
    stride: int
    threads: int
    ours_s8_us: float
    ours_u8_us: float
    direct_us: float | None
    winograd_us: float | None
    ours_float_us: float
    two_terms_us: float
    words_us: float
    integer_s8_us: float | None
    integer_u8_us: float | None
    float_us: float | None
    openvino_us: float | None
    static_us: float | None
    integer_s8_ratio: float | None
    integer_u8_ratio: float | None
    float_ratio: float | None
    two_terms_ratio: float | None
    words_ratio: float | None
    openvino_ratio: float | None
    static_ratio: float | None
    winograd_ratio: float | None

    @property
    def float_rate(self) -> float:
        """The multiply-adds of Conv of float32 in a nanosecond; 0 if it is not available."""
        return 0 if self.float_us is None else CONVOLUTIONS[self.name].multiply_adds / self.float_us / 1e3


@dataclass(frozen=True)
class ConvolutionBench:
    """The timings of all convolutions.

    Attributes:
        timings: One per convolution and number of threads.
        means: The geometric means of their ratios.
        notes: Forms that are not available, or give wrong results on this machine.
    """

    timings: list[ConvolutionTiming]
    means: list[Mean]
    notes: list[str]


def bench_convolutions(
    settings: Settings, names: Sequence[str] = tuple(CONVOLUTIONS), *, track: Track = iter
) -> ConvolutionBench:
    """Times convolutions.

    Args:
        settings: How to time.
        names: Names from :data:`CONVOLUTIONS`.
        track: Shows the progress.

    Raises:
        DynqError: A name does not exist, the operators cannot be registered, or our result is wrong.
    """
    for name in names:
        if name not in CONVOLUTIONS:
            raise DynqError(f"there is no convolution {name!r}, expected one of {', '.join(CONVOLUTIONS)}")
    check_backend(settings.backend)
    cases = [Case(CONVOLUTIONS[name], threads) for threads in settings.threads for name in names]
    timings: list[ConvolutionTiming] = []
    notes: dict[str, None] = {}  # each note once, in the order in which they arose
    for case in track(cases):
        timing, problems = _time(case, settings)
        timings.append(timing)
        notes.update(dict.fromkeys(problems))
    return ConvolutionBench(timings, list(_means(timings)), list(notes))


def _time(case: Case, settings: Settings) -> tuple[ConvolutionTiming, list[str]]:
    rivals, notes = contenders(case, settings)
    samples = interleave(list(rivals.values()), settings, case.threads)
    us = {name: float(np.median(each)) / 1e3 for name, each in zip(rivals, samples, strict=True)}

    def ratio(name: str, ours: str) -> float | None:
        return us[name] / us[ours] if name in us else None

    timing = ConvolutionTiming(
        case.convolution.name,
        case.convolution.input,
        case.convolution.weights,
        case.convolution.stride,
        case.threads,
        ours_s8_us=us["ort_dynq s8"],
        ours_u8_us=us["ort_dynq u8"],
        direct_us=us.get("direct"),
        winograd_us=us.get("Winograd"),
        ours_float_us=us["ort_dynq float"],
        two_terms_us=us["two terms"],
        words_us=us["words"],
        integer_s8_us=us.get("ConvInteger s8"),
        integer_u8_us=us.get("ConvInteger u8"),
        float_us=us.get("Conv"),
        openvino_us=us.get("OpenVINO"),
        static_us=us.get("QLinearConv"),
        integer_s8_ratio=ratio("ConvInteger s8", "ort_dynq s8"),
        integer_u8_ratio=ratio("ConvInteger u8", "ort_dynq u8"),
        float_ratio=ratio("Conv", "ort_dynq float"),
        two_terms_ratio=ratio("Conv", "two terms"),
        words_ratio=ratio("Conv", "words"),
        openvino_ratio=ratio("OpenVINO", "ort_dynq float"),
        static_ratio=ratio("QLinearConv", "ort_dynq s8"),
        winograd_ratio=us["direct"] / us["Winograd"] if "direct" in us else None,
    )
    return timing, notes


def _means(timings: Sequence[ConvolutionTiming]) -> Iterator[Mean]:
    ratios: tuple[tuple[str, Callable[[ConvolutionTiming], float | None]], ...] = (
        ("ConvInteger / ort_dynq, s8", lambda each: each.integer_s8_ratio),
        ("ConvInteger / ort_dynq, u8", lambda each: each.integer_u8_ratio),
        ("Conv / ort_dynq from float32", lambda each: each.float_ratio),
        ("Conv / ort_dynq, two terms", lambda each: each.two_terms_ratio),
        ("Conv / ort_dynq, words", lambda each: each.words_ratio),
        ("OpenVINO / ort_dynq from float32", lambda each: each.openvino_ratio),
        ("QLinearConv / ort_dynq", lambda each: each.static_ratio),
    )
    for kind, depthwise in (("dense", False), ("depthwise", True)):
        chosen = [each for each in timings if CONVOLUTIONS[each.name].depthwise == depthwise]
        for name, ratio in ratios:
            yield from means(f"{name}, {kind}", chosen, ratio)
