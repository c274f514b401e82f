"""The backend extensions: all operators, results without Python lists, errors, and both backends together.

More than 450 lines: the tests share the models and the start of new processes, in which no operator is defined yet.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import helpers
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from cases.compressed_attention import compressed_inputs
from cases.compressed_matmul import compressed_operands
from cases.quantized_conv import conv_inputs
from cases.quantized_experts import expert_inputs
from cases.quantized_matmul import matmul_inputs
from cases.word_conv import word_conv_inputs
from cases.word_matmul import word_inputs
from helpers import SIGNATURES, TYPES, Array, assert_same, diagonals, handwritten, make_session, parse
from recurrence import recurrence_inputs

import ort_dynq
from ort_dynq import DynqError, kernels, library
from ort_dynq.backends import extensions, sessions
from ort_dynq.backends.options import BACKENDS
from ort_dynq.backends.register import register
from ort_dynq.cli import main
from ort_dynq.operators import OPERATORS, VERSION, Operator, Signature
from ort_dynq.rewriter.analysis.standard import OWN_RECURRENCES
from ort_dynq.session import InferenceSession

SRC = np.float32([[-3, 0.5, 1.5], [2.5, 90, 300]])
FEEDS = {"src": SRC, "scale": np.array(1, np.float32), "zp": np.array(1, np.uint8)}
CODES = np.uint8([[0, 1, 3], [3, 91, 255]])
FULL = 'qtype = "per_tensor", axis = 1, block_size = 0, output_dtype = 2, arithmetic = "onnx"'
HEAD = "float[n, m] src, float scale, uint8 zp", "uint8[n, m] dst"


def model_of(body: str = f"dst = ort_dynq.DynamicQuantize<{FULL}>(src, scale, zp)", **opset: int) -> onnx.ModelProto:
    return parse(*HEAD, body, **opset)


def channel_model(axis: int) -> onnx.ModelProto:
    """A model that fails if src and scales differ in length along `axis`; the message names the axis."""
    given = FULL.replace("per_tensor", "per_channel").replace("axis = 1", f"axis = {axis}")
    body = f"dst = ort_dynq.DynamicQuantize<{given}>(src, scale, zp)"
    return parse("float[] src, float[] scale, uint8 zp", "uint8[] dst", body)


def channel_feeds(shape: tuple[int, ...]) -> dict[str, Array]:
    return {"src": np.ones(shape, np.float32), "scale": np.ones(3, np.float32), "zp": np.array(0, np.uint8)}


def run_code(code: str, *arguments: str, succeeds: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs code in a new process, in which no operator is defined yet."""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    path = f"import sys; sys.path[:0] = {folders}\n"
    command = [sys.executable, "-c", path + code, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == succeeds, ran.stderr
    return ran


# The list of operators


def defaults_of(operator: Operator) -> dict[str, str | int]:
    """Without lists: an absent list is an empty one."""
    return {each.name: each.default for each in operator.attributes if not isinstance(each.default, tuple)}


def node_model(operator: Operator, inputs: tuple[str, ...], outputs: tuple[str, ...], given: str) -> onnx.ModelProto:
    names = [value.name for value in operator.inputs]
    heads = ", ".join(f"{TYPES[type_]}[] {name}" for type_, name in zip(inputs, names, strict=True))
    results = [value.name for value in operator.outputs]
    tails = ", ".join(f"{TYPES[type_]}[] {name}_out" for type_, name in zip(outputs, results, strict=True))
    body = f"{', '.join(f'{name}_out' for name in results)} = ort_dynq.{operator.name}{given}({', '.join(names)})"
    return parse(heads, tails, body)


def attributes_of(operator: Operator, signature: Signature) -> dict[str, str | int]:
    """All attributes, with values that are valid for the types of the signature."""
    given = defaults_of(operator)
    if operator.name == "CompressedAttention":
        return given | {
            "float_key": int("float" in signature.inputs[1]),
            "float_value": int("float" in signature.inputs[4]),
        }
    code = {"uint8": 2, "int8": 3}.get(signature.outputs[0], 1)
    if "output_dtype" in given:
        given["output_dtype"] = code
    if "code_type" in given:
        given["code_type"] = code
    if "nan_code" in given:
        given |= {"nan_code": 2 if code == 1 else 0, "quant_min": 0}
    if "output_dtype" in given:
        given["output_dtype"] = code
    return given


def arrays_of(operator: Operator, types: Sequence[str]) -> list[Array]:
    """Small inputs of these types, with valid shapes."""
    rng = np.random.default_rng(0)
    operands = [np.ones(1, np.float32) for value in operator.inputs if value.name.startswith("operand_")]
    if "QuantizedMatMul" in operator.name:
        quantizes = operator.name.startswith("Dynamic")
        matrices = matmul_inputs(rng, (7, 33), 20, codes=np.dtype(np.uint8 if quantizes else types[0]))[0]
        matrices = [*matrices[:-1], matrices[-1] % 64]  # a bias that float16 has
        if quantizes:
            matrices = [rng.normal(0, 3, (7, 33)), *matrices[3:]]
        return [*(array.astype(type_) for array, type_ in zip(matrices, types, strict=False)), *operands]
    if operator.name.startswith("QuantizedConv"):
        arrays = conv_inputs(rng, (2, 4, 5, 6), 8, (3, 2), group=2, codes=np.dtype(types[0]))[0]
        return [*arrays[:7], arrays[7].astype(types[7]), arrays[8], *operands]
    if operator.name in OWN_RECURRENCES:
        return recurrence_inputs(rng, 3, 2, 1, 1, operator=operator.name)
    if operator.name == "QuantizedExperts":
        kinds: dict[str, Any] = {"float_type": np.dtype(types[0]), "scale_type": np.dtype(types[5])}
        return expert_inputs(rng, (7, 32), 3, 48, bits=8, program="dst = x", **kinds)
    if operator.name == "CompressedAttention":
        return compressed_inputs(rng, (types[1], types[4]), (2, 4, 2, 3, 5, 8, 6), (2, 1), float_type=types[0])
    if operator.name == "GatherDequantize":
        ids = np.array([[3, -1], [0, 19]], types[0])
        return [ids, rng.integers(-9, 9, (2, 8, 16, 4), np.int8), np.ones(1, np.int8), np.ones((2, 20), types[3])]
    if operator.name == "Interleave":
        return [rng.normal(0, 1, (2, 4, 5)).astype(types[0])]
    if operator.name == "ChannelGate":
        return [rng.normal(0, 1, shape).astype(np.float32) for shape in ((2, 4, 5), (3, 4), (3,), (4, 3), (4,))]
    if operator.name.startswith("WordMatMul"):
        return [*word_inputs(rng, (7, 33), 20)[0], *operands]
    if operator.name.startswith("WordConv"):
        return [*word_conv_inputs(rng, (2, 4, 5, 6), (8, 4, 3, 2)), *operands]
    if operator.name == "CompressedMatMul":
        return compressed_operands(rng, types[1], (7,), 33, 4, 5, float_types=(types[0], types[2]))
    if operator.name == "QuantizedAttention":
        return [
            *rng.normal(0, 1, (3, 2, 5, 8)).astype(types[0]),
            np.zeros((1, 1, 5, 5), np.float32),
            *(np.float32([number]) for number in (0.5, 0, -np.inf)),
        ]
    shapes: list[tuple[int, ...]] = [(7, 33), (), ()]
    spreads = [rng.normal(0, 60, shapes[0]), *(rng.uniform(1, 9, shape) for shape in shapes[1:])]
    if types[0] in ("uint8", "uint4"):  # whether negative floats become such codes depends on the CPU
        spreads[0] = np.abs(spreads[0])
    arrays = [np.asarray(values).astype(type_) for values, type_ in zip(spreads, types, strict=False)]
    if operands:
        return [*arrays[:2], *operands]
    if len(operator.inputs) > 1 and operator.inputs[1].name == "constants":
        arrays[1] = np.float32([-300, 300, 0, 300, 127, 1, 0, 300, 1])
    return arrays


def test_the_native_library_has_these_operators() -> None:
    native = library.load()
    names = list(itertools.takewhile(bool, (native.ort_dynq_operator(i) for i in range(100))))
    assert sorted(name.decode() for name in names) == sorted(OPERATORS)


@pytest.mark.parametrize(
    ("operator", "signature"),
    [pytest.param(*pair, id=f"{pair[0].name}-{'-'.join((*pair[1].inputs, *pair[1].outputs))}") for pair in SIGNATURES],
)
def test_every_signature_loads_and_runs(backend: str, operator: Operator, signature: Signature) -> None:
    given = attributes_of(operator, signature)
    model = node_model(operator, signature.inputs, signature.outputs, helpers._attributes(given))
    session = make_session(handwritten(model, backend), backend)
    arrays = arrays_of(operator, signature.inputs)
    names = [value.name for value in operator.inputs]
    results = session.run(None, dict(zip(names, arrays, strict=True)))
    expected = kernels.run(operator.name, arrays, **given)
    assert tuple(array.dtype.name for array in expected) == signature.outputs
    for result, array in zip(results, expected, strict=True):
        if result is None:  # the plugin does not make what a program does not assign
            assert array.size == 0
        else:
            assert_same(result, array)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_the_native_library_has_no_further_signature(count: int, operator: Operator) -> None:
    """Up to `count` inputs have other types than in a signature, or all inputs if there are few and `count` is 2.

    By default, half of those that differ from one signature: test_wrong_types_and_counts compares the table itself with
    all of them.
    """
    known = {signature.inputs for signature in operator.signatures}
    some = sorted(known)[-1:] if count == 1 else known
    outputs = operator.signatures[0].outputs
    if count == 2 and len(operator.inputs) <= 4:
        tried = set(itertools.product(TYPES, repeat=len(operator.inputs)))
    else:
        tried = {
            tuple(dict(zip(places, types, strict=True)).get(k, type_) for k, type_ in enumerate(inputs))
            for inputs in some
            if TYPES.keys() >= {*inputs}
            for places in itertools.combinations(range(len(inputs)), count)
            for types in itertools.product(TYPES, repeat=count)
        }
    for inputs in sorted(tried)[:: 3 - count]:
        if inputs not in known:
            model = node_model(operator, inputs, outputs, "")
            for output in model.graph.output:
                output.ClearField("type")
            with pytest.raises(Exception, match=operator.name):
                make_session(model, "native")


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
def test_the_native_library_reads_these_attributes(operator: Operator) -> None:
    """A value of the wrong type gives an error."""
    for attribute in operator.attributes:
        if attribute.name == "branch":  # only functions read it
            continue
        wrong = " = 1" if isinstance(attribute.default, str) else ' = "1"'
        signature = operator.signatures[0]
        model = node_model(operator, signature.inputs, signature.outputs, f"<{attribute.name}{wrong}>")
        with pytest.raises(Exception, match=f"the attribute {attribute.name} cannot be read"):
            make_session(model, "native")


@pytest.mark.parametrize(
    ("operator", "signature"),
    [pytest.param(operator, operator.signatures[-1], id=operator.name) for operator in OPERATORS.values()],
)
def test_absent_attributes_have_their_defaults(operator: Operator, signature: Signature) -> None:
    types = [
        "int8" if "int8" in value.types and i and not operator.name.startswith("Quantized") else type_
        for i, (value, type_) in enumerate(zip(operator.inputs, signature.inputs, strict=True))
    ]
    if operator.name == "RowProgram":
        types[1] = "uint8"  # of the default code_type
    arrays = arrays_of(operator, types)
    defaults = kernels.run(operator.name, arrays, **defaults_of(operator))
    for result, expected in zip(kernels.run(operator.name, arrays), defaults, strict=True):
        assert_same(result, expected)


# Results


class Observed:
    """A result that records the calls of its methods."""

    def __init__(self, result: Any, calls: list[str]) -> None:
        self._result, self._calls = result, calls

    def __getattr__(self, name: str) -> Any:
        self._calls.append(name)
        value = getattr(self._result, name)
        return value if name == "shape" else lambda: self._wrapped(value())

    def _wrapped(self, value: Any) -> Any:
        if value is self._result:
            return self
        assert type(value) is np.ndarray
        return value


def observe(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the calls of methods of results from now on."""
    calls: list[str] = []
    result = extensions._Result
    monkeypatch.setattr(extensions, "_Result", lambda array: Observed(result(array), calls))
    return calls


def test_methods_called_on_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails after an upgrade, read how onnxruntime_extensions/_ocos.py handles results now."""
    session = make_session(model_of(), "extensions")
    calls = observe(monkeypatch)
    assert_same(session.run(None, FEEDS)[0], CODES)
    assert calls == ["shape", "flatten", "tolist"]


def test_results_are_not_converted_to_lists() -> None:
    """A list of a million floats takes 32 MB; input, result and output of the session take 9 MB."""
    body = 'dst = ort_dynq.DynamicDequantize<qtype = "per_tensor", axis = 1, block_size = 0>(src, scale, zp)'
    session = make_session(parse("uint8[n] src, float scale, uint8 zp", "float[n] dst", body), "extensions")
    feeds = {**FEEDS, "src": np.arange(1_000_000).astype(np.uint8)}
    tracemalloc.start()
    try:
        (floats,) = session.run(None, feeds)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert_same(floats, feeds["src"].astype(np.float32) - np.float32(1))
    assert 5_000_000 < peak < 16_000_000


# Errors


def failing_session(**given: Any) -> ort.InferenceSession:
    return make_session(channel_model(0), "extensions", **given)


BAD, GOOD = channel_feeds((2, 3)), channel_feeds((3, 2))
MESSAGE = "^DynamicQuantize: scales has 3 elements, src has 2 along axis 0$"


def run_plain(session: ort.InferenceSession, feeds: dict[str, Array]) -> Any:
    return session.run(None, feeds)[0]


def run_with_iobinding(session: ort.InferenceSession, feeds: dict[str, Array]) -> Any:
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("dst")
    session.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()[0]


def run_with_ort_values(session: ort.InferenceSession, feeds: dict[str, Array]) -> Any:
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    return session.run_with_ort_values(None, values)[0].numpy()


def run_async(session: ort.InferenceSession, feeds: dict[str, Array]) -> Any:
    finished, outcome = threading.Event(), []

    def callback(results: Any, user_data: Any, error: str) -> None:
        outcome.append((results, user_data, error))
        finished.set()

    session.run_async(None, feeds, callback, "mine")
    assert finished.wait(30)
    ((results, user_data, error),) = outcome
    assert user_data == "mine"
    if error:
        assert len(results) == 0
        raise DynqError(error)
    return results[0]


RUNS = (run_plain, run_with_iobinding, run_with_ort_values, run_async)


class OwnSession(InferenceSession):
    """A user's class."""


def open_ours(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    return InferenceSession(model, options, backend="extensions")


def open_own(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    session = OwnSession(model, options, backend="extensions")
    assert isinstance(session, OwnSession)
    return session


def open_plain(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), register(options, "extensions"))


def open_registered(model: onnx.ModelProto, options: ort.SessionOptions) -> ort.InferenceSession:
    return sessions.open_registered(model, register(options, "extensions"))


@pytest.mark.parametrize(
    ("parallel", "run", "open_session"),
    diagonals(2, [False, True], RUNS, [open_plain, open_registered, open_ours, open_own]),
)
def test_an_error_reaches_the_caller(run: Callable[..., Any], open_session: Callable[..., Any], parallel: bool) -> None:
    """Afterwards the session gives right results."""
    options = helpers.options(2, optimize=False)
    if parallel:
        options.execution_mode, options.inter_op_num_threads = ort.ExecutionMode.ORT_PARALLEL, 2
    session = open_session(channel_model(0), options)
    for _ in range(3):
        with pytest.raises(DynqError, match=MESSAGE):
            run(session, BAD)
        assert_same(run(session, GOOD), np.ones((3, 2), np.uint8))


def test_an_error_with_consequences() -> None:
    """The first error is raised, not the error of a later node that it causes."""
    model = channel_model(0)
    model.graph.node.append(onnx.helper.make_node("Cast", ["dst"], ["same"], to=onnx.TensorProto.FLOAT))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["same", "matrix"], ["product"]))
    model.graph.input.append(onnx.helper.make_tensor_value_info("matrix", onnx.TensorProto.FLOAT, None))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("product", onnx.TensorProto.FLOAT, None))
    session = make_session(model, "extensions")
    with pytest.raises(DynqError, match=MESSAGE) as caught:
        session.run(None, {**BAD, "matrix": np.ones((7, 7), np.float32)})
    assert "MatMul" in str(caught.value.__cause__)


