"""`ort-dynq bench-generate`: text, JSON, the page, and what is run. No test checks how long something takes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import genai_folders
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from benching import QUICK, check_latency, run_bench, run_bench_json, skip_opening
from genai_folders import CONTEXT, FOLDERS, LLAMA, VOCABULARY, edit_config
from rich.console import Console

import ort_dynq
from ort_dynq import DynqError, cli
from ort_dynq.cli import bench_generate
from ort_dynq.genai import decoder_feeds, open_folder, rewrite_folder, shared_outputs
from ort_dynq.tools.bench import generation, opening


@pytest.fixture(autouse=True)
def _no_opening(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_ROUNDS", 1)
    if request.node.name != "test_json":
        skip_opening(monkeypatch)


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_bench_json(capsys, "generate", str(LLAMA), "--threads", "1,2")
    assert (data["folder"], data["rewritten"], data["seed"], data["report"]) == (str(LLAMA), "", 0, None)
    assert [(*each["case"].values(),) for each in data["timings"]] == [
        (tokens, context, threads) for threads in (1, 2) for tokens, context in ((16, 0), (128, 0), (1, 128))
    ]
    for each in data["timings"]:
        for who in ("stock", "ours"):
            check_latency(each[who])
            rate = each["case"]["tokens"] / each[who]["median_ms"] * 1e3
            assert each[f"{who}_rate"] == pytest.approx(rate)
        assert each["ratio"] == pytest.approx(each["stock"]["median_ms"] / each["ours"]["median_ms"])
    assert len(data["rewrite_report"]["rewritten"]) == 11
    assert data["stock"]["bytes"] == sum(path.stat().st_size for path in LLAMA.glob("model.onnx*"))
    for who in ("stock", "ours"):
        assert data[who]["opening"]["ms"] > 0


def test_a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables fit, no word is split, and the progress says what is done in words."""
    steps: list[Any] = []

    def track(each: Any) -> Any:
        steps.extend(each)
        return iter(each)

    found = generation.bench_generation(LLAMA, QUICK, prompts=(128,), track=track)
    assert steps
    assert not any(re.search("[(<{]|Path|None", str(each)) for each in steps)
    console = Console(width=80, soft_wrap=True)
    with console.capture() as capture:
        console.print(bench_generate._times(found))
    lines = capture.get().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert {"prompt", "128,", "thread", "decode", "tokens/s", "ort_dynq"} <= {*" ".join(lines).split()}


def test_text_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    arguments = ("generate", str(LLAMA), "--tokens", "5,256", "--context", "7,255", "--report", str(page))
    lines = run_bench(capsys, *arguments).splitlines()
    assert lines[4].startswith(f"{LLAMA}: 11 dynamic quantization chains and products rewritten")
    cases = ["prompt of 5", "prompt of 256", "decode after 7", "decode after 255"]
    rows = [re.split(r" {2,}", line.rstrip()) for line in lines]
    assert [row[0] for row in rows if "thread" in row[0]] == [f"{case}, 1 thread" for case in cases]
    timed = [row for row in rows if "thread" in row[0]]
    assert all(len(row) == 7 for row in timed)
    assert [row[6].partition(" of ")[2] for row in timed] == ["5", "256", "32", "1"]
    files = [row for row in rows if row[0] in ("decoder", "stock", "ort_dynq")]
    assert [(row[0], len(row)) for row in files] == [("decoder", 5), ("stock", 5), ("ort_dynq", 5)]
    assert [row[0] for row in rows].index("decoder") < [row[0] for row in rows].index("case")  # the first table
    assert lines[-1] == f"{page} is written"
    text = page.read_text()
    for case in cases:
        assert f">{case}, 1 thread</td>" in text
    assert text.count('class="bar before"') == text.count('class="bar after"') == len(cases)
    widths = [float(width) for width in re.findall(r"width:([0-9.]+)%", text)]
    assert len(widths) == 2 * len(cases)
    assert min(widths) > 0
    assert max(widths[:4]) == max(widths[4:]) == 100
    assert "<script" not in text
    assert text.count(" of 32</td>") == 3  # greedy tokens as with float activations, of both, and those of a timing


