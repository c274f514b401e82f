"""Rewritten folders in onnxruntime-genai: tokens, logits, and where the library has to be."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import genai_folders
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from genai_folders import FOLDERS, LLAMA, VOCABULARY, edit_config, read_config

import ort_dynq
from ort_dynq.genai import rewrite_folder

genai = pytest.importorskip("onnxruntime_genai", reason="`pip install onnxruntime-genai`, which needs onnxruntime 1.31")

LENGTH, NEW = 24, 8


def prompt() -> npt.NDArray[np.int64]:
    return np.random.default_rng(0).integers(0, VOCABULARY - 2, LENGTH)


def generate(folder: Path) -> tuple[list[int], npt.NDArray[np.float32]]:
    """The tokens that onnxruntime-genai generates greedily after the prompt, and the logits of the prompt."""
    parameters = genai.GeneratorParams(genai.Model(str(folder)))
    parameters.set_search_options(max_length=LENGTH + NEW, min_length=LENGTH + NEW, do_sample=False)
    generator = genai.Generator(genai.Model(str(folder)), parameters)
    generator.append_tokens(prompt().astype(np.int32)[None])
    logits = np.array(generator.get_output("logits"))[0]
    while not generator.is_done():
        generator.generate_next_token()
    return [int(token) for token in generator.get_sequence(0)[LENGTH:]], logits


def snr(signal: npt.NDArray[Any], other: npt.NDArray[Any]) -> float:
    """The signal-to-noise ratio in dB."""
    noise = ((other.astype(np.float64) - signal) ** 2).sum()
    return float(10 * np.log10((signal.astype(np.float64) ** 2).sum() / noise)) if noise else math.inf


@pytest.mark.parametrize(
    ("name", "weights_only"), [*((name, "keep") for name in genai_folders.NAMES), ("phi", "blocks")]
)
def test_generates(name: str, weights_only: str, tmp_path: Path) -> None:
    """Tokens and logits are those of ONNX Runtime with the plugin. Products in blocks are as accurate as stock's."""
    source, target = FOLDERS / name, tmp_path / "fast"
    found = rewrite_folder(source, weights_only=weights_only)
    found.save(target)
    tokens, logits = generate(target)
    options = ort_dynq.register(ort.SessionOptions())
    expected, expected_logits = genai_folders.decode(str(target / "model.onnx"), options, prompt(), NEW)
    assert tokens == expected
    np.testing.assert_allclose(logits, expected_logits, rtol=1e-5, atol=1e-5)

    stock_tokens, stock_logits = generate(source)
    assert (len(tokens), logits.shape) == (len(stock_tokens), stock_logits.shape) == (NEW, (LENGTH, VOCABULARY))
    _, reference = genai_folders.decode(genai_folders.float_decoder(source), ort.SessionOptions(), prompt(), 1)
    # Also of accuracy level 4. In a mixture, noise may change the experts of a token.
    least = 12 if name == "qwen_moe" else 25
    assert snr(reference, stock_logits) > least
    assert snr(reference, logits) > least
    assert not np.array_equal(logits, stock_logits) or not found.results["model.onnx"].report.rewritten


@pytest.fixture
def native(tmp_path: Path) -> Path:
    """A rewritten folder of operators without functions: it does not run without the library."""
    rewrite_folder(LLAMA).save(tmp_path / "native")
    model = onnx.load(tmp_path / "native" / "model.onnx", load_external_data=False)
    assert any(node.domain == "ort_dynq" for node in model.graph.node)
    del model.functions[:]
    onnx.save(model, tmp_path / "native" / "model.onnx")
    return tmp_path / "native"


def test_the_library_is_loaded(native: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the folder is moved to, and by an absolute path, a relative one, or a link."""
    tokens, _ = generate(native)
    (tmp_path / "elsewhere").mkdir()
    moved = native.rename(tmp_path / "elsewhere" / "moved")
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(moved)
    for path in (moved, Path("moved"), tmp_path / "link"):
        assert generate(path)[0] == tokens


def test_without_the_entry(native: Path) -> None:
    edit_config(native, lambda config: config["model"]["decoder"]["session_options"].pop("custom_ops_library"))
    with pytest.raises(Exception, match="ort_dynq"):
        generate(native)


def test_a_library_elsewhere(native: Path, tmp_path: Path) -> None:
    """onnxruntime-genai refuses it, also behind a link: this is why the folder gets a copy."""
    library = native / read_config(native)["model"]["decoder"]["session_options"]["custom_ops_library"]
    library.rename(tmp_path / library.name)
    library.symlink_to(tmp_path / library.name)
    with pytest.raises(Exception, match="custom_ops_library path is not within an allowed directory"):
        generate(native)


def test_the_documentation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rewrite_folder(LLAMA).save("fast-phi")
    page = (Path(ort_dynq.__file__).parent / "docs" / "deployment.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    values = {"onnxruntime_genai": genai}
    exec(code, values)
    assert values["generator"].token_count() == len("Hello")
