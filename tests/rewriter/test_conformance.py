"""Every model in models/ computes its recorded outputs after a rewrite, with the plugin and without it.

Outputs are compared bit for bit. If a rewrite makes integer products of float products, these are compared with float64
and everything else bit for bit: see ort_dynq.verify. The native backend on the best instruction set is compared with
the original; every other way to run a rewritten model with the native backend. The tests of a model run one after
the other, so that they share its rewrite and its outputs.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from helpers import IS_ARM, Array, assert_same, every, handwritten, make_session, nodes_of, parse, stock_session
from recorded_models import EXPECTED
from rewriting import FOLDERS, MODELS, check_verification, data_sets, has_products, load, operators, rewritten

from ort_dynq import kernels, verify
from ort_dynq.backends.options import BACKENDS, Backend
from ort_dynq.opsets import OPSET
from ort_dynq.rewriter import rewrite
from ort_dynq.rewriter.convolutions import batch_normalization
from ort_dynq.rewriter.float16 import operands as float16_operands
from ort_dynq.rewriter.float16.casts import saved_by_onnxruntime
from ort_dynq.rewriter.metadata import ACTIVATION, SOURCE
from ort_dynq.rewriter.normal_form import with_branches_taken
from ort_dynq.rewriter.products import dequantized_rows
from ort_dynq.runtime import version

# Fake quantizations with codes that an integer product can use: they then only quantize.
FAKES = {
    "ort_dynq.DynamicFakeQuantize",
    "ort_dynq.DynamicQuantizeDequantizeLinear",
}
# Models with chains that stay where ONNX Runtime adds and multiplies in float16, so that they are not float32 chains.
EXPECTED_WITH_FLOAT16: dict[str, dict[str, int]] = {
    "ort_half_optimized": {},
    "ort_half_token": {},
    "token_float16_glue": {},
    "torch_half_token": {},
    "torch_token_float16": {"ort_dynq.ReduceAbsMax": 1},
    "torchscript_half_token": {},
}
# The calls in models that change with --fuse: attention over codes.
EXPECTED_WITH_FUSIONS: dict[str, dict[str, int]] = {
    name: {"ort_dynq.CompressedAttention": 1}
    for name in (
        *("compressed_4_bits", "compressed_both", "compressed_causal", "compressed_key", "compressed_key_channel"),
        *(
            "compressed_floats",
            "compressed_groups",
            "compressed_repeated",
            "compressed_4_bits_half",
            "compressed_both_half",
            "compressed_causal_half",
            "compressed_key_half",
        ),
    )
} | {"torch_int8_cache": {"ort_dynq.RowProgram": 7, "ort_dynq.CompressedAttention": 1}}
# Attention over codes and models like it, which ONNX Runtime 1.32 recorded without AVX-512.
COMPRESSED = [
    *("torch_int8_cache", *(name for name in EXPECTED if name.startswith("compressed_") and "tensors" not in name))
]
# Other models with float products or sums that ONNX Runtime 1.32 recorded.
OF_1_32 = (
    *("image_decoder", "inverse_products", "straight_through", "weight_blocks", "image_parts", "masked_attention"),
    *("saved_operators", "moved_codes", "no_epsilon", "floating_zero_point", "integer_heads", "weight_shapes"),
    "joined_parts",
    *("ort_dynamic_llama", "padded_images", "shared_scales", "embedding_of_codes", "masked_codes", "positions"),
    *("relative_bounds", "rounded_by_arithmetic", "scaled_sums", "shared_exponents", "hqq_weights"),
)
# Models with operators of float16 or 4-bit codes, which onnxruntime-extensions does not carry.
NOT_FOR_EXTENSIONS = {
    *(name for name in COMPRESSED if name.endswith(("_half", "4_bits", "mlp"))),
    *("ort_half_optimized", "ort_half_token", "token_float16_glue", "torchao_half"),
}
# The oldest onnxruntime that runs the original, for models that need a newer one than this package does.
OLDEST_RUNTIME = {
    "compressed_4_bits": (1, 23),  # Cast of 4-bit codes, in functions
    "compressed_4_bits_half": (1, 23),
    "compressed_mlp": (1, 23),
    "compressed_mlp_half": (1, 23),
    "image_parts": (1, 24),  # ConvInteger of int8 weights
    "scaled_sums": (1, 24),  # as above
    "ort_dynamic_speech": (1, 24),  # as above
    "saved_operators": (1, 32),  # GroupQueryAttention with one output
    "ort_tied_embedding": (1, 32),  # GatherBlockQuantized of uint8
    "ort_mixture_of_experts": (1, 32),  # QMoE with blocks of 8 bits, and the levels of its activations
    "ort_nbits": (1, 23),  # MatMulNBits of 8 bits
    "hqq_weights": (1, 23),  # Cast of 4-bit codes
}
OTHER_ON_ARM = {
    "ort_dynamic_optimized": "onnxruntime's fused products round the scaled sum in another way on ARM",
    "saved_operators": "onnxruntime saved the model with layouts of x86-64",
    "token_float16_glue": "onnxruntime computes Add and Mul in float16 on ARM CPUs that can",
}
RUNTIME = tuple(map(int, ort.__version__.split(".")[:2]))


def why_skipped(name: str) -> str:
    """Why stock ONNX Runtime does not compute what ONNX defines; empty if it does."""
    if OLDEST_RUNTIME.get(name, RUNTIME) > RUNTIME:
        return f"onnxruntime {ort.__version__} cannot run {name}"
    if IS_ARM and b"Reciprocal" in (MODELS / name / "model.onnx").read_bytes():
        return "Reciprocal of onnxruntime is not correctly rounded on ARM"
    if IS_ARM and name in OTHER_ON_ARM:
        return OTHER_ON_ARM[name]
    return ""


RUNNABLE = [
    pytest.param(name, marks=pytest.mark.skipif(bool(why_skipped(name)), reason=why_skipped(name) or "-"))
    for name in FOLDERS
]
models = pytest.mark.parametrize("name", RUNNABLE, scope="module")  # the scope puts the tests of a model together
PROMISES = {"default": False, "exact": True}


def promised(promise: str) -> list[Any]:
    """The parameters `name` and `exact` of every model with one promise."""
    return [
        pytest.param(*each.values, PROMISES[promise], marks=each.marks, id=f"{promise}-{each.values[0]}")
        for each in RUNNABLE
    ]


def names_and_promises(*parameters: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("name", "exact"), parameters, scope="module")


# Every fourth model has one of the promises by default: its neighbours in the list have nearly the same chains.
either_promise = names_and_promises(*every(8, promised("default")), *every(8, promised("exact"), 4))


@functools.cache
def adds_float16() -> bool:
    """Whether ONNX Runtime has float16 kernels of Add, Mul and Div, as on ARM CPUs with float16 arithmetic."""
    graph = saved_by_onnxruntime(ir.from_proto(parse("float16[2] x", "float16[2] y", "y = Add(x, x)")))
    assert graph is not None
    return [node.op_type for node in graph.node] == ["Add"]


def expected_operators(name: str) -> dict[str, int]:
    """The calls of operators that a rewritten model must have on this CPU."""
    expected = dict((EXPECTED | EXPECTED_WITH_FLOAT16 if adds_float16() else EXPECTED)[name])  # tests add to it
    if name == "compressed_bert_half" and version() < (1, 30):  # it truncates quotients of float16
        return {operator: count for operator, count in expected.items() if operator != "ort_dynq.DynamicQuantize"}
    return expected


def test_models_are_there() -> None:
    assert len(FOLDERS) >= 12
    assert sum(file.stat().st_size for file in MODELS.rglob("*") if file.is_file()) < 6_300_000
    gone = EXPECTED.keys() - set(FOLDERS)
    assert not gone, f"EXPECTED in {Path(__file__).name} lists folders that are not in models/: {sorted(gone)}"


def loadable(name: str, content: bytes, backend: str) -> bytes | onnx.ModelProto:
    """A rewritten model, prepared if the backend requires it."""
    return handwritten(onnx.ModelProto.FromString(content), backend) if name in NOT_FOR_EXTENSIONS else content


def run(session: ort.InferenceSession, name: str) -> list[list[Array]]:
    """The outputs for each data set."""
    assert [each.name for each in session.get_outputs()] == list(data_sets(name)[0][1])
    return [[np.asarray(each) for each in session.run(None, inputs)] for inputs, _ in data_sets(name)]


@functools.cache
def outputs_of_original(name: str) -> list[list[Array]]:
    """Of stock ONNX Runtime. test_recorded_outputs compares them with the records."""
    return run(stock_session(load(name)), name)


@functools.cache
def outputs(name: str, exact: bool) -> list[list[Array]]:
    """Of the rewritten model with the native backend, on the best instruction set of the CPU."""
    return run(make_session(rewritten(name, exact)[1], "native"), name)


def assert_equal(actual: list[list[Array]], expected: list[list[Array]]) -> None:
    for one, other in zip(actual, expected, strict=True):
        for array, wanted in zip(one, other, strict=True):
            assert_same(array, wanted)


@names_and_promises(*promised("default"), *every(12, promised("exact"), 2))
def test_native_backend(isas: Sequence[str], name: str, exact: bool) -> None:
    """The best instruction set is compared with the original, the others with the best, of :func:`outputs`."""
    result, content = rewritten(name, exact)
    if exact or not has_products(name):
        assert_equal(outputs(name, exact), outputs_of_original(name))
    else:
        for inputs, _ in data_sets(name):
            found = verify(load(name), content, inputs=inputs)
            assert found.passed, found
            assert not found.unreachable
            taken = with_branches_taken(result.model, inputs).graph
            products = sum(ACTIVATION in node.metadata_props for node in taken.all_nodes())
            assert len(found.products) == products > 0
    for isa in {*isas} - {kernels.isa()}:
        with kernels.use_isa(isa):
            assert_equal(run(make_session(content, "native"), name), outputs(name, exact))


@either_promise
def test_extensions_backend(name: str, exact: bool) -> None:
    """The backends share their kernels: the CPU's best instruction set is enough."""
    content = loadable(name, rewritten(name, exact)[1], "extensions")
    assert_equal(run(make_session(content, "extensions"), name), outputs(name, exact))


