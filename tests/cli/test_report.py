"""The HTML report: its facts, its page, and no partial files.

More than 450 lines: the tests of the facts and of the page share a report, which takes a second to measure.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html.parser
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import helpers
import nbits
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ort_dynq
from ort_dynq import cli
from ort_dynq.graphs import named
from ort_dynq.rewriter import inspect
from ort_dynq.storage import load
from ort_dynq.tools.bench import pair as pairs
from ort_dynq.tools.bench.changes import changes
from ort_dynq.tools.bench.models import Samples
from ort_dynq.tools.bench.pair import Pair, measure_pair
from ort_dynq.tools.measuring.timing import Settings
from ort_dynq.tools.report.model import ModelReport, report_on

MODELS = Path(__file__).parents[2] / "models"
ENCODER = MODELS / "torch_encoder_u8" / "model.onnx"
HTML_NAME = '<img src=x onerror="alert(1)"><script>alert(2)</script>&amp; {{ 7 * 7 }}'
CONTROL = "\x1b[31m\x07\x00\u202e"  # red on a terminal, a bell, the end of a text in C, letters from right to left


@pytest.fixture(scope="module")
def pair() -> Pair:
    return measure_pair(ENCODER, Settings(seconds=0.1))


@pytest.fixture(scope="module")
def report(pair: Pair) -> ModelReport:
    return report_on(pair)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A model with HTML and control characters in every name, and HTML in the name of its file."""
    model = onnx.load(ENCODER)
    for i, node in enumerate(model.graph.node):
        node.name = f"{HTML_NAME}{CONTROL}{i}"
    names = {model.graph.input[0].name: HTML_NAME, model.graph.output[0].name: f"out{HTML_NAME}{CONTROL}"}
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    model.graph.input[0].name, model.graph.output[0].name = HTML_NAME, f"out{HTML_NAME}{CONTROL}"
    path = tmp_path / "<b>bold.onnx"
    onnx.save(model, path)
    return path


# Facts


def test_facts_equal_rewrite_and_verify(report: ModelReport) -> None:
    expected = inspect(ENCODER)
    assert report.pair.rewrite_report.findings == expected.findings
    assert (report.pair.rewrite_report.before, report.pair.rewrite_report.after) == (expected.before, expected.after)
    assert sum(group.count for group in report.groups) == len(expected.findings)
    assert report.pair.verification.passed
    assert len(report.pair.verification.products) == 12
    assert report.pair.problem == ""
    for side in (report.before, report.after):
        assert side is not None
        assert 0 < side.latency.min_ms <= side.latency.median_ms <= side.latency.p99_ms <= side.max_ms
        assert sum(side.counts) + side.beyond == side.latency.calls
    assert report.before is not None
    assert report.after is not None
    assert report.ratio == report.before.latency.median_ms / report.after.latency.median_ms


def test_profiled_times_add_up(report: ModelReport) -> None:
    assert report.before_profile is not None
    assert report.after_profile is not None
    for side in (report.before_profile, report.after_profile):
        nodes = sum(node.ms for node in side.profile.nodes)
        assert sum(side.kinds.values()) == pytest.approx(side.profile.run_ms)
        assert sum(group.ms for group in side.groups) == pytest.approx(nodes)
        assert sum(group.count for group in side.groups) == len(side.profile.nodes)
    for times, side in ((report.before, report.before_profile), (report.after, report.after_profile)):
        assert times is not None
        assert side.profile.run_ms == times.latency.median_ms
        assert 0 < side.profile.scale < 1  # the profiler slows the model down
    before, after = report.before_profile.kinds, report.after_profile.kinds
    assert before["ours"] == 0 < before["chains"]
    assert after["chains"] == 0 < after["ours"]
    # Programs compute the codes that integer products take.
    ours = {each.op_type for each in report.operators if each.ours}
    assert ours == {"RowProgram", "QuantizedMatMul", "QuantizedMatMulProgram"}
    kinds = {group.op_type: group.kind for group in report.after_profile.groups}
    assert kinds["RowProgram"] == "ours"
    assert kinds["QuantizedMatMul"] == kinds["QuantizedMatMulProgram"] == "products"
    calls = {each.op_type: (each.before_calls, each.after_calls) for each in report.operators}
    assert calls["RowProgram"] == (0, 16)
    assert calls["Round"] == (16, 0)


