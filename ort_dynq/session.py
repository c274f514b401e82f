"""Sessions: registering the operators, and rewriting and opening a model in one line."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import onnxruntime as ort

from . import kernels, library
from .errors import DynqError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    Model = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model

OLDEST_ONNXRUNTIME = (1, 20)

Backend = Literal["native", "extensions"]
BACKENDS: tuple[str, ...] = get_args(Backend)

# Entries of SessionOptions. The first is our own: it tells that the operators are registered, and from where.
_REGISTERED = "ort_dynq.registered"
_DATA_FOLDER = "session.model_external_initializers_file_folder_path"


def register(session_options: ort.SessionOptions, backend: Backend = "native") -> ort.SessionOptions:
    """Makes the operators of ort_dynq known to every session made with these options; a second call changes nothing.

    Args:
        session_options: The options.
        backend: ``native``: the operators of the native library. ``extensions``: the same kernels behind Python
            operators that onnxruntime-extensions runs; its library is registered with them, so register it no further.
            From the first time on it brings the operators into every session of the process that registers it.

    Returns:
        The same options, so that ``ort.InferenceSession(path, ort_dynq.register(ort.SessionOptions()))`` reads well.

    Raises:
        DynqError: onnxruntime is too old, a library is missing, or it refuses (an unknown ORT_DYNQ_ISA); there is no
            such backend, or the options have the other one already.
    """
    if _version() < OLDEST_ONNXRUNTIME:
        raise DynqError(
            f"onnxruntime {ort.__version__} is too old for ort_dynq, which needs "
            f"{'.'.join(map(str, OLDEST_ONNXRUNTIME))} or newer; `pip install -U onnxruntime`"
        )
    if backend not in BACKENDS:
        raise DynqError(f"there is no backend {backend!r}, expected one of {', '.join(BACKENDS)}")
    present = registered(session_options)
    if present and present != backend:
        raise DynqError(
            f"the session options have the backend {present} already, and one session cannot have both: "
            f"make other options for {backend}"
        )
    if not present:
        _register_library(session_options, backend)
        session_options.add_session_config_entry(_REGISTERED, backend)
    return session_options


def registered(session_options: ort.SessionOptions) -> str:
    """The backend that these options have; empty if none."""
    return _entry(session_options, _REGISTERED)


class InferenceSession(ort.InferenceSession):  # type: ignore[misc]  # onnxruntime is not typed
    """``onnxruntime.InferenceSession`` that rewrites the model and registers the operators before it opens it."""

    def __init__(
        self,
        model: Model,
        sess_options: ort.SessionOptions | None = None,
        *args: Any,
        backend: Backend = "native",
        exact: bool = False,
        **kwargs: Any,
    ) -> None:
        """Rewrites and opens a model; the model given, a file or an object, is not changed.

        Args:
            model: A path, a serialized model, a ModelProto or an onnx_ir Model; with external data too.
            sess_options: The session's options; the operators are registered in them. They may serve many sessions.
            *args: The further arguments of ``onnxruntime.InferenceSession``: providers, provider_options.
            backend: As for :func:`register`; a model is made ready for ``extensions``.
            exact: As for :func:`ort_dynq.rewrite`.
            **kwargs: The same by name.

        Raises:
            DynqError: The model is missing or not an ONNX model, or the operators cannot be registered. Whatever else
                onnxruntime finds wrong it raises as it does for a session of its own.
        """
        from .rewriter import rewrite

        if isinstance(model, bytes):
            model = parse(model)
        options = register(ort.SessionOptions() if sess_options is None else sess_options, backend)
        rewritten = rewrite(model, exact=exact).model
        if backend == "extensions":
            from .rewriter.readiness import ready_for_extensions

            rewritten = ready_for_extensions(rewritten).model
        with opening(rewritten, options, shared=sess_options is not None) as source:
            super().__init__(source, options, *args, **kwargs)


@contextlib.contextmanager
def opening(model: Model, options: ort.SessionOptions, *, shared: bool = False) -> Iterator[str | bytes]:
    """What ``onnxruntime.InferenceSession`` takes in place of `model`, within the block, with these options.

    A path stays a path, so that models of any size can be opened. A model in memory becomes bytes, beside which the
    options have to say where the external data are. Shared ones forget that after the block: onnxruntime would
    otherwise read the weights of any later model from there, even of one opened by its path. (It warns of the change.)

    Raises:
        DynqError: A ModelProto is too large for one protocol buffer, or the external data lie in several folders.
    """
    if isinstance(model, str | os.PathLike):
        yield os.fspath(model)
        return
    if isinstance(model, bytes):
        yield model
        return
    import onnx_ir as ir

    if not isinstance(model, ir.Model):
        yield _serialize(model)
        return
    from .rewriter.storage import is_large, save, to_proto

    if is_large(model):
        with tempfile.TemporaryDirectory() as temporary:
            save(model, Path(temporary) / "model.onnx")
            yield os.path.join(temporary, "model.onnx")
        return
    folder = _data_folder(model)
    if not folder or _entry(options, _DATA_FOLDER):
        yield _serialize(to_proto(model))
    elif _version() < (1, 21):
        with _file_of_absolute_paths(model) as path:
            yield path
    else:
        options.add_session_config_entry(_DATA_FOLDER, folder)
        try:
            yield _serialize(to_proto(model))
        finally:
            if shared:
                options.add_session_config_entry(_DATA_FOLDER, "")


def _register_library(options: ort.SessionOptions, backend: Backend) -> None:
    if backend == "native":
        kernels.isa()  # a mistaken ORT_DYNQ_ISA shows here, in our words
        path = library.get_library_path()
    else:
        from . import extensions

        path = extensions.define()
    try:
        options.register_custom_ops_library(path)
    except Exception as error:
        raise DynqError(f"onnxruntime {ort.__version__} refused the operators: {error}") from error


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in ort.__version__.split(".")[:2])


def _entry(options: ort.SessionOptions, key: str) -> str:
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:  # there is none
        return ""


def parse(serialized: bytes) -> onnx.ModelProto:
    """A serialized model.

    Raises:
        DynqError: It is none.
    """
    import onnx

    model = onnx.ModelProto()
    try:
        model.ParseFromString(serialized)
    except Exception as error:
        raise DynqError(f"the {len(serialized)} bytes are not an ONNX model: {error}") from error
    return model


def _serialize(model: onnx.ModelProto) -> bytes:
    try:
        serialized: bytes = model.SerializeToString()
    except Exception as error:  # which one depends on protobuf's version
        raise DynqError("the model is larger than 2 GB: its weights have to be external data") from error
    return serialized


def _external(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    import onnx_ir as ir

    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value, value.const_value


def _data_folder(model: ir.Model) -> str:
    """The folder of the model's external data, the current one if it names none; empty if it has no such data."""
    folders = {os.path.abspath(tensor.base_dir) for _, tensor in _external(model)}
    if len(folders) > 1:
        raise DynqError(f"the model's external data lie in {len(folders)} folders; save the model, then open its path")
    return folders.pop() if folders else ""


@contextlib.contextmanager
def _file_of_absolute_paths(model: ir.Model) -> Iterator[str]:
    """onnxruntime 1.20 does not look at the entry; but it follows absolute paths, as its successors do not."""
    import onnx_ir as ir

    from .rewriter.storage import explained

    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "model.onnx")
        with explained(model):
            model = model.clone()
            for value, tensor in _external(model):
                path = os.path.abspath(tensor.path)
                value.const_value = ir.ExternalTensor(
                    path, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or ""
                )
            ir.save(model, file)
        yield file
