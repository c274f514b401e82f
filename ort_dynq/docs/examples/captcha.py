"""Times a network with real weights before and after quantization and rewriting: ``python captcha.py [COUNT]``.

The network of the PyPI package ddddocr reads captchas. It has 21 convolutions and an LSTM. Four models read the same
captchas in turns: the float model, the model that onnxruntime's quantize_dynamic with default settings makes of it,
that one after ``ort_dynq.rewrite``, and the one that ``ort_dynq.quantize`` makes of the float model. Needs
``pip install --no-deps ddddocr==1.6.1 pillow``.
"""

from __future__ import annotations

import importlib.util
import logging
import runpy
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import version_converter
from onnxruntime.quantization import quantize_dynamic

import ort_dynq

Array = npt.NDArray[np.float32]

INSTALL = "pip install --no-deps ddddocr==1.6.1 pillow"
LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without those that look alike
HEIGHT = 64  # pixels of the network's images


def package() -> Path:
    """Returns ddddocr's folder. Importing ddddocr would need its dependencies."""
    spec = importlib.util.find_spec("ddddocr")
    if spec is None or spec.origin is None or importlib.util.find_spec("PIL") is None:
        raise SystemExit(f"ddddocr or Pillow is missing: run `{INSTALL}`")
    folder = Path(spec.origin).parent
    if not all((folder / name).is_file() for name in ("common.onnx", "charsets.py")):
        raise SystemExit(f"{folder} has no common.onnx or no charsets.py: run `{INSTALL}`")
    return folder


def draw(rng: np.random.Generator) -> tuple[str, Array]:
    """Returns the text of a captcha, 4 to 6 characters, and its image as [1, 1, HEIGHT, width] from 0 to 1."""
    from PIL import Image, ImageDraw, ImageFont

    def between(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    text = "".join(rng.choice(list(LETTERS), rng.integers(4, 7)))
    width, height = 30 * len(text) + 20, 50
    image = Image.new("L", (width, height), between(200, 256))
    for i, letter in enumerate(text):
        glyph = Image.new("L", (44, 44))
        try:
            font = ImageFont.load_default(between(30, 38))
        except (TypeError, ImportError) as error:
            raise SystemExit(f"Pillow >= 10.1 with FreeType is needed: run `{INSTALL} --upgrade`") from error
        ImageDraw.Draw(glyph).text((22, 22), letter, fill=255, font=font, anchor="mm")
        glyph = glyph.rotate(rng.uniform(-22, 22), Image.Resampling.BICUBIC)
        image.paste(between(0, 110), (8 + 30 * i + between(-3, 4), between(0, 7)), glyph)
    for _ in range(between(1, 4)):
        ends = [between(0, width), between(0, height), between(0, width), between(0, height)]
        ImageDraw.Draw(image).line(ends, fill=between(60, 160))
    noisy = np.asarray(image) + rng.normal(0, rng.uniform(0, 25), (height, width))
    image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    image = image.resize((width * HEIGHT // height, HEIGHT), Image.Resampling.LANCZOS)
    return text, np.asarray(image, np.float32)[None, None] / np.float32(255)


def decode(scores: Array, characters: Sequence[str]) -> str:
    """Returns the text of [steps, 1, characters]: the best ones without repetitions and blanks (CTC, greedy)."""
    best = scores.reshape(-1, scores.shape[-1]).argmax(-1)
    changes = np.concatenate([[True], best[1:] != best[:-1]])
    return "".join(characters[i] for i in best[changes & (best != 0)])


def open_session(path: Path, plugin: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # the model declares a wrong shape for its output, so every run would warn
    return onnxruntime.InferenceSession(path, ort_dynq.register(options) if plugin else options)


def main(count: int = 300) -> None:
    source, rng = package(), np.random.default_rng(0)
    captchas = [draw(rng) for _ in range(count)]
    characters = runpy.run_path(str(source / "charsets.py"))["CHARSET_BETA"]
    with tempfile.TemporaryDirectory() as folder:
        original, quantized, fast, ours = (
            Path(folder) / f"{name}.onnx" for name in ("float", "dynamic", "fast", "ours")
        )
        # The rewriter and the quantizer need opset 13 for convolutions.
        onnx.save(version_converter.convert_version(onnx.load(source / "common.onnx"), 13), original)
        logging.disable(logging.WARNING)  # quantize_dynamic recommends pre-processing
        quantize_dynamic(original, quantized)
        ort_dynq.rewrite(quantized).save(fast)
        ort_dynq.quantize(original).save(ours)
        paths = {
            "float": original,
            "quantize_dynamic, stock": quantized,
            "quantize_dynamic, rewritten": fast,
            "ort_dynq.quantize": ours,
        }
        sizes = [path.stat().st_size / 1e6 for path in paths.values()]
        sessions = [open_session(path, plugin=path in (fast, ours)) for path in paths.values()]

    outputs: list[list[Array]] = [[] for _ in sessions]
    times = np.empty((len(sessions), count))
    name = sessions[0].get_inputs()[0].name
    for i, (_, image) in enumerate(captchas):
        for j, session in enumerate(sessions):
            start = time.perf_counter()
            outputs[j] += session.run(None, {name: image})
            times[j, i] = time.perf_counter() - start

    # Case does not count: some letters differ from their capitals in size alone.
    texts = [[decode(each, characters).lower() for each in model] for model in outputs]
    print(f"| {count} captchas, one thread | MB | ms | read right | same text as float | same bits as stock |")
    print("|---|--:|--:|--:|--:|--:|")
    for j, (label, path) in enumerate(paths.items()):
        right = sum(text == truth for text, (truth, _) in zip(texts[j], captchas, strict=True))
        same = sum(text == expected for text, expected in zip(texts[j], texts[0], strict=True))
        equal = sum(each.tobytes() == stock.tobytes() for each, stock in zip(outputs[j], outputs[1], strict=True))
        bits = equal if path == fast else ""
        print(f"| {label} | {sizes[j]:.1f} | {np.median(times[j]) * 1e3:.1f} | {right} | {same} | {bits} |")


if __name__ == "__main__":
    given = sys.argv[1:] or ["300"]
    if len(given) != 1 or not given[0].isdecimal() or int(given[0]) < 1:
        raise SystemExit(f"the number of captchas must be a positive integer, not {' '.join(given)!r}")
    main(int(given[0]))
