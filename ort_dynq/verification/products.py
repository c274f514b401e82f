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
import numpy.typing as npt
import onnx_ir as ir

from ..errors import DynqError
from ..graphs import STANDARD_DOMAINS, label
from ..measuring.inputs import Array
from ..operators.packing import packed_conv_shape, unpack, unpack_conv
from ..rewriter.analysis.nodes import cast_to, only_use
from ..rewriter.analysis.shapes import RESHAPES
from ..rewriter.analysis.types import WIDE_TYPES
from ..rewriter.float16 import write_casts_as_converted
from ..rewriter.metadata import EXACT, ROUNDED_ACTIVATION, ROUNDED_WEIGHTS
from ..storage import load
from .convolution import convolve
from .layers import Disturbed, Layers, Override, Recorder, name_of

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..storage import Model

_UNIT = 2.0**-24  # half a unit in the last place of float32, relative
_SMALLEST = 2.0**-149  # the smallest positive float32
FACTOR = 2
"""The error of B's product may be this many times the error of A's float32 product."""
FLOOR = 8
"""The error in units that B's product may always have, even if A's error is smaller.

A float32 product of few elements may be exact. B's product has one rounding for each of these: the activation and the
weight, which A rounds and B does not; the sum; two products of scales; their product with the sum; the bias. One more
is allowed for a scale that A stores as a reciprocal.

A product in groups also adds the float32 sums of its groups, one rounding each. These roundings are relative to the sum
so far, the unit is relative to the sum of absolute values. With weights of both signs they add less than one unit, also
for 512 groups; docs/numerics.md has the figures. If all terms have one sign, they may exceed 8 units from 64 groups on.
A's float32 product then has a similar error, and FACTOR decides.
"""
PERTURBATION = 2
"""How much A's results of these products are changed to see the effect end to end, in units of the relative distance
between numbers of their type: 2**-23 of float32, 2**-10 of float16."""


@dataclass(frozen=True)
class Product:
    """A float product in A that is QuantizedMatMul or QuantizedConv in B, both computed from A's values.

    An error is the largest abs(result - reference) / (2**-24 * magnitude) over the elements. A result of float16 is
    rounded: half of the distance between its numbers is subtracted from abs(result - reference). The reference is the
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
        b: B's outputs by name, except results of products and of nodes that contain
            unreachable products.
        original: All outputs of A.
        perturbed: All outputs of A if its results of these products are changed by PERTURBATION in columns of even
            index, and by -PERTURBATION in the others. This shows the effect of an error in the last bits. A
            normalization would cancel a common factor. Empty without such products, or if A does not load with it.
        not_perturbed: Why A does not load with it; empty if it does.
    """

    products: tuple[Product, ...]
    unreachable: int
    b: dict[str, Array]
    original: list[Array]
    perturbed: list[Array]
    not_perturbed: str


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
    write_casts_as_converted(model_a, model_b)
    layers = Layers(model_a, model_b)
    labels = list(map(label, layers.nodes))
    stored = list(map(_rounded_weights, layers.nodes))
    if not layers.nodes and not layers.unreachable:
        return None
    names = list(map(name_of, model_a.graph.outputs))
    chains = [_chain(node, result, layers) for node, result in zip(layers.nodes, layers.results, strict=True)]
    foreign = layers.foreign
    needed = [value for chain in chains if chain for value in chain.values()]
    wanted = [*model_a.graph.outputs, *needed, *(layers.values[name_of(output)] for output in foreign)]
    known = Recorder(model_a, wanted).run(feeds)
    codes = list(map(_codes_of_rounded, layers.nodes))
    observed = list(dict.fromkeys(value for each in codes for value in each if value.producer() is not None))
    results = Override(model_b, layers.results, foreign, known, backend, observed).run(feeds, known)
    outputs = dict(zip(map(name_of, model_b.graph.outputs), results, strict=True))
    found = {name: outputs[name] for name in names if name in outputs}
    activations = [_dequantized(each, {**feeds, **outputs}) for each in codes]
    judged = zip(labels, chains, zip(results, activations, stored, strict=False), strict=True)
    products = tuple(_judge(name, chain, known, *of_b) for name, chain, of_b in judged)
    verified = [chain.result for chain in chains if chain]
    # Last, since this renames A's values.
    perturbed, not_perturbed = _run_perturbed(model_a, verified, feeds, known) if verified else ([], "")
    return Checked(
        products=products,
        unreachable=layers.unreachable,
        b=found,
        original=[known[name] for name in names],
        perturbed=perturbed,
        not_perturbed=not_perturbed,
    )


