"""The backend ``extensions``: Python operators for onnxruntime-extensions' ``@onnx_op``, on the same C++ kernels.

Limitations of ``@onnx_op`` (onnxruntime-extensions 0.15), and how this module handles them:

- It calls ``flatten().tolist()`` on each result, then C++ copies the data from the array that it receives.
  :class:`_Result` answers both calls with the array itself, so that no list is made.
- An exception that leaves an operator ends the process. :class:`_Runs` keeps the exception and raises it when the run
  of the session returns.
- Every input and attribute is required, and the output type follows from the input types alone. The rewriter writes
  such models; :func:`ort_dynq.ready_for_extensions` prepares others.
- It does not support float16, bfloat16, int4 and uint4: operators are defined for the other types (:data:`CARRIED`).
- It does not support lists as attributes: group_shape is not read. The shapes of src and scales give the same groups.
- A definition lasts as long as the process: after :func:`define`, every session that registers the library of
  onnxruntime-extensions has the domain ``ort_dynq``.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

from .. import kernels
from ..errors import DynqError
from ..operators import DOMAIN, OPERATORS, Operator, Signature
from .options import registered

_defining = threading.Lock()
CARRIED = frozenset(("float32", "uint8", "int8", "int32"))
NOT_CARRIED = "onnxruntime-extensions does not support float16, bfloat16, int4 and uint4"


def define() -> str:
    """Defines every operator in the domain ``ort_dynq``. Further calls in the same process change nothing.

    Returns:
        The path of the library of onnxruntime-extensions, for ``register_custom_ops_library``.

    Raises:
        DynqError: onnxruntime-extensions is missing.
    """
    with _defining:
        return _define_all()


@functools.cache
def _define_all() -> str:
    try:
        import onnxruntime_extensions as extensions
    except ImportError as error:
        raise DynqError(
            f"onnxruntime-extensions cannot be loaded: {error}; `pip install -U onnxruntime-extensions`"
        ) from error
    for operator in OPERATORS.values():
        for name, signature in _variants(operator):
            _define(extensions, operator, name, signature)
    _wrap_sessions()
    return str(extensions.get_library_path())


def variant_name(operator: str, output_type: str) -> str:
    """The name that `operator` has in this backend if its output type does not follow from its input types."""
    return f"{operator}_{output_type}"


def _variants(operator: Operator) -> list[tuple[str, Signature]]:
    """The names and signatures to define, of types that ``@onnx_op`` carries.

    Each combination of input types is defined once under the operator's name. If an attribute chooses the output type,
    every signature is also defined under :func:`variant_name`.
    """
    signatures = [each for each in operator.signatures if CARRIED.issuperset((*each.inputs, *each.outputs))]
    by_inputs = {signature.inputs: signature for signature in reversed(signatures)}
    variants = [(operator.name, signature) for signature in by_inputs.values()]
    if len(by_inputs) < len(signatures):
        variants += [(variant_name(operator.name, signature.outputs[0]), signature) for signature in signatures]
    return variants


def _define(extensions: Any, operator: Operator, name: str, signature: Signature) -> None:
    definition = extensions.PyCustomOpDef
    numbers = {
        kind: getattr(definition, f"dt_{kind.replace('float32', 'float')}")
        for kind in (*signature.inputs, *signature.outputs)
    }
    dtypes = [np.dtype(kind) for kind in signature.outputs]
    carried = [attribute for attribute in operator.attributes if not attribute.is_list]
    integers = {attribute.name for attribute in carried if isinstance(attribute.default, int)}

    def body(*inputs: kernels.Array, **attributes: Any) -> _Result | tuple[_Result, ...]:
        try:
            outputs = kernels.run(operator.name, inputs, **attributes)
            if outputs[0].dtype != dtypes[0]:
                raise DynqError(
                    f"{operator.name}: output_dtype is {outputs[0].dtype}, but onnxruntime-extensions derives the "
                    "output type from the input types; prepare the model with ort_dynq.ready_for_extensions(model)"
                )
        except BaseException as error:  # KeyboardInterrupt as well: any exception would end the process
            _runs.keep(error)
            outputs = [np.zeros(inputs[0].shape, dtype) for dtype in dtypes]
        results = tuple(map(_Result, outputs))
        return results[0] if len(results) == 1 else results

    def cast_attributes(attributes: dict[str, str]) -> dict[str, str | int]:
        return {name: int(text) if name in integers else text for name, text in attributes.items()}

    defined = extensions.onnx_op(
        op_type=f"{DOMAIN}::{name}",
        inputs=[numbers[kind] for kind in signature.inputs],
        outputs=[numbers[kind] for kind in signature.outputs],
        attrs={
            attribute.name: definition.dt_int64 if attribute.name in integers else definition.dt_string
            for attribute in carried
        },
    )(body)
    defined.cast_attributes = cast_attributes  # faster than the default, which asks C++ for the type of each attribute


class _Result:
    """An array for which ``result.flatten().tolist()`` is the array itself."""

    __slots__ = ("_array",)

    def __init__(self, array: kernels.Array) -> None:
        self._array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def flatten(self) -> _Result:
        return self

    def tolist(self) -> kernels.Array:
        return np.ascontiguousarray(self._array)


class _Run:
    """A run of a session in progress, and the first error of its operators."""

    def __init__(self, session: Any, is_async: bool = False) -> None:
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

    def guard(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a method of sessions: when it returns, it raises the first error of the operators."""

        @functools.wraps(method)
        def guarded(session: Any, *args: Any, **kwargs: Any) -> Any:
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

        return guarded

    def guard_async(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps InferenceSession.run_async: the callback receives the first error of the operators."""

        @functools.wraps(method)
        def guarded(session: Any, output_names: Any, input_feed: Any, callback: Any, *args: Any, **kwargs: Any) -> None:
            run = _Run(session, is_async=True)

            def done(results: Any, user_data: Any, error: str) -> None:
                self._all.discard(run)
                callback([] if run.error else results, user_data, str(run.error) if run.error else error)

            self._all.add(run)
            try:
                method(session, output_names, input_feed, done, *args, **kwargs)
            except BaseException:
                self._all.discard(run)
                raise

        return guarded

    def _stack(self) -> list[_Run]:
        """The runs that this thread is in, innermost last."""
        stack: list[_Run] = self._here.__dict__.setdefault("stack", [])
        return stack


_runs = _Runs()


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


def _explain(init: Callable[..., None]) -> Callable[..., None]:
    """Wraps InferenceSession.__init__: adds advice to errors that are specific to this backend."""

    @functools.wraps(init)
    def explaining(session: Any, model: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
        try:
            init(session, model, sess_options, *args, **kwargs)
        except Exception as error:
            backend = registered(sess_options) if sess_options is not None else ""
            for pattern, backends, advice in _ADVICE:
                if backend in backends and re.search(pattern, str(error)):
                    raise DynqError(f"{error}; {advice}") from error
            raise

    return explaining


def _wrap_sessions() -> None:
    """Wraps the methods of InferenceSession, so that they raise the errors of operators."""
    session = ort.InferenceSession
    session.__init__ = _explain(session.__init__)
    session.run_async = _runs.guard_async(session.run_async)
    for name in ("run", "run_with_iobinding", "run_with_ort_values", "run_with_ortvaluevector"):
        setattr(session, name, _runs.guard(getattr(session, name)))
