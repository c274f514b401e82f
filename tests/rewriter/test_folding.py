"""Nodes that ONNX Runtime folds before run time are never rewritten, and inputs are no constants."""

from __future__ import annotations

from pathlib import Path

import pytest
from constant_models import CASES, model_of, nodes_left
from helpers import in_turn, nodes_of, product_of, stock_session
from onnx import helper
from rewriting import found

from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.rules import PHASES

MORE = " v = Abs(x) k = ReduceMax<keepdims = 0>(v) xs = Div(k, c127) z = QuantizeLinear(x, xs)"
# The parser of these cases has only standard operators; test_matmul_nbits.py, test_mixture_of_experts.py,
# test_dynamic_lstm.py and test_fused_products.py have those of com.microsoft. Scales along the sums are those of at
# least 2,048 codes: test_dequantized_matmul.py.
OTHERS = ("MatMulNBits", "tied embedding", "QMoE", "DynamicQuantizeLSTM", "fused integer product")
OTHERS += ("product with scales along the sums",)
RULES = {rule.name: rule for phase in PHASES for rule in phase if rule.name not in OTHERS}
REPORT_ONLY = ("truncated codes", "unconverted product", "unconverted float product")
REPORT_ONLY += ("attention over codes that is not fused",)


@pytest.mark.parametrize(("rule", "place"), in_turn(RULES, ["main", "branch", "function", "main"]))
def test_folded_nodes_stay(rule: str, place: str, tmp_path: Path) -> None:
    assert rule in CASES, f"{rule!r} is a new rule: give CASES nodes that it concerns, with a constant as their input"
    if "DequantizeLinear(" in CASES[rule] and place == "branch":
        place = "function"  # ONNX Runtime 1.32 does not find weights of the graph around the branch
    model = model_of(CASES[rule], place)
    for exact in (True, False):
        result = rewrite(model, exact=exact)
        assert result.report.findings == []
        assert nodes_left(result.to_proto(), tmp_path) == nodes_left(model, tmp_path)
        assert [node.op_type for node in nodes_of(result.to_proto().graph)] == [
            node.op_type for node in nodes_of(model.graph)
        ]


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if not rule.prepares])
def test_an_initializer_that_is_an_input_is_not_constant(rule: str) -> None:
    findings = rewrite(model_of(CASES[rule], is_input=True)).report.findings
    # The findings of both are those of the products.
    if rule == "tail of a product":
        found = [each for each in findings if product_of(each.operator) and each.program]
    elif rule == "product that quantizes":
        found = [each for each in findings if (each.operator or "").startswith("DynamicQuantizedMatMul")]
    else:
        found = [each for each in findings if each.rule == rule]
    assert [each.operator is None for each in found] == [rule in REPORT_ONLY]


@pytest.mark.parametrize("rule", ["range", "row program"])
@pytest.mark.parametrize("more", ["", MORE])
def test_models_with_all_initializers_as_inputs(rule: str, more: str, tmp_path: Path) -> None:
    """Before version 4 of the format they had to be, and could not be overridden."""
    model = model_of(CASES[rule] + more)
    model.ir_version = 3
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    if more:
        model.graph.output.append(helper.make_tensor_value_info("z", 2, None))
    result = rewrite(model)
    assert found(result.report) == ["RowProgram"] * bool(more)
    sessions = [stock_session(each) for each in (model, result.to_proto())]
    assert [[each.name for each in session.get_inputs()] for session in sessions] == [["x"], ["x"]]
    assert nodes_left(result.to_proto(), tmp_path) == nodes_left(model, tmp_path) - 3 * bool(more)
    assert result.to_proto().ir_version == (8 if more else 3)
    assert len(result.to_proto().graph.input) == (1 if more else len(model.graph.input))
