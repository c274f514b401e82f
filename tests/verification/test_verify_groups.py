"""verify on integer products in groups: correct ones pass, one incorrect number in one group fails.

The rewritten models are written by hand, so that these tests do not depend on a rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from helpers import Array, every, parse
from onnx import numpy_helper

import ort_dynq
from ort_dynq.operators.packing import pack
from ort_dynq.rewriter.functions import add_functions
from ort_dynq.rewriter.metadata import ACTIVATION
from ort_dynq.tools.verification.products import FLOOR, Product

ROWS, COLUMNS = 5, 21
GROUP = 32
# Quantizes x symmetrically, with one scale for each run of the last dimension. `wide` is x in such runs.
CODES = """m = Constant<value = float {-128.0}>() p = Constant<value = float {127.0}>() magnitude = Abs(wide)
    peak = ReduceMax<axes = [-1]>(magnitude) scale = Div(peak, p)
    quotient = Div(wide, scale) rounded = Round(quotient) code = Clip(rounded, m, p)"""
FLAT = "flat = Constant<value_ints = [0, -1]>()"
# A program that says the same; outputs are uint8.
PROGRAM = (
    "s = Div(ReduceMax(Abs(x)), 127.0); codes = Add(Int8(Clip(Round(Div(x, s)), -128.0, 127.0)), 128.0); "
    "zero_point = 128.0; scale = Add(s, Mul(Div(s, s), 0.0))"
)
QUANTIZE = f"""no = Constant<value = uint8 {{0}}>() unused = Constant<value_floats = [0.0]>()
    codes, zeros, dst, dst_2, scales, number = ort_dynq.RowProgram<program = "{PROGRAM}",
        axis = -1, block_size = 0, code_type = 2, branch = 0>(wide, no, unused, unused, unused, unused)"""


class Pair:
    """A product of floats, and the same product in groups of integers.

    Attributes:
        original, fast: The models; they share the names of values.
        x: The activation, [ROWS, depth].
    """

    def __init__(
        self, groups: int, bits: int, *, has_zero_points: bool = False, is_activation_in_groups: bool = False
    ) -> None:
        depth = groups * GROUP
        rng = np.random.default_rng(groups)
        high = 15 if bits == 4 else 127
        w = rng.integers(0 if bits == 4 else -128, high + 1, (depth, COLUMNS)).astype(np.int8)
        zero_point = np.full((groups, COLUMNS), 8 if bits == 4 else 0, np.int8)
        if has_zero_points:
            zero_point = rng.integers(0, high + 1, (groups, COLUMNS)).astype(np.int8)
        scale = rng.uniform(0.001, 0.002, (groups, COLUMNS)).astype(np.float32)
        integers = w.astype(np.int32).reshape(groups, GROUP, COLUMNS) - zero_point[:, None]
        floats = (integers.astype(np.float32) * scale[:, None]).reshape(depth, COLUMNS)
        bias = rng.standard_normal(COLUMNS).astype(np.float32)
        self.x = rng.standard_normal((ROWS, depth)).astype(np.float32)
        signature = f"float[{ROWS}, {depth}] x", f"float[{ROWS}, {COLUMNS}] y, float[{ROWS}, {COLUMNS}] z"
        runs = f"runs = Constant<value_ints = [0, {groups}, {GROUP}]>() wide = Reshape(x, runs)"
        if not is_activation_in_groups:
            runs = "wide = Identity(x)"
        self.original = parse(
            *signature,
            f"{runs} {CODES} {FLAT} wide_dx = Mul(code, scale) dx = Reshape(wide_dx, flat) "
            "product = MatMul(dx, w) y = Add(product, b) z = Tanh(y)",
            opset=17,
        )
        del self.original.opset_import[1]
        self.original.graph.initializer.extend(map(numpy_helper.from_array, (floats, bias), ("w", "b")))
        self.fast = parse(
            *signature,
            f"{runs} {QUANTIZE} {FLAT} a = Reshape(codes, flat) sa = Reshape(scales, flat) za = Reshape(zeros, flat) "
            f"y = ort_dynq.QuantizedMatMul<bits = {bits}, group_size = {GROUP}, scale_order = 2>"
            "(a, sa, za, weight, weight_zero_point, column_scale, column_sum, b) z = Tanh(y)",
            opset=17,
        )
        constants = {
            "weight": pack(w, bits),
            "weight_zero_point": zero_point,
            "column_scale": scale,
            "column_sum": integers.sum(1, dtype=np.int32),
            "b": bias,
        }
        self.fast.graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in constants.items())
        (product,) = (node for node in self.fast.graph.node if node.op_type == "QuantizedMatMul")
        product.metadata_props.add(key=ACTIVATION, value="dx")
        with_functions = ir.from_proto(self.fast)
        add_functions(with_functions, 17)
        self.fast = ir.to_proto(with_functions)

    def change(self, name: str, index: int, by: Callable[[Any], Any]) -> None:
        """Changes one element of a constant of the integer product."""
        (tensor,) = (each for each in self.fast.graph.initializer if each.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array.reshape(-1)[index] = by(array.reshape(-1)[index])
        tensor.CopyFrom(numpy_helper.from_array(array, name))

    def verify(self, x: Array | None = None) -> Product:
        """Verifies the pair. The outputs after the product must be equal in any case."""
        result = ort_dynq.verify(self.original, self.fast, inputs={"x": self.x if x is None else x})
        assert not result.failure
        assert [(each.name, each.equal) for each in result.outputs] == [("z", True)]
        (product,) = result.products
        assert result.passed == (not product.problem)
        return product


PAIRS: tuple[dict[str, Any], ...] = (
    {"groups": 1, "bits": 4},
    {"groups": 3, "bits": 4},
    {"groups": 3, "bits": 4, "has_zero_points": True},
    {"groups": 3, "bits": 8},
    {"groups": 4, "bits": 8, "has_zero_points": True},
    {"groups": 4, "bits": 4, "is_activation_in_groups": True},
    {"groups": 4, "bits": 8, "is_activation_in_groups": True},
)
CHANGES: dict[str, Callable[[Any], Any]] = {
    "weight": lambda code: code ^ 1,
    "weight_zero_point": lambda zero: zero + 1,
    "column_scale": lambda scale: scale * np.float32(1 + 2**-12),
    "column_sum": lambda total: total + 1,
    "b": lambda bias: bias + np.float32(2**-12),
}


@pytest.mark.parametrize("arguments", PAIRS, ids=str)
def test_correct_product_passes(arguments: dict[str, Any]) -> None:
    product = Pair(**arguments).verify()
    assert not product.problem
    assert product.depth == arguments["groups"] * GROUP
    assert (product.elements, product.skipped) == (ROWS * COLUMNS, 0)
    assert 0 < product.b_error < 3
    assert 0 < product.a_error < product.depth


@pytest.mark.parametrize(("arguments", "name"), every(3, itertools.product(PAIRS, CHANGES)), ids=str)
def test_incorrect_number_fails(arguments: dict[str, Any], name: str) -> None:
    pair = Pair(**arguments)
    last_group = 0 if name in ("weight", "b") else (arguments["groups"] - 1) * COLUMNS
    pair.change(name, last_group + 7, CHANGES[name])
    assert pair.verify().problem.startswith("B's error is ")


def test_scales_of_another_group_fail() -> None:
    pair = Pair(groups=4, bits=4, is_activation_in_groups=True)
    for node in pair.fast.graph.node:
        if node.op_type == "QuantizedMatMul":
            node.input[1] = "turned"
    at = next(i for i, node in enumerate(pair.fast.graph.node) if node.op_type == "QuantizedMatMul")
    order = numpy_helper.from_array(np.array([1, 0, 2, 3]), "order")
    pair.fast.graph.initializer.append(order)
    pair.fast.graph.node.insert(at, onnx.helper.make_node("Gather", ["sa", "order"], ["turned"], axis=1))
    assert pair.verify().problem.startswith("B's error is ")


@pytest.mark.parametrize("bits", [4, 8])
def test_many_groups_have_small_errors(bits: int) -> None:
    """Activations of one sign and weights of both signs, as after a Relu: the errors of 128 groups are far below 8."""
    pair = Pair(groups=128, bits=bits)
    product = pair.verify(np.abs(pair.x))
    assert product.b_error < FLOOR / 2
