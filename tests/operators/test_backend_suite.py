"""The ONNX backend suite's node tests of the quantization operators, rewritten: the recorded outputs, bit for bit.

The onnx package generates them for its newest opset, which ONNX Runtime may not support yet. A node with the same
meaning in an earlier opset is converted to the newest opset that this ONNX Runtime loads.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from helpers import Array, assert_same, make_session, stock_session

from ort_dynq.rewriter import rewrite
from ort_dynq.runtime import version

OPERATORS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")

# Cases of float32 and 8-bit types, for which the plugin has operators. All of them are rewritten.
REWRITTEN = {
    "test_quantizelinear": "DynamicQuantize",
    "test_quantizelinear_axis": "DynamicQuantize",
    "test_quantizelinear_blocked_asymmetric": "DynamicQuantize",
    "test_dequantizelinear": "DynamicDequantize",
    "test_dequantizelinear_axis": "DynamicDequantize",
    "test_dequantizelinear_blocked": "DynamicDequantize",
}
# Cases of 4-bit codes, which ONNX Runtime 1.23 and newer convert. NumPy passes no such tensors to a session.
FOUR_BITS = {
    f"test_{node}linear_{codes}": operator
    for node, operator in (("quantize", "DynamicQuantize"), ("dequantize", "DynamicDequantize"))
    for codes in ("int4", "uint4")
}
# The function body of DynamicQuantizeLinear: the operator depends on which part of the chain is rewritten.
EXPANDED = {f"test_dynamicquantizelinear{suffix}_expanded" for suffix in ("", "_max_adjusted", "_min_adjusted")}
# One node with a fused kernel in ONNX Runtime, not a chain.
FUSED = {f"test_dynamicquantizelinear{suffix}" for suffix in ("", "_max_adjusted", "_min_adjusted")}


def collect() -> dict[str, Any]:
    """The cases of the suite by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the modules compute their answers when they are imported
        from onnx.backend.test.case import node

        for operator in OPERATORS:
            importlib.import_module(f"{node.__name__}.{operator.lower()}")
        known = {case.name: case for case in node._NodeTestCases}
    return {name: case for name, case in known.items() if "quantizelinear" in name}


CASES = collect()
UNCONVERTED = sorted(CASES.keys() - REWRITTEN.keys() - FOUR_BITS.keys() - EXPANDED - FUSED)


def test_the_suite_has_these_cases() -> None:
    assert CASES.keys() >= REWRITTEN.keys() | FOUR_BITS.keys() | EXPANDED | FUSED
    assert len(UNCONVERTED) >= 11, UNCONVERTED  # the number in onnx 1.17


def elements(model: onnx.ModelProto) -> set[int]:
    values = (*model.graph.input, *model.graph.output)
    return {value.type.tensor_type.elem_type for value in values}


def test_every_float32_8_bit_case_is_listed() -> None:
    """A case that is not rewritten has types that the operators do not have."""
    known = {onnx.TensorProto.FLOAT, onnx.TensorProto.UINT8, onnx.TensorProto.INT8}
    assert [name for name in UNCONVERTED if elements(CASES[name].model) <= known] == []
    assert [name for name in REWRITTEN if not elements(CASES[name].model) <= known] == []


def loadable(case: Any) -> onnx.ModelProto:
    """The model of a case in the newest opset that ONNX Runtime loads; skips if it loads none."""
    newest = case.model.opset_import[0].version
    error: Exception | None = None
    for opset in range(newest, 9, -1):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        model.opset_import[0].version = opset
        model.ir_version = min(model.ir_version, 10)
        try:
            onnx.checker.check_model(model, full_check=True)
            stock_session(model)
        except Exception as reason:
            error = reason
        else:
            return model
    pytest.skip(f"ONNX Runtime {ort.__version__} does not load {case.name} in any opset: {error}")


