"""The time of fusions: which nodes of the original and of the new model it is the time of.

Profiles are made up: each node takes a power of two, so that a sum shows its nodes. The nodes are given by their names
in the models.
"""

from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir
import pytest
from rewriting import load

from ort_dynq import rewrite
from ort_dynq.graphs import label, named
from ort_dynq.quantizer import quantize_layers
from ort_dynq.quantizer.options import Options
from ort_dynq.storage import load as read
from ort_dynq.tools.bench import fusions
from ort_dynq.tools.bench.fusions import FusionTime, fusion_times, has_fusions
from ort_dynq.tools.measuring.optimized import optimized
from ort_dynq.tools.measuring.plain import plain
from ort_dynq.tools.measuring.profile import NodeTime, Profile


def profile_of(model: ir.Model) -> tuple[Profile, dict[str, float]]:
    """A profile in which node number i takes 2**i milliseconds; also the times by name."""
    times = {label(node): 2.0**i for i, node in enumerate(model.graph) if node.op_type != "Constant"}
    kinds = {label(node): node.op_type for node in model.graph}
    return Profile(5, 0.0, tuple(NodeTime(name, kinds[name], 1, ms) for name, ms in times.items())), times


def times_of(model: ir.Model) -> tuple[dict[str, FusionTime], dict[str, float], dict[str, float]]:
    """The fusions of a model by name, and both profiles."""
    original = named(model)
    new = rewrite(original, fuse=True, keep_fused=True).model  # one of the models has products of ONNX Runtime
    graph = optimized(original)
    (before, old), (after, times) = profile_of(graph), profile_of(new)
    found = fusion_times(original, new, graph, before, after)
    json.dumps(plain(found), allow_nan=False)
    return {each.node: each for each in found}, old, times


CHAIN = "abs_2 reducemax_2 clip_4 div_5 div_6 round_2 clip_5 cast_4 cast_5 mul_2"
ATTENTION = """concat reshape transpose reshape_1 transpose_3 matmul_3/MatMulScaleFusion/ softmax reshape_2 transpose_2
    matmul_4 transpose_4 reshape_3"""


@pytest.mark.parametrize(
    ("model", "node", "before", "after", "operator"),
    [
        ("encoder_token", "layernormalization", f"layernormalization {CHAIN}", "layernormalization", "RowProgram"),
        ("encoder_token", "softmax", ATTENTION, "softmax reshape_3", "MultiHeadAttention"),
        ("encoder_tensor_u8", "layernormalization", "add_4 layernormalization", "layernormalization", "RowProgram"),
        ("ort_optimized", "SkipLayerNormalization_token_0", *["SkipLayerNormalization_token_0"] * 2, "RowProgram"),
    ],
)
def test_nodes(model: str, node: str, before: str, after: str, operator: str) -> None:
    found, old, new = times_of(read(load(model)))
    fusion = found[node]
    assert (fusion.operator, fusion.reason, fusion.count, fusion.quantizes) == (operator, "", 1, False)
    assert fusion.before_ms == sum(old[name] for name in before.split())
    assert fusion.after_ms == sum(new[name] for name in after.split())
    assert fusion.ratio == fusion.before_ms / fusion.after_ms
    assert sum(fusion.before.values()) == len(before.split())
    assert sum(fusion.after.values()) == len(after.split())


def test_quantization_of_a_float_model() -> None:
    """The original has no quantization: the new operator also quantizes."""
    original = named(layers_model(1, "t{0} = Tanh({1})"))
    weights = ir.tensor(np.random.default_rng(0).normal(0, 0.1, (64, 384)).astype(np.float32), name="constant")
    value = ir.Value(name="constant", type=ir.TensorType(ir.DataType.FLOAT), const_value=weights)
    product = ir.node("MatMul", [original.graph.outputs[0], value], name="product")
    product.outputs[0].name = "z"
    product.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    original.graph.register_initializer(value)
    original.graph.append(product)
    original.graph.outputs[0] = product.outputs[0]
    new, graph = quantize_layers(original, Options()).model, optimized(original)
    (before, old), (after, _) = profile_of(graph), profile_of(new)
    (fusion,) = fusion_times(original, new, graph, before, after)
    assert (fusion.operator, fusion.quantizes, fusion.before_ms) == ("RowProgram", True, old["s0"] + old["y0"])


def test_a_function_in_a_product() -> None:
    fusion = times_of(read(load("encoder_token")))[0]["matmul_6"]
    assert (fusion.operator, fusion.reason) == ("QuantizedMatMulProgram", fusions.IN_PRODUCT)
    assert fusion.before_ms is fusion.after_ms is fusion.ratio is None


def test_nodes_that_onnxruntime_fuses_with_others() -> None:
    """BiasGelu takes the bias of a product that stays float."""
    fusion = times_of(read(load("encoder_tensor_u8")))[0]["mul_1"]
    assert (fusion.operator, fusion.reason) == ("Gelu", fusions.FUSED_WITH_OTHERS)
    assert fusion.before_ms is None


def layers_model(count: int, between: str) -> ir.Model:
    """A float model of layers: `between`, a sum, and a normalization, from x to y0, y1, ..."""
    body = " ".join(
        f"{between.format(i, f'y{i - 1}' if i else 'x')} s{i} = Add(t{i}, other) y{i} = LayerNormalization(s{i}, gain)"
        for i in range(count)
    )
    return ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 64] x, float[N, 64] other, float[64, 64] weights) => (float[N, 64] y{count - 1})
        <float[64] gain = {{{", ".join(["1"] * 64)}}}> {{ {body} }}"""
    )


def test_equal_layers_are_one_group() -> None:
    found, old, new = times_of(layers_model(3, "t{0} = Tanh({1})"))
    (fusion,) = found.values()
    assert (fusion.node, fusion.rule, fusion.count) == ("y*", "normalization", 3)
    assert fusion.after_ms == sum(new[f"y{i}"] for i in range(3))
    assert fusion.before_ms == sum(old[f"{name}{i}"] for i in range(3) for name in "sy")
    assert (fusion.before, fusion.after) == ({"Add": 3, "LayerNormalization": 3}, {"RowProgram": 3})


def test_sum_that_onnxruntime_fuses_with_a_product() -> None:
    """The sum becomes a part of Gemm in the original, so no node has its time."""
    found, _, _ = times_of(layers_model(1, "t{0} = MatMul({1}, weights)"))
    assert [each.reason for each in found.values()] == [fusions.FUSED_WITH_OTHERS]


def test_models_without_fusions() -> None:
    assert not has_fusions(rewrite(load("encoder_token")).model)
    assert has_fusions(rewrite(load("encoder_token"), fuse=True).model)
    assert times_of(read(load("torch_token")))[0] == {}
