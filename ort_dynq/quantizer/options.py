"""The options of a quantization, checked."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from ..errors import DynqError
from ..graphs import MICROSOFT, NCHWC, STANDARD_DOMAINS, graphs, label
from ..rewriter.analysis.standard import (
    FLOAT_PRODUCTS,
    INTEGER_PRODUCTS,
    LAYER_NORMS,
    MADE_PRODUCTS,
    NBITS_PRODUCTS,
    RECURRENT,
)
from ..rewriter.reasons import Reason, Unconverted
from ..rewriter.recurrent.dynamic_lstm import DYNAMIC_LSTM

WEIGHTS = ("int8", "int12", "int4")
ACTIVATIONS = ("token", "tensor", "two-term")
ATTENTION = ("int8", "float")
EMBEDDINGS = ("int8", "keep")
GROUPS = (32, 64, 128)
LAYERS = FLOAT_PRODUCTS | INTEGER_PRODUCTS | RECURRENT
"""The standard operators with weights that become products of integers."""
FUSED_IN_FLOAT32 = LAYER_NORMS | {"Gelu"}
"""The standard operators of float16 that compute in float32 where fusions are allowed."""
OF_OPTIMIZER = MADE_PRODUCTS | {"Attention"}
"""The operators of com.microsoft with weights that ONNX Runtime's optimizer makes."""
RANK_OF_TABLE = 2  # of embeddings
_MAX_NAMES = 3  # in a message


class Forms(NamedTuple):
    """The names of layers that have another form than the options give them (selection.py, speed.py).

    Attributes:
        two_terms: Layers with an activation that gets two terms, for `min_snr`.
        words: Layers that become products of words, for `min_snr`.
        floats: Layers that stay in float, for `min_snr`.
        slow: Layers that stay in float because integers are not faster.
        slow_attention: Nodes of fused attention, all of which stays in float for this reason if there are any.
    """

    two_terms: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()
    floats: frozenset[str] = frozenset()
    slow: frozenset[str] = frozenset()
    slow_attention: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Options:
    """How layers are quantized; the arguments of :func:`ort_dynq.quantize` of the same names.

    Attributes:
        weights: One of :data:`WEIGHTS`.
        group: One of :data:`GROUPS`: the number of adjacent 4-bit weights along K that share a scale.
        activations: One of :data:`ACTIVATIONS`.
        symmetric: Whether the codes of activations per token have no zero point; those of two terms never have one.
        exclude: Patterns of the names of layers that stay in float, as :mod:`fnmatch` has them.
        forms: The layers that have another form.
        fuse: Whether normalizations, activation functions and attention are fused.
        attention: One of :data:`ATTENTION`: the products of fused attention.
        embeddings: One of :data:`EMBEDDINGS`: what tables of embeddings become.
        from_dynamic: Whether the model is one that quantize_dynamic made.
        from_static: Whether the model is one that quantize_static made.
    """

    weights: str = "int8"
    group: int = GROUPS[0]
    activations: str = "token"
    symmetric: bool = False
    exclude: tuple[str, ...] = ()
    forms: Forms = field(default_factory=Forms)
    fuse: bool = True
    attention: str = "int8"
    embeddings: str = "int8"
    from_dynamic: bool = False
    from_static: bool = False

    @property
    def has_integer_attention(self) -> bool:
        """Whether fused attention has products of integers."""
        return self.attention == "int8" and not self.forms.slow_attention

    @property
    def text(self) -> str:
        """The options that change numbers, for the metadata of the model."""
        group = f" group={self.group}" if self.weights == "int4" else ""
        return f"weights={self.weights}{group} activations={self.activations} symmetric={int(self.symmetric)}"

    def has_two_terms(self, node: ir.Node) -> bool:
        """Returns whether the activation of a layer gets two terms."""
        return self.activations == "two-term" or label(node) in self.forms.two_terms

    def has_words(self, node: ir.Node) -> bool:
        """Returns whether a layer becomes a product of words, if it can."""
        return self.weights == "int12" or label(node) in self.forms.words

    def check(self, node: ir.Node) -> None:
        """Checks that a layer is not excluded.

        Raises:
            Unconverted: Its name matches a pattern, or it stays in float for `min_snr` or for its speed.
        """
        if label(node) in self.forms.slow:
            raise Unconverted(Reason.FOR_SPEED)
        if label(node) in self.forms.floats:
            raise Unconverted(Reason.FOR_MIN_SNR)
        for pattern in self.exclude:
            if fnmatch.fnmatchcase(label(node), pattern):
                raise Unconverted(Reason.EXCLUDED, pattern=pattern)

    def check_patterns(self, model: ir.Model) -> None:
        """Checks that each pattern matches a layer, if the model has layers.

        Raises:
            DynqError: One does not.
        """
        layers = (node for _, graph in graphs(model) for node in graph if is_layer(node))
        names = list(dict.fromkeys(map(label, layers)))
        for pattern in self.exclude if names else ():
            if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
                some = ", ".join([*names[:_MAX_NAMES], *(["..."] if len(names) > _MAX_NAMES else [])])
                raise DynqError(f"no layer matches {pattern}; names of layers are {some}")


