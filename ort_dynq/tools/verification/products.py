"""Verifies float products that became integer products. Their last bits differ from the original's.

Compared end to end, two correct models may differ by a percent: rounding to 8 bits turns a difference in the last bit
into a whole step. So verification has two parts. Each product is computed from A's intermediate values and compared
with a float64 reference. Then B's products are overridden with A's results, and the rest of B must equal A bit for bit.

More than 450 lines: the run of both models, and the comparison of each kind of product with what it observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ...errors import DynqError
from ...graphs import label
from ...inputs import Array
from ...rewriter.analysis.inference import Facts
from ...rewriter.chains.quantize_linear import is_rounded
from ...rewriter.float16 import write_casts_as_converted
from ...rewriter.fusion.splitting import split_quantizations
from ...rewriter.layout import with_layout_of
from ...rewriter.metadata import EXACT, FLOAT_ACTIVATION
from ...rewriter.normal_form import inlined_if_possible, with_branches_taken
from ...rewriter.products.dynamic_quantized_matmul import split_dynamic_products
from ...rewriter.programs.tails import split_tails
from ...storage import first_line, load
from .bounded import QuantizedLayer
from .experts import mixture_of
from .float64 import FloatProduct, errors_of, float_product_of
from .fusions import FLOOR as FLOOR_OF_FUSIONS
from .fusions import Fusion, Fusions, error_of, reference_of
from .layers import Disturbed, IntegerProduct, Layers, Override, Recorder, name_of
from .nbits import add_rest, is_noise, is_within_steps, noise_of, products_of
from .operands import changed_constant, changed_operand
from .recurrent import lstm_of
from .rounded import PackedWeights, codes_of, dequantized, is_rounded_by_a, rounded_weights_of, terms_of

if TYPE_CHECKING:
    from ...backends.options import Backend
    from ...storage import Model

FACTOR = 2
"""The error of B's product may be this many times the error of A's float32 product."""
FLOOR = 8
"""The error in units that B's product may always have, even if A's error is smaller.

A float32 product of few elements may be exact. B's product has one rounding for each of these: the activation and the
weight, which A rounds and B does not; the sum; two products of scales; their product with the sum; the bias. One more
is allowed for a scale that A stores as a reciprocal.