def test_sizes_are_those_of_the_files(report: ModelReport, tmp_path: Path) -> None:
    ort_dynq.rewrite(ENCODER).save(tmp_path / "fast.onnx")
    assert report.pair.bytes == ENCODER.stat().st_size
    # Where the model came from is noted when the source is a file.
    assert abs(report.pair.new_bytes - (tmp_path / "fast.onnx").stat().st_size) < 200
    (tmp_path / "folder").mkdir()
    apart = tmp_path / "folder" / "apart.onnx"
    onnx.save(onnx.load(ENCODER), apart, save_as_external_data=True, size_threshold=1000)
    pair = measure_pair(apart, Settings(seconds=0.01))
    assert pair.bytes == sum(path.stat().st_size for path in apart.parent.iterdir()) > apart.stat().st_size
    assert pair.new_bytes == pytest.approx(report.pair.new_bytes, rel=0.01)


def test_histogram_ends_at_the_95th_percentile(pair: Pair) -> None:
    """Equal numbers of runs of 1 to 100 ms, and of 0.5 to 50 ms."""
    ours = np.arange(0.5e6, 50.1e6, 0.5e6)
    found = report_on(dataclasses.replace(pair, samples=Samples(ours, ours * 2, "")))
    assert found.before is not None
    assert found.after is not None
    assert found.end_ms == np.percentile(ours * 2, 95) / 1e6
    assert (sum(found.before.counts), found.before.beyond, found.after.beyond) == (95, 5, 0)
    assert "5 longer" in _Page(found.to_html()).text
    rare = np.where(np.arange(100) < 90, 1e6, 900e6)  # so that the rest is more than one bin
    assert report_on(dataclasses.replace(pair, samples=Samples(rare, None, "x"))).end_ms == 3


def test_changes_are_those_of_the_models() -> None:
    """The operators that each picture counts are those that the graph has less of, and more."""
    original = named(load(ENCODER))
    result = ort_dynq.rewrite(original)
    found = changes(original, result.model)
    assert [each.count for each in found] == [2, 8, 4, 2]
    for side, others in (("before", "after"), ("after", "before")):
        drawn = Counter[str]()
        for change in found:
            diagram = getattr(change, side)
            assert diagram.nodes == sum(box.count for box in diagram.boxes if box.kind)
            drawn += Counter({box.op_type: 0 for box in diagram.boxes})
            for box in diagram.boxes:
                drawn[box.op_type] += change.count * box.count * bool(box.kind)
        graph = {op.removeprefix("ort_dynq."): count for op, count in getattr(result.report, side).items()}
        other = {op.removeprefix("ort_dynq."): count for op, count in getattr(result.report, others).items()}
        for op in ("RowProgram", "QuantizedMatMul", "QuantizedMatMulProgram", "ReduceMax", "Div", "MatMul", "Round"):
            assert drawn[op] == max(0, graph.get(op, 0) - other.get(op, 0)), op
    before, after = found[0].before, found[0].after
    assert [(box.count, box.op_type) for box in after.boxes] == [
        *((1, "input"), (1, "RowProgram"), (3, "QuantizedMatMul"), (3, "output"))
    ]
    assert after.edges == ((0, 1), (1, 2), (2, 3))
    names = [box.op_type for box in before.boxes]
    edges = {(names[a], names[b]) for a, b in before.edges}
    assert {("input", "ReduceMax"), ("QuantizeLinear", "DequantizeLinear"), ("DequantizeLinear", "MatMul")} <= edges


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("torch_if", "x the speed|No speedup|Slower"),
        ("torchscript_loop", "x the speed|No speedup|Slower"),
        ("functions", r"RowProgram<small>row program</small><small title=.*>[0-9]+ steps</small>"),
        ("torch_lsq_constant", "Nothing to rewrite, 1 unconverted."),
        ("row_zero_point", "The rewritten model runs; the original does not"),
    ],
)
def test_report_on_special_models(name: str, title: str) -> None:
    """Models with subgraphs, without chains, and one that stock ONNX Runtime does not run at its default level."""
    found = report_on(measure_pair(MODELS / name / "model.onnx", Settings(seconds=0.05)))
    assert found.pair.verification.passed
    assert re.search(title, found.to_html())
    assert (
        (found.before is None)
        == (found.before_profile is None)
        == bool(found.pair.problem)
        == (name == "row_zero_point")
    )
    json.dumps(found.to_dict(), allow_nan=False)


