"""Runs one program that opens its own session of ONNX Runtime, and prints its results and times as JSON.

`python tests/programs` runs each of them before and after. The models are those that the packages ship.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Step = Callable[[], Any]
TEXT = "the quick brown fox jumps over a lazy dog while seven wizards box with five judges"


def page(seed: int = 0, lines: int = 12) -> Any:
    """Returns a picture of some lines of text, as an array of height x width x 3 bytes."""
    from PIL import Image, ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    picture = Image.new("RGB", (900, 60 * lines + 40), "white")
    draw, font = ImageDraw.Draw(picture), ImageFont.load_default(28)
    for i in range(lines):
        draw.text((30, 30 + 60 * i), " ".join(rng.choice(TEXT.split(), 7)), "black", font)
    return np.asarray(picture)


def sound(seconds: float = 20.0, rate: int = 16000) -> np.ndarray:
    """Returns voiced sounds with pauses: harmonics of a varying pitch under an envelope of syllables."""
    t = np.arange(int(seconds * rate)) / rate
    pitch = 140 + 30 * np.sin(2 * np.pi * 0.7 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 20))
    syllables = np.clip(np.sin(2 * np.pi * 2.5 * t), 0, 1) * (np.sin(2 * np.pi * 0.15 * t) > 0)
    noise = np.random.default_rng(0).standard_normal(t.size) * 0.005
    return (0.2 * voice * syllables + noise).astype(np.float32)


def rapidocr() -> Step:
    """rapidocr: three networks read the text of pictures."""
    from rapidocr import RapidOCR

    engine, pictures = RapidOCR(), [page(seed) for seed in range(3)]
    return lambda: [list(engine(picture).txts or ()) for picture in pictures]


def rapidocr_onnxruntime() -> Step:
    """rapidocr-onnxruntime: the same with older networks."""
    from rapidocr_onnxruntime import RapidOCR

    engine, pictures = RapidOCR(), [page(seed) for seed in range(3)]
    return lambda: [[text for _, text, _ in engine(picture)[0] or ()] for picture in pictures]


def magika() -> Step:
    """magika: the type of a file's content."""
    import email
    import inspect

    from magika import Magika

    engine = Magika()
    contents = [
        inspect.getsource(json).encode(),
        inspect.getsource(email.message).encode(),
        b"<html><body><h1>Title</h1><p>Some text of a page</p></body></html>" * 20,
        json.dumps({str(i): list(range(i)) for i in range(60)}).encode(),
        b"name,number\n" + b"some,1\nother,2\n" * 100,
        b"#!/bin/sh\nset -e\nfor each in *; do echo $each; done\n" * 10,
    ]
    return lambda: [[str(engine.identify_bytes(each).output.label) for each in contents] for _ in range(5)]


def faster_whisper() -> Step:
    """faster-whisper: its detection of voice activity, Silero's network."""
    from faster_whisper.vad import get_speech_timestamps

    audio = sound()
    return lambda: [[int(each["start"]), int(each["end"])] for each in get_speech_timestamps(audio)]


def piper() -> Step:
    """piper-tts: tashkeel, the vowels of Arabic."""
    from piper.tashkeel import TashkeelDiacritizer

    engine = TashkeelDiacritizer()
    texts = ["السلام عليكم ورحمة الله وبركاته", "ذهب الولد الى المدرسة في الصباح", "اللغة العربية جميلة جدا"]
    return lambda: [engine(each) for each in texts for _ in range(4)]


def swift_f0() -> Step:
    """swift-f0: the pitch of a voice, in Hz for each frame."""
    from swift_f0 import SwiftF0

    engine, audio = SwiftF0(), sound()
    return lambda: np.round(engine.detect(audio, 16000).pitch_hz, 3).tolist()


SENTENCES = [
    "A cat sits on the mat.",
    "The dog plays in the garden.",
    "Interest rates rose for the third time this year.",
    "The recipe needs two eggs and a cup of flour.",
    "Rain is expected in the north tomorrow, with strong winds at the coast.",
    "She finished the marathon in under four hours, which was her best time so far.",
]


def nearest(vectors: Any) -> list[int]:
    """Returns which other vector is the nearest to each one, by the cosine."""
    rows = np.stack([np.asarray(each, np.float64) for each in vectors])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = rows @ rows.T
    np.fill_diagonal(cosines, -1)
    return [int(each) for each in cosines.argmax(1)]


def chromadb() -> Step:
    """chromadb: its default embedding function, MiniLM in the home folder."""
    import minilm
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    folder = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH, ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME)
    if not (folder / "model.onnx").exists():
        minilm.write(folder)
    engine = ONNXMiniLM_L6_V2()
    return lambda: nearest([each for _ in range(4) for each in engine(SENTENCES)][:6])


def fastembed() -> Step:
    """fastembed: MiniLM in a folder."""
    import minilm
    from fastembed import TextEmbedding

    folder = Path.home() / "minilm"
    if not (folder / "model.onnx").exists():
        minilm.write(folder)
    engine = TextEmbedding("sentence-transformers/all-MiniLM-L6-v2", specific_model_path=str(folder))
    return lambda: nearest(list(engine.embed(SENTENCES * 4))[:6])


PROGRAMS: dict[str, Callable[[], Step]] = {
    each.__name__: each
    for each in (rapidocr, rapidocr_onnxruntime, magika, faster_whisper, piper, swift_f0, chromadb, fastembed)
}


def main(name: str, rounds: int) -> None:
    """Runs a program on one core, where its threads do not wait for each other, and prints its CPU time."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    step = PROGRAMS[name]()
    results, seconds = [step()], []
    for _ in range(rounds):
        begin = time.process_time()
        results.append(step())
        seconds.append(time.process_time() - begin)
    print("RESULT " + json.dumps({"results": results, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
