"""Opens sessions of ONNX Runtime: session options, and models in any form.

Every session of this package is opened by :func:`open_session` or from :func:`openable`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import onnxruntime as ort

from .errors import DynqError, ThreadError, without_thread
from .files import temporary_folder, unwritable
from .system import quota_cores

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from .storage import Model

OLDEST_ONNXRUNTIME = (1, 20)
MAX_COPIED = 4096
"""The elements of the largest constant that the rewriter gives to a session as an initializer.

A session copies initializers, so larger constants become inputs."""

DATA_FOLDER = "session.model_external_initializers_file_folder_path"
"""The entry of session options with the folder of the external data of a model that is given as bytes."""
_FIRST_WITH_DATA_FOLDER = (1, 21)


def version() -> tuple[int, int]:
    """The major and minor version of the installed onnxruntime."""
    major, minor, *_ = ort.__version__.split(".")
    return int(major), int(minor)


class LentOptions(ort.SessionOptions):  # type: ignore[misc]
    """Session options that keep what a session reads: it has them as long as it lives.

    Attributes:
        weights: Values of onnxruntime that refer to arrays, by the name of the initializer.
        copies: Whether the session copies them when it is opened. Otherwise they are inputs of the model, for which
            :class:`Fed` has the values: no kernel can prepare them, and the session takes no memory for them.
    """

    weights: Mapping[str, ort.OrtValue] = {}
    copies: bool = True

    def lend(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Gives weights to the session."""
        self.weights = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in weights.items()}
        if weights and self.copies:
            self.add_external_initializers(list(weights), list(self.weights.values()))