A product in groups also adds the float32 sums of its groups, one rounding each. These roundings are relative to the sum
so far, the unit is relative to the sum of absolute values. With weights of both signs they add less than one unit, also
for 512 groups; docs/how-results-are-proved.md has the figures. If all terms have one sign, they may exceed 8 units from
64 groups on. A's float32 product then has a similar error, and FACTOR decides.
"""
MIN_VALUE = 2.0**-121
"""What an element of the activation counts as at least. Scales of a few denormal steps are rounded to whole steps, and
codes that the model does not clip exceed 8 bits then: an element may be 128 steps of 2**-149 off. That is FLOOR units
of this number."""
PERTURBATION = 2
"""How much A's results of these products are changed to see the effect end to end, in units of the relative distance
between numbers of their type: 2**-23 of float32, 2**-10 of float16."""
WRONG_WEIGHTS = "B's weights, rounded to float16, are not A's"
_NO_PRODUCT = "A has no such float product"
_Factors: TypeAlias = "tuple[tuple[Array, Callable[[Array], Array]], ...]"
_HIDDEN = "it depends on a fusion before A has a float value to compare"


@dataclass(frozen=True)
class Product:
    """A float product in A that is QuantizedMatMul or QuantizedConv in B, both computed from A's values.

    An error is the largest abs(result - reference) / (2**-24 * magnitude) over the elements. A result of float16 is
    rounded: half of the distance between its numbers is subtracted from abs(result - reference). The reference is the
    result of A's nodes in float64. The magnitude is the same computation on absolute values,
    abs(x) @ abs(w) * abs(scale) + abs(bias). In this unit, the textbook bound of the error of a float32 product is K
    (Higham, Accuracy and Stability of Numerical Algorithms, section 3.5). For a MatMulNBits of A, the reference of B
    has B's activation: the rounding of the activation to codes is compared apart from it (nbits.py). So it is for
    DynamicQuantizeLSTM and QMoE. Their errors are relative to their bounds: `allowed` is 1 (recurrent.py, experts.py).

    Attributes:
        name: The name of the node in B, or of its result if the node has none.
        depth: K, the number of terms of each sum.
        elements: The number of elements of the result.
        skipped: The number of elements without a float32 reference: it overflows, or the row of the activation contains
            NaN or an infinity, which integer codes cannot represent.
        a_error, b_error: The errors in units.
        allowed: The largest error that B may have: FACTOR times A's, or FLOOR; FLOOR and one for each block of a
            MatMulNBits.
        problem: Why the product is incorrect; empty if it is correct or is not checked.
        unchecked: Why the product cannot be checked; empty if it is.
        is_fusion: Whether it is no product but a fusion: a normalization, an activation function or attention. Its
            unit is 2**-24 * the largest abs(reference) of the row; of attention, see attention.py.
        a_noise, b_noise: The noise of the results of A and B if A's product is MatMulNBits, DynamicQuantizeLSTM or
            QMoE, in dB: the mean square of result - reference, relative to the mean square of the reference. -inf
            without noise; None for other products.
    """

    name: str
    depth: int = 0
    elements: int = 0
    skipped: int = 0
    a_error: float = 0.0
    b_error: float = 0.0
    allowed: float = float(FLOOR)
    problem: str = ""
    unchecked: str = ""
    is_fusion: bool = False
    a_noise: float | None = None
    b_noise: float | None = None


@dataclass(frozen=True)
class Checked:
    """The results of both models on A's intermediate values.

    Attributes:
        products: The integer products of B's main graph.
        unreachable: The number of integer products in subgraphs: their values cannot be graph outputs.
        b: B's outputs by name, except results of products and of nodes that contain
            unreachable products.
        original: All outputs of A.
        perturbed: All outputs of A if its results of these products are changed by PERTURBATION in columns of even
            index, and by -PERTURBATION in the others. This shows the effect of an error in the last bits. A
            normalization would cancel a common factor. Empty without such products, or if A does not load with it.
        not_perturbed: Why A does not load with it; empty if it does.
        unchecked: Why an output of B cannot be compared; empty if every one can.
        changed: The name of a constant that has other bits in A; empty if there is none.
    """

    products: tuple[Product, ...]
    unreachable: int
    b: dict[str, Array]
    original: list[Array]
    perturbed: list[Array]
    not_perturbed: str
    unchecked: str = ""
    changed: str = ""


def check_products(a: Model, b: Model, feeds: Mapping[str, Array], backend: Backend) -> Checked | None:
    """Verifies the integer products of B.

    Args:
        a: The original, which loads and runs in stock ONNX Runtime.
        b: The model to verify, which loads and runs with the plugin.
        feeds: Values of all inputs.
        backend: How B gets the operators.

    Returns:
        The results, or None if B has no integer products or its metadata says that it is exact.

    Raises:
        SessionError: B does not run on A's values.
        DynqError: A does not run with these values as outputs, or one is not a tensor of a supported type.
    """
    model_b = with_branches_taken(inlined_if_possible(load(b)), feeds)
    if model_b.metadata_props.get(EXACT) == "1":
        return None
    split_dynamic_products(model_b)
    split_tails(model_b)
    split_quantizations(model_b)
    model_a = with_layout_of(with_branches_taken(inlined_if_possible(load(a)), feeds), model_b)
    write_casts_as_converted(model_a, model_b)
    layers = Layers(model_a, model_b)
    replaced: list[tuple[ir.Node, QuantizedLayer | None]] = [
        *((node, lstm_of(node, layers)) for node in layers.take("QuantizedRecurrence")),
        *((node, mixture_of(node, layers)) for node in layers.take("QuantizedExperts")),
    ]
    of_layers = [layer for _, layer in replaced if layer is not None]
    pairs = [_pair_of(each, layers) for each in layers.products]
    fusions = Fusions(
        layers.values, model_b, {*layers.results, *(output for node, _ in replaced for output in node.outputs)}
    )
    if not pairs and not replaced and not layers.unreachable and not fusions.found and not fusions.hidden:
        return None
    changed = changed_constant(model_a, model_b)
    names = list(map(name_of, model_a.graph.outputs))
    hidden = set(map(name_of, fusions.hidden))
    known = Recorder(model_a, _values_of_a(model_a, layers, pairs, of_layers, fusions)).run(feeds)
    observed = _values_of_b(pairs, of_layers, fusions, known)
    overridden = [*layers.results, *(each.result for each in fusions.found)]
    overridden += [output for each in of_layers for output in each.results_of_b]
    results = Override(model_b, overridden, layers.foreign, known, backend, observed).run(feeds, known)
    outputs = dict(zip(map(name_of, model_b.graph.outputs), results, strict=True))
    of_b = {**feeds, **outputs}
    products = [
        Product(each.name, unchecked=_HIDDEN) if each.b.result in fusions.hidden else _judge(each, known, of_b)
        for each in pairs
    ]
    products += [
        _judge_fusion(each, of_b[name_of(each.result)], known, {**of_b, **known}, model_a) for each in fusions.found
    ]
    products += [_judge_layer(each, known, of_b) for each in of_layers]
    products += [Product(label(node), problem=_NO_PRODUCT) for node, layer in replaced if layer is None]
    verified = [*(each.a.result for each in pairs if each.a), *(each.of_a for each in fusions.found)]
    verified += [value for each in of_layers for value in each.node.outputs if value.uses() or value.is_graph_output()]
    # Last, since this renames A's values.
    perturbed, not_perturbed = _run_perturbed(model_a, verified, feeds, known) if verified else ([], "")
    return Checked(
        products=tuple(products),
        unreachable=layers.unreachable,
        b={name: outputs[name] for name in names if name in outputs and name not in hidden},
        original=[known[name] for name in names],
        perturbed=perturbed,
        not_perturbed=not_perturbed,
        unchecked=next((f"{name}: {_HIDDEN}" for name in names if name in hidden), ""),
        changed=changed,
    )


class _ProductPair(NamedTuple):
    """A product of B, and A's nodes that compute it.

    Attributes:
        b: The product of B.
        a: A's nodes; None if A has no such product.
        name: The name of B's node.
        stored: B's weights if A's are these, rounded to float16.
        observed: B's codes, scale and zero point.
    """

    b: IntegerProduct
    a: FloatProduct | None
    name: str
    stored: PackedWeights | None
    observed: list[ir.Value]


def _pair_of(product: IntegerProduct, layers: Layers) -> _ProductPair:
    node, of_a = product.node, float_product_of(product, layers)
    return _ProductPair(product, of_a, label(node), rounded_weights_of(node), codes_of(node))


def _values_of_a(
    a: ir.Model, layers: Layers, pairs: Sequence[_ProductPair], of_layers: Sequence[QuantizedLayer], fusions: Fusions
) -> list[ir.Value]:
    """Returns the values of A to record: what is compared, and what references are computed from."""
    wanted = list(a.graph.outputs)
    wanted += [value for each in pairs if each.a for value in each.a.values()]
    parameters = [layers.values.get(name_of(value)) for each in pairs for value in each.observed[1:]]
    wanted += [value for value in parameters if value is not None]
    wanted += [value for each in of_layers for value in each.values_of_a()]
    wanted += [layers.values[name_of(output)] for output in layers.foreign]
    wanted += [each.of_a for each in fusions.found]
    if fusions.found:
        with Facts(a):
            wanted += fusions.values_to_record()
    return wanted


def _values_of_b(
    pairs: Sequence[_ProductPair], of_layers: Sequence[QuantizedLayer], fusions: Fusions, known: Mapping[str, Array]
) -> list[ir.Value]:
    """Returns the computed values of B that are compared with A's, or from which errors are computed."""
    found = [value for each in pairs if each.a for value in each.observed]
    found += [value for each in of_layers for value in each.observed]
    found += [each.b.offset for each in pairs if each.b.offset is not None]
    found += [value for each in fusions.found for value in each.observed() if name_of(value) not in known]
    return [value for value in dict.fromkeys(found) if value.producer() is not None]


