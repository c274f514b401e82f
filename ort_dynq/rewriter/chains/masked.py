"""The rule for numbers that a model writes where a condition holds, as torch does for ``scale[mask] = 1``.

ScatterND(x, Transpose(NonZero(mask)), the number, repeated)    -> Where(mask, number, x)

The mask has the leading dimensions of x, or all. NonZero gives each index once, so that the order of writing does not
matter. Rules and programs know Where.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from ..analysis.constants import constant_scalar
from ..analysis.nodes import input_of, producer_of
from ..analysis.shapes import is_equal
from ..edit import Edit
from ..rule import Context, Rule
from .quantize_linear import is_rounded

_NUMBERS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)


class _MaskedNumber(NamedTuple):
    data: ir.Value
    mask: ir.Value
    number: float


def _match(node: ir.Node, _: Context) -> _MaskedNumber | None:
    if (node.attributes.get_string("reduction", "none") or "none") != "none":
        return None
    data, indices, updates = node.inputs
    transpose = producer_of(indices, "Transpose")
    found = None if transpose is None else producer_of(input_of(transpose, 0), "NonZero")
    if data is None or transpose is None or found is None or updates is None or data.dtype not in _NUMBERS:
        return None
    if list(transpose.attributes.get_ints("perm", (1, 0))) != [1, 0]:
        return None
    mask, number = input_of(found, 0), constant_scalar(updates)
    if mask is None or mask.dtype != ir.DataType.BOOL or number is None or mask.shape is None or data.shape is None:
        return None
    if number == 0 and np.signbit(number):
        return None  # ONNX Runtime's Where may write 0 for it
    if data.dtype == ir.DataType.FLOAT16 and not (producer_of(data, "Cast") is not None and is_rounded(data)):
        return None  # ScatterND rounds it; Where has no float16 kernel
    is_known = all(map(is_equal, mask.shape, data.shape))
    return _MaskedNumber(data, mask, number) if is_known and 0 < len(mask.shape) <= len(data.shape) else None


def _build(match: _MaskedNumber, edit: Edit) -> None:
    node, (data, mask, number), dtype = edit.node, match, match.data.dtype
    assert mask.shape is not None
    assert data.shape is not None
    assert dtype is not None
    if missing := [*range(len(mask.shape), len(data.shape))]:
        axes = edit.add_constant(np.array(missing), before=node)
        shape = ir.Shape([*mask.shape, *[1 for _ in missing]])
        mask = edit.insert(ir.node("Unsqueeze", [mask, axes]), before=node)
        edit.facts.note(mask, ir.DataType.BOOL, shape)
    wide = ir.DataType.FLOAT if dtype == ir.DataType.FLOAT16 else dtype  # with Casts, which ONNX Runtime keeps
    elements = edit.cast(data, wide, before=node)
    edit.facts.note(elements, wide, data.shape)
    constant = edit.add_constant(np.array(number, wide.numpy()), before=node)
    chosen = edit.insert_main(ir.node("Where", [mask, constant, elements]), before=node)
    edit.facts.note(chosen, wide, data.shape)
    edit.replace(node.outputs[0], edit.cast(chosen, dtype, before=node))


RULE: Rule[_MaskedNumber] = Rule(
    "numbers where a condition holds", 13, _match, _build, prepares=True, operators=("ScatterND",)
)
