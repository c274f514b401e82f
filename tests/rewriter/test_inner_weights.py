"""Products in branches and loops of weights behind DequantizeLinear that a graph outside holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
import pytest
from helpers import Array, assert_same, make_session, stock_session
from onnx import numpy_helper

import ort_dynq
from ort_dynq import cli
from ort_dynq.rewriter import Result, inspect, rewrite

RNG = np.random.default_rng(0)
CODES = RNG.integers(-60, 60, (512, 256)).astype(np.int8)  # [N, K]
CONSTANTS: dict[str, Array] = {"w": CODES, "s": np.float32(0.01).reshape(()), "z": np.int8(0).reshape(())}
FEEDS = {"x": RNG.standard_normal((3, 256)).astype(np.float32)}


def product(name: str, *, is_transposed: bool, own: str = "") -> str:
    """A product that ONNX Runtime makes MatMulNBits of. Its constants in `own` have the name with a suffix."""
    w, s, z = (f"{each}_{name}" if each in own else each for each in "wsz")
    moved = f"{name}_t = Transpose({name}_d)" if is_transposed else ""
    factor = f"{name}_t" if is_transposed else f"{name}_d"
    return f"{name}_d = DequantizeLinear({w}, {s}, {z}) {moved} {name} = MatMul(x, {factor})"


def model_of(*, is_transposed: bool = True, own: str = "", main: bool = True, kind: str = "If") -> onnx.ModelProto:
    bodies = [product(name, is_transposed=is_transposed, own=own) for name in "ab"]
    if kind == "If":
        then, other = (f"{name} () => (float[] {name}) {{ {body} }}" for name, body in zip("ab", bodies, strict=True))
        inner = f"y = If(i) <then_branch = {then}, else_branch = {other}>"
    else:
        inner = f"""n = Constant<value_int = 2>() y = Loop(n, i) <body = body (int64 j, bool c) => (bool d, float[] a)
            {{ d = Identity(c) {bodies[0]} }}>"""
    outer = product("m", is_transposed=is_transposed) if main else ""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[N, 256] x, bool i) => (float[] y{", float[N, 512] m" if main else ""}) {{ {inner} {outer} }}""")
    constants = CONSTANTS | {"w": CODES if is_transposed else CODES.T.copy()}
    bodies_of = [attribute.g for node in model.graph.node for attribute in node.attribute if attribute.HasField("g")]
    graphs = {"": model.graph} | {graph.output[-1].name: graph for graph in bodies_of}
    for name, graph in graphs.items():
        for key in constants if not name else own:
            graph.initializer.append(numpy_helper.from_array(constants[key], f"{key}_{name}" if name else key))
    return model


def run(session: ort.InferenceSession) -> list[Array]:
    return [each for i in (False, True) for each in session.run(None, FEEDS | {"i": np.array(i)})]


def packed(result: Result) -> int:
    """The number of initializers with as many bytes as the codes."""
    return sum(value.const_value.nbytes == CODES.nbytes for value in result.model.graph.initializers.values())


@pytest.mark.parametrize(
    ("is_transposed", "own", "kind"), [(True, "", "If"), (False, "s", "If"), (True, "w", "If"), (False, "", "Loop")]
)
def test_weights_outside_of_a_branch(is_transposed: bool, own: str, kind: str) -> None:
    """ONNX Runtime 1.32 does not open such a model by default. The rewritten one opens, with or without products."""
    model = model_of(is_transposed=is_transposed, own=own, kind=kind)
    before = model.SerializeToString()
    expected = run(stock_session(model))
    for exact in (True, False):
        result = rewrite(model, exact=exact)
        assert model.SerializeToString() == before
        rewritten = result.to_proto()
        run(stock_session(rewritten, optimize=True))
        if exact:
            for actual, wanted in zip(run(stock_session(rewritten)), expected, strict=True):
                assert_same(actual, wanted)
        else:
            run(make_session(rewritten, "native", optimize=True))
            assert ort_dynq.verify(model, rewritten, inputs=FEEDS | {"i": np.array(True)}).passed
            assert len(result.report.rewritten) == (3 if kind == "If" else 2)
            if own != "w":
                assert packed(result) == 1


def test_the_command_says_what_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    onnx.save(model_of(), source)
    assert cli.main(["rewrite", str(source), "-o", str(target), "--exact", "--verify"]) == 0
    assert "weights of branches are dequantized in the main graph" in capsys.readouterr().out
    stock_session(target.read_bytes(), optimize=True)
    assert any("weights of branches" in note for note in inspect(source, exact=True).notes)


def test_weights_of_their_own_stay_in_a_branch() -> None:
    """ONNX Runtime opens this model: nothing moves."""
    model = model_of(own="wsz")
    stock_session(model, optimize=True)
    result = rewrite(model, exact=True)
    assert not result.report.notes
    assert "If" in [node.op_type for node in result.model.graph]
    assert [node.op_type for node in result.model.graph].count("DequantizeLinear") == 1
