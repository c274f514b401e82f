"""Random models with one or two products of an activation that is quantized at run time, in random spellings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from .graph import Array, Draw, Graph, Shape
from .layers import Layers
from .placement import as_function, element_type, in_branch, reads, used
from .quantization import Quantization
from .steps import GROUP, NEAR_MISSES, fixed_by

# With the numbers of columns and filters of layers.py, large enough for the limits of rewriter/policy/cost.py, also
# if a dimension is not declared.
_DEPTH, _SQUARE = 256, 64
_ROWS: dict[str, Shape] = {
    "matrix": (8, _DEPTH),
    "batch": (2, 4, _DEPTH),
    "heads": (2, 3, 4, _DEPTH),
    "square": (_SQUARE, _SQUARE),
}
_IMAGE, _SEQUENCE = (1, 16, 12, 12), (1, 16, 400)
_FRAMES = 2
_OF_ALL_HEADS = "token of all heads"
_STEPS, _STEPS_OF_FLOAT16 = (-6, 6), (-10, -4)  # exponents


@dataclass
class Spelling:
    """A model, data for it, and what is known of its results.

    Attributes:
        model: The model.
        inputs: Values of its inputs: dense in ties; then zeros, infinities and numbers near the limits of float32.
        draw: The choices.
        products: The number of its products.
        expected: Whether every product can be an integer product: True, False for a near miss, None if neither is
            demanded.
        probe: The same nodes in one graph, with two more outputs for each product of floats: the result, and the same
            product of absolute values.
        magnitudes: For each output that is computed from a product of floats, the name of the probe's magnitude.
        near_miss: The near miss, or empty.
    """

    model: onnx.ModelProto
    inputs: list[dict[str, Array]]
    draw: Draw
    products: int
    expected: bool | None
    probe: onnx.ModelProto
    magnitudes: dict[str, str]
    near_miss: str = ""

    @property
    def description(self) -> str:
        """The choices in one line: the unusual ones, and the kind of product and scale."""
        always = ("product", "arithmetic", "scope", "scheme", "weights", "opset")
        made = self.draw.made
        named = [f"{name}={made[name]}" for name in made if name in always or name in self.draw.unusual]
        return ", ".join([self.near_miss] * bool(self.near_miss) + named)


def spelling(seed: int, fixed: Mapping[str, str] | None = None, *, plain: bool = False) -> Spelling:
    """Returns a random spelling.

    Args:
        seed: The seed.
        fixed: Choices that are not random, by name.
        plain: Whether no other choice is unusual.
    """
    return _Writer(Draw(seed, fixed, plain=plain)).write()


def near_miss(seed: int, fixed: Mapping[str, str] | None = None) -> Spelling:
    """Returns a random spelling of a quantization that has no integer product, for a reason that changes by seed."""
    kind = list(NEAR_MISSES)[seed % len(NEAR_MISSES)]
    return _Writer(Draw(seed, {**fixed_by(kind), **(fixed or {})}), kind).write()


class _Writer(Layers):
    """Writes one model."""

    def write(self) -> Spelling:
        """Writes the model and its data."""
        draw = self.draw
        self.opset = int(draw("opset", "17|18|20|21", "13|14|15|16|19|22|11|12|10|9|8"))
        types = "float16|float16, chain of float32" if self.opset >= 13 and not self.near_miss else ""
        self.type = draw("type", "float32", types, rate=0.5)
        self.g = g = Graph(self.opset, np.float16 if self.type == "float16" else np.float32)
        self.kind = draw("product", "MatMul|MatMul|MatMul|Gemm|Conv", "Einsum|Conv1d" if self.opset >= 12 else "Conv1d")
        is_conv = self.kind.startswith("Conv")
        integral = "codes|integer" if self.opset >= 10 and self.type == "float32" else "codes"
        odd = f"{integral}|int32" if not is_conv and "integer" in integral else integral
        if self.kind == "Einsum":
            odd = "codes|int32" if self.type == "float32" else "codes"
        if not is_conv and self.opset >= 13 and self.type == "float32":
            odd += "|two activations"
        self.arithmetic = draw("arithmetic", "float", odd, rate=1.5)
        is_video = self.kind == "Conv" and self.arithmetic == "float" and not self.near_miss
        scopes = ("tensor", "sample|frame" if is_video else "sample") if is_conv else ("tensor|token|token", "group")
        if not is_conv and self.arithmetic != "float":
            scopes = ("tensor|token|token", "")
        has_heads = self.kind in ("Einsum", "MatMul")
        odd_rows = "square" if self.near_miss else "heads" if has_heads else ""
        rows = draw("rows", "matrix" if self.kind == "Gemm" else "matrix|batch", odd_rows)
        if rows == "heads":
            scopes = (f"{_OF_ALL_HEADS}|token", "|".join(scopes))
        elif rows == "batch":
            scopes = (scopes[0], scopes[1] + "|sample" * bool(scopes[1]))
        self.scope = draw("scope", *scopes)
        image = (1, _FRAMES, *_IMAGE[1:]) if self.scope == "frame" else _IMAGE
        shape = {"Conv": image, "Conv1d": _SEQUENCE}.get(self.kind, _ROWS[rows])
        g.shapes["x"] = g.shapes["other"] = shape
        self.image = shape[1:] if self.scope == "frame" else shape
        x = g.cast("x", np.float32) if "chain" in self.type else "x"
        match draw("before the quantization", "nothing", "Identity|Cast|x * 1|Reshape, Reshape", rate=0.5):
            case "Identity":
                x = g("Identity", x)
            case "Cast":
                x = g.cast(x, g.dtype)
            case "x * 1":
                x = g("Mul", x, 1.0)
            case "Reshape, Reshape":
                x = g.reshape(g.reshape(x, [-1]), shape)
        is_grouped = self.scope == "group"
        seen, other = (
            g.reshape(each, [*shape[:-1], shape[-1] // GROUP, GROUP], zeros=True) if is_grouped else each
            for each in (x, "other")
        )
        quantization = Quantization(draw, g, seen, self.scope, other, self.near_miss)
        first = len(g.nodes)
        codes = quantization.codes()
        if draw("dequantized by", "its scale", "a larger scale" if not codes.offset else "", rate=0.5) != "its scale":
            codes = replace(codes, scale=g("Mul", codes.scale, 1.5), parts=None, inverse=None)
        codes = quantization.moved(codes)
        is_grid_of_groups = self.arithmetic == "float" and not is_conv and not self.near_miss
        self.axis = draw("weights of", "channel|channel|tensor", "group" if is_grid_of_groups else "")
        count = 1 if self.arithmetic == "two activations" else int(draw("products", "1|1|1|2"))
        activation, magnitude, last, extra = "", "", len(g.nodes), {"scale": codes.scale}
        if self.arithmetic == "float":
            activation = quantization.dequantized(codes)
            last = len(g.nodes)
            magnitude = quantization.magnitude_of(codes, activation)
            if draw.made.get("estimator of the activation", "none") != "none":
                magnitude = g("Add", magnitude, g("Mul", seen, 0.0))  # x + (y - x) is NaN if x is infinite
            if is_grouped:
                activation, magnitude = (g.reshape(each, shape, zeros=True) for each in (activation, magnitude))
            elif self.scope == "frame":
                activation, magnitude = (g.reshape(each, [-1, *shape[2:]]) for each in (activation, magnitude))
            if self.type != "float32":
                g.dtype = np.float16
                activation, magnitude = (g.cast(each, g.dtype) for each in (activation, magnitude))
            if self.near_miss == "activation times numbers along K":
                activation = g("Mul", activation, g.constant(draw.generator("numbers").uniform(0.5, 2, shape[-1])))
            if self.near_miss == "activation plus another tensor":
                activation = g("Add", activation, "other")
            elif self.near_miss == "estimator of another tensor":
                activation = g("Add", "other", g("Sub", activation, "other"))
            elif self.near_miss == "activation function":
                activation = g("Tanh", activation)
            elif self.near_miss == "quantized in some places":
                activation = g("Where", g("Cast", "other", to=TensorProto.BOOL), activation, "other")
            elif self.near_miss == "transposed, scales along K":
                activation = g.transpose(activation, [1, 0])
            extra = {"scale": codes.scale, "activation": activation}
            activation, magnitude = self.moved(activation), g("Abs", self.moved(magnitude))
        for i in range(count):
            if self.arithmetic == "float":
                self.float_product(i, activation, magnitude)
            elif self.arithmetic == "codes":
                self.product_of_codes(i, codes)
            elif self.arithmetic == "two activations":
                # The same choices again, so the same spelling.
                second = Quantization(draw, g, "other", self.scope, x, self.near_miss)
                self.product_of_activations(codes, second.moved(second.codes()))
            else:
                self.integer_product(i, codes)
        other_output = draw("another output", "none", "|".join(extra) if self.type == "float32" else "", rate=0.5)
        if other_output != "none" and extra[other_output] not in self.outputs:
            self.outputs.append(extra[other_output])
        return self._finish(first, last, count)

    # The model

    def _finish(self, first: int, last: int, count: int) -> Spelling:
        draw, g = self.draw, self.g
        names = {"x": "x"} | {y: f"y{i}" for i, y in enumerate(self.outputs)}
        names |= {m: f"magnitude{i}" for i, m in enumerate(self.magnitudes.values())}
        for node in g.nodes:
            node.input[:] = [names.get(each, each) for each in node.input]
            node.output[:] = [names.get(each, each) for each in node.output]
        outputs = [names[y] for y in self.outputs]
        shapes = {names.get(name, name): shape for name, shape in g.shapes.items()}
        magnitudes = {names[y]: names[m] for y, m in self.magnitudes.items()}
        probed = used(g.nodes, [*outputs, *magnitudes.values()])
        kept = [id(node) for node in used(g.nodes, outputs)]
        odd = (
            "If|function of the layer|function of the quantization|function with an attribute"
            if self.opset >= 15
            else "If"
        )
        place = draw("placement", "main graph", odd if not self.near_miss else "")
        layer = [node for node in g.nodes if id(node) in kept]
        span = [node for node in g.nodes[first:last] if id(node) in kept] if "quantization" in place else layer
        types = {"x": element_type(np.float32 if self.type == "float32" else np.float16), "flag": TensorProto.BOOL}
        types |= {"other": types["x"]}
        functions: list[onnx.FunctionProto] = []
        if place == "If":
            layer = [in_branch(g, layer, outputs, shapes)]
        elif "function" in place:
            layer, function = as_function(g, layer, span, outputs, "attribute" in place)
            functions = [function]
        model = self._model(layer, outputs, functions, shapes, types)
        probe = self._model(probed, [*outputs, *magnitudes.values()], [], shapes, types)
        inputs = {value.name for value in model.graph.input}
        data = {name: array for name, array in self._data().items() if name in inputs}
        extremes = {name: self._extremes() if name == "x" else array for name, array in data.items()}
        has_extremes = self.type == "float32" and not self._is_cast_at_once
        inputs_of_tests = [data, extremes] if has_extremes else [data]
        return Spelling(model, inputs_of_tests, draw, count, self._expected(), probe, magnitudes, self.near_miss)

    def _model(
        self,
        nodes: list[onnx.NodeProto],
        outputs: list[str],
        functions: list[onnx.FunctionProto],
        shapes: Mapping[str, Shape],
        types: Mapping[str, int],
    ) -> onnx.ModelProto:
        g = self.g
        names = {name for node in nodes for name in reads(node)}
        rank = len(shapes["x"])
        forms: dict[str, tuple[str | int, ...]] = {
            "static": shapes["x"],
            "symbolic": (*[f"n{i}" for i in range(rank - 1)], shapes["x"][-1]),
        }
        forms["batch"] = ("batch", *shapes["x"][1:])
        is_fixed = self.kind.startswith("Conv")
        usual, odd = ("static", "") if is_fixed else ("static|batch" if rank > 2 else "static", "symbolic")
        shape = forms[self.draw("declared shape", usual, odd)]
        declared: dict[str, tuple[str | int, ...]] = {"x": shape, "other": shape, "flag": ()}
        given = [helper.make_tensor_value_info(n, types[n], declared[n]) for n in declared if n in names]
        results = [helper.make_tensor_value_info(n, element_type(g.dtype), [None] * len(shapes[n])) for n in outputs]
        graph = helper.make_graph(nodes, "spelling", given, results, g.initializers(names))
        imports = [helper.make_opsetid("", self.opset)]
        imports += [helper.make_opsetid("local", 1)] if functions else []
        version = 10 if self.opset >= 21 else 8
        return helper.make_model(graph, opset_imports=imports, ir_version=version, functions=functions)

    def _expected(self) -> bool | None:
        made = self.draw.made
        moves = {made.get("first move"), made.get("second move")}
        if self.near_miss:
            return False
        if "Relu" in moves:
            return None  # other codes
        if made.get("bounds before Round") == "just below half" and made["rounding"] not in ("Round", "floor(x + 0.5)"):
            return None  # low - 0.5 is rounded down
        if made.get("bounds before Round") == "just below half" and self.type == "float16":
            return None  # float16 rounds the bounds to halves, so that codes reach 128
        has_zero_code = made["scheme"] != "offset" and made.get("zero in the range") != "no"
        if "Pad" in moves and (not has_zero_code or made.get("zero point") == "not rounded"):
            return None
        is_other = made.get("range of") == "another tensor"
        saturates = is_other or (
            made.get("zero in the range") == "no" and made.get("bounds of the zero point") == "clipped"
        )
        if saturates and {made.get("estimator of codes"), made.get("estimator of the activation")} - {"none", None}:
            return None  # far beyond the range, the sums of an estimator are rounded
        if self.arithmetic == "two activations" and made["product of activations"].startswith("MatMulInteger"):
            return True if "uint8" not in (made.get("code type"), made.get("quantize")) else None  # nothing to convert
        fixed = {"Expand", "Unsqueeze, Expand, Reshape"} | (set() if self.scope in ("token", "group") else {"Tile"})
        spreads = {value for name, value in made.items() if name.startswith("broadcast of")}
        if made["declared shape"] != "static" and (spreads & fixed or "repeated" in made.get("epsilon", "")):
            return None  # where a dimension is 1, a constant shape makes it longer
        is_multiplied = self._order.startswith(("x * ", "(x - min) * "))
        if is_multiplied and not self._is_guarded() and made.get("codes") in ("int16", "int32", "int64"):
            return None  # c / r may be infinite, and its product with 0, NaN, becomes the least integer
        place, is_guarded = made.get("epsilon", "none").partition(": ")[0], self._guards_divisor()
        if made.get("codes") in ("int16", "int32", "int64") and place == "scale" and not is_guarded:
            return None  # 0 / 0 becomes the least integer, and is multiplied by a scale that is not 0
        if self._is_cast_at_once and not is_guarded:
            return None  # ONNX does not define the Cast of 0 / 0 to int32
        return True if made.get("clip") != "none" or (self._is_proven() and not is_other) else None

    def _is_proven(self) -> bool:
        """Returns whether codes without a clip fit 8 bits, also if the range is denormal."""
        made = self.draw.made
        if self.type == "float16":
            return False
        return "8" in made["codes"] or (self._is_guarded() and "* (c / r)" not in self._order)

    @property
    def _is_cast_at_once(self) -> bool:
        """Whether floats become int32: ONNX does not define this Cast for NaN and infinities."""
        return self.arithmetic != "float" and self.draw.made.get("codes") == "int32"

    @property
    def _order(self) -> str:
        return self.draw.made.get("order of the offset", self.draw.made.get("order", ""))

    def _is_guarded(self) -> bool:
        """Returns whether the divisor has an epsilon, also if the range is denormal."""
        return self._guards_divisor() and "(= 0)" not in self.draw.made.get("epsilon", "none")

    def _guards_divisor(self) -> bool:
        """Returns whether the divisor is not 0."""
        place = self.draw.made.get("epsilon", "none").partition(": ")[0]
        return place == "range" or (place == "scale" and ("(r / c)" in self._order or "(r * (1 / c))" in self._order))

    def _array(self, elements: Array) -> Array:
        """Returns an activation, with the elements of one scale next to each other in memory."""
        return np.ascontiguousarray(elements.swapaxes(1, 2)).swapaxes(1, 2) if self.scope == _OF_ALL_HEADS else elements

    def _rows(self, x: Array) -> Array:
        """Returns a view of an activation that :meth:`_array` made, one row for each scale."""
        shape = self.g.shapes["x"]
        if self.scope == _OF_ALL_HEADS:
            return x.swapaxes(1, 2).reshape(shape[0] * shape[2], -1)
        rows = {"tensor": (1, -1), "sample": (shape[0], -1), "frame": (shape[1], -1), "group": (-1, GROUP)}.get(
            self.scope, (-1, shape[-1])
        )
        return x.reshape(rows)

    def _data(self) -> dict[str, Array]:
        """Returns activations with quotients near k + 0.5 for many elements."""
        rng, shape, made = self.draw.generator("x"), self.g.shapes["x"], self.draw.made
        dtype = np.float32 if self.type == "float32" else np.float16
        x = self._array(np.zeros(shape, dtype))
        top = float(made.get("highest code", "127"))
        for i, row in enumerate(rows := self._rows(x)):
            step = 2.0 ** rng.integers(*(_STEPS if dtype == np.float32 else _STEPS_OF_FLOAT16))
            low, high = (-top, top) if made["scheme"] == "symmetric" else (-float(rng.integers(0, 256)), 0.0)
            high = low + 255 if made["scheme"] != "symmetric" else high
            if made.get("zero in the range") == "no" and rng.random() < 0.5:
                low, high = low + 300, high + 300
            whole = np.floor(rng.uniform(low, high, row.size)) + rng.choice([0.5, 0.5, 0.0], row.size)
            values = (np.clip(whole, low, high) * step).astype(dtype)
            near = np.nextafter(values, rng.choice(np.array([-np.inf, np.inf], dtype), row.size))
            row[:] = np.where(rng.random(row.size) < 0.3, near, values)
            row[rng.choice(row.size, 2, replace=False)] = [low * step, high * step]
            if len(rows) > 2 and i % 8 == 5:
                row[:] = 0 if rng.random() < 0.5 and not self._is_cast_at_once else row * 2.0**-30
        return {"x": x, "other": rng.normal(0, 1, shape).astype(dtype), "flag": np.array(True)}

    def _extremes(self) -> Array:
        """Returns rows of zeros, denormals, infinities, huge numbers and the like."""
        rng = self.draw.generator("extremes")
        x = self._array(rng.normal(0, 1, self.g.shapes["x"]).astype(np.float32))
        for row in self._rows(x):
            match rng.integers(10):
                case 0:
                    row[:] = rng.choice(np.array([0, -0.0], np.float32), row.size)
                case 1:
                    steps = rng.integers(-300, 300, row.size)
                    if self.kind.startswith("Conv"):  # numerics.md: NaN of one element is NaN in the whole sample
                        steps |= 1
                    row[:] = steps * np.float32(1e-45)
                case 2 | 3 as sign:
                    if self.kind.startswith("Conv") and self.draw.made.get("clip") == "none":
                        continue  # numerics.md: an infinite code is NaN in the whole sample
                    row[rng.integers(row.size)] = np.inf if sign == 2 else -np.inf
                case 4 | 5:
                    row *= np.float32(rng.choice([3e36, 3e38])) / np.abs(row).max()
                case 6:
                    row *= np.arange(row.size) == rng.integers(row.size)
                case 7:
                    row[:] = row[0]
                case 8:
                    row *= np.float32(1e-37)
                case 9:
                    row[rng.integers(row.size)] = rng.choice([1e30, -1e30])
        return x
