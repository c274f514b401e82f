"""Models from untrusted sources, and files that cannot be read or written: each works or is refused in one line.

More than 450 lines: the checks after each change of a model are the same for all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import unittest.mock
from pathlib import Path

import helpers
import hostile_models
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers import with_small_files
from onnx import numpy_helper

import ort_dynq
from ort_dynq import cli, expansion, runtime, storage
from ort_dynq.expansion import check_expansion
from ort_dynq.operators import VERSION
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.weights.grid import grid_of

WEIGHTS = np.arange(5, dtype=np.float32)
QUANTIZE = "z = Constant<value = int8 {0}>() m = Mul(x, weights) c = QuantizeLinear(m, s, z)"


def model_of(body: str = QUANTIZE) -> onnx.ModelProto:
    """A model with weights, and a QuantizeLinear with a scale as input."""
    model = helpers.parse("float[n, 5] x, float s", "int8[n, 5] c", body)
    del model.opset_import[1]
    model.graph.initializer.append(numpy_helper.from_array(WEIGHTS, "weights"))
    return model


def outsourced(model: onnx.ModelProto, location: str, **entries: int) -> onnx.ModelProto:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return model


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for the model, next to a file `secret` that the model must not read."""
    (tmp_path / "secret").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "data").write_bytes(WEIGHTS.tobytes())
    (tmp_path / "model" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "model" / "inner_link").symlink_to("data")
    os.mkfifo(tmp_path / "model" / "fifo")
    monkeypatch.chdir(tmp_path / "model")
    return tmp_path / "model"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Runs a command that must fail, and returns its error message. It must be one line, and no file may be written."""
    before = sorted(Path().iterdir())
    assert cli.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ort-dynq: error: ")
    assert captured.err.count("\n") == 1
    assert sorted(Path().iterdir()) == before
    return captured.err


# Fuzzing


def test_mutated_models(tmp_path: Path) -> None:
    """The corpus and the first mutated models after it."""
    fuzz(tmp_path, inputs=5)


@pytest.mark.exhaustive
def test_many_mutated_models(tmp_path: Path) -> None:
    """About two minutes; a number of models, so that every machine tries the same. hostile_models.py tries others."""
    fuzz(tmp_path, inputs=1200)


def fuzz(folder: Path, inputs: int) -> None:
    fuzzer = hostile_models.Fuzzer(seed=0, failures=folder)
    fuzzer.run(inputs, seconds=500)
    print(f"{fuzzer.inputs} models; {fuzzer.crashes_of_onnxruntime} of them crash stock ONNX Runtime")
    assert fuzzer.inputs >= min(inputs, 30)  # a slow machine may run out of seconds
    assert not fuzzer.problems


def test_cycles_and_recursion(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cycles of nodes and recursive functions are refused. Unsorted nodes are sorted."""
    cyclic = model_of("a = Cast<to = 1>(b) b = Cast<to = 1>(a) " + QUANTIZE)
    onnx.save(cyclic, "model.onnx")
    assert "topologically sorted" in refused(capsys, "inspect", "model.onnx")
    recursive = model_of("f = here.f(x) " + QUANTIZE)
    for name, callee in (("f", "g"), ("g", "f")):
        calls = [onnx.helper.make_node(callee, ["a"], ["b"], domain="here")]
        opsets = [onnx.helper.make_opsetid("here", 1), onnx.helper.make_opsetid("", 21)]
        recursive.functions.append(onnx.helper.make_function("here", name, ["a"], ["b"], calls, opsets))
    recursive.opset_import.append(onnx.helper.make_opsetid("here", 1))
    with pytest.raises(ort_dynq.DynqError, match=r"calls itself|recursive"):
        rewrite(recursive)
    nodes = model_of()
    unsorted = model_of()
    del unsorted.graph.node[:]
    unsorted.graph.node.extend(reversed(nodes.graph.node))
    found = rewrite(unsorted).to_proto()
    onnx.checker.check_model(found)  # also checks the order
    assert {node.op_type for node in found.graph.node} == {n.op_type for n in rewrite(nodes).to_proto().graph.node}


