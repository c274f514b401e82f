"""Memory safety of every operator: invalid inputs give errors, and no access is outside a tensor.

Tensors end directly before a protected page, or begin directly after one. An access to that page ends the process. This
also detects masked vector instructions, which AddressSanitizer does not see.

More than 450 lines: invalid inputs of each family of operators, and the tests that run all of them. tests/cases has the
valid ones.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from arena import Arena
from cases import FITTING, Given
from cases.channel_gate import PROGRAMS as GATES
from cases.quantized_attention import attributes as attention_attributes
from helpers import SIGNATURES, TYPES, Array, Shape, assert_same, every, handwritten, make_session, parse

from ort_dynq import DynqError, kernels, library
from ort_dynq.operators import OPERATORS, Operator, Signature
from ort_dynq.operators.word_matmul import MAX_WEIGHT_WORD
from ort_dynq.rewriter.analysis.standard import OWN_RECURRENCES

IDS = [f"{operator.name}-{'-'.join((*signature.inputs, *signature.outputs))}" for operator, signature in SIGNATURES]
every_operator = pytest.mark.parametrize("operator", OPERATORS.values(), ids=lambda operator: operator.name)
PRODUCTS = ("QuantizedMatMul", "QuantizedConv", "QuantizedMatMulProgram", "QuantizedConvProgram")
ELEMENTWISE = [(pair, id_) for pair, id_ in zip(SIGNATURES, IDS, strict=True) if pair[0].name not in PRODUCTS]
# Every tail of vectors of 4 to 32 elements, whole vectors, and both sides of tiles of 64, 96 and 128.
LENGTHS = (*range(1, 36), 47, 48, 49, *range(63, 67), 96, 97, *range(127, 130))

Attributes = dict[str, Any]


# Types and values of valid inputs of the shapes in tests/cases


def with_types(operator: Operator, signature: Signature, given: Attributes, n: int) -> Attributes:
    """The attributes, with the ones that depend on the types; the other attributes take every value in turn."""
    names = {attribute.name for attribute in operator.attributes}
    code = {"uint8": 2, "int8": 3, "uint4": 21, "int4": 22}.get(signature.outputs[0], 1)
    result = dict(given)
    if "arithmetic" in names:
        result["arithmetic"] = ("onnx", "onednn", "wrapping")[n % 3]
    if "output_dtype" in names:
        result["output_dtype"] = code
    if "code_type" in names:
        result["code_type"] = code
    if operator.name == "CompressedAttention":
        result |= {"float_key": int("float" in signature.inputs[1])}
        result |= {"float_value": int("float" in signature.inputs[4])}
        if result["float_key"]:
            result["scale_query"] = 0
        if result["float_value"]:
            result["scale_result"] = 0
    if operator.name == "QuantizedConvProgram" and signature.outputs == ("float16",) and "program" in given:
        result["program"] = f"dst = Clip(x, {n % 3 - 2.0}, {n % 5 + 1.0})"
    return result


def values(rng: np.random.Generator, operator: Operator, index: int, type_: str, shape: Shape) -> Array:
    if "float" in type_:
        if index == 0:
            return np.asarray(rng.normal(0, 60, shape)).astype(type_)
        scales = np.float32([0.1, 0.5, 1.7, 1e-40] if rng.random() < 0.2 else [0.1, 0.5, 1.7])
        return np.asarray(rng.choice(scales, shape)).astype(type_)
    limits: Any = ml_dtypes.iinfo(np.dtype(type_))
    ranges = {"int32": (-300, 20000), "int16": (-MAX_WEIGHT_WORD, MAX_WEIGHT_WORD + 1)}
    low, high = ranges.get(type_, (int(limits.min), int(limits.max)))
    return np.asarray(rng.integers(low, high, shape)).astype(type_)


def inputs_of(
    rng: np.random.Generator, operator: Operator, signature: Signature, given: Sequence[Given]
) -> list[Array]:
    if operator.name == "CompressedAttention":  # floats have one scale, one zero point and one offset
        floats = [
            each for i, offset in ((1, 9), (4, 10)) if "float" in signature.inputs[i] for each in (i + 1, i + 2, offset)
        ]
        given = [(1, 1, 1, 1) if i in floats else one for i, one in enumerate(given)]
    return [
        one.astype(type_) if isinstance(one, np.ndarray) else np.asarray(values(rng, operator, index, type_, one))
        for index, (type_, one) in enumerate(zip(signature.inputs, given, strict=False))
    ]


# Memory between protected pages


@functools.cache
def arenas() -> tuple[list[Arena], list[Arena]]:
    """Arenas for inputs and for outputs. They are never freed, since arrays can refer to their memory."""
    return [Arena() for _ in range(12)], [Arena() for _ in range(6)]


def run_guarded(operator: str, inputs: list[Array], given: Attributes, outputs: tuple[str, ...], at_end: bool) -> Any:
    """kernels.run with inputs and outputs in arenas, as tensors are stored."""
    sources, targets = arenas()
    assert len(inputs) <= len(sources)
    stored = [arena.copy(kernels._stored(array), at_end) for arena, array in zip(sources, inputs, strict=False)]
    results: dict[int, Array] = {}

    def allocate(_user: int, index: int, _type: int, dims: Any, rank: int) -> int:
        form = kernels._stored(np.zeros(tuple(dims[:rank]), outputs[index]))
        results[index] = targets[index].empty(form.shape, form.dtype, at_end)
        results[index][...] = 77
        return int(results[index].ctypes.data)

    tensors = (library.Tensor * len(inputs))(*map(kernels._tensor, inputs, stored))
    attributes = kernels._attributes(operator, tuple(given.items()))
    message = ctypes.create_string_buffer(1024)
    failed = library.load().ort_dynq_run(
        operator.encode(),
        attributes,
        len(attributes),
        tensors,
        len(tensors),
        library.Allocate(allocate),
        None,
        message,
        1024,
    )
    assert not failed, message.value
    return [results[index] for index in sorted(results)]


def check_accesses(operator: Operator, signature: Signature, lengths: Sequence[int] = LENGTHS) -> None:
    rng = np.random.default_rng(0)
    for n in lengths:
        for shapes, given in FITTING[operator.name](n):
            arrays = inputs_of(rng, operator, signature, shapes)
            attributes = with_types(operator, signature, given, n)
            expected = kernels.run(operator.name, arrays, **attributes)
            # Only rows that are shorter than a vector, and the few kernels that step back at the end, read backwards.
            for at_end in (True, False) if n < 18 or n % 8 == 1 else (True,):
                results = run_guarded(operator.name, arrays, attributes, signature.outputs, at_end)
                for result, right in zip(results, expected, strict=True):
                    assert result.tobytes() == kernels._stored(right).tobytes(), (shapes, attributes)


needs_mprotect = pytest.mark.skipif(sys.platform == "win32", reason="there is no mprotect")


# Each signature with six parts of the lengths. One part is the default. Parts of three adjacent numbers have every
# attribute that follows from a length.
ACCESSES = [
    pytest.param(*pair, [n for i, n in enumerate(LENGTHS) if i // 3 % 6 == part % 6], id=f"{id_}-{part % 6}")
    for first, (pair, id_) in enumerate(ELEMENTWISE)
    for part in range(first, first + 6)
]


@needs_mprotect
@pytest.mark.parametrize(("operator", "signature", "lengths"), every(6, ACCESSES))
def test_no_access_is_outside_a_tensor(
    isa: str, operator: Operator, signature: Signature, lengths: Sequence[int]
) -> None:
    check_accesses(operator, signature, lengths)


@needs_mprotect
@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("DynamicQuantize", ("float16", "float16", "int32", "uint4")),
        ("DynamicQuantize", ("bfloat16", "bfloat16", "int4", "int8")),
        ("DynamicQuantize", ("float32", "float32", "uint8", "int4")),
        ("DynamicDequantize", ("uint4", "float16", "uint4", "float16")),
        ("DynamicDequantize", ("int4", "float32", "int8", "float32")),
        ("DynamicDequantize", ("int8", "bfloat16", "int32", "bfloat16")),
        *(
            ("RowProgram", (src, code, *["float32"] * 4, code, code, src, src, "float32", "float32"))
            for src, code in (("float32", "uint4"), ("float32", "int4"), ("float16", "uint4"))
        ),
    ],
    ids=str,
)
def test_no_access_of_small_types_is_outside_a_tensor(isa: str, name: str, types: tuple[str, ...]) -> None:
    operator, count = OPERATORS[name], len(OPERATORS[name].inputs)
    signature = Signature(types[:count], types[count:])
    assert signature in operator.signatures
    check_accesses(operator, signature, LENGTHS[::6])


@needs_mprotect
@pytest.mark.parametrize("code", [0, 1], ids=["uint8", "int8"])
@pytest.mark.parametrize("operator", PRODUCTS)
def test_no_access_of_products_is_outside_a_tensor(product_isa: str, operator: str, code: int) -> None:
    # A length has other programs and other attributes than the next one, and int8 has other lengths than uint8.
    check_accesses(OPERATORS[operator], OPERATORS[operator].signatures[code], LENGTHS[2 * code :: 9])


@pytest.mark.skipif(sys.platform != "linux", reason="reads the exit status of Linux")
def test_an_access_to_a_protected_page_ends_the_process() -> None:
    """Each access in a process of its own: a copy of one in which no other test has run."""
    code = f"""
