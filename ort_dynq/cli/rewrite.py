"""``ort-dynq rewrite``: writes the rewritten model."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import DynqError
from ..formats import check_file
from ..rewrite_options import RewriteOptions
from .arguments import (
    add_changes,
    add_data,
    add_output,
    add_page,
    add_require_plugin,
    check_data,
    check_target,
    given_data,
    given_inputs,
)
from .closing import add_timing, closing_of, folder_closing_of, original_of
from .command import Command, Outcome
from .page import check_report, write_page
from .render import one_line, table, working
from .verify import compare, exit_status, named_as, sets_text, verdict, verification_text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..rewriter import Report
    from ..tools.genai import FolderResult
    from ..tools.verification.verification import Verification


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="a model, or a folder of onnxruntime-genai with models")
    add_output(parser)
    parser.add_argument(
        "--verify", action="store_true", help="write OUT only if it equals IN as `verify` says; input data imply it"
    )
    add_page(parser)
    add_require_plugin(parser)
    add_timing(parser)
    add_changes(parser)
    add_data(parser)


def _run(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    if source.is_dir():
        return _rewrite_folder(arguments, source, target)
    verifies = arguments.verify or bool(arguments.data or arguments.input or arguments.shape)
    check_file(source)
    check_target(source, target, force=arguments.force)
    check_data(arguments)
    check_report(arguments, source)
    with working(f"rewriting {source}"):
        from ..rewriter import rewrite
        from ..storage import ModelFile

        model = ModelFile(source)
        shapes, inputs = given_data(arguments, model)
        result = rewrite(model, **RewriteOptions.from_arguments(arguments).arguments, inputs=inputs, shapes=shapes)
        result.check()
    with named_as(source, target):
        verification, sets = compare(arguments, model, result.model) if verifies else (None, 0)
    passed = verification is None or verification.passed
    original = original_of(source, target, model)
    page = write_page(arguments, source) if arguments.report else None  # before OUT replaces IN
    if passed:
        with working(f"writing {target}"):
            if arguments.require_plugin:
                result.require_plugin()
            stays = not (arguments.require_plugin or result.report.rewritten or result.report.is_mended)
            if not (stays and model.copy_to(target)):  # a model that stays is not larger
                result.save(target)
    closing = closing_of(arguments, original, target, result.report) if passed else None

    def text() -> Iterator[RenderableType]:
        yield one_line(f"{source}: {result.report.summary}")
        yield from _findings(result.report)
        yield ""
        if verification is not None:
            yield from sets_text(arguments, sets)
            yield from verification_text(verification, verbose=arguments.verbose > 0, a="IN", b="OUT")
        if page is not None:
            yield one_line(f"{arguments.report} is written")
        yield one_line(f"{target} is not written") if closing is None else closing.text(source, target)
        if verification is not None:
            yield verdict(verification, "IN", "OUT")

    data = {"input": str(source), "output": str(target) if passed else None, **result.report.to_dict()}
    data["closing"] = None if closing is None else closing.to_dict()
    data["verification"] = None if verification is None else verification.to_dict()
    data["report"] = arguments.report
    return Outcome(data, text, exit_status([] if verification is None else [verification]))


def _rewrite_folder(arguments: argparse.Namespace, source: Path, target: Path) -> Outcome:
    """Rewrites a folder of onnxruntime-genai."""
    for option in ("data", "report"):
        if getattr(arguments, option):
            raise DynqError(f"--{option} is for single models; `ort-dynq bench-generate` measures a folder")
    if not arguments.verify and (arguments.input or arguments.shape):
        raise DynqError("--input and --shape are the data of a verification; give --verify as well")
    from ..tools import genai
    from ..tools.genai.folder import open_folder

    open_folder(source)  # a folder of another kind is the first thing to say
    genai.check_target(source, target, force=arguments.force)
    with working(f"rewriting {source}"):
        found = genai.rewrite_folder(source, **RewriteOptions.from_arguments(arguments).arguments)
    verifications = _verify_folder(arguments, found) if arguments.verify else {}
    passed = all(each.passed for each in verifications.values())
    if passed:
        with working(f"writing {target}"):
            if arguments.require_plugin:
                found.require_plugin()
            found.save(target, force=arguments.force)
    closing = folder_closing_of(arguments, target, found) if passed else None

    def text() -> Iterator[RenderableType]:
        for name, result in found.results.items():
            yield one_line(f"{source / name}: {result.report.summary}")
            yield from _findings(result.report)
            yield ""
        yield one_line(f"{target} is not written") if closing is None else closing.text(source, target)
        for name, each in verifications.items():
            yield "\n" + one_line(f"{name}:")
            yield from verification_text(each, verbose=arguments.verbose > 0, a="IN", b="OUT")
            yield verdict(each, "IN", "OUT")

    models = {name: result.report.to_dict() for name, result in found.results.items()}
    for name, model in models.items():
        model["verification"] = verifications[name].to_dict() if name in verifications else None
    data = {"input": str(source), "output": str(target) if passed else None, "models": models}
    data["closing"] = None if closing is None else closing.to_dict()
    return Outcome(data, text, exit_status(verifications.values()))


def _verify_folder(arguments: argparse.Namespace, found: FolderResult) -> dict[str, Verification]:
    from ..tools import genai

    shapes, inputs = given_inputs(arguments)
    if shapes:
        raise DynqError("--shape is for single models: of a folder, the inputs depend on each other; use --input")
    with working("running the original and the rewritten models"):
        return genai.verify_folder(found, inputs=inputs, seed=arguments.seed, backend=arguments.backend)


def _findings(report: Report) -> Iterator[RenderableType]:
    if report.rewritten:
        yield _counts(report)
        yield ""
        yield _rewritten(report)
    if report.unconverted:
        reasons = Counter((finding.op_type, finding.reason) for finding in report.unconverted)
        yield ""
        yield table(
            ("unconverted", "operator", "reason"), [(count, *reason) for reason, count in reasons.most_common()]
        )
    if report.cpu.saturating:
        yield "\n" + one_line(report.cpu_text[0])


def _counts(report: Report) -> RenderableType:
    """Returns a table: the nodes of each operator before and after the rewrite."""
    counts = ((op, report.before.get(op, 0), report.after.get(op, 0)) for op in {**report.before, **report.after})
    return table(
        ("operator", "before", "after"),
        [*sorted(counts), ("total", sum(report.before.values()), sum(report.after.values()))],
        style=lambda row: "green" if row[2] < row[1] else "cyan" if row[2] > row[1] else "",
    )


def _rewritten(report: Report) -> RenderableType:
    """Returns a table: how many nodes a rule converted to an operator and a program, the most frequent ones first."""
    from ..rewriter.grouping import brief, program_key, program_pattern

    groups: dict[tuple[str, str, str], list[str]] = {}
    for each in report.rewritten:
        groups.setdefault((each.rule, each.operator or "", program_key(each.program)), []).append(each.program)
    further = ("program",) if any(program for _, _, program in groups) else ()
    rows = [
        (len(programs), rule, operator, *(brief(program_pattern(programs)) or "-" for _ in further))
        for (rule, operator, _), programs in groups.items()
    ]
    return table(("rewritten", "rule", "becomes", *further), sorted(rows, key=lambda row: -row[0]))


COMMAND = Command(
    "rewrite",
    "replace dynamic quantization chains by ort_dynq's operators",
    (
        "ort-dynq rewrite model.onnx -o fast.onnx --verify",
        "ort-dynq rewrite model.onnx -o fast.onnx --fuse",
        "ort-dynq rewrite phi/ -o fast-phi/",
    ),
    _arguments,
    _run,
    verifies=True,
)
