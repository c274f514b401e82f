"""Verifies float products that became integer products, whose last bits differ from the original's.

Compared end to end, two correct models may differ by a percent: rounding to 8 bits turns a difference in the last bit
into a whole step. So verification has two parts. Each product is computed from A's intermediate values and compared
with a float64 reference. Then B's products are overridden with A's results, and the rest of B must equal A bit for bit.

More than 450 lines: the run of both models, and the comparison of each kind of product with what it observed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import onnx_ir as ir

from ..errors import DynqError
from ..graphs import label
from ..inputs import Array
from ..rewriter.analysis.inference import Facts
from ..rewriter.float16 import write_casts_as_converted
from ..rewriter.fusion.splitting import split_quantizations
from ..rewriter.layout import with_layout_of
from ..rewriter.metadata import EXACT, FLOAT_ACTIVATION
from ..rewriter.normal_form import inlined_if_possible
from ..rewriter.programs.tails import split_tails
from ..storage import first_line, load
from .bounded import QuantizedLayer
from .experts import mixture_of
from .float64 import FloatProduct, errors_of, float_product_of
from .fusions import FLOOR as FLOOR_OF_FUSIONS
from .fusions import Fusion, Fusions, error_of, reference_of
from .layers import Disturbed, Layers, Override, Recorder, name_of
from .nbits import add_rest, is_noise, is_within_steps, noise_of, products_of
from .recurrent import lstm_of
from .rounded import StoredWeights, codes_of, codes_of_rounded, dequantized, rounded_weights_of, terms_of

if TYPE_CHECKING:
    from ..backends.options import Backend
    from ..storage import Model

FACTOR = 2
"""The error of B's product may be this many times the error of A's float32 product."""
FLOOR = 8
"""The error in units that B's product may always have, even if A's error is smaller.

A float32 product of few elements may be exact. B's product has one rounding for each of these: the activation and the
weight, which A rounds and B does not; the sum; two products of scales; their product with the sum; the bias. One more
is allowed for a scale that A stores as a reciprocal.