import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]
import ctypes, os
from arena import Arena
arena = Arena()
for at in (-1, 0, arena.SIZE - 1, arena.SIZE):
    child = os.fork()
    if child == 0:
        ctypes.string_at(arena.begin + at, 1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert list(map(int, done.stdout.split())) == [-signal.SIGSEGV, 0, 0, -signal.SIGSEGV], done.stderr


# Invalid inputs


def wrong_shapes(operator: Operator) -> Iterator[tuple[Sequence[Given], Attributes, Sequence[Given]]]:
    """Invalid shapes, attributes, and shapes that are valid with the same attributes."""
    names = {attribute.name for attribute in operator.attributes}
    count = len(operator.inputs)
    if "reduce_others" in names:
        for axis, axes in (
            (3, 1),
            (-4, 1),
            (2**62, 1),
            (1, 3),
            (0, 4),
            (0, -1),
            (-1, 2),
            (1, 2**63 - 1),
            (-(2**63), 1),
        ):
            yield [(2, 4)], {"axis": axis, "count": axes}, [(2, 4, 5, 3)] if (axis, axes) in ((3, 1), (1, 3)) else []
        return
    if operator.name == "GatherDequantize":
        table: list[Given] = [np.array([19]), (2, 3, 16, 4), (2, 20), (2, 20)]
        for index, wrong in (
            (0, [np.array([20]), np.array([[0, -21]]), np.array(2**62), np.zeros((1,) * 16, np.int64)]),
            (1, [(), (24,), (1, 3, 16, 4), (3, 3, 16, 4), (2, 3, 4, 16), (1, 2, 3, 16, 4)]),
            (2, [(0,), (2,), (20,), (2, 19), (1, 20), (2, 20, 1)]),
            (3, [(), (20,), (0, 20), (2, 16), (2, 33), (5, 20), (1, 2, 20)]),
        ):
            for given in wrong:
                yield [*table[:index], given, *table[index + 1 :]], {}, table
        return
    if operator.name == "Interleave":
        for shape in (
            (),
            (4,),
            (2, 4),
            (2, 3, 5),
            (2, 6, 5, 4),
            (2, 6, 5),
            (1, 12, 2, 2, 2, 2),
            (2, 1, 4),
            (2, 2, 4, 1),
        ):
            yield [shape], {"stride_1": 2, "stride_2": 2}, [(2, 4, 3, 5)]
        return
    if count == 1:  # every shape is valid
        return
    if operator.name == "ChannelGate":
        gate: list[Given] = [(2, 4, 3, 5), (6, 4), (6,), (4, 6), (4,)]
        for index, wrong in (
            (0, [(), (4,), (2, 4), (2, 5, 3, 5), (2, 1, 3, 5)]),
            (1, [(), (24,), (4, 6), (5, 4), (6, 1), (0, 4), (6, 4, 1)]),
            (2, [(), (1,), (4,), (6, 1)]),
            (3, [(), (6, 4), (4, 1), (4, 6, 1)]),
            (4, [(), (1,), (6,), (1, 4)]),
        ):
            for shape in wrong:
                yield [*gate[:index], shape, *gate[index + 1 :]], {"program": GATES[0]}, gate
        return
    if "program" in names and operator.name not in (*OWN_RECURRENCES, "QuantizedExperts"):
        yield from wrong_operands(operator)
        return
    if operator.name == "DynamicQuantizedMatMul":
        for each, given, good in wrong_shapes(OPERATORS["QuantizedMatMul"]):
            is_of_codes = good and (each[1:3] != good[1:3] or each[0] == (3, 4))  # which fits one scale
            if not is_of_codes:
                yield [each[0], *each[3:]], given, [*good[:1], *good[3:]]
        return
    if operator.name == "QuantizedMatMul":
        ours: list[Shape] = [(2, 4), (2, 1), (2, 1), (1, 1, 16, 4), (), (1, 3), (1, 3), (3,)]
        for index, wrong in (
            (0, [(), (2, 5), (3, 4)]),
            (1, [(3,), (4,), (1, 4), (2, 4), (1, 1, 1)]),
            (2, [(4,), (1, 2), (3, 1)]),
            (3, [(), (4,), (2, 1, 16, 4), (1, 2, 16, 4), (1, 1, 4, 16), (1, 0, 16, 4), (0, 1, 16, 4)]),
            (4, [(3,), (2, 3), (1, 2), (0,)]),
            *((index, [(), (1,), (3,), (2, 3), (1, 4), (3, 1), (1, 0)]) for index in (5, 6)),
            (7, [(), (1, 3), (2,), (4,), (17,), (0,)]),
        ):
            for shape in wrong:
                yield [*ours[:index], shape, *ours[index + 1 :]], {}, ours
        grouped: list[Shape] = [(2, 32), (2, 2), (2, 2), (1, 8, 16, 4), (2, 3), (2, 3), (2, 3), (3,)]
        given = {"group_size": 16, "scale_order": 2}
        for index, shape in (
            (2, (2, 1)),
            (1, (2, 3)),
            (4, (1, 3)),
            (5, (3, 3)),
            (6, (1, 3)),
            (0, (2, 24)),
            (0, (2, 0)),
        ):
            yield [*grouped[:index], shape, *grouped[index + 1 :]], given, grouped
        return
    if operator.name == "QuantizedAttention":
        heads: list[Shape] = [(2, 3, 8), (2, 5, 8), (2, 5, 6), (2, 1, 3, 5), (), (), ()]
        for index, wrong in (
            (0, [(), (3, 8), (2, 3, 7), (1, 3, 8), (2, 3, 6), (1, 2, 3, 8), (2, 3, 0)]),
            (1, [(2, 5), (2, 5, 6), (1, 5, 8), (2, 4, 8), (2, 5, 9)]),
            (2, [(5, 6), (2, 4, 6), (1, 5, 6), (2, 5, 7)]),
            (3, [(), (5,), (3, 5), (2, 2, 3), (2, 3, 3, 5), (2, 1, 3, 4), (3, 1, 3, 5), (0, 1, 3, 5)]),
            *((index, [(2,), (0,), (1, 2)]) for index in (4, 5, 6)),
        ):
            for shape in wrong:
                yield [*heads[:index], shape, *heads[index + 1 :]], {"num_heads": 2}, heads
        layouts = (1, 2, 1, 0)
        whole: list[Shape] = [(2, 4, 3, 8), (2, 2, 8, 5), (2, 2, 5, 6), (2, 1, 3, 5), (), (), ()]
        for index, wrong in (
            (0, [(2, 3, 32), (2, 2, 3, 8), (2, 3, 4, 8), (2, 4, 3, 7), (1, 4, 3, 8)]),
            (1, [(2, 5, 16), (2, 2, 5, 8), (2, 4, 8, 5), (2, 2, 8, 4)]),
            (2, [(2, 5, 12), (2, 2, 4, 6), (2, 4, 5, 6)]),
        ):
            for shape in wrong:
                yield [*whole[:index], shape, *whole[index + 1 :]], attention_attributes(4, 2, layouts), whole
        return
    if operator.name == "CompressedAttention":
        scales: Shape = (2, 2, 5, 4)
        cached: list[Shape] = [(2, 4, 3, 8), (2, 2, 5, 8), scales, scales, (2, 2, 5, 6), (2, 1, 1, 3), (1, 1, 1, 1)]
        cached += [(2, 1, 3, 5), (), scales, (2, 1, 1, 3)]
        for index, wrong in (
            (0, [(), (4, 3, 8), (1, 4, 3, 8), (2, 3, 3, 8), (2, 4, 3, 7), (2, 4, 3, 0)]),
            (1, [(2, 5, 8), (1, 2, 5, 8), (2, 3, 5, 8), (2, 2, 4, 8), (2, 2, 5, 9)]),
            (2, [(), (4,), (2, 2, 5, 3), (2, 2, 4, 4), (2, 3, 5, 4), (2, 2, 5, 0)]),
            (3, [(), (5, 4), (2, 2, 5, 2), (2, 2, 4, 1), (0, 2, 5, 4)]),
            (4, [(2, 5, 6), (1, 2, 5, 6), (2, 1, 5, 6), (2, 2, 4, 6)]),
            (5, [(), (2, 2, 5, 4), (2, 2, 4, 3), (3, 2, 5, 3)]),
            (6, [(), (1,), (2, 2, 5, 2), (1, 1, 1, 2)]),
            (7, [(), (3, 5), (2, 2, 3, 5), (2, 1, 3, 4), (0, 1, 3, 5)]),
            (8, [(2,), (0,), (1, 2)]),
            (9, [(), (2, 2, 5), (2, 2, 5, 3), (2, 2, 4, 4), (1, 3, 5, 4)]),
            (10, [(3,), (2, 1, 5, 3), (2, 1, 1, 2), (2, 3, 1, 3)]),
        ):
            for shape in wrong:
                yield [*cached[:index], shape, *cached[index + 1 :]], {}, cached
        return
    if operator.name == "CompressedMatMul":
        product: list[Given] = [(3, 8), (8, 6), (8, 2), (8, 2)]
        for index, wrong in (
            (0, [(), (3, 7), (8, 3), (3, 0)]),
            (1, [(6,), (7, 6), (1, 8, 6)]),
            (2, [(), (2,), (8, 4), (8, 0), (1, 2), (8, 2, 1)]),
            (3, [(2,), (8,), (1, 2), (0,), (8, 2, 1)]),
        ):
            for shape in wrong:
                yield [*product[:index], shape, *product[index + 1 :]], {}, product
        return
    if operator.name == "WordMatMul":
        words: list[Given] = [(2, 4), (1, 2, 32, 2), (3,), (3,)]
        for index, wrong in (
            (0, [(), (2, 5), (2, 2), (4, 0)]),
            (1, [(), (2, 32, 2), (1, 1, 32, 2), (2, 2, 32, 2), (1, 2, 16, 2), (1, 1, 2, 32, 2), (0, 2, 32, 2)]),
            (2, [(), (1,), (4,), (1, 3)]),
            (3, [(), (1,), (4,), (33,), (1, 3)]),
        ):
            for shape in wrong:
                yield [*words[:index], shape, *words[index + 1 :]], {}, words
        stacked: list[Given] = [(2, 3, 4), (2, 1, 2, 32, 2), (2, 3), (2, 3)]
        for index, shape in ((0, (3, 3, 4)), (0, (4,)), (1, (1, 2, 32, 2)), (1, (3, 1, 2, 32, 2)), (2, (3,))):
            yield [*stacked[:index], shape, *stacked[index + 1 :]], {}, stacked
        return
    if operator.name == "WordConv":
        places = np.array([[2, 3], [1, 2], [1, 1], [0, 1], [1, 0]], np.int32)
        filters: list[Given] = [(2, 4, 3, 5), (3, 4, 2, 3), (3,), (3,), places]
        for index, each in (
            *((0, each) for each in ((), (4,), (2, 4, 3), (2, 0, 3, 5), (2, 5, 3, 5), (2, 4, 0, 5), (2, 4, 3, 1))),
            *((1, each) for each in ((), (3,), (3, 4, 2), (2, 4, 2, 3), (3, 2, 2, 3), (3, 4, 3, 2), (0, 4, 2, 3))),
            *((2, each) for each in ((), (2,), (4,), (1, 3), (0,))),
            *((3, each) for each in ((), (1, 3), (2,), (4,), (0,))),
            *((4, each) for each in ((), (10,), (5, 1), (4, 2), np.array([[1, 1]] * 4 + [[0, -1]], np.int32))),
        ):
            yield [*filters[:index], each, *filters[index + 1 :]], {}, filters
        return
    if operator.name == "QuantizedExperts":
        mixture: list[Given] = [(3, 32), (3, 4), (3, 4)]
        mixture += [(4, 2, 4, 16, 4), (4, 2, 32), (4, 2, 32), (4, 32), (4, 2, 2, 16, 4), (1,), (4, 1, 32), (4, 32)]
        for index, wrong in (
            (0, [(), (3, 31), (3, 0), (2, 32), (3, 16)]),
            (1, [(), (4,), (2, 4), (3, 3), (3, 1), (3, 0)]),
            (2, [(4,), (1,), (3, 3), (2, 4)]),
            (3, [(), (2, 4, 16, 4), (3, 2, 4, 16, 4), (4, 1, 4, 16, 4), (4, 2, 8, 16, 4), (0, 2, 4, 16, 4)]),
            (4, [(2,), (4, 1, 32), (3, 2, 32), (2, 32), (4, 2, 31)]),
            (5, [(), (4, 32), (4, 1, 32), (3, 2, 32), (4, 2, 33)]),
            (6, [(), (32,), (3, 32), (4, 31), (4, 0), (4, 33)]),
            (7, [(2, 2, 16, 4), (4, 2, 4, 16, 4), (4, 1, 2, 16, 4)]),
            (8, [(2,), (4, 2, 32), (4, 1, 31)]),
            (9, [(), (4, 2, 32), (4, 1, 16)]),
            (10, [(), (4, 31), (32,)]),
        ):
            for shape in wrong:
                yield (
                    [*mixture[:index], shape, *mixture[index + 1 :]],
                    {"bits": 4, "group_size": 16, "program": "dst = Mul(x, tensor1)", "k": 2},
                    mixture,
                )
        return
    if operator.name in OWN_RECURRENCES:
        has_words = operator.name == "WordRecurrence"
        gates: list[Given] = [(3, 2, 34), (1, 3, 5, 16, 4), (1, 34), (1, 34), (1, 34), (1, 2, 17), (), (), (1, 51)]
        gates[6:8] = [(1, 1, 1), (2,)]
        packed: list[Shape] = [(3, 5, 16, 4), (1, 2, 5, 16, 4), (1, 3, 4, 16, 4), (2, 3, 5, 16, 4), (0, 3, 5, 16, 4)]
        if has_words:
            gates[1] = (1, 2, 9, 32, 2)
            packed = [(2, 9, 32, 2), (1, 3, 9, 32, 2), (1, 2, 8, 32, 2), (2, 2, 9, 32, 2), (1, 3, 5, 16, 4)]
        for index, wrong in (
            (0, [(), (2, 34), (3, 2, 33), (3, 2, 17), (3, 2, 85), (3, 2, 0), (3, 3, 34), (3, 2, 34, 1)]),
            (1, [(), *packed]),
            *((index, [(), (34,), (2, 34), (1, 35), (1, 0)]) for index in (2, 3, 4)),
            *((index, [(), (2, 17), (2, 2, 17), (1, 3, 17), (1, 2, 16), (1, 0, 17)]) for index in (5, 6)),
            (7, [(3,), (0,), (1, 2), (2, 1)]),
            (8, [(), (51,), (1, 68), (1, 16), (2, 51), (1, 52)]),
        ):
            for shape in wrong if not (has_words and index == 3) else ():
                changed = [*gates[:index], shape, *gates[index + 1 :]]
                sums = 3 if has_words else len(gates)  # words have none
                yield [*changed[:sums], *changed[sums + 1 :]], {"hidden_size": 17}, [*gates[:sums], *gates[sums + 1 :]]
        return
    if operator.name == "QuantizedConv":
        geometry = np.array([[2, 3], [1, 2], [1, 1], [0, 1], [1, 0]], np.int32)
        conv: list[Given] = [(2, 4, 3, 5), (), (), (1, 6, 16, 4), (), (3,), (3,), (3,), geometry]
        wrongs: tuple[tuple[int, list[Given]], ...] = (
            (0, [(), (4,), (2, 4, 3), (2, 0, 3, 5), (2, 5, 3, 5), (2, 4, 0, 5), (2, 4, 3, 1), (2, 4, 3, 5, 1)]),
            *((index, [(3,), (0,), (3, 1), (1, 2)]) for index in (1, 2)),
            (3, [(), (4,), (2, 6, 16, 4), (1, 7, 16, 4), (1, 6, 4, 16), (1, 0, 16, 4), (0, 6, 16, 4)]),
            *((index, [(2,), (4,), (1, 3), (3, 1), (0,)]) for index in (4, 5, 6)),
            (7, [(), (1, 3), (2,), (4,), (17,), (0,)]),
            (8, [(), (10,), (5, 1), (5, 3), (4, 2), (6, 2), np.array([[1, 1]] * 4 + [[0, -1]], np.int32)]),
            (8, [np.full((5, 2), extreme, np.int32) for extreme in (0, -1, 4, 2**31 - 1, -(2**31))]),
        )
        for index, several in wrongs:
            for each in several:
                yield [*conv[:index], each, *conv[index + 1 :]], {}, conv
        return
    if "qtype" in names:
        for qtype, wrong, good in (
            ("per_tensor", [(2,), (0,), (1, 1)], ()),
            ("per_channel", [(3,), (1,), (), (1, 4), (0,), (5,)], (4,)),
            ("per_group", [(4,), (2, 3), (2, 8), (2, 0), (0, 4), (1, 2, 4)], (2, 2)),
            ("auto", [(3,), (5,), (2, 3), (0,)], (4,)),
        ):
            for scales in wrong:
                yield [(2, 4), scales, ()], {"qtype": qtype}, [(2, 4), good, ()]
        for axis in (3, -4, 2**62, -(2**63)):
            given = {"qtype": "per_channel", "axis": axis}
            yield [(2, 4), (4,), ()], given, [(2, 4, 3, 5), (5,), ()] if axis == 3 else []
        given = {"qtype": "per_group", "block_size": 3, "axis": 1}
        for scales in ((2, 1), (2, 3), (1, 2), (2, 2, 1)):
            yield [(2, 4), scales, ()], given, [(2, 4), (2, 2), ()]
        given, scale = {"qtype": "per_channel"}, (4,)
    else:
        for scales in ((3,), (2, 3), (4, 4), (1, 2, 4), (0,), (2, 0)):
            yield [(2, 4), scales, ()], {}, [(2, 4), (4,), ()]
        given, scale = {}, (4,)
    if count > 2:
        for zps in ((3,), (4, 1), (0,), (5,), (2, 4)):
            yield [(2, 4), scale, zps], given, [(2, 4), scale, (4,)]


def wrong_operands(operator: Operator) -> Iterator[tuple[Sequence[Given], Attributes, Sequence[Given]]]:
    """Wrong operands of a program and, for a product with a program, all that is wrong for the product."""
    text = "dst = Add(Mul(x, row1), Add(column2, tensor3))"
    product = OPERATORS.get(operator.name.removesuffix("Program"))
    wrongs: tuple[tuple[int, list[Shape]], ...] = (
        (0, [(3, 1), (1, 2), (2, 3), (1, 2, 1), (0,), (2,)]),
        (1, [(2,), (2, 3), (3, 1), (1, 1, 3), (), (1,), (4,)]),
        (2, [(1, 3), (3,), (2, 1), (1, 2, 3), (), (3, 2), (2, 0)]),
    )
    if product is None:
        ours: list[Given] = [(2, 3), (), (2, 1), (3,), (2, 3), ()]
        for axis in (2, -3, 2**62, -(2**63)):
            yield ours, {"axis": axis}, []
        yield [(2, 4), *ours[1:]], {"program": text}, ours
    elif product.name == "WordMatMul":
        ours = [(2, 4), (1, 2, 32, 2), (3,), (3,), (2, 1), (3,), (2, 3)]
    elif product.name in ("QuantizedMatMul", "DynamicQuantizedMatMul"):
        of_codes: list[Given] = [(2, 1), (2, 1)] if product.name == "QuantizedMatMul" else []
        ours = [(2, 4), *of_codes, (1, 1, 16, 4), (), (1, 3), (1, 3), (3,), (2, 1), (3,), (2, 3)]
    else:
        geometry = np.array([[2, 3], [1, 2], [1, 1], [0, 1], [1, 0]], np.int32)
        ours = [(2, 4, 3, 5), (), (), (1, 6, 16, 4), (), (3,), (3,), (3,)]
        if product.name == "WordConv":
            ours = [(2, 4, 3, 5), (3, 4, 2, 3), (3,), (3,)]
        ours += [geometry, (3, 1, 1), (3, 2), (2, 3, 3, 2)]
        wrongs = (
            (0, [(2, 1, 1, 1), (2, 1, 1), (3, 1), (3,), (1, 3, 3, 2), (1, 1, 3, 1, 1), (0,)]),
            (1, [(3, 1, 1), (2, 3), (2,), (1, 3, 3, 2), (1, 1, 1, 3, 2), ()]),
            (2, [(3, 3, 2), (1, 3, 3, 2), (2, 3, 3, 1), (2, 3, 6), ()]),
        )
    first = 2 if product is None else len(product.inputs)
    for index, shapes in wrongs:
        for shape in shapes:
            yield [*ours[: first + index], shape, *ours[first + index + 1 :]], {"program": text}, ours
    for wrong, given, good in wrong_shapes(product) if product is not None else ():
        yield [*wrong, (), (), ()], given, [*good, (), (), ()] if good else []


def node(operator: Operator, signature: Signature, given: Attributes) -> onnx.ModelProto:
    names = [value.name for value in operator.inputs]
    texts = ", ".join(
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}" for name, value in given.items()
    )
    heads = ", ".join(f"{TYPES[type_]}[] {name}" for type_, name in zip(signature.inputs, names, strict=True))
    tails = ", ".join(f"{TYPES[type_]}[] y{i}" for i, type_ in enumerate(signature.outputs))
    outputs = ", ".join(f"y{i}" for i in range(len(signature.outputs)))
    return parse(
        heads, tails, f"{outputs} = ort_dynq.{operator.name}{f'<{texts}>' if texts else ''}({', '.join(names)})"
    )


