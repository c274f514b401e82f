"""`python tests/bench perplexity` and `train`: windows, perplexity, agreement, generated tokens; on a tiny model."""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from bench import cli, perplexity, texts, training
from bench.perplexity import FLOAT, Form, bench_perplexity
from ort_dynq.genai import decoder_feeds, open_folder
from ort_dynq.inputs import Array
from ort_dynq.rewriter import rewrite
from ort_dynq.tools.genai.decoding import Decoder, alike, prompts, surprise, windows

GENAI = Path(__file__).parents[1] / "genai"
VOCABULARY, TOKENS, PROMPT = 256, 70, 6


@pytest.fixture
def lm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the tiny llama in place of the float model, and forms of it."""
    shutil.copytree(GENAI / "llama", tmp_path / "float32")
    np.save(tmp_path / "held_out.npy", np.random.default_rng(0).integers(0, VOCABULARY, TOKENS))
    for name, value in {"WINDOW": 32, "STEP": 16, "PROMPTS": 3, "PROMPT": PROMPT, "GENERATED": 5}.items():
        monkeypatch.setattr(perplexity, name, value)
    llama, phi = (GENAI / name / "model.onnx" for name in ("llama", "phi"))
    forms = [
        Form(FLOAT, None, lambda: llama),
        Form("the same", 32, lambda: llama, FLOAT),
        Form("rewritten", 32, lambda: rewrite(llama), "the same"),
        Form("unchanged", 32, lambda: rewrite(phi), "the same"),
    ]
    monkeypatch.setattr(perplexity, "forms_of", lambda root: forms)
    return tmp_path


def all_logits(tokens: Array) -> Array:
    """The logits of the tiny llama for one sequence without cached keys, [tokens, vocabulary]."""
    session = ort.InferenceSession(GENAI / "llama" / "model.onnx")
    given = {"input_ids": tokens[None], "attention_mask": np.ones((1, len(tokens)), np.int64)}
    folder = open_folder(GENAI / "llama")
    feeds = decoder_feeds(folder, session.get_inputs(), tokens=len(tokens), past=0, given=given)
    return np.asarray(session.run(["logits"], feeds)[0][0])


@pytest.mark.parametrize("count", [512, 513, 767, 768, 769, 5000])
def test_windows_predict_every_token_once(count: int) -> None:
    found = list(windows(count))
    assert [i for each in found for i in range(each.first, each.end)] == list(range(1, count))
    assert all(each.end - each.start <= 512 for each in found)
    assert all(each.first - each.start >= 256 for each in found[1:])


def test_surprise() -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((20, 50)).astype(np.float32) * 30 + 1000
    targets = rng.integers(0, 50, 20)
    exact = logits.astype(np.float64)
    expected = sum(np.logaddexp.reduce(row) - row[target] for row, target in zip(exact, targets, strict=True))
    assert surprise(logits, targets) == pytest.approx(expected, rel=1e-12)


def test_alike() -> None:
    a = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]])
    assert alike(a, np.array([[1, 2, 3], [1, 0, 3], [0, 2, 3]])).tolist() == [3, 1, 0]


def test_forms_are_compared(lm: Path) -> None:
    found = bench_perplexity(lm)
    floats, same, rewritten, unchanged = found.forms
    assert found.tokens == TOKENS - 1
    assert (same.perplexity, same.to_float) == (floats.perplexity, perplexity.Distance(1.0, math.inf, 5.0))
    assert (rewritten.products, rewritten.of_products) == (11, 11)
    for distance in (rewritten.to_float, rewritten.to_same_weights):
        assert distance is not None
        assert 15 < distance.snr_db < 60
        assert 0.5 < distance.agreement <= 1
    assert rewritten.perplexity == pytest.approx(floats.perplexity, rel=0.5)
    assert (unchanged.perplexity, unchanged.products) == (None, 0)
    assert unchanged.problem.startswith("nothing was converted: nothing to rewrite, ")


def test_perplexity(lm: Path) -> None:
    tokens = np.load(lm / "held_out.npy")
    total = 0.0
    for start, first, end in ((0, 1, 32), (16, 32, 48), (32, 48, 64), (48, 64, 70)):
        logits = all_logits(tokens[start:end]).astype(np.float64)
        for i in range(first, end):
            row = logits[i - start - 1]
            total += np.logaddexp.reduce(row) - row[tokens[i]]
    assert bench_perplexity(lm).forms[0].perplexity == pytest.approx(math.exp(total / (TOKENS - 1)), rel=1e-6)


def test_generated_tokens(lm: Path) -> None:
    """They are those of runs without cached keys and values."""
    tokens = np.load(lm / "held_out.npy")
    starts = prompts(tokens, 3, PROMPT)
    found = Decoder(open_folder(GENAI / "llama"), GENAI / "llama" / "model.onnx", "A").generate(starts, 5)
    assert found.shape == (3, 5)
    for prompt, continuation in zip(starts, found, strict=True):
        for _ in range(5):
            prompt = np.append(prompt, all_logits(prompt)[-1].argmax())
        assert prompt[PROMPT:].tolist() == continuation.tolist()


def test_command(lm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["perplexity", str(lm), "--tokens", "40", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["tokens"], data["forms"][1]["to_float"]["snr_db"]) == (39, "inf")
    assert cli.main(["perplexity", str(lm), "--tokens", "40"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "unchanged: nothing was converted" in captured.out
    assert any(line.startswith("rewritten ") and " 11 of 11 " in line for line in captured.out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["perplexity", "."], ". has no held_out.npy; make the folder by `python tests/bench train .`"),
        (["perplexity", "LM", "--tokens", "20"], "the text has 20 tokens, expected at least 32"),
        (["train", "LM", "--steps", "0"], "argument --steps: 0 is not a positive integer"),
        (["train", "LM"], "; remove it, or give another folder"),
    ],
)
def test_errors(
    lm: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(training, "_NEEDED", ())
    assert cli.main([str(lm) if each == "LM" else each for each in arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_missing_packages(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_NEEDED", ("json", "no_such_package"))
    assert cli.main(["train", str(tmp_path / "lm")]) == 2
    assert "no_such_package not found; pip install " in capsys.readouterr().err


def test_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a few modules that are in no package: reading all takes a quarter of a minute."""
    left_out = [path.name for path in texts._library().iterdir() if path.is_dir() or path.name > "h"]
    monkeypatch.setattr(texts, "_UNUSED", (*texts._UNUSED, *left_out))
    found = texts.library_texts()
    training_texts, held_out = (
        {part for each in side for part in each.split("\n\n")} for side in (found.training, found.held_out)
    )
    long = {part for part in held_out if len(part) > 200}
    assert len(long) > 15
    assert len(long & training_texts) < len(long) / 4


