"""Times the decoder of a folder of onnxruntime-genai: prompts, and single tokens after a context; and counts the tokens
that stay the same.

The original runs in stock ONNX Runtime and the rewritten decoder with the plugin; they take turns. Both run without
onnxruntime-genai, on inputs like its own: keys and values of new tokens are appended in place if the configuration says
so. One sequence is generated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import storage
from ...errors import DynqError
from ...files import temporary_folder
from ...inputs import Array
from ...rewriter import Report
from ..genai import rewrite_folder
from ..genai.decoding import GENERATED, MAX_TOKENS, Decoder, GreedyTokens, alike, greedy_tokens
from ..genai.feeds import decoder_feeds, shared_outputs
from ..genai.folder import Folder, open_folder
from ..genai.text import read_tokens
from ..measuring.plain import plain
from ..measuring.progress import Track, tracked
from ..measuring.sessions import open_session
from ..measuring.timing import Latency, Settings, aligned, check_backend, interleave, latency, session_contender, speed
from .opening import Opening, measure_opening

if TYPE_CHECKING:
    from ...backends.options import Backend

PROMPTS = (16, 128, 512, 2048)
CONTEXTS = (128,)


@dataclass(frozen=True)
class GenerationCase:
    """One setting in which both decoders are timed.

    Attributes:
        tokens: The number of new tokens: those of a prompt, or one.
        context: The number of tokens before them; 0 for a prompt.
        threads: The number of intra-op threads.
    """

    tokens: int
    context: int
    threads: int

    @property
    def is_prompt(self) -> bool:
        """Whether the tokens are a prompt; otherwise one token is decoded."""
        return not self.context

    def __str__(self) -> str:
        what = f"prompt of {self.tokens}" if self.is_prompt else f"decode after {self.context}"
        return f"{what}, {self.threads} thread{'s' if self.threads > 1 else ''}"


@dataclass(frozen=True)
class GenerationTiming:
    """The times of one case.

    Attributes:
        case: The case.
        stock, ours: The latency of the original and of the rewritten decoder.
        ratio: The median of `stock` / the median of `ours`; None if `busy`.
        stock_rate, ours_rate: Tokens a second, from the medians.
        same_tokens: Of a prompt, the tokens with the same most probable successor in both decoders. Of a context,
            the tokens that both generate after it greedily, before the first different one.
        of_tokens: How many tokens there are. Both are None if the decoder does not take tokens, or fails on these.
        busy: That the machine is too busy to compare the medians; empty if it is not.
    """

    case: GenerationCase
    stock: Latency
    ours: Latency
    ratio: float | None
    stock_rate: float
    ours_rate: float
    same_tokens: int | None = None
    of_tokens: int | None = None
    busy: str = ""


@dataclass(frozen=True)
class DecoderFile:
    """One of both decoders as a file.

    Attributes:
        bytes: The size of the file and of its weights.
        opening: The time and the private memory that it takes to open a session, in a new process.
    """

    bytes: int
    opening: Opening


@dataclass(frozen=True)
class GenerationBench:
    """The comparison of a decoder with its rewritten form.

    Attributes:
        folder: The path of the folder.
        rewritten: The path of the rewritten folder; empty if it was rewritten here.
        timings: One for each case.
        stock, ours: The files.
        greedy: The greedy tokens that both have in common with float activations; None if they are not measured.
        greedy_problem: Why they are not measured; empty if they are.
        rewrite_report: What the rewriter did; None if the rewritten folder was given.
    """

    folder: str
    rewritten: str
    timings: tuple[GenerationTiming, ...]
    stock: DecoderFile
    ours: DecoderFile
    greedy: GreedyTokens | None
    greedy_problem: str
    rewrite_report: Report | None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        names = ("folder", "rewritten", "timings", "stock", "ours", "greedy", "greedy_problem")
        report = None if self.rewrite_report is None else self.rewrite_report.to_dict()
        return {name: plain(getattr(self, name)) for name in names} | {"rewrite_report": report}


def bench_generation(
    path: str | Path,
    settings: Settings,
    *,
    rewritten: str | Path | None = None,
    prompts: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    text: str | Path | None = None,
    seed: int = 0,
    track: Track = iter,
) -> GenerationBench:
    """Times the decoder of a folder in stock ONNX Runtime, and the rewritten decoder with the plugin.

    Args:
        path: The folder of the original.
        settings: How to rewrite and to time.
        rewritten: A folder that was made from it; None to rewrite it into a temporary one.
        prompts: Lengths of prompts; None for those of :data:`PROMPTS` that the context length of the model allows.
        contexts: Numbers of tokens before a decoded one; None for :data:`CONTEXTS`, or the longest one that is allowed.
        text: A text, see :func:`ort_dynq.genai.text.read_tokens`: its first tokens are compared; None for random ones.
        seed: The seed of the generated inputs.
        track: Shows the progress.

    Raises:
        DynqError: A folder is not one of onnxruntime-genai, a length is too large, or a decoder does not run.
    """
    check_backend(settings.backend)
    folder = open_folder(path)
    lengths = _lengths(folder, prompts, contexts)
    tokens = _tokens(folder, text, max(MAX_TOKENS, *(new + context for new, context in lengths)), seed)
    cases = [GenerationCase(*each, threads) for threads in settings.threads for each in lengths]
    with temporary_folder() as temporary:
        if rewritten is None:
            found = rewrite_folder(path, **settings.arguments)
            report = found.results[decoder_of(folder).name].report
            found.save(Path(temporary) / "rewritten")
            ours = open_folder(Path(temporary) / "rewritten")
        else:
            ours, report = open_folder(rewritten), None
        same = _same_tokens(folder, ours, tokens, lengths, settings.backend, track)
        greedy, problem = _greedy_tokens(folder, ours, tokens, settings.backend, track)
        timings = [time_case(folder, ours, case, settings, seed) for case in track(cases)]
        timings = [_with_same_tokens(each, same) for each in timings]
        files = decoder_of(folder), decoder_of(ours)
        openings = measure_opening(*files, settings.backend)
        before, after = (DecoderFile(storage.size(file), each) for file, each in zip(files, openings, strict=True))
    return GenerationBench(str(path), str(rewritten or ""), tuple(timings), before, after, greedy, problem, report)


def decoder_of(folder: Folder) -> Path:
    """Returns the path of the decoder.

    Raises:
        DynqError: It is a pipeline of several models.
    """
    if folder.decoder is None:
        raise DynqError(f"the decoder of {folder.path} is a pipeline of several models, which cannot be timed")
    return folder.path / folder.decoder


def _lengths(folder: Folder, prompts: Sequence[int] | None, contexts: Sequence[int] | None) -> list[tuple[int, int]]:
    """Returns the numbers of new tokens and of tokens before them."""
    longest = folder.context_length
    for given in (*(prompts or ()), *(context + 1 for context in contexts or ())):
        if longest is not None and given > longest:
            raise DynqError(f"{given} tokens are more than the context length of {folder.path}, {longest}")
    if prompts is None:
        prompts = [each for each in PROMPTS if longest is None or each <= longest] or [longest or 1]
    if contexts is None:
        contexts = CONTEXTS if longest is None else sorted({min(each, longest - 1) for each in CONTEXTS})
    return [*((each, 0) for each in prompts), *((1, each) for each in contexts if each)]


def _tokens(folder: Folder, text: str | Path | None, count: int, seed: int) -> Array:
    """Returns the tokens that are compared, int64 [count]."""
    if text is not None:
        tokens = read_tokens(folder, text)
        if not len(tokens):
            raise DynqError(f"{text} has no tokens; give a longer text")
        return np.resize(tokens, count)  # a short text is repeated
    size = folder.config["model"].get("vocab_size")
    size = size if isinstance(size, int) and size > 0 else 1  # without a size, the feeds of the timings are an error
    return np.random.default_rng(seed).integers(0, size, count)


def _same_tokens(
    folder: Folder, ours: Folder, tokens: Array, lengths: Sequence[tuple[int, int]], backend: Backend, track: Track
) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns how many tokens are the same in both decoders, and of how many, by the new tokens and those before them.

    It is empty if the decoder does not take tokens: that of a model of images and text may take embeddings. It ends
    before the first ones that a decoder fails on: more tokens are generated than timed.
    """
    found, longest = dict[tuple[int, int], tuple[int, int]](), folder.context_length
    try:
        first, second = (
            Decoder(folder, decoder_of(each), role, backend=given)
            for each, role, given in ((folder, "A", None), (ours, "B", backend))
        )
        texts = [f"same tokens, {new} after {context}" for new, context in lengths]
        for new, context in tracked(track, lengths, texts):
            if context:
                count = GENERATED if longest is None else min(GENERATED, longest - context)
                a, b = (decoder.generate(tokens[None, :context], count) for decoder in (first, second))
                found[new, context] = int(alike(a, b)[0]), count
            else:
                a, b = (decoder.logits(tokens[None, :new])[0].argmax(-1) for decoder in (first, second))
                found[new, context] = int((a == b).sum()), new
    except DynqError:
        return found
    return found