def nested(calls: int, levels: int, constant: int = 1) -> onnx.ModelProto:
    """A model of functions that each call the one before; the first has two nodes and a constant of so many floats."""
    model = helpers.parse("float[n] x", "float[n] y", f"y = here.f{levels - 1}(x)")
    opsets = [onnx.helper.make_opsetid("here", 1), onnx.helper.make_opsetid("", 21)]
    value = numpy_helper.from_array(np.zeros(constant, np.float32))
    nodes = [
        onnx.helper.make_node("Constant", [], ["c"], value=value),
        onnx.helper.make_node("Sum", ["x", "c"], ["y"]),
    ]
    for level in range(levels):
        model.functions.append(onnx.helper.make_function("here", f"f{level}", ["x"], ["y"], nodes, opsets))
        names = ["x", *(f"t{i}" for i in range(1, calls)), "y"]
        nodes = [onnx.helper.make_node(f"f{level}", [a], [b], domain="here") for a, b in itertools.pairwise(names)]
    model.opset_import[1].CopyFrom(opsets[0])
    return model


EXPANDING = {
    "nodes": (nested(2, 40), "become 2,199,023,255,550 nodes"),  # 2 + 2^2 + ... + 2^39 calls, and 2^39 * 2 nodes
    "constants": (nested(5, 8, 4096), "become 1,280,000,000 bytes of constants"),
}


@pytest.mark.parametrize("kind", EXPANDING)
def test_functions_that_expand(kind: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Functions are counted before anything inlines them, which would take hours and all memory."""
    model, text = EXPANDING[kind]
    onnx.save(model, "model.onnx")
    onnx.save(model_of(), "plain.onnx")
    for command in (
        "inspect model.onnx",
        "rewrite model.onnx -o out.onnx --verify",
        "quantize model.onnx -o out.onnx",
        "verify model.onnx plain.onnx",
        "verify plain.onnx model.onnx",
        "bench model.onnx",
        "bench plain.onnx model.onnx",
        "bench-quantize model.onnx",
        "bench model.onnx --report out.html",
    ):
        assert text in refused(capsys, *command.split())
    for given in (model, model.SerializeToString(), ir.from_proto(model)):
        with pytest.raises(ort_dynq.DynqError, match="with fewer calls of functions inside of functions"):
            ort_dynq.InferenceSession(given)


def test_functions_that_expand_just_enough() -> None:
    """As many nodes as allowed: the count is that of inlined nodes and calls."""
    model = nested(10, 3)
    check_expansion(loaded := ir.from_proto(model))
    nodes = 10 + 10 * 10 + 10 * 10 * 2
    options = ort.SessionOptions()
    for limit, refuses in ((nodes - 1, True), (nodes, False)):
        options.add_session_config_entry("session.function_expansion_node_limit", str(limit))
        with (
            unittest.mock.patch.object(expansion, "MAX_NODES", limit),
            pytest.raises(ort_dynq.DynqError, match=f"become {nodes} nodes") if refuses else contextlib.nullcontext(),
        ):
            check_expansion(loaded)
        if runtime.version() >= (1, 32):
            with pytest.raises(Exception, match="node expansion limit") if refuses else contextlib.nullcontext():
                ort.InferenceSession(model.SerializeToString(), options)


def test_wrong_value_info(folder: Path) -> None:
    """ONNX Runtime ignores a wrong shape in value_info. The rewriter must not rely on it, and must not keep it."""
    body = """m = Abs(x) r = ReduceMax<keepdims = 1>(m, last) d = Div(r, limit) q = Div(x, d) o = Round(q)
        k = Clip(o, low, limit) c = Cast<to = 3>(k) y = Mul(x, d)"""
    model = helpers.parse("float[2, 3, 5] x", "int8[2, 3, 5] c, float[2, 3, 5] y", body, opset=18)
    constants = {"limit": np.float32(127), "low": np.float32(-128), "last": np.array([-1])}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    del model.opset_import[1]
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, [2, 1]))
    result = rewrite(model, exact=True)
    assert [finding.operator for finding in result.report.findings] == ["RowProgram"]
    assert ort_dynq.verify(model, result.to_proto()).passed


def test_an_input_with_a_wrong_value_info() -> None:
    """The input keeps the shape that it declares."""
    model = model_of()
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4]))
    assert rewrite(model).to_proto().graph.input[0] == model.graph.input[0]


def test_lengths_that_nothing_has() -> None:
    """onnx's shape inference takes hours for them: with auto_pad, it subtracts strides from a length one by one."""
    model = helpers.parse("uint8[1, 1, H, 8] x", "int32[1, 1, H, 4] y", "a = Identity(x) y = ConvInteger(a, w)")
    model.graph.node[1].attribute.extend(
        [onnx.helper.make_attribute("auto_pad", "SAME_UPPER"), onnx.helper.make_attribute("strides", [2, 2])]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1, 3, 3), np.uint8), "w"))
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("a", onnx.TensorProto.UINT8, [1, 1, 1 << 60, 8]))
    assert rewrite(model).report.rewritten == []
    del model.graph.value_info[:]
    for dims in (model.graph.input[0].type.tensor_type.shape.dim, model.graph.output[0].type.tensor_type.shape.dim):
        dims[2].dim_value = 1 << 60
    assert rewrite(model).report.rewritten == []


