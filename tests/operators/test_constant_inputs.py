"""The plugin reads constant inputs once, when a session opens: an initializer that a caller may replace is none."""

from __future__ import annotations

import numpy as np
from helpers import assert_same, make_session, native_only, parse
from onnx import numpy_helper

from ort_dynq.backends.options import Backend


@native_only
def test_an_initializer_that_is_an_input_may_be_another_tensor(backend: Backend) -> None:
    body = "dst = ort_dynq.DynamicDequantize(codes, scale, constant)"
    model = parse("uint8[n] codes, float[1] scale", "float[n] dst", body)
    for name, value in (("scale", np.float32([0.5])), ("constant", np.uint8([3]))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    session = make_session(model, backend)
    codes = np.uint8([3, 7, 255])
    assert_same(session.run(None, {"codes": codes})[0], np.float32([0, 2, 126]))
    assert_same(session.run(None, {"codes": codes, "scale": np.float32([2])})[0], np.float32([0, 8, 504]))
    assert_same(session.run(None, {"codes": codes})[0], np.float32([0, 2, 126]))
