"""Data for the networks of packages, all generated: pictures of text, sounds, files and sentences.

Each function takes a random generator and returns the inputs of one run, prepared as the package prepares them.
"""

from __future__ import annotations

import gzip
import importlib.metadata
import io
import json
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ort_dynq.inputs import Array
from ort_dynq.tools.bench.networks import speech, windows

Feeds = dict[str, Array]

_RATE = 16000


def _words(*lines: str) -> list[str]:
    return " ".join(lines).split()


_WORDS = _words(
    "invoice total delivery quantity price address order number street garden letter window summer",
    "winter morning station bridge river mountain market kitchen teacher doctor engineer machine",
    "paper pencil coffee orange silver",
)


def _text(rng: np.random.Generator, words: int) -> str:
    chosen = [str(rng.choice(_WORDS)) for _ in range(words)]
    chosen = [each.title() if rng.random() < 0.3 else each for each in chosen]
    return " ".join(each if rng.random() < 0.8 else f"{rng.integers(10, 10000)}" for each in chosen)


def _picture(rng: np.random.Generator, width: int, height: int, lines: int, size: int) -> Array:
    """Returns lines of dark text on a light ground with noise: float32 [height, width, 3] from 0 to 255."""
    from PIL import Image, ImageDraw, ImageFont

    ground = tuple(int(each) for each in rng.integers(190, 256, 3))
    image = Image.new("RGB", (width, height), ground)
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(size)
    for i in range(lines):
        ink = tuple(int(each) for each in rng.integers(0, 90, 3))
        place = int(rng.integers(2, max(3, width // 16))), i * height // lines + max(0, height // lines - size - 8) // 2
        draw.text(place, _text(rng, 1 + width // (size * 5)), ink, font)
    noisy = np.asarray(image, np.float32) + rng.normal(0, rng.uniform(0, 12), (height, width, 3))
    return np.clip(noisy, 0, 255).astype(np.float32)


def _image(
    picture: Array, mean: Sequence[float] = (0.5, 0.5, 0.5), deviation: Sequence[float] = (0.5, 0.5, 0.5)
) -> Array:
    """Returns [1, 3, height, width]."""
    scaled = (picture / 255 - np.array(mean)) / np.array(deviation)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], np.float32)


def line(rng: np.random.Generator) -> Feeds:
    """A line of text of 48 x 320 pixels, for recognizers."""
    return {"x": _image(_picture(rng, 320, 48, 1, int(rng.integers(24, 34))))}


def page(rng: np.random.Generator) -> Feeds:
    """A page of 320 x 480 pixels, for detectors."""
    return {"x": _image(_picture(rng, 480, 320, int(rng.integers(4, 9)), int(rng.integers(16, 28))))}


def turned_line(rng: np.random.Generator) -> Feeds:
    """A line of 48 x 192 pixels, upside down or not."""
    picture = _picture(rng, 192, 48, 1, int(rng.integers(22, 32)))
    return {"x": _image(picture[::-1, ::-1] if rng.random() < 0.5 else picture)}


def turned_page(rng: np.random.Generator) -> Feeds:
    """A page of 224 x 224 pixels, turned by a multiple of 90 degrees."""
    picture = np.rot90(
        _picture(rng, 224, 224, int(rng.integers(5, 10)), int(rng.integers(12, 20))), int(rng.integers(4))
    )
    return {"x": _image(picture, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}


def voice(rng: np.random.Generator) -> Feeds:
    """The windows of 10 seconds of speech, for Silero's detector."""
    return windows(speech(rng, 10))


def window(rng: np.random.Generator) -> Feeds:
    """One window of speech, and the state after the ones before it, for Silero's detector of streams."""
    start = int(rng.integers(0, 2 * _RATE))
    samples = speech(rng, 3)[start : start + 576]
    return {
        "input": samples[None],
        "state": rng.normal(0, 0.3, (2, 1, 128)).astype(np.float32),
        "sr": np.array(_RATE),
    }


def pitch(rng: np.random.Generator) -> Feeds:
    """Three seconds of speech, and the limits of the pitch in Hz."""
    limits = {"fmin": np.array(46.875, np.float32), "fmax": np.array(2093.75, np.float32)}
    return {"audio": speech(rng, 3)[None], **limits}


def music(rng: np.random.Generator) -> Feeds:
    """Two seconds of chords of plucked notes, at 22050 Hz, for basic-pitch."""
    count, rate = 43844, 22050
    sound = np.zeros(count)
    for start in range(0, count, rate // 3):
        time = np.arange(count - start) / rate
        for note in rng.integers(40, 80, rng.integers(1, 4)):
            hertz = 440 * 2 ** ((int(note) - 69) / 12)
            partials = sum(np.sin(2 * np.pi * hertz * k * time) / k**1.3 for k in range(1, 8))
            sound[start:] += rng.uniform(0.3, 1) * np.exp(-time * 3) * partials
    sound += rng.normal(0, 0.01, count)
    return {"serving_default_input_2:0": (sound / np.abs(sound).max() * 0.8).astype(np.float32)[None, :, None]}


def noisy_speech(rng: np.random.Generator) -> Feeds:
    """9 seconds of speech, more or less noisy, for DNSMOS."""
    sound = speech(rng, 9.01)[:144160]
    noise = rng.normal(0, 10 ** rng.uniform(-3, -1), len(sound))
    return {"input_1": np.clip(sound + noise, -1, 1).astype(np.float32)[None]}


def turn(rng: np.random.Generator) -> Feeds:
    """The logarithms of the mel spectrum of 8 seconds, which end in speech or in a pause, as Whisper has them."""
    sound = np.zeros(8 * _RATE, np.float32)
    said = speech(rng, rng.uniform(2, 7))
    sound[len(sound) - len(said) :] = said
    sound = (sound - sound.mean()) / np.sqrt(sound.var() + 1e-7)
    padded = np.pad(sound.astype(np.float64), 200, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, 400)[::160][:800]
    power = np.abs(np.fft.rfft(frames * np.hanning(401)[:-1])) ** 2
    levels = np.log10(np.maximum(power @ _mel_filters(), 1e-10))
    levels = np.maximum(levels, levels.max() - 8)
    return {"input_features": ((levels + 4) / 4).T.astype(np.float32)[None]}


def _mel_filters() -> Array:
    """Returns Slaney's 80 triangular filters of 201 frequencies up to 8 kHz, of equal areas."""
    step = np.log(6.4) / 27
    mels = np.linspace(0, 15 + np.log(8) / step, 82)
    hertz = np.where(mels < 15, 200 / 3 * mels, 1000 * np.exp(step * (mels - 15)))
    slopes = hertz - np.linspace(0, 8000, 201)[:, None]
    rises, falls = -slopes[:, :-2] / np.diff(hertz)[:-1], slopes[:, 2:] / np.diff(hertz)[1:]
    return np.asarray(np.maximum(0, np.minimum(rises, falls)) * 2 / (hertz[2:] - hertz[:-2]))


def file(rng: np.random.Generator) -> Feeds:
    """The first and the last 1024 bytes of a file of some type, for magika: 256 is padding."""
    kinds = (_source, _table, _records, _markup, _script, _prose, _packed, _picture_file)
    content = kinds[rng.integers(len(kinds))](rng)
    first, last = content[:4096].lstrip()[:1024], content[-4096:].rstrip()[-1024:]
    padding = [256] * (1024 - len(first)), [256] * (1024 - len(last))
    return {"bytes": np.array([[*first, *padding[0], *padding[1], *last]], np.int32)}


def _source(rng: np.random.Generator) -> bytes:
    functions = [
        f"def {rng.choice(_WORDS)}_{i}(value, {rng.choice(_WORDS)}=None):\n    # {_text(rng, 5)}\n    return value\n"
        for i in range(rng.integers(3, 30))
    ]
    return ("import os\nimport sys\n\n\n" + "\n\n".join(functions)).encode()


def _table(rng: np.random.Generator) -> bytes:
    rows = [f"{rng.choice(_WORDS)},{rng.integers(1000)},{rng.random():.3f}" for _ in range(rng.integers(10, 200))]
    return "\n".join(["name,count,share", *rows]).encode()


def _records(rng: np.random.Generator) -> bytes:
    count = int(rng.integers(3, 60))
    return json.dumps([{"name": str(rng.choice(_WORDS)), "size": int(rng.integers(99))} for _ in range(count)]).encode()


def _markup(rng: np.random.Generator) -> bytes:
    paragraphs = "\n".join(f'<p class="{rng.choice(_WORDS)}">{_text(rng, 12)}</p>' for _ in range(rng.integers(3, 40)))
    head = f"<!DOCTYPE html>\n<html><head><title>{_text(rng, 2)}</title></head>"
    return f"{head}<body>\n{paragraphs}\n</body></html>".encode()


def _script(rng: np.random.Generator) -> bytes:
    steps = [f'if [ -e "{rng.choice(_WORDS)}" ]; then\n  echo {_text(rng, 3)}\nfi' for _ in range(rng.integers(2, 30))]
    return ("#!/bin/sh\nset -e\n" + "\n".join(steps)).encode()


def _prose(rng: np.random.Generator) -> bytes:
    return "\n\n".join(textwrap.fill(_text(rng, 60) + ".", 80) for _ in range(rng.integers(1, 9))).encode()


def _packed(rng: np.random.Generator) -> bytes:
    return gzip.compress(_text(rng, int(rng.integers(50, 900))).encode(), mtime=0)


def _picture_file(rng: np.random.Generator) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(_picture(rng, 96, 48, 2, 16).astype(np.uint8)).save(buffer, str(rng.choice(["png", "jpeg", "gif"])))
    return buffer.getvalue()


_HEBREW = _words(
    "שלום עולם הילדים הלכו אל הגן בבוקר ואכלו לחם עם גבינה המורה כתבה על הלוח את השיעור החדש ביום",
    "ראשון ירד גשם חזק בעיר הגדולה האיש קנה ספר ישן בחנות הקטנה ליד הים",
)
_ARABIC = _words(
    "السلام عليكم ورحمة الله ذهب الولد الى المدرسة في الصباح اللغة العربية جميلة جدا كتب المعلم الدرس",
    "على السبورة اشترى الرجل كتابا قديما من السوق القريب تشرق الشمس كل يوم من الشرق",
)
_HEBREW_LETTERS = ["", *"HO5", *" !\"'(),-.:;?", *map(chr, range(0x5D0, 0x5EB))]


def hebrew(rng: np.random.Generator) -> Feeds:
    """A sentence of Hebrew words, for nakdimon."""
    text = " ".join(str(rng.choice(_HEBREW)) for _ in range(rng.integers(6, 14)))
    return {"input_1": np.array([[_HEBREW_LETTERS.index(each) for each in text]], np.float32)}


def arabic(rng: np.random.Generator) -> Feeds:
    """A sentence of Arabic words, for tashkeel."""
    text = " ".join(str(rng.choice(_ARABIC)) for _ in range(rng.integers(6, 14)))
    letters = _arabic_letters()
    codes = [letters[each] for each in text]
    return {
        "char_inputs": np.array([codes]),
        "diac_inputs": np.ones((1, len(codes)), np.int64),  # none is given
        "input_lengths": np.array([len(codes)]),
    }


def _arabic_letters() -> dict[str, int]:
    file: Any = importlib.metadata.distribution("piper-tts").locate_file("piper/tashkeel/input_id_map.json")
    found: dict[str, int] = json.loads(file.read_text(encoding="utf-8"))
    return found
