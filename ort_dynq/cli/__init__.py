"""The command line ``ort-dynq``: one function a subcommand, whose outcome is both the text and the JSON.

Exit status: 0 done, 1 a verification failed, 2 bad usage or input (one line on stderr), 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import __version__
from ..errors import DynqError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from rich.console import JustifyMethod, RenderableType

    from ..bench import ModelTiming, Settings, Track
    from ..rewriter import Report
    from ..rewriter.grouping import Group
    from ..verification import Comparison, Difference, Verification
    from ..verification.sessions import Input

_PROGRAM = "ort-dynq"
_FAILED, _BAD_USAGE, _INTERRUPTED, _BROKEN_PIPE = 1, 2, 130, 141


@dataclass(frozen=True)
class Outcome:
    """What a subcommand found: as plain data for --json, and as lines and tables of the same for people."""

    data: dict[str, Any]
    text: Callable[[], Iterable[RenderableType]]
    status: int = 0


@dataclass(frozen=True)
class Command:
    """A subcommand: `arguments` declares its arguments, `run` does it."""

    name: str
    doc: str
    example: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Outcome]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; `argv` is without the program's name."""
    # What the libraries warn of would be further lines on stderr.
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    try:
        arguments = _parser().parse_args(argv)
        outcome = arguments.run(arguments)
        print(json.dumps(outcome.data, indent=2, allow_nan=False) if arguments.json else _rendered(outcome.text()))
        sys.stdout.flush()
    except DynqError as error:
        print(f"{_PROGRAM}: error: {_line(str(error))}", file=sys.stderr)
        return _BAD_USAGE
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough; and the interpreter must not flush into the pipe again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _BROKEN_PIPE
    return int(outcome.status)


# rewrite


def _rewrite_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="the model to rewrite")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="where the rewritten model goes")
    parser.add_argument("--force", action="store_true", help="allow OUT to be IN")
    parser.add_argument(
        "--verify", action="store_true", help="first compare both models as `verify` does; write OUT only if they agree"
    )
    _exact_argument(parser)
    _data_arguments(parser)


def _exact_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--exact",
        action="store_true",
        help="keep every result bit for bit: products of floats do not become integer products, which are faster and "
        "nearer to the true values, but differ in the last bits",
    )


def _rewrite(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    _check_target(source, target, force=arguments.force)
    with _working(f"rewriting {source}"):
        from ..rewriter import rewrite

        result = rewrite(source, exact=arguments.exact)
    verification = _compare(arguments, source, result.model) if arguments.verify else None
    passed = verification is None or verification.passed
    if passed:
        with _working(f"writing {target}"):
            result.save(target)
    report = result.report

    def text() -> Iterator[RenderableType]:
        yield _line(f"{source}: {_counts(report)}")
        counts = ((op, report.before.get(op, 0), report.after.get(op, 0)) for op in {**report.before, **report.after})
        yield _table(
            ("operator", "before", "after"),
            [*sorted(counts), ("all", sum(report.before.values()), sum(report.after.values()))],
            style=lambda row: "green" if row[2] < row[1] else "cyan" if row[2] > row[1] else "",
        )
        if report.rewritten:
            done = Counter(finding.rule for finding in report.rewritten)
            yield ""
            yield _table(("rewritten", "rule"), [(count, rule) for rule, count in done.most_common()])
        if report.left:
            left = Counter((finding.op_type, finding.reason) for finding in report.left)
            yield ""
            yield _table(("left", "operator", "reason"), [(count, *why) for why, count in left.most_common()])
        yield "\n" + _line(f"{target} is written" if passed else f"{target} is not written")
        if verification is not None:
            yield from _verification_text(verification)

    data = {"input": str(source), "output": str(target) if passed else None, **report.to_dict()}
    data["verification"] = None if verification is None else verification.to_dict()
    return Outcome(data, text, 0 if passed else _FAILED)


def _check_target(source: Path, target: Path, *, force: bool) -> None:
    """What would fail at the end fails at once."""
    if not target.parent.is_dir():
        raise DynqError(f"there is no folder {target.parent} to write {target.name} in")
    if target.is_dir():
        raise DynqError(f"{target} is a folder; -o takes the name of a file")
    if target.exists() and not target.is_file():
        raise DynqError(f"{target} is not a file, and would be replaced by one; choose another name")
    if target.exists() and source.exists() and target.samefile(source) and not force:
        raise DynqError(f"{target} is the input itself; give --force to overwrite it")


# inspect


def _inspect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="the model to look at; it is not changed")
    _exact_argument(parser)


