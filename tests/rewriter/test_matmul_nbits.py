"""MatMulNBits, as onnxruntime-genai's builder and MatMulNBitsQuantizer write it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from helpers import assert_same, every, stock_session
from nbits import in_blocks, make, noise, rewritten, run
from onnx import TensorProto, helper, numpy_helper

import ort_dynq
from ort_dynq import storage
from ort_dynq.rewriter.reasons import Reason

CASES: list[dict[str, Any]] = [
    dict(zip(("bits", "block_size", "zero_points"), given, strict=True))
    for given in itertools.product((4, 8), (16, 32, 128), ("uint8", None))
]
CASES += [
    {"bits": 2},
    {"bits": 2, "zero_points": None, "depth": 90},
    {"block_size": 256, "depth": 512},
    {"depth": 100},
    {"depth": 101, "bits": 8},
    {"depth": 77, "block_size": 128},
    {"depth": 77, "block_size": 128, "bits": 8},
    {"with_bias": True},
    {"half": True, "with_bias": True},
    {"half": True, "depth": 100},
    {"lead": (), "depth": 256, "columns": 260},
    {"lead": (100,), "columns": 17},
    {"lead": (3, 1, 16), "columns": 17},
    {"order": "trivial"},
    {"is_flat": False},
    {"narrow_scales": True},
    {"columns": 516, "half": True, "zero_points": "float"},
    {"columns": 516, "bits": 2, "zero_points": "fraction"},
    {"columns": 660, "depth": 100, "zero_points": "fraction", "with_bias": True},
    {"columns": 860, "depth": 77, "block_size": 128, "zero_points": "fraction"},
]


@pytest.mark.parametrize("given", every(2, CASES), ids=str)
def test_result(given: dict[str, Any]) -> None:
    """It is the product with each block quantized as by DynamicQuantizeLinear, and needs no plugin."""
    case = make(**given)
    model = rewritten(case)
    with_plugin = run(model, case.x)
    without = np.asarray(stock_session(model).run(None, {"x": case.x})[0])
    assert_same(with_plugin, without)
    few = slice(0, 7)  # DynamicQuantizeLinear takes one block at a time
    if case.x.ndim == 2:
        assert_same(with_plugin[few], in_blocks(case.of(case.x[few])))


@pytest.mark.parametrize("given", every(2, CASES, 1), ids=str)
def test_accuracy(given: dict[str, Any]) -> None:
    """It is closer to the product of the dequantized weights than ONNX Runtime's level 4.

    With float zero points, ONNX Runtime has float activations, and ours are of two terms.
    """
    case = make(**given)
    case = case.of(np.random.default_rng(0).normal(0, 1, case.x.shape).astype(case.x.dtype))
    stock = np.asarray(stock_session(case.model).run(None, {"x": case.x})[0])
    result = run(rewritten(case), case.x)
    assert result.dtype == stock.dtype
    ours, theirs = noise(result, case.reference), noise(stock, case.reference)
    if given.get("zero_points") in ("float", "fraction"):
        assert ours > (70 if case.x.dtype == np.float16 else 88)
        return
    assert ours > 35
    if case.x.ndim > 1:  # the noise of one row is chance
        assert ours > theirs


@pytest.mark.parametrize("given", [{}, {"depth": 300}, {"half": True, "with_bias": True}, {"bits": 8}], ids=str)
def test_two_terms(given: dict[str, Any]) -> None:
    """Two codes for each element of an activation are nearly as accurate as floats, and need no plugin."""
    case = make(**{"depth": 256, "columns": 260, "level": 0, **given})
    model = rewritten(case, weights_only="two-term")
    result = run(model, case.x)
    assert_same(result, np.asarray(stock_session(model).run(None, {"x": case.x})[0]))
    stock = np.asarray(stock_session(case.model).run(None, {"x": case.x})[0])
    assert noise(result, case.reference) > min(88, noise(stock, case.reference) - 0.5)
    assert ort_dynq.verify(case.model, model).passed


def test_level_4_has_two_terms_only_if_asked() -> None:
    """Two terms give the same result at each level: that of float activations, nearly."""
    given: dict[str, Any] = {"depth": 256, "columns": 260}
    case = make(**given)
    two_terms = run(rewritten(case, weights_only="two-term"), case.x)
    assert_same(two_terms, run(rewritten(make(**given, level=0), weights_only="two-term"), case.x))
    assert noise(two_terms, case.reference) > 88 > noise(run(rewritten(case), case.x), case.reference)


def test_activation_is_exact_on_a_grid() -> None:
    """An activation of whole codes, with 0 and 255 in each block, is not rounded: the product is exact."""
    case = make(block_size=16, depth=64, lead=(50,))
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (50, 64)).astype(np.float32)
    x[:, ::16], x[:, 1::16] = 0, 255
    reference = x.astype(np.float64) @ case.dequantized
    np.testing.assert_allclose(run(rewritten(case), x), reference, rtol=0, atol=1e-6 * np.abs(reference).max())


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite(special: float) -> None:
    """They do not change the other rows; an infinity makes its own row NaN."""
    case = make()
    model = rewritten(case)
    x = case.x.copy()
    x[1, 5, 40] = special
    result, expected = run(model, x), run(model, case.x)
    others = np.ones(x.shape[:-1], np.bool_)
    others[1, 5] = False
    assert_same(result[others], expected[others])
    assert_same(result, np.asarray(stock_session(model).run(None, {"x": x})[0]))
    if np.isinf(special):
        assert np.isnan(result[1, 5]).all()


def test_products_of_one_activation_share_its_codes() -> None:
    """Products of the same weights share these, too."""
    case = make(depth=100)
    add_node(case.model, "second", "z")
    kinds = [node.op_type for node in ort_dynq.rewrite(case.model).to_proto().graph.node]
    assert kinds.count("RowProgram") == 1
    assert kinds.count("Pad") == 1
    assert kinds.count("QuantizedMatMul") == 2
    model = ort_dynq.rewrite(case.model).to_proto()
    calls = [node for node in model.graph.node if node.op_type == "QuantizedMatMul"]
    assert calls[0].input[:7] == calls[1].input[:7]


def test_branches_share_weights() -> None:
    """Packed weights are where the weights were: both branches of an If read them."""
    case = make()
    graph = case.model.graph
    branches = {}
    for name in ("then_branch", "else_branch"):
        node = onnx.NodeProto()
        node.CopyFrom(graph.node[0])
        node.output[0] = f"y_{name}"
        value = helper.make_tensor_value_info(node.output[0], TensorProto.FLOAT, [4, 32, 40])
        branches[name] = helper.make_graph([node], name, [], [value])
    del graph.node[:]
    graph.node.append(helper.make_node("If", ["condition"], ["y"], **branches))
    graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    model = ort_dynq.rewrite(case.model).to_proto()
    assert sum(list(each.dims) == [3, 16, 16, 4] for each in model.graph.initializer) == 1
    session = stock_session(model)
    for condition in (True, False):
        assert_same(
            np.asarray(session.run(None, {"x": case.x, "condition": np.array(condition)})[0]),
            run(rewritten(make()), case.x),
        )


def test_a_single_block_needs_no_pad() -> None:
    kinds = [node.op_type for node in rewritten(make(depth=77, block_size=128)).graph.node]
    assert "Pad" not in kinds


@pytest.mark.parametrize(("given", "dtype"), [({}, TensorProto.FLOAT), ({"narrow_scales": True}, TensorProto.FLOAT16)])
def test_scales_are_float16_if_that_loses_nothing(given: dict[str, Any], dtype: int) -> None:
    model = rewritten(make(**given))
    scales = [each.data_type for each in model.graph.initializer if list(each.dims) == [4, 40] and each.data_type != 3]
    assert scales == [dtype]


def test_nodes_after_it_become_its_program() -> None:
    case = make()
    graph = case.model.graph
    graph.node[0].output[0] = "product"
    graph.node.append(helper.make_node("Add", ["product", "residual"], ["sum"]))
    graph.node.append(helper.make_node("Relu", ["sum"], ["y"]))
    graph.input.append(helper.make_tensor_value_info("residual", TensorProto.FLOAT, [4, 32, 40]))
    result = ort_dynq.rewrite(case.model)
    assert [finding.operator for finding in result.report.rewritten] == ["QuantizedMatMulProgram"]
    assert ort_dynq.verify(case.model, result.to_proto()).passed


@pytest.mark.parametrize("weights_only", ["keep", "two-term"])
def test_second_rewrite_changes_nothing(weights_only: str) -> None:
    case = make(depth=256, columns=260, level=4 if weights_only == "keep" else 0)
    model = rewritten(case, weights_only=weights_only)
    again = ort_dynq.rewrite(model)
    assert not again.report.findings
    assert again.to_proto() == model


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"level": None}, "its accuracy_level, 0, asks for a float activation"),
        ({"level": 1}, "its accuracy_level, 1, asks for a float activation"),
        (
            {"zero_points": "fraction", "half": True, "columns": 516},
            "zero points that are no integers, and its activation is no float32",
        ),
        ({"order": "reversed"}, "g_idx assigns its weights to blocks in another order"),
        ({"attributes": {"bits": 3}}, Reason.NBITS_WIDTH.value.format(bits=3)),
        ({"attributes": {"N": 41}}, "the weights have 2560 elements, expected 2624"),
        ({"attributes": {"N": 0}}, "the weights have 2560 elements, expected 0"),
        ({"attributes": {"K": -5}}, "the weights have 2560 elements, expected 0"),
        ({"attributes": {"block_size": 0}}, "groups of 0 elements share a scale"),
        ({"attributes": {"block_size": 24}}, "groups of 24 elements share a scale"),
        ({"attributes": {"weight_prepacked": 1}}, "packed for another device"),
        ({"lead": (2,)}, "the product is too small"),
    ],
    ids=str,
)
def test_reasons(given: dict[str, Any], reason: str) -> None:
    (finding,) = ort_dynq.rewrite(make(**given).model).report.unconverted
    assert reason in finding.reason


def test_small_products_of_two_terms_stay() -> None:
    (finding,) = ort_dynq.rewrite(make(level=0).model, weights_only="two-term").report.unconverted
    assert "the product is too small" in finding.reason


def test_weights_that_are_not_constant_stay() -> None:
    case = make()
    initializer = next(each for each in case.model.graph.initializer if each.name == "B")
    case.model.graph.input.append(helper.make_tensor_value_info("B", TensorProto.UINT8, list(initializer.dims)))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert "the weights are computed at run time" in finding.reason


def test_scales_that_are_not_finite_stay() -> None:
    case = make()
    initializer = next(each for each in case.model.graph.initializer if each.name == "scales")
    scales = numpy_helper.to_array(initializer).copy()
    scales[3] = np.inf
    initializer.CopyFrom(numpy_helper.from_array(scales, "scales"))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert "the weights have NaN or an infinity" in finding.reason


@pytest.mark.parametrize("reads", ["B", "reshaped", "output"])
def test_weights_with_another_reader_stay(reads: str) -> None:
    """A tied embedding: repacked weights would be stored twice."""
    case = make()
    graph = case.model.graph
    if reads == "output":
        graph.output.append(helper.make_tensor_value_info("B", TensorProto.UINT8, [40, 4, 16]))
    else:
        source = "B"
        if reads == "reshaped":  # the product reads the reshaped weights of an embedding
            graph.node[0].input[1] = "B_blocks"
            graph.initializer.append(numpy_helper.from_array(np.array([40, 4, 16]), "shape"))
            graph.node.insert(0, helper.make_node("Reshape", ["B", "shape"], ["B_blocks"]))
        graph.node.append(helper.make_node("Identity", [source], ["table"]))
        graph.output.append(helper.make_tensor_value_info("table", TensorProto.UINT8, None))
    (finding,) = ort_dynq.rewrite(case.model).report.unconverted
    assert "other nodes also read its packed weights" in finding.reason


def test_reshaped_weights() -> None:
    """Weights may be a reshaping of an initializer that nothing else reads."""
    case = make()
    graph = case.model.graph
    graph.node[0].input[1] = "B_blocks"
    graph.initializer.append(numpy_helper.from_array(np.array([40, 4, 16]), "shape"))
    graph.node.insert(0, helper.make_node("Reshape", ["B", "shape"], ["B_blocks"]))
    model = rewritten(case)
    assert_same(run(model, case.x), run(rewritten(make()), case.x))
    assert not any(each.name == "B" for each in model.graph.initializer)


def test_exact() -> None:
    (finding,) = ort_dynq.rewrite(make().model, exact=True).report.unconverted
    assert "exact" in finding.reason
    with pytest.raises(ort_dynq.DynqError, match="weights_only"):
        ort_dynq.rewrite(make().model, exact=True, weights_only="blocks")


def test_level_of_float_activations() -> None:
    case = make(level=0)
    blocks = run(rewritten(case, weights_only="blocks"), case.x)
    assert_same(blocks, run(rewritten(make()), case.x))
    session = ort_dynq.InferenceSession(case.model, weights_only="blocks")
    assert_same(np.asarray(session.run(None, {"x": case.x})[0]), blocks)


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """A model with weights in a file."""
    onnx.save(
        make(depth=100).model, tmp_path / "model.onnx", save_as_external_data=True, size_threshold=0, location="m.data"
    )
    return tmp_path / "model.onnx"


@pytest.mark.parametrize("is_large", [False, True])
def test_weights_in_a_file(external: Path, is_large: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read when the rewritten model is written, so that they are never all in memory."""
    if is_large:
        monkeypatch.setattr(storage, "_MAX_PROTO", 1000)
    case = make(depth=100)
    result = ort_dynq.rewrite(external)
    computed = [each for each in storage.tensors(result.model) if isinstance(each, storage.ComputedTensor)]
    assert len(computed) == 3
    target = external.with_name("fast.onnx")
    result.save(target)
    assert len(list(external.parent.glob("fast.onnx.*.data"))) == is_large
    assert_same(run(str(target), case.x), run(rewritten(case), case.x))
    assert ort_dynq.verify(external, result.model).passed
    # The file may not be overwritten while the model needs it.
    with pytest.raises(ort_dynq.DynqError, match=r"m\.data has weights of the model"):
        result.save(external.with_name("m.data"))


def test_file_that_changes(external: Path) -> None:
    result = ort_dynq.rewrite(external)
    data = external.with_name("m.data")
    data.write_bytes(data.read_bytes()[:1000])
    with pytest.raises(ort_dynq.DynqError, match="has changed since the model was loaded"):
        result.save(external.with_name("fast.onnx"))
    assert not external.with_name("fast.onnx").exists()


def test_file_that_is_missing(external: Path) -> None:
    external.with_name("m.data").unlink()
    (finding,) = ort_dynq.rewrite(external).report.unconverted
    assert "the weights are not known" in finding.reason


def add_node(model: onnx.ModelProto, name: str, output: str) -> None:
    """Adds another product of the same activation and weights."""
    node = onnx.NodeProto()
    node.CopyFrom(model.graph.node[0])
    node.name, node.output[0] = name, output
    model.graph.node.append(node)
    value = onnx.ValueInfoProto()
    value.CopyFrom(model.graph.output[0])
    value.name = output
    model.graph.output.append(value)
