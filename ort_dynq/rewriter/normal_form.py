"""The normal form to which rules are applied: no functions, loops that carry no value unchanged, and remainders of
constants as constants, and no Resize that keeps the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

from ..errors import DynqError, message
from ..graphs import MICROSOFT, NAME_IN_MODEL, functions, named, new_name, subgraphs, values_of, with_subgraphs
from ..operators import DOMAIN
from .analysis.constants import constant_array
from .analysis.nodes import first_inputs, is_standard, producer_of
from .analysis.standard import PASSING
from .inner_weights import NOTE, copy_of, with_weights_outside
from .known_branches import without_known_branches
from .loop_invariants import without_carried_invariants

_KEPT = ("ai.onnx", MICROSOFT, "com.ms", DOMAIN)  # domains with kernels, and those of versions.py


def normal_form(model: ir.Model) -> tuple[ir.Model, ir.Model, list[str]]:
    """Returns a model with its weights outside of branches, its normal form, and notes on what is not possible.

    ONNX Runtime inlines functions itself, so that no bit changes. Values of subgraphs get names of their own. Bodies of
    loops read directly what the loops carry unchanged.

    Args:
        model: The model, which may be changed.
    """
    form, notes = model, list[str]()
    try:
        form = inlined(model)
    except DynqError as error:
        notes.append(str(error))
    form, given_model, model = with_weights_outside(form), model, with_weights_outside(model)
    if model is not given_model:
        notes.append(NOTE)
    form = _without_resizes(_without_remainders(without_carried_invariants(with_distinct_names(form))))
    return model, form, notes


def inlined(model: ir.Model) -> ir.Model:
    """Returns a copy of a model with its functions and its known branches inlined, as ONNX Runtime inlines them.

    A model without these is returned itself. A function stays if its domain is one of ort_dynq or of ONNX Runtime,
    which may have a kernel of its name. The copy has the same names of inputs and outputs.

    Raises:
        DynqError: A function cannot be inlined. For example, it imports another opset than the model.
    """
    return without_known_branches(_without_functions(model) if functions(model) else model)


def _without_functions(model: ir.Model) -> ir.Model:
    try:
        copy = named(model.clone())  # after their outputs: the pass would name nodes by numbers
        common.InlinePass(lambda each: each.domain != "" and not each.domain.startswith(_KEPT))(copy)
        common.NameFixPass()(copy)  # subgraphs may have the names of inlined values
    except Exception as error:  # the types are onnx_ir's own
        raise DynqError(f"its functions cannot be inlined: {message(error.__cause__ or error)}") from error
    for old, new in zip(model.graph.outputs, copy.graph.outputs, strict=True):
        new.type, new.shape, new.doc_string = old.type, old.shape, old.doc_string
    ends = [[value.name for value in (*each.graph.inputs, *each.graph.outputs)] for each in (model, copy)]
    if ends[0] != ends[1]:
        raise DynqError("its functions cannot be inlined: an output has the name of another value")
    return copy


def inlined_if_possible(model: ir.Model) -> ir.Model:
    """Returns :func:`inlined`, or the model if a function cannot be inlined."""
    try:
        return inlined(model)
    except DynqError:
        return model


def with_branches_taken(model: ir.Model, inputs: Mapping[str, npt.NDArray[Any]]) -> ir.Model:
    """Returns a copy of a model in which the branch that runs replaces each If of one of these inputs.

    Values have their names in the normal form. A model without such an If is returned itself.
    """
    distinct = with_distinct_names(model)
    form = without_known_branches(distinct, inputs)
    return model if form is distinct else form


def with_distinct_names(model: ir.Model) -> ir.Model:
    """Returns a copy of a model in which no two values of its graphs have one name; itself if none have.

    ONNX Runtime allows this if the value outside is computed after the subgraph, and in graphs beside each other, as in
    both branches of a merged decoder. But rules move nodes before it, and ONNX's inference takes the elements of one
    value for those of the other.
    """
    if not _repeating(model.graph):
        return model
    copy = model.clone()
    names = {value.name for _, graph in with_subgraphs(copy.graph) for value in values_of(graph) if value.name}
    for value in _repeating(copy.graph):
        value.meta[NAME_IN_MODEL] = value.name
        if value.is_initializer():
            value.const_value = copy_of(value.const_value)  # the name is also one of the tensor
        value.name = new_name(value.name or "", names)
    return copy


def _repeating(graph: ir.Graph) -> list[ir.Value]:
    """Returns the values of subgraphs that have the name of one outside or of one in a graph before.

    Initializers may have the name of a value outside, wherever nodes are.
    """
    found, before = list[ir.Value](), set[str | None]()

    def walk(graph: ir.Graph, outside: frozenset[str | None]) -> None:
        own = [value for value in values_of(graph) if value.name]
        for value in own:
            if value.name in before and not (value.is_initializer() and value.name in outside):
                found.append(value)
        before.update(value.name for value in own)
        names = outside.union(value.name for value in own)
        for node in graph:
            for _, inner in subgraphs(node):
                walk(inner, names)

    walk(graph, frozenset())
    return found


def _without_remainders(model: ir.Model) -> ir.Model:
    """Returns a copy of a model with the remainders of constants as constants; the model itself if it has none.

    torch computes indices of dimensions so, for the shape of an `unflatten`. Inference does not know Mod, and follows
    no numbers through a Reshape.
    """
    if not any(node.op_type == "Mod" and _index(node) is not None for node in model.graph.all_nodes()):
        return model
    copy, computed = model.clone(), set[ir.Value]()
    for node in list(copy.graph.all_nodes()):
        is_more = not computed.isdisjoint(each for each in node.inputs if each is not None)
        found = _index(node) if is_more or node.op_type == "Mod" else None
        if found is not None and node.graph is not None:
            new = ir.node("Constant", [], {"value": ir.tensor(found, name=node.outputs[0].name)})
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], [new], node.outputs, new.outputs)
            computed.add(new.outputs[0])
    return copy


def _without_resizes(model: ir.Model) -> ir.Model:
    """Returns a copy of a model with Identities for the Resizes that keep the lengths; the model itself if it has none.

    AIMET repeats scales for each element of a block so, also for blocks of one element. Inference does not know the
    lengths.
    """
    if not any(map(_keeps_lengths, model.graph.all_nodes())):
        return model
    copy = model.clone()
    for node in filter(_keeps_lengths, list(copy.graph.all_nodes())):
        if node.graph is not None:
            new = ir.node("Identity", node.inputs[:1], name=node.name)
            ir.convenience.replace_nodes_and_values(node.graph, node, [node], [new], node.outputs, new.outputs)
    return copy


def _keeps_lengths(node: ir.Node) -> bool:
    """Returns whether a node resizes a value to its own lengths, and takes the nearest elements: the same ones."""
    if not is_standard(node, "Resize") or node.attributes.get_string("mode", "nearest") != "nearest":
        return False
    x, region, scales, sizes = first_inputs(node, 4)
    if region is not None or scales is not None or "axes" in node.attributes:
        return False
    if (product := producer_of(sizes, "Mul")) is not None:
        sizes = next((value for value, factor in (product.inputs, product.inputs[::-1]) if _is_one(factor)), None)
    shape = producer_of(sizes, "Shape")
    return shape is not None and not shape.attributes and shape.inputs[0] is x


def _is_one(value: ir.Value | None) -> bool:
    """Returns whether all elements of a constant are 1, also behind a Cast."""
    if (cast := producer_of(value, *PASSING, "CastLike")) is not None:
        value = cast.inputs[0]
    elements = constant_array(value)
    return elements is not None and elements.size > 0 and bool((elements == 1).all())


def _reshaped(a: npt.NDArray[Any], shape: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    return a.reshape(shape) if (shape > 0).all() or shape.tolist() == [-1] else None


def _remainder(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    return np.mod(a, b) if b.all() else None


_OF_INDICES: dict[str, Callable[..., Any]] = {"Add": np.add, "Mod": _remainder, "Reshape": _reshaped}


def _index(node: ir.Node) -> npt.NDArray[np.int64] | None:
    """Returns the result of an operator of two small constant integers or vectors of these; None for other nodes."""
    if not is_standard(node, *_OF_INDICES) or node.attributes.get_int("fmod", 0) == 1:
        return None
    a, b = (constant_array(each) for each in node.inputs)
    if a is None or b is None or not a.dtype == b.dtype == np.int64:
        return None
    try:
        found = _OF_INDICES[node.op_type](a, b)
        return None if found is None else np.asarray(found)
    except ValueError:  # the shapes do not fit: a branch that no input takes
        return None
