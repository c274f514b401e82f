"""Steps of a quantization in random spellings: ranges, epsilons, rounding, clips."""

from __future__ import annotations

import numpy as np

from .graph import Draw, Graph

GROUP = 32

# What turns a quantization into one with codes or scales that have no integer product, and where its choices differ.
NEAR_MISSES = {
    "range of another tensor": {"clip": "none", "scheme": "symmetric"},
    "range of another tensor, clip to +-130": {"scheme": "symmetric"},
    "range of another tensor, clip to +-127.5": {"scheme": "symmetric", "clip": "after Round"},
    "range of another tensor, clip before Round to -128.51": {"scheme": "symmetric", "clip": "before Round"},
    "range of another tensor, clip before Round to +-127.5": {
        "scheme": "symmetric",
        "clip": "before Round",
        "rounding": "Round",  # ceil(127.5 - 0.5) is 127
        "opset": "17",
    },
    "range of another tensor, clip one float above 127": {"scheme": "symmetric", "clip": "after Round"},
    "range of another tensor, clip one float below 127": {"scheme": "symmetric", "clip": "after Round"},
    "number in place of large ranges": {"clip": "none", "scheme": "symmetric", "epsilon": "none", "opset": "17"},
    "clamped to another range": {
        "clip": "none",
        "scheme": "symmetric",
        "clamp": "to a part of the range",
        "opset": "17",
    },
    "half of the range": {"clip": "none", "scheme": "symmetric", "highest code": "127"},  # 7 gives codes up to 14
    "one range for each element of K": {"scope": "token"},
    "scales along the wrong axis": {"scheme": "symmetric", "scope": "token", "rows": "square", "clip": "after Round"},
    "percentile": {"clip": "none", "scheme": "symmetric"},
    "sum of two roundings without a clip": {"scheme": "asymmetric", "clip": "none"},
    "transposed, scales along K": {"scope": "token", "rows": "square"},
    "activation plus another tensor": {},
    "estimator of another tensor": {"estimator of the activation": "none"},
    "activation function": {},
    "quantized in some places": {"opset": "17"},
    "activation times numbers along K": {},
    "weights without a grid": {},
    "weights computed at run time": {},
    "weights quantized at run time": {"rows": "matrix"},
}


def fixed_by(near_miss: str) -> dict[str, str]:
    """Returns the choices that a near miss needs."""
    fixed = {"codes": "float", "arithmetic": "float", **NEAR_MISSES[near_miss], "placement": "main graph"}
    along_rows = {"rows": "matrix", "product": "MatMul"} if "along" in near_miss or "each element" in near_miss else {}
    of_matrix = {"product": "MatMul"} if "weights" in near_miss else {}
    return {**along_rows, **of_matrix, **fixed}


