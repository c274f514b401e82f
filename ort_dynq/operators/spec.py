"""The types that describe an operator: its inputs, attributes, signatures and function body."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import DynqError
from .encodings import Encoding
from .function_text import with_standard_reshapes
from .shapes import ShapeRule, unknown

FLOATS = ("float32", "float16")
"""The types of floats that most operators take."""


@dataclass(frozen=True)
class Input:
    """An input or an output.

    Attributes:
        name: Its name.
        types: The element types that it can have, as NumPy names them.
        doc: Its shape and meaning.
        absent: The value of an absent input, for the documentation; empty if the input is required.
        shape: Of an output: its shape, by those of the inputs (shapes.py).
    """

    name: str
    types: tuple[str, ...]
    doc: str
    absent: str = ""
    shape: ShapeRule = unknown


@dataclass(frozen=True)
class Attribute:
    """An attribute: an integer, a string or a list of integers.

    Attributes:
        name: Its name.
        default: Its value if a node omits it. The type of the default is the type of the attribute. Lists are empty by
            default; the rewriter omits them.
        doc: Its meaning.
        encoding: The enumeration that its values belong to, if it has one.
        choices: The values that it can have. Empty: every member of `encoding`; any value if there is no encoding. The
            default is valid even if it is not among them.
    """

    name: str
    default: str | int | tuple[int, ...]
    doc: str
    encoding: type[Encoding] | None = None
    choices: tuple[str | int, ...] = ()

    @property
    def is_list(self) -> bool:
        """Whether its values are lists of integers."""
        return isinstance(self.default, tuple)

    def values(self) -> tuple[str | int, ...]:
        """The values that the attribute can have; empty if they are not listed."""
        return self.choices or tuple(self.encoding or ())


def flag(name: str, default: int, doc: str) -> Attribute:
    """An attribute that is 0 or 1."""
    return Attribute(name, default, doc, choices=(0, 1))


@dataclass(frozen=True)
class Signature:
    """One combination of element types that an operator is registered for."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Operator:
    """One operator of the domain ``ort_dynq``.

    Attributes:
        name: Its name.
        doc: What it computes.
        formula: The computation as formulas, one per line; `round` is half to even.
        inputs, outputs, attributes: In order.
        signatures: The combinations of types, as the native library registers them.
        body: Returns, for an opset version of ONNX, the body of the operator's function in a rewritten model, in
            ``onnx.parser``'s syntax. A model has one body for each operator name. A difference that a body cannot
            express by attributes therefore needs a separate operator.
        body_of_programs: Returns the body for an opset version and the programs of a model's nodes: their attributes
            `branch` are indices of this list; None if the operator has no programs.
    """

    name: str
    doc: str
    formula: str
    inputs: tuple[Input, ...]
    outputs: tuple[Input, ...]
    attributes: tuple[Attribute, ...]
    signatures: tuple[Signature, ...]
    body: Callable[[int], str]
    body_of_programs: Callable[[int, Sequence[str]], str] | None = None

    @functools.cached_property
    def float16_inputs(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The inputs that may be float16 or float32: the index of each, and those of the outputs that have its type.

        The types of the other inputs do not depend on it. The operator computes in float32.
        """
        outputs = {signature.inputs: signature.outputs for signature in self.signatures}
        found = []
        for index in range(len(self.inputs)):
            wide = [types for types in outputs if types[index] == "float32"]
            half = [(*types[:index], "float16", *types[index + 1 :]) for types in wide]
            if wide and all(types in outputs for types in half):
                pairs = enumerate(zip(outputs[wide[0]], outputs[half[0]], strict=True))
                found.append((index, tuple(i for i, (one, other) in pairs if one != other)))
        return tuple(found)

    def attribute(self, name: str) -> Attribute:
        """Returns the attribute of this name.

        Raises:
            DynqError: The operator does not have it.
        """
        known = {attribute.name: attribute for attribute in self.attributes}
        if name not in known:
            raise DynqError(f"{self.name} has no attribute {name}, expected {', '.join(known) or 'none'}")
        return known[name]

    def function(self, domain: str, opset: int, programs: Sequence[str] = ()) -> str:
        """The whole function of a rewritten model, in ``onnx.parser``'s syntax.

        Args:
            domain: Its domain.
            opset: The version of standard ONNX.
            programs: The programs of the model's nodes, if the operator has programs.
        """
        body = self.body(opset)
        if programs and self.body_of_programs is not None:
            body = self.body_of_programs(opset, programs)
        body = with_standard_reshapes(body)
        attributes = ", ".join(attribute.name for attribute in self.attributes)
        inputs, outputs = (", ".join(value.name for value in values) for values in (self.inputs, self.outputs))
        return f"""<domain: "{domain}", opset_import: ["" : {opset}]>
{self.name} {f"<{attributes}> " if attributes else ""}({inputs}) => ({outputs})
{body}"""


@dataclass(frozen=True)
class Family:
    """Operators that share their arithmetic, and one file.

    Attributes:
        title: Its name in the documentation.
        doc: What the operators have in common, in Markdown.
        operators: The operators.
    """

    title: str
    doc: str
    operators: tuple[Operator, ...]
