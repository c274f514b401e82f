"""Runs decoders on tokens: how well they predict a text, and which tokens they generate.

* Perplexity: windows of 512 tokens slide over the text by 256. Every token is predicted once, all but the first 511
  from at least 256 tokens before it. exp(-mean(log p)), in float64. Models of shorter contexts have shorter windows.
* Agreement: the share of tokens of the text that have the same most probable successor in both models.
* Generated tokens: parts of the text are continued by the most probable token, with cached keys and values. How many
  tokens are the same before the first different one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DynqError
from ...inputs import Array
from ...signals import Agreement, Noise
from ..measuring.plain import plain
from ..measuring.progress import Track, tracked
from ..measuring.sessions import SessionError, open_session, run
from .feeds import cache_outputs, decoder_feeds, input_name
from .float_activations import FLOAT_WEIGHTS, with_float_activations
from .folder import Folder

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...storage import Model

WINDOW, STEP = 512, 256
PROMPTS, PROMPT, GENERATED = 16, 64, 32
MAX_TOKENS = 2048
_LOGITS = "logits"


@dataclass(frozen=True)
class Window:
    """A part of a text that a model reads at once.

    Attributes:
        start, end: The part.
        first: The first of its tokens that no earlier window predicts.
    """

    start: int
    end: int
    first: int

    def __str__(self) -> str:
        return f"tokens {self.first} to {self.end}"


def windows(count: int, window: int = WINDOW, step: int = STEP) -> Iterator[Window]:
    """Yields the windows of a text of so many tokens."""
    first = 1  # nothing predicts the first token
    for start in range(0, count, step):
        end = min(start + window, count)
        if end > first:
            yield Window(start, end, first)
            first = end


def prompts(tokens: Array, count: int = PROMPTS, length: int = PROMPT) -> Array:
    """Returns int64 [prompts, tokens]: parts of a text at equal distances."""
    starts = np.linspace(0, len(tokens) - length, count).astype(int)
    return np.stack([tokens[start : start + length] for start in starts])


def alike(a: Array, b: Array) -> Array:
    """Returns for each row how many elements are equal before the first different one."""
    return np.asarray(np.cumprod(a == b, axis=1).sum(1))


def surprise(logits: Array, targets: Array) -> float:
    """Returns -sum(log p) of tokens, in float64.

    Args:
        logits: [tokens, vocabulary].
        targets: The tokens that occur, [tokens].
    """
    exact = logits.astype(np.float64)
    shifted = exact - exact.max(-1, keepdims=True)
    of_targets = np.take_along_axis(shifted, targets[:, None], -1)[:, 0]
    return float((np.log(np.exp(shifted).sum(-1)) - of_targets).sum())


class Decoder:
    """A decoder in a session at the default optimization level."""

    def __init__(
        self,
        folder: Folder,
        model: Model,
        role: str,
        *,
        backend: Backend | None = None,
        entries: Mapping[str, str] | None = None,
    ) -> None:
        """Opens the session.

        Args:
            folder: The folder of the model, or of the one that it was made from.
            model: The model.
            role: Its name in error messages: A or B.
            backend: How the session gets ort_dynq's operators; None for stock ONNX Runtime.
            entries: Further entries of the session's configuration.

        Raises:
            DynqError: The model does not load, or is no decoder that takes tokens and returns logits.
        """
        self._folder, self._role = folder, role
        try:
            self._session = open_session(model, role, backend=backend, optimize=True, entries=entries)
        except SessionError as error:
            raise DynqError(f"{role} does not load with the plugin: {error}") from error
        self._inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        self._caches = cache_outputs(folder, self._inputs, outputs)
        self._ids = input_name(folder, "input_ids")
        if not any(each.name == self._ids for each in self._inputs) or _LOGITS not in {each.name for each in outputs}:
            raise DynqError(f"{role} does not take {self._ids} and return {_LOGITS}, so it cannot be run on text")

    def logits(self, tokens: Array) -> Array:
        """Returns the logits of sequences without earlier tokens, float [sequences, tokens, vocabulary].

        Args:
            tokens: int64 [sequences, tokens].

        Raises:
            DynqError: The model does not run.
        """
        return self._run([_LOGITS], self._feeds(tokens, tokens.shape[1]))[0]

    def generate(self, tokens: Array, count: int) -> Array:
        """Returns the continuations of prompts by the most probable tokens, int64 [prompts, count].

        Args:
            tokens: The prompts, int64 [prompts, tokens].
            count: The number of new tokens.

        Raises:
            DynqError: The model does not run, or has no cache of keys and values.
        """
        if not self._caches:
            raise DynqError(f"{self._role} has no cache of keys and values, so it does not generate tokens")
        feeds, chosen = self._feeds(tokens, tokens.shape[1]), list[Array]()
        for _ in range(count):
            logits, *present = self._run([_LOGITS, *self._caches], feeds)
            chosen.append(logits[:, -1].argmax(-1))
            feeds = self._feeds(chosen[-1][:, None], tokens.shape[1] + len(chosen))
            feeds |= dict(zip(self._caches.values(), present, strict=True))
        return np.stack(chosen, axis=1)

    def _feeds(self, tokens: Array, length: int) -> dict[str, Array]:
        """Returns the inputs for new tokens, the last ones of a sequence of `length`; empty caches of earlier ones."""
        count, new = tokens.shape
        feeds = decoder_feeds(self._folder, self._inputs, tokens=new, past=length - new, is_empty=True)
        positions = input_name(self._folder, "position_ids")
        for name, value in feeds.items():  # one sequence
            is_stacked = name == positions and value.ndim == 3  # [3, batch, sequence]
            feeds[name] = np.repeat(value, count, axis=1 if is_stacked else 0)
        return feeds | {self._ids: tokens.astype(feeds[self._ids].dtype)}

    def _run(self, names: list[str], feeds: dict[str, Array]) -> list[Array]:
        try:
            return run(self._session, names, feeds)
        except SessionError as error:
            raise DynqError(f"{self._role} does not run: {error}") from error


@dataclass(frozen=True)
class GreedyTokens:
    """How many tokens two decoders generate as the original does with float activations.

    Attributes:
        stock, ours: The tokens before the first different one, in the mean over the prompts: of the original in stock
            ONNX Runtime, which may quantize activations, and of the decoder that was made from it.
        prompts, prompt, generated: The number of prompts, the tokens of each, and those that were generated.
    """

    stock: float
    ours: float
    prompts: int
    prompt: int
    generated: int


@dataclass(frozen=True)
class TextAccuracy:
    """How two decoders predict a text.

    Attributes:
        tokens: The number of tokens that were predicted.
        perplexity_before, perplexity_after: exp(-mean(log p)) of the tokens.
        agreement: The share of tokens with the same most probable successor, from 0 to 1.
        snr_db: The signal-to-noise ratio of the logits; infinite if they are equal; None if the original's are zeros.
        same_tokens: The tokens that are the same before the first different one, in the mean over the prompts.
        prompts, prompt, generated: The number of prompts, the tokens of each, and those that were generated.
    """

    tokens: int
    perplexity_before: float
    perplexity_after: float
    agreement: float
    snr_db: float | None
    same_tokens: float
    prompts: int
    prompt: int
    generated: int

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON. Infinities, which JSON does not have, become text."""
        return {key: plain(value) for key, value in vars(self).items()}