def _inspect(arguments: argparse.Namespace) -> Outcome:
    with _working(f"inspecting {arguments.model}"):
        from ..rewriter.grouping import grouped, inspect

        report = inspect(arguments.model, exact=arguments.exact)

    groups = grouped(report.findings)

    def text() -> Iterator[RenderableType]:
        yield _line(f"{arguments.model}: {_counts(report)}")
        yield f"{sum(report.before.values())} nodes, {sum(report.after.values())} after a rewrite"
        yield from listed("rewritten", "becomes", "green", [each for each in groups if each.operator])
        yield from listed("left", "reason", "yellow", [each for each in groups if not each.operator])

    def listed(title: str, last: str, colour: str, groups: Sequence[Group]) -> Iterator[RenderableType]:
        if groups:
            rows = [(each.count, each.node, each.graph, each.op_type, each.operator or each.reason) for each in groups]
            yield ""
            yield _table((title, "nodes", "graph", "operator", last), rows, style=lambda _: colour)

    data = {"input": arguments.model, **report.to_dict(), "groups": list(map(asdict, groups))}
    return Outcome(data, text)


def _counts(report: Report) -> str:
    return f"{len(report.rewritten)} dynamic quantization chains and products to rewrite, {len(report.left)} to leave"


# report


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="IN", help="the model to report on; it is not changed")
    parser.add_argument("-o", "--output", metavar="OUT.html", required=True, help="where the page goes")
    parser.add_argument("--threads", type=_positive, default=1, metavar="N", help="of ONNX Runtime (1)")
    parser.add_argument("--seconds", type=_seconds, default=5.0, metavar="S", help="for timing and profiling (5)")
    _exact_argument(parser)
    _data_arguments(parser)


def _report(arguments: argparse.Namespace) -> Outcome:
    source, target = Path(arguments.model), Path(arguments.output)
    _check_target(source, target, force=True)
    if target.exists() and source.exists() and target.samefile(source):
        raise DynqError(f"{target} is the model itself; -o takes the name of the page")
    shapes, inputs = _given_data(arguments)
    with _progress() as track:
        from ..report.model import make_report

        given = {name: getattr(arguments, name) for name in ("seed", "backend", "exact", "threads", "seconds")}
        found = make_report(source, inputs=inputs, shapes=shapes, track=track, **given)
    found.save(target)

    def text() -> Iterator[RenderableType]:
        yield from _inputs_text(found.verification.inputs, found.verification.seed)
        yield _line(f"{source}: {_counts(found.report)}")
        if found.problem:
            yield _line(found.problem)
        if found.before and found.after:
            before, after = found.before.latency.median_ms, found.after.latency.median_ms
            yield f"median {before:.4f} ms before, {after:.4f} ms after: {_Figure(found.ratio, 2)} times as fast"
        yield _line(f"{target} is written")
        yield "PASSED" if found.verification.passed else "FAILED"

    data = {"output": str(target), **found.to_dict()}
    return Outcome(data, text, 0 if found.verification.passed else _FAILED)


# doctor


def _doctor_arguments(_: argparse.ArgumentParser) -> None:
    """It takes none."""