def test_errors_of_many_sessions_and_threads() -> None:
    """Each caller gets its own error or its own result."""
    opened = [make_session(channel_model(axis), "extensions") for axis in (0, 1)]

    def work(index: int) -> None:
        axis = index % 2
        for turn in range(100):
            if (turn + index) % 3:
                shape = (3, 2) if axis == 0 else (2, 3)
                assert_same(opened[axis].run(None, channel_feeds(shape))[0], np.ones(shape, np.uint8))
            else:
                with pytest.raises(DynqError, match=f"src has 7 along axis {axis}$"):
                    opened[axis].run(None, channel_feeds((7, 7)))

    with ThreadPoolExecutor(6) as pool:
        for future in [pool.submit(work, index) for index in range(6)]:
            future.result()


def test_an_error_on_a_worker_thread() -> None:
    """In a session in parallel execution mode. A sequential session at the same time is not affected."""
    body = "\n".join(
        f"dst{i} = ort_dynq.DynamicQuantize<{FULL.replace('per_tensor', 'per_channel')}>(src, scale, zp)"
        for i in range(6)
    )
    outputs = ", ".join(f"uint8[] dst{i}" for i in range(6))
    model = parse("float[] src, float[] scale, uint8 zp", outputs, body)
    options = helpers.options(1, optimize=False)
    options.execution_mode, options.inter_op_num_threads = ort.ExecutionMode.ORT_PARALLEL, 3
    parallel = open_registered(model, options)
    sequential = make_session(model_of(), "extensions")
    stop, elsewhere = threading.Event(), []

    def disturb() -> None:
        while not stop.is_set():
            elsewhere.append(sequential.run(None, FEEDS)[0])

    threads: set[int] = set()
    keep = extensions.runs.keep
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(extensions.runs, "keep", lambda error: (threads.add(threading.get_ident()), keep(error)))
        disturbed = pool.submit(disturb)
        try:
            for _ in range(10):
                with pytest.raises(DynqError, match="src has 2 along axis 1"):
                    parallel.run(None, channel_feeds((3, 2)))
                for codes in parallel.run(None, channel_feeds((2, 3))):
                    assert_same(codes, np.ones((2, 3), np.uint8))
        finally:
            stop.set()
        disturbed.result()
    assert threads - {threading.get_ident()}, "no operator ran on another thread, so nothing was tested"
    assert elsewhere
    for codes in elsewhere:
        assert_same(codes, CODES)


