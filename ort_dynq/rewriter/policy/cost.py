"""Decides where an operator of ort_dynq costs more than it saves: the smallest sizes that are converted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ..analysis.nodes import is_standard
from ..analysis.shapes import reshapes_of
from ..analysis.standard import FAST_GELUS, LOGISTIC, SLOW_ACTIVATIONS
from ..analysis.types import CODE_TYPES
from ..reasons import Reason, Unconverted
from .ort_fusions import code_type, is_next_to_fused

# A call of a custom operator costs 0.1 us more than a call of a vectorized node, and saves 0.04 ns for each element.
_MIN_ELEMENTS = 2048
_MIN_PRODUCTS = 4096
_MIN_PRODUCTS_OF_GROUPS = 8192
_MIN_PRODUCTS_OF_RESHAPED_GROUPS = 131072  # five nodes reshape the activation's scales and zero points
# With groups of 64, 1, 8 and 64 rows of 128x160 weights take 1.07, 0.93 and 0.87 of float's time, of 256x256 0.84, 0.87
# and 0.93, of 1024x1024 0.41, 0.6 and 0.56 (AMD EPYC, Zen 3: family 25, model 1).
_MIN_WEIGHTS_OF_FLOAT_ZERO_POINTS, _MIN_PRODUCTS_OF_FLOAT_ZERO_POINTS = 65536, 1048576
_MIN_PRODUCTS_OF_NBITS = 65536  # MatMulNBits quantizes the activation in the same call
_MIN_WEIGHTS_OF_TWO_TERMS = 65536
# Of weights behind DequantizeLinear. 16 rows of 64, 128, 256 and 512 numbers by a tied table take 1.3 to 1.6, 0.9 to
# 1.2, 0.9 and 0.4 of the time in which ONNX Runtime dequantizes the table and multiplies, 1 row 0.4 to 0.8, 0.4, 0.3
# and 0.2 (AMD EPYC, Zen 3: family 25, model 1). Floats that are dequantized once take less.
_MIN_DEPTH_OF_DEQUANTIZED = 128
# Of a matrix with scales that vary along the sums. A constant one may be dequantized once, which smaller parts gain
# less from: `python tests/bench compressed` compares.
_MIN_CODES_OF_INPUTS, _MIN_COLUMNS_OF_PART, _MIN_COLUMNS_OF_CONSTANT_PART = 2048, 16, 32
_MIN_PRODUCTS_OF_TWO_TERMS = 64  # for each element of a convolution's output
# For each element of a transposed convolution with a kernel of 2x2 and stride 2. With 24 products PP-OCRv4's detector
# takes 0.94 of the time with two of them in integers, with 64 to 256 a U-Net 0.94 to 0.96 with three (AMD EPYC, Zen 5:
# family 26, model 2); with AVX2 0.95 and 1.0 to 1.01, against floats with AVX-512.
_MIN_PRODUCTS_OF_INTERLEAVED = 24
_MIN_SHARE_OF_WEIGHTS = 0.75
_MIN_PRODUCTS_OF_CONVOLUTION = 262144
# Of a product of floats. On AMD EPYC, Zen 3 (family 25, model 1), 64x256 and 128x128 weights take 1.0 to 1.4 of float's
# time with 1 to 128 rows, 32x1024 and 1024x32 0.95 to 1.25. 48x1024 and 120x240 take 0.87 to 1.02 with 16 rows or more,
# but 1.04 to 1.2 with one: its calls cost more than it saves, with VNNI, too. Only with VNNI, many rows of smaller
# matrices would gain.
_MIN_WEIGHTS, _MIN_ROWS_OR_COLUMNS = 24576, 48
_MIN_WEIGHTS_OF_A_ROW = 49152
# Two Transposes cost as much as some products by each row and column. With VNNI (AMD EPYC, Zen 4: family 25, model 17),
# matrices of 48 rows or columns take 0.6 to 1.13 of float's time, of 64 0.54 to 1.07, of 80 or more 0.43 to 0.94.
_MIN_ROWS_OR_COLUMNS_OF_TRANSPOSED = 80
# Codes and scales of each term are outputs of the program that else has the sum: with 256x256 weights, the product
# takes 0.95 to 1.9 of the time with a float product, with 512x512 0.68 to 0.87 (AMD EPYC, Zen 5: family 26, model 2).
# Without VNNI, 512x512 take 0.8 with one row and 1.7 to 2.1 with 16 to 128, against floats with AVX-512 (the same CPU);
# against floats with AVX2, which take twice as long (measured with OpenBLAS), 0.9 to 1.1.
_MIN_WEIGHTS_OF_SUM = 262144
_MIN_ROWS_OF_TABLE = 1024  # twice as many as tokens that a text usually has
_MIN_WEIGHTS_OF_TRANSPOSED = 16384
_MIN_WEIGHTS_OF_RECURRENCE = 12288  # of a direction
# Kernels multiply 16 positions at once, also of several samples. A single position is a product of a matrix and a
# vector, which is as fast in float. Windows of a signal have few positions, but there are many windows, and the
# positions of all are rows of one product: with VNNI (AMD EPYC, Zen 5: family 26, model 2), a voice detector (that of
# silero-vad, 1 to 5 positions) takes 0.87 of float's time for one window, 0.47 for 4 and 0.31 for 312.
_MIN_POSITIONS = 8
_MIN_WEIGHTS_OF_A_CHANNEL = 128  # the kernel of a Fourier transform has them, that of a depthwise convolution not
# Of a convolution: the products that save what an element of its input costs, which is quantized, and one of its
# output, which is stored and reordered for a float layer. Without VNNI (AMD EPYC, Zen 3: family 25, model 1),
# MobileNetV3 and EfficientNet-B0 take 0.98 to 1.01 and 0.97 of float's time with these limits, 1.06 and 1.01 with
# layers of 24 and 40 channels in integers.
# Transposed convolutions of floats take longer: phases have lower limits (docs/decisions.md).
_MIN_PRODUCTS_OF_AN_INPUT, _MIN_PRODUCTS_OF_AN_OUTPUT = 20, 37
_MIN_PRODUCTS_OF_AN_INPUT_OF_PHASES, _MIN_PRODUCTS_OF_AN_OUTPUT_OF_PHASES = 15, 20
# Without VNNI (the same CPU), a first layer of 3 channels takes 1.0 to 1.3 of float's time with 3x3 weights and 1.03 to
# 1.4 with 5x5, with 32 or 64 output channels and stride 1 or 2. 4x4 weights with stride 4 take 1.6 with 32 output
# channels and 1.0 to 1.06 with 96; 7x7 weights 0.86 to 0.93, 16x16 weights 0.9 to 1.05.
_MAX_CHANNELS_OF_AN_IMAGE, _MIN_PRODUCTS_OF_AN_OUTPUT_OF_AN_IMAGE = 4, 96
# ONNX Runtime copies the windows of a layer over time to a matrix: docs/decisions.md has the times.
_MIN_PRODUCTS_OF_AN_OUTPUT_OF_A_SOUND = 32
# Div, Round and Mul of 8 elements take 1.09 times the time of their program, of 128x768 elements 2.0 times (AMD EPYC,
# Zen 3: family 25, model 1).
_MIN_PASSES_SAVED = 2  # by a program
_FAST_FUNCTIONS = LOGISTIC | FAST_GELUS  # of ONNX Runtime
# A program of one of SLOW_ACTIVATIONS takes 0.03 of its time (Mish, PRelu), 0.06 (Softplus), 0.2 to 0.25 (Elu, Selu,
# Celu), 0.54 (HardSwish, LeakyRelu), of others 0.65 to 1.3 (AMD EPYC, Zen 5: family 26, model 2). With AVX2 (the same
# CPU; 256x1024 to 4096x4096 elements) it takes 0.03 to 0.06, 0.1, 0.3 to 0.41 and 0.4 to 0.66; LeakyRelu of 4096x4096
# elements, which memory limits, takes as long. That of two to five nodes takes 0.25 to 0.87 of their time.
# A gate of channels takes 0.5 to 0.8 of the time of its nodes with 6x24 to 24x96 weights, 1.0 with 120x480, 1.2 with
# 168x672 and 1.3 with 240x960: large weights take the time of reading them (the same CPU).
_MAX_WEIGHTS_OF_GATE = 65536
_MIN_ELEMENTS_OF_FUNCTION = 4096  # below, a program saves less than its inputs and outputs cost
# Rows of codes cost a microsecond more, for two nodes more. Short rows save too little for their scales.
_MIN_NUMBERS_OF_TABLE, _MIN_COLUMNS_OF_TABLE = 131072, 128
ASSUMED = 8
"""The length of a dimension that is not fixed, as in verification."""


def has_few_elements(x: ir.Value) -> bool:
    """Returns whether a tensor is known to be so small that one vectorized node is as fast as a custom operator."""
    return _has_fewer_elements(x, _MIN_ELEMENTS)


def _has_fewer_elements(x: ir.Value, count: int) -> bool:
    return x.shape is not None and x.shape.is_static() and math.prod(x.shape.numpy()) < count


def saves_passes(count: int) -> bool:
    """Returns whether a program saves enough: the number of nodes that read or write a whole tensor in its place."""
    return count - 1 >= _MIN_PASSES_SAVED


def saves_with_function(function: ir.Node, count: int) -> bool:
    """Returns whether a program of an activation function and the quantization of its result saves enough.

    ONNX Runtime's Sigmoid, Tanh, QuickGelu and FastGelu take less time than the steps of a program, its other
    functions more. So a program of such a function and a quantization alone saves nothing; with a factor between them
    it does.

    Args:
        function: The node of the function.
        count: The number of nodes that read or write a whole tensor in its place.
    """
    fewest = 3 if function.op_type in _FAST_FUNCTIONS else 2
    return count >= fewest and not _has_fewer_elements(function.outputs[0], _MIN_ELEMENTS_OF_FUNCTION)


def saves_as_program(x: ir.Value, nodes: Sequence[ir.Node], count: int) -> bool:
    """Returns whether elementwise nodes between other layers take more time than one program.

    Args:
        x: The tensor. If its size is not known, it is assumed to be large.
        nodes: The nodes.
        count: The number of nodes that read or write a whole tensor.
    """
    is_slow = any(each.op_type in SLOW_ACTIVATIONS for each in nodes)
    return (is_slow or min(len(nodes), count) >= 2) and not _has_fewer_elements(x, _MIN_ELEMENTS_OF_FUNCTION)


def is_large_gate(channels: int, hidden: int) -> bool:
    """Returns whether a gate of channels takes more time as one operator than as nodes of ONNX Runtime.

    Args:
        channels: The number of channels.
        hidden: The numbers between its products.
    """
    return channels * hidden > _MAX_WEIGHTS_OF_GATE


def too_small(node: ir.Node) -> Unconverted | None:
    """Returns the reason why a node gains nothing from becoming one operator of ort_dynq, or None.

    A node is converted at any size next to an operator that ONNX Runtime fuses, correctly or not. If no dimension is
    fixed, the size is not known. If some dimensions are fixed, such as a layer's width, the others are assumed to be
    short.

    Args:
        node: A QuantizeLinear or DequantizeLinear.
    """
    x, scale = node.inputs[:2]
    if x is None or scale is None or x.shape is None or scale.shape is None:
        return None
    known = [dim for dim in x.shape if isinstance(dim, int)]
    unknown = len(x.shape) - len(known)
    if unknown > 0 and not known:
        return None
    quantizes, elements = node.op_type == "QuantizeLinear", math.prod(known) * ASSUMED**unknown
    rank, axis = len(x.shape), node.attributes.get_int("axis", 1)
    if node.attributes.get_int("block_size", 0) > 0:
        is_quick = (axis in (-1, rank - 1)) == quantizes
    else:
        is_quick = len(scale.shape) == 0 or tuple(scale.shape) == (1,) or (not quantizes and axis in (0, -rank))
    has_kernels = scale.dtype == ir.DataType.FLOAT and code_type(node) in CODE_TYPES  # which ONNX Runtime fuses
    if elements >= _MIN_ELEMENTS or (has_kernels and (not is_quick or is_next_to_fused(node))):
        return None
    assumed = f", with {ASSUMED} for each dynamic dimension" if unknown else ""
    return Unconverted(Reason.TENSOR_TOO_SMALL, elements=elements, assumed=assumed)


def is_tiny_product_of_rows(source: ir.Node | None, columns: int) -> bool:
    """Returns whether a product saves less than the nodes cost that reshape the scales of its rows.

    Args:
        source: The node that quantizes the activation. Scales of rank 1 of a QuantizeLinear need these nodes.
        columns: The number of output channels.
    """
    if source is None or not is_standard(source, "QuantizeLinear"):
        return False
    x, scale = source.inputs[:2]
    if scale is None or scale.shape is None or len(scale.shape) != 1 or scale.shape[0] == 1:
        return False
    if x is None or x.shape is None or not x.shape.is_static():
        return False
    return math.prod(x.shape.numpy()) * columns < _MIN_PRODUCTS


def is_short_table(rows: int, picked: int | None) -> bool:
    """Returns whether a table of codes is dequantized as fast as the rows that are picked of it.

    Args:
        rows: The rows of the table.
        picked: The number of rows that are picked; None if it is not known.
    """
    return rows < (_MIN_ROWS_OF_TABLE if picked is None else 2 * picked)


def is_tiny_sum(size: int) -> bool:
    """Returns whether a product of a sum of two quantized terms takes as long as the one of floats.

    Args:
        size: The number of weights.
    """
    return size < _MIN_WEIGHTS_OF_SUM


def is_tiny_transposed_product(depth: int, columns: int) -> bool:
    """Returns whether a product that transposes codes and its result takes as long as the one of floats.

    On AMD EPYC, Zen 5 (family 26, model 2), weights of 64x64 take 0.95 to 1.2 of float's time, 128x160 take 0.77.
    Without VNNI, 128x128 take 1.1 to 1.4 of the time of floats with AVX-512, 0.93 of that of floats with AVX2.
    """
    return depth * columns < _MIN_WEIGHTS_OF_TRANSPOSED


def is_tiny_product_of_groups(activation: ir.Value, columns: int) -> bool:
    """Returns whether a product with scales of groups is so small that the float product takes less time.

    Args:
        activation: The left factor, [..., K]. A dimension that is not known is assumed to be short.
        columns: The number of output channels.
    """
    if activation.shape is None:
        return False
    elements = math.prod(dim if isinstance(dim, int) else ASSUMED for dim in activation.shape)
    is_reshaped = bool(reshapes_of(activation))
    fewest = _MIN_PRODUCTS_OF_RESHAPED_GROUPS if is_reshaped else _MIN_PRODUCTS_OF_GROUPS
    return elements * columns < fewest


def is_tiny_product_of_float_zero_points(activation: ir.Value, depth: int, columns: int) -> bool:
    """Returns whether sums of the activation, for zero points of weights that are no codes, cost more than is saved.

    Args:
        activation: The left factor, [..., K]. A dimension that is not known counts as 1.
        depth: K.
        columns: The number of output channels.
    """
    lengths = [] if activation.shape is None else [dim if isinstance(dim, int) else 1 for dim in activation.shape]
    has_many = math.prod(lengths) * columns >= _MIN_PRODUCTS_OF_FLOAT_ZERO_POINTS
    return depth * columns < _MIN_WEIGHTS_OF_FLOAT_ZERO_POINTS and not has_many


def is_tiny_nbits(activation: ir.Value, depth: int, columns: int, terms: int) -> bool:
    """Returns whether a MatMulNBits is so small that two calls of operators in its place take more time.

    Args:
        activation: The left factor, [..., K]. A dimension that is not known is assumed to be short.
        depth: K.
        columns: The number of output channels.
        terms: The codes that an element of the activation gets. If there are two, the activation is a float before: the
            time that is saved depends on the weights.
    """
    if terms > 1:
        return depth * columns < _MIN_WEIGHTS_OF_TWO_TERMS
    if activation.shape is None:
        return False
    rows = math.prod(dim if isinstance(dim, int) else ASSUMED for dim in list(activation.shape)[:-1])
    return rows * depth * columns < _MIN_PRODUCTS_OF_NBITS


def is_short_dequantized(depth: int, terms: int) -> bool:
    """Returns whether weights behind DequantizeLinear are multiplied sooner as floats that are dequantized once.

    Args:
        depth: K. An element of the result costs the same with few products: two sums to convert, scale and add.
        terms: The codes that an element of the activation gets.
    """
    return terms > 1 and depth < _MIN_DEPTH_OF_DEQUANTIZED


def is_tiny_compressed(depth: int, columns: int, size: int, *, is_constant: bool) -> bool:
    """Returns whether a product with a matrix of scales that vary along the sums costs more than it saves.

    Args:
        depth, columns: The shape of the matrix.
        size: The columns that share scales.
        is_constant: Whether the matrix is constant: it may be dequantized once.
    """
    if is_constant:
        return depth * columns < _MIN_WEIGHTS_OF_TWO_TERMS or size < _MIN_COLUMNS_OF_CONSTANT_PART
    return depth * columns < _MIN_CODES_OF_INPUTS or size < _MIN_COLUMNS_OF_PART


def is_tiny_matrix(depth: int, columns: int, terms: int = 1, *, is_transposed: bool = False) -> bool:
    """Returns whether quantizing the activation of a float product costs more than integers save, for any rows.

    Args:
        depth: The length of a row of the activation.
        columns: The number of output channels.
        terms: The codes that an element of the activation gets.
        is_transposed: Whether the activation is transposed before and the result after the product.
    """
    fewest = _MIN_WEIGHTS if terms == 1 else _MIN_WEIGHTS_OF_TWO_TERMS
    shortest = _MIN_ROWS_OR_COLUMNS_OF_TRANSPOSED if is_transposed else _MIN_ROWS_OR_COLUMNS
    return depth * columns < fewest or min(depth, columns) < shortest


def is_tiny_row(activation: ir.Value, depth: int, columns: int) -> bool:
    """Returns whether the activation of a float product is one row, and the matrix too small for its two calls.

    Args:
        activation: The left factor, [..., K] or its transpose.
        depth: K.
        columns: The number of output channels.
    """
    shape = activation.shape
    is_row = shape is not None and shape.is_static() and math.prod(shape.numpy()) == depth
    return is_row and depth * columns < _MIN_WEIGHTS_OF_A_ROW


def is_slow_transposed_convolution(
    node: ir.Node, channels: int, kernel: Sequence[int], strides: Sequence[int], taps: Sequence[int]
) -> bool:
    """Returns whether a ConvTranspose takes less time in float than as a convolution with interleaved channels.

    Interleaving takes the time of some products for each element of the output.

    Args:
        node: The ConvTranspose.
        channels: The number of input channels of a group.
        kernel, strides: The shape of the kernel and the strides.
        taps: The shape of the kernels of the convolution. They have more weights if strides do not divide the kernel.
    """
    depth = channels * math.prod(kernel) / math.prod(strides)  # products of an element of the output
    if depth < max(_MIN_PRODUCTS_OF_INTERLEAVED, _MIN_SHARE_OF_WEIGHTS * channels * math.prod(taps)):
        return True
    shape = node.outputs[0].shape
    if shape is None or not shape.is_static():
        return False
    return math.prod(shape.numpy()) * depth < _MIN_PRODUCTS_OF_CONVOLUTION


def has_short_sums(shape: Sequence[int], group: int) -> bool:
    """Returns whether a convolution has the short sums of single channels, as a depthwise one does: float is faster.

    Quantizing the activation takes longer than integers save, with VNNI and without it.

    Args:
        shape: The shape of its weights, [M, C / group, k1, ..., kr].
        group: The number of groups.
    """
    is_sound = len(shape) == 3 and group == 1
    fewest = _MIN_PRODUCTS_OF_AN_OUTPUT_OF_A_SOUND if is_sound else _MIN_WEIGHTS_OF_A_CHANNEL
    return shape[1] == 1 and math.prod(shape[2:]) < fewest


def has_few_products(shape: Sequence[int], strides: Sequence[int], group: int, is_transposed: bool = False) -> bool:
    """Returns whether a convolution has so few products that quantizing its activation takes what integers save.

    Args:
        shape: The shape of its weights, [M, C / group, k1, ..., kr].
        strides: The strides.
        group: The number of groups; only one is considered.
        is_transposed: Whether it computes the phases of a transposed convolution.
    """
    if group > 1:
        return False
    of_an_output, of_an_input = math.prod(shape[1:]), shape[0] * math.prod(shape[2:]) / math.prod(strides)
    if shape[1] <= _MAX_CHANNELS_OF_AN_IMAGE:
        is_sound = len(shape) == 3
        return of_an_output < (
            _MIN_PRODUCTS_OF_AN_OUTPUT_OF_A_SOUND if is_sound else _MIN_PRODUCTS_OF_AN_OUTPUT_OF_AN_IMAGE
        )
    if is_transposed:
        fewest = _MIN_PRODUCTS_OF_AN_INPUT_OF_PHASES, _MIN_PRODUCTS_OF_AN_OUTPUT_OF_PHASES
    else:
        fewest = _MIN_PRODUCTS_OF_AN_INPUT, _MIN_PRODUCTS_OF_AN_OUTPUT
    return fewest[0] / of_an_input + fewest[1] / of_an_output > 1


def has_short_sums_for_two_terms(depth: int) -> bool:
    """Returns whether a convolution of two terms takes more time than in float: its sums have `depth` products."""
    return depth < _MIN_PRODUCTS_OF_TWO_TERMS


def is_small_table(rows: int, columns: int) -> bool:
    """Returns whether 8 bits for the numbers of a table of embeddings save too few bytes."""
    return rows * columns < _MIN_NUMBERS_OF_TABLE or columns < _MIN_COLUMNS_OF_TABLE


def is_tiny_recurrence(x: ir.Value, depth: int, columns: int) -> bool:
    """Returns whether a recurrent layer of integers takes more time than one of floats, for any batch.

    Args:
        x: Its input, [steps, batch, elements]. If there is one step, it has to save the calls of two more operators.
        depth: The elements of a state.
        columns: The gates times the elements of a state.
    """
    is_one_step = x.shape is not None and len(x.shape) == 3 and x.shape[0] == 1
    return depth * columns < _MIN_WEIGHTS_OF_RECURRENCE * (3 if is_one_step else 1)


def is_tiny_convolution(node: ir.Node, weights: npt.NDArray[np.int8], *, has_scales_of_samples: bool = False) -> bool:
    """Returns whether quantizing a Conv costs more than integers save; False if the size of its input is not known.

    Args:
        node: The Conv.
        weights: Its weights, [M, C / group, k1, ..., kr].
        has_scales_of_samples: Whether each sample has a scale: then samples of a few positions do not share vectors.
    """
    shape = node.outputs[0].shape
    lengths = [] if shape is None else [dim for dim in list(shape)[2:] if isinstance(dim, int)]
    if shape is None or len(lengths) != weights.ndim - 2:
        return False
    if not isinstance(shape[0], int) and weights.ndim == 3:
        return False  # samples of unknown number are windows of a signal: see above
    batch = shape[0] if isinstance(shape[0], int) else 1
    positions = math.prod(lengths)
    if positions == 1 or positions * (1 if has_scales_of_samples or weights.ndim > 4 else batch) < _MIN_POSITIONS:
        return True
    return batch * weights.size * positions < _MIN_PRODUCTS_OF_CONVOLUTION
