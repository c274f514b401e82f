"""Shared by the tests of recurrent layers: cells, and inputs of QuantizedRecurrence."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from helpers import Array

from ort_dynq.operators.packing import pack

EVERY_STEP = 2**31 - 1


def tanh(x: str) -> str:
    return f"Sub(Mul(Sigmoid(Mul({x}, 2.0)), 2.0), 1.0)"


class Cell(NamedTuple):
    gates: int
    program: str
    last_gate: int = 0
    columns: int = 0


_UPDATE = "z = Sigmoid(tensor1); r = Sigmoid(tensor2); "
_NEXT = "dst = Add(Mul(Sub(1.0, z), n), Mul(z, x))"
CELLS = {
    "LSTM": Cell(
        4,
        f"i = Sigmoid(tensor1); f = Sigmoid(tensor3); c = Add(Mul(f, tensor5), Mul(i, {tanh('tensor4')})); "
        f"dst = Mul(Sigmoid(tensor2), {tanh('c')}); dst_2 = c",
    ),
    "LSTM with peepholes": Cell(
        4,
        "i = Sigmoid(Add(tensor1, Mul(column6, tensor5))); f = Sigmoid(Add(tensor3, Mul(column8, tensor5))); "
        f"c = Add(Mul(f, tensor5), Mul(i, {tanh('tensor4')})); "
        f"dst = Mul(Sigmoid(Add(tensor2, Mul(column7, c))), {tanh('c')}); dst_2 = c",
        columns=3,
    ),
    "GRU": Cell(3, f"{_UPDATE}dst_2 = Mul(r, x); n = {tanh('tensor3')}; {_NEXT}", 2),
    "GRU, linear before reset": Cell(3, f"{_UPDATE}n = {tanh('Add(Mul(r, tensor3), tensor4)')}; {_NEXT}", 1),
    "RNN": Cell(1, f"dst = {tanh('tensor1')}"),
    "RNN with Relu": Cell(1, "dst = Clip(tensor1, 0.0, inf)"),
    "nothing": Cell(2, "dst = x"),
}


def recurrence_inputs(
    rng: np.random.Generator, steps: int, batch: int, directions: int, size: int, cell: Cell = CELLS["LSTM"]
) -> list[Array]:
    """Inputs whose products are of the magnitude of 1; first states and lengths that are one number."""
    columns = cell.gates * size
    codes = rng.integers(-127, 128, (directions, size, columns)).astype(np.int8)
    return [
        rng.standard_normal((steps, batch, directions * columns), np.float32),
        np.stack([pack(each) for each in codes]),
        rng.uniform(0.5, 1.5, (directions, columns)).astype(np.float32) / np.float32(100 * size**0.5),
        codes.sum(1, dtype=np.int32),
        rng.standard_normal((directions, columns), np.float32),
        np.zeros((1, 1, 1), np.float32),
        np.zeros((1, 1, 1), np.float32),
        np.array([EVERY_STEP], np.int32),
        rng.standard_normal((directions, cell.columns * size), np.float32),
    ]


def attributes_of(cell: Cell, size: int, direction: int = 0) -> dict[str, str | int]:
    return {"program": cell.program, "hidden_size": size, "direction": direction, "last_gate": cell.last_gate}
