"""Reads and writes models and their external data.

More than 450 lines: what is read, checked and written of external data are the same rules.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from .errors import DynqError
from .expansion import check_expansion
from .files import contains, is_being_replaced, is_inside, move, reason, replacing, sha256, target_of
from .formats import check_file, format_of
from .graphs import subgraphs, with_subgraphs
from .serialized import Weights, put_back, read_initializers, without_weights
from .structure import refusal_of, structure_of

_LOG = logging.getLogger(__name__)

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
"""The forms in which a model is given: a path, a serialized model, a ModelProto or an onnx_ir Model."""

# A protocol buffer holds at most 2 GiB. Larger weights go to a file beside the model.
_MAX_PROTO = 1 << 30
_HASH_DIGITS = 12
# Weights of these types become arrays: a tensor of onnx_ir copies its elements whenever they are read.
_READ_AS_THEY_ARE = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT8, onnx.TensorProto.UINT8)
_SMALL_TENSOR = 1024
_SMALL_PART = 0.25  # of files with external data


class ExternalDataError(DynqError):
    """External data of a model are missing, cut off or in a place where they may not be."""


class _Content:
    """The content of a model's file, for onnx.load(): without the large weights, which stay where the file was read to.

    The hash and the size are those of what was read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.name = os.fspath(path)  # onnx takes the format from its suffix
        self.sha256, self.size = "", 0
        self.without_weights = b""
        self.weights: Weights = {}
        self._apart: dict[int, memoryview] = {}

    def read(self) -> bytes:
        with open(self.name, "rb") as file:
            buffer = memoryview(np.empty(os.fstat(file.fileno()).st_size, np.uint8).data)
            content = buffer[: file.readinto(buffer)]
        self.sha256, self.size = hashlib.sha256(content).hexdigest(), len(content)
        self.without_weights, self._apart = without_weights(content)
        return self.without_weights

    def take_weights(self, model: onnx.ModelProto) -> None:
        """Makes arrays of the weights of the model, which has been read."""
        self.weights = put_back(model, self._apart)
        if len(self.weights) < len(self._apart):
            self.without_weights = model.SerializeToString()


