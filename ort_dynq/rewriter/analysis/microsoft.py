"""Types and shapes after operators that ONNX's shape inference does not know.

They are those that ONNX Runtime's optimizers write, and DynamicQuantize and DynamicDequantize, which a given model may
have already. Operators without a kernel for CPUs are not here. For each operator, `_STAND_INS` has standard operators
with outputs of the same types and shapes, though not the same values. During inference, a function of these
standard operators stands in for the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import onnx.parser
import onnx_ir as ir

from ...graphs import MICROSOFT, NCHWC, STANDARD_DOMAINS, Graph, ProtoGraph
from ...operators import DOMAIN
from ...opsets import opset_of
from .nodes import input_of
from .standard import CODE_FUNCTIONS, GELUS

_DOMAIN, _OPSET = "ort_dynq.stand_ins", 18
_STANDARD_LAYER_NORMALIZATION = 17  # the first opset with it; ONNX Runtime writes it into older models, too
_WINDOW = ("auto_pad", "ceil_mode", "count_include_pad", "dilations", "group", "kernel_shape", "pads", "strides")
_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")

_StandIn = str | Callable[[ir.Node], str]
"""The nodes, as text. Inputs are i0, i1 and so on, outputs o0, o1 and so on. Outputs not computed stay unknown."""


class _UnknownError(Exception):
    """Nothing is known of a node's outputs."""


def add_stand_ins(proto: onnx.ModelProto, model: ir.Model, copies: Iterable[tuple[Graph, ProtoGraph]]) -> None:
    """Lets functions of standard operators stand in for ONNX Runtime's operators in a copy of a model.

    Args:
        proto: The copy.
        model: The model.
        copies: Its graphs at any depth, each with its copy.
    """
    functions: dict[str, onnx.FunctionProto] = {}
    for graph, copied in copies:
        for node, copy in zip(graph, copied.node, strict=True):
            if text := _text_of(node, model):
                if text not in functions:
                    functions[text] = _function(f"{node.op_type}_{len(functions)}", text)
                copy.domain, copy.op_type = _DOMAIN, functions[text].name
    for importer in (proto, *proto.functions):
        importer.opset_import.add(domain=_DOMAIN, version=1)
    proto.functions.extend(functions.values())


def _function(name: str, text: str) -> onnx.FunctionProto:
    head = f'<domain: "{_DOMAIN}", opset_import: ["": {_OPSET}, "{_DOMAIN}": 1]> {name} '
    return onnx.parser.parse_function(head + text)


def _text_of(node: ir.Node, model: ir.Model) -> str:
    """Returns the text of the function that stands in for a node, without its name; empty if there is none."""
    domain = "" if node.domain in STANDARD_DOMAINS else node.domain
    stand_in = _STAND_INS.get((domain, node.op_type))
    if stand_in is None or node.op_identifier() in model.functions:
        return ""
    if node.op_type == "LayerNormalization" and opset_of(model) >= _STANDARD_LAYER_NORMALIZATION:
        return ""
    try:
        text = stand_in if isinstance(stand_in, str) else stand_in(node)
    except (_UnknownError, KeyError, TypeError):  # an attribute is missing or of another type
        return ""
    if any(int(i) >= len(node.inputs) for i in re.findall(r"\bi(\d+)\b", text)):
        return ""
    sources, outputs = (
        [f"{letter}{i}" for i in range(n)] for letter, n in (("i", len(node.inputs)), ("o", _output_count(node)))
    )
    unknown = " ".join(f"{name} = {_DOMAIN}.Unknown()" for name in outputs if f"{name} " not in text)
    return f"({', '.join(sources)}) => ({', '.join(outputs)}) {{ {text} {unknown} }}"


def _output_count(node: ir.Node) -> int:
    """Returns the number of outputs without the last ones that have no name: a function must not have more."""
    return max((i + 1 for i, output in enumerate(node.outputs) if output.name), default=0)


def _has(node: ir.Node, position: int) -> bool:
    return input_of(node, position) is not None


def _rank(node: ir.Node, position: int) -> int | None:
    value = node.inputs[position] if _has(node, position) else None
    return None if value is None or value.shape is None else len(value.shape)


