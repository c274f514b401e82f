"""Operators keep their meaning: models that earlier or later revisions wrote give the results of their functions."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
import versions
from helpers import Array, assert_same, make_session, options, stock_session
from onnx import helper
from versions import Frozen

import ort_dynq
from ort_dynq import DynqError, kernels
from ort_dynq.graphs import proto_nodes
from ort_dynq.operators import OPERATORS, VERSION

MODELS = list(versions.frozen_models())
WAYS: dict[str, Callable[[onnx.ModelProto, str], ort.InferenceSession]] = {
    "prepared": lambda model, backend: make_session(ready(model, backend), backend),
    "session": lambda model, backend: ort_dynq.InferenceSession(model, options(1, False), backend=backend, exact=True),
}


def ready(model: onnx.ModelProto, backend: str) -> onnx.ModelProto:
    return ort_dynq.ready_for_extensions(model).to_proto() if backend == "extensions" else model


def calls(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of the domain ort_dynq."""
    nodes = list(proto_nodes(model.graph))
    for function in model.functions:
        if function.domain != "ort_dynq":
            nodes += [each for node in function.node for each in (node, *_inner(node))]
    return (node for node in nodes if node.domain == "ort_dynq")


def _inner(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    for attribute in node.attribute:
        yield from proto_nodes(attribute.g)


def run(session: ort.InferenceSession, feeds: dict[str, Array]) -> list[Array]:
    results: list[Array] = session.run(None, feeds)
    return results


# Recorded signatures


def test_signatures_are_as_recorded() -> None:
    now, recorded = versions.signatures(), versions.recorded()
    assert not versions.complaints(recorded, now), "\n".join(versions.complaints(recorded, now))
    assert recorded == now, "run `python tests/operators/versions.py`, which records new operators"


@pytest.mark.parametrize("key", ["inputs", "attributes", "types"])
def test_a_changed_signature_is_refused(key: str) -> None:
    now = versions.signatures()
    changed = copy.deepcopy(now)
    changed["operators"]["AffineQuantize"][key] = "other"
    (line,) = versions.complaints(changed, now)
    assert "AffineQuantize is not as it was recorded: an operator never changes" in line
    assert "AffineQuantizeV2" in line
    changed["version"] = VERSION - 1
    assert versions.complaints(changed, now) == []


def test_every_operator_is_in_a_frozen_model() -> None:
    frozen = {node.op_type for each in MODELS if each.version == VERSION for node in calls(each.model)}
    missing = OPERATORS.keys() - frozen
    assert not missing, f"{missing}: run `python tests/operators/versions.py MODEL` with a model that becomes one"


# Frozen models


@pytest.mark.parametrize(
    ("frozen", "has_both_ways"),
    [pytest.param(each, i % 3 == 0, id=each.name) for i, each in enumerate(MODELS)],
)
def test_a_frozen_model(frozen: Frozen, has_both_ways: bool) -> None:
    """The results equal those of the functions in the model, in stock ONNX Runtime without optimizations.

    The other backend and the other way share the kernels: every third model runs with them, too.
    """
    expected = run(stock_session(frozen.model), frozen.feeds)
    for way, backend in (("prepared", "native"), ("session", "extensions"))[: 1 + has_both_ways]:
        for result, wanted in zip(run(WAYS[way](frozen.model, backend), frozen.feeds), expected, strict=True):
            assert_same(result, wanted)


@pytest.mark.parametrize("frozen", [each for each in MODELS if each.version == VERSION], ids=lambda each: each.name)
def test_kernels_have_the_recorded_defaults(frozen: Frozen) -> None:
    model = copy.deepcopy(frozen.model)
    for node in calls(model):
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


# Models of other versions. The bodies of their functions differ from the kernels.


OPERATOR = "DynamicQuantizeDequantizeLinear"
FEEDS = {"x": np.float32([-55, 0, 10.25, 200])}
KERNEL = [[-55, 0, 10, 200]]  # the scale is 1
BODY = [[55, 0, -10.25, -200]]


def model_of(version: int, operator: str = OPERATOR, attributes: str = "", *, stored: bool = True) -> onnx.ModelProto:
    """A model with one call of an operator; the function that it stores negates."""
    text = f"""<ir_version: 8, opset_import: ["": 17, "ort_dynq": {version}]>
        g (float[n] x) => (float[n] y) {{ y = ort_dynq.{operator}{attributes}(x) }}"""
    function = f"""<domain: "ort_dynq", opset_import: ["": 17]> {operator} (src) => (dst) {{ dst = Neg(src) }}"""
    return onnx.parser.parse_model(text + (function if stored else ""))


def results(session: ort.InferenceSession) -> list[list[float]]:
    return [result.tolist() for result in run(session, FEEDS)]


def test_a_model_of_this_version_runs_the_kernel(backend: str) -> None:
    assert results(make_session(model_of(VERSION), backend)) == KERNEL


@pytest.mark.parametrize("way", WAYS)
def test_a_model_of_an_older_version_runs_its_function(way: str, backend: str) -> None:
    assert results(WAYS[way](model_of(VERSION - 1), backend)) == BODY


def test_a_model_of_a_newer_version_runs_its_function(backend: str) -> None:
    model = model_of(VERSION + 1)
    assert results(WAYS["session"](model, backend)) == BODY
    assert results(make_session(ort_dynq.ready_for_extensions(model).to_proto(), backend)) == BODY
    assert results(make_session(ort_dynq.rewrite(model).to_proto(), backend)) == BODY


def test_onnxruntime_alone_runs_the_kernel_for_a_newer_version() -> None:
    """This is why an operator that changes gets a new name: a custom operator cannot decline."""
    assert results(make_session(model_of(VERSION + 1), "native")) == KERNEL


def test_an_unknown_name_runs_its_function(backend: str) -> None:
    """So a model of a later release with OPERATOR + V2 gives its results with this release."""
    model = model_of(VERSION, OPERATOR + "V2")
    assert results(make_session(model, backend)) == BODY
    for way in WAYS.values():
        assert results(way(model, backend)) == BODY


def test_both_versions_of_an_operator_in_one_model(backend: str) -> None:
    model = model_of(VERSION, stored=False)
    other = model_of(VERSION, OPERATOR + "V2")
    other.graph.node[0].output[0] = "z"
    model.graph.node.extend(other.graph.node)
    model.functions.extend(other.functions)
    model.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, ["n"]))
    for way in WAYS.values():
        assert results(way(model, backend)) == KERNEL + BODY