def _doctor(_: argparse.Namespace) -> Outcome:
    with _progress() as track:
        from ..doctor import examine

        found = examine(track=track)

    def text() -> Iterator[RenderableType]:
        yield _table(("", "version"), [(name, version or "not installed") for name, version in found.versions.items()])
        yield ""
        yield _line(f"{found.cpu}: {' '.join(found.features) or 'features unknown'}")
        yield f"instruction set in use: {found.isa or 'none'}; available: {', '.join(found.isas) or 'none'}\n"
        rows = [(each.name, "well" if each.well else "WRONG", each.detail) for each in found.checks]
        yield _table(("check", "", ""), rows, style=lambda row: "green" if row[1] == "well" else "red")
        yield ""
        if found.wrong:
            yield _line(f"{found.wrong.name}: {found.wrong.detail}; {found.wrong.advice}")
        yield "FAILED" if found.wrong else "PASSED"

    return Outcome(found.to_dict(), text, _FAILED if found.wrong else 0)


# verify


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="the original; runs in stock ONNX Runtime, all optimisations off")
    parser.add_argument("b", metavar="B", help="the model to compare with it; runs with the plugin")
    _data_arguments(parser)


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    data = parser.add_argument_group("input data")
    data.add_argument(
        "--input", metavar="NAME=FILE.npy", action="append", default=[], help="values of an input; others are generated"
    )
    data.add_argument(
        "--shape", metavar="NAME=1x128x768", action="append", default=[], help="shape of an input that is generated"
    )
    data.add_argument("--seed", type=_natural, default=0, metavar="N", help="of the generated values (0)")
    parser.add_argument(
        "--backend",
        choices=("native", "extensions"),
        default="native",
        help="how sessions get ort_dynq's operators: from its own library (native), or through onnxruntime-extensions",
    )


def _verify(arguments: argparse.Namespace) -> Outcome:
    verification = _compare(arguments, arguments.a, arguments.b)
    data = {"a": arguments.a, "b": arguments.b, **verification.to_dict()}
    return Outcome(data, lambda: _verification_text(verification), 0 if verification.passed else _FAILED)


def _compare(arguments: argparse.Namespace, a: Any, b: Any) -> Verification:
    shapes, inputs = _given_data(arguments)
    with _working("running both models"):
        from ..verification import verify

        return verify(a, b, inputs=inputs, shapes=shapes, seed=arguments.seed, backend=arguments.backend)


def _given_data(arguments: argparse.Namespace) -> tuple[dict[str, tuple[int, ...]], dict[str, npt.NDArray[np.generic]]]:
    return dict(map(_parse_shape, arguments.shape)), dict(map(_load_input, arguments.input))


def _verification_text(verification: Verification) -> Iterator[RenderableType]:
    yield from _inputs_text(verification.inputs, verification.seed)
    if not verification.zero_rows:
        yield "no rows of zeros among the inputs: they turn a whole output into NaN"

    def compared(outputs: Sequence[Comparison], bad: str) -> Iterator[RenderableType]:
        head = ("output", "type", "shape", "elements", "NaN", "differing", "max abs", "max ULP")
        rows = []
        for each in outputs:
            ulp = "-" if each.problem or each.max_ulp is None else each.max_ulp
            rows.append((each.name, each.dtype, _shape(each.shape), each.elements, each.nans, *_measured(each), ulp))
        yield _table(head, rows, style=lambda row: bad if row[5] else "")
        for each in outputs:
            if each.problem:
                yield _line(f"{each.name}: A gives {each.dtype} {list(each.shape)}, {each.problem}")
            if each.first is not None:
                yield _line(f"{each.name} first differs at {list(each.first.index)}: {_values(each.dtype, each.first)}")

    yield from _products_text(verification)
    if verification.outputs:
        given = ", on A's results of these products" if verification.end_to_end else ""
        yield f"\nAll optimisations off{given}:"
        yield from compared(verification.outputs, bad="red")
    if verification.end_to_end:
        beside = ", and A with its results of these products changed by 2^-22" if verification.nudged else ""
        yield f"\nFrom end to end, for information: B{beside}:"
        head = ("output", "elements", "B differing", "max abs", "A changed differing", "max abs")
        nudged = verification.nudged or [None] * len(verification.end_to_end)
        pairs = zip(verification.end_to_end, nudged, strict=True)
        yield _table(head, [(b.name, b.elements, *_measured(b), *_measured(a)) for b, a in pairs])
    if verification.default_outputs:
        yield "\nB at the default optimisation level, for information:"
        yield from compared(verification.default_outputs, bad="")
    if verification.failure:
        yield _line(verification.failure)
    yield "PASSED" if verification.passed else "FAILED"