def test_a_folder_of_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The advice of other commands, to give one of its models, would be wrong here; the reason reaches the text."""
    (tmp_path / "model.onnx").touch()
    assert cli.main(["bench-generate", str(tmp_path)]) == 2
    error = f"ort-dynq: error: {tmp_path} has no genai_config.json, so it is not a folder of onnxruntime-genai\n"
    assert capsys.readouterr().err == error


def test_same_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of ONNX Runtime on the tokens that are given."""
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40)
    np.save(tmp_path / "text.npy", tokens)
    rewrite_folder(LLAMA).save(tmp_path / "fast")
    arguments = ("generate", str(LLAMA), "--rewritten", str(tmp_path / "fast"), "--tokens", "20", "--context", "40")
    prompt, decoding = run_bench_json(capsys, *arguments, "--text", str(tmp_path / "text.npy"))["timings"]
    greedy, logits = [], []
    for folder in (LLAMA, tmp_path / "fast"):
        options = ort_dynq.register(ort.SessionOptions())
        greedy.append(genai_folders.decode(str(folder / "model.onnx"), options, tokens, 32)[0])
        logits.append(genai_folders.decode(str(folder / "model.onnx"), options, tokens[:20], 1)[1].argmax(-1))
    assert (prompt["same_tokens"], prompt["of_tokens"]) == (int((logits[0] == logits[1]).sum()), 20)
    alike = next((i for i, pair in enumerate(zip(*greedy, strict=True)) if pair[0] != pair[1]), 32)
    assert (decoding["same_tokens"], decoding["of_tokens"]) == (alike, 32)


def test_greedy_tokens_of_float_activations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of ONNX Runtime at accuracy level 0, before and after a rewrite."""
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 2048)
    np.save(tmp_path / "text.npy", tokens)
    rewrite_folder(LLAMA).save(tmp_path / "fast")
    arguments = ("generate", str(LLAMA), "--rewritten", str(tmp_path / "fast"), "--tokens", "1", "--context", "1")
    greedy = run_bench_json(capsys, *arguments, "--text", str(tmp_path / "text.npy"))["greedy"]
    starts = np.linspace(0, 2048 - 64, 16).astype(int)
    models = (genai_folders.float_decoder(LLAMA), *(str(each / "model.onnx") for each in (LLAMA, tmp_path / "fast")))
    found = []
    for model in models:
        options = [ort_dynq.register(ort.SessionOptions()) for _ in starts]
        pairs = zip(starts, options, strict=True)
        found.append([genai_folders.decode(model, each, tokens[start : start + 64], 32)[0] for start, each in pairs])
    alike = [np.cumprod(np.array(each) == np.array(found[0]), axis=1).sum(1).mean() for each in found[1:]]
    assert greedy == {"stock": alike[0], "ours": alike[1], "prompts": 16, "prompt": 64, "generated": 32}
    assert alike[0] < 32


@pytest.mark.parametrize(("name", "options"), [("qdq", ()), ("gpt_oss", ()), ("llama", ("--weights-only", "two-term"))])
def test_greedy_tokens_of_two_terms(
    name: str, options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They stay, also where ONNX Runtime alone makes level 4; experts of 8 bits have no float activations there."""
    folder = genai_folders.filled(name, tmp_path / name) if name == "qdq" else FOLDERS / name
    page = tmp_path / "page.html"
    arguments = ("generate", str(folder), "--tokens", "1", "--context", "1", "--report", str(page), *options)
    data = run_bench_json(capsys, *arguments)
    greedy = data["greedy"]
    if name == "gpt_oss":
        assert (greedy, data["greedy_problem"]) == (None, "ONNX Runtime has no float activations for this decoder")
        assert f"Greedy tokens are not measured: {data['greedy_problem']}." in page.read_text()
    else:
        assert data["greedy_problem"] == ""
        assert (greedy["stock"] < 32, greedy["ours"]) == (True, 32)


def test_tokens_that_cannot_be_generated(tmp_path: Path) -> None:
    """The context and 32 tokens are more than the rotary embeddings have; that is no error of the bench."""
    folder = genai_folders.copy_of("llama", tmp_path / "llama")
    edit_config(folder, lambda config: config["model"].pop("context_length"))
    opened, tokens = open_folder(folder), np.zeros(251, np.int64)
    assert generation._same_tokens(opened, opened, tokens, [(3, 0), (1, 250)], "native", iter) == {(3, 0): (3, 3)}
    reason = "the text has 1 tokens, too few to predict; give a longer one"
    assert generation._greedy_tokens(opened, opened, tokens[:1], "native", iter) == (None, reason)


