"""The rule for Casts from and to float16 beside operators of ort_dynq, which also read and write float16.

Cast(x, float), operator to codes                        -> operator to codes, of x
Cast(x, float), operator to floats, Cast(float16)        -> operator to floats, of x
Cast(x, float), Reshape | Squeeze | ..., Cast(float16)   -> Reshape | Squeeze | ..., of x

The signatures of the operators say which input may be float16. The float type of the output follows from it. A constant
input becomes float16 if float16 represents it exactly. float16 is exact in float32, and the operators round their
float32 result to float16 once, as the Cast does: no bit changes.

ONNX Runtime computes most standard operators of float16 in float32, and then removes the Casts around them: such a
node reads and returns values that are not rounded, whatever their type is. Casts beside such nodes stay.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS
from ...operators import DOMAIN, OPERATORS
from ...operators.program import parse
from ..analysis.constants import is_float16
from ..analysis.nodes import attributes_of, cast_to, input_of, producer_of
from ..analysis.standard import RESHAPES
from ..chains.quantize_linear import is_rounded, reads_rounded
from ..edit import Edit
from ..rule import Context, Rule
from ..shared_initializers import SharedInitializers

_OLDEST_WITH_CASTLIKE = 15  # function bodies round by CastLike


@dataclass(frozen=True)
class _Float16Operand:
    """An operator that may read float16.

    Attributes:
        node: The operator.
        index: The input.
        source: The new input: the float16 value before a Cast, or the elements of a float16 constant.
        roundings: The Casts of outputs to float16. They are removed, and the outputs become float16.
        unread: Outputs that nothing reads. They become float16, too.
    """

    node: ir.Node
    index: int
    source: ir.Value | npt.NDArray[np.float16]
    roundings: tuple[ir.Node, ...] = ()
    unread: tuple[ir.Value, ...] = ()


def _match(node: ir.Node, context: Context) -> _Float16Operand | None:
    if node.domain == DOMAIN:
        return _operator(node, context)
    if node.inputs[0] is not None:
        source, roundings = _source_of_cast(node.inputs[0]), _roundings(node.outputs[0])
        if source is not None and roundings:
            return _Float16Operand(node, 0, source, tuple(roundings))
    return None


def _build(match: _Float16Operand, edit: Edit) -> None:
    node, source = match.node, match.source
    if not isinstance(source, ir.Value):
        source = edit.shared(SharedInitializers).of(source, edit)
    edit.operator = f"{node.op_type} of float16"
    edit.replace_input(node, match.index, source)
    for rounding in match.roundings:
        rounded = rounding.inputs[0]
        assert rounded is not None
        edit.replace(rounding.outputs[0], rounded)
    for value in match.unread:
        edit.facts.retype(value, ir.DataType.FLOAT16)


RULE = Rule("float16 operand", 13, _match, _build, operators=RESHAPES | {f"{DOMAIN}.{each}" for each in OPERATORS})


def _operator(node: ir.Node, context: Context) -> _Float16Operand | None:
    # An input that outputs follow is before one that none follows, such as the scales of columns.
    inputs = sorted(OPERATORS[node.op_type].float16_inputs, key=lambda each: not each[1])
    index, outputs = inputs[0] if inputs else (None, ())
    value = None if index is None else input_of(node, index)
    if index is None or value is None or not _takes_float16(node):
        return None
    given = [node.outputs[i] for i in outputs if i < len(node.outputs)]
    used = [output for output in given if output.uses() or output.is_graph_output()]
    found = [_roundings(each) for each in used]
    read = [use.node for roundings in found for rounding in roundings for use in rounding.outputs[0].uses()]
    if used and not (all(found) and all(map(reads_rounded, read)) and context.facts.opset >= _OLDEST_WITH_CASTLIKE):
        return None
    roundings, unread = tuple(itertools.chain(*found)), tuple(each for each in given if each not in used)
    source = _source_of_cast(value)
    if source is not None:
        return _Float16Operand(node, index, source, roundings, unread)
    tensor = None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
    if tensor is None or not used or not is_float16(elements := tensor.numpy()):
        return None
    return _Float16Operand(node, index, elements.astype(np.float16), roundings, unread)


def _takes_float16(node: ir.Node) -> bool:
    """Returns whether a node may be of float16: a product with a program only if the program is one Clip."""
    if not node.op_type.startswith("Quantized") or not node.op_type.endswith("Program"):
        return True
    return parse(attributes_of(node)["program"]).is_clip()


def _source_of_cast(value: ir.Value) -> ir.Value | None:
    """Returns the float16 value that a Cast to float32 makes `value`, if it is certainly rounded; else None."""
    cast = producer_of(value, "Cast")
    source = None if cast is None else cast.inputs[0]
    if source is None or source.dtype != ir.DataType.FLOAT16 or value.dtype != ir.DataType.FLOAT:
        return None
    return source if is_rounded(source) else None


def _roundings(value: ir.Value) -> list[ir.Node]:
    """Returns the Casts to float16 that read a value; empty if other nodes read it or several are graph outputs."""
    nodes = [use.node for use in value.uses()]
    casts = [node for node in nodes if node.op_type == "Cast" and node.domain in STANDARD_DOMAINS]
    to_float16 = all(cast_to(cast) == ir.DataType.FLOAT16 for cast in casts)
    named = sum(cast.outputs[0].is_graph_output() for cast in casts)
    is_replaced = len(casts) == len(nodes) and to_float16 and (named == 0 or len(casts) == 1)
    return casts if is_replaced and not value.is_graph_output() else []