def lengths(folder: Folder, tokens: Array) -> tuple[int, int, int]:
    """Returns the tokens of a prompt, those that continue it, and those of a window.

    Args:
        folder: The folder.
        tokens: The text, int64 [tokens].

    Raises:
        DynqError: The text is too short.
    """
    longest = folder.context_length or WINDOW + GENERATED
    prompt = min(PROMPT, longest // 2, len(tokens) // 2)
    generated = min(GENERATED, longest - prompt)
    window = min(WINDOW, longest)
    if prompt < 1 or generated < 1 or window < 2:
        raise DynqError(f"the text has {len(tokens)} tokens, too few to predict; give a longer one")
    return prompt, generated, window


def greedy_tokens(
    folder: Folder,
    a: str | os.PathLike[str],
    b: Model,
    tokens: Array,
    *,
    backend: Backend = "native",
    track: Track = iter,
) -> GreedyTokens | None:
    """Counts the greedy tokens that two decoders have in common with float activations.

    Args:
        folder: The folder of A.
        a: The original.
        b: The decoder that was made from it.
        tokens: A text, int64 [tokens]. Its parts are the prompts.
        backend: How B gets the operators, see :func:`ort_dynq.register`.
        track: Shows the progress.

    Returns:
        The counts; None if ONNX Runtime has no float activations for A.

    Raises:
        DynqError: The text is too short, or a model does not run.
    """
    prompt, generated, _ = lengths(folder, tokens)
    reference = with_float_activations(a)
    if reference is None:
        return None
    starts = prompts(tokens, PROMPTS, prompt)
    decoders: list[tuple[Model, str, Backend | None, Mapping[str, str]]]
    decoders = [(reference, "A", None, FLOAT_WEIGHTS), (a, "A", None, {}), (b, "B", backend, {})]
    texts = [f"greedy tokens of {each}" for each in ("float activations", "stock", "ort_dynq")]
    expected, *others = (
        Decoder(folder, model, role, backend=given, entries=entries).generate(starts, generated)
        for model, role, given, entries in tracked(track, decoders, texts)
    )
    stock, ours = (float(alike(each, expected).mean()) for each in others)
    return GreedyTokens(stock, ours, len(starts), prompt, generated)


def compare_on_text(
    folder: Folder, a: Model, b: Model, tokens: Array, *, backend: Backend = "native", track: Track = iter
) -> TextAccuracy:
    """Compares a decoder B with A, which it was made from, on a text.

    Args:
        folder: The folder of A.
        a, b: The models. A runs in stock ONNX Runtime.
        tokens: The text, int64 [tokens]. Only the first 2048 are used.
        backend: How B gets the operators, see :func:`ort_dynq.register`.
        track: Shows the progress.

    Raises:
        DynqError: The text is too short, or a model does not run.
    """
    tokens = tokens[:MAX_TOKENS]
    prompt, generated, window = lengths(folder, tokens)
    first, second = Decoder(folder, a, "A"), Decoder(folder, b, "B", backend=backend)
    surprises, agreement, noise = [0.0, 0.0], Agreement(is_argmax=True), Noise()
    for each in track([*windows(len(tokens), window, max(1, window // 2))]):
        read = tokens[None, each.start : each.end]
        new = slice(each.first - each.start - 1, -1)
        pair = [decoder.logits(read)[0, new].astype(np.float32) for decoder in (first, second)]
        agreement.add(*pair)
        noise.add(*pair)
        for i, logits in enumerate(pair):
            surprises[i] += surprise(logits, tokens[each.first : each.end])
    starts = prompts(tokens, PROMPTS, prompt)
    texts = ["greedy tokens of the original", "greedy tokens of the new decoder"]
    same = alike(*(each.generate(starts, generated) for each in tracked(track, (first, second), texts)))
    count = len(tokens) - 1
    return TextAccuracy(
        tokens=count,
        perplexity_before=_perplexity(surprises[0] / count),
        perplexity_after=_perplexity(surprises[1] / count),
        agreement=agreement.share or 0.0,
        snr_db=noise.decibels,
        same_tokens=float(same.mean()),
        prompts=len(starts),
        prompt=prompt,
        generated=generated,
    )


def _perplexity(mean_surprise: float) -> float:
    try:
        return math.exp(mean_surprise)
    except OverflowError:
        return math.inf