def test_fusions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page and JSON have the time of each fusion; which nodes it is the time of: tests/measuring."""
    page = tmp_path / "report.html"
    options = ("--report", str(page), "--seconds", "0.01", "--fuse", "--json")
    assert cli.main(["bench", str(MODELS / "encoder_token" / "model.onnx"), *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["settings"]["fuse"] is True
    fusions = {each["node"]: each for each in data["fusions"]}
    norm = fusions["layernormalization"]
    assert norm["before"]["LayerNormalization"] == norm["after"]["RowProgram"] == 1
    nodes = {node["name"]: node["ms"] for node in data["after_profile"]["profile"]["nodes"]}
    assert norm["after_ms"] == nodes["layernormalization"]
    assert norm["ratio"] == norm["before_ms"] / norm["after_ms"]
    text = re.sub(r"\s+", " ", page.read_text())
    assert re.search(r"LayerNormalization.{0,80}</td><td class=\"op\" data-label=\"after\">RowProgram</td>", text)
    assert f'<td class="n" data-label="ratio">{norm["ratio"]:.2f}</td>' in text
    assert "not attributed: a part of the product" in text
    assert "<td>with fusions</td>" in text


def test_report_on_a_rewritten_model_that_does_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ort_dynq import rewriter

    result = rewriter.rewrite(ENCODER)
    (node, *_) = (node for node in result.model.graph if node.op_type == "RowProgram")
    node.attributes.add(ir.AttrInt64("axis", 7))
    monkeypatch.setattr(rewriter, "rewrite", lambda *_, **__: result)
    assert cli.main(["bench", str(ENCODER), "--report", str(tmp_path / "r.html"), "--seconds", "0.01"]) == 1
    page = (tmp_path / "r.html").read_text()
    assert '<h1 class="bad">The rewritten model does not run</h1>' in page
    assert "FAILED" in page


@pytest.mark.parametrize(
    ("nan", "headline", "reason"),
    [
        (False, "The rewritten model is wrong: verification failed", "of 144 elements differ"),
        (True, "The rewritten model could not be verified", "no finite value could be compared"),
    ],
)
def test_a_failed_verification_is_the_headline(
    nan: bool,
    headline: str,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A speed says nothing if the model is wrong."""
    from ort_dynq import rewriter

    source, given = tmp_path / "model.onnx", tmp_path / "x.npy"
    text = "one = Constant<value = float {1}>() y = Mul(x, one)"
    model = helpers.parse("float[12, 12] x", "float[12, 12] y", text)
    del model.opset_import[1]
    onnx.save(model, source)
    result = rewriter.rewrite(source)
    if not nan:
        model.graph.node[0].attribute[0].t.float_data[:] = [1.5]
        result = rewriter.Result(ir.from_proto(model), result.report)
    np.save(given, np.full((12, 12), np.nan if nan else 1, np.float32))
    monkeypatch.setattr(rewriter, "rewrite", lambda *_, **__: result)
    arguments = ["bench", str(source), "--report", str(tmp_path / "r.html"), "--seconds", "0.01", f"--input=x={given}"]
    assert cli.main(arguments) == (3 if nan else 1)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("NOT CHECKED: " if nan else "FAILED: y: ")
    assert reason in last
    page = (tmp_path / "r.html").read_text()
    assert f'<h1 class="bad">{headline}</h1>' in page
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[0] == "Verification"  # before any time
    assert headings.count("Verification") == 1
    assert page.count("<h1") == 1
    assert reason in page
    assert "the speed of stock ONNX Runtime" not in page


