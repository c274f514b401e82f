"""The closing line of ``rewrite`` and ``quantize``: size, layers, accuracy and speed before and after."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DynqError
from .arguments import given_data
from .render import format_shape, one_line, working

if TYPE_CHECKING:
    from ..accuracy import Accuracy
    from ..rewriter import Report, Result

_SECONDS = 1.0  # for both models together, at least 5 calls of each
_INTEGER = ("ort_dynq.Quantized", "MatMulInteger", "ConvInteger", "QLinear", "com.microsoft.QGemm")
_FLOAT = ("MatMul", "Gemm", "Einsum", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "com.microsoft.Fused")
_MEGA, _KILO = 1e6, 1e3


def add_timing(parser: argparse.ArgumentParser) -> None:
    """Adds --no-timing."""
    parser.add_argument(
        "--no-timing", action="store_false", dest="timing", help="do not measure how much faster OUT is on this CPU"
    )


@dataclass(frozen=True)
class Closing:
    """What a new model is, beside the one that it was made from.

    Attributes:
        bytes_before, bytes_after: The sizes of both models, with external data.
        integer_layers, float_layers: Those of the new model with integer and with float products, by nodes.
        snr_db: The signal-to-noise ratio of the worst output; None if it was not measured.
        speed: The time of the model in stock ONNX Runtime / the time of the new one; None if it was not measured.
        shapes: The shapes of the inputs of that measurement.
        not_timed: Why the speed was not measured; empty if it was, or was not asked for.
    """

    bytes_before: int
    bytes_after: int
    integer_layers: int
    float_layers: int
    snr_db: float | None
    speed: float | None
    shapes: Mapping[str, str]
    not_timed: str

    def to_dict(self) -> dict[str, Any]:
        """Returns plain data for JSON."""
        return asdict(self)

    def text(self, source: Path, target: Path) -> str:
        """Returns the line."""
        sizes = f"{source} {_size(self.bytes_before)} -> {target} {_size(self.bytes_after)}"
        facts = [
            sizes,
            f"{self.integer_layers} layer{'s' if self.integer_layers != 1 else ''} integer, {self.float_layers} float",
        ]
        if self.snr_db is not None:
            facts.append(f"{self.snr_db:.0f} dB")
        if self.speed is not None:
            shapes = ", ".join(f"{name} {shape}" for name, shape in self.shapes.items())
            facts.append(f"about {self.speed:.1f} times as fast on this CPU ({shapes}; 1 thread)")
        elif self.not_timed:
            facts.append(f"speed: `ort-dynq bench {source} {target}`")
        return one_line("; ".join(facts))


def closing_of(
    arguments: argparse.Namespace, source: Path, target: Path, result: Result, accuracy: Accuracy | None = None
) -> Closing:
    """Measures a model that was written, and the one that it was made from.

    Args:
        arguments: They name the data, the backend, and whether to time.
        source, target: The paths of both models.
        result: The new model and its report.
        accuracy: The accuracy of a quantized model, if it was measured.
    """
    from ..storage import size

    speed, shapes, not_timed = None, dict[str, str](), ""
    if arguments.timing and result.report.rewritten:
        try:
            speed, shapes = _speed(arguments, source, target, accuracy)
        except DynqError as error:
            not_timed = str(error)
    integer, floats = _layers(result.report)
    sizes = size(source), size(target)
    snr_db = None if accuracy is None or not math.isfinite(accuracy.snr_db) else accuracy.snr_db
    return Closing(*sizes, integer, floats, snr_db, speed, shapes, not_timed)


def _speed(
    arguments: argparse.Namespace, source: Path, target: Path, accuracy: Accuracy | None
) -> tuple[float | None, dict[str, str]]:
    with working("timing both models"):
        from ..bench.models import bench_model
        from ..measuring.timing import Settings

        shapes, inputs = given_data(arguments)
        if accuracy is not None:  # on the first set of its data
            shapes, inputs = {}, dict(accuracy.data.sets[0])
        settings = Settings(seconds=_SECONDS, backend=arguments.backend)
        found = bench_model(source, target, settings, inputs=inputs, shapes=shapes, seed=arguments.seed)
    return found.timings[0].ratio, {each.name: format_shape(each.shape) for each in found.inputs}


def _layers(report: Report) -> tuple[int, int]:
    """Counts the nodes of the new model with integer and with float products."""
    integer = sum(count for name, count in report.after.items() if name.startswith(_INTEGER))
    return integer, sum(count for name, count in report.after.items() if name in _FLOAT or name.startswith(_FLOAT[-1]))


def _size(count: int) -> str:
    unit, name = (_MEGA, "MB") if count >= _MEGA else (_KILO, "kB")
    return f"{count / unit:.0f} {name}" if count >= 10 * unit else f"{count / unit:.1f} {name}"
