"""The rule for products of run-time codes that ONNX Runtime has fused with the nodes around them, in com.microsoft.

MatMulIntegerToFloat, [Add bias]     -> QuantizedMatMul
DynamicQuantizeMatMul, [Add bias]    -> DynamicQuantizeLinear, QuantizedMatMul
QAttention                           -> QuantizedMatMul of query, of key and of value, MultiHeadAttention

ONNX Runtime's optimizer writes the first two into models that it saves; quantize_dynamic writes QAttention in place of
Attention. All need constant weights, scales and zero points of the weights. The results are the same bit for bit,
except where ONNX Runtime's sums saturate (../policy/saturation.py): these operators also multiply the scales first, and
MultiHeadAttention has the kernel of QAttention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...operators.encodings import ScaleOrder
from ...opsets import OPSET
from ..analysis.nodes import first_inputs
from ..analysis.standard import EMBED_NORMS
from ..analysis.types import CODE_TYPES, check_type
from ..codes.codes import Codes
from ..codes.float_activations import FloatActivations, check_activation
from ..codes.unsigned_codes import UnsignedCodes
from ..edit import Edit
from ..policy.saturation import has_small_weights
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule
from ..weights.channels import Channels
from ..weights.grid import QuantizedWeights, check_length
from .epilogue import Epilogue
from .integer_product import grid_of_weights, is_static
from .quantized_matmul import build_quantized_matmul, quantized_matmul

_ATTENTION = "QAttention"
_MASK, _PAST = 5, 8  # its inputs
_KEPT_ATTRIBUTES = ("num_heads", "unidirectional", "mask_filter_value", "scale")
_LENGTHS = EMBED_NORMS | {"ReduceSum"}
_PARTS = 3  # query, key and value


@dataclass(frozen=True)
class _Positions:
    """The inputs of an operator after the activation and the weights; None if there is no such input."""

    weights_scale: int
    weights_zero_point: int
    bias: int
    scale: int | None = None
    zero_point: int | None = None


_POSITIONS = {
    "MatMulIntegerToFloat": _Positions(3, 5, 6, 2, 4),
    "DynamicQuantizeMatMul": _Positions(2, 3, 4),
    _ATTENTION: _Positions(4, 7, 2, 3, 6),
}


@dataclass(frozen=True)
class _FusedProduct:
    """A product that is converted.

    Attributes:
        x: The codes, or the float activation.
        zero_point: The zero point of the codes; None for 0, and for an activation.
        grid: The weights, [K, N].
        epilogue: The scales and the bias. An attention is all of its `last`.
        mask: The mask of an attention; None if there is none.
    """

    x: ir.Value
    zero_point: ir.Value | None
    grid: QuantizedWeights
    epilogue: Epilogue
    mask: ir.Value | None = None


def _match(node: ir.Node, context: Context) -> _FusedProduct | None:
    inputs, positions, facts = first_inputs(node, 9), _POSITIONS[node.op_type], context.facts
    x = inputs[0]
    if x is None or inputs[1] is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=int(x is not None))
    if is_static(x, facts):
        raise Unconverted(Reason.STATIC)
    if context.options.keep_fused:
        raise Unconverted(Reason.KEPT)
    if has_small_weights(node, facts):
        raise Unconverted(Reason.SMALL_WEIGHTS)
    scale, zero_point = (None if i is None else inputs[i] for i in (positions.scale, positions.zero_point))
    if positions.scale is None:
        check_activation(x)
    elif scale is None:
        raise Unconverted(Reason.NO_INPUT, operator=node.op_type, index=positions.scale)
    else:
        check_type("the activation", x, CODE_TYPES)
        check_type("the scale", scale, (ir.DataType.FLOAT,))
    grid = grid_of_weights(node, facts, (1, positions.weights_zero_point))
    if grid.stack:  # ONNX Runtime does not run such a product
        raise Unconverted(Reason.WEIGHTS_NO_MATRIX)
    check_length(grid)
    channels = Channels(grid.codes.shape[1], rank=1 if x.shape is None else len(x.shape))
    column = channels.vector(inputs[positions.weights_scale], np.float32, facts)
    if column is None:
        raise Unconverted(Reason.WEIGHTS_SCALES)
    bias = None if inputs[positions.bias] is None else channels.bias(inputs[positions.bias], facts)
    if inputs[positions.bias] is not None and bias is None:
        raise Unconverted(Reason.BIAS_OF_CHANNELS)
    epilogue = Epilogue(node, channels, node.outputs[0], scale, column, ScaleOrder.SCALES_FIRST, bias)
    if node.op_type != _ATTENTION:
        return _FusedProduct(x, zero_point, grid, epilogue if bias is not None else epilogue.past_bias(facts))
    width, rest = divmod(channels.size, _PARTS)
    check_merged(node, inputs[_PAST], inputs[_MASK], [] if rest else [width] * _PARTS)
    bias = channels.vector(inputs[positions.bias], np.float32, facts)
    if bias is None:
        raise Unconverted(Reason.WEIGHTS_AT_RUN_TIME)
    return _FusedProduct(x, zero_point, grid, replace(epilogue, bias=bias), inputs[_MASK])


def check_merged(node: ir.Node, past: ir.Value | None, mask: ir.Value | None, widths: Sequence[int]) -> None:
    """Checks that MultiHeadAttention computes what QAttention or Attention computes of its three products.

    Args:
        node: The node.
        past: Its past keys and values.
        mask: Its mask.
        widths: The columns of the products.

    Raises:
        Unconverted: It does not.
    """
    if past is not None or any(output.uses() or output.is_graph_output() for output in node.outputs[1:]):
        raise Unconverted(Reason.QATTENTION_PAST)
    if node.attributes.get_int("do_rotary", 0):
        raise Unconverted(Reason.QATTENTION_ROTARY)
    heads = node.attributes.get_int("num_heads", 0)
    if heads < 1 or len(widths) != _PARTS or any(n % heads for n in widths) or widths[0] != widths[1]:
        raise Unconverted(Reason.QATTENTION_HEADS)
    rank = None if mask is None or mask.shape is None else len(mask.shape)
    if mask is not None and rank not in (2, 3) and not _has_one_length_for_each_sample(mask, node.inputs[0]):
        raise Unconverted(Reason.QATTENTION_MASK)


def _has_one_length_for_each_sample(mask: ir.Value, x: ir.Value | None) -> bool:
    """Returns whether a mask is known to be one length for each sample: one of rank 1 may also have more numbers."""
    node = mask.producer()
    cast = None if node is None or node.op_type != "Cast" else node.inputs[0]
    node = node if cast is None else cast.producer()
    if node is not None and node.op_type in _LENGTHS:
        return True
    if mask.shape is None or len(mask.shape) != 1 or x is None or x.shape is None or not len(x.shape):
        return False
    samples = x.shape[0]
    return samples == mask.shape[0] and (isinstance(samples, int) or samples.value is not None)


def _build(match: _FusedProduct, edit: Edit) -> None:
    codes = _codes(match, edit)
    if edit.node.op_type != _ATTENTION:
        build_quantized_matmul(match.epilogue, codes, match.grid, edit)
        return
    query_key_value = [
        edit.insert(quantized_matmul(epilogue, codes, grid, edit), before=edit.node) for epilogue, grid in _parts(match)
    ]
    kept = {name: edit.node.attributes[name] for name in _KEPT_ATTRIBUTES if name in edit.node.attributes}
    inputs = [*query_key_value, *([] if match.mask is None else [None, match.mask])]
    # Without a mask, MultiHeadAttention has a kernel that does not compute the keys and values for a further call. It
    # rounds differently from QAttention's.
    outputs = 1 if match.mask is not None else 3
    main = ir.node("MultiHeadAttention", inputs, kept, domain=MICROSOFT, num_outputs=outputs)
    edit.operator, edit.note = "QuantizedMatMul", "three products, before MultiHeadAttention"
    edit.replace(edit.node.outputs[0], edit.insert_main(main, before=edit.node))


def _codes(match: _FusedProduct, edit: Edit) -> Codes:
    if match.epilogue.row is None:
        codes = edit.shared(FloatActivations).of_tensor(match.x, edit)
        assert codes.scale is not None
        return codes
    unsigned, zero_point = edit.shared(UnsignedCodes), match.zero_point
    if zero_point is None:
        assert match.x.dtype is not None
        zero_point = edit.add_constant(np.zeros((), match.x.dtype.numpy()), before=edit.node)
    return Codes(unsigned.of(match.x, edit), None, unsigned.of(zero_point, edit))


def _parts(match: _FusedProduct) -> list[tuple[Epilogue, QuantizedWeights]]:
    """Returns the epilogues and the weights of query, key and value: thirds of the columns."""
    epilogue, grid, size = match.epilogue, match.grid, match.epilogue.channels.size // _PARTS
    assert epilogue.column is not None
    assert isinstance(epilogue.bias, np.ndarray)
    parts = []
    for start in range(0, _PARTS * size, size):
        columns = slice(start, start + size)
        zero_point = grid.zero_point if grid.zero_point.ndim == 1 else grid.zero_point[:, columns]
        part = replace(grid, codes=np.ascontiguousarray(grid.codes[:, columns]), zero_point=zero_point)
        channels = epilogue.channels._replace(size=size)
        parts.append(
            (replace(epilogue, channels=channels, column=epilogue.column[columns], bias=epilogue.bias[columns]), part)
        )
    return parts


RULE = Rule(
    "fused integer product",
    OPSET,
    _match,
    _build,
    reports_opset=True,
    operators=tuple(f"{MICROSOFT}.{each}" for each in _POSITIONS),
)
