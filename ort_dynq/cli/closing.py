"""The closing line of ``rewrite`` and ``quantize``: size, products, accuracy and speed before and after."""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DynqError
from .arguments import given_data, rare
from .render import format_bytes, format_shape, one_line, working

if TYPE_CHECKING:
    from ..inputs import Input
    from ..rewriter import Report
    from ..storage import ModelFile
    from ..tools.accuracy.accuracy import Accuracy
    from ..tools.genai import FolderResult
    from ..tools.genai.decoding import TextAccuracy
    from ..tools.genai.folder import Folder
    from ..tools.measuring.data import Data

_SECONDS = 1.0  # for both models together, at least 5 calls of each
_TOKENS = 128  # of a prompt, and before a decoded token
_CHANNELS = (1, 3, 4)  # of images


def add_timing(parser: argparse.ArgumentParser) -> None:
    """Adds --no-timing."""
    rare(parser).add_argument(
        "--no-timing",
        action="store_false",
        dest="timing",
        help="do not measure how much faster OUT is on this CPU, nor which share of its time each layer takes",
    )


@dataclass(frozen=True)
class Original:
    """The model that another one is made from, before that one is written.

    Attributes:
        path: Its path.
        bytes: Its size with external data.
        data_files: The files with external data.
        is_replaced: Whether the other one takes its path.
    """

    path: Path
    bytes: int
    data_files: frozenset[Path]
    is_replaced: bool


def original_of(source: Path, target: Path, model: ModelFile) -> Original:
    """Measures a model before another one is made from it, perhaps in its place."""
    try:
        is_replaced = target.samefile(source)
    except OSError:  # OUT is not there yet, or IN not any more
        is_replaced = False
    return Original(source, model.size, frozenset(path.resolve() for path in model.data_files), is_replaced)


@dataclass(frozen=True)
class _Facts:
    """What a new model or folder is, beside the one that it was made from.

    Attributes:
        bytes_before, bytes_after: The sizes of the models of both, with external data.
        integer_products, float_products: The nodes of the new models with integer and with float products.
        snr_db: The signal-to-noise ratio of the worst output of the model, or of the decoder on generated tokens; None
            if it was not measured.
    """

    bytes_before: int
    bytes_after: int
    integer_products: int
    float_products: int
    snr_db: float | None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)

    def _facts(self, source: Path, target: Path) -> list[str]:
        from ..tools.measuring.plain import size_of_noise

        return [
            f"{source} {format_bytes(self.bytes_before)} -> {target} {format_bytes(self.bytes_after)}",
            f"products: {self.integer_products} integer, {self.float_products} float",
            *([] if self.snr_db is None else [f"outputs within {size_of_noise(self.snr_db)}: {self.snr_db:.0f} dB"]),
        ]


@dataclass(frozen=True)
class Closing(_Facts):
    """The facts of a model.

    Attributes:
        speed: The time of the model in stock ONNX Runtime / the time of the new one, see
            :func:`ort_dynq.tools.measuring.timing.speed`; None if it was not measured.
        busy: That the machine is too busy to measure it; empty if it is not.
        shapes: The shapes of the inputs of that measurement.
        not_timed: Why the speed was not measured; empty if it was, or was not asked for.
        still_needed: The files with external data of the model that the new one needs as well.
        timed_snr_db: The smallest signal-to-noise ratio of an output in that measurement, in decibels; None if it was
            not measured, or nothing differs.
    """

    speed: float | None
    busy: str
    shapes: Mapping[str, str]
    not_timed: str
    still_needed: tuple[str, ...] = ()
    timed_snr_db: float | None = None

    @property
    def is_timed(self) -> bool:
        """Whether the line has a measured speed."""
        return self.speed is not None

    def text(self, source: Path, target: Path) -> str:
        """Returns the line."""
        facts = self._facts(source, target)
        if self.speed is not None:
            shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
            facts.append(f"about {self.speed:.1f} times as fast on this CPU ({shapes}; 1 thread)")
        elif self.busy:
            facts.append(self.busy)
        elif self.not_timed:
            facts.append(f"speed: `ort-dynq bench {source} {target}`")
        if self.still_needed:
            facts.append(f"{target} needs {', '.join(self.still_needed)}, too")
        return one_line("; ".join(facts))


def closing_of(
    arguments: argparse.Namespace,
    original: Original,
    target: Path,
    report: Report,
    accuracy: Accuracy | None = None,
    data: Data | None = None,
) -> Closing:
    """Measures a model that was written, and the one that it was made from.

    Args:
        arguments: They name the data, the backend, and whether to time.
        original: The model that it was made from. It is not timed if it was replaced.
        target: The path of the new model.
        report: How it was made.
        accuracy: The accuracy of a quantized model, if it was measured.
        data: What the models were compared on. Its first set is timed.
    """
    speed, busy, shapes, not_timed, snr = None, "", dict[str, str](), "", None
    if arguments.timing and report.rewritten and not original.is_replaced:
        try:
            speed, busy, shapes, snr = _speed(arguments, original.path, target, data)
        except DynqError as error:
            not_timed = str(error)
    files = _data_files(target)
    size = sum(map(os.path.getsize, (target, *files)))
    shared = frozenset[Path]() if original.is_replaced else files & original.data_files
    return Closing(
        *(original.bytes, size, *report.products, _finite_snr(accuracy), speed, busy, shapes, not_timed),
        still_needed=tuple(sorted(each.name for each in shared)),
        timed_snr_db=snr,
    )


def _data_files(model: str | os.PathLike[str]) -> frozenset[Path]:
    from ..storage import data_files

    return frozenset(path.resolve() for path in data_files(model))


