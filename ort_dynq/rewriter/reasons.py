"""The reasons why nodes stay as they are: every reason, with its code and its text.

A rule raises :class:`Unconverted` with a :class:`Reason`. The text is made where it is shown.
"""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any


class Reason(Enum):
    """The reasons. The lower-case name is the code; the value is the text, with fields in braces."""

    # The model, and ONNX Runtime's folding and fusions
    OPSET_TOO_OLD = "the model is of opset {opset}, expected {oldest} or newer"
    CONTRADICTION = "{text}"
    FUSED = "ONNX Runtime fuses {nodes} into {kernel}"
    FUSED_MATMUL_INTEGER = "ONNX Runtime fuses DynamicQuantizeLinear and MatMulInteger, and keep_fused keeps them"
    KEPT = "ONNX Runtime has fused it, and keep_fused keeps it"
    SMALL_WEIGHTS = "ONNX Runtime's fused kernel has exact sums on every CPU: no int8 weight is larger than 64"
    STATIC = "the scale of its activation is a constant: static quantization is left to ONNX Runtime"
    EXACT = "exact: an integer product changes the last bits"
    EXACT_WIDE_CODES = (
        "exact: NaN becomes another number in a Cast to {dtype} than in one to 8 bits. Cast the codes to int8 or uint8 "
        "before it, or leave exact out: the integer product has the same bits wherever x is finite"
    )
    TENSOR_TOO_SMALL = "a tensor of {elements} elements{assumed}: calling a custom operator costs more than it saves"
    SEARCH_LIMIT = "a search behind it ended after {most} {unit}, so that a form of more is not recognized"
    NO_INPUT = "{operator} has no input {index}"
    TYPE = "the type of {what} is {dtype}, expected {expected}"
    TYPE_NOT_KNOWN = "the type of {what} is not known{after}, expected {expected}"

    # QuantizeLinear and DequantizeLinear
    OUTPUT_DTYPE = "output_dtype is not the type of the scale"
    PRECISION = "the attribute precision selects another type than float32 for the division"
    SCALE_NOT_OF_TYPE_OF_X = "the scale is not of the type of x"
    FOUR_BITS_BEFORE_1_23 = "the codes have 4 bits, and ONNX Runtime before 1.23 cannot run the operator's function"
    FLOAT16_QUOTIENT_ROUNDED = (
        "x is float16, and from opset 23 on, the quotient is rounded to float16 without precision = 1"
    )
    FLOAT16_SCALE_NOT_ROUNDED = (
        "the scale is float16, and ONNX Runtime may read it before it is rounded; compute it in float32 and Cast it"
    )
    FLOAT16_QUOTIENT_TRUNCATED = (
        "x is float16, and ONNX Runtime before 1.30 truncates the quotient instead of rounding it"
    )

    # Chains of primitive operators
    PROGRAM_TOO_SHORT = "a program of this node and its neighbors would cost more than it saves"
    PROGRAM_CUT = (
        "no program has a step for {operator} {name}; a program of the nodes around it would cost more than it saves"
    )
    PROGRAM_TOO_LONG = (
        "with {operator} {name}, a program would have more than {most} steps; a program of the nodes around it would "
        "cost more than it saves"
    )
    NOT_ROUNDED = "the codes are {how}, expected Round"
    SCALE_BROADCAST_TO_CODES = "the scale's shape is not known to broadcast to the shape of the codes"
    SCALE_BROADCAST_TO_X = (
        "the scale's shape is not known to broadcast to the shape of x: declare the shape of {name} in value_info"
    )
    SCALE_OF_OTHER_AXES = (
        "the scale varies along the last axis, and a program scales rows: quantize with this axis moved before them"
    )
    ZERO_POINT_NO_CODE = "the zero point is not one of the codes"
    ZERO_POINT_TYPE = "the zero point is of another type than the codes"

    NO_FLOAT_FORM = "it stays: {what}"

    # Ranges, and the scales and zero points that are computed from them
    RANK_NOT_KNOWN = "the rank of x is not known"
    MAGNITUDES_USED_ELSEWHERE = "other nodes also use the magnitudes"

    # Activations of products
    FORM_LOST = "its activation is no longer codes times a scale after {operator} {name}: {why}"
    ACTIVATION_CHANNELS = (
        "the activation has a scale or a zero point for each element of K, and integer sums have one for all of them: "
        "quantize with one for each token or group of 16 or more, and scale channels in the weights before it"
    )
    ACTIVATION_FORM = "its activation is quantized in a form that has no integer product"
    ACTIVATION_SCALES = "the activation is not known to have one scale for each row"
    ACTIVATION_ZERO_POINT = (
        "the activation's zero point is not one number, and is not known to have the shape of its scale"
    )
    OFFSET_ROUNDED = "the activation has an offset or a zero point that is no code, and is rounded to float16"
    ACTIVATION_ONE_ZERO_POINT = "the activation's zero point is not one number"
    ACTIVATION_OF_SAMPLES = (
        "a convolution needs one scale and one zero point for its whole activation, or for each sample; one of 1x1 "
        "with strides of 1 and without pads may have a scale for each position"
    )
    ACTIVATION_FEW_BITS = (
        "the codes of its activation are {dtype}, and integer products take 8 bits; quantize it to int8"
    )
    ACTIVATION_TYPE = "the activation is {dtype}, expected float32"
    ACTIVATION_TYPE_NOT_KNOWN = "the type of the activation is not known"
    ACTIVATION_NOT_QUANTIZED = "the activation is not quantized by DynamicQuantizeLinear"
    GROUPS_DO_NOT_DIVIDE = "groups of {group_size} elements that share a scale do not divide a row of {depth}"
    GROUPS_UNIT = "groups of {group_size} elements share a scale, expected a multiple of {unit}"
    CODES_NOT_PROVEN = (
        "the codes are not clipped, and not proven to fit 8 bits: clip them, or clamp the largest magnitude away from 0"
    )
    CODES_RESHAPED = "the codes are reshaped after their zero points are subtracted"
    ZERO_POINT_OF_ROWS = "the zero point is not known to be one number for each row, or for all codes"

    # Weights of products
    WEIGHTS_AT_RUN_TIME = "the weights are computed at run time"
    WEIGHTS_OR_ZERO_POINTS_AT_RUN_TIME = "the weights or their zero points are computed at run time"
    WEIGHTS_NOT_KNOWN = "the weights are not known: ONNX Runtime cannot compute them"
    WEIGHTS_COMPUTED = "the model computes the weights from {stored} bytes; it would store {size} bytes of codes"
    WEIGHTS_TYPE_NOT_KNOWN = "the type of the weights is not known"
    WEIGHTS_TYPE = "the weights are {dtype}, expected float32"
    WEIGHTS_NOT_A_GRID = "the weights are not an 8-bit grid in each output channel, or in groups of 16 to 256 along K"
    WEIGHTS_STEPS = (
        "the weights are multiples of one number over more than the 256 steps of 8 bits: 2 * "
        "round(255 * w) / 255 - 1 has none at 0 and odd multiples of 1 / 255; 254 in place of 255 gives 8 bits"
    )
    WEIGHTS_NOT_A_GRID_OF_CHANNELS = "the weights are not an 8-bit grid in each output channel"
    WEIGHTS_NOT_8_BITS = "the weights are not a matrix of integers of 8 bits"
    WEIGHTS_NO_MATRIX = "the weights are not a matrix, or empty"
    WEIGHTS_SCALES = "the scales of the weights are not constants, one for all or one for each output channel"
    WEIGHTS_EMPTY = "the weights are empty"
    WEIGHTS_RANK = "the weights are of rank {rank}, expected {expected}"
    WEIGHTS_NOT_FINITE = "the weights have NaN or an infinity"
    WEIGHTS_LEFT = "the weights are the left factor, and the right one is not known to have their K and stack"
    WEIGHTS_OVERRIDABLE = "the weights are also an input of the model, which may override them; remove this input"
    WEIGHTS_ZERO_POINTS = "the zero points of the weights are not one number for each output channel"
    WEIGHTS_ZERO_POINT_TYPE = "the zero points of the weights are of another type than the weights"
    WEIGHTS_TOO_FEW = "{depth} x {columns} weights are too few: quantizing the activation costs more than integers save"
    WEIGHTS_TOO_FEW_FOR_TWO_TERMS = (
        "{depth} x {columns} weights are too few: two terms cost more than integers save; use --activations token"
    )
    ONLY_WEIGHTS_QUANTIZED = "only its second factor is quantized"
    TWO_ACTIVATIONS = "a product of two activations"
    TWO_QUANTIZED_ACTIVATIONS = (
        "a product of two quantized activations: packing the codes of one in each run takes as long as it saves"
    )

    # Weights of MatMulNBits
    NBITS_FLOAT_ACTIVATION = (
        "its accuracy_level, {level}, asks for a float activation; --weights-only blocks or two-term converts it"
    )
    NBITS_WIDTH = "its weights have {bits} bits, expected 2, 4 or 8"
    NBITS_ZERO_POINTS = "the zero points of its weights are {dtype}, expected uint8, float32 or float16"
    NBITS_REAL_ZERO_POINTS = "its weights have zero points that are no integers, and its activation is no float32"
    NBITS_ORDER = "g_idx assigns its weights to blocks in another order"
    NBITS_SHARED = "other nodes also read its packed weights: the model would store them twice"
    NBITS_SHAPE = "the {what} have {size} elements, expected {expected}"
    NBITS_PREPACKED = "its weights are packed for another device"

    # Mixtures of experts (QMoE)
    EXPERTS_FLOAT_ACTIVATION = (
        "ONNX Runtime computes these experts with float activations (accuracy_level {level}, block_size "
        "{block_size}); --weights-only blocks or two-term converts them"
    )
    EXPERTS_WIDTH = "the weights of the experts have {bits} bits, expected 2, 4 or 8"
    EXPERTS_ATTRIBUTE = "its {name} is {value}: ort_dynq has no such mixture of experts"
    EXPERTS_ACTIVATION = "its activation_type is {kind}, with swiglu_fusion {fusion} and {fc3} fc3"
    EXPERTS_COUNTS = "its products have weights of {counts} experts: expected the same number"
    EXPERTS_CHOSEN = "its k is {k}, expected 1 to the number of experts, {experts}"
    EXPERTS_SCORES = "its router scores {scores} experts, but its weights are of {experts}"
    EXPERTS_SHARED = "its products share codes, with different scales: the model would store them twice"
    EXPERTS_IN_QUANTIZE = (
        "quantize does not convert mixtures of experts; run ort-dynq rewrite on the result, or in place of quantize, "
        "with --weights-only two-term if the experts have float activations"
    )
    EXPERTS_SHAPE = "the shape of {name} is not known, or has not three dimensions"

    # Weights behind DequantizeLinear of products of floats, and what ONNX Runtime makes of these
    DEQUANTIZED_SHARED = "other nodes also read its weights: the model would store them twice"
    DEQUANTIZED_CODES = "the codes of its weights are {dtype}, expected integers of 2, 4 or 8 bits"
    DEQUANTIZED_INVALID = "the DequantizeLinear of its weights is not valid: {what}"
    DEQUANTIZED_TYPE = "its dequantized weights are converted to {dtype}, expected float32 or float16"
    DEQUANTIZED_OVERFLOW = "its weights are rounded to float16, and may be larger than float16 represents"
    DEQUANTIZED_SCALES = "the scales of its weights vary within blocks of 16 along K"
    DEQUANTIZED_TOO_LARGE = "dequantized once, the weights of the model would take more than 1 GB"
    DEQUANTIZED_LITTLE = (
        "its {percent} % of the model's products save nothing beside those of the convolutions, which stay; "
        "--weights-only two-term converts it"
    )
    MADE_LEVEL_4 = (
        "ONNX Runtime alone makes MatMulNBits of accuracy_level 4 of it, which rounds its activation to 8 bits"
    )
    MADE_DEQUANTIZATION = "ONNX Runtime alone dequantizes its weights in every run"
    WEIGHTS_DEQUANTIZED = (
        "only its weights are quantized, and ONNX Runtime dequantizes them in every run; ort-dynq quantize makes an "
        "integer layer of it unless float is as fast, and ort-dynq dequantize stores floats"
    )
    CODES_DEQUANTIZED = (
        "the int8 codes of its activation come from no QuantizeLinear: ONNX Runtime dequantizes both factors in every "
        "run; ort-dynq quantize makes an integer layer of it"
    )
    POOL_OF_CODES = (
        "it becomes QLinearAveragePool, which takes means of codes as integers: where a mean is halfway between "
        "two codes, the optimized result of ONNX Runtime may be a step off"
    )

    # Fusions
    CODES_NEED_FUSE = "attention over codes: --fuse makes one operator of it, which never dequantizes them"
    CODES_SCALES = (
        "attention over codes: the {what} are not codes of 8 or 4 bits with one scale for all, or scales of heads, "
        "tokens, groups of tokens, groups of 8 or more elements along the head, or channels; or nodes are "
        "between the dequantization and the product; or keys of floats are [batch, heads, size, tokens]"
    )
    CODES_NOT_SCALED = (
        "attention over codes: the {what} are codes that are converted to floats and not scaled; multiply them by "
        "their scale before the product, or by 1"
    )
    CODES_HEADS = (
        "attention over codes: the numbers and sizes of heads are not known numbers, or query, key and value are not "
        "known to have the same batches and heads"
    )
    CODES_SCORES = "attention over codes: numbers of several elements, or masks of other shapes, change the scores"
    CODES_SAFE_SOFTMAX = (
        "attention over codes: the model replaces NaN after Softmax, and masks may hide all keys of a row"
    )
    NEARLY_FUNCTION = (
        "its constants are rounded: it differs from {function} by up to {difference}, which changes more than last bits"
    )

    # The sums of products, and their epilogue
    SUMS_NOT_CONVERTED = "the sums are not converted to float32"
    SUMS_NOT_SCALED = "not fused: the int32 result is not cast and scaled. Its uint8 form is already fast"
    SUMS_NOT_SCALED_BY_CHANNEL = (
        "the sums are not converted to float32 and multiplied by one scale, or one for each output channel"
    )
    SUMS_NOT_SCALED_BY_ACTIVATION = (
        "the sums are not converted to float32 and multiplied by the scale of the activation"
    )
    CODES_FROM_OUTSIDE = (
        "its int8 codes come from outside of the model's quantizations, and it may have one row: making uint8 codes of "
        "them costs more than that saves; use uint8 codes"
    )
    SUMS_LENGTH = "the length of its sums of int64 is not known, or int32 may not hold them"
    SUMS_OVERFLOW = "sums of {length} products may overflow int32"
    ADDED_NUMBERS = (
        "the integers added to the sums are neither the same for all rows, nor known corrections of zero points"
    )
    ADDED_NUMBERS_AUTO_PAD = "integers are added to the sums of a convolution, and auto_pad computes its pads"
    BIAS = "the bias is not one number for each output channel"
    BIAS_OF_CHANNELS = "the bias is not known to have one float32 number for each output channel"
    BIAS_AT_RUN_TIME = "the bias is computed at run time, and the attribute beta of the Gemm is not 1"
    GEMM_ATTRIBUTES = "the attribute transA of the Gemm is set, or alpha multiplies weights that are rounded to float16"
    NAN_CODES = (
        "a row of zeros has NaN instead of codes, since its divisor may be 0, or its inverse scale infinite: clamp the "
        "largest magnitude away from 0"
    )
    EINSUM = "the Einsum is not a product by a matrix of weights, or by stacked ones as in MatMul"
    EINSUM_ROWS = (
        "the Einsum takes rows in another order, and its activation has an offset, or it or the weights are rounded to "
        "float16: transpose before the quantization"
    )
    GEMM_OVERFLOW = "{what} of the Gemm exceed float32"
    PRODUCT_TOO_SMALL_FOR_ROWS = "the product is too small: scaling its rows costs more than it saves"
    PRODUCT_TOO_SMALL_FOR_GROUPS = "the product is too small: its groups cost more than integers save"
    PRODUCT_TOO_SMALL_FOR_SUMS = (
        "the product is too small: the sums that zero points of its weights need cost more than integers save"
    )
    PRODUCT_TOO_SMALL_FOR_A_SUM = "the product is too small: two products, of each term, cost more than integers save"
    PRODUCT_TOO_SMALL_TO_TRANSPOSE = (
        "the product is too small: transposing its codes and its result costs more than integers save"
    )
    TENSORRT = (
        "ONNX Runtime has this operator of TensorRT on no CPU: export int8 with QuantizeLinear and DequantizeLinear "
        "instead"
    )
    NO_INTEGER_PRODUCT = "ort_dynq has no integer product for {operator}"
    INTEGER_OPERATOR = "it is an integer operator of ONNX Runtime"
    OPTIMIZED = "ONNX Runtime's optimizer made it of run-time scales; rewrite the model from before it was optimized"

    # Attention of ONNX Runtime
    ATTENTION_OPERATOR = "attention stays in float, for its {what}"
    ATTENTION_AXES = (
        "attention stays in float: which axes of {value} are batch, heads, tokens and size is not known, or the size "
        "of heads is not"
    )
    ATTENTION_LENGTHS = (
        "attention stays in float: query, key and value have the lengths {lengths} in one place, of which one may be "
        "1; if they are the same, give them one name in the inputs of the model"
    )
    ATTENTION_SCORES = "attention stays in float: no operator computes what {value} makes of the scores"
    ATTENTION_WEIGHTS = (
        "attention stays in float: {value} are weights of Softmax that the model also reads elsewhere, or what it "
        "makes of them before their product"
    )
    ATTENTION_SOFTMAX = "attention stays in float: no Softmax over the keys makes its weights {value} of the scores"
    ATTENTION_PAST = (
        "attention stays in float: keys and values of earlier runs are inputs, and all of them would be quantized for "
        "a few queries"
    )
    ATTENTION_AS_FAST = "attention stays as it is: MultiHeadAttention has no such form, or is not faster"
    ATTENTION_OF_FLOATS = (
        "attention of floats: it stays ONNX Runtime's operator, for which only a quantization has another, with "
        "products of integers"
    )
    OF_QUANTIZE_DYNAMIC = "--from-dynamic keeps it; ort-dynq rewrite on the result converts it"
    QATTENTION_PAST = "its past state makes it another operator; quantize the model before its attention is fused"
    QATTENTION_ROTARY = "it rotates query and key; quantize the model before its attention is fused"
    QATTENTION_HEADS = "its weights are not those of query, key and value with num_heads heads of one size"
    QATTENTION_MASK = (
        "its mask is not known to have one row or one length for each sample; quantize the model before its attention "
        "is fused"
    )

    # Convolutions
    CONV_TOO_SMALL = "the convolution is too small: quantization and a custom operator cost more than integers save"
    CONV_SINGLE_CHANNELS = "a convolution of single channels is faster in float"
    CONV_FEW_PRODUCTS = "the convolution has too few products for each element that is quantized to gain from integers"
    CONV_TOO_SHORT_FOR_TWO_TERMS = (
        "sums of {depth} products are too short: two terms cost more than integers save; use --activations token"
    )
    CONV_KERNEL_SHAPE = "the attribute kernel_shape is not the shape of the weights"
    CONV_GROUP_OR_AUTO_PAD = "the attribute group or auto_pad is not valid"
    CONV_STRIDES_DILATIONS_GROUP = "the attribute strides, dilations or group is not valid"
    CONV_PAD_AND_AUTO_PAD = "a Pad precedes a convolution, and auto_pad computes its pads"
    CONV_PADS_NEGATIVE = "pads are negative"
    CONV_STRIDES_WITH_AUTO_PAD = "strides exceed the kernel's shape by more than 2, with auto_pad"
    CONV_TRANSPOSE_TOO_SMALL = (
        "an element of the output has too few products: interleaving costs more than integers save"
    )
    CONV_TRANSPOSE_OFFSET = "ort_dynq has no transposed convolution of codes with an offset"
    CONV_OUTPUT_SHAPE = "the pads of the ConvTranspose depend on the size of its output"
    CONV_INT32 = "an attribute exceeds int32"
    CONV_INTEGERS = "the attribute {name} is not a list of {length} integers"

    # Recurrent layers
    RECURRENT_ACTIVATION = "ort_dynq has no integer layer with the activation function {function}"
    RECURRENT_DIRECTIONS = "its directions have different activation functions"
    RECURRENT_ATTRIBUTE = "the attribute {name} is not valid, or its meaning is not clear"
    RECURRENT_WEIGHTS = "its weights do not have the types and shapes that ONNX gives"

    # Layers of a float model that is quantized
    FOR_MIN_SNR = "stays in float for the signal-to-noise ratio of the outputs"
    FOR_SPEED = "stays in float: integers make the model slower on this CPU"
    EXCLUDED = "excluded by {pattern}"
    NCHWC = (
        "ONNX Runtime's optimizer wrote this convolution for one kind of CPU (domain com.microsoft.nchwc); use the "
        "original model, before it is optimized"
    )
    MADE_BY_OPTIMIZER = "ONNX Runtime's optimizer made this operator; quantize the model before it is optimized"
    TABLES_OF_OPTIMIZER = (
        "its tables of embeddings stay floats: ONNX Runtime's optimizer has merged them with the normalization; "
        "quantize the model before it is optimized"
    )
    TABLE_SHARED = "other nodes read its table as floats: the file would have it twice"

    @property
    def code(self) -> str:
        """The name of the reason for programs, such as ``weights_at_run_time``."""
        return self.name.lower()