def test_an_interrupt_reaches_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while an operator runs: an exception that leaves the operator would end the process."""
    session = make_session(model_of(), "extensions")

    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kernels, "_tensor", interrupt)
        with pytest.raises(KeyboardInterrupt):
            session.run(None, FEEDS)
    assert_same(session.run(None, FEEDS)[0], CODES)


def test_an_error_outside_of_the_wrapped_methods() -> None:
    """The process ends, as in every operator of @onnx_op; no results are returned that were never computed."""
    code = """
import test_extensions as t
session = t.open_plain(t.channel_model(0), t.ort.SessionOptions())
assert session.run(None, t.GOOD)[0].tolist() == [[1, 1]] * 3
print("before", flush=True)
session._sess.run(["dst"], t.BAD, None)
print("after")
"""
    ran = run_code(code, succeeds=False)
    assert ran.stdout.split() == ["before"]
    assert MESSAGE.strip("^$") in ran.stderr


def test_changes_of_onnxruntime() -> None:
    """The methods that run a model are replaced once, at the first registration of this backend."""
    code = """
import onnxruntime as ort
kinds = [kind for kind in ort.InferenceSession.__mro__ if kind is not object]
def found(): return {(kind.__name__, name): value for kind in kinds for name, value in vars(kind).items()}
before = found()
import ort_dynq
ort_dynq.register(ort.SessionOptions(), "native")
assert found() == before
ort_dynq.register(ort.SessionOptions(), "extensions")
after = found()
ort_dynq.register(ort.SessionOptions(), "extensions")
assert found() == after
print(*sorted(name for kind, name in after if after[kind, name] != before.get((kind, name))))
"""
    ran = run_code(code)
    names = "run run_async run_with_iobinding run_with_ort_values run_with_ortvaluevector"
    assert ran.stdout.split() == names.split()


# Both backends


def test_both_backends_in_one_process() -> None:
    opened = {(backend, i): make_session(model_of(), backend) for i in range(2) for backend in BACKENDS}
    for _ in range(2):
        for session in opened.values():
            assert_same(session.run(None, FEEDS)[0], CODES)


@pytest.mark.parametrize("first", BACKENDS)
def test_both_backends_in_one_session(first: Any) -> None:
    second: Any = next(backend for backend in BACKENDS if backend != first)
    options = register(ort.SessionOptions(), first)
    assert register(options, first) is options
    with pytest.raises(DynqError, match=f"have the backend {first} already, and one session cannot have both"):
        register(options, second)
    assert_same(ort.InferenceSession(model_of().SerializeToString(), options).run(None, FEEDS)[0], CODES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("ours_first", [False, True])
def test_the_library_of_the_extensions_registered_twice(backend: Any, ours_first: bool) -> None:
    path = extensions.define()
    options = helpers.options(1, optimize=False)
    if ours_first:
        register(options, backend)
    options.register_custom_ops_library(path)
    register(options, backend)
    advice = "one session can have one backend of ort_dynq, and the library of onnxruntime-extensions once"
    with pytest.raises(DynqError, match=advice):
        sessions.open_registered(model_of(), options)
    with pytest.raises(DynqError, match=advice):
        InferenceSession(model_of(), options, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_library_that_cannot_be_loaded(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both backends run its kernels. The error is one line, and the options stay as they are."""

    def missing() -> Any:
        raise DynqError("there is no library")

    monkeypatch.setattr(library, "load", missing)
    options = ort.SessionOptions()
    with pytest.raises(DynqError) as caught:
        register(options, backend)
    assert str(caught.value) == "there is no library"
    monkeypatch.undo()
    session = ort.InferenceSession(handwritten(model_of(), backend).SerializeToString(), register(options, backend))
    assert_same(session.run(None, FEEDS)[0], CODES)


