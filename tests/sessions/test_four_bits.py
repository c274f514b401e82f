"""Inputs and outputs of 4 bits, which ONNX Runtime neither takes from NumPy nor gives to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import helpers
import ml_dtypes
import numpy as np
import onnx
import pytest

import ort_dynq
from ort_dynq import DynqError, cli, four_bits

RANGES = {"int4": range(-8, 8), "uint4": range(16)}


def model_of(kind: str, *, result: str = "float[N, 999] y", factor: float = 1.0) -> onnx.ModelProto:
    """Dequantizes codes by a scale that is computed at run time."""
    model = helpers.parse(
        f"{kind}[N, 999] codes, float[N, 999] x",
        result,
        f"""axes = Constant<value_ints = [0, 1]>() high = ReduceMax<keepdims = 0>(x, axes)
            factor = Constant<value = float {{{factor}}}>() scale = Mul(high, factor)
            y = DequantizeLinear(codes, scale)
            zero = Constant<value = {kind} {{1}}>() z = QuantizeLinear(x, scale, zero)""",
    )
    del model.opset_import[1]
    return model


def feeds_of(kind: str, dtype: Any = None) -> dict[str, Any]:
    """An odd number of codes, so that the last byte has only one of them."""
    codes = np.resize(RANGES[kind], (5, 999))
    x = np.linspace(-20, 2, 5 * 999, dtype=np.float32).reshape(5, 999)
    return {"codes": codes.astype(getattr(ml_dtypes, kind) if dtype is None else dtype), "x": x}


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("dtype", [None, np.int8, np.int64])
def test_session(kind: str, dtype: Any) -> None:
    model = model_of(kind, result=f"float[N, 999] y, {kind}[N, 999] z")
    session = ort_dynq.InferenceSession(model)
    feeds = feeds_of(kind, dtype)
    y, z = session.run(None, feeds)
    low, high = RANGES[kind][0], RANGES[kind][-1]
    assert np.array_equal(y, feeds["codes"].astype(np.float32) * 2)
    assert z.dtype == getattr(ml_dtypes, kind)
    assert np.array_equal(z.astype(np.int32), np.clip(np.rint(feeds["x"] / 2) + 1, low, high))
    (only_y,) = session.run(["y"], feeds)
    assert np.array_equal(only_y, y)


def test_empty() -> None:
    session = ort_dynq.InferenceSession(model_of("int4", result="float[N, 999] y, int4[N, 999] z"))
    y, z = session.run(None, {"codes": np.zeros((0, 999), np.int8), "x": np.zeros((0, 999), np.float32)})
    assert (y.shape, z.shape) == ((0, 999), (0, 999))


@pytest.mark.parametrize("kind", RANGES)
@pytest.mark.parametrize("is_given", [False, True])
def test_verify(kind: str, is_given: bool) -> None:
    """Both models get the codes, given ones or random ones of the whole range; a wrong B is found in both outputs."""
    model = model_of(kind, result=f"float[N, 999] y, {kind}[N, 999] z")
    fast = ort_dynq.rewrite(model)
    assert fast.report.rewritten
    given: dict[str, Any] = {"inputs": feeds_of(kind, np.int8)} if is_given else {"shapes": {"codes": (63, 999)}}
    found = ort_dynq.verify(model, fast.model, **given)
    assert found.passed, found.reason
    assert [each.dtype for each in found.inputs] == [kind, "float32"]
    assert [each.dtype for each in found.outputs] == ["float32", kind]
    wrong = ort_dynq.verify(model, model_of(kind, result=f"float[N, 999] y, {kind}[N, 999] z", factor=1.5), **given)
    assert wrong.status == "failed"
    assert all(each.differing and each.max_abs for each in wrong.outputs)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, codes, page = tmp_path / "m.onnx", tmp_path / "c.npy", tmp_path / "r.html"
    onnx.save(model_of("int4", result="float[N, 999] y, int4[N, 999] z"), source)
    np.save(codes, feeds_of("int4", np.int8)["codes"])
    given = f"--input=codes={codes}"
    assert cli.main(["rewrite", str(source), "-o", str(tmp_path / "f.onnx"), "--verify", given]) == 0
    assert "input codes: int4 5x999, given" in capsys.readouterr().out
    assert cli.main(["bench", str(source), "--report", str(page), "--seconds", "0.01", given]) == 0
    assert cli.main(["bench", str(source), "--seconds", "0.01", "--shape", "codes=5x999"]) == 0
    capsys.readouterr()
    onnx.save(model_of("int4", result="int4[N, 999] z", factor=1.5), tmp_path / "wrong.onnx")
    onnx.save(model_of("int4", result="int4[N, 999] z"), source)
    assert cli.main(["verify", str(source), str(tmp_path / "wrong.onnx"), given, "--shape", "x=5x999"]) == 1
    assert "z first differs at [" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.full((1, 999), 8, np.int8), "the input codes has integers from 8 to 8, which int4 cannot represent"),
        (np.full((1, 999), -9), "the input codes has integers from -9 to -9, which int4 cannot represent"),
        (np.zeros((1, 999), np.float32), "the input codes is float32, expected integers from -8 to 7"),
    ],
)
def test_other_numbers(codes: Any, message: str) -> None:
    model, feeds = model_of("int4"), {"codes": codes, "x": np.ones((1, 999), np.float32)}
    with pytest.raises(DynqError, match=message):
        ort_dynq.InferenceSession(model).run(None, feeds)
    with pytest.raises(DynqError, match=message):
        ort_dynq.verify(model, model, inputs=feeds)


def test_tensors_of_ort_stay() -> None:
    value = four_bits.ort_value("codes", feeds_of("int4")["codes"], "tensor(int4)")
    (y,) = ort_dynq.InferenceSession(model_of("int4")).run(None, {**feeds_of("int4"), "codes": value})
    assert np.array_equal(y, feeds_of("int4")["codes"].astype(np.float32) * 2)
