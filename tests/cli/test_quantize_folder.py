"""`ort-dynq quantize` of folders of onnxruntime-genai: 8 and 4 bits, comparisons on text, and its errors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import genai_folders
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from commands import run_json
from genai_folders import FOLDERS, LLAMA, edit_config, filled
from onnx import TensorProto, helper

import ort_dynq
from ort_dynq import cli, library
from ort_dynq.genai import open_folder, quantize_folder
from ort_dynq.tools import genai
from ort_dynq.tools.genai.decoding import Decoder, alike, compare_on_text
from ort_dynq.tools.genai.text import read_tokens

LIBRARY = Path(library.get_library_path()).name
TEXT = "Pack my box with five dozen liquor jugs. " * 4


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a float32 model of tied embeddings, and a text."""
    monkeypatch.chdir(tmp_path)
    filled("float32", Path("float"))
    Path("text.txt").write_text(TEXT)
    return tmp_path


def size(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).glob("model.onnx*"))


def logits(model: Path, options: ort.SessionOptions, tokens: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {"input_ids": tokens[None], "attention_mask": np.ones((1, len(tokens)), np.int64)}
    empty = {
        each.name: np.zeros((1, 2, 0, 32), np.float32) for each in session.get_inputs() if each.name.startswith("past")
    }
    return np.asarray(session.run(["logits"], {**feeds, **empty})[0][0], np.float64)


def test_quantize_writes_a_folder(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "quantize", "float", "-o", "int8", "--verify", "--text", "text.txt")
    assert (data["input"], data["output"]) == ("float", "int8")
    assert [*data["models"]] == ["model.onnx"]
    names = [each["op_type"] for each in data["models"]["model.onnx"]["quantized"]]
    assert sorted(names) == ["Gather", *["MatMul"] * 5]
    assert {path.name for path in Path("int8").iterdir()} == {
        *(path.name for path in Path("float").iterdir() if path.name != "model.onnx.data"),
        LIBRARY,
        *(path.name for path in Path("int8").glob("model.onnx.*")),
    }
    assert (
        genai_folders.read_config(Path("int8"))["model"]["decoder"]["session_options"]["custom_ops_library"] == LIBRARY
    )
    closing = data["closing"]
    assert (closing["bytes_before"], closing["bytes_after"]) == (size("float"), size("int8"))
    assert closing["bytes_after"] < 0.55 * closing["bytes_before"]
    assert closing["snr_db"] == data["accuracy"]["snr_db"] > 20
    assert not any(each["given"] for each in data["accuracy"]["inputs"])
    assert closing["same_tokens"] == [data["text"]["same_tokens"], data["text"]["generated"]]
    assert sorted(path.name for path in work.iterdir()) == ["float", "int8", "text.txt"]


@pytest.mark.usefixtures("work")
def test_advice_to_give_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["quantize", "float", "-o", "int8", "--no-timing", "--verify"]) == 0
    assert "SMOKE TEST. Give your own data with --text FILE" in capsys.readouterr().out


def test_the_figures_of_a_text(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are those of whole sequences in sessions of ONNX Runtime: the text fits in one window."""
    arguments = ("quantize", "float", "-o", "int8", "--no-timing", "--text", "text.txt")
    found = run_json(capsys, *arguments)["text"]
    letters = json.loads((LLAMA / "tokenizer.json").read_text())["model"]["vocab"]
    tokens = np.array([letters[letter.replace(" ", "Ġ")] for letter in TEXT])
    assert read_tokens(open_folder("float"), "text.txt").tolist() == tokens.tolist()
    assert found["tokens"] == len(tokens) - 1
    both = [
        logits(Path("float/model.onnx"), ort.SessionOptions(), tokens)[:-1],
        logits(Path("int8/model.onnx"), ort_dynq.register(ort.SessionOptions()), tokens)[:-1],
    ]
    for name, each in zip(("perplexity_before", "perplexity_after"), both, strict=True):
        surprise = np.logaddexp.reduce(each, -1) - each[np.arange(len(each)), tokens[1:]]
        assert found[name] == pytest.approx(math.exp(surprise.mean()), rel=1e-4)
    assert found["agreement"] == pytest.approx((both[0].argmax(-1) == both[1].argmax(-1)).mean(), abs=0.02)
    noise = ((both[1] - both[0]) ** 2).sum()
    assert found["snr_db"] == pytest.approx(10 * math.log10((both[0] ** 2).sum() / noise), abs=0.1)


@pytest.mark.parametrize("name", ["llama", "qwen_moe"])
def test_generated_tokens(name: str) -> None:
    """Those of several prompts are those of each alone. The positions of qwen_moe are [3, batch, sequence]."""
    model, options = FOLDERS / name / "model.onnx", ort.SessionOptions()
    starts = np.random.default_rng(0).integers(0, 256, (3, 6))
    found = Decoder(open_folder(FOLDERS / name), model, "A").generate(starts, 5)
    for prompt, continuation in zip(starts, found, strict=True):
        expected, _ = genai_folders.decode(str(model), options, prompt, 5)
        assert continuation.tolist() == expected
    assert alike(found, np.where(np.arange(5) == 3, -1, found)).tolist() == [3, 3, 3]


def test_a_model_against_itself(tmp_path: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 256, 300)
    found = compare_on_text(open_folder(LLAMA), LLAMA / "model.onnx", LLAMA / "model.onnx", tokens)
    assert (found.tokens, found.agreement, found.same_tokens, found.snr_db) == (299, 1, found.generated, math.inf)
    assert found.perplexity_before == found.perplexity_after


@pytest.mark.parametrize(
    ("name", "options", "smallest_db"),
    [
        ("float32", ("--weights", "int4", "--group", "32"), 8),
        ("float16", (), 30),
        ("float16", ("--weights", "int4"), 15),
    ],
)
def test_types_and_bits(
    name: str, options: tuple[str, ...], smallest_db: int, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys and values of a float16 model stay float16."""
    source = filled(name, Path("source"))
    data = run_json(capsys, "quantize", str(source), "-o", "out", "--no-timing", "--verify", *options)
    assert data["accuracy"]["snr_db"] > smallest_db
    assert size("out") < size("source")
    before, after = (
        ort.InferenceSession(Path(path, "model.onnx"), ort_dynq.register(ort.SessionOptions()))
        for path in (source, "out")
    )
    for a, b in ((before.get_inputs(), after.get_inputs()), (before.get_outputs(), after.get_outputs())):
        assert [(each.name, each.type) for each in a] == [(each.name, each.type) for each in b]


def test_text(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["quantize", "float", "-o", "int8", "--no-timing", "--verify", "--text", "text.txt"]) == 0
    text = capsys.readouterr().out
    assert "SMOKE TEST" not in text  # only those who gave no text are advised to give one
    assert "outputs dB" in text
    lines = text.splitlines()
    assert lines[0] == f"{Path('float', 'model.onnx')}: 6 layers quantized, 2 unconverted, 4 fusions"
    head = "perplexity before after same next token % greedy logits dB"
    assert any(" ".join(line.split()) == head for line in lines)
    assert " of 32 tokens the same" in lines[-1]
    assert lines[-1].startswith("float 1.2 MB -> int8 ")


def save_without_weights(path: str) -> None:
    ends = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])] for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_a_second_model_without_weights(work: Path) -> None:
    """It is copied."""
    save_without_weights("float/vision.onnx")
    edit_config(Path("float"), lambda config: config["model"].update(vision={"filename": "vision.onnx"}))
    found = quantize_folder("float")
    assert [*found.results] == ["model.onnx"]
    found.save("int8")
    assert Path("int8/vision.onnx").read_bytes() == Path("float/vision.onnx").read_bytes()


