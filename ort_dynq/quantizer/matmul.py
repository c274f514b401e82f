"""The rule for MatMul and Gemm with constant float weights.

activation, MatMul | Gemm, [Add bias]    -> quantization, QuantizedMatMul
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..graphs import STANDARD_DOMAINS
from ..operators.quantized_matmul import GROUP_UNIT
from ..rewriter.analysis.inference import Facts
from ..rewriter.edit import Edit
from ..rewriter.policy.cost import is_tiny_matrix
from ..rewriter.products.channels import Channels
from ..rewriter.products.grid import Grid, grid_of
from ..rewriter.products.provenance import note_activation
from ..rewriter.products.quantized_matmul import build_quantized_matmul
from ..rewriter.products.shared_grids import SharedGrids
from ..rewriter.products.tail import Tail, check_length, check_sums
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.rule import Context, Rule
from .activations import FloatActivations, check_activation
from .options import OLDEST_OPSET, Options
from .weights import check_constant, floats_of, grid_of_columns, grid_of_groups, release


@dataclass(frozen=True)
class _Match:
    activation: ir.Value
    is_transposed: bool  # the activation
    grid: Grid
    tail: Tail
    options: Options
    note: str


def _match(node: ir.Node, context: Context, options: Options) -> _Match | None:
    if node.domain not in STANDARD_DOMAINS or node.op_type not in ("MatMul", "Gemm"):
        return None
    options.check(node)
    a, b, bias = [*node.inputs, None, None, None][:3]
    if a is None or b is None:
        return None
    facts, gemm = context.facts, _attributes_of(node)
    if facts.is_constant(a) and not facts.is_constant(b):
        raise Unconverted(Reason.WEIGHTS_LEFT)
    check_constant(b, facts)
    check_activation(a)
    search = functools.partial(_grid_of, b, gemm.has_transposed_weights, options, facts)
    grid, note = context.shared(SharedGrids).of(b, gemm.has_transposed_weights, search)
    check_length(grid)
    channels = Channels(grid.codes.shape[1], rank=1 if a.shape is None else len(a.shape))
    bias = bias if gemm.beta else None
    found = channels.bias(bias, facts)
    if bias is not None and found is None:
        raise Unconverted(Reason.BIAS)
    if bias is not None and gemm.beta != 1 and (found := channels.vector(bias, np.float32, facts)) is None:
        raise Unconverted(Reason.BIAS_AT_RUN_TIME)
    scale = _times(grid.scale, gemm.alpha, "the weights times the attribute alpha")
    if isinstance(found, np.ndarray) and gemm.beta != 1:
        found = _times(found, gemm.beta, "the bias times the attribute beta")
    tail = Tail(node, channels, node.outputs[0], column=scale, bias=found)
    tail = tail if bias is not None else tail.past_bias(facts)
    return _Match(a, gemm.has_transposed_activation, grid, tail, options, note)


def _build(match: _Match, edit: Edit) -> None:
    a = match.activation
    if match.is_transposed:
        a = edit.insert(ir.node("Transpose", [a], {"perm": [1, 0]}), before=edit.node)
    else:
        note_activation(edit, a)
    codes = edit.shared(FloatActivations).of_rows(a, edit, match.options)
    build_quantized_matmul(match.tail, codes, match.grid, edit)
    edit.note = match.note


def rule(options: Options) -> Rule[_Match]:
    """Returns the rule with these options."""
    match = functools.partial(_match, options=options)
    return Rule("quantized matrix product", OLDEST_OPSET, match, _build, reports_opset=True)


@dataclass(frozen=True)
class _Attributes:
    """The attributes of a Gemm: alpha * A @ B + beta * C; their defaults are a MatMul."""

    alpha: float = 1.0
    beta: float = 1.0
    has_transposed_activation: bool = False
    has_transposed_weights: bool = False


def _attributes_of(node: ir.Node) -> _Attributes:
    """Returns the attributes of a MatMul or Gemm.

    Raises:
        Unconverted: The caller of a function gives one.
    """
    if node.op_type == "MatMul":
        return _Attributes()
    alpha, beta = (node.attributes.get_float(name, 1.0) for name in ("alpha", "beta"))
    return _Attributes(alpha, beta, *(node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB")))


def _times(numbers: npt.NDArray[np.float32], factor: float, name: str) -> npt.NDArray[np.float32]:
    """Returns numbers times a factor.

    Raises:
        Unconverted: One of the products is not finite in float32.
    """
    with np.errstate(all="ignore"):
        products = numbers * np.float32(factor)
    if not np.isfinite(products).all():
        raise Unconverted(Reason.GEMM_OVERFLOW, what=name)
    return np.asarray(products)


def _grid_of(b: ir.Value, is_transposed: bool, options: Options, facts: Facts) -> tuple[Grid, str]:
    """Returns constant weights, or their transpose, as codes, and a note if they differ from the options.

    Raises:
        Unconverted: They cannot become codes, or it does not pay.
    """
    found = _grid(floats_of(b, facts), is_transposed, options)
    release(b)
    return found


def _grid(weights: npt.NDArray[np.float32], is_transposed: bool, options: Options) -> tuple[Grid, str]:
    """Returns weights, [K, N], or [N, K] if they are transposed, as codes, and a note if they differ from the options.

    Weights that are the result of a dequantization keep its codes.
    """
    if weights.ndim != 2:
        raise Unconverted(Reason.WEIGHTS_RANK, rank=weights.ndim, expected=2)
    if is_transposed:
        weights = weights.T
    depth, columns = weights.shape
    if is_tiny_matrix(depth, columns):
        raise Unconverted(Reason.WEIGHTS_TOO_FEW, depth=depth, columns=columns)
    if (grid := grid_of(weights)) is not None and (grid.bits == 4 or options.weights == "int8"):
        return grid, ""
    if options.weights == "int4":
        size = options.group
        while size >= GROUP_UNIT and depth % size:
            size //= 2
        if size >= GROUP_UNIT:
            differs = size != options.group
            note = f"groups of {size}, since groups of {options.group} do not divide {depth} rows" if differs else ""
            return grid_of_groups(weights, size), note
        return _int8(weights), f"int8, since no group divides {depth} rows"
    return _int8(weights), ""


def _int8(weights: npt.NDArray[np.float32]) -> Grid:
    check_sums(len(weights), np.zeros(1, np.int8))
    return grid_of_columns(weights)