def test_an_unknown_backend() -> None:
    for use in (
        lambda: register(ort.SessionOptions(), "python"),  # type: ignore[arg-type]
        lambda: InferenceSession(model_of(), backend="python"),  # type: ignore[arg-type]
        lambda: ort_dynq.verify(model_of(), model_of(), backend="python"),  # type: ignore[arg-type]
    ):
        with pytest.raises(DynqError, match="there is no backend 'python', expected one of native, extensions"):
            use()


# ai.onnx.contrib.Inverse is an operator of onnxruntime-extensions.
BESIDE = """
import onnx.parser, numpy as np, onnxruntime as ort, ort_dynq
model = onnx.parser.parse_model('''
<ir_version: 8, opset_import: ["" : 17, "ort_dynq": %s, "ai.onnx.contrib" : 1]>
g (float[n, m] src, float scale, uint8 zp) => (uint8[n, m] dst, float[n, m] inverse) {
    dst = ort_dynq.DynamicQuantize<%s>(src, scale, zp)
    inverse = ai.onnx.contrib.Inverse(src)
}''').SerializeToString()
options = ort.SessionOptions()
%s
session = ort.InferenceSession(model, options)
feeds = {"src": np.float32([[2, 0], [0, 4]]), "scale": np.array(1, np.float32), "zp": np.array(1, np.uint8)}
print([result.tolist() for result in session.run(None, feeds)])
"""
NATIVE = """
ort_dynq.register(options)
assert "onnxruntime_extensions" not in sys.modules and "ort_dynq.backends.extensions" not in sys.modules
import onnxruntime_extensions
options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
assert not any("ort_dynq" in defined.op_type for defined in onnxruntime_extensions.Opdef._odlist.values())
"""