def test_a_rewritten_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the second contender: here a copy of the original: its size is known."""
    genai_folders.copy_of("phi", tmp_path / "fast")
    data = run_bench_json(
        capsys, "generate", str(FOLDERS / "phi"), "--rewritten", str(tmp_path / "fast"), "--tokens", "3"
    )
    assert (data["rewritten"], data["rewrite_report"]) == (str(tmp_path / "fast"), None)
    assert data["stock"]["bytes"] == data["ours"]["bytes"]


def test_weights_only(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("generate", str(FOLDERS / "phi"), "--tokens", "3")
    for options, count in (((), 0), (("--weights-only", "blocks"), 6)):
        report = run_bench_json(capsys, *arguments, *options)["rewrite_report"]
        assert len(report["rewritten"]) == count


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (None, [(16, 0), (128, 0), (512, 0), (2048, 0), (1, 128)]),
        (4096, [(16, 0), (128, 0), (512, 0), (2048, 0), (1, 128)]),
        (512, [(16, 0), (128, 0), (512, 0), (1, 128)]),
        (100, [(16, 0), (1, 99)]),
        (12, [(12, 0), (1, 11)]),
        (1, [(1, 0)]),
    ],
)
def test_default_lengths(context: int | None, expected: list[tuple[int, int]], tmp_path: Path) -> None:
    folder = genai_folders.copy_of("llama", tmp_path / "llama")
    edit_config(folder, lambda config: config["model"].update(context_length=context))
    assert generation._lengths(open_folder(folder), None, None) == expected


def session_of(folder: Path) -> ort.InferenceSession:
    return ort.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("in_place", [False, True])
def test_feeds_of_a_decoder(in_place: bool) -> None:
    """The model runs on them, and a token after a context depends on every token of it."""
    session, folder = session_of(LLAMA), open_folder(LLAMA)
    feeds = decoder_feeds(folder, session.get_inputs(), tokens=3, past=5, in_place=in_place, seed=1)
    assert feeds["input_ids"].shape == (1, 3)
    assert 0 <= feeds["input_ids"].min() <= feeds["input_ids"].max() < VOCABULARY
    assert feeds["attention_mask"].tolist() == [[1] * 8]
    length = 8 if in_place else 5
    assert {array.shape for name, array in feeds.items() if name.startswith("past")} == {(1, 2, length, 16)}
    logits = session.run(["logits"], feeds)[0]
    for token in range(length):
        other = dict(feeds)
        key = other["past_key_values.1.value"].copy()
        key[:, :, token] += 1
        other["past_key_values.1.value"] = key
        assert np.array_equal(session.run(["logits"], other)[0], logits) == (token >= 5)


def test_shared_outputs(tmp_path: Path) -> None:
    session = session_of(LLAMA)
    ends = session.get_inputs(), session.get_outputs()
    assert shared_outputs(open_folder(LLAMA), *ends) == {
        f"present.{layer}.{kind}": f"past_key_values.{layer}.{kind}" for layer in (0, 1) for kind in ("key", "value")
    }
    folder = genai_folders.copy_of("llama", tmp_path / "llama")
    edit_config(folder, lambda config: config["search"].update(past_present_share_buffer=False))
    assert shared_outputs(open_folder(folder), *ends) == {}
    generation.bench_generation(folder, QUICK, prompts=[3], contexts=[4])


def test_keys_and_values_are_appended_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that copies its cache for every token would be slower than in onnxruntime-genai."""
    opened: list[tuple[Any, Any]] = []

    def contender(name: str, model: Any, feeds: Any, *arguments: Any, **options: Any) -> Any:
        before = {key: array.copy() for key, array in feeds.items()}
        found = make(name, model, feeds, *arguments, **options)
        opened.append((before, {key: array.copy() for key, array in feeds.items()}))
        return found

    make = generation.session_contender
    monkeypatch.setattr(generation, "session_contender", contender)
    generation.bench_generation(LLAMA, QUICK, prompts=[4], contexts=[6])
    for before, after in opened[2:]:
        for name, array in before.items():
            assert np.array_equal(array[:, :, :6], after[name][:, :, :6]) if array.ndim == 4 else True
    before, after = opened[2]
    assert not np.array_equal(before["past_key_values.0.key"][:, :, 6], after["past_key_values.0.key"][:, :, 6])