class ModelFile(os.PathLike[str]):
    """The path of a model that several steps of a command read: :func:`load` reads its file once.

    The models that it returns share the weights, which stay in memory for as long as this object. The file may be
    deleted or replaced meanwhile: the hash and the size are those of what was read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = os.fspath(path)

    def __fspath__(self) -> str:
        return self._path

    @functools.cached_property
    def _read(self) -> tuple[ir.Model, _Content]:
        content = _Content(self._path)
        return _load(self._path, content), content

    @property
    def loaded(self) -> ir.Model:
        """The model; load() returns a copy that may be changed."""
        return self._read[0]

    @property
    def sha256(self) -> str:
        """The SHA-256 of the file in hexadecimal digits."""
        return self._read[1].sha256

    @functools.cached_property
    def size(self) -> int:
        """The bytes of the file and of the files with external data."""
        # Where a file is missing, what reads it says so.
        return self._read[1].size + sum(os.path.getsize(path) for path in self.data_files if os.path.exists(path))

    @functools.cached_property
    def data_files(self) -> set[Path]:
        """The files with external data."""
        return files_of(self.loaded)

    @property
    def content(self) -> tuple[bytes, Weights] | None:
        """The serialized model, and the large weights that it reads; None if there are external data."""
        if self.data_files:
            return None
        loaded, content = self._read
        read = read_initializers(loaded)
        return content.without_weights, {name: array for name, array in content.weights.items() if name in read}

    def copy_to(self, path: Path) -> bool:
        """Writes the bytes of the file to another one; returns whether they are what was read.

        Nothing is written if the file has changed or is gone, or if there are external data, which :func:`save` moves.

        Raises:
            DynqError: The file cannot be written.
        """
        if self.data_files:
            return False
        try:
            content = Path(self._path).read_bytes()
        except OSError:  # it was removed
            return False
        if hashlib.sha256(content).hexdigest() != self.sha256:
            return False
        try:
            with replacing(target_of(path)) as temporary:
                temporary.write_bytes(content)
        except OSError as error:
            raise DynqError(f"{path} cannot be written: {reason(error)}") from error
        return True


class ComputedTensor(ir.LazyTensor):
    """A tensor that is computed from external data whenever it is read, so that only one at a time takes memory.

    Attributes:
        sources: The external data.
    """

    def __init__(
        self,
        compute: Callable[[], npt.NDArray[Any]],
        dtype: ir.DataType,
        shape: Sequence[int],
        sources: Sequence[ir.ExternalTensor],
    ) -> None:
        super().__init__(lambda: ir.tensor(np.ascontiguousarray(compute())), dtype, ir.Shape(shape))
        self.sources = sources


def load(model: Model) -> ir.Model:
    """Loads a model that the caller may change. External data stay in their files.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model, which is copied.

    Returns:
        The model, its nodes in topological order.

    Raises:
        DynqError: The file is missing or is not an ONNX model, its external data are outside its folder, or its
            functions stand for too many nodes.
    """
    if isinstance(model, bytes):
        model = _parse(model)
    if isinstance(model, ModelFile):
        model = model.loaded
    if isinstance(model, ir.Model):
        with explained(model):
            loaded = model.clone()
            _check_external_data(loaded, None)
            _sort(loaded)
            check_expansion(loaded)
        return loaded
    return _load(model)


def _load(model: str | os.PathLike[str] | onnx.ModelProto, content: _Content | None = None) -> ir.Model:
    """Loads a model: a ModelProto, or a path. Large weights of the file are copied, or stay in `content`."""
    try:
        if isinstance(model, onnx.ModelProto):
            loaded = ir.from_proto(proto := model)
        else:
            check_file(model)
            read = content or _Content(model)
            proto = onnx.load(cast("IO[bytes]", read), load_external_data=False)
            read.take_weights(proto)
            loaded = ir.from_proto(proto)
            for name, array in read.weights.items():
                value = loaded.graph.initializers[name]
                value.const_value = _with_array(value.const_value, array if content else array.copy())
            _own_tensors(loaded)
    except DynqError:
        raise
    except OSError as error:
        raise DynqError(f"{os.fspath(model)} cannot be read: {reason(error)}") from error
    except Exception as error:
        raise _not_a_model(model, first_line(error)) from error
    if not loaded.opset_imports:
        raise _not_a_model(model, "it imports no opset")
    with explained(model):
        for value, declared in zip(loaded.graph.inputs, proto.graph.input, strict=True):
            # onnx_ir takes type and shape from an output that is this input, or from a value_info of its name.
            ir.serde.deserialize_value_info_proto(declared, value)
        _check_external_data(loaded, "" if isinstance(model, onnx.ModelProto) else os.path.dirname(model))
        _sort(loaded)
        check_expansion(loaded)
    return loaded


@contextlib.contextmanager
def explained(model: Model) -> Iterator[None]:
    """Turns any exception in the block into a DynqError that says what is wrong with the model.

    The rules assume a valid model. onnx's checker runs only after a failure: it is slow, and it rejects some models
    that ONNX Runtime runs.

    Raises:
        DynqError: The block raised an exception.
    """
    try:
        yield
    except DynqError:
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
            raise _missing(error.filename) from error
        try:
            onnx.checker.check_model(ir.to_proto(model) if isinstance(model, ir.Model) else model)
        except Exception as fault:
            if "No Op registered for" not in str(fault):  # ONNX Runtime adds operators to the standard domain
                raise DynqError(f"{_name(model)} is not a valid ONNX model: {first_line(fault)}") from error
        if isinstance(error, ir.serde.SerdeError):  # onnx_ir checks more than some versions of onnx
            raise DynqError(f"{_name(model)} is not a valid ONNX model: {first_line(error)}") from error
        raise DynqError(f"{_name(model)} cannot be converted: {type(error).__name__}: {first_line(error)}") from error


def refusal_of_original(structure: bytes, model: Model) -> str:
    """Returns why ONNX Runtime does not load a model that was given; an empty text if it does.

    Args:
        structure: The model as it was loaded; see :func:`ort_dynq.structure.structure_of`.
        model: The form in which it was given.
    """
    return refusal_of(structure, _name(model), "correct the model, or export it again")


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Converts a model to a ModelProto.

    Raises:
        DynqError: The model cannot be serialized; for example, the size of a tensor contradicts its shape.
    """
    with _writable():
        return ir.to_proto(model)


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    """Turns any exception in the block, which serializes tensors, into a DynqError."""
    try:
        yield
    except Exception as error:
        raise DynqError(f"the model is not a valid ONNX model: {first_line(error)}") from error


