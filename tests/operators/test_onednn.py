"""The arithmetic `onednn` and DynamicDequantize equal the recorded results of oneDNN 3.12.1 (onednn-3.12.1.npz)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers import Array, assert_same, dequantize, quantize

Case = dict[str, Array]


def load() -> dict[str, Case]:
    """The recorded cases by name: `OP-QTYPE-axisA-SHAPE-SRC-DST-zps_TYPE`."""
    cases: dict[str, Case] = {}
    with np.load(Path(__file__).parent / "onednn-3.12.1.npz") as recorded:
        for key in recorded.files:
            name, array = key.split("/")
            cases.setdefault(name, {})[array] = recorded[key]
    return cases


CASES = load()


def test_every_case_is_recorded() -> None:
    assert len(CASES) == 54
    assert sum(name.startswith("DynamicQuantize-") for name in CASES) == 32
    assert sum("per_channel" in name for name in CASES) == 14


@pytest.mark.parametrize("name", CASES)
def test_recorded_result(isa: str, backend: str, name: str) -> None:
    case = CASES[name]
    op, qtype, axis, _, _, output_dtype, _ = name.split("-")
    arrays = case["src"], case["scales"], case.get("zps")
    given: dict[str, str | int] = {"qtype": qtype, "axis": int(axis.removeprefix("axis"))}
    if op == "DynamicDequantize":
        actual = dequantize(backend, *arrays, **given)
    else:
        given["output_dtype"] = {"u8": 2, "s8": 3}[output_dtype]
        actual = quantize(backend, *arrays, arithmetic="onednn", **given)
    assert_same(actual, case["dst"], case["src"])


def test_arithmetics_differ_on_the_recorded_data(isa: str, backend: str) -> None:
    """If they were equal, the cases could not detect a wrong arithmetic."""
    differing = 0
    for name, case in CASES.items():
        if name.startswith("DynamicQuantize-per_tensor"):
            onnx = quantize(
                backend,
                case["src"],
                case["scales"],
                case.get("zps"),
                output_dtype={"u": 2, "i": 3}[case["dst"].dtype.kind],
            )
            differing += np.count_nonzero(onnx != case["dst"])
    assert differing > 500
