"""`ort-dynq bench`: what it times, its JSON and its mistakes. Never how long something takes."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import onnx
import pytest

from ort_dynq import DynqError, cli, kernels
from ort_dynq.bench import chains, models, operators, timing, transformers
from ort_dynq.bench.onnx_text import parse
from ort_dynq.rewriter import rewrite

MODELS = Path(__file__).parents[2] / "models"
TOKEN = str(MODELS / "torch_token" / "model.onnx")
QUICK = timing.Settings(seconds=0.001, warmup=1)
TIMES = {"median_ms", "p90_ms", "p99_ms", "mean_ms", "calls"}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert cli.main(["bench", *arguments, "--seconds", "0.001", "--warmup", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(run(capsys, *arguments, "--json"))


def check_latency(latency: dict[str, float]) -> None:
    assert latency.keys() == TIMES
    assert 0 < latency["median_ms"] <= latency["p90_ms"] <= latency["p99_ms"]
    assert latency["mean_ms"] > 0
    assert latency["calls"] >= 5


# Operators


def test_operators(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "ops", "--sizes", "1x64,130x3", "--threads", "1,2", "--isa", "portable")
    versions = {"onnxruntime", "ort_dynq", "python"}
    assert data["machine"].keys() == {"cpu", "cores", "load", "isa", "backend", *versions}
    assert (data["machine"]["isa"], data["machine"]["backend"]) == ("portable", "native")
    assert data["settings"] == {"threads": [1, 2], "seconds": 0.001, "warmup": 1, "backend": "native", "exact": False}
    assert {
        (each["operator"], each["granularity"], tuple(each["shape"]), each["threads"]) for each in data["timings"]
    } == {
        (operator, granularity, shape, threads)
        for operator in ("QuantizeLinear", "DequantizeLinear")
        for granularity in (
            "per tensor",
            "axis 0",
            "last axis",
            "blocks of 128, last axis",
            "blocks of 128, axis 0",
        )
        for shape in ((1, 64), (130, 3))
        for threads in (1, 2)
    }
    assert len(data["timings"]) == 2 * 5 * 2 * 2
    for each in data["timings"]:
        assert each["ratio"] == pytest.approx(each["stock_ns"] / each["ours_ns"])
        assert min(each["ours_ns"], each["stock_ns"], each["copy_ratio"]) > 0


def test_the_instruction_set_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    before = kernels.isa()
    run(capsys, "ops", "--sizes", "2x2", "--threads", "1", "--isa", "portable")
    assert kernels.isa() == before


def test_operators_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "ops", "--sizes", "2x3", "--threads", "1").splitlines()
    assert re.fullmatch(r".+, [0-9]+ cores, load [0-9.]+ before", lines[0])
    assert lines[1] == f"instruction set {kernels.isa()}, backend native"
    assert re.fullmatch(r"onnxruntime [0-9.]+\S*, ort_dynq \S+, Python [0-9.]+\S*", lines[2])
    rows = [line for line in lines if re.search(r" 2x3 +1 +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$", line.rstrip())]
    assert len(rows) == 10


def test_misaligned_operators(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("ops", "--misaligned", "--sizes", "3x20,2x64", "--threads", "1,2")
    timings = run_json(capsys, *arguments)["timings"]
    assert [
        (each["threads"], tuple(each["shape"]), each["operator"], each["granularity"], each["offset"])
        for each in timings
    ] == list(
        itertools.product(
            (1, 2),
            ((3, 20), (2, 64)),
            ("QuantizeLinear", "DequantizeLinear"),
            ("per tensor", "axis 0", "last axis"),
            (0, 16, 32),
        )
    )
    for each in timings:
        assert each["ratio"] == pytest.approx(each["stock_ns"] / each["ours_ns"])
        assert min(each["ours_ns"], each["stock_ns"]) > 0
    lines = run(capsys, *arguments).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("operator "))
    assert re.split(r" {2,}", lines[head].strip()) == [
        *("operator", "scales", "tensor", "threads"),
        *("ours ns", "stock ns", "ratio", "offset"),
    ]
    rows = [line.rstrip() for line in lines[head + 1 :]]
    assert len(rows) == len(timings)
    for row, each in zip(rows, timings, strict=True):
        assert re.search(rf"{each['threads']} +[0-9.]+ +[0-9.]+ +[0-9.]+ +{each['offset']}$", row)


@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("offset", [0, 16, 32])
def test_a_misaligned_output_is_written_at_its_offset(offset: int, operator: str) -> None:
    """Both sessions write into the array at this address; they would allocate aligned outputs themselves."""
    granularity = operators.Granularity("last axis", 1, (1,))
    case = operators.Case(operator, granularity, (3, 20), 1, offset)
    for contender in operators.contenders(case, QUICK):
        output = contender.arrays[-1]
        assert output.ctypes.data % 64 == offset
        expected = output.copy()
        assert expected.any()
        output.fill(0)
        contender.run()
        assert output.tobytes() == expected.tobytes()


def test_default_sizes_of_misaligned_operators() -> None:
    assert operators.MISALIGNED_SIZES == ((256, 1000), (2560, 100), (4096, 60), (256, 1024))


def test_every_operator_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise stock ONNX Runtime is timed twice; blocks that are not whole included."""
    rewritten = []

    def recorded(model: onnx.ModelProto) -> Any:
        result = rewrite(model)
        rewritten.append([finding.operator for finding in result.report.findings])
        return result

    monkeypatch.setattr(operators, "rewrite", recorded)
    operators.bench_operators(QUICK, [(3, 130)])
    assert rewritten == [["DynamicQuantize"]] * 5 + [["DynamicDequantize"]] * 5


