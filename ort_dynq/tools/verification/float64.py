"""A float product of the original model, computed in float64 from its definition, and the errors of a result.

It does not use the rewriter's recognition of products, so the check is independent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...inputs import Array
from ...rewriter.analysis.constants import constant_array, constant_scalar
from ...rewriter.analysis.estimators import estimated
from ...rewriter.analysis.nodes import cast_to, first_inputs, is_inverse_transpose, is_standard, only_use, producer_of
from ...rewriter.analysis.standard import COMMUTATIVE, CONVOLUTIONS, FLOAT_PRODUCTS, MATRIX_PRODUCTS, RESHAPES
from ...rewriter.analysis.types import WIDE_TYPES
from .layers import IntegerProduct, Layers, name_of

_UNIT = 2.0**-24  # half a unit in the last place of float32, relative
_MIN_VALUE = 2.0**-149  # the smallest positive float32


class FloatProduct(NamedTuple):
    """A product in A: activation @ weights, then Add or Mul with each operand, or Reshape to its shape, in this order.

    The product is a MatMul, Gemm, Einsum, Conv, ConvTranspose or MatMulNBits. A bias that is its input is the first
    step. A Transpose or Pad may stand before it. The weights may be the first factor of a MatMul,
    Gemm or Einsum.
    """

    node: ir.Node
    activation: ir.Value
    weights: ir.Value
    steps: tuple[tuple[str, ir.Value], ...]
    result: ir.Value
    move: ir.Node | None = None

    @property
    def has_left_weights(self) -> bool:
        """Whether the product is a MatMul, Gemm or Einsum of the weights by the activation."""
        return self.node.op_type in MATRIX_PRODUCTS and self.node.inputs[0] is self.weights

    @property
    def subtracted(self) -> ir.Value | None:
        """What A subtracts to get the activation y, or that of x + (y - x): z * s of q * s - z * s."""
        node = self.activation.producer()
        if node is not None and (pair := estimated(node)) is not None:
            node = pair[0].producer()
        is_difference = node is not None and is_standard(node, "Sub") and producer_of(node.inputs[0], "Mul") is not None
        return node.inputs[1] if node is not None and is_difference else None

    @property
    def factors(self) -> list[ir.Value]:
        """The factors of the Mul that computes the activation; empty if another node does."""
        node = producer_of(self.activation, "Mul")
        return [] if node is None else [value for value in node.inputs if value is not None]

    @property
    def unrounded_weights(self) -> ir.Value | None:
        """The float32 weights that A casts to float16: ONNX Runtime reads them if it runs the product in float32."""
        cast = self.weights.producer()
        return cast.inputs[0] if cast is not None and cast_to(cast) == ir.DataType.FLOAT16 else None

    def is_rounded_once(self, known: Mapping[str, Array]) -> bool:
        """Returns whether A's activation is integers times a scale, rounded once to float32."""
        x = known[name_of(self.activation)]
        if x.dtype != np.float32 or producer_of(self.activation, "DequantizeLinear") is not None:
            return x.dtype == np.float32
        factors = [known[name_of(each)] for each in self.factors]
        return any(
            codes.shape == x.shape != scale.shape and bool((np.rint(codes) == codes).all())
            for codes, scale in zip(factors, reversed(factors), strict=True)
        )

    def multiply(self, x: Array, weights: Array) -> Array:
        """Returns the product of these numbers, without the steps after it."""
        if self.move is not None:
            x = _moved(x, self.move)
        if self.node.op_type == "Conv":
            return convolve(x, weights, self.node)
        if self.node.op_type == "ConvTranspose":
            return scatter(x, weights, self.node)
        if self.node.op_type == "Einsum":
            factors = (weights, x) if self.has_left_weights else (x, weights)
            return np.asarray(np.einsum(self.node.attributes["equation"].as_string(), *factors, optimize=True))
        alpha = self.node.attributes.get_float("alpha", 1.0)
        a, b = (weights, x) if self.has_left_weights else (x, weights)
        a = a.T if self.node.attributes.get_int("transA", 0) else a
        return np.asarray(a @ (b.swapaxes(-1, -2) if self.node.attributes.get_int("transB", 0) else b)) * alpha

    def reference(self, x: Array, weights: Array, known: Mapping[str, Array], size: Array) -> tuple[Array, Array]:
        """Returns the result and the magnitude.

        Args:
            x: The activation, float64.
            weights: The weights, float64, in the shape of A's.
            known: A's values.
            size: The magnitude of the activation.
        """
        return self.after_steps(self.multiply(x, weights), np.abs(self.multiply(size, np.abs(weights))), known)

    def after_steps(self, reference: Array, magnitude: Array, known: Mapping[str, Array]) -> tuple[Array, Array]:
        """Returns the result and the magnitude after the steps."""
        for operator, operand in self.steps:
            number = self.number(operand, known)
            if operator == "Reshape":
                reference, magnitude = (each.reshape(number.shape) for each in (reference, magnitude))
            elif operator == "Mul":
                reference, magnitude = reference * number, magnitude * np.abs(number)
            else:
                reference, magnitude = reference + number, magnitude + np.abs(number)
        return reference, magnitude

    @property
    def is_nbits(self) -> bool:
        """Whether the product is a MatMulNBits; nbits.py reads its weights."""
        return self.node.op_type == "MatMulNBits"

    def depth(self, weights: Array) -> int:
        """Returns K, the number of terms of each sum."""
        if self.node.op_type == "Conv":
            return math.prod(weights.shape[1:])
        if self.node.op_type == "ConvTranspose":  # of an element that all weights of one output channel reach
            return len(weights) * math.prod(weights.shape[2:]) // self.node.attributes.get_int("group", 1)
        if self.node.op_type == "Einsum":
            of_weights, of_result, _ = self._labels
            first, _, last = of_weights.partition("...")
            axes = [*zip(first, weights.shape, strict=False), *zip(last[::-1], weights.shape[::-1], strict=False)]
            return math.prod(length for label, length in axes if label not in of_result)
        return int(weights.shape[-1 if self._is_transposed or weights.ndim == 1 else -2])

    def number(self, operand: ir.Value, known: Mapping[str, Array]) -> Array:
        """Returns the operand of a step, float64, as it broadcasts to the product."""
        number = known[name_of(operand)].astype(np.float64)
        if operand not in self.node.inputs[2:]:
            return number
        number = number * self.node.attributes.get_float("beta", 1.0)
        is_bias_of_conv = self.node.op_type in CONVOLUTIONS
        return number.reshape(-1, *[1] * (known[name_of(self.weights)].ndim - 2)) if is_bias_of_conv else number

    @property
    def _is_transposed(self) -> bool:
        """Whether B has the transposes of A's matrices of weights."""
        if self.has_left_weights:
            return self.node.attributes.get_int("transA", 0) == 0
        return self.node.attributes.get_int("transB", 0) != 0

    def axes(self, rank: int, stack: int) -> list[int]:
        """Returns the axes of A's weights in the order of B's: of stacked matrices, of K, and of columns.

        Args:
            rank: Their number.
            stack: How many B has of stacked matrices.
        """
        axes = [*range(rank)]
        if self.node.op_type != "Einsum":
            return [*axes[:-2], *reversed(axes[-2:])] if self._is_transposed else axes
        of_weights, of_result, of_activation = (
            labels.replace("...", "0123456789"[: rank - len(self._labels[0].replace("...", ""))])
            for labels in self._labels
        )
        shared = [x for x in of_activation if x in of_weights]
        columns = [x for x in of_result if x in of_weights and x not in shared]
        stacked = [x for x in shared if x in of_result]
        first = max(stack - len(stacked), 0)  # matrices of B that broadcast
        order = [*stacked, *columns[:first], *(x for x in shared if x not in of_result), *columns[first:]]
        return [of_weights.index(x) for x in order]

    @property
    def _labels(self) -> tuple[str, str, str]:
        """The labels of the axes of an Einsum's weights, of its result, and of its activation."""
        operands, _, result = self.node.attributes["equation"].as_string().replace(" ", "").partition("->")
        first, second = operands.split(",")
        return (first, result, second) if self.has_left_weights else (second, result, first)

    def values(self) -> list[ir.Value]:
        parameters = [value for value in self.node.inputs[2:4] if value is not None] if self.is_nbits else []
        parameters += [each for each in (self.subtracted, self.unrounded_weights) if each is not None]
        operands = [operand for _, operand in self.steps]
        return [self.activation, self.weights, self.result, *parameters, *self.factors, *operands]