def save(model: ir.Model, path: Path, *, apart: bool = False) -> None:
    """Writes a model that ONNX Runtime loads, and its external data; see :func:`write`.

    Args:
        model, path, apart: As for :func:`write`.

    Raises:
        DynqError: As for :func:`write`; or ONNX Runtime refuses the model, and nothing is written.
    """
    _check_sizes(_read_of(model))
    with _writable():
        structure = structure_of(model)
    refusal = refusal_of(structure, f"the model for {path}", "it is not written; please report this, with the original")
    if refusal:
        raise DynqError(refusal)
    write(model, path, apart=apart)


def write(model: ir.Model, path: Path, *, apart: bool = False) -> None:
    """Writes a model and its external data. Whenever it stops, `path` is the old model or the new one, with its data.

    All initializers go to a new file beside the model, ``NAME.<hash>.data``, if the tensors in memory are too large for
    one protocol buffer, or if external data are not in the folder of `path`. Others stay where they are. But if the
    model needs only a small part of these files, as it does after its weights were quantized, it gets a copy, and the
    files may be deleted. No file is written under a name that the model gives: a model from an untrusted source must
    not write other files. The model is moved to `path` last. Then data files of earlier saves are deleted, except those
    that `model` or a model in the folder uses.

    Args:
        model: The model. It is not changed.
        path: The file to write; symbolic links are followed.
        apart: Whether all initializers go to the new file, however small they are.

    Raises:
        DynqError: A file cannot be written, or the external data of the model have changed.
    """
    try:
        target = target_of(path)
        external = [tensor for tensor in tensors(model) if isinstance(tensor, ir.ExternalTensor)]
        read = _read_of(model)
        _check_sizes(read)
        sources = {os.path.realpath(tensor.path) for tensor in read}
        if str(target) in sources:
            raise DynqError(f"{path} has weights of the model; choose another name")
        large = apart or not all(_is_beside(tensor, target.parent) for tensor in external)
        if not large and _need_little(external):
            model, external = _with_external_in_memory(model), []
        large = large or is_large(model)
        if (large or external) and os.path.realpath(path.parent) != str(target.parent):
            raise DynqError(
                f"{path} is a link into another folder, and ONNX Runtime does not find external data through it; "
                f"choose {target}"
            )
        try:
            with replacing(target) as temporary:
                if large:
                    _write_pair(_with_own_attributes(model, target.parent), temporary, target)
                else:
                    ir.save(model, temporary, format="protobuf")
        finally:
            _delete_unused_data(target, sources)
        _LOG.info("%s is written", path)
    except OSError as error:
        raise DynqError(f"{path} cannot be written: {reason(error)}") from error
    except DynqError:
        raise
    except Exception as error:
        raise DynqError(f"{path} cannot be written, the model is not valid: {first_line(error)}") from error


def _write_pair(model: ir.Model, temporary: Path, target: Path) -> None:
    """Writes a model to `temporary` and its initializers to a file beside `target`, which no model uses yet.

    The name of that file has a hash of its content: it is new unless the content is the same.
    """
    unnamed = f"{target.name}.{'0' * _HASH_DIGITS}.data"
    ir.save(model, temporary, format="protobuf", external_data=unnamed)
    written = temporary.with_name(unnamed)
    named = f"{target.name}.{sha256(written)[:_HASH_DIGITS]}.data"
    # Both names have the same length, so the file stays a valid protocol buffer.
    temporary.write_bytes(temporary.read_bytes().replace(unnamed.encode(), named.encode()))
    move(written, target.with_name(named))


def _delete_unused_data(target: Path, sources: set[str]) -> None:
    """Deletes the data of earlier saves to `target`, also of killed ones, unless a model in the folder uses them.

    Args:
        target: The model's file.
        sources: Paths of files to keep.
    """
    name = re.compile(re.escape(target.name) + rf"\.[0-9a-f]{{{_HASH_DIGITS}}}\.data")
    with contextlib.suppress(OSError):  # a later save deletes what stays
        found = [path for path in target.parent.iterdir() if name.fullmatch(path.name) and str(path) not in sources]
        if not found or is_being_replaced(target):  # another process may have moved its data here, but not its model
            return
        near = (path for path in target.parent.glob("*.onnx*") if path.suffix != ".data")  # also model.onnx.bak
        models = [path for path in {target, *near} if path.is_file()]
        for path in found:
            if not any(contains(model, path.name.encode()) for model in models):
                path.unlink()