def _judge_fusion(
    fusion: Fusion, result: Array, known: Mapping[str, Array], arrays_of_b: Mapping[str, Array], a: ir.Model
) -> Product:
    """Compares the result of a fusion.

    Args:
        fusion: The fusion.
        result: B's result.
        known: Values of A by name: at these, the computation of the reference begins.
        arrays_of_b: The values of B that fusions observe, by name.
        a: A.
    """
    name = name_of(fusion.of_a)
    expected, product = known[name], Product(name, elements=result.size, is_fusion=True)
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        return replace(product, problem=f"B's result is {result.dtype} {list(result.shape)}")
    if expected.dtype.kind != "f":
        return replace(product, unchecked=_HIDDEN)
    try:
        reference = reference_of(fusion.of_a, known, a)
        size = fusion.size(reference, arrays_of_b)
    except Exception as error:  # of ONNX's implementation of any operator
        return replace(product, unchecked=f"A's nodes cannot be computed in float64: {first_line(error)}")
    a_error, b_error = error_of(expected, reference, size), error_of(result, reference, size)
    allowed = max(FACTOR * a_error, float(FLOOR_OF_FUSIONS))
    wrong = f"B's error is {b_error:.3g} units, A's {a_error:.3g}, expected at most {allowed:.3g}"
    return replace(
        product, a_error=a_error, b_error=b_error, allowed=allowed, problem=wrong if b_error > allowed else ""
    )


