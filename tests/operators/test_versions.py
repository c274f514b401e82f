"""Operators keep their meaning: models that other releases wrote give the results of their functions."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import versions
from helpers import Array, assert_same, make_session, options, stock_session
from onnx import helper
from rewriting import MODELS
from versions import Frozen

import ort_dynq
from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS

WAYS: dict[str, Callable[[onnx.ModelProto, str], ort.InferenceSession]] = {
    "prepared": lambda model, backend: make_session(ready(model, backend), backend),
    "session": lambda model, backend: ort_dynq.InferenceSession(model, options(1, False), backend=backend, exact=True),
}


def ready(model: onnx.ModelProto, backend: str) -> onnx.ModelProto:
    return ort_dynq.ready_for_extensions(model).to_proto() if backend == "extensions" else model


def run(session: ort.InferenceSession, feeds: dict[str, Array]) -> list[Array]:
    results: list[Array] = session.run(None, feeds)
    return results


# Signatures of released operators


def test_signatures_are_as_recorded() -> None:
    assert not (found := versions.complaints(versions.recorded(), versions.signatures())), "\n".join(found)


@pytest.mark.parametrize("key", ["inputs", "attributes", "types"])
def test_a_changed_signature_is_refused(key: str) -> None:
    now = versions.signatures()
    changed = copy.deepcopy(now)
    changed["DynamicQuantize"][key] = "other"
    (line,) = versions.complaints(changed, now)
    assert "DynamicQuantize is not as it was recorded: a released operator never changes" in line
    assert "DynamicQuantizeV2" in line
    del changed["DynamicQuantize"]
    assert versions.complaints(changed, now) == []


# Frozen models: of releases, and one as the next release would record it


@pytest.fixture(scope="module")
def next_release(tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    folder = tmp_path_factory.mktemp("frozen")
    versions.freeze(folder / "next.npz", versions.rewritten([MODELS / "torch_token_smoothquant"]))
    (frozen,) = versions.frozen_models(folder)
    return frozen


@pytest.fixture(params=[None, *versions.frozen_models()], ids=lambda each: each.name if each else "next")
def frozen(request: pytest.FixtureRequest) -> Frozen:
    found: Frozen = request.param or request.getfixturevalue("next_release")
    return found


@pytest.mark.parametrize(("way", "backend"), [("prepared", "native"), ("session", "extensions")])
def test_a_frozen_model(frozen: Frozen, way: str, backend: str) -> None:
    """The results equal those of the functions in the model, in stock ONNX Runtime without optimizations."""
    assert list(versions.calls(frozen.model))
    expected = run(stock_session(frozen.model), frozen.feeds)
    for result, wanted in zip(run(WAYS[way](frozen.model, backend), frozen.feeds), expected, strict=True):
        assert_same(result, wanted)


def test_kernels_have_the_recorded_defaults(frozen: Frozen) -> None:
    model = copy.deepcopy(frozen.model)
    for node in versions.calls(model):
        if node.op_type not in OPERATORS:  # it was removed: its function runs
            continue
        defaults = {each.name: each.default for each in OPERATORS[node.op_type].attributes}
        explicit = [each for each in node.attribute if _value(each) != defaults[each.name]]
        del node.attribute[:]
        node.attribute.extend(explicit)
    expected = run(make_session(frozen.model, "native"), frozen.feeds)
    for result, wanted in zip(run(make_session(model, "native"), frozen.feeds), expected, strict=True):
        assert_same(result, wanted)


def _value(attribute: onnx.AttributeProto) -> Any:
    value = helper.get_attribute_value(attribute)
    return value.decode() if isinstance(value, bytes) else value


# Calls of operators of other releases. The bodies of their functions differ from the kernels.


OPERATOR = "DynamicQuantizeDequantizeLinear"
FEEDS = {"x": np.float32([-55, 0, 10.25, 200])}
KERNEL = [[-55, 0, 10, 200]]  # the scale is 1
BODY = [[55, 0, -10.25, -200]]


def model_of(
    operator: str = OPERATOR, attributes: str = "", *, stored: bool = True, version: int = 1
) -> onnx.ModelProto:
    """A model with one call of an operator; the function that it stores negates."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "ort_dynq": {version}]>
        g (float[n] x) => (float[n] y) {{ y = ort_dynq.{operator}{attributes}(x) }}"""
    function = f"""<domain: "ort_dynq", opset_import: ["": 17]> {operator} (src) => (dst) {{ dst = Neg(src) }}"""
    return onnx.parser.parse_model(text + (function if stored else ""))


def results(session: ort.InferenceSession) -> list[list[float]]:
    return [result.tolist() for result in run(session, FEEDS)]


def test_a_known_name_runs_the_kernel(backend: str) -> None:
    assert results(make_session(model_of(), backend)) == KERNEL


def test_onnxruntime_runs_the_kernel_for_a_newer_version() -> None:
    """This is why an operator that changes gets a new name: a custom operator cannot decline."""
    assert results(make_session(model_of(version=2), "native")) == KERNEL


def test_an_unknown_name_runs_its_function(backend: str) -> None:
    """So a model of a later release with OPERATOR + V2 gives its results with this release."""
    model = model_of(OPERATOR + "V2")
    assert results(make_session(model, backend)) == BODY
    for way in WAYS.values():
        assert results(way(model, backend)) == BODY


def test_both_versions_of_an_operator_in_one_model(backend: str) -> None:
    model = model_of(stored=False)
    other = model_of(OPERATOR + "V2")
    other.graph.node[0].output[0] = "z"
    model.graph.node.extend(other.graph.node)
    model.functions.extend(other.functions)
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["n"]))
    for way in WAYS.values():
        assert results(way(model, backend)) == KERNEL + BODY


def test_converting_keeps_calls_of_other_releases() -> None:
    """One model can have new calls and calls of another release, each with its meaning."""
    model = model_of(OPERATOR + "V2")
    text = "g (float[n] y) => (float[n] z) { c, s, p = DynamicQuantizeLinear(y) z = DequantizeLinear(c, s, p) }"
    added = onnx.parser.parse_graph(text)
    model.graph.node.extend(added.node)
    model.graph.output[0].CopyFrom(added.output[0])
    expected = run(stock_session(model), FEEDS)
    converted = ort_dynq.rewrite(model).to_proto()
    assert [node.op_type for node in converted.graph.node] == [OPERATOR + "V2", OPERATOR]
    for session in (stock_session(converted), make_session(converted, "native")):
        assert_same(run(session, FEEDS)[0], expected[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (model_of(OPERATOR + "V2", stored=False), rf"does not have the operator {OPERATOR}V2.* -U ort_dynq`"),
        (model_of(attributes="<axis = 1>"), f"{OPERATOR} has no attribute axis, expected none"),
        (
            model_of("ReduceAbsMax", "<kept = 1>"),
            "ReduceAbsMax has no attribute kept, expected axis, count, reduce_others, keepdims",
        ),
    ],
    ids=["unknown", "attribute", "attributes"],
)
@pytest.mark.parametrize("use", [ort_dynq.rewrite, ort_dynq.ready_for_extensions, ort_dynq.InferenceSession])
def test_errors(model: onnx.ModelProto, message: str, use: Callable[[onnx.ModelProto], Any]) -> None:
    with pytest.raises(DynqError) as error:
        use(model)
    assert re.search(message, str(error.value))
    assert "\n" not in str(error.value)


def test_kernels_refuse_unknown_attributes() -> None:
    with pytest.raises(
        DynqError, match="ReduceAbsMax has no attribute kept, expected axis, count, reduce_others, keep"
    ):
        kernels.run("ReduceAbsMax", [FEEDS["x"]], kept=1)