def own_weights(model: ir.Model) -> None:
    """Gives weights that are views of the file that was read arrays of their own, so that its buffer can be freed.

    Only if they are a small part of it: most of a model that no layer was quantized of would be in memory twice.
    """
    views: dict[str, npt.NDArray[Any]] = {}
    buffers: dict[int, int] = {}
    for name, value in model.graph.initializers.items():
        raw = getattr(value.const_value, "raw", None)
        flat = raw.base if isinstance(raw, np.ndarray) else None
        if isinstance(flat, np.ndarray) and isinstance(flat.base, memoryview):
            views[name], buffers[id(flat.base.obj)] = raw, memoryview(flat.base.obj).nbytes
    if sum(array.nbytes for array in views.values()) <= _SMALL_PART * sum(buffers.values()):
        for name, array in views.items():
            model.graph.initializers[name].const_value = ir.tensor(array.copy(), name=name)


def is_large(model: ir.Model) -> bool:
    """Returns whether the tensors in memory are too large for one protocol buffer."""
    with _writable():
        in_memory = [tensor for tensor in tensors(model) if not isinstance(tensor, ir.ExternalTensor)]
        if sum(tensor.nbytes for tensor in in_memory) <= _MAX_PROTO:
            return False
        # It may be smaller than it declares.
        sizes = (each.nbytes if isinstance(each, ComputedTensor) else each.numpy().nbytes for each in in_memory)
        return sum(sizes) > _MAX_PROTO


def size(path: str | os.PathLike[str]) -> int:
    """Returns the bytes of a model's file and of the files with its external data.

    Raises:
        DynqError: The file is not a model.
        OSError: A file is missing.
    """
    return sum(os.path.getsize(file) for file in (path, *data_files(path)))


def size_of(model: ir.Model) -> int:
    """Returns the bytes that a model will have in a file, with external data.

    Raises:
        DynqError: The model cannot be serialized.
    """
    if is_large(model):  # all other parts together are small
        return sum(tensor.nbytes for tensor in tensors(model))
    apart = sum(tensor.nbytes for tensor in tensors(model) if isinstance(tensor, ir.ExternalTensor))
    return int(to_proto(model).ByteSize()) + apart


def data_files(path: str | os.PathLike[str]) -> set[Path]:
    """Returns the files with the external data of a model.

    Raises:
        DynqError: The file is not a model.
    """
    if not contains(path, b"location"):  # a key of each reference to external data
        return set()
    return files_of(load(path))


def files_of(model: ir.Model) -> set[Path]:
    """Returns the files with the external data of a model in memory."""
    return {Path(each.path) for each in tensors(model) if isinstance(each, ir.ExternalTensor)}


def _read_of(model: ir.Model) -> list[ir.ExternalTensor]:
    """Returns the external data of a model, and those from which tensors are computed."""
    found = list(tensors(model))
    computed = [source for tensor in found if isinstance(tensor, ComputedTensor) for source in tensor.sources]
    return [*(tensor for tensor in found if isinstance(tensor, ir.ExternalTensor)), *computed]


def _check_sizes(external: list[ir.ExternalTensor]) -> None:
    """Rejects external data that are shorter than when the model was loaded: their rest would be missing in a copy."""
    for tensor in external:
        try:
            size = os.path.getsize(tensor.path)
        except FileNotFoundError as error:
            raise _missing(tensor.path) from error
        except OSError as error:
            raise DynqError(f"the external data {tensor.path} cannot be read: {reason(error)}") from error
        end = (tensor.offset or 0) + (tensor.nbytes if tensor.length is None else tensor.length)
        if end > size:
            raise DynqError(
                f"the external data {tensor.path} have {size} bytes, but {tensor.name} ends at {end}: the file has "
                "changed since the model was loaded"
            )


def check_data(model: ir.Model) -> None:
    """Checks that the files with the external data of a model are there.

    :func:`load` does not: a model can be inspected without its weights.

    Raises:
        DynqError: A file is missing. The message has its path.
    """
    for path in dict.fromkeys(tensor.path for tensor in tensors(model) if isinstance(tensor, ir.ExternalTensor)):
        if not os.path.exists(path):
            raise _missing(path)


