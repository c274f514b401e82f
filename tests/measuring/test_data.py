"""Data sets from files and arrays, and one-line errors for data that do not fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import Array, parse, stock_session
from onnx import numpy_helper

from ort_dynq import DynqError
from ort_dynq.tools.measuring.data import Data, load_data

SESSION = stock_session(
    parse("float[n, 3] x, int64[n] ids, bool flag", "float[n, 3] y", "y = Identity(x) z = Identity(ids) f = Not(flag)")
)


def values(n: int = 2, seed: int = 0) -> dict[str, Array]:
    x = np.random.default_rng(seed).standard_normal((n, 3), np.float32)
    return {"x": x, "ids": np.arange(n), "flag": np.array(seed % 2 == 0)}


def load(source: Any, **arguments: Any) -> Data:
    return load_data(source, SESSION.get_inputs(), **arguments)


def check(found: Data, *expected: dict[str, Array]) -> None:
    assert not found.is_generated
    assert len(found.sets) == len(expected)
    for p, q in zip(found.sets, expected, strict=True):
        assert p.keys() == q.keys()
        assert all(np.array_equal(p[name], q[name]) and isinstance(p[name], np.ndarray) for name in q)
    assert [each.shape for each in found.inputs] == [expected[0][each.name].shape for each in found.inputs]


def stacked(*sets: dict[str, Array]) -> dict[str, Array]:
    return {name: np.stack([each[name] for each in sets]) for name in sets[0]}


def write_tensors(folder: Path, arrays: dict[str, Array], *, names: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i, (name, array) in enumerate(arrays.items()):
        tensor = numpy_helper.from_array(array, name if names else None)
        (folder / f"input_{i}.pb").write_bytes(tensor.SerializeToString())


def test_arrays() -> None:
    check(load(values()), values())
    check(load([values(2), values(5, 1)]), values(2), values(5, 1))
    check(load(stacked(values(2), values(2, 1))), values(2), values(2, 1))


def test_npz(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", **values())
    check(load(tmp_path / "one.npz"), values())
    np.savez(tmp_path / "one.npz", **stacked(values(4), values(4, 1)))
    check(load(str(tmp_path / "one.npz")), values(4), values(4, 1))
    np.savez(tmp_path / "two10.npz", **values(1, 3))
    np.savez(tmp_path / "two9.npz", **values(1, 2))
    check(load(tmp_path), values(4), values(4, 1), values(1, 2), values(1, 3))


@pytest.mark.parametrize("names", [True, False])
def test_folders_of_the_backend_suite(tmp_path: Path, names: bool) -> None:
    write_tensors(tmp_path / "one", values(), names=names)
    check(load(tmp_path / "one"), values())
    for number in (0, 2, 10):
        write_tensors(tmp_path / "all" / f"test_data_set_{number}", values(2, number), names=names)
    check(load(tmp_path / "all"), values(2, 0), values(2, 2), values(2, 10))


def test_without_a_source_data_are_generated() -> None:
    found = load(None, inputs={"flag": np.array(True)}, shapes={"x": (7, 3)}, seed=3)
    assert found.is_generated
    assert [each.shape for each in found.inputs] == [(7, 3), (7,), ()]
    assert {*found.sets[0]["ids"]} <= {0, 1}
    again = load(None, inputs={"flag": np.array(True)}, shapes={"x": (7, 3)}, seed=3)
    assert np.array_equal(found.sets[0]["x"], again.sets[0]["x"])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({**values(), "x": values()["x"].astype(np.float64)}, "the data: the input x is float64, expected float32"),
        ({**values(), "ids": np.arange(2, dtype=np.int32)}, "the data: the input ids is int32, expected int64"),
        ({**values(), "x": np.zeros((2, 4), np.float32)}, "the data: the input x has shape [2, 4], expected [n, 3]"),
        ({**values(), "labels": np.zeros(2)}, "the data: the model has no input labels; it has x, ids, flag"),
        ({"x": values()["x"], "ids": np.arange(2)}, "no values for the input flag; there are x, ids"),
        ({}, "no values for the input x; there are none"),
        ({**values(), "x": [1, 2]}, "the data: the input x is a list, expected a NumPy array"),
        ({**stacked(values(2), values(2)), "ids": np.zeros((3, 2), np.int64)}, "different numbers of sets: x 2, ids 3"),
        ({name: array[None][:0] for name, array in values().items()}, "the data have no sets of inputs"),
        ([], "the data have no sets of inputs"),
        ([values(), 5], "set 1 of the data is a int, expected arrays by the input's name"),
        ([values(), {"x": values()["x"]}], "set 1 of the data: there are no values for the input ids"),
        (5, "the data are a int, expected a path, arrays by name, or a list of these"),
    ],
)
def test_wrong_arrays(source: Any, message: str) -> None:
    with pytest.raises(DynqError, match=re.escape(message)) as caught:
        load(source)
    assert "\n" not in str(caught.value)


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty").mkdir()
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "input_0.pb").write_bytes(b"no tensor")
    np.save(tmp_path / "array.npy", np.zeros(3))
    np.savez(tmp_path / "object.npz", x=np.array([{}], dtype=object))
    np.savez(tmp_path / "whole.npz", **values())
    content = (tmp_path / "whole.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(content[: len(content) // 2])
    for name, message in (
        ("none", "there is no file or folder"),
        ("text.npz", "is not an NPZ file"),
        ("cut.npz", "is not an NPZ file"),
        ("object.npz", "is not an NPZ file"),
        ("array.npy", "is one array without a name; save it with numpy.savez"),
        ("empty", "has no data, expected input_0.pb, test_data_set_0 or .npz files"),
        ("wrong", "input_0.pb is not a tensor"),
    ):
        with pytest.raises(DynqError, match=message) as caught:
            load(tmp_path / name)
        assert name in str(caught.value)
        assert "\n" not in str(caught.value)


def test_sequences_are_no_tensors(tmp_path: Path) -> None:
    sequence = numpy_helper.from_list([np.zeros(3, np.float32)])
    (tmp_path / "input_0.pb").write_bytes(sequence.SerializeToString())
    with pytest.raises(DynqError):
        load(tmp_path)
    assert isinstance(sequence, onnx.SequenceProto)


def test_data_go_without_other_inputs() -> None:
    with pytest.raises(DynqError, match="give no other inputs or shapes"):
        load(values(), shapes={"x": (2, 3)})
