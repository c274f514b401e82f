"""How contenders are timed: turns, repeats, aligned arrays, bound outputs."""

from __future__ import annotations

import itertools
import re
import sys
import time
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import onnx
import pytest

from ort_dynq.rewriter import rewrite
from ort_dynq.tools.bench.models import recorded_inputs
from ort_dynq.tools.measuring import timing

MODELS = Path(__file__).parents[2] / "models"


@pytest.mark.parametrize("threads", [1, 2])
def test_contenders_take_turns(threads: int) -> None:
    log: list[str] = []
    contenders = [timing.Contender(lambda name=name: log.append(name), []) for name in "abc"]
    samples = timing.interleave(contenders, timing.Settings(seconds=0.002, warmup=3), threads)
    assert "".join(log).startswith("aaabbbccc")
    turns = re.sub(r"(.)\1*", r"\1", "".join(log[9:]))
    assert re.match("abcbabcbabc", turns)  # forward and backward, so that no contender always follows the same one
    counts = [log[9:].count(name) for name in "abc"]
    untimed = [count - each.size for each, count in zip(samples, counts, strict=True)]
    assert all(each.size >= 5 for each in samples)
    if threads == 1:  # a turn begins with one call that is not timed
        assert len({*untimed}) == 1
    assert all(each >= 5 for each in untimed)


def test_times_are_divided_by_the_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock on which every run takes 2000 ns."""
    clock = [0]
    monkeypatch.setattr(timing, "clock_of", lambda _: lambda: clock[0])

    def run() -> None:
        clock[0] += 2000

    contenders = [timing.Contender(run, [], times) for times in (1, 1000)]
    one, many = timing.interleave(contenders, timing.Settings(seconds=0.001, warmup=1), 1)
    assert ({*one}, {*many}) == ({2000}, {2})


def test_runs_without_time_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that stands still in every third run."""
    clock, runs = [0], itertools.count(1)
    monkeypatch.setattr(timing, "clock_of", lambda _: lambda: clock[0])

    def run() -> None:
        clock[0] += 2000 if next(runs) % 3 else 0

    def still() -> None:
        pass

    some, none = timing.interleave(
        [timing.Contender(each, []) for each in (run, still)], timing.Settings(seconds=0.001), 1
    )
    assert timing.latency(some).min_ms == 0.002
    assert none.tolist() == [1]


@pytest.mark.parametrize(("threads", "has_threads"), [(1, False), (2, False), (1, True)])
def test_time_of_the_thread(threads: int, has_threads: bool) -> None:
    """A run that waits has no CPU. With threads of its own, it may work meanwhile."""
    contender = timing.Contender(lambda: time.sleep(0.002), [], has_threads=has_threads)
    (samples,) = timing.interleave([contender], timing.Settings(seconds=0.001, warmup=0), threads)
    is_cpu_time = (threads, has_threads) == (1, False) and sys.platform != "win32"
    assert (np.median(samples) < 1e6) == is_cpu_time


@pytest.mark.skipif(sys.platform == "win32", reason="wall time")
@pytest.mark.parametrize("backend", [None, "native"])
def test_one_thread_is_the_calling_one(backend: Any) -> None:
    """Otherwise its CPU time would say nothing: the process has no more CPU time than the thread."""
    model = MODELS / "encoder_token" / "model.onnx"
    given = model if backend is None else rewrite(model).model
    contender = timing.session_contender("it", given, recorded_inputs(model.parent), 1, backend=backend)

    def time_of_others() -> float:
        threads, process = time.thread_time(), time.process_time()
        for _ in range(20):
            contender.run()
        threads, process = time.thread_time() - threads, time.process_time() - process
        return process - 1.2 * threads

    assert any(time_of_others() < 1e-3 for _ in range(20))  # threads of other tests may end meanwhile


def latency(median_ms: float, min_ms: float) -> timing.Latency:
    return timing.Latency(min_ms, median_ms, median_ms, median_ms, median_ms, 5)


@pytest.mark.usefixtures("busy_limit")
def test_speed() -> None:
    fast, slow = latency(1.4, 1.0), latency(4.2, 3.0)
    assert timing.speed(slow, fast) == (pytest.approx(3), "")
    assert timing.speed(None, fast) == timing.speed(slow, None) == (None, "")
    for pair in ((slow, latency(1.6, 1.0)), (latency(1.6, 1.0), fast)):
        ratio, busy = timing.speed(*pair)
        assert ratio is None
        assert "too busy" in busy
        assert "1.6 ms, the fastest 1 ms" in busy


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float16])
def test_aligned_copies_to_an_offset(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), dtype)
    for offset in (0, 16, 32):
        aligned = timing.aligned(array, offset)
        assert aligned.ctypes.data % 64 == offset or not array.size
        assert (aligned.dtype, aligned.shape) == (array.dtype, array.shape)
        assert np.array_equal(aligned, array)


def test_session_contender_binds_outputs_of_every_type(tmp_path: Path) -> None:
    """Strings and sequences have no array; ONNX Runtime allocates them."""
    body = "b = Greater(x, x) t = Cast<to = 8>(x) h = Cast<to = 10>(x) i = Cast<to = 7>(x) q = SequenceConstruct(x)"
    outputs = "bool[2] b, string[2] t, float16[2] h, int64[2] i, seq(float[2]) q"
    onnx.save(helpers.parse("float[2] x", outputs, body), tmp_path / "model.onnx")
    contender = timing.session_contender("it", str(tmp_path / "model.onnx"), {"x": np.ones(2, np.float32)}, 1)
    contender.run()
    assert [array.dtype for array in contender.arrays] == [np.float32, np.bool_, np.float16, np.int64]


def test_session_contender_runs_a_model_that_declares_another_shape(tmp_path: Path) -> None:
    """ONNX Runtime refuses arrays for such outputs, which exporters declare; it allocates them itself."""
    model = helpers.parse(
        "float[n, m] x, int64[k] shape", "float[n, 5] y, float[n, m] z", "y = Relu(x) z = Reshape(x, shape)"
    )
    onnx.save(model, tmp_path / "model.onnx")
    feeds = {"x": np.ones((2, 3), np.float32), "shape": np.array([3, 1, 2])}
    contender = timing.session_contender("it", str(tmp_path / "model.onnx"), feeds, 1)
    contender.run()
    assert len(contender.arrays) == 2  # the inputs