def _missing(path: str | os.PathLike[str]) -> DynqError:
    path = os.path.abspath(path)
    return ExternalDataError(
        f"the external data of the model, its weights, are missing: there is no file {path}; copy it there"
    )


def _is_beside(tensor: ir.ExternalTensor, folder: Path) -> bool:
    """Returns whether a model in `folder` finds these external data at the same location."""
    return is_inside(os.fspath(tensor.location)) and os.path.samefile(tensor.base_dir or os.curdir, folder)


def _with_own_attributes(model: ir.Model, folder: Path) -> ir.Model:
    """Returns the model, with those attributes in memory that have no external data in `folder`. It may be a copy.

    onnx_ir moves initializers only to another file.
    """

    def own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return _in_memory(tensor) if is_away(tensor) else tensor

    def is_away(tensor: ir.TensorProtocol) -> bool:
        return isinstance(tensor, ir.ExternalTensor) and not _is_beside(tensor, folder)

    if not any(map(is_away, _attribute_tensors(model))):
        return model
    model = model.clone()
    _replace_attributes(model, own)
    return model


def _need_little(external: list[ir.ExternalTensor]) -> bool:
    """Returns whether these tensors are a small part of the files that they are in."""
    places = {(tensor.path, tensor.offset): tensor.nbytes for tensor in external}
    files = {os.path.realpath(path) for path, _ in places}
    return sum(places.values()) < _SMALL_PART * sum(map(os.path.getsize, files))


def _with_external_in_memory(model: ir.Model) -> ir.Model:
    """Returns a copy of the model with all external data in memory; computed tensors stay computed."""
    model = model.clone()
    _replace_tensors(model, lambda tensor: _in_memory(tensor) if isinstance(tensor, ir.ExternalTensor) else tensor)
    return model


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy(), tensor.dtype, name=tensor.name)


def tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yields every tensor of the model: initializers and attributes, also those in functions and subgraphs."""
    for body in _bodies(model):
        for _, graph in with_subgraphs(body):
            if isinstance(graph, ir.Graph):
                for value in graph.initializers.values():
                    if value.const_value is not None:
                        yield value.const_value
    yield from _attribute_tensors(model)


def _attribute_tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for _, attribute in _tensor_attributes(model):
        yield from _tensors_of(attribute)


def _tensors_of(attribute: ir.Attr) -> Sequence[ir.TensorProtocol]:
    """The tensors of an attribute of the type TENSOR or TENSORS.

    Its method as_tensor() compares the value with a protocol, which took a fourth of the time of `quantize --verify`.
    """
    tensors: Sequence[ir.TensorProtocol]
    tensors = (attribute.value,) if attribute.type == ir.AttributeType.TENSOR else attribute.value
    return tensors


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    kinds = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)
    for body in _bodies(model):
        for _, graph in with_subgraphs(body):
            for node in graph:
                for attribute in node.attributes.data.values():  # as in graphs.subgraphs
                    if attribute.type in kinds and not attribute.is_ref():
                        yield node, attribute


def _sort(model: ir.Model) -> None:
    """Sorts the nodes topologically where they are not sorted. ONNX demands this order and the rules rely on it.

    Raises:
        ValueError: The graph has a cycle.
    """

    def is_sorted(graph: ir.Graph | ir.Function) -> bool:
        for node in graph:
            producers = (value.producer() for value in node.inputs if value is not None)
            if any(producer is not None and producer not in seen for producer in producers):
                return False
            if not all(is_sorted(subgraph) for _, subgraph in subgraphs(node)):
                return False
            seen.add(node)
        return True

    for body in _bodies(model):
        seen: set[ir.Node] = set()
        if not is_sorted(body):
            body.sort()


def _own_tensors(model: ir.Model) -> None:
    """Gives each tensor of a model its own memory. Otherwise one of them keeps the whole protocol buffer in memory."""

    def own(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        if not isinstance(tensor, ir.serde.TensorProtoTensor):
            return tensor
        proto = tensor.raw
        if proto.data_type in _READ_AS_THEY_ARE and len(proto.raw_data) == tensor.nbytes > _SMALL_TENSOR:
            elements = np.frombuffer(proto.raw_data, tensor.dtype.numpy().newbyteorder("<"))
            return _with_array(tensor, elements.reshape(tensor.shape.numpy()))
        return ir.serde.deserialize_tensor(ir.serde.serialize_tensor(tensor))

    _replace_tensors(model, own)


def _with_array(tensor: ir.TensorProtocol | None, array: npt.NDArray[Any]) -> ir.TensorProtocol:
    """Returns a tensor with the name and the documentation of another one."""
    assert tensor is not None
    properties = dict(tensor.metadata_props)
    return ir.Tensor(array, name=tensor.name, doc_string=tensor.doc_string, metadata_props=properties)


def _replace_tensors(model: ir.Model, new: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    """Replaces the tensors of a model."""
    for body in _bodies(model):
        for _, graph in with_subgraphs(body):
            if isinstance(graph, ir.Graph):
                for value in graph.initializers.values():
                    if value.const_value is not None:
                        value.const_value = new(value.const_value)
    _replace_attributes(model, new)


def _replace_attributes(model: ir.Model, new: Callable[[ir.TensorProtocol], ir.TensorProtocol]) -> None:
    """Replaces the tensors in the attributes of a model."""
    for node, attribute in list(_tensor_attributes(model)):
        tensors = list(map(new, _tensors_of(attribute)))
        is_one = attribute.type == ir.AttributeType.TENSOR
        node.attributes[attribute.name] = ir.Attr(
            attribute.name, attribute.type, tensors[0] if is_one else tensors, doc_string=attribute.doc_string
        )


def _bodies(model: ir.Model) -> list[ir.Graph | ir.Function]:
    """Returns the main graph and all functions, including the functions of ort_dynq's operators."""
    return [model.graph, *model.functions.values()]


