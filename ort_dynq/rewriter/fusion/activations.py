"""The rule for Gelu and x * sigmoid(alpha * x), in any spelling.

the nodes from x to an activation function    -> com.microsoft.Gelu, FastGelu or QuickGelu

A node in the middle of these functions is the anchor. The rule computes what the nodes around it make of many numbers x
in float64, and compares that with the functions themselves. So the order of operands, factors and terms, and the way to
write a sigmoid or a cube do not matter. Nodes with constants of float16 stay: they are other functions.
A quantization takes them, too: its codes have larger errors than the 3e-5 by which they differ.

Example: 0.5 * x * (1 + Erf(x * 0.70710678)) is Gelu(x); with 0.70703125, as float16 has it, it is not.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...graphs import MICROSOFT
from ...opsets import OPSET
from ..analysis.constants import constant_scalar
from ..analysis.inference import Facts
from ..analysis.limits import VISITED
from ..analysis.nodes import is_standard
from ..analysis.shapes import does_not_grow
from ..analysis.standard import SIGMOIDS
from ..edit import Edit
from ..reasons import Reason, Unconverted
from ..rule import Context, Rule

_Elements = npt.NDArray[np.float64]
_Function = Callable[..., _Elements]

_FLOATS = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
_ANCHORS = SIGMOIDS | {"Exp", "Gelu", "Swish"}
_MAX_CANDIDATES = 12  # the tanh form has up to 8 values between x and the anchor, not all of them nearer than x


class _ActivationFunction(NamedTuple):
    x: ir.Value
    result: ir.Value
    operator: str
    attributes: dict[str, float]


def _match(node: ir.Node, context: Context, *, takes_near: bool = False) -> _ActivationFunction | None:
    near: Unconverted | None = None
    for x in _candidates(node, context.facts):
        if x.dtype != ir.DataType.FLOAT:
            continue
        functions = _Functions(x, node.graph)
        for result in reversed(_results(node, functions)):
            elements = functions(result)
            found = None if elements is None or result.dtype != x.dtype else _activation(elements)
            if found is None or not _is_closed(x, result, functions):
                continue
            operator, attributes, difference = found
            if not difference or takes_near:
                return _ActivationFunction(x, result, operator, attributes)
            near = Unconverted(Reason.NEARLY_FUNCTION, function=operator, difference=f"{difference:.1g}")
    if near is not None:
        raise near
    return None


def _build(match: _ActivationFunction, edit: Edit) -> None:
    last = match.result.producer()
    assert last is not None
    edit.facts.model.graph.opset_imports.setdefault(MICROSOFT, 1)
    main = ir.node(match.operator, [match.x], match.attributes, domain=MICROSOFT)
    edit.replace(match.result, edit.insert_main(main, before=last, origin=last))


_match_near = functools.partial(_match, takes_near=True)
RULE = Rule("activation", OPSET, _match, _build, fuses=True, operators=_ANCHORS)
QUANTIZE = Rule("activation, its constants rounded", OPSET, _match_near, _build, fuses=True, operators=_ANCHORS)

# The functions of operators


def _sigmoid(x: _Elements) -> _Elements:
    return np.asarray(1 / (1 + np.exp(-x)))


def _swish(x: _Elements, alpha: float) -> _Elements:
    return x * _sigmoid(alpha * x)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _gelu(x: _Elements) -> _Elements:
    return np.asarray(0.5 * x * (1 + _erf(x / math.sqrt(2))))


def _tanh_gelu(x: _Elements) -> _Elements:
    return np.asarray(0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))))


# No operator here has a bend, except Abs and Sign at 0. So functions that are equal at these points are equal.
_FUNCTIONS: dict[str, _Function] = {
    "Abs": np.abs,
    "Add": np.add,
    "Cast": np.asarray,  # only from and to float32 and float64
    "Div": np.divide,
    "Erf": _erf,
    "Exp": np.exp,
    "Identity": np.asarray,
    "Log": np.log,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Reciprocal": np.reciprocal,
    "Sigmoid": _sigmoid,
    "Sign": np.sign,
    "Softplus": lambda x: np.logaddexp(0, x),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Tanh": np.tanh,
}


def _function(node: ir.Node) -> _Function | None:
    """Returns what a node computes of numbers; None if it is not an elementwise operator of the table."""
    if is_standard(node, "Gelu"):
        return _tanh_gelu if node.attributes.get_string("approximate", "none") == "tanh" else _gelu
    if is_standard(node, "Swish"):
        alpha = node.attributes.get_float("alpha", 1.0)
        return lambda x: _swish(x, alpha)
    return _FUNCTIONS.get(node.op_type) if is_standard(node, node.op_type) else None


# The functions of x

_LARGE = np.array([15.0, 20.0, 30.0, 100.0])
_POINTS = np.concatenate([[1.0, -1e-3, 1e-3], np.linspace(-12, 12, 1001), _LARGE, -_LARGE])
_FINITE = np.abs(_POINTS) <= 30  # an exponential may overflow beyond
_ONE = 0  # the index of 1
# Constants rounded to float32, or to six digits, change the functions by less than 5e-7. Rounded to float16 they make
# other functions, which differ by up to 3e-5: more than verification allows. The two forms of Gelu differ by 5e-4.
_TOLERANCE = 1e-6 * np.maximum(1, np.abs(_POINTS))
_NEAR = 100  # of these tolerances
_GELUS = {"Gelu": _gelu(_POINTS), "FastGelu": _tanh_gelu(_POINTS)}


def _activation(elements: _Elements) -> tuple[str, dict[str, float], float] | None:
    """Returns the operator, with its attributes, that computes these elements at the points, or None.

    Also returns by how much a Gelu differs that is near, but not the same function; otherwise 0.
    """
    if not elements.ndim or not np.isfinite(elements[_FINITE]).all():
        return None
    with np.errstate(all="ignore"):  # sigmoid(alpha) is the function of 1
        alpha = float(np.float32(np.log(elements[_ONE] / (1 - elements[_ONE]))))
        for operator, expected in (*_GELUS.items(), ("QuickGelu", _swish(_POINTS, alpha))):
            if (np.abs(elements - expected) <= _TOLERANCE)[np.isfinite(elements)].all():
                return operator, {"alpha": alpha} if operator == "QuickGelu" else {}, 0.0
        differences = {operator: np.abs(elements - expected) for operator, expected in _GELUS.items()}
    near = [operator for operator, each in differences.items() if (each <= _NEAR * _TOLERANCE).all()]
    return (near[0], {}, float(differences[near[0]].max())) if near else None


class _Functions:
    """Values as functions of x: their elements where the elements of x are the points."""

    def __init__(self, x: ir.Value, graph: ir.Graph | ir.Function | None) -> None:
        """Starts with x; the nodes of a graph may compute other values."""
        self._x, self._graph = x, graph
        self._found: dict[ir.Value, _Elements | None] = {x: _POINTS}

    def __call__(self, value: ir.Value | None) -> _Elements | None:
        """Returns the elements of a value; one number if it is constant.

        None if it depends on other values than x, or is not known to have the shape of x.
        """
        if value is None:
            return None
        if value not in self._found:
            self._found[value] = None  # counts while its operands are computed
            number = constant_scalar(value)
            self._found[value] = self._computed(value) if number is None else np.asarray(number, np.float64)
        return self._found[value]

    def _computed(self, value: ir.Value) -> _Elements | None:
        node = value.producer()
        if node is None or node.graph is not self._graph or value.dtype not in _FLOATS:
            return None
        function = _function(node)
        if function is None or VISITED.is_passed(len(self._found)):
            return None
        operands = list[_Elements]()
        for source in node.inputs:
            elements = self(source)
            if elements is None or (elements.ndim == 0 and not self._keeps_shape(source, node)):
                return None
            operands.append(elements)
        with np.errstate(all="ignore"):
            return np.asarray(function(*operands))

    def _keeps_shape(self, constant: ir.Value | None, node: ir.Node) -> bool:
        return any(does_not_grow(constant, other) for other in (self._x, *node.inputs) if other is not constant)


def _candidates(anchor: ir.Node, facts: Facts) -> list[ir.Value]:
    """Returns the values before the anchor that may be x, the nearest ones first."""
    found = [value for value in anchor.inputs if value is not None]
    for each in found:
        node = each.producer()
        if node is None or node.graph is not anchor.graph or _function(node) is None:
            continue
        for value in node.inputs:
            if value is not None and value not in found and not facts.is_constant(value):
                found.append(value)
        if len(found) >= _MAX_CANDIDATES:
            break
    return found


def _results(anchor: ir.Node, functions: _Functions) -> list[ir.Value]:
    """Returns the values after the anchor that depend on x alone, the nearest ones first."""
    found = [output for output in anchor.outputs if functions(output) is not None]
    for each in found:
        for use in each.uses():
            found += [output for output in use.node.outputs if output not in found and functions(output) is not None]
    return found


def _is_closed(x: ir.Value, result: ir.Value, functions: _Functions) -> bool:
    """Returns whether no other nodes use the values between x and the result."""
    inside = [result]
    for value in inside:
        node = value.producer()
        assert node is not None
        for source in node.inputs:
            elements = functions(source)
            if source is not None and elements is not None and elements.ndim and source not in (x, *inside):
                inside.append(source)
    nodes = {value.producer() for value in inside}
    return not any(value.is_graph_output() or {use.node for use in value.uses()} - nodes for value in inside[1:])
