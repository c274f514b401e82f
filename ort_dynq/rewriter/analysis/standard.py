"""The operators of ONNX, of com.microsoft and of ort_dynq by what they do: sets, made of each other.

A file names a set, or an expression of sets with its reason (``MOVES - {"MaxPool"}``), not a list of its own. So what
two files treat alike stands once, and a difference between them can be seen. Where an operator has the same name as a
step of programs, it does the same.
"""

from __future__ import annotations

# Operators that move elements: those of the output are elements of the input.

AXES = frozenset({"Squeeze", "Unsqueeze"})
"""They add or remove axes of length 1."""
RESHAPES = AXES | {"Flatten", "Reshape"}
"""They keep the elements and their order."""
REARRANGING = RESHAPES | {"Transpose"}
"""They keep the elements."""
SHAPING = RESHAPES | {"Expand", "Identity"}
"""They give the elements of their first input another shape."""
PASSING = frozenset({"Cast", "Identity"})
"""They keep the elements, a Cast in another type."""
SELECTING = frozenset({"Gather", "Slice", "Split"})
"""They choose elements by their places along axes, in the order of the places that are given."""
PICKING = frozenset({"GatherElements", "GatherND", "TopK"})
"""They choose single elements; only the first output of TopK has elements."""
REPEATING = frozenset({"Expand", "Tile"})
FILLING = frozenset({"ConstantOfShape", "Expand"})
"""Their last input is the shape of the output."""
JOINING = frozenset({"Concat", "Split"})
"""They join or part tensors along an axis."""
SCATTERING = frozenset({"ScatterElements", "ScatterND", "TensorScatter"})
"""They replace elements by others."""
INTERLEAVING = frozenset({"DepthToSpace", "SpaceToDepth"})
FLOAT16_MOVES = REARRANGING | SELECTING | {"Concat"}
"""Moves with float16 kernels in ONNX Runtime."""
HEAD_MOVES = REARRANGING | {"Concat", "Expand"}
"""Moves of keys and values: into a cache, and to several heads."""
PHASE_MOVES = frozenset({"Interleave", "Slice"})
"""Moves of the phases of a ConvTranspose; Interleave is ours."""
MOVES = REARRANGING | SELECTING | REPEATING | INTERLEAVING | {"Concat", "Identity", "MaxPool"}
"""Operators with outputs that have elements of their inputs, of input 0 or (Concat) of all. A Dropout may train."""

# Elementwise operators.

ROUNDING = frozenset({"Ceil", "Floor", "Round"})
SUMS = frozenset({"Add", "Sub"})
SCALING = frozenset({"Div", "Mul"})
ARITHMETIC = SUMS | SCALING
SIGNS = frozenset({"Abs", "Neg"})
ROOTS = frozenset({"Reciprocal", "Sqrt"})
EXTREMES = frozenset({"Max", "Min"})
BOUNDING = EXTREMES | {"Clip"}
DIVIDING = frozenset({"Div", "Reciprocal"})
COMMUTATIVE = frozenset({"Add", "Mul"})
CHOOSING = EXTREMES | {"Where"}
"""They choose one of several elements, which ONNX Runtime may do in another way for the last elements of a tensor."""
GREATER = frozenset({"Greater", "GreaterOrEqual"})
LESS = frozenset({"Less", "LessOrEqual"})
ORDERINGS = GREATER | LESS
COMPARISONS = ORDERINGS | {"Equal"}
LOGIC = frozenset({"And", "Not", "Or"})
UNARY = ROUNDING | SIGNS | ROOTS | {"Cast", "Clip", "Not", "Sign"}
"""Exact operators of one tensor; the bounds of a Clip are numbers."""
BINARY = ARITHMETIC | EXTREMES | COMPARISONS | {"And", "Or"}
EXACT = UNARY | BINARY | {"Where"}
"""Elementwise operators with results that are exact, or rounded once: the same in every place of a tensor."""

# Functions: ONNX Runtime computes them in other ways on other CPUs.

FAST_GELUS = frozenset({"FastGelu", "QuickGelu"})
"""Those of com.microsoft that compute Gelu with Tanh or Sigmoid."""
GELUS = FAST_GELUS | {"BiasGelu", "Gelu"}
"""BiasGelu is of com.microsoft."""
LOGISTIC = frozenset({"Sigmoid", "Tanh"})
SIGMOIDS = LOGISTIC | {"Erf"}
POWERS = frozenset({"Exp", "Pow"})
ELUS = frozenset({"Celu", "Elu", "Mish", "Selu", "Softplus"})
ANGLES = frozenset({"Cos", "Cosh", "Sin", "Sinh", "Tan"})
SOFTMAXES = frozenset({"LogSoftmax", "Softmax"})
SOFTMAX_ENDS = frozenset({"Div", "Softmax"})
"""The last nodes of a softmax: Div of one that is written by hand."""
FUNCTIONS = GELUS | SIGMOIDS | POWERS | ELUS | ANGLES | SOFTMAXES | {"Log"}
CLIPPING = frozenset({"Clip", "Relu"})
HARD = frozenset({"HardSigmoid", "HardSwish"})
SLOPED = frozenset({"LeakyRelu", "PRelu"})
BENT = CLIPPING | {"HardSigmoid", "LeakyRelu"}
"""Activation functions of straight pieces, which ONNX Runtime fuses into products."""
SLOW_ACTIVATIONS = ELUS | SLOPED | {"HardSwish"}
"""Those that ONNX Runtime computes more slowly than a program does: policy/cost.py has the times."""
CODE_FUNCTIONS = frozenset({"QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"})
"""Those of codes, of com.microsoft."""

