"""`python tests/bench products`: its JSON and text, its checks of results, and the plain read."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from benching import QUICK, run_developers, run_developers_json, take_two_copies

from bench import product_contenders
from ort_dynq import DynqError, runtime
from ort_dynq.tools.measuring.timing import session_contender
from ort_dynq.tools.verification.saturation import cpu_saturates

TIMES = ("ours_8_us", "ours_4_us", "direct_us", "integer_us", "float_us", "read_us")


@pytest.fixture(autouse=True)
def _few_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    take_two_copies(monkeypatch)


@pytest.fixture
def _no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)  # an import raises ImportError


@pytest.mark.usefixtures("_no_torch")
def test_bench_products_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--rows", "1,40,128", "--sizes", "64x48,32x20", "--threads", "1,2", "--group-size", "16")
    data = run_developers_json(capsys, "products", *arguments)
    assert data["group_size"] == 16
    assert [(each["threads"], each["weights"], each["rows"]) for each in data["timings"]] == [
        (threads, list(weights), rows)
        for threads, weights, rows in itertools.product((1, 2), ((64, 48), (32, 20)), (1, 40, 128))
    ]
    for each in data["timings"]:
        assert all(each[name] > 0 for name in TIMES)
        assert each["ratio_8"] == pytest.approx(each["integer_us"] / each["ours_8_us"])
        assert each["ratio_4"] == pytest.approx(each["nbits_4_us"] / each["ours_4_us"])
        assert each["float_ratio_8"] == pytest.approx(each["float_us"] / each["ours_8_us"])
        assert each["float_ratio_4"] == pytest.approx(each["float_us"] / each["ours_4_us"])
        assert each["read_ratio"] == pytest.approx(each["read_us"] / each["ours_8_us"])
        assert each["torch_us"] is None
    assert any(note.startswith("torch is not available: ") for note in data["notes"])
    means = {(each["name"], each["threads"]): each for each in data["means"]}
    for name, ratio, rows in (
        ("MatMulInteger / ort_dynq, 8 bits, all rows", "ratio_8", (1, 40, 128)),
        ("MatMulInteger / ort_dynq, 8 bits, 32 rows and more", "ratio_8", (40, 128)),
        ("MatMulNBits / ort_dynq, 4 bits, 1 row", "ratio_4", (1,)),
        ("MatMulNBits / ort_dynq, 4 bits, 128 rows", "ratio_4", (128,)),
        ("float / ort_dynq, 8 bits, 1 row", "float_ratio_8", (1,)),
        ("float / ort_dynq, 8 bits, 16 rows and more", "float_ratio_8", (40, 128)),
        ("float / ort_dynq, 4 bits, 16 rows and more", "float_ratio_4", (40, 128)),
        ("plain read / ort_dynq, 8 bits, 1 row", "read_ratio", (1,)),
    ):
        for threads in (1, 2):
            chosen = [t[ratio] for t in data["timings"] if t["threads"] == threads and t["rows"] in rows]
            mean = means.pop((name, threads))
            assert mean["timings"] == len(chosen)
            assert mean["ratio"] == pytest.approx(math.prod(chosen) ** (1 / len(chosen)))
    assert not means


def is_saturation(note: str) -> bool:
    """ONNX Runtime's own integer sums are wrong on some CPUs."""
    return note.startswith("MatMulInteger: ") and note.endswith("sums saturate on this CPU") and cpu_saturates()


@pytest.mark.usefixtures("_no_torch")
def test_bench_products_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_developers(capsys, "products", "--rows", "1,40", "--sizes", "64x48", "--threads", "1").splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("rows  weights"))
    assert re.split(r" {2,}", lines[head].strip()) == [
        *("rows", "weights", "threads", "ort_dynq 8", "MatMulInteger", "ratio", "ort_dynq 4", "MatMulNBits 4", "ratio"),
        *("MatMulNBits 8", "torch", "float", "/ 8", "/ 4", "read", "ratio", "direct"),
    ]
    rates = r"ort_dynq: up to \d+ with 8 bits, \d+ with 4 \(threads: 1\)"
    assert sum(re.fullmatch(rates, line) is not None for line in lines[:head]) == 1
    rows = [line.split() for line in lines[head + 1 : head + 3]]
    assert [row[:3] for row in rows] == [["1", "64x48", "1"], ["40", "64x48", "1"]]
    assert all(len(row) == 17 and row[10] == "-" for row in rows)
    assert [line for line in lines if not is_saturation(line)][-1].startswith("torch is not available: ")
    assert (
        sum(re.match("(MatMulInteger|MatMulNBits|float|plain read) / ort_dynq", line) is not None for line in lines)
        == 7
    )


