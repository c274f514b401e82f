"""Verifies products of floats that have become integer products, whose last bits differ from the original's.

Compared end to end, two correct models may differ by a percent: rounding to 8 bits makes a last bit into a whole step.
So B runs on A's results of these products. Each product then computes from A's own values, and is compared with what
A's nodes come to in float64; and everything else in B can be compared with A bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from ..errors import DynqError
from ..graphs import STANDARD_DOMAINS, functions, graphs, label
from ..rewriter.facts.values import only_use
from ..rewriter.metadata import ACTIVATION, EXACT
from ..storage import load
from .sessions import Array, Failure, open_session, run

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..runtime import Model

_PREFIX = "ort_dynq.product."  # of values that give their names to others
_UNIT = 2.0**-24  # half a unit in the last place of float32, relative
_SMALLEST = 2.0**-149
FACTOR = 2
"""How many times the error of A's float32 product that of B's may be."""
FLOOR = 8
"""The error, in units, that B's product may have however small A's is.

A product of few elements may come out exact in float32. B's has one rounding each of the activation and the weight as A
has them (B's are not rounded), of the sum, of two products of scales, of their product with the sum, and of the bias;
one is left for a scale that A has as an inverse.
"""
NUDGE = 2.0**-22
"""By how much, relatively, A's results of these products are changed, to see what that changes end to end."""


@dataclass(frozen=True)
class Product:
    """One product of floats in A that is an integer product in B, both computed from A's own values.

    An error is the largest over the elements of abs(result - reference) / (2**-24 * magnitude): the reference is what
    A's nodes come to in float64, the magnitude the same of absolute values, abs(x) @ abs(w) * abs(scale) + abs(bias).
    That is the unit in which the textbook bound of a float32 product's error is K (Higham, Accuracy and Stability of
    Numerical Algorithms, section 3.5).

    Attributes:
        name: The node in B; its result where it has none.
        depth: K, the number of products in a sum.
        elements: Of the result.
        skipped: Those without a float32 reference: their row of the activation holds a NaN or an infinity, which
            integer codes cannot say, or they overflow.
        a_error, b_error: The errors, in units.
        allowed: The error that B may have: FACTOR times A's, or FLOOR.
        problem: What is wrong; empty if nothing is.
    """

    name: str
    depth: int = 0
    elements: int = 0
    skipped: int = 0
    a_error: float = 0.0
    b_error: float = 0.0
    allowed: float = float(FLOOR)
    problem: str = ""


@dataclass(frozen=True)
class Checked:
    """What running both models on A's values gave.

    Attributes:
        products: Those of B's main graph.
        unreachable: How many more are in subgraphs and functions, whose values cannot be told from outside.
        a, b: The outputs by name, but for those that are a product's own result, or come out of a node with unreachable
            products in it.
        original, nudged: All of A's outputs; and again, where every column of the results of these products in A is
            multiplied by 1 + NUDGE or 1 - NUDGE, in turns: what a last
            bit or two there comes to at the end. (Of a common factor the next normalisation would leave nothing.)
    """

    products: tuple[Product, ...]
    unreachable: int
    a: dict[str, Array]
    b: dict[str, Array]
    original: list[Array]
    nudged: list[Array]


def check_products(a: Model, b: Model, feeds: Mapping[str, Array], backend: Backend) -> Checked | None:
    """Compares the products one by one; None if B has none that differ from A's, or promises to be exact.

    Args:
        a: The original, which loads and runs in stock ONNX Runtime.
        b: The model to verify, which loads and runs with the plugin.
        feeds: Values of all inputs.
        backend: How B gets the operators.

    Raises:
        Failure: B does not run on A's values.
        DynqError: A does not run with these values as outputs, or they are not tensors of numbers that NumPy has.
    """
    theirs = load(b)
    if theirs.metadata_props.get(EXACT) == "1":
        return None
    products = [node for node in theirs.graph if _is_product(node)]
    labels = list(map(label, products))
    enclosing, unreachable = _enclosing(theirs)
    if not products and not unreachable:
        return None
    ours = load(a)
    values = _values(ours.graph)
    names = [_name(output) for output in ours.graph.outputs]
    chains = [_chain(node, values) for node in products]
    foreign = [output for node in enclosing for output in node.outputs if output.name in values]
    needed = [value for chain in chains if chain for value in chain.values()]
    known = _run_a(ours, [*ours.graph.outputs, *needed, *(values[_name(output)] for output in foreign)], feeds)
    results = _run_b(theirs, products, foreign, feeds, known, backend)
    judged = tuple(map(_judge, labels, chains, [known] * len(chains), results[: len(chains)]))
    outputs = dict(zip(map(_name, theirs.graph.outputs), results, strict=True))
    found = {name: outputs[name] for name in names if name in outputs}
    verified = [chain.result for chain in chains if chain]
    nudged = _run_nudged(ours, verified, names, feeds, known) if verified else []
    return Checked(judged, unreachable, {name: known[name] for name in found}, found, [known[n] for n in names], nudged)


class _Chain(NamedTuple):
    """What a product is in A: activation @ weights, then Add or Mul with each of the operands, in this order."""

    activation: ir.Value
    weights: ir.Value
    is_transposed: bool
    steps: tuple[tuple[str, ir.Value], ...]
    result: ir.Value

    def values(self) -> list[ir.Value]:
        return [self.activation, self.weights, self.result, *(operand for _, operand in self.steps)]


def _name(value: ir.Value) -> str:
    return value.name or ""


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {_name(value): value for value in values if value.name}


def _is_product(node: ir.Node) -> bool:
    return ACTIVATION in node.metadata_props


def _enclosing(model: ir.Model) -> tuple[list[ir.Node], int]:
    """The nodes of the main graph that have products inside of them; how many products are not in the main graph."""
    calls: set[ir.OperatorIdentifier] = set()  # of functions that have

    def holds(node: ir.Node) -> bool:
        return node.op_identifier() in calls or any(_is_product(each) or holds(each) for each in _inner(node))

    for _ in functions(model):  # one may call another
        for function in functions(model):
            if any(_is_product(node) or holds(node) for node in function):
                calls.add(function.identifier())
    count = sum(_is_product(node) for _, graph in graphs(model) if graph is not model.graph for node in graph)
    return [node for node in model.graph if holds(node)], count


def _inner(node: ir.Node) -> Iterator[ir.Node]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield from attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for graph in attribute.as_graphs():
                yield from graph


def _chain(node: ir.Node, values: Mapping[str, ir.Value]) -> _Chain | None:
    """A's nodes from the activation to the value that `node`, of B, computes; None if A has no such nodes."""
    activation, result = values.get(node.metadata_props[ACTIVATION]), values.get(_name(node.outputs[0]))
    if activation is None or result is None or (producer := result.producer()) is None:
        return None
    for product, position in activation.uses():
        if product.domain not in STANDARD_DOMAINS or product.op_type not in ("MatMul", "Gemm") or position != 0:
            continue
        weights, *bias = product.inputs[1:]
        steps = [("Add", operand) for operand in bias if operand is not None]
        value = product.outputs[0]
        while value is not result and (use := only_use(value)) is not None and use.node.op_type in ("Add", "Mul"):
            if (operand := use.node.inputs[1 - use.idx]) is None:
                break
            steps.append((use.node.op_type, operand))
            value = use.node.outputs[0]
        if value is result and weights is not None and product.graph is producer.graph:
            is_transposed = product.attributes.get_int("transB", 0) != 0
            return _Chain(activation, weights, is_transposed, tuple(steps), result)
    return None


def _run_a(model: ir.Model, wanted: Sequence[ir.Value], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The values wanted, by name: the model has them as outputs while it runs."""
    constants = [(_name(value), value.const_value) for value in wanted if value.producer() is None]
    computed = {_name(value): value for value in wanted if value.producer() is not None}
    count = len(model.graph.outputs)
    model.graph.outputs.extend(value for value in computed.values() if not value.is_graph_output())
    try:
        results = run(open_session(model, "A"), list(computed), feeds)
    except Failure as error:
        raise DynqError(f"A does not run with {len(computed)} of its values as outputs: {error}") from error
    del model.graph.outputs[count:]
    known = {name: tensor.numpy() for name, tensor in constants if tensor is not None}
    return known | dict(feeds) | dict(zip(computed, results, strict=True))


def _run_nudged(
    model: ir.Model,
    results: Sequence[ir.Value],
    names: list[str],
    feeds: Mapping[str, Array],
    known: Mapping[str, Array],
) -> list[Array]:
    """A's outputs where the columns of the products' results are multiplied by 1 + NUDGE and 1 - NUDGE in turns."""
    for i, result in enumerate(results):
        columns, name = np.arange(known[_name(result)].shape[-1]), _name(result)
        factors = ir.node("Constant", [], {"value": ir.tensor((1 + NUDGE * (-1.0) ** columns).astype(np.float32))})
        nudge = ir.node("Mul", [result, factors.outputs[0]])
        nudged, producer = nudge.outputs[0], result.producer()
        assert producer is not None
        ir.convenience.replace_all_uses_with([result], [nudged], replace_graph_outputs=True)
        nudge.replace_input_with(0, result)
        nudged.name, result.name, factors.outputs[0].name = name, f"{_PREFIX}{i}", f"{_PREFIX}{i}.factors"
        nudged.type = result.type
        model.graph.insert_after(producer, [factors, nudge])
    try:
        return run(open_session(model, "A"), names, feeds)
    except Failure as error:
        raise DynqError(f"A does not run with {len(results)} of its products changed by 2**-22: {error}") from error


def _run_b(
    model: ir.Model,
    products: Sequence[ir.Node],
    foreign: Sequence[ir.Value],
    feeds: Mapping[str, Array],
    known: Mapping[str, Array],
    backend: Backend,
) -> list[Array]:
    """The model's new outputs: the products' own results, then those of its outputs that do not stem from elsewhere.

    Whatever uses a product's result, or a foreign value, uses A's instead, which becomes an input.
    """
    results = [node.outputs[0] for node in products]
    replaced = [value for value in (*results, *foreign) if value.name in known]
    outputs = [output for output in model.graph.outputs if output not in {*results, *foreign}]
    model.graph.outputs[:] = []
    given = {}
    for i, old in enumerate(replaced):
        array = known[_name(old)]
        new = ir.Value(
            name=old.name, type=ir.TensorType(ir.DataType.from_numpy(array.dtype)), shape=ir.Shape(array.shape)
        )
        old.name = f"{_PREFIX}{i}"
        if old.uses():
            ir.convenience.replace_all_uses_with([old], [new])
            model.graph.inputs.append(new)
            given[_name(new)] = array
    model.graph.outputs.extend([*results, *outputs])
    names = [_name(output) for output in model.graph.outputs]
    return run(open_session(model, "B", backend=backend), names, {**feeds, **given})


def _judge(name: str, chain: _Chain | None, known: Mapping[str, Array], result: Array) -> Product:
    product = Product(name)
    if chain is None:
        return replace(product, problem="A has no such product of floats")
    expected = known[_name(chain.result)]
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        shapes = f"{result.dtype} {list(result.shape)}, A {expected.dtype} {list(expected.shape)}"
        return replace(product, problem=f"B's result is {shapes}")
    with np.errstate(all="ignore"):  # what is not finite is left out
        x, weights = (known[_name(value)].astype(np.float64) for value in (chain.activation, chain.weights))
        w = weights.T if chain.is_transposed else weights
        reference, magnitude = x @ w, np.abs(x) @ np.abs(w)
        for operator, operand in chain.steps:
            number = known[_name(operand)].astype(np.float64)
            if operator == "Mul":
                reference, magnitude = reference * number, magnitude * np.abs(number)
            else:
                reference, magnitude = reference + number, magnitude + np.abs(number)
        compared = magnitude <= np.finfo(np.float32).max
        a_error, b_error = (
            float(_finite(np.abs(each - reference) / (_UNIT * magnitude + _SMALLEST))[compared].max(initial=0))
            for each in (expected, result)
        )
    bound = len(w) + len(chain.steps)
    allowed = max(FACTOR * a_error, FLOOR)
    problem = ""
    if a_error > bound:
        problem = f"A's result is {a_error:.3g} units from what its nodes come to, where {bound} are possible"
    elif b_error > allowed:
        problem = f"B's error is {b_error:.3g} units, A's {a_error:.3g}, expected at most {allowed:.3g}"
    return replace(
        product,
        depth=len(w),
        elements=result.size,
        skipped=int(compared.size - compared.sum()),
        a_error=a_error,
        b_error=b_error,
        allowed=allowed,
        problem=problem,
    )


def _finite(errors: Array) -> Array:
    return np.where(np.isnan(errors), np.inf, errors)
