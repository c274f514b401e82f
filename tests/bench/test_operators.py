"""`python tests/bench ops`: its JSON and text, aligned and misaligned outputs, and the plain copy."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import onnx
import pytest
from benching import QUICK, run_developers, run_developers_json

from bench import operators, programs
from ort_dynq import DynqError, kernels, runtime
from ort_dynq.rewriter import rewrite

OTHERS = (("float16", "uint8"), ("bfloat16", "uint8"), ("float32", "uint4"), ("float32", "int4"))


@pytest.mark.parametrize(
    ("sizes", "threads"),
    [
        (((130, 3),), (1,)),
        pytest.param(((1, 64), (130, 3)), (1, 2), marks=pytest.mark.exhaustive),
    ],
)
def test_bench_ops_json(
    sizes: tuple[tuple[int, int], ...], threads: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "--sizes",
        ",".join(f"{rows}x{columns}" for rows, columns in sizes),
        "--threads",
        ",".join(map(str, threads)),
    )
    data = run_developers_json(capsys, "ops", *arguments, "--isa", "portable")
    versions = {"onnxruntime", "ort_dynq", "python"}
    assert data["machine"].keys() == {"cpu", "cores", "has_quota", "load", "isa", "backend", *versions}
    assert (data["machine"]["isa"], data["machine"]["backend"]) == ("portable", "native")
    assert data["settings"] == {
        "threads": [*threads],
        "seconds": 0.001,
        "warmup": 1,
        "backend": "native",
        "exact": False,
        "fuse": False,
        "weights_only": "keep",
        "keep_fused": False,
    }
    whole = ("per tensor", "axis 0", "last axis")
    others = [each for each in data["timings"] if (each["floats"], each["codes"]) != ("float32", "uint8")]
    assert [
        (each["threads"], tuple(each["shape"]), (each["floats"], each["codes"]), each["operator"], each["granularity"])
        for each in others
    ] == list(itertools.product(threads, sizes, OTHERS, ("QuantizeLinear", "DequantizeLinear"), whole))
    assert {
        (each["operator"], each["granularity"], tuple(each["shape"]), each["threads"])
        for each in data["timings"]
        if each not in others
    } == {
        (operator, granularity, shape, count)
        for operator in ("QuantizeLinear", "DequantizeLinear")
        for granularity in (
            "per tensor",
            "axis 0",
            "last axis",
            "blocks of 128, last axis",
            "blocks of 128, axis 0",
        )
        for shape in sizes
        for count in threads
    }
    assert len(data["timings"]) - len(others) == 2 * 5 * len(sizes) * len(threads)
    assert [(each["threads"], each["form"], each["floats"], tuple(each["shape"])) for each in data["programs"]] == [
        (count, form.name, floats, size)
        for count, form, floats, size in itertools.product(threads, programs.FORMS, ("float32", "float16"), sizes)
        if not form.has_blocks or size[1] % 32 == 0
    ]
    for each in data["programs"]:
        assert each["ratio"] == pytest.approx(each["stock_ns"] / each["program_ns"])
        assert min(each["stock_ns"], each["program_ns"]) > 0
    for each in data["timings"]:
        assert min(each["ours_ns"], each["copy_ratio"]) > 0
        if each["floats"] == "bfloat16":  # ONNX Runtime does not have it
            assert (each["stock_ns"], each["ratio"]) == (None, None)
        else:
            assert each["ratio"] == pytest.approx(each["stock_ns"] / each["ours_ns"])
            assert each["stock_ns"] > 0


def test_bench_ops_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_developers(capsys, "ops", "--sizes", "2x3", "--threads", "1").splitlines()
    assert re.fullmatch(r".+, [0-9]+ cores, load [0-9.]+ before", lines[0])
    assert lines[1] == f"instruction set {kernels.isa()}, backend native"
    assert re.fullmatch(r"onnxruntime [0-9.]+\S*, ort_dynq \S+, Python [0-9.]+\S*", lines[3])
    figures = r" 2x3 +1 +[0-9.]+ +([0-9.]+|-) +([0-9.]+|-) +(float32|float16|bfloat16), u?int[48] +[0-9.]+$"
    rows = [line for line in lines if re.search(figures, line.rstrip())]
    assert len(rows) == 10 + 6 * len(OTHERS)
    (head,) = (i for i, line in enumerate(lines) if line.startswith("form "))
    whole = [form for form in programs.FORMS if not form.has_blocks]
    assert [line.split()[-1] for line in lines[head + 1 :]] == ["float32", "float16"] * len(whole)


def test_bench_restores_the_instruction_set(capsys: pytest.CaptureFixture[str]) -> None:
    before = kernels.isa()
    run_developers(capsys, "ops", "--sizes", "2x2", "--threads", "1", "--isa", "portable")
    assert kernels.isa() == before


def test_bench_ops_misaligned_json_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("ops", "--misaligned", "--sizes", "3x20", "--threads", "1,2")
    timings = run_developers_json(capsys, *arguments)["timings"]
    assert [
        (each["threads"], tuple(each["shape"]), each["operator"], each["granularity"], each["offset"])
        for each in timings
    ] == list(
        itertools.product(
            (1, 2),
            ((3, 20),),
            ("QuantizeLinear", "DequantizeLinear"),
            ("per tensor", "axis 0", "last axis"),
            (0, 16, 32),
        )
    )
    for each in timings:
        assert each["ratio"] == pytest.approx(each["stock_ns"] / each["ours_ns"])
        assert min(each["ours_ns"], each["stock_ns"]) > 0
    lines = run_developers(capsys, *arguments).splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("operator "))
    assert re.split(r" {2,}", lines[head].strip()) == [
        *("operator", "scales", "tensor", "threads"),
        *("ort_dynq ns", "stock ns", "ratio", "offset"),
    ]
    rows = [line.rstrip() for line in lines[head + 1 :]]
    assert len(rows) == len(timings)
    for row, each in zip(rows, timings, strict=True):
        assert re.search(rf"{each['threads']} +[0-9.]+ +[0-9.]+ +[0-9.]+ +{each['offset']}$", row)


@pytest.mark.parametrize("operator", ["QuantizeLinear", "DequantizeLinear"])
@pytest.mark.parametrize("offset", [0, 16, 32])
def test_output_is_written_at_its_offset(offset: int, operator: str) -> None:
    """Both sessions write into the bound array. Outputs that ONNX Runtime allocates are always aligned."""
    granularity = operators.Granularity("last axis", 1, (1,))
    case = operators.Case(operator, granularity, (3, 20), 1, offset)
    for contender in operators.contenders(case, QUICK):
        assert contender is not None
        output = contender.arrays[-1]
        assert output.ctypes.data % 64 == offset
        expected = output.copy()
        assert expected.any()
        output.fill(0)
        contender.run()
        assert output.tobytes() == expected.tobytes()


def test_default_sizes_of_misaligned_operators() -> None:
    assert operators.MISALIGNED_SIZES == ((256, 1000), (2560, 100), (4096, 60), (256, 1024))


def test_every_timed_operator_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise stock ONNX Runtime would be timed twice. The last block of each row is not whole."""
    rewritten = []

    def recorded(model: onnx.ModelProto) -> Any:
        result = rewrite(model)
        rewritten.append([finding.operator for finding in result.report.findings])
        return result

    monkeypatch.setattr(operators, "rewrite", recorded)
    operators.bench_operators(QUICK, [(3, 130)])
    whole = len(OTHERS) * 3
    left = {"DynamicQuantize": 3 * (runtime.version() < (1, 30)), "DynamicDequantize": 0}  # of float16
    for name, count in left.items():
        assert rewritten.count([name]) == 5 + whole - count - 6 * (runtime.version() < (1, 23))  # of 4 bits


