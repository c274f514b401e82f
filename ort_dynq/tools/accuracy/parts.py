"""The parts of the float model behind its layers: the error of a layer changes nothing before it.

A model of many layers would run once for each of them. Instead, layers that follow each other make a part: what
computes their results, and all that depends on them. The other values that the part reads are recorded once. So half of
the work is left. Parts without layers to measure do not run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ...graphs import values_of, values_read
from ...inputs import Array
from ..measuring.sessions import FEW_RUNS
from ..verification.layers import Disturbed, name_of

_LAYERS = 6  # of the smallest parts: each one opens a session


@dataclass(frozen=True)
class Part:
    """Layers, and what depends on them.

    Attributes:
        results: The names of their results, in the order of the model.
        reads: The names of computed values that are enough for the part.
        is_whole: Whether the part is the whole model.
    """

    results: tuple[str, ...]
    reads: tuple[str, ...]
    is_whole: bool = False


def parts_of(model: ir.Model, results: Collection[str]) -> list[Part]:
    """Returns the parts of a model with layers of these results, in topological order."""
    ordered = [name for value in values_of(model.graph) if (name := name_of(value)) in results]
    groups = [tuple(ordered[i : i + _LAYERS]) for i in range(0, len(ordered), _LAYERS)]
    return [Part(group, tuple(map(name_of, _read(model, _nodes_behind(model, group))))) for group in groups]


def larger(parts: Sequence[Part], runs: int, opening: float) -> list[Part]:
    """Joins parts, so that opening and running all of them takes the shortest time.

    Args:
        parts: The parts. What they read is enough for joined ones.
        runs: The number of runs of all parts together.
        opening: The time of opening a session of the whole model / the time of a run.
    """
    together = max(1, round(math.sqrt(runs * opening) * len(parts) / max(1, runs)))
    groups = (parts[i : i + together] for i in range(0, len(parts), together))
    return [group[0] if len(group) == 1 else _joined(group) for group in groups]


def _joined(parts: Sequence[Part]) -> Part:
    reads = dict.fromkeys(name for part in parts for name in part.reads)
    return Part(tuple(name for part in parts for name in part.results), tuple(reads))


class Behind:
    """Runs a part of the float model with errors added to results of its layers.

    Args:
        model: The model; it is not changed.
        part: The part.
        known: The values that the part reads, on one set of data, by name. Their types and ranks hold for all sets.
        types: The results that get errors, and the types of these.

    Raises:
        DynqError: The part does not load with the errors.
    """

    def __init__(
        self, model: ir.Model, part: Part, known: Mapping[str, Array], types: Mapping[str, np.dtype[Any]]
    ) -> None:
        everything = [name_of(output) for output in model.graph.outputs]
        cut = model.clone()
        nodes = list(cut.graph) if part.is_whole else _nodes_behind(cut, part.results)
        computed = {value for node in nodes for value in node.outputs}
        outputs = [output for output in cut.graph.outputs if output in computed]
        cut.graph.outputs[:] = outputs  # the others may be values that the part reads
        read = _read(cut, nodes)
        self._reads = list(map(name_of, read))
        for value in read:
            array = known[name_of(value)]
            kind, shape = ir.TensorType(ir.DataType.from_numpy(array.dtype)), ir.Shape([None] * array.ndim)
            given = ir.Value(name=value.name, type=kind, shape=shape)
            ir.convenience.replace_all_uses_with([value], [given])
            value.name = None
            cut.graph.inputs.append(given)
        kept = {*nodes}
        cut.graph.remove([node for node in cut.graph if node not in kept and node.op_type != "Constant"])
        used = {value for node in cut.graph for value in values_read(node)}
        for name, value in list(cut.graph.initializers.items()):
            if value not in used and not value.is_graph_input():
                del cut.graph.initializers[name]
        self._outputs = [everything.index(name_of(output)) for output in outputs]
        values = {name_of(value): value for value in computed}
        disturbed = {values[name]: types[name] for name in part.results if name in types}
        self._disturbed = Disturbed(cut, disturbed, FEW_RUNS) if outputs and disturbed else None

    def run(
        self, feeds: Mapping[str, Array], known: Mapping[str, Array], errors: Mapping[str, Array], exact: Sequence[Any]
    ) -> list[Any]:
        """Returns the model's outputs.

        Args:
            feeds: Values of all inputs of the model.
            known: The values that the part reads.
            errors: Errors by the name of the result.
            exact: The outputs without errors. Those that do not depend on the part stay as they are.

        Raises:
            DynqError: The part does not run with the errors, or an output is not a tensor of a supported type.
        """
        found = list(exact)
        if self._disturbed is not None:
            given = {**feeds, **{name: known[name] for name in self._reads}}
            for i, output in zip(self._outputs, self._disturbed.run(given, errors), strict=True):
                found[i] = output
        return found


def _nodes_behind(model: ir.Model, results: Collection[str]) -> list[ir.Node]:
    """Returns the nodes of the main graph that compute values of these names, or depend on them."""
    found, behind = [], set[ir.Value]()
    for node in model.graph:
        if any(name_of(output) in results for output in node.outputs) or not behind.isdisjoint(values_read(node)):
            found.append(node)
            behind.update(node.outputs)
    return found


def _read(model: ir.Model, nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Returns the values that nodes read and other nodes of the main graph compute, without constants."""
    kept = {*nodes}
    values = dict.fromkeys(value for node in nodes for value in values_read(node))
    producers = ((value, value.producer()) for value in values)
    return [
        value
        for value, producer in producers
        if producer is not None
        and producer.graph is model.graph
        and producer not in kept
        and producer.op_type != "Constant"
    ]
