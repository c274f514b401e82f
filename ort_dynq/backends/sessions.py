"""Sessions with either backend: advice on errors, and the errors of Python operators."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import onnxruntime as ort

from .. import runtime
from ..errors import DynqError
from .options import NOT_CARRIED, registered

if TYPE_CHECKING:
    from ..storage import Model

# A pattern of onnxruntime's message, the backends for which the advice holds, and the advice.
_ADVICE = (
    (
        r"Type 'tensor\((float16|bfloat16|u?int4)\)' of input parameter .* of operator "
        r"\((Dynamic|Affine|Quantized)\w+\)|Type \(tensor\(u?int4\)\) of output arg",
        ("extensions",),
        f"{NOT_CARRIED}; register the backend 'native', or prepare the model with ort_dynq.ready_for_extensions(model)",
    ),
    (
        r"has input size \d+ not in range|Unable to find attribute .*No attribute with name|"
        r"Type Error: Type .* of output arg",
        ("extensions",),
        "onnxruntime-extensions requires every input and attribute of ort_dynq's operators, and derives the output "
        "type from the input types; prepare the model with ort_dynq.ready_for_extensions(model)",
    ),
    (
        r"Failed to add kernel for .* Conflicting with a registered kernel|Domain already set in registry",
        ("native", "extensions"),
        "one session can have one backend of ort_dynq, and the library of onnxruntime-extensions once: "
        "ort_dynq.register(options, backend='extensions') registers that library, and from then on every session of "
        "the process that registers it has ort_dynq's operators",
    ),
)


@contextlib.contextmanager
def with_advice(backend: str) -> Iterator[None]:
    """Adds advice to the error with which onnxruntime refuses a model in the block.

    Args:
        backend: The backend that is registered; an empty string if none is.

    Raises:
        DynqError: There is advice. Other errors pass.
    """
    try:
        yield
    except Exception as error:
        for pattern, backends, advice in _ADVICE:
            if backend in backends and re.search(pattern, str(error)):
                raise DynqError(f"{error}; {advice}") from error
        raise


def open_registered(model: Model, options: ort.SessionOptions) -> ort.InferenceSession:
    """Opens a model on the CPU provider with the backend that is registered in the options, if any.

    Args:
        model: See :func:`ort_dynq.runtime.open_session`.
        options: The options; use them for this session only.

    Raises:
        DynqError: See :func:`ort_dynq.runtime.open_session` and :func:`with_advice`.
        Exception: onnxruntime refuses the model; the type is onnxruntime's own.
    """
    backend = registered(options)
    with with_advice(backend):
        return runtime.open_session(
            model, options, ExtensionsSession if backend == "extensions" else ort.InferenceSession
        )


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
    """The runs of :class:`ExtensionsSession` in progress.

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

    @contextlib.contextmanager
    def raising(self, session: ort.InferenceSession) -> Iterator[None]:
        """Runs a session in the block, then raises the first error of its operators."""
        run, stack = _Run(session), self._stack()
        stack.append(run)
        self._all.add(run)
        try:
            yield
        except Exception as error:
            if run.error:  # the error of the session is a consequence of the operator's
                raise run.error from error
            raise
        finally:
            stack.pop()
            self._all.discard(run)
        if run.error:
            raise run.error

    def start_async(self, session: ort.InferenceSession) -> _Run:
        """Returns a new run, to which operators give their errors until :meth:`end`."""
        run = _Run(session, is_async=True)
        self._all.add(run)
        return run

    def end(self, run: _Run) -> None:
        """Ends a run of :meth:`start_async`."""
        self._all.discard(run)

    def _stack(self) -> list[_Run]:
        """The runs that this thread is in, innermost last."""
        stack: list[_Run] = self._here.__dict__.setdefault("stack", [])
        return stack


runs = _Runs()


class ExtensionsSession(ort.InferenceSession):  # type: ignore[misc]  # onnxruntime is not typed
    """A session with the backend ``extensions``: when a run returns, it raises the first error of its operators.

    In other sessions, an error of a Python operator ends the process: onnxruntime-extensions does not handle it.
    """

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """See ``onnxruntime.InferenceSession``, as for the methods below."""
        with runs.raising(self):
            return super().run(*args, **kwargs)

    def run_with_iobinding(self, *args: Any, **kwargs: Any) -> Any:
        """Raises the errors of operators."""
        with runs.raising(self):
            return super().run_with_iobinding(*args, **kwargs)

    def run_with_ort_values(self, *args: Any, **kwargs: Any) -> Any:
        """Raises the errors of operators."""
        with runs.raising(self):
            return super().run_with_ort_values(*args, **kwargs)

    def run_with_ortvaluevector(self, *args: Any, **kwargs: Any) -> Any:
        """Raises the errors of operators."""
        with runs.raising(self):
            return super().run_with_ortvaluevector(*args, **kwargs)

    def run_async(
        self, output_names: Any, input_feed: Any, callback: Callable[..., object], *args: Any, **kwargs: Any
    ) -> None:
        """Gives the callback the first error of the operators, as a text."""
        run = runs.start_async(self)

        def done(results: Any, user_data: Any, error: str) -> None:
            runs.end(run)
            callback([] if run.error else results, user_data, str(run.error) if run.error else error)

        try:
            super().run_async(output_names, input_feed, done, *args, **kwargs)
        except BaseException:
            runs.end(run)
            raise