class Fed(ort.InferenceSession):  # type: ignore[misc]
    """A session of a model with its weights as inputs. Only `run` gives their values; other inputs are shown.

    Args:
        content: The serialized model; the weights are initializers without values.
        options: The options, which have the weights.
    """

    def __init__(self, content: bytes, options: LentOptions) -> None:
        from .serialized import with_inputs

        self._weights = dict(options.weights)
        super().__init__(
            with_inputs(content, self._weights), options, providers=["CPUExecutionProvider"], enable_fallback=0
        )

    def get_inputs(self) -> list[Any]:
        """Returns the inputs that are no weights."""
        return [each for each in super().get_inputs() if each.name not in self._weights]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Runs the session."""
        found: list[Any] = super().run(output_names, {**input_feed, **self._weights}, run_options)
        return found


def session_options(*, threads: int = 0, optimize: bool = True) -> LentOptions:
    """Session options that silence onnxruntime's log: every failure is an exception.

    Args:
        threads: The number of threads of one operator; 0 leaves it to onnxruntime, unless a container has a CPU quota.
        optimize: Whether the default optimization level is on; otherwise all optimizations are off.
    """
    options = LentOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads or quota_cores()
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


@contextlib.contextmanager
def within_quota(options: ort.SessionOptions) -> Iterator[None]:
    """Gives sessions that are opened in the block as many threads as a container's CPU quota allows.

    Only if `options` leave the number to onnxruntime, and the quota is less than the cores: see
    :func:`ort_dynq.system.quota_cores`. The options are the same after the block.
    """
    threads = options.intra_op_num_threads
    options.intra_op_num_threads = threads or quota_cores()
    try:
        yield
    finally:
        options.intra_op_num_threads = threads


def open_session(model: Model, options: ort.SessionOptions) -> ort.InferenceSession:
    """Opens a model on the CPU provider, without onnxruntime's fallback to other providers.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        options: The options; use them for this session only.

    Raises:
        DynqError: See :func:`openable`.
        ThreadError: The session can start no thread.
        Exception: onnxruntime refuses the model; the type is onnxruntime's own.
    """
    with openable(model, options) as source:
        try:
            if (
                isinstance(source, bytes)
                and isinstance(options, LentOptions)
                and options.weights
                and not options.copies
            ):
                try:
                    return Fed(source, options)
                except Exception:  # an operator needs them when the session is opened, or the model is wrong
                    options.add_external_initializers(list(options.weights), list(options.weights.values()))
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        except RuntimeError as error:
            if (found := without_thread(error)) is not None:
                raise found from error
            raise


def can_open(model: Model) -> bool:
    """Returns whether onnxruntime opens a model with all optimizations off.

    Raises:
        ThreadError: The session can start no thread.
    """
    try:
        open_session(model, session_options(threads=1, optimize=False))
    except ThreadError:
        raise
    except Exception:  # the types are onnxruntime's own
        return False
    return True


@contextlib.contextmanager
def openable(model: Model, options: ort.SessionOptions, *, shared: bool = False) -> Iterator[str | bytes]:
    """Yields the argument for ``onnxruntime.InferenceSession`` that opens `model`: a path or bytes, valid in the block.

    A path stays a path, so that models of any size can be opened. A model in memory becomes bytes; if it refers to
    external data, `options` get an entry that names their folder.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        options: The options of the session that opens it.
        shared: Whether other sessions may use the options afterwards. The entry is then cleared after the block, since
            onnxruntime would read the external data of every later model from that folder.

    Raises:
        DynqError: External data of an onnx_ir Model are missing or are in several folders; a ModelProto is too large
            for one protocol buffer; the temporary folder of a large model cannot be written.
    """
    if isinstance(model, str | os.PathLike):
        yield os.fspath(model)
        return
    if isinstance(model, bytes):
        yield model
        return
    import onnx_ir as ir

    if not isinstance(model, ir.Model):
        yield serialize(model)
        return
    from .storage import check_data, is_large, to_proto, write

    check_data(model)
    folder = _data_folder(model)
    if isinstance(options, LentOptions) and not folder and (content := _with_lent_weights(model, options)):
        yield content
        return
    if is_large(model):
        with temporary_folder() as temporary:
            file = os.path.join(temporary, "model.onnx")
            try:
                write(model, Path(file))
            except DynqError as error:
                if isinstance(error.__cause__, OSError):
                    raise unwritable(temporary, error.__cause__) from error
                raise
            yield file
        return
    if not folder or config_entry(options, DATA_FOLDER):
        yield serialize(to_proto(model))
    elif version() < _FIRST_WITH_DATA_FOLDER:
        with _file_of_absolute_paths(model) as path:
            yield path
    else:
        options.add_session_config_entry(DATA_FOLDER, folder)
        try:
            yield serialize(to_proto(model))
        finally:
            if shared:
                options.add_session_config_entry(DATA_FOLDER, "")


def _with_lent_weights(model: ir.Model, options: LentOptions) -> bytes:
    """Returns a model without its large weights, which the session gets; nothing if it has none, or is large still."""
    from .serialized import lent_weights
    from .storage import is_large, to_proto

    with lent_weights(model) as weights:
        if not weights or is_large(model):
            return b""
        options.lend(weights)
        return serialize(to_proto(model))


def config_entry(options: ort.SessionOptions, key: str) -> str:
    """An entry of session options; an empty string if it is not set."""
    try:
        return str(options.get_session_config_entry(key))
    except RuntimeError:
        return ""


def serialize(model: onnx.ModelProto) -> bytes:
    """Returns a ModelProto as bytes.

    Raises:
        DynqError: It is something else, or too large for one protocol buffer.
    """
    if not hasattr(model, "SerializeToString"):
        raise DynqError(
            f"a {type(model).__name__} is not a model: expected a path, bytes, a ModelProto or an onnx_ir Model"
            + (f"; give {type(model).__name__.lower()}.model" if hasattr(model, "model") else "")
        )
    try:
        serialized: bytes = model.SerializeToString()
    except Exception as error:  # the type depends on the version of protobuf
        raise DynqError("the model is larger than 2 GB; save its weights as external data") from error
    return serialized


def _external(model: ir.Model) -> Iterator[tuple[ir.Value, ir.ExternalTensor]]:
    import onnx_ir as ir

    from .graphs import graphs

    for _, graph in graphs(model):
        if not isinstance(graph, ir.Graph):
            continue
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value, value.const_value


def _data_folder(model: ir.Model) -> str:
    """The folder of the model's external data; empty if it has none."""
    folders = {os.path.abspath(tensor.base_dir) for _, tensor in _external(model)}
    if len(folders) > 1:
        raise DynqError(f"the model's external data are in {len(folders)} folders; save the model, then open its path")
    return folders.pop() if folders else ""


@contextlib.contextmanager
def _file_of_absolute_paths(model: ir.Model) -> Iterator[str]:
    """A file of the model for onnxruntime 1.20, which ignores the entry but follows absolute paths."""
    import onnx_ir as ir

    from .storage import explained

    with temporary_folder() as folder:
        file = os.path.join(folder, "model.onnx")
        with explained(model):
            model = model.clone()
            for value, tensor in _external(model):
                path = os.path.abspath(tensor.path)
                value.const_value = ir.ExternalTensor(
                    path, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name or ""
                )
            try:
                ir.save(model, file)
            except OSError as error:
                raise unwritable(folder, error) from error
        yield file
