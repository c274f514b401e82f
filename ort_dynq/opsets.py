"""Models of old opsets: converts them to an opset that the rules know, and compares the outputs. Refuses newer ones.

onnxruntime does not tell which versions it runs. So :func:`check_versions` opens sessions of a model of one node.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx
import onnx.shape_inference
import onnx.version_converter
import onnx_ir as ir
import onnxruntime as ort

from .errors import DynqError, message
from .graphs import STANDARD_DOMAINS
from .inputs import Given, make_feeds, resolve_inputs
from .operators import DOMAIN
from .runtime import can_open, open_session, session_options
from .storage import to_proto

if TYPE_CHECKING:
    from .inputs import Array

OPSET = 13
"""The oldest opset that the rules know: the first in which axes are inputs and QuantizeLinear takes an axis."""

_IR, _OLDEST_IR = 8, 3  # versions of the model format that every onnxruntime opens
_MAX_COPIED = 1 << 10  # the elements of the largest initializer that the converter sees; adapters read axes and shapes
_SEEDS = (0, 1)
# Of the batch and of other dynamic dimensions: states may have a batch of 1, networks for images and sound large sizes.
_SIZES = tuple((batch, other) for batch in (2, 1) for other in (8, 64, 512))
_MAX_SETS = 4  # of given inputs


def opset_of(model: ir.Model) -> int:
    """Returns the version of the standard operators that a model imports; :data:`OPSET` if it imports none."""
    versions = [model.graph.opset_imports[domain] for domain in STANDARD_DOMAINS if domain in model.graph.opset_imports]
    return versions[0] if versions else OPSET


def check_versions(model: ir.Model) -> None:
    """Checks that the installed onnxruntime opens models of this version of the format and of these opsets.

    Raises:
        DynqError: One of them is newer. The message has the newest that works.
    """
    imports = [(domain, version) for domain, version in model.graph.opset_imports.items() if domain != DOMAIN]
    if _opens(model.ir_version, *imports):
        return
    newest = _newest(lambda number: _opens(number, ("", OPSET)), _OLDEST_IR, model.ir_version)
    if newest < model.ir_version:
        raise _too_new(f"the IR version {model.ir_version}", newest, f"save it with `model.ir_version = {newest}`")
    for domain, version in imports:
        newest = _newest(functools.partial(_opens_domain, domain), 1, version)
        if newest < version:
            name = domain or "ai.onnx"
            raise _too_new(f"opset {version} of the domain {name}", newest, f"export it with opset {newest}")


def _too_new(what: str, newest: int, advice: str) -> DynqError:
    return DynqError(
        f"the model has {what}, and the installed onnxruntime {ort.__version__} runs at most {newest}; "
        f"`pip install -U onnxruntime`, or {advice}"
    )


def _newest(opens: Callable[[int], bool], low: int, high: int) -> int:
    """Returns the largest number from `low` on and up to `high` that opens; `high` if `low` does not open either."""
    if opens(high) or not opens(low):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if opens(middle) else (low, middle)
    return low


def _opens_domain(domain: str, version: int) -> bool:
    return _opens(_IR, *((("", OPSET),) if domain else ()), (domain, version))


@functools.cache
def _opens(ir_version: int, *imports: tuple[str, int]) -> bool:
    """Returns whether onnxruntime opens a model of these versions: of the format, and of each domain."""
    values = [ir.Value(name=name, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([])) for name in "xy"]
    node = ir.node("Identity", values[:1], outputs=values[1:])
    graph = ir.Graph(values[:1], values[1:], nodes=[node], opset_imports=dict(imports), name="versions")
    return can_open(ir.Model(graph, ir_version=ir_version))


def check_names(model: ir.Model, given: Given) -> None:
    """Checks that a model has the inputs that are given.

    Raises:
        DynqError: It has no input of a name.
    """
    names = [value.name for value in model.graph.inputs if value.name not in model.graph.initializers]
    for name in (*given.inputs, *given.shapes):
        if name not in names:
            raise DynqError(f"the model has no input {name}; it has {', '.join(filter(None, names)) or 'none'}")


def to_opset(model: ir.Model) -> ir.Model:
    """Returns a copy of an older model in the opset :data:`OPSET`, or the model. Weights are shared, not copied.

    Raises:
        DynqError: onnx.version_converter cannot convert the model; the message names the node.
    """
    if opset_of(model) >= OPSET:
        return model
    small = model.clone()
    weights = _without_weights(small)
    proto = to_proto(small)
    try:
        converted = ir.from_proto(onnx.version_converter.convert_version(proto, OPSET))
    except Exception as error:  # the types are onnx's own
        raise DynqError(_cause(proto, error)) from error
    graph = converted.graph
    values = {value.name: value for value in graph.inputs}
    for name, (tensor, is_input) in weights.items():
        value = values[name]
        value.const_value = tensor
        if not is_input:
            graph.inputs.remove(value)
        graph.register_initializer(value)
    for kind in ("inputs", "outputs"):  # older versions of onnx lose these
        for old, new in zip(getattr(model.graph, kind), getattr(graph, kind), strict=True):
            new.doc_string = old.doc_string
    graph.doc_string, graph.name = model.graph.doc_string, model.graph.name
    graph.metadata_props.update(model.graph.metadata_props)
    return ir.Model(
        graph,
        ir_version=converted.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=tuple(small.functions.values()),
        metadata_props=dict(model.metadata_props),
    )


def _without_weights(model: ir.Model) -> dict[str, tuple[ir.TensorProtocol, bool]]:
    """Makes inputs of the large initializers of the main graph: the converter copies what it is given.

    Returns:
        The tensor of each by name, and whether it was an input already.
    """
    graph, weights = model.graph, dict[str, tuple[ir.TensorProtocol, bool]]()
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or (tensor.size <= _MAX_COPIED and not isinstance(tensor, ir.ExternalTensor)):
            continue
        weights[name] = tensor, value.is_graph_input()
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
        del graph.initializers[name]
        value.const_value = None
        if not weights[name][1]:
            graph.inputs.append(value)
    return weights


def _cause(proto: onnx.ModelProto, error: Exception) -> str:
    """Returns the converter's error in one line, which names the first node that it does not convert alone."""
    graph = proto.graph
    with contextlib.suppress(Exception):  # without inferred types, the adapters still name most nodes
        graph = onnx.shape_inference.infer_shapes(proto).graph
    types = {each.name: each for each in (*graph.value_info, *graph.input, *graph.output)}
    constants = {each.name: each for each in graph.initializer}
    for node in graph.node:
        inputs = [types.get(name, onnx.ValueInfoProto(name=name)) for name in node.input if name]
        outputs = [types.get(name, onnx.ValueInfoProto(name=name)) for name in node.output if name]
        used = [constants[name] for name in node.input if name in constants]
        alone = onnx.helper.make_graph([node], "node", inputs, outputs, used)
        part = onnx.helper.make_model(alone, opset_imports=proto.opset_import, ir_version=proto.ir_version)
        try:
            onnx.version_converter.convert_version(part, OPSET)
        except Exception as failure:  # the types are onnx's own
            name = node.name or next(iter(node.output), "")
            return f"onnx.version_converter fails at {node.op_type} {name}: {message(failure)}"
    return f"onnx.version_converter fails: {message(error)}"


