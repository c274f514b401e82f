"""No rule changes a model when it matches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import onnx
import onnx.parser
import onnx_ir as ir
from rewriting import MODELS
from rule_lists import ALL_PHASES, RULES

from ort_dynq import quantizer
from ort_dynq.graphs import graphs, operator_of, values_of, with_subgraphs
from ort_dynq.quantizer.options import Options
from ort_dynq.rewrite_options import RewriteOptions
from ort_dynq.rewriter.chains import rounding
from ort_dynq.rewriter.layout import without_transposes
from ort_dynq.rewriter.loop import convert
from ort_dynq.rewriter.reasons import Unconverted
from ort_dynq.rewriter.rule import Context, Rule
from ort_dynq.storage import load


def state(model: ir.Model) -> tuple[bytes, list[int]]:
    """Returns all of a model, and how often each value is used: nodes outside of it count, too."""
    uses = [len(value.uses()) for _, graph in graphs(model) for value in values_of(graph)]
    return ir.to_proto(model).SerializeToString(deterministic=True), uses


def concerns(rule: Rule[Any], node: ir.Node, context: Context) -> bool:
    try:
        return rule.takes(operator_of(node)) and rule.match(node, context) is not None
    except Unconverted:
        return True


def meeting(model: ir.Model, concerned: set[str], rules: Sequence[Rule[Any]] = RULES) -> Callable[[], Rule[None]]:
    """Makes rules that let every rule meet every node, check that nothing changes, and collect names.

    One that meets the model as another one has left it does nothing.
    """
    met: Any = None

    def every() -> Rule[None]:
        is_done = False

        def match(_: ir.Node, context: Context) -> None:
            nonlocal is_done, met
            if is_done:
                return
            is_done, before = True, state(model)
            if before == met:
                return
            for path, graph in with_subgraphs(model.graph, "main"):
                place = replace(context, path=path)
                concerned.update(rule.name for node in graph for rule in rules if concerns(rule, node, place))
            met = state(model)
            assert met == before

        return Rule("every", 0, match)

    return every


ATTENTION_OVER_CODES = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 2, 3, 32] q, int8[1, 2, 32, 19] k, int8[1, 2, 19, 24] v) => (float[1, 2, 3, 24] y)
    <float scale = {0.02}> {
        k_float = DequantizeLinear(k, scale)
        v_float = DequantizeLinear(v, scale)
        s = MatMul(q, k_float)
        p = Softmax<axis = -1>(s)
        y = MatMul(p, v_float)
    }""")
SCALES_ALONG_SUMS = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[3, 64] x, int8[64, 48] codes, float[64, 3] scales) => (float[3, 48] y) {
        w = DequantizeLinear<axis = 1, block_size = 16>(codes, scales)
        y = MatMul(x, w)
    }""")
WRITTEN_PART = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[2, 9, 6] x, float[2, 9, 2] part) => (float[2, 9, 6] y)
    <int64[2, 1] at = {4, 5}, float c64 = {64}, float least = {-2}, float most = {1.984375}> {
        a = Transpose<perm = [2, 1, 0]>(x)
        codes = Round(part)
        scaled = Div(codes, c64)
        clipped = Clip(scaled, least, most)
        b = Transpose<perm = [2, 1, 0]>(clipped)
        c = ScatterND(a, at, b)
        y = Transpose<perm = [2, 1, 0]>(c)
    }""")
ATTENTION_OF_INTEGERS = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (int8[1, 2, 64, 32] q, int8[1, 2, 32, 64] k, int8[1, 2, 64, 24] v)
    => (int8[1, 2, 64, 24] y, int32[1, 2, 5] z, float[1, 2, 64, 64] n, int32[1, 2, 64, 5] o)
    <float scale = {0.02}, int8 zero = {0}, int64[3] lengths = {64, 32, 5}> {
        weights = ConstantOfShape<value = int32[1] {2}>(lengths)
        q_wide = Cast<to = 6>(q)
        matrix_shape = Constant<value_ints = [32, 5]>()
        matrix = ConstantOfShape<value = int32[1] {2}>(matrix_shape)
        z = Einsum<equation = "bhtd,tdn->bhn">(q_wide, weights)
        o = MatMul(q_wide, matrix)
        k_wide = Cast<to = 6>(k)
        s = MatMul(q_wide, k_wide)
        i = MatMulInteger(q, k)
        n = DequantizeLinear(i, scale)
        s_float = CastLike(s, scale)
        p = Softmax<axis = -1>(s_float)
        p_codes = QuantizeLinear(p, scale, zero)
        y = QLinearMatMul(p_codes, scale, zero, v, scale, zero, scale, zero)
    }""")
ROTARY = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 2, 8, 32] x, float[1, 1, 8, 16] angles) => (float[1, 2, 8, 32] y)
    <int64[1] zero = {0}, int64[1] half = {16}, int64[1] end = {32}, int64[1] axis = {3}> {
        twice = Concat<axis = -1>(angles, angles)
        cos = Cos(twice)
        sin = Sin(twice)
        low = Slice(x, zero, half, axis)
        high = Slice(x, half, end, axis)
        negative = Neg(high)
        turned = Concat<axis = -1>(negative, low)
        a = Mul(x, cos)
        b = Mul(turned, sin)
        y = Add(a, b)
    }""")
GROUPS = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[1, 8, 128] x, int32[1] last, int32 total) => (float[1, 8, 64] y)
    { y = com.microsoft.GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(x, , , , , last, total) }""")
BIASES = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[1, N, 8] x) => (float[1, N, 8] y) {
        one = Constant<value = float[1] {0.5}>() count = Constant<value_ints = [24]>() b = Expand(one, count)
        y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, x, b)
    }""")
