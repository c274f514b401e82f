"""The programs and the table of steps in the documentation agree with ONNX Runtime."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from bench import chains
from functions import run_function
from helpers import IS_ARM, Array, assert_same, stock_session

import ort_dynq
from ort_dynq import kernels
from ort_dynq.operators.program import ARITIES, parse
from ort_dynq.rewriter.listing import listing_of

DOCS = Path(ort_dynq.__file__).parent / "docs"
OPERATORS = (DOCS / "operators.md").read_text()
NOTHING = np.zeros(1, np.float32)
_COMPARED = {"And": (0, 1), "Or": (0, 1), "Not": (0,), "Where": (0,)}  # the operands that are comparisons


def programs(page: Path) -> list[str]:
    """The programs in blocks of a page: one statement a line."""
    blocks = re.findall(r"^```program\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return ["; ".join(block.strip().splitlines()) for block in blocks]


def test_the_program_in_the_rules_is_that_of_the_model() -> None:
    model = Path(__file__).parents[2] / "models" / "kv_cache_float_bias" / "model.onnx"
    assert [str(parse(program)) for program in programs(DOCS / "rules.md")] == [listing_of(model, "rounded").program]


def run(program: str, x: Array, *operands: Array) -> dict[str, Array]:
    given = [*operands, *[NOTHING] * (4 - len(operands))]
    found = kernels.run("RowProgram", [x, np.zeros(1, np.int8), *given], program=program, code_type=3)
    return dict(zip(("codes", "zero_point", "dst", "dst_2", "scale", "number"), found, strict=True))


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_programs_are_valid(page: Path) -> None:
    found = programs(page)
    assert all(parse(program).outputs for program in found)
    assert len(found) == {"operators.md": 5}.get(page.name, len(found))


def test_programs_give_the_bits_of_the_chains() -> None:
    """The quantizations against those of torch and torchao; the tails against the nodes that they replace."""
    symmetric, asymmetric, _, hard_swish, residual = programs(DOCS / "operators.md")
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((7, 64)) * rng.choice([1e-6, 1, 1e6], (7, 1))).astype(np.float32)
    x[3] = 0
    y, scale = stock_session(chains.CHAINS[0].model((7, 64))).run(None, {"x": x})
    found = run(symmetric, x)
    assert_same(found["codes"], y)
    assert_same(found["scale"], scale)
    assert "torchao" in chains.CHAINS[2].name
    (y,) = stock_session(chains.CHAINS[2].model((7, 64))).run(None, {"x": x})
    assert_same(run(asymmetric, x)["dst"], y)
    other = rng.standard_normal(x.shape).astype(np.float32)
    for program, nodes in (
        (hard_swish, "a = Add(x, three) c = Clip(a, zero, six) m = Mul(x, c) y = Div(m, six)"),
        (residual, "s = Add(x, t) y = Relu(s)"),
    ):
        model = onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": 20]> g (float[n, 64] x, float[n, 64] t) => (float[n, 64] y)
            <float three = {{3}}, float zero = {{0}}, float six = {{6}}> {{ {nodes} }}"""
        )
        (y,) = stock_session(model).run(None, {"x": x, "t": other})
        assert_same(run(program, x, other)["dst"], y)


def test_the_program_of_a_normalization() -> None:
    """Against float64: each number has a dozen roundings, relative to the largest one of its row."""
    program = programs(DOCS / "operators.md")[2]
    rng = np.random.default_rng(0)
    x, other = rng.standard_normal((2, 9, 384)).astype(np.float32)
    gain, shift = rng.standard_normal((2, 384)).astype(np.float32)
    found = run(program, x, other, gain, shift)
    total = x.astype(np.float64) + other
    centered = total - total.mean(-1, keepdims=True)
    expected = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + np.float32(1e-5)) * gain + shift
    limit = 12 * 2.0**-24 * np.abs(expected).max(-1, keepdims=True)
    assert (np.abs(found["dst"] - expected) <= limit).all()
    scale = np.abs(found["dst"]).max(-1, keepdims=True) / np.float32(127)
    assert_same(found["scale"], scale)
    assert_same(found["codes"], np.rint(found["dst"] / scale).astype(np.int8))


def examples() -> list[tuple[str, list[str], str]]:
    """The examples in the table of steps: the step, its operands, the result."""
    found = re.findall(r"`(\w+)\(([^`()]*)\) = ([^`]+)`", OPERATORS)
    return [(name, operands.split(", "), result) for name, operands, result in found if name in ARITIES]


@pytest.mark.parametrize("example", examples(), ids=lambda each: f"{each[0]}({', '.join(each[1])})")
def test_examples_of_steps(example: tuple[str, list[str], str]) -> None:
    """They hold on every instruction set, and in the function, which ONNX Runtime runs."""
    name, texts, result = example
    literals = {"Clip": 1, "LeakyRelu": 1}.get(name, len(texts))  # from this operand on, they are in the text
    names = ["x", "tensor1", "tensor2"][:literals]
    conditions = _COMPARED.get(name, ())
    given = [f"Equal({each}, 1.0)" if i in conditions else each for i, each in enumerate(names)]
    step = f"{name}({', '.join([*given, *texts[literals:]])})"
    is_reduction = name.startswith("Reduce")
    program = f"number = {step}" if is_reduction else f"dst = {step}"
    x, *operands = (np.array([list(map(float, text.split(" ")))], np.float32) for text in texts[:literals])
    expected = np.array([[float(result)]], np.float32)
    output = "number" if is_reduction else "dst"
    for isa in kernels.supported_isas():
        with kernels.use_isa(isa):
            assert is_same(run(program, x, *operands)[output], expected)
    if IS_ARM or (is_reduction and np.isnan(x).any()):
        return  # there, ONNX Runtime's own result differs, or depends on the position in memory
    inputs = [x, np.zeros(1, np.int8), *operands, *[NOTHING] * (4 - len(operands))]
    found = run_function("RowProgram", inputs, program=program, code_type=3)[5 if is_reduction else 2]
    assert is_same(found, expected)


def is_same(a: Array, b: Array) -> bool:
    """Returns whether numbers are equal, and so are the signs of zeros; NaN has no sign."""
    return bool(np.array_equal(a, b, equal_nan=True)) and bool(np.isnan(b).any() or np.signbit(a) == np.signbit(b))


def test_every_step_is_in_the_table() -> None:
    (table,) = re.findall(r"^\| step \| result \| examples \|\n(.*?)\n\n", OPERATORS, re.MULTILINE | re.DOTALL)
    first = [line.split(" | ")[0] for line in table.splitlines()]
    listed = [name for cell in first for name in re.findall(r"`(\w+)(?:\([^`]*\))?`", cell)]
    assert sorted(set(listed) - {"codes", "zero_point", "dst", "dst_2"}) == sorted(ARITIES)
    assert len(listed) == len(set(listed))
