"""``ort-dynq bench-generate``: times the decoder of a folder of onnxruntime-genai."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..files import check_text
from .arguments import add_backend, add_changes, add_page, add_seed, check_page, positives
from .command import Command, Outcome
from .render import Figure, one_line, ratio_style, table
from .timing import add_timing, busy_lines, ratio_cell, timed

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..tools.bench.generation import GenerationBench
    from ..tools.measuring.progress import Track
    from ..tools.measuring.timing import Settings


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder of onnxruntime-genai")
    add_timing(parser, threads="1", time="3")
    parser.add_argument(
        "--tokens",
        type=positives,
        metavar="N[,N]",
        help="lengths of prompts (default: 16,128,512,2048, up to the context length)",
    )
    parser.add_argument(
        "--context",
        type=positives,
        metavar="N[,N]",
        help="numbers of tokens before a decoded token (default: 128, up to the context length)",
    )
    parser.add_argument(
        "--rewritten",
        metavar="FOLDER",
        help="the folder that `rewrite` has made of it (default: rewrite it)",
    )
    parser.add_argument(
        "--text",
        metavar="FILE",
        help="compare both decoders on this text in UTF-8, or on the tokens of a .npy file (default: random tokens)",
    )
    add_page(parser)
    add_changes(parser)
    add_seed(parser, "seed of the tokens (default: 0)")
    add_backend(parser)


def _run(arguments: argparse.Namespace) -> Outcome:
    if arguments.rewritten and (arguments.exact or arguments.fuse or arguments.weights_only or arguments.keep_fused):
        raise DynqError(
            "--exact, --fuse, --weights-only and --keep-fused say how to rewrite; leave them out with --rewritten"
        )
    if arguments.text:
        check_text(arguments.text)  # before libraries are loaded
    if arguments.report:
        check_page(Path(arguments.folder), Path(arguments.report))
    folders = [*filter(None, (arguments.folder, arguments.rewritten))]
    for folder in folders:
        if not Path(folder).is_dir():
            raise DynqError(f"{folder} is not a folder" if Path(folder).exists() else f"there is no folder {folder}")
    from ..tools.genai.folder import CONFIG

    for folder in folders:
        if not Path(folder, CONFIG).is_file():  # that of open_folder advises to give a model, which this command cannot
            raise DynqError(f"{folder} has no {CONFIG}, so it is not a folder of onnxruntime-genai")
    return timed(arguments, _bench, time=3.0)


def _bench(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    target = Path(arguments.report) if arguments.report else None
    from ..tools.bench.generation import bench_generation

    found = bench_generation(
        arguments.folder,
        settings,
        rewritten=arguments.rewritten,
        prompts=arguments.tokens,
        contexts=arguments.context,
        text=arguments.text,
        seed=arguments.seed,
        track=track,
    )
    if target is not None:
        from ..tools.measuring.timing import machine
        from ..tools.report.generation import save

        save(found, machine(settings.backend), target)

    def text() -> Iterator[RenderableType]:
        if found.rewrite_report is not None:
            yield one_line(f"{found.folder}: {found.rewrite_report.summary}")
        yield ""
        yield _files(found)
        if found.greedy is not None:
            yield (
                f"\ngreedy: of {found.greedy.generated} tokens after a prompt of {found.greedy.prompt}, those before "
                f"the first that float activations do not give; mean of {found.greedy.prompts} prompts"
            )
        else:
            yield "\n" + one_line(f"greedy: not measured: {found.greedy_problem}")
        yield ""
        yield "one sequence; medians; ratio: stock / ort_dynq"
        yield (
            "same: of a prompt, tokens with the same most probable successor; of decoding, greedy tokens before the "
            "first different one\n"
        )
        yield _times(found)
        yield from busy_lines(each.busy for each in found.timings)
        if target is not None:
            yield one_line(f"{target} is written")

    return Outcome({**found.to_dict(), "seed": arguments.seed, "report": arguments.report}, text)


def _times(found: GenerationBench) -> RenderableType:
    head = ("case", "stock ms", "ort_dynq ms", "ratio", "stock tokens/s", "ort_dynq tokens/s", "same tokens")
    rows = [
        (
            str(each.case),
            Figure(each.stock.median_ms, 3),
            Figure(each.ours.median_ms, 3),
            ratio_cell(each.ratio, each.busy),
            Figure(each.stock_rate, 1),
            Figure(each.ours_rate, 1),
            "-" if each.same_tokens is None else f"{each.same_tokens} of {each.of_tokens}",
        )
        for each in found.timings
    ]
    return table(head, rows, style=lambda row: ratio_style(row[3]))


def _files(found: GenerationBench) -> RenderableType:
    greedy = found.greedy
    rows = [
        (
            *(name, Figure(each.bytes / 1e6, 1), Figure(each.opening.ms, 1), Figure(each.opening.mb, 1)),
            Figure(tokens, 1),
        )
        for name, each, tokens in (
            ("stock", found.stock, None if greedy is None else greedy.stock),
            ("ort_dynq", found.ours, None if greedy is None else greedy.ours),
        )
    ]
    return table(("decoder", "file MB", "opening ms", "private memory MB", "greedy"), rows)


COMMAND = Command(
    "bench-generate",
    "time prompts and decoded tokens of a language model against stock ONNX Runtime",
    (
        "ort-dynq bench-generate phi/ --threads 1,4 --context 128,2048",
        "ort-dynq bench-generate phi/ --rewritten fast/ --text text.txt --report a.html",
    ),
    _arguments,
    _run,
)