# As a command


def test_command_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "report.html"
    options = ("--report", str(page), "--seconds", "0.01", "--threads", "2", "--exact")
    assert cli.main(["bench", str(MODELS / "torch_token" / "model.onnx"), *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"{page} is written", "PASSED"]
    assert cli.main(["bench", str(ENCODER), *options, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["report"] == str(page)
    assert data["settings"]["threads"] == [2]
    assert data["verification"]["passed"] is True
    assert (len(data["rewrite_report"]["rewritten"]), len(data["rewrite_report"]["unconverted"])) == (28, 24)
    assert data["machine"]["isa"] == ort_dynq.kernels.isa()
    assert {"before", "after", "ratio", "operators", "before_profile", "after_profile", "versions"} <= {*data}
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_report_on_weights_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.onnx"
    onnx.save(nbits.make(level=0).model, model)
    options = ("--report", str(tmp_path / "report.html"), "--seconds", "0.01", "--weights-only", "blocks", "--json")
    assert cli.main(["bench", str(model), *options]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [each["node"] for each in data["rewrite_report"]["rewritten"]] == ["product"]
    assert data["settings"]["weights_only"] == "blocks"


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("nowhere/r.html", "there is no folder"),
        (".", "is a folder; choose the name of a file"),
        ("model.onnx", "is the model itself; choose another name for the report"),
        ("report.pdf", "the report is an HTML page; choose a name that ends with .html instead of report.pdf"),
    ],
)
def test_wrong_output_path(
    output: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(ENCODER, "model.onnx")
    assert cli.main(["bench", "model.onnx", "--report", output]) == 2
    assert message in capsys.readouterr().err
    assert Path("model.onnx").read_bytes() == ENCODER.read_bytes()


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_failure_before_the_page_is_replaced_keeps_the_old_one(
    error: BaseException,
    pair: Pair,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(*_: object) -> None:
        raise error

    page = tmp_path / "r.html"
    page.write_text("old")
    monkeypatch.setattr(pairs, "measure_pair", lambda *_, **__: pair)
    monkeypatch.setattr("os.replace", refuse)
    assert cli.main(["bench", str(ENCODER), "--report", str(page)]) == (2 if isinstance(error, OSError) else 130)
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]
    assert page.read_text() == "old"
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to a program on a terminal")
def test_interrupt_leaves_no_files(tmp_path: Path) -> None:
    """The progress is shown on a terminal. The signal is the one that Ctrl-C sends."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(ort_dynq.__file__).parent.parent), "TMPDIR": str(temporary)}
    environment |= {"TERM": "xterm", "COLUMNS": "100"}
    master, slave = os.openpty()
    model = MODELS / "torchao_8da8w" / "model.onnx"
    command = [sys.executable, "-m", "ort_dynq", "bench", str(model), "--report", str(tmp_path / "r.html")]
    with subprocess.Popen(
        [*command, "--seconds", "600"],
        stdout=subprocess.PIPE,
        stderr=slave,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # background jobs of a shell ignore it
    ) as program:
        os.close(slave)
        shown, end = "", time.monotonic() + 300  # about two seconds on an idle machine
        while "timing both models" not in shown and time.monotonic() < end and select.select([master], [], [], 300)[0]:
            shown += os.read(master, 4096).decode()
        program.send_signal(signal.SIGINT)
        output, _ = program.communicate(timeout=300)
    os.close(master)
    for step in ("rewriting", "verifying", "timing both models"):
        assert step in shown
    assert "Traceback" not in shown
    assert (program.returncode, output) == (130, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["tmp"]
    assert [path.name for path in temporary.iterdir() if path.name != ".ses"] == []  # that is ONNX Runtime's


# The page


class _Page(html.parser.HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs
        if tag not in ("meta", "link", "wbr"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        self.words += data.split()


def test_page_is_self_contained(report: ModelReport) -> None:
    text = report.to_html()
    page = _Page(text)
    assert not {"img", "iframe", "object"} & {*page.tags}
    assert page.tags["script"] == 1
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (value for name, value in page.attributes if name == "content" and value and "default-src" in value)
    assert policy.endswith(f"; script-src 'sha256-{digest}'")  # no other script runs
    assert [value for name, value in page.attributes if name in ("src", "href")] == ["data:,"]
    assert not re.search(r"https?:|url\(|@import", text)
    assert "prefers-color-scheme: dark" in text
    assert len(text) < 200_000


def test_page_contains_the_facts(report: ModelReport) -> None:
    page = _Page(report.to_html())
    assert report.after is not None
    median = report.after.latency.median_ms
    # The unit is that of the slowest run: milliseconds on a busy machine.
    assert {f"{value:.{digits}f}" for value in (median, median * 1e3) for digits in (1, 2, 3)} & {*page.words}
    for expected in (
        "node_QuantizeLinear_*",
        "RowProgram",
        "QuantizedMatMul",
        "dst = Add(tensor1, x)",
        "PASSED",
        report.pair.machine.cpu,
    ):
        assert expected in page.text
    assert "28 dynamic quantization chains and products rewritten, 12 unconverted." in page.text
    assert all(version in page.words for version in report.versions.values())


def test_names_are_escaped(report: ModelReport, evil: Path) -> None:
    text = report_on(measure_pair(evil, Settings(seconds=0.01))).to_html()
    page = _Page(text)
    assert page.tags["script"] == 1  # the page's own
    assert page.tags["img"] == page.tags["b"] - _Page(report.to_html()).tags["b"] == 0
    assert HTML_NAME in page.text
    assert "<b>bold.onnx" in page.text
    assert r"\x1b[31m\x07\x00\u202e" in page.text
    assert not {*CONTROL} & {*text} - {*"[31m"}
    copied = [json.loads(value or "") for name, value in page.attributes if name == "data-name"]
    assert any({*CONTROL} <= {*name} for name in copied)  # the real names
    assert "\u00d7<wbr>" in text  # what the page itself has is HTML


def test_long_operators_and_patterns(report: ModelReport) -> None:
    """What is cut has a title, and the button of a group says that it copies a pattern."""
    name = 'org.example."quoted".AnOperatorWithAVeryLongName'
    operators = (dataclasses.replace(report.operators[0], op_type=name),)
    page = _Page(dataclasses.replace(report, operators=operators).to_html())
    assert ("title", name) in page.attributes
    assert name not in page.text
    for (_, copied), title in zip(page.attributes, (value for _, value in page.attributes[1:]), strict=False):
        if title in ("copy this pattern", "copy this name"):
            assert ("*" in (copied or "")) == (title == "copy this pattern")
    assert {"copy this pattern", "copy this name"} <= {value for _, value in page.attributes}


def test_a_rewritten_model_is_no_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ort_dynq.rewrite(MODELS / "torch_token" / "model.onnx").save(tmp_path / "fast.onnx")
    assert (
        cli.main(["bench", str(tmp_path / "fast.onnx"), "--report", str(tmp_path / "r.html"), "--seconds", "0.01"]) == 0
    )
    text, page = capsys.readouterr().out, (tmp_path / "r.html").read_text()
    assert "give the original model to compare with it" in text
    assert "give the original model to compare with it" in page
    assert "<h1>The model was rewritten before</h1>" in page
    assert "x speed" not in text


def test_errors_name_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page has no A and B."""
    other, page = MODELS / "torch_token" / "model.onnx", str(tmp_path / "r.html")
    assert cli.main(["bench", str(ENCODER), str(other), "--report", page]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"ort-dynq: error: {ENCODER} and {other} are not interchangeable: only {ENCODER} has ")
    assert f"; only {other} has " in error


def test_bars_fit_their_column(report: ModelReport) -> None:
    """The row of the other operators may be longer than every row before it."""
    many = dataclasses.replace(report, operators=report.operators[:1] * 40)
    widths = re.findall(r'class="bar \w+" style="width:([\d.]+)%', many.to_html())
    assert max(map(float, widths)) == 100


def with_layers(report: ModelReport, count: int) -> ModelReport:
    """The report with as many groups of equal layers, with long names and one long operator."""
    (group, *_) = report.groups
    groups = tuple(dataclasses.replace(group, node=f"{'layer/' * 33}{i}", op_type="Op" * 50) for i in range(count))
    change = report.pair.changes[0]
    boxes = tuple(
        dataclasses.replace(box, op_type="Op" * 50 if box.kind else box.op_type) for box in change.before.boxes
    )
    changed = dataclasses.replace(
        change, names=tuple(each.node for each in groups[:5]), before=dataclasses.replace(change.before, boxes=boxes)
    )
    pair = dataclasses.replace(report.pair, changes=(changed,) * min(count, 20))
    return dataclasses.replace(report, groups=groups, pair=pair)


@pytest.mark.parametrize("count", [0, 1000])
def test_many_layers_and_none(report: ModelReport, count: int) -> None:
    text = with_layers(report, count).to_html()
    page = _Page(text)
    assert page.text.count("layer/layer/") >= count
    assert ("What replaces what" in text) == ("<figure>" in text) == (count > 0)
    assert page.tags["figure"] <= 8
    assert ("There are 12 more kinds." in page.text) == ("960 more" in page.text) == (count > 0)
    assert "@media print" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_layout_in_a_browser(width: int, scheme: Any, report: ModelReport, evil: Path, tmp_path: Path) -> None:
    """No element exceeds the window, no text is cut off, no resource is loaded, and the console stays empty."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="`pip install playwright`")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no chromium: `apt-get install chromium`")
    pages = {"r.html": report, "evil.html": report_on(measure_pair(evil, Settings(seconds=0.05)))}
    if (width == 390) == (scheme == "dark"):
        pages |= {f"{count}.html": with_layers(report, count) for count in (0, 1000)}
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, found in pages.items():
            found.save(tmp_path / name)
            window = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            messages: list[str] = []
            window.on("console", lambda message, messages=messages: messages.append(message.text))
            window.on("pageerror", lambda error, messages=messages: messages.append(str(error)))
            window.on("request", lambda request, messages=messages: messages.append(request.url))
            window.goto((tmp_path / name).as_uri())
            window.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            assert window.evaluate("document.documentElement.scrollWidth") == width
            wide = "e => e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5"
            assert (
                window.evaluate(f"[...document.querySelectorAll('body *')].filter({wide}).map(e => e.outerHTML)") == []
            )
            cut = "e => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).display != 'inline'"
            assert (
                window.evaluate(
                    f"[...document.querySelectorAll('td, th, p, h1, b')].filter({cut}).map(e => e.outerHTML)"
                )
                == []
            )
            dark = window.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 26)"
            assert dark == (scheme == "dark")
            assert window.locator("h1").inner_text()
            assert window.locator("svg rect").count() > 2
            if name == "r.html":
                window.context.grant_permissions(["clipboard-read", "clipboard-write"])
                button = window.locator("button.copy").first
                button.click()
                window.wait_for_function("document.querySelector('button.copy').textContent == 'copied'")
                assert window.evaluate("navigator.clipboard.readText()") == json.loads(
                    button.get_attribute("data-name") or ""
                )
            assert messages == [(tmp_path / name).as_uri(), "data:,"] or messages == [(tmp_path / name).as_uri()]
        browser.close()