@pytest.mark.parametrize("declared", [None, onnx.TensorProto.FLOAT])
def test_an_input_that_is_an_output_without_type(declared: int | None, folder: Path) -> None:
    """ONNX Runtime takes type and shape from the input. The rewritten model declares them, too."""
    model = model_of()
    model.graph.output.add(name="x")
    if declared is not None:
        model.graph.output[1].type.tensor_type.elem_type = declared
    onnx.save(model, "model.onnx")
    stock = helpers.stock_session(model)
    feeds = {"x": np.ones((2, 5), np.float32), "s": np.array(0.1, np.float32)}
    for source in ("model.onnx", model):
        session = helpers.make_session(rewrite(source).to_proto(), "native")
        for found, expected in zip(session.run(None, feeds), stock.run(None, feeds), strict=True):
            helpers.assert_same(found, expected)
        for found, expected in zip(session.get_inputs(), stock.get_inputs(), strict=True):
            assert (found.name, found.type, found.shape) == (expected.name, expected.type, expected.shape)


def test_a_node_without_outputs() -> None:
    model = model_of()
    model.graph.node.append(onnx.helper.make_node("Log", [model.graph.output[0].name], [], domain="here"))
    model.opset_import.append(onnx.helper.make_opsetid("here", 1))
    onnx.checker.check_model(model)
    assert rewrite(model).report.findings == rewrite(model_of()).report.findings != []


def test_a_model_without_standard_operators() -> None:
    model = model_of()
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("ort_dynq", VERSION))
    assert "opset 0" in rewrite(model).report.unconverted[0].reason


