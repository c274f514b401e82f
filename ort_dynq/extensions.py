"""The operators through onnxruntime-extensions' ``@onnx_op``: Python operators on the same C++ kernels.

What ``@onnx_op`` asks of us, and how it is met (onnxruntime-extensions 0.15):

- Results pass through ``flatten().tolist()`` before C++ copies them out of whatever array it finds. :class:`_Result`
  answers both calls with the array itself, so that no list is made.
- An exception that leaves an operator ends the process. It is kept instead, and raised when the session returns
  (:class:`_Pending`).
- Every input and attribute is required, and the output type follows from the input types alone. The rewriter writes
  such models; :func:`ready_for_extensions` makes others so.
- Definitions last as long as the process: every session that registers onnxruntime-extensions' library after
  :func:`define` has the domain ``ort_dynq``.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort

from . import kernels, library, reference
from .errors import DynqError
from .operators import DOMAIN, OPERATORS, Operator, Signature

_run_operator: Callable[..., list[kernels.Array]] = kernels.run


@functools.cache
def define() -> str:
    """Defines every operator in the domain ``ort_dynq``, once in a process.

    Returns:
        The path of onnxruntime-extensions' library, for ``register_custom_ops_library``.

    Raises:
        DynqError: onnxruntime-extensions is missing.
    """
    global _run_operator
    try:
        import onnxruntime_extensions as extensions
    except ImportError as error:
        raise DynqError(
            f"onnxruntime-extensions cannot be loaded: {error}; `pip install onnxruntime-extensions`"
        ) from error
    try:
        library.load()
    except DynqError as error:
        warnings.warn(
            f"ort_dynq runs on NumPy, much slower and to the same bits: {error}", RuntimeWarning, stacklevel=3
        )
        _run_operator = reference.run
    for operator in OPERATORS.values():
        for name, signature in _variants(operator):
            _define(extensions, operator, name, signature)
    _raise_after_run()
    return str(extensions.get_library_path())


def variant_name(operator: str, output_type: str) -> str:
    """The name under which this backend knows `operator` where its output type does not follow from its inputs."""
    return f"{operator}_{output_type}"


def _variants(operator: Operator) -> list[tuple[str, Signature]]:
    """Each combination of input types under the plain name once; where an attribute asks, all for an output type."""
    by_inputs = {signature.inputs: signature for signature in reversed(operator.signatures)}
    variants = [(operator.name, signature) for signature in operator.signatures if signature in by_inputs.values()]
    if any(attribute.name == "output_dtype" for attribute in operator.attributes):
        variants += [
            (variant_name(operator.name, signature.outputs[0]), signature) for signature in operator.signatures
        ]
    return variants


def _define(extensions: Any, operator: Operator, name: str, signature: Signature) -> None:
    definition = extensions.PyCustomOpDef
    numbers = {kind: getattr(definition, f"dt_{kind.replace('float32', 'float')}") for kind in _kinds(signature)}
    output_dtypes = [np.dtype(kind) for kind in signature.outputs]

    def body(*inputs: kernels.Array, **attributes: Any) -> _Result | tuple[_Result, ...]:
        try:
            outputs = _run_operator(operator.name, inputs, **attributes)
            wrong = [
                output.dtype for output, dtype in zip(outputs, output_dtypes, strict=True) if output.dtype != dtype
            ]
            if wrong:
                raise DynqError(
                    f"{operator.name}: output_dtype asks for {wrong[0]}, but onnxruntime-extensions takes the output's "
                    "type from the inputs'; make the model ready with ort_dynq.ready_for_extensions(model)"
                )
        except Exception as error:  # leaving by an exception would end the process
            _pending.keep(error)
            outputs = [np.zeros(inputs[0].shape, dtype) for dtype in output_dtypes]
        results = tuple(map(_Result, outputs))
        return results[0] if len(results) == 1 else results

    extensions.onnx_op(
        op_type=f"{DOMAIN}::{name}",
        inputs=[numbers[kind] for kind in signature.inputs],
        outputs=[numbers[kind] for kind in signature.outputs],
        attrs={
            attribute.name: definition.dt_string if isinstance(attribute.default, str) else definition.dt_int64
            for attribute in operator.attributes
        },
    )(body)


def _kinds(signature: Signature) -> set[str]:
    return {*signature.inputs, *signature.outputs}


class _Result:
    """An array that stays one through ``result.flatten().tolist()``."""

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


class _Pending:
    """Errors of operators, kept until the session that ran them returns."""

    def __init__(self) -> None:
        self._here = threading.local()
        self._elsewhere: list[Exception] = []

    def keep(self, error: Exception) -> None:
        """Keeps the first error of the run that this thread is in; of none, if the operator runs on another thread."""
        if getattr(self._here, "runs", None):
            self._here.runs[-1].append(error)
        else:
            self._elsewhere.append(error)

    def guard(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """`run`, raising afterwards what operators kept meanwhile."""

        @functools.wraps(run)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            runs = self._here.__dict__.setdefault("runs", [])
            runs.append([])
            try:
                result = run(*args, **kwargs)
            except Exception as error:
                kept = runs[-1] + self._elsewhere
                if kept:
                    raise kept[0] from error  # what came after an operator's failure is its consequence
                raise
            finally:
                kept = runs.pop() + self._elsewhere
                self._elsewhere.clear()
            if kept:
                raise kept[0]
            return result

        return guarded


_pending = _Pending()


def _raise_after_run() -> None:
    """Lets ``run`` and its siblings raise what an operator could not."""
    for name in ("run", "run_with_iobinding", "run_with_ort_values"):
        setattr(ort.InferenceSession, name, _pending.guard(getattr(ort.InferenceSession, name)))