def test_a_wrong_result_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: onnx.ModelProto) -> Any:
        model = onnx.ModelProto.FromString(model.SerializeToString())
        model.graph.node[0].input[2] = ""
        return rewrite(model)

    monkeypatch.setattr(operators, "rewrite", wrong)
    with pytest.raises(DynqError, match="QuantizeLinear 4x4 per tensor, threads: 1 differs from stock ONNX Runtime's"):
        operators.bench_operators(QUICK, [(4, 4)])


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [2, 1000, 2**20 + 2])
def test_the_copy_copies_everything(size: int, threads: int) -> None:
    copy = operators.copy_contender(size, threads)
    source, target = copy.arrays
    assert source.nbytes + target.nbytes == size
    assert not target.any()
    copy.run()
    assert target.all()
    assert (copy.repeats > 1) == (threads > 1 and size >= 2**20)


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 7)])
@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.float16])
def test_data_is_aligned(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    array = np.asarray(np.arange(np.prod(shape, dtype=int)).reshape(shape), dtype)
    for offset in (0, 16, 32):
        aligned = timing.aligned(array, offset)
        assert aligned.ctypes.data % 64 == offset or not array.size
        assert (aligned.dtype, aligned.shape) == (array.dtype, array.shape)
        assert np.array_equal(aligned, array)


# Turns


@pytest.mark.parametrize("threads", [1, 2])
def test_contenders_take_turns(threads: int) -> None:
    log: list[str] = []
    contenders = [timing.Contender(lambda name=name: log.append(name), []) for name in "abc"]
    samples = timing.interleave(contenders, timing.Settings(seconds=0.002, warmup=3), threads)
    assert "".join(log).startswith("aaabbbccc")
    turns = re.sub(r"(.)\1*", r"\1", "".join(log[9:]))
    assert re.match("abcbabcbabc", turns)  # forward and backward, so that nobody always comes after the same one
    counts = [log[9:].count(name) for name in "abc"]
    untimed = [count - each.size for each, count in zip(samples, counts, strict=True)]
    assert all(each.size >= 5 for each in samples)
    if threads == 1:  # a turn begins with one call that is not timed
        assert len({*untimed}) == 1
    assert all(each >= 5 for each in untimed)


def test_the_work_of_a_run_is_divided() -> None:
    event = threading.Event()
    one, many = (timing.Contender(lambda: event.wait(0.002), [], times) for times in (1, 1000))
    a, b = timing.interleave([one, many], QUICK, 1)
    assert np.median(a) > 100 * np.median(b)


# Models


def test_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, TOKEN, "--threads", "1,2", "--shape", "x=1x3x20")
    assert (data["a"], data["b"], data["seed"]) == (TOKEN, None, 0)
    assert data["inputs"] == [{"name": "x", "dtype": "float32", "shape": [1, 3, 20], "given": False, "assumed": {}}]
    assert [each["threads"] for each in data["timings"]] == [1, 2]
    for each in data["timings"]:
        assert (each["name"], each["problem"]) == (TOKEN, "")
        assert each["rewritten"] == {"DynamicRangeFakeQuantize": 1}
        check_latency(each["stock"])
        check_latency(each["ours"])
        assert each["ratio"] == pytest.approx(each["stock"]["median_ms"] / each["ours"]["median_ms"])


