"""Reads the data on which two models are compared: one or several sets of inputs, from files or from arrays.

An NPZ file has an array for each input, by name. It is one set. If each array has one dimension more than its input,
the first dimension counts the sets. A folder has input_0.pb, input_1.pb, ... (one set), folders test_data_set_0,
test_data_set_1, ... with such files, as the ONNX backend test suite has them, or NPZ files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx
import onnx.numpy_helper

from ...errors import DynqError
from ...inputs import Array, Input, make_feeds, resolve_inputs

if TYPE_CHECKING:
    from ...storage import Model

Source = str | os.PathLike[str] | Mapping[str, Array] | Sequence[Mapping[str, Array]]
"""A path; arrays by the name of the input, as an NPZ file has them; or one such mapping for each set."""

_LAYOUTS = "input_0.pb, test_data_set_0 or .npz files"


class Declared(NamedTuple):
    """An input as a session has it. The session's own objects would keep the session, and its weights, in memory."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True)
class Data:
    """Sets of inputs.

    Attributes:
        sets: The values of all inputs, by name, for each set; at least one set.
        inputs: The inputs, with the types and shapes of the first set.
        seed: The seed of generated values.
    """

    sets: tuple[Mapping[str, Array], ...]
    inputs: tuple[Input, ...]
    seed: int = 0

    @property
    def is_generated(self) -> bool:
        """Whether values of an input are generated."""
        return not all(each.given for each in self.inputs)


def load_data(
    source: Source | None,
    declared: Sequence[Any],
    *,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    seed: int = 0,
) -> Data:
    """Returns the data of a path or of arrays, checked; without these, one set of generated data.

    Args:
        source: The data; None to generate them.
        declared: The inputs of a session.
        inputs: Without a source: values of inputs, by name. Others are generated.
        shapes: Without a source: shapes of generated inputs, by name.
        seed: The seed of generated values.

    Raises:
        DynqError: A file cannot be read, or an array does not fit the model's inputs.
    """
    if source is None:
        given = dict(inputs or {})
        resolved = resolve_inputs(declared, given, shapes or {})
        return Data((make_feeds(resolved, given, seed, zero_rows=False),), tuple(resolved), seed)
    if inputs or shapes:
        raise DynqError("the data give the values and shapes of all inputs; give no other inputs or shapes with them")
    parts = [_part(*part, declared) for part in _sources(source, [each.name for each in declared])]
    sets = [each for part, _ in parts for each in part]
    if not sets:
        raise DynqError("the data have no sets of inputs, expected at least one")
    return Data(tuple(sets), next(tuple(found) for _, found in parts if found))


def declared_inputs(model: Model) -> list[Declared]:
    """Returns the inputs of a model as a session has them.

    Raises:
        DynqError: It is not a model.
    """
    from ...storage import load

    graph = load(model).graph
    return [
        Declared(
            str(value.name),
            "" if value.dtype is None else f"tensor({value.dtype.name.lower()})",
            [size if isinstance(size, int) else size.value for size in value.shape or ()],
        )
        for value in graph.inputs
        if value.name not in graph.initializers
    ]


def read_tensors(folder: Path, names: Sequence[str]) -> dict[str, Array]:
    """Reads input_0.pb, ... of a folder. Tensors without the names of inputs are taken in the order of the inputs.

    Args:
        folder: The folder.
        names: The names of the model's inputs.

    Raises:
        DynqError: A file is not a tensor.
    """
    tensors = [_read_tensor(file) for file in _in_order(folder.glob("input_*.pb"))]
    if not {name for name, _ in tensors} <= {*names}:
        return {name: array for name, (_, array) in zip(names, tensors, strict=False)}
    return dict(tensors)


def _sources(source: Source, names: Sequence[str]) -> Iterable[tuple[str, Mapping[str, Array]]]:
    """Yields the arrays of each part of the data, with a name for messages."""
    if isinstance(source, Mapping):
        yield "the data", source
    elif isinstance(source, str | os.PathLike):
        yield from _files(Path(source), names)
    elif not isinstance(source, Sequence):
        raise DynqError(f"the data are a {type(source).__name__}, expected a path, arrays by name, or a list of these")
    else:
        for i, each in enumerate(source):
            if not isinstance(each, Mapping):
                raise DynqError(f"set {i} of the data is a {type(each).__name__}, expected arrays by the input's name")
            yield f"set {i} of the data", each


def _files(path: Path, names: Sequence[str]) -> Iterable[tuple[str, Mapping[str, Array]]]:
    if path.is_file():
        yield str(path), _read_npz(path)
        return
    if not path.is_dir():
        raise DynqError(f"there is no file or folder {path} with data")
    recorded = [folder for folder in _in_order(path.glob("test_data_set_*")) if folder.is_dir()]
    if not recorded and any(path.glob("input_*.pb")):
        recorded = [path]
    for folder in recorded:
        yield str(folder), read_tensors(folder, names)
    files = [] if recorded else _in_order(path.glob("*.npz"))
    for file in files:
        yield str(file), _read_npz(file)
    if not recorded and not files:
        raise DynqError(f"the folder {path} has no data, expected {_LAYOUTS}")


def _in_order(paths: Iterable[Path]) -> list[Path]:
    """Sorts names with numbers: test_data_set_10 follows test_data_set_9."""
    return sorted(paths, key=lambda path: (len(path.name), path.name))


def _read_tensor(file: Path) -> tuple[str, Array]:
    try:
        proto = onnx.TensorProto.FromString(file.read_bytes())
        return proto.name, onnx.numpy_helper.to_array(proto)
    except Exception as error:  # the type depends on the version of protobuf
        raise DynqError(f"{file} is not a tensor: {error}") from error


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        with path.open("rb") as file:  # numpy does not close a file that it cannot read
            found = np.load(file, allow_pickle=False)
            arrays = None if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except Exception as error:  # of zipfile, zlib or numpy
        raise DynqError(f"{path} is not an NPZ file of arrays: {error}") from error
    if arrays is None:
        raise DynqError(f"{path} is one array without a name; save it with numpy.savez(path, name_of_the_input=array)")
    return arrays


def _split(arrays: Mapping[str, Array], declared: Sequence[Any]) -> list[Mapping[str, Array]]:
    """Returns the sets of arrays that all have one more dimension than their inputs, or else the arrays as one set."""
    ranks = {each.name: len(each.shape) for each in declared}
    if not arrays or any(np.ndim(array) != ranks.get(name, -2) + 1 for name, array in arrays.items()):
        return [arrays]
    counts = {len(array) for array in arrays.values()}
    if len(counts) > 1:
        listed = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
        raise DynqError(f"the arrays have different numbers of sets: {listed}")
    return [{name: np.asarray(array[i]) for name, array in arrays.items()} for i in range(counts.pop())]


def _part(
    place: str, arrays: Mapping[str, Array], declared: Sequence[Any]
) -> tuple[list[Mapping[str, Array]], list[Input]]:
    """Returns the sets of one part of the data, and the inputs of the first one.

    Raises:
        DynqError: An input is missing, or an array does not fit the model.
    """
    try:
        sets = _split(arrays, declared)
        inputs = [resolve_inputs(declared, each, {}) for each in sets]
        if missing := [each.name for found in inputs for each in found if not each.given]:
            raise DynqError(f"there are no values for the input {missing[0]}; there are {', '.join(arrays) or 'none'}")
    except DynqError as error:
        raise DynqError(f"{place}: {error}") from error
    return sets, inputs[0] if inputs else []
