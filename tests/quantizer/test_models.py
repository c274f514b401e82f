"""Whole models: options, names, errors, subgraphs, functions, external data, quantized models, and accuracy."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import stock_session
from onnx import TensorProto, helper, numpy_helper
from quantizing import (
    F,
    K,
    N,
    activations,
    by_definition,
    floats,
    model_of,
    operators,
    product,
    reasons,
    run,
    run_float,
    squared_error,
)

import ort_dynq
from ort_dynq import DynqError
from ort_dynq.rewriter.metadata import ACTIVATION, QUANTIZED, SOURCE
from ort_dynq.runtime import open_session, session_options, version

W = floats(K, N, seed=3)
X = activations(9, K)


def two_layers() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"], name="encoder/layer.0/up"),
        helper.make_node("MatMul", ["hidden", "v"], ["y"]),
    ]
    return model_of(nodes, {"w": W, "v": floats(N, N)})


@pytest.mark.parametrize(
    ("patterns", "left"),
    [(["encoder/*"], 1), (["y"], 1), (("*up", "y"), 2), (["encoder/layer.[0-3]/*"], 1)],
    ids=str,
)
def test_exclude(patterns: list[str], left: int) -> None:
    result = ort_dynq.quantize(two_layers(), exclude=patterns)
    assert len(reasons(result)) == left
    assert all(reason.startswith("excluded by ") for reason in reasons(result))
    assert operators(result)["QuantizedMatMul"] == 2 - left
    if left == 2:
        assert run(result, X).tobytes() == run_float(two_layers(), X).tobytes()


def test_metadata() -> None:
    """Verification and reports read the metadata. Names stay, and a node without a name gets the name of its output."""
    model = ort_dynq.quantize(two_layers(), weights="int4").to_proto()
    assert {each.key: each.value for each in model.metadata_props}[QUANTIZED] == (
        "weights=int4 group=32 activations=token symmetric=0"
    )
    products = [node for node in model.graph.node if node.op_type == "QuantizedMatMul"]
    assert [{each.key: each.value for each in node.metadata_props}[ACTIVATION] for node in products] == ["x", "hidden"]
    assert [node.name for node in products] == ["encoder/layer.0/up", "y"]
    assert [node.output[0] for node in products] == ["hidden", "y"]
    assert {tensor.name for tensor in model.graph.initializer}.isdisjoint({"w", "v"})


def test_a_node_without_a_name_does_not_get_a_name_twice() -> None:
    """ONNX Runtime loads no graph with two nodes of one name; here, a node has the name of another one's output."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "v"], ["y"], name="hidden"),
    ]
    result = ort_dynq.quantize(model_of(nodes, {"w": W, "v": floats(N, N)}))
    run(result, X)
    assert [finding.node for finding in result.report.rewritten] == ["hidden_1", "hidden"]


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_the_same_bytes_in_every_run(weights: str) -> None:
    first, second = (ort_dynq.quantize(two_layers(), weights=weights).to_proto() for _ in range(2))
    assert first.SerializeToString() == second.SerializeToString()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"weights": "int2"}, "weights is 'int2', expected int8, int12 or int4"),
        ({"activations": "row"}, "activations is 'row', expected token, tensor or two-term"),
        ({"weights": "int4", "group": 48}, "group is 48, expected 32, 64 or 128"),
        ({"group": 64}, "give weights int4 as well"),
        ({"activations": "tensor", "symmetric": True}, "symmetric is for activations per token"),
        ({"exclude": "y"}, "exclude is the text 'y', expected a list of patterns"),
        ({"from_dynamic": True}, "needs a model that quantize_dynamic made"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, object], text: str) -> None:
    with pytest.raises(DynqError) as error:
        ort_dynq.quantize(two_layers(), **options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("count", [2, 4])
def test_a_pattern_without_a_layer(count: int) -> None:
    values = ["x", *(f"x{i}" for i in range(1, count)), "y"]
    nodes = [helper.make_node("MatMul", [values[i], "w"], [values[i + 1]]) for i in range(count)]
    with pytest.raises(DynqError) as error:
        ort_dynq.quantize(model_of(nodes, {"w": floats(K, K)}), exclude=["y", "head"])
    names = "x1, y" if count == 2 else "x1, x2, x3, ..."
    assert str(error.value) == f"no layer matches head; names of layers are {names}"


def test_a_pattern_for_a_model_without_layers() -> None:
    with pytest.raises(DynqError, match=NO_WEIGHTS):
        ort_dynq.quantize(REFUSED["no products"][0], exclude=["head"])


def test_layers_that_always_stay_have_names() -> None:
    rnn = helper.make_node("RNN", ["x", "w", "r"], ["", "y"], name="rnn", hidden_size=N)
    model = model_of([rnn], {"w": floats(1, N, K), "r": floats(1, N, N)}, shape=(5, 3, K))
    assert reasons(ort_dynq.quantize(model, exclude=["rnn"])) == ["excluded by rnn"]
    fused = helper.make_node("FusedMatMul", ["x", "w"], ["y"], name="fused", domain="com.microsoft")
    model = model_of([fused], {"w": W})
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert reasons(ort_dynq.quantize(model, exclude=["fused"])) == ["excluded by fused"]


def _with_codes(scale: str) -> onnx.ModelProto:
    """A MatMul of codes with the scale "constant" or "computed"."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["computed"], keepdims=0),
        helper.make_node("QuantizeLinear", ["x", scale], ["codes"]),
        helper.make_node("DequantizeLinear", ["codes", scale], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    return model_of(nodes, {"w": W, "constant": F(0.1)})


def _with_own_codes() -> onnx.ModelProto:
    """A MatMulInteger of codes that a Cast makes."""
    nodes = [
        helper.make_node("Cast", ["x"], ["codes"], to=TensorProto.UINT8),
        helper.make_node("MatMulInteger", ["codes", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["y"], to=TensorProto.FLOAT),
    ]
    return model_of(nodes, {"w": W.astype(np.int8)})


def _with_chain() -> onnx.ModelProto:
    """A MatMul of an activation that Abs, ReduceMax, Div, Round, Clip and Mul quantize per token."""
    constants = {"last": np.array([-1]), "largest": F(127), "least": F(-128)}
    chain = [
        helper.make_node("Abs", ["x"], ["magnitude"]),
        helper.make_node("ReduceMax", ["magnitude", "last"], ["peak"], keepdims=1),
        helper.make_node("Div", ["peak", "largest"], ["scale"]),
        helper.make_node("Div", ["x", "scale"], ["quotient"]),
        helper.make_node("Round", ["quotient"], ["rounded"]),
        helper.make_node("Clip", ["rounded", "least", "largest"], ["codes"]),
        helper.make_node("Mul", ["codes", "scale"], ["a"]),
    ]
    multiply = helper.make_node("MatMul", ["a", "w"], ["y"])
    return model_of([*chain, multiply], {"w": W, **constants})


NO_WEIGHTS = "the model has no weights to quantize"
REFUSED = {
    "static": (_with_codes("constant"), "quantized with constant scales (1 QuantizeLinear)"),
    "run-time scales": (_with_codes("computed"), "use ort-dynq rewrite"),
    "chain": (_with_chain(), "use ort-dynq rewrite"),
    "integer products": (_with_own_codes(), "use ort-dynq rewrite"),
    "ours": (ort_dynq.quantize(product(W)).to_proto(), "has operators of ort_dynq already"),
    "no weights": (model_of([helper.make_node("MatMul", ["x", "x"], ["y"])], {}), NO_WEIGHTS),
    "no products": (model_of([helper.make_node("Relu", ["x"], ["y"])], {}), NO_WEIGHTS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_models(name: str) -> None:
    model, text = REFUSED[name]
    with pytest.raises(DynqError) as error:
        ort_dynq.quantize(model)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("opset", [12, 13, 17, 18, 21])
def test_opsets(opset: int) -> None:
    run(ort_dynq.quantize(product(W, opset=opset)), X)


@pytest.mark.skipif(version() < (1, 32), reason="older versions fold other constants")
@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_a_loop_without_the_plugin_repeats_no_work_on_weights(tmp_path: Path, weights: str) -> None:
    """ONNX Runtime folds constants before it inlines an If: none may stand between the packed weights and their use."""
    info = helper.make_tensor_value_info
    state = [info(name, TensorProto.FLOAT, (1, N)) for name in ("s", "t", "x", "y")]
    flags = [info(name, TensorProto.BOOL, ()) for name in ("c", "d")]
    nodes = [helper.make_node("MatMul", ["s", "w"], ["t"]), helper.make_node("Identity", ["c"], ["d"])]
    inputs = [info("i", TensorProto.INT64, ()), flags[0], state[0]]
    body = helper.make_graph(nodes, "body", inputs, [flags[1], state[1]])
    constants = {"w": floats(N, N) / F(N**0.5), "count": np.array(3), "go": np.array(True)}
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "go", "x"], ["y"], body=body)],
        "g",
        state[2:3],
        state[3:],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    result = ort_dynq.quantize(model, weights=weights)
    run(result, floats(1, N))
    options = session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    open_session(result.to_proto(), options)
    optimized = onnx.load(tmp_path / "optimized.onnx").graph
    inner = next(node.attribute[0].g for node in optimized.node if node.op_type == "Loop")
    tensors = [*optimized.initializer, *inner.initializer]
    large = {tensor.name for tensor in tensors if np.prod(tensor.dims) >= N * N // 2}
    readers = [node.op_type for node in inner.node if large & {*node.input}]
    assert set(readers) == {"MatMulInteger"}


def test_external_data(tmp_path: Path) -> None:
    model = two_layers()
    onnx.save(model, tmp_path / "float.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    result = ort_dynq.quantize(tmp_path / "float.onnx")
    result.save(tmp_path / "int8.onnx")
    (tmp_path / "weights").unlink()  # the result no longer needs the float weights
    found, expected = onnx.load(tmp_path / "int8.onnx"), ort_dynq.quantize(two_layers()).to_proto()
    (source,) = [each for each in found.metadata_props if each.key == SOURCE]
    found.metadata_props.remove(source)
    assert found == expected


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_memory(tmp_path: Path, weights: str) -> None:
    """One layer at a time is in memory: beyond the result, at most 1.5 times the largest tensor."""
    size, layers = 1024, 3
    values = ["x", *(f"x{i}" for i in range(1, layers)), "y"]
    nodes = [helper.make_node("MatMul", [values[i], f"w{i}"], [values[i + 1]]) for i in range(layers)]
    constants = {f"w{i}": floats(size, size, seed=i) for i in range(layers)}
    model = model_of(nodes, constants, shape=("M", size))
    onnx.save(model, tmp_path / "float.onnx", save_as_external_data=True, location="weights")
    ort_dynq.quantize(product(W), weights=weights)  # loads modules
    tracemalloc.start()
    try:
        result = ort_dynq.quantize(tmp_path / "float.onnx", weights=weights)
        needed, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert operators(result)["QuantizedMatMul"] == layers
    assert peak - needed < 1.5 * 4 * size**2


def _of_quantize_dynamic(model: onnx.ModelProto, folder: Path, **options: object) -> onnx.ModelProto:
    quantization = pytest.importorskip("onnxruntime.quantization")
    onnx.save(model, folder / "float.onnx")
    quantization.quantize_dynamic(folder / "float.onnx", folder / "dynamic.onnx", **options)
    return onnx.load(folder / "dynamic.onnx")


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_from_dynamic(tmp_path: Path, per_channel: bool) -> None:
    """The weights of quantize_dynamic, and the activations per token."""
    model = product(W)
    dynamic = _of_quantize_dynamic(model, tmp_path, per_channel=per_channel)
    with pytest.raises(DynqError, match=r"\(1 integer products\).*--from-dynamic"):
        ort_dynq.quantize(dynamic)
    result = ort_dynq.quantize(dynamic, from_dynamic=True)
    assert operators(result) == {"RowProgram": 1, "QuantizedMatMul": 1}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in dynamic.graph.initializer}
    weights = constants["w_quantized"].astype(np.float64) - constants["w_zero_point"]
    expected = by_definition(X) @ (weights * constants["w_scale"])
    assert np.abs(run(result, X) - expected).max() < 2.0**-20 * np.abs(expected).max()
    per_tensor = run(ort_dynq.quantize(dynamic, from_dynamic=True, activations="tensor"), X)
    stock = np.asarray(stock_session(dynamic).run(None, {"x": X})[0])
    assert np.abs(per_tensor - stock).max() < 2.0**-20 * np.abs(stock).max()
    assert reasons(ort_dynq.quantize(dynamic, from_dynamic=True, exclude=["*"])) == ["excluded by *"]


@pytest.mark.filterwarnings("ignore")
def test_more_accurate_than_quantize_dynamic(tmp_path: Path) -> None:
    """A feed-forward block of tokens that differ in magnitude, as tokens of transformers do; on three inputs each."""
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["p"]),
        helper.make_node("Add", ["p", "bias"], ["q"]),
        helper.make_node("Sigmoid", ["q"], ["gate"]),
        helper.make_node("Mul", ["q", "gate"], ["a"]),
        helper.make_node("MatMul", ["a", "down"], ["y"]),
    ]
    constants = {"up": floats(K, 4 * K) * F(K**-0.5), "bias": floats(4 * K), "down": floats(4 * K, K) * F(0.05)}
    model = model_of(nodes, constants)
    dynamic = _of_quantize_dynamic(model, tmp_path, per_channel=True)
    ours, stock = ort_dynq.quantize(model), stock_session(dynamic)

    def error(actual: np.ndarray, expected: np.ndarray) -> float:
        """The mean over tokens, each relative to its own magnitude."""
        return float(np.mean([squared_error(*pair) for pair in zip(actual, expected, strict=True)]))

    for seed in range(3):
        x = activations(32, K, seed=seed)
        expected = run_float(model, x)
        assert error(run(ours, x), expected) < error(np.asarray(stock.run(None, {"x": x})[0]), expected) / 3