def test_a_model_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, TOKEN).splitlines()
    assert lines[3].endswith("assumed batch = 2, tokens = 8: set it with --shape x=2x8x20")
    assert lines[4] == f"A: {TOKEN}, in stock ONNX Runtime"
    assert lines[5] == "B: A, rewritten, with the plugin"
    assert lines[6].startswith("1 dynamic quantization chains and products to rewrite, 1 to leave")
    head = next(i for i, line in enumerate(lines) if line.startswith("model"))
    assert lines[head].split() == ["model", "threads", "median", "ms", "p90", "ms", "p99", "ms", "mean", "ms", "runs"]
    assert [line.split()[:2] for line in lines[head + 1 : head + 3]] == [["A", "1"], ["B", "1"]]
    assert re.fullmatch(r"threads 1: A / B [0-9]+\.[0-9]{2}", lines[-1])


def test_two_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fast, x = str(tmp_path / "fast.onnx"), str(tmp_path / "x.npy")
    rewrite(TOKEN).save(fast)
    np.save(x, np.ones((1, 1, 20), np.float32))
    data = run_json(capsys, TOKEN, fast, "--input", f"x={x}")
    assert (data["a"], data["b"]) == (TOKEN, fast)
    assert data["inputs"][0]["given"]
    assert data["timings"][0]["rewritten"] is None
    lines = run(capsys, TOKEN, fast, "--seed", "7").splitlines()
    assert "generated, seed 7" in lines[3]
    assert lines[5:7] == [f"B: {fast}, with the plugin", ""]


def test_b_is_b(tmp_path: Path) -> None:
    """Not A again: here it fails, and only where it runs with the plugin."""
    model = helpers.parse("float[batch, tokens, 20] y", "float[batch, tokens, 20] z", "z = Relu(y)")
    onnx.save(model, tmp_path / "b.onnx")
    with pytest.raises(
        DynqError, match=r"^B does not run in ONNX Runtime with the plugin at its default level: .*: x$"
    ):
        models.bench_model(TOKEN, tmp_path / "b.onnx", QUICK)


def test_a_model_that_stock_onnxruntime_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(MODELS / "row_zero_point" / "model.onnx")
    (timing,) = run_json(capsys, model)["timings"]
    assert (timing["stock"], timing["ratio"]) == (None, None)
    assert timing["problem"].startswith(f"{model} does not run in stock ONNX Runtime at its default level: ")
    check_latency(timing["ours"])
    assert run(capsys, model).splitlines()[-1] == f"threads 1: {timing['problem']}"


def test_outputs_of_every_type(tmp_path: Path) -> None:
    """Text cannot be bound like numbers; a sequence is no tensor."""
    body = "b = Greater(x, x) t = Cast<to = 8>(x) h = Cast<to = 10>(x) i = Cast<to = 7>(x) q = SequenceConstruct(x)"
    outputs = "bool[2] b, string[2] t, float16[2] h, int64[2] i, seq(float[2]) q"
    onnx.save(helpers.parse("float[2] x", outputs, body), tmp_path / "model.onnx")
    contender = timing.session_contender("it", str(tmp_path / "model.onnx"), {"x": np.ones(2, np.float32)}, 1)
    contender.run()
    assert [array.dtype for array in contender.arrays] == [np.float32, np.bool_, np.float16, np.int64]


# Folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("torch_token", "row_zero_point", "ort_dynamic"):
        shutil.copytree(MODELS / name, tmp_path / name)
    (tmp_path / "no model").mkdir()
    (tmp_path / "README.md").touch()
    return tmp_path


def test_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(folder / "torch_token", folder / "without data")
    shutil.rmtree(folder / "without data" / "test_data_set_0")
    shutil.copytree(folder / "torch_token", folder / "broken")
    (folder / "broken" / "model.onnx").write_bytes(b"no model")
    data = run_json(capsys, str(folder))
    assert data["folder"] == str(folder)
    timings = {each["name"]: each for each in data["timings"]}
    assert list(timings) == ["broken", "ort_dynamic", "row_zero_point", "torch_token", "without data"]
    assert timings["torch_token"]["rewritten"] == {"DynamicRangeFakeQuantize": 1}
    assert timings["ort_dynamic"]["rewritten"] == {}
    assert timings["row_zero_point"]["stock"] is None
    for name in ("ort_dynamic", "torch_token"):
        assert (timings[name]["problem"], timings[name]["ratio"] > 0) == ("", True)
        check_latency(timings[name]["stock"])
    for name, problem in (("broken", "not an ONNX model"), ("without data", "'x'")):
        assert (timings[name]["stock"], timings[name]["ours"], timings[name]["ratio"]) == (None, None, None)
        assert problem in timings[name]["problem"]


