"""Mutations of the exported models: more outputs, Identity between all nodes, constants of another rank.

By default, every fourth model gets one of the three mutations.
"""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from helpers import assert_same, every, make_session, nodes_of, stock_session
from mutated import inputs_of
from onnx import TensorProto, helper
from rewriting import FOLDERS, MODELS, check, check_products

from ort_dynq.rewriter import rewrite


def typed_values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Returns the outputs of the main graph's nodes with their types but not their shapes."""
    outputs = {output.name for output in model.graph.output}
    inferred = onnx.shape_inference.infer_shapes(model).graph.value_info
    types = {info.name: info.type.tensor_type.elem_type for info in inferred}
    made = [name for node in model.graph.node for name in node.output if node.op_type != "Constant"]
    return [
        helper.make_value_info(name, helper.make_tensor_type_proto(types[name], None))
        for name in made
        if types.get(name) and name not in outputs
    ]


@pytest.mark.parametrize("name", every(24, FOLDERS))
def test_one_more_consumer(name: str) -> None:
    """An intermediate value as a further output keeps its bits, and so do the other outputs."""
    model = onnx.load(MODELS / name / "model.onnx")
    inputs, values = inputs_of(name), typed_values(model)
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    everything.graph.output.extend(values)
    order = [output.name for output in everything.graph.output]
    wanted = dict(zip(order, stock_session(everything).run(None, inputs), strict=True))
    is_half = any(value.type.tensor_type.elem_type == TensorProto.FLOAT16 for value in values)
    for i, value in enumerate(random.Random(name).sample(values, min(len(values), 4))):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        changed.graph.output.append(value)
        converted = rewrite(changed, exact=True).to_proto()
        session = make_session(converted, "native") if i % 2 else stock_session(converted)
        names = [output.name for output in session.get_outputs()]
        if is_half:  # ONNX Runtime removes Casts to float16 and back if nothing else uses the value
            wanted = dict(zip(names, stock_session(changed).run(None, inputs), strict=True))
        assert names == [output.name for output in changed.graph.output]
        for output, actual in zip(names, session.run(None, inputs), strict=True):
            assert_same(np.asarray(actual), np.asarray(wanted[output]))
        if i == 0:
            check_products(changed, inputs)


@pytest.mark.parametrize("name", every(24, FOLDERS, 2))
@pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.exhaustive), 3])
def test_constants_of_another_rank(name: str, rank: int) -> None:
    """Scalars of elementwise operators become [1] and [1, 1, 1], which may enlarge results."""
    model = onnx.load(MODELS / name / "model.onnx")
    elementwise = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Where", "Equal")
    used = {v for node in model.graph.node if node.op_type in elementwise for v in node.input}
    others = {v for node in nodes_of(model.graph) if node.op_type not in elementwise for v in node.input}
    changed = 0
    constants = [(node.output[0], attribute.t) for node in model.graph.node for attribute in node.attribute]
    constants += [(tensor.name, tensor) for tensor in model.graph.initializer]
    for constant, tensor in constants:
        if constant in used - others and not tensor.dims and tensor.data_type == TensorProto.FLOAT:
            tensor.dims.extend([1] * rank)
            changed += 1
    del model.graph.value_info[:]
    if not changed:
        return
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    try:
        stock_session(model).run(None, inputs_of(name))
    except Exception:  # QuantizeLinear does not accept a scale of rank 3
        return
    check(model, inputs_of(name))
    check_products(model, inputs_of(name))
