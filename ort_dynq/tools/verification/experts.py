"""Verifies mixtures of experts (QMoE). Their activations become codes in B, and in A in most cases.

The reference is computed in float64 from A's activation and scores, with the weights as QMoE's specification defines
them. B's activation and scores must be A's, bit for bit: both models compute them alike. There are two checks of the
results, each with a bound of the error that is computed along with the numbers:

1. B's result is that of codes of the activation and of the values between both products, as QuantizedExperts documents
   them, except for float32 roundings. Where these may change a code, the bound has one step. With two terms, it has
   half a step of the second one everywhere.
2. A's result is that of floats, except for half a step of the codes that ONNX Runtime may use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT, label
from ...inputs import Array
from ...rewriter.analysis.nodes import attributes_of, first_inputs
from .bounded import MAX_CODE, PRODUCT_ROUNDINGS, TOLERANCE, UNIT, Judgement, QuantizedLayer, Rounded, sigmoid
from .layers import Layers, name_of
from .nbits import half_step

_OF_SOFTMAX = 1e-6  # the relative error of the weights of experts in both models
_MIN_WEIGHT = 2e-8  # both models leave out experts with about half of this weight
_MAX_SYMMETRIC_CODE = 127
_NEAR = 8 * UNIT  # the relative error of a quotient
_INPUTS = ((2, 3, 4, 11), (5, 6, 7, 12), (8, 9, 10, 13))  # codes, scales, biases and zero points of the products
_ROUTER_WEIGHTS = 14
_OF_TOKENS = ((0, "activation"), (1, "scores of experts"), (_ROUTER_WEIGHTS, "weights of experts"))  # B's inputs 0 to 2


class MixtureLayer(QuantizedLayer):
    """A QMoE of A, and a QuantizedExperts of B."""

    def judge(self, known: Mapping[str, Array], of_b: Mapping[str, Array], outputs: list[Array]) -> Judgement:
        """Compares the results."""
        experts, result = _Experts(self.node, known), outputs[0]
        others = self._inputs_of_b(known, of_b)
        expected, terms = known[name_of(self.node.outputs[0])], attributes_of(self.b)["terms"]
        size = self.node.attributes.get_int("block_size", 0)
        reference = experts.run(lambda x: x).value
        if (result.shape, result.dtype) != (expected.shape, expected.dtype):
            return Judgement(f"B's result is {result.dtype} {list(result.shape)}", 0, 0, reference, 0)
        for name, found, what in others:
            # A Cast from float16 may be before it, and ONNX Runtime may leave out the rounding to float16.
            with np.errstate(over="ignore"):
                if not np.array_equal(found.astype(known[name].dtype), known[name], equal_nan=True):
                    verb = "are" if what.endswith("experts") else "is"
                    return Judgement(f"B's {what} {verb} not A's", 0, 0, reference, 0)
        of_a = experts.run(_half_a_step)
        quantize = _two_terms if terms == 2 else _codes_of
        experts_of_b = _Experts(self.node, {**known, **{name: found for name, found, _ in others}})
        of_codes = experts_of_b.run(lambda x: quantize(x, size))
        is_compared = np.asarray(np.isfinite(reference) & experts.is_known & experts_of_b.is_known)
        a_error, b_error = (
            each.largest_error(found, is_compared) for each, found in ((of_a, expected), (of_codes, result))
        )
        problem = ""
        if a_error > 1:
            problem = f"A's result is {a_error:.3g} times as far from the reference as rounding to 8 bits may cause"
        elif b_error > 1:
            problem = f"B's error is {b_error:.3g} times its bound"
        return Judgement(problem, a_error, b_error, reference, int(is_compared.size - is_compared.sum()))

    def _inputs_of_b(self, known: Mapping[str, Array], of_b: Mapping[str, Array]) -> list[tuple[str, Array, str]]:
        """Returns B's inputs of the tokens: the name of A's, the elements, and what they are."""
        inputs = []
        for value, (index, what) in zip(self.b.inputs[:3], _OF_TOKENS, strict=True):
            expected = first_inputs(self.node, 15)[index]
            if value is None or expected is None:
                continue
            found = of_b.get(name_of(value), known.get(name_of(value)))
            if found is None and value.const_value is not None:
                found = value.const_value.numpy()
            if found is not None:
                inputs.append((name_of(expected), found, what))
        return inputs


def mixture_of(node: ir.Node, layers: Layers) -> MixtureLayer | None:
    """Returns the QMoE of A that a node of B replaces; None if A has another node, or none."""
    result = layers.result(node)  # a Cast to float16 may be between
    value = layers.values.get(name_of(result))
    found = None if value is None else value.producer()
    is_mixture = found is not None and (found.domain, found.op_type) == (MICROSOFT, "QMoE")
    observed = tuple(value for value in node.inputs[:3] if value is not None and value.producer() is not None)
    return MixtureLayer(found, node, label(node), observed, (result,)) if found is not None and is_mixture else None


def _half_a_step(x: Rounded) -> Rounded:
    """A's values after rounding: its codes are symmetric or not, of blocks or of rows, or there are none."""
    step = np.abs(x.value).max(-1, keepdims=True, initial=0) / _MAX_SYMMETRIC_CODE
    return Rounded(x.value, np.asarray(x.error) + TOLERANCE * step / 2)