def opened(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with x of unknown length. Tiny tensors are not rewritten: a call would cost more than it saves."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    for i, dim in enumerate(result.graph.input[0].type.tensor_type.shape.dim):
        dim.dim_param = f"length_{i}"
    return result


def check(case: Any, model: onnx.ModelProto, backend: str) -> None:
    """Compares with the recorded outputs, with and without the plugin."""
    assert case.data_sets
    names = [value.name for value in model.graph.input]
    sessions = make_session(model, backend), stock_session(model)
    for inputs, outputs in case.data_sets:
        feeds: dict[str, Array] = dict(zip(names, map(np.asarray, inputs), strict=True))
        for session in sessions:
            for actual, expected in zip(session.run(None, feeds), outputs, strict=True):
                assert_same(np.asarray(actual), np.asarray(expected))


@pytest.mark.parametrize("name", [*REWRITTEN, *sorted(EXPANDED)])
def test_rewritten_models_give_the_recorded_outputs(isa: str, backend: str, name: str) -> None:
    case = CASES[name]
    original = loadable(case)
    result = rewrite(opened(original))
    model = result.to_proto()
    operators = [node.op_type for node in model.graph.node if node.domain == "ort_dynq"]
    assert operators == [REWRITTEN[name]] if name in REWRITTEN else operators
    assert not any(node.op_type in ("QuantizeLinear", "DequantizeLinear") for node in model.graph.node)
    assert result.report.unconverted == []
    onnx.checker.check_model(model, full_check=True)
    check(case, model, backend)


@pytest.mark.parametrize("name", FOUR_BITS)
def test_codes_of_4_bits(isa: str, name: str) -> None:
    """Inputs of 4 bits become constants after the rewrite, and the output of 4 bits becomes one of 8 bits."""
    case = CASES[name]
    result = rewrite(opened(loadable(case)))
    if version() < (1, 23):
        assert [finding.reason for finding in result.report.unconverted] == [
            "the codes have 4 bits, and ONNX Runtime before 1.23 cannot run the operator's function"
        ]
        return
    assert [finding.operator for finding in result.report.rewritten] == [FOUR_BITS[name]]
    model = result.to_proto()
    ((inputs, (expected,)),) = case.data_sets
    feeds: dict[str, Array] = {}
    for value, given in zip(list(model.graph.input), inputs, strict=True):
        if isinstance(given, onnx.TensorProto):
            model.graph.initializer.append(given)
            model.graph.initializer[-1].name = value.name
            model.graph.input.remove(value)
        else:
            feeds[value.name] = np.asarray(given)
    (output,) = model.graph.output
    if isinstance(expected, onnx.TensorProto):
        model.graph.node.append(onnx.helper.make_node("Cast", [output.name], ["wide"], to=onnx.TensorProto.INT8))
        output.name, output.type.tensor_type.elem_type = "wide", onnx.TensorProto.INT8
        expected = onnx.numpy_helper.to_array(expected).astype(np.int8)
    for session in (make_session(model, "native"), stock_session(model)):
        assert_same(np.asarray(session.run(None, feeds)[0]), np.asarray(expected))


@pytest.mark.parametrize("name", UNCONVERTED)
def test_other_types_are_not_rewritten(name: str) -> None:
    """Float8, float4, 16- and 2-bit integers: the model is unchanged, and the report says why."""
    case = CASES[name]
    model = opened(case.model)
    result = rewrite(model)
    assert result.report.rewritten == []
    (finding,) = result.report.unconverted
    assert "expected" in finding.reason or "output_dtype" in finding.reason
    assert [node.SerializeToString() for node in result.to_proto().graph.node] == [
        node.SerializeToString() for node in model.graph.node
    ]
    assert not result.to_proto().functions


@pytest.mark.parametrize("name", sorted(FUSED))
def test_fused_kernels_are_not_rewritten(backend: str, name: str) -> None:
    case = CASES[name]
    model = rewrite(loadable(case)).to_proto()
    assert [node.op_type for node in model.graph.node] == ["DynamicQuantizeLinear"]
    check(case, model, backend)