@names_and_promises(*every(24, promised("default"), 3), *every(24, promised("exact"), 2))
def test_verification(name: str, exact: bool) -> None:
    """test_native_backend has verified the products of every model. Here are also models without products."""
    check_verification(name, exact)


@either_promise
def test_without_the_plugin(name: str, exact: bool) -> None:
    """The results equal the original's bit for bit or, if these may differ, the results with the plugin."""
    expected = outputs_of_original(name) if exact or not has_products(name) else outputs(name, exact)
    assert_equal(run(stock_session(rewritten(name, exact)[1]), name), expected)


@pytest.mark.parametrize("name", every(2, [each for each in RUNNABLE if each.values[0] in EXPECTED_WITH_FUSIONS]))
def test_fusions(isas: Sequence[str], name: str) -> None:
    """The fused operators have the bits of their functions in both backends; `verify` compares with the original."""
    model = rewrite(load(name), fuse=True).to_proto()
    assert operators(model) == EXPECTED_WITH_FUSIONS[name]
    expected = run(stock_session(model), name)
    for backend in BACKENDS:
        assert_equal(run(make_session(loadable(name, model.SerializeToString(), backend), backend), name), expected)
    for isa in {*isas} - {kernels.isa()}:
        with kernels.use_isa(isa):
            assert_equal(run(make_session(model, "native"), name), expected)
    for inputs, _ in data_sets(name):
        verification = verify(load(name), model, inputs=inputs)
        assert verification.passed, verification
        assert any(each.is_fusion for each in verification.products)


