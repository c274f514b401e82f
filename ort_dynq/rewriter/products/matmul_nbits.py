"""The rule for MatMulNBits: products of weights that are quantized in blocks along K.

com.microsoft.MatMulNBits    -> DynamicRangeQuantize in blocks, QuantizedMatMul
                             -> TwoTermQuantize in blocks, QuantizedMatMul of two terms

With accuracy_level 4, ONNX Runtime itself quantizes the activation at run time: each block of K to codes of -127 to 127
(on x86; on ARM each row). Here each block gets 256 codes and a zero point, which is more accurate. All other levels
compute with the activation as floats: these products stay, unless `weights_only` says how to quantize them.

MatMulNBits (contrib_ops/cpu/quantization/matmul_nbits.cc) stores weights as uint8 [N, blocks, block_size * bits / 8],
the first code in the lowest bits, scales as [N, blocks] and zero points with the bits of the weights, each column's
from a new byte on; without zero points, they are 2^(bits - 1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...operators.packing import pack
from ...operators.quantized_matmul import GROUP_UNIT
from ..analysis.evaluation import evaluate
from ..analysis.inference import Facts
from ..edit import Edit, call
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers
from .float_activations import FloatActivations, check_activation
from .provenance import note_activation

Array = npt.NDArray[Any]

_INTEGER_LEVEL = 4
_OTHERS_THAT_STAY = {"QMoE": Reason.NBITS_QMOE}


@dataclass(frozen=True)
class NBits:
    """The weights of a MatMulNBits.

    Attributes:
        codes: uint8, [K, N], K padded to whole blocks.
        zero_points: uint8, [blocks, N]; None: every one is 2^(bits - 1).
        scales: float32 or float16, [blocks, N].
        bits: 2, 4 or 8.
        depth: K without padding.
    """

    codes: Array
    zero_points: Array | None
    scales: Array
    bits: int
    depth: int

    @property
    def block_size(self) -> int:
        return len(self.codes) // len(self.scales)

    def dequantized(self) -> Array:
        """Returns the weights, float64, [K, N]."""
        zeros = np.float64(2 ** (self.bits - 1)) if self.zero_points is None else self.zero_points.astype(np.float64)
        centered = self.codes - np.repeat(np.broadcast_to(zeros, self.scales.shape), self.block_size, 0)
        return (centered * np.repeat(self.scales.astype(np.float64), self.block_size, 0))[: self.depth]


@dataclass(frozen=True)
class _Match:
    node: ir.Node
    activation: ir.Value
    bias: ir.Value | None
    weights: NBits
    terms: int


def _match(node: ir.Node, context: Context) -> _Match | None:
    if node.domain != "com.microsoft":
        return None
    if node.op_type in _OTHERS_THAT_STAY:
        raise Unconverted(_OTHERS_THAT_STAY[node.op_type])
    if node.op_type != "MatMulNBits":
        return None
    if context.exact:
        raise Unconverted(Reason.EXACT)
    level = node.attributes.get_int("accuracy_level", 0)
    if level != _INTEGER_LEVEL and context.weights_only == "keep":
        raise Unconverted(Reason.NBITS_FLOAT_ACTIVATION, level=level)
    activation, packed, *_ = node.inputs
    assert activation is not None
    assert packed is not None
    if activation.dtype != ir.DataType.FLOAT16:
        check_activation(activation)
    if any(use.node.op_type != "MatMulNBits" for use in packed.uses()):
        raise Unconverted(Reason.NBITS_SHARED)
    weights = weights_of(node, context.facts)
    if weights.block_size % GROUP_UNIT:
        raise Unconverted(Reason.GROUPS_UNIT, group_size=weights.block_size, unit=GROUP_UNIT)
    if len(weights.codes) != weights.depth and activation.shape is None:
        raise Unconverted(Reason.RANK_NOT_KNOWN)
    is_two_term = level != _INTEGER_LEVEL and context.weights_only == "two-term"
    return _Match(node, activation, [*node.inputs, None, None, None][5], weights, 2 if is_two_term else 1)


def weights_of(node: ir.Node, facts: Facts) -> NBits:
    """Returns the weights of a MatMulNBits.

    Raises:
        Unconverted: They are not constant, or in a form that QuantizedMatMul does not have.
    """
    _, packed, scales, zero_points, order = [*node.inputs, None, None, None][:5]
    given = {name: node.attributes.get_int(name, absent) for name, absent in _DEFAULTS.items()}
    depth, columns, bits, size = (given[name] for name in ("K", "N", "bits", "block_size"))
    if bits not in (2, 4, 8):
        raise Unconverted(Reason.NBITS_WIDTH, bits=bits)
    blocks, per_byte = -(-depth // size), 8 // bits
    if zero_points is not None and zero_points.dtype not in (None, ir.DataType.UINT8):
        raise Unconverted(Reason.NBITS_ZERO_POINTS, dtype=str(zero_points.dtype).lower())
    if order is not None and not np.array_equal(_known(order, facts, depth, "g_idx"), np.arange(depth) // size):
        raise Unconverted(Reason.NBITS_ORDER)
    stored = _known(packed, facts, columns * blocks * (size // per_byte), "weights")
    codes = _unpacked(stored.reshape(columns, -1), bits).T
    found = None
    if zero_points is not None:
        bytes_ = -(-blocks // per_byte)
        found = _unpacked(_known(zero_points, facts, columns * bytes_, "zero points").reshape(columns, -1), bits)
        found = found[:, :blocks].T
    return NBits(codes, found, _known(scales, facts, columns * blocks, "scales").reshape(columns, -1).T, bits, depth)


_DEFAULTS = {"K": 0, "N": 0, "bits": 4, "block_size": 32}


def _known(value: ir.Value | None, facts: Facts, size: int, what: str) -> Array:
    """Returns the elements of a constant.

    Raises:
        Unconverted: It is computed at run time, or has another size.
    """
    elements = evaluate(value, facts) if value is not None and facts.is_constant(value) else None
    if elements is None:
        raise Unconverted(Reason.WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME)
    if elements.size != size:
        raise Unconverted(Reason.NBITS_SHAPE, what=what, size=elements.size, expected=size)
    return elements


def _unpacked(stored: Array, bits: int) -> Array:
    """Returns the codes in bytes, the first ones from the lowest bits: [rows, bytes] -> [rows, codes]."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray((stored[:, :, None] >> shifts & (2**bits - 1)).reshape(len(stored), -1))