@every_operator
def test_wrong_shapes(backend: str, operator: Operator) -> None:
    """The error names the operator; afterwards the session gives right results."""
    rng = np.random.default_rng(0)
    signature = operator.signatures[0]
    sessions: dict[str, Any] = {}
    tried = 0
    for shapes, given, good in wrong_shapes(operator):
        attributes = with_types(operator, signature, given, 0)
        if str(attributes) not in sessions:
            model = handwritten(node(operator, signature, attributes), backend)
            sessions[str(attributes)] = make_session(model, backend)
        session = sessions[str(attributes)]
        names = [value.name for value in operator.inputs]
        wrong, right = (inputs_of(rng, operator, signature, some) for some in (shapes, good))
        with pytest.raises(Exception, match=operator.name):
            session.run(None, dict(zip(names, wrong, strict=False)))
        with pytest.raises(DynqError, match=operator.name):
            kernels.run(operator.name, wrong, **attributes)
        if good:
            expected = kernels.run(operator.name, right, **attributes)
            for result, other in zip(session.run(None, dict(zip(names, right, strict=False))), expected, strict=True):
                assert_made(result, other)
        tried += 1
    assert tried >= 8 or not list(wrong_shapes(operator))


def types_of_inputs(known: set[tuple[str, ...]], count: int) -> Iterator[tuple[str, ...]]:
    """All combinations of up to 3 types; of more types, some that differ from a signature in one."""
    if count <= 3:
        yield from itertools.product(TYPES, repeat=count)
        return
    found = set()
    signatures = sorted(known)
    for i in range(count):
        for inputs, changed in itertools.product(signatures[i % len(signatures) :: count], TYPES):
            types = [*inputs, "float32"][:count]
            types[i] = changed
            found.add(tuple(types))
    yield from found


