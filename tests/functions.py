"""The function of an operator in a rewritten model, run by stock ONNX Runtime: the oracle for the kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import onnxruntime as ort
from helpers import TYPES, Array, stock_session

from ort_dynq.operators import OPERATORS, VERSION
from ort_dynq.operators.program import REDUCTIONS
from ort_dynq.rewriter.functions import make_function

# Casts make inputs of types that NumPy has not, and floats of such outputs.
_AS_FLOATS: dict[str, Any] = {"uint4": ml_dtypes.uint4, "int4": ml_dtypes.int4, "bfloat16": ml_dtypes.bfloat16}
_NUMBERS = {"uint4": 21, "int4": 22, "bfloat16": 16}

Attributes = dict[str, str | int]


def is_other_on_arm(given: Attributes) -> bool:
    """Whether ONNX Runtime on ARM gives other results for the data of a case: see docs/numerics.md."""
    program = str(given.get("program", ""))  # Clip of -0.0, Reciprocal, and ranges of rows
    return any(f"{step}(" in program for step in ("Clip", "Reciprocal", *REDUCTIONS))


def run_function(
    operator: str,
    inputs: Sequence[Array],
    opset: int = 21,
    is_special: bool = True,
    optimize: bool = False,
    **attributes: str | int,
) -> list[Array]:
    """The outputs of the function. Attributes that are left out have their defaults.

    Args:
        operator: The operator.
        inputs: Its inputs.
        opset: The version of the standard operators.
        is_special: Whether the function serves only nodes with these attributes, as in a rewritten model.
        optimize: Whether ONNX Runtime optimizes the model.
        **attributes: The attributes.
    """
    types = tuple(str(array.dtype) for array in inputs)
    arrays = [array.astype(np.float32) if str(array.dtype) in _AS_FLOATS else array for array in inputs]
    feeds = {value.name: array for value, array in zip(OPERATORS[operator].inputs, arrays, strict=True)}
    text, programs = attributes_text(operator, attributes), programs_of(operator, attributes)
    numbers = {name: value for name, value in complete(operator, attributes).items() if isinstance(value, int)}
    call = tuple(numbers.items()) if is_special else ()
    results = _session(operator, opset, types, text, programs, call, optimize).run(None, feeds)
    found = zip(results, _outputs(operator, types), strict=True)
    return [result.astype(_AS_FLOATS[type_]) if type_ in _AS_FLOATS else result for result, type_ in found]


def complete(operator: str, attributes: Attributes) -> Attributes:
    """The attributes with the defaults of those that are left out. Lists are left out: functions do not have them."""
    given: Attributes = {each.name: each.default for each in OPERATORS[operator].attributes if not each.is_list}
    assert attributes.keys() <= given.keys()
    return given | attributes


def programs_of(operator: str, attributes: Attributes) -> tuple[str, ...]:
    """The programs of the function of a node with these attributes."""
    program = complete(operator, attributes).get("program")
    return () if program is None else (str(program),)


def attributes_text(operator: str, attributes: Attributes) -> str:
    """All attributes as the parser reads them; empty if there are none."""
    texts = [
        f'{name} = "{value}"' if isinstance(value, str) else f"{name} = {value}"
        for name, value in complete(operator, attributes).items()
    ]
    return f"<{', '.join(texts)}>" if texts else ""


def make_model(
    operator: str,
    opset: int,
    inputs: Sequence[str],
    given: str,
    programs: Sequence[str] = (),
    call: Sequence[tuple[str, int]] = (),
) -> onnx.ModelProto:
    """A model that calls the operator's function once; all ranks are unknown.

    Args:
        operator: The operator.
        opset: The version of the standard operators.
        inputs: The element types of the inputs. Codes of 4 bits and bfloat16 are float32 at the model's inputs and
            outputs.
        given: The text of the attributes.
        programs: The programs of the function, if the operator has programs.
        call: The attributes for which the function is made; any if there are none.
    """
    spec = OPERATORS[operator]
    names, results = [value.name for value in spec.inputs], [value.name for value in spec.outputs]
    outputs, arguments, values, before, after = _outputs(operator, inputs), [*names], [*results], "", ""
    for i, type_ in enumerate(inputs):
        if type_ in _AS_FLOATS:
            arguments[i] = f"{names[i]}_codes"
            before += f"{arguments[i]} = Cast<to = {_NUMBERS[type_]}>({names[i]}) "
    for i, type_ in enumerate(outputs):
        if type_ in _AS_FLOATS:
            values[i] = f"{results[i]}_codes"
            after += f" {results[i]} = Cast<to = 1>({values[i]})"
    heads = ", ".join(f"{TYPES.get(type_, 'float')}[] {name}" for type_, name in zip(inputs, names, strict=True))
    tails = ", ".join(f"{TYPES.get(type_, 'float')}[] {name}" for type_, name in zip(outputs, results, strict=True))
    model = onnx.parser.parse_model(
        f'<ir_version: {10 if opset >= 21 else 8}, opset_import: ["" : {opset}, "ort_dynq" : {VERSION}]> '
        f"g ({heads}) => ({tails}) "
        f"{{ {before}{', '.join(values)} = ort_dynq.{operator} {given} ({', '.join(arguments)}){after} }}"
    )
    model.functions.append(_function(operator, opset, tuple(programs), tuple(call)))
    return model


def _outputs(operator: str, inputs: Sequence[str]) -> tuple[str, ...]:
    """The element types of the outputs."""
    return next(each.outputs for each in OPERATORS[operator].signatures if each.inputs == tuple(inputs))


@functools.lru_cache(maxsize=100)
def _function(
    operator: str, opset: int, programs: tuple[str, ...], call: tuple[tuple[str, int], ...]
) -> onnx.FunctionProto:
    return make_function(operator, opset, programs, [dict(call)] if call else ())


@functools.lru_cache(maxsize=2)  # the cases of one node are adjacent, in float32 and float16
def _session(
    operator: str,
    opset: int,
    inputs: tuple[str, ...],
    given: str,
    programs: tuple[str, ...],
    call: tuple[tuple[str, int], ...],
    optimize: bool,
) -> ort.InferenceSession:
    return stock_session(make_model(operator, opset, inputs, given, programs, call), optimize=optimize)