# Operators that reduce axes to one number, and those that add.

RANGES = frozenset({"ReduceMax", "ReduceMin"})
NORMS = frozenset({"ReduceL1", "ReduceL2", "ReduceSumSquare"})
"""Their results are not negative."""
SUMMING = frozenset({"ReduceMean", "ReduceSum"})
ROW_SUMS = SUMMING | NORMS - {"ReduceL1"}
"""Those with sums that programs have."""
ADDING = SUMMING | NORMS | {"CumSum", "ReduceLogSumExp"}
CHANNEL_MEANS = frozenset({"GlobalAveragePool", "ReduceMean"})
POOLS = frozenset({"AveragePool", "GlobalAveragePool"})
ADDING_POOLS = POOLS | {"GlobalLpPool", "LpPool"}

# Normalizations. The names with "Skip", "Simplified" and "Embed" are of com.microsoft.

LAYER_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
SKIP_NORMS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
OTHER_NORMS = frozenset({"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "LpNormalization"})
EMBED_NORMS = frozenset({"EmbedLayerNormalization", "QEmbedLayerNormalization"})
NORMALIZATIONS = LAYER_NORMS | SKIP_NORMS | OTHER_NORMS | EMBED_NORMS

# Products of floats, of integers, and of ort_dynq.

STACKED_PRODUCTS = frozenset({"Einsum", "MatMul"})
"""Products of tensors with any number of axes."""
MATMULS = frozenset({"Gemm", "MatMul"})
MATRIX_PRODUCTS = STACKED_PRODUCTS | MATMULS
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
FUSIBLE_PRODUCTS = MATMULS | {"Conv"}
"""Those that ONNX Runtime's optimizer fuses with the nodes around them."""
FLOAT_PRODUCTS = MATRIX_PRODUCTS | CONVOLUTIONS
MADE_PRODUCTS = frozenset({"FusedConv", "FusedGemm", "FusedMatMul", "NhwcFusedConv", "TransposeMatMul"})
"""Those of com.microsoft that ONNX Runtime's optimizer makes."""
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
NBITS_PRODUCTS = frozenset({"MatMulNBits", "QMoE"})
"""Those of com.microsoft with weights of few bits."""
INTEGER_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})
SCALED_PRODUCTS = frozenset({"DynamicQuantizeMatMul", "MatMulIntegerToFloat"})
"""Integer products of com.microsoft with float results."""
STATIC_PRODUCTS = frozenset({"QGemm", "QLinearConv", "QLinearMatMul"})
"""Integer products of codes with given scales."""
CODE_PRODUCTS = INTEGER_PRODUCTS | SCALED_PRODUCTS | STATIC_PRODUCTS
INTEGER_LAYERS = frozenset({"DynamicQuantizeLSTM", "QAttention"})
"""Layers of com.microsoft with weights that are codes."""
BYTE_PRODUCTS = frozenset({"QuantizedConv", "QuantizedMatMul"})
WORD_PRODUCTS = frozenset({"WordConv", "WordMatMul"})
"""Our products of codes of 8 bits, and of more: integers of 16 bits."""
OWN_CONVOLUTIONS = frozenset({"QuantizedConv", "WordConv"})
"""Our convolutions; the rows of their results are channels."""
TAILLESS_PRODUCTS = BYTE_PRODUCTS | WORD_PRODUCTS
"""Our products that may get a program behind their sums."""
OWN_RECURRENCES = frozenset({"QuantizedRecurrence", "WordRecurrence"})
"""The steps of our recurrent layers; the products of their inputs are another node."""
QUANTIZING_PRODUCTS = frozenset({"DynamicQuantizedMatMul"})
"""Our products that quantize the activation."""
OWN_PRODUCTS = frozenset(
    f"{each}{program}" for each in TAILLESS_PRODUCTS | QUANTIZING_PRODUCTS for program in ("", "Program")
)
OWN_ATTENTION = frozenset({"CompressedAttention", "QuantizedAttention"})
OWN_LAYERS = OWN_PRODUCTS | OWN_RECURRENCES | OWN_ATTENTION | {"CompressedMatMul", "QuantizedExperts"}
ATTENTION = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})
"""The operators of attention, of ONNX and of com.microsoft, that take queries, keys and values."""
PRODUCTS = FLOAT_PRODUCTS | MADE_PRODUCTS | RECURRENT | NBITS_PRODUCTS | ATTENTION | CODE_PRODUCTS | OWN_PRODUCTS

# Others.

LINEAR = frozenset({"DequantizeLinear", "QuantizeLinear"})
QUANTIZERS = frozenset({"DynamicQuantizeLinear", "QuantizeLinear"})
IMAGE_OPERATORS = frozenset({"AveragePool", "BatchNormalization", "MaxPool", "Resize"})
"""They keep the channels of images."""
PADDING = frozenset({"Pad", "Slice"})
"""They change lengths along axes that an input names."""
CONSTANT_NODES = frozenset({"Constant", "ConstantOfShape"})
LOOPS = frozenset({"Loop", "Scan"})
SIZES = frozenset({"Shape", "Size"})
"""Their results say nothing of the elements of their input."""
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
