"""Embeddings: rows of 8 bits, which equal the definition in NumPy bit for bit, with the plugin and without it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import TensorProto, helper, numpy_helper
from quantizing import F, floats, operators, reasons

import ort_dynq
from ort_dynq.rewriter import Result

ROWS, COLUMNS = 1024, 128  # just enough numbers for 8 bits to pay
GATHER = helper.make_node("Gather", ["table", "ids"], ["y"], name="words")
IDS = np.array([[0, 5, -1], [1023, -1024, 5]], np.int64)


def table(dtype: type = np.float32, rows: int = ROWS) -> Array:
    """Rows of very different magnitude; one is 0, and one is of the smallest numbers."""
    found = floats(rows, COLUMNS, seed=2) * np.exp(floats(rows, 1, seed=3))
    found[5], found[0] = 0, np.finfo(dtype).smallest_subnormal * (np.arange(COLUMNS) % 3)
    return found.astype(dtype)


def model_of(
    nodes: list[onnx.NodeProto],
    constants: dict[str, Array],
    *,
    ids: tuple[int | str, ...] = ("b", "n"),
    rank: int = 3,
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model with the input ids and the output y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ids)],
        [helper.make_tensor_value_info("y", dtype, [None] * rank)],
        [numpy_helper.from_array(elements, name) for name, elements in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(result: Result, ids: Array = IDS) -> Array:
    content = result.to_proto()
    onnx.checker.check_model(content)
    (actual,), (stock,) = (
        each.run(None, {"ids": ids}) for each in (make_session(content, "native"), stock_session(content))
    )
    assert_same(np.asarray(actual), np.asarray(stock))
    return np.asarray(actual)


def by_definition(floats_: Array) -> Array:
    """A table as its rows of 8 bits say: every step but the division rounds once."""
    wide = floats_.astype(F)
    scale = (np.abs(wide).max(1, keepdims=True) / F(127)).astype(floats_.dtype).astype(F)
    scale[scale == 0] = 1
    codes = np.clip(np.rint(wide / scale), -127, 127).astype(np.int8)
    return np.asarray((codes.astype(F) * scale).astype(floats_.dtype))


def stored(result: Result) -> dict[tuple[int, ...], list[str]]:
    """The large initializers: the types by the shape."""
    found: dict[tuple[int, ...], list[str]] = {}
    for each in result.to_proto().graph.initializer:
        if np.prod(each.dims) >= ROWS:
            found.setdefault(tuple(each.dims), []).append(TensorProto.DataType.Name(each.data_type))
    return found


@pytest.mark.parametrize("shape", [(2, 3), (6,), (), (1, 2, 3)], ids=str)
def test_rows_equal_the_definition(shape: tuple[int, ...]) -> None:
    ids = np.resize(IDS.reshape(-1), shape).astype(np.int64)
    model = model_of([GATHER], {"table": table()}, ids=shape, rank=len(shape) + 1)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"DynamicDequantize": 1}
    assert [each.reason for each in result.report.rewritten] == ["8-bit rows of a table"]
    assert stored(result) == {(ROWS, COLUMNS): ["INT8"], (ROWS, 1): ["FLOAT"]}
    assert_same(run(result, ids), by_definition(table())[ids])


def test_the_error_is_small() -> None:
    """Half a step of a row: 127 steps to its largest number."""
    floats_, ids = table(), np.arange(6, ROWS)[None]  # the rows before have the smallest numbers
    error = np.abs(run(ort_dynq.quantize(model_of([GATHER], {"table": floats_})), ids) - floats_[ids]).max(-1)
    largest = np.abs(floats_[ids]).max(-1)
    assert (error <= largest * (0.5 / 127 + 2.0**-22)).all()
    assert (error > largest * (0.4 / 127)).any()


def test_tables_of_float16() -> None:
    model = model_of([GATHER], {"table": table(np.float16)}, dtype=TensorProto.FLOAT16)
    result = ort_dynq.quantize(model)
    assert stored(result) == {(ROWS, COLUMNS): ["INT8"], (ROWS, 1): ["FLOAT16"]}
    assert_same(run(result), by_definition(table(np.float16))[IDS])


SOURCES = {
    "a Constant": ([helper.make_node("Constant", [], ["table"], value=numpy_helper.from_array(table()))], {}),
    "a Cast": (
        [helper.make_node("Cast", ["half"], ["table"], to=TensorProto.FLOAT)],
        {"half": table(np.float16)},
    ),
    "a Transpose": ([helper.make_node("Transpose", ["w"], ["table"])], {"w": np.ascontiguousarray(table().T)}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_tables_that_are_computed(source: str) -> None:
    nodes, constants = SOURCES[source]
    expected = table(np.float16).astype(F) if source == "a Cast" else table()
    result = ort_dynq.quantize(model_of([*nodes, GATHER], constants))
    assert sorted(map(str, stored(result).values())) == ["['FLOAT']", "['INT8']"]
    assert_same(run(result), by_definition(expected)[IDS])


def test_nodes_that_share_a_table() -> None:
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["a"]),
        helper.make_node("Gather", ["table", "ids"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    result = ort_dynq.quantize(model_of(nodes, {"table": table()}))
    assert operators(result) == {"DynamicDequantize": 2}
    assert stored(result) == {(ROWS, COLUMNS): ["INT8"], (ROWS, 1): ["FLOAT"]}
    assert_same(run(result), by_definition(table())[IDS] * F(2))


TIED = {
    "Transpose": [
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "t"], ["y"], name="head"),
    ],
    "Gemm": [
        helper.make_node("Squeeze", ["rows"], ["flat"]),
        helper.make_node("Gemm", ["flat", "table"], ["y"], transB=1, name="head"),
    ],
}


@pytest.mark.parametrize("form", TIED)
def test_tied_tables(form: str) -> None:
    """The rows are gathered from the packed weights of the product: the file has the table once, in 8 bits."""
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"], name="words"), *TIED[form]]
    model = model_of(nodes, {"table": table()}, ids=(1, "n"), rank=3 if form == "Transpose" else 2)
    result = ort_dynq.quantize(model)
    assert operators(result) == {"GatherDequantize": 1, "QuantizedMatMul": 1, "RowProgram": 1}
    assert [*stored(result)[ROWS // 16, COLUMNS // 4, 16, 4]] == ["INT8"]
    assert (ROWS, COLUMNS) not in stored(result)
    assert len(result.to_proto().SerializeToString()) < 0.35 * len(model.SerializeToString())
    run(result, IDS[:1])
    kept = ort_dynq.quantize(model, exclude=["head"])
    assert reasons(kept) == ["excluded by head", "other nodes read its table as floats: the file would have it twice"]
    assert stored(kept) == {(ROWS, COLUMNS): ["FLOAT"]}


TIED_IDS = [IDS, IDS[0].astype(np.int32), np.array(-2, np.int64), np.zeros((0, 2), np.int64), np.arange(ROWS)]


@pytest.mark.parametrize("ids", TIED_IDS, ids=lambda ids: f"{ids.shape} {ids.dtype}")
@pytest.mark.parametrize("rows", [ROWS, ROWS + 9])
def test_rows_of_tied_tables_equal_the_definition(ids: Array, rows: int) -> None:
    """Ids may count from the end; the last block of packed weights may be padded."""
    nodes = [
        GATHER,
        helper.make_node("Transpose", ["table"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["y", "t"], ["scores"], name="head"),
    ]
    rank = max(ids.ndim, 1)
    model = model_of(nodes, {"table": table(rows=rows)}, ids=ids.shape, rank=ids.ndim + 1)
    model.graph.input[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(ids.dtype)
    model.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None] * rank))
    result = ort_dynq.quantize(model)
    assert (rows, COLUMNS) not in stored(result)
    content = result.to_proto()
    (found, scores), (stock, stock_scores) = (
        session.run(None, {"ids": ids}) for session in (make_session(content, "native"), stock_session(content))
    )
    assert_same(np.asarray(found), by_definition(table(rows=rows))[ids])
    assert_same(np.asarray(found), np.asarray(stock))
    assert_same(np.asarray(scores), np.asarray(stock_scores))
    wrong = np.full(ids.shape or (), rows, ids.dtype)
    if wrong.size:  # as in the original
        with pytest.raises(Exception, match="out of"):
            make_session(content, "native").run(None, {"ids": wrong})


def test_a_tied_table_of_float16_is_stored_twice() -> None:
    """Its rows have scales of float16, the columns of the product float32."""
    nodes = [
        GATHER,
        helper.make_node("Cast", ["table"], ["wide"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["wide"], ["t"], perm=[1, 0]),
        helper.make_node("Cast", ["y"], ["x"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "t"], ["scores"], name="head"),
    ]
    model = model_of(nodes, {"table": table(np.float16)}, dtype=TensorProto.FLOAT16)
    model.graph.output.append(helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None] * 3))
    result = ort_dynq.quantize(model)
    assert stored(result)[ROWS, COLUMNS] == stored(result)[ROWS // 16, COLUMNS // 4, 16, 4] == ["INT8"]
    content = result.to_proto()
    for one, other in zip(
        *(s.run(None, {"ids": IDS}) for s in (make_session(content, "native"), stock_session(content))), strict=True
    ):
        assert_same(np.asarray(one), np.asarray(other))


def test_a_table_of_a_graph_around() -> None:
    branch = helper.make_graph([GATHER], "branch", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    node = helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)
    model = model_of([node], {"table": table(), "flag": np.array(True)})
    model.graph.input.append(helper.make_tensor_value_info("flag", TensorProto.BOOL, []))  # a session may override it
    result = ort_dynq.quantize(model)
    assert operators(result) == {"DynamicDequantize": 2}
    assert stored(result) == {(ROWS, COLUMNS): ["INT8"], (ROWS, 1): ["FLOAT"]}
    assert_same(run(result), by_definition(table())[IDS])


def test_external_data(tmp_path: Path) -> None:
    model, path = model_of([GATHER], {"table": table()}), tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=1024)
    result = ort_dynq.quantize(path)
    assert stored(result) == {(ROWS, COLUMNS): ["INT8"], (ROWS, 1): ["FLOAT"]}
    assert_same(run(result), by_definition(table())[IDS])


NAN = table()
NAN[7, 7] = np.nan
CODES, SCALES = np.ones((ROWS, COLUMNS), np.int8), np.ones((), F)
DEQUANTIZE = helper.make_node("DequantizeLinear", ["codes", "scale"], ["table"])
STAYING = {
    "keep": ([GATHER], {"table": table()}, {"embeddings": "keep"}, None),
    "excluded": ([GATHER], {"table": table()}, {"exclude": ["w*"]}, "excluded by w*"),
    "few rows": ([GATHER], {"table": table(rows=ROWS - 1)}, {}, None),
    "short rows": ([GATHER], {"table": np.ascontiguousarray(table().reshape(-1, COLUMNS // 2))}, {}, None),
    "NaN": ([GATHER], {"table": NAN}, {}, "the weights have NaN or an infinity"),
    "codes": ([DEQUANTIZE, GATHER], {"codes": CODES, "scale": SCALES}, {}, None),
    "integers": ([GATHER], {"table": np.ones((ROWS, COLUMNS), np.int64)}, {}, None),
    "columns": ([helper.make_node("Gather", ["table", "ids"], ["y"], axis=1)], {"table": table()}, {}, None),
    "read elsewhere": (
        [
            helper.make_node("Gather", ["table", "ids"], ["rows"]),
            helper.make_node("ReduceSum", ["table"], ["sum"], keepdims=0),
            helper.make_node("Add", ["rows", "sum"], ["y"]),
        ],
        {"table": table()},
        {},
        "other nodes read its table as floats: the file would have it twice",
    ),
}


@pytest.mark.parametrize("case", STAYING)
def test_tables_that_stay(case: str) -> None:
    nodes, constants, options, reason = STAYING[case]
    dtype = TensorProto.INT64 if case == "integers" else TensorProto.FLOAT
    ids = 1, 3, 1
    nodes = [helper.make_node("Cast", ["ids"], ["floats"], to=TensorProto.FLOAT), *nodes]
    nodes += [
        helper.make_node("Expand", ["floats", "shape"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["product"], name="product"),
    ]
    constants = {**constants, "w": floats(COLUMNS, 192), "shape": np.array([3, COLUMNS])}
    model = model_of(nodes, constants, ids=ids, rank=len(ids) + 1, dtype=dtype)
    model.graph.output.append(helper.make_tensor_value_info("product", TensorProto.FLOAT, None))
    result = ort_dynq.quantize(model, **options)
    assert operators(result)["DynamicDequantize"] == 0
    assert reasons(result) == ([] if reason is None else [reason])


def test_tables_that_the_optimizer_has_merged_are_named() -> None:
    """EmbedLayerNormalization of com.microsoft keeps its tables as floats, and the report says so."""
    norm = ["ids", "", "table", "positions", "", "gamma", "beta"]
    nodes = [
        helper.make_node("EmbedLayerNormalization", norm, ["h", "mask"], name="embed", domain="com.microsoft"),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="product"),
    ]
    constants = {"table": table(), "positions": floats(8, COLUMNS), "w": floats(COLUMNS, 256)}
    model = model_of(nodes, constants | {"gamma": floats(COLUMNS), "beta": floats(COLUMNS)})
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT32
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    (finding,) = ort_dynq.quantize(model).report.unconverted
    assert (finding.node, finding.op_type) == ("embed", "EmbedLayerNormalization")
    assert finding.reason.startswith("its tables of embeddings stay floats: ")
    assert ort_dynq.quantize(model, embeddings="keep").report.unconverted == []
    del model.graph.initializer[0]
    model.graph.initializer.append(numpy_helper.from_array(table()[:64], "table"))
    assert ort_dynq.quantize(model).report.unconverted == []  # too small to gain