def check_equal(older: ir.Model, newer: ir.Model, given: Sequence[Given] = ()) -> str:
    """Checks that a model gives the same outputs in two opsets, bit for bit.

    Args:
        older, newer: The model in both opsets.
        given: Sets of inputs: the first four are compared. Values that they do not give are generated, with two seeds.

    Returns:
        What was compared, for a message: "the given inputs" or "generated inputs".

    Raises:
        DynqError: They differ, or the model does not run on these inputs.
    """
    sessions = [_session(older, "it"), _session(newer, f"in opset {OPSET}, it")]
    names = [output.name for output in sessions[0].get_outputs()]
    given = given[:_MAX_SETS] or (Given(),)
    are_complete = all({each.name for each in sessions[0].get_inputs()} <= set(one.inputs) for one in given)
    for one, seed in itertools.product(given, _SEEDS[:1] if are_complete else _SEEDS):
        feeds, expected = _expected(sessions[0], names, one, seed)
        try:
            found = sessions[1].run(names, feeds)
        except Exception as error:  # the types are onnxruntime's own
            raise DynqError(f"in opset {OPSET}, it does not run in ONNX Runtime: {message(error)}") from error
        for name, a, b in zip(names, expected, found, strict=True):
            if not _same(a, b):
                raise DynqError(f"in opset {OPSET}, its output {name} differs")
    return "the given inputs" if are_complete else "generated inputs"


def _session(model: ir.Model, what: str) -> ort.InferenceSession:
    try:
        return open_session(model, session_options(optimize=False))
    except Exception as error:  # the types are onnxruntime's own
        raise DynqError(f"{what} does not load in ONNX Runtime: {message(error)}") from error


def _expected(
    session: ort.InferenceSession, names: list[str], given: Given, seed: int
) -> tuple[dict[str, Array], list[Array]]:
    """Returns inputs on which the model runs (some may be given), and its outputs."""
    why = ""
    for batch, other in _SIZES:
        resolved = resolve_inputs(session.get_inputs(), given.inputs, given.shapes, other, batch)
        try:
            feeds = make_feeds(resolved, given.inputs, seed, zero_rows=True)
            return feeds, session.run(names, feeds)
        except Exception as error:
            why = why or message(error)
        if not any(each.assumed for each in resolved):
            break
    if given.inputs or given.shapes:
        raise DynqError(f"it does not run on the given inputs, so that its outputs cannot be compared: {why}")
    raise DynqError(
        "it runs on no generated input, so that its outputs cannot be compared; give inputs or shapes on which it "
        f"runs: {why}"
    )


def _same(a: object, b: object) -> bool:
    """Returns whether two outputs have the same type, shape and bits; sequences and maps are compared in depth."""
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    x, y = np.asarray(a), np.asarray(b)
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return np.array_equal(x, y) if x.dtype.kind in "OUS" else x.tobytes() == y.tobytes()