def _measured(each: Comparison | None) -> tuple[object, str]:
    if each is None or each.problem:
        return "-", "-"
    return each.differing, "-" if each.max_abs is None else f"{each.max_abs:.6g}"


def _products_text(verification: Verification) -> Iterator[RenderableType]:
    products, worst = verification.products, verification.worst_product
    if worst is not None:
        yield (
            f"\nProducts of floats that became integer products: {len(products)}, each compared on A's own values, "
            "with float64, in units of 2^-24 of abs(x) @ abs(w)"
        )
        if not worst.problem:
            errors = f"B's error {worst.b_error:.3g}, A's {worst.a_error:.3g}, allowed {worst.allowed:.3g}"
            yield _line(f"worst: {worst.name}, K = {worst.depth}: {errors}")
        yield from (_line(f"wrong: {each.name}: {each.problem}") for each in products if each.problem)
        if skipped := sum(each.skipped for each in products):
            yield f"{skipped} of their elements are not compared: A's activations hold NaN or infinities there"
    if verification.unreachable:
        count = verification.unreachable
        yield f"\nNOT compared: {count} integer products in subgraphs or functions, and what comes out of these"


def _inputs_text(inputs: Iterable[Input], seed: int) -> Iterator[RenderableType]:
    for each in inputs:
        origin = "given" if each.given else f"generated, seed {seed}"
        if each.assumed:
            sizes = ", ".join(f"{name} = {size}" for name, size in each.assumed.items())
            origin += f"; assumed {sizes}: set it with --shape {each.name}={_shape(each.shape)}"
        yield _line(f"input {each.name}: {each.dtype} {_shape(each.shape)}, {origin}")


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes)) or "scalar"


def _values(dtype: str, difference: Difference) -> str:
    """As short as tells them from their neighbours."""
    import numpy as np

    a, b = (np.dtype(dtype).type(value) for value in (difference.a, difference.b))
    return f"A {a!s}, B {b!s}"


def _parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition("=")
    if not name or not re.fullmatch(r"[0-9]{1,18}(x[0-9]{1,18})*", sizes):
        raise DynqError(f"--shape {text} is not of the form NAME=1x128x768")
    return name, tuple(map(int, sizes.split("x")))


def _load_input(text: str) -> tuple[str, npt.NDArray[np.generic]]:
    import numpy as np

    name, _, path = text.partition("=")
    if not name or not path:
        raise DynqError(f"--input {text} is not of the form NAME=FILE.npy")
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError as error:
        raise DynqError(f"there is no file {path}") from error
    except (OSError, ValueError, EOFError) as error:
        raise DynqError(f"{path} is not a .npy file: {error}") from error
    if not isinstance(array, np.ndarray):
        raise DynqError(f"{path} holds several arrays; --input takes a .npy file of one")
    return name, array


# bench