@models
def test_recorded_outputs(name: str) -> None:
    """Stock ONNX Runtime computes the recorded outputs; its float products differ between versions and CPUs."""
    as_recorded = ort.__version__.startswith("1.31.") and "avx512" in kernels.supported_isas()
    as_recorded &= name not in (*COMPRESSED, *OF_1_32)
    for actual, (_, recorded) in zip(outputs_of_original(name), data_sets(name), strict=True):
        same = all(a.tobytes() == b.tobytes() for a, b in zip(actual, recorded.values(), strict=True))
        if not (same or as_recorded):
            pytest.skip(
                f"onnxruntime {ort.__version__}, or this CPU, is not the one that recorded, and differs from it"
            )
        for array, expected in zip(actual, recorded.values(), strict=True):
            assert_same(array, expected)


@models
def test_operators(name: str) -> None:
    assert name in EXPECTED, f"models/{name} is new: say in EXPECTED, in {Path(__file__).name}, which operators it gets"
    result, content = rewritten(name)
    model = onnx.ModelProto.FromString(content)
    assert operators(model) == expected_operators(name)
    # These give operators inputs of float16, steps to programs, and another order to standard operators.
    others = (float16_operands.RULE.name, batch_normalization.RULE.name, dequantized_rows.RULE.name)
    rewritten_by = [finding for finding in result.report.rewritten if finding.rule not in others]
    converted = Counter(f"ort_dynq.{finding.operator}" for finding in rewritten_by)
    # Weights, also those that are dequantized once; stock products of uint8 codes; rows of packed weights; pools
    standard = ("Constant", "Gemm", "GatherND", "MatMul", "MatMulInteger", "MaxPool", "QLinearMatMul")
    folded = {f"ort_dynq.{each}" for each in standard}
    assert converted.keys() - folded <= expected_operators(name).keys() | (FAKES if has_products(name) else set())
    assert all(finding.reason for finding in result.report.unconverted)
    assert {f"ort_dynq.{f.name}" for f in model.functions if f.domain == "ort_dynq"} == expected_operators(name).keys()


