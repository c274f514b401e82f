"""Times RowProgram against the same steps as nodes of stock ONNX Runtime."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx

from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.operators import DOMAIN, VERSION
from ort_dynq.operators.program import COMPARISONS, OUTPUTS, REDUCTIONS, is_literal, parse
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, aligned, interleave, session_contender

from . import onnx_text
from .operators import time_all

SIZES = ((1, 8), (1, 768), (1, 4096), (8, 768), (4096, 64), (128, 768), (512, 768))
TYPES = ("float", "float16")
_BLOCK = 32
_INT8, _INT4 = 3, 22
_CODE_TYPES = {_INT8: "int8", _INT4: "int4"}
_OPSET = 21  # has codes of 4 bits
_SYMMETRIC = "s = Clip(Div(ReduceMax(Abs(x)), 127.0), 1e-05, inf); "
_ASYMMETRIC = (
    "low = Min(ReduceMin(x), 0.0); s = Clip(Div(Sub(Max(ReduceMax(x), 0.0), low), 255.0), 1e-05, inf); "
    "z = Int8(Clip(Sub(-128.0, Round(Div(low, s))), -128.0, 127.0)); "
)
_QUOTIENT, _PRODUCT = "Round(Div(x, s))", "Round(Mul(x, Reciprocal(s)))"
_CODES = "codes = Clip({}, -128.0, 127.0); scale = s"
_CODES_AND_ZERO = "codes = Clip(Add({}, z), -128.0, 127.0); scale = s; zero_point = z"


class Form(NamedTuple):
    """A quantization as a program.

    Attributes:
        name: Its name.
        program: Its text.
        code_type: The type of its codes.
        has_blocks: Whether a row is a block.
        operand: The shape of its first operand; empty if it has none.
    """

    name: str
    program: str
    code_type: int = _INT8
    has_blocks: bool = False
    operand: str = ""

    def __str__(self) -> str:
        return self.name


FORMS = (
    Form("symmetric codes, quotient", _SYMMETRIC + _CODES.format(_QUOTIENT)),
    Form("symmetric codes, product", _SYMMETRIC + _CODES.format(_PRODUCT)),
    Form("symmetric codes, blocks", _SYMMETRIC + _CODES.format(_QUOTIENT), has_blocks=True),
    Form(
        "symmetric codes, 4 bits",
        "s = Clip(Div(ReduceMax(Abs(x)), 7.0), 1e-05, inf); codes = Clip(Round(Div(x, s)), -8.0, 7.0); scale = s",
        _INT4,
    ),
    Form("asymmetric codes, quotient", _ASYMMETRIC + _CODES_AND_ZERO.format(_QUOTIENT)),
    Form("asymmetric codes, product", _ASYMMETRIC + _CODES_AND_ZERO.format(_PRODUCT)),
    Form("codes, scales of rows given", "codes = Clip(Round(Div(x, row1)), -128.0, 127.0)", operand="ROWS, 1"),
    Form("codes, scales of columns given", "codes = Clip(Round(Div(x, column1)), -128.0, 127.0)", operand="1, COLUMNS"),
    Form("symmetric floats", _SYMMETRIC + "dst = Mul(Clip(Round(Div(x, s)), -128.0, 127.0), s)"),
    Form(
        "asymmetric floats, product",
        _ASYMMETRIC + f"dst = Mul(Sub(Int8(Clip(Add({_PRODUCT}, z), -128.0, 127.0)), z), s)",
    ),
)


@dataclass(frozen=True)
class ProgramTiming:
    """The timing of one form on one tensor.

    Attributes:
        form: The name of the form.
        floats: The type of the tensor.
        shape: The shape of the tensor.
        threads: The number of intra-op threads.
        program_ns, stock_ns: Nanoseconds per element of RowProgram and of its steps as nodes.
        ratio: stock_ns / program_ns.
    """

    form: str
    floats: str
    shape: tuple[int, int]
    threads: int
    program_ns: float
    stock_ns: float
    ratio: float


@dataclass(frozen=True)
class Case:
    """What one timing measures."""

    form: Form
    floats: str
    shape: tuple[int, int]
    threads: int

    def __str__(self) -> str:
        return f"RowProgram {'x'.join(map(str, self.shape))} {self.floats} {self.form}, threads: {self.threads}"


def bench_programs(
    settings: Settings, sizes: Sequence[tuple[int, int]] = SIZES, *, track: Track = iter
) -> list[ProgramTiming]:
    """Times all forms.

    Args:
        settings: How to time.
        sizes: Rows and columns of the tensors. Forms with blocks leave out those that blocks do not divide.
        track: Shows the progress.

    Raises:
        DynqError: The operators cannot be registered, a result differs from stock ONNX Runtime's, or a tensor does not
            fit in memory.
    """
    every = itertools.product(settings.threads, FORMS, TYPES, sizes)
    cases = [
        Case(form, floats, size, threads)
        for threads, form, floats, size in every
        if not (form.has_blocks and size[1] % _BLOCK)
    ]
    return time_all(cases, _time, settings, track)


def _time(case: Case, settings: Settings) -> ProgramTiming:
    samples = interleave(list(contenders(case, settings).values()), settings, case.threads)
    program, stock = (float(np.median(each)) / math.prod(case.shape) for each in samples)
    floats = "float32" if case.floats == "float" else case.floats
    return ProgramTiming(case.form.name, floats, case.shape, case.threads, program, stock, stock / program)


def contenders(case: Case, settings: Settings, chain: Form | None = None) -> dict[str, Contender]:
    """Returns RowProgram, and the nodes of the form or of another one.

    Raises:
        DynqError: Their results differ.
    """
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {"x": aligned(rng.standard_normal(case.shape, np.float32))}
    if case.floats == "float16":
        feeds["x"] = aligned(feeds["x"].astype(np.float16))
    if case.form.operand:
        shape = [int(each) for each in _at(case.form.operand, case).split(", ")]
        feeds["given"] = aligned((1 + rng.random(shape, np.float32)) / 64)
    models = {"RowProgram": (_program(case), settings.backend), "nodes": (_nodes(case, chain or case.form), None)}
    found = {
        name: session_contender(f"{case}, {name}", model, feeds, case.threads, backend=backend)
        for name, (model, backend) in models.items()
    }
    results = [[each.tobytes() for each in contender.arrays[len(feeds) :]] for contender in found.values()]
    if results[0] != results[1]:
        raise DynqError(f"the result of {case} differs from stock ONNX Runtime's")
    return found


def _at(text: str, case: Case) -> str:
    return text.replace("ROWS", str(case.shape[0])).replace("COLUMNS", str(case.shape[1]))


def _model(case: Case, nodes: str, constants: str) -> onnx.ModelProto:
    """Returns a model with the inputs of a case, and outputs with the names of the program's."""
    inputs = f"{case.floats}[ROWS, COLUMNS] x"
    if case.form.operand:
        inputs += f", float[{case.form.operand}] given"
    count = f"{case.shape[1] // _BLOCK}" if case.form.has_blocks else "1"
    code = _CODE_TYPES[case.form.code_type]
    types = dict.fromkeys(("dst", "dst_2"), case.floats) | dict.fromkeys(("codes", "zero_point"), code)
    outputs = ", ".join(
        f"{types.get(output, 'float')}[ROWS, {'COLUMNS' if OUTPUTS[output] else count}] {output}"
        for output in parse(case.form.program).outputs
    )
    model = onnx_text.parse(_at(inputs, case), _at(outputs, case), nodes, opset=_OPSET, constants=constants)
    model.opset_import.add(domain=DOMAIN, version=VERSION)
    return model


