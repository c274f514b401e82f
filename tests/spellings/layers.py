"""Random spellings of a layer: what moves its activation, its weights, and its product."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .graph import Array, Draw, Graph, Shape
from .quantization import Codes, Quantization
from .steps import GROUP

COLUMNS, COLUMNS_OF_GROUPS, FILTERS = 16, 256, 16


@dataclass
class _Weights:
    """Weights of a product: the floats, and the codes with their scale.

    Attributes:
        codes: Integers, [K, N] or the weights of a Conv.
        scale: The scales, of the same rank.
        axis: The axis of the output channels.
    """

    codes: Array
    scale: Array
    axis: int


@dataclass
class Layers:
    """Writes the products of a model.

    Attributes:
        draw: The choices.
        near_miss: One of NEAR_MISSES, or empty.
        outputs: The results of the products so far.
        magnitudes: For each result of a float product, the same product of absolute values.
        g: The graph.
        image: The shape of the input of a convolution.
        opset, type, kind, arithmetic, scope, axis: The choices of these names; the axis is that of the weights' scales.
    """

    draw: Draw
    near_miss: str = ""
    outputs: list[str] = field(default_factory=list)
    magnitudes: dict[str, str] = field(default_factory=dict)
    g: Graph = field(init=False)
    image: Shape = ()
    opset: int = field(init=False)
    type: str = field(init=False)
    kind: str = field(init=False)
    arithmetic: str = field(init=False)
    scope: str = field(init=False)
    axis: str = field(init=False)

    # Between the quantization and the product

    def moved(self, v: str) -> str:
        """Moves the activation between its quantization and its product, or multiplies it by a number."""
        g, is_conv = self.g, self.kind.startswith("Conv")
        for place in ("first", "second"):
            shape = g.shapes[v]
            rank = len(shape)
            odd = ["Identity", "Cast", "x * 1", "x + 0", "x - 0", "x / 1", "Dropout", "Reshape, Reshape", "Concat"]
            odd += ["Unsqueeze, Squeeze", "Transpose, Transpose", "x * 0.5", "Neg", "Relu"]
            if self.opset >= 15:
                odd += ["CastLike"]
            if is_conv:
                odd += ["Pad"]
            else:
                odd += ["Slice", "Split", "Gather", "Reshape to heads and back"]
                if rank > 2:
                    odd += ["Reshape to rows", "Flatten", "Transpose of rows"]
                elif self.kind == "MatMul":
                    odd += ["Unsqueeze"]
            match self.draw(f"{place} move", "none", "|".join(odd)):
                case "Identity":
                    v = g("Identity", v)
                case "Cast":
                    v = g.cast(v, g.dtype)
                case "CastLike":
                    v = g("CastLike", v, g.constant(0.0), shape=shape)
                case "Reshape to heads and back":
                    v = g.reshape(g.reshape(v, [*shape[:-1], 4, shape[-1] // 4]), shape)
                case "x * 1":
                    v = g("Mul", v, 1.0)
                case "x + 0":
                    v = g("Add", v, 0.0)
                case "x - 0":
                    v = g("Sub", v, 0.0)
                case "x / 1":
                    v = g("Div", v, 1.0)
                case "x * 0.5":
                    v = g("Mul", v, 0.5)
                case "Neg" | "Relu" as op:
                    v = g(op, v)
                case "Pad":
                    v = g.pad(v, [0, 0, *[1] * (rank - 2)])
                case "Dropout":
                    v = g("Dropout", v)
                case "Reshape, Reshape":
                    v = g.reshape(g.reshape(v, [-1]), shape)
                case "Concat":
                    v = g("Concat", v, v, shape=(2 * shape[0], *shape[1:]), axis=0)
                case "Unsqueeze, Squeeze":
                    v = g.squeeze(g.unsqueeze(v, 0), 0)
                case "Unsqueeze":
                    v = g.unsqueeze(v, 0)
                case "Transpose, Transpose":
                    perm = [*range(rank)][::-1]
                    v = g.transpose(g.transpose(v, perm), perm)
                case "Slice":
                    v = g.slice(v, rank - 2, 0, shape[-2] - 1)
                case "Split":
                    half = shape[-2] // 2
                    lengths = [half, shape[-2] - half]
                    shapes = [(*shape[:-2], n, shape[-1]) for n in lengths]
                    if self.opset >= 13:
                        v = g.split("Split", v, g.integers(*lengths), shapes=shapes, axis=rank - 2)[1]
                    else:
                        v = g.split("Split", v, shapes=shapes, axis=rank - 2, split=lengths)[1]
                case "Gather":
                    picked = g.integers(*range(shape[-2])[::-2])
                    v = g("Gather", v, picked, shape=(*shape[:-2], *g.shapes[picked], shape[-1]), axis=rank - 2)
                case "Reshape to rows":
                    v = g.reshape(v, [-1, shape[-1]])
                case "Flatten":
                    v = g("Flatten", v, shape=(int(np.prod(shape[:-1])), shape[-1]), axis=rank - 1)
                case "Transpose of rows":
                    v = g.transpose(v, [1, 0, *range(2, rank)])
        return v

    # Weights

    def _random_weights(self, i: int) -> _Weights:
        draw = self.draw
        rng = draw.generator(f"weights {i}")
        bits = draw("bits", "8", "4") if self.kind != "Conv1d" else "8"
        top = 7 if bits == "4" else 127
        if self.kind.startswith("Conv"):
            size, axis = (FILTERS, self.image[1], *[3] * (len(self.image) - 2)), 0
        else:
            columns = COLUMNS_OF_GROUPS if "group" in (self.scope, self.axis) else COLUMNS
            size, axis = (self.g.shapes["x"][-1], columns), 1
        codes = rng.integers(-top, top + 1, size).astype(np.int8)
        ends = rng.choice([-top, top], size[axis])
        codes[0 if axis else slice(None), ..., slice(None) if axis else 0] = (
            ends if axis else ends.reshape(-1, *[1] * (len(size) - 2))
        )
        scales = rng.uniform(0.001, 0.1, size[axis]).astype(np.float32)
        if self.axis == "tensor":
            scales[:] = scales[0]
        if self.type != "float32":
            scales = scales.astype(np.float16)
        if self.axis == "group":
            codes[::GROUP] = ends  # the largest code of each group
            groups = rng.uniform(0.001, 0.1, (size[0] // GROUP, size[1])).astype(scales.dtype)
            return _Weights(codes, np.repeat(groups, GROUP, 0), axis)
        return _Weights(codes, scales.reshape([-1 if n == axis else 1 for n in range(len(size))]), axis)

    def _float_weights(self, w: _Weights, transposed: bool) -> str:
        """Returns the value of the weights; [N, K] if they are transposed."""
        g, draw = self.g, self.draw
        codes, scale, axis = w.codes, w.scale.astype(g.dtype), w.axis
        if transposed:
            codes, scale, axis = codes.T, scale.T, 1 - axis
        if self.near_miss == "weights computed at run time":
            total = g("Add", g("Mul", g.reduce("Max", "other", [], 0), 0.0), 1.0)
            return g("Mul", g.constant(codes * scale), g("Add", total, g.reduce("Max", "other", [], 0)))
        if self.near_miss == "weights quantized at run time":
            second = Quantization(self.draw, g, "other", "tensor", "x", "")
            real = second.dequantized(second.symmetric())
            real = g("Concat", real, real, shape=codes.T.shape if axis else codes.shape, axis=0)  # [N, K]
            return real if transposed else g.transpose(real, [1, 0])
        if self.near_miss == "weights without a grid":
            return g.constant(draw.generator("noise").normal(0, 1, codes.shape).astype(g.dtype))
        odd = "(q - z) * s"
        if self.opset >= (13 if self.axis == "channel" else 10) and self.axis != "group" and g.dtype == np.float32:
            odd += "|DequantizeLinear of uint8"
            usual = "folded|Cast * scale|DequantizeLinear"
        else:
            usual = "folded|Cast * scale"
        odd += "|Transpose of folded|Transpose of Cast * scale" if codes.ndim == 2 else ""
        match draw("weights", usual, odd):
            case "Cast * scale":
                return g("Mul", g.cast(g.constant(codes, np.int8), g.dtype), g.constant(scale))
            case "DequantizeLinear" | "DequantizeLinear of uint8" as form:
                flat = scale.reshape(-1) if self.axis == "channel" else scale.reshape(-1)[0]
                attributes = {"axis": axis} if self.opset >= 13 else {}
                unsigned = form.endswith("uint8")
                stored = (codes.astype(np.int16) + 128).astype(np.uint8) if unsigned else codes
                zero = np.full(flat.shape, 128 if unsigned else 0, stored.dtype)
                names = g.constant(stored, stored.dtype), g.constant(flat), g.constant(zero, stored.dtype)
                return g("DequantizeLinear", *names, shape=codes.shape, **attributes)
            case "(q - z) * s":
                stored = (codes.astype(np.int16) + 128).astype(np.uint8)
                real = g("Sub", g.cast(g.constant(stored, np.uint8), g.dtype), 128.0)
                return g("Mul", real, g.constant(scale))
            case "Transpose of folded":
                return g.transpose(g.constant((codes * scale).astype(g.dtype).T), [1, 0])
            case "Transpose of Cast * scale":
                real = g.cast(g.constant(np.ascontiguousarray(codes.T), np.int8), g.dtype)
                return g.transpose(g("Mul", real, g.constant(scale.T)), [1, 0])
        return g.constant((codes * scale).astype(g.dtype))

    # Products

    def _product(self, a: str, w: str, transposed: bool, c: str = "") -> str:
        g = self.g
        left, right = g.shapes[a], g.shapes[w]
        if self.kind.startswith("Conv"):
            shape = (left[0], right[0], *left[2:])
            return g("Conv", a, w, *[c] * bool(c), shape=shape, kernel_shape=right[2:], pads=[1] * 2 * (len(left) - 2))
        columns = right[0] if transposed else right[1]
        if self.kind == "Gemm" and len(left) == 2:
            return self._gemm(a, w, transposed, c)
        if self.kind == "Einsum":
            rows = "abcd"[: len(left) - 1]
            equation = f"{rows}k,{'nk' if transposed else 'kn'}->{rows}n"
            return g("Einsum", a, w, shape=(*left[:-1], columns), equation=equation)
        if transposed:
            w = g.transpose(w, [1, 0])
        return g("MatMul", a, w, shape=(*left[:-1], columns))

    def _gemm(self, a: str, w: str, transposed: bool, c: str) -> str:
        g, attributes = self.g, {"transB": int(transposed)}
        columns = g.shapes[w][0 if transposed else 1]
        shape = (g.shapes[a][0], columns)
        c = c or g.constant(np.zeros(columns))
        match self.draw("attributes of the Gemm", "none", "alpha|beta is 0"):
            case "alpha":
                return g("Gemm", a, w, c, shape=shape, alpha=0.25, **attributes)
            case "beta is 0":
                return g("Gemm", a, w, c, shape=shape, beta=0.0, **attributes)
        return g("Gemm", a, w, c, shape=shape, **attributes)

    def _bias(self, i: int, columns: int) -> str:
        g = self.g
        values = self.draw.generator(f"bias {i}").normal(0, 10, columns)
        return g.constant(values)

    def float_product(self, i: int, a: str, magnitude: str) -> None:
        """A product of floats, with a bias or not, and the same product of absolute values."""
        g, draw = self.g, self.draw
        weights = self._random_weights(i)
        transposed = not self.kind.startswith("Conv") and draw("transposed weights", "no", "yes") == "yes"
        w = self._float_weights(weights, transposed)
        columns = weights.codes.shape[weights.axis]
        form = draw("bias", "none|of the product" if self.kind in ("Gemm", "Conv", "Conv1d") else "none|Add", "")
        bias = "" if form == "none" else self._bias(i, columns)
        y = self._product(a, w, transposed, bias if form == "of the product" else "")
        if form == "Add":
            y = g("Add", y, bias)
        absolute = self._product(magnitude, g("Abs", w), transposed, g("Abs", bias) if form == "of the product" else "")
        if form == "Add":
            absolute = g("Add", absolute, g("Abs", bias))
        self._emit(y, absolute)

    def _channels(self, scale: Array) -> Array:
        """Returns scales of output channels in the shape that broadcasts to a product's result."""
        shape = [1, -1, *[1] * (scale.ndim - 2)] if self.kind.startswith("Conv") else [-1]
        return scale.reshape(shape)

    def _scaled(self, sums: str, scale: str, weights: _Weights) -> str:
        """Multiplies sums by both scales."""
        g, draw = self.g, self.draw
        channels = g.constant(self._channels(weights.scale) if self.axis == "channel" else weights.scale.reshape(-1)[0])
        match draw("scales of the sums", "s * ws|s, ws", "ws, s"):
            case "s * ws":
                return g("Mul", sums, g("Mul", scale, channels))
            case "ws, s":
                return g("Mul", g("Mul", sums, channels), scale)
        return g("Mul", g("Mul", sums, scale), channels)

    def product_of_codes(self, i: int, codes: Codes) -> None:
        """A float product of codes; its result is multiplied by the scales."""
        g, weights = self.g, self._random_weights(i)
        real = g.cast(codes.q, g.dtype)
        stored = g.constant(weights.codes, np.int8) if self.draw("codes of weights", "int8|float") == "int8" else ""
        w = g.cast(stored, g.dtype) if stored else g.constant(weights.codes)
        if codes.zero is not None or codes.zero_code is not None:
            real = g("Sub", real, codes.zero or g.cast(codes.zero_code or "", g.dtype))
        y = self._scaled(self._product(real, w, False), codes.scale, weights)
        absolute = self._product(g("Abs", real), g("Abs", w), False)
        self._emit(y, g("Abs", self._scaled(absolute, codes.scale, weights)))

    def integer_product(self, i: int, codes: Codes) -> None:
        """MatMulInteger, ConvInteger, or a MatMul or Einsum of int32."""
        g, weights = self.g, self._random_weights(i)
        q = codes.q
        left = g.shapes[q]
        is_conv = self.kind.startswith("Conv")
        shape = (left[0], FILTERS, *left[2:]) if is_conv else (*left[:-1], weights.codes.shape[1])
        if self.arithmetic == "int32":
            a, w = g.cast(q, np.int32), g.cast(g.constant(weights.codes, np.int8), np.int32)
            if codes.zero_code:
                a = g("Sub", a, g.cast(codes.zero_code, np.int32))
            sums = self._product(a, w, False) if self.kind == "Einsum" else g("MatMul", a, w, shape=shape)
        else:
            zero = [codes.zero_code] if codes.zero_code else []
            if zero and g.shapes[zero[0]] != ():
                zero = [g.constant(128, np.uint8)] if "uint8" in self.draw.made.get("quantize", "") else []
            if zero and g.shapes[zero[0]] != ():
                zero = [g.reshape(zero[0], [])]
            attributes = {"kernel_shape": weights.codes.shape[2:], "pads": [1] * 2 * (len(left) - 2)} if is_conv else {}
            w = g.constant(weights.codes, np.int8)
            sums = g("ConvInteger" if is_conv else "MatMulInteger", q, w, *zero, shape=shape, **attributes)
        self._emit(self._scaled(g.cast(sums, g.dtype), codes.scale, weights), "")

    def product_of_activations(self, codes: Codes, others: Codes) -> None:
        """A product of the codes of two activations, [..., M, K] and [..., N, K]."""
        g = self.g
        rank = len(g.shapes[codes.q])
        odd = "MatMul of int64|Einsum of int32" + ("|MatMulInteger" if self.draw.made.get("codes") != "int32" else "")
        form = self.draw("product of activations", "MatMul of int32", odd)
        columns = [*range(rank - 2), rank - 1, rank - 2]
        shape = (*g.shapes[codes.q][:-1], g.shapes[others.q][-2])
        factors, zeros = [], []
        for each in (codes, others):
            zero = each.zero_code
            if zero and g.shapes[zero]:
                zero = g.reshape(zero, [])
            q = each.q
            if form != "MatMulInteger":
                wide = np.int64 if form.endswith("int64") else np.int32
                q = g.cast(q, wide)
                if zero:
                    q = g("Sub", q, g.cast(zero, wide))
            factors.append(q)
            zeros += [zero] if zero else []
        if form.startswith("Einsum"):
            lead = "ab"[: rank - 2]
            sums = g("Einsum", *factors, shape=shape, equation=f"{lead}mk,{lead}nk->{lead}mn")
        else:
            factors[1] = g.transpose(factors[1], columns)
            operator = "MatMulInteger" if form == "MatMulInteger" else "MatMul"
            sums = g(operator, *factors, *(zeros if operator == "MatMulInteger" else []), shape=shape)
        scale = others.scale
        if len(g.shapes[scale]) == rank:
            scale = g.transpose(scale, columns)
        real = g.cast(sums, g.dtype)
        match self.draw("scales of the sums", "s * ws|s, ws", "ws, s"):
            case "s * ws":
                y = g("Mul", real, g("Mul", codes.scale, scale))
            case "ws, s":
                y = g("Mul", g("Mul", real, scale), codes.scale)
            case _:
                y = g("Mul", g("Mul", real, codes.scale), scale)
        self._emit(y, "")

    def _emit(self, y: str, magnitude: str) -> None:
        g = self.g
        match self.draw("after the product", "nothing", "Relu|Reshape" if not self.kind.startswith("Conv") else "Relu"):
            case "Relu":
                y = g("Relu", y)
            case "Reshape":
                y = g.reshape(y, [-1, g.shapes[y][-1]])
        self.outputs.append(y)
        if magnitude:
            self.magnitudes[y] = magnitude
