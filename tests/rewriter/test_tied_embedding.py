"""Tied embeddings: GatherBlockQuantized and MatMulNBits read the same codes, which a rewrite stores once."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import Array, assert_same, make_session, stock_session
from nbits import packed
from onnx import TensorProto, helper, numpy_helper
from rewriting import operators

import ort_dynq

HIDDEN = 128
pytestmark = pytest.mark.skipif(
    tuple(map(int, ort.__version__.split(".")[:2])) < (1, 32), reason="GatherBlockQuantized of uint8"
)


def tied(
    *,
    bits: int = 4,
    block: int = 32,
    words: int = 265,
    zero_points: bool = False,
    half: bool = False,
    has_short_scales: bool = False,
    ids: Array | None = None,
    **attributes: int,
) -> onnx.ModelProto:
    """A table of words, of which rows are gathered, and the product by all of it."""
    rng, blocks = np.random.default_rng([bits, words]), HIDDEN // block
    codes = rng.integers(0, 2**bits, (words, blocks, block))
    arrays: dict[str, Array] = {
        "codes": packed(codes, bits),
        "scales": rng.uniform(0.001, 0.02, (words, blocks)).astype(np.float16 if half else np.float32),
        "shape": np.array([words, HIDDEN * bits // 8]),
    }
    if has_short_scales:  # they are stored as float16
        arrays["scales"] = arrays["scales"].astype(np.float16).astype(np.float32)
    zeros = []
    if zero_points:
        arrays["zeros"] = packed(rng.integers(0, 2**bits, (words, blocks)), bits)
        zeros = ["zeros"]
    given: dict[str, Any] = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1, **attributes}
    nodes = [
        helper.make_node("Reshape", ["codes", "shape"], ["table"]),
        helper.make_node(
            "GatherBlockQuantized", ["table", "ids", "scales", *zeros], ["rows"], domain="com.microsoft", **given
        ),
        helper.make_node(
            "MatMulNBits",
            ["x", "codes", "scales", *zeros],
            ["y"],
            name="head",
            domain="com.microsoft",
            K=HIDDEN,
            N=words,
            bits=bits,
            block_size=block,
            accuracy_level=4,
        ),
    ]
    real, ids = TensorProto.FLOAT16 if half else TensorProto.FLOAT, np.zeros((2, 3), np.int64) if ids is None else ids
    graph = helper.make_graph(
        nodes,
        "tied",
        [
            helper.make_tensor_value_info("ids", helper.np_dtype_to_tensor_dtype(ids.dtype), ids.shape),
            helper.make_tensor_value_info("x", real, ["n", HIDDEN]),
        ],
        [
            helper.make_tensor_value_info("rows", real, [*ids.shape, HIDDEN]),
            helper.make_tensor_value_info("y", real, ["n", words]),
        ],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


IDS = np.array([[0, 264, 7], [16, 15, 200]])


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"zero_points": True, "words": 272, "block": 16},
        {"bits": 8, "half": True, "ids": IDS[0].astype(np.int32)},
        {"bits": 8, "zero_points": True, "block": 128, "ids": np.array([5])},
        {"half": True, "zero_points": True, "ids": np.zeros((0, 2), np.int64)},
        {"bits": 2, "zero_points": True, "ids": IDS - 265},
        {"ids": np.array(-7)},
        {"has_short_scales": True, "zero_points": True},
        {"block": 16, "ids": np.arange(-265, 265)},
    ],
    ids=str,
)
def test_rows_have_the_same_bits(given: dict[str, Any]) -> None:
    """With and without the plugin; the codes are stored once."""
    ids = given.get("ids", IDS)
    model = tied(**{**given, "ids": ids})
    result = ort_dynq.rewrite(model, weights_only="two-term")
    assert [each.operator for each in result.report.findings] == ["QuantizedMatMul", "GatherDequantize"]
    content = result.to_proto()
    assert not {"GatherBlockQuantized", "MatMulNBits"} & {node.op_type for node in content.graph.node}
    size = sum(each.ByteSize() for each in model.graph.initializer)
    assert sum(each.ByteSize() for each in content.graph.initializer) < 1.2 * size
    feeds = {"ids": ids, "x": np.ones((1, HIDDEN), np.float16 if given.get("half") else np.float32)}
    expected = np.asarray(stock_session(model).run(["rows"], feeds)[0])
    for session in (make_session(content, "native"), stock_session(content)):
        assert_same(np.asarray(session.run(["rows"], feeds)[0]), expected)
    if ids.size:
        with pytest.raises(Exception, match="out of"):
            make_session(content, "native").run(None, {**feeds, "ids": np.full_like(ids, 272)})


def test_rows_of_float16_before_other_nodes() -> None:
    """Without the plugin, ONNX Runtime would leave out the rounding of rows that elementwise nodes of float16 read."""
    model = tied(bits=8, half=True, ids=IDS)
    model.graph.node.extend(
        [helper.make_node("Mul", ["rows", "rows"], ["squares"]), helper.make_node("Add", ["rows", "squares"], ["sum"])]
    )
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT16, None))
    result = ort_dynq.rewrite(model).to_proto()
    assert operators(result)["ort_dynq.GatherDequantize"] == 1
    feeds = {"ids": IDS, "x": np.ones((1, HIDDEN), np.float16)}
    (expected,) = stock_session(model).run(["sum"], feeds)
    for session in (make_session(result, "native"), stock_session(result), stock_session(result, optimize=True)):
        assert_same(session.run(["sum"], feeds)[0], expected)


@pytest.mark.parametrize("other", ["scales", "gather_axis", "output"])
def test_other_tables_stay(other: str) -> None:
    """They would be stored twice, or their rows are not columns of the product."""
    model = tied(gather_axis=int(other == "gather_axis"))
    if other == "scales":
        (scales,) = (each for each in model.graph.initializer if each.name == "scales")
        model.graph.initializer.append(numpy_helper.from_array(numpy_helper.to_array(scales) * 2, "others"))
        model.graph.node[1].input[2] = "others"
    if other == "output":
        model.graph.output.append(helper.make_tensor_value_info("table", TensorProto.UINT8, None))
    (finding,) = ort_dynq.rewrite(model).report.findings
    assert "other nodes also read its packed weights" in finding.reason


@pytest.mark.parametrize("scales", [(), (1024,)])
@pytest.mark.parametrize("has_cast", [False, True])
def test_whole_tables_of_float16(scales: tuple[int, ...], has_cast: bool) -> None:
    """DequantizeLinear of the whole table to float16 is the embedding and the head: both read one packed copy."""
    rng = np.random.default_rng(5)
    constants = {
        "codes": rng.integers(-127, 128, (1024, HIDDEN)).astype(np.int8),
        "scale": rng.uniform(0.005, 0.02, scales).astype(np.float16),
    }
    cast, whole, kind = ("whole = Cast<to = 1>(table)", "whole", "float") if has_cast else ("", "table", "float16")
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 21]> tied (int64[B, T] ids) => ({kind}[B, T, 1024] y) {{
            table = DequantizeLinear<axis = 0>(codes, scale)  {cast}  rows = Gather({whole}, ids)  h = Tanh(rows)
            turned = Transpose<perm = [1, 0]>({whole})  y = MatMul(h, turned)
        }}"""
    )
    model.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in constants.items())
    result = ort_dynq.rewrite(model)
    assert operators(result.to_proto()) == dict.fromkeys(
        ("ort_dynq.GatherDequantize", "ort_dynq.TwoTermQuantize", "ort_dynq.QuantizedMatMul"), 1
    )
    assert sum(np.prod(each.dims) >= 1024 * HIDDEN for each in result.to_proto().graph.initializer) == 1
    found = ort_dynq.verify(model, result.model, inputs={"ids": rng.integers(0, 1024, (2, 5))})
    assert found.passed, found
