"""What the analysis knows of a value and of the values before it, for ``ort-dynq inspect --values``."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import onnx_ir as ir

from ..errors import DynqError
from ..graphs import graphs, values_of
from ..opsets import to_opset
from ..versions import load_checked
from .analysis.inference import Facts
from .analysis.standard import PRODUCTS
from .codes.affine import AffineForms
from .copies import without_copies
from .normal_form import inlined

if TYPE_CHECKING:
    from ..storage import Model


@dataclass(frozen=True)
class Explained:
    """One value.

    Attributes:
        name, operator: Its name and the operator that computes it; empty for an input.
        bounds: The bounds of its elements, and whether they are integers.
        form: Its form as codes times a scale; empty if it has none.
        lost: Why it has none although it is computed from codes; else empty.
    """

    name: str
    operator: str
    bounds: str
    form: str = ""
    lost: str = ""


def explain(model: Model, name: str) -> list[Explained]:
    """Returns what is known of a value of the original model, and of the values that it is computed from.

    Constants are left out. The list begins with the inputs or the last products before the value, and ends with it.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        name: The name of a value in any graph of the model.

    Raises:
        DynqError: The model cannot be loaded, or it has no such value.
    """
    loaded = load_checked(model)
    with contextlib.suppress(DynqError):  # in the form that the rules see
        loaded = to_opset(inlined(loaded))
    named = (value for _, graph in graphs(loaded) for value in values_of(graph) if value.name == name)
    if (wanted := next(named, None)) is None:
        raise DynqError(f"the model has no value {name!r}; give the name of an input, an output or a node's output")
    with Facts(loaded) as facts:
        without_copies(loaded)
        forms = AffineForms(facts)
        before, todo = dict[ir.Value, None](), [wanted]
        while todo:
            value = todo.pop()
            if value in before or facts.is_constant(value):
                continue
            before[value] = None
            node = value.producer()
            if node is not None and (value is wanted or node.op_type not in PRODUCTS):
                todo += [each for each in node.inputs if each is not None]
        order = [value for _, graph in graphs(loaded) for value in values_of(graph) if value in before]
        return [_explained(value, forms) for value in dict.fromkeys(order)]


def _explained(value: ir.Value, forms: AffineForms) -> Explained:
    node, form, lost = value.producer(), forms.of(value), forms.lost(value)
    operator = "" if node is None else node.op_type
    bounds = str(forms.values.known(value))
    return Explained(
        value.name or "", operator, bounds, "" if form is None else str(form), "" if lost is None else str(lost)
    )
