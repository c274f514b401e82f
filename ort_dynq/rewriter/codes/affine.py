"""The affine form of values: codes times a scale, in whatever way a model computes them.

value = scale * (move(codes) - zero_point) + offset

The codes are integers that fit 8 bits. Scale, zero point and offset are numbers for the whole tensor, for rows, or for
blocks of a row. :class:`AffineForms` finds the form of each value by one transfer function for each operator. Where a
form is lost, it keeps the reason.

Example: Transpose(0.5 * (q - 3)) + 1 has the codes q, the scale 0.5, the zero point 3 and the offset 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ...graphs import STANDARD_DOMAINS, name_in_model, with_subgraphs
from ..analysis.constants import constant_scalar, is_idle_dropout
from ..analysis.estimators import estimated, is_added_back
from ..analysis.inference import Facts
from ..analysis.nodes import cast_to, casts_to_integers, producer_of
from ..analysis.shapes import broadcasts, has_one_element, is_equal, is_shape_of_rows, same_shape, unexpanded
from ..analysis.shared import OfOnePhase
from ..analysis.standard import ARITHMETIC, INTERLEAVING, MOVES, POWERS, PRODUCTS, SIZES
from ..analysis.types import CODE_TYPES, WIDE_TYPES
from ..analysis.values import Values
from ..chains.quantize_linear import granularity_of, inputs_of
from ..metadata import RULE as ADDED
from ..reasons import Reason, Unconverted
from .affine_form import MARKS, NUMBERS, ROUNDINGS, Affine, Rearrangement, concatenated, is_repeated_along_rows, moved
from .estimates import is_estimate
from .marks import scale_of_estimate, with_marks
from .masked_codes import masked_form
from .merged_rows import with_merged_rows
from .quotients import Quotient, rounded_quotient, undefined_divisor
from .remedies import remedy_of
from .terms import Param, combined, like, rank_of, unsqueezed

_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE)
_INTEGERS = (ir.DataType.INT16, *WIDE_TYPES)
_ROOT_TYPES = (*_INTEGERS, ir.DataType.FLOAT, ir.DataType.FLOAT16)
_MAX_FLOAT16_INTEGER = 2048  # float16 represents all integers up to here
_LATER = "quantize after it"  # what to change in the export
_LATER_OR_SHAPES = f"{_LATER}, or export static shapes"
_CLIP = "clip the codes before it"
_CODE_MOVES = MOVES - INTERLEAVING  # ONNX Runtime runs these with floats only


class AffineForms(OfOnePhase):
    """The affine forms of the values of one model."""

    def __init__(self, facts: Facts) -> None:
        """Visits all nodes in their order, so that no later question goes deep."""
        self._facts = facts
        self.values = facts.shared(Values)
        self._found: dict[ir.Value, Affine | Unconverted | None] = {}
        for _, graph in with_subgraphs(facts.model.graph):
            for node in graph:
                for output in node.outputs:
                    self._of(output)

    def of(self, value: ir.Value | None) -> Affine | None:
        """Returns the affine form of a value, or None."""
        found = self._of(value)
        return found if isinstance(found, Affine) else None

    def lost(self, value: ir.Value | None) -> Unconverted | None:
        """Returns why a value that is computed from codes has no affine form: where the form was lost; else None."""
        found = self._of(value)
        return found if isinstance(found, Unconverted) else None

    def quotient(self, codes: ir.Value) -> Quotient | None:
        """Returns the quotient that codes of any type are rounded from; None if they are computed in another way."""
        return rounded_quotient(codes, self._param, self.values, self._facts)

    def _of(self, value: ir.Value | None) -> Affine | Unconverted | None:
        if value is None or self._facts.is_constant(value):
            return None
        if value not in self._found:
            self._found[value] = self._find(value)
        return self._found[value]

    def _find(self, value: ir.Value) -> Affine | Unconverted | None:
        node = value.producer()
        if node is None:
            return self._as_root(node, value) if value.is_graph_input() and value.dtype in CODE_TYPES else None
        if node.op_type in SIZES:
            return None
        try:
            found = self._of_node(node, value)
        except Unconverted as why:
            found = why
        if isinstance(found, Affine) and value.dtype in CODE_TYPES and found.params:
            return self._as_root(node, value)  # arithmetic of 8 bits wraps around: its results are codes themselves
        if not isinstance(found, Affine):
            is_moved = value.dtype in CODE_TYPES and node.op_type in MOVES and not self._picks_constants(node)
            return found if is_moved else self._as_root(node, value) or found
        return found

    def _as_root(self, node: ir.Node | None, value: ir.Value) -> Affine | None:
        """Returns the form of a value that consists of codes itself."""
        if value.dtype in CODE_TYPES:
            return Affine(value, value, *((0, 255) if value.dtype == ir.DataType.UINT8 else (-128, 127)))
        known = self.values.known(value)
        if not known.is_integer or value.dtype not in _ROOT_TYPES or node is None or not self._is_quantized(node):
            return None
        if known.high - known.low > 255 and value.dtype == ir.DataType.FLOAT:
            known = self.values.near.known(value)  # a product of saturated codes differs by less than its roundings
        if known.high - known.low > 255:
            return None
        form = Affine(value, value, int(known.low), int(known.high))
        return with_marks(form, value, self._param, self.values, self._facts)

    def _picks_constants(self, node: ir.Node) -> bool:
        """Returns whether a node gathers rows of a constant, as an embedding of codes does."""
        return node.op_type == "Gather" and node.inputs[0] is not None and self._facts.is_constant(node.inputs[0])

    def _is_quantized(self, node: ir.Node) -> bool:
        """Returns whether integers are rounded numbers: a mask, a token or a one-hot vector is no quantization."""
        if node.op_type in ROUNDINGS:
            return True
        if casts_to_integers(node):
            return True
        inputs = [each for each in node.inputs if each is not None and not self._facts.is_constant(each)]
        return any(self.of(each) is not None or self._is_rounded(each) for each in inputs)

    def _is_rounded(self, value: ir.Value) -> bool:
        """Returns whether a value consists of integers that a rounding made, of any size."""
        for _ in range(8):
            value = self.values.estimated_exactly(value) or value
            node = value.producer()
            if node is None or node.op_type in SIZES or not self.values.known(value).is_integer:
                return False
            if node.op_type in ROUNDINGS or casts_to_integers(node):
                return True
            given = node.inputs[1:] if node.op_type == "Where" else node.inputs
            inputs = [each for each in given if each is not None and not self._facts.is_constant(each)]
            if not inputs:
                return False
            value = inputs[0]
        return False

    def _of_node(self, node: ir.Node, value: ir.Value) -> Affine | Unconverted | None:
        if node.domain not in STANDARD_DOMAINS:
            return self._lose(node)
        op_type = node.op_type
        if op_type == "DequantizeLinear":
            return self._dequantize_linear(node, value)
        if op_type == "Cast":
            return self._cast(node, value)
        if op_type == "Neg" and (form := self.of(node.inputs[0])) is not None:
            return self._times(form, Param(np.array(-1, np.float32)), value)
        if op_type in ARITHMETIC:
            return self._arithmetic(node, value)
        if op_type == "Where" and (masked := masked_form(node, value, self.of, self._param, self.values)) is not None:
            return masked
        if is_idle_dropout(node) or (op_type in _CODE_MOVES and (op_type != "Concat" or len(node.inputs) > 1)):
            return self._moved(node, value)
        return self._lose(node)

    def _lose(self, node: ir.Node, why: str = f"it is not affine; {_LATER}") -> Unconverted | None:
        """Returns why a form is lost at a node, if one of its inputs has a form or has lost it; None for a product."""
        if node.op_type in PRODUCTS or (node.op_type == "Add" and ADDED in node.metadata_props):  # of an offset
            return None
        is_arithmetic = node.op_type in ARITHMETIC
        given = node.inputs[:-1] if node.op_type in POWERS else node.inputs  # a rounded exponent is no code
        given = [each for each in given if each is None or each.dtype != ir.DataType.BOOL]  # nor is a condition
        inputs = [each for each in given if not (is_arithmetic and is_repeated_along_rows(each, node))]
        # A form of one operand ends at this arithmetic, wherever the other operand lost its own.
        is_end = is_arithmetic and any(self.of(each) is not None for each in inputs)
        for each in () if is_end else sorted(inputs, key=lambda each: producer_of(each, "Sub") is None):
            if (lost := self.lost(each)) is not None:
                return lost
        for each in inputs:
            if self.of(each) is not None:
                return self._lost(node, why)
            rounded = None if each is None or not self._is_rounded(each) else each.producer()
            if rounded is not None and each is not None:
                is_typed = each.dtype in _ROOT_TYPES or each.dtype is None
                text = (
                    "not proven to fit 8 bits; clip them after the rounding"
                    if is_typed
                    else f"of the type {str(each.dtype).lower()}; quantize in float32 or float16"
                )
                return self._lost(rounded, f"the codes are {text}")
        return None

    def _lost(self, node: ir.Node, why: str) -> Unconverted:
        return Unconverted(Reason.FORM_LOST, operator=node.op_type, name=name_in_model(node.outputs[0]), why=why)

    # Dequantizations

    def _dequantize_linear(self, node: ir.Node, value: ir.Value) -> Affine | Unconverted | None:
        """Returns the form of the result of a DequantizeLinear: (codes - zero point) * scale."""
        codes, scale, zero_point = inputs_of(node)
        form = self.of(codes)
        if form is None or form.params:
            return self._lose(node)
        if all(map(self._facts.is_constant, node.inputs[1:])):
            picked = form.root.producer()
            if picked is not None and self._picks_constants(picked):  # of an embedding: no quantization is before it
                return None
            raise Unconverted(Reason.STATIC)
        dtype = scale.dtype
        if dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
            raise Unconverted(Reason.ACTIVATION_SCALES)
        if node.attributes.get_int("output_dtype", 0) not in (0, dtype):
            raise Unconverted(Reason.OUTPUT_DTYPE)
        if zero_point is not None and constant_scalar(zero_point) == 0:
            zero_point = None
        params = [None if each is None else self._param_of_linear(node, each, codes) for each in (scale, zero_point)]
        is_rounded = dtype == ir.DataType.FLOAT16
        return replace(form, value=value, scale=params[0], zero_point=params[1], is_rounded=is_rounded)

    def _param_of_linear(self, node: ir.Node, value: ir.Value, codes: ir.Value) -> Param:
        """Returns the scales or zero points of a DequantizeLinear.

        Raises:
            Unconverted: They are not known to belong to rows, blocks or an axis.
        """
        rank, granularity, axis = rank_of(codes), granularity_of(node), node.attributes.get_int("axis", 1)
        if granularity == "per_tensor" or has_one_element(value):
            return Param(value, rank=rank_of(value))
        if granularity in ("per_channel", "auto") and rank is not None and rank_of(value) == 1:
            behind = rank - 1 - axis % rank
            param = Param(value, frozenset({-1 - behind}), 1)
            return param if not behind else replace(unsqueezed(param, [-1 - i for i in range(behind)]), rank=1 + behind)
        if granularity == "per_group" and axis in (-1, (rank or 0) - 1):
            return Param(value, None, rank, node.attributes.get_int("block_size", 0))
        raise Unconverted(Reason.ACTIVATION_SCALES)

    # Standard operators

    def _cast(self, node: ir.Node, value: ir.Value) -> Affine | Unconverted | None:
        form, to = self.of(node.inputs[0]), cast_to(node)
        source = node.inputs[0]
        if form is None or source is None:
            return self._lose(node)
        known = self.values.known(source)
        if source.dtype == ir.DataType.FLOAT16 and form.is_rounded:
            return replace(form, value=value) if to == ir.DataType.FLOAT else self._lose(node)
        if to == ir.DataType.FLOAT16:
            if known.fits(-_MAX_FLOAT16_INTEGER, _MAX_FLOAT16_INTEGER):
                return form.mapped(value, lambda _, param: param.of("Cast", to=int(to)))
            is_product = form.scale is not None and form.offset is None and source.dtype == ir.DataType.FLOAT
            return replace(form, value=value, is_rounded=True) if is_product else self._lose(node)
        if to in CODE_TYPES and not form.params:
            return None  # these codes are a root themselves
        if source.dtype == to:
            return replace(form, value=value)
        if to not in (ir.DataType.FLOAT, *_INTEGERS):
            return self._lose(node)
        if to in _INTEGERS and source.dtype in _FLOATS:
            divisor = None
            if not known.is_regular:
                divisor = undefined_divisor(source, self._param, self.values, self._facts)
            bits = min(32, int(to.itemsize * 8))
            limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
            if bits < 32 and not self.values.of_any_inputs.known(source).fits(*limits):
                return self._lose(
                    node, f"its input is not clipped, so that infinite codes may become any integers; {_CLIP}"
                )
            if not known.fits(*limits) or not (known.is_regular or divisor):
                return self._lose(node, f"its input is not known to be integers of {bits} bits; {_CLIP}")
            form = replace(form, divisor=divisor, mark=form.mark if divisor is None else None, nan=None)
        return form.mapped(value, lambda _, param: param.of("Cast", to=int(to)))

    def _estimate(self, node: ir.Node, value: ir.Value) -> Affine | None:
        """Returns the form of x + (y - x), if its elements are those of y except for small roundings."""
        pair = estimated(node) if value.dtype == ir.DataType.FLOAT else None
        form = None if pair is None else self.of(pair[0])
        if pair is None or form is None or not same_shape(*pair):
            return None
        if self.values.estimated_exactly(value) is not None:
            if form.value is form.root:  # of other rows than those of y
                form = with_marks(form, value, self._param, self.values, self._facts)
            return replace(form, value=value)
        if not is_estimate(form, pair[1], self.values):
            return None
        return replace(form, value=value, scale=scale_of_estimate(form.scale, pair[1], self._facts))

    def _arithmetic(self, node: ir.Node, value: ir.Value) -> Affine | Unconverted | None:
        if (found := self._estimate(node, value)) is not None:
            return found
        may_wrap = node.op_type == "Mul" and math.isinf(self.values.known(value).high)
        if value.dtype in _INTEGERS and (may_wrap or node.op_type == "Div"):
            return self._lose(node, f"integers are divided, or their product may wrap around; {_LATER}")
        pairs = list(enumerate(node.inputs))
        for (i, data), (_, other) in (pairs, pairs[::-1]):
            form = self.of(data)
            param = None if form is None or data is None or other is None else self._param(other, data)
            if form is None or param is None or (node.op_type == "Div" and i == 1):
                continue
            if form.is_rounded:
                return self._lose(node, "its input is rounded to float16; leave out the Cast before it")
            if node.op_type == "Mul":
                return self._times(form, param, value)
            if node.op_type == "Div":
                scale = Param(np.ones((), np.float32)) if form.scale is None else form.scale
                offset = None if form.offset is None else combined("Div", form.offset, param)
                return replace(form, value=value, scale=combined("Div", scale, param), offset=offset)
            if node.op_type == "Sub" and i == 1:  # param - form
                form = self._times(form, Param(np.array(-1, np.float32)), value)
            return self._plus(form, param, value, is_subtracted=node.op_type == "Sub" and i == 0)
        if node.op_type == "Sub" and is_added_back(value, node.inputs[1]):
            why = "in x + (y - x), x is not known to lie within the range of the codes of y; export y alone"
            return self._lose(node, why)
        if value.dtype == ir.DataType.FLOAT16:
            return self._lose(node, "ONNX Runtime computes it in float16; quantize and dequantize in float32")
        if node.op_type == "Mul" and any(producer_of(each, "Sign") is not None for each in node.inputs):
            is_scaled = any(form is not None and form.scale is not None for form in map(self.of, node.inputs))
            why = "scaled already; scale them last" if is_scaled else "not proven to fit 8 bits; clip them after it"
            return self._lose(node, f"magnitudes times signs are {why}")
        remedy = remedy_of(node, self.of) or f"; {_LATER_OR_SHAPES}"
        return self._lose(node, f"no operand is known to be one number for each row, or for all{remedy}")

    def _times(self, form: Affine, factor: Param, value: ir.Value) -> Affine:
        if isinstance(factor.term, ir.Value) and constant_scalar(factor.term) == 1:
            return replace(form, value=value)
        scale = factor if form.scale is None else combined("Mul", form.scale, factor)
        offset = None if form.offset is None else combined("Mul", form.offset, factor)
        return replace(form, value=value, scale=scale, offset=offset)

    def _plus(self, form: Affine, param: Param, value: ir.Value, *, is_subtracted: bool) -> Affine:
        """Returns the form of the sum with a number, which is a zero point if it is not scaled, else an offset."""
        if isinstance(param.term, ir.Value) and constant_scalar(param.term) == 0:
            return replace(form, value=value)
        number = self._unscaled(form, param) if form.scale is not None else param
        if form.offset is None and number is not None:
            if form.zero_point is None:
                zero = number if is_subtracted else number.of("Neg")
            else:
                zero = combined("Add" if is_subtracted else "Sub", like(form.zero_point, number), number)
            return replace(form, value=value, zero_point=zero)
        if form.offset is None:
            return replace(form, value=value, offset=param.of("Neg") if is_subtracted else param)
        return replace(form, value=value, offset=combined("Sub" if is_subtracted else "Add", form.offset, param))

    def _unscaled(self, form: Affine, param: Param) -> Param | None:
        """Returns z of scale * z; or None."""
        product = producer_of(param.term, "Mul") if isinstance(param.term, ir.Value) else None
        scale = None if form.scale is None or not isinstance(form.scale.term, ir.Value) else form.scale.term
        if product is None or scale is None or None in product.inputs:
            return None
        for a, b in (product.inputs, product.inputs[::-1]):
            if b is not None and a is scale:
                return self._param(b, form.value)
        return None

    def _param(self, value: ir.Value, like: ir.Value) -> Param | None:
        """Returns a value as a number for rows of `like` or for all of it; None if that is not known."""
        if (narrow := unexpanded(value, like)) is not None and (found := self._param(narrow, like)) is not None:
            return found
        if value.dtype not in (ir.DataType.FLOAT, ir.DataType.BOOL, *CODE_TYPES, *WIDE_TYPES):
            return None
        rank, of_like = rank_of(value), rank_of(like)
        if has_one_element(value) and (not rank or (of_like is not None and rank <= of_like)):
            return Param(value, rank=rank)
        if value.shape is not None and like.shape is not None and len(value.shape) <= len(like.shape):
            pairs = list(zip(reversed(value.shape), reversed(like.shape), strict=False))
            axes = frozenset(-1 - i for i, (mine, _) in enumerate(pairs) if mine != 1)
            is_known = all(is_equal(*pairs[-1 - axis]) for axis in axes)
            is_less = any(like.shape[i] != 1 for i in range(-len(like.shape), 0) if i not in axes)
            if (is_known or (axes and broadcasts(value, like))) and is_less:
                return Param(value, axes, rank)
        if is_shape_of_rows(value, like) and not same_shape(value, like):
            return Param(value, None, rank)
        return None

    # Operators that move elements

    def _moved(self, node: ir.Node, value: ir.Value) -> Affine | Unconverted | None:
        form = self.of(node.inputs[0])
        if form is None or (node.outputs.index(value) and node.op_type != "Split"):
            return self._lose(node)
        if node.op_type == "Identity" or is_idle_dropout(node):
            return replace(form, value=value)
        if node.op_type == "MaxPool" and (form.params or value.dtype not in CODE_TYPES):  # it ignores NaN
            return self._lose(node, "it ignores NaN; pool the codes before they are dequantized, or quantize after it")
        others: tuple[Affine, ...] = ()
        if node.op_type == "Concat":
            others = tuple(each for value in node.inputs[1:] if (each := self.of(value)) is not None)
            if len(others) != len(node.inputs) - 1 or any(each.shift != form.shift for each in others):
                return self._lose(node, f"its inputs are not all codes of the same kind times a scale; {_LATER}")
            form, *others_ = parts = _with_zero_points((form, *others))
            others = tuple(others_)
            for name in NUMBERS:
                if len({getattr(each, name) is None for each in parts}) > 1:
                    return self._lose(node, f"only some of its inputs have a {name.replace('_', ' ')}; {_LATER}")
            if len({self._exceptions(each) for each in parts}) > 1:
                return self._lose(node, f"only some of its inputs may be NaN or infinite, or are rounded; {_LATER}")
            low, high = min(each.low for each in parts), max(each.high for each in parts)
            mark = None if any(each.mark is None for each in parts) else form.mark
            nan = None if any(each.nan is None for each in parts) else form.nan
            form = replace(form, low=low, high=high, mark=mark, nan=nan)
        index, data = list(node.outputs).index(value), form.value

        def moved_param(name: str, param: Param) -> Param | None:
            found = concatenated(name, (form, *others), node) if others else moved(param, node, index, value, data)
            found = found or with_merged_rows(param, node, value, data)
            runs = None if found or others else param.as_runs(data.shape, form.codes, -2)
            if runs is not None and runs is not param:
                found = moved(runs, node, index, value, data)
            if found is None and name not in MARKS:
                number = name.replace("_", " ")
                raise self._lost(node, f"the {number} is not known to belong to rows after it; {_LATER_OR_SHAPES}")
            return found

        found = form.mapped(value, moved_param)
        return replace(found, moves=(*form.moves, Rearrangement(node, index, others)))

    def _exceptions(self, form: Affine) -> object:
        """Returns what the activation is told of a root: the first one stands for all parts of a Concat."""
        exceptions = form.may_have_nan_codes(self.values), form.has_bounded_codes(self.values)
        return form.is_rounded, form.divisor, *exceptions


def _with_zero_points(parts: Sequence[Affine]) -> list[Affine]:
    """Returns the parts of a Concat, with zero points of 0 if only others have some: as many as they have scales."""
    given = next((each.zero_point for each in parts if each.zero_point is not None), None)
    if given is None:
        return list(parts)
    nothing = np.zeros((), np.float32)
    return [
        part
        if part.zero_point is not None or part.scale is None
        else replace(part, zero_point=like(part.scale.of("Mul", nothing), given))
        for part in parts
    ]
