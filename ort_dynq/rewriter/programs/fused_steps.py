"""The steps of nodes that keep all but the last bits of their results: sums, normalizations, activation functions.

Only fusions use them: see Context.fuse.

Example: of x [4, 8], LayerNormalization(x + y) is a vector, although its last bits may differ.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ...errors import DynqError
from ...graphs import MICROSOFT
from ...operators import DOMAIN
from ...operators.encodings import CodeType
from ...operators.program import OPERANDS, OUTPUTS, SUM, is_input, literal, parse
from ..analysis.constants import constant_scalar
from ..analysis.nodes import attributes_of, first_inputs, is_standard, producer_of
from ..analysis.standard import ELUS, GELUS, LAYER_NORMS, NORMS, ROW_SUMS, SKIP_NORMS
from .rows import Kind, Rows, axis_of
from .steps import Translation, elements_of

_STANDARD_ACTIVATIONS = ELUS | {"Sigmoid"}
_SELU = 1.6732632423543772, 1.0507009873554805  # alpha and gamma
# log(1 + w) = 2 * z * P(z * z), where z = w / (2 + w) is at most 1/3; the highest power first. The error is 8e-9.
_LOGARITHM = (0.1408732831478119, 0.1398070901632309, 0.20012426376342773, 0.3333315849304199, 1.0)
_EPSILON, _EPSILON_OF_SKIP = 1e-5, 1e-12
_FAST_GELU = 2 * math.sqrt(2 / math.pi), 0.044715
_TO_CODE = {int(CodeType.INT8): "Int8", int(CodeType.UINT8): "Uint8"}


def is_norm(node: ir.Node) -> bool:
    """Returns whether a node is a normalization, perhaps of a sum."""
    return is_standard(node, *LAYER_NORMS) or (node.domain == MICROSOFT and node.op_type in SKIP_NORMS)


def is_activation(node: ir.Node) -> bool:
    """Returns whether a node is a function of each element that has an arithmetic of its own in programs."""
    is_mish = is_standard(node, "Tanh") and producer_of(node.inputs[0], "Softplus") is not None
    is_standard_function = is_mish or is_standard(node, *_STANDARD_ACTIVATIONS)
    return is_standard_function or (node.domain == MICROSOFT and node.op_type in GELUS)


def is_power(node: ir.Node) -> bool:
    """Returns whether a node is a power that is a product or a square root."""
    return is_standard(node, "Pow") and constant_scalar(node.inputs[1]) in (2.0, 0.5, -0.5)


def is_quantization(node: ir.Node) -> bool:
    """Returns whether a node quantizes rows with steps that programs have."""
    if node.domain != DOMAIN or node.op_type != "RowProgram":
        return False
    given = attributes_of(node)
    return (
        "codes" in parse(given["program"]).outputs
        and given["code_type"] in _TO_CODE
        and given["axis"] == -1
        and not given["block_size"]
    )


_KINDS = {
    "x": (Kind.VECTOR,),
    "tensor": (Kind.VECTOR,),
    "column": (Kind.COLUMN,),
    "row": (Kind.NUMBER, Kind.PART, Kind.LITERAL),
}
"""The kinds of the inputs of a program, by their names."""


def _inputs_of(program: ir.Node) -> list[str]:
    """Returns the names of the inputs that a RowProgram reads, x first: those of :func:`elements_of`."""
    found = {each for each in parse(attributes_of(program)["program"]).live() if is_input(each, OPERANDS)}
    return ["x", *sorted(found - {"x"}, key=lambda each: int(each[-1]))]


class FusedRows(Rows):
    """Also knows the kinds of results of normalizations, activations, sums and quantizations."""

    def of_result(self, node: ir.Node) -> Kind | None:
        """Returns the kind of the first output of a node."""
        if is_quantization(node):
            return self._of_program(node)
        if is_norm(node) or is_activation(node):
            return self._of_vector(node)
        if is_standard(node, *ROW_SUMS):
            return self._of_sum(node)
        return self._of_operands(elements_of(node)) if is_standard(node, "Pow") else super().of_result(node)

    def _find(self, value: ir.Value) -> Kind | None:
        node = value.producer()
        if node is not None and value is not node.outputs[0] and self.of_result(node) == Kind.VECTOR:
            is_vector = node.op_type != "RowProgram" or [*OUTPUTS.values()][value.index() or 0]
            return Kind.VECTOR if is_vector else Kind.NUMBER
        return super()._find(value)

    def _of_operands(self, operands: list[ir.Value]) -> Kind | None:
        found = super()._of_operands(operands)
        if found is None and {*map(self.kind, operands)} == {Kind.NUMBER, Kind.COLUMN}:
            return Kind.VECTOR  # such as gain / sqrt(variance)
        return found

    def _of_vector(self, node: ir.Node) -> Kind | None:
        axis = node.attributes.get_int("axis", -1)
        rank = None if self.x.shape is None else len(self.x.shape)
        if self.axis != -1 or (axis != -1 and axis + 1 != rank):
            return None
        kinds = [self.kind(each) for each in elements_of(node)]
        known = kinds[:1] == [Kind.VECTOR] and {*kinds} <= {Kind.VECTOR, Kind.COLUMN, Kind.LITERAL}
        return Kind.VECTOR if known else None

    def _of_program(self, node: ir.Node) -> Kind | None:
        kinds = [_KINDS[name.rstrip("123456789")] for name in _inputs_of(node)]
        fits = all(self.kind(each) in kind for each, kind in zip(elements_of(node), kinds, strict=True))
        return Kind.VECTOR if self.axis == -1 and fits else None

    def _of_sum(self, node: ir.Node) -> Kind | None:
        if self.kind(elements_of(node)[0]) != Kind.VECTOR or axis_of(node) != self.axis:
            return None
        return Kind.NUMBER if node.attributes.get_int("keepdims", 1) == 1 else Kind.SQUEEZED


class FusedTranslation(Translation):
    """Translates these nodes, too."""

    def add(self, node: ir.Node) -> bool:
        """Adds the steps of a node; returns whether there are steps that are known to compute about the same."""
        if not (is_norm(node) or is_activation(node) or is_quantization(node) or is_standard(node, "Pow", *ROW_SUMS)):
            return super().add(node)
        if any(each.dtype not in (None, ir.DataType.FLOAT) for each in elements_of(node)):
            return False
        try:
            results = self._results(node)
        except DynqError:  # the program has become too long
            return False
        self.terms.update((output, term) for output, term in zip(node.outputs, results, strict=False) if term)
        return bool(results) and self.signs.follow()

    def _results(self, node: ir.Node) -> list[str]:
        """Returns the values of the outputs of a node, empty ones if they are not known; none if it is no step."""
        add, x = self.program.add, self.term(node.inputs[0])
        if is_quantization(node):
            return self._program(node)
        if is_norm(node):
            return self._normalized(x, node)
        match node.op_type:
            case "Sigmoid":
                return [add("Sigmoid", x)]
            case "Tanh":
                softplus = producer_of(node.inputs[0], "Softplus")
                inner = None if softplus is None else softplus.inputs[0]
                known = None if inner is None else self.terms.get(inner)
                return [] if known is None else [self._tanh_of_softplus(known)]
            case "Softplus":
                return [self._softplus(x)]
            case "Mish":
                return [add("Mul", x, self._tanh_of_softplus(x))]
            case "Elu":
                return [self._elu(x, node.attributes.get_float("alpha", 1.0))]
            case "Selu":
                alpha, gamma = (
                    node.attributes.get_float(name, default)
                    for name, default in zip(("alpha", "gamma"), _SELU, strict=True)
                )
                return [add("Mul", self._elu(x, alpha), literal(gamma))]
            case "Celu":
                alpha = node.attributes.get_float("alpha", 1.0)
                return [self._elu(x, alpha, 1 / alpha)] if alpha else []
            case "Gelu" | "BiasGelu":
                bias = node.inputs[1] if node.op_type == "BiasGelu" else None
                return [add("Gelu", x if bias is None else add("Add", x, self.term(bias)))]
            case "FastGelu":
                if len(node.inputs) > 1 and node.inputs[1] is not None:
                    x = add("Add", x, self.term(node.inputs[1]))
                factor, cubic = map(literal, _FAST_GELU)
                before = add("Add", add("Mul", add("Mul", add("Mul", x, x), x), cubic), x)
                return [add("Mul", x, add("Sigmoid", add("Mul", before, factor)))]
            case "QuickGelu":
                alpha = node.attributes.get_float("alpha", 1.702)
                return [add("Mul", x, add("Sigmoid", x if alpha == 1 else add("Mul", x, literal(alpha))))]
            case "Pow":
                return self._power(x, constant_scalar(node.inputs[1]))
        return self._sum(x, node)

    def _tanh_of_softplus(self, x: str) -> str:
        """With s = Sigmoid(x), u = 1 - s: 1 + e^x is 1 / u. Its logarithm has the tanh s * (1 + u) / (1 + u^2)."""
        add = self.program.add
        s = add("Sigmoid", x)
        u = add("Sub", "1.0", s)
        return add("Div", add("Mul", s, add("Add", u, "1.0")), add("Add", add("Mul", u, u), "1.0"))

    def _softplus(self, x: str) -> str:
        """max(x, 0) + log(1 + w), where w = e^-|x|, and s = Sigmoid(-|x|) has w / (2 + w) = s / (2 - s)."""
        add = self.program.add
        s = add("Sigmoid", add("Neg", add("Abs", x)))
        z = add("Div", s, add("Sub", "2.0", s))
        square, p = add("Mul", z, z), literal(_LOGARITHM[0])
        for coefficient in _LOGARITHM[1:]:
            p = add("Add", add("Mul", square, p), literal(coefficient))
        return add("Add", add("Clip", x, "0.0", "inf"), add("Mul", add("Mul", z, p), "2.0"))

    def _elu(self, x: str, alpha: float, factor: float = 1.0) -> str:
        """max(x, 0) + alpha * (e^y - 1), where y = min(factor * x, 0), and s = Sigmoid(y): e^y is s / (1 - s)."""
        add = self.program.add
        y = add("Clip", x if factor == 1 else add("Mul", x, literal(factor)), "-inf", "0.0")
        s = add("Sigmoid", y)
        below = add("Div", add("Sub", add("Mul", s, "2.0"), "1.0"), add("Sub", "1.0", s))
        return add("Add", add("Clip", x, "0.0", "inf"), below if alpha == 1 else add("Mul", below, literal(alpha)))

    def _power(self, x: str, exponent: float | None) -> list[str]:
        add = self.program.add
        match exponent:
            case 2.0:
                return [add("Mul", x, x)]
            case 0.5:
                return [add("Sqrt", x)]
            case -0.5:
                return [add("Reciprocal", add("Sqrt", x))]
        return []

    def _sum(self, x: str, node: ir.Node) -> list[str]:
        add = self.program.add
        squares = node.op_type in NORMS
        total = add(SUM, add("Mul", x, x) if squares else x)
        if node.op_type == "ReduceL2":
            return [add("Sqrt", total)]
        if node.op_type != "ReduceMean":
            return [total]
        count = _row_length(node.inputs[0])
        return [] if count is None else [add("Div", total, literal(count))]

    def _normalized(self, x: str, node: ir.Node) -> list[str]:
        add = self.program.add
        inputs = first_inputs(node, 5)
        is_skip = node.op_type in SKIP_NORMS
        count = _row_length(node.inputs[0]) or _row_length(inputs[2 if is_skip else 1])
        if count is None or node.attributes.get_int("stash_type", 1) != 1:
            return []
        centers = "Simplified" not in node.op_type and node.op_type != "RMSNormalization"
        if is_skip:
            x = add("Add", x, self.term(inputs[1]))
            bias = inputs[4 if centers else 3]
            x = x if bias is None else add("Add", x, self.term(bias))
        gain = inputs[2 if is_skip else 1]
        shift = inputs[3 if is_skip else 2] if centers else None
        epsilon = node.attributes.get_float("epsilon", _EPSILON_OF_SKIP if is_skip else _EPSILON)
        difference = add("Sub", x, add("Div", add(SUM, x), literal(count))) if centers else x
        variance = add("Div", add(SUM, add("Mul", difference, difference)), literal(count))
        inverse = add("Reciprocal", add("Sqrt", add("Add", variance, literal(epsilon))))
        y = add("Mul", difference, inverse)
        y = y if gain is None else add("Mul", y, self.term(gain))
        y = y if shift is None else add("Add", y, self.term(shift))
        return [y, "", "", x if is_skip else ""]

    def _program(self, node: ir.Node) -> list[str]:
        """The steps of another program with values of this one as inputs, with those that its codes imply."""
        to_code = _TO_CODE[attributes_of(node)["code_type"]]
        program = parse(attributes_of(node)["program"])
        terms = dict(zip(_inputs_of(node), map(self.term, elements_of(node)), strict=True))
        uses = program.live()
        for index, step in enumerate(program.steps):
            if uses[f"v{index}"]:
                operands = [terms.get(operand, operand) for operand in step.operands]
                terms[f"v{index}"] = self.program.add(step.operator, *operands)
        found = {name: terms.get(value, value) for name, value in program.outputs.items()}
        for name in {"codes", "zero_point"} & found.keys():
            last = self.program.step(found[name])
            if last is None or last.operator != to_code:
                found[name] = self.program.add(to_code, found[name])
        return [found.get(output, "") for output in OUTPUTS]


def _row_length(value: ir.Value | None) -> int | None:
    """Returns the length of the last dimension, if it is known."""
    last = None if value is None or not value.shape else value.shape[-1]
    return last if isinstance(last, int) else None