def float_product_of(product_of_b: IntegerProduct, layers: Layers) -> FloatProduct | None:
    """Returns A's nodes from the activation to the result of a product of B, or None if A has no such nodes."""
    activation, result = layers.activation(product_of_b.node), layers.values.get(name_of(product_of_b.result))
    if activation is None or result is None or (producer := result.producer()) is None:
        return None
    uses: list[tuple[ir.Node, int, ir.Node | None]] = [(*use, None) for use in _uses(activation)]
    moves = [node for node, _, _ in uses if is_standard(node, "Transpose") or _pads_with_zeros(node)]
    uses += [(*use, move) for move in moves for use in _uses(move.outputs[0])]
    for product, position, move in uses:
        is_standard_product = product.domain in STANDARD_DOMAINS and product.op_type in FLOAT_PRODUCTS
        is_second = is_standard(product, *MATRIX_PRODUCTS) and position == 1
        if not (is_second or position == 0) or not (is_standard_product or product.op_type == "MatMulNBits"):
            continue
        if is_second:
            weights, *bias = product.inputs[0], *product.inputs[2:]
        else:
            weights, *bias = product.inputs[1:] if is_standard_product else (product.inputs[1], *product.inputs[5:])
        bias = [] if product.attributes.get_float("beta", 1.0) == 0 else bias
        steps = [("Add", operand) for operand in bias if operand is not None]
        value = product.outputs[0]
        while value is not result and (use := only_use(value)) is not None:
            if use.node.op_type in RESHAPES:
                steps.append(("Reshape", use.node.outputs[0]))
            elif use.node.op_type in COMMUTATIVE and (operand := use.node.inputs[1 - use.idx]) is not None:
                steps.append((use.node.op_type, operand))
            elif use.node.op_type != "Cast" or not (
                cast_to(use.node) in (*WIDE_TYPES, ir.DataType.FLOAT) or use.node.outputs[0] is result
            ):
                break  # a Cast of integer sums changes no number, and B rounds its result as A does
            value = use.node.outputs[0]
        if value is result and weights is not None and product.graph is producer.graph:
            return FloatProduct(product, activation, weights, tuple(steps), result, move)
    return None