class _Chain(NamedTuple):
    """A product in A: activation @ weights, then Add or Mul with each operand, or Reshape to its shape, in this order.

    The product is a MatMul, Gemm or Conv. The bias of a Gemm or Conv is the first step.
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
        return np.asarray(x @ (weights.T if self.is_transposed else weights))

    def depth(self, weights: Array) -> int:
        """Returns K, the number of terms of each sum."""
        if self.product.op_type == "Conv":
            return math.prod(weights.shape[1:])
        return len(weights.T if self.is_transposed else weights)

    def number(self, operand: ir.Value, known: Mapping[str, Array]) -> Array:
        """Returns the operand of a step, float64, as it broadcasts to the product."""
        number = known[name_of(operand)].astype(np.float64)
        is_bias_of_conv = self.product.op_type == "Conv" and operand in self.product.inputs[2:]
        return number.reshape(-1, *[1] * (known[name_of(self.weights)].ndim - 2)) if is_bias_of_conv else number

    @property
    def is_transposed(self) -> bool:
        return self.product.attributes.get_int("transB", 0) != 0

    def values(self) -> list[ir.Value]:
        return [self.activation, self.weights, self.result, *(operand for _, operand in self.steps)]


def _chain(node: ir.Node, result_in_b: ir.Value, layers: Layers) -> _Chain | None:
    """Returns A's nodes from the activation to the result of a node of B, or None if A has no such nodes."""
    activation, result = layers.activation(node), layers.values.get(name_of(result_in_b))
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
            elif use.node.op_type != "Cast" or not (
                cast_to(use.node) in (*WIDE_TYPES, ir.DataType.FLOAT) or use.node.outputs[0] is result
            ):
                break  # a Cast of integer sums changes no number, and B rounds its result as A does
            value = use.node.outputs[0]
        if value is result and weights is not None and product.graph is producer.graph:
            return _Chain(product, activation, weights, tuple(steps), result)
    return None


def _run_perturbed(
    model: ir.Model, results: Sequence[ir.Value], feeds: Mapping[str, Array], known: Mapping[str, Array]
) -> tuple[list[Array], str]:
    """Returns A's outputs after the change of the products' results that :class:`Checked` describes.

    ONNX Runtime may load A itself and not A with this change, if A declares wrong shapes. Then there are no outputs,
    and the text says why.
    """
    errors = {}
    for name in map(name_of, results):
        signs = np.where(np.arange(known[name].shape[-1]) % 2, -1, 1)
        finite = np.where(np.isfinite(known[name]), known[name], 0)
        errors[name] = (finite * (PERTURBATION * np.finfo(finite.dtype).eps * signs)).astype(finite.dtype)
    try:
        disturbed = Disturbed(model, results, known)
    except DynqError as error:
        return [], str(error)
    return disturbed.run(feeds, errors), ""


@dataclass(frozen=True)
class _StoredWeights:
    """The packed weights of a node of B, which A rounds to float16 after it dequantizes them."""

    node: ir.Node
    packed: npt.NDArray[np.int8]
    zero_point: Array
    scale: Array

    def like(self, weights: Array, is_transposed: bool) -> Array:
        """Returns them dequantized, float64, in the shape of A's weights if both have the same number of elements."""
        if self.node.op_type == "QuantizedConv":
            quad_axis = self.node.attributes.get_int("quad_axis", 0)
            if packed_conv_shape(weights.shape, quad_axis) != self.packed.shape:
                return np.empty(0)
            codes = unpack_conv(self.packed, quad_axis, weights.shape).astype(np.float64)
            channels = (-1, *[1] * (weights.ndim - 1))
            return np.asarray((codes - self.zero_point.reshape(channels)) * self.scale.reshape(channels))
        bits, size = self.node.attributes.get_int("bits", 8), self.node.attributes.get_int("group_size", 0)
        depth = self.packed.shape[1] * (4 if bits == 8 else 8)  # with padding
        codes = unpack(self.packed, depth, self.scale.shape[-1], bits).astype(np.float64)
        # Parameters of groups have a row for each group; others broadcast.
        zero_point, scale = (np.repeat(x, size, 0) if size and len(x) > 1 else x for x in (self.zero_point, self.scale))
        rows = ((codes - zero_point) * scale)[: len(weights.T if is_transposed else weights)]
        return np.asarray(rows.T if is_transposed else rows)