def _given(node: ir.Node, *names: str) -> str:
    """Returns the text of the named attributes that a node has."""
    found = []
    for name in names:
        attribute = node.attributes.get(name)
        if attribute is None:
            continue
        if attribute.type == ir.AttributeType.STRING:
            if attribute.as_string() not in _AUTO_PADS:
                raise _UnknownError
            found.append(f'{name} = "{attribute.as_string()}"')
        elif attribute.type == ir.AttributeType.INT:
            found.append(f"{name} = {attribute.as_int()}")
        else:
            found.append(f"{name} = {list(attribute.as_ints())}")
    return f"<{', '.join(found)}>" if found else ""


def _vector(name: str, *numbers: int) -> str:
    return f"{name} = Constant<value_ints = {list(numbers)}>()"


def _slice(result: str, source: str, axis: int, end: int) -> str:
    """Returns the nodes that take the first `end` elements along an axis."""
    return f"{_vector('b', 0)} {_vector('e', end)} {_vector('a', axis)} {result} = Slice({source}, b, e, a)"


def _product(node: ir.Node) -> str:
    if node.attributes.get_int("transBatchA", 0) or node.attributes.get_int("transBatchB", 0):
        raise _UnknownError
    left, right = node.attributes.get_int("transA", 0), node.attributes.get_int("transB", 0)
    if not left and not right:
        return "o0 = MatMul(i0, i1)"
    batch = "" if _rank(node, 1) == 2 else "..."
    equation = f"...{'ki' if left else 'ik'},{batch}{'jk' if right else 'kj'}->...ij"
    return f'o0 = Einsum<equation = "{equation}">(i0, i1)'


def _packed_product(node: ir.Node) -> str:
    """Packed weights of K rows and N columns."""
    shape = _vector("shape", node.attributes.get_int("K", 0), node.attributes.get_int("N", 0))
    return f"{shape} w = ConstantOfShape(shape) o0 = MatMul(i0, w)"


def _attention(node: ir.Node) -> str:
    """The weights of query, key and value are one matrix."""
    sizes = node.attributes.get("qkv_hidden_sizes")
    if sizes is None:
        return "all = MatMul(i0, i1) q, k, o0 = Split<axis = -1, num_outputs = 3>(all)"
    if len(sizes.as_ints()) != 3:
        raise _UnknownError
    return f"all = MatMul(i0, i1) {_slice('o0', 'all', -1, sizes.as_ints()[2])}"


def _multi_head_attention(node: ir.Node) -> str:
    if not (_has(node, 1) and _has(node, 2)):  # key and value are packed
        raise _UnknownError
    return 'o0 = Einsum<equation = "bsh,btv->bsv">(i0, i2)'


def _group_query_attention(node: ir.Node) -> str:
    if _has(node, 1):
        return "o0 = Identity(i0)"
    heads, others = (node.attributes.get_int(f"{kind}num_heads", 0) for kind in ("", "kv_"))  # of key and value each
    split, joined = _vector("split", 0, 0, heads + 2 * others, -1), _vector("joined", 0, 0, -1)
    query = _slice("query", "heads", 2, heads)
    return f"{split} heads = Reshape(i0, split) {query} {joined} o0 = Reshape(query, joined)"