def _bench_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what",
        metavar="WHAT",
        help="ops: each operator and a plain copy; chains: decomposed chains and a Relu; networks: transformers; "
        "a folder of folders with a model.onnx and a test_data_set_0 each; or a model, A",
    )
    parser.add_argument("b", metavar="B", nargs="?", help="a model to take turns with A (A as `rewrite` makes it)")
    timing = parser.add_argument_group("timing")
    timing.add_argument(
        "--threads", type=_counts_of_threads, metavar="N[,N]", help="of ONNX Runtime (1; ops: 1 and as many as cores)"
    )
    timing.add_argument(
        "--seconds", type=_seconds, metavar="S", help="for each row (0.5; networks: 2; a model that is named: 5)"
    )
    timing.add_argument("--warmup", type=_natural, default=2, metavar="N", help="runs of each that are not timed (2)")
    _exact_argument(parser)
    timing.add_argument("--isa", metavar="NAME", help="instruction set of ort_dynq's kernels (the best there is)")
    timing.add_argument(
        "--sizes", type=_sizes, metavar="RxC[,RxC]", help="of ops's tensors (1x64,64x64,256x1024,4096x4096)"
    )
    network = parser.add_argument_group("networks")
    network.add_argument("--networks", type=_names, metavar="NAME[,NAME]", help="which (encoder,decoder)")
    network.add_argument("--forms", type=_names, metavar="NAME[,NAME]", help="which forms of linear layers (all)")
    network.add_argument(
        "--tokens",
        type=_positive_numbers,
        metavar="N[,N]",
        help="of the encoder's input, of the decoder's past (1,128)",
    )
    network.add_argument("--layers", type=_positive, metavar="N", help="of a network (6)")
    network.add_argument("--hidden", type=_positive, metavar="N", help="the width (768)")
    network.add_argument("--heads", type=_positive, metavar="N", help="of the attention (12)")
    _data_arguments(parser)


def _bench(arguments: argparse.Namespace) -> Outcome:
    """Stock ONNX Runtime against the plugin, both at the default optimisation level."""
    benches = {"ops": _bench_ops, "chains": _bench_chains, "networks": _bench_networks}
    is_folder = arguments.what not in benches and Path(arguments.what).is_dir()
    bench = benches.get(arguments.what, _bench_folder if is_folder else _bench_model)
    for name, value, where, example in (
        ("--sizes", arguments.sizes, _bench_ops, "ops"),
        ("B", arguments.b, _bench_model, "A.onnx B.onnx"),
        ("--input", arguments.input, _bench_model, "A.onnx"),
        ("--shape", arguments.shape, _bench_model, "A.onnx"),
        ("--networks", arguments.networks, _bench_networks, "networks"),
        ("--forms", arguments.forms, _bench_networks, "networks"),
        ("--tokens", arguments.tokens, _bench_networks, "networks"),
        ("--layers", arguments.layers, _bench_networks, "networks"),
        ("--hidden", arguments.hidden, _bench_networks, "networks"),
        ("--heads", arguments.heads, _bench_networks, "networks"),
    ):
        if value and bench != where:
            raise DynqError(f"{name} goes with `{_PROGRAM} bench {example}`, not with {arguments.what}")
    from .. import kernels
    from ..bench import Settings, machine
    from ..system import cores

    threads = arguments.threads or (tuple(sorted({1, cores()})) if bench == _bench_ops else (1,))
    seconds = arguments.seconds or (5.0 if bench == _bench_model else 2.0 if bench == _bench_networks else 0.5)
    settings = Settings(threads, seconds, arguments.warmup, arguments.backend, arguments.exact)
    with kernels.use_isa(arguments.isa) if arguments.isa else contextlib.nullcontext(), _progress() as track:
        here = machine(settings.backend)
        found = bench(arguments, settings, track)

    def text() -> Iterator[RenderableType]:
        yield _line(f"{here.cpu}, {here.cores} cores, load {here.load:.1f} before")
        yield _line(f"instruction set {here.isa}, backend {here.backend}")
        yield _line(f"onnxruntime {here.onnxruntime}, ort_dynq {here.ort_dynq}, Python {here.python}")
        yield from found.text()

    return Outcome({"machine": asdict(here), "settings": asdict(settings), **found.data}, text)


