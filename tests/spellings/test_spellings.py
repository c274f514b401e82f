"""Random spellings of quantizations: every one keeps its results, and most become integer products."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ort_dynq.rewriter import rewrite
from spellings.check import check, converted, problem_of
from spellings.generator import near_miss, spelling

_MIN_SHARE = 0.95
"""The part of the spellings that has to become an integer product. It only ever rises."""
_PARTS, _SPELLINGS, _NEAR_MISSES = 2, 6, 3
_MANY, _LONGER = 40, 15  # parts of an exhaustive run, and how many times as many seeds each of them has
_COUNTED = 40
_ONCE_WRONG = (143, 172, 548, 951, 1142, 2000, 5078, 88086, 160001, 512010)
"""Seeds that earlier versions got wrong: infinite codes, also of rows that share a scale, x * Reciprocal(s), a model
that fails, one that is invalid, a right one that `verify` took for wrong."""
_FOLDED = 170074
"""A near miss with weights that are dequantized once: ONNX Runtime packs constants, and adds in another order."""


def _ranges(count: int) -> list[object]:
    """Parameters of a test: ranges of seeds; the later ones are exhaustive."""
    first, many = _PARTS * count, _LONGER * count
    exhaustive = [range(seed, seed + many) for seed in range(first, first + _MANY * many, many)]
    return [
        *(range(seed, seed + count) for seed in range(0, first, count)),
        *(pytest.param(seeds, marks=pytest.mark.exhaustive) for seeds in exhaustive),
    ]


@pytest.mark.parametrize("seeds", _ranges(_SPELLINGS), ids=lambda seeds: f"{seeds[0]}_to_{seeds[-1]}")
def test_spellings_are_right(seeds: range) -> None:
    for seed in seeds:
        made = spelling(seed)
        outcome = check(made, exact=seed % 3 == 0)
        assert not outcome.problem, f"seed {seed}: {made.description}: {outcome.problem}"


@pytest.mark.parametrize("seed", _ONCE_WRONG)
def test_spellings_that_once_were_wrong(seed: int) -> None:
    assert not check(spelling(seed)).problem


def test_most_spellings_have_the_integer_product() -> None:
    made = [spelling(seed) for seed in range(_COUNTED)]
    demanded = [each for each in made if each.expected]
    outcomes = [(each, converted(each)[1]) for each in demanded]
    left = [each for each, outcome in outcomes if outcome.products < each.products and not outcome.is_fused]
    assert len(demanded) - len(left) >= _MIN_SHARE * len(demanded), (
        f"{len(left)} of {len(demanded)} have no integer product"
    )


def test_a_near_miss_with_weights_that_are_dequantized_once() -> None:
    outcome = check(near_miss(_FOLDED), exact=True)
    assert not outcome.problem
    assert outcome.products == 0


@pytest.mark.parametrize("seeds", _ranges(_NEAR_MISSES), ids=lambda seeds: f"{seeds[0]}_to_{seeds[-1]}")
def test_near_misses_stay(seeds: range) -> None:
    """Codes that need more than 8 bits, scales along K and weights without a grid have no integer product."""
    for seed in seeds:
        made = near_miss(seed)
        outcome = check(made, exact=seed % 3 == 0)
        assert not outcome.problem, f"seed {seed}: {made.description}: {outcome.problem}"
        assert outcome.products == 0, f"seed {seed}: {made.description}"


# The check itself

_PLAIN = {
    "opset": "20",
    "product": "MatMul",
    "scope": "token",
    "scheme": "symmetric",
    "order": "x / (r / c)",
    "epsilon": "none",
}
_CODES = onnx.TensorProto.INT8, onnx.TensorProto.UINT8
_WITH_FUNCTION = {**_PLAIN, "placement": "function of the layer"}  # which verify cannot look into


@pytest.mark.parametrize("fixed", [_PLAIN, _WITH_FUNCTION, {**_PLAIN, "arithmetic": "integer"}])
def test_a_wrong_code_of_the_weights_is_found(fixed: dict[str, str]) -> None:
    for seed in range(2):
        made = spelling(seed, fixed, plain=True)
        model, outcome = converted(made)
        assert outcome.products == made.products, made.description
        assert not problem_of(made, model, is_exact=False)
        constants = [*model.graph.initializer]
        constants += [each.t for function in model.functions for node in function.node for each in node.attribute]
        packed = max((each for each in constants if each.data_type in _CODES), key=lambda each: each.ByteSize())
        codes = numpy_helper.to_array(packed).copy()
        codes.flat[codes.size // 2] += 1 if codes.flat[codes.size // 2] < 100 else -1
        packed.CopyFrom(numpy_helper.from_array(codes, packed.name))
        assert problem_of(made, model, is_exact=False), made.description


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("rounding", "floor(x + 0.5)"),  # differs at ties only
        ("rounding", "sign(x) * floor(abs(x) + 0.5)"),
        ("order", "x * (c / r)"),  # differs in the last bit of the quotient, so in some ties
        ("epsilon", "range: Add"),
    ],
)
def test_another_spelling_is_found(name: str, wrong: str) -> None:
    """Two spellings of one quantization differ, and the check sees it, in exact and in other models."""
    made, other = (spelling(0, fixed, plain=True) for fixed in (_PLAIN, {**_PLAIN, name: wrong}))
    assert not np.array_equal(made.model.SerializeToString(), other.model.SerializeToString())
    for exact in (False, True):
        assert problem_of(made, rewrite(other.model, exact=exact).to_proto(), is_exact=exact)