def _greedy_tokens(
    folder: Folder, ours: Folder, tokens: Array, backend: Backend, track: Track
) -> tuple[GreedyTokens | None, str]:
    """Returns the tokens, or why they are not measured: a decoder may be timed that does not generate tokens."""
    try:
        found = greedy_tokens(folder, decoder_of(folder), decoder_of(ours), tokens, backend=backend, track=track)
    except DynqError as error:
        return None, str(error)
    return found, "" if found else "ONNX Runtime has no float activations for this decoder"


def _with_same_tokens(timing: GenerationTiming, same: Mapping[tuple[int, int], tuple[int, int]]) -> GenerationTiming:
    count, of_all = same.get((timing.case.tokens, timing.case.context), (None, None))
    return replace(timing, same_tokens=count, of_tokens=of_all)


def time_case(folder: Folder, ours: Folder, case: GenerationCase, settings: Settings, seed: int) -> GenerationTiming:
    """Times the decoders of a folder and of the one that was made from it.

    Raises:
        DynqError: A decoder is a pipeline of several models, or does not run.
    """
    session = open_session(decoder_of(folder), "A")
    inputs, outputs = session.get_inputs(), session.get_outputs()
    del session
    in_place = shared_outputs(folder, inputs, outputs)
    feeds = decoder_feeds(folder, inputs, tokens=case.tokens, past=case.context, in_place=bool(in_place), seed=seed)
    feeds = {name: aligned(array) for name, array in feeds.items()}
    contenders = [
        session_contender(str(model), model, feeds, case.threads, backend=backend, in_place=in_place)
        for model, backend in ((decoder_of(folder), None), (decoder_of(ours), settings.backend))
    ]
    first, second = map(latency, interleave(contenders, settings, case.threads))
    rate, our_rate = (case.tokens / each.median_ms * 1e3 for each in (first, second))
    found = speed(first, second)
    return GenerationTiming(case, first, second, found.ratio, rate, our_rate, busy=found.busy)
