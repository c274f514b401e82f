"""Verifies float products that became integer products, whose last bits differ from the original's.

Compared end to end, two correct models may differ by a percent: rounding to 8 bits turns a difference in the last bit
into a whole step. So verification has two parts. Each product is computed from A's intermediate values and compared
with a float64 reference. Then B's products are overridden with A's results, and the rest of B must equal A bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx_ir as ir

from ..errors import DynqError
from ..graphs import STANDARD_DOMAINS, functions, graphs, label, subgraphs
from ..rewriter.facts.shapes import RESHAPES
from ..rewriter.facts.values import WIDE_TYPES, cast_to, only_use
from ..rewriter.metadata import ACTIVATION, EXACT
from ..storage import load
from .convolution import convolve
from .inputs import Array
from .sessions import SessionError, open_session, run

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..runtime import Model

_PREFIX = "ort_dynq.product."  # of renamed values, whose old names other values get
_UNIT = 2.0**-24  # half a unit in the last place of float32, relative
_SMALLEST = 2.0**-149  # the smallest positive float32
FACTOR = 2
"""The error of B's product may be this many times the error of A's float32 product."""
FLOOR = 8
"""The error in units that B's product may always have, even if A's error is smaller.

A float32 product of few elements may be exact. B's product has one rounding for each of these: the activation and the
weight, which A rounds and B does not; the sum; two products of scales; their product with the sum; the bias. One more
is left for a scale that A has as a reciprocal.

A product in groups also adds the float32 sums of its groups, one rounding each. These roundings are relative to the sum
so far, the unit is relative to the sum of absolute values. With weights of both signs they add less than one unit, also
for 512 groups; docs/numerics.md has the figures. If all terms have one sign, they may exceed 8 units from 64 groups on.
A's float32 product then has a similar error, and FACTOR decides.
"""
PERTURBATION = 2.0**-22
"""The relative change of A's results of these products, to see its effect end to end."""