def test_a_decoder_without_weights(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is copied, and not compared."""
    save_without_weights("float/decoder.onnx")

    def edit(config: Any) -> None:
        config["model"]["decoder"]["filename"] = "decoder.onnx"
        config["model"]["vision"] = {"filename": "model.onnx"}

    edit_config(Path("float"), edit)
    assert cli.main(["quantize", "float", "-o", "int8", "--no-timing", "--text", "text.txt"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"{Path('float/decoder.onnx')} has no weights to quantize, so text.txt is not used" in text
    assert "of 32 tokens" not in text
    assert Path("int8/decoder.onnx").read_bytes() == Path("float/decoder.onnx").read_bytes()


def test_no_layer(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["quantize", "float", "-o", "out", "--exclude", "*"]
    assert cli.main(arguments) == 1
    assert "FAILED: no layer is quantized, so out is not written; --allow-none writes it" in capsys.readouterr().out
    assert not Path("out").exists()
    assert cli.main([*arguments, "--allow-none"]) == 0
    assert Path("out", "model.onnx").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("float", "--min-snr", "30"), "--min-snr is for single models; of a folder, give --text"),
        (("float", "--only-if-faster"), "--only-if-faster is for single models"),
        (("float", "--data", "text.txt"), "--data is for single models"),
        (("float/model.onnx", "--text", "text.txt"), "--text is for folders of onnxruntime-genai"),
        (("float", "--text", "none.txt"), "there is no file none.txt"),
        (("float", "--text", "float"), "float is not a file with text"),
        (("float", "--text", "binary"), "binary is not a text in UTF-8"),
        (("float", "--text", "empty"), "the text has 0 tokens, too few to predict; give a longer one"),
        (("float", "--text", "large.npy"), "large.npy has tokens that the model does not have"),
        (("float", "--text", "floats.npy"), "floats.npy has float64 [3], expected integers [tokens]"),
        (("float", "--text", "text.npy"), "text.npy cannot be read"),
        (("broken", "--text", "text.txt"), "the tokenizer of broken cannot be used"),
        (("pipeline", "--text", "text.txt"), "the decoder of pipeline is a pipeline of several models"),
        (("linked",), "tokenizer.json is a link out of the folder"),
        ((".",), ". has no genai_config.json"),
    ],
)
def test_errors(
    arguments: tuple[str, ...],
    message: str,
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They come before the quantization."""
    monkeypatch.setattr(genai, "_quantized", None)
    Path("binary").write_bytes(b"\xff\xfe\x00")
    Path("empty").touch()
    np.save("large.npy", np.array([1, 1024]))
    np.save("floats.npy", np.zeros(3))
    Path("text.npy").write_text(TEXT)
    for name in ("broken", "linked", "pipeline"):
        filled("float32", Path(name))
    Path("broken/tokenizer.json").write_text("{}")
    decoder = {"pipeline": [{"one": {"filename": "model.onnx"}}]}
    edit_config(Path("pipeline"), lambda config: config["model"].update(decoder=decoder))
    Path("linked/tokenizer.json").unlink()
    Path("linked/tokenizer.json").symlink_to(work / "text.txt")
    before = sorted(Path().rglob("*"))
    assert cli.main(["quantize", *arguments, "-o", "out"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