def _build(match: _Match, edit: Edit) -> None:
    weights, shared = match.weights, edit.shared(SharedInitializers)
    size, columns = weights.block_size, weights.codes.shape[1]
    x = edit.shared(_Padded).of(match.activation, weights, edit)
    activations = edit.shared(FloatActivations)
    codes = activations.of_rows(x, edit, block_size=size)
    is_byte = weights.bits == 8
    shift = np.uint8(128 if is_byte else 0)  # QuantizedMatMul has signed codes of 8 bits, and unsigned ones of 4
    zeros = np.uint8(2 ** (weights.bits - 1)) if weights.zero_points is None else weights.zero_points
    dtype = np.float16 if match.activation.dtype == ir.DataType.FLOAT16 else np.float32
    bias = match.bias or shared.of(np.full(columns, -0.0, dtype), edit)
    inputs = [
        codes.codes,
        codes.scale,
        codes.zero_point,
        shared.of(pack((weights.codes - shift).view(np.int8), 8 if is_byte else 4), edit),
        shared.of(np.asarray(zeros - shift).view(np.int8), edit),
        shared.of(_narrow(weights.scales), edit),
        shared.of(np.zeros((0, columns), np.int32), edit),
        bias,
    ]
    main = call(
        "QuantizedMatMul",
        [value for value in inputs if value is not None],
        bits=8 if is_byte else 4,
        group_size=size,
        scale_order=2,
    )
    note_activation(edit, match.activation)
    edit.replace(match.node.outputs[0], edit.insert_main(main, before=match.node))


class _Padded:
    """Activations with whole blocks: zeros do not change the range of a block, and their code is its zero point."""

    def __init__(self, facts: Facts) -> None:
        """Starts without any activation."""
        self._facts = facts
        self._padded: dict[tuple[object, ...], ir.Value] = {}

    def of(self, value: ir.Value, weights: NBits, edit: Edit) -> ir.Value:
        """Returns an activation of K columns, padded to the length of the codes of the weights."""
        length = len(weights.codes)
        if length == weights.depth:
            return value
        assert value.shape is not None
        key = edit.node.graph, value, length
        if key not in self._padded:
            rank = len(value.shape)
            pads = edit.add_constant(np.array([0] * (2 * rank - 1) + [length - weights.depth]), before=edit.node)
            padded = self._padded[key] = edit.insert(ir.node("Pad", [value, pads]), before=edit.node)
            self._facts.note(padded, value.dtype or ir.DataType.FLOAT, ir.Shape([*value.shape[:-1], length]))
        return self._padded[key]


def _narrow(scales: Array) -> Array:
    """Returns scales as float16 if that loses nothing: a row is bound by reading weights and scales."""
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    return halves if np.array_equal(halves.astype(scales.dtype), scales) else scales.astype(np.float32)


RULE: Rule[_Match] = Rule("MatMulNBits", 13, _match, _build)
