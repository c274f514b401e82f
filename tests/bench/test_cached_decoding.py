"""`python tests/bench cache`, on a decoder of one layer."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers import stock_session
from rewriting import MODELS, load

from bench import cached_decoding, cli

NAME = "torch_int8_cache"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which both decoders have a cache of codes."""
    for name in (cached_decoding.FLOAT, cached_decoding.CODES):
        shutil.copy(MODELS / NAME / "model.onnx", tmp_path / name)
    np.save(tmp_path / cached_decoding.HELD_OUT, np.random.default_rng(0).integers(0, 128, 50).astype(np.uint8))
    for name, value in {"PROMPTS": 3, "PROMPT": 8, "GENERATED": 5}.items():
        monkeypatch.setattr(cached_decoding, name, value)
    return tmp_path


def test_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["cache", str(folder), "--contexts", "5,40", "--seconds", "0.05"]
    assert cli.main([*arguments, "--json"]) == 0
    forms = json.loads(capsys.readouterr().out)["forms"]
    assert [each["cache_bytes"] for each in forms] == [2 * 2 * (16 + 4)] * 5
    assert (forms[0]["snr_db"], forms[2]["snr_db"], forms[2]["generated"]) == (None, "inf", 5)
    assert 60 < forms[4]["snr_db"] < math.inf
    assert all(rate > 0 for each in forms for rate in each["tokens_per_second"].values())
    assert cli.main(arguments) == 0
    assert "codes, rewrite --fuse" in capsys.readouterr().out


def test_answers(folder: Path) -> None:
    """Tokens are those of runs without a cache."""
    session = stock_session(load(NAME))
    prompt = np.load(folder / cached_decoding.HELD_OUT)[None, :8].astype(np.int64)
    logits, continued = cached_decoding._answers(session, [prompt])
    tokens = prompt
    for i, each in enumerate(continued[0]):
        expected = session.run(["logits"], {"tokens": tokens, **cached_decoding._cache(session, 0)})[0]
        if i == 0:
            assert np.array_equal(logits, expected)
        assert each == expected[0, -1].argmax()
        tokens = np.append(tokens, [[each]], 1)


def test_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", str(tmp_path)]) == 2
    assert "has no float.onnx; remove it, and the command makes it again" in capsys.readouterr().err
