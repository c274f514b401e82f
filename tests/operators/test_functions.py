"""The function of each operator in a rewritten model, run by stock ONNX Runtime, equals the kernels: tests/cases/ has
the calls.

Every value of every attribute is tested in every opset. Each opset tests a part of the combinations of values. By
default, these are the oldest opset and the newest one; the others with --exhaustive.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import onnx
import onnx.parser
import pytest
from cases import CASES, Case
from cases.compressed_attention import compressed_inputs
from functions import attributes_text, complete, is_other_on_arm, make_model, programs_of, run_function
from helpers import IS_ARM, Array, assert_same, explained, stock_session, with_one_nan

from ort_dynq import DynqError, kernels
from ort_dynq.documentation import body_text
from ort_dynq.graphs import proto_with_subgraphs
from ort_dynq.operators import OPERATORS
from ort_dynq.rewriter.functions import make_function

OPSETS = (13, 17, 18, 20, 21, 25)  # the bodies change at 14, 15, 18, 21 and 23
opsets = pytest.mark.parametrize(
    "opset", [pytest.param(each, marks=[pytest.mark.exhaustive] * (each not in (13, 25))) for each in OPSETS]
)
PARTS = 16
"""One of so many parts of the cases of an operator and an opset is tested by default, or five cases; each opset has
another part."""


def check(operator: str, opset: int, case: Case, isas: Sequence[str], is_special: bool = True) -> list[Array]:
    """Compares the function with the kernels of the instruction sets, and returns its outputs."""
    spec, given = OPERATORS[operator], complete(operator, case.attributes)
    expected = run_function(operator, case.inputs, opset, is_special, **given)
    for isa in isas:
        with kernels.use_isa(isa):
            actual = kernels.run(operator, case.inputs, **given)
        for value, one, other in zip(spec.outputs, actual, expected, strict=True):
            src = case.inputs[0] if value.name == "dst" else None
            shapes = [array.shape for array in case.inputs]
            with explained(f"{operator} {given} opset {opset} on {isa}, {shapes}, {value.name}"):
                assert_same(with_one_nan(one), with_one_nan(other), src)
    return expected


def in_float16(operator: str, case: Case) -> Case | None:
    """The same case with one input of float16 without -0.0, or None if no input may be.

    Tiny numbers become zeros: the sign of a minimum that is one depends on ONNX Runtime's vector code.
    """
    if operator == "QuantizedConvProgram" and not str(case.attributes["program"]).startswith("dst = Clip(x, "):
        return None
    types = tuple(str(array.dtype) for array in case.inputs)
    known = {signature.inputs for signature in OPERATORS[operator].signatures}
    for i, array in enumerate(case.inputs):
        if array.dtype == np.float32 and (*types[:i], "float16", *types[i + 1 :]) in known:
            with np.errstate(over="ignore"):
                half = np.asarray(array.astype(np.float16) + np.float16(0))
            return Case(case.attributes, [*case.inputs[:i], half, *case.inputs[i + 1 :]])
    return None


@opsets
@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("is_default", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_function_equals_kernels(isas: Sequence[str], operator: str, opset: int, is_default: bool) -> None:
    distinct, turn, programs = 0, OPSETS.index(opset), set[str]()
    cases = []
    all_cases = [*CASES[operator](opset)]
    parts = max(1, min(PARTS, len(all_cases) // 5))
    for i, case in enumerate(all_cases):
        program = str(case.attributes.get("program", ""))
        # Every second program of RowProgram, and with it every step: an odd and an even opset have all of them.
        is_step = operator == "RowProgram" and program not in programs and len(programs) % 2 == turn % 2
        programs.add(program)
        if ((i + turn) % parts == 0 or is_step) == is_default:
            cases.append(case)
    for i, case in enumerate(cases):
        if IS_ARM and is_other_on_arm(complete(operator, case.attributes)):
            continue
        outputs = check(operator, opset, case, isas, is_special=i % 8 > 0)
        distinct += len(np.unique(outputs[0])) > 4
        if i % 3 == 0 and opset >= 15 and (half := in_float16(operator, case)) is not None:
            check(operator, opset, half, isas)
    assert distinct  # not all of the data saturates


@pytest.mark.parametrize(
    ("operator", "program"),
    [("RowProgram", "dst = Mul(x, Sigmoid(x)); dst_2 = Mul(x, Div(1.0, x))"), ("CompressedMatMul", "")],
)
def test_function_with_optimizations(operator: str, program: str) -> None:
    """ONNX Runtime's optimizer would make a division of a product by an inverse."""
    for case in itertools.islice(CASES[operator](21), 8):
        given = complete(operator, case.attributes | ({"program": program} if program else {}))
        found = run_function(operator, case.inputs, optimize=True, **given)
        for one, other in zip(kernels.run(operator, case.inputs, **given), found, strict=True):
            assert_same(with_one_nan(one), with_one_nan(other))


