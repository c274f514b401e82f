"""Times attention over keys and values that are codes: as rewritten, in stock ONNX Runtime, and with floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import parser

import ort_dynq
from ort_dynq.errors import DynqError
from ort_dynq.inputs import Array
from ort_dynq.operators.encodings import one_of
from ort_dynq.tools.measuring.progress import Track
from ort_dynq.tools.measuring.timing import Contender, Settings, aligned, check_backend, interleave, session_contender

from .product_contenders import read_contender

HEADS = 32


@dataclass(frozen=True)
class Form:
    """Attention of one token or of a prompt.

    Attributes:
        queries, keys, size: The rows of query, those of key and value, and the elements of a head.
        is_transposed: Whether the keys are [1, heads, size, keys] (DT), not [1, heads, keys, size] (TD).
        key, value: The types.
        group: Adjacent elements of a head that share a scale.
    """

    queries: int
    keys: int
    size: int
    is_transposed: bool
    key: str
    value: str
    group: int


def _forms() -> dict[str, Form]:
    found = {}
    for name, queries, keys, size in (("decode", 1, 1025, 128), ("short", 1, 385, 96), ("prompt", 384, 384, 128)):
        for layout in ("DT", "TD"):
            for bits in (8, 4):
                for group in (size, 32):
                    ending = "" if group == size else "-groups"
                    type_ = f"int{bits}"
                    form = Form(queries, keys, size, layout == "DT", type_, type_, group)
                    found[f"{name}-{layout}-{bits}{ending}"] = form
        found[f"{name}-float-keys"] = Form(queries, keys, size, False, "float", "int8", size)
        found[f"{name}-float-values"] = Form(queries, keys, size, False, "int8", "float", size)
    return found


FORMS = _forms()
_DTYPES: dict[str, Any] = {"int8": np.int8, "int4": ml_dtypes.int4}


@dataclass(frozen=True)
class AttentionTiming:
    """The timing of one form. Times are the fastest runs, in microseconds.

    Attributes:
        name: A key of FORMS.
        form: What it is.
        threads: The number of threads.
        ours_us: CompressedAttention.
        codes_us: The model in stock ONNX Runtime.
        float_us: The same nodes without DequantizeLinear, of float keys and values, in stock ONNX Runtime.
        read_us: A plain read of the codes and scales.
        snr_db: The distance of ours_us's result to float64.
    """

    name: str
    form: Form
    threads: int
    ours_us: float
    codes_us: float
    float_us: float
    read_us: float
    snr_db: float

    @property
    def ratios(self) -> tuple[float, float, float]:
        """float / ours, codes / ours, read / ours."""
        return self.float_us / self.ours_us, self.codes_us / self.ours_us, self.read_us / self.ours_us


def bench_attentions(
    settings: Settings, names: Sequence[str] = tuple(FORMS), *, heads: int = HEADS, track: Track = iter
) -> list[AttentionTiming]:
    """Times attention over codes.

    Args:
        settings: How to time.
        names: Keys of FORMS.
        heads: The number of heads.
        track: Shows the progress.

    Raises:
        DynqError: A name is unknown, or the operators cannot be registered.
    """
    for name in names:
        if name not in FORMS:
            raise DynqError(f"there is no case {name!r}, expected one of {one_of(FORMS)}")
    check_backend(settings.backend)
    return [timing for name in track(names) for timing in _time(name, heads, settings)]


def _time(name: str, heads: int, settings: Settings) -> list[AttentionTiming]:
    form = FORMS[name]
    codes, floats = _model(form, heads, are_codes=True), _model(form, heads, are_codes=False)
    fast = ort_dynq.rewrite(codes, fuse=True).to_proto()
    data = _inputs(form, heads)
    whole = {"q": data["q"], "k": _real(data, "k", form), "v": _real(data, "v", form)}
    read = sum((each.nbytes + 1) // 2 if each.dtype == ml_dtypes.int4 else each.nbytes for each in data.values())
    result = np.empty((1, heads, form.queries, form.size), np.float32)
    timings = []
    for threads in settings.threads:
        contenders: list[Contender] = [
            session_contender(name, fast, data, threads, backend=settings.backend, outputs=[result]),
            session_contender(name, codes, data, threads),
            session_contender(name, floats, whole, threads),
            read_contender(read, 1, threads),
        ]
        us = [float(each.min()) / 1e3 for each in interleave(contenders, settings, threads)]
        ours, of_codes, of_floats, of_read = us
        snr = _snr(result, whole, form)
        timings.append(AttentionTiming(name, form, threads, ours, of_codes, of_floats, of_read, snr))
    return timings


def _parts(form: Form, name: str) -> tuple[str, int, bool]:
    """The type of an operand, the axis of its groups, and whether it is [.., size, keys]."""
    is_turned = name == "k" and form.is_transposed
    return (form.key if name == "k" else form.value), 2 if is_turned else 3, is_turned


def _inputs(form: Form, heads: int) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    data: dict[str, Array] = {"q": rng.standard_normal((1, heads, form.queries, form.size), np.float32)}
    for name in ("k", "v"):
        type_, _, is_turned = _parts(form, name)
        shape: tuple[int, ...] = (1, heads, form.keys, form.size)
        groups: tuple[int, ...] = (1, heads, form.keys, form.size // form.group)
        if is_turned:
            shape, groups = (*shape[:2], shape[3], shape[2]), (*groups[:2], groups[3], groups[2])
        if type_ == "float":
            data[name] = rng.standard_normal(shape, np.float32)
            continue
        most = 127 if type_ == "int8" else 7
        data[name] = rng.integers(-most, most + 1, shape, np.int8).astype(_DTYPES[type_])
        data[f"{name}_scales"] = (rng.uniform(1, 2, groups) / most).astype(np.float32)
    return {name: aligned(each) if each.dtype == np.float32 else each for name, each in data.items()}


def _real(data: dict[str, Array], name: str, form: Form) -> Array:
    """A key or value as floats."""
    codes = data[name].astype(np.float32)
    axis = _parts(form, name)[1]
    return aligned(codes * data[f"{name}_scales"].repeat(form.group, axis)) if f"{name}_scales" in data else codes


def _model(form: Form, heads: int, *, are_codes: bool) -> onnx.ModelProto:
    result = f"float[1, {heads}, {form.queries}, {form.size}]"
    declared, nodes, real = [f"{result} q"], [], {}
    for name in ("k", "v"):
        type_, axis, is_turned = _parts(form, name)
        real[name], groups = name, form.size // form.group
        shape = f"{form.size}, {form.keys}" if is_turned else f"{form.keys}, {form.size}"
        if not are_codes or type_ == "float":
            declared.append(f"float[1, {heads}, {shape}] {name}")
            continue
        of_scales = f"{groups}, {form.keys}" if is_turned else f"{form.keys}, {groups}"
        declared += [f"{type_}[1, {heads}, {shape}] {name}", f"float[1, {heads}, {of_scales}] {name}_scales"]
        real[name] = f"{name}_real"
        nodes.append(f"{name}_real = DequantizeLinear<axis = {axis}, block_size = {form.group}>({name}, {name}_scales)")
    columns = real["k"]
    if not form.is_transposed:
        columns = "columns"
        nodes.append(f"columns = Transpose<perm = [0, 1, 3, 2]>({real['k']})")
    nodes.append(f"products = MatMul(q, {columns})  scores = Mul(products, factor)  p = Softmax<axis = 3>(scores)")
    nodes.append(f"y = MatMul(p, {real['v']})")
    return parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]> attention ({", ".join(declared)}) => ({result} y) '
        f"<float factor = {{{form.size**-0.5}}}> {{ {'  '.join(nodes)} }}"
    )


def _snr(result: Array, whole: dict[str, Array], form: Form) -> float:
    """The distance of a result to that of float64, in dB."""
    q, k, v = (each.astype(np.float64) for each in whole.values())
    scores = q @ (k if form.is_transposed else k.swapaxes(2, 3)) * np.float64(np.float32(form.size**-0.5))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    exact = p / p.sum(-1, keepdims=True) @ v
    return float(10 * np.log10((exact**2).sum() / ((result - exact) ** 2).sum()))
