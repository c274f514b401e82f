"""Valid models of odd form, made of the models of models/: each change keeps the results of the original's outputs.

    python tests/robustness/odd_graphs.py --count 500 --seed 1

ONNX Runtime opens these models. After a rewrite with any options it must open them, too, also at its default level; the
results must be the same bits if the rewrite is exact, and verified if not.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.shape_inference
import onnxruntime as ort
from onnx import helper, numpy_helper

import ort_dynq
from ort_dynq.rewriter import rewrite

MODELS = Path(__file__).parents[2] / "models"
SEEDS = sorted(path.parent for path in MODELS.glob("*/model.onnx") if path.stat().st_size < 20_000)
OPTIONS: tuple[dict[str, Any], ...] = (
    {"exact": True},
    {},
    {"fuse": True},
    {"weights_only": "blocks"},
    {"weights_only": "two-term"},
    {"keep_fused": True},
)
Array = npt.NDArray[Any]
Graph = onnx.GraphProto
Change = Callable[[random.Random, onnx.ModelProto], None]


def _types(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The values of the main graph with types that onnx infers, by name."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    return {each.name: each for each in values if each.type.tensor_type.elem_type}


def _body(
    model: onnx.ModelProto, name: str, *, inputs: Sequence[onnx.ValueInfoProto] = (), untyped: bool = False
) -> Graph:
    """Returns the main graph as the body of a branch or a loop: it reads the initializers from outside.

    An output that no node of it computes gets a node.
    """
    body = Graph(name=name, node=model.graph.node, input=inputs, output=model.graph.output)
    computed = {name for node in body.node for name in node.output}
    for value in body.output:
        if value.name not in computed:
            name, value.name = value.name, f"{value.name}_{name}"
            body.node.append(helper.make_node("Identity", [name], [value.name]))
    for value in body.output if untyped else ():
        value.type.tensor_type.ClearField("shape")
    return body


def _replace(model: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    del model.graph.node[:]
    del model.graph.value_info[:]
    model.graph.node.extend(nodes)


def _only_tensors(model: onnx.ModelProto) -> bool:
    return all(each.type.HasField("tensor_type") for each in (*model.graph.input, *model.graph.output))


# The changes


def dead_nodes(rng: random.Random, model: onnx.ModelProto) -> None:
    """Nodes without a use read values inside of chains."""
    for i, (name, value) in enumerate(rng.sample(sorted(_types(model).items()), min(3, len(_types(model))))):
        if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            model.graph.node.append(helper.make_node("Round", [name], [f"dead_{i}"], name=f"dead_{i}"))


def inner_outputs(rng: random.Random, model: onnx.ModelProto) -> None:
    """Values inside of chains are outputs, too, also untyped ones."""
    given = {each.name for each in (*model.graph.input, *model.graph.output)}
    inner = [value for name, value in sorted(_types(model).items()) if name not in given]
    for value in rng.sample(inner, min(rng.choice((1, 2, 5)), len(inner))):
        model.graph.output.append(value)
        if rng.random() < 0.5:
            model.graph.output[-1].type.tensor_type.ClearField("shape")


def initializer_outputs(rng: random.Random, model: onnx.ModelProto) -> None:
    """Initializers are outputs."""
    tensors = list(model.graph.initializer)
    for tensor in rng.sample(tensors, min(2, len(tensors))):
        if tensor.name not in {each.name for each in (*model.graph.output, *model.graph.input)}:
            model.graph.output.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))


def input_outputs(rng: random.Random, model: onnx.ModelProto) -> None:
    """An input is an output of another name, by an Identity that nothing else needs."""
    value = copy.deepcopy(rng.choice(list(model.graph.input)))
    model.graph.node.insert(0, helper.make_node("Identity", [value.name], ["same_as_input"]))
    value.name = "same_as_input"
    model.graph.output.append(value)


def names_of_outputs(_: random.Random, model: onnx.ModelProto) -> None:
    """Each node has the name of its first output."""
    for graph in _graphs(model):
        for node in graph.node:
            node.name = next(filter(None, node.output), "")


def no_names(_: random.Random, model: onnx.ModelProto) -> None:
    """No node has a name."""
    for graph in _graphs(model):
        for node in graph.node:
            node.name = ""


def names_of_ours(rng: random.Random, model: onnx.ModelProto) -> None:
    """Values have the names that a rewrite gives to new values."""
    computed = [name for node in model.graph.node for name in node.output if name]
    outputs = {each.name for each in model.graph.output}
    inner = [name for name in computed if name not in outputs]
    new = {name: f"ort_dynq_{i + len(computed)}" for i, name in enumerate(rng.sample(inner, min(5, len(inner))))}
    for graph in _graphs(model):
        for node in graph.node:
            for names in (node.input, node.output):
                names[:] = [new.get(name, name) for name in names]
    del model.graph.value_info[:]


def odd_value_info(rng: random.Random, model: onnx.ModelProto) -> None:
    """Declared shapes: right ones, ones of no rank, of dimensions with other names, and of values that do not exist."""
    del model.graph.value_info[:]
    outputs = {each.name for each in (*model.graph.output, *model.graph.input)}
    for name, value in sorted(_types(model).items()):
        if name in outputs or rng.random() < 0.3:
            continue
        info = model.graph.value_info.add()
        info.CopyFrom(value)
        if rng.random() < 0.3:
            info.type.tensor_type.ClearField("shape")
        elif rng.random() < 0.5:
            for dim in info.type.tensor_type.shape.dim:
                dim.dim_param = rng.choice(("N", "a b", "1", ""))
    model.graph.value_info.append(helper.make_tensor_value_info("not there", 1, [7]))


def own_constants(_: random.Random, model: onnx.ModelProto) -> None:
    """Each node has its own copies of the initializers that it reads."""
    tensors = {each.name: each for each in model.graph.initializer}
    given = {each.name for each in (*model.graph.input, *model.graph.output)}
    for i, node in enumerate(model.graph.node):
        for j, name in enumerate(node.input):
            if name in tensors and name not in given:
                added = model.graph.initializer.add()
                added.CopyFrom(tensors[name])
                added.name = node.input[j] = f"{name}_{i}_{j}"


def constant_nodes(_: random.Random, model: onnx.ModelProto) -> None:
    """Initializers are Constant nodes."""
    given = {each.name for each in model.graph.input}
    nodes = [
        helper.make_node("Constant", [], [tensor.name], value=tensor)
        for tensor in model.graph.initializer
        if tensor.name not in given
    ]
    kept = [tensor for tensor in model.graph.initializer if tensor.name in given]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    for node in reversed(nodes):
        model.graph.node.insert(0, node)


def unused_outputs(_: random.Random, model: onnx.ModelProto) -> None:
    """Optional outputs of DynamicQuantizeLinear, Split and others keep their names or have none."""
    read = {name for graph in _graphs(model) for node in graph.node for name in node.input}
    read |= {each.name for each in model.graph.output}
    for node in model.graph.node:
        if node.op_type in ("LSTM", "GRU", "RNN", "Dropout", "LayerNormalization"):
            node.output[:] = [name if name in read else "" for name in node.output]


def in_branches(rng: random.Random, model: onnx.ModelProto) -> None:
    """Both branches of an If have the graph, with the same names of nodes and values."""
    if not model.graph.node:
        return
    names = [each.name for each in model.graph.output]
    branches = {name: _body(model, name, untyped=rng.random() < 0.3) for name in ("then_branch", "else_branch")}
    true = helper.make_node("Constant", [], ["is_true"], value=numpy_helper.from_array(np.array(True)))
    _replace(model, [true, helper.make_node("If", ["is_true"], names, name="branch", **branches)])


def in_scan(rng: random.Random, model: onnx.ModelProto) -> None:
    """A Scan runs the graph once: on inputs with one more dimension, which is removed again from the outputs."""
    if not model.graph.node or not model.graph.input or _opset(model) < 13:
        return
    tensors = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in tensors]
    body = _body(model, "body", inputs=copy.deepcopy(inputs), untyped=rng.random() < 0.5)
    for value in (*body.input, *body.output):
        if rng.random() < 0.5:
            value.type.tensor_type.ClearField("shape")
    names = [each.name for each in inputs], [each.name for each in model.graph.output]
    axis = numpy_helper.from_array(np.array([0]), "axis_of_scan")
    model.graph.initializer.append(axis)
    added = [helper.make_node("Unsqueeze", [name, axis.name], [f"{name}_of_scan"]) for name in names[0]]
    removed = [helper.make_node("Squeeze", [f"{name}_of_scan", axis.name], [name]) for name in names[1]]
    scan = helper.make_node(
        "Scan",
        [f"{name}_of_scan" for name in names[0]],
        [f"{name}_of_scan" for name in names[1]],
        body=body,
        num_scan_inputs=len(inputs),
    )
    _replace(model, [*added, scan, *removed])


def in_loop(rng: random.Random, model: onnx.ModelProto) -> None:
    """A Loop runs the graph twice, and the last results are taken."""
    if not model.graph.node or _opset(model) < 13:
        return
    body = _body(model, "body", untyped=rng.random() < 0.5)
    body.input.extend(
        [helper.make_tensor_value_info("step_of_loop", 7, []), helper.make_tensor_value_info("goes", 9, [])]
    )
    body.node.append(helper.make_node("Identity", ["goes"], ["goes_on"]))
    outputs = list(body.output)
    del body.output[:]
    body.output.extend([helper.make_tensor_value_info("goes_on", 9, []), *outputs])
    names = [each.name for each in outputs]
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value)))
        for name, value in (("two", 2), ("is_true", True), ("of_last", 1))
    ]
    loop = helper.make_node("Loop", ["two", "is_true"], [f"{name}_of_loop" for name in names], body=body)
    taken = [helper.make_node("Gather", [f"{name}_of_loop", "of_last"], [name], axis=0) for name in names]
    _replace(model, [*constants, loop, *taken])


def in_function(rng: random.Random, model: onnx.ModelProto) -> None:
    """A function has the graph, is called twice, and has more outputs than the calls read."""
    if not model.graph.node or any(each.domain == "odd" for each in model.opset_import):
        return
    tensors = [each.name for each in model.graph.initializer]
    inputs = [each.name for each in model.graph.input if each.name not in tensors] + tensors
    outputs = [each.name for each in model.graph.output if each.name not in inputs]
    inner = [name for node in model.graph.node for name in node.output if name and name not in outputs]
    more = rng.sample(inner, min(2, len(inner)))
    if not outputs:
        return
    nodes, imports = list(model.graph.node), list(model.opset_import)
    model.functions.append(helper.make_function("odd", "F", inputs, [*outputs, *more], nodes, imports))
    model.opset_import.append(helper.make_opsetid("odd", 1))
    unused = [f"{name}_unused" for name in more]
    calls = [helper.make_node("F", inputs, [*outputs, *unused], domain="odd")]
    if rng.random() < 0.5:
        calls.append(helper.make_node("F", inputs, [f"{name}_again" for name in (*outputs, *more)], domain="odd"))
        again = copy.deepcopy(next(each for each in model.graph.output if each.name == outputs[0]))
        again.name = f"{outputs[0]}_again"
        model.graph.output.append(again)
    _replace(model, calls)
    model.ir_version = max(model.ir_version, 8)


CHANGES: tuple[Change, ...] = (
    dead_nodes,
    inner_outputs,
    initializer_outputs,
    input_outputs,
    names_of_outputs,
    no_names,
    names_of_ours,
    odd_value_info,
    own_constants,
    constant_nodes,
    unused_outputs,
    in_branches,
    in_scan,
    in_loop,
    in_function,
)


def _opset(model: onnx.ModelProto) -> int:
    return next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))


def _graphs(model: onnx.ModelProto) -> Iterator[Any]:
    todo: list[Any] = [model.graph, *model.functions]
    while todo:
        graph = todo.pop()
        yield graph
        todo += [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]


def odd_model(
    rng: random.Random, change: Change | None = None, *, name: str = "", more: int | None = None
) -> tuple[str, onnx.ModelProto, dict[str, Array]]:
    """Returns the name of a model and what has changed in it, the model, and its inputs.

    Args:
        rng: Chooses what is not given.
        change: One of the changes.
        name: The model that is changed.
        more: The number of further changes.
    """
    folder = MODELS / name if name else rng.choice(SEEDS)
    model = onnx.load(folder / "model.onnx")
    feeds = {}
    for path in (folder / "test_data_set_0").glob("input_*.pb"):
        tensor = onnx.TensorProto.FromString(path.read_bytes())
        feeds[tensor.name] = numpy_helper.to_array(tensor)
    changes = [change] if change is not None else []
    changes += rng.sample(CHANGES, rng.choice((1, 1, 2, 3)) if more is None else more)
    for each in dict.fromkeys(changes) if _only_tensors(model) else ():
        each(rng, model)
    return " ".join([folder.name, *(each.__name__ for each in changes)]), model, feeds


def session(model: onnx.ModelProto, *, plugin: bool = False, optimize: bool = False) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if plugin:
        ort_dynq.register(options)
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def check(model: onnx.ModelProto, feeds: Mapping[str, Array], options: Mapping[str, Any]) -> str:
    """Rewrites a model that ONNX Runtime runs, and returns what is wrong with the result; empty if nothing is."""
    expected = session(model).run(None, dict(feeds))
    rewritten = rewrite(model, **options).to_proto()
    if options.get("exact"):
        for plugin in (True, False):
            results = session(rewritten, plugin=plugin).run(None, dict(feeds))
            for actual, wanted, value in zip(results, expected, model.graph.output, strict=True):
                if not _same(actual, wanted):
                    return f"other bits {'with' if plugin else 'without'} the plugin: {value.name}"
    else:
        found = ort_dynq.verify(model, rewritten, inputs=feeds)
        if found.status == "failed":
            return f"not verified: {found.reason}"
    session(rewritten, plugin=True, optimize=True).run(None, dict(feeds))
    session(rewritten, optimize=True).run(None, dict(feeds))
    return ""


def _same(actual: Array, wanted: Array) -> bool:
    a, b = np.asarray(actual), np.asarray(wanted)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f":
        return bool((a == b).all())
    return bool((((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))).all())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None, help="where models that fail are kept")
    arguments = parser.parse_args()
    failed = opened = 0
    for i in range(arguments.count):
        rng = random.Random(f"{arguments.seed} {i}")
        try:
            name, model, feeds = odd_model(rng)
            session(model).run(None, feeds)
        except Exception as error:
            print(f"{i}: no model: {str(error).splitlines()[0][:150]}")
            continue
        opened += 1
        options = rng.choice(OPTIONS)
        try:
            problem = check(model, feeds, options)
        except Exception as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
            if not isinstance(error, ort_dynq.DynqError) and "onnxruntime" not in type(error).__module__:
                traceback.print_exc()
        if problem:
            failed += 1
            print(f"{i}: {name} {options}: {problem}")
            if arguments.folder is not None:
                arguments.folder.mkdir(parents=True, exist_ok=True)
                onnx.save(model, arguments.folder / f"{arguments.seed}_{i}.onnx")
    print(f"{opened} models, {failed} failed")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
