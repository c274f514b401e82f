"""The cell of a recurrent layer, which makes the next state of the gates, as a program (operators/program.py)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from ...operators.encodings import LastGate
from ...operators.program import Program, literal
from ..analysis.nodes import input_of
from ..analysis.standard import LOGISTIC
from ..reasons import Reason, Unconverted

DEFAULT_FUNCTIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""The layers, and the activation functions of a direction that has no others."""
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS = LOGISTIC | {"HardSigmoid", "Relu"}
_ALPHA, _BETA = 0.2, 0.5  # of HardSigmoid, if the layer gives none
_STATE, _SECOND = "x", "tensor5"


@dataclass(frozen=True)
class Cell:
    """The cell of all directions of a layer.

    Attributes:
        gates: The number of gates.
        program: The program of QuantizedRecurrence.
        last_gate: What the last gate is.
    """

    gates: int
    program: str
    last_gate: LastGate = LastGate.SUM


class _Builder:
    """Builds a program from activation functions. Their arguments may be clipped."""

    def __init__(self, clip: float) -> None:
        self.program = Program()
        self._clip = clip

    def add(self, operator: str, *operands: str) -> str:
        return self.program.add(operator, *operands)

    def apply(self, function: _Function, value: str, *, clips: bool = True) -> str:
        """Returns an activation function of a value."""
        if clips and math.isfinite(self._clip):
            value = self.add("Clip", value, literal(-self._clip), literal(self._clip))
        add = self.add
        match function.name:
            case "Sigmoid":
                return add("Sigmoid", value)
            case "Tanh":  # 2 / (1 + e^(-2 * value)) - 1; its error is at most 3e-7
                two = literal(2)
                return add("Sub", add("Mul", add("Sigmoid", add("Mul", value, two)), two), literal(1))
            case "Relu":
                return add("Clip", value, literal(0), "inf")
            case _:  # HardSigmoid
                line = add("Add", add("Mul", value, literal(function.alpha)), literal(function.beta))
                return add("Clip", line, literal(0), literal(1))


@dataclass(frozen=True)
class _Function:
    """An activation function."""

    name: str
    alpha: float = 0
    beta: float = 0


def cell_of(node: ir.Node, directions: int, operator: str) -> Cell:
    """Returns the cell of an LSTM, GRU or RNN.

    Args:
        node: The layer, which has ONNX's attributes and inputs.
        directions: The number of its directions.
        operator: LSTM, GRU or RNN.

    Raises:
        Unconverted: A program cannot compute it.
    """
    functions = _functions_of(node, directions, DEFAULT_FUNCTIONS[operator])
    builder = _Builder(node.attributes.get_float("clip", math.inf))
    has_peepholes = input_of(node, 7) is not None
    parts: dict[str, Callable[[], LastGate]] = {
        "LSTM": lambda: _lstm(builder, functions, bool(node.attributes.get_int("input_forget", 0)), has_peepholes),
        "GRU": lambda: _gru(builder, functions, bool(node.attributes.get_int("linear_before_reset", 0))),
        "RNN": lambda: _rnn(builder, functions),
    }
    last_gate = parts[operator]()
    return Cell(GATES[operator], str(builder.program), last_gate)


def _lstm(builder: _Builder, functions: list[_Function], couples: bool, has_peepholes: bool) -> LastGate:
    """The gates are: input, output, forget, cell; the columns are the peepholes of the first three."""
    add, apply = builder.add, builder.apply
    of_gates, of_cell, of_output = functions

    def gate(number: int, second: str) -> str:
        value = f"tensor{number}"
        if has_peepholes:
            value = add("Add", value, add("Mul", f"column{number + 5}", second))
        return apply(of_gates, value)

    admitted = gate(1, _SECOND)
    kept = add("Sub", literal(1), admitted) if couples else gate(3, _SECOND)
    second = add("Add", add("Mul", kept, _SECOND), add("Mul", admitted, apply(of_cell, "tensor4")))
    builder.program.assign("dst_2", second)
    # ONNX Runtime does not clip here.
    builder.program.assign("dst", add("Mul", gate(2, second), apply(of_output, second, clips=False)))
    return LastGate.SUM


def _gru(builder: _Builder, functions: list[_Function], is_linear: bool) -> LastGate:
    """The gates are: update, reset, hidden."""
    add, apply = builder.add, builder.apply
    of_gates, of_hidden = functions
    update, reset = apply(of_gates, "tensor1"), apply(of_gates, "tensor2")
    if is_linear:
        hidden = apply(of_hidden, add("Add", add("Mul", reset, "tensor3"), "tensor4"))
    else:
        builder.program.assign("dst_2", add("Mul", reset, _STATE))
        hidden = apply(of_hidden, "tensor3")
    rest = add("Sub", literal(1), update)
    builder.program.assign("dst", add("Add", add("Mul", rest, hidden), add("Mul", update, _STATE)))
    return LastGate.SEPARATE_PRODUCTS if is_linear else LastGate.RESET_STATE


def _rnn(builder: _Builder, functions: list[_Function]) -> LastGate:
    builder.program.assign("dst", builder.apply(functions[0], "tensor1"))
    return LastGate.SUM


def _functions_of(node: ir.Node, directions: int, defaults: tuple[str, ...]) -> list[_Function]:
    """Returns the activation functions of a direction.

    Raises:
        Unconverted: A program does not have one, their numbers are not clear, or the directions differ.
    """
    names = list(node.attributes.get_strings("activations", ())) or [*defaults] * directions
    alphas = list(node.attributes.get_floats("activation_alpha", ()))
    betas = list(node.attributes.get_floats("activation_beta", ()))
    known = {each.lower(): each for each in _FUNCTIONS}
    if len(names) != len(defaults) * directions:
        raise Unconverted(Reason.RECURRENT_ATTRIBUTE, name="activations")
    functions = []
    for name in names:
        if (function := known.get(name.lower())) is None:
            raise Unconverted(Reason.RECURRENT_ACTIVATION, function=name)
        numbers = []
        for given, default in ((alphas, _ALPHA), (betas, _BETA)) if function == "HardSigmoid" else ():
            numbers.append(given.pop(0) if given else default)
        functions.append(_Function(function, *numbers))
    if alphas or betas:
        raise Unconverted(Reason.RECURRENT_ATTRIBUTE, name="activation_alpha or activation_beta")
    first = functions[: len(defaults)]
    if functions != first * directions:
        raise Unconverted(Reason.RECURRENT_DIRECTIONS)
    return first