@dataclass(frozen=True)
class FolderClosing(_Facts):
    """The facts of a folder of onnxruntime-genai.

    Attributes:
        same_tokens: Of the tokens that both decoders generated, those before the first different one, and all; None
            if they did not.
        speeds: The time of the decoder in stock ONNX Runtime / the time of the new one, by what it did; empty if it was
            not measured.
        busy: That the machine is too busy to measure it; empty if it is not.
        not_timed: Why the speed was not measured; empty if it was, or was not asked for.
    """

    same_tokens: tuple[float, int] | None
    speeds: Mapping[str, float]
    busy: str
    not_timed: str

    @property
    def is_timed(self) -> bool:
        """Whether the line has a measured speed."""
        return bool(self.speeds)

    def text(self, source: Path, target: Path) -> str:
        """Returns the line."""
        facts = self._facts(source, target)
        if self.same_tokens is not None:
            facts.append("{:.1f} of {} tokens the same".format(*self.same_tokens))
        if self.speeds:
            speeds = ", ".join(f"{speed:.1f} times ({case})" for case, speed in self.speeds.items())
            facts.append(f"speed on this CPU about {speeds}")
        elif self.busy:
            facts.append(self.busy)
        elif self.not_timed:
            facts.append(f"speed: `ort-dynq bench-generate {source} --rewritten {target}`")
        return one_line("; ".join(facts))


def _bytes_of(folder: Folder) -> int:
    """Returns the size of the models of a folder, with external data."""
    from ..storage import size

    return sum(size(folder.path / name) for name in folder.models)


def folder_closing_of(
    arguments: argparse.Namespace,
    target: Path,
    found: FolderResult,
    accuracy: Accuracy | None = None,
    on_text: TextAccuracy | None = None,
) -> FolderClosing:
    """Measures a folder that was written, and the one that it was made from.

    Args:
        arguments: They name the seed, the backend, and whether to time.
        target: The path of the new folder.
        found: The original and the reports.
        accuracy: The accuracy of the decoder on generated tokens, if it was measured.
        on_text: The comparison on text, if there is one.
    """
    from ..tools.genai.folder import open_folder

    ours, speeds, busy, not_timed = open_folder(target), dict[str, float](), "", ""
    if arguments.timing and any(each.report.rewritten for each in found.results.values()):
        try:
            speeds, busy = _folder_speeds(arguments, found.folder, ours)
        except DynqError as error:
            not_timed = str(error)
    products = [each.report.products for each in found.results.values()]
    integer, floats = (sum(counts) for counts in zip(*products, strict=True))
    same = None if on_text is None else (on_text.same_tokens, on_text.generated)
    snr_db = _finite_snr(accuracy)
    return FolderClosing(
        _bytes_of(found.folder), _bytes_of(ours), integer, floats, snr_db, same, speeds, busy, not_timed
    )


def _finite_snr(accuracy: Accuracy | None) -> float | None:
    return None if accuracy is None or not math.isfinite(accuracy.snr_db) else accuracy.snr_db


def _folder_speeds(arguments: argparse.Namespace, folder: Folder, ours: Folder) -> tuple[dict[str, float], str]:
    """Returns the speed by what the decoder did, or that the machine was too busy."""
    with working("timing both decoders"):
        from ..tools.bench.generation import GenerationCase, time_case
        from ..tools.measuring.timing import Settings

        tokens = max(1, min(_TOKENS, (folder.context_length or _TOKENS) - 1))
        settings = Settings(seconds=_SECONDS, backend=arguments.backend)
        cases = (GenerationCase(tokens, 0, 1), GenerationCase(1, tokens, 1))
        timings = [time_case(folder, ours, case, settings, arguments.seed) for case in cases]
    speeds = {str(each.case): each.ratio for each in timings if each.ratio is not None}
    busy = next((each.busy for each in timings if each.busy), "")
    return ({}, busy) if busy else (speeds, "")


def _speed(
    arguments: argparse.Namespace, source: Path, target: Path, data: Data | None
) -> tuple[float | None, str, dict[str, str], float | None]:
    """Returns the speed, or that the machine was too busy, the shapes of the inputs, and the worst SNR of an output."""
    with working("timing both models"):
        from ..system import return_memory
        from ..tools.bench.models import bench_model
        from ..tools.measuring.timing import Settings

        return_memory()  # of the new model
        shapes, inputs = ({}, dict(data.sets[0])) if data is not None else given_data(arguments, source)
        settings = Settings(seconds=_SECONDS, backend=arguments.backend)
        found = bench_model(source, target, settings, inputs=inputs, shapes=shapes, seed=arguments.seed)
    check_images(found.inputs)
    timing = found.timings[0]
    return timing.ratio, timing.busy, {each.name: format_shape(each.shape) for each in found.inputs}, timing.snr_db


def check_images(inputs: Sequence[Input]) -> None:
    """Checks the inputs of models that are timed.

    Raises:
        DynqError: The model leaves the sizes of an image open, and the command does not give them.
    """
    for each in inputs:
        if _is_open_image(each):
            size = format_shape([1, *each.shape[1:]]).replace("8x8", "224x224")
            raise DynqError(
                f"the sizes of the image {each.name} are open; give yours, such as --shape {each.name}={size}"
            )


def _is_open_image(each: Input) -> bool:
    """Returns whether an input is an image of sizes that the model leaves open: nobody uses those that were assumed."""
    from ..inputs import ASSUMED

    if each.given or not each.assumed or len(each.shape) != 4:
        return False
    _, a, b, c = each.shape
    return (b == c == ASSUMED and a in _CHANNELS) or (a == b == ASSUMED and c in _CHANNELS)