def _check_external_data(model: ir.Model, folder: str | None) -> None:
    """Rejects external data that are not files inside the model's folder, by their location and by their real path.

    A model from an untrusted source must not read other files. The location is checked, too: where it contains ``..``,
    it leads from another folder to another place. An ir.Model that a program has built itself has no
    folder; its data may be anywhere, as in onnx_ir.
    """
    checked: dict[tuple[str, str], int | None] = {}
    for tensor in tensors(model):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        if folder is not None:
            tensor.base_dir = folder or os.curdir  # onnx_ir skips functions, and checks nothing without a folder
        elif not tensor.base_dir:
            continue
        place = os.fspath(tensor.base_dir), os.fspath(tensor.location)
        if place not in checked:
            checked[place] = _size_of_external_data(*place)
        size, end = checked[place], (tensor.offset or 0) + (tensor.length or 0)
        if size is not None and end > size:
            raise ExternalDataError(
                f"the external data {tensor.path} have {size} bytes, but {tensor.name} ends at {end}: the file is cut "
                "off, or of another model; copy or download it again"
            )


def _size_of_external_data(folder: str, location: str) -> int | None:
    """Returns the file's size in bytes, or None if it is missing: a model can be inspected without its weights."""
    try:
        real_folder = os.path.realpath(folder)
        if not is_inside(location):
            raise ExternalDataError(
                f"the external data have the location {location!r}, which may be no absolute path and have no drive "
                f"and no '..'; copy the file into the model's folder {real_folder} and refer to the copy in the model"
            )
        path = os.path.realpath(os.path.join(folder, location))
        if os.path.commonpath((path, real_folder)) != real_folder:
            raise ExternalDataError(
                f"the external data {location} lie outside of the model's folder {real_folder}; "
                "copy the file into that folder and refer to the copy in the model"
            )
        if not os.path.exists(path):
            return None
        if not os.path.isfile(path):
            raise ExternalDataError(f"the external data {location} are not a file")
        return os.path.getsize(path)
    except (OSError, ValueError) as error:
        raise ExternalDataError(f"the external data {location} cannot be found: {error}") from error


def _parse(serialized: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(serialized)
    except Exception as error:
        raise DynqError(f"the {len(serialized)} bytes are not an ONNX model: {error}") from error
    return model


def _not_a_model(model: Model, reason: str) -> DynqError:
    found = format_of(model) if isinstance(model, str | os.PathLike) else ""
    return DynqError(f"{_name(model)} is not an ONNX model: {f'it is {found}' if found else reason}")


def _name(model: Model) -> str:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else f"the {type(model).__name__}"


def first_line(error: BaseException) -> str:
    while isinstance(error, ir.serde.SerdeError) and error.__cause__ is not None:
        error = error.__cause__  # the text of a SerdeError says where it happened, but not what
    return (str(error).strip() or type(error).__name__).splitlines()[0][:400]