A product in groups also adds the float32 sums of its groups, one rounding each. These roundings are relative to the sum
so far, the unit is relative to the sum of absolute values. With weights of both signs they add less than one unit, also
for 512 groups; docs/numerics.md has the figures. If all terms have one sign, they may exceed 8 units from 64 groups on.
A's float32 product then has a similar error, and FACTOR decides.
"""
LEAST = 2.0**-121
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
    DynamicQuantizeLSTM and QMoE, whose errors are relative to their bounds: `allowed` is 1 (recurrent.py, experts.py).

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
        unreachable: The number of integer products in subgraphs, whose values cannot be graph outputs.
        b: B's outputs by name, except results of products and of nodes that contain
            unreachable products.
        original: All outputs of A.
        perturbed: All outputs of A if its results of these products are changed by PERTURBATION in columns of even
            index, and by -PERTURBATION in the others. This shows the effect of an error in the last bits. A
            normalization would cancel a common factor. Empty without such products, or if A does not load with it.
        not_perturbed: Why A does not load with it; empty if it does.
        unchecked: Why an output of B cannot be compared; empty if every one can.
    """

    products: tuple[Product, ...]
    unreachable: int
    b: dict[str, Array]
    original: list[Array]
    perturbed: list[Array]
    not_perturbed: str
    unchecked: str = ""


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
    model_b = inlined_if_possible(load(b))
    if model_b.metadata_props.get(EXACT) == "1":
        return None
    split_tails(model_b)
    split_quantizations(model_b)
    model_a = with_layout_of(inlined_if_possible(load(a)), model_b)
    write_casts_as_converted(model_a, model_b)
    layers = Layers(model_a, model_b)
    taken: dict[ir.Node, QuantizedLayer | None] = {
        **{node: lstm_of(node, layers) for node in layers.take("QuantizedRecurrence")},
        **{node: mixture_of(node, layers) for node in layers.take("QuantizedExperts")},
    }
    of_a = [layer for layer in taken.values() if layer is not None]
    labels = list(map(label, layers.nodes))
    stored = list(map(rounded_weights_of, layers.nodes))
    of_taken = [output for node in taken for output in node.outputs]
    fusions = Fusions(layers.values, model_b, {*layers.results, *of_taken})
    fused = [fusion.result for fusion in fusions.found]
    if not layers.nodes and not taken and not layers.unreachable and not fused and not fusions.hidden:
        return None
    names = list(map(name_of, model_a.graph.outputs))
    chains = [float_product_of(node, result, layers) for node, result in zip(layers.nodes, layers.results, strict=True)]
    foreign = layers.foreign
    needed = [value for chain in chains if chain for value in chain.values()]
    needed += [value for each in of_a for value in each.values_of_a()]
    wanted = [*model_a.graph.outputs, *needed, *(layers.values[name_of(output)] for output in (*foreign, *fused))]
    if fused:
        with Facts(model_a):
            wanted += fusions.values_to_record()
    known = Recorder(model_a, wanted).run(feeds)
    codes = [
        codes_of(node) if _has_float_activation(node, chain) else codes_of_rounded(node)
        for node, chain in zip(layers.nodes, chains, strict=True)
    ]
    offsets = [value for value in layers.offsets if value is not None]
    of_fusions = [value for fusion in fusions.found for value in fusion.observed()]
    wanted_of_b = dict.fromkeys(
        [
            *(value for each in (*codes, *(layer.observed for layer in of_a)) for value in each),
            *offsets,
            *(value for value in of_fusions if name_of(value) not in known),
        ]
    )
    observed = [value for value in wanted_of_b if value.producer() is not None]
    overridden = [*layers.results, *fused, *(value for each in of_a for value in each.b.outputs)]
    names_of_fused = list(map(name_of, fused))
    hidden = set(map(name_of, fusions.hidden))
    results = Override(model_b, overridden, foreign, known, backend, observed).run(feeds, known)
    outputs = dict(zip(map(name_of, model_b.graph.outputs), results, strict=True))
    found = {name: outputs[name] for name in names if name in outputs and name not in hidden}
    of_b_and_feeds = {**feeds, **outputs}
    activations = [dequantized(node, each, of_b_and_feeds) for node, each in zip(layers.nodes, codes, strict=True)]
    arrays = [
        None if value is None else outputs.get(name_of(value), feeds.get(name_of(value))) for value in layers.offsets
    ]
    judged = zip(labels, chains, zip(results, activations, stored, arrays, strict=False), layers.nodes, strict=True)
    products = [
        _judge_weights_only(name, chain, known, *of_b[:3], node)
        if chain is not None and _has_float_activation(node, chain)
        else _judge(name, chain, known, *of_b)
        for name, chain, of_b, node in judged
    ]
    cut = {**feeds, **{name_of(value): known[name_of(value)] for value in wanted}}
    products = [
        Product(each.name, unchecked=_HIDDEN) if result in fusions.hidden else each
        for each, result in zip(products, layers.results, strict=True)
    ]
    arrays_of_b = {**of_b_and_feeds, **known}
    for fusion, name, result in zip(fusions.found, names_of_fused, results[len(layers.results) :], strict=False):
        products.append(_judge_fusion(fusion, layers.values[name], result, cut, arrays_of_b, model_a))
    of_others = iter(results[len(layers.results) + len(fused) :])
    products += [
        _judge_layer(layer, known, of_b_and_feeds, [next(of_others) for _ in layer.b.outputs]) for layer in of_a
    ]
    products += [Product(label(node), problem=_NO_PRODUCT) for node, layer in taken.items() if layer is None]
    verified = [*(chain.result for chain in chains if chain), *(layers.values[name] for name in names_of_fused)]
    verified += [value for each in of_a for value in each.node.outputs if value.uses() or value.is_graph_output()]
    # Last, since this renames A's values.
    perturbed, not_perturbed = _run_perturbed(model_a, verified, feeds, known) if verified else ([], "")
    return Checked(
        products=tuple(products),
        unreachable=layers.unreachable,
        b=found,
        original=[known[name] for name in names],
        perturbed=perturbed,
        not_perturbed=not_perturbed,
        unchecked=next((f"{name}: {_HIDDEN}" for name in names if name in hidden), ""),
    )


