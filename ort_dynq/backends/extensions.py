"""The backend ``extensions``: Python operators for onnxruntime-extensions' ``@onnx_op``, on the same C++ kernels.

Limitations of ``@onnx_op`` (onnxruntime-extensions 0.15), and how this module handles them:

- It calls ``flatten().tolist()`` on each result, then C++ copies the data from the array that it receives.
  :class:`_Result` answers both calls with the array itself, so that no list is made.
- An exception that leaves an operator ends the process. operator_errors.py lets the run raise it.
- Every input and attribute is required, and the output type follows from the input types alone. The rewriter writes
  such models; :func:`ort_dynq.ready_for_extensions` prepares others.
- It does not support float16, bfloat16, int4 and uint4: operators are defined for the other types (:data:`CARRIED`).
- It does not support lists as attributes: group_shape is not read. The shapes of src and scales give the same groups.
- A definition lasts as long as the process: after :func:`define`, every session that registers the library of
  onnxruntime-extensions has the domain ``ort_dynq``.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from .. import kernels
from ..errors import DynqError
from ..operators import DOMAIN, OPERATORS, Operator, Signature
from ..system import advice_on_extensions
from .operator_errors import raise_in_sessions, runs
from .options import CARRIED

_defining = threading.Lock()


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
        raise DynqError(f"onnxruntime-extensions cannot be loaded: {error}; {advice_on_extensions()}") from error
    for operator in OPERATORS.values():
        for name, signature in _variants(operator):
            _define(extensions, operator, name, signature)
    raise_in_sessions()
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
        except BaseException as error:  # also KeyboardInterrupt: any exception would end the process
            runs.keep(error)
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
