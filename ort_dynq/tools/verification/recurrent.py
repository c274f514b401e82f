"""Verifies DynamicQuantizeLSTM. Its inputs and states become codes in both models.

One code that differs changes all later steps. So each step is compared by itself, in float64, from the state that the
model itself had before it. There are three checks:

1. Each element of B's inputs, dequantized, is at most half a step from A's input. A step is that of A, which divides
   the range of all inputs by 255. B's steps are never larger, since they divide the range of a row.
2. Each state of B is the float64 state of these inputs and of B's state before, quantized as QuantizedRecurrence
   documents it, except for float32 roundings. Its steps are never larger than A's, either: A divides the range of the
   states of all sequences. (A may do this for a few of them at a time, and for one of them at least.)
3. Each state of A is the float64 state of A's inputs and of A's state before, except for half a step in each, and for
   roundings. This check is for the reference itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import label
from ...inputs import Array
from ...rewriter.analysis.nodes import first_inputs
from ...rewriter.recurrent.cell import DEFAULT_FUNCTIONS
from ...rewriter.recurrent.dynamic_lstm import is_dynamic_lstm
from .bounded import MAX_CODE, PRODUCT_ROUNDINGS, TOLERANCE, UNIT, Judgement, QuantizedLayer, Rounded, sigmoid
from .layers import Layers, name_of
from .rounded import codes_of, dequantized


class Lstm(QuantizedLayer):
    """A DynamicQuantizeLSTM of A, and a QuantizedRecurrence of B."""

    def judge(self, known: Mapping[str, Array], of_b: Mapping[str, Array], outputs: list[Array]) -> Judgement:
        """Compares the inputs and the states."""
        inputs = dequantized(self.b, [*self.observed], of_b)  # float64, [steps, batch, elements]
        steps = _Steps(self.node, known)
        outputs_of_a = [known.get(name_of(value)) for value in self.node.outputs]
        x, states = steps.x, outputs_of_a[0]
        assert states is not None
        reference = steps.run(x)[0].value
        shapes = [each.shape for each in (states, states[0], states[0])]
        if [each.shape for each in outputs] != shapes or inputs is None or inputs.shape != x.shape:
            return Judgement("B's inputs or outputs do not have the shapes of A's", 0, 0, reference, 0)
        step = _step(np.where(np.isfinite(x), x, 0))
        ends = [_step(np.nan_to_num(each)) for each in (states, *steps.first[:1])]
        half = TOLERANCE * sum(ends) / 2  # the range of all states is at most the sum of both ranges
        # The step of an infinity is infinite for all inputs of A: then nothing of A is compared.
        step_of_a = step if np.isfinite(x).all() else np.inf
        of_a = steps.run(x, TOLERANCE * step_of_a / 2, states, lambda h: Rounded(h, half))
        a_error, _ = steps.compare(outputs_of_a, of_a)
        b_error, compared = steps.compare([*outputs], steps.run(inputs, 0.0, outputs[0], _codes_of))
        with np.errstate(invalid="ignore"):
            is_near = np.abs(inputs - x) <= TOLERANCE * step / 2
        problem = ""
        if a_error > 1:
            problem = f"A's states are {a_error:.3g} times as far from the reference as rounding to 8 bits may cause"
        elif not (is_near | ~np.isfinite(x).all(-1, keepdims=True)).all():
            problem = "B's inputs are further from A's than half a step of A's codes"
        elif b_error > 1:
            problem = f"B's error is {b_error:.3g} times its bound"
        return Judgement(problem, a_error, b_error, reference, int(compared.size - compared.sum()))


def lstm_of(node: ir.Node, layers: Layers) -> Lstm | None:
    """Returns the layer of A that a node of B replaces; None if A has another node, or none."""
    values = [layers.values[name_of(value)] for value in node.outputs if name_of(value) in layers.values]
    producers = {value.producer() for value in values}
    found = producers.pop() if len(producers) == 1 else None
    if found is None or not is_dynamic_lstm(found):
        return None
    product = None if node.inputs[0] is None else node.inputs[0].producer()
    codes = () if product is None or product.op_type != "QuantizedMatMul" else codes_of(product)
    return Lstm(found, node, label(node), tuple(codes))


def _step(array: Array) -> float:
    """Returns the step of DynamicQuantizeLinear."""
    return float(array.max(initial=0) - array.min(initial=0)) / MAX_CODE


def _codes_of(states: Array) -> Rounded:
    """Returns states, [batch, elements], as QuantizedRecurrence has their codes, which are computed in float32."""
    x, zero, largest = states.astype(np.float32), np.float32(0), np.float32(MAX_CODE)
    low, high = x.min(-1, keepdims=True, initial=0), x.max(-1, keepdims=True, initial=0)
    scale = (high - low) / largest
    scale = np.where(scale == 0, np.float32(1), scale)
    zero_point = np.rint(np.clip(-low / scale, zero, largest))
    codes = np.clip(np.rint(x / scale) + zero_point, zero, largest)
    return Rounded((codes.astype(np.float64) - zero_point) * scale)


class _Steps:
    """All steps of a layer in float64, as the specification defines them, with weights of A.

    Attributes:
        x: The inputs, [steps, batch, elements].
        first: The first states and the first second states, [directions, batch, hidden_size].
    """

    def __init__(self, node: ir.Node, known: Mapping[str, Array]) -> None:
        given = first_inputs(node, 12)
        arrays = [None if value is None else known[name_of(value)] for value in given]
        x, w, r, bias, lengths, h, c, peepholes, *_ = arrays
        assert x is not None
        assert w is not None
        assert r is not None
        self.x = x.astype(np.float64)
        self._w, self._r = _dequantized(w, *arrays[8:10]), _dequantized(r, *arrays[10:12])
        directions, size, columns = self._r.shape
        self._bias = np.zeros((directions, 2 * columns)) if bias is None else bias.astype(np.float64)
        self._peepholes = np.zeros((directions, 3 * size)) if peepholes is None else peepholes.astype(np.float64)
        self._lengths = np.full(x.shape[1], len(x)) if lengths is None else lengths
        shape = directions, x.shape[1], size
        self.first = tuple(np.zeros(shape) if each is None else each.astype(np.float64) for each in (h, c))
        self._functions = list(_functions_of(node, directions))
        self._is_reverse = [node.attributes.get_string("direction", "forward") == "reverse", True]
        self._clip = node.attributes.get_float("clip", np.inf)
        self._couples = bool(node.attributes.get_int("input_forget", 0))

    def run(
        self,
        x: Array,
        error_of_x: float = 0.0,
        states: Array | None = None,
        quantize: Callable[[Array], Rounded] = Rounded,
    ) -> tuple[Rounded, ...]:
        """Returns the states of all steps, the last ones, and the last second states.

        Args:
            x: The inputs.
            error_of_x: The most that a model changes them.
            states: The states after each step, from which the next step is computed, [steps, directions, batch,
                hidden_size]; None: the ones that are computed.
            quantize: What a model makes of a state, [batch, hidden_size], before it is multiplied.
        """
        shape = (len(x), *self.first[0].shape)
        every, last, last_2 = ((np.zeros(each), np.zeros(each)) for each in (shape, shape[1:], shape[1:]))
        sequences = np.arange(x.shape[1])
        with np.errstate(all="ignore"):  # numbers that are not finite are skipped
            for d, w in enumerate(self._w):
                products, sizes = x @ w, np.abs(x) @ np.abs(w)
                h = Rounded(self.first[0][d], 0.0)
                c = Rounded(self.first[1][d], np.zeros(shape[2:]))
                for step in range(len(x)):
                    is_there = step < self._lengths
                    place = self._lengths - 1 - step if self._is_reverse[d] else np.full_like(self._lengths, step)
                    place = np.where(is_there, place, 0)
                    of_inputs = products[place, sequences], sizes[place, sequences]
                    error = error_of_x * np.abs(w).sum(0)
                    gates = self._gates(d, of_inputs, error, quantize(h.value))
                    new, new_2 = self._cell(d, gates, c)
                    there = is_there[:, None]
                    for target, part in zip(every, new, strict=True):
                        target[place[is_there], d, is_there] = np.asarray(part)[is_there]
                    c = Rounded(*(np.where(there, a, b) for a, b in zip(new_2, c, strict=True)))
                    given = new.value if states is None else states[place, d, sequences].astype(np.float64)
                    h = Rounded(np.where(there, given, h.value))
                ends = (self._lengths - 1) * (not self._is_reverse[d])
                for target, source in zip(last, every, strict=True):
                    target[d] = np.where(self._lengths[:, None] > 0, source[ends, d, sequences], 0)
                for target, part in zip(last_2, c, strict=True):
                    target[d] = np.where(self._lengths[:, None] > 0, part, 0)
        return Rounded(*every), Rounded(*last), Rounded(*last_2)

    def _gates(self, d: int, of_inputs: tuple[Array, Array], error: Array, h: Rounded) -> Rounded:
        """Returns the sums of all gates of one direction, [batch, columns]."""
        (products, sizes), r, (one, two) = of_inputs, self._r[d], np.split(self._bias[d], 2)
        value = products + one + h.value @ r + two
        size = sizes + np.abs(one) + np.abs(h.value) @ np.abs(r) + np.abs(two)
        return Rounded(value, PRODUCT_ROUNDINGS * UNIT * size + error + h.error * np.abs(r).sum(0))

    def _cell(self, d: int, gates: Rounded, c: Rounded) -> tuple[Rounded, Rounded]:
        """Returns the next state and the next second state."""
        of_gates, of_cell, of_output = self._functions[d]
        i, o, f, g = (Rounded(*parts) for parts in zip(*(np.split(each, 4, 1) for each in gates), strict=True))
        pi, po, pf = (Rounded(each) for each in np.split(self._peepholes[d], 3))

        def clipped(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
            return lambda x: function(np.clip(x, -self._clip, self._clip))

        admitted = (i + pi * c).after(clipped(of_gates))
        kept = Rounded(1 - admitted.value, admitted.error) if self._couples else (f + pf * c).after(clipped(of_gates))
        second = kept * c + admitted * g.after(clipped(of_cell))
        return (o + po * second).after(clipped(of_gates)) * second.after(of_output), second

    def compare(self, found: list[Array | None], expected: tuple[Rounded, ...]) -> tuple[float, npt.NDArray[np.bool_]]:
        """Returns the largest error of outputs, relative to its bound, and which states are finite in the reference."""
        worst = 0.0
        for result, reference in zip(found, expected, strict=False):
            if result is not None:
                worst = max(worst, reference.largest_error(result, np.isfinite(reference.value)))
        return worst, np.isfinite(expected[0].value)


def _dequantized(codes: Array, scale: Array | None, zero_point: Array | None) -> Array:
    """Returns weights, float64, [directions, I, columns]."""
    assert scale is not None

    def of_columns(array: Array) -> Array:
        return array.astype(np.float64).reshape(len(codes) if array.size > 1 else 1, 1, -1)

    zeros = 0 if zero_point is None else of_columns(zero_point)
    return np.asarray((codes.astype(np.float64) - zeros) * of_columns(scale))


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sigmoid": sigmoid,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, 0),
}


def _functions_of(node: ir.Node, directions: int) -> Iterator[list[Callable[[Array], Array]]]:
    """Yields the three activation functions of each direction."""
    names = list(node.attributes.get_strings("activations", ())) or [*DEFAULT_FUNCTIONS["LSTM"] * directions]
    alphas, betas = (list(node.attributes.get_floats(f"activation_{name}", ())) for name in ("alpha", "beta"))

    def function(name: str) -> Callable[[Array], Array]:
        if name != "hardsigmoid":
            return _FUNCTIONS[name]
        alpha, beta = alphas.pop(0) if alphas else 0.2, betas.pop(0) if betas else 0.5
        return lambda x: np.clip(alpha * x + beta, 0, 1)

    found = [function(name.lower()) for name in names]
    yield from (found[i : i + 3] for i in range(0, len(found), 3))
