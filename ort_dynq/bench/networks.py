"""Times transformer networks with seeded weights against stock ONNX Runtime."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..errors import DynqError
from ..rewriter import rewrite
from . import transformers
from .models import ModelTiming, time_model
from .timing import Settings, Track, check_backend

TOKENS = (1, 128)


@dataclass(frozen=True)
class Sizes:
    """The sizes of the networks, as for :func:`ort_dynq.bench.transformers.encoder`."""

    layers: int = 6
    hidden: int = 768
    heads: int = 12


@dataclass(frozen=True)
class NetworkTiming(ModelTiming):
    """The timing of one transformer network. Its name is the form of its linear layers.

    Attributes:
        network: encoder or decoder.
        tokens: The number of tokens in the encoder's input, or in the decoder's past.
    """

    network: str
    tokens: int


@dataclass(frozen=True)
class _Case:
    network: str
    form: str

    def __str__(self) -> str:
        return f"{self.network}, {self.form}"


def bench_networks(
    settings: Settings,
    *,
    names: Sequence[str] = tuple(transformers.NETWORKS),
    forms: Sequence[str] = tuple(transformers.FORMS),
    tokens: Sequence[int] = TOKENS,
    sizes: Sizes = Sizes(),
    track: Track = iter,
) -> list[NetworkTiming]:
    """Times transformer networks, one at a time: the two sessions of one take half a gigabyte each.

    Args:
        settings: How to time.
        names: The networks: encoder, decoder.
        forms: Names from :data:`ort_dynq.bench.transformers.FORMS`.
        tokens: Numbers of tokens; each network is timed with each of them.
        sizes: The sizes of the networks.
        track: Shows the progress.

    Raises:
        DynqError: A network or form does not exist, the sizes do not fit together, the operators cannot be registered,
            or a rewritten network does not run.
    """
    for kind, given, known in (("network", names, transformers.NETWORKS), ("form", forms, transformers.FORMS)):
        for name in given:
            if name not in known:
                raise DynqError(f"there is no {kind} {name!r}, expected one of {', '.join(known)}")
    check_backend(settings.backend)
    cases = [_Case(name, form) for name in names for form in forms]
    timings = []
    for case in track(cases):
        timings += _time(case, settings, tokens, sizes)
        gc.collect()  # the nodes and values of an onnx_ir Model form cycles, which keep its weights
    return timings


def _time(case: _Case, settings: Settings, tokens: Sequence[int], sizes: Sizes) -> list[NetworkTiming]:
    model = transformers.NETWORKS[case.network](case.form, **asdict(sizes))
    result = rewrite(model, exact=settings.exact)
    timings = []
    for count in tokens:
        feeds = transformers.feeds(model, count)
        for threads in settings.threads:
            timing = time_model(case.form, model, result.model, result.report, feeds, settings, threads)
            timings.append(NetworkTiming(**vars(timing), network=case.network, tokens=count))
    return timings