@every_operator
def test_wrong_types_and_counts(operator: Operator) -> None:
    """Combinations of types that no signature has. ONNX Runtime rejects them itself (test_extensions.py)."""
    known = {signature.inputs for signature in operator.signatures}
    required = sum(not value.absent for value in operator.inputs)
    for count in range(len(operator.inputs) + 2):
        for types in types_of_inputs(known, count):
            if any(inputs[:count] == types for inputs in known) and required <= count:
                continue
            with pytest.raises(DynqError, match=operator.name):
                kernels.run(operator.name, [np.ones((), type_) for type_ in types])


def assert_made(result: Array | None, expected: Array) -> None:
    """Compares an output; the plugin does not make those that a program does not assign."""
    if result is None:
        assert expected.size == 0
    else:
        assert_same(result, expected)


@every_operator
def test_too_many_dimensions(backend: str, operator: Operator) -> None:
    signature = operator.signatures[0]
    shapes, attributes = next(FITTING[operator.name](4))
    given = with_types(operator, signature, attributes, 0)
    session = make_session(handwritten(node(operator, signature, given), backend), backend)
    rng = np.random.default_rng(0)
    names = [value.name for value in operator.inputs]
    arrays = inputs_of(rng, operator, signature, shapes)
    for index, array in enumerate(arrays):
        wrong = [*arrays[:index], array.reshape((1,) * (17 - array.ndim) + array.shape), *arrays[index + 1 :]]
        text, form = str(given.get("program", "")), rf"(row|column|tensor){names[index][-1]}\b"
        if names[index].startswith("operand_") and not re.search(form, text):  # the program does not read it
            session.run(None, dict(zip(names, wrong, strict=True)))
            continue
        with pytest.raises(Exception, match="rank 17, expected at most 16"):
            session.run(None, dict(zip(names, wrong, strict=True)))
    results = session.run(None, dict(zip(names, arrays, strict=True)))
    for result, expected in zip(results, kernels.run(operator.name, arrays, **given), strict=True):
        assert_made(result, expected)
