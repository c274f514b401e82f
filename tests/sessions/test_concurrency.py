"""Threads, sessions, threads of onnxruntime and denormals as zero do not change the results."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from cases import quantized_conv as convolutions
from cases.compressed_attention import compressed_inputs
from cases.quantized_matmul import matmul_inputs
from functions import run_function
from helpers import Array, Shape, assert_same, handwritten, options, parse, with_one_nan

import ort_dynq
from ort_dynq import kernels
from ort_dynq.backends.sessions import open_registered

THREADS = 8
# Every kind of kernel and layout, each with more than one task (32768 elements): per tensor, per channel, blocks with a
# shorter last one, short rows, rows so long that threads share them.
MODEL = parse(
    "float[n, m] x, float[] scale, float[] scales, float[] blocks, int8[] zp",
    "int8[] a, float[] b, int8[] c, float[] d, float[] e, uint8[] g, float[] h, uint8[] i, float[] j,"
    "float[] k, int8[] o, float[] p, float[] q",
    """a = ort_dynq.DynamicQuantize<qtype = "per_channel", axis = 1>(x, scales, zp)
       b = ort_dynq.DynamicDequantize<qtype = "per_channel", axis = 1>(a, scales, zp)
       c = ort_dynq.DynamicQuantize<qtype = "per_group", axis = 1, block_size = 32>(x, blocks, zp)
       d = ort_dynq.DynamicFakeQuantize(x, scale, zp)
       e = ort_dynq.DynamicFakeQuantize<qtype = "per_channel", axis = 1>(x, scales, zp)
       g, h, i = ort_dynq.DynamicQuantizeLinear(x)
       j = ort_dynq.AffineDequantize(c, scale, zp)
       k = ort_dynq.DynamicQuantizeDequantizeLinear(x)
       o, oz, p, oe, q, on = ort_dynq.RowProgram<program = "s = Div(ReduceMax(Abs(x)), 127.0); codes = Div(x, s);
           dst = Mul(Add(x, tensor2), column1); scale = s", branch = 0, axis = -1, code_type = 3>
           (x, zp, scales, x, scale, scale)""",
)


def feeds(seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 3, (601, 301)).astype(np.float32)
    scales = rng.uniform(0.01, 0.1, 301).astype(np.float32)
    blocks = rng.uniform(0.01, 0.1, (601, 10)).astype(np.float32)
    scale, zp = np.array(0.05, np.float32), np.array(3, np.int8)
    return {"x": x, "scale": scale, "scales": scales, "blocks": blocks, "zp": zp}


def open_session(backend: str, threads: int, zero: str = "0", model: onnx.ModelProto = MODEL) -> ort.InferenceSession:
    """A session; `zero` is "1" if it treats denormals as zero. The backend "stock" registers no operators."""
    given = options(threads, optimize=True)
    given.add_session_config_entry("session.set_denormal_as_zero", zero)
    if backend != "stock":
        ort_dynq.register(given, backend)  # type: ignore[arg-type]
    return open_registered(handwritten(model, backend), given)


INPUTS = [feeds(seed) for seed in range(THREADS)]


@pytest.fixture(scope="module")
def alone() -> list[list[Array]]:
    """The results of a single thread for each input."""
    session = open_session("native", 1)
    return [session.run(None, some) for some in INPUTS]


def same(actual: list[Array], expected: list[Array]) -> None:
    for one, other in zip(actual, expected, strict=True):
        assert_same(one, other)


def same_but_for_nan(actual: list[Array], expected: list[Array]) -> None:
    same([with_one_nan(each) for each in actual], [with_one_nan(each) for each in expected])


def at_once(work: Callable[[int], None], count: int = THREADS) -> None:
    """Calls `work` on `count` threads, which start together, and raises the first error."""
    barrier = Barrier(count)

    def task(index: int) -> None:
        barrier.wait()
        work(index)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(task, range(count)))


@pytest.mark.parametrize("threads", [1, 3])
def test_many_threads_run_one_session(backend: str, threads: int, alone: list[list[Array]]) -> None:
    session = open_session(backend, threads)

    def work(index: int) -> None:
        for turn in range(THREADS):
            which = (index + turn) % THREADS
            same(session.run(None, INPUTS[which]), alone[which])

    at_once(work)


@pytest.mark.parametrize("threads", [1, 3])
def test_many_threads_open_and_run_sessions(backend: str, threads: int, alone: list[list[Array]]) -> None:
    """The sessions are opened, run and closed at the same time."""

    def work(index: int) -> None:
        session = open_session(backend, threads)
        for _ in range(2 + index % 3):
            same(session.run(None, INPUTS[index]), alone[index])

    at_once(work)


def test_both_backends_at_once(alone: list[list[Array]]) -> None:
    sessions = [open_session(backend, 2) for backend in ("native", "extensions")]

    def work(index: int) -> None:
        for turn in range(8):
            same(sessions[(index + turn) % 2].run(None, INPUTS[index]), alone[index])

    at_once(work)


# Products. Each is cut into several tasks; with 17 rows or more, AMX uses tiles.

SHAPES = ((1, 768, 2500), (17, 515, 700), (67, 300, 515), (130, 768, 257))  # rows, depth, columns
FORMS = ({"bits": 8, "group_size": 0}, {"bits": 4, "group_size": 0}, {"bits": 8, "group_size": 32})
NAMES = ("src", "scale", "zero_point", "weight", "weight_zero_point", "column_scale", "column_sum", "bias")
TYPES = ("uint8", "float", "uint8", "int8", "int8", "float", "int32", "float")
REST = ", ".join(NAMES[1:])
HEADS = ", ".join(f"{type_}[] {name}" for type_, name in zip(TYPES, NAMES, strict=True))


def product_feeds(
    seed: int, rows: int, depth: int, columns: int, bits: int = 8, group_size: int = 0
) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    depth = depth // 32 * 32 if group_size else depth
    inputs, _ = matmul_inputs(rng, (rows, depth), columns, bits=bits, group_size=group_size)
    return dict(zip(NAMES, inputs, strict=True))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: f"{form['bits']}-{form['group_size']}")
def test_threads_do_not_change_products(product_isa: str, form: dict[str, int]) -> None:
    given = form | {"scale_order": 2}
    body = f"dst = ort_dynq.QuantizedMatMul<{', '.join(f'{name} = {value}' for name, value in given.items())}>"
    model = parse(HEADS, "float[] dst", f"{body}({', '.join(NAMES)})")
    problems = [product_feeds(seed, *shape, **form) for seed, shape in enumerate(SHAPES)]
    expected = [run_function("QuantizedMatMul", list(problem.values()), **given) for problem in problems]
    for threads in (1, 2, 5):
        session = open_session("native", threads, model=model)
        for problem, right in zip(problems, expected, strict=True):
            same_but_for_nan(session.run(None, problem), right)

    def work(index: int) -> None:
        for turn in range(len(problems)):
            which = (index + turn) % len(problems)
            same_but_for_nan(session.run(None, problems[which]), expected[which])

    at_once(work, 4)


@pytest.mark.parametrize(
    ("shape", "outputs", "kernel", "group"),
    [((1, 64, 28, 30), 64, (3, 3), 1), ((2, 96, 15, 15), 130, (1, 1), 1), ((1, 96, 57, 58), 96, (5, 5), 96)],
    ids=["dense", "of one position", "depthwise"],
)
def test_threads_do_not_change_convolutions(
    product_isa: str, shape: Shape, outputs: int, kernel: Shape, group: int
) -> None:
    rng, names = np.random.default_rng(0), convolutions.NAMES
    pads = tuple(length // 2 for length in kernel) * 2
    cases = [convolutions.conv_inputs(rng, shape, outputs, kernel, group=group, pads=pads) for _ in range(2)]
    given = ", ".join(f"{name} = {value}" for name, value in cases[0][2].items())
    heads = ", ".join(f"{type_}[] {name}" for type_, name in zip((*TYPES, "int32"), names, strict=True))
    model = parse(heads, "float[] dst", f"dst = ort_dynq.QuantizedConv<{given}>({', '.join(names)})")
    problems = [dict(zip(names, inputs, strict=True)) for inputs, _, _ in cases]
    expected = [convolutions.stock_conv(case) for case in cases]
    session = open_session("native", 3, model=model)

    def work(index: int) -> None:
        for turn in range(3):
            which = (index + turn) % 2
            same_but_for_nan(session.run(None, problems[which]), [expected[which]])

    at_once(work, 4)


def test_threads_do_not_change_compressed_attention() -> None:
    """They share the keys of one row: its words differ for each group of tokens with scales of channels."""
    inputs = compressed_inputs(
        np.random.default_rng(0),
        ("int8", "uint8"),
        (1, 2, 1, 1, 4096, 64, 16),
        (64, 1),
        token_groups=4096 // 32,
        has_offsets=(True, True),
    )
    names = ["q", "k", "ks", "kz", "v", "vs", "vz", "bias", "factor", "ko", "vo"]
    types = ["float", "int8", "float", "int8", "uint8", "float", "uint8", *["float"] * 4]
    model = parse(
        ", ".join(f"{type_}[] {name}" for type_, name in zip(types, names, strict=True)),
        "float[] dst",
        f"dst = ort_dynq.CompressedAttention<scale_query = 1>({', '.join(names)})",
    )
    problem = dict(zip(names, inputs, strict=True))
    expected = open_session("native", 1, model=model).run(None, problem)
    session = open_session("native", 3, model=model)
    for _ in range(20):
        same(session.run(None, problem), expected)


def test_products_of_onnxruntime_and_ours_take_turns(product_isa: str) -> None:
    """On CPUs with AMX, both configure the tiles of the same threads."""
    rng = np.random.default_rng(0)
    problem = product_feeds(0, 67, 300, 515)
    plain = rng.integers(-63, 64, (300, 130)).astype(np.int8)  # ONNX Runtime adds pairs without saturation
    turns = range(6)
    body, before = "shape = Shape(src)\n", "src"
    for turn in turns:  # each product waits for the one before, since it needs its size
        for name, product in (
            ("i", "MatMulInteger({codes}, plain)"),
            ("d", f"ort_dynq.QuantizedMatMul({{codes}}, {REST})"),
        ):
            at = f"{name}{turn}"
            body += (
                f"size_{at} = Size({before}) one_{at} = Div(size_{at}, size_{at}) shape_{at} = Mul(shape, one_{at})\n"
            )
            body += f"codes_{at} = Reshape(src, shape_{at}) {at} = {product.format(codes=f'codes_{at}')}\n"
            before = at
    tails = ", ".join(f"int32[] i{turn}, float[] d{turn}" for turn in turns)
    model = parse(f"{HEADS}, int8[] plain", tails, body)
    (ours,) = run_function("QuantizedMatMul", list(problem.values()))
    theirs = problem["src"].astype(np.int32) @ plain.astype(np.int32)
    for threads in (1, 2, 3):
        session = open_session("native", threads, model=model)
        for _ in range(8):
            same_but_for_nan(session.run(None, problem | {"plain": plain}), [theirs, ours] * len(turns))


def test_instruction_sets_are_switched_during_runs(alone: list[list[Array]]) -> None:
    """A run can use several instruction sets; all give the same results."""
    session = open_session("native", 2)

    def work(index: int) -> None:
        for turn in range(8):
            if index == 0:
                for name in kernels.supported_isas() * 20:
                    kernels._select_isa(name)
            else:
                same(session.run(None, INPUTS[turn]), alone[turn])

    before = kernels.isa()
    try:
        at_once(work)
    finally:
        kernels._select_isa(before)


def resident() -> int:
    """The resident memory in bytes, after the allocator has returned free memory."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, trims glibc's heap")