# External data


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("../secret", "have the location '../secret'"),
        ("{}/../secret", "have the location '/"),
        ("/etc/passwd", "have the location '/etc/passwd'"),
        ("C:secret", "have the location 'C:secret'"),
        ("there\\..\\data", r"have the location 'there\\..\\data'"),
        ("inner/../data", "have the location 'inner/../data'"),
        ("link", "lie outside of the model's folder"),
        ("", "have the location ''"),
        (".", "are not a file"),
        ("fifo", "are not a file"),
        ("\0", "cannot be found"),
    ],
)
def test_external_data_outside_of_the_folder(
    location: str, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_outside(location, message, "graph", folder, capsys)


@pytest.mark.parametrize("where", ["function", "branch"])
def test_external_data_of_a_constant(where: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check_outside("../secret", "have the location '../secret'", where, folder, capsys)


def check_outside(location: str, message: str, where: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = outsourced(model_of(), location.replace("{}", str(folder)))
    if where != "graph":  # a Constant with such a value
        model = model_of("m = Mul(x, weights) " + "z = Constant<value = int8 {0}>() c = QuantizeLinear(m, s, z)")
        tensor = outsourced(model_of(), location.replace("{}", str(folder))).graph.initializer[0]
        constant = onnx.helper.make_node("Constant", [], ["w"], value=tensor)
        if where == "function":
            opsets = [onnx.helper.make_opsetid("", 21)]
            body = onnx.helper.make_function("here", "f", ["a"], ["w"], [constant], opsets)
            model.functions.append(body)
            model.graph.node.append(onnx.helper.make_node("f", ["x"], ["unused"], domain="here"))
            model.opset_import.append(onnx.helper.make_opsetid("here", 1))
        else:
            graph = onnx.helper.make_graph(
                [constant], "branch", [], [onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [5])]
            )
            model.graph.node.append(
                onnx.helper.make_node("If", ["flag"], ["unused"], then_branch=graph, else_branch=graph)
            )
            model.graph.initializer.append(numpy_helper.from_array(np.array(True), "flag"))
    Path("model.onnx").write_bytes(model.SerializeToString())
    assert message in refused(capsys, "inspect", "model.onnx")
    assert message in refused(capsys, "rewrite", "model.onnx", "-o", "fast.onnx")
    for source in ("model.onnx", folder / "model.onnx", model):
        with pytest.raises(ort_dynq.DynqError, match=re.escape(message)):
            ort_dynq.InferenceSession(source)


def test_external_data_of_an_ir_model(folder: Path) -> None:
    model = ir.from_proto(outsourced(model_of(), "../secret"))
    rewrite(model)  # a model without a folder may have its data anywhere
    ir.external_data.set_base_dir(model.graph, folder)
    with pytest.raises(ort_dynq.DynqError, match=r"have the location '\.\./secret'"):
        rewrite(model)


def test_a_symbolic_link_within_the_folder(folder: Path) -> None:
    Path("model.onnx").write_bytes(outsourced(model_of(), "inner_link").SerializeToString())
    rewrite("model.onnx").save("fast.onnx")
    x, s = np.ones((2, 5), np.float32), np.array(0.1, np.float32)
    expected = helpers.stock_session(model_of()).run(None, {"x": x, "s": s})[0]
    assert (ort_dynq.InferenceSession("model.onnx").run(None, {"x": x, "s": s})[0] == expected).all()


@pytest.mark.parametrize("entries", [{"offset": 4, "length": 20}, {"length": 21}, {"offset": 1 << 40, "length": 20}])
def test_external_data_beyond_the_end(
    entries: dict[str, int], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("model.onnx").write_bytes(outsourced(model_of(), "data", **entries).SerializeToString())
    onnx.save(model_of(), "whole.onnx")
    for command in (
        ("inspect", "model.onnx"),
        ("verify", "model.onnx", "whole.onnx"),
        ("quantize", "model.onnx", "-o", "int8.onnx", "--verify"),
    ):
        assert "the external data ./data have 20 bytes, but weights ends at" in refused(capsys, *command)


def test_missing_external_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model can be inspected without data that no rule reads."""
    Path("model.onnx").write_bytes(outsourced(model_of(), "none").SerializeToString())
    expected = f"the external data of the model, its weights, are missing: there is no file {folder / 'none'}; copy it"
    assert cli.main(["inspect", "model.onnx"]) == 0
    assert expected in capsys.readouterr().out
    onnx.save(model_of(), "whole.onnx")
    for command in (
        ("rewrite", "model.onnx", "-o", "fast.onnx"),
        ("rewrite", "model.onnx", "-o", "fast.onnx", "--verify"),
        ("quantize", "model.onnx", "-o", "int8.onnx", "--allow-none"),
        ("verify", "model.onnx", "whole.onnx"),
        ("verify", "whole.onnx", "model.onnx"),
        ("bench", "model.onnx", "--report", "page.html"),
    ):
        assert expected in refused(capsys, *command)
    with pytest.raises(ort_dynq.DynqError, match=re.escape(expected)):
        ort_dynq.InferenceSession("model.onnx")


# Reading and writing files


def test_paths_that_are_not_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reading a FIFO would block, and writing would replace it."""
    onnx.save(model_of(), "model.onnx")
    for path in (".", "fifo", "/dev/null"):
        expected = "is a folder; give the model in it: model.onnx" if path == "." else "it is not a file"
        assert expected in refused(capsys, "inspect", path)
        assert expected in refused(capsys, "verify", path, "model.onnx")
    assert "fifo is not a file" in refused(capsys, "rewrite", "model.onnx", "-o", "fifo")
    with pytest.raises(ort_dynq.DynqError, match="fifo is not a file"):
        rewrite("model.onnx").save("fifo")
    assert Path("fifo").is_fifo()


def test_names_that_are_not_utf8(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = os.fsdecode(b"mod\xff\n.onnx")
    onnx.save(model_of(), name)
    assert cli.main(["inspect", name]) == 0
    assert cli.main(["rewrite", name, "-o", f"fast {name}", "--json"]) == 0
    assert Path(f"fast {name}").is_file()
    capsys.readouterr()
    assert "\\udcff" in refused(capsys, "inspect", f"none {name}")


def without_override(code: str) -> subprocess.CompletedProcess[str]:
    """Runs Python as a process that is subject to file permissions even if the user is root."""
    command = [sys.executable, "-c", code]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("setpriv is not installed, and file permissions do not apply to root")
        command = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", *command]
    return subprocess.run(command, capture_output=True, text=True, env=hostile_models.environment())


def test_folders_and_files_without_permission(folder: Path) -> None:
    onnx.save(model_of(), "model.onnx")
    Path("closed").mkdir(mode=0o555)
    done = without_override("""if True:
        from pathlib import Path
        from ort_dynq import cli
        assert cli.main("rewrite model.onnx -o closed/fast.onnx --no-timing".split()) == 2
        Path().chmod(0o555)  # like a read-only medium
        assert cli.main("inspect model.onnx -q".split()) == 0""")
    folder.chmod(0o755)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "ort-dynq: error: closed/fast.onnx cannot be written: Permission denied\n"


@pytest.mark.parametrize("external", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_a_full_disk(external: bool, folder: Path) -> None:
    """No partly written file of the model or its external data remains."""
    model = model_of()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(50_000, np.float32), "padding"))
    onnx.save(model, "model.onnx", save_as_external_data=external, location="weights", size_threshold=0)
    Path("elsewhere").mkdir()
    command = [sys.executable, "-m", "ort_dynq", "rewrite", "model.onnx", "-o", "elsewhere/fast.onnx", "--no-timing"]
    command = with_small_files(command, 195)
    done = subprocess.run(command, capture_output=True, text=True, env=hostile_models.environment())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "ort-dynq: error: elsewhere/fast.onnx cannot be written: File too large\n"
    assert not list(Path("elsewhere").iterdir())


# Large models


@pytest.fixture
def small_protos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lowers the limit of protocol buffers from 2 GB to 100 bytes."""
    monkeypatch.setattr(storage, "_MAX_PROTO", 100)


@pytest.mark.usefixtures("small_protos")
def test_weights_beyond_a_protocol_buffer(folder: Path) -> None:
    model = model_of()
    model.graph.initializer.append(numpy_helper.from_array(np.arange(500, dtype=np.float32), "padding"))
    onnx.save(model, "model.onnx")
    rewrite("model.onnx").save("fast.onnx")
    (data,) = Path().glob("fast.onnx.*")
    assert data.stat().st_size >= 2000
    assert not list(Path().glob(".fast*"))
    assert ort_dynq.verify("model.onnx", "fast.onnx").passed
    feeds = {"x": np.ones((2, 5), np.float32), "s": np.array(0.1, np.float32)}
    expected = helpers.stock_session(model).run(None, feeds)[0]
    assert (ort_dynq.InferenceSession("model.onnx").run(None, feeds)[0] == expected).all()

    # The result of the second rewrite still refers to the data of the first.
    before = data.read_bytes()
    result = rewrite("fast.onnx")
    result.model.graph.register_initializer(
        ir.Value(name="more", const_value=ir.tensor(np.ones(500, np.float32), name="more"))
    )
    result.save("fast.onnx")
    assert data.read_bytes() == before
    assert ort_dynq.verify("model.onnx", "fast.onnx").passed


def test_weights_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grid of a matrix does not depend on the size of the blocks."""
    rng = np.random.default_rng(0)
    codes = rng.integers(-127, 128, (33, 20))
    codes[0], codes[:, 7] = 127, rng.integers(0, 256, 33)
    codes[0, 7] = 255
    weights = (codes * rng.uniform(0.001, 0.02, 20).astype(np.float32)).astype(np.float32)
    whole = grid_of(weights)
    monkeypatch.setattr("ort_dynq.rewriter.weights.grid._BLOCK", 100)
    parts = grid_of(weights)
    assert whole is not None
    assert parts is not None
    assert (whole.codes == parts.codes).all()
    assert (parts.codes - parts.zero_point.astype(np.int32) == codes).all()
    assert (parts.scale == whole.scale).all()
    assert (parts.sums == codes.sum(0)).all()
    weights[5, 18] += np.float32(1e-6)
    assert grid_of(weights) is None


@pytest.mark.skipif("ORT_DYNQ_HUGE" not in os.environ, reason="takes 5 GB and a minute; ORT_DYNQ_HUGE=1 runs it")
@pytest.mark.parametrize("shape", [(2**31 + 5,), (2, 2**30 + 5)])
def test_more_than_2_31_elements(shape: tuple[int, ...]) -> None:
    """Zeros except for the first and the last element of each row. Zeros take no memory until they are written."""
    x = np.zeros(shape, np.float32)
    x[..., 0], x[..., -1] = -1, 2
    body = """m = Abs(x) r = ReduceMax<keepdims = 1>(m, last) d = Div(r, limit) q = Div(x, d) o = Round(q)
        k = Clip(o, low, limit) c = Cast<to = 3>(k)"""
    dims = "n" if len(shape) == 1 else "m, n"
    model = helpers.parse(f"float[{dims}] x", f"int8[{dims}] c", body, opset=18)
    constants = {"limit": np.float32(127), "low": np.float32(-128), "last": np.array([-1])}
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items())
    result = rewrite(model)
    assert [finding.operator for finding in result.report.findings] == ["RowProgram"]
    dynamic = helpers.parse("float[] x, float s, int8 z", "int8[] c", "c = ort_dynq.DynamicQuantize(x, s, z)")
    feeds = {"x": x}
    for session in (
        helpers.make_session(result.to_proto(), "native", threads=2),
        helpers.make_session(dynamic, "native", threads=2),
    ):
        codes = session.run(None, feeds)[0]
        assert codes.shape == shape
        assert (codes[..., 0] == -64).all()
        assert (codes[..., -1] == 127).all()
        codes[..., 0] = codes[..., -1] = 0
        assert not codes.any()
        del codes
        feeds = {"x": x, "s": np.array(2 / 127, np.float32), "z": np.array(0, np.int8)}


# Reproducible output


@pytest.mark.parametrize("step", [32, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_the_same_bytes_in_two_processes(step: int) -> None:
    """The output does not depend on the order of Python's sets. Rewrites every `step`-th model, here and elsewhere."""
    script = (
        "import hashlib, pathlib, sys\n"
        "from ort_dynq.rewriter import rewrite\n"
        "for path in map(pathlib.Path, sys.argv[1:]):\n"
        "    proto = rewrite(path).to_proto()\n"
        "    print(path.parent.name, hashlib.sha256(proto.SerializeToString()).hexdigest())\n"
    )
    paths = sorted((hostile_models.ROOT / "models").glob("*/model.onnx"))[::step]
    paths.append(hostile_models.ROOT / "models" / "straight_through" / "model.onnx")  # it has three programs
    command = [sys.executable, "-W", "ignore", "-c", script, *map(str, paths)]
    other = {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    environment = {**hostile_models.environment(), **other}
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.splitlines()
    assert len(found) == len(paths) > 5
    assert found == [
        f"{path.parent.name} {hashlib.sha256(rewrite(path).to_proto().SerializeToString()).hexdigest()}"
        for path in paths
    ]
