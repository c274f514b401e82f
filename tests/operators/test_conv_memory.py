"""The memory of QuantizedConv: its output, and an image of a tile, whatever the geometry is."""

from __future__ import annotations

import ctypes
import platform

import numpy as np
import pytest
from convolutions import Case, conv_inputs

from ort_dynq import kernels

LIMIT = 3 << 20  # bytes besides the output, on one thread: the image of a row, sums and offsets

# Inputs that have 12 MB or more if they are written for each kernel position, or for each channel of a whole row.
# Each case is a shape of src, a number of output channels, a kernel shape, a group, strides and dilations.
GEOMETRIES = {
    "3x3": ((1, 32, 256, 256), 2, (3, 3), 1, (1, 1), (1, 1)),
    "strides": ((1, 32, 256, 256), 2, (5, 5), 1, (2, 2), (1, 1)),
    "dilations": ((1, 32, 256, 256), 2, (3, 3), 1, (1, 1), (7, 7)),
    "strides and dilations": ((1, 32, 512, 512), 2, (5, 5), 1, (3, 2), (40, 41)),
    "depthwise": ((1, 4, 512, 512), 4, (5, 5), 4, (1, 1), (1, 1)),
    "depthwise with strides": ((1, 4, 512, 512), 4, (7, 7), 4, (2, 2), (1, 1)),
    "three axes": ((1, 8, 32, 64, 64), 2, (3, 3, 3), 1, (1, 1, 1), (1, 1, 1)),
    "many channels": ((1, 32768, 1, 512), 1, (1, 1), 1, (1, 1), (1, 1)),
    "a long kernel": ((1, 1, 40_000), 1, (30_000,), 1, (1,), (1,)),
    "a long kernel with strides": ((1, 1, 60_000), 1, (30_000,), 1, (7,), (1,)),
    "a kernel over the whole width": ((1, 1, 10_000, 300), 1, (3, 300), 1, (1, 1), (1, 1)),
    "a stride larger than src": ((1, 2, 500, 500), 2, (9, 9), 1, (2**31 - 1, 2**31 - 1), (50, 50)),
}
PR_SET_THP_DISABLE = 41


def case(name: str) -> Case:
    shape, outputs, kernel, group, strides, dilations = GEOMETRIES[name]
    rng = np.random.default_rng(0)
    small = shape[:2] + (1,) * len(kernel)
    inputs, weights, given = conv_inputs(rng, small, outputs, kernel, group=group, strides=strides, dilations=dilations)
    inputs[0] = np.resize(inputs[0], shape)
    return inputs, weights, given


def peak() -> int:
    """The most resident bytes of this process since it last wrote 5 to clear_refs."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024


def growth(name: str) -> int:
    """Runs a case twice. Returns by how much memory grows in the second run, without its output."""
    inputs, _, given = case(name)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # memory grows by pages of 4 kB and not of 2 MB
    try:
        kernels.run("QuantizedConv", inputs, **given)
        libc.malloc_trim(0)  # otherwise the output might take memory that was freed before
        with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
            clear.write("5")
        before = peak()
        (result,) = kernels.run("QuantizedConv", inputs, **given)
        return peak() - before - result.nbytes
    finally:
        libc.prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs malloc_trim")
@pytest.mark.parametrize("name", GEOMETRIES)
def test_memory_is_bounded(name: str) -> None:
    assert -(1 << 20) < growth(name) < LIMIT
