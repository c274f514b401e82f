"""Reading and writing models: any source in, one atomic step out."""

from __future__ import annotations

import contextlib
import filecmp
import graphlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from .errors import DynqError

if TYPE_CHECKING:
    from .runtime import Model

# Protocol buffers end at 2 GiB; weights beyond this go to a file beside the model.
_LARGEST_PROTO = 1 << 30


def load(model: Model) -> ir.Model:
    """The model as one of our own, which may be changed. Weights stay where they are.

    Raises:
        DynqError: The file is missing or is not an ONNX model.
    """
    if isinstance(model, bytes):
        model = _parse(model)
    if isinstance(model, ir.Model):
        with explained(model):
            loaded = model.clone()
            _check_external_data(loaded, None)
            _sort(loaded)
        return loaded
    try:
        if not isinstance(model, onnx.ModelProto) and os.path.exists(model) and not os.path.isfile(model):
            raise DynqError(f"{os.fspath(model)} is not an ONNX model: it is not a file")  # a FIFO may wait forever
        loaded = ir.from_proto(model) if isinstance(model, onnx.ModelProto) else ir.load(model)
    except DynqError:
        raise
    except FileNotFoundError as error:
        raise DynqError(f"there is no file {os.fspath(model)}") from error
    except OSError as error:
        raise DynqError(f"{os.fspath(model)} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        raise DynqError(f"{_name(model)} is not an ONNX model: {_first_line(error)}") from error
    if not loaded.opset_imports:
        raise DynqError(f"{_name(model)} is not an ONNX model: it imports no opset")
    with explained(model):
        _check_external_data(loaded, "" if isinstance(model, onnx.ModelProto) else os.path.dirname(model))
        _sort(loaded)
    return loaded


@contextlib.contextmanager
def explained(model: Model) -> Iterator[None]:
    """What breaks within the block is said to be the model's fault, and which, where onnx's checker finds one.

    Rules take models to be valid. That of a whole model is checked here alone, since it takes its time, and since ONNX
    Runtime runs many a model that the checker refuses.

    Raises:
        DynqError: Anything went wrong.
    """
    try:
        yield
    except DynqError:
        raise
    except Exception as error:
        try:
            onnx.checker.check_model(ir.to_proto(model) if isinstance(model, ir.Model) else model)
        except Exception as fault:
            raise DynqError(f"{_name(model)} is not a valid ONNX model: {_first_line(fault)}") from error
        raise DynqError(f"{_name(model)} cannot be rewritten: {type(error).__name__}: {_first_line(error)}") from error


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a ModelProto.

    Raises:
        DynqError: It holds what cannot be written: tensors of another size than their shape, say.
    """
    with _writable():
        return ir.to_proto(model)


@contextlib.contextmanager
def _writable() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise DynqError(f"the model is not a valid ONNX model: {_first_line(error)}") from error


def save(model: ir.Model, path: Path) -> None:
    """Writes the model and the external data that it needs; each file is there whole or not at all.

    Raises:
        DynqError: A file cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            raise DynqError(f"{path} is not a file, and would be replaced by one; choose another name")
        sources = {os.path.realpath(tensor.path) for tensor in tensors(model) if isinstance(tensor, ir.ExternalTensor)}
        with replacing(path) as temporary:
            if is_large(model):
                data = path.with_name(f"{path.name}.data")
                while os.path.realpath(data) in sources:  # the original's must stay
                    data = data.with_name(f"{data.stem}_.data")
                ir.save(model, temporary, format="protobuf", external_data=data.name)
                os.replace(temporary.parent / data.name, data)
            else:
                for tensor in tensors(model):
                    if isinstance(tensor, ir.ExternalTensor):
                        _copy_beside(tensor, path.parent)
                ir.save(model, temporary, format="protobuf")
    except OSError as error:
        raise DynqError(f"{path} cannot be written: {error.strerror or error}") from error
    except DynqError:
        raise
    except Exception as error:
        raise DynqError(f"{path} cannot be written, the model is not valid: {_first_line(error)}") from error


def is_large(model: ir.Model) -> bool:
    """Whether what it has in memory is too much for one protocol buffer."""
    with _writable():
        in_memory = [tensor for tensor in tensors(model) if not isinstance(tensor, ir.ExternalTensor)]
        if sum(tensor.nbytes for tensor in in_memory) <= _LARGEST_PROTO:
            return False
        return sum(tensor.numpy().nbytes for tensor in in_memory) > _LARGEST_PROTO  # it may have less than it says


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


def tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Every tensor of the model: initializers, and attributes of nodes, those in functions too."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value
    for body in _bodies(model):
        for node in ir.traversal.RecursiveGraphIterator(body):
            for attribute in node.attributes.values():
                if attribute.type == ir.AttributeType.TENSOR and not attribute.is_ref():
                    yield attribute.as_tensor()
                elif attribute.type == ir.AttributeType.TENSORS and not attribute.is_ref():
                    yield from attribute.as_tensors()


def _sort(model: ir.Model) -> None:
    """Puts nodes into the order that ONNX demands and that rules count on, where they are not.

    Raises:
        ValueError: There is none: what a node computes is computed from itself, or a function calls itself. Inference
            of shapes crashes on such functions in onnx 1.17.
    """

    def is_sorted(graph: ir.Graph | ir.Function) -> bool:
        for node in graph:
            producers = (value.producer() for value in node.inputs if value is not None)
            if any(producer is not None and producer not in seen for producer in producers):
                return False
            if not all(map(is_sorted, _subgraphs(node))):
                return False
            seen.add(node)
        return True

    for body in _bodies(model):
        seen: set[ir.Node] = set()
        if not is_sorted(body):
            body.sort()

    calls = {
        name: {node.op_identifier() for node in ir.traversal.RecursiveGraphIterator(function)} & model.functions.keys()
        for name, function in model.functions.items()
    }
    try:
        list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        raise ValueError(f"the function {error.args[1][0][1]} calls itself") from error


def _bodies(model: ir.Model) -> list[ir.Graph | ir.Function]:
    return [model.graph, *model.functions.values()]


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def _check_external_data(model: ir.Model, folder: str | None) -> None:
    """Refuses external data outside of the model's folder, be it by way of a symbolic link, and no files.

    A model that somebody else made must not get at other files. What a program has put together itself, an ir.Model
    without a folder, may lie anywhere, as in onnx_ir.
    """
    checked: dict[tuple[str, str], int | None] = {}
    for tensor in tensors(model):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        if folder is not None:
            tensor.base_dir = folder or os.curdir  # onnx_ir leaves out functions, and checks nothing without a folder
        elif not tensor.base_dir:
            continue
        place = os.fspath(tensor.base_dir), os.fspath(tensor.location)
        if place not in checked:
            checked[place] = _size_of_external_data(*place)
        size, end = checked[place], (tensor.offset or 0) + (tensor.length or 0)
        if size is not None and end > size:
            raise DynqError(f"the external data {place[1]} have {size} bytes, but {tensor.name} ends at {end}")


def _size_of_external_data(folder: str, location: str) -> int | None:
    """The file's size; None if there is none: as long as nobody asks for its weights, a model may be without them."""
    try:
        path, real_folder = os.path.realpath(os.path.join(folder, location)), os.path.realpath(folder)
        if not location or os.path.commonpath((path, real_folder)) != real_folder:
            raise DynqError(
                f"the external data {location} lie outside of the model's folder {real_folder}; "
                "copy the file into it, and name it so in the model"
            )
        if not os.path.exists(path):
            return None
        if not os.path.isfile(path):
            raise DynqError(f"the external data {location} are not a file")
        return os.path.getsize(path)
    except (OSError, ValueError) as error:
        raise DynqError(f"the external data {location} cannot be found: {error}") from error


def _parse(serialized: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(serialized)
    except Exception as error:
        raise DynqError(f"the {len(serialized)} bytes are not an ONNX model: {error}") from error
    return model


def _name(model: Model) -> str:
    return os.fspath(model) if isinstance(model, str | os.PathLike) else f"the {type(model).__name__}"


def _first_line(error: BaseException) -> str:
    while isinstance(error, ir.serde.SerdeError) and error.__cause__ is not None:
        error = error.__cause__  # its own text is where it happened, not what
    return (str(error).strip() or type(error).__name__).splitlines()[0][:400]
