"""Measures how well a language model predicts text in several quantized forms: perplexity, agreement, generated tokens.

The model is the one of training.py. Each form runs in ONNX Runtime at its default optimization level, on the same
tokens:

* Perplexity: windows of 512 tokens slide over the text by 256. Every token is predicted once, all but the first 511
  from at least 256 tokens before it. exp(-mean(log p)), in float64.
* Distances to the float model, and to the model with the same weights that computes with floats (MatMulNBits at
  level 0): the share of tokens with the same most probable successor, and the signal-to-noise ratio of the logits.
* Generation: 64 prompts of 64 tokens are continued by the most probable token, 64 times, with cached keys and values.
  How many tokens are the same before the first different one, in the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ort_dynq import quantize
from ort_dynq.errors import DynqError
from ort_dynq.genai import Folder, open_folder
from ort_dynq.inputs import Array
from ort_dynq.rewriter import Result, rewrite
from ort_dynq.signals import Agreement, Noise
from ort_dynq.tools.genai.decoding import STEP, WINDOW, Decoder, Window, alike, prompts, surprise, windows
from ort_dynq.tools.measuring.plain import plain
from ort_dynq.tools.measuring.progress import Track

from .training import BLOCKS, FLOAT32, HELD_OUT, int4_folder

if TYPE_CHECKING:
    from ort_dynq.backends.options import Backend
    from ort_dynq.storage import Model

PROMPTS, PROMPT, GENERATED = 64, 64, 64
FLOAT = "float32"
_PRODUCTS = ("MatMul", "MatMulNBits")


@dataclass(frozen=True)
class Form:
    """One form of the model.

    Attributes:
        name: What it is.
        block: The weights that share a scale; None if it has no blocks.
        make: Returns the model, or the result of the rewriter.
        same_weights: The name of the form that multiplies the same weights by floats; None if there is none.
    """

    name: str
    block: int | None
    make: Callable[[], Model | Result]
    same_weights: str | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Distance:
    """How far a form is from another one.

    Attributes:
        agreement: The share of tokens with the same most probable successor, from 0 to 1.
        snr_db: The signal-to-noise ratio of the logits; infinite if they are equal.
        generated: The tokens that are the same before the first different one, in the mean over the prompts.
    """

    agreement: float
    snr_db: float
    generated: float


@dataclass(frozen=True)
class FormAccuracy:
    """How well one form predicts.

    Attributes:
        name, block: See :class:`Form`.
        products: How many products with weights the rewriter or the quantizer converted; None for a model of ONNX
            Runtime.
        of_products: How many there are; None for a model of ONNX Runtime.
        perplexity: The perplexity of a token; None if it was not measured.
        to_float, to_same_weights: The distances; None for the form itself, and if it was not measured.
        problem: Why it was not measured; empty if it was.
    """

    name: str
    block: int | None
    products: int | None = None
    of_products: int | None = None
    perplexity: float | None = None
    to_float: Distance | None = None
    to_same_weights: Distance | None = None
    problem: str = ""


@dataclass(frozen=True)
class PerplexityBench:
    """The accuracy of all forms.

    Attributes:
        folder: The folder of the model.
        tokens: The number of tokens that were predicted.
        forms: The forms, float first.
    """

    folder: str
    tokens: int
    forms: tuple[FormAccuracy, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON. Infinities, which JSON does not have, become text."""
        return {key: plain(value) for key, value in asdict(self).items()}


@dataclass
class _Distances:
    """A distance while it is measured."""

    agreement: Agreement = field(default_factory=lambda: Agreement(is_argmax=True))
    noise: Noise = field(default_factory=Noise)
    generated: float = 0.0

    def add(self, a: Array, b: Array) -> None:
        self.agreement.add(a, b)
        self.noise.add(a, b)

    def result(self) -> Distance:
        return Distance(self.agreement.share or 0.0, self.noise.decibels or 0.0, self.generated)


@dataclass
class _Candidate:
    """A form while it is measured. It has a decoder unless it has a problem."""

    form: Form
    decoder: Decoder | None = None
    products: int | None = None
    of_products: int | None = None
    problem: str = ""
    surprise: float = 0.0  # -sum(log p)
    distances: dict[str, _Distances] = field(default_factory=dict)  # by the name of the other form

    def __str__(self) -> str:
        return self.form.name

    @property
    def opened(self) -> Decoder:
        assert self.decoder is not None
        return self.decoder

    def result(self, tokens: int) -> FormAccuracy:
        form = self.form
        found = {name: each.result() for name, each in self.distances.items()}
        return FormAccuracy(
            *(form.name, form.block, self.products, self.of_products),
            perplexity=None if self.problem else math.exp(self.surprise / tokens),
            to_float=found.get(FLOAT),
            to_same_weights=found.get(form.same_weights or ""),
            problem=self.problem,
        )


