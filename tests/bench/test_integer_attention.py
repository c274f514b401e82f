"""`python tests/bench integer-attention`: its JSON and text."""

from __future__ import annotations

import pytest
from benching import run_developers, run_developers_json

from bench.integer_attentions import bench_integer_attentions
from ort_dynq import DynqError, kernels
from ort_dynq.tools.measuring.timing import Settings


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = run_developers_json(capsys, "integer-attention", "--cases", "minilm-16,bert-16")
    isas = [each for each in kernels.supported_isas() if each != "portable"]
    found = [(each["name"], each["isa"]) for each in data["timings"]]
    assert found == [(name, isa) for name in ("minilm-16", "bert-16") for isa in isas]
    assert all(each["ratio"] == each["float_us"] / each["ours_us"] for each in data["timings"])


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    isa = kernels.supported_isas()[0]
    if isa == "portable":
        pytest.skip("this CPU has the portable kernels only")
    lines = run_developers(capsys, "integer-attention", "--cases", "minilm-16", "--isas", isa).splitlines()
    assert sum(line.startswith("minilm-16 ") for line in lines) == 1


@pytest.mark.parametrize(
    ("names", "isas", "message"), [(("x",), (), "no case 'x'"), (("minilm-16",), ("y",), "is 'y'")]
)
def test_wrong_names(names: tuple[str, ...], isas: tuple[str, ...], message: str) -> None:
    with pytest.raises(DynqError, match=message):
        bench_integer_attentions(Settings(), names, isas=isas)
