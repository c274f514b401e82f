"""min_snr: the limit holds on other data, and on data that are a little smaller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from accuracy_models import WIDE, F, floats, model_of
from helpers import Array
from test_selection import selected, snr_of

from ort_dynq.accuracy import Gates, Reference
from ort_dynq.quantizer import checked, quantize_layers
from ort_dynq.tools.accuracy.outputs import snr_of_others
from ort_dynq.tools.quantization import selection
from ort_dynq.tools.quantization.selection import select


def test_ratio_of_other_data() -> None:
    """The ratio of two sums, plus twice its standard error, by definition."""
    model = model_of("y = MatMul(x, w)", {"w": floats(WIDE, WIDE)}, width=WIDE)
    sizes = {20: 0.1, 5: 0.2, 9: 0.3}
    reference = Reference(model, [{"x": floats(rows, WIDE, seed=rows)} for rows in sizes])
    noise = [floats(rows, WIDE, seed=rows + 100) * F(size) for rows, size in sizes.items()]
    results = [[(a + b).astype(F)] for (a,), b in zip(reference.outputs, noise, strict=True)]
    signals = np.array([(a.astype(np.float64) ** 2).sum() for (a,) in reference.outputs])
    noises = np.array(
        [((b - a.astype(np.float64)) ** 2).sum() for (a,), (b,) in zip(reference.outputs, results, strict=True)]
    )
    ratio = noises.sum() / signals.sum()
    residuals = noises - ratio * signals
    error = np.sqrt(3 * (residuals**2).sum() / 2) / signals.sum()
    found = snr_of_others(reference, results)
    assert found == {"y": pytest.approx(-10 * np.log10(ratio + 2 * error))}
    assert snr_of_others(reference, reference.outputs) == {}


def test_sets_that_differ_need_more() -> None:
    """With one noisy set of three, the ratio of all is above the limit, but that of others may be below."""
    model, sets = with_noisy_set(3)
    reached = selected(model, 0, sets).snr_db
    assert selected(model, reached - 8, sets).layers == ()
    assert [each.name for each in selected(model, reached - 1, sets).layers] == ["to_h"]


def with_noisy_set(count: int) -> tuple[onnx.ModelProto, list[dict[str, Array]]]:
    """A model, and data of which the second set has a channel that leaves few codes for the others."""
    weights = floats(WIDE, WIDE) / F(WIDE**0.5)
    weights[3] /= 40
    sets = [{"x": floats(20, WIDE, seed=seed)} for seed in range(count)]
    sets[1]["x"][:, 3] *= 40
    return model_of(
        "h = MatMul(x, w) s = Relu(h) y = MatMul(s, v)", {"w": weights, "v": floats(WIDE, WIDE, seed=1)}, width=WIDE
    ), sets


def test_data_that_are_varied_reach_the_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sets = with_noisy_set(2)
    quiet, noisy = sets[:1], sets[1:]
    assert selected(model, 30, quiet).layers == ()
    monkeypatch.setattr(selection, "varied", lambda _: noisy)
    found = selected(model, 30, quiet)
    assert [each.name for each in found.layers] == ["to_h"]
    assert snr_of(model, found.result, noisy[0]["x"]) > 30


def test_varied_data() -> None:
    sets = [
        {"x": np.full((2, 3), each, dtype), "i": np.array([each, 7]), "s": np.array(0.5, F)}
        for dtype, each in ((F, 64), (np.float16, 32))
    ]
    found = list(selection.varied(sets))
    assert [(each["x"].dtype, each["x"][0, 0]) for each in found] == [
        *((F, 63), (np.float16, 31.5)),
        *((F, 62), (np.float16, 31)),
        *((F, 61), (np.float16, 30.5)),
    ]
    assert all(each["i"][1] == 7 and each["s"] == 0.5 for each in found)
    assert len(list(selection.varied(sets * 50))) == 36
    assert list(selection.varied([{"i": np.arange(3)}])) == []


def test_progress_names_what_is_done() -> None:
    """A step of the progress is a short text, not what it works on."""
    model, sets = with_noisy_set(2)
    texts: list[str] = []
    options = checked("int8", None, "token", False, (), chooses_forms=True)

    def track(steps: Sequence[Any]) -> Iterator[Any]:
        texts.extend(map(str, steps))
        return iter(steps)

    select(
        Reference(model, sets),
        lambda forms: quantize_layers(model, replace(options, forms=forms)),
        Gates(38),
        seconds=0.01,
        track=track,
    )
    assert "timing the layers with float" in texts
    assert max(map(len, texts)) < 80
