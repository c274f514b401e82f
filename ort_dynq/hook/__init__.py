"""The sessions that a program opens itself get ort_dynq's operators and rewritten models, without a change of its code.

`install` does it in one process, `ort-dynq run` in a program and all its children. Importing this package is cheap, and
loads neither onnxruntime nor a graph library: each Python process of such a program does it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from . import patch
from .installation import installation
from .options import HookOptions
from .sessions import Opened, Sessions

__all__ = ["Opened", "Sessions", "install", "installed", "uninstall"]


def install(
    *,
    exact: bool = False,
    fuse: bool = False,
    keep: Sequence[str] = (),
    quantize: bool | Sequence[str] = False,
    min_snr: float = HookOptions.min_snr,
    min_agreement: float = HookOptions.min_agreement,
    inputs: int = HookOptions.inputs,
) -> Sessions:
    """From now on, every CPU session of onnxruntime that this process opens runs a rewritten model.

    Sessions of libraries are reached, too, whenever they imported onnxruntime: nothing of their code changes, and their
    session options neither. A session that cannot profit, or that cannot open its rewritten model, is the one that it
    would be without this call, with onnxruntime's own errors. Rewritten models are kept: see docs/deployment.md.
    Processes that this one starts are reached if it forks them; `ort-dynq run` reaches all.

    A second call replaces the options of the first.

    Args:
        exact, fuse: See :func:`ort_dynq.rewrite`.
        keep: Patterns, as :mod:`fnmatch` has them, of the paths or file names of models that stay as they are.
        quantize: Whether float models become int8 models, or the patterns of those that may. Such a model is used only
            if it proves itself on the first inputs that the program runs: both models run on them.
        min_snr: The smallest signal-to-noise ratio of each output of such a model, in decibels. Probabilities are
            judged by their decisions alone.
        min_agreement: The smallest share, from 0 to 1, of a classifier's decisions that are the same: which element of
            a row is the largest; of probabilities that do not add up to 1, which ones are above one half, and which
            ones are not, each by itself. Also the smallest share of equal integers.
        inputs: The number of inputs on which both models run.

    Returns:
        The sessions that are opened from now on.

    Raises:
        DynqError: An option is wrong.
    """
    patterns = ("*",) if quantize is True else tuple(quantize or ())
    options = HookOptions(exact, fuse, tuple(keep), patterns, min_snr, min_agreement, inputs)
    options.check()
    sessions = Sessions()
    patch.activate(installation(options, sessions))
    return sessions


def uninstall() -> None:
    """Ends what :func:`install` began. Sessions that are open stay as they are."""
    patch.activate(None)


@contextlib.contextmanager
def installed(
    *,
    exact: bool = False,
    fuse: bool = False,
    keep: Sequence[str] = (),
    quantize: bool | Sequence[str] = False,
    min_snr: float = HookOptions.min_snr,
    min_agreement: float = HookOptions.min_agreement,
    inputs: int = HookOptions.inputs,
) -> Iterator[Sessions]:
    """:func:`install` while the block runs, in all threads. What was installed before is installed again after it.

    Args:
        exact, fuse, keep, quantize, min_snr, min_agreement, inputs: See :func:`install`.

    Yields:
        The sessions that are opened in the block.

    Raises:
        DynqError: An option is wrong.
    """
    before = patch.active()
    try:
        yield install(
            exact=exact,
            fuse=fuse,
            keep=keep,
            quantize=quantize,
            min_snr=min_snr,
            min_agreement=min_agreement,
            inputs=inputs,
        )
    finally:
        patch.activate(before)