@pytest.mark.parametrize("name", every(6, RUNNABLE, 2), scope="module")
def test_exact_operators(name: str) -> None:
    """An exact rewrite leaves float products, and converts the rest."""
    result, content = rewritten(name, exact=True)
    model = onnx.ModelProto.FromString(content)
    assert not any(entry.key == ACTIVATION for node in nodes_of(model.graph) for entry in node.metadata_props)
    if not has_products(name):
        expected = expected_operators(name)
        if name in ("row_square", "row_zero_point"):
            expected["ort_dynq.DynamicDequantize"] = 1  # of weights, which are not folded
        if name == "integer_token_einsum":
            del expected["ort_dynq.QuantizedMatMul"]  # NaN is no code where floats are cast to int32 at once
        assert operators(model) == expected
    else:
        reasons = [finding.reason for finding in result.report.findings]
        assert any("exact: " in reason or reason.startswith("ONNX Runtime fuses ") for reason in reasons)


@names_and_promises(*promised("default"), *every(6, promised("exact"), 2))
def test_is_valid(name: str, exact: bool) -> None:
    onnx.checker.check_model(onnx.ModelProto.FromString(rewritten(name, exact)[1]), full_check=True)


@pytest.mark.parametrize("name", every(18, RUNNABLE), scope="module")
def test_second_rewrite_changes_nothing(name: str) -> None:
    content = rewritten(name)[1]
    again = rewrite(onnx.ModelProto.FromString(content))
    assert again.report.rewritten == []
    assert again.to_proto().SerializeToString() == content


@pytest.mark.parametrize("name", every(18, RUNNABLE, 1), scope="module")
def test_rewrite_is_deterministic_and_leaves_its_input_alone(name: str) -> None:
    model = load(name)
    before = model.SerializeToString()
    assert rewrite(model).to_proto().SerializeToString() == rewritten(name)[1]
    assert model.SerializeToString() == before


@pytest.mark.parametrize("name", every(48, RUNNABLE, 2), scope="module")
def test_rewrite_of_a_file(name: str, tmp_path: Path) -> None:
    path = MODELS / name / "model.onnx"
    result = rewrite(path)
    result.save(tmp_path / "fast.onnx")
    saved, expected = onnx.load(tmp_path / "fast.onnx"), rewrite(onnx.load(path)).to_proto()
    for model in (saved, expected):
        for each in [each for each in model.metadata_props if each.key == SOURCE]:  # the hash of the file
            model.metadata_props.remove(each)
    assert saved.SerializeToString() == expected.SerializeToString()
    assert [file.name for file in tmp_path.iterdir()] == ["fast.onnx"]


@models
def test_names_types_and_metadata_are_kept(name: str) -> None:
    before, after = load(name), onnx.ModelProto.FromString(rewritten(name)[1])
    for kind in ("input", "output"):
        values = [list(getattr(model.graph, kind)) for model in (before, after)]
        assert [value.name for value in values[0]] == [value.name for value in values[1]]
        assert [value.type for value in values[0]] == [value.type for value in values[1]]
        assert [value.doc_string for value in values[0]] == [value.doc_string for value in values[1]]
    assert (after.doc_string, after.graph.doc_string) == ("of the model", "of the graph")
    assert after.graph.name == before.graph.name
    assert (after.producer_name, after.producer_version) == (before.producer_name, before.producer_version)
    kept = {entry.key: entry.value for entry in after.metadata_props}
    assert {entry.key: entry.value for entry in before.metadata_props}.items() <= kept.items()
    assert after.ir_version >= before.ir_version
    standard = [
        {o.domain: o.version for o in model.opset_import if o.domain != "ort_dynq"} for model in (before, after)
    ]
    assert standard[1] == standard[0] | ({"": OPSET} if standard[0][""] < OPSET else {})


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        pytest.param(*each.values, backend, marks=each.marks, id=f"{backend}-{each.values[0]}")
        for first, backend in enumerate(BACKENDS)
        for each in every(32, RUNNABLE, 16 * first)  # every sixteenth model has one of the backends by default
    ],
    scope="module",
)
def test_default_optimization_level(name: str, backend: Backend) -> None:
    """Checks types and shapes only: ONNX Runtime's fusions round differently."""
    session = make_session(loadable(name, rewritten(name)[1], backend), backend, optimize=True)
    for actual, (_, expected) in zip(run(session, name), data_sets(name), strict=True):
        assert [(each.dtype, each.shape) for each in actual] == [(each.dtype, each.shape) for each in expected.values()]