def _run_perturbed(
    model: ir.Model, results: Sequence[ir.Value], feeds: Mapping[str, Array], known: Mapping[str, Array]
) -> tuple[list[Array], str]:
    """Returns A's outputs after the change of the products' results that :class:`Checked` describes.

    ONNX Runtime may load A itself and not A with this change, if A declares wrong shapes. Then there are no outputs,
    and the text says why.
    """
    errors, types = {}, {}
    for value in results:
        name = name_of(value)
        signs = np.where(np.arange(known[name].shape[-1]) % 2, -1, 1)
        finite = np.where(np.isfinite(known[name]), known[name], 0)
        errors[name] = (finite * (PERTURBATION * np.finfo(finite.dtype).eps * signs)).astype(finite.dtype)
        types[value] = finite.dtype
    try:
        disturbed = Disturbed(model, types)
    except DynqError as error:
        return [], str(error)
    return disturbed.run(feeds, errors), ""


def _has_float_activation(node: ir.Node, of_a: FloatProduct | None) -> bool:
    """Returns whether B quantizes an activation that is a float in A: A has MatMulNBits, or only weights quantized."""
    return of_a is not None and (of_a.is_nbits or node.metadata_props.get(FLOAT_ACTIVATION) == "1")


def _judge(pair: _ProductPair, known: Mapping[str, Array], of_b: Mapping[str, Array]) -> Product:
    """Compares a product.

    Args:
        pair: The product.
        known: A's values.
        of_b: B's values: the result and the observed ones.
    """
    of_a = pair.a
    if of_a is None:
        return Product(pair.name, problem=_NO_PRODUCT)
    expected, result = known[name_of(of_a.result)], of_b[name_of(pair.b.result)]
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        found = f"{result.dtype} {list(result.shape)}, A {expected.dtype} {list(expected.shape)}"
        return Product(pair.name, problem=f"B's result is {found}")
    if _has_float_activation(pair.b.node, of_a):
        return _judge_weights_only(pair, of_a, known, result, dequantized(pair.b.node, pair.observed, of_b))
    activation = dequantized(pair.b.node, pair.observed, of_b) if is_rounded_by_a(pair.b.node) else None
    offset = None if pair.b.offset is None else of_b.get(name_of(pair.b.offset))
    if offset is None and of_a.subtracted is not None:
        offset = known[name_of(of_a.subtracted)].astype(np.float64)
    product = _judge_exact(pair, of_a, known, result, activation, offset)
    if product.problem or activation is not None or offset is not None:
        return product
    return replace(product, problem=changed_operand(of_a, pair.b.node, pair.observed, known, of_b))