@pytest.mark.parametrize("lines", [NATIVE, "ort_dynq.register(options, 'extensions')"], ids=BACKENDS)
def test_operators_of_the_extensions_in_the_same_model(lines: str) -> None:
    """ort_dynq defines nothing in onnxruntime-extensions before the backend extensions is registered."""
    assert json.loads(run_code(BESIDE % (VERSION, FULL, lines)).stdout) == [[[3, 1], [1, 5]], [[0.5, 0], [0, 0.25]]]


def test_many_threads_register_at_once() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
import onnxruntime as ort, test_extensions as t
def work(_):
    return t.make_session(t.model_of(), "extensions").run(None, t.FEEDS)[0].tolist() == t.CODES.tolist()
with ThreadPoolExecutor(8) as pool:
    assert all(pool.map(work, range(8)))
import onnxruntime_extensions
names = [defined.op_type for defined in onnxruntime_extensions.Opdef._odlist.values()]
names = [name for name in names if name.startswith("ort_dynq::")]
assert len(names) == sum(len(t.extensions._variants(operator)) for operator in t.OPERATORS.values()), names
"""
    run_code(code)


def test_without_the_package() -> None:
    code = """
sys.modules["onnxruntime_extensions"] = None
import onnxruntime as ort, ort_dynq
try:
    ort_dynq.register(ort.SessionOptions(), "extensions")