@pytest.mark.parametrize("backend", ["native", pytest.param("extensions", marks=pytest.mark.exhaustive)])
def test_closed_sessions_free_their_memory(backend: str) -> None:
    """In a process of its own: here, memory would also depend on what other tests left."""
    command = [sys.executable, "-c", f"import test_concurrency; test_concurrency.open_and_close({backend!r})"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def open_and_close(backend: str) -> None:
    """Opens 60 sessions, each with a successful and a failed run.

    The library of onnxruntime-extensions alone leaks up to 5 KB for each session, 0.3 MB in all. Sessions that
    stay open take more memory than the bound. A leak shows in every round; the allocator's free memory grows in some.
    """
    bound, rounds = 2 << 20, 5

    def turn(index: int) -> ort.InferenceSession:
        session = open_session(backend, 1 + index % 2)
        given = {**INPUTS[index % THREADS], "x": INPUTS[0]["x"][:7], "blocks": INPUTS[0]["blocks"][:7]}
        session.run(None, given)
        with pytest.raises(Exception, match=r"(scales?|operand_1) has"):
            session.run(None, {**given, "scales": np.ones(2, np.float32)})
        return session

    def growth() -> int:
        before = resident()
        for index in range(60):
            turn(index)
        return resident() - before

    for index in range(60):  # the memory of the allocator grows less and less
        turn(index)
    grown: list[int] = []
    while not grown or (grown[-1] >= bound and len(grown) < rounds):
        grown.append(growth())
    assert min(grown) < bound, grown
    before = resident()
    kept = [turn(index) for index in range(60)]
    assert resident() - before > bound, len(kept)


# Denormals as zero

sse = pytest.mark.skipif(
    platform.machine() != "x86_64",
    reason="sets SSE's control register, by code for Unix",  # Windows says AMD64
)
# Denormals are zero because of an entry of the session options, because of the calling thread, or both.
modes = pytest.mark.parametrize(("entry", "flush"), [("0", True), ("1", False), ("1", True)])
TINY = np.float32([1e-40, -1e-40, 1e-45, 2e-39, -0.0, 0.0, 1.1754944e-38, 1.0, -1.0, 1e-38, 3e-30])


class Mode:
    """Sets the treatment of denormals in the calling thread's SSE control register within the block."""

    FLUSH = 0x8040  # flush to zero, denormals are zero

    def __init__(self, flush: bool) -> None:
        self.flush = flush
        self.code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self.code.write(b"\x0f\xae\x1f\xc3" + b"\x0f\xae\x17\xc3")  # stmxcsr [rdi]; ret; ldmxcsr [rdi]; ret
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.code))
        function = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint32))
        self.get, self.set = function(address), function(address + 4)
        self.before = ctypes.c_uint32()

    def __enter__(self) -> None:
        self.get(self.before)
        self.set(ctypes.c_uint32(self.before.value | (self.FLUSH if self.flush else 0)))

    def __exit__(self, *_: object) -> None:
        self.set(self.before)


