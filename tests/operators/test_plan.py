"""ORT_DYNQ_VERBOSE=1 names what computes a product, a convolution or attention over codes."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ort_dynq import kernels

# Rows, bits, the k of a group (0: one group), whether the model has the sums of columns, and terms; of 128x96 weights.
CALLS = {
    (1, 8, 0, True, 1): "1x128x96, 8 bits",
    (64, 8, 0, True, 2): "64x128x96, 8 bits, 2 terms",
    (2, 4, 32, False, 1): "2x128x96, 4 bits in 4 groups",
    (2, 2, 32, False, 1): "2x128x96, 2 bits in 4 groups",
    (5, 2, 32, False, 1): "5x128x96, 2 bits in 4 groups",
    (20, 4, 32, False, 1): "20x128x96, 4 bits in 4 groups",
    (40, 4, 32, True, 1): "40x128x96, 4 bits in 4 groups",
    (64, 8, 32, True, 1): "64x128x96, 8 bits in 4 groups",
    (70, 4, 32, False, 2): "70x128x96, 4 bits in 4 groups, 2 terms",
    (40, 8, 128, True, 2): "40x128x96, 8 bits, 2 terms",
}
FEW = ("few rows, ones", "few rows, ones, 2 bits", "few rows, ones")
CHOSEN = {
    "portable": ("rows", "rows", *FEW, *("rows",) * 5),
    "avx2": (
        "rows, direct",
        "rows, wide",
        "few rows, ones, direct",
        "few rows, ones, 2 bits",
        "few rows, ones, direct",
        "rows, sums in the kernel, unpacked words",
        "rows, unpacked words",
        "rows, direct",
        "words",
        "rows, direct",
    ),
    "avx512vnni": (
        "rows, direct",
        "rows, direct",
        "few rows, ones, direct",
        "few rows, ones, 2 bits",
        "few rows, ones, direct",
        *("rows, direct",) * 3,
        "words",
        "rows, direct",
    ),
    "amx": (
        "rows, direct",
        "tiles",
        "few rows, ones, direct",
        "few rows, ones, 2 bits",
        "few rows, ones, direct",
        "rows, direct",  # 245,760 multiply-adds are too few
        *("tiles, groups",) * 3,
        "rows, direct",
    ),
}


# The shape of src, output channels, kernel, stride and groups.
CONVS = {
    ((1, 64, 14, 14), 64, (3, 3), 1, 1): "64 to 64 channels, kernel 1x3x3, outputs 1x12x12",
    ((1, 256, 16, 16), 256, (1, 1), 1, 1): "256 to 256 channels, kernel 1x1x1, outputs 1x1x256",
    ((1, 512, 7, 7), 64, (3, 3), 2, 1): "512 to 64 channels, kernel 1x3x3, outputs 1x3x3",
    ((1, 64, 3, 3), 64, (3, 3), 1, 1): "64 to 64 channels, kernel 1x3x3, outputs 1x1x1",
    ((1, 16, 30, 30), 48, (3, 3), 2, 1): "16 to 48 channels, kernel 1x3x3, outputs 1x14x14",
    ((2, 8, 9, 9), 8, (3, 3), 1, 8): "8 to 8 channels, kernel 1x3x3, outputs 1x7x7 in 8 groups",
}
CHOSEN_CONVS = {
    "portable": (*("rows",) * 5, "direct"),
    "avx2": ("Winograd", "Strassen", "rows", "rows", "direct", "direct"),
    "avx512vnni": ("direct", "direct", "rows", "rows", "direct", "direct"),
    "amx": (*("direct, tiles",) * 3, "rows", "direct, gathered tiles", "direct"),
}


CHOSEN_ATTENTION = (
    "CompressedAttention, 1 rows of query and 48 keys in each of 2 heads: {isa}, codes as they are stored",
    "CompressedAttention, 3 rows of query and 48 keys in each of 2 heads: {isa}, panels of keys",
    "CompressedAttention, 64 rows of query and 48 keys in each of 2 heads: {isa}, panels",
)

RUN = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parents[1])!r}]
import numpy as np
from cases.compressed_attention import compressed_inputs
from cases.quantized_conv import conv_inputs
from cases.quantized_matmul import matmul_inputs
from ort_dynq import kernels

def run_all():
    for rows, bits, group_size, has_sums, terms in {list(CALLS)}:
        given = {{"codes": np.int8, "scale": (rows, 128 // group_size if group_size else 1)}} if terms == 2 else {{}}
        inputs, _ = matmul_inputs(np.random.default_rng(0), (rows, 128), 96, bits=bits, group_size=group_size, **given)
        inputs[0] = np.concatenate([inputs[0]] * terms, 1)
        if terms == 2:
            inputs[2] = np.zeros(1, np.int8)
        inputs[6] = inputs[6] if has_sums else inputs[6][:0]
        kernels.run("QuantizedMatMul", inputs, bits=bits, group_size=group_size, scale_order=2, terms=terms)
    for shape, outputs, kernel, stride, group in {list(CONVS)}:
        inputs, _, given = conv_inputs(
            np.random.default_rng(0), shape, outputs, kernel, strides=(stride,) * 2, group=group
        )
        kernels.run("QuantizedConv", inputs, **given)
    for rows, groups in ((1, 1), (3, 4), (64, 1)):
        rng, sizes = np.random.default_rng(0), (1, 2, 2, rows, 48, 32, 32)
        kernels.run("CompressedAttention", compressed_inputs(rng, ("int8", "uint8"), sizes, (groups, 1)))

for isa in sys.argv[1:]:
    with kernels.use_isa(isa):
        run_all()
"""


@functools.cache
def run(verbose: str) -> list[str]:
    """What the calls write on each instruction set of this CPU: one process runs all of them."""
    command = [sys.executable, "-c", RUN, *(isa for isa in CHOSEN if isa in kernels.supported_isas())]
    environment = os.environ | {"ORT_DYNQ_VERBOSE": verbose}
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stderr.splitlines()


@pytest.mark.parametrize("isa", CHOSEN)
def test_a_run_names_its_implementation(isa: str) -> None:
    if isa not in kernels.supported_isas():
        pytest.skip(f"this CPU does not have {isa}")
    products = [
        f"QuantizedMatMul {call}: {isa}, {name}" for call, name in zip(CALLS.values(), CHOSEN[isa], strict=True)
    ]
    convolutions = [
        f"QuantizedConv {call}: {isa}, {name}" for call, name in zip(CONVS.values(), CHOSEN_CONVS[isa], strict=True)
    ]
    attention = [line.format(isa=isa) for line in CHOSEN_ATTENTION]
    expected = [f"ort_dynq: {each}" for each in (*products, *convolutions, *attention)]
    assert [line for line in run("1") if f": {isa}, " in line] == expected


def test_other_runs_are_silent() -> None:
    assert run("0") == []