def _program(case: Case) -> onnx.ModelProto:
    form = case.form
    block = _BLOCK if form.has_blocks else 0
    # With all attributes: onnxruntime-extensions has no defaults.
    given = f"branch = 0, axis = -1, block_size = {block}, code_type = {form.code_type}"
    first = "given" if form.operand else "unused"
    nodes = f'{", ".join(OUTPUTS)} = {DOMAIN}.RowProgram<program = "{form.program}", {given}>(x, like, {first}, '
    constants = f"{_CODE_TYPES[form.code_type]} like = {{0}}, float[1] unused = {{0}}"
    return _model(case, f"{nodes}unused, unused, unused)", constants)


def _nodes(case: Case, form: Form) -> onnx.ModelProto:
    constants = "int64[1] axes = {-1}"
    if form.has_blocks:
        rows, columns = case.shape
        constants += f", int64[3] blocks = {{{rows}, {columns // _BLOCK}, {_BLOCK}}}, int64[2] shape = {{0, -1}}"
    return _model(case, "\n".join(_steps(case, form)), constants)


def _steps(case: Case, form: Form) -> Iterator[str]:
    """Yields the nodes of a program's steps."""
    program = parse(form.program)
    names = {"x": "x", "row1": "given", "column1": "given"}
    if case.floats == "float16":
        yield "x_real = Cast<to = 1>(x)"
        names["x"] = "x_real"
    if form.has_blocks:
        yield f"x_blocks = Reshape({names['x']}, blocks)"
        names["x"] = "x_blocks"
    for literal in filter(is_literal, program.live()):
        names[literal] = f"number_{len(names)}"
        value = {"inf": "3.4028235e38"}.get(literal, literal)
        yield f"{names[literal]} = Constant<value_float = {value}>()"
    for i, step in enumerate(program.steps):
        name = names[f"v{i}"] = f"v{i}"
        operands = [names[each] for each in step.operands]
        if step.operator in REDUCTIONS:
            yield f"{name} = {step.operator}<keepdims = 1>({operands[0]}, axes)"
        elif step.operator == "Int8":
            yield f"{name}_code = Cast<to = 3>({operands[0]})"
            yield f"{name} = Cast<to = 1>({name}_code)"
        else:
            assert step.operator not in COMPARISONS
            yield f"{name} = {step.operator}({', '.join(operands)})"
    for output, value in program.outputs.items():
        name = names[value]
        if output in ("codes", "zero_point"):
            yield f"{output}_code = Cast<to = {form.code_type}>({name})"
        else:
            to = 10 if case.floats == "float16" and OUTPUTS[output] else 1
            yield f"{output}_code = Cast<to = {to}>({name})"
        yield f"{output} = Reshape({output}_code, shape)" if form.has_blocks else f"{output} = Identity({output}_code)"