@sse
@modes
def test_denormals_as_zero_do_not_change_ordinary_data(
    isa: str, backend: str, entry: str, flush: bool, alone: list[list[Array]]
) -> None:
    """Data and scales are not denormal. The correction of the quotient underflows only far below one half."""
    session = open_session(backend, 2, entry)
    with Mode(flush):
        same(session.run(None, INPUTS[0]), alone[0])


@sse
@modes
def test_denormals_as_zero_as_in_onnxruntime(isa: str, entry: str, flush: bool) -> None:
    """On one thread. With several, each has its own mode, and the distribution of the work is not deterministic."""
    rng = np.random.default_rng(0)
    shape = (1500, 37)
    scales = np.where(rng.random(37) < 0.5, rng.choice(TINY, 37), rng.uniform(0.01, 1, 37)).astype(np.float32)
    x = np.where(rng.random(shape) < 0.5, rng.choice(TINY, shape), scales * rng.integers(-130, 130, shape))
    codes = rng.integers(-128, 128, shape).astype(np.int8)
    given = {"x": x.astype(np.float32), "codes": codes, "s": scales, "z": rng.integers(-128, 128, 37).astype(np.int8)}
    heads = "float[] x, int8[] codes, float[] s, int8[] z"
    body = "q = {}Quantize{}<{}axis = 1>(x, s, z) d = {}Dequantize{}<{}axis = 1>(codes, s, z)"
    ours, theirs = (
        parse(heads, "int8[] q, float[] d", body.format(*names * 2).replace(" d =", "\n d ="))
        for names in (("ort_dynq.Dynamic", "", 'qtype = "per_channel", '), ("", "Linear", ""))
    )
    ordinary = open_session("native", 1, model=ours).run(None, given)
    stock, native = open_session("stock", 1, entry, theirs), open_session("native", 1, entry, ours)
    with Mode(flush):
        expected, actual = stock.run(None, given), native.run(None, given)
    same(actual, expected)
    same(open_session("native", 1, model=ours).run(None, given), ordinary)  # the mode has ended
    if flush:
        assert np.any(actual[0] != ordinary[0])  # the mode has an effect
        assert np.any(actual[1] != ordinary[1])
