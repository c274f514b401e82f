"""The rule for embeddings: rows of a constant float table become 8-bit codes with one scale for each row.

Gather(table, ids)    -> Gather(codes, ids), Gather(scales, ids), DynamicDequantize
Gather(table, ids)    -> GatherDequantize(ids, packed weights)

A table may also be the weights of a product, transposed, as in the last layer of a language model. The product has the
same codes, packed. Then they are stored only once.

Standard operators would be a Cast and a Mul, one pass more: with 512 tokens of 768 channels, these take longer than the
Gather of floats.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..operators.packing import is_whole, pack_columns, packed_shape
from ..opsets import OPSET
from ..rewriter.analysis.evaluation import evaluate
from ..rewriter.analysis.nodes import producer_of
from ..rewriter.edit import Edit, call
from ..rewriter.policy.cost import is_small_table
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from ..rewriter.shared_initializers import SharedInitializers
from .options import RANK_OF_TABLE, Options, is_embedding
from .weights import check_constant, codes_of_rows, release

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


@dataclass(frozen=True)
class _Embedding:
    table: ir.Value
    rows: _QuantizedRows


class _QuantizedRows:
    """The codes and the scales of the rows of one table, computed once for all nodes that gather them."""

    def __init__(self, floats: npt.NDArray[Any]) -> None:
        self.codes, self.scales = map(ir.tensor, codes_of_rows(floats))


class _QuantizedTables:
    """The tables of one model: several nodes may gather rows of one, such as an encoder and a decoder."""

    def __init__(self, _: object) -> None:
        self._rows: dict[ir.Value, _QuantizedRows] = {}

    def of(self, table: ir.Value, context: Context) -> _QuantizedRows:
        """Returns the rows of a table.

        Raises:
            Unconverted: They are not known, or have NaN or an infinity.
        """
        if table not in self._rows:
            floats = evaluate(table, context.facts)
            if floats is None:
                raise Unconverted(Reason.WEIGHTS_NOT_KNOWN)
            self._rows[table] = _QuantizedRows(floats)
            del floats
            release(table)
        return self._rows[table]


def _match(node: ir.Node, context: Context, options: Options) -> _Embedding | None:
    if options.embeddings == "keep" or not is_embedding(node) or node.inputs[0] is None:
        return None
    table, facts = node.inputs[0], context.facts
    if not (facts.is_constant(table) or table.is_initializer()) or table.dtype not in _FLOATS:
        return None
    if table.shape is None or not table.shape.is_static() or len(table.shape) != RANK_OF_TABLE:
        return None
    if is_small_table(*table.shape.numpy()):
        return None
    if producer_of(table, "DequantizeLinear") is not None:  # the table has few bits already
        return None
    options.check(node)
    check_constant(table, facts)
    if _has_other_readers(table, options):
        raise Unconverted(Reason.TABLE_SHARED)
    return _Embedding(table, context.shared(_QuantizedTables).of(table, context))


def _build(match: _Embedding, edit: Edit) -> None:
    node, table, rows = edit.node, match.table, match.rows
    graph = table.graph if table.is_initializer() else node.graph
    assert isinstance(graph, ir.Graph)
    shared, ids, old = edit.shared(SharedInitializers), node.inputs[1], node.outputs[0]
    lead = None if old.shape is None else old.shape[:-1]

    def gathered(name: str) -> ir.Value:
        tensor: ir.TensorProtocol = getattr(rows, name)
        stored = shared.of_source((table, name), lambda: tensor, graph, edit)
        new = edit.insert(ir.node("Gather", [stored, ids], {"axis": 0}), before=node)
        edit.facts.note(new, tensor.dtype, None if lead is None else ir.Shape([*lead, *tensor.shape.numpy()[1:]]))
        return new

    zero_point = edit.add_constant(np.zeros((), np.int8), before=node)
    count, depth = rows.codes.shape.numpy()
    packed = None
    if ids is not None and is_whole(depth, 8):
        packed = shared.find(packed_shape(depth, count), lambda: pack_columns(rows.codes.numpy().view(np.uint8)))
    if ids is None or packed is None:
        inputs = [gathered("codes"), gathered("scales"), zero_point]
        main = call("DynamicDequantize", inputs, qtype="per_group", axis=-1, block_size=depth)
    else:
        scales = shared.of(rows.scales.numpy().reshape(1, count), edit)
        main = call("GatherDequantize", [ids, packed, zero_point, scales])
    edit.replace(old, edit.insert_main(main, before=node))
    edit.note = "8-bit rows of a table"


def rule(options: Options) -> Rule[_Embedding]:
    """Returns the rule with these options. It follows the rules of products, which may read the same table."""
    return Rule("embedding", OPSET, functools.partial(_match, options=options), _build, reports_opset=True)


def _has_other_readers(table: ir.Value, options: Options) -> bool:
    """Returns whether a table would stay in the model as floats, too: not all nodes that read it become rows of codes.

    What a table is computed from, such as a table of float16, is read by that computation only.
    """
    for node in (use.node for use in table.uses()):
        if not is_embedding(node) or node.inputs[0] is not table or node.inputs[1] is table:
            return True
        try:
            options.check(node)
        except Unconverted:
            return True
    if table.is_graph_output():
        return True
    while (producer := table.producer()) is not None and producer.inputs:
        sources = [value for value in producer.inputs if value is not None and value.shape is not None]
        table = max(sources, key=lambda value: _size(value), default=table)
        if not sources or len(table.uses()) > 1 or table.is_graph_output():
            return True
    return False


def _size(value: ir.Value) -> int:
    return int(np.prod(value.shape.numpy())) if value.shape is not None and value.shape.is_static() else 0