class Steps:
    """Writes steps of one quantization into a graph.

    Args:
        draw: The choices.
        g: The graph.
        x: The activation as the quantization sees it: groups are its last axis.
        scope: What shares a scale: tensor, frame, sample, token, token of all heads or group.
        other: Another tensor of the same shape, for near misses.
        near_miss: One of NEAR_MISSES, or empty.
    """

    def __init__(self, draw: Draw, g: Graph, x: str, scope: str, other: str, near_miss: str) -> None:
        self.draw, self.g, self.x, self.scope = draw, g, x, scope
        is_other = near_miss.startswith("range of another tensor")
        if not near_miss and draw.made["type"] == "float32":
            is_other = draw("range of", "the activation", "another tensor", rate=0.5) == "another tensor"
        self.ranged = other if is_other else x
        self.near_miss = near_miss
        self.epsilon = 2.0**-13 if g.dtype == np.float16 else 1e-5
        scalar = scope == "tensor"
        self.lengths = g.shapes[x]
        kept = {"tensor": 0, "sample": 1, "frame": 2}.get(scope, len(self.lengths) - 1)
        self.all_axes = [] if scalar else list(range(kept, len(self.lengths)))
        if scope == "token of all heads":
            self.all_axes = [1, len(self.lengths) - 1]
        if near_miss == "one range for each element of K":
            self.all_axes = [0]

    # Ranges

    def reduced(self, kind: str, v: str) -> str:
        """Reduces a value over the scope; the result broadcasts to x."""
        draw, g = self.draw, self.g
        rank = len(self.lengths)
        if self.scope == "tensor":
            match draw("axes", "none", "listed|flattened|two steps"):
                case "listed":
                    return g.reduce(kind, v, list(range(rank)), draw_keepdims(draw))
                case "flattened":
                    return g.reduce(kind, g.reshape(v, [-1]), [0], draw_keepdims(draw))
                case "two steps":
                    return g.reduce(kind, g.reduce(kind, v, [-1], 0), [], 0)
            return g.reduce(kind, v, [], draw_keepdims(draw))
        if self.near_miss == "scales along the wrong axis":
            return g.reduce(kind, v, [-1], 0)
        if self.near_miss == "one range for each element of K":
            return g.reduce(kind, v, [0], 1)
        axes = draw("axes", "negative", "positive")
        axes_ = [i - rank if axes == "negative" else i for i in self.all_axes]
        keepdims = draw("keepdims", "1", "0, Unsqueeze|0, Reshape" if len(axes_) == 1 else "")
        if keepdims == "1":
            return g.reduce(kind, v, axes_, 1)
        flat = g.reduce(kind, v, axes_, 0)
        if keepdims == "0, Unsqueeze":
            return g.unsqueeze(flat, rank - 1)
        return g.reshape(flat, [*self.lengths[:-1], 1], zeros=True)

    def magnitude(self) -> str:
        """Returns the largest magnitude."""
        g, x = self.g, self.ranged
        if self.near_miss == "percentile":
            k = self.lengths[-1] // 2
            shapes = [(*self.lengths[:-1], k)] * 2
            if g.opset >= 10:
                top = g.split("TopK", g("Abs", x), g.integers(k), shapes=shapes, axis=-1)[0]
            else:
                top = g.split("TopK", g("Abs", x), shapes=shapes, axis=-1, k=k)[0]
            return self.reduced("Min", top)
        odd = "max(-min, max)|max(abs(min), abs(max))|ReduceMax(max(x, -x))|-ReduceMin(-abs(x))|max(max, ReduceMax(-x))"
        match self.draw("range", "ReduceMax(Abs)", odd):
            case "max(-min, max)":
                return g("Max", g("Neg", self.reduced("Min", x)), self.reduced("Max", x))
            case "max(abs(min), abs(max))":
                return g("Max", g("Abs", self.reduced("Min", x)), g("Abs", self.reduced("Max", x)))
            case "ReduceMax(max(x, -x))":
                return self.reduced("Max", g("Max", x, g("Neg", x)))
            case "-ReduceMin(-abs(x))":
                return g("Neg", self.reduced("Min", g("Neg", g("Abs", x))))
            case "max(max, ReduceMax(-x))":
                return g("Max", self.reduced("Max", x), self.reduced("Max", g("Neg", x)))
        return self.reduced("Max", g("Abs", x))

    def guarded(self, where: str, v: str) -> str:
        """Guards a range or a scale against 0, if the epsilon is drawn to be there."""
        g, odd = self.g, "range: Add|scale: Add|range: Max|scale: Max"
        if g.opset >= 11:
            odd += "|range: Where(= 0)|scale: Where(= 0)|range: Where(< epsilon)|scale: Where(< epsilon)"
            odd += "|range: Where(> 0)|scale: Where(> 0)"
        if g.opset >= 13 and g.shapes[v]:
            odd += "|range: ScatterND|scale: ScatterND"
        is_of_rows = g.shapes[v] == (*self.lengths[:-1], 1) and self.scope == "token"
        if g.opset >= 13 and where == "scale" and is_of_rows and self.draw.made["arithmetic"] == "float":
            odd += "|scale: repeated, Where(= 0)|scale: repeated, ScatterND(= 0)"
        place, _, form = self.draw("epsilon", "none|range: Clip|scale: Clip", odd).partition(": ")
        if place != where:
            return v
        epsilon = self.epsilon / 127 if where == "scale" and g.dtype != np.float16 else self.epsilon
        match form:
            case "Clip":
                return g.clip(v, epsilon, None)
            case "Add" | "Max":
                return g(form, v, epsilon)
            case "Where(= 0)":
                return g("Where", g("Equal", v, 0.0), 1.0, v)
            case "Where(> 0)":
                return g("Where", g("Greater", v, 0.0), v, 1.0)
            case "ScatterND":
                return self._scattered(v, g("Equal", v, 0.0))
            case "repeated, Where(= 0)" | "repeated, ScatterND(= 0)":
                return self._repeated(v, form)
        return g("Where", g("Less", v, epsilon), epsilon, v)

    def _scattered(self, v: str, mask: str) -> str:
        """Writes 1 where a mask holds, as torch exports `v[mask] = 1`."""
        g = self.g
        places = g("NonZero", mask, shape=(len(g.shapes[v]), 0))  # as many as there are ones
        indices = g.transpose(places, (1, 0))
        count = g.slice(g("Shape", indices, shape=(2,)), 0, 0, 1)
        return g("ScatterND", v, indices, g("Expand", 1.0, count, shape=(0,)), shape=g.shapes[v])

    def _repeated(self, v: str, form: str) -> str:
        """Repeats a scale of rows to their width before zeros become 1, as torch exports the code of QuaRot."""
        g, lengths = self.g, self.lengths
        rows = int(np.prod(lengths[:-1]))
        flat = g.reshape(v, (-1,))
        wide = g("Expand", g.unsqueeze(flat, 1), g.integers(1, 1), shape=(rows, 1))
        matrix = g("Tile", wide, g.integers(1, lengths[-1]), shape=(rows, lengths[-1]))
        is_zero = g.unsqueeze(g("Equal", flat, 0.0), 1)
        if "Where" in form:
            matrix = g("Where", is_zero, 1.0, matrix)
        else:
            full = g("Expand", is_zero, g("Shape", matrix, shape=(2,)), shape=g.shapes[matrix])
            matrix = self._scattered(matrix, full)
        return g("Reshape", matrix, g("Shape", self.x, shape=(len(lengths),)), shape=lengths)

    # Elementwise

    def spread(self, name: str, v: str) -> str:
        """Broadcasts a scale or a zero point before its use, if drawn."""
        g, shape = self.g, self.lengths
        ranked = len(g.shapes[v]) == len(shape) and g.shapes[v] != shape
        odd = "Expand|Expand to Shape" if g.opset >= 8 else ""
        odd += "|Tile|Unsqueeze, Expand, Reshape" if ranked and g.opset >= 8 else ""
        is_of_rows = ranked and g.shapes[v] == (*shape[:-1], 1)
        odd += "|Reshape, Tile, Reshape|Reshape, Tile, Reshape to Shape" if is_of_rows and g.opset >= 8 else ""
        match self.draw(f"broadcast of the {name}", "none", odd, rate=0.6):
            case "Expand":
                return g("Expand", v, g.integers(*shape), shape=shape)
            case "Expand to Shape":
                return g("Expand", v, g("Shape", self.x, shape=(len(shape),)), shape=shape)
            case "Tile":
                return g("Tile", v, g.integers(*(n // m for n, m in zip(shape, g.shapes[v], strict=True))), shape=shape)
            case "Reshape, Tile, Reshape" | "Reshape, Tile, Reshape to Shape" as form:
                rows = int(np.prod(shape[:-1]))
                matrix = g("Tile", g.reshape(v, (rows, 1)), g.integers(1, shape[-1]), shape=(rows, shape[-1]))
                if not form.endswith("Shape"):
                    return g.reshape(matrix, shape)
                return g("Reshape", matrix, g("Shape", self.x, shape=(len(shape),)), shape=shape)
            case "Unsqueeze, Expand, Reshape":
                longer = (*shape, 1)
                new = g.unsqueeze(v, len(shape))
                return g.reshape(g("Expand", new, g.integers(*longer), shape=longer), shape)
        return v

    def rounded(self, v: str) -> str:
        """Rounds to integers."""
        g = self.g
        odd = "floor(x + 0.5)|ceil(x - 0.5)|sign(x) * floor(abs(x) + 0.5)"
        match self.draw("rounding", *(("Round", odd) if g.opset >= 11 else ("floor(x + 0.5)", ""))):
            case "floor(x + 0.5)":
                return g("Floor", g("Add", v, 0.5))
            case "ceil(x - 0.5)":
                return g("Ceil", g("Sub", v, 0.5))
            case "sign(x) * floor(abs(x) + 0.5)":
                return g("Mul", g("Sign", v), g("Floor", g("Add", g("Abs", v), 0.5)))
        return g("Round", v)

    def clipped(self, v: str, low: float, high: float) -> str:
        """Clips."""
        g = self.g
        odd = "Min, Max|Max, Min" + ("|Where" if g.opset >= 9 else "")
        match self.draw("clip form", "Clip", odd):
            case "Min, Max":
                return g("Max", g("Min", v, high), low)
            case "Max, Min":
                return g("Min", g("Max", v, low), high)
            case "Where":
                above = g("Where", g("Greater", v, high), high, v)
                return g("Where", g("Less", above, low), low, above)
        return g.clip(v, low, high)

    def coded(self, quotient: str, low: float, high: float, *, provable: bool, zero: str | None = None) -> str:
        """Returns the codes of a quotient, still as floats: round, clip, zero point, straight-through estimator."""
        draw, g = self.draw, self.g
        when = draw("clip", "after Round", "before Round|none" if provable else "before Round")
        if self.near_miss:
            when = NEAR_MISSES[self.near_miss].get("clip", when)
        low, high = {
            "range of another tensor, clip to +-130": (-130.0, 130.0),
            "range of another tensor, clip to +-127.5": (-127.5, 127.5),
            "range of another tensor, clip before Round to -128.51": (-128.51, 127.0),
            "range of another tensor, clip before Round to +-127.5": (-127.5, 127.5),
            "range of another tensor, clip one float above 127": (low, 127 + 2.0**-17),
            "range of another tensor, clip one float below 127": (low, 127 - 2.0**-17),
        }.get(self.near_miss, (low, high))
        early = zero is not None and draw("zero point added", "after Round|before Round") == "before Round"
        if zero is not None and draw.made.get("zero point") == "not rounded":
            early = True
        exact = g("Add", quotient, zero) if zero is not None and early else quotient
        v = exact
        if when == "before Round" and (zero is None or early):
            half = draw("bounds before Round", "integers", "just below half") == "just below half"
            v = self.clipped(
                exact, low - half * 0.5, high + half * (0.5 - 2.0**-16)
            )  # low - 0.5 rounds to low, if even
        v = self.rounded(v)
        if zero is not None and not early:
            exact, v = g("Add", exact, zero), g("Add", v, zero)
        if when == "after Round" or (when == "before Round" and zero is not None and not early):
            v = self.clipped(v, low, high)
        match draw("estimator of codes", "none", "(round(q) - q) + q|q + (round(q) - q)"):
            case "(round(q) - q) + q":
                return g("Add", g("Sub", v, exact), exact)
            case "q + (round(q) - q)":
                return g("Add", exact, g("Sub", v, exact))
        return v

    def carried(self, q: str, code: type) -> str:
        """Casts codes to integers, or keeps floats."""
        g = self.g
        name = np.dtype(code).name
        arithmetic = self.draw.made["arithmetic"]
        integral = arithmetic in ("integer", "int32", "two activations")
        odd = f"int32|int16|int64|int32, {name}"
        of_integers = f"int32, {name}|int32" if arithmetic in ("int32", "two activations") else f"int32, {name}"
        match self.draw("codes", name if integral else f"float|{name}", of_integers if integral else odd):
            case "float":
                return q
            case "int32" | "int16" | "int64" as wide:
                return g.cast(q, wide)
            case chosen if chosen.startswith("int32, "):
                return g.cast(g.cast(q, np.int32), code)
        return g.cast(q, code)


def draw_keepdims(draw: Draw) -> int:
    """Returns keepdims of a reduction over everything."""
    return int(draw("keepdims of one range", "0", "1"))
