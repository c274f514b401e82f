"""Every reason has a test: those that no other test names are here, each with a small graph."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnx.parser
import pytest
from helpers import Array, with_arrays

import ort_dynq
from ort_dynq.rewriter.reasons import Reason

F = np.float32
RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Array] = {
    "one": np.array([-1]),
    "c127": F(127),
    "low": F(-127),
    "zero": F(0),
    "lowest": F(-np.inf),
    "eps": F(1e-5),
    "half": F(0.5),
    "none": np.uint8(0),
    "none8": np.int8(0),
    "zeros": np.zeros(3, np.uint8),
    "w": RNG.normal(size=(48, 32)).astype(F),
    "wd": RNG.normal(size=(160, 160)),
    "wq": RNG.integers(-128, 128, (48, 32)).astype(np.int8),
    "wu": RNG.integers(0, 256, (48, 32)).astype(np.uint8),
    "wide": RNG.integers(-128, 128, (48, 32)).astype(np.int32),
    "stack": RNG.integers(-128, 128, (2, 48, 32)).astype(np.int8),
    "vector": RNG.integers(0, 256, 48).astype(np.uint8),
    "empty": np.zeros((48, 0), F),
    "ws": F(0.01),
    "column": np.full(32, 0.01, F),
    "grid": RNG.integers(-128, 128, (48, 32)).astype(F) * F(0.01),
    "odd": F(2) * (RNG.integers(0, 256, (96, 40)).astype(F) / F(255)) - F(1),
    "smooth": RNG.integers(-128, 128, (48, 32)).astype(F) / np.linspace(1, 2, 48, dtype=F)[:, None],
    "codes4": RNG.integers(0, 256, (32, 3, 8)).astype(np.uint8),
    "scales4": np.full((32, 3), 0.01, F),
    "zeros4": np.zeros((32, 3), np.int8),
    "nbits_zeros": np.zeros((32, 2), np.int8),
    "bias": np.zeros(96, F),
    "w96": RNG.integers(0, 256, (48, 96)).astype(np.uint8),
    "filter": RNG.integers(0, 256, (4, 8, 3, 3)).astype(np.uint8),
    "filter8": RNG.integers(-128, 128, (4, 8, 3, 3)).astype(np.int8),
    "wide32": RNG.normal(size=(256, 256)).astype(F),
    "normal": RNG.normal(size=(8, 4, 3, 3)).astype(F),
    "narrow": RNG.integers(-128, 128, (48, 2)).astype(F) * F(0.01),
    "first": np.array([1]),
    "turned": RNG.integers(-128, 128, (32, 48)).astype(F) * F(0.01),
    "sixth": np.full((1, 192), 0.01, F),
    "many": np.array([192, 192]),
    "sixths": np.full((6, 32), 0.01, F),
}
RANGE = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) b = Max(m, eps) s = Div(b, c127)"
CODES = f"{RANGE} d = Div(x, s) r = Round(d) c = Clip(r, low, c127)"
FAKE = f"{CODES} f = Mul(c, s)"
LINEAR = "q, s, z = DynamicQuantizeLinear(x)"
HIDDEN = "float[tokens, 48] x"
LONG = " ".join(f"n{i + 1} = {('Reciprocal', 'Sqrt')[i % 2]}(n{i})" for i in range(70))
ATTENTION = "d = MatMul(x, k) p = Softmax<axis = -1>(d) y = MatMul(p, v)"
FUNCTION = "ort_dynq.rewriter.chains"


def pattern_of(reason: Reason) -> str:
    """The pattern of its text; reasons that are only fields have none."""
    return ".*".join(map(re.escape, re.split(r"\{\w+\}", reason.value))) if reason != Reason.CONTRADICTION else "$^"


@dataclass(frozen=True)
class Case:
    """A graph, and what becomes of it."""

    nodes: str
    inputs: str = HIDDEN
    opset: int = 18
    output: str = "float y"
    declared: str = ""
    quantize: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    version: tuple[str, tuple[int, int]] | None = None

    def model(self) -> onnx.ModelProto:
        domains = {"", *re.findall(r"([a-z.]+)\.[A-Z]", self.nodes)}
        imports = ", ".join(f'"{each}" : {1 if each else self.opset}' for each in sorted(domains))
        model = onnx.parser.parse_model(
            f"<ir_version: 10, opset_import: [{imports}]> g ({self.inputs}) => ({self.output}) {self.declared}"
            f"{{ {self.nodes} }}"
        )
        return with_arrays(model, CONSTANTS)

    def reasons(self) -> list[Reason]:
        function = ort_dynq.quantize if self.quantize else ort_dynq.rewrite
        patch = mock.patch(self.version[0], return_value=self.version[1]) if self.version else mock.MagicMock()
        with patch:
            report = function(self.model(), **self.options).report
        found = [each.unconverted for each in report.findings if each.unconverted is not None]
        named = [each.reason for first in found for each in (first, first.second, first.cause) if each is not None]
        notes = " ".join(each.note for each in report.findings)
        return [*named, *(reason for reason in Reason if notes and re.search(pattern_of(reason), notes))]


CASES: dict[Reason, Case] = {
    Reason.NO_INPUT: Case("y = com.microsoft.DynamicQuantizeMatMul(x)"),
    Reason.TYPE: Case("d = Div(x, s) y = Round(d)", "double[tokens, 48] x, double[tokens, 1] s", output="double y"),
    Reason.TYPE_NOT_KNOWN: Case(f"t = custom.F(x) {FAKE.replace('(x', '(t')} y = Identity(f)"),
    Reason.SCALE_NOT_OF_TYPE_OF_X: Case(
        f"{RANGE} h = Cast<to = 10>(s) y = QuantizeLinear(x, h, none8)", opset=23, output="int8 y"
    ),
    Reason.FOUR_BITS_BEFORE_1_23: Case(
        f"{RANGE} y = QuantizeLinear<output_dtype = 22>(x, s)",
        opset=21,
        output="int4 y",
        version=(f"{FUNCTION}.quantize_linear.version", (1, 22)),
    ),
    Reason.FLOAT16_QUOTIENT_ROUNDED: Case(
        "y = QuantizeLinear(x, s, none8)", "float16[tokens, 48] x, float16 s", opset=23, output="int8 y"
    ),
    Reason.FLOAT16_SCALE_NOT_ROUNDED: Case(
        "s = Div(h, one16) d = DequantizeLinear(q, s) y = Abs(d) w = Transpose(d)",
        "uint8[tokens, 4800] q, float16 h, float16 one16",
        opset=21,
        output="float16 y, float16 w",
    ),
    Reason.FLOAT16_QUOTIENT_TRUNCATED: Case(
        "y = QuantizeLinear(x, s, none8)",
        "float16[tokens, 48] x, float16 s",
        opset=21,
        output="int8 y",
        version=(f"{FUNCTION}.qdq.version", (1, 29)),
    ),
    Reason.PROGRAM_TOO_SHORT: Case("d = Div(x, s) y = Round(d)", f"{HIDDEN}, float[tokens, 1] s"),
    Reason.PROGRAM_TOO_LONG: Case(
        f"a = Abs(x) n0 = ReduceMax<keepdims = 1>(a, one) {LONG} d = Div(x, n70) y = Round(d)"
    ),
    Reason.SCALE_BROADCAST_TO_X: Case("d = Div(x, s) y = Round(d)", "float[a, b] x, float[c, d] s"),
    Reason.SCALE_OF_OTHER_AXES: Case(
        "m = ReduceMax<keepdims = 1>(x, first) d = Div(x, m) y = Round(d)", "float[a, 8, b] x"
    ),
    Reason.PRODUCT_TOO_SMALL_TO_TRANSPOSE: Case(
        f"{FAKE} t = Transpose<perm = [1, 0]>(f) y = MatMul(turned, t)", "float[tokens, 48] x"
    ),
    Reason.PRODUCT_TOO_SMALL_FOR_A_SUM: Case(f"{FAKE} g = Neg(f) h = Add(f, g) y = MatMul(h, grid)"),
    Reason.ACTIVATION_FEW_BITS: Case(
        "q = QuantizeLinear<output_dtype = 22>(x, t) f = DequantizeLinear(q, t) y = MatMul(f, grid)",
        "float[64, 48] x, float t",
        opset=21,
    ),
    Reason.RANK_NOT_KNOWN: Case(
        f"{LINEAR} f = DequantizeLinear(q, s, z) v = DequantizeLinear(stack, ws) y = MatMul(f, v)", "float[] x"
    ),
    Reason.ACTIVATION_TYPE_NOT_KNOWN: Case("t = custom.F(x) y = com.microsoft.DynamicQuantizeMatMul(t, wu, ws)"),
    Reason.ACTIVATION_TYPE: Case("y = com.microsoft.DynamicQuantizeMatMul(x, wu, ws)", "double[tokens, 48] x"),
    Reason.EXCLUDED: Case("y = MatMul(x, w)", quantize=True, options={"exclude": ["y"]}),
    Reason.GROUPS_DO_NOT_DIVIDE: Case(
        "q = QuantizeLinear<axis = 1, block_size = 32, output_dtype = 3>(x, s)"
        " f = DequantizeLinear<axis = 1, block_size = 32>(q, s) y = MatMul(f, grid)",
        f"{HIDDEN}, float[tokens, 2] s",
        opset=21,
    ),
    Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME: Case(
        f"{LINEAR} i = MatMulInteger(q, v, z) f = Cast<to = 1>(i) y = Mul(f, s)", f"{HIDDEN}, uint8[48, 32] v"
    ),
    Reason.WEIGHTS_TYPE_NOT_KNOWN: Case(
        f"{CODES} q = Cast<to = 3>(c) v = custom.F(x) y = MatMulInteger(q, v)", output="int32 y"
    ),
    Reason.WEIGHTS_TYPE: Case("y = MatMul(x, wd)", "float[tokens, 160] x", quantize=True),
    Reason.WEIGHTS_COMPUTED: Case("e = Expand(sixth, many) y = MatMul(x, e)", "float[tokens, 192] x", quantize=True),
    Reason.WEIGHTS_EMPTY: Case("y = MatMul(x, empty)", quantize=True),
    Reason.WEIGHTS_NO_MATRIX: Case("y = com.microsoft.DynamicQuantizeMatMul(x, vector, ws)"),
    Reason.WEIGHTS_SCALES: Case("y = com.microsoft.DynamicQuantizeMatMul(x, wu, t)", f"{HIDDEN}, float[32] t"),
    Reason.WEIGHTS_ZERO_POINTS: Case(f"{LINEAR} i = MatMulInteger(q, wu, z, zeros) f = Cast<to = 1>(i) y = Mul(f, s)"),
    Reason.WEIGHTS_ZERO_POINT_TYPE: Case(
        f"{LINEAR} i = MatMulInteger(q, wu, z, none8) f = Cast<to = 1>(i) y = Mul(f, s)"
    ),
    Reason.NBITS_WIDTH: Case(
        "y = com.microsoft.MatMulNBits<K = 48, N = 32, bits = 3, block_size = 16, accuracy_level = 4>"
        "(x, codes4, scales4)"
    ),
    Reason.NBITS_ZERO_POINTS: Case(
        "y = com.microsoft.MatMulNBits<K = 48, N = 32, bits = 4, block_size = 16, accuracy_level = 4>"
        "(x, codes4, scales4, nbits_zeros)"
    ),
    Reason.QATTENTION_HEADS: Case(
        "y = com.microsoft.QAttention<num_heads = 7>(q, w96, bias, s, ws)",
        "uint8[1, 5, 48] q, float s",
    ),
    Reason.SUMS_NOT_CONVERTED: Case(
        f"{CODES} q = Cast<to = 3>(c) v = Cast<to = 6>(q) k = ReduceMax<keepdims = 1>(c, one) j = Cast<to = 3>(k)"
        " i = Cast<to = 6>(j) u = Sub(v, i) y = MatMul(u, wide)",
        output="int32 y",
    ),
    Reason.OUTPUT_DTYPE: Case(
        "q = QuantizeLinear(x, s, none8) h = DequantizeLinear<output_dtype = 10>(q, s, none8) f = Cast<to = 1>(h)"
        " y = MatMul(f, grid)",
        f"{HIDDEN}, float s",
        opset=23,
    ),
    Reason.CONTRADICTION: Case(f"{FAKE} y = Mul(f, t)", "float[2, 48] x, float[7, 5] t", declared="<float[7, 5] f>"),
    Reason.OFFSET_ROUNDED: Case(
        f"{CODES} k = Sub(c, t) g = Mul(k, s) h = Cast<to = 10>(g) f = Cast<to = 1>(h) y = MatMul(f, grid)",
        f"{HIDDEN}, float t",
    ),
    Reason.EXPERTS_SHAPE: Case(
        'y = com.microsoft.QMoE<k = 1, expert_weight_bits = 8, activation_type = "relu">'
        "(x, scores, wu, column, , wu, column)",
        f"{HIDDEN}, float[tokens, 32] scores",
        options={"weights_only": "two-term"},
    ),
    Reason.ACTIVATION_NOT_QUANTIZED: Case(
        f"{LINEAR} i = MatMulInteger(q, wu, z) f = Cast<to = 1>(i) y = Mul(f, s) v = MatMulInteger(k, wu)",
        f"{HIDDEN}, uint8[tokens, 48] k",
        output="float y, int32 v",
        quantize=True,
        options={"from_dynamic": True},
    ),
    Reason.SUMS_NOT_SCALED_BY_ACTIVATION: Case(
        f"{LINEAR} i = MatMulInteger(q, wu, z) f = Cast<to = 1>(i) y = Mul(f, half)",
        quantize=True,
        options={"from_dynamic": True},
    ),
    Reason.BIAS_AT_RUN_TIME: Case(f"{FAKE} y = Gemm<beta = 0.5>(f, grid, t)", f"{HIDDEN}, float[32] t"),
    Reason.DEQUANTIZED_CODES: Case("v = DequantizeLinear(wide, ws) y = MatMul(x, v)"),
    Reason.DEQUANTIZED_SCALES: Case(
        "v = DequantizeLinear<axis = 0, block_size = 8>(wq, sixths) y = MatMul(x, v)", opset=21
    ),
    Reason.DEQUANTIZED_LITTLE: Case(
        "v = DequantizeLinear(filter8, ws) c = Conv(x, v) u = DequantizeLinear(wq, ws) y = MatMul(k, u)",
        "float[1, 8, 100, 100] x, float[1, 48] k",
        output="float y, float c",
    ),
    Reason.WEIGHTS_DEQUANTIZED: Case(
        "v = DequantizeLinear(filter8, ws) y = Conv(x, v)", "float[1, 8, 20, 20] x", output="float[1, 4, 18, 18] y"
    ),
    Reason.CODES_DEQUANTIZED: Case(
        "q = Gather(wq, i) f = DequantizeLinear(q, ws) u = DequantizeLinear(wq, ws) v = Transpose(u) y = MatMul(f, v)",
        "int64[tokens] i",
    ),
    Reason.POOL_OF_CODES: Case(
        "q = QuantizeLinear(x, ws, none) f = DequantizeLinear(q, ws, none) p = AveragePool<kernel_shape = [2, 2]>(f)"
        " y = QuantizeLinear(p, ws, none)",
        "float[1, 8, 20, 20] x",
        output="uint8 y",
    ),
    Reason.ATTENTION_OF_FLOATS: Case(
        "q = MatMul(x, wide32) y = Attention<q_num_heads = 4, kv_num_heads = 4>(q, q, q)",
        "float[1, 20, 256] x",
        opset=23,
        quantize=True,
        options={"attention": "float"},
    ),
    Reason.ATTENTION_OPERATOR: Case(
        "q = MatMul(x, wide32) y = Attention<q_num_heads = 4, kv_num_heads = 4, qk_matmul_output_mode = 1>(q, q, q)",
        "float[1, 20, 256] x",
        opset=23,
        quantize=True,
    ),
    Reason.ATTENTION_AXES: Case(
        "t = Transpose<perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) p = Softmax(s) y = MatMul(p, x)",
        "float[1, 8, 20, N] x",
        options={"fuse": True},
    ),
    Reason.ATTENTION_SCORES: Case(
        "t = Transpose<perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) a = Abs(s) p = Softmax(a) y = MatMul(p, x)",
        "float[1, 8, 20, 20] x",
        options={"fuse": True},
    ),
    Reason.ATTENTION_WEIGHTS: Case(
        "t = Transpose<perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) p = Softmax(s) a = Abs(p) y = MatMul(a, x)",
        "float[1, 8, 20, 20] x",
        options={"fuse": True},
    ),
    Reason.ATTENTION_LENGTHS: Case(
        "t = Transpose<perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) p = Softmax(s) y = MatMul(p, v)",
        "float[B, 8, 20, 20] x, float[C, 8, 20, 20] v",
        options={"fuse": True},
    ),
    Reason.ATTENTION_SOFTMAX: Case(
        "t = Transpose<perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) p = Sigmoid(s) y = MatMul(p, x)",
        "float[1, 8, 20, 20] x",
        options={"fuse": True},
    ),
    Reason.ATTENTION_AS_FAST: Case(
        "t = Transpose<perm = [0, 1, 3, 2]>(x) s = MatMul(x, t) a = Add(s, x) p = Softmax(a) y = MatMul(p, x)",
        "float[1, 8, 20, 20] x",
        options={"fuse": True},
    ),
    Reason.ATTENTION_PAST: Case(
        "q = MatMul(x, wide32) shape = Constant<value_ints = [1, 20, 4, 8]>() q4 = Reshape(q, shape) "
        "qt = Transpose<perm = [0, 2, 1, 3]>(q4) y = Attention(qt, past, past)",
        "float[1, 20, 256] x, float[1, 4, 30, 8] past",
        opset=23,
        quantize=True,
    ),
    Reason.OF_QUANTIZE_DYNAMIC: Case(
        f"{LINEAR} i = MatMulInteger(q, wu, z) f = Cast<to = 1>(i) y = Mul(f, s)"
        " v = com.microsoft.QAttention<num_heads = 8>(k, w96, bias, s, ws)",
        f"{HIDDEN}, uint8[1, 5, 48] k",
        output="float y, float v",
        quantize=True,
        options={"from_dynamic": True},
    ),
    Reason.CODES_SAFE_SOFTMAX: Case(
        "k = DequantizeLinear(kc, ks) d = MatMul(x, k) m = Where(keep, d, lowest) p = Softmax<axis = -1>(m)"
        " n = IsNaN(p) safe = Where(n, zero, p) y = MatMul(safe, v)",
        "float[1, 2, 3, 64] x, int8[1, 2, 64, 19] kc, float ks, float[1, 2, 19, 64] v, bool[3, 19] keep",
        options={"fuse": True},
    ),
    Reason.WEIGHTS_NOT_A_GRID_OF_CHANNELS: Case(
        f"{LINEAR} f = DequantizeLinear(q, s, z) y = ConvTranspose(f, normal)", "float[1, 8, 20, 20] x"
    ),
    Reason.SUMS_NOT_SCALED_BY_CHANNEL: Case(
        f"{LINEAR} i = ConvInteger(q, filter, z) y = Abs(i)", "float[1, 8, 20, 20] x", output="int32 y"
    ),
    Reason.PRODUCT_TOO_SMALL_FOR_ROWS: Case(
        "q = QuantizeLinear<axis = 0>(x, s, none8) f = DequantizeLinear<axis = 0>(q, s, none8) y = MatMul(f, narrow)",
        "float[7, 48] x, float[7] s",
    ),
    Reason.EINSUM_ROWS: Case(
        f"{CODES} k = Sub(c, t) f = Mul(k, s) v = DequantizeLinear(stack, ws)"
        ' y = Einsum<equation = "tek,ekf->tef">(f, v)',
        "float[tokens, 2, 48] x, float t",
    ),
    Reason.WEIGHTS_STEPS: Case(f"{FAKE} y = MatMul(f, odd)", "float[tokens, 96] x"),
    Reason.ACTIVATION_CHANNELS: Case(
        "d = Div(x, t) n = Round(d) c = Clip(n, low, c127) f = Mul(c, t) y = MatMul(f, smooth)",
        f"{HIDDEN}, float[48] t",
    ),
    Reason.CONV_STRIDES_WITH_AUTO_PAD: Case(
        f'{LINEAR} i = ConvInteger<auto_pad = "SAME_UPPER", strides = [9, 9]>(q, filter, z)'
        " f = Cast<to = 1>(i) y = Mul(f, s)",
        "float[1, 8, 20, 20] x",
    ),
}


@pytest.mark.parametrize("reason", CASES, ids=lambda reason: reason.code)
def test_reason(reason: Reason) -> None:
    assert reason in CASES[reason].reasons()


@pytest.mark.parametrize(
    ("nodes", "inputs", "reasons"),
    [
        (
            f"{LINEAR} k, t, o = DynamicQuantizeLinear(v) i = MatMulInteger(q, k, z, o) f = Cast<to = 1>(i)"
            " m = Mul(s, t) y = Mul(f, m)",
            f"{HIDDEN}, float[48, 32] v",
            [Reason.TWO_QUANTIZED_ACTIVATIONS],
        ),
        (  # the rounded zero points of a layer were subtracted from its sums: scores of float attention
            "l = ReduceMin(x, one) d = Div(l, s) r = Round(d) z = Clip(r, low, c127) p = Mul(z, s) m = Mul(p, sums)"
            " h = Sub(x, m) y = MatMul(h, v)",
            "float[8, 48] x, float[8, 1] s, float[48, 32] v, float[48] sums",
            [],
        ),
    ],
    ids=["uint8", "zero points"],
)
def test_products_of_activations(nodes: str, inputs: str, reasons: list[Reason]) -> None:
    assert Case(nodes, inputs).reasons() == reasons


_LENGTH = 14  # of a part of a text that only one reason has


def _parts(text: str) -> set[str]:
    return {text[i : i + _LENGTH] for i in range(len(text) - _LENGTH + 1)}


def test_every_reason_has_a_test() -> None:
    """Each is named by its test, or by a part of its text that no other reason has."""
    folders = ("rewriter", "quantizer", "dequantizer")
    code = "".join(file.read_text() for each in folders for file in (Path(__file__).parents[1] / each).glob("*.py"))
    names = {*re.findall(r"\bReason\.(\w+)", code)}
    joined = re.sub(r'"\n\s*f?"', "", code)  # texts of several lines
    seen = set[str]().union(*map(_parts, re.findall(r'"([^"\n]+)"', joined)))
    parts = {each: set[str]().union(*map(_parts, re.split(r"\{\w+\}", each.value))) for each in Reason}
    uses = Counter(part for each in parts.values() for part in each)
    missing = [
        each.name
        for each in Reason
        if each.name not in names and not any(uses[part] == 1 and part in seen for part in parts[each])
    ]
    assert not missing, f"no test names these reasons; {Path(__file__).name} is the place: {missing}"