def _rounded_weights(node: ir.Node) -> _StoredWeights | None:
    """Returns the weights of a node, if A rounds them to float16; None if A does not.

    Raises:
        DynqError: They are not constant.
    """
    if node.metadata_props.get(ROUNDED_WEIGHTS) != "1":
        return None
    tensors = [ir.convenience.get_const_tensor(value) for value in node.inputs[3:6] if value is not None]
    if None in tensors or len(tensors) < 3:
        raise DynqError(f"the weights of {label(node)} are not constant, but its metadata have {ROUNDED_WEIGHTS}")
    return _StoredWeights(node, *(tensor.numpy() for tensor in tensors if tensor is not None))


def _codes_of_rounded(node: ir.Node) -> list[ir.Value]:
    """Returns codes, scale and zero point of a node whose activation A rounds to float16; empty if it does not."""
    is_rounded = node.metadata_props.get(ROUNDED_ACTIVATION) == "1"
    return [value for value in node.inputs[:3] if value is not None] if is_rounded else []


def _dequantized(values: list[ir.Value], arrays_of_b: Mapping[str, Array]) -> Array | None:
    """Returns the activation of codes, scale and zero point, float64; None without these.

    Args:
        values: The values; empty if there are none.
        arrays_of_b: The inputs of B and its computed values, by name.
    """
    if not values:
        return None
    tensors = map(ir.convenience.get_const_tensor, values)
    arrays = [
        arrays_of_b[name_of(value)] if tensor is None else tensor.numpy()
        for value, tensor in zip(values, tensors, strict=True)
    ]
    codes, *parameters = (array.astype(np.float64) for array in arrays)
    depth = codes.shape[-1]
    scale, zero_point = (  # each row has one for each of its groups
        np.repeat(each, depth // each.shape[-1], -1) if each.ndim and 1 < each.shape[-1] < depth else each
        for each in parameters
    )
    with np.errstate(all="ignore"):  # a scale may be infinite
        return np.asarray((codes - zero_point) * scale)


def _judge(
    name: str,
    chain: _Chain | None,
    known: Mapping[str, Array],
    result: Array,
    activation: Array | None,
    stored: _StoredWeights | None,
) -> Product:
    """Compares a product.

    Args:
        name: Its name.
        chain: The nodes in A.
        known: A's values.
        result: B's result.
        activation: B's activation if A's is this one, rounded to float16; the reference then has B's.
        stored: B's weights if A's are these, rounded to float16; the reference then has B's.
    """
    product = Product(name)
    if chain is None:
        return replace(product, problem="A has no such float product")
    expected = known[name_of(chain.result)]
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        shapes = f"{result.dtype} {list(result.shape)}, A {expected.dtype} {list(expected.shape)}"
        return replace(product, problem=f"B's result is {shapes}")
    x, weights = (known[name_of(value)].astype(np.float64) for value in (chain.activation, chain.weights))
    of_b = weights if stored is None else stored.like(weights, chain.is_transposed)
    if stored is not None and not np.array_equal(of_b.astype(np.float16), weights):
        return replace(product, problem="B's weights, rounded to float16, are not A's")
    x_of_b = x if activation is None else activation
    with np.errstate(over="ignore"):
        if activation is not None and not np.array_equal(activation.astype(np.float16), x, equal_nan=True):
            return replace(product, problem="B's activation, rounded to float16, is not A's")
    a_errors, a_compared = _errors(expected, chain, x, weights, known)
    b_errors, b_compared = _errors(result, chain, x_of_b, of_b, known)
    compared = a_compared & b_compared
    a_error, b_error = (float(errors[compared].max(initial=0)) for errors in (a_errors, b_errors))
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


def _errors(
    result: Array, chain: _Chain, x: Array, weights: Array, known: Mapping[str, Array]
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Returns the error of each element in units, and which elements have a finite reference."""
    with np.errstate(all="ignore"):  # elements that are not finite are skipped
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
        errors = _finite(_distance(result, reference) / (_UNIT * magnitude + _SMALLEST))
        return errors, np.asarray(magnitude <= np.finfo(result.dtype).max)


def _distance(result: Array, reference: Array) -> Array:
    """Returns abs(result - reference), less the most that one rounding to float16 adds."""
    distance = np.abs(result - reference)
    if result.dtype == np.float16:
        distance = np.maximum(distance - np.spacing(np.abs(result)).astype(np.float64) / 2, 0)
    return np.asarray(distance)


def _finite(errors: Array) -> Array:
    return np.where(np.isnan(errors), np.inf, errors)
