"""Times RowProgram against the operator that the same chain becomes, and against the chain in stock ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.measuring.progress import Track
from ort_dynq.measuring.timing import Contender, Settings, aligned, interleave, session_contender
from ort_dynq.operators import DOMAIN, VERSION
from ort_dynq.rewriter import rewrite

from .chains import CHAINS, Chain, at
from .onnx_text import parse
from .operators import time_all

SIZES = ((1, 8), (1, 768), (1, 4096), (8, 768), (4096, 64), (128, 768), (512, 768))


@dataclass(frozen=True)
class ProgramTiming:
    """The timing of one chain on one tensor.

    Attributes:
        chain: The name of the chain.
        operator: The operator that a rewrite makes of it.
        shape: The shape of the tensor.
        threads: The number of intra-op threads.
        program_ns, operator_ns, stock_ns: Nanoseconds per element of RowProgram, of that operator and of the chain.
        ratio: stock_ns / program_ns.
        operator_ratio: operator_ns / program_ns.
    """

    chain: str
    operator: str
    shape: tuple[int, int]
    threads: int
    program_ns: float
    operator_ns: float
    stock_ns: float
    ratio: float
    operator_ratio: float


@dataclass(frozen=True)
class Case:
    """What one timing measures."""

    chain: Chain
    shape: tuple[int, int]
    threads: int

    def __str__(self) -> str:
        return f"RowProgram {'x'.join(map(str, self.shape))} {self.chain}, threads: {self.threads}"


def bench_programs(
    settings: Settings, sizes: Sequence[tuple[int, int]] = SIZES, *, track: Track = iter
) -> list[ProgramTiming]:
    """Times the chains that have a program.

    Args:
        settings: How to time.
        sizes: Rows and columns of the tensors.
        track: Shows the progress.

    Raises:
        DynqError: The operators cannot be registered, a result differs from stock ONNX Runtime's, or a tensor does not
            fit in memory.
    """
    chains = [chain for chain in CHAINS if chain.program]
    cases = [Case(chain, size, threads) for threads in settings.threads for chain in chains for size in sizes]
    return time_all(cases, _time, settings, track)


def _time(case: Case, settings: Settings) -> ProgramTiming:
    operator, found = contenders(case, settings)
    samples = interleave(list(found.values()), settings, case.threads)
    program, ours, stock = (float(np.median(each)) / math.prod(case.shape) for each in samples)
    return ProgramTiming(
        case.chain.name, operator, case.shape, case.threads, program, ours, stock, stock / program, ours / program
    )


def contenders(case: Case, settings: Settings) -> tuple[str, dict[str, Contender]]:
    """Returns the operator that the chain becomes, and the contenders: RowProgram, this operator, and the chain.

    Raises:
        DynqError: Their results differ.
    """
    feeds = {"x": aligned(np.random.default_rng(0).standard_normal(case.shape, np.float32))}
    operator, rewritten = _rewritten(case)
    models: Mapping[str, onnx.ModelProto | ir.Model] = {
        "RowProgram": _program(case),
        operator: rewritten,
        "the chain": case.chain.model(case.shape),
    }
    found = {
        name: session_contender(
            f"{case}, {name}",
            model,
            feeds,
            case.threads,
            backend=None if name == "the chain" else settings.backend,
        )
        for name, model in models.items()
    }
    expected = _results(found["the chain"], feeds)
    for name, contender in found.items():
        if _results(contender, feeds) != expected:
            raise DynqError(f"the result of {case} as {name} differs from stock ONNX Runtime's")
    return operator, found


def _results(contender: Contender, feeds: Mapping[str, Array]) -> list[bytes]:
    return [array.tobytes() for array in contender.arrays[len(feeds) :]]


def _rewritten(case: Case) -> tuple[str, ir.Model]:
    """Returns the rewritten chain on a tensor of the shape: a rewrite leaves tensors that it knows to be small."""
    result = rewrite(case.chain.model())
    (finding,) = result.report.rewritten
    for value in (*result.model.graph.inputs, *result.model.graph.outputs):
        assert value.shape is not None
        value.shape = ir.Shape([1 if size == 1 else case.shape[i] for i, size in enumerate(value.shape)])
    return finding.operator or "", result.model


def _program(case: Case) -> onnx.ModelProto:
    """Returns the chain as one RowProgram, whose outputs have the names of the chain's."""
    first = "y, zero_point, dst" if "codes =" in case.chain.program else "codes, zero_point, y"
    given = "branch = 0, axis = -1, code_type = 3"  # with all attributes: onnxruntime-extensions has no defaults
    model = parse(
        at("float[ROWS, COLUMNS] x", case.shape),
        at(case.chain.outputs, case.shape),
        f'{first}, dst_2, s, number = {DOMAIN}.RowProgram<program = "{case.chain.program}", {given}>'
        "(x, like, unused, unused, unused, unused)",
        opset=20,
        constants="int8 like = {0}, float[1] unused = {0}",
    )
    model.opset_import.add(domain=DOMAIN, version=VERSION)
    return model
