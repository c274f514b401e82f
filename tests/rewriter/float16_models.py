"""Models of float16, and where ONNX Runtime rounds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from helpers import Array, assert_same, make_session, stock_session, with_one_nan
from onnx import numpy_helper, parser

RANGE = "a = Abs(x) m = ReduceMax<keepdims = 1>(a, one)"
CHAINS = {
    "quotient": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit) y = Mul(c, s)",
    "codes": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit) q = Cast<to = 3>(c)"
    " f = Cast<to = 10>(q) y = Mul(f, s)",
    "reshaped codes": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit)"
    " q = Cast<to = 3>(c) f = Cast<to = 10>(q) g = Unsqueeze(f, one) i = Unsqueeze(s, one) j = Mul(g, i)"
    " y = Squeeze(j, one)",
    "clipped": f"{RANGE} s = Div(m, limit) d = Div(x, s) r = Round(d) c = Clip(r, low, limit)"
    " k = Cast<to = 10>(c) y = Mul(k, s)",
    "scale": f"{RANGE} t = Div(m, limit) u = Max(t, eps) s = Max(u, eps) d = Div(x, s) r = Round(d) "
    "c = Clip(r, low, limit) y = Mul(c, s)",
    "inverse": f"{RANGE} b = Max(m, eps) k = Max(b, eps) s = Div(limit, k) d = Mul(x, s) r = Round(d) "
    "c = Clip(r, low, limit) y = Div(c, s)",
    "estimator": f"{RANGE} b = Max(m, eps) k = Reciprocal(b) s = Mul(k, limit) d = Mul(x, s) r = Round(d)"
    " c = Clip(r, low, limit) e = Sub(c, d) f = Add(d, e) y = Div(f, s)",
    "range": "g = Mul(x, third) a = Abs(g) m = ReduceMax<keepdims = 1>(a, one) b = Max(m, eps) k = Max(b, eps)"
    " s = Div(k, limit) d = Div(g, s) r = Round(d) c = Clip(r, low, limit) y = Mul(c, s)",
    "unclipped": f"{RANGE} b = Max(m, eps) s = Div(b, limit) d = Div(x, s) r = Round(d) y = Mul(r, s)",
    "asymmetric": "l = ReduceMin<keepdims = 1>(x, one) h = ReduceMax<keepdims = 1>(x, one) w = Sub(h, l)"
    " t = Div(w, levels) u = Max(t, eps) s = Max(u, eps) n = Div(l, s) o = Round(n) v = Sub(low, o)"
    " z = Clip(v, low, limit) d = Div(x, s) r = Round(d) p = Add(r, z) c = Clip(p, low, limit) e = Sub(c, z)"
    " y = Mul(e, s)",
}
CODES = "o = Clip(v, low, limit) i = Round(o) q = Cast<to = 3>(i) z = Cast<to = 10>(q)"
SUM = "d = Div(x, s) p = Add(d, z) c = Clip(p, low, limit) r = Round(c) e = Sub(r, z) y = Mul(e, s)"
CHAINS |= {  # compressed-tensors adds the zero point before it rounds
    "sum": "l = ReduceMin<keepdims = 1>(x, one) h = ReduceMax<keepdims = 1>(x, one) w = Sub(h, l)"
    f" s = Div(w, levels) t = Div(l, s) v = Sub(low, t) {CODES} {SUM}",
    "sum of zero": f"{RANGE} s = Div(m, limit) n = Shape(s) v = Expand(zero, n) {CODES} {SUM}",
}
SPECIALS = [0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504, -65504, np.inf, -np.inf, np.nan]


def model_of(
    body: str, before: str = "float16[N, K] x", outputs: str = "float16[N, K] y", functions: Sequence[str] = ()
) -> bytes:
    constants = {"limit": 127, "low": -128, "eps": 1e-3, "third": 1 / 3, "levels": 255, "zero": 0}
    own = "".join(f'<domain: "own", opset_import: ["" : 18, "own" : 1]> {function}' for function in functions)
    head = '<ir_version: 9, opset_import: ["" : 18, "own" : 1, "com.microsoft" : 1]>'
    model = parser.parse_model(f"{head} g ({before}) => ({outputs}) {{ {body} }} {own}")
    model.graph.initializer.extend(numpy_helper.from_array(np.float16(v), name) for name, v in constants.items())
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1]), "one"))
    return bytes(model.SerializeToString())


def rows(count: int = 64, length: int = 257) -> Array:
    """Rows with quotients that are ties, and neighbors of ties that float16 rounds to ties; rows of special values."""
    rng = np.random.default_rng(0)
    x = (rng.integers(-254, 255, (count, length)) / 2).astype(np.float16)
    x += (rng.random(x.shape) < 0.5) * np.spacing(x) * rng.choice(np.float16([-1, 1]), x.shape)
    x[:, 0] = 127
    x *= np.float16(rng.uniform(0.5, 2, (count, 1)))
    x[:8] = rng.choice(np.float16(SPECIALS[:7]), (8, length))
    x[8:12, 1:] = rng.choice(np.float16(SPECIALS[:9]), (4, length - 1))
    x[12, length // 2] = np.nan
    x[13] = 0
    return x


CONSTANTS = "one, limit, low, eps, third, levels, zero"


def chain(name: str, x: str, y: str) -> str:
    """A chain from x to y. Shape inference in a subgraph knows no axes that are an initializer outside of it."""
    body = f"axes = Constant<value = int64[1] {{-1}}>() {CHAINS[name]}"
    for old, new in ((r"\bone\b", "axes"), (r"\bx\b", x), (r"\by =", f"{y} =")):
        body = re.sub(old, new, body)
    return body


def branches(name: str, x: str, y: str) -> str:
    """A branch with the chain; the other one reads the same value and has values of the same names."""
    return f"""{y} = If(yes) <then_branch = t () => (float16[N, K] inner) {{ {chain(name, x, "inner")} }},
        else_branch = e () => (float16[N, K] inner) {{ d = Neg({x}) inner = Exp(d) }}>"""


def loop(name: str, x: str, y: str) -> str:
    return f"""count = Constant<value_int = 2>() {y} = Loop(count, , {x}) <
        body = b (int64 step, bool go, float16[N, K] state) => (bool goes, float16[N, K] next)
        {{ goes = Identity(go) {chain(name, "state", "out")} more = Add(out, {x}) next = Sub(state, more) }}>"""


def call(function: str, x: str, y: str) -> str:
    return f"{y} = own.{function}({x}, yes, {CONSTANTS})"


def function(name: str, body: str) -> str:
    return f"{name} (given, yes, {CONSTANTS}) => (made) {{ {body} }}"


PLACES: dict[str, Callable[[str], list[str]]] = {
    "If": lambda name: [branches(name, "scaled", "result")],
    "Loop": lambda name: [loop(name, "scaled", "result")],
    "Scan": lambda name: [
        f"""result = Scan<num_scan_inputs = 1, body = b (float16[K] row) => (float16[K] out)
        {{ {chain(name, "row", "out")} }}>(scaled)"""
    ],
    "function": lambda name: [call("f", "scaled", "result"), function("f", chain(name, "given", "made"))],
    "Loop in a function": lambda name: [  # `state` is a value of the main graph, too
        f"state = Neg(scaled) {call('f', 'state', 'result')}",
        function("f", loop(name, "given", "made")),
    ],
    "If in functions": lambda name: [
        call("f", "scaled", "result"),
        function("f", f"{call('inner_f', 'given', 'half')} {call('inner_f', 'half', 'made')}"),
        function("inner_f", branches(name, "given", "made")),
    ],
    "function in branches": lambda name: [
        f"""result = If(yes) <then_branch = t () => (float16[N, K] inner) {{ {call("f", "scaled", "inner")} }},
        else_branch = e () => (float16[N, K] d) {{ r = Exp(x) {call("f", "r", "d")} }}>""",
        function("f", chain(name, "given", "made")),
    ],
}


def same_bits(model: bytes, rewritten: bytes, **feeds: Array) -> None:
    expected = stock_session(model).run(None, feeds)
    for session in (stock_session(rewritten), make_session(rewritten, "native")):
        for result, wanted in zip(session.run(None, feeds), expected, strict=True):
            assert_same(with_one_nan(result), with_one_nan(wanted))
