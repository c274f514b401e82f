"""``ort-dynq quantize``: writes a quantized model."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import DynqError
from ..files import check_text
from ..formats import check_file
from .accuracy import (
    accuracy_of,
    accuracy_status,
    accuracy_text,
    accuracy_verdict,
    gates_of,
    has_gates,
    reference_of,
    selection_of,
    selection_text,
    warning_on,
)
from .arguments import (
    add_data,
    add_other_gates,
    add_output,
    add_page,
    add_require_plugin,
    check_data,
    check_target,
    decibels,
    rare,
)
from .closing import add_timing, check_images, closing_of, folder_closing_of, original_of
from .command import FAILED, Command, Outcome
from .page import check_report, write_page
from .render import Figure, format_shape, one_line, progress, table, working
from .text import add_text, compare_on_text, text_accuracy, tokens_of
from .verify import named_as

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..quantizer.options import Forms, Options
    from ..rewriter import Finding, Report, Result
    from ..tools.accuracy.accuracy import Accuracy
    from ..tools.genai import FolderResult
    from ..tools.measuring.data import Data
    from ..tools.measuring.timing import Speed
    from ..tools.quantization.outcome import Selection
    from ..tools.quantization.speed import FasterLayers
    from .closing import Closing, FolderClosing, Original


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="a float model, or a folder of onnxruntime-genai with models")
    add_output(parser)
    parser.add_argument(
        "--weights",
        choices=("int8", "int12", "int4"),
        default="int8",
        help="int4: smaller; int12: more accurate (default: int8)",
    )
    parser.add_argument(
        "--activations",
        choices=("token", "tensor", "two-term"),
        default="token",
        help="token: a scale for each row (default); tensor: one for all; two-term: nearly as exact as floats",
    )
    parser.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="keep layers like 'lm_head' or '*/attention/*' in float; may be repeated",
    )
    parser.add_argument(
        "--min-snr",
        type=decibels,
        metavar="DB",
        help="give layers two terms or words, or keep them in float, until each output has this signal-to-noise ratio",
    )
    parser.add_argument(
        "--only-if-faster", action="store_true", help="keep layers in float that are slower as integers"
    )
    parser.add_argument("--verify", action="store_true", help="show the accuracy; input data imply it")
    add_page(parser)
    add_text(parser)
    _rare_arguments(parser)
    add_data(parser)


def _rare_arguments(parser: argparse.ArgumentParser) -> None:
    group = rare(parser)
    group.add_argument(
        "--group",
        type=int,
        choices=(32, 64, 128),
        help="with --weights int4: how many adjacent weights share a scale (default: 32)",
    )
    add_other_gates(group)
    group.add_argument(
        "--symmetric", action="store_true", help="activations per token have no zero point; the range is less exact"
    )
    quantized_models = group.add_mutually_exclusive_group()
    quantized_models.add_argument(
        "--from-static",
        action="store_true",
        help="IN is a model that onnxruntime's quantize_static made, with QuantizeLinear and DequantizeLinear: keep "
        "its weights, and quantize its activations at run time",
    )
    quantized_models.add_argument(
        "--from-dynamic",
        action="store_true",
        help="IN is a model that onnxruntime's quantize_dynamic made: keep its weights, and quantize its activations "
        "per token",
    )
    group.add_argument(
        "--no-fusion",
        action="store_false",
        dest="fuse",
        help="leave normalizations, activation functions and attention as they are: only layers with weights change",
    )
    group.add_argument(
        "--attention",
        choices=("int8", "float"),
        default="int8",
        help="int8: fused attention has products of integers, except with --min-snr, two terms and int12 (default); "
        "float: it is ONNX Runtime's own operator",
    )
    group.add_argument(
        "--embeddings",
        choices=("int8", "keep"),
        default="int8",
        help="int8: rows of large tables have 8 bits and a scale for each row (default); keep: they stay floats",
    )
    group.add_argument(
        "--allow-none", action="store_true", help="write OUT and succeed even if no layer can be quantized"
    )
    add_require_plugin(parser)
    add_timing(parser)


def _run(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    if source.is_dir():
        return _quantize_folder(arguments, source, target)
    if arguments.text:
        raise DynqError("--text is for folders of onnxruntime-genai, which have a tokenizer; use --data for a model")
    if arguments.only_if_faster and has_gates(arguments):
        raise DynqError("--only-if-faster and --min-snr both choose the layers that stay in float; give one of them")
    check_file(source)
    check_target(source, target, force=arguments.force)
    check_data(arguments)
    check_report(arguments, source)
    gain, found = _gain(), _written(arguments, source, target)
    report, selection, faster, accuracy = found.report, found.selection, found.faster, found.accuracy
    is_written, closing = bool(report.quantized) or arguments.allow_none, None
    if is_written:
        if arguments.report:
            write_page(arguments, source, target)
        closing = closing_of(arguments, found.original, target, report, accuracy, found.data)

    def findings() -> Iterator[RenderableType]:
        yield one_line(f"{source}: {report.summary}")
        yield from _findings(report)
        if selection is not None:
            yield from selection_text(selection, gates_of(arguments), found.cost)
        if faster is not None and faster.kinds:
            yield from _faster(faster)
        if accuracy is not None:
            yield from accuracy_text(accuracy, arguments.data)
        if arguments.report and is_written:
            yield "\n" + one_line(f"{arguments.report} is written")

    data = {
        **_report_dict(report),
        "selection": None if selection is None else {**selection.to_dict(), "cost": found.cost and found.cost.ratio},
        "faster": None if faster is None else faster.to_dict(),
        "accuracy": None if accuracy is None else accuracy.to_dict(),
        "report": arguments.report if is_written else None,
    }
    warning = "" if closing is None else warning_on(arguments, accuracy, closing.timed_snr_db)
    return _with_closing((source, target), gain, data, findings, closing, accuracy, warning)


_LARGE = 100_000_000  # bytes of a model: the layers of larger ones are counted while they are quantized


class _Quantized(NamedTuple):
    """What is known of a model that was quantized, when its weights and those of the float model are not needed."""

    report: Report
    original: Original
    data: Data | None = None
    selection: Selection | None = None
    cost: Speed | None = None
    faster: FasterLayers | None = None
    accuracy: Accuracy | None = None


def _written(arguments: argparse.Namespace, source: Path, target: Path) -> _Quantized:
    """Quantizes a model and writes the result, unless no layer is quantized."""
    from ..system import return_memory

    result, found = _quantize(arguments, source, target)
    return_memory()  # of the float weights
    if found.report.quantized or arguments.allow_none:
        with working(f"writing {target}"):
            if arguments.require_plugin:
                result.require_plugin()
            result.save(target)
    return found


def _quantize(arguments: argparse.Namespace, source: Path, target: Path) -> tuple[Result, _Quantized]:
    """Quantizes a model, and compares it with the float model if the arguments ask for it."""
    from ..quantizer import quantize_layers
    from ..storage import ModelFile, own_weights

    has_shapes = bool(arguments.input or arguments.shape) and not arguments.only_if_faster
    verifies = arguments.verify or bool(arguments.data) or has_shapes
    chooses = has_gates(arguments)
    compares = verifies or chooses or arguments.only_if_faster
    options, model = _options(arguments), ModelFile(source)
    with named_as(source, target):
        reference = reference_of(arguments, model) if compares else None

    def quantize(forms: Forms = options.forms, note: Callable[[str], None] | None = None) -> Result:
        given = () if reference is None else reference.given
        return quantize_layers(model, replace(options, forms=forms), given, note)

    selection, cost, accuracy, faster = None, None, None, None
    if reference is not None and arguments.only_if_faster:
        from ..tools.quantization.speed import select_faster

        check_images(reference.data.inputs)
        with progress() as track:
            feeds = reference.data.sets[0]
            faster = select_faster(model, quantize, feeds, backend=arguments.backend, track=track)
        result = faster.result
    elif reference is None or not chooses:
        with working(f"quantizing {source}") as note:
            result = quantize(note=note if model.size > _LARGE else None)
    else:
        with named_as(source, target):
            selection, cost = selection_of(arguments, reference, quantize)
        result = selection.result
    result.check()
    is_written = bool(result.report.quantized) or arguments.allow_none
    if reference is not None and is_written and (verifies or chooses):
        with named_as(source, target):
            accuracy = accuracy_of(arguments, reference, result)
    original = original_of(source, target, model)
    if arguments.report and original.is_replaced:
        raise DynqError(f"--report compares with {source}, which would be replaced; choose another name for OUT")
    own_weights(result.model)
    data = None if reference is None else reference.data
    return result, _Quantized(result.report, original, data, selection, cost, faster, accuracy)


def _quantize_folder(arguments: argparse.Namespace, source: Path, target: Path) -> Outcome:
    """Quantizes a folder of onnxruntime-genai."""
    for option in ("data", "input", "shape", "min_snr", "min_agreement", "min_cosine", "only_if_faster", "report"):
        if getattr(arguments, option):
            name = "--" + option.replace("_", "-")
            raise DynqError(f"{name} is for single models; of a folder, give --text, a text to compare the decoders on")
    if arguments.text:
        check_text(arguments.text)  # before libraries are loaded
    from ..tools import genai
    from ..tools.genai.folder import open_folder

    folder = open_folder(source)  # a folder of another kind is the first thing to say
    gain = _gain()
    genai.check_target(source, target, force=arguments.force)
    tokens = tokens_of(arguments, folder) if arguments.text else None
    with working(f"quantizing {source}"):
        found = genai.quantize_folder(source, _options(arguments))
    is_written = arguments.allow_none or any(each.report.quantized for each in found.results.values())
    accuracy = _decoder_accuracy(arguments, found) if arguments.verify and is_written else None
    on_text = compare_on_text(arguments, found, tokens) if tokens is not None and is_written else None
    if is_written:
        with working(f"writing {target}"):
            if arguments.require_plugin:
                found.require_plugin()
            found.save(target, force=arguments.force)
    closing = folder_closing_of(arguments, target, found, accuracy, on_text) if is_written else None

    def findings() -> Iterator[RenderableType]:
        for name, result in found.results.items():
            yield one_line(f"{source / name}: {result.report.summary}")
            yield from _findings(result.report)
            yield ""
        if accuracy is not None:
            yield from accuracy_text(accuracy, None, more="" if arguments.text else "--text FILE")
        if on_text is not None:
            yield from text_accuracy(on_text, arguments.text)
        elif tokens is not None and is_written:
            yield one_line(
                f"{source / str(folder.decoder)} has no weights to quantize, so {arguments.text} is not used"
            )

    data = {
        "models": {name: _report_dict(result.report) for name, result in found.results.items()},
        "accuracy": None if accuracy is None else accuracy.to_dict(),
        "text": None if on_text is None else on_text.to_dict(),
    }
    return _with_closing((source, target), gain, data, findings, closing, accuracy)


def _gain() -> str:
    """Returns what integers gain on this CPU, if nothing is timed; a missing library is an error before the work."""
    from .. import kernels
    from ..system import gain_of_integers

    return gain_of_integers(kernels.isa())


def _with_closing(
    paths: tuple[Path, Path],
    gain: str,
    data: Mapping[str, object],
    findings: Callable[[], Iterator[RenderableType]],
    closing: Closing | FolderClosing | None,
    accuracy: Accuracy | None,
    warning: str = "",
) -> Outcome:
    """Returns the findings, the closing line, which is None if nothing was written, and the verdict on the accuracy."""
    from ..system import cpu_name

    (source, target), cpu = paths, cpu_name()

    def text() -> Iterator[RenderableType]:
        yield from findings()
        if closing is not None:
            yield "\n" + one_line(cpu if closing.is_timed else f"{cpu}: {gain}")
            yield closing.text(source, target)
            if warning:
                yield one_line(f"WARNING: {warning}")
            yield from accuracy_verdict(accuracy)
        else:
            yield "\n" + one_line(f"FAILED: no layer is quantized, so {target} is not written; --allow-none writes it")

    found = {
        "input": str(source),
        "output": None if closing is None else str(target),
        **data,
        "cpu": cpu,
        "gain": "" if closing is not None and closing.is_timed else gain,
        "closing": None if closing is None else closing.to_dict(),
        "warning": warning,
    }
    return Outcome(found, text, FAILED if closing is None else accuracy_status(accuracy))


def _decoder_accuracy(arguments: argparse.Namespace, found: FolderResult) -> Accuracy | None:
    """Compares the decoders on generated tokens; None if the decoder is a pipeline, or was not quantized."""
    from ..tools import genai
    from ..tools.accuracy.reference import Reference

    folder, decoder = found.folder, found.folder.decoder
    if decoder is None or decoder not in found.results:
        return None
    with working("running the float model"):
        reference = Reference(folder.path / decoder, [genai.verification_feeds(folder, seed=arguments.seed)])
    inputs = tuple(replace(each, given=False) for each in reference.data.inputs)  # they were generated here
    reference.data = replace(reference.data, inputs=inputs, seed=arguments.seed)
    return accuracy_of(arguments, reference, found.results[decoder])


def _options(arguments: argparse.Namespace) -> Options:
    from ..quantizer import checked

    return checked(
        *(arguments.weights, arguments.group, arguments.activations, arguments.symmetric, arguments.exclude),
        from_dynamic=arguments.from_dynamic,
        from_static=arguments.from_static,
        chooses_forms=has_gates(arguments),
        fuse=arguments.fuse,
        attention=arguments.attention,
        embeddings=arguments.embeddings,
    )


def _report_dict(report: Report) -> dict[str, Any]:
    return {
        "quantized": [finding.to_dict() for finding in report.quantized],
        "fused": [finding.to_dict() for finding in report.fused],
        "unconverted": [finding.to_dict() for finding in report.unconverted],
        "before": dict(report.before),
        "after": dict(report.after),
    }


def _findings(report: Report) -> Iterator[RenderableType]:
    kinds = (
        ("quantized", "becomes", report.quantized),
        ("fused", "becomes", report.fused),
        ("unconverted", "reason", report.unconverted),
    )
    for title, last, findings in kinds:
        counts = Counter((finding.op_type, _outcome(finding)) for finding in findings)
        if counts:
            yield ""
            yield table((title, "operator", last), [(count, *each) for each, count in counts.most_common()])


def _faster(found: FasterLayers) -> Iterator[RenderableType]:
    rows = [
        (
            len(kind.layers),
            kind.operator,
            " ".join(map(format_shape, kind.weights)),
            Figure(kind.gain, 2),
            "float" if kind.stays_float else "integers",
            kind.layers[0],
        )
        for kind in found.kinds
    ]
    yield ""
    yield "time of the model with these layers in float / with integers (1 thread):"
    yield table(("layers", "operator", "weights", "ratio", "become", "such as"), rows)
    times = f"the float model takes {found.gain:.2f} times as long as the one of integers at these shapes (1 thread)"
    times = found.busy or times
    yield f"{times}: all layers stay in float" if found.is_float else times


def _outcome(finding: Finding) -> str:
    """Returns the operator that a layer became, and how it differs from the options; or why it stays in float."""
    return ": ".join(filter(None, (finding.operator, finding.reason)))


COMMAND = Command(
    "quantize",
    "make a fast and accurate integer model of a float model",
    (
        "ort-dynq quantize float.onnx -o int8.onnx --data samples.npz",
        "ort-dynq quantize float.onnx -o int8.onnx --data samples.npz --min-snr 30",
        "ort-dynq quantize phi/ -o int8-phi/ --text notes.txt",
    ),
    _arguments,
    _run,
)
