"""Models with constant subgraphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from helpers import Array, nodes_of, options
from onnx import helper, numpy_helper
from rewriting import check, check_products, found, parse, rows

import ort_dynq
from ort_dynq.rewriter import rewrite

RNG = np.random.default_rng(0)
CONSTANTS: dict[str, Array] = {
    "w": RNG.normal(size=(64, 48)).astype(np.float32),
    "image": RNG.normal(size=(1, 8, 20, 20)).astype(np.float32),
    "codes": RNG.integers(-127, 128, (64, 48)).astype(np.int8),
    "first_shape": np.array([-1]),
    "table": RNG.integers(-127, 128, (2048, 8)).astype(np.int8),
    "matrix": RNG.integers(-127, 128, (48, 32)).astype(np.int8),
    "wide": RNG.integers(-127, 128, (48, 32)).astype(np.int32),
    "grid": (RNG.integers(-127, 128, (48, 32)) * np.float32(0.1)).astype(np.float32),
    "tall": RNG.normal(size=(64, 32)).astype(np.float32),
    "filter": RNG.integers(-127, 128, (16, 8, 3, 3)).astype(np.float32),
    "filter_codes": RNG.integers(-127, 128, (16, 8, 3, 3)).astype(np.int8),
    "step": np.array(0.05, np.float32),
    "c64": np.array(64, np.float32),
    "least": np.array(-2, np.float32),
    "most": np.array(127 / 64, np.float32),
    "none": np.array(0, np.uint8),
    "no_shift": np.array(0, np.int8),
    "column": np.full(32, 0.01, np.float32),
    "of_channel": np.full(16, 0.75, np.float32),
    "first": np.array([0]),
    "unit": np.float32(1),
    "of_first": np.array([[0]]),
    "of_heads": RNG.integers(-127, 128, (48, 4, 8)).astype(np.int32),
    "keys": RNG.integers(-127, 128, (1, 2, 32, 130)).astype(np.int8),
    "values": RNG.integers(-127, 128, (1, 2, 130, 24)).astype(np.int8),
    "queries": RNG.normal(size=(1, 2, 3, 32)).astype(np.float32),
    "half": RNG.normal(size=(64, 48)).astype(np.float16),
}
ABS_MAX = "a = Abs(w) m = ReduceMax<keepdims = 1>(a, one) s = Div(m, c127)"
CODES = f"{ABS_MAX} d = Div(w, s) r = Round(d) c = Clip(r, low, high) q = Cast<to = 3>(c)"
FAKE = f"{CODES} qf = Cast<to = 1>(q) f = Mul(qf, s)"
TENSOR = "uq, us, uz = DynamicQuantizeLinear({0}) u = DequantizeLinear(uq, us, uz)"
# For each rule, nodes that it converts if their first constant is an input of the model; the result is t.
CASES = {
    "QuantizeLinear": "m = ReduceMean<keepdims = 0>(w) s = Abs(m) q = QuantizeLinear(w, s, none)"
    " t = DequantizeLinear(q, s, none)",
    "numbers where a condition holds": f"{ABS_MAX} e = Less(s, c127) nz = NonZero(e) at = Transpose(nz)"
    " n = Shape<end = 1>(at) u = Expand(c127, n) t = ScatterND(s, at, u)",
    "parts that are written": "n = Neg(w) a = Gather(n, first) t = ScatterND(n, of_first, a)",
    "repeated numbers": f"{ABS_MAX} shape = Shape(w) v = Expand(s, shape) t = Div(w, v)",
    "bounds of scaled codes": f"{ABS_MAX} d = Div(w, step) r = Round(d) n = Div(r, c64) t = Clip(n, least, most)",
    "DequantizeLinear": TENSOR.format("w") + " t = Relu(u)",
    "decomposed dequantization": "cf = Cast<to = 1>(codes) cm = ReduceMax<keepdims = 1>(cf, one) t = Mul(cf, cm)",
    "codes beside a zero point": "l0 = ReduceMin<keepdims = 1>(w, one) l = Min(l0, zero)"
    " h0 = ReduceMax<keepdims = 1>(w, one)"
    " h = Max(h0, zero) r0 = Sub(h, l) r = Max(r0, eps) v = Div(c255, r) e = Add(l, r) k0 = Min(w, e) k = Max(k0, l)"
    " u = Sub(k, l) g = Mul(u, v) n = Neg(l) zs = Mul(n, v) zp = Round(zs) q0 = Sub(g, zp) q = Round(q0) t = Div(q, v)",
    "rounding by arithmetic": f"{ABS_MAX} v = Div(w, s) g = Floor(w) b = Mod<fmod = 1>(v, unit) t = Sub(v, b)",
    "truncated codes": f"{ABS_MAX} d = Div(w, s) t = Cast<to = 3>(d)",
    "CastLike": f"{CODES} qf = CastLike(q, w) t = Mul(qf, s)",
    "DequantizeLinear of sums": f"{CODES} i = MatMulInteger(q, matrix) t = DequantizeLinear(i, step)",
    "Einsum of heads": CODES.replace("to = 3", "to = 6") + ' t = Einsum<equation = "bk,khd->bhd">(q, of_heads)',
    "integer product of two activations": "i = Cast<to = 6>(codes) it = Transpose(i) t = MatMul(i, it)",
    "integer product by constants": f"{CODES} v = Cast<to = 6>(q) i = MatMul(v, wide) t = Neg(i)",
    "QLinearMatMul of two activations": "ct = Transpose(codes)"
    " t = QLinearMatMul(codes, step, no_shift, ct, step, no_shift, step, no_shift)",
    "attention over codes that is not fused": "kf = DequantizeLinear(keys, step) vf = DequantizeLinear(values, step)"
    " sums = MatMul(queries, kf) p = Softmax<axis = -1>(sums) t = MatMul(p, vf)",
    "pool of codes": "iq, is, iz = DynamicQuantizeLinear(image) t = MaxPool<kernel_shape = [3, 3]>(iq)",
    "integer matrix product": f"{CODES} i = MatMulInteger(q, matrix) j = Cast<to = 1>(i) k = Mul(j, s)"
    " t = Mul(k, column)",
    "codes in wider integers": f"{CODES.replace('to = 3', 'to = 6')} i = MatMul(q, wide) t = Cast<to = 1>(i)",
    "integer convolution": "iq, is, iz = DynamicQuantizeLinear(image) i = ConvInteger(iq, filter_codes, iz)"
    " j = Cast<to = 1>(i) k = Mul(is, step) t = Mul(j, k)",
    "float matrix product": f"{FAKE} t = MatMul(f, grid)",
    "float convolution": TENSOR.format("image") + " t = Conv(u, filter)",
    "product of dequantized weights": "v = Neg(w) g = DequantizeLinear(matrix, step) t = MatMul(v, g)",
    "weights of a float product": "a = Abs(w) m = ReduceMax<keepdims = 0>(a, first) s = Div(m, c127)"
    " v = QuantizeLinear<axis = 1>(w, s) u = DequantizeLinear<axis = 1>(v, s)"
    " g = DequantizeLinear(matrix, step) t = MatMul(u, g)",
    "rows of a dequantized table": "c = Cast<to = 7>(codes) i = Gather(c, first) v = Reshape(i, first_shape)"
    " g = DequantizeLinear(table, step) t = Gather(g, v)",
    "transposed table": "r = Gather(table, first) u = DequantizeLinear(r, step) c = Transpose(table)"
    " g = DequantizeLinear(c, step) t = MatMul(u, g)",
    "picked rows": f"{FAKE} t = GatherND(f, of_first)",
    "int8 weights that saturate": "wq, ws, wz = DynamicQuantizeLinear(w)"
    " t = QLinearMatMul(wq, ws, wz, matrix, step, no_shift, step, none)",
    "range": f"{ABS_MAX} r = Round(s) t = Identity(r)",
    "DynamicQuantizeLinear": "iq, is, iz = DynamicQuantizeLinear(image) i = ConvInteger(iq, filter_codes, iz)"
    " j = Cast<to = 1>(i) k = Mul(is, step) t = Mul(j, k)",
    "tail of a product": "iq, is, iz = DynamicQuantizeLinear(image) i = ConvInteger(iq, filter_codes, iz)"
    " j = Cast<to = 1>(i) k = Mul(is, step) r = Mul(j, k) t = Relu(r)",
    "product that quantizes": "xq, xs, xz = DynamicQuantizeLinear(w) i = MatMulInteger(xq, matrix, xz)"
    " j = Cast<to = 1>(i) k = Mul(xs, step) t = Mul(j, k)",
    "batch normalization of a product": "iq, is, iz = DynamicQuantizeLinear(image)"
    " i = ConvInteger(iq, filter_codes, iz) j = Cast<to = 1>(i) k = Mul(is, step) r = Mul(j, k)"
    " t = BatchNormalization(r, of_channel, of_channel, of_channel, of_channel)",
    "row program": f"{ABS_MAX} d = Div(w, s) r = Floor(d) c = Clip(r, low, high) t = Mul(c, s)",
    "unconverted product": "wq, ws, wz = DynamicQuantizeLinear(w)"
    " t = QLinearMatMul(wq, step, none, matrix, step, no_shift, step, none)",
    "unconverted float product": f"{CODES} f = Transpose(q) g = Cast<to = 1>(f) h = Sigmoid(g) t = MatMul(h, tall)",
}
CASES["float16 operand"] = f"h16 = Cast<to = 1>(half) {CODES.replace('(w', '(h16')} t = Transpose(q)"


def model_of(nodes: str, place: str = "main", *, is_input: bool = False) -> onnx.ModelProto:
    """Returns a model with an output that depends on the input x and on the result t of nodes.

    Args:
        nodes: The nodes.
        place: Where they are: "main", "branch" of an If, or a "function" with the constants as parameters.
        is_input: Whether the first constant is also an input of the model.
    """
    model = parse(f"{nodes} tf = Cast<to = 1>(t) y = Mul(x, tf)", inputs="float[1] x")
    names = sorted((name for name in CONSTANTS if f"({name}" in nodes or f", {name}" in nodes), key=nodes.index)
    tensors = [numpy_helper.from_array(CONSTANTS[name], name) for name in names]
    if place == "function":
        into_function(model, names, "tf")
    elif place == "branch":
        branches = {}
        for branch, value in (("then_branch", "y"), ("else_branch", "other")):
            output = helper.make_tensor_value_info(value, 1, None)
            body = [*model.graph.node] if value == "y" else [helper.make_node("Neg", ["x"], [value])]
            branches[branch] = helper.make_graph(body, branch, [], [output])
        del model.graph.node[:]
        model.graph.node.extend(
            [
                helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
                helper.make_node("Cast", ["total"], ["is_set"], to=9),
                helper.make_node("If", ["is_set"], ["y"], **branches),
            ]
        )
    if is_input:
        model.graph.input.append(helper.make_tensor_value_info(names[0], tensors[0].data_type, tensors[0].dims))
    model.graph.initializer.extend(tensors)
    return model


def into_function(model: onnx.ModelProto, parameters: list[str], result: str) -> None:
    """Moves the nodes up to the one that computes `result` to a function, and all scalars with them."""
    nodes = [*model.graph.node]
    count = 1 + next(i for i, node in enumerate(nodes) if result in node.output)
    constants = [helper.make_node("Constant", [], [each.name], value=each) for each in model.graph.initializer]
    body, imports = [*constants, *nodes[:count]], [*model.opset_import]
    del model.graph.node[:], model.graph.initializer[:]
    model.functions.append(helper.make_function("local", "f", parameters, [result], body, imports))
    model.opset_import.append(helper.make_opsetid("local", 1))
    model.graph.node.extend([helper.make_node("f", parameters, [result], domain="local"), *nodes[count:]])


def nodes_left(model: onnx.ModelProto, folder: Path) -> int:
    """Counts the nodes that ONNX Runtime runs at its default level."""
    path = folder / "optimized.onnx"
    given = ort_dynq.register(options(1, True))
    given.optimized_model_filepath = str(path)
    ort.InferenceSession(model.SerializeToString(), given, providers=["CPUExecutionProvider"])
    return sum(1 for _ in nodes_of(onnx.load(path).graph))


X = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one) s = Div(m, c127) d = Div(x, s) r = Round(d)"
CHANNEL = "wa = Abs(w) wm = ReduceMax<keepdims = 1>(wa, one) ws = Div(wm, c127)"
WEIGHTS = {
    "chain": f"{CHANNEL} wd = Div(w, ws) wr = Round(wd) wc = Clip(wr, low, high) wf = Mul(wc, ws)",
    "guarded": f"{CHANNEL} is = Equal(ws, zero) wg = Where(is, eps, ws) wv = Reciprocal(wg) wq = Mul(w, wv)"
    " wx = Round(wq) wc = Clip(wx, low, high) wf = Mul(wc, wg)",
    "asymmetric": "wl = ReduceMin<keepdims = 1>(w, one) wh = ReduceMax<keepdims = 1>(w, one) wd = Sub(wh, wl)"
    " ws = Div(wd, c255) wt = Div(wl, ws) wy = Round(wt) wz = Neg(wy) wq = Div(w, ws) wr = Round(wq) wa = Add(wr, wz)"
    " wc = Clip(wa, zero, c255) wb = Sub(wc, wz) wf = Mul(wb, ws)",
    "Q/DQ": "wa = Abs(w) wm = ReduceMax<keepdims = 0>(wa, one) ws = Div(wm, c127) wz = Cast<to = 3>(zero)"
    " wn = Shape(ws) wv = Expand(wz, wn) wq = QuantizeLinear<axis = 0>(w, ws, wv)"
    " wi = Cast<to = 6>(wq) wk = Cast<to = 3>(wi) wf = DequantizeLinear<axis = 0>(wk, ws, wv)",
}


def product(weights: str) -> onnx.ModelProto:
    """Returns a linear layer that computes its weights wf from the initializer w."""
    model = parse(
        f"{weights} wy2 = Transpose<perm = [1, 0]>(wf) {X} c = Clip(r, low, high) f = Mul(c, s) y = MatMul(f, wy2)",
        inputs="float[N, 48] x",
    )
    model.graph.initializer.append(numpy_helper.from_array(CONSTANTS["w"], "w"))
    return model


def check_layer(model: onnx.ModelProto, folder: Path) -> None:
    """Checks that the layer becomes two nodes, and only its quantization is converted with `exact`."""
    x = rows((9, 48), 3)
    result = rewrite(model)
    assert found(result.report) == ["QuantizedMatMul", "RowProgram"], result.report.unconverted
    assert nodes_left(result.to_proto(), folder) == 2
    check_products(model, {"x": np.nan_to_num(x, posinf=1, neginf=-1)})
    assert found(check(model, {"x": x})) == ["RowProgram"]
