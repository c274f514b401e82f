"""Measures a decoder with int8 codes in its cache of keys and values, beside the same decoder with a cache of floats.

The decoder is the one of cached_decoder.py. A folder has its two models, ``float.onnx`` and ``int8.onnx``, and
``held_out.npy``, the bytes of text that it was not trained with. Each form runs in ONNX Runtime at its default level:

* Speed: the fastest step from a context of random keys and values to the next token. A step also makes the new cache:
  the old one and the new token's part.
* Memory: the bytes of the cache for each token.
* Agreement with the cache of floats, on 32 prompts of 64 tokens: the share of tokens with the same
  most probable successor, and the signal-to-noise ratio of the logits. The prompts are continued by the most
  probable token, 64 times: how many tokens are the same before the first different one, in the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from ort_dynq.errors import DynqError
from ort_dynq.files import replacing_folder
from ort_dynq.inputs import Array
from ort_dynq.rewriter import rewrite
from ort_dynq.signals import Agreement, Noise
from ort_dynq.tools.genai.decoding import alike
from ort_dynq.tools.measuring.plain import plain
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.sessions import open_session
from ort_dynq.tools.measuring.timing import Settings, interleave, session_contender

if TYPE_CHECKING:
    import onnxruntime as ort

    from ort_dynq.storage import Model

FLOAT, CODES, HELD_OUT = "float.onnx", "int8.onnx", "held_out.npy"
STEPS = 600
CONTEXTS = (256, 1024, 4096)
PROMPTS, PROMPT, GENERATED = 32, 64, 64


@dataclass(frozen=True)
class Form:
    """A form of the decoder.

    Attributes:
        name: What it is.
        model: The model.
        is_ours: Whether it needs ort_dynq's operators.
    """

    name: str
    model: Model
    is_ours: bool

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Decoding:
    """One form, measured.

    Attributes:
        name: What it is.
        tokens_per_second: By the context.
        cache_bytes: Of one token.
        snr_db, agreement, generated: The distances to the cache of floats; None for that form.
    """

    name: str
    tokens_per_second: Mapping[int, float]
    cache_bytes: int
    snr_db: float | None = None
    agreement: float | None = None
    generated: float | None = None


@dataclass(frozen=True)
class CacheBench:
    """All forms, measured.

    Attributes:
        folder: The folder of the models.
        forms: The forms, the cache of floats first.
    """

    folder: str
    forms: Sequence[Decoding]

    def to_dict(self) -> dict[str, Any]:
        """Returns a JSON-compatible form."""
        result: dict[str, Any] = plain(asdict(self))
        return result


def write(folder: Path, *, steps: int = STEPS, track: Track = iter) -> None:
    """Trains the decoder and exports it with both caches.

    Raises:
        DynqError: torch or onnxscript is missing.
    """
    try:
        import onnxscript
        import torch
    except ModuleNotFoundError as error:
        raise DynqError(f"{error.name} not found; pip install torch onnxscript") from error
    del onnxscript
    from bench.cached_decoder import export, held_out, train

    torch.set_num_threads(1)
    with replacing_folder(folder) as new:
        model = train(steps, track)
        for name in (FLOAT, CODES):
            onnx.save(export(model, is_float=name == FLOAT), new / name)
        np.save(new / HELD_OUT, held_out())


def bench_cache(
    folder: Path, settings: Settings, *, contexts: Sequence[int] = CONTEXTS, track: Track = iter
) -> CacheBench:
    """Measures the forms of a decoder.

    Args:
        folder: A folder of :func:`write`.
        settings: How to time; the first number of threads counts.
        contexts: Tokens in the cache.
        track: Shows the progress.

    Raises:
        DynqError: The folder is not one of :func:`write`, or a model does not run.
    """
    missing = [name for name in (FLOAT, CODES, HELD_OUT) if not (folder / name).is_file()]
    if missing:
        raise DynqError(f"{folder} has no {missing[0]}; remove it, and the command makes it again")
    floats, codes = folder / FLOAT, folder / CODES
    forms = [
        Form("floats", floats, is_ours=False),
        Form("floats, rewrite --fuse", rewrite(floats, fuse=True).model, is_ours=True),
        Form("codes", codes, is_ours=False),
        Form("codes, rewrite", rewrite(codes).model, is_ours=True),
        Form("codes, rewrite --fuse", rewrite(codes, fuse=True).model, is_ours=True),
    ]
    sessions = [
        open_session(form.model, form.name, backend=settings.backend if form.is_ours else None, optimize=True)
        for form in forms
    ]
    times = {context: _time(forms, sessions, context, settings) for context in track(contexts)}
    text = np.load(folder / HELD_OUT).astype(np.int64)
    starts = np.linspace(0, len(text) - PROMPT, PROMPTS).astype(int)
    texts = [text[None, start : start + PROMPT] for start in starts]
    answers = [_answers(session, texts) for session in track(sessions)]
    found = []
    for i, form in enumerate(forms):
        agreement, noise = Agreement(is_argmax=True), Noise()
        agreement.add(answers[0][0], answers[i][0])
        noise.add(answers[0][0], answers[i][0])
        is_reference = i == 0
        found.append(
            Decoding(
                form.name,
                {context: 1e9 / times[context][i] for context in contexts},
                sum(array.nbytes for array in _cache(sessions[i], 1).values()),
                None if is_reference else noise.decibels,
                None if is_reference else agreement.share,
                None if is_reference else float(alike(answers[0][1], answers[i][1]).mean()),
            )
        )
    return CacheBench(str(folder), tuple(found))


def _time(
    forms: Sequence[Form], sessions: Sequence[ort.InferenceSession], context: int, settings: Settings
) -> list[float]:
    """Returns the nanoseconds of one token after a context, by form."""
    threads = settings.threads[0]
    contenders = [
        session_contender(
            form.name,
            form.model,
            {"tokens": np.array([[101]]), **_cache(session, context)},
            threads,
            backend=settings.backend if form.is_ours else None,
        )
        for form, session in zip(forms, sessions, strict=True)
    ]
    return [float(samples.min()) for samples in interleave(contenders, settings, threads)]


def _cache(session: ort.InferenceSession, context: int) -> dict[str, Array]:
    """Returns a cache of random keys and values."""
    rng = np.random.default_rng(0)
    result = {}
    for each in session.get_inputs()[1:]:
        shape = (*each.shape[:2], context, each.shape[3])
        if "scale" in each.name:
            result[each.name] = rng.uniform(0.01, 0.02, shape).astype(np.float32)
        elif each.type == "tensor(int8)":
            result[each.name] = rng.integers(-127, 128, shape, np.int8)
        else:
            result[each.name] = rng.standard_normal(shape, np.float32)
    return result


def _answers(session: ort.InferenceSession, texts: Sequence[Array]) -> tuple[Array, Array]:
    """Returns the logits of prompts, [prompts, tokens, vocabulary], and their continuations, [prompts, tokens]."""
    names = [each.name for each in session.get_inputs()[1:]]
    logits, continued = [], []
    for text in texts:
        feeds = {"tokens": text, **_cache(session, 0)}
        chosen = []
        for i in range(GENERATED):
            first, *cache = session.run(None, feeds)
            if i == 0:
                logits.append(first[0])
            chosen.append(int(first[0, -1].argmax()))
            feeds = {"tokens": np.array([chosen[-1:]]), **dict(zip(names, cache, strict=True))}
        continued.append(chosen)
    return np.stack(logits), np.array(continued)