@dataclass(frozen=True)
class Product:
    """A float product in A that is QuantizedMatMul or QuantizedConv in B, both computed from A's values.

    An error is the largest abs(result - reference) / (2**-24 * magnitude) over the elements. The reference is the
    result of A's nodes in float64. The magnitude is the same computation on absolute values,
    abs(x) @ abs(w) * abs(scale) + abs(bias). In this unit, the textbook bound of the error of a float32 product is K
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5).

    Attributes:
        name: The name of the node in B, or of its result if the node has none.
        depth: K, the number of terms of each sum.
        elements: The number of elements of the result.
        skipped: The number of elements without a float32 reference: it overflows, or the row of the activation contains
            NaN or an infinity, which integer codes cannot represent.
        a_error, b_error: The errors in units.
        allowed: The largest error that B may have: FACTOR times A's, or FLOOR.
        problem: Why the product is incorrect; empty if it is correct.
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
    """The results of both models on A's intermediate values.

    Attributes:
        products: The integer products of B's main graph.
        unreachable: The number of integer products in subgraphs and functions, whose values cannot be graph outputs.
        a, b: The outputs by name, without those that are the result of a product or of a node that contains
            unreachable products.
        original: All outputs of A.
        perturbed: All outputs of A if the columns of its results of these products are multiplied by 1 + PERTURBATION
            and 1 - PERTURBATION alternately. This shows the effect of an error in the last bits. A normalization would
            cancel a common factor.
    """

    products: tuple[Product, ...]
    unreachable: int
    a: dict[str, Array]
    b: dict[str, Array]
    original: list[Array]
    perturbed: list[Array]


def check_products(a: Model, b: Model, feeds: Mapping[str, Array], backend: Backend) -> Checked | None:
    """Verifies the integer products of B.

    Args:
        a: The original, which loads and runs in stock ONNX Runtime.
        b: The model to verify, which loads and runs with the plugin.
        feeds: Values of all inputs.
        backend: How B gets the operators.

    Returns:
        The results, or None if B has no integer products or its metadata says that it is exact.

    Raises:
        SessionError: B does not run on A's values.
        DynqError: A does not run with these values as outputs, or one is not a tensor of a supported type.
    """
    model_b = load(b)
    if model_b.metadata_props.get(EXACT) == "1":
        return None
    model_a = load(a)
    values = _values(model_a.graph)
    products = [node for node in model_b.graph if _is_product(node) and not _is_product_of(node, values)]
    labels = list(map(label, products))
    enclosing, unreachable = _enclosing(model_b)
    if not products and not unreachable:
        return None
    names = [_name(output) for output in model_a.graph.outputs]
    chains = [_chain(node, values) for node in products]
    foreign = [output for node in enclosing for output in node.outputs if output.name in values]
    needed = [value for chain in chains if chain for value in chain.values()]
    known = _run_a(model_a, [*model_a.graph.outputs, *needed, *(values[_name(output)] for output in foreign)], feeds)
    results = _run_b(model_b, [_result(node, values) for node in products], foreign, feeds, known, backend)
    judged = zip(labels, chains, results[: len(products)], strict=True)
    outputs = dict(zip(map(_name, model_b.graph.outputs), results, strict=True))
    found = {name: outputs[name] for name in names if name in outputs}
    verified = [chain.result for chain in chains if chain]
    return Checked(
        products=tuple(_judge(name, chain, known, result) for name, chain, result in judged),
        unreachable=unreachable,
        a={name: known[name] for name in found},
        b=found,
        original=[known[name] for name in names],
        perturbed=_run_perturbed(model_a, verified, names, feeds, known) if verified else [],
    )


class _Chain(NamedTuple):
    """A product in A: activation @ weights, then Add or Mul with each operand, or Reshape to its shape, in this order.

    The product is a MatMul, Gemm or Conv. The bias of the latter two is the first step.
    """

    product: ir.Node
    activation: ir.Value
    weights: ir.Value
    steps: tuple[tuple[str, ir.Value], ...]
    result: ir.Value

    def multiply(self, x: Array, weights: Array) -> Array:
        """Returns the product of these numbers, without the steps after it."""
        if self.product.op_type == "Conv":
            return convolve(x, weights, self.product)
        return np.asarray(x @ (weights.T if self._is_transposed else weights))

    def depth(self, weights: Array) -> int:
        """Returns K, the number of terms of each sum."""
        if self.product.op_type == "Conv":
            return math.prod(weights.shape[1:])
        return len(weights.T if self._is_transposed else weights)

    def number(self, operand: ir.Value, known: Mapping[str, Array]) -> Array:
        """Returns the operand of a step, float64, as it broadcasts to the product."""
        number = known[_name(operand)].astype(np.float64)
        is_bias_of_conv = self.product.op_type == "Conv" and operand in self.product.inputs[2:]
        return number.reshape(-1, *[1] * (known[_name(self.weights)].ndim - 2)) if is_bias_of_conv else number

    @property
    def _is_transposed(self) -> bool:
        return self.product.attributes.get_int("transB", 0) != 0

    def values(self) -> list[ir.Value]:
        return [self.activation, self.weights, self.result, *(operand for _, operand in self.steps)]


def _name(value: ir.Value) -> str:
    return value.name or ""


def _values(graph: ir.Graph) -> dict[str, ir.Value]:
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    return {_name(value): value for value in values if value.name}


def _is_product(node: ir.Node) -> bool:
    return ACTIVATION in node.metadata_props


def _result(node: ir.Node, values: Mapping[str, ir.Value]) -> ir.Value:
    """Returns the value of B that a product computes and that A has, too: Reshapes and the like may precede it."""
    value = node.outputs[0]
    while value.name not in values and (use := only_use(value)) is not None and use.node.op_type in RESHAPES:
        value = use.node.outputs[0]
    return value


def _is_product_of(node: ir.Node, values: Mapping[str, ir.Value]) -> bool:
    """Returns whether the result of a product in B is one of a product in A, too: A was rewritten before."""
    value = values.get(_name(_result(node, values)))
    producer = None if value is None else value.producer()
    return producer is not None and _is_product(producer)


def _enclosing(model: ir.Model) -> tuple[list[ir.Node], int]:
    """Returns the nodes of the main graph that contain products, and the number of products outside the main graph."""
    calls: set[ir.OperatorIdentifier] = set()  # the functions that contain products

    def contains(node: ir.Node) -> bool:
        inner = (each for _, graph in subgraphs(node) for each in graph)
        return node.op_identifier() in calls or any(_is_product(each) or contains(each) for each in inner)

    for _ in functions(model):  # a function may call another one
        for function in functions(model):
            if any(_is_product(node) or contains(node) for node in function):
                calls.add(function.identifier())
    count = sum(_is_product(node) for _, graph in graphs(model) if graph is not model.graph for node in graph)
    return [node for node in model.graph if contains(node)], count


def _chain(node: ir.Node, values: Mapping[str, ir.Value]) -> _Chain | None:
    """Returns A's nodes from the activation to the result of a node of B, or None if A has no such nodes."""
    activation, result = values.get(node.metadata_props[ACTIVATION]), values.get(_name(_result(node, values)))
    if activation is None or result is None or (producer := result.producer()) is None:
        return None
    for product, position in activation.uses():
        if product.domain not in STANDARD_DOMAINS or product.op_type not in ("MatMul", "Gemm", "Conv") or position != 0:
            continue
        weights, *bias = product.inputs[1:]
        steps = [("Add", operand) for operand in bias if operand is not None]
        value = product.outputs[0]
        while value is not result and (use := only_use(value)) is not None:
            if use.node.op_type in RESHAPES:
                steps.append(("Reshape", use.node.outputs[0]))
            elif use.node.op_type in ("Relu", "Clip"):  # of QuantizedConv
                steps.append((use.node.op_type, use.node.outputs[0]))
            elif use.node.op_type in ("Add", "Mul") and (operand := use.node.inputs[1 - use.idx]) is not None:
                steps.append((use.node.op_type, operand))
            elif use.node.op_type != "Cast" or cast_to(use.node) not in (*WIDE_TYPES, ir.DataType.FLOAT):
                break  # a Cast of integer sums changes no number
            value = use.node.outputs[0]
        if value is result and weights is not None and product.graph is producer.graph:
            return _Chain(product, activation, weights, tuple(steps), result)
    return None


