"""Splits fused operators for verification, so that what changes last bits stands apart from what keeps all bits."""

from __future__ import annotations

import onnx_ir as ir

from ...operators import DOMAIN
from ...operators.program import FUNCTIONS, OUTPUTS, SUM, Program, Step, parse
from ..analysis.nodes import attributes_of, program_of
from ..edit import call

_FLOATS = ("dst", "dst_2", "number")


def is_inexact(node: ir.Node) -> bool:
    """Returns whether a RowProgram computes sums or functions: their last bits differ from the model's."""
    if node.domain != DOMAIN or node.op_type != "RowProgram":
        return False
    return any(step.operator in (SUM, *FUNCTIONS) for step in parse(program_of(node)).steps)


def split_quantizations(model: ir.Model) -> None:
    """Replaces each program that computes a float vector inexactly and quantizes it by two programs."""
    for node in list(model.graph):
        program = parse(program_of(node)) if is_inexact(node) else Program()
        if {"codes", "dst"} <= program.outputs.keys() and not any(
            _reads_x(program, value) for output, value in program.outputs.items() if output not in _FLOATS
        ):
            _split(node, program)


def _reads_x(program: Program, value: str) -> bool:
    """Returns whether a value is computed from x by other steps than those of dst, as a scale beside dst = x - min."""
    if value in ("x", program.outputs["dst"]):
        return value == "x"
    step = program.step(value)
    return step is not None and any(_reads_x(program, each) for each in step.operands)


def _split(node: ir.Node, program: Program) -> None:
    x = {program.outputs["dst"]: "x"}  # of the codes
    steps = [Step(each.operator, tuple(x.get(value, value) for value in each.operands)) for each in program.steps]
    outputs = program.outputs.items()
    floats = Program(program.steps, {output: value for output, value in outputs if output in _FLOATS})
    codes = Program(steps, {output: x.get(value, value) for output, value in outputs if output not in _FLOATS})
    graph, given = node.graph, attributes_of(node)
    assert graph is not None
    inputs = [each for each in node.inputs if each is not None]
    first = call("RowProgram", inputs, **{**given, "program": str(floats)})
    dst = first.outputs[list(OUTPUTS).index("dst")]
    second = call("RowProgram", [dst, *inputs[1:]], **{**given, "program": str(codes)})
    for i, output in enumerate(OUTPUTS):
        old, (new, other) = node.outputs[i], (each.outputs[i] for each in (first, second))
        if output not in _FLOATS:
            new, other = other, new
        new.name, new.type, new.shape = old.name, old.type, old.shape
        other.name = f"{old.name}_unused"
        ir.convenience.replace_all_uses_with([old], [new], replace_graph_outputs=True)
    graph.insert_before(node, [first, second])
    graph.remove([node], safe=True)