needs_torch = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in training._NEEDED), reason="needs torch and onnxruntime-genai"
)


@pytest.mark.exhaustive
@needs_torch
def test_interrupted_training_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It repeats no step that is saved, and its weights are those of a training that was not interrupted."""
    monkeypatch.setattr(training, "_SAVED_STEPS", 1)
    monkeypatch.setattr(training, "_export", lambda *_: None)
    training.train(tmp_path / "whole", steps=3)

    def interrupting(steps: Sequence[int]) -> Iterator[int]:
        yield from steps[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        training.train(tmp_path / "lm", steps=3, track=interrupting)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("lm")] == ["lm.training"]
    left: list[int] = []

    def recording(steps: Sequence[int]) -> Sequence[int]:
        left.extend(steps)
        return steps

    training.train(tmp_path / "lm", steps=3, track=recording)
    assert left == [2]
    weights = [(tmp_path / name / "torch" / "model.safetensors").read_bytes() for name in ("whole", "lm")]
    assert weights[0] == weights[1]
    assert not (tmp_path / "lm.training").exists()


@pytest.mark.exhaustive
@needs_torch
def test_training(tmp_path: Path) -> None:
    """Two steps of training; the text is more probable than with equal probabilities for all tokens."""
    training.train(tmp_path / "lm", steps=2)
    forms = [each for each in perplexity.forms_of(tmp_path / "lm") if each.block in (None, 32)]
    found = bench_perplexity(tmp_path / "lm", forms=forms, most_tokens=600)
    for each in found.forms:
        assert not each.problem
        assert each.perplexity is not None
        assert each.perplexity < 2048
    two_term = found.forms[4].to_same_weights
    assert two_term is not None
    assert two_term.snr_db > 80
