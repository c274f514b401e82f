"""Attention as torch's exporters write it, for architectures of transformers and spellings of tutorials.

models/export_attention.py wrote the models. Each has one layer, of products that are too small to be quantized; every
attention becomes QuantizedAttention, and its codes of 8 bits keep 35 dB of what the model gives. The bits are those of
the functions in ONNX Runtime without optimizations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from helpers import Array, assert_same, make_session, stock_session

import ort_dynq

FOLDER = Path(__file__).resolve().parents[2] / "models" / "attention"
EXPORTED = sorted(path.stem for path in FOLDER.glob("*.onnx"))
PAST = [name for name in EXPORTED if "_past" in name]
MODELS = [name for name in EXPORTED if name not in PAST]
ARCHITECTURES = [name.split("@")[0] for name in MODELS]
BY_DEFAULT = [  # the first exporter of each architecture; Swin v2 has the windows of Swin
    pytest.param(name, marks=[pytest.mark.exhaustive] * (architecture in (*ARCHITECTURES[:i], "swin")))
    for i, (name, architecture) in enumerate(zip(MODELS, ARCHITECTURES, strict=True))
]
SEVERAL = {"t5@script": 3, "swin@script": 2, "swinv2@script": 2}
TOKENS = 10


def feeds(model: onnx.ModelProto) -> dict[str, Array]:
    """Returns two samples; the second one's last four tokens are padding."""
    rng, found = np.random.default_rng(0), dict[str, Array]()
    for value in model.graph.input:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        lengths = [2, 64 if len(dims) == 2 and value.type.tensor_type.elem_type == 1 else TOKENS]
        shape = [dim or length for dim, length in zip(dims, [*lengths, 0, 0], strict=False)]
        if value.name == "mask":
            found["mask"] = np.ones(shape, np.int64)
            found["mask"][1, -4:] = 0
        elif value.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            found["x"] = rng.integers(1, 16, shape)
        else:
            found["x"] = rng.standard_normal(shape).astype(np.float32)
    return found


def count(model: onnx.ModelProto, *operators: str) -> int:
    """Returns the number of nodes; of branches, one is counted, which have the same operators here."""
    branches = [each.attribute[0].g.node for each in model.graph.node if each.op_type == "If"]
    return sum(node.op_type in operators for nodes in (model.graph.node, *branches) for node in nodes)


def test_models_are_there() -> None:
    assert len(MODELS) == 37
    assert len({each for each in ARCHITECTURES if "by_hand" not in each}) >= 10


@pytest.mark.parametrize("name", BY_DEFAULT)
def test_attention_becomes_integer(name: str) -> None:
    model = onnx.load(FOLDER / f"{name}.onnx")
    if model.opset_import[0].version > 21 and not _runs_opset_23():
        pytest.skip("this version of ONNX Runtime has no operator Attention")
    result_and_report = ort_dynq.quantize(model)
    quantized = result_and_report.to_proto()
    assert count(quantized, "QuantizedAttention") == SEVERAL.get(name, 1)
    assert result_and_report.report.after["ort_dynq.QuantizedAttention"] == SEVERAL.get(name, 1)
    assert count(quantized, "Softmax", "Attention", "MultiHeadAttention") == 0
    given = feeds(model)
    (result,) = make_session(quantized, "native").run(None, given)
    assert_same(result, stock_session(quantized).run(None, given)[0])
    (expected,) = stock_session(model).run(None, given)
    noise = ((result - expected).astype(np.float64) ** 2).sum()
    assert 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise) > 35


@pytest.mark.parametrize("name", PAST)
def test_past_keys(name: str) -> None:
    """A decoder with past keys as inputs: few tokens have the bits of attention of floats, many are near them."""
    model = onnx.load(FOLDER / f"{name}.onnx")
    quantized = ort_dynq.quantize(model).to_proto()
    floats = ort_dynq.quantize(model, attention="float").to_proto()
    (choice,) = (each for each in quantized.graph.node if each.op_type == "If")
    operators = [node.op_type for each in choice.attribute for node in each.g.node]
    assert operators == ["QuantizedAttention", "MultiHeadAttention"]
    sessions = [make_session(quantized, "native"), stock_session(quantized), make_session(floats, "native")]
    heads, size = (model.graph.input[2].type.tensor_type.shape.dim[i].dim_value for i in (1, 3))
    rng = np.random.default_rng(0)
    for tokens, past in ((1, 5), (63, 0), (64, 0)):
        mask = np.ones((2, tokens + past), np.int64)
        mask[1, :3] = tokens < 2
        cache = {key: rng.standard_normal((2, heads, past, size)).astype(np.float32) for key in "kv"}
        given = {"x": rng.integers(1, 16, (2, tokens)), "mask": mask, **cache}
        (result, *present), of_bodies, (expected, *past_and_new) = (each.run(None, given) for each in sessions)
        assert_same(result, of_bodies[0])
        for a, b in zip(present, past_and_new, strict=True):
            assert_same(a, b)
        noise = ((result - expected).astype(np.float64) ** 2).sum()
        assert (noise == 0) == (tokens < 64)
        assert noise == 0 or 10 * np.log10((expected.astype(np.float64) ** 2).sum() / noise) > 35


def _runs_opset_23() -> bool:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1, 2, 4] x) => (float[1, 2, 4] y) '
        "{ y = Attention<q_num_heads = 1, kv_num_heads = 1>(x, x, x) }"
    )
    try:
        stock_session(model)
    except Exception:
        return False
    return True