def _uses(value: ir.Value) -> Iterator[tuple[ir.Node, int]]:
    """Yields the uses of a value and of its copies, which B does not have.

    Copies are those of Identity and of Casts to float32, and what Transposes or Reshapes restore: a product of B that
    reads the value has a product of A with the same shape.
    """
    todo = [value]
    while todo:
        for node, index in todo.pop().uses():
            is_cast = is_standard(node, "Cast") and cast_to(node) == ir.DataType.FLOAT
            if is_cast or is_standard(node, "Identity", *RESHAPES):
                todo.append(node.outputs[0])
                continue
            yield node, index
            if is_standard(node, "Transpose"):
                todo += [use.node.outputs[0] for use in node.outputs[0].uses() if is_inverse_transpose(node, use.node)]


def _pads_with_zeros(node: ir.Node) -> bool:
    """Returns whether a node is a Pad with zeros along all axes, and its pads are constant and not negative."""
    if not is_standard(node, "Pad") or ("mode" in node.attributes and node.attributes["mode"].value != "constant"):
        return False
    _, _, fill, *axes = first_inputs(node, 4)
    pads = _pads_of(node)
    has_pads = pads is not None and pads.size % 2 == 0 and (pads >= 0).all()
    is_zero = node.attributes.get_float("value", 0.0) == 0 if fill is None else constant_scalar(fill) == 0
    return bool(has_pads) and axes == [None] and is_zero


def _pads_of(node: ir.Node) -> Array | None:
    """Returns the pads of a Pad: an attribute before opset 11, then an input; None if they are not constant."""
    if "pads" in node.attributes:
        return np.array(node.attributes["pads"].as_ints())
    return constant_array(node.inputs[1])


def _moved(x: Array, node: ir.Node) -> Array:
    """Computes a Transpose, or a Pad with zeros."""
    if node.op_type == "Transpose":
        return np.transpose(x, node.attributes["perm"].as_ints() if "perm" in node.attributes else None)
    pads = _pads_of(node)
    assert pads is not None
    return np.pad(x, pads.reshape(2, -1).T.tolist())


