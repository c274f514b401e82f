"""int8 models in place of a program's float models, if they prove themselves on the inputs that the program runs.

The first time, the float model is opened, and the int8 model beside it. Both run on the first inputs, for which the
program gets the results of the float model. The measurement is kept in the cache, also an unfinished one: the next
process continues it. Once it is complete, one of the models is dropped, in the running session and in later ones.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime as ort

from ..cache import Entry, Found
from ..errors import DynqError, message
from . import patch
from .measurement import Measurement
from .options import HookOptions
from .prepared import Prepared, options_of, ours
from .sessions import Opened, Sessions

if TYPE_CHECKING:
    from ..storage import Model

_LOG = logging.getLogger("ort_dynq.run")
# The CPU time of the thread that runs a session does not depend on what else the machine does. Windows counts it in
# steps of 16 ms.
_clock = time.perf_counter if sys.platform == "win32" else time.thread_time
_OPTIONS = "native quantize"  # of the entry in the cache; the model does not depend on the limits of a measurement


def quantized(session: Any, providers: Any, options: HookOptions, unchanged: Prepared) -> Prepared:
    """Returns what a session of a float model opens.

    Args:
        session: The session, which is not open yet.
        providers: Its providers.
        options: The options.
        unchanged: What it opens without an int8 model.
    """
    if not unchanged.facts.get("float products"):
        return unchanged
    if session._sess_options is not None and session._sess_options.enable_profiling:
        return unchanged._replace(reason="float: it is profiled")
    model: Model = session._model_bytes if session._model_path is None else session._model_path
    entry = Entry.of(model, _OPTIONS)
    if entry is None:
        return unchanged._replace(reason="float: there is no cache for the measurement of an int8 model")
    measurement = Measurement.of(entry.note())
    if (verdict := measurement.verdict(options)) is not None and not verdict.is_accepted:
        return unchanged._replace(reason=f"float: {verdict.text}")
    found = entry.find()
    if found is None:
        found = _quantize(model, entry)
    if found is None or found.path is None:
        reason = "there is no int8 model of it" if found is None else found.facts["summary"]
        return unchanged._replace(reason=f"float: {reason}")
    given = session._sess_options
    from ..session_options import overridden

    if given is not None and (names := overridden(given, found.facts["all initializers"])):
        return unchanged._replace(reason=f"float: its session options override the initializer {names[0]}")
    if verdict is not None:
        return Prepared("quantized", verdict.text, found.path, found.facts)
    begin = functools.partial(_begin, providers=providers, found=found, entry=entry, options=options, given=given)
    return Prepared("measured", "", None, unchanged.facts, begin)


def _quantize(model: Model, entry: Entry) -> Found | None:
    """Quantizes a model and keeps it. A model that cannot be quantized is kept as that."""
    from ..quantizer import quantize_layers
    from ..quantizer.options import Options as Quantization

    try:
        entry.keep(lambda: quantize_layers(model, Quantization()))
    except DynqError as error:
        entry.keep_reason(message(error))
    return entry.find()


def _begin(
    session: Any,
    opened: Opened,
    *,
    providers: Any,
    found: Found,
    entry: Entry,
    options: HookOptions,
    given: ort.SessionOptions | None,
) -> None:
    """Begins to measure an int8 model beside a session, which is open."""
    installation = patch.active()
    if installation is None:
        return
    try:
        with ours():
            candidate = ort.InferenceSession(
                os.fspath(found.path or ""), options_of(given), providers=providers, enable_fallback=0
            )
    except Exception as error:  # the types are onnxruntime's own
        opened.state, opened.reason = "unchanged", f"float: the int8 model cannot be opened: {message(error)}"
        return
    patch.watch_runs()
    trial = Trial(session, candidate, entry, found.facts, options, opened, installation.sessions)
    opened.reason = trial.progress
    setattr(session, patch.TRIAL, trial)


class Trial:
    """The measurement of an int8 model on the inputs that a session runs.

    Attributes:
        keeps_float: Whether the session must keep the float model, whatever is measured. Later sessions need not.
    """

    def __init__(
        self,
        session: Any,
        candidate: Any,
        entry: Entry,
        facts: Mapping[str, Any],
        options: HookOptions,
        opened: Opened,
        sessions: Sessions,
    ) -> None:
        self._session, self._candidate = session, candidate
        self._entry, self._facts, self._options = entry, facts, options
        self._opened, self._sessions = opened, sessions
        self._measurement = Measurement.of(entry.note())
        self._lock = threading.Lock()
        self.keeps_float = False

    @property
    def progress(self) -> str:
        """How far the measurement is."""
        return f"{self._measurement.inputs} of {self._options.inputs} inputs measured"

    def run(self, original: Callable[..., Any], names: Any, feeds: Any, run_options: Any) -> Any:
        """Runs the session, and the int8 model if no other thread does so. Returns the results of the session."""
        results = original(names, feeds, run_options)
        if self._lock.acquire(blocking=False):
            try:
                if patch.TRIAL in self._session.__dict__:
                    self._measure(original, names, feeds, run_options, results)
            except Exception as error:  # the program has not called us
                self._measurement.problem = f"the int8 model fails: {message(error)}"
                self._end()
            finally:
                self._lock.release()
        return results

    def _measure(self, original: Callable[..., Any], names: Any, feeds: Any, run_options: Any, results: Any) -> None:
        others = self._candidate.run(names, feeds, run_options)
        # Threads of a session spin after its run, and slow the other one down: both are timed after a run of the other.
        times = []
        for run in (original, self._candidate.run):
            begin = _clock()
            run(names, feeds, run_options)
            times.append(_clock() - begin)
        outputs = names or [each.name for each in self._session.get_outputs()]
        pairs = {name: (np.asarray(a), np.asarray(b)) for name, a, b in zip(outputs, results, others, strict=True)}
        self._measurement.add(pairs, frozenset(self._facts["classifiers"]), *times)
        self._entry.write_note(self._measurement.to_dict())
        if self._measurement.verdict(self._options) is None:
            self._opened.reason = self.progress
            self._sessions.changed(self._opened)
        else:
            self._end()

    def _end(self) -> None:
        """Keeps one of the two models, and forgets the other one."""
        verdict = self._measurement.verdict(self._options)
        assert verdict is not None
        self._entry.write_note(self._measurement.to_dict())
        opened = self._opened
        if verdict.is_accepted and self.keeps_float:
            opened.state, opened.reason = "unchanged", f"float until it is opened again: {verdict.text}"
        elif verdict.is_accepted:
            self._session.ort_dynq_options = self._candidate._sess_options_initial
            self._session._bind_session(self._candidate._sess)
            opened.state, opened.reason = "quantized", verdict.text
            opened.integer_products = int(self._facts["integer products"])
            opened.float_products = int(self._facts["float products"])
        else:
            opened.state, opened.reason = "unchanged", f"float: {verdict.text}"
        delattr(self._session, patch.TRIAL)
        self._candidate = None
        self._sessions.changed(opened)
        _LOG.info("%s", opened)
