"""The operators of ONNX and of com.microsoft by what they do: sets, made of each other.

A rule names a set, or an expression of sets with its reason (``MOVES - {"MaxPool"}``), not a list of its own. So what
two rules treat alike stands once, and a difference between them can be seen. Where an operator has the same name as a
step of programs, it does the same.
"""

from __future__ import annotations

# Operators that move elements: those of the output are elements of the input.

AXES = frozenset({"Squeeze", "Unsqueeze"})
"""They add or remove axes of length 1."""
RESHAPES = AXES | {"Flatten", "Reshape"}
"""They keep the elements and their order."""
COPIES = frozenset({"Dropout", "Identity"})
"""At inference, they keep everything."""
SELECTING = frozenset({"Gather", "Slice", "Split"})
"""They choose elements by their places along axes, in the order of the places that are given."""
PICKING = frozenset({"GatherElements", "GatherND", "TopK"})
"""They choose single elements; only the first output of TopK has elements."""
REPEATING = frozenset({"Expand", "Tile"})
SCATTERING = frozenset({"ScatterElements", "ScatterND", "TensorScatter"})
"""They replace elements by others."""
INTERLEAVING = frozenset({"DepthToSpace", "SpaceToDepth"})
FLOAT16_MOVES = RESHAPES | SELECTING | {"Concat", "Transpose"}
"""Moves of which ONNX Runtime has float16 kernels."""
MOVES = RESHAPES | COPIES | SELECTING | REPEATING | INTERLEAVING | {"Concat", "MaxPool", "Transpose"}
"""Operators with outputs that have elements of their inputs, of input 0 or (Concat) of all."""

# Elementwise operators.

ROUNDING = frozenset({"Ceil", "Floor", "Round"})
SUMS = frozenset({"Add", "Sub"})
SCALING = frozenset({"Div", "Mul"})
ARITHMETIC = SUMS | SCALING
SIGNS = frozenset({"Abs", "Neg"})
ROOTS = frozenset({"Reciprocal", "Sqrt"})
EXTREMES = frozenset({"Max", "Min"})
BOUNDING = EXTREMES | {"Clip"}
COMMUTATIVE = frozenset({"Add", "Mul"})
CHOOSING = EXTREMES | {"Where"}
"""They choose one of several elements, which ONNX Runtime may do in another way for the last elements of a tensor."""
ORDERINGS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
COMPARISONS = ORDERINGS | {"Equal"}
LOGIC = frozenset({"And", "Not", "Or"})
UNARY = ROUNDING | SIGNS | ROOTS | {"Cast", "Clip", "Not", "Sign"}
"""Exact operators of one tensor; the bounds of a Clip are numbers."""
BINARY = ARITHMETIC | EXTREMES | COMPARISONS | {"And", "Or"}
EXACT = UNARY | BINARY | {"Where"}
"""Elementwise operators with results that are exact, or rounded once: the same in every place of a tensor."""

# Functions: ONNX Runtime computes them in other ways on other CPUs.

GELUS = frozenset({"BiasGelu", "FastGelu", "Gelu", "QuickGelu"})
"""BiasGelu, FastGelu and QuickGelu are of com.microsoft."""
SIGMOIDS = frozenset({"Erf", "Sigmoid", "Tanh"})
LOGARITHMIC = frozenset({"Exp", "Log"})
ELUS = frozenset({"Celu", "Elu", "Mish", "Selu", "Softplus"})
ANGLES = frozenset({"Cos", "Cosh", "Sin", "Sinh", "Tan"})
SOFTMAXES = frozenset({"LogSoftmax", "Softmax"})
FUNCTIONS = GELUS | SIGMOIDS | LOGARITHMIC | ELUS | ANGLES | SOFTMAXES | {"Pow"}
BENT = frozenset({"Clip", "HardSigmoid", "LeakyRelu", "Relu"})
"""Activation functions of straight pieces, which ONNX Runtime fuses into products."""
SLOW_ACTIVATIONS = ELUS | {"HardSwish", "LeakyRelu", "PRelu"}
"""Those that ONNX Runtime computes more slowly than a program does: policy/cost.py has the times."""
CODE_FUNCTIONS = frozenset({"QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax"})
"""Those of codes, of com.microsoft."""

# Operators that reduce axes to one number.

RANGES = frozenset({"ReduceMax", "ReduceMin"})
NORMS = frozenset({"ReduceL1", "ReduceL2", "ReduceSumSquare"})
"""Their results are not negative."""
ADDING = NORMS | {"ReduceMean", "ReduceSum"}
POOLS = frozenset({"AveragePool", "GlobalAveragePool"})
ADDING_POOLS = POOLS | {"GlobalLpPool", "LpPool"}

# Normalizations. The names with "Skip", "Simplified" and "Embed" are of com.microsoft.

LAYER_NORMS = frozenset({"LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"})
SKIP_NORMS = frozenset({"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
OTHER_NORMS = frozenset({"BatchNormalization", "GroupNormalization", "InstanceNormalization", "LRN", "LpNormalization"})
NORMALIZATIONS = LAYER_NORMS | SKIP_NORMS | OTHER_NORMS | {"EmbedLayerNormalization"}

# Products of floats, of integers, and of ort_dynq.

MATRIX_PRODUCTS = frozenset({"Einsum", "Gemm", "MatMul"})
CONVOLUTIONS = frozenset({"Conv", "ConvTranspose"})
FUSIBLE_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
"""Those that ONNX Runtime's optimizer fuses with the nodes around them."""
FLOAT_PRODUCTS = MATRIX_PRODUCTS | CONVOLUTIONS
MADE_PRODUCTS = frozenset({"FusedConv", "FusedGemm", "FusedMatMul"})
"""Those of com.microsoft that ONNX Runtime's optimizer makes."""
RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
NBITS_PRODUCTS = frozenset({"MatMulNBits", "QMoE"})
"""Those of com.microsoft with weights of few bits."""
INTEGER_PRODUCTS = frozenset({"ConvInteger", "MatMulInteger"})
SCALED_PRODUCTS = frozenset({"DynamicQuantizeMatMul", "MatMulIntegerToFloat"})
"""Integer products of com.microsoft with float results."""
STATIC_PRODUCTS = frozenset({"QGemm", "QLinearConv", "QLinearMatMul"})
"""Integer products of codes with given scales."""
OWN_CONVOLUTIONS = frozenset({"QuantizedConv", "WordConv"})
"""Our convolutions; the rows of their results are channels."""
TAILLESS_PRODUCTS = OWN_CONVOLUTIONS | {"QuantizedMatMul", "WordMatMul"}
"""Our products that may get a program behind their sums."""
OWN_RECURRENCES = frozenset({"QuantizedRecurrence", "WordRecurrence"})
"""The steps of our recurrent layers; the products of their inputs are another node."""
OWN_PRODUCTS = frozenset(f"{each}{program}" for each in TAILLESS_PRODUCTS for program in ("", "Program"))
ATTENTION = frozenset({"Attention", "GroupQueryAttention", "MultiHeadAttention"})
"""The operators of attention, of ONNX and of com.microsoft, that take queries, keys and values."""

# Others.

LINEAR = frozenset({"DequantizeLinear", "QuantizeLinear"})
PADDING = frozenset({"Pad", "Slice"})
"""They change lengths along axes that an input names."""
LENGTHS = frozenset({"Shape", "Size"})
"""Their results say nothing of the elements of their input."""
RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"}
)