def _blocks(x: Rounded, size: int) -> tuple[Array, Array]:
    """Returns the values and their errors as [rows, blocks, size]."""
    shape = len(x.value), -1, size or x.value.shape[-1]
    return x.value.reshape(shape), np.broadcast_to(x.error, x.value.shape).reshape(shape)


def _two_terms(x: Rounded, size: int) -> Rounded:
    value, error = _blocks(x, size)
    half = np.broadcast_to(half_step(np.abs(value).max(-1, keepdims=True), 2), value.shape)
    return Rounded(x.value, (error + half + _NEAR * np.abs(value)).reshape(x.value.shape))


def _codes_of(x: Rounded, size: int) -> Rounded:
    """Returns values as QuantizedExperts has their codes, which are computed in float32."""
    value, error = _blocks(x, size)
    widest = error.max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        low, high = value.min(-1, keepdims=True).clip(max=0), value.max(-1, keepdims=True).clip(min=0)
        scale = (high - low) / MAX_CODE
        scale = np.where(scale == 0, 1, scale)
        of_scale = np.asarray(2 * widest / MAX_CODE + _NEAR * scale)  # the error of the scale
        zero, zero_error = -low / scale, widest / scale + MAX_CODE * of_scale / scale
        quotient = value / scale
        quotient_error = error / scale + np.abs(quotient) * (of_scale / scale + _NEAR)
        zero_point = np.rint(zero.clip(0, MAX_CODE))
        unclipped = np.rint(quotient) + zero_point
        codes = unclipped.clip(0, MAX_CODE)

        def is_near_tie(number: Array, tolerance: Array) -> Array:
            return np.asarray(np.abs(number - np.floor(number) - 0.5) <= tolerance)

        # Another zero point changes the codes that are clipped.
        is_at_end = (unclipped <= 0) | (unclipped >= MAX_CODE)
        may_differ = is_near_tie(quotient, quotient_error) | (is_near_tie(zero, zero_error) & is_at_end)
        real = (codes - zero_point) * scale
        bound = np.where(may_differ, scale, 0) + np.abs(codes - zero_point) * of_scale
    return Rounded(real.reshape(x.value.shape), bound.reshape(x.value.shape))