@pytest.mark.parametrize("opset", OPSETS)
def test_printed_body_is_the_function(opset: int) -> None:
    """It parses, and gives the nodes of which the rewriter writes those that a model runs."""
    for operator in OPERATORS:
        function = make_function(operator, opset)
        for graph in proto_with_subgraphs(function):
            for node in graph.node:
                assert node.name == node.output[0]
                node.ClearField("name")
        assert onnx.parser.parse_function(body_text(operator, opset)) == function, operator


@pytest.mark.parametrize(
    ("types", "sizes", "is_transposed"),
    [
        (("float32", "uint4"), (1, 2, 2, 1, 41, 12, 128), False),
        (("float32", "int4"), (1, 1, 1, 1, 70, 12, 256), False),
        (("int4", "float32"), (1, 1, 1, 1, 256, 12, 5), True),
    ],
)
def test_attention_of_one_query_with_4_bits(
    isas: Sequence[str], types: tuple[str, str], sizes: tuple[int, int, int, int, int, int, int], is_transposed: bool
) -> None:
    """Rows of codes have the lengths of heads of decoders. The offset of the floats is not read."""
    inputs = compressed_inputs(np.random.default_rng(0), types, sizes, is_transposed=is_transposed)
    is_float = [each == "float32" for each in types]
    inputs[9 + is_float.index(True)][...] = np.nan
    flags = {"transposed_key": int(is_transposed), "float_key": int(is_float[0]), "float_value": int(is_float[1])}
    (dst,) = check("CompressedAttention", 25, Case(flags, inputs), isas)
    assert np.isfinite(dst).all()


@pytest.mark.parametrize("tokens", [1, 5])
def test_an_offset_of_0_adds_nothing_to_an_infinite_sum(isas: Sequence[str], tokens: int) -> None:
    inputs = compressed_inputs(np.random.default_rng(0), ("int8", "int8"), (1, 1, 1, 2, 5, 4, 6), has_zero_points=False)
    inputs[0][...] = 3e38
    inputs[1][...] = [1, -1, 1, -1]
    inputs[9] = np.zeros((1, 1, tokens, 1), np.float32)
    (dst,) = check("CompressedAttention", 25, Case({}, inputs), isas)
    assert np.isfinite(dst).all()


def test_printed_body_of_an_unknown_operator() -> None:
    with pytest.raises(DynqError, match="there is no operator 'Quantize', expected one of DynamicQuantize, "):
        body_text("Quantize")


@opsets
@pytest.mark.parametrize("operator", OPERATORS)
def test_the_model_needs_its_function(operator: str, opset: int) -> None:
    """The model is valid, and ONNX Runtime rejects it without its function: so the function runs."""
    case = next(iter(CASES[operator](opset)))
    types = [str(array.dtype) for array in case.inputs]
    programs = programs_of(operator, case.attributes)
    model = make_model(operator, opset, types, attributes_text(operator, case.attributes), programs)
    results = run_function(operator, case.inputs, opset, **case.attributes)
    values, arrays = [*model.graph.input, *model.graph.output], [*case.inputs, *results]
    for value, array in zip(values, arrays, strict=True):
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, array.shape))
    onnx.checker.check_model(model, full_check=True)
    del model.functions[:]
    with pytest.raises(Exception, match=operator):
        stock_session(model)
