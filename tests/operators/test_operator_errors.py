"""Wrong attributes, shapes and types give errors that name the mistake. Products and programs have their own files."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import onnx
import pytest
from helpers import Array, Shape, assert_same, handwritten, make_session, parse

from ort_dynq import DynqError, kernels
from ort_dynq.operators import OPERATORS


@dataclass(frozen=True)
class Wrong:
    """A mistake and the message that it gives."""

    id: str
    text: str
    attributes: str = ""
    src: Shape = (2, 4)
    scales: Shape = (1,)
    zps: Shape | None = None
    op: str = "DynamicQuantize"
    good: tuple[Shape, Shape] | None = ((2, 4), (1,))  # src and scales with which the same session must run


GROUPED = 'qtype = "per_group"'
CHANNEL = 'qtype = "per_channel"'
AT_CREATION = (
    Wrong(
        "qtype",
        "DynamicQuantize: qtype is 'per_row', expected per_tensor, per_channel, per_group or auto",
        'qtype = "per_row"',
    ),
    Wrong("qtype empty", "DynamicQuantize: qtype is '', expected", 'qtype = ""'),
    Wrong("block_size", "DynamicQuantize: block_size is -1, expected 0 or more", "block_size = -1"),
    Wrong(
        "arithmetic", "DynamicQuantize: arithmetic is 'ONNX', expected onnx, onednn or wrapping", 'arithmetic = "ONNX"'
    ),
    Wrong(
        "output_dtype",
        r"DynamicQuantize: output_dtype is 7, expected 2 \(uint8\), 3 \(int8\), 21 \(uint4\) or 22 \(int4\)",
        "output_dtype = 7",
    ),
    Wrong("axis is text", "the attribute axis cannot be read", 'axis = "1"'),
    Wrong("axis is a float", "the attribute axis cannot be read", "axis = 1.0"),
    Wrong("qtype is a number", "the attribute qtype cannot be read", "qtype = 1"),
    Wrong("output_dtype is text", "the attribute output_dtype cannot be read", 'output_dtype = "2"'),
    Wrong("dq qtype", "DynamicDequantize: qtype is 'per_row', expected", 'qtype = "per_row"', op="DynamicDequantize"),
)
AT_RUN = (
    Wrong("count", "scales has shape 2, expected one element of rank 0 or 1 for per_tensor", scales=(2,)),
    Wrong("none", "scales has shape 0, expected one element of rank 0 or 1 for per_tensor", scales=(0,)),
    Wrong("rank", "scales has shape 1x1, expected one element of rank 0 or 1 for per_tensor", scales=(1, 1)),
    Wrong("channels", "scales has 3 elements, src has 4 along axis 1", CHANNEL, scales=(3,), good=((2, 4), (4,))),
    Wrong("one channel", "scales has 1 elements, src has 4 along axis 1", CHANNEL, scales=(1,), good=((2, 1), (1,))),
    Wrong(
        "negative axis",
        "scales has 4 elements, src has 2 along axis -2",
        f"{CHANNEL}, axis = -2",
        scales=(4,),
        good=((4, 2), (4,)),
    ),
    Wrong(
        "channel rank 2",
        "scales has shape 1x4, expected rank 1 for per_channel",
        CHANNEL,
        scales=(1, 4),
        good=((2, 4), (4,)),
    ),
    Wrong(
        "channel rank 0",
        "scales has shape scalar, expected rank 1 for per_channel",
        CHANNEL,
        scales=(),
        good=((2, 4), (4,)),
    ),
    Wrong(
        "axis high",
        "axis is 2, expected -2 to 1 for src of shape 2x4",
        f"{CHANNEL}, axis = 2",
        scales=(4,),
        good=((2, 4, 3), (3,)),
    ),
    Wrong(
        "axis low",
        "axis is -3, expected -2 to 1 for src of shape 2x4",
        f"{CHANNEL}, axis = -3",
        scales=(4,),
        good=((2, 4, 3), (2,)),
    ),
    Wrong("axis huge", f"axis is {2**62}, expected -2 to 1", f"{CHANNEL}, axis = {2**62}", scales=(4,), good=None),
    Wrong(
        "axis of rank 0",
        "axis is 0, expected .* for src of shape scalar",
        f"{CHANNEL}, axis = 0",
        src=(),
        good=((4, 3), (4,)),
    ),
    Wrong(
        "group rank",
        "scales has shape 4, expected the rank of src, 2, for per_group",
        GROUPED,
        scales=(4,),
        good=((2, 4), (2, 2)),
    ),
    Wrong(
        "group divides",
        "scales has shape 2x3, src 2x4: 3 groups do not divide 4 elements along dimension 1",
        GROUPED,
        scales=(2, 3),
        good=((2, 6), (2, 3)),
    ),
    Wrong(
        "more groups",
        "scales has shape 2x8, src 2x4: 8 groups do not divide 4 elements along dimension 1",
        GROUPED,
        scales=(2, 8),
        good=((2, 8), (2, 8)),
    ),
    Wrong(
        "no group",
        "scales has shape 2x0, src 2x4: 0 groups do not divide 4 elements along dimension 1",
        GROUPED,
        scales=(2, 0),
        good=((2, 4), (2, 1)),
    ),
    Wrong(
        "blocks",
        "scales has shape 2x4, expected 2 along dimension 1 for blocks of 2 along axis 1",
        f"{GROUPED}, block_size = 2",
        scales=(2, 4),
        good=((2, 8), (2, 4)),
    ),
    Wrong(
        "beside blocks",
        "scales has shape 1x2, expected 2 along dimension 0 for blocks of 2 along axis 1",
        f"{GROUPED}, block_size = 2",
        scales=(1, 2),
        good=((2, 4), (2, 2)),
    ),
    Wrong(
        "block axis", "axis is 5, expected -2 to 1", f"{GROUPED}, block_size = 2, axis = 5", scales=(2, 2), good=None
    ),
    Wrong(
        "zps count",
        "zps has shape 3, expected that of scales, 4, or one element",
        CHANNEL,
        scales=(4,),
        zps=(3,),
        good=((2, 4), (4,)),
    ),
    Wrong("zps for one scale", "zps has shape 4, expected that of scales, 1, or one element", scales=(1,), zps=(4,)),
    Wrong(
        "zps rank",
        "zps has shape 4x1, expected that of scales, 4, or one element",
        CHANNEL,
        scales=(4,),
        zps=(4, 1),
        good=((2, 4), (4,)),
    ),
    Wrong("zps none", "zps has shape 0, expected that of scales, 1, or one element", scales=(1,), zps=(0,)),
)


def wrong_model(wrong: Wrong) -> onnx.ModelProto:
    attributes = f"<{wrong.attributes}>" if wrong.attributes else ""
    source, code = ("float", "uint8") if wrong.op == "DynamicQuantize" else ("uint8", "float")
    more, names = (", uint8[] zps", ", zps") if wrong.zps is not None else ("", "")
    body = f"dst = ort_dynq.{wrong.op}{attributes}(src, scales{names})"
    return parse(f"{source}[] src, float[] scales{more}", f"{code}[] dst", body)


def feeds(op: str, src: Shape, scales: Shape, zps: Shape | None) -> dict[str, Array]:
    arrays = {"src": np.full(src, 3, np.float32 if op == "DynamicQuantize" else np.uint8)}
    arrays["scales"] = np.ones(scales, np.float32)
    return arrays if zps is None else {**arrays, "zps": np.zeros(zps, np.uint8)}


@pytest.mark.parametrize("wrong", AT_CREATION, ids=lambda wrong: wrong.id)
def test_error_at_creation(backend: str, wrong: Wrong) -> None:
    """The backend extensions checks values of attributes at run time; onnxruntime-extensions checks their types."""
    text = wrong.text
    if backend == "extensions":
        text = re.sub("the attribute (.*) cannot be read", r"Unable to find attribute '\1' due to .*type", text)
    with pytest.raises(Exception, match=text):  # noqa: PT012
        session = make_session(handwritten(wrong_model(wrong), backend), backend)
        assert backend == "extensions"
        session.run(None, feeds(wrong.op, (2, 4), (1,), None))


@pytest.mark.parametrize("op", ["DynamicQuantize", "DynamicDequantize"])
@pytest.mark.parametrize("wrong", AT_RUN, ids=lambda wrong: wrong.id)
def test_error_at_run(backend: str, wrong: Wrong, op: str) -> None:
    """The message names the operator and the expectation; afterwards the session runs on valid inputs."""
    session = make_session(handwritten(wrong_model(replace(wrong, op=op)), backend), backend)
    for _ in range(2):
        with pytest.raises(Exception, match=f"{op}: {wrong.text}"):
            session.run(None, feeds(op, wrong.src, wrong.scales, wrong.zps))
    if wrong.good is not None:
        dst = session.run(None, feeds(op, *wrong.good, None if wrong.zps is None else wrong.good[1]))[0]
        assert_same(dst, np.full(wrong.good[0], 3, np.uint8 if op == "DynamicQuantize" else np.float32))


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("DynamicQuantize", "float16[] src, float[] scales"),
        ("DynamicQuantize", "double[] src, float[] scales"),
        ("DynamicQuantize", "int32[] src, float[] scales"),
        ("DynamicQuantize", "float[] src, float16[] scales"),
        ("DynamicQuantize", "float[] src, float[] scales, int16[] zps"),
        ("DynamicQuantize", "float[] src, float[] scales, float[] zps"),
        ("DynamicDequantize", "int16[] src, float[] scales"),
        ("DynamicDequantize", "float[] src, float[] scales"),
        ("DynamicDequantize", "uint8[] src, double[] scales"),
        ("DynamicDequantize", "uint8[] src, float[] scales, int64[] zps"),
        ("DynamicDequantize", "uint8[] src"),
    ],
)
def test_wrong_types_and_counts_fail_at_creation(backend: str, op: str, inputs: str) -> None:
    """ONNX Runtime itself rejects them; its message names the operator."""
    names = ", ".join(part.split()[-1] for part in inputs.split(", "))
    output = "uint8" if op == "DynamicQuantize" else "float"
    model = parse(inputs, f"{output}[] dst", f"dst = ort_dynq.{op}({names})")
    with pytest.raises(Exception, match=op):
        make_session(handwritten(model, backend), backend)


@pytest.mark.parametrize(
    ("op", "attributes", "shapes", "text"),
    [
        ("AffineDequantize", {}, ((2, 4), (3,), (1,)), "scale has shape 3, expected one that broadcasts to 2x4"),
        (
            "AffineDequantize",
            {},
            ((2, 4), (1,), (4,)),
            "zero_point has shape 4, expected that of scale, 1, or one element",
        ),
        (
            "AffineDequantize",
            {},
            ((2, 4), (1, 1, 1), (1,)),
            "scale has shape 1x1x1, expected one that broadcasts to 2x4",
        ),
        *(
            ("TwoTermQuantize", given, ((2, 4),), text)
            for given, text in (
                ({"axis": 2}, "axis is 2, expected -2 to 1 for src of shape 2x4"),
                ({"axis": -3}, "axis is -3, expected -2 to 1 for src of shape 2x4"),
                ({"block_size": 3}, "block_size is 3, expected a divisor of the last dimension of src, 4"),
                ({"block_size": 8}, "block_size is 8, expected a divisor of the last dimension of src, 4"),
                ({"block_size": -1}, "block_size is -1, expected at least 0"),
                ({"block_size": 4, "axis": 1}, "axis is 1 for block_size 4, expected -1"),
            )
        ),
        ("TwoTermQuantize", {}, ((),), "src is a scalar, expected at least one dimension"),
        *(
            (op, given, ((2, 4),), f"{text} for src of shape 2x4")
            for op in ("ReduceAbsMax", "ReduceMinMax")
            for given, text in (
                ({"axis": 3}, "axis is 3, expected -2 to 2"),
                ({"axis": -3}, "axis is -3, expected -2 to 2"),
                ({"count": -1}, "count is -1, expected 0 to 1"),
                ({"count": 2}, "count is 2, expected 0 to 1"),
            )
        ),
    ],
    ids=str,
)
def test_errors_of_other_operators(op: str, attributes: dict[str, int], shapes: tuple[Shape, ...], text: str) -> None:
    """test_encodings.py tests single values of attributes, and values that exclude each other."""
    signatures = OPERATORS[op].signatures
    types = next((each.inputs for each in signatures if "int8" in each.inputs), signatures[0].inputs)
    arrays = [np.ones(shape, type_) for shape, type_ in zip(shapes, types, strict=True)]
    with pytest.raises(DynqError) as caught:
        kernels.run(op, arrays, **attributes)
    assert str(caught.value) == f"{op}: {text}"