class _Experts:
    """The experts of a QMoE in float64, as the specification defines them.

    Attributes:
        is_known: Whether the numbers of each token are finite, so that its experts are known; as the result.
    """

    def __init__(self, node: ir.Node, known: Mapping[str, Array]) -> None:
        self._node = node
        self._given = [None if value is None else known[name_of(value)] for value in first_inputs(node, 15)]
        x, router = self._given[:2]
        assert x is not None
        assert router is not None
        self._shape = x.shape
        self._x = x.astype(np.float64).reshape(-1, x.shape[-1])
        scores = router.astype(np.float64).reshape(len(self._x), -1)
        number = node.attributes.get_int
        self._bits, self._size, count = number("expert_weight_bits", 4), number("block_size", 0), number("k", 1)
        given = self._given[_ROUTER_WEIGHTS]
        # Of equal scores, the last expert comes first.
        order = scores.shape[1] - 1 - np.argsort(-scores[:, ::-1], axis=1, kind="stable")[:, :count]
        with np.errstate(all="ignore"):
            chosen = np.take_along_axis(scores, order, 1)
            weights = np.exp(chosen - chosen.max(1, keepdims=True))
            if given is not None:
                weights = np.take_along_axis(given.astype(np.float64).reshape(scores.shape), order, 1)
            if given is None or number("normalize_routing_weights", 0) == 1:
                total = weights.sum(1, keepdims=True)
                weights = weights / np.where(total == 0, np.inf, total)
        self._weights = np.zeros(scores.shape)
        np.put_along_axis(self._weights, order, weights, 1)
        self._is_chosen = np.zeros(scores.shape, bool)
        np.put_along_axis(self._is_chosen, order, np.array(True), 1)
        is_finite = np.isfinite(self._x).all(1, keepdims=True) & np.isfinite(scores).all(1, keepdims=True)
        self.is_known = np.broadcast_to(is_finite, self._x.shape).reshape(x.shape)

    def run(self, quantize: Callable[[Rounded], Rounded]) -> Rounded:
        """Returns the results. `quantize` says what becomes of the left factor of each product."""
        value, error = np.zeros(self._x.shape), np.zeros(self._x.shape)
        with np.errstate(all="ignore"):  # numbers that are not finite are skipped
            for expert in range(self._weights.shape[1]):
                rows = np.flatnonzero(self._is_chosen[:, expert])
                if not rows.size:
                    continue
                x = quantize(Rounded(self._x[rows], np.zeros((1, 1))))
                y = self._product(1, expert, quantize(self._activation(expert, x)))
                weights = self._weights[rows, expert][:, None]
                part = np.where(weights > _MIN_WEIGHT / 4, weights, 0) * y.value
                value[rows] += part
                error[rows] += np.abs(weights) * y.error + (_OF_SOFTMAX + 8 * UNIT) * np.abs(part)
                error[rows] += np.where(np.abs(weights) <= _MIN_WEIGHT, _MIN_WEIGHT * np.abs(y.value), 0)
        return Rounded(value.reshape(self._shape), error.reshape(self._shape))

    def _activation(self, expert: int, x: Rounded) -> Rounded:
        kind, number = self._node.attributes.get_string("activation_type", "relu"), self._node.attributes.get_float
        y = self._product(0, expert, x)
        if kind == "swiglu":
            fusion = self._node.attributes.get_int("swiglu_fusion", 0)
            half = y.value.shape[1] // 2
            parts = {0: (np.s_[:], np.s_[:]), 1: (np.s_[0::2], np.s_[1::2]), 2: (np.s_[:half], np.s_[half:])}[fusion]
            gate, linear = (Rounded(y.value[:, part], np.asarray(y.error)[:, part]) for part in parts)
            if fusion == 0:
                linear = self._product(2, expert, x)
            limit, alpha = number("swiglu_limit", np.inf), number("activation_alpha", 1.0)
            gate = gate.after(lambda g: np.minimum(g, limit))
            linear = linear.after(lambda v: np.clip(v, -limit, limit) + number("activation_beta", 0.0))
            return gate * gate.after(lambda g: sigmoid(alpha * g)) * linear
        if kind == "silu":
            return y * y.after(sigmoid)
        if kind == "gelu":
            factor = 2 * np.sqrt(2 / np.pi)
            return y * y.after(lambda v: sigmoid(factor * (v + 0.044715 * v**3)))
        return y.after(lambda v: np.maximum(v, 0)) if kind == "relu" else y

    def _product(self, index: int, expert: int, x: Rounded) -> Rounded:
        weights, bias = self._weights_of(index, expert)
        size = np.abs(x.value) @ np.abs(weights) + np.abs(bias)
        roundings = PRODUCT_ROUNDINGS + (len(weights) // self._size if self._size else 0)
        error = np.broadcast_to(x.error, x.value.shape) @ np.abs(weights)
        return Rounded(x.value @ weights + bias, error + roundings * UNIT * size)

    def _weights_of(self, index: int, expert: int) -> tuple[Array, Array]:
        """Returns the weights of an expert, [K, N], and its bias, [N]."""
        codes, scales, bias, zero_points = (self._given[each] for each in _INPUTS[index])
        assert codes is not None
        assert scales is not None
        real = self._unpacked(codes[expert]).astype(np.float64)
        columns = len(real)
        blocks = real.shape[1] // self._size if self._size else 1
        zeros: Array | int = 2 ** (self._bits - 1)
        if zero_points is not None:
            of_expert = zero_points.reshape(len(codes), -1)[expert]
            rows = of_expert.reshape(columns, -1) if self._size else of_expert[None]
            zeros = self._unpacked(rows)[:, : blocks if self._size else columns].reshape(columns, blocks, 1)
        real = (real.reshape(columns, blocks, -1) - zeros) * scales[expert].astype(np.float64).reshape(columns, -1, 1)
        of_columns = np.zeros(columns) if bias is None else bias[expert].astype(np.float64)
        return real.reshape(columns, -1).T, of_columns

    def _unpacked(self, rows: Array) -> Array:
        """Returns the codes in rows of bytes, low bits first."""
        parts = [rows >> shift & (2**self._bits - 1) for shift in range(0, 8, self._bits)]
        return np.stack(parts, -1).reshape(len(rows), -1)