@pytest.mark.parametrize("group_size", [16, 32, 64, 128])
@pytest.mark.parametrize("rows", [1, 9])
def test_every_contender_computes_the_same_product(rows: int, group_size: int) -> None:
    """A wrong result would be an error or a note."""
    case = product_contenders.Case(rows, (256, 33), 1)
    found, notes = product_contenders.contenders(case, group_size, QUICK)
    absent = {note.partition(" is not available: ")[0] for note in notes if not is_saturation(note)}
    assert absent <= {"torch", *(["MatMulNBits 8"] if runtime.version() < (1, 22) else [])}
    names = [
        "ort_dynq 8",
        "MatMulInteger",
        "ort_dynq 4",
        "MatMulNBits 4",
        "MatMulNBits 8",
        "float",
        "direct",
        "torch",
        "read",
    ]
    assert [*found] == [name for name in names if name not in absent]
    assert all(each.repeats == 2 for each in found.values())


def test_ours_run_with_the_extensions_backend() -> None:
    case, settings = product_contenders.Case(3, (64, 33), 1), replace(QUICK, backend="extensions")
    found, _ = product_contenders.contenders(case, 32, settings)
    assert {"ort_dynq 8", "ort_dynq 4"} <= found.keys()


@pytest.mark.parametrize(("is_ours", "name"), [(True, "ort_dynq 8"), (False, "MatMulInteger")])
def test_wrong_results_are_found(is_ours: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """QuantizedMatMul must be right; stock ONNX Runtime's MatMulInteger is wrong on some CPUs."""
    real = product_contenders._products

    def one_wrong(data: Any) -> Any:
        found = real(data)
        assert found[name].is_ours == is_ours
        wrong = found[name].weights.copy()
        wrong[..., 0] += 1
        found[name] = found[name].__class__(**{**vars(found[name]), "weights": wrong})
        return found

    monkeypatch.setattr(product_contenders, "_products", one_wrong)
    case = product_contenders.Case(3, (64, 48), 1)
    if is_ours:
        with pytest.raises(DynqError, match=r"ort_dynq 8: results are wrong by 0\.\d+ times the largest element"):
            product_contenders.contenders(case, 32, QUICK)
    else:
        _, notes = product_contenders.contenders(case, 32, QUICK)
        assert [note for note in notes if note.startswith("MatMulInteger: results are wrong by 0.")]


def test_sessions_hold_weights_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough of them to exceed the caches: a product of each, in one run."""
    monkeypatch.setattr(product_contenders, "_MAX_COPIES", 512)
    monkeypatch.setattr(product_contenders, "cold_bytes", lambda rows: 10 * 64 * 48)
    opened = []
    real = session_contender

    def counted(name: str, model: onnx.ModelProto, *rest: Any, **more: Any) -> Any:
        weights = [each.raw_data for each in model.graph.initializer if each.name.startswith("weights")]
        assert len({*weights}) == len(model.graph.output) == len(weights)  # ONNX Runtime keeps equal ones only once
        opened.append(len(weights))
        return real(name, model, *rest, **more)

    monkeypatch.setattr(product_contenders, "session_contender", counted)
    found, _ = product_contenders.contenders(product_contenders.Case(1, (64, 48), 1), 32, QUICK)
    assert opened == [10, 10, 20, 20, 10, 3]  # the weights of float32 are four times as large
    assert [found[name].repeats for name in ("ort_dynq 8", "ort_dynq 4", "float", "read")] == [10, 20, 3, 10]


def test_cold_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    for cache, expected in ((0, 64), (2, 64), (40, 80), (500, 128)):
        monkeypatch.setattr(product_contenders, "_last_cache", lambda cache=cache: cache * 2**20)
        assert [product_contenders.cold_bytes(rows) >> 20 for rows in (1, 16, 17, 512)] == [expected, expected, 8, 8]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_read_compares_every_byte(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """memcmp stops at the first difference; there is none."""
    ranges = []

    class Library:
        def memcmp(self, first: int, second: int, size: int) -> int:
            ranges.append((first, second, size))
            return 0

    class Function:
        def __call__(self, *arguments: int) -> int:
            return library.memcmp(*arguments)

    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: type("C", (), {"memcmp": Function()}))
    read = product_contenders.read_contender(600, 4, threads)
    assert read.repeats == 4
    read.run()
    (data,) = read.arrays
    assert (data == data[0]).all()
    covered = np.zeros(data.size, int)
    for first, second, size in ranges:
        for start in (first, second):
            covered[start - data.ctypes.data :][:size] += 1
    assert len(ranges) == threads
    assert (covered == 1).all()
