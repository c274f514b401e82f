"""The rule for elementwise nodes after a product of codes.

QuantizedConv, Relu | Clip | HardSwish | Add of another tensor | ...    -> QuantizedConvProgram
QuantizedMatMul, ...                                                    -> QuantizedMatMulProgram
WordConv, ...                                                           -> WordConvProgram
WordMatMul, ...                                                         -> WordMatMulProgram

The program runs while the result is in the cache. As nodes of their own, such functions take up to half of the time of
a convolution network. Every node is a step of the program, so the result has the model's own bits, except after an
activation function in a fusion.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ...errors import DynqError
from ...graphs import subgraphs
from ...operators import DOMAIN, OPERATORS
from ...operators.program import OPERANDS, OUTPUTS, TAIL_OPERANDS, Program, literal
from ...opsets import OPSET
from ..analysis.bounds import bounds_of
from ..analysis.constants import constant_scalar
from ..analysis.nodes import attributes_of, is_standard
from ..analysis.shapes import does_not_grow, same_shape
from ..analysis.standard import OWN_CONVOLUTIONS, TAILLESS_PRODUCTS
from ..edit import Edit, call
from ..metadata import HAS_OFFSET, PRODUCT
from ..rule import Context, Rule
from .fused_steps import FusedTranslation, is_activation, is_power
from .steps import ELEMENTWISE, Translation, elements_of

_DST = list(OUTPUTS).index("dst")
_MAX_NODES = 24
_FLOAT16_BOUNDS = 2048.0  # float16 represents all integers up to here


@dataclass(frozen=True)
class _Tail:
    """The nodes after a product that become a program.

    Attributes:
        product: The product.
        program: The program.
        operands: Its operands, in order.
        last: The result.
    """

    product: ir.Node
    program: str
    operands: tuple[ir.Value, ...]
    last: ir.Value


@dataclass
class _TailRegion:
    """The nodes that are known to be steps, in order, and the operands that they read."""

    product: ir.Node
    context: Context
    nodes: list[ir.Node] = field(default_factory=list)
    operands: dict[ir.Value, str] = field(default_factory=dict)

    @property
    def result(self) -> ir.Value:
        return self.product.outputs[0]

    def inside(self) -> list[ir.Value]:
        """The values of the region, in order."""
        return [self.result, *(node.outputs[0] for node in self.nodes)]

    def last(self) -> ir.Value | None:
        """The only value that other nodes read; None if there are several."""
        nodes = {*self.nodes}

        def is_read(value: ir.Value) -> bool:
            return value.is_graph_output() or any(use.node not in nodes for use in value.uses())

        read = [value for value in self.inside() if is_read(value)]
        return read[0] if len(read) == 1 else None

    def add_next(self) -> bool:
        """Adds one node that reads a value of the region; returns whether there is one."""
        inside = {*self.inside()}
        for node in dict.fromkeys(use.node for value in self.inside() for use in value.uses()):
            is_step = is_standard(node, *ELEMENTWISE) or (
                self.context.options.fuse and (is_activation(node) or is_power(node))
            )
            if not is_step or node in self.nodes or node.graph is not self.product.graph:
                continue
            operands = self._new_operands(node, inside)
            if operands is None or len(self.operands) + len(operands) > TAIL_OPERANDS:
                continue
            added = replace(self, nodes=[*self.nodes, node], operands=self.operands | operands)
            if added.program() is not None:
                self.nodes, self.operands = added.nodes, added.operands
                return True
        return False

    def program(self) -> Program | None:
        """The program of all nodes; None if one of them is not a step, or a zero may have another sign."""
        names = {self.result: "x"}
        names |= {value: f"{form}{i}" for i, (value, form) in enumerate(self.operands.items(), 1)}
        translation = (FusedTranslation if self.context.options.fuse else Translation)(names, self.context)
        try:
            if not all(map(translation.add, self.nodes)):
                return None
            last = translation.term(self.inside()[-1])
            translation.program.assign("dst", last)
        except DynqError:  # too long, or the result does not depend on the product
            return None
        return translation.program if translation.signs.are_known(last) else None

    def _new_operands(self, node: ir.Node, inside: set[ir.Value]) -> dict[ir.Value, str] | None:
        """The operands that a node adds, each with its form; None if one has no form."""
        found: dict[ir.Value, str] = {}
        for value in elements_of(node):
            if value in inside or value in self.operands:
                continue
            if constant_scalar(value) is not None and does_not_grow(value, self.result):
                continue
            form = self._form(value)
            if form is None or value.dtype != ir.DataType.FLOAT or self._depends_on_product(value, node):
                return None
            found[value] = form
        return found

    @functools.cached_property
    def _before(self) -> set[ir.Node]:
        """The nodes before the product."""
        graph = self.product.graph
        assert graph is not None
        return {*itertools.takewhile(lambda node: node is not self.product, graph)}

    def _depends_on_product(self, value: ir.Value, reader: ir.Node) -> bool:
        """Returns whether a value that a node reads may be computed from the result."""
        nodes = {*self.nodes, reader}
        if all(use.node in nodes for each in self.inside() for use in each.uses()):
            return False  # the only way from the result leads through the reader
        todo, seen = [value], set[ir.Node]()
        for each in todo:
            node = each.producer()
            if node is None or node in seen or node in self._before or node.graph is not self.product.graph:
                continue
            if node is self.product or any(subgraphs(node)):
                return True
            seen.add(node)
            todo += [source for source in node.inputs if source is not None]
        return False

    def _form(self, value: ir.Value) -> str | None:
        """How the program reads an operand: the tensor, or one number for each output channel."""
        if same_shape(value, self.result):
            return "tensor"
        bias, shape, result = self.product.inputs[_bias_of(self.product)], value.shape, self.result.shape
        if bias is None or bias.shape is None or shape is None or result is None or len(shape) > len(result):
            return None
        lengths = [*[1] * (len(result) - len(shape)), *shape]
        is_conv = self.product.op_type in OWN_CONVOLUTIONS
        channels = lengths.pop(1 if is_conv else -1)
        if any(length != 1 for length in lengths) or channels not in (1, bias.shape[0]):
            return None
        return "row" if is_conv or channels == 1 else "column"


def _match(node: ir.Node, context: Context) -> _Tail | None:
    if HAS_OFFSET in node.metadata_props:
        return None
    if node.outputs[0].dtype == ir.DataType.FLOAT16:
        return _clip_of_float16(node)
    if node.outputs[0].dtype != ir.DataType.FLOAT:
        return None
    region, found = _TailRegion(node, context), None
    while len(region.nodes) < _MAX_NODES and region.add_next():
        last = region.last()
        if last is not None and last is region.inside()[-1] and last.dtype == ir.DataType.FLOAT:
            program = region.program()
            assert program is not None
            if all(step.operator == "Float16" for step in program.steps):  # the product itself rounds its result
                continue
            found = _Tail(node, str(program), tuple(region.operands), last)
    return found


def _clip_of_float16(product: ir.Node) -> _Tail | None:
    """The Relu or Clip after a product that is rounded to float16: the product can round after it, too."""
    uses = [use.node for use in product.outputs[0].uses()]
    if product.op_type != "QuantizedConv" or len(uses) != 1 or product.outputs[0].is_graph_output():
        return None
    last = uses[0].outputs[0]
    low, high = 0.0, np.inf
    if is_standard(uses[0], "Clip"):
        bounds = bounds_of(last)
        if bounds is None or bounds.value is not product.outputs[0]:
            return None
        low, high = bounds.least, bounds.most
    elif not is_standard(uses[0], "Relu"):
        return None
    if not all(abs(each) <= _FLOAT16_BOUNDS and each.is_integer() for each in (low, high) if np.isfinite(each)):
        return None
    return _Tail(product, f"dst = Clip(x, {literal(low)}, {literal(high)})", (), last)


def _build(match: _Tail, edit: Edit) -> None:
    product, before = match.product, match.last.producer()
    assert before is not None
    edit.metadata[PRODUCT] = product.outputs[0].name or ""
    operands = list(match.operands)
    if len(operands) < TAIL_OPERANDS:
        unused = edit.add_constant(np.float32(0), before=before, origin=product)
        operands += [unused] * (TAIL_OPERANDS - len(operands))
    inputs = [each for each in product.inputs if each is not None]
    new = call(f"{product.op_type}Program", [*inputs, *operands], **attributes_of(product), program=match.program)
    edit.replace(match.last, edit.insert_main(new, before=before, origin=product))


RULE = Rule(
    "tail of a product", OPSET, _match, _build, operators=tuple(f"{DOMAIN}.{each}" for each in TAILLESS_PRODUCTS)
)


def _bias_of(product: ir.Node) -> int:
    """Returns the index of the input with one element for each output channel."""
    return [value.name for value in OPERATORS[product.op_type].inputs].index("bias")


def axis_of_rows(product: str) -> int:
    """Returns the first of the dimensions that form a row of a product's result, for its program."""
    return 2 if product in OWN_CONVOLUTIONS else -1


