"""The parts of a float model behind its layers give the outputs of the whole model with the same errors."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from accuracy_models import K, floats, model_of

from ort_dynq import serialized
from ort_dynq.storage import load
from ort_dynq.tools.accuracy.parts import Behind, Part, larger, parts_of

RESULTS = [f"p{i}" for i in range(8)]
OUTPUTS = ["y", "z", "r5"]


def branched() -> onnx.ModelProto:
    """Eight products. The fourth one also goes into a branch, and into the sum at the end; y does not depend on p7.

    The output r5 is one of the values between two parts.
    """
    chain = "".join(f"p{i} = MatMul({'x' if i == 0 else f'r{i - 1}'}, w{i}) r{i} = Tanh(p{i}) " for i in range(7))
    branch = f"b = If (flag) <then_branch = g1 () => (float[n, {K}] t) {{ t = Neg(r3) }}, "
    branch += f"else_branch = g2 () => (float[n, {K}] e) {{ e = Relu(r3) }}> "
    return model_of(
        f"{chain}{branch}s = Add(r6, b) y = Add(s, p3) p7 = MatMul(r2, w7) z = Neg(p7)",
        {f"w{i}": floats(K, K, seed=i) / np.float32(K**0.5) for i in range(8)},
        inputs=f"float[n, {K}] x, bool flag",
        outputs=", ".join(f"float[n, {K}] {name}" for name in OUTPUTS),
    )


def reference(model: onnx.ModelProto) -> ort.InferenceSession:
    """A session of all of the model; its weights are in the protocol buffer."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("is_lent", [False, True])
@pytest.mark.parametrize("is_whole", [False, True])
def test_outputs(is_whole: bool, is_lent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    proto = branched()
    feeds = {"x": floats(4, K, seed=20), "flag": np.array(True)}
    model = load(proto)
    monkeypatch.setattr(serialized, "_WORTHWHILE", 0 if is_lent else sys.maxsize)
    found = [Part(tuple(RESULTS), (), is_whole=True)] if is_whole else parts_of(model, RESULTS)
    if not is_whole:
        assert [each.results for each in found] == [tuple(RESULTS[:6]), tuple(RESULTS[6:])]
        assert (found[0].reads, {*found[1].reads}) == ((), {"r5", "b", "p3", "r2"})
        (joined,) = larger(found, len(RESULTS), 100)
        assert joined.results == tuple(RESULTS)
        found.append(joined)
    values = [name for node in proto.graph.node for name in node.output if name not in OUTPUTS]
    for name in values:
        proto.graph.output.append(onnx.helper.make_empty_tensor_value_info(name))
    known = dict(zip([*OUTPUTS, *values], reference(proto).run(None, feeds), strict=True))
    exact = [known[name] for name in OUTPUTS]
    for part in found:
        # The last result of a part, which gets no error, does not change.
        error = floats(4, K, seed=30)
        behind = Behind(model, part, known, dict.fromkeys(part.results[:-1], error.dtype))
        for name in part.results[:-1]:
            changed = branched()
            (producer,) = (node for node in changed.graph.node if name in node.output)
            producer.output[0] = "before"
            position = list(changed.graph.node).index(producer) + 1
            changed.graph.node.insert(position, onnx.helper.make_node("Add", ["before", "error"], [name]))
            changed.graph.input.append(onnx.helper.make_tensor_value_info("error", 1, [4, K]))
            expected = reference(changed).run(None, {**feeds, "error": error})
            for a, b in zip(behind.run(feeds, known, {name: error}, exact), expected, strict=True):
                np.testing.assert_array_equal(a, b)
