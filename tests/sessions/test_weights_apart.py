"""Large weights stay in the buffer of their file, and sessions read them where they are: nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ort_dynq import runtime, serialized
from ort_dynq.errors import DynqError
from ort_dynq.storage import ModelFile, load, to_proto
from ort_dynq.tools.measuring.sessions import FEW_RUNS, open_session

N = 32  # a weight of N x N bytes or more is large


def parts() -> list[onnx.TensorProto]:
    """Large tensors of each kind: arrays that stay apart, and others."""
    rng = np.random.default_rng(3)
    codes = rng.integers(-8, 8, (N + 1, N))
    types = (np.float32, np.float16, np.int8, np.uint8, np.int64, np.float64, np.bool_)
    found = [numpy_helper.from_array(codes.astype(dtype), np.dtype(dtype).name) for dtype in types]
    found.append(helper.make_tensor("typed", TensorProto.FLOAT, codes.shape, codes.astype(np.float32).ravel()))
    found.append(helper.make_tensor("int4", TensorProto.INT4, (2 * N, 2 * N), rng.integers(-8, 8, 4 * N * N)))
    small = numpy_helper.from_array(np.float32([1, 2]), "small")
    return [found[0], small, *found[1:]]


def model() -> onnx.ModelProto:
    """A model that reads all of them, one in a branch."""
    tensors = parts()
    nodes = [helper.make_node("Cast", [each.name], [f"y_{each.name}"], to=TensorProto.FLOAT) for each in tensors]
    branch = helper.make_graph(
        [helper.make_node("Neg", ["float32"], ["n"])], "b", [], [helper.make_empty_tensor_value_info("n")]
    )
    nodes.append(helper.make_node("If", ["flag"], ["y_branch"], then_branch=branch, else_branch=branch))
    outputs = [helper.make_empty_tensor_value_info(name) for node in nodes for name in node.output]
    inputs = [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def arrays(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in proto.graph.initializer}


def merged(proto: onnx.ModelProto) -> bytes:
    """The model in two messages one after the other, which a reader merges, with fields that no version knows."""
    first, second = onnx.ModelProto(), onnx.ModelProto()
    first.CopyFrom(proto)
    del first.graph.initializer[3:]
    second.graph.initializer.extend(list(proto.graph.initializer)[3:])
    unknown = bytes([0xF8, 0x3F, 0x96, 0x01, 0xF9, 0x3F, *range(8), 0xFD, 0x3F, *range(4), 0xFA, 0x3F, 2, 1, 2])
    return first.SerializeToString() + unknown + second.SerializeToString()


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("is_merged", [False, True])
def test_loaded_weights(tmp_path: Path, is_merged: bool, kept: bool) -> None:
    path, proto = tmp_path / "m.onnx", model()
    path.write_bytes(merged(proto) if is_merged else proto.SerializeToString())
    found = arrays(to_proto(load(ModelFile(path) if kept else path)))
    assert found.keys() == arrays(proto).keys()
    for name, expected in arrays(proto).items():
        np.testing.assert_array_equal(found[name], expected)
        assert found[name].dtype == expected.dtype
    content, apart = serialized.without_weights(memoryview(path.read_bytes()))
    assert len(apart) == 7
    assert len(content) < path.stat().st_size - sum(map(len, apart.values())) + 7 * 40


def test_tensors_that_are_no_arrays_stay_in_the_model() -> None:
    """Bytes that contradict a shape, and two tensors of one name."""
    proto = model()
    proto.graph.initializer[0].dims[0] += 1
    proto.graph.initializer[2].name = proto.graph.initializer[3].name
    content, apart = serialized.without_weights(memoryview(proto.SerializeToString()))
    read = onnx.ModelProto.FromString(content)
    assert len(apart) - len(serialized.put_back(read, apart)) == 6  # also int64, double and bool
    read.graph.initializer[4].CopyFrom(proto.graph.initializer[4])
    assert read == proto


@pytest.mark.parametrize("count", [1, 7, 1000, -1])
def test_cut_file(tmp_path: Path, count: int) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(model().SerializeToString()[:count])
    with pytest.raises(DynqError, match="is not an ONNX model"):
        load(path)


def test_numbers_end() -> None:
    """A number of a million bytes would take hours."""
    content = bytes([0x3A]) + b"\x80" * 1_000_000
    assert serialized.without_weights(memoryview(content)) == (content, {})


def test_references_stay_as_they_are() -> None:
    """A tensor with bytes of its own and a reference to a file is not valid: what checks references sees it."""
    proto = model()
    proto.graph.initializer[0].external_data.add(key="location", value="../other")
    _, apart = serialized.without_weights(memoryview(proto.SerializeToString()))
    assert len(apart) == 6
    assert 0 not in apart


@pytest.mark.parametrize("kind", ["file", "model"])
def test_session_reads_lent_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(serialized, "_WORTHWHILE", 0)
    path, proto = tmp_path / "m.onnx", model()
    path.write_bytes(proto.SerializeToString())
    expected = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"flag": np.array(True)})
    file = ModelFile(path)
    loaded = load(file)
    path.write_bytes(b"another")  # sessions see what was read
    given = file if kind == "file" else loaded
    lent: list[str] = []
    lend = runtime.LentOptions.lend
    monkeypatch.setattr(runtime.LentOptions, "lend", lambda self, found: (lent.extend(found), lend(self, found))[1])
    for optimize in (False, True):
        session = open_session(given, "A", optimize=optimize)
        for a, b in zip(session.run(None, {"flag": np.array(True)}), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    assert lent == 2 * ["float32", "float16", "int8", "uint8"]


@pytest.mark.parametrize("kind", ["file", "model"])
def test_session_of_few_runs_reads_weights_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """They are inputs that the session gives itself, and begin where kernels can read them, in the file anywhere."""
    monkeypatch.setattr(serialized, "_WORTHWHILE", 0)
    path, proto = tmp_path / "m.onnx", model()
    path.write_bytes(proto.SerializeToString())
    expected = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"flag": np.array(True)})
    file = ModelFile(path)
    session = open_session(file if kind == "file" else load(file), "A", entries=FEW_RUNS)
    assert isinstance(session, runtime.Fed)
    assert [each.name for each in session.get_inputs()] == ["flag"]
    assert session._weights.keys() == {"float32", "float16", "int8", "uint8"}
    assert all(value.data_ptr() % 4 == 0 for value in session._weights.values())
    if kind == "file":
        own = {array.ctypes.data for array in file._read[1].weights.values()}
        assert {value.data_ptr() for value in session._weights.values()} <= own
    for a, b in zip(session.run(None, {"flag": np.array(True)}), expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_weights_that_must_be_constant(tmp_path: Path) -> None:
    """A session of few runs that needs its weights when it is opened copies them, as others do."""
    weights = np.arange(512 * 1024, dtype=np.float32).reshape(1024, 512)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        *("g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1024])]),
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 512])],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)

    def refuse(*_: object) -> None:
        raise RuntimeError("it must be a constant")

    x = np.ones((1, 1024), np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runtime.Fed, "__init__", refuse)
        session = open_session(ModelFile(path), "A", entries=FEW_RUNS)
    assert not isinstance(session, runtime.Fed)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], x @ weights, rtol=1e-5)


@pytest.mark.parametrize("optimize", [False, True])
def test_weights_that_no_node_reads(tmp_path: Path, optimize: bool) -> None:
    """onnxruntime removes an initializer that nothing reads, and refuses one that a session gets in its place."""
    weights = {name: np.full((N, N), i, np.float32) for i, name in enumerate(("read", "unread", "output"))}
    graph = helper.make_graph(
        [helper.make_node("Neg", ["read"], ["y"])],
        *("g", [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, [N, N]) for name in ("y", "output")]),
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    session = open_session(ModelFile(path), "A", optimize=optimize)
    y, output = session.run(None, {})
    np.testing.assert_array_equal(y, -weights["read"])
    np.testing.assert_array_equal(output, weights["output"])
