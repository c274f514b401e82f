"""A working folder with models for the tests of the command line."""

from __future__ import annotations

from pathlib import Path

import helpers
import numpy as np
import onnx
import pytest


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with x.npy, model.onnx, and wrong.onnx: its scale is one unit in the last place larger."""
    monkeypatch.chdir(tmp_path)
    for name, factor in (("model", np.float32(0.1)), ("wrong", np.nextafter(np.float32(0.1), np.float32(1)))):
        model = helpers.parse(
            "float[batch, 4] x",
            "float[batch, 4] y, int8[batch, 4] codes",
            f"""factor = Constant<value = float {{{factor:.12}}}>()
                zero = Constant<value = int8[4] {{0, 0, 0, 0}}>()
                high = ReduceMax<axes = [0], keepdims = 0>(x)
                scale = Mul(high, factor)
                codes = QuantizeLinear(x, scale, zero)
                y = DequantizeLinear(codes, scale, zero)""",
            opset=17,
        )
        del model.opset_import[1]
        onnx.save(model, f"{name}.onnx")
    np.save("x.npy", np.arange(1, 9, dtype=np.float32).reshape(2, 4))
    return tmp_path