PAST = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[1, S, 64] x, float[1, 4, P, 16] past) => (float[1, S, 64] y, float[1, 4, T, 16] k, float[1, 4, T, 16] v)
    { y, k, v = com.microsoft.MultiHeadAttention<num_heads = 4>(x, x, x, , , , past, past) }""")
EMBEDDING = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (int64[n] ids) => (float[n, 4] y) <float scale = {0.5}> {
        shape = Constant<value_ints = [2048, 4]>()
        table = ConstantOfShape<value = int8[1] {2}>(shape)
        floats = DequantizeLinear(table, scale)
        y = Gather(floats, ids)
    }""")
TRANSPOSED_TABLE = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (int64[n] ids, float[n, 4] h) => (int8[n, 4] rows, float[n, 2048] y) <float scale = {0.5}> {
        shape = Constant<value_ints = [2048, 4]>()
        table = ConstantOfShape<value = int8[1] {2}>(shape)
        rows = Gather(table, ids)
        turned = Transpose(table)
        floats = DequantizeLinear(turned, scale)
        y = MatMul(h, floats)
    }""")
PICKED = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[8, 64] x, int64[n, 1] ids) => (float[n, 64] y) {
        q, s, z = DynamicQuantizeLinear(x)
        floats = DequantizeLinear(q, s, z)
        y = GatherND(floats, ids)
    }""")
RELATIVE_BOUNDS = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[8, 64] x) => (float[8, 64] y)
    <int64[1] last = {-1}, float zero = {0}, float epsilon = {0.00001}, float most = {255}> {
        least = ReduceMin(x, last)
        low = Min(least, zero)
        largest = ReduceMax(x, last)
        high = Max(largest, zero)
        difference = Sub(high, low)
        width = Max(difference, epsilon)
        inverse = Div(most, width)
        end = Add(low, width)
        below = Min(x, end)
        inside = Max(below, low)
        part = Sub(inside, low)
        steps = Mul(part, inverse)
        negative = Neg(low)
        shift = Mul(negative, inverse)
        zero_point = Round(shift)
        moved = Sub(steps, zero_point)
        codes = Round(moved)
        y = Div(codes, inverse)
    }""")
ROUNDED_BY_SUM = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[8, 64] x) => (float[8, 64] y) <float number = {12582912}, float least = {-128}, float most = {127}>
    { a = Add(x, number)  b = Sub(a, number)  y = Clip(b, least, most) }""")
POOLED = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[8, 64, 9, 9] x, uint8[8, 64, 9, 9] q) => (float[8, 64, 1, 1] y, uint8[8, 64, 8, 8] p)
    { h = HardSwish(x)  y = GlobalAveragePool(h)  p = MaxPool<kernel_shape = [2, 2]>(q) }""")


def test_match_changes_nothing() -> None:
    """Every rule meets every node of some models, before and after each phase, and concerns one of them.

    A new rule may need another model here.
    """
    concerned: set[str] = set()
    names = (
        *("torch_token_float16", "ort_dynamic_channels_last", "float_mobile", "decoder_token_weights"),
        *("ort_dynamic_optimized", "torch_conv_u8", "ort_dynamic_lstm", "ort_tied_embedding", "row_square"),
        *("ort_mixture_of_experts", "integer_token_einsum", "torch_quarot_group"),
    )
    texts = ATTENTION_OVER_CODES, ATTENTION_OF_INTEGERS, SCALES_ALONG_SUMS, WRITTEN_PART, ROTARY, GROUPS, BIASES, PAST
    written = map(ir.from_proto, (*texts, ROUNDED_BY_SUM, RELATIVE_BOUNDS, EMBEDDING, TRANSPOSED_TABLE, PICKED, POOLED))
    for model in (*(load(MODELS / name / "model.onnx") for name in names), *written):
        moved = without_transposes(model) or model
        meet = meeting(moved, concerned)
        meets = [each for phase in (*ALL_PHASES, ()) for each in ([meet()], phase)]
        convert(moved, meets, RewriteOptions(fuse=True))
    unfused = ir.from_proto(ATTENTION_OVER_CODES)
    convert(unfused, [[meeting(unfused, concerned)()]])  # without fusions, a rule gives a reason
    assert concerned == {rule.name for rule in RULES} - {rounding.NOT_ROUNDED.name}  # no model has truncated codes


TRANSPOSED = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 512, 8, 8] x) => (float[1, 4, 16, 16] y) {
        shape = Constant<value_ints = [512, 4, 2, 2]>()
        w = ConstantOfShape<value = float[1] {0.5}>(shape)
        y = ConvTranspose<strides = [2, 2]>(x, w)
    }""")
RECURRENT = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
    g (float[8, 2, 64] x) => (float[8, 1, 2, 128] y) {
        shape_w = Constant<value_ints = [1, 512, 64]>()
        w = ConstantOfShape<value = float[1] {0.5}>(shape_w)
        shape_r = Constant<value_ints = [1, 512, 128]>()
        r = ConstantOfShape<value = float[1] {0.5}>(shape_r)
        y = LSTM<hidden_size = 128>(x, w, r)
    }""")


def test_match_of_the_quantizer_changes_nothing() -> None:
    rules, concerned = [rule(Options(weights="int4")) for rule in quantizer.RULES], set[str]()
    names = ("ort_dynamic", "ort_dynamic_mobile", "torch_conv_u8", "torch_token", "ort_nbits")
    for source in (TRANSPOSED, RECURRENT, *(MODELS / name / "model.onnx" for name in names)):
        model = load(source)
        meet = meeting(model, concerned, rules)
        convert(model, [[meet()], rules, [meet()]])
    assert concerned == {rule.name for rule in rules} - {"other layer"}