def test_a_folder_as_text(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, str(folder), "--threads", "1,2").splitlines()
    rows = [line.split() for line in lines if re.match(r"(ort_dynamic|row_zero_point|torch_token) +[12] ", line)]
    assert [row[:2] for row in rows] == [
        [name, threads] for name in ("ort_dynamic", "row_zero_point", "torch_token") for threads in "12"
    ]
    assert rows[2][2] == "fails"
    assert rows[2][4] == "-"
    assert rows[0][5:] == ["-"]
    assert rows[4][5:] == ["1", "DynamicRangeFakeQuantize"]
    assert lines[-1].startswith("row_zero_point does not run in stock ONNX Runtime at its default level")


def test_recorded_inputs(tmp_path: Path) -> None:
    """By name; in order where the names are not the inputs'; the tenth after the ninth."""
    names = [f"x{i}" for i in range(11)]
    model = helpers.parse(", ".join(f"float[1] {name}" for name in names), "float[1] y", "y = Relu(x0)")
    onnx.save(model, tmp_path / "model.onnx")
    data = tmp_path / "test_data_set_0"
    data.mkdir()
    for tensors in (names, [""] * 11):
        for i, name in enumerate(tensors):
            proto = onnx.numpy_helper.from_array(np.full(1, i, np.float32), name)
            (data / f"input_{i}.pb").write_bytes(proto.SerializeToString())
        assert {name: array.item() for name, array in models.recorded_inputs(tmp_path).items()} == {
            f"x{i}": i for i in range(11)
        }
    (data / "input_3.pb").write_bytes(b"no tensor")
    with pytest.raises(DynqError, match=r"input_3\.pb is not a tensor"):
        models.recorded_inputs(tmp_path)


# Chains


def test_chains(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, "chains")
    assert {each["name"]: (each["nodes"], each["rewritten"]) for each in data["timings"]} == {
        "symmetric per token to int8": (8, {"DynamicRangeQuantize": 1}),
        "symmetric per token, fake-quantized": (8, {"DynamicRangeFakeQuantize": 1}),
        "torchao asymmetric per token, fake-quantized": (28, {"DynamicRangeFakeQuantize": 1}),
        "asymmetric per tensor -> Q -> DQ": (15, {"DynamicRangeFakeQuantize": 1}),
    }
    for each in data["timings"]:
        for role in ("stock", "ours", "relu"):
            check_latency(each[role])
        assert each["ratio"] == pytest.approx(each["stock"]["median_ms"] / each["ours"]["median_ms"])
        assert each["relu_ratio"] == pytest.approx(each["ours"]["median_ms"] / each["relu"]["median_ms"])


def test_chains_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "chains").splitlines()
    assert sum(line.rstrip().endswith(("DynamicRangeQuantize", "DynamicRangeFakeQuantize")) for line in lines) == 4


@pytest.mark.parametrize("chain", chains.CHAINS, ids=str)
def test_chains_are_exact(chain: chains.Chain) -> None:
    model = parse("float[512, 4096] x", chain.outputs, chain.nodes, opset=20, constants=chain.constants)
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(1).standard_normal((512, 4096), np.float32)
    expected = helpers.stock_session(model).run(None, {"x": x})
    actual = helpers.make_session(rewrite(model).to_proto(), "native").run(None, {"x": x})
    for a, b in zip(actual, expected, strict=True):
        helpers.assert_same(a, b)


# Networks

SMALL = ("networks", "--layers", "1", "--hidden", "16", "--heads", "2")


