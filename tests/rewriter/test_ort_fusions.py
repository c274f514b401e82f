"""policy/ort_fusions.py predicts, node by node, what the installed ONNX Runtime fuses.

Each case is a small model in ONNX's text form. The tests ask stock ONNX Runtime, at its default level, which of the
model's QuantizeLinear and DequantizeLinear nodes remain, and compare the results with those without optimizations.

More than 450 lines: most of them are the list of cases.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
import onnx_ir as ir
import onnxruntime
import pytest

from ort_dynq.rewriter.policy.ort_fusions import fused_by_onnxruntime
from ort_dynq.tools.verification.saturation import cpu_saturates

VERSION = tuple(int(n) for n in onnxruntime.__version__.split(".")[:2])
QDQ = ("QuantizeLinear", "DequantizeLinear")


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    inputs: str
    outputs: str = "float[] y"
    init: str = ""
    opset: int = 17
    kernel: str = ""  # the fused kernel that must (or, if empty, need not) be there
    since: tuple[int, int] = (1, 20)  # (1, 31): ONNX Runtime 1.20.1 differs
    until: tuple[int, int] = (99, 0)  # (1, 32): ONNX Runtime 1.32 differs

    def model(self) -> onnx.ModelProto:
        head = f'<ir_version: {10 if self.opset >= 21 else 8}, opset_import: ["" : {self.opset}]>'
        init = f"<{self.init}>" if self.init else ""
        model = onnx.parser.parse_model(f"{head} g ({self.inputs}) => ({self.outputs}) {init} {{ {self.text} }}")
        for node in model.graph.node:
            node.name = node.output[0]
        return model

    def feeds(self) -> dict[str, np.ndarray]:
        """Random codes, scales (`*_s`) and zero points (`*_z`)."""
        rng, feeds, known = np.random.default_rng(0), {}, {i.name for i in self.model().graph.initializer}
        for value in self.model().graph.input:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            shape = [d.dim_value or 4 for d in value.type.tensor_type.shape.dim]
            if value.name in known:
                continue
            if value.name.endswith("_s"):
                array = rng.uniform(0.005, 0.03, shape)
            elif dtype == np.float32:
                array = rng.normal(size=shape)
            else:
                low, high = {"bool": (0, 2), "uint8": (100, 156)}.get(str(dtype), (-90, 90))
                array = rng.integers(low, high, shape)
            feeds[value.name] = np.asarray(array).astype(dtype)
        return feeds


def dq(name: str, zero_point: bool = True, attributes: str = "", out: str = "") -> str:
    return (
        f"{out or name + 'f'} = DequantizeLinear{attributes}({name}, {name}_s{f', {name}_z' if zero_point else ''})\n"
    )


def q(name: str = "y", x: str = "of", zero_point: bool = True, attributes: str = "") -> str:
    return f"{name} = QuantizeLinear{attributes}({x}, {name}_s{f', {name}_z' if zero_point else ''})\n"


def codes(name: str, type_: str = "uint8", shape: str = "8,16", scale: str = "", zero_point: bool = True) -> str:
    """Graph inputs: the codes `name`, their scale and zero point of shape `scale`."""
    return f"{type_}[{shape}] {name}, " + params(name, type_, scale, zero_point)


def params(name: str = "y", type_: str = "uint8", scale: str = "", zero_point: bool = True) -> str:
    dims = f"[{scale}]" if scale else ""
    return f"float{dims} {name}_s" + (f", {type_}{dims} {name}_z" if zero_point else "")


def const(type_: str, dims: str, name: str) -> str:
    rng, n = np.random.default_rng(3), int(np.prod([int(d) for d in dims.split(",")]))
    values = rng.uniform(0.005, 0.03, n).round(4) if type_ == "float" else rng.integers(-90, 90, n)
    return f"{type_}[{dims}] {name} = {{{', '.join(map(str, values))}}}"


U8, S8 = "uint8[] y", "int8[] y"
A, B, AB = codes("a"), codes("b", "int8", "16,8"), dq("a") + dq("b")
IMAGE, FILTER = codes("a", "uint8", "1,4,8,8"), codes("b", "int8", "4,4,3,3")
MATMUL = AB + "y = MatMul(af, bf)\n"
WEIGHTS = const("int8", "16,8", "b") + ", float b_s = {0.02}, int8 b_z = {0}"
CHANNELS = f"{const('int8', '16,8', 'b')}, {const('float', '16', 'b_s')}, int8[16] b_z = {{{', '.join(['0'] * 16)}}}"
BIAS = const("float", "8", "c")
NEWER = (1, 31)


def unary(op: str, type_: str, scale: str = "", a_zp: bool = True, y_zp: bool = True) -> dict[str, str]:
    return {
        "text": dq("a", a_zp) + f"of = {op}(af)\n" + q(zero_point=y_zp),
        "inputs": codes("a", type_, "1,4,8,8", scale, a_zp) + "," + params("y", type_, scale, y_zp),
        "outputs": f"{type_}[] y",
    }


def binary(op: str, type_: str, scale: str = "", zp: bool = True) -> dict[str, str]:
    return {
        "text": dq("a", zp) + dq("b", zp) + f"of = {op}\n" + q(zero_point=zp),
        "inputs": f"{codes('a', type_, scale=scale, zero_point=zp)}, {codes('b', type_, scale=scale, zero_point=zp)}, "
        + params("y", type_, scale, zp)
        + (", bool[8,16] c" if "Where" in op else ""),
        "outputs": f"{type_}[] y",
    }


UNARY = {
    "Sigmoid": "QLinearSigmoid",
    "LeakyRelu<alpha = 0.1>": "QLinearLeakyRelu",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
}
BINARY = {"Add(af, bf)": "QLinearAdd", "Mul(af, bf)": "QLinearMul", "Concat<axis = 0>(af, bf)": "QLinearConcat"}

# Fused by ONNX Runtime, and correct: the nodes stay.
FUSED = [
    *(Case(f"{op} {t}", **unary(op, t), kernel=k) for op, k in UNARY.items() for t in ("uint8", "int8")),
    *(Case(f"{op} {t}", **binary(op, t), kernel=k) for op, k in BINARY.items() for t in ("uint8", "int8")),
    *(Case(f"{op} zp absent", **unary(op, "uint8", "", False, False), kernel=k) for op, k in UNARY.items()),
    *(Case(f"{op} zp absent", **binary(op, "uint8", zp=False), kernel=k) for op, k in BINARY.items()),
    *(Case(f"{op} scale [1]", **unary(op, "uint8", "1"), kernel=UNARY[op]) for op in UNARY),
    Case("Concat scale [1]", **binary("Concat<axis = 0>(af, bf)", "uint8", "1"), kernel="QLinearConcat"),
    Case("Add twice the same", dq("a") + "of = Add(af, af)\n" + q(), f"{A}, {params()}", U8, kernel="QLinearAdd"),
    Case("MatMul u8 s8", MATMUL, f"{A}, {B}", kernel="MatMulIntegerToFloat"),
    Case("MatMul u8 u8", MATMUL, f"{A}, {codes('b', 'uint8', '16,8')}", kernel="MatMulIntegerToFloat"),
    Case("MatMul opset 21", MATMUL, f"{A}, {B}", opset=21, kernel="MatMulIntegerToFloat"),
    Case("MatMul opset 10", MATMUL, f"{A}, {B}", opset=10, kernel="MatMulIntegerToFloat"),
    Case("MatMul constant weights", MATMUL, A, init=WEIGHTS, kernel="MatMulIntegerToFloat"),
    Case("MatMul 3-D", MATMUL, f"{codes('a', shape='2,8,16')}, {B}", kernel="MatMulIntegerToFloat"),
    Case(
        "MatMul no zp",
        dq("a", False) + dq("b", False) + "y = MatMul(af, bf)",
        f"{codes('a', zero_point=False)}, {codes('b', 'int8', '16,8', zero_point=False)}",
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "MatMul scale [1]",
        MATMUL,
        f"{codes('a', scale='1')}, {codes('b', 'int8', '16,8', '1')}",
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "MatMul weights per channel",
        dq("a") + dq("b", attributes="<axis = -1>") + "y = MatMul(af, bf)",
        f"{A}, {codes('b', 'int8', '16,8', '8')}",
        kernel="MatMulIntegerToFloat",
    ),
    Case("MatMul Q", AB + "of = MatMul(af, bf)\n" + q(), f"{A}, {B}, {params()}", U8, kernel="QLinearMatMul"),
    Case(
        "MatMul Relu Q",
        AB + "r = MatMul(af, bf)\nof = Relu(r)\n" + q(),
        f"{A}, {B}, {params(zero_point=False)}",
        U8,
        init="uint8 y_z = {0}",
        kernel="QLinearMatMul",
    ),
    Case("MatMul Relu at the end", AB + "r = MatMul(af, bf)\ny = Relu(r)", f"{A}, {B}", kernel="MatMulIntegerToFloat"),
    Case(
        "MatMul Add scalar-like",
        AB + "m = MatMul(af, bf)\ny = Add(m, c)",
        f"{A}, {B}, float[1] c",
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "MatMul Add symbolic 3-D",
        AB + "m = MatMul(af, bf)\ny = Add(m, c)",
        codes("a", shape="N,8,16"),
        init=f"{WEIGHTS}, {BIAS}",
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "MatMul Add Q",
        AB + "m = MatMul(af, bf)\nof = Add(m, c)\n" + q(),
        f"{A}, {B}, {params()}",
        U8,
        init=BIAS,
        kernel="QGemm",
        since=NEWER,
    ),
    Case(
        "MatMul Transpose",
        AB + "t = Transpose(bf)\ny = MatMul(af, t)",
        f"{A}, {codes('b', 'int8', '8,16')}",
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "MatMul Transpose constant weights",
        AB + "t = Transpose(bf)\ny = MatMul(af, t)",
        codes("a", shape="16,8"),
        init=WEIGHTS,
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "MatMul Transpose constant weights per channel",
        dq("a") + "bf = DequantizeLinear<axis = 0>(b, b_s, b_z)\nt = Transpose<perm = [1,0]>(bf)\ny = MatMul(af, t)",
        codes("a", shape="2,5,8"),
        init=CHANNELS,
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "MatMul Transpose constant weights Add, of unknown length",
        AB + "t = Transpose(bf)\nm = MatMul(af, t)\ny = Add(m, c)",
        f"{codes('a', shape='n,5,8')}, float[16] c",
        init=WEIGHTS,
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "Q before MatMul",
        q("a", "x") + dq("a") + dq("b") + "y = MatMul(af, bf)",
        f"float[8,16] x, {params('a')}, {B}",
        kernel="MatMulIntegerToFloat",
    ),
    Case(
        "DynamicQuantizeLinear MatMul",
        "a, a_s, a_z = DynamicQuantizeLinear(x)\n" + MATMUL,
        "float[8,16] x",
        init=WEIGHTS,
        kernel="DynamicQuantizeMatMul",
    ),
    Case("Gemm", AB + "y = Gemm(af, bf)", f"{A}, {B}", kernel="QGemm"),
    Case("Gemm alpha", AB + "y = Gemm<alpha = 2.0>(af, bf)", f"{A}, {B}", kernel="QGemm"),
    Case("Gemm Q", AB + "of = Gemm(af, bf)\n" + q(), f"{A}, {B}, {params()}", U8, kernel="QGemm"),
    Case(
        "Gemm Q without zp",
        AB + "of = Gemm(af, bf)\n" + q(zero_point=False),
        f"{A}, {B}, {params(zero_point=False)}",
        U8,
        kernel="QGemm",
    ),
    Case(
        "Gemm weights per channel", AB + "y = Gemm(af, bf)", f"{A}, {codes('b', 'int8', '16,8', '8')}", kernel="QGemm"
    ),
    Case(
        "Gemm transB per channel",
        dq("a") + dq("b", attributes="<axis = 0>") + "y = Gemm<transB = 1>(af, bf)",
        f"{A}, {codes('b', 'int8', '8,16', '8')}",
        kernel="QGemm",
    ),
    Case(
        "Gemm s32 bias",
        AB + "c_s = Mul(a_s, b_s)\n" + dq("c", False) + "y = Gemm(af, bf, cf)",
        f"{A}, {B}, int32[8] c",
        kernel="QGemm",
    ),
    Case(
        "Gemm float bias Q",
        AB + "of = Gemm(af, bf, c)\n" + q(),
        f"{A}, {B}, {params()}",
        U8,
        init=BIAS,
        kernel="QGemm",
        since=NEWER,
    ),
    Case("Conv Q", AB + "of = Conv(af, bf)\n" + q(), f"{IMAGE}, {FILTER}, {params()}", U8, kernel="QLinearConv"),
    Case(
        "Conv Relu Q",
        AB + "r = Conv(af, bf)\nof = Relu(r)\n" + q(),
        f"{IMAGE}, {FILTER}, {params(zero_point=False)}",
        U8,
        init="uint8 y_z = {0}",
        kernel="QLinearConv",
    ),
    Case(
        "Conv per channel",
        dq("a") + dq("b", False, "<axis = 0>") + "of = Conv(af, bf)\n" + q(),
        f"{IMAGE}, {codes('b', 'int8', '4,4,3,3', '4', False)}, {params()}",
        U8,
        kernel="QLinearConv",
    ),
]

# ONNX Runtime does not fuse these nodes: they are converted.
S8A, U16 = codes("a", "int8"), "uint16"
UNFUSED = [
    *(Case(f"{op} Q", **unary(op, "uint8")) for op in ("Tanh", "Relu", "Transpose", "Flatten", "Exp", "ReduceMean")),
    Case("MaxPool Q", **unary("MaxPool<kernel_shape = [2,2]>", "uint8")),
    Case("Gelu Q", **unary("Gelu", "uint8"), opset=20),
    Case("Sub Q", **binary("Sub(af, bf)", "uint8")),
    Case("Sigmoid without Q", dq("a") + "y = Sigmoid(af)", A),
    Case("Add without Q", AB + "y = Add(af, bf)", f"{A}, {codes('b')}"),
    Case("Add u8 s8", AB + "of = Add(af, bf)\n" + q(), f"{A}, {codes('b', 'int8')}, {params()}", U8),
    Case("Add float", dq("a") + "of = Add(af, x)\n" + q(), f"{A}, float[8,16] x, {params()}", U8),
    Case("Concat float", dq("a") + "of = Concat<axis = 0>(af, x)\n" + q(), f"{A}, float[8,16] x, {params()}", U8),
    Case(
        "Add two Q",
        AB + "of = Add(af, bf)\n" + q() + q("z"),
        f"{A}, {codes('b')}, {params()}, {params('z')}",
        "uint8[] y, uint8[] z",
    ),
    Case(
        "Add u16",
        AB + "of = Add(af, bf)\n" + q(),
        f"{codes('a', U16)}, {codes('b', U16)}, {params('y', U16)}",
        "uint16[] y",
        opset=21,
    ),
    Case("Split Q", dq("a") + "of, p = Split<axis = 1>(af)\n" + q(), f"{A}, {params()}", "uint8[] y, float[] p"),
    Case("ArgMax", dq("a") + "y = ArgMax(af)", A, "int64[] y"),
    Case("DQ Q", dq("a") + q("y", "af"), f"{A}, {params()}", U8),
    Case("MatMul s8", MATMUL, f"{S8A}, {B}"),
    Case(
        "MatMul s8 per row",
        dq("a", attributes="<axis = 0>") + dq("b") + "y = MatMul(af, bf)",
        f"{codes('a', 'int8', scale='8')}, {B}",
    ),
    Case("MatMul float", dq("b") + "y = MatMul(x, bf)", f"float[8,16] x, {B}"),
    Case("MatMul Q other type", AB + "of = MatMul(af, bf)\n" + q(), f"{A}, {B}, {params('y', 'int8')}", S8),
    Case("MatMul Q and graph output", AB + "of = MatMul(af, bf)\n" + q(), f"{A}, {B}, {params()}", f"{U8}, float[] of"),
    Case("MatMul Relu", AB + "r = MatMul(af, bf)\ns = Relu(r)\ny = Neg(s)", f"{A}, {B}", since=NEWER),
    Case("MatMul Relu Q", AB + "r = MatMul(af, bf)\nof = Relu(r)\n" + q(), f"{A}, {B}, {params()}", U8, since=NEWER),
    Case("Gemm Clip", AB + "r = Gemm(af, bf)\ns = Clip(r)\ny = Neg(s)", f"{A}, {B}", since=NEWER),
    Case("MatMul Add", AB + "m = MatMul(af, bf)\ny = Add(m, c)", f"{A}, {B}, float[8] c"),
    Case(
        "MatMul Add 3-D",
        AB + "m = MatMul(af, bf)\ny = Add(c, m)",
        f"{codes('a', shape='2,8,16')}, {B}, float[8] c",
        since=NEWER,
    ),
    Case("MatMul Reshape", AB + "r = Reshape(af, d)\ny = MatMul(r, bf)", f"{A}, {B}", init="int64[2] d = {8,16}"),
    Case(
        "MatMul Transpose per row",
        dq("a") + dq("b", False, "<axis = 0>") + "t = Transpose(bf)\ny = MatMul(af, t)",
        f"{A}, {codes('b', 'int8', '8,16', '8', False)}",
        since=NEWER,
    ),
    Case(
        "MatMul Transpose without perm, constant weights per channel",
        dq("a") + "bf = DequantizeLinear<axis = 0>(b, b_s, b_z)\nt = Transpose(bf)\ny = MatMul(af, t)",
        codes("a", shape="2,5,8"),
        init=CHANNELS,
        since=NEWER,
    ),
    Case(
        "MatMul Transpose constant weights, no zp",
        dq("a") + "bf = DequantizeLinear<axis = 0>(b, b_s)\nt = Transpose(bf)\ny = MatMul(af, t)",
        codes("a", shape="16,8"),
        init=CHANNELS,
        since=NEWER,
    ),
    Case("Gemm float bias", AB + "y = Gemm(af, bf, c)", f"{A}, {B}, float[8] c"),
    Case("Gemm run-time float bias Q", AB + "of = Gemm(af, bf, c)\n" + q(), f"{A}, {B}, {params()}, float[8] c", U8),
    Case(
        "Gemm no zp", dq("a", False) + dq("b") + "y = Gemm(af, bf)", f"{codes('a', zero_point=False)}, {B}", since=NEWER
    ),
    Case(
        "MatMul Add Q 3-D",
        AB + "m = MatMul(af, bf)\nof = Add(m, c)\n" + q(),
        f"{codes('a', shape='2,8,16')}, {B}, {params()}",
        U8,
        init=BIAS,
        since=NEWER,
    ),
    Case(
        "Gemm s32 bias, alpha",
        AB + "c_s = Mul(a_s, b_s)\n" + dq("c", False) + "y = Gemm<alpha = 2.0>(af, bf, cf)",
        f"{A}, {B}, int32[8] c",
        since=NEWER,
    ),
    Case("Conv without Q", AB + "y = Conv(af, bf)", f"{IMAGE}, {FILTER}"),
    Case(
        "Conv s8",
        AB + "of = Conv(af, bf)\n" + q(),
        f"{codes('a', 'int8', '1,4,8,8')}, {FILTER}, {params('y', 'int8')}",
        S8,
    ),
    Case(
        "Conv s32 bias",
        AB + "c_s = Mul(a_s, b_s)\n" + dq("c", False) + "of = Conv(af, bf, cf)\n" + q(),
        f"{IMAGE}, {FILTER}, {params()}, int32[4] c",
        U8,
        since=NEWER,
    ),
    Case("MatMul f16", MATMUL, f"{A}, {B}".replace("float", "float16"), "float16[] y", opset=19),
]

# Fused by ONNX Runtime, and wrong: the nodes are converted, which repairs the model.
SQUARE, ROW = codes("b", "int8", "16,16"), "<axis = 0>"
WRONG = [
    *(Case(f"{op} scale [1]", **binary(op, "uint8", "1"), until=(1, 32)) for op in ("Add(af, bf)", "Mul(af, bf)")),
    Case("AveragePool scale [1]", **unary("AveragePool<kernel_shape = [2,2]>", "uint8", "1")),
    Case("AveragePool dilations", **unary("AveragePool<kernel_shape = [2,2], dilations = [2,2]>", "uint8"), opset=19),
    Case("MatMul per row", dq("a", attributes=ROW) + dq("b") + "y = MatMul(af, bf)", f"{codes('a', scale='8')}, {B}"),
    Case(
        "MatMul per row, M == N",
        dq("a", False, ROW) + dq("b") + "y = MatMul(af, bf)",
        f"{codes('a', shape='16,16', scale='16', zero_point=False)}, {SQUARE}",
    ),
    Case(
        "MatMul weights per row",
        dq("a") + dq("b", False, ROW) + "y = MatMul(af, bf)",
        f"{codes('a', shape='16,16')}, {codes('b', 'int8', '16,16', '16', False)}",
    ),
    Case(
        "MatMul constant weights per row",
        dq("a") + dq("b", False, ROW) + "y = MatMul(af, bf)",
        codes("a", shape="16,16"),
        init=f"{const('int8', '16,16', 'b')}, {const('float', '16', 'b_s')}",
    ),
    Case(
        "MatMul Q per row",
        AB + "of = MatMul(af, bf)\n" + q(attributes=ROW),
        f"{A}, {B}, {params('y', 'uint8', '8')}",
        U8,
        until=(1, 32),
    ),
    Case(
        "MatMul blocked",
        dq("a", False, "<axis = 1, block_size = 8>") + dq("b") + "y = MatMul(af, bf)",
        f"{codes('a', scale='8,2', zero_point=False)}, {B}",
        opset=21,
    ),
    Case(
        "MatMul s32",
        dq("a") + dq("b", False) + "y = MatMul(af, bf)",
        f"{A}, {codes('b', 'int32', '16,8', zero_point=False)}",
        until=(1, 32),
    ),
    Case(
        "Gemm weights per row",
        dq("a") + dq("b", attributes=ROW) + "y = Gemm(af, bf)",
        f"{codes('a', shape='16,16')}, {codes('b', 'int8', '16,16', '16')}",
    ),
    Case(
        "Gemm s32 bias, other scale",
        AB + dq("c", False) + "y = Gemm(af, bf, cf)",
        f"{A}, {B}, {codes('c', 'int32', '8', zero_point=False)}",
    ),
    Case(
        "Gemm s32 bias, other product",
        AB + "c_s = Mul(a_s, a_s)\n" + dq("c", False) + "y = Gemm(af, bf, cf)",
        f"{A}, {B}, int32[8] c",
    ),
    Case(
        "MatMul 3-D weights per row",
        dq("a") + dq("b", False, "<axis = 1>") + "y = MatMul(af, bf)",
        f"{codes('a', shape='2,16,16')}, {codes('b', 'int8', '2,16,16', '16', False)}",
    ),
    Case(
        "Gemm float weights",
        dq("a") + "of = Gemm(af, bf)\n" + q(),
        f"{A}, {params()}",
        U8,
        init=const("float", "16,8", "bf").replace("{", "{100", 1),
        since=NEWER,
    ),
    Case(
        "Conv axis 1",
        dq("a") + dq("b", False) + "of = Conv(af, bf)\n" + q(),
        f"{IMAGE}, {codes('b', 'int8', '4,4,3,3', '4', False)}, {params()}",
        U8,
    ),
    Case(
        "Sigmoid per row",
        dq("a", attributes=ROW) + "of = Sigmoid(af)\n" + q(),
        f"{codes('a', scale='8')}, {params()}",
        U8,
    ),
    Case(
        "Sigmoid Q per row", dq("a") + "of = Sigmoid(af)\n" + q(attributes=ROW), f"{A}, {params('y', 'uint8', '8')}", U8
    ),
    Case(
        "Sigmoid Q of s8 without zp",
        dq("a") + "of = Sigmoid(af)\n" + q(zero_point=False, attributes="<output_dtype = 3>"),
        f"{S8A}, {params(zero_point=False)}",
        S8,
        opset=21,
    ),
    Case(
        "Concat per row",
        dq("a", attributes=ROW) + dq("b") + "of = Concat<axis = 0>(af, bf)\n" + q(),
        f"{codes('a', scale='8')}, {codes('b')}, {params()}",
        U8,
        until=(1, 32),
    ),
]

# Fused and correct, but slower than unfused: the nodes are converted.
SLOWER = [
    Case("Gemm s8", AB + "y = Gemm(af, bf)", f"{S8A}, {B}", kernel="QGemm"),
    Case("Softmax", **unary("Softmax", "uint8"), kernel="QLinearSoftmax", until=(1, 32)),
    Case("AveragePool", **unary("AveragePool<kernel_shape = [2,2]>", "uint8"), kernel="QLinearAveragePool"),
    Case("Where", **binary("Where(c, af, bf)", "uint8"), kernel="QLinearWhere"),
]


def is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and not value.is_graph_input()


def verdicts(model: onnx.ModelProto) -> dict[str, str | None]:
    """Returns the answer of fused_by_onnxruntime for each Q and DQ with a run-time scale or zero point."""
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(model, data_prop=True))
    nodes = [n for n in inferred.graph.all_nodes() if n.op_type in QDQ and not all(map(is_constant, n.inputs[1:]))]
    reasons = {str(n.name): fused_by_onnxruntime(n, is_constant) for n in nodes}
    return {name: reason and str(reason) for name, reason in reasons.items()}


def optimized(model: onnx.ModelProto, tmp_path: Path) -> tuple[onnxruntime.InferenceSession, onnx.ModelProto]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session, onnx.load(options.optimized_model_filepath)


def plain_results(case: Case) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        case.model().SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, case.feeds())


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    """Allows for one float rounding: 1e-5 of the largest value, or one code. Integer sums are exact."""
    for f, e in zip(found, expected, strict=True):
        tolerance = 1e-5 * np.abs(e).max() if f.dtype == np.float32 else 1
        np.testing.assert_allclose(f.astype(np.float64), e.astype(np.float64), rtol=0, atol=tolerance)


def kept(case: Case, result: onnx.ModelProto) -> set[str]:
    """Returns the Q and DQ nodes that ONNX Runtime did not fuse, except before a Transpose and an inserted Q."""
    own, nodes = {n.name for n in case.model().graph.node}, result.graph.node
    inserted = {n.input[0] for n in nodes if n.op_type == "QuantizeLinear" and n.name not in own}
    moved = {n.input[0] for n in nodes if n.op_type == "Transpose" and n.output[0] in inserted}
    return {n.name for n in nodes if n.op_type in QDQ and n.output[0] not in moved}


def cases(group: list[Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "case", group, ids=[re.sub(r"<.*?>|\(.*?\)", "", c.name).replace(" ", "-") for c in group]
    )


@pytest.fixture(autouse=True)
def _new_enough(request: pytest.FixtureRequest) -> None:
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    if case is not None and not case.since <= VERSION < case.until:
        pytest.skip(f"ONNX Runtime {onnxruntime.__version__} differs")


@cases(FUSED)
def test_fused(case: Case, tmp_path: Path) -> None:
    session, graph = optimized(case.model(), tmp_path)
    said, left = verdicts(case.model()), kept(case, graph)
    assert {name for name, reason in said.items() if reason is None} == left & said.keys()
    assert case.kernel in {n.op_type for n in graph.graph.node}
    kernel = "MatMulIntegerToFloat" if case.kernel == "DynamicQuantizeMatMul" else case.kernel
    reasons = [reason for reason in said.values() if reason is not None]
    assert reasons
    assert all(reason.endswith(f" into {kernel}") for reason in reasons)
    if case.kernel != "DynamicQuantizeMatMul" or not cpu_saturates():  # which is wrong, where it saturates
        assert_close(session.run(None, case.feeds()), plain_results(case))


@cases(UNFUSED)
def test_not_fused(case: Case, tmp_path: Path) -> None:
    said = verdicts(case.model())
    assert said
    assert set(said.values()) == {None}
    assert said.keys() <= kept(case, optimized(case.model(), tmp_path)[1])


@cases(WRONG)
def test_fused_wrongly(case: Case, tmp_path: Path) -> None:
    assert set(verdicts(case.model()).values()) == {None}
    expected = plain_results(case)
    with pytest.raises((AssertionError, Exception), match=r"Not equal to tolerance|ONNXRuntimeError"):
        assert_close(optimized(case.model(), tmp_path)[0].run(None, case.feeds()), expected)


@cases(SLOWER)
def test_fused_but_slower(case: Case, tmp_path: Path) -> None:
    assert set(verdicts(case.model()).values()) == {None}
    assert case.kernel in {n.op_type for n in optimized(case.model(), tmp_path)[1].graph.node}


def test_unknown_scale_shape_is_not_per_tensor() -> None:
    case = Case("", MATMUL, f"{A.replace('float', 'float[]')}, {B}")
    assert set(verdicts(case.model()).values()) == {None}


@pytest.mark.parametrize(
    ("text", "outputs"),
    [
        (MATMUL + "z = Relu(af)", "float[] y, float[] z"),
        (MATMUL, "float[] y, float[] af"),
        (MATMUL + dq("b", out="bg") + "z = MatMul(af, bg)", "float[] y, float[] z"),
        (MATMUL + "z = Cast<to = 1>(a)", "float[] y, float[] z"),
    ],
    ids=["another operator", "graph output", "two MatMul", "codes used"],
)
def test_a_dequantizer_with_further_uses_is_duplicated_and_fused(text: str, outputs: str, tmp_path: Path) -> None:
    case = Case("", text, f"{A}, {B}", outputs)
    assert None not in verdicts(case.model()).values()
    assert "MatMulIntegerToFloat" in {n.op_type for n in optimized(case.model(), tmp_path)[1].graph.node}


SIGNED = "float[8,16] x, float a_s"
PAIRS = {
    "MatMul": Case("", q("a", "x") + MATMUL, SIGNED, init=f"{WEIGHTS}, int8 a_z = {{0}}"),
    "MatMul, Q, DQ": Case(
        "",
        q("a", "x") + AB + "of = MatMul(af, bf)\n" + q("o") + dq("o", out="y"),
        f"{SIGNED}, float o_s",
        init=f"{WEIGHTS}, int8 a_z = {{0}}, int8 o_z = {{0}}",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_signed_pair_with_constant_zero_point(name: str, tmp_path: Path) -> None:
    """ONNX Runtime makes the pair unsigned and fuses it, which needs both nodes: so both stay."""
    case = PAIRS[name]
    assert None not in verdicts(case.model()).values()
    assert not {n.op_type for n in optimized(case.model(), tmp_path)[1].graph.node} & {"MatMul"}
    without_q = Case(
        "", case.text.replace(q("a", "x"), ""), case.inputs.replace("float[8,16] x", "int8[8,16] a"), init=case.init
    )
    assert set(verdicts(without_q.model()).values()) == {None}
    assert "MatMul" in {n.op_type for n in optimized(without_q.model(), tmp_path)[1].graph.node}
    if name != "MatMul":
        without_dq = Case("", case.text.replace(dq("o", out="y"), ""), case.inputs, "int8[] o", case.init)
        assert "MatMul" in {n.op_type for n in optimized(without_dq.model(), tmp_path)[1].graph.node}


@pytest.mark.parametrize("shared", [False, True])
def test_signed_pair_shared_by_two_is_not_fused(shared: bool, tmp_path: Path) -> None:
    text = q("a", "x") + MATMUL + (dq("b", out="bg") + "z = MatMul(af, bg)" if shared else "z = Neg(af)")
    case = Case("", text, SIGNED, "float[] y, float[] z", f"{WEIGHTS}, int8 a_z = {{0}}")
    said = verdicts(case.model())
    assert set(said.values()) == {None}
    assert said.keys() <= kept(case, optimized(case.model(), tmp_path)[1])


def test_inside_a_branch(tmp_path: Path) -> None:
    """A group is fused inside a subgraph, not across its boundary."""
    otherwise = "else_branch = e () => (float[8,8] v) {{ v = Neg(n) }}"
    branch = "y = If(p) <then_branch = t () => (float[8,8] u) {{ {} }}, " + otherwise + ">"
    inputs = f"{A}, {B}, bool p, float[8,8] n"
    inside = Case("", branch.format(AB + "u = MatMul(af, bf)"), inputs)
    assert set(verdicts(inside.model()).values()) == {
        "ONNX Runtime fuses DequantizeLinear, DequantizeLinear -> MatMul into MatMulIntegerToFloat"
    }
    assert "MatMulIntegerToFloat" in str(optimized(inside.model(), tmp_path)[1])
    across = Case("", AB + branch.format("u = MatMul(af, bf)"), inputs)
    assert set(verdicts(across.model()).values()) == {None}
    assert "MatMulIntegerToFloat" not in str(optimized(across.model(), tmp_path)[1])