def _linear_attention(node: ir.Node) -> str:
    """Its output has as many heads as query or value, whichever has more; the state that it reads is as the next."""
    heads, others = (node.attributes.get_int(f"{kind}_num_heads", 0) for kind in ("q", "kv"))
    if heads <= 0 or others <= 0 or (heads > others and heads % others):
        raise _UnknownError
    copies = ", ".join(["i2"] * max(heads // others, 1))
    return f"o0 = Concat<axis = -1>({copies})" + (" o1 = Identity(i3)" if _has(node, 3) else "")


def _causal_convolution(node: ir.Node) -> str:
    if node.attributes.get_int("input_channels", 0):
        raise _UnknownError
    return _LIKE_INPUT + (" o1 = Identity(i3)" if _has(node, 3) else "")


def _swiglu(node: ir.Node) -> str:
    """Without the second half, the first input has both."""
    return _LIKE_INPUT if _has(node, 1) else "o0, rest = Split<axis = -1, num_outputs = 2>(i0)"


def _quantized_embedding(node: ir.Node) -> str:
    codes = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    if codes is None or node.attributes.get_int("gather_axis", 0) != 0:
        raise _UnknownError
    bits = node.attributes.get_int("bits", 4)
    repeated = 2 if codes == ir.DataType.UINT8 and bits == 4 else 1  # a byte has two codes
    return f"r = Gather(i0, i1) c = Concat<axis = -1>({', '.join(['r'] * repeated)}) o0 = CastLike(c, i2)"


def _windows(operator: str, weights: str = "") -> Callable[[ir.Node], str]:
    """A convolution or a pool, with the channels last if channels_last is set."""

    def text(node: ir.Node) -> str:
        arguments, attributes = (f", {weights}" if weights else ""), _given(node, *_WINDOW)
        if not node.attributes.get_int("channels_last", int(node.op_type.startswith("Nhwc"))):
            return f"o0 = {operator}{attributes}(i0{arguments})"
        rank = _rank(node, int(weights[1:])) if weights else 2 + len(node.attributes["kernel_shape"].as_ints())
        if rank is None:
            raise _UnknownError
        first, last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
        window = f"y = {operator}{attributes}(x{arguments})"
        return f"x = Transpose<perm = {first}>(i0) {window} o0 = Transpose<perm = {last}>(y)"

    return text


def _global_average(node: ir.Node) -> str:
    if node.attributes.get_int("channels_last", 0):
        raise _UnknownError
    return "o0 = GlobalAveragePool(i0)"


def _concat(node: ir.Node) -> str:
    """Every part has its scale and zero point."""
    parts = ", ".join(f"i{i}" for i in range(2, len(node.inputs), 3))
    return f"o0 = Concat<axis = {node.attributes.get_int('axis', 0)}>({parts})"


def _quantized_gemm(node: ir.Node) -> str:
    like = 8 if _has(node, 8) else 1
    return f"all = Gemm{_given(node, 'transA', 'transB')}(i0, i3) o0 = CastLike(all, i{like})"


def _unblocked(node: ir.Node) -> str:
    if node.attributes.get_int("channels_last", 0):
        raise _UnknownError
    return _slice("o0", "i0", 1, node.attributes.get_int("channels", 0))


def _lstm(node: ir.Node) -> str:
    """Only the input, the direction and the size of a state decide the shapes."""
    direction = node.attributes.get_string("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise _UnknownError
    attributes = f'hidden_size = {node.attributes["hidden_size"].as_int()}, direction = "{direction}"'
    outputs = " , ".join(f"o{i}" for i in range(_output_count(node)))
    return f"w = CastLike(i1, i0) r = CastLike(i2, i0) {outputs} = LSTM<{attributes}>(i0, w, r)"


def _codes(node: ir.Node) -> str:
    """The codes of DynamicQuantize."""
    zero_point = node.inputs[2].dtype if _has(node, 2) and node.inputs[2] is not None else None
    dtype = node.attributes.get_int("output_dtype", 0)
    if not dtype and _has(node, 2) and zero_point is None:
        raise _UnknownError
    if not dtype:
        dtype = int(ir.DataType.UINT8 if zero_point in (None, ir.DataType.INT32) else zero_point)
    return f"o0 = Cast<to = {dtype}>(i0)"


_LIKE_INPUT = "o0 = Identity(i0)"
_LIKE_INPUT_AND_SUM = "o0 = Identity(i0) o3 = Identity(i0)"
_LENGTHS = "a = Constant<value_ints = [1]>() o1 = ReduceSum<keepdims = 0>(i0, a)"  # of the sequences, [B]
_ELEMENTWISE = GELUS | CODE_FUNCTIONS | {"RotaryEmbedding", "Trilu"}
_STAND_INS: dict[tuple[str, str], _StandIn] = {
    ("", "LayerNormalization"): _LIKE_INPUT,
    ("", "SimplifiedLayerNormalization"): "o0 = CastLike(i0, i1)",
    **{(MICROSOFT, name): _LIKE_INPUT for name in sorted(_ELEMENTWISE)},
    (MICROSOFT, "SkipLayerNormalization"): _LIKE_INPUT_AND_SUM,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _LIKE_INPUT_AND_SUM,
    (MICROSOFT, "FusedMatMul"): _product,
    (MICROSOFT, "TransposeMatMul"): _product,
    (MICROSOFT, "FusedGemm"): lambda node: f"o0 = Gemm{_given(node, 'transA', 'transB')}(i0, i1)",
    (MICROSOFT, "DynamicQuantizeMatMul"): "o0 = MatMul(i0, i1)",
    (MICROSOFT, "MatMulInteger16"): "p = MatMul(i0, i1) o0 = Cast<to = 6>(p)",
    (MICROSOFT, "MatMulIntegerToFloat"): "p = MatMul(i0, i1) o0 = CastLike(p, i2)",
    (MICROSOFT, "MatMulNBits"): _packed_product,
    (MICROSOFT, "MatMulBnb4"): _packed_product,
    (MICROSOFT, "Attention"): _attention,
    (MICROSOFT, "QAttention"): (
        "all = MatMul(i0, i1) q, k, v = Split<axis = -1, num_outputs = 3>(all) o0 = CastLike(v, i3)"
    ),
    (MICROSOFT, "MultiHeadAttention"): _multi_head_attention,
    (MICROSOFT, "GroupQueryAttention"): _group_query_attention,
    (MICROSOFT, "LinearAttention"): _linear_attention,
    (MICROSOFT, "CausalConvWithState"): _causal_convolution,
    (MICROSOFT, "SwiGLU"): _swiglu,
    (MICROSOFT, "EmbedLayerNormalization"): f"o0 = Gather(i2, i0) o2 = Identity(o0) {_LENGTHS}",
    (MICROSOFT, "QEmbedLayerNormalization"): f"g = Gather(i2, i0) o0 = Cast<to = 1>(g) {_LENGTHS}",
    (MICROSOFT, "GatherBlockQuantized"): _quantized_embedding,
    (MICROSOFT, "FusedConv"): _windows("Conv", "i1"),
    (MICROSOFT, "NhwcMaxPool"): _windows("MaxPool"),
    (MICROSOFT, "QLinearConv"): _windows("Conv", "i3"),
    (MICROSOFT, "QLinearAveragePool"): _windows("AveragePool"),
    (MICROSOFT, "QLinearGlobalAveragePool"): _global_average,
    (MICROSOFT, "QLinearAdd"): "o0 = Add(i0, i3)",
    (MICROSOFT, "QLinearMul"): "o0 = Add(i0, i3)",
    (MICROSOFT, "QLinearWhere"): "o0 = Where(i0, i1, i4)",
    (MICROSOFT, "QLinearConcat"): _concat,
    (MICROSOFT, "QGemm"): _quantized_gemm,
    (MICROSOFT, "DynamicQuantizeLSTM"): _lstm,
    (MICROSOFT, "QuantizeLinear"): lambda node: "o0 = CastLike(i0, i2)" if _has(node, 2) else "o0 = Cast<to = 2>(i0)",
    (MICROSOFT, "DequantizeLinear"): "o0 = CastLike(i0, i1)",
    (DOMAIN, "DynamicQuantize"): _codes,
    (DOMAIN, "DynamicDequantize"): "o0 = CastLike(i0, i1)",
    (NCHWC, "ReorderInput"): (  # the number of channels is rounded up: it is unknown
        "k = NonZero(i0) n = Squeeze(k) c = Cast<to = 9>(n) o0 = Compress<axis = 1>(i0, c)"
    ),
    (NCHWC, "ReorderOutput"): _unblocked,
    (NCHWC, "Conv"): _windows("Conv", "i1"),
    (NCHWC, "MaxPool"): _windows("MaxPool"),
    (NCHWC, "AveragePool"): _windows("AveragePool"),
    (NCHWC, "GlobalMaxPool"): "o0 = GlobalMaxPool(i0)",
    (NCHWC, "GlobalAveragePool"): "o0 = GlobalAveragePool(i0)",
}
