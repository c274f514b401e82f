"""Reading and writing models: any source in, one atomic step out."""

from __future__ import annotations

import contextlib
import filecmp
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir

from ..errors import DynqError

# Protocol buffers end at 2 GiB; weights beyond this go to a file beside the model.
_LARGEST_PROTO = 1 << 30


def load(model: str | os.PathLike[str] | onnx.ModelProto | ir.Model) -> ir.Model:
    """The model as one of our own, which may be changed. Weights stay where they are.

    Raises:
        DynqError: The file is missing or is not an ONNX model.
    """
    if isinstance(model, ir.Model):
        return model.clone()
    try:
        loaded = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else ir.load(model)
    except FileNotFoundError as error:
        raise DynqError(f"there is no file {os.fspath(model)}") from error
    except Exception as error:
        name = "the ModelProto" if isinstance(model, onnx.ModelProto) else os.fspath(model)
        raise DynqError(f"{name} is not an ONNX model: {_first_line(error)}") from error
    if not loaded.opset_imports:
        name = "the ModelProto" if isinstance(model, onnx.ModelProto) else os.fspath(model)
        raise DynqError(f"{name} is not an ONNX model: it imports no opset")
    return loaded


def save(model: ir.Model, path: Path) -> None:
    """Writes the model and the external data that it needs; each file is there whole or not at all.

    Raises:
        DynqError: A file cannot be written.
    """
    try:
        in_memory = 0
        for tensor in _tensors(model):
            if isinstance(tensor, ir.ExternalTensor):
                _copy_beside(tensor, path.parent)
            else:
                in_memory += tensor.nbytes
        with replacing(path) as temporary:
            if in_memory > _LARGEST_PROTO:
                ir.save(model, temporary, format="protobuf", external_data=f"{path.name}.data")
                os.replace(temporary.parent / f"{path.name}.data", path.parent / f"{path.name}.data")
            else:
                ir.save(model, temporary, format="protobuf")
    except OSError as error:
        raise DynqError(f"{path} cannot be written: {error.strerror or error}") from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file in a folder of its own beside `path`, which becomes `path` if the block succeeds."""
    with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        temporary = Path(folder) / path.name
        yield temporary
        os.replace(temporary, path)


def _copy_beside(tensor: ir.ExternalTensor, folder: Path) -> None:
    source, target = Path(tensor.path), folder / tensor.location
    if target.exists():
        if not target.samefile(source) and not filecmp.cmp(source, target, shallow=False):
            raise DynqError(f"{target} is in the way of the external data {source}; choose another folder")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