def test_converting_a_model_of_another_version_keeps_its_functions() -> None:
    """One model can have new calls and calls of an earlier version, each with its meaning."""
    model = model_of(VERSION - 1)
    text = "g (float[n] y) => (float[n] z) { c, s, p = DynamicQuantizeLinear(y) z = DequantizeLinear(c, s, p) }"
    added = onnx.parser.parse_graph(text)
    model.graph.node.extend(added.node)
    model.graph.output[0].CopyFrom(added.output[0])
    expected = run(stock_session(model), FEEDS)
    converted = ort_dynq.rewrite(model).to_proto()
    imports = {each.domain: each.version for each in converted.opset_import}
    assert imports == {"": 17, "ort_dynq": VERSION, f"ort_dynq.v{VERSION - 1}": 1}
    assert [(node.domain, node.op_type) for node in converted.graph.node] == [
        (f"ort_dynq.v{VERSION - 1}", OPERATOR),
        ("ort_dynq", OPERATOR),
    ]
    for session in (stock_session(converted), make_session(converted, "native")):
        assert_same(run(session, FEEDS)[0], expected[0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (model_of(VERSION + 1, stored=False), rf"is of version {VERSION + 1} .* has version {VERSION}.* -U ort_dynq`"),
        (model_of(VERSION - 1, stored=False), rf"is of version {VERSION - 1} .*rewrite the original model again"),
        (model_of(VERSION, OPERATOR + "V2", stored=False), rf"{OPERATOR}V2 is unknown.* -U ort_dynq`"),
        (model_of(VERSION, attributes="<axis = 1>"), f"{OPERATOR} has no attribute axis, expected none"),
        (
            model_of(VERSION, "ReduceAbsMax", "<kept = 1>"),
            "ReduceAbsMax has no attribute kept, expected axis, count, reduce_others, keepdims",
        ),
    ],
    ids=["newer", "older", "unknown", "attribute", "attributes"],
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
