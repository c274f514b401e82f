"""The memory of QuantizedConv: its output, and an image of a tile, whatever the geometry is; too little is an error.

That of CompressedAttention: its panels are a few times as large as the codes, and its sums stay in a cache, whatever
the groups are.

Memory is measured in processes of their own: in the process of other tests, it would depend on what these have left.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
from cases.compressed_attention import compressed_inputs
from cases.quantized_conv import GIVEN, NAMES, Conv, conv_inputs
from helpers import Array, parse

import ort_dynq
from ort_dynq import kernels

resource = pytest.importorskip("resource", reason="Unix only")

LIMIT = 3 << 20  # bytes besides the output, on one thread: the image of a row, sums and offsets

# Inputs that have 12 MB or more if they are written for each kernel position, or for each channel of a whole row.
# Each case is a shape of src, a number of output channels, a kernel shape, a group, strides and dilations.
GEOMETRIES = {
    "3x3": ((1, 32, 256, 256), 2, (3, 3), 1, (1, 1), (1, 1)),
    "3x3 of many outputs": ((1, 32, 256, 256), 16, (3, 3), 1, (1, 1), (1, 1)),
    "3x3 of many channels": ((1, 1024, 60, 60), 16, (3, 3), 1, (1, 1), (1, 1)),
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
# Keys that take 16 MB or more with each token padded to a panel, and 32 MB with the sums of all groups. Each case is
# rows of query, keys, elements of a head, groups, and whether scales are factors of the query.
ATTENTIONS = {
    "attention over groups of a token": (36, 4096, 128, 128, 1),
    "attention over many groups": (31, 256, 16384, 1024, 0),
}
RUNS = 10  # without memory: which thread fails first varies

needs_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs malloc_trim")


def case(name: str) -> Conv:
    shape, outputs, kernel, group, strides, dilations = GEOMETRIES[name]
    rng = np.random.default_rng(0)
    small = shape[:2] + (1,) * len(kernel)
    inputs, weights, given = conv_inputs(rng, small, outputs, kernel, group=group, strides=strides, dilations=dilations)
    inputs[0] = np.resize(inputs[0], shape)
    return inputs, weights, given


def status(name: str) -> int:
    """Bytes of this process: "VmHWM" are the most resident ones since it last wrote 5 to clear_refs."""
    with open("/proc/self/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


def growth(name: str) -> int:
    """Runs a case twice. Returns by how much memory grows in the second run, without its output."""
    inputs, _, given = case(name)
    return growth_of("QuantizedConv", inputs, given)


def growth_of(operator: str, inputs: list[Array], given: dict[str, int]) -> int:
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)  # memory grows by pages of 4 kB and not of 2 MB
    kernels.run(operator, inputs, **given)
    libc.malloc_trim(0)  # otherwise the output might take memory that was freed before
    with open("/proc/self/clear_refs", "w", encoding="ascii") as clear:
        clear.write("5")
    before = status("VmHWM")
    (result,) = kernels.run(operator, inputs, **given)
    return status("VmHWM") - before - result.nbytes


def growth_of_attention(name: str) -> int:
    rows, keys, size, groups, scale_query = ATTENTIONS[name]
    inputs = compressed_inputs(np.random.default_rng(0), ("int8", "int8"), (1, 1, 1, rows, keys, size, 8), (groups, 1))
    return growth_of("CompressedAttention", inputs, {"scale_query": scale_query})


def print_growths() -> None:
    """Prints the growth of each case, measured in a process that has only imported the package."""
    for name in (*GEOMETRIES, *ATTENTIONS):
        if os.fork() == 0:
            print(json.dumps({name: growth(name) if name in GEOMETRIES else growth_of_attention(name)}), flush=True)
            os._exit(0)
        os.wait()


def in_own_process(call: str, **environment: str) -> str:
    """Calls a function of this file in another process; returns what it prints."""
    given = {**environment, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", f"import test_memory; test_memory.{call}"]
    done = subprocess.run(command, env=os.environ | given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_glibc
def test_memory_is_bounded() -> None:
    growths: dict[str, int] = {}
    for line in in_own_process("print_growths()").splitlines():
        growths |= json.loads(line)
    assert list(growths) == [*GEOMETRIES, *ATTENTIONS]
    assert {name: each for name in ATTENTIONS if not (each := growths.pop(name)) < 6 << 20} == {}
    assert {name: each for name, each in growths.items() if not -(1 << 20) < each < LIMIT} == {}


def run_without_memory() -> None:
    """Runs a session while no task of QuantizedConv has memory for its image of 1 MB."""
    inputs, _, given = case("many channels")
    attributes = ", ".join(f"{name} = {value}" for name, value in (GIVEN | given).items())
    types = ("uint8", "float", "uint8", "int8", "int8", "float", "int32", "float", "int32")
    heads = ", ".join(f"{type_}[] {name}" for type_, name in zip(types, NAMES, strict=True))
    model = parse(heads, "float[] dst", f"dst = ort_dynq.QuantizedConv<{attributes}>({', '.join(NAMES)})")
    options = ort.SessionOptions()  # its threads spin, so that they begin at once
    options.log_severity_level = 4
    options.intra_op_num_threads = 2
    session = ort.InferenceSession(model.SerializeToString(), ort_dynq.register(options, "native"))
    feeds = dict(zip(NAMES, inputs, strict=True))
    before = session.run(None, feeds)[0]
    ctypes.CDLL(None).malloc_trim(0)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + (1 << 19), limits[1]))
    for _ in range(RUNS):
        with pytest.raises(Exception, match="std::bad_alloc"):
            session.run(None, feeds)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    assert np.array_equal(session.run(None, feeds)[0], before)


@needs_glibc
def test_no_memory_in_a_task_is_an_error() -> None:
    """An exception that leaves a thread of ONNX Runtime ends the process."""
    # Threads have no memory of their own, and large arrays are not made of memory that was freed before.
    in_own_process("run_without_memory()", MALLOC_ARENA_MAX="1", MALLOC_MMAP_THRESHOLD_="65536")