def test_networks(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *SMALL, "--tokens", "1,3")
    assert data["sizes"] == {"layers": 1, "hidden": 16, "heads": 2}
    assert [(each["network"], each["name"], each["tokens"], each["threads"]) for each in data["timings"]] == [
        (network, form, tokens, 1)
        for network in ("encoder", "decoder")
        for form in transformers.FORMS
        for tokens in (1, 3)
    ]
    for each in data["timings"]:
        assert (each["rewritten"] == {}) == (each["name"] == "float")
        check_latency(each["stock"])
        check_latency(each["ours"])
        assert each["ratio"] == pytest.approx(each["stock"]["median_ms"] / each["ours"]["median_ms"])


def test_networks_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--networks", "decoder", "--forms", "torchao,float", "--tokens", "2", "--threads", "1,2")
    lines = run(capsys, *arguments).splitlines()
    assert lines[3] == "layers 1, hidden size 16, heads 2; medians; ratio: stock / ours"
    rows = [line.split() for line in lines if line.startswith("decoder ")]
    assert [row[:4] for row in rows] == [
        ["decoder", form, "2", threads] for form in ("torchao", "float") for threads in "12"
    ]
    converted = ["4", "DynamicRangeFakeQuantize,", "6", "AccumulatorDequantize"]
    assert [row[7:] for row in rows] == [converted] * 2 + [["-"]] * 2


def test_networks_that_are_rewritten_exactly(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_json(capsys, *SMALL, "--networks", "encoder", "--forms", "token", "--tokens", "2", "--exact")
    assert data["timings"][0]["rewritten"] == {"DynamicRangeFakeQuantize": 4}


# Mistakes and help


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.onnx"], "A (missing.onnx) is not a file"),
        ([TOKEN, "missing.onnx"], "B (missing.onnx) is not a file"),
        (["."], ". has no subfolders with a model.onnx"),
        (["ops", "b.onnx"], "B is for `ort-dynq bench A.onnx`, not for ops"),
        (["chains", "--sizes", "4x4"], "--sizes is for `ort-dynq bench ops`, not for chains"),
        (["chains", "--misaligned"], "--misaligned is for `ort-dynq bench ops`, not for chains"),
        ([".", "--shape", "x=4"], "--shape is for `ort-dynq bench A.onnx`, not for ."),
        (["ops", "--input", "x=x.npy"], "--input is for `ort-dynq bench A.onnx`, not for ops"),
        ([".", "--forms", "token"], "--forms is for `ort-dynq bench networks`, not for ."),
        (["ops", "--layers", "2"], "--layers is for `ort-dynq bench networks`, not for ops"),
        (["networks", "--networks", "rnn"], "there is no network 'rnn', expected one of encoder, decoder"),
        (["networks", "--forms", "token,int3"], "there is no form 'int3', expected one of float, token, "),
        (["networks", "--heads", "5"], "5 heads do not divide the width 768"),
        (["networks", "--layers", "0"], "argument --layers: 0 is not a positive integer"),
        (["networks", "--tokens", "1,"], "argument --tokens: "),
        ([TOKEN, "--shape", "x=4"], "the input x has shape [4], expected [batch, tokens, 20]"),
        ([TOKEN, "--shape", "z=4"], "the model has no input z; it has x"),
        (["ops", "--sizes", "4"], "argument --sizes: 4 is not a size like 256x1024"),
        (["ops", "--sizes", "0x4"], "argument --sizes: 0x4 is not a size"),
        (["ops", "--threads", "0"], "argument --threads: 0 is not a positive number of threads"),
        (["ops", "--seconds", "0"], "argument --seconds: 0 is not a positive number of seconds"),
        (["ops", "--seconds", "nan"], "argument --seconds: nan is not a positive number of seconds"),
        (["ops", "--warmup", "-1"], "argument --warmup: "),
        (["ops", "--isa", "avx1024"], "avx1024"),
        (["ops", "--backend", "tpu"], "argument --backend: invalid choice: 'tpu'"),
        (["ops", "--sizes", "99999999x99999999", "--threads", "1"], "a tensor does not fit in memory"),
        ([], "the following arguments are required: WHAT"),
    ],
)
def test_mistakes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["bench", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("ort-dynq: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    for example in ("bench ops", "bench chains", "bench networks", "bench models/", "bench model.onnx fast.onnx"):
        assert f"ort-dynq {example}" in text


def test_progress_is_for_terminals(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert cli.main(["bench", "ops", "--sizes", "2x2", "--threads", "1", "--seconds", "0.001", "--json"]) == 0
    captured = capsys.readouterr()
    assert "QuantizeLinear 2x2 per tensor" in captured.err
    assert len(json.loads(captured.out)["timings"]) == 10