class Unconverted(Exception):
    """A rule applies to a node, but the node stays as it is for a reason.

    Attributes:
        reason: The reason.
        details: The fields of its text.
        second: Why a second form failed, too, if the rule tried one.
    """

    def __init__(self, reason: Reason, **details: object) -> None:
        """Fails with KeyError if a field of the text is missing."""
        self.reason, self.details = reason, details
        self.second: Unconverted | None = None
        self._text = reason.value.format(**details)

    def __reduce__(self) -> tuple[Any, ...]:
        """Lets reports be pickled and copied: an exception would be made again from its arguments, without fields."""
        return functools.partial(Unconverted, self.reason, **self.details), (), {"second": self.second}

    def __str__(self) -> str:
        """Returns the text for a person."""
        return self._text if self.second is None else f"{self._text}; and {self.second}"

    def __eq__(self, other: object) -> bool:
        """Compares reasons and fields."""
        mine = (self.reason, self.details, self.second)
        return isinstance(other, Unconverted) and mine == (other.reason, other.details, other.second)

    def __hash__(self) -> int:
        """Agrees with equality."""
        return hash((self.reason, str(self)))

    @property
    def cause(self) -> Unconverted | None:
        """The reason of another node, if that is the cause; else None."""
        cause = self.details.get("cause")
        return cause if isinstance(cause, Unconverted) else None

    @property
    def code(self) -> str:
        """The code of the first reason."""
        return self.reason.code

    def then(self, second: Unconverted) -> Unconverted:
        """Adds why a second form failed, too; returns self."""
        self.second = second
        return self