def split_tails(model: ir.Model) -> None:
    """Replaces products with programs by the products, and nodes that run the programs: for measurements of products.

    The result of such a product gets the name that it had before the rule.
    """
    for node in list(_products_with_programs(model)):
        graph, old = node.graph, node.outputs[0]
        assert graph is not None
        added = _split(node)
        new = added[-1].outputs[0 if added[-1].op_type == "Cast" else _DST]
        new.type, new.shape, new.name = old.type, old.shape, old.name
        for i, output in enumerate(output for each in added for output in each.outputs):
            output.name = output.name or f"{new.name}_split_{i}"
        graph.insert_before(node, added)
        ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
        graph.remove([node], safe=True)


def _split(node: ir.Node) -> list[ir.Node]:
    """Returns the product and the program of a node. The product is not rounded to float16 before the program runs."""
    given = attributes_of(node)
    split = {name: given.pop(name) for name in ("program", "branch")}
    inputs = [each for each in node.inputs if each is not None]
    operands, bias = inputs[-TAIL_OPERANDS:], inputs[_bias_of(node)]
    is_float16 = ir.DataType.FLOAT16 in (bias.dtype, node.outputs[0].dtype)
    widening = [ir.node("Cast", [bias], {"to": int(ir.DataType.FLOAT)})] if is_float16 else []
    for cast in widening:
        inputs[_bias_of(node)] = cast.outputs[0]
    product = call(node.op_type.removesuffix("Program"), inputs[:-TAIL_OPERANDS], **given)
    product.name = node.name
    product.metadata_props.update(node.metadata_props)
    result = product.outputs[0]
    result.name, result.shape = node.metadata_props[PRODUCT], node.outputs[0].shape
    result.type = ir.TensorType(ir.DataType.FLOAT)
    like = ir.node("Constant", [], {"value": ir.tensor(np.uint8(0))})
    unused = ir.node("Constant", [], {"value": ir.tensor(np.float32(0))})
    operands += [unused.outputs[0]] * (OPERANDS - TAIL_OPERANDS)
    axis = axis_of_rows(product.op_type)
    tail = call("RowProgram", [result, like.outputs[0], *operands], axis=axis, **split)
    rounding = [ir.node("Cast", [tail.outputs[_DST]], {"to": int(ir.DataType.FLOAT16)})] if is_float16 else []
    return [*widening, product, like, unused, tail, *rounding]


def _products_with_programs(model: ir.Model) -> Iterator[ir.Node]:
    names = {f"{product}Program" for product in TAILLESS_PRODUCTS}
    return (
        node
        for node in model.graph
        if node.domain == DOMAIN and node.op_type in names and PRODUCT in node.metadata_props
    )