def errors_of(result: Array, reference: Array, magnitude: Array) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Returns the error of each element of a result, and which elements have a finite reference.

    Args:
        result: The result, float32 or float16.
        reference, magnitude: As :meth:`FloatProduct.reference` returns them.

    Returns:
        The errors in units, as :class:`ort_dynq.verification.products.Product` defines them.
    """
    errors = _finite(_distance(result, reference) / (_UNIT * magnitude + _MIN_VALUE))
    return errors, np.asarray(magnitude <= np.finfo(result.dtype).max)


def _distance(result: Array, reference: Array) -> Array:
    """Returns abs(result - reference), less the most that one rounding to float16 adds."""
    distance = np.abs(result - reference)
    if result.dtype == np.float16:
        distance = np.maximum(distance - np.spacing(np.abs(result)).astype(np.float64) / 2, 0)
    return np.asarray(distance)


def _finite(errors: Array) -> Array:
    return np.where(np.isnan(errors), np.inf, errors)


def convolve(x: Array, w: Array, node: ir.Node) -> Array:
    """Computes a Conv.

    Args:
        x: float64, [N, C, D1, ..., Dr].
        w: float64, [M, C / group, k1, ..., kr].
        node: The Conv. Its attributes apply.

    Returns:
        float64, [N, M, O1, ..., Or].
    """
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    kernel, lengths = w.shape[2:], x.shape[2:]
    strides, dilations, group = _steps_of(given, len(kernel))
    spans = [dilation * (k - 1) + 1 for k, dilation in zip(kernel, dilations, strict=True)]
    auto_pad = given.get("auto_pad", "NOTSET")
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-length // stride) - 1) * stride + span - length, 0)
            for length, stride, span in zip(lengths, strides, spans, strict=True)
        ]
        begins = [total // 2 if auto_pad == "SAME_UPPER" else total - total // 2 for total in totals]
        pads = [(begin, total - begin) for begin, total in zip(begins, totals, strict=True)]
    else:
        numbers = given.get("pads", [0] * 2 * len(kernel))
        pads = list(zip(numbers[: len(kernel)], numbers[len(kernel) :], strict=True))
    padded = np.pad(x, [(0, 0), (0, 0), *pads])
    outputs = [(length - span) // s + 1 for length, span, s in zip(padded.shape[2:], spans, strides, strict=True)]
    filters = w.reshape(group, w.shape[0] // group, w.shape[1], *kernel)
    total = np.zeros((x.shape[0], group, filters.shape[1], math.prod(outputs)))
    for position in np.ndindex(*kernel):
        window = padded[_reached(position, outputs, strides, dilations)]
        total += filters[(..., *position)] @ window.reshape(x.shape[0], group, w.shape[1], math.prod(outputs))
    return np.asarray(total.reshape(x.shape[0], w.shape[0], *outputs))


def scatter(x: Array, w: Array, node: ir.Node) -> Array:
    """Computes a ConvTranspose with pads that do not depend on the size of its output.

    Args:
        x: float64, [N, C, D1, ..., Dr].
        w: float64, [C, M / group, k1, ..., kr].
        node: The ConvTranspose. Its attributes apply.

    Returns:
        float64, [N, M, O1, ..., Or].
    """
    given = {name: attribute.value for name, attribute in node.attributes.items()}
    kernel, lengths, zeros = w.shape[2:], x.shape[2:], [0] * (w.ndim - 2)
    strides, dilations, group = _steps_of(given, len(kernel))
    more = given.get("output_padding", zeros)
    pads = given.get("pads", zeros + zeros) if given.get("auto_pad", "NOTSET") == "NOTSET" else zeros + zeros
    whole = [
        (length - 1) * s + (k - 1) * d + 1 + m
        for length, s, k, d, m in zip(lengths, strides, kernel, dilations, more, strict=True)
    ]
    channels = group * w.shape[1]
    total = np.zeros((x.shape[0], channels, *whole))
    images = x.reshape(x.shape[0], group, -1, math.prod(lengths))
    filters = w.reshape(group, -1, w.shape[1], *kernel).swapaxes(1, 2)
    for position in np.ndindex(*kernel):
        terms = filters[(..., *position)] @ images
        total[_reached(position, lengths, strides, dilations)] += terms.reshape(x.shape[0], channels, *lengths)
    ends = [size - end for size, end in zip(whole, pads[len(kernel) :], strict=True)]
    cut = (slice(begin, end) for begin, end in zip(pads, ends, strict=False))
    return np.asarray(total[(slice(None), slice(None), *cut)])


def _steps_of(attributes: Mapping[str, Any], rank: int) -> tuple[Sequence[int], Sequence[int], int]:
    """Returns the strides, the dilations and the number of groups of a convolution."""
    ones = [1] * rank
    return attributes.get("strides", ones), attributes.get("dilations", ones), int(attributes.get("group", 1))


def _reached(
    position: Sequence[int], counts: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[slice, ...]:
    """Returns the elements [N, C, ...] that one position of a kernel reaches, `counts` of them along each axis."""
    starts = [at * dilation for at, dilation in zip(position, dilations, strict=True)]
    every = (slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, counts, strides, strict=True))
    return slice(None), slice(None), *every