def _bench_ops(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench import SIZES, bench_operators

    timings = bench_operators(settings, arguments.sizes or SIZES, track=track)

    def text() -> Iterator[RenderableType]:
        yield "ns: per element; ratio: stock / ours; of copy: our bytes per second in those of a plain copy\n"
        head = ("operator", "scales", "tensor", "threads", "ours ns", "stock ns", "ratio", "of copy")
        rows = [
            (
                *(each.operator, each.granularity, _shape(each.shape), each.threads),
                *(_Figure(each.ours_ns, 3), _Figure(each.stock_ns, 3)),
                *(_Figure(each.ratio, 2), _Figure(each.copy_share, 2)),
            )
            for each in timings
        ]
        yield _table(head, rows, style=lambda row: _ratio_style(row[6]))

    return Outcome({"timings": list(map(asdict, timings))}, text)


def _bench_chains(_: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench import CHAIN_SHAPE, bench_chains

    timings = bench_chains(settings, track=track)

    def text() -> Iterator[RenderableType]:
        yield f"float32 {_shape(CHAIN_SHAPE)}; ratio: stock / ours; of Relu: ours / one Relu over the same tensor\n"
        head = ("chain", "nodes", "threads", "stock ms", "ours ms", "ratio", "Relu ms", "of Relu", "rewritten to")
        rows = [
            (
                *(each.name, each.nodes, each.threads),
                *_ratio_cells(each),
                *(_Figure(each.relu.median_ms, 4), _Figure(each.of_relu, 2), _rewritten(each)),
            )
            for each in timings
        ]
        yield _table(head, rows, style=lambda row: _ratio_style(row[5]))

    return Outcome({"timings": list(map(asdict, timings))}, text)


def _bench_networks(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench import TOKENS, Sizes, bench_networks
    from ..bench.transformers import FORMS, NETWORKS

    given = {name: getattr(arguments, name) for name in ("layers", "hidden", "heads")}
    sizes = Sizes(**{name: size for name, size in given.items() if size})
    timings = bench_networks(
        settings,
        names=arguments.networks or tuple(NETWORKS),
        forms=arguments.forms or tuple(FORMS),
        tokens=arguments.tokens or TOKENS,
        sizes=sizes,
        track=track,
    )

    def text() -> Iterator[RenderableType]:
        yield _line(f"{sizes.layers} layers, {sizes.hidden} wide, {sizes.heads} heads; medians; ratio: stock / ours")
        yield "tokens: of the encoder's input; of the decoder's past\n"
        head = ("network", "form", "tokens", "threads", "stock ms", "ours ms", "ratio", "rewritten to")
        rows = [
            (each.network, each.name, each.tokens, each.threads, *_ratio_cells(each), _rewritten(each))
            for each in timings
        ]
        yield _table(head, rows, style=lambda row: _ratio_style(row[6]))
        yield from (_line(each.problem) for each in timings if each.problem)

    return Outcome({"sizes": asdict(sizes), "timings": list(map(asdict, timings))}, text)


def _bench_folder(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench import bench_folder

    timings = bench_folder(arguments.what, settings, track=track)

    def text() -> Iterator[RenderableType]:
        yield "medians; ratio: stock / ours\n"
        head = ("model", "threads", "stock ms", "ours ms", "ratio", "rewritten to")
        rows = [(each.name, each.threads, *_ratio_cells(each), _rewritten(each)) for each in timings]
        yield _table(head, rows, style=lambda row: _ratio_style(row[4]))
        yield from (_line(each.problem) for each in timings if each.problem)

    return Outcome({"folder": arguments.what, "timings": list(map(asdict, timings))}, text)


def _bench_model(arguments: argparse.Namespace, settings: Settings, track: Track) -> Outcome:
    from ..bench import bench_model

    shapes, inputs = _given_data(arguments)
    found = bench_model(
        arguments.what, arguments.b, settings, inputs=inputs, shapes=shapes, seed=arguments.seed, track=track
    )

    def text() -> Iterator[RenderableType]:
        yield from _inputs_text(found.inputs, found.seed)
        yield _line(f"A: {arguments.what}, in stock ONNX Runtime")
        yield _line(f"B: {arguments.b or 'A rewritten'}, with the plugin")
        if found.report is not None:
            yield _line(_counts(found.report))
        yield ""
        rows: list[tuple[object, ...]] = []
        for each in found.timings:
            for role, latency in (("A", each.stock), ("B", each.ours)):
                if latency is not None:
                    times = (latency.median_ms, latency.p90_ms, latency.p99_ms, latency.mean_ms)
                    rows.append((role, each.threads, *(_Figure(time, 4) for time in times), latency.calls))
        yield _table(("model", "threads", "median ms", "p90 ms", "p99 ms", "mean ms", "runs"), rows)
        yield ""
        for each in found.timings:
            ratio = f"A / B {each.ratio:.2f}" if each.ratio is not None else each.problem
            yield _line(f"threads {each.threads}: {ratio}")

    data = {"a": arguments.what, "b": arguments.b, "inputs": list(map(asdict, found.inputs)), "seed": found.seed}
    return Outcome({**data, "timings": list(map(asdict, found.timings))}, text)


def _ratio_cells(timing: ModelTiming) -> tuple[_Figure, _Figure, _Figure]:
    stock, ours = (None if each is None else each.median_ms for each in (timing.stock, timing.ours))
    stock_absent = "-" if ours is None else "fails"  # where ours fails, nothing is timed
    return _Figure(stock, 4, stock_absent), _Figure(ours, 4, "fails"), _Figure(timing.ratio, 2)


def _ratio_style(ratio: _Figure) -> str:
    return "" if ratio.value is None else "red" if ratio.value < 0.95 else "green" if ratio.value > 1.05 else ""


def _rewritten(timing: ModelTiming) -> str:
    return ", ".join(f"{count} {operator}" for operator, count in (timing.rewritten or {}).items()) or "-"


def _counts_of_threads(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number of threads from 1 on, or several like 1,2")
    return tuple(map(int, text.split(",")))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _positive_numbers(text: str) -> tuple[int, ...]:
    return tuple(map(_positive, text.split(",")))


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    if not re.fullmatch(r"[0-9]*\.?[0-9]+", text) or not 0 < float(text) < 1e6:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds above 0")
    return float(text)


def _sizes(text: str) -> tuple[tuple[int, int], ...]:
    if not re.fullmatch(r"[1-9][0-9]{0,8}x[1-9][0-9]{0,8}(,[1-9][0-9]{0,8}x[1-9][0-9]{0,8})*", text):
        raise argparse.ArgumentTypeError(f"{text} is not a size like 256x1024, or several like 64x64,256x1024")
    rows_and_columns = (size.split("x") for size in text.split(","))
    return tuple((int(rows), int(columns)) for rows, columns in rows_and_columns)


def _natural(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 on")
    return int(text)


COMMANDS = (
    Command(
        "rewrite",
        "turn chains with run-time quantization parameters into ort_dynq's operators",
        "ort-dynq rewrite model.onnx -o fast.onnx --verify",
        _rewrite_arguments,
        _rewrite,
    ),
    Command(
        "inspect",
        "show which dynamic quantization chains a model has, what would be done with each, and why not",
        "ort-dynq inspect model.onnx",
        _inspect_arguments,
        _inspect,
    ),
    Command(
        "report",
        "write a page to forward: what a rewrite does to a model, where the time goes before and after, and the proof",
        "ort-dynq report model.onnx -o report.html --shape x=1x128x768",
        _report_arguments,
        _report,
    ),
    Command(
        "doctor",
        "look at this installation: versions, CPU, whether both backends load, and a self-test of the kernels",
        "ort-dynq doctor --json",
        _doctor_arguments,
        _doctor,
    ),
    Command(
        "verify",
        "run two models on the same inputs and compare every output bit for bit, and integer products with float64",
        "ort-dynq verify model.onnx fast.onnx --shape x=1x128x768",
        _verify_arguments,
        _verify,
    ),
    Command(
        "bench",
        "time operators, chains, networks or models against stock ONNX Runtime, in turns in one process",
        "ort-dynq bench ops --threads 1 --isa avx2 | ort-dynq bench chains | "
        "ort-dynq bench networks --forms token,tensor_u8 | ort-dynq bench models/ | "
        "ort-dynq bench model.onnx fast.onnx --shape x=1x128x768",
        _bench_arguments,
        _bench,
    ),
)


# what all have in common


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are one line."""

    def error(self, message: str) -> Any:
        raise DynqError(f"{message} (see {self.prog} --help)")


_FILES = ("IN", "OUT", "OUT.html", "A", "B", "WHAT")  # arguments that name one


class _PrintCompletion(argparse.Action):
    """Prints what a shell needs to complete the command, made from the parser itself."""

    def __call__(self, parser: argparse.ArgumentParser, _: Any, values: Any, __: Any = None) -> None:
        import shtab

        for action in parser._actions:
            for subparser in (action.choices or {}).values() if isinstance(action, argparse._SubParsersAction) else ():
                for argument in subparser._actions:
                    if argument.metavar in _FILES:
                        argument.complete = shtab.FILE
        print(shtab.complete(parser, values))
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROGRAM, description="Fast, exact dynamic quantization for ONNX Runtime on CPUs.")
    parser.add_argument("--version", action="version", version=f"{_PROGRAM} {__version__}")
    parser.add_argument(
        "--print-completion",
        choices=("bash", "zsh", "tcsh"),
        action=_PrintCompletion,
        help="print a script that completes this command in that shell, and exit; bash: "
        'eval "$(ort-dynq --print-completion bash)"',
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        subparser = subparsers.add_parser(
            command.name, help=command.doc, description=command.doc, epilog=f"example: {command.example}"
        )
        command.arguments(subparser)
        subparser.add_argument("--json", action="store_true", help="print JSON instead of text")
        subparser.set_defaults(run=command.run)
    return parser


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """Shows on a terminal's stderr what is going on."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True, markup=False).status(_line(what)):
        yield


@contextlib.contextmanager
def _progress() -> Iterator[Track]:
    """What iterates and shows on a terminal's stderr how far it is; between two steps nothing else runs meanwhile."""
    if not sys.stderr.isatty():
        yield iter
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=Console(stderr=True), auto_refresh=False, transient=True) as progress:

        def track(steps: Sequence[Any]) -> Iterator[Any]:
            task = progress.add_task("", total=len(steps))
            for step in steps:
                progress.update(task, description=_line(str(step)), refresh=True)
                yield step
                progress.advance(task)

        yield track


def _rendered(text: Iterable[RenderableType]) -> str:
    """The text for stdout: as wide as the terminal, or, where there is none, as wide as its longest row."""
    from rich.console import Console

    console = Console(
        markup=False, highlight=False, emoji=False, soft_wrap=True, width=None if sys.stdout.isatty() else 100_000
    )
    with console.capture() as capture:
        for each in text:
            console.print(each, style={"PASSED": "bold green", "FAILED": "bold red"}.get(str(each)))
    return capture.get().rstrip("\n")


@dataclass(frozen=True)
class _Figure:
    """A number in a table, or what stands for one that is not there."""

    value: float | None
    digits: int
    absent: str = "-"

    def __str__(self) -> str:
        return self.absent if self.value is None else f"{self.value:.{self.digits}f}"


def _table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], style: Callable[[Sequence[Any]], str] = lambda _: ""
) -> RenderableType:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    listed = list(rows)
    for i, title in enumerate(head):
        numeric = all(isinstance(row[i], int | _Figure) for row in listed)
        justify: JustifyMethod = "right" if numeric else "left"
        table.add_column(title, justify=justify, no_wrap=numeric, min_width=len(title), overflow="fold")
    for row in listed:
        table.add_row(*(_line(str(cell)) for cell in row), style=style(row))
    return table


def _line(text: str) -> str:
    """The text on one line, with nothing in it that a terminal would act on."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in " ".join(text.split()))