def _judge_fusion(
    fusion: Fusion,
    value: ir.Value,
    result: Array,
    cut: Mapping[str, Array],
    arrays_of_b: Mapping[str, Array],
    a: ir.Model,
) -> Product:
    """Compares the result of a fusion.

    Args:
        fusion: The fusion.
        value: The value of A that it computes.
        result: B's result.
        cut: Values of A by name: at these, the computation of the reference begins.
        arrays_of_b: The values of B that fusions observe, by name.
        a: A.
    """
    expected, product = cut[name_of(value)], Product(name_of(value), elements=result.size, is_fusion=True)
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        return replace(product, problem=f"B's result is {result.dtype} {list(result.shape)}")
    if expected.dtype.kind != "f":
        return replace(product, unchecked=_HIDDEN)
    try:
        reference = reference_of(value, cut, a)
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


def _has_float_activation(node: ir.Node, chain: FloatProduct | None) -> bool:
    """Returns whether B quantizes an activation that is a float in A: A has MatMulNBits, or only weights quantized."""
    return chain is not None and (chain.is_nbits or node.metadata_props.get(FLOAT_ACTIVATION) == "1")


def _judge_weights_only(
    name: str,
    chain: FloatProduct,
    known: Mapping[str, Array],
    result: Array,
    activation: Array | None,
    stored: StoredWeights | None,
    node: ir.Node,
) -> Product:
    """Compares a product that quantizes its activation in B: see nbits.py.

    In A, MatMulNBits of accuracy_level 4 also quantizes it. Other products do not.

    Args:
        name: Its name.
        chain: The nodes in A.
        known: A's values.
        result: B's result.
        activation: B's activation, dequantized.
        stored: B's weights if A's are these, rounded to float16.
        node: The node in B.
    """
    product, expected = Product(name), known[name_of(chain.result)]
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        return replace(product, problem=_shapes(result, expected))
    x = known[name_of(chain.activation)].astype(np.float64)
    if chain.is_nbits:
        depth, block_size = (chain.node.attributes.get_int(name, 0) for name in ("K", "block_size"))
    else:
        depth = chain.depth(known[name_of(chain.weights)])
        block_size = node.attributes.get_int("group_size", 0) or depth
    if stored is not None and not stored.rounds_to(known[name_of(chain.weights)], chain.is_transposed):
        return replace(product, problem=WRONG_WEIGHTS)
    if activation is None or activation.shape[:-1] != x.shape[:-1] or activation.shape[-1] < depth:
        return replace(product, problem="B's activation is not A's")
    activation = activation[..., :depth]
    with np.errstate(all="ignore"):  # elements that are not finite are skipped
        of_a, size_of_a, of_squares, of_b, size_of_b = _products_of(chain, known, x, activation, stored)
        roundings = -(-depth // block_size)
        if chain.is_nbits:
            roundings += add_rest(chain.node, known, x, activation, of_b, size_of_b)
        reference, magnitude = chain.after_steps(of_a, size_of_a, known)
        of_squares = of_squares.reshape(reference.shape)
        a_errors, a_compared = errors_of(expected, reference, magnitude)
        b_errors, b_compared = errors_of(result, *chain.after_steps(of_b, size_of_b, known))
    compared = a_compared & b_compared & np.isfinite(x).all(-1, keepdims=True)
    a_error, b_error = (float(errors[compared].max(initial=0)) for errors in (a_errors, b_errors))
    in_float64 = reference[compared]
    a_result, b_result = (each.astype(np.float64)[compared] for each in (expected, result))
    allowed = float(FLOOR + roundings)
    problem = ""
    if not is_noise(a_result - in_float64, in_float64, of_squares[compared], float(np.finfo(result.dtype).eps)):
        problem = f"A's result is {a_error:.3g} units from the reference: more than rounding to 8 bits causes"
    elif not is_within_steps(activation, x, block_size, terms_of(node)):
        problem = "B's activation is further from A's than half a step of its codes"
    elif b_error > allowed:
        problem = f"B's error is {b_error:.3g} units, expected at most {allowed:.3g}"
    return replace(
        product,
        depth=depth,
        elements=result.size,
        skipped=int(compared.size - compared.sum()),
        a_error=a_error,
        b_error=b_error,
        allowed=allowed,
        problem=problem,
        a_noise=noise_of(a_result, in_float64),
        b_noise=noise_of(b_result, in_float64),
    )


def _products_of(
    chain: FloatProduct, known: Mapping[str, Array], x: Array, activation: Array, stored: StoredWeights | None
) -> list[Array]:
    """Returns A's product, those of its magnitudes and of its squares, and the first two of B's activation, float64."""
    of_a: _Factors = (x, np.asarray), (np.abs(x), np.abs), (np.square(x), np.square)
    of_b: _Factors = (activation, np.asarray), (np.abs(activation), np.abs)
    if chain.is_nbits:
        return products_of(chain.node, known, *of_a, *of_b)
    weights = known[name_of(chain.weights)].astype(np.float64)
    weights_of_b = weights if stored is None else stored.like(weights, chain.is_transposed)
    both = (of_a, weights), (of_b, weights_of_b)
    return [chain.multiply(each, function(given)) for factors, given in both for each, function in factors]


def _judge_layer(
    layer: QuantizedLayer, known: Mapping[str, Array], of_b: Mapping[str, Array], outputs: list[Array]
) -> Product:
    """Compares a layer whose errors are relative to their bounds: see recurrent.py and experts.py."""
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


def _shapes(result: Array, expected: Array) -> str:
    return f"B's result is {result.dtype} {list(result.shape)}, A {expected.dtype} {list(expected.shape)}"


def _judge(
    name: str,
    chain: FloatProduct | None,
    known: Mapping[str, Array],
    result: Array,
    activation: Array | None,
    stored: StoredWeights | None,
    offset: Array | None,
) -> Product:
    """Compares a product.

    Args:
        name: Its name.
        chain: The nodes in A.
        known: A's values.
        result: B's result.
        activation: B's activation if A's is this one, rounded to float16; the reference then has B's.
        stored: B's weights if A's are these, rounded to float16; the reference then has B's.
        offset: What the activation has in addition to codes times a scale. A rounds each sum of both relative to the
            larger one, and the reference does not know: the magnitude has both.
    """
    product = Product(name)
    if chain is None:
        return replace(product, problem=_NO_PRODUCT)
    expected = known[name_of(chain.result)]
    if (expected.shape, expected.dtype) != (result.shape, result.dtype):
        return replace(product, problem=_shapes(result, expected))
    x, weights = (known[name_of(value)].astype(np.float64) for value in (chain.activation, chain.weights))
    if stored is not None and not stored.rounds_to(weights, chain.is_transposed):
        return replace(product, problem=WRONG_WEIGHTS)
    of_b = weights if stored is None else stored.like(weights, chain.is_transposed)
    x_of_b = x if activation is None else activation
    with np.errstate(over="ignore"):
        if activation is not None and not np.array_equal(activation.astype(np.float16), x, equal_nan=True):
            return replace(product, problem="B's activation, rounded to float16, is not A's")
    size = np.abs(x) if offset is None else np.abs(x) + 2 * np.abs(offset)  # at least |codes * scale| + |offset|
    size = np.maximum(size, LEAST)
    with np.errstate(all="ignore"):  # elements that are not finite are skipped
        a_errors, a_compared = errors_of(expected, *chain.reference(x, weights, known, size))
        b_errors, b_compared = errors_of(result, *chain.reference(x_of_b, of_b, known, size))
    compared = a_compared & b_compared
    a_error, b_error = (float(errors[compared].max(initial=0)) for errors in (a_errors, b_errors))
    depth = chain.depth(weights)
    bound = depth + len(chain.steps)
    allowed = max(FACTOR * a_error, FLOOR)
    problem = ""
    if a_error > bound:
        problem = f"A's result is {a_error:.3g} units from the reference, expected at most {bound}"
    elif b_error > allowed:
        problem = f"B's error is {b_error:.3g} units, A's {a_error:.3g}, expected at most {allowed:.3g}"
    return replace(
        product,
        depth=depth,
        elements=result.size,
        skipped=int(compared.size - compared.sum()),
        a_error=a_error,
        b_error=b_error,
        allowed=allowed,
        problem=problem,
    )
