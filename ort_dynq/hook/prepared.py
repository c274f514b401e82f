"""What a session opens in place of a program's model, with which options, and the sessions of ort_dynq itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import onnxruntime as ort

from ..backends.register import register
from ..runtime import DATA_FOLDER, config_entry
from ..session_options import copied
from ..system import quota_cores
from .sessions import Opened

if TYPE_CHECKING:
    from ..storage import Model

_here = threading.local()


class Prepared(NamedTuple):
    """What a session opens instead of a model.

    Attributes:
        state: See :class:`Opened`.
        reason: Why.
        model: What is opened with the operators; None for the program's own way.
        facts: See :func:`ort_dynq.cache.facts_of`.
        trial: Begins to measure an int8 model beside the session; None if there is nothing to measure.
    """

    state: str
    reason: str
    model: Model | None = None
    facts: Mapping[str, Any] = {}
    trial: Callable[[Any, Opened], None] | None = None


def are_ours() -> bool:
    """Returns whether this thread is in a block of :func:`ours`."""
    return getattr(_here, "is_ours", False)


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """Marks the sessions that this thread opens in the block as our own: the hook leaves them alone."""
    before = getattr(_here, "is_ours", False)
    _here.is_ours = True
    try:
        yield
    finally:
        _here.is_ours = before


def options_of(given: ort.SessionOptions | None, *, operators: bool = True) -> ort.SessionOptions:
    """Returns a copy of a program's session options for one session.

    If they leave the number of threads to onnxruntime, it is that of a container's CPU quota.

    Args:
        given: The options, which are not changed.
        operators: Whether the copy gets the operators.
    """
    options = copied(given)
    options.intra_op_num_threads = options.intra_op_num_threads or quota_cores()
    if not operators:
        return options
    if config_entry(options, DATA_FOLDER):  # of the program's model
        options.add_session_config_entry(DATA_FOLDER, "")
    return register(options)
