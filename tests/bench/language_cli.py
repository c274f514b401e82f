"""The commands of `python tests/bench` for a small language model: training it, and measuring its forms."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ort_dynq import kernels
from ort_dynq.cli.arguments import add_backend, positive, positives
from ort_dynq.cli.command import Command, Outcome
from ort_dynq.cli.render import Figure, one_line, progress, table
from ort_dynq.cli.timing import add_timing, timed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from bench.perplexity import Distance
    from ort_dynq.tools.measuring.progress import Track
    from ort_dynq.tools.measuring.timing import Settings

_PROGRAM = "python tests/bench"


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a new folder for the model and its forms")
    parser.add_argument("--steps", type=positive, metavar="N", help="steps of 2048 tokens (default: 500)")


def _train(arguments: argparse.Namespace) -> Outcome:
    from bench.training import STEPS, train

    with progress() as track:
        train(arguments.folder, steps=arguments.steps or STEPS, track=track)
    names = sorted(path.name for path in arguments.folder.iterdir())
    text = f"{arguments.folder}: {', '.join(names)}"
    return Outcome({"folder": str(arguments.folder), "contents": names}, lambda: [one_line(text)])


def _perplexity_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="a folder that `train` has written")
    parser.add_argument(
        "--tokens", type=positive, metavar="N", help="use only the first tokens of the text (default: all)"
    )
    parser.add_argument("--isa", metavar="NAME", help="instruction set of ort_dynq's kernels (default: the best one)")
    add_backend(parser)


def _perplexity(arguments: argparse.Namespace) -> Outcome:
    from bench.perplexity import GENERATED, PROMPTS, bench_perplexity
    from ort_dynq.tools.measuring.timing import machine

    with kernels.use_isa(arguments.isa) if arguments.isa else contextlib.nullcontext(), progress() as track:
        here = machine(arguments.backend)
        found = bench_perplexity(arguments.folder, most_tokens=arguments.tokens, backend=arguments.backend, track=track)

    def distance(each: Distance | None) -> tuple[Figure, Figure, Figure]:
        if each is None:
            return Figure(None, 2, "-"), Figure(None, 1, "-"), Figure(None, 1, "-")
        return Figure(100 * each.agreement, 2), Figure(each.snr_db, 1), Figure(each.generated, 1)

    def text() -> Iterator[RenderableType]:
        yield one_line(f"{here.cpu}, instruction set {here.isa}, onnxruntime {here.onnxruntime}")
        yield f"{found.tokens} tokens that the model was not trained with"
        yield "same %: tokens with the same most probable successor; dB: signal-to-noise ratio of the logits"
        yield f"greedy: of {GENERATED} generated tokens, those before a different one; mean of {PROMPTS} prompts"
        yield "float: against float32; level 0: against MatMulNBits with the same weights, which computes with floats\n"
        head = (
            *("form", "converted", "perplexity", "same % float", "dB float", "greedy float"),
            *("same % level 0", "dB level 0", "greedy level 0"),
        )
        rows = [
            (
                each.name,
                "-" if each.products is None else f"{each.products} of {each.of_products}",
                Figure(each.perplexity, 3, "-"),
                *distance(each.to_float),
                *distance(each.to_same_weights),
            )
            for each in found.forms
        ]
        yield table(head, rows)
        yield from (one_line(f"{each.name}: {each.problem}") for each in found.forms if each.problem)

    return Outcome({"machine": asdict(here), **found.to_dict()}, text)


def _cache_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="the models; if it is missing, they are made")
    parser.add_argument(
        "--contexts", type=positives, metavar="N[,N]", help="tokens in the cache (default: 256,1024,4096)"
    )
    parser.add_argument("--steps", type=positive, metavar="N", help="steps of training, of 512 bytes (default: 600)")
    add_timing(parser, threads="1", time="2")
    add_backend(parser)


def _cache(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from bench.cached_decoding import CONTEXTS, GENERATED, PROMPTS, STEPS, bench_cache, write

    if not arguments.folder.exists():
        write(arguments.folder, steps=arguments.steps or STEPS, track=track)
    contexts = arguments.contexts or CONTEXTS
    found = bench_cache(arguments.folder, settings, contexts=contexts, track=track)

    def text() -> Iterator[RenderableType]:
        yield "tokens/s: of the fastest step from a context of so many tokens, cache included"
        yield "same %: tokens of prompts with the same most probable successor; dB: signal-to-noise ratio of the logits"
        yield f"greedy: of {GENERATED} generated tokens, those before a different one; mean of {PROMPTS} prompts\n"
        head = ("cache", *(f"tokens/s, {context}" for context in contexts), "bytes/token", "same %", "dB", "greedy")
        rows = [
            (
                each.name,
                *(Figure(each.tokens_per_second[context], 0) for context in contexts),
                Figure(each.cache_bytes, 0),
                Figure(None if each.agreement is None else 100 * each.agreement, 2, "-"),
                Figure(each.snr_db, 1, "-"),
                Figure(each.generated, 1, "-"),
            )
            for each in found.forms
        ]
        yield table(head, rows)

    return Outcome(found.to_dict(), text)


COMMANDS = (
    Command(
        "train",
        "trains a small language model on the documentation of Python's standard library, and exports it with float32 "
        "and 4-bit weights; needs torch, transformers and onnxruntime-genai",
        (f"{_PROGRAM} train lm/",),
        _train_arguments,
        _train,
    ),
    Command(
        "perplexity",
        "measures the language model that `train` has written in several quantized forms: perplexity, agreement and "
        "generated tokens",
        (f"{_PROGRAM} perplexity lm/",),
        _perplexity_arguments,
        _perplexity,
    ),
    Command(
        "cache",
        "measures a small decoder with int8 codes in its cache of keys and values, beside one with a cache of floats; "
        "the first time, it trains and exports it, which needs torch and onnxscript",
        (f"{_PROGRAM} cache decoder/",),
        _cache_arguments,
        lambda arguments: timed(arguments, _cache, time=2),
    ),
)
