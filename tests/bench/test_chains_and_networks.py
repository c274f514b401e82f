"""`python tests/bench chains` and `python tests/bench networks`: JSON, text and the exactness of the chains."""

from __future__ import annotations

import functools

import helpers
import numpy as np
import onnx
import pytest
from benching import check_latency, run_developers, run_developers_json

from bench import chains, convnets, transformers
from bench.networks import NETWORKS
from ort_dynq.rewriter import rewrite

SMALL = ("networks", "--layers", "1", "--hidden", "16", "--heads", "2")


@pytest.fixture
def _narrow_resnet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(convnets.NETWORKS, "resnet", functools.partial(convnets.resnet, width=16))


def test_bench_chains_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_developers_json(capsys, "chains")
    assert {each["name"]: (each["nodes"], each["rewritten"]) for each in data["timings"]} == {
        "symmetric per token to int8": (8, {"RowProgram": 1}),
        "symmetric per token, fake-quantized": (8, {"RowProgram": 1}),
        "torchao asymmetric per token, fake-quantized": (28, {"RowProgram": 1}),
        "asymmetric per tensor -> Q -> DQ": (15, {"RowProgram": 1}),
    }
    for each in data["timings"]:
        for role in ("stock", "ours", "relu"):
            check_latency(each[role])
        assert each["ratio"] == pytest.approx(each["stock"]["median_ms"] / each["ours"]["median_ms"])
        assert each["relu_ratio"] == pytest.approx(each["ours"]["median_ms"] / each["relu"]["median_ms"])


def test_bench_chains_text(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run_developers(capsys, "chains").splitlines()
    assert sum(line.rstrip().endswith("RowProgram") for line in lines) == 4


@pytest.mark.parametrize("chain", chains.CHAINS, ids=str)
def test_rewritten_chains_are_bit_identical(chain: chains.Chain) -> None:
    model = chain.model()
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(1).standard_normal((512, 4096), np.float32)
    expected = helpers.stock_session(model).run(None, {"x": x})
    actual = helpers.make_session(rewrite(model).to_proto(), "native").run(None, {"x": x})
    for a, b in zip(actual, expected, strict=True):
        helpers.assert_same(a, b)


@pytest.mark.usefixtures("_narrow_resnet")
@pytest.mark.parametrize(
    ("networks", "forms"),
    [
        (("encoder", "decoder", "resnet"), ("float", "quantize")),
        pytest.param(
            (*NETWORKS,), (*transformers.FORMS, "conv_u8", "conv_s8", "quantize"), marks=pytest.mark.exhaustive
        ),
    ],
    ids=("some", "all"),
)
def test_bench_networks_json(
    networks: tuple[str, ...], forms: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """test_convnets.py has the networks of convolutions in each form."""
    arguments = ("--networks", ",".join(networks), "--forms", ",".join(forms), "--tokens", "2", "--image", "32")
    data = run_developers_json(capsys, *SMALL, *arguments)
    assert data["sizes"] == {"layers": 1, "hidden": 16, "heads": 2, "image": 32}
    assert [(each["network"], each["name"], each["tokens"], each["threads"]) for each in data["timings"]] == [
        (network, form, 2 if network in transformers.NETWORKS else None, 1)
        for network in networks
        for form in forms
        if form in NETWORKS[network]
    ]
    for each in data["timings"]:
        assert (each["rewritten"] == {}) == (each["name"] == "float")
        check_latency(each["stock"])
        check_latency(each["ours"])
        assert each["ratio"] == pytest.approx(each["stock"]["median_ms"] / each["ours"]["median_ms"])


def test_bench_networks_text(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--networks", "decoder", "--forms", "torchao,float", "--tokens", "2", "--threads", "1,2")
    lines = run_developers(capsys, *arguments).splitlines()
    assert "encoder, decoder: layers 1, hidden size 16, heads 2" in lines
    rows = [line.split() for line in lines if line.startswith("decoder ")]
    assert [row[:5] for row in rows] == [
        ["decoder", form, "float32", "2", threads] for form in ("torchao", "float") for threads in "12"
    ]

    converted = ["4", "QuantizedMatMul,", "2", "QuantizedMatMulProgram,", "4", "RowProgram"]  # two have a residual
    assert [row[8:] for row in rows] == [converted] * 2 + [["-"]] * 2


@pytest.mark.usefixtures("_narrow_resnet")
def test_bench_networks_times_a_network_in_the_forms_that_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--networks", "encoder,resnet", "--forms", "token,conv_u8", "--tokens", "2", "--image", "32")
    lines = run_developers(capsys, *SMALL, *given).splitlines()
    rows = [line.split()[:5] for line in lines if line.startswith(("encoder ", "resnet "))]
    assert rows == [["encoder", "token", "float32", "2", "1"], ["resnet", "conv_u8", "float32", "-", "1"]]


def test_bench_networks_exact(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_developers_json(capsys, *SMALL, "--networks", "encoder", "--forms", "token", "--tokens", "2", "--exact")
    assert data["timings"][0]["rewritten"] == {"RowProgram": 4}


def test_bench_networks_float16(capsys: pytest.CaptureFixture[str]) -> None:
    """The same operators as in float32; resnet has no such form."""
    arguments = (*SMALL, "--networks", "encoder", "--forms", "token,token_weights", "--tokens", "2", "--float16")
    timings = run_developers_json(capsys, *arguments)["timings"]
    assert [(each["name"], each["floats"]) for each in timings] == [
        (form, floats) for form in ("token", "token_weights") for floats in ("float32", "float16")
    ]
    for each in timings:
        assert each["rewritten"]["QuantizedMatMul"] + each["rewritten"].get("QuantizedMatMulProgram", 0) == 6
        assert ("QuantizedMatMul of float16" in each["rewritten"]) == (each["floats"] == "float16")
