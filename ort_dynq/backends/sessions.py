"""Opens sessions with either backend, and adds advice to the errors with which onnxruntime refuses a model."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

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
    with with_advice(registered(options)):
        return runtime.open_session(model, options)
