"""Random spellings of a quantization with a run-time scale: from a float activation to the floats that it rounds to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .graph import Array
from .steps import Steps


@dataclass(frozen=True)
class Codes:
    """A quantized activation: ``(codes - zero_point) * scale + offset``.

    Attributes:
        q: The codes, integers or floats.
        scale: The scale.
        zero: The zero point as a float; None if it is 0.
        zero_code: The zero point of the codes' type, if there is one.
        offset: A float that is added; None if it is 0.
        inverse: The inverse of the scale, if the model has it.
        parts: The range and the number that divides it, if this is the scale.
        axis: The axis of QuantizeLinear.
    """

    q: str
    scale: str
    zero: str | None = None
    zero_code: str | None = None
    offset: str | None = None
    inverse: str | None = None
    parts: tuple[str, float] | None = None
    axis: int | None = None


class Quantization(Steps):
    """Writes one quantization into a graph."""

    def codes(self) -> Codes:
        """Writes the quantization."""
        draw, g = self.draw, self.g
        odd = "offset" if draw.made["arithmetic"] == "float" else ""
        if self.scope == "tensor" and g.opset >= 11 and g.dtype == np.float32 and not self.near_miss:
            odd += "|DynamicQuantizeLinear" if odd else "DynamicQuantizeLinear"
        zero_allowed = draw.made["arithmetic"] == "float" or (
            self.scope == "tensor" and draw.made["arithmetic"] != "codes"
        )
        match draw(
            "scheme", "symmetric|symmetric|asymmetric" if zero_allowed else "symmetric", odd if zero_allowed else ""
        ):
            case "asymmetric":
                return self.asymmetric()
            case "offset":
                return self.offset()
            case "DynamicQuantizeLinear":
                q, s, z = g.split("DynamicQuantizeLinear", self.x, shapes=[self.lengths, (), ()])
                return Codes(q, s, g.cast(z, np.float32), z)
        return self.symmetric()

    def symmetric(self) -> Codes:
        """``x / scale`` with the largest magnitude as range."""
        draw, g, x = self.draw, self.g, self.x
        top = float(draw("highest code", "127", "127.5|7|128"))
        r = self.guarded("range", self.magnitude())
        if self.near_miss == "half of the range":
            r = g("Mul", r, 0.5)
        if self.near_miss == "number in place of large ranges":
            r = g("Where", g("Greater", r, 0.5), 1.0, r)
        is_free = g.opset >= 12 and g.dtype == np.float32 and self.near_miss in ("", "clamped to another range")
        if is_free and draw("clamp", "none", "to a part of the range") != "none":
            r = g("Mul", r, 0.75)
            limit = g("Mul", r, 2.0) if self.near_miss == "clamped to another range" else r
            x = g("Max", g("Min", x, limit), g("Neg", limit))
        inverse: str | None = None
        parts: tuple[str, float] | None = (r, top)
        odd = "x * c / r|x / r * c|x * (1 / r) * c|x * Reciprocal(r / c)|x * (1 / (r / c))|x / (r * (1 / c))"
        form = draw("order", "x / (r / c)|x * (c / r)", odd)
        s = g("Mul", r, 1 / top) if form == "x / (r * (1 / c))" else g("Div", r, top)
        guarded = self.guarded("scale", s)
        if guarded != s:
            parts, s = None, guarded
        linear = self._quantize_linear_axis()
        if (
            linear is not None
            and top == 127
            and "linear" in draw("quantize", "arithmetic", "linear|linear of uint8", rate=2)
        ):
            return self._quantize_linear(s, None, linear)
        match form:
            case "x * (c / r)":
                inverse = g("Div", top, r)
                d = g("Mul", x, self.spread("inverse scale", inverse))
            case "x * c / r":
                d = g("Div", g("Mul", x, top), self.spread("range", r))
            case "x / r * c":
                d = g("Mul", g("Div", x, self.spread("range", r)), top)
            case "x * (1 / r) * c":
                d = g("Mul", g("Mul", x, self.spread("range", g("Div", 1.0, r))), top)
            case "x * Reciprocal(r / c)":
                inverse = g("Reciprocal", s)
                d = g("Mul", x, self.spread("inverse scale", inverse))
            case "x * (1 / (r / c))":
                inverse = g("Div", 1.0, s)
                d = g("Mul", x, self.spread("inverse scale", inverse))
            case _:
                d = g("Div", x, self.spread("scale", s))
        high = float(np.floor(top)) if top < 128 else 127.0
        low = -high - 1 if draw("lowest code", "-128", "-127") == "-128" else -high
        q = self.coded(d, low, high, provable=top <= 127)
        return Codes(self.carried(q, np.int8), s, inverse=inverse, parts=parts)

    def _ends(self) -> tuple[str, str]:
        """Returns the minimum and the maximum, with 0 between them or not."""
        draw, g = self.draw, self.g
        low, high = self.reduced("Min", self.ranged), self.reduced("Max", self.ranged)
        match draw("zero in the range", "Min, Max", "Clip|Relu|no"):
            case "Min, Max":
                return g("Min", low, 0.0), g("Max", high, 0.0)
            case "Clip":
                upper = g.clip(high, 0.0, None)
                return g("Neg", g.clip(g("Neg", low), 0.0, None)), upper
            case "Relu":
                return g("Neg", g("Relu", g("Neg", low))), g("Relu", high)
        return low, high

    def asymmetric(self) -> Codes:
        """``x / scale + zero_point`` with minimum and maximum as range."""
        draw, g = self.draw, self.g
        code, low = (np.uint8, 0.0) if draw("code type", "uint8|int8") == "uint8" else (np.int8, -128.0)
        minimum, maximum = self._ends()
        width = self.guarded("range", g("Sub", maximum, minimum))
        form = draw("order", "x / (r / c)", "x * Reciprocal(r / c)|x * (c / r)|x / (r * (1 / c))")
        s = g("Mul", width, 1 / 255) if form == "x / (r * (1 / c))" else g("Div", width, 255.0)
        s = self.guarded("scale", s)
        quotient = g("Div", minimum, s)
        forms = "round(-min / s)|qmin - round(min / s)"
        linear = self._quantize_linear_axis()
        is_linear = linear is not None and "linear" in draw("quantize", "arithmetic", "linear|linear of uint8", rate=2)
        integral = is_linear or draw.made["arithmetic"] != "float"
        match draw("zero point", forms, "" if integral else "not rounded"):
            case "round(-min / s)":
                z = self.rounded(g("Neg", quotient))
                z = g("Add", z, low) if low else z
            case "not rounded":
                z = g("Sub", low, quotient)
            case _:
                z = g("Sub", low, self.rounded(quotient))
        limits = "clipped" if integral else "clipped|free"
        z_code = None
        if draw("bounds of the zero point", limits) == "clipped":
            z = self.clipped(z, low, low + 255)
            if draw.made["zero point"] != "not rounded" and (
                draw("zero point carried as", "code" if integral else "float|code") == "code"
            ):
                z_code = g.cast(z, code)
                z = g.cast(z_code, g.dtype)
        if is_linear and z_code is not None and linear is not None:
            return replace(self._quantize_linear(s, z_code, linear), zero=z)
        inverse = None
        if form == "x * Reciprocal(r / c)":
            inverse = g("Reciprocal", s)
        elif form == "x * (c / r)":
            inverse = g("Div", 255.0, width)
        if inverse is not None:
            d = g("Mul", self.x, self.spread("inverse scale", inverse))
        else:
            d = g("Div", self.x, self.spread("scale", s))
        q = self.coded(d, low, low + 255, provable=False, zero=self.spread("zero point", z))
        return Codes(self.carried(q, code), s, z, z_code)

    def offset(self) -> Codes:
        """``(x - min) / scale``, dequantized by adding the minimum."""
        draw, g = self.draw, self.g
        minimum, maximum = self._ends()
        width = self.guarded("range", g("Sub", maximum, minimum))
        moved = g("Sub", self.x, self.spread("minimum", minimum))
        s = self.guarded("scale", g("Div", width, 255.0))
        match draw("order of the offset", "(x - min) / (r / c)", "(x - min) / r * c|(x - min) * (c / r)"):
            case "(x - min) / (r / c)":
                d = g("Div", moved, self.spread("scale", s))
            case "(x - min) / r * c":
                d = g("Mul", g("Div", moved, self.spread("range", width)), 255.0)
            case _:
                d = g("Mul", moved, self.spread("inverse scale", g("Div", 255.0, width)))
        q = self.coded(d, 0.0, 255.0, provable=True)
        return Codes(self.carried(q, np.uint8), s, offset=minimum)

    def _quantize_linear_axis(self) -> int | None:
        """Returns the axis of a QuantizeLinear; None if there is none."""
        if self.near_miss or self.draw.made["arithmetic"] in ("int32", "two activations") or self.g.dtype != np.float32:
            return None
        if self.scope == "tensor" and self.g.opset >= 10:
            return 1
        is_repeated = "repeated" in self.draw.made.get("epsilon", "")  # as many scales as elements
        return (
            0 if self.scope == "token" and len(self.lengths) == 2 and self.g.opset >= 13 and not is_repeated else None
        )

    def _quantize_linear(self, s: str, z_code: str | None, axis: int) -> Codes:
        g = self.g
        code: Array = np.zeros((), np.uint8 if "uint8" in self.draw.made["quantize"] else np.int8)
        flat = g.reshape(s, [] if axis == 1 else [-1])
        if z_code is None:
            shape = g.shapes[flat]
            value = np.full(shape, 128 if code.dtype == np.uint8 else 0, code.dtype)
            zero_code, zero = g.constant(value, code.dtype), g.constant(float(value.flat[0]))
        else:
            zero_code, zero = g.reshape(z_code, [] if axis == 1 else [-1]), ""
        attributes = {"axis": axis} if g.opset >= 13 else {}
        q = g("QuantizeLinear", self.x, flat, zero_code, shape=self.lengths, **attributes)
        return Codes(q, flat if axis == 1 else s, zero, zero_code, axis=axis)

    # Back to floats

    def moved(self, codes: Codes) -> Codes:
        """Moves codes before they are dequantized, and back."""
        g, q = self.g, codes.q
        shape = g.shapes[q]
        odd = "Identity|Reshape, Reshape|Unsqueeze, Squeeze" + ("|Transpose, Transpose" if len(shape) > 1 else "")
        match self.draw("moves of codes", "none", odd):
            case "Identity":
                q = g("Identity", q)
            case "Reshape, Reshape":
                q = g.reshape(g.reshape(q, [-1, shape[-1]]), shape)
            case "Unsqueeze, Squeeze":
                q = g.squeeze(g.unsqueeze(q, 0), 0)
            case "Transpose, Transpose":
                perm = [*range(len(shape))][::-1]
                q = g.transpose(g.transpose(q, perm), perm)
        return replace(codes, q=q)

    def dequantized(self, codes: Codes) -> str:
        """Returns the floats that the codes stand for."""
        draw, g = self.draw, self.g
        form = self._form(codes)
        if form == "DequantizeLinear":
            attributes = {"axis": codes.axis or 0} if g.opset >= 13 and codes.axis is not None else {}
            scale = g.reshape(codes.scale, [-1]) if codes.axis == 0 else codes.scale
            result = g("DequantizeLinear", codes.q, scale, codes.zero_code or "", shape=self.lengths, **attributes)
        else:
            is_float = draw.made.get("codes") == "float" and draw.made.get("quantize", "arithmetic") == "arithmetic"
            is_float = is_float and draw.made["scheme"] != "DynamicQuantizeLinear"
            real = codes.q if is_float else g.cast(codes.q, g.dtype)
            result = self._arithmetic(form, real, codes)
        match draw("estimator of the activation", "none", "x + (y - x)|(y - x) + x"):
            case "x + (y - x)":
                return g("Add", self.x, g("Sub", result, self.x))
            case "(y - x) + x":
                return g("Add", g("Sub", result, self.x), self.x)
        return result

    def magnitude_of(self, codes: Codes, activation: str) -> str:
        """Returns what the rounding errors of the activation are relative to: the sum of its absolute terms.

        ``q * s + min`` may be tiny where both terms are not. The model rounds both, the integer product neither.
        """
        g, form = self.g, self.draw.made["dequantize"]
        is_rounded = self.draw.made.get("zero point") == "not rounded" or form == "q * s - z * s"
        if codes.offset is None and not (is_rounded and codes.zero is not None):
            return g("Abs", activation)
        added = codes.offset or g("Mul", codes.zero or g.cast(codes.zero_code or "", g.dtype), codes.scale)
        return g("Add", g("Abs", g("Mul", g.cast(codes.q, g.dtype), codes.scale)), g("Abs", added))

    def _form(self, codes: Codes) -> str:
        draw = self.draw
        if codes.zero_code is not None and (codes.axis is not None or draw.made["scheme"] == "DynamicQuantizeLinear"):
            return draw("dequantize", "DequantizeLinear", "(q - z) * s|q * s - z * s")
        if codes.zero is not None:
            return draw("dequantize", "(q - z) * s", "(q + -z) * s|q * s - z * s")
        if codes.offset is not None:
            return draw("dequantize", "q * s + min")
        odd = "q * s of another node"
        odd += "|q / inverse" if codes.inverse is not None else ""
        odd += "|q * r / c|q * r * (1 / c)|q / c * r" if codes.parts else ""
        return draw("dequantize", "q * s", odd)

    def _arithmetic(self, form: str, q: str, codes: Codes) -> str:
        g, zero, s = self.g, codes.zero, codes.scale
        if zero == "":
            zero = g.cast(codes.zero_code or "", g.dtype)
        r, top = codes.parts or ("", 0.0)
        match form:
            case "(q - z) * s":
                return g(
                    "Mul", g("Sub", q, self.spread("subtracted zero point", zero or "")), self.spread("last scale", s)
                )
            case "(q + -z) * s":
                return g("Mul", g("Add", q, g("Neg", zero or "")), s)
            case "q * s - z * s":
                return g("Sub", g("Mul", q, s), g("Mul", zero or "", s))
            case "q * s + min":
                return g("Add", g("Mul", q, self.spread("last scale", s)), codes.offset or "")
            case "q / inverse":
                return g("Div", q, self.spread("last scale", codes.inverse or ""))
            case "q * r / c":
                return g("Div", g("Mul", q, r), top)
            case "q * r * (1 / c)":
                return g("Mul", g("Mul", q, r), 1 / top)
            case "q / c * r":
                return g("Mul", g("Div", q, top), r)
            case "q * s of another node" if codes.parts:
                return g("Mul", q, g("Div", r, top))
        return g("Mul", q, self.spread("last scale", s))
