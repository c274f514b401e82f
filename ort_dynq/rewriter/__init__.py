"""The graph rewriter: turns the dynamic quantization chains of a model into calls of ort_dynq's operators.

A rewritten model contains a model-local function for each operator. Its body computes the same with standard
operators (functions.py). So the model also runs without the plugin, but slowly.

rules.py lists the rules, by phase; each is in the folder of its subject. They read types, shapes and constants from
analysis/, and ask policy/ whether ONNX Runtime does better. The loop (loop.py) applies the rules, checks opsets and
writes the report.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from ..errors import DynqError
from ..inputs import Array, Given
from ..opsets import check_names, check_versions, opset_of
from ..rewrite_options import RewriteOptions
from ..runtime import serialize
from ..shown import Shown, Table
from ..storage import check_data, explained, refusal_of_original, save, tensors, to_proto
from ..structure import structure_of
from ..versions import load_checked
from .functions import add_functions, append_functions
from .functions import require_plugin as require_plugin_of
from .inner_weights import with_weights_outside
from .loop import convert, op_counts
from .metadata import EXACT, OPTIONS, note_origin
from .report import Finding, Report
from .rules import FIRST_FUSIONS, IN_FLOAT32, LAST_FUSIONS, PHASES
from .variants import Widening, convert_best

if TYPE_CHECKING:
    from ..storage import Model

_LOG = logging.getLogger(__name__)

__all__ = ["EXACT", "Finding", "Report", "Result", "inspect", "rewrite"]


class Result(Shown):
    """A new model, and the report of what was converted in it.

    Attributes:
        report: The report.
    """

    def __init__(self, model: ir.Model, report: Report, *, lacks_functions: bool = False) -> None:
        """Keeps a model and a report.

        Args:
            model: The model.
            report: The report.
            lacks_functions: Whether functions of ort_dynq's operators are still to be added. This takes as long as
                the rest of a rewrite, so it waits until somebody needs the model.
        """
        self._model, self.report, self._lacks_functions = model, report, lacks_functions

    def _line(self) -> str:
        return self.report.summary

    def _tables(self) -> Iterable[Table]:
        return self.report._tables()

    @property
    def model(self) -> ir.Model:
        """The model."""
        if self._lacks_functions:
            self._lacks_functions = False
            add_functions(self._model, opset_of(self._model))
        return self._model

    def require_plugin(self) -> Result:
        """Removes from the model the functions with which it runs without the plugin, but slowly; returns the result.

        Without the plugin, a session then fails at once: ``ort_dynq:RowProgram(-1) is not a registered function/op``.
        """
        require_plugin_of(self._model)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Lets results be pickled and copied deeply: nodes refer to each other, so a model goes as bytes.

        External data stay in their files.

        Raises:
            DynqError: The model is larger than 2 GB.
        """
        folders = [each.base_dir for each in tensors(self._model) if isinstance(each, ir.ExternalTensor)]
        return {**self.__dict__, "_model": (serialize(to_proto(self._model)), folders)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Reads the model."""
        content, folders = state["_model"]
        self.__dict__.update(state, _model=ir.from_proto(onnx.ModelProto.FromString(content)))
        external = (each for each in tensors(self._model) if isinstance(each, ir.ExternalTensor))
        for tensor, folder in zip(external, folders, strict=True):
            tensor.base_dir = folder

    def __copy__(self) -> Result:
        """Returns another result with the same model and report."""
        return Result(self._model, self.report, lacks_functions=self._lacks_functions)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the model in one step: the file is complete, or it is not there.

        External data of the model are copied beside it, unless they are there already.

        Raises:
            DynqError: The file cannot be written, or ONNX Runtime refuses the model: then nothing is written.
        """
        self.check()
        save(self.model, Path(path))

    def check(self) -> None:
        """Checks that stock ONNX Runtime loads the original, so that the new model is worth writing.

        Raises:
            DynqError: It does not; the message names the node.
        """
        if self.report.refusal:
            raise DynqError(self.report.refusal)

    def to_proto(self) -> onnx.ModelProto:
        """Returns the model as a ModelProto.

        Raises:
            DynqError: The model cannot be serialized.
        """
        proto = to_proto(self._model)
        if self._lacks_functions:
            append_functions(proto, self._model, opset_of(self._model))
        return proto


def rewrite(
    model: Model,
    *,
    exact: bool = False,
    fuse: bool = False,
    weights_only: str = "keep",
    keep_fused: bool = False,
    require_plugin: bool = False,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Result:
    """Turns chains with run-time quantization parameters into ort_dynq's operators.

    The given model is not changed. The rewritten model keeps the names of its inputs and outputs, its metadata and its
    doc strings, and refers to the same external data. Its results are the same bit for bit, with two exceptions. Float
    products of quantized activations and quantized weights become integer products, as in ONNX Runtime's own fusions:
    integer sums are exact, and float sums are rounded. MatMulNBits of accuracy_level 4 quantizes its activation itself;
    the operators in its place use other codes, with steps that are not larger. The same holds for
    DynamicQuantizeLSTM and QMoE.

    Args:
        model: A path, a serialized model, a ModelProto or an onnx_ir Model.
        exact: Whether float products stay float products, so that every result is the same bit for bit.
        fuse: Whether normalizations, activation functions and attention are fused, too, with each other and with the
            quantization after them. Their last bits change.
        weights_only: What becomes of products of a float activation and quantized weights. "keep": MatMulNBits and QMoE
            stay if they ask for a float activation. MatMulNBits of accuracy_level 4 has it quantized in the blocks of
            its weights, and weights behind DequantizeLinear get "two-term" activations. "blocks": all activations are
            quantized in blocks. "two-term": all get two codes of 8 bits for each element, with a signal-to-noise ratio
            of about 90 dB, also those of MatMulNBits and QMoE that ONNX Runtime quantizes itself.
        keep_fused: Whether integer products stay that ONNX Runtime fuses with the quantization before them. On x86 CPUs
            without VNNI, those of uint8 codes and int8 weights saturate: their results are wrong there.
        require_plugin: Whether the rewritten model has no functions with which it runs without the plugin, but slowly:
            see :meth:`Result.require_plugin`.
        inputs, shapes: As for :func:`ort_dynq.verify`. If the model is of an opset before 13 and is converted, its
            outputs in both opsets are compared on these inputs.

    Returns:
        The rewritten model and the report.

    Raises:
        DynqError: The file is missing or is not a valid ONNX model, its external data lie
            outside of its folder, it is newer than the installed onnxruntime, `exact` contradicts `fuse` or
            `weights_only`, `weights_only` is unknown, or the model has no input of a given name.
    """
    options = RewriteOptions(exact=exact, fuse=fuse, weights_only=weights_only, keep_fused=keep_fused)
    options.check()
    phases = (*FIRST_FUSIONS, *PHASES, *LAST_FUSIONS) if fuse else PHASES
    apply = functools.partial(convert, phases=phases, options=options)
    loaded = load_checked(model)
    check_versions(loaded)
    given = Given(inputs or {}, shapes or {})
    check_names(loaded, given)
    before = op_counts(loaded)
    with explained(model):
        structure = structure_of(loaded)
        rewritten, report = convert_best(loaded, apply, [given], Widening(IN_FLOAT32))
    report.before = before
    report.refuse(refusal_of_original(structure, model))
    try:
        check_data(loaded)
    except DynqError as error:  # a model may be inspected without its weights, but reasons may be other ones
        report.notes.append(str(error))
    if not report.rewritten:
        report.after = before
        if report.is_prepared:
            # Without the changes that have helped no other rule.
            rewritten = with_weights_outside(load_checked(model))
    else:
        was_exact = rewritten.metadata_props.get(EXACT, "1") == "1"
        rewritten.metadata_props[EXACT] = "1" if exact and was_exact else "0"
        rewritten.metadata_props[OPTIONS] = options.text
        note_origin(rewritten, model, report.initializers)
    report.log(_LOG)
    result = Result(rewritten, report, lacks_functions=True)
    return result.require_plugin() if require_plugin else result


def inspect(
    model: Model,
    *,
    exact: bool = False,
    fuse: bool = False,
    weights_only: str = "keep",
    keep_fused: bool = False,
    inputs: Mapping[str, Array] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> Report:
    """Returns the report of a rewrite alone: the model is not changed.

    Args:
        model, exact, fuse, weights_only, keep_fused, inputs, shapes: As for :func:`rewrite`.

    Raises:
        DynqError: As :func:`rewrite`.
    """
    report = rewrite(
        model,
        exact=exact,
        fuse=fuse,
        weights_only=weights_only,
        keep_fused=keep_fused,
        inputs=inputs,
        shapes=shapes,
    ).report
    report.is_plan = True
    return report