except ort_dynq.DynqError as error:
    print(error)
"""
    assert "`pip install -U onnxruntime-extensions`" in run_code(code).stdout


def test_an_unknown_instruction_set() -> None:
    code = """
import os; os.environ["ORT_DYNQ_ISA"] = "mmx"
import onnxruntime as ort, ort_dynq
try:
    ort_dynq.register(ort.SessionOptions(), "extensions")
except ort_dynq.DynqError as error:
    print(error)
"""
    assert "mmx" in run_code(code).stdout


# Hand-written models


def ready(model: onnx.ModelProto) -> onnx.ModelProto:
    """The prepared model. The given model is not changed, and a second preparation changes nothing."""
    before = model.SerializeToString()
    proto = ort_dynq.ready_for_extensions(model).to_proto()
    assert model.SerializeToString() == before
    again = ort_dynq.ready_for_extensions(proto).to_proto()
    assert again.SerializeToString() == proto.SerializeToString()
    onnx.checker.check_model(onnx.load_from_string(proto.SerializeToString()))
    return proto


@pytest.mark.parametrize(
    ("inputs", "output", "body"),
    [
        ("float[n] src, float scale", "int8", "dst = ort_dynq.DynamicQuantize<output_dtype = 3>(src, scale)"),
        ("int8[n] src, float scale", "float", "dst = ort_dynq.DynamicDequantize(src, scale)"),
    ],
)
def test_an_added_zero_point_has_the_type_of_the_codes(inputs: str, output: str, body: str) -> None:
    """So the operator keeps its name, and the model runs with the other backend, too."""
    zero, node = ready(parse(inputs, f"{output}[n] dst", body)).graph.node
    assert zero.attribute[0].t.data_type == onnx.TensorProto.INT8
    assert node.op_type in ("DynamicQuantize", "DynamicDequantize")


@pytest.mark.parametrize(
    ("inputs", "output", "body"),
    [
        ("float[n] src, float scale", "uint8", "dst = ort_dynq.DynamicQuantize(src, scale)"),
        ("float[n] src, float scale", "int8", "dst = ort_dynq.DynamicQuantize<output_dtype = 3>(src, scale)"),
        (
            "float[n] src, float scale, int32 zp",
            "int8",
            "dst = ort_dynq.DynamicQuantize<output_dtype = 3>(src, scale, zp)",
        ),
        (
            "float[n] src, float scale, uint8 zp",
            "int8",
            "dst = ort_dynq.DynamicQuantize<output_dtype = 3>(src, scale, zp)",
        ),
        (
            "float[n] src, float scale, int8 zp",
            "uint8",
            "dst = ort_dynq.DynamicQuantize<output_dtype = 2>(src, scale, zp)",
        ),
        ("int8[n] src, float scale", "float", "dst = ort_dynq.DynamicDequantize(src, scale)"),
        ("uint8[n] src, float scale, int32 zp", "float", "dst = ort_dynq.DynamicDequantize(src, scale, zp)"),
    ],
)
def test_a_prepared_model(inputs: str, output: str, body: str) -> None:
    """It gives the results of the native backend for the original model."""
    model = parse(inputs, f"{output}[n] dst", body)
    feeds: dict[str, Array] = {"src": np.arange(-9, 9).astype(np.int8), "scale": np.array(0.5, np.float32)}
    if inputs.startswith("float"):
        feeds["src"] = np.float32([-300, -1.25, 0.25, 0.75, 300])
    elif inputs.startswith("uint8"):
        feeds["src"] = feeds["src"].view(np.uint8)
    if "zp" in inputs:
        feeds["zp"] = np.array(3, inputs.split()[-2])
    expected = make_session(model, "native").run(None, feeds)[0]
    assert_same(make_session(ready(model), "extensions").run(None, feeds)[0], expected)
    for source in (model, model.SerializeToString(), ir.from_proto(model)):
        session = InferenceSession(source, helpers.options(1, optimize=False), backend="extensions")
        assert_same(session.run(None, feeds)[0], expected)


def test_inside_functions_and_branches() -> None:
    """The types inside a function are not known before it is called."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 21, "ort_dynq": {VERSION}, "own" : 1]>
        g (bool flag, float[n] src, float scale) => (int8[n] dst) {{
            dst = If (flag) <
                then_branch = yes () => (int8[n] a) {{ a = own.quantize(src, scale) }},
                else_branch = no () => (int8[n] b) {{ b = ort_dynq.DynamicQuantize<output_dtype = 3>(src, scale) }}
            >
        }}
        <opset_import: ["" : 21, "ort_dynq": {VERSION}], domain: "own">
        quantize (x, s) => (y) {{ y = ort_dynq.DynamicQuantize<output_dtype = 3, arithmetic = "onednn">(x, s) }}
    """)
    for flag in (True, False):
        feeds = {
            "flag": np.array(flag),
            "src": np.float32([-300, -1.25, 0.25, 300]),
            "scale": np.array(0.5, np.float32),
        }
        expected = make_session(model, "native").run(None, feeds)[0]
        assert_same(make_session(ready(model), "extensions").run(None, feeds)[0], expected)


@pytest.mark.parametrize(
    "body",
    [
        f"dst = ort_dynq.DynamicQuantize<{FULL}>(src, scale)",
        "dst = ort_dynq.DynamicQuantize<axis = 1>(src, scale, zp)",
        f"dst = ort_dynq.DynamicQuantize<{FULL.replace('output_dtype = 2', 'output_dtype = 3')}>(src, scale, zp)",
        f"codes = ort_dynq.DynamicQuantize<{FULL.replace('output_dtype = 2', 'output_dtype = 3')}>(src, scale, zp)",
    ],
    ids=["input", "attribute", "declared type", "type"],
)
def test_a_model_that_is_not_prepared(body: str) -> None:
    """The error names the function that prepares it."""
    model = model_of(body)
    if "output_dtype = 3" in body:
        if body.startswith("codes"):
            model.graph.node.append(onnx.helper.make_node("Cast", ["codes"], ["dst"], to=onnx.TensorProto.INT8))
        model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT8
    with pytest.raises(DynqError, match=r"prepare the model with ort_dynq\.ready_for_extensions\(model\)"):
        make_session(model, "extensions").run(None, FEEDS)
    make_session(ready(model), "extensions").run(None, FEEDS)


# The command line


def write(path: Path, model: onnx.ModelProto) -> str:
    onnx.save(model, path)
    return str(path)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    calls = observe(monkeypatch)
    original = parse(*HEAD, "dst = QuantizeLinear(src, scale, zp)")
    del original.opset_import[1]
    a, b = write(tmp_path / "a.onnx", original), str(tmp_path / "b.onnx")
    assert main(["rewrite", a, "-o", b, "--verify", "--backend", "extensions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verification"]["passed"]
    assert calls
    calls.clear()
    assert main(["verify", a, b, "--backend", "extensions"]) == 0
    assert "PASSED" in capsys.readouterr().out
    assert calls
    calls.clear()
    assert main(["verify", a, b, "--backend", "native"]) == 0
    assert not calls
    unready = write(tmp_path / "unready.onnx", model_of("dst = ort_dynq.DynamicQuantize(src, scale, zp)"))
    assert main(["verify", a, unready, "--backend", "extensions"]) == 1


def test_the_command_line_lists_the_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "a", "b", "--backend", "python"]) == 2
    error = capsys.readouterr().err
    assert all(backend in error for backend in BACKENDS)