def _run_a(model: ir.Model, wanted: Sequence[ir.Value], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Returns A's values by name. The computed ones are outputs of the model while it runs."""
    constants = [(_name(value), value.const_value) for value in wanted if value.producer() is None]
    computed = {_name(value): value for value in wanted if value.producer() is not None}
    count = len(model.graph.outputs)
    model.graph.outputs.extend(value for value in computed.values() if not value.is_graph_output())
    try:
        results = run(open_session(model, "A"), list(computed), feeds)
    except SessionError as error:
        raise DynqError(f"A does not run with {len(computed)} of its values as outputs: {error}") from error
    del model.graph.outputs[count:]
    known = {name: tensor.numpy() for name, tensor in constants if tensor is not None}
    return known | dict(feeds) | dict(zip(computed, results, strict=True))


def _run_perturbed(
    model: ir.Model,
    results: Sequence[ir.Value],
    names: list[str],
    feeds: Mapping[str, Array],
    known: Mapping[str, Array],
) -> list[Array]:
    """Returns A's outputs after the change of the products' results that :class:`Checked` describes."""
    for i, result in enumerate(results):
        columns, name = np.arange(known[_name(result)].shape[-1]), _name(result)
        factors = (1 + PERTURBATION * (-1.0) ** columns).astype(np.float32)
        constant = ir.node("Constant", [], {"value": ir.tensor(factors)})
        scale = ir.node("Mul", [result, constant.outputs[0]])
        perturbed, producer = scale.outputs[0], result.producer()
        assert producer is not None
        ir.convenience.replace_all_uses_with([result], [perturbed], replace_graph_outputs=True)
        scale.replace_input_with(0, result)
        perturbed.name, result.name, constant.outputs[0].name = name, f"{_PREFIX}{i}", f"{_PREFIX}{i}.factors"
        perturbed.type = result.type
        model.graph.insert_after(producer, [constant, scale])
    try:
        return run(open_session(model, "A"), names, feeds)
    except SessionError as error:
        raise DynqError(f"A does not run with {len(results)} of its products changed by 2**-22: {error}") from error


def _run_b(
    model: ir.Model,
    results: Sequence[ir.Value],
    foreign: Sequence[ir.Value],
    feeds: Mapping[str, Array],
    known: Mapping[str, Array],
    backend: Backend,
) -> list[Array]:
    """Returns the products' results, then the other outputs of B, without foreign values.

    Nodes that use a product's result or a foreign value use A's value, which becomes an input.
    """
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
    # Without outputs there is nothing to run: all of the model's come from nodes that contain products.
    return run(open_session(model, "B", backend=backend), names, {**feeds, **given}) if names else []


def _judge(name: str, chain: _Chain | None, known: Mapping[str, Array], result: Array) -> Product:
    product = Product(name)
    if chain is None:
        return replace(product, problem="A has no such float product")
    expected = known[_name(chain.result)]
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        shapes = f"{result.dtype} {list(result.shape)}, A {expected.dtype} {list(expected.shape)}"
        return replace(product, problem=f"B's result is {shapes}")
    with np.errstate(all="ignore"):  # elements that are not finite are skipped
        x, weights = (known[_name(value)].astype(np.float64) for value in (chain.activation, chain.weights))
        reference, magnitude = chain.multiply(x, weights), chain.multiply(np.abs(x), np.abs(weights))
        for operator, operand in chain.steps:
            number = chain.number(operand, known)
            if operator == "Reshape":
                reference, magnitude = (each.reshape(number.shape) for each in (reference, magnitude))
            elif operator in ("Relu", "Clip"):
                reference = np.clip(reference, 0, 6 if operator == "Clip" else None)
            elif operator == "Mul":
                reference, magnitude = reference * number, magnitude * np.abs(number)
            else:
                reference, magnitude = reference + number, magnitude + np.abs(number)
        compared = magnitude <= np.finfo(np.float32).max
        a_error, b_error = (
            float(_finite(np.abs(each - reference) / (_UNIT * magnitude + _SMALLEST))[compared].max(initial=0))
            for each in (expected, result)
        )
    depth = chain.depth(weights)
    bound = depth + len(chain.steps)
    allowed = max(FACTOR * a_error, FLOOR)
    problem = ""
    if a_error > bound:
        problem = f"A's result is {a_error:.3g} units from the reference, expected at most {bound}"
    elif b_error > allowed:
        problem = f"B's error is {b_error:.3g} units, A's {a_error:.3g}, expected at most {allowed:.3g}"
    return replace(
        product,
        depth=depth,
        elements=result.size,
        skipped=int(compared.size - compared.sum()),
        a_error=a_error,
        b_error=b_error,
        allowed=allowed,
        problem=problem,
    )


def _finite(errors: Array) -> Array:
    return np.where(np.isnan(errors), np.inf, errors)