def test_a_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: onnx.ModelProto) -> Any:
        model = onnx.ModelProto.FromString(model.SerializeToString())
        model.graph.node[0].input[2] = ""
        return rewrite(model)

    monkeypatch.setattr(operators, "rewrite", wrong)
    with pytest.raises(DynqError, match="QuantizeLinear 4x4 per tensor, threads: 1 differs from stock ONNX Runtime's"):
        operators.bench_operators(QUICK, [(4, 4)])


@pytest.mark.parametrize("form", programs.FORMS, ids=str)
def test_a_program_with_other_nodes_is_an_error(form: programs.Form) -> None:
    """Both contenders give the same bits, also on one row."""
    for shape, floats in itertools.product(((3, 96), (1, 64)), programs.TYPES):
        programs.contenders(programs.Case(form, floats, shape, 1), QUICK)
    number = next(each for each in ("255.0", "7.0", "127.0") if f"{each})" in form.program)
    other = form._replace(program=form.program.replace(number, "5.0", 1))
    with pytest.raises(DynqError, match=f"3x96 float {form}, threads: 1 differs from stock ONNX Runtime's"):
        programs.contenders(programs.Case(form, "float", (3, 96), 1), QUICK, other)


def test_programs_run_with_the_extensions_backend() -> None:
    case = programs.Case(programs.FORMS[0], "float", (3, 70), 1)
    assert [*programs.contenders(case, replace(QUICK, backend="extensions"))] == ["RowProgram", "nodes"]


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [2, 1000, 2**20 + 2])
def test_copy_contender_copies_every_byte(size: int, threads: int) -> None:
    copy = operators.copy_contender(size, threads)
    source, target = copy.arrays
    assert source.nbytes + target.nbytes == size
    assert not target.any()
    copy.run()
    assert target.all()
    assert (copy.repeats > 1) == (threads > 1 and size >= 2**20)