def test_other_inputs(tmp_path: Path) -> None:
    """Position ids are counted; other inputs have no known values, unless they are given."""

    def declared(name: str, kind: str = "tensor(int64)") -> Any:
        return type("Input", (), {"name": name, "type": kind, "shape": ["batch", "sequence"]})()

    folder = open_folder(LLAMA)
    feeds = decoder_feeds(folder, [declared("position_ids", "tensor(int32)")], tokens=3, past=4)
    assert (feeds["position_ids"].tolist(), feeds["position_ids"].dtype) == ([[4, 5, 6]], np.int32)
    feeds = decoder_feeds(folder, [declared("inputs_embeds", "tensor(float16)")], tokens=3, past=4)
    assert (feeds["inputs_embeds"].shape, feeds["inputs_embeds"].dtype) == ((1, 3, 64), np.float16)
    with pytest.raises(DynqError, match="the decoder's input cache_position are not known"):
        decoder_feeds(folder, [declared("cache_position")], tokens=3, past=4)
    given = {"cache_position": np.arange(3)}
    assert decoder_feeds(folder, [declared("cache_position")], tokens=3, past=4, given=given) == given
    with pytest.raises(DynqError, match=r"input_ids is of type tensor\(string\), which cannot be generated"):
        decoder_feeds(folder, [declared("input_ids", "tensor(string)")], tokens=3, past=4)
    edited = genai_folders.copy_of("llama", tmp_path / "llama")
    for size in (None, 0, "many"):
        edit_config(edited, lambda config, size=size: config["model"].update(vocab_size=size))
        with pytest.raises(DynqError, match=r"genai_config\.json has no model\.vocab_size"):
            decoder_feeds(open_folder(edited), [declared("input_ids")], tokens=3, past=4)
    edit_config(edited, lambda config: config["model"]["decoder"].update(hidden_size=2**62))
    with pytest.raises(DynqError, match="the decoder's input inputs_embeds cannot be generated: "):
        decoder_feeds(open_folder(edited), [declared("inputs_embeds", "tensor(float)")], tokens=3, past=4)


def test_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, broken = tmp_path / "fast", genai_folders.copy_of("llama", tmp_path / "broken")
    rewrite_folder(FOLDERS / "phi").save(fast)
    pipeline = genai_folders.copy_of("llama", tmp_path / "pipeline")
    edit_config(
        pipeline,
        lambda config: config["model"]["decoder"].update(
            pipeline=[{"one": {"filename": config["model"]["decoder"].pop("filename")}}]
        ),
    )
    model = onnx.load(broken / "model.onnx", load_external_data=False)
    model.graph.node[0].op_type = "Unknown"
    onnx.save(model, broken / "model.onnx")
    llama = str(LLAMA)
    for arguments, text in (
        ((str(tmp_path),), "has no genai_config.json"),
        ((str(LLAMA / "model.onnx"),), "model.onnx is not a folder"),
        ((str(tmp_path / "none"),), "there is no folder"),
        ((str(pipeline),), "is a pipeline of several models, which cannot be timed"),
        ((str(broken), "--rewritten", llama), "does not load in stock ONNX Runtime"),
        ((llama, "--rewritten", str(broken), "--tokens", "3"), "does not run in ONNX Runtime with the plugin"),
        ((llama, "--rewritten", str(fast), "--tokens", "3"), "does not run in ONNX Runtime with the plugin"),
        ((llama, "--rewritten", str(fast), "--exact"), "say how to rewrite; leave them out with --rewritten"),
        ((llama, "--tokens", "257"), f"257 tokens are more than the context length of {llama}, {CONTEXT}"),
        ((llama, "--context", "256"), f"257 tokens are more than the context length of {llama}, {CONTEXT}"),
        ((llama, "--report", str(tmp_path / "no" / "page.html")), "there is no folder"),
        ((llama, "--data", "x"), "unrecognized arguments: --data x"),
    ):
        assert cli.main(["bench", "generate", *arguments, "--seconds", "0.001"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert text in captured.err, arguments
