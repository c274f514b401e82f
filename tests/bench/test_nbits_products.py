"""`python tests/bench nbits`: its JSON and text, and its checks of results."""

from __future__ import annotations

import importlib.util
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from benching import QUICK, run_developers, run_developers_json, take_two_copies

import ort_dynq
from bench import llama_cpp_product, nbits_products, product_contenders
from bench.nbits_products import Form
from ort_dynq import DynqError

HAS_LLAMA_CPP = importlib.util.find_spec("llama_cpp") is not None
ABSENT = "llama.cpp is not available: llama-cpp-python is not installed: pip install llama-cpp-python"


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    take_two_copies(monkeypatch)


@pytest.fixture
def _no_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llama_cpp" else real(name))


@pytest.mark.usefixtures("_no_llama_cpp")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_developers_json(capsys, "nbits", "--rows", "1,20", "--sizes", "256x256,256x320", "--threads", "1")
    assert data["group_size"] == 32
    assert data["notes"] == [ABSENT]
    timings = data["timings"]
    assert [(each["weights"], each["rows"]) for each in timings] == [
        (size, rows) for size in ([256, 256], [256, 320]) for rows in (1, 20)
    ]
    assert all(
        each[name] > 0 for each in timings for name in ("stock_us", "blocks_us", "two_terms_us", "float_us", "read_us")
    )
    assert all(each["llama_cpp_us"] is None for each in timings)
    means = {each["name"]: each for each in data["means"]}
    assert len(means) == 8
    for name, ours in (("blocks", "blocks_us"), ("two-term", "two_terms_us")):
        ratios = [each["stock_us"] / each[ours] for each in timings if each["rows"] == 20]
        mean = means[f"MatMulNBits / {name}, 20 rows"]
        assert (mean["timings"], mean["ratio"]) == (2, pytest.approx(math.sqrt(math.prod(ratios))))


@pytest.mark.usefixtures("_no_llama_cpp")
def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--rows", "9", "--sizes", "256x256", "--group-size", "64", "--threads", "1")
    lines = run_developers(capsys, "nbits", *arguments).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("rows  weights"))
    row = lines[head + 1].split()
    assert row[:3] == ["9", "256x256", "1"]
    assert len(row) == 14
    assert row[8:10] == ["-", "-"]  # its blocks have 32 weights
    assert not any("llama.cpp is not available" in line for line in lines)
    rates = next(line for line in lines if line.startswith("multiply-adds a ns: "))
    assert re.fullmatch(r".*: up to MatMulNBits \d+, blocks \d+, two-term \d+, float \d+ \(threads: 1\)", rates)


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        *((1, Form()), (2, Form(2, "codes")), (17, Form(2)), (18, Form(4, "codes")), (1, Form(4, "floats"))),
        *((3, Form(4, dequantized=name)) for name in ("blocks", "transposed", "channels")),
        (1, Form(8, dequantized="channels")),
    ],
    ids=str,
)
def test_every_contender_computes_the_same_product(rows: int, form: Form) -> None:
    """A wrong result would be an error or a note."""
    case = product_contenders.Case(rows, (512, 272), 1)
    found, notes = nbits_products.nbits_contenders(case, 32, QUICK, form)
    is_q4_0 = form == Form()
    assert notes == ([ABSENT] if is_q4_0 and not HAS_LLAMA_CPP else [])
    llama_cpp = ["llama.cpp"] if is_q4_0 and HAS_LLAMA_CPP else []
    assert [*found] == ["MatMulNBits", "blocks", "two-term", "float", *llama_cpp, "read"]
    assert all(each.repeats == 2 for each in found.values())


def test_the_extensions_backend() -> None:
    case = product_contenders.Case(3, (256, 256), 1)
    found, _ = nbits_products.nbits_contenders(case, 32, replace(QUICK, backend="extensions"))
    assert {"blocks", "two-term"} <= found.keys()


def test_a_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ort_dynq.rewrite

    def wrong(model: onnx.ModelProto, **options: Any) -> Any:
        for tensor in model.graph.initializer:
            if tensor.name == "weights0":
                tensor.raw_data = bytes(byte ^ 0x77 for byte in tensor.raw_data)
        return real(model, **options)

    monkeypatch.setattr(ort_dynq, "rewrite", wrong)
    with pytest.raises(DynqError, match=r"blocks: results are wrong by .* times the largest element"):
        nbits_products.nbits_contenders(product_contenders.Case(3, (256, 256), 1), 32, QUICK)


def test_blocks_that_do_not_fit() -> None:
    with pytest.raises(DynqError, match="the groups do not fit 100x64: 100 is not a multiple of 32"):
        nbits_products.bench_nbits(QUICK, (1,), ((100, 64),))


def test_layout_of_llama_cpp() -> None:
    """A float16 scale, then bytes: their low halves are the first 16 codes; codes are 8 larger."""
    codes = np.random.default_rng(0).integers(-8, 8, (64, 3)).astype(np.int8)
    scales = np.random.default_rng(1).uniform(0.5, 1, (2, 3)).astype(np.float32)
    packed = llama_cpp_product.q4_0(codes, scales)
    assert packed.shape == (3, 2, 18)
    for column in range(3):
        for block in range(2):
            scale, numbers = packed[column, block, :2].view(np.float16), packed[column, block, 2:].astype(np.int8)
            assert scale == np.float16(scales[block, column])
            unpacked = np.concatenate([numbers & 15, numbers.view(np.uint8) >> 4]).astype(np.int8) - np.int8(8)
            assert (unpacked == codes[32 * block :, column][:32]).all()


def test_another_library_is_a_note(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(llama_cpp_product, "_library_folder", lambda: tmp_path)
    _, notes = nbits_products.nbits_contenders(product_contenders.Case(1, (256, 256), 1), 32, QUICK)
    assert [note for note in notes if "the library of llama-cpp-python is not as expected" in note] == notes != []
