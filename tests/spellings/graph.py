"""Random choices that can be repeated one by one, and a graph of any opset under construction."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class Draw:
    """Random choices by name. Each depends on the seed and its name only, so that fixing one does not change others.

    Attributes:
        made: The choices made so far, by name.
        unusual: The names of the unusual ones.
        plain: For each name, its first usual option.
    """

    def __init__(self, seed: int, fixed: Mapping[str, str] | None = None, *, plain: bool = False) -> None:
        self._seed, self._fixed = seed, dict(fixed or {})
        self._rate = 0.0 if plain else random.Random(f"{seed} rate").choice([0.03, 0.06, 0.12, 0.2])
        self.made: dict[str, str] = {}
        self.unusual: set[str] = set()
        self.plain: dict[str, str] = {}

    def __call__(self, name: str, usual: str, unusual: str = "", *, rate: float = 1.0) -> str:
        """Returns one of the options, which `|` separates; with a small probability an unusual one.

        Args:
            name: The choice.
            usual, unusual: The options. A fixed choice that is none of them becomes the first usual one.
            rate: A factor of the probability.
        """
        common, rare = usual.split("|"), unusual.split("|") if unusual else []
        rng = random.Random(f"{self._seed} {name}")
        chosen = rng.choice(rare if rare and rng.random() < self._rate * rate else common)
        if name in self._fixed:
            chosen = self._fixed[name] if self._fixed[name] in (*common, *rare) else common[0]
        self.made[name], self.plain[name] = chosen, common[0]
        if chosen in rare:
            self.unusual.add(name)
        return chosen

    def generator(self, name: str) -> np.random.Generator:
        """Returns a generator of numbers for data."""
        return np.random.default_rng([self._seed, *name.encode()])


class Graph:
    """Nodes in order, with the shape of each value in the test's runs.

    Operators take the form of the opset: attributes or inputs.

    Attributes:
        opset: The opset.
        nodes: The nodes.
        constants: The initializers, by name.
        shapes: The shape of each value.
        dtype: The type of float constants.
    """

    def __init__(self, opset: int, dtype: Any) -> None:
        self.opset, self.dtype = opset, dtype
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, Shape] = {}

    def __call__(self, op: str, *inputs: str | float, shape: Shape | None = None, **attributes: Any) -> str:
        """Adds a node and returns its output. Numbers become constants.

        Args:
            op: The operator.
            inputs: Names of values, or numbers.
            shape: The shape of the output; None: that to which the inputs broadcast.
            attributes: The attributes.
        """
        return self.split(op, *inputs, shapes=[shape], **attributes)[0]

    def split(self, op: str, *inputs: str | float, shapes: Sequence[Shape | None], **attributes: Any) -> list[str]:
        """Adds a node with several outputs."""
        names = [each if isinstance(each, str) else self.constant(each) for each in inputs]
        outputs = [f"{op.lower()}_{len(self.nodes)}" + (f"_{i}" if i else "") for i in range(len(shapes))]
        self.nodes.append(helper.make_node(op, names, outputs, **attributes))
        for output, shape in zip(outputs, shapes, strict=True):
            broadcast = np.broadcast_shapes(*(self.shapes[name] for name in names if name)) if shape is None else shape
            self.shapes[output] = broadcast
        return outputs

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Returns the name of a constant."""
        array = np.asarray(value, self.dtype if dtype is None else dtype)
        name = f"c{len(self.constants)}"
        self.constants[name], self.shapes[name] = array, array.shape
        return name

    def integers(self, *values: int) -> str:
        """Returns the name of a constant int64 vector."""
        return self.constant(values, np.int64)

    def clip(self, x: str, low: float | None, high: float | None) -> str:
        """Adds a Clip."""
        if self.opset >= 11:
            bounds = [each if each is None else self.constant(each) for each in (low, high)]
            names = [x, *("" if each is None else each for each in bounds)]
            return self("Clip", *names[: 3 if high is not None else 2], shape=self.shapes[x])
        given: dict[str, Any] = {name: float(each) for name, each in (("min", low), ("max", high)) if each is not None}
        return self("Clip", x, **given)

    def reduce(self, kind: str, x: str, axes: Sequence[int], keepdims: int) -> str:
        """Adds a reduction over axes; over all if there are none."""
        rank = len(self.shapes[x])
        reduced = {axis % rank for axis in axes} or set(range(rank))
        kept = [1 if i in reduced else n for i, n in enumerate(self.shapes[x]) if keepdims or i not in reduced]
        if not axes:
            return self(f"Reduce{kind}", x, shape=tuple(kept), keepdims=keepdims)
        if self.opset >= 18:
            return self(f"Reduce{kind}", x, self.integers(*axes), shape=tuple(kept), keepdims=keepdims)
        return self(f"Reduce{kind}", x, shape=tuple(kept), axes=list(axes), keepdims=keepdims)

    def reshape(self, x: str, shape: Sequence[int], *, zeros: bool = False) -> str:
        """Adds a Reshape.

        Args:
            x: The value.
            shape: The shape; one dimension may be -1.
            zeros: Whether leading dimensions that stay are written 0.
        """
        old = self.shapes[x]
        rest = int(np.prod(old)) // int(np.prod([n for n in shape if n > 0]))
        new = tuple(rest if n < 0 else n for n in shape)
        same = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        text = [0 if zeros and i < same else n for i, n in enumerate(shape)]
        return self("Reshape", x, self.integers(*text), shape=new)

    def unsqueeze(self, x: str, axis: int) -> str:
        """Adds an Unsqueeze of one axis, which is not negative."""
        shape = (*self.shapes[x][:axis], 1, *self.shapes[x][axis:])
        return self._axes("Unsqueeze", x, axis, shape)

    def squeeze(self, x: str, axis: int) -> str:
        """Adds a Squeeze of one axis, which is not negative."""
        return self._axes("Squeeze", x, axis, (*self.shapes[x][:axis], *self.shapes[x][axis + 1 :]))

    def transpose(self, x: str, perm: Sequence[int]) -> str:
        """Adds a Transpose."""
        return self("Transpose", x, shape=tuple(self.shapes[x][i] for i in perm), perm=list(perm))

    def cast(self, x: str, dtype: Any) -> str:
        """Adds a Cast."""
        return self("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def slice(self, x: str, axis: int, start: int, stop: int) -> str:
        """Adds a Slice of one axis."""
        shape = (*self.shapes[x][:axis], stop - start, *self.shapes[x][axis + 1 :])
        if self.opset >= 10:
            return self("Slice", x, *(self.integers(i) for i in (start, stop, axis)), shape=shape)
        return self("Slice", x, shape=shape, starts=[start], ends=[stop], axes=[axis])

    def pad(self, x: str, ends: Sequence[int]) -> str:
        """Adds a Pad by zeros, as many at the begin of each axis as at its end."""
        shape = tuple(n + 2 * end for n, end in zip(self.shapes[x], ends, strict=True))
        if self.opset >= 11:
            return self("Pad", x, self.integers(*ends, *ends), shape=shape)
        return self("Pad", x, shape=shape, pads=[*ends, *ends])

    def initializers(self, names: set[str]) -> list[onnx.TensorProto]:
        """Returns the constants of these names as tensors."""
        return [numpy_helper.from_array(array, name) for name, array in self.constants.items() if name in names]

    def _axes(self, op: str, x: str, axis: int, shape: Shape) -> str:
        if self.opset >= 13:
            return self(op, x, self.integers(axis), shape=shape)
        return self(op, x, shape=shape, axes=[axis])
