"""`python tests/bench convolutions`: its JSON and text, and its checks of results."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from benching import QUICK, run_developers, run_developers_json

from bench import convolution_contenders, convolutions
from ort_dynq import DynqError
from ort_dynq.tools.bench import openvino
from ort_dynq.tools.verification.saturation import cpu_saturates

NAMES = ["ort_dynq s8", "ort_dynq u8", "ort_dynq float", "two terms", "words", "ConvInteger s8", "ConvInteger u8"]
NAMES += ["Conv", "QLinearConv"]
SMALL = convolution_contenders.Convolution("small", (8, 24), (3, 3), (7, 5))


def assert_only_saturation(notes: Sequence[str]) -> None:
    """ONNX Runtime's own integer sums are wrong on some CPUs."""
    assert all(note.endswith("ONNX Runtime's sums saturate on this CPU") for note in notes)
    assert not notes or cpu_saturates()


def test_bench_convolutions_json(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ("3x3-512", "depthwise-3x3-256", "depthwise-5x5-96")
    data = run_developers_json(capsys, "convolutions", "--cases", ",".join(cases), "--threads", "1,2")
    assert [(each["threads"], each["name"]) for each in data["timings"]] == [*itertools.product((1, 2), cases)]
    assert_only_saturation(data["notes"])
    ratios = {
        "ConvInteger / ort_dynq, s8": ("integer_s8_ratio", "integer_s8_us", "ours_s8_us"),
        "ConvInteger / ort_dynq, u8": ("integer_u8_ratio", "integer_u8_us", "ours_u8_us"),
        "Conv / ort_dynq from float32": ("float_ratio", "float_us", "ours_float_us"),
        "Conv / ort_dynq, two terms": ("two_terms_ratio", "float_us", "two_terms_us"),
        "Conv / ort_dynq, words": ("words_ratio", "float_us", "words_us"),
        "QLinearConv / ort_dynq": ("static_ratio", "static_us", "ours_s8_us"),
    }
    if openvino.forms():
        ratios["OpenVINO / ort_dynq from float32"] = ("openvino_ratio", "openvino_us", "ours_float_us")
    for each in data["timings"]:
        for ratio, theirs, ours in ratios.values():
            assert min(each[theirs], each[ours]) > 0
            assert each[ratio] == pytest.approx(each[theirs] / each[ours])
    first = data["timings"][0]
    assert (first["input"], first["weights"], first["stride"]) == ([1, 512, 7, 7], [512, 512, 3, 3], 1)
    means = {(each["name"], each["threads"]): each for each in data["means"]}
    for (name, (ratio, *_)), threads, kind in itertools.product(ratios.items(), (1, 2), ("dense", "depthwise")):
        chosen = [
            each[ratio]
            for each in data["timings"]
            if each["threads"] == threads and each["name"].startswith("depthwise") == (kind == "depthwise")
        ]
        mean = means.pop((f"{name}, {kind}", threads))
        assert mean["timings"] == len(chosen)
        assert mean["ratio"] == pytest.approx(math.prod(chosen) ** (1 / len(chosen)))
    assert not means


def test_bench_convolutions_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_developers(
        capsys, "convolutions", "--cases", "depthwise-3x3-256,3x3-256", "--threads", "1"
    ).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("convolution  "))
    assert re.split(r" {2,}", lines[head].strip()) == [
        *("convolution", "input", "weights", "stride", "threads"),
        *("ort_dynq s8", "stock s8", "ratio", "ort_dynq u8", "stock u8", "ratio"),
        *("ort_dynq float", "Conv", "ratio", "two terms", "ratio", "words", "ratio"),
        *("OpenVINO", "ratio", "QLinearConv", "ratio"),
        *("direct", "Winograd", "ratio"),
    ]
    rows = [line.split() for line in lines[head + 1 : head + 3]]
    assert [row[:5] for row in rows] == [
        ["depthwise-3x3-256", "1x256x14x14", "256x1x3x3", "1", "1"],
        ["3x3-256", "1x256x14x14", "256x256x3x3", "1", "1"],
    ]
    assert all(len(row) == 25 for row in rows)
    means = sum("/ ort_dynq" in line and line.split()[-2] == "1" for line in lines[head + 3 :])
    assert means == (14 if openvino.forms() else 12)


@pytest.mark.parametrize("convolution", convolutions.CONVOLUTIONS.values(), ids=lambda each: each.name)
def test_every_contender_computes_the_same_convolution(convolution: convolution_contenders.Convolution) -> None:
    """A wrong result would be an error or a note."""
    found, notes = convolution_contenders.contenders(convolution_contenders.Case(convolution, 1), QUICK)
    forms = [name for name in ("direct", "Winograd") if name in found]  # of a convolution that has both on this CPU
    assert [name for name in found if name not in (*forms, "OpenVINO")] == NAMES
    assert len(forms) in (0, 2)
    assert not forms or convolution_contenders.has_winograd(convolution)
    assert_only_saturation(notes)


def test_ours_run_with_the_extensions_backend() -> None:
    case = convolution_contenders.Case(SMALL, 1)
    found, _ = convolution_contenders.contenders(case, replace(QUICK, backend="extensions"))
    assert {"ort_dynq s8", "ort_dynq u8", "ort_dynq float", "two terms", "words"} <= found.keys()


@pytest.mark.parametrize("name", NAMES)
def test_wrong_results_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """QuantizedConv must be right; stock ONNX Runtime's integer sums saturate on some CPUs."""
    real = convolution_contenders._forms

    def one_wrong(*arguments: Any) -> Any:
        found = real(*arguments)
        assert [*found] == NAMES
        weights = found[name].constants["weights"].copy()
        weights.reshape(-1)[:200] = 0
        found[name] = replace(found[name], constants={**found[name].constants, "weights": weights})
        return found

    monkeypatch.setattr(convolution_contenders, "_forms", one_wrong)
    case = convolution_contenders.Case(SMALL, 1)
    if name.startswith(("ort_dynq", "two terms", "words")):
        with pytest.raises(DynqError, match=rf"{name}, small: results are wrong by 0\.\d+ times the range"):
            convolution_contenders.contenders(case, QUICK)
    else:
        _, notes = convolution_contenders.contenders(case, QUICK)
        assert [note for note in notes if note.startswith(f"{name}, small: results are wrong by 0.")]