def _judge_weights_only(
    pair: _ProductPair, of_a: FloatProduct, known: Mapping[str, Array], result: Array, activation: Array | None
) -> Product:
    """Compares a product that quantizes its activation in B: see nbits.py.

    In A, MatMulNBits of accuracy_level 4 also quantizes it. Other products do not.

    Args:
        pair: The product.
        of_a: The nodes in A.
        known: A's values.
        result: B's result.
        activation: B's activation, dequantized.
    """
    product, expected, stored = Product(pair.name), known[name_of(of_a.result)], pair.stored
    given = known[name_of(of_a.activation)]
    x = given.astype(np.float64)
    # ONNX Runtime may round float16 in one model and not in the other: in A, it depends on which values are recorded.
    may_differ = given.dtype == np.float16 and not is_rounded(of_a.activation)
    rounding = np.spacing(np.abs(given)).astype(np.float64) / 2 if may_differ else 0.0
    if of_a.is_nbits:
        depth, block_size = (of_a.node.attributes.get_int(name, 0) for name in ("K", "block_size"))
    else:
        depth = of_a.depth(known[name_of(of_a.weights)])
        block_size = pair.b.node.attributes.get_int("group_size", 0) or depth
    if stored is not None and not stored.rounds_to(known[name_of(of_a.weights)], of_a):
        return replace(product, problem=WRONG_WEIGHTS)
    if activation is None or activation.shape[:-1] != x.shape[:-1] or activation.shape[-1] < depth:
        return replace(product, problem="B's activation is not A's")
    activation = activation[..., :depth]
    with np.errstate(all="ignore"):  # elements that are not finite are skipped
        y, size, of_squares, y_of_b, size_of_b = _products_of(of_a, known, x, activation, stored)
        roundings = -(-depth // block_size)
        if of_a.is_nbits:
            roundings += add_rest(of_a.node, known, x, activation, y_of_b, size_of_b)
        reference, magnitude = of_a.after_steps(y, size, known)
        of_squares = of_squares.reshape(reference.shape)
        a_errors, a_compared = errors_of(expected, reference, magnitude)
        b_errors, b_compared = errors_of(result, *of_a.after_steps(y_of_b, size_of_b, known))
    compared = a_compared & b_compared & np.isfinite(x).all(-1, keepdims=True)
    product = _with_errors(product, a_errors, b_errors, compared)
    in_float64 = reference[compared]
    a_result, b_result = (each.astype(np.float64)[compared] for each in (expected, result))
    allowed = float(FLOOR + roundings)
    problem = _without_nan(expected, reference, result)
    if not is_noise(a_result - in_float64, in_float64, of_squares[compared], float(np.finfo(result.dtype).eps)):
        problem = f"A's result is {product.a_error:.3g} units from the reference: more than rounding to 8 bits causes"
    elif not is_within_steps(activation, x, block_size, terms_of(pair.b.node), rounding):
        problem = "B's activation is further from A's than half a step of its codes"
    elif product.b_error > allowed:
        problem = f"B's error is {product.b_error:.3g} units, expected at most {allowed:.3g}"
    a_noise, b_noise = noise_of(a_result, in_float64), noise_of(b_result, in_float64)
    return replace(product, depth=depth, allowed=allowed, problem=problem, a_noise=a_noise, b_noise=b_noise)


def _products_of(
    of_a: FloatProduct, known: Mapping[str, Array], x: Array, activation: Array, stored: PackedWeights | None
) -> list[Array]:
    """Returns A's product, those of its magnitudes and of its squares, and the first two of B's activation, float64."""
    factors_of_a: _Factors = (x, np.asarray), (np.abs(x), np.abs), (np.square(x), np.square)
    factors_of_b: _Factors = (activation, np.asarray), (np.abs(activation), np.abs)
    if of_a.is_nbits:
        return products_of(of_a.node, known, *factors_of_a, *factors_of_b)
    weights = known[name_of(of_a.weights)].astype(np.float64)
    weights_of_b = weights if stored is None else stored.like(weights, of_a)
    both = (factors_of_a, weights), (factors_of_b, weights_of_b)
    return [of_a.multiply(each, function(given)) for factors, given in both for each, function in factors]


def _judge_exact(
    pair: _ProductPair,
    of_a: FloatProduct,
    known: Mapping[str, Array],
    result: Array,
    activation: Array | None,
    offset: Array | None,
) -> Product:
    """Compares a product of an activation that consists of codes in A, too.

    Args:
        pair: The product. If it has stored weights, the reference for B's result has these.
        of_a: The nodes in A.
        known: A's values.
        result: B's result.
        activation: B's activation if A's is this one, rounded to float16; the reference for B's result then has B's.
        offset: What the activation has in addition to codes times a scale, also -z * s of q * s - z * s. A rounds each
            sum of both relative to the larger one, and the reference does not know: the magnitude has both.
    """
    product, expected, stored = Product(pair.name), known[name_of(of_a.result)], pair.stored
    x, weights = (known[name_of(value)].astype(np.float64) for value in (of_a.activation, of_a.weights))
    if stored is not None and not stored.rounds_to(weights, of_a):
        return replace(product, problem=WRONG_WEIGHTS)
    weights_of_b = weights if stored is None else stored.like(weights, of_a)
    x_of_b = x if activation is None else activation
    with np.errstate(over="ignore"):
        if activation is not None and not np.array_equal(activation.astype(np.float16), x, equal_nan=True):
            return replace(product, problem="B's activation, rounded to float16, is not A's")
    size = np.abs(x) if offset is None else np.abs(x) + 2 * np.abs(offset)  # at least |codes * scale| + |offset|
    size = np.maximum(size, MIN_VALUE)
    with np.errstate(all="ignore"):  # elements that are not finite are skipped
        reference, magnitude = of_a.reference(x, weights, known, size)
        a_errors, a_compared = errors_of(expected, reference, magnitude)
        if (unrounded := of_a.unrounded_weights) is not None:
            read = known[name_of(unrounded)].astype(np.float64)
            a_errors = min(a_errors, errors_of(expected, *of_a.reference(x, read, known, size))[0], key=np.max)
        b_errors, b_compared = errors_of(result, *of_a.reference(x_of_b, weights_of_b, known, size))
    compared = a_compared & b_compared
    product = _with_errors(product, a_errors, b_errors, compared)
    depth = of_a.depth(weights)
    bound = depth + len(of_a.steps)
    allowed = max(FACTOR * product.a_error, FLOOR)
    problem = _without_nan(expected, reference, result)
    if product.a_error > bound:
        problem = f"A's result is {product.a_error:.3g} units from the reference, expected at most {bound}"
    elif product.b_error > allowed:
        problem = f"B's error is {product.b_error:.3g} units, A's {product.a_error:.3g}, expected at most {allowed:.3g}"
    return replace(product, depth=depth, allowed=allowed, problem=problem)


def _without_nan(expected: Array, reference: Array, result: Array) -> str:
    """Returns how many elements of B's result are finite where A's and the reference are NaN; empty if none is."""
    lost = int((np.isnan(expected) & np.isnan(reference) & np.isfinite(result)).sum())
    return f"{lost} elements of B's result are finite where A's are NaN" if lost else ""


def _with_errors(product: Product, a_errors: Array, b_errors: Array, compared: npt.NDArray[np.bool_]) -> Product:
    """Returns the product with the largest errors of the elements that are compared."""
    return replace(
        product,
        elements=compared.size,
        skipped=int(compared.size - compared.sum()),
        a_error=float(a_errors[compared].max(initial=0)),
        b_error=float(b_errors[compared].max(initial=0)),
    )


def _judge_layer(layer: QuantizedLayer, known: Mapping[str, Array], of_b: Mapping[str, Array]) -> Product:
    """Compares a layer by its errors relative to their bounds: see recurrent.py and experts.py."""
    outputs = [of_b[name_of(value)] for value in layer.results_of_b]
    found = layer.judge(known, of_b, outputs)
    compared = np.isfinite(found.reference)
    both = (each.astype(np.float64) for each in (known[name_of(layer.node.outputs[0])], outputs[0]))
    a_noise, b_noise = (
        noise_of(each[compared], found.reference[compared]) if each.shape == compared.shape else None for each in both
    )
    return Product(
        layer.name,
        depth=found.reference.shape[-1],
        elements=found.reference.size,
        skipped=found.skipped,
        a_error=found.a_error,
        b_error=found.b_error,
        allowed=1.0,
        problem=found.problem,
        a_noise=a_noise,
        b_noise=b_noise,
    )