def checked(
    weights: str,
    group: int | None,
    activations: str,
    symmetric: bool,
    exclude: Iterable[str],
    *,
    from_dynamic: bool = False,
    from_static: bool = False,
    chooses_forms: bool = False,
    fuse: bool = True,
    attention: str = "int8",
    embeddings: str = "int8",
) -> Options:
    """Returns the options; `chooses_forms` says whether layers get other forms to reach a limit.

    Raises:
        DynqError: One has a wrong value, or two contradict each other.
    """
    if from_dynamic and from_static:
        raise DynqError("from_dynamic and from_static are for two kinds of models; give one of them")
    for given, function in ((from_dynamic, "dynamic"), (from_static, "static")):
        if given and chooses_forms:
            raise DynqError(
                f"min_snr keeps layers in float, but a model that quantize_{function} made has no float layers; leave "
                f"out --min-snr (min_snr) and other limits, or quantize the float model without --from-{function} "
                f"(from_{function})"
            )
    for name, value, choices in (
        ("weights", weights, WEIGHTS),
        ("activations", activations, ACTIVATIONS),
        ("attention", attention, ATTENTION),
        ("embeddings", embeddings, EMBEDDINGS),
    ):
        if value not in choices:
            raise DynqError(f"{name} is {value!r}, expected {', '.join(choices[:-1])} or {choices[-1]}")
    if group is not None and weights != "int4":
        raise DynqError("group is the number of 4-bit weights that share a scale; give weights int4 as well")
    if group is not None and group not in GROUPS:
        raise DynqError(f"group is {group!r}, expected {', '.join(map(str, GROUPS[:-1]))} or {GROUPS[-1]}")
    if symmetric and weights == "int12":
        raise DynqError("symmetric is for activations of 8 bits; leave it out with weights int12")
    if symmetric and activations != "token":
        raise DynqError("symmetric is for activations per token; give activations token, or leave symmetric out")
    if weights == "int12" and activations != "token":
        raise DynqError("weights int12 have activations of 13 bits for each token; leave activations out")
    if isinstance(exclude, str):
        raise DynqError(f"exclude is the text {exclude!r}, expected a list of patterns")
    if chooses_forms or activations == "two-term" or weights == "int12":
        attention = "float"  # its products have one term, and no layer can be left out to remove their noise
    if weights == "int12":
        embeddings = "keep"  # rows of 8 bits have more noise
    return Options(
        weights,
        group or GROUPS[0],
        activations,
        symmetric,
        tuple(exclude),
        fuse=fuse,
        attention=attention,
        embeddings=embeddings,
        from_dynamic=from_dynamic,
        from_static=from_static,
    )


def is_layer(node: ir.Node) -> bool:
    """Returns whether rules of this package quantize a node or report it as unconverted, if it has weights."""
    if is_embedding(node) and (table := node.inputs[0]) is not None:
        tensor = ir.convenience.get_const_tensor(table)
        return tensor is not None and len(tensor.shape) == RANK_OF_TABLE
    if node.domain in STANDARD_DOMAINS:
        return node.op_type in LAYERS
    if node.domain == NCHWC:
        return node.op_type == "Conv"
    return node.domain == MICROSOFT and node.op_type in OF_OPTIMIZER | NBITS_PRODUCTS | {DYNAMIC_LSTM}


def is_embedding(node: ir.Node) -> bool:
    """Returns whether a node gathers rows of its first input, which may be a table of embeddings."""
    is_gather = node.domain in STANDARD_DOMAINS and node.op_type == "Gather" and node.inputs[0] is not None
    return is_gather and node.attributes.get_int("axis", 0) == 0
