"""Errors of Python operators: the run that called the operator raises them.

onnxruntime-extensions has no way to report an error: an exception that leaves an operator ends the process, and so
does a result of another type or shape. So the operator keeps its error and returns zeros, and the run raises the error
when it returns. For that, :func:`raise_in_sessions` replaces methods of onnxruntime.InferenceSession for the whole
process, at the first registration of the backend ``extensions``. Runs without such an error behave as before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import onnxruntime as ort


class _Run:
    """A run of a session in progress, and the first error of its operators."""

    def __init__(self, session: ort.InferenceSession, is_async: bool = False) -> None:
        self.error: BaseException | None = None
        self._session, self._is_async = session, is_async

    def uses_other_threads(self) -> bool:
        """Whether operators may run on threads other than the caller's."""
        parallel = ort.ExecutionMode.ORT_PARALLEL
        return self._is_async or self._session.get_session_options().execution_mode == parallel

    def keep(self, error: BaseException) -> None:
        self.error = self.error or error


class _Runs:
    """The runs in progress.

    An operator runs on the thread that called its session, unless the session is in parallel execution mode or was
    called by run_async. Then it runs on a worker thread of onnxruntime. A worker thread cannot be mapped to a session,
    so its error goes to all runs that use such threads: a run that fails because of another is better than a run that
    returns results that were never computed.
    """

    def __init__(self) -> None:
        self._here = threading.local()
        self._all: set[_Run] = set()

    def keep(self, error: BaseException) -> None:
        """Keeps an operator's error for its run; raises it if there is no run in progress."""
        runs = self._stack()[-1:] or [run for run in self._all.copy() if run.uses_other_threads()]
        if not runs:
            raise error
        for run in runs:
            run.keep(error)

    def raising(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method of sessions: when it returns, it raises the first error of the operators."""

        @functools.wraps(method)
        def wrapped(session: ort.InferenceSession, *args: Any, **kwargs: Any) -> Any:
            run, stack = _Run(session), self._stack()
            stack.append(run)
            self._all.add(run)
            try:
                result = method(session, *args, **kwargs)
            except Exception as error:
                if run.error:  # the error of the session is a consequence of the operator's
                    raise run.error from error
                raise
            finally:
                stack.pop()
                self._all.discard(run)
            if run.error:
                raise run.error
            return result

        return wrapped

    def raising_async(self, method: Callable[..., None]) -> Callable[..., None]:
        """Wraps run_async: its callback gets the first error of the operators, as a text."""

        @functools.wraps(method)
        def wrapped(
            session: ort.InferenceSession,
            output_names: Any,
            input_feed: Any,
            callback: Callable[..., object],
            *args: Any,
            **kwargs: Any,
        ) -> None:
            run = _Run(session, is_async=True)
            self._all.add(run)

            def done(results: Any, user_data: Any, error: str) -> None:
                self._all.discard(run)
                callback([] if run.error else results, user_data, str(run.error) if run.error else error)

            try:
                method(session, output_names, input_feed, done, *args, **kwargs)
            except BaseException:
                self._all.discard(run)
                raise

        return wrapped

    def _stack(self) -> list[_Run]:
        """The runs that this thread is in, innermost last."""
        stack: list[_Run] = self._here.__dict__.setdefault("stack", [])
        return stack


runs = _Runs()


@functools.cache
def raise_in_sessions() -> None:
    """Wraps the methods of onnxruntime.InferenceSession that run a model, once in a process.

    They are wrapped in the class that defines them: so others who replace them there are called, too.
    """
    for name in ("run_async", "run", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector"):
        owner = next(each for each in ort.InferenceSession.__mro__ if name in each.__dict__)
        wrap = runs.raising_async if name == "run_async" else runs.raising
        setattr(owner, name, wrap(owner.__dict__[name]))
