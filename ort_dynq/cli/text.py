"""Comparisons of decoders on a text that the user gives: --text and what it prints; not a subcommand."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..errors import DynqError
from .render import Figure, one_line, progress, table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..inputs import Array
    from ..tools.genai import FolderResult
    from ..tools.genai.decoding import TextAccuracy
    from ..tools.genai.folder import Folder


def add_text(parser: argparse.ArgumentParser) -> None:
    """Adds --text."""
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="of a folder: compare both decoders on this text, or on the tokens of a .npy file",
    )


def tokens_of(arguments: argparse.Namespace, folder: Folder) -> Array:
    """Returns the tokens of the text, int64 [tokens]; what prevents the comparison is an error before the work.

    Raises:
        DynqError: The text or the tokenizer cannot be used, or the decoder is a pipeline of several models.
    """
    from ..tools.genai.decoding import lengths
    from ..tools.genai.text import read_tokens

    if folder.decoder is None:
        raise DynqError(f"the decoder of {folder.path} is a pipeline of several models, which cannot be run on text")
    tokens = read_tokens(folder, arguments.text)
    lengths(folder, tokens)
    return tokens


def compare_on_text(arguments: argparse.Namespace, found: FolderResult, tokens: Array) -> TextAccuracy | None:
    """Compares the decoders of a folder on the text; None if the decoder has no weights, so that it is not quantized.

    Raises:
        DynqError: A decoder does not run.
    """
    from ..tools.genai import decoding

    folder, decoder = found.folder, found.folder.decoder
    if decoder is None or decoder not in found.results:
        return None
    model, new = folder.path / decoder, found.results[decoder].model
    with progress() as track:
        return decoding.compare_on_text(folder, model, new, tokens, backend=arguments.backend, track=track)


def text_accuracy(found: TextAccuracy, source: str) -> Iterator[RenderableType]:
    """Renders a comparison on text."""
    yield ""
    yield one_line(
        f"{found.tokens} tokens of {source}; greedy: of {found.generated} generated tokens, those before the first "
        f"different one; mean of {found.prompts} prompts"
    )
    row = (
        *(Figure(found.perplexity_before, 3), Figure(found.perplexity_after, 3)),
        *(Figure(100 * found.agreement, 2), Figure(found.same_tokens, 1), Figure(found.snr_db, 1)),
    )
    yield table(("perplexity before", "after", "same next token %", "greedy", "logits dB"), [row])