def forms_of(root: Path) -> list[Form]:
    """Returns the forms of the model in a folder of :func:`bench.training.train`, float first."""
    floats = root / FLOAT32 / "model.onnx"
    forms = [
        Form(FLOAT, None, lambda: floats),
        Form("ort_dynq.quantize, int8", None, partial(quantize, floats)),
    ]
    for block in BLOCKS:
        level_0, level_4 = (root / int4_folder(block, level) / "model.onnx" for level in (0, 4))
        stock = f"MatMulNBits, level 0, block {block}"
        forms += [
            Form(stock, block, partial(Path, level_0)),
            Form(f"MatMulNBits, level 4, block {block}", block, partial(Path, level_4), stock),
            Form(f"rewritten level 4, block {block}", block, partial(rewrite, level_4), stock),
            Form(
                f"rewritten level 0, two-term, block {block}",
                block,
                partial(rewrite, level_0, weights_only="two-term"),
                stock,
            ),
            Form(
                f"ort_dynq.quantize, int4, group {block}",
                block,
                partial(quantize, floats, weights="int4", group=block),
            ),
        ]
    return forms


def bench_perplexity(
    root: Path,
    *,
    forms: Sequence[Form] | None = None,
    most_tokens: int | None = None,
    backend: Backend = "native",
    track: Track = iter,
) -> PerplexityBench:
    """Measures the forms of a model, window by window.

    Args:
        root: A folder of :func:`bench.training.train`.
        forms: The forms, float first; None for those of :func:`forms_of`.
        most_tokens: Only so many tokens of the text are used, at least 512; None for all.
        backend: See :func:`ort_dynq.register`.
        track: Shows the progress.

    Raises:
        DynqError: The folder is not one of :func:`bench.training.train`, the text is too short, or a model does not
            run.
    """
    if not (root / HELD_OUT).is_file():
        raise DynqError(f"{root} has no {HELD_OUT}; make the folder by `python tests/bench train {root}`")
    tokens = np.load(root / HELD_OUT)[:most_tokens]
    if len(tokens) < WINDOW:
        raise DynqError(f"the text has {len(tokens)} tokens, expected at least {WINDOW}")
    folder = open_folder(root / FLOAT32)
    candidates = [_open(form, folder, backend) for form in track(forms or forms_of(root))]
    usable = [each for each in candidates if not each.problem]
    for window in track([*windows(len(tokens), WINDOW, STEP)]):
        _predict(usable, tokens, window)
    starts = prompts(tokens, PROMPTS, PROMPT)
    generated = {each.form.name: each.opened.generate(starts, GENERATED) for each in track(usable)}
    for each in usable:
        for name, distances in each.distances.items():
            distances.generated = float(alike(generated[name], generated[each.form.name]).mean())
    count = len(tokens) - 1
    return PerplexityBench(str(root), count, tuple(each.result(count) for each in candidates))


def _open(form: Form, folder: Folder, backend: Backend) -> _Candidate:
    """Makes a form. One in which nothing was converted has a problem: it would repeat the figures of another one."""
    made = form.make()
    found = _Candidate(form)
    if isinstance(made, Result):
        products = [each for each in made.report.findings if each.op_type in _PRODUCTS]
        found.of_products = len(products)
        found.products = sum(each.operator is not None for each in products)
        if not found.products:
            found.problem = f"nothing was converted: {made.report.summary}"
            return found
    is_result = isinstance(made, Result)
    model = made.model if isinstance(made, Result) else made
    found.decoder = Decoder(folder, model, form.name, backend=backend if is_result else None)
    found.distances = {name: _Distances() for name in (FLOAT, form.same_weights) if name and name != form.name}
    return found


def _predict(candidates: Sequence[_Candidate], tokens: Array, window: Window) -> None:
    """Runs all forms on one window of the text."""
    of_all: dict[str, Array] = {}
    for each in candidates:
        logits = each.opened.logits(tokens[None, window.start : window.end])
        logits = logits[0, window.first - window.start - 1 : -1]
        each.surprise += surprise(logits, tokens[window.first : window.end])
        of_all[each.form.name] = logits
        for name, distances in each.distances.items():
            distances.add(of_all[name], logits)
